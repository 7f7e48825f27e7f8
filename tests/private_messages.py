"""Private text in every field of every form of messages: provider messages, entries, exports, files to import.

In each function `m` is the marker, the private text to insert.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from exports_chatgpt import Talk as ChatGPT
from exports_chatgpt import content
from exports_claude import Talk as Claude
from palimpsest import Audio, Entry, File, Image, Memory, Opaque, Reasoning, Text
from palimpsest.log.entry import Native, Part
from writer import quarters

Message = dict[str, Any]


def escaped(text: str) -> str:
    """Return the text with every character as a JSON escape."""
    return "".join(f"\\u{ord(character):04x}" for character in text)


def arguments(m: str) -> str:
    """Return arguments of a tool as JSON text, with the marker in keys, values, escapes, and JSON within strings."""
    inner = json.dumps({m: [m, {"deep": f"x {m} y"}]})
    hidden = json.dumps(f'{{"deep": "{escaped(m)}", "cut": "{escaped(m)}')
    return (
        f'{{"plain": "{m}", "{m}": 1, "escaped": "{escaped(m)}", "{escaped(m)}": 2, "nested": {json.dumps(inner)}, '
        f'"hidden": {hidden}, "more": {json.dumps(hidden)}, "list": [["{m}"]]}}'
    )


def parts(m: str) -> tuple[Part, ...]:
    """Return a part of every kind."""
    return (
        Text(text=f"say {m} twice: {m}", extra={m: m, "cited": [{"of": m}]}),
        Image(source=f"https://example.org/?of={m}&as=png", detail=m, extra={"alt": m}),
        Image(source=f"data:text/plain,{m}"),
        Image(source=f"data:image/png;name={m};base64,QUJD"),
        Image(source=f"data:image/png;base64,My {m} is no base64"),
        Audio(data="UklG" * 64 + f" it is {m}", format="wav", extra={"transcript": m}),
        File(filename=f"{m} plan.pdf", data="JVBE" * 64 + f" about {m}"),
        File(data=f"data:text/plain;charset=utf-8,{m}", extra={"title": m}),
        Opaque(item={"type": "strange", m: [m, {m: {m: m}}], "json": json.dumps({"a": m})}),
        Reasoning(text=f"they said {m}", extra={"hint": m}),
    )


def metadata(m: str) -> dict[str, Any]:
    """Return metadata with the marker in keys and values at several depths."""
    return {m: m, "list": [m, {m: [m]}], "deep": {"a": {"b": f"<{m}>"}}, "tags": [m]}


def entries(m: str) -> list[Entry]:
    """Return entries as a program makes them, with fields of a provider's message in `native`."""
    native = Native(format="openai", keep={m: m, "refusal": m}, absent=(m,))
    call = {"id": "c2", "type": "custom", "custom": {"name": "find", "input": f"find {m}"}}
    return [
        Entry(content=parts(m), name=m, metadata=metadata(m), native=native),
        Entry(content=f"plain {m}", native=Native(format=m, keep={"x": escaped(m)})),
        Entry(
            kind="tool_call", role="assistant", name="find", call_id="c1", content=arguments(m), metadata=metadata(m)
        ),
        Entry(kind="tool_result", role="tool", call_id="c1", content=f"found {m}", status="success"),
        Entry(
            kind="tool_call",
            role="assistant",
            name="find",
            call_id="c2",
            content=f"find {m}",
            native=Native(format="openai", call=call),
        ),
        Entry(kind="tool_result", role="tool", call_id="c2", content=(Text(text=m),)),
        Entry(kind="context", content=f"# {m}", name=f"{m} notes.md", metadata=metadata(m)),
        Entry(kind="summary", role="assistant", content=f"they spoke of {m}"),
        Entry(role="system", content=f"never tell {m}"),
        Entry(role="assistant", content=f"it is {m}"),
    ]


def _openai(m: str) -> list[Message]:
    call = {"id": "o1", "type": "function", "function": {"name": "find", "arguments": arguments(m)}}
    image = {"type": "image_url", "image_url": {"url": f"https://example.org/{m}", "detail": "low"}}
    file = {"type": "file", "file": {"filename": m, "file_data": f"data:text/plain,{m}"}}
    sound = {"type": "input_audio", "input_audio": {"data": f"it is {m}", "format": "wav"}}
    return [
        {"role": "developer", "content": f"never tell {m}", m: m},
        {"role": "user", "name": m.replace("@", "_at_") if "@" in m else "ann", "content": f"I am {m}"},
        {
            "role": "user",
            "content": [{"type": "text", "text": m, "x": {m: m}}, image, file, sound, {"type": "new", m: m}],
        },
        {"role": "assistant", "content": None, "refusal": m, "tool_calls": [call], "annotations": [{"of": m}]},
        {"role": "tool", "tool_call_id": "o1", "content": [{"type": "text", "text": f"found {m}"}], m: [m]},
        {"role": "assistant", "content": f"it is {m}", "audio": {"id": "a", "transcript": m}},
    ]


def _responses(m: str) -> list[Message]:
    said = {"type": "output_text", "text": f"it is {m}", "annotations": [{"type": "url", "url": m}], "logprobs": [m]}
    return [
        {"role": "user", "content": [{"type": "input_text", "text": m}, {"type": "input_image", "image_url": m}]},
        {"role": "user", "content": [{"type": "input_file", "filename": m, "file_data": f"data:text/plain,{m}"}]},
        {
            "type": "reasoning",
            "id": "r1",
            "summary": [{"type": "summary_text", "text": m}],
            "encrypted_content": "QUJD",
        },
        {"type": "function_call", "call_id": "r1", "name": "find", "arguments": arguments(m), "status": "completed"},
        {"type": "function_call_output", "call_id": "r1", "output": f"found {m}", m: m},
        {"type": "web_search_call", "id": "w1", "status": "completed", "action": {"type": "search", "query": m}},
        {"type": "mcp_call", "id": "m1", "name": "f", "server_label": m, "arguments": arguments(m), "output": m},
        {"type": "message", "role": "assistant", "id": "x", "status": "completed", "content": [said]},
    ]


def _anthropic(m: str) -> list[Message]:
    document = {"type": "text", "media_type": "text/plain", "data": f"about {m}"}
    return [
        {"role": "user", "content": [{"type": "text", "text": m, "cache_control": {"type": "ephemeral"}, "x": m}]},
        {"role": "user", "content": [{"type": "document", "title": m, "context": m, "source": document}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": f"https://example.org/{m}"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": f"they said {m}", "signature": "QUJD"},
                {"type": "redacted_thinking", "data": "QUJD"},
                {"type": "text", "text": m, "citations": [{"cited_text": m}]},
                {"type": "tool_use", "id": "a1", "name": "find", "input": json.loads(arguments(m)), "x": {m: m}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a1", "content": [{"type": "text", "text": f"found {m}"}]},
                {"type": "strange", m: {m: m}},
            ],
        },
        {"role": "assistant", "content": f"it is {m}"},
    ]


def _gemini(m: str) -> list[Message]:
    call = {"id": "g1", "name": "find", "args": json.loads(arguments(m))}
    return [
        {"role": "user", "parts": [{"text": m}, {"fileData": {"fileUri": f"https://example.org/{m}"}}]},
        {"role": "user", "parts": [{"inlineData": {"mimeType": "text/plain", "data": "QUJD"}, "x": {m: m}}]},
        {"role": "model", "parts": [{"text": m, "thought": True}, {"functionCall": call, "thoughtSignature": "QUJD"}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "g1", "name": "find", "response": {m: [m]}}}]},
        {"role": "model", "parts": [{"executableCode": {"language": "PYTHON", "code": f"print('{m}')"}}]},
        {"role": "model", "parts": [{"text": f"it is {m}"}]},
    ]


MESSAGES = {"openai": _openai, "openai-responses": _responses, "anthropic": _anthropic, "gemini": _gemini}
"""Functions that return messages of each format that can be decoded."""


def play(session: Any, m: str) -> None:
    """Put the marker into every place of a session without a policy."""
    session.add_entries(entries(m))
    session.add_context(f"new {m}", name=f"{m} notes.md")
    session.add_user_message("gone")
    session.erase([session.entries()[-1].id], reason=f"because of {m}")
    session.context()
    session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})


def export(m: str, session_id: str = "s") -> dict[str, Any]:
    """Return the export of a session without a policy, with the marker in every field of an export."""

    def summarizer(prompt: str) -> str:
        return f"They spoke of {m}.\n\n## Facts\n- {m} is open [1]\n"

    with Memory.open("memory://") as memory:
        options: dict[str, Any] = {"counter": quarters, "summarizer": summarizer, "max_tokens": 100_000}
        session = memory.session(session_id, **options)
        for number in range(4):
            session.add_user_message(f"{number} {m} " + "words to be summarised " * 30)
            session.add_assistant_message(f"{number} {m} " + "many words of an answer " * 30)
        play(session, m)
        strange = f"not contains(message.content, 'x{m}')"
        memory.session(session_id, **{**options, "max_tokens": 900, "view": "small", "conditions": [strange]}).context()
        exported = session.export()
    head = exported["head"]
    head["epoch_reason"] = f"because of {m}"
    head["attempts"] = {"cursors": {f"mine {m}": 3}, "fingerprint": m, "failures": 1}
    for record in exported["records"]:
        record["reason"] = f"because of {m}"
        record["detail"] = {**record.get("detail", {}), m: [m, {"to": m}]}
        summary = (record.get("compaction") or {}).get("summary")
        if summary:
            summary |= {"model": f"model {m}", "prompt": m, "fallback": m, "counter": m}
            summary["items"] = [*summary.get("items", ()), {"kind": "open", "text": m, "status": m}]
        for shown in (record.get("cut") or {}).get("summaries", ()):
            if len(shown) > 3:
                shown[3] = m
    for tombstone in exported["tombstones"]:
        tombstone |= {"content": m, "name": m, "metadata": metadata(m)}
    return exported


# --- files


def files(m: str, folder: Path) -> dict[str, Path]:
    """Write a file for every import source; return the paths by source, those of messages by source and format."""
    found: dict[str, Path] = {}
    for name, make in MESSAGES.items():
        found[f"messages {name}"] = _put(folder / f"{name}.jsonl", "".join(f"{json.dumps(one)}\n" for one in make(m)))
    found["palimpsest"] = _put(folder / "session.json", json.dumps(export(m, "exported")))
    found["chatgpt"] = _put(folder / "chatgpt.json", json.dumps([_chatgpt(m).done()]))
    found["claude"] = _put(folder / "claude.json", json.dumps([_claude(m).done()]))
    found["langchain"] = _put(folder / "langchain.json", json.dumps(_langchain(m)))
    found["pydantic-ai"] = _put(folder / "pydantic.json", json.dumps(_pydantic(m)))
    found["openai-agents"] = _agents(folder / "agents.db", m)
    return found


def _put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _chatgpt(m: str) -> ChatGPT:
    talk = ChatGPT("talk-1", f"About {m}")
    about = content(kind="user_editable_context", user_profile=f"I am {m}.", user_instructions=m)
    talk.said("user", about, metadata={"is_visually_hidden_from_conversation": True, "is_user_system_message": True})
    talk.said("user", f"I am {m}", metadata={m: m, "attachments": [{"name": m}]}, name=m)
    thought = {"summary": m, "content": f"it may be {m}", "chunks": [m], "finished": True}
    talk.said("assistant", content(kind="thoughts", thoughts=[thought], source_analysis_msg_id="x"))
    talk.said("assistant", content(kind="code", language="json", text=arguments(m)), recipient="browser")
    quoted = content(kind="tether_quote", url=f"https://example.org/{m}", domain=m, text=m, title=m)
    talk.said("tool", quoted, name="browser")
    talk.said("assistant", content(kind=f"strange {m}", snippet=m))
    talk.said("assistant", f"it is {m}")
    talk.said(f"critic {m}", m)
    return talk


def _claude(m: str) -> Claude:
    talk = Claude("claude-1", f"About {m}")
    attachment = {"file_name": m, "file_size": 9, "file_type": "md", "extracted_content": f"# {m}"}
    talk.said("human", f"I am {m}", attachments=[attachment], files=[{"file_name": m}])
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": json.loads(arguments(m)), "message": m}
    result = {"type": "tool_result", "tool_use_id": "t1", "name": "find", "content": [{"type": "text", "text": m}]}
    talk.said("assistant", {"type": "thinking", "thinking": m, "summaries": [{"summary": m}]}, use, result, f"is {m}")
    talk.said("assistant", {"type": f"strange {m}", m: m})
    talk.said(f"somebody {m}", m)
    return talk


def _langchain(m: str) -> list[Message]:
    said = {"content": f"it is {m}", "additional_kwargs": {m: m}, "response_metadata": {"x": m}, "type": "ai"}
    calls = [{"name": "find", "args": json.loads(arguments(m)), "id": "l1", "type": "tool_call"}]
    bad = [{"name": "find", "args": f"{{bad {m}", "id": "l2", "error": m, "type": "invalid_tool_call"}]
    return [
        {"type": "human", "data": {"content": [f"I am {m}", {"type": "text", "text": m}], "name": m, "type": "human"}},
        {"type": "ai", "data": {**said, "tool_calls": calls, "invalid_tool_calls": bad}},
        {"type": "tool", "data": {"content": f"found {m}", "tool_call_id": "l1", "artifact": {m: m}, "type": "tool"}},
        {"type": "ai", "data": said},
    ]


def _pydantic(m: str) -> list[Message]:
    at = "2025-05-04T03:02:01Z"
    usage = {"input_tokens": 1}
    return [
        {
            "kind": "request",
            "parts": [
                {"part_kind": "system-prompt", "content": f"never tell {m}", "timestamp": at},
                {
                    "part_kind": "user-prompt",
                    "content": [m, {"kind": "image-url", "url": f"https://e.org/{m}"}],
                    "timestamp": at,
                },
            ],
            "instructions": f"be kind to {m}",
        },
        {
            "kind": "response",
            "parts": [
                {"part_kind": "thinking", "content": m},
                {"part_kind": "text", "content": m},
                {"part_kind": "tool-call", "tool_name": "find", "args": arguments(m), "tool_call_id": "p1"},
            ],
            "usage": usage,
            "timestamp": at,
            "provider_details": {m: m},
        },
        {
            "kind": "request",
            "parts": [
                {
                    "part_kind": "tool-return",
                    "tool_name": "find",
                    "content": {m: m},
                    "tool_call_id": "p1",
                    "timestamp": at,
                },
                {"part_kind": "retry-prompt", "content": f"again, {m}", "timestamp": at},
            ],
        },
        {
            "kind": "response",
            "parts": [{"part_kind": "text", "content": f"it is {m}"}],
            "usage": usage,
            "timestamp": at,
        },
    ]


def _agents(path: Path, m: str) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TEXT, updated_at TEXT)")
        db.execute(
            "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT, message_data TEXT, created_at TEXT)"
        )
        db.execute("INSERT INTO agent_sessions VALUES ('agents', '2025-05-04 03:02:01', '2025-05-04 03:02:01')")
        rows = [("agents", json.dumps(one), "2025-05-04 03:02:01") for one in _responses(m)]
        rows.append(("agents", f"{{no JSON {m}", "2025-05-04 03:02:01"))
        db.executemany("INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (?, ?, ?)", rows)
    return path


def malformed(m: str) -> list[str]:
    """Return lines that every format refuses, each with the marker where an error could quote it."""
    return [
        f"{{no JSON {m}",
        json.dumps(m),
        json.dumps({"role": m, "content": "x"}),
        json.dumps({"role": "user", "content": {m: m}}),
        json.dumps({"role": "user", "content": [{"type": "text", "text": [m]}]}),
        json.dumps({"role": "assistant", "tool_calls": m}),
        json.dumps({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": [m], "arguments": m}}]}),
        json.dumps({"role": "tool", "content": [m], "tool_call_id": [m]}),
        json.dumps([[m]]),
    ]
