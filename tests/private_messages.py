"""Private text in every field of every form of messages: provider messages, entries, exports, files to import.

In each function `marker` is the private text to insert.
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


def arguments(marker: str) -> str:
    """Return arguments of a tool as JSON text, with the marker in keys, values, escapes, and JSON within strings."""
    inner = json.dumps({marker: [marker, {"deep": f"x {marker} y"}]})
    hidden = json.dumps(f'{{"deep": "{escaped(marker)}", "cut": "{escaped(marker)}')
    return (
        f'{{"plain": "{marker}", "{marker}": 1, "escaped": "{escaped(marker)}", "{escaped(marker)}": 2, '
        f'"nested": {json.dumps(inner)}, '
        f'"hidden": {hidden}, "more": {json.dumps(hidden)}, "list": [["{marker}"]]}}'
    )


def parts(marker: str) -> tuple[Part, ...]:
    """Return a part of every kind."""
    return (
        Text(text=f"say {marker} twice: {marker}", extra={marker: marker, "cited": [{"of": marker}]}),
        Image(source=f"https://example.org/?of={marker}&as=png", detail=marker, extra={"alt": marker}),
        Image(source=f"data:text/plain,{marker}"),
        Image(source=f"data:image/png;name={marker};base64,QUJD"),
        Image(source=f"data:image/png;base64,My {marker} is no base64"),
        Audio(data="UklG" * 64 + f" it is {marker}", format="wav", extra={"transcript": marker}),
        File(filename=f"{marker} plan.pdf", data="JVBE" * 64 + f" about {marker}"),
        File(data=f"data:text/plain;charset=utf-8,{marker}", extra={"title": marker}),
        Opaque(
            item={"type": "strange", marker: [marker, {marker: {marker: marker}}], "json": json.dumps({"a": marker})}
        ),
        Reasoning(text=f"they said {marker}", extra={"hint": marker}),
    )


def metadata(marker: str) -> dict[str, Any]:
    """Return metadata with the marker in keys and values at several depths."""
    return {marker: marker, "list": [marker, {marker: [marker]}], "deep": {"a": {"b": f"<{marker}>"}}, "tags": [marker]}


def entries(marker: str) -> list[Entry]:
    """Return entries as a program makes them, with fields of a provider's message in `native`."""
    native = Native(format="openai", keep={marker: marker, "refusal": marker}, absent=(marker,))
    call = {"id": "c2", "type": "custom", "custom": {"name": "find", "input": f"find {marker}"}}
    return [
        Entry(content=parts(marker), name=marker, metadata=metadata(marker), native=native),
        Entry(content=f"plain {marker}", native=Native(format=marker, keep={"x": escaped(marker)})),
        Entry(
            kind="tool_call",
            role="assistant",
            name="find",
            call_id="c1",
            content=arguments(marker),
            metadata=metadata(marker),
        ),
        Entry(kind="tool_result", role="tool", call_id="c1", content=f"found {marker}", status="success"),
        Entry(
            kind="tool_call",
            role="assistant",
            name="find",
            call_id="c2",
            content=f"find {marker}",
            native=Native(format="openai", call=call),
        ),
        Entry(kind="tool_result", role="tool", call_id="c2", content=(Text(text=marker),)),
        Entry(kind="context", content=f"# {marker}", name=f"{marker} notes.md", metadata=metadata(marker)),
        Entry(kind="summary", role="assistant", content=f"they spoke of {marker}"),
        Entry(role="system", content=f"never tell {marker}"),
        Entry(role="assistant", content=f"it is {marker}"),
    ]


def _openai(marker: str) -> list[Message]:
    call = {"id": "o1", "type": "function", "function": {"name": "find", "arguments": arguments(marker)}}
    image = {"type": "image_url", "image_url": {"url": f"https://example.org/{marker}", "detail": "low"}}
    file = {"type": "file", "file": {"filename": marker, "file_data": f"data:text/plain,{marker}"}}
    sound = {"type": "input_audio", "input_audio": {"data": f"it is {marker}", "format": "wav"}}
    return [
        {"role": "developer", "content": f"never tell {marker}", marker: marker},
        {"role": "user", "name": marker.replace("@", "_at_") if "@" in marker else "ann", "content": f"I am {marker}"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": marker, "x": {marker: marker}},
                image,
                file,
                sound,
                {"type": "new", marker: marker},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "refusal": marker,
            "tool_calls": [call],
            "annotations": [{"of": marker}],
        },
        {
            "role": "tool",
            "tool_call_id": "o1",
            "content": [{"type": "text", "text": f"found {marker}"}],
            marker: [marker],
        },
        {"role": "assistant", "content": f"it is {marker}", "audio": {"id": "a", "transcript": marker}},
    ]


def _responses(marker: str) -> list[Message]:
    said = {
        "type": "output_text",
        "text": f"it is {marker}",
        "annotations": [{"type": "url", "url": marker}],
        "logprobs": [marker],
    }
    return [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": marker}, {"type": "input_image", "image_url": marker}],
        },
        {
            "role": "user",
            "content": [{"type": "input_file", "filename": marker, "file_data": f"data:text/plain,{marker}"}],
        },
        {
            "type": "reasoning",
            "id": "r1",
            "summary": [{"type": "summary_text", "text": marker}],
            "encrypted_content": "QUJD",
        },
        {
            "type": "function_call",
            "call_id": "r1",
            "name": "find",
            "arguments": arguments(marker),
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "r1", "output": f"found {marker}", marker: marker},
        {"type": "web_search_call", "id": "w1", "status": "completed", "action": {"type": "search", "query": marker}},
        {
            "type": "mcp_call",
            "id": "m1",
            "name": "f",
            "server_label": marker,
            "arguments": arguments(marker),
            "output": marker,
        },
        {"type": "message", "role": "assistant", "id": "x", "status": "completed", "content": [said]},
    ]


def _anthropic(marker: str) -> list[Message]:
    document = {"type": "text", "media_type": "text/plain", "data": f"about {marker}"}
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": marker, "cache_control": {"type": "ephemeral"}, "x": marker}],
        },
        {"role": "user", "content": [{"type": "document", "title": marker, "context": marker, "source": document}]},
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "url", "url": f"https://example.org/{marker}"}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": f"they said {marker}", "signature": "QUJD"},
                {"type": "redacted_thinking", "data": "QUJD"},
                {"type": "text", "text": marker, "citations": [{"cited_text": marker}]},
                {
                    "type": "tool_use",
                    "id": "a1",
                    "name": "find",
                    "input": json.loads(arguments(marker)),
                    "x": {marker: marker},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a1", "content": [{"type": "text", "text": f"found {marker}"}]},
                {"type": "strange", marker: {marker: marker}},
            ],
        },
        {"role": "assistant", "content": f"it is {marker}"},
    ]


def _gemini(marker: str) -> list[Message]:
    call = {"id": "g1", "name": "find", "args": json.loads(arguments(marker))}
    return [
        {"role": "user", "parts": [{"text": marker}, {"fileData": {"fileUri": f"https://example.org/{marker}"}}]},
        {"role": "user", "parts": [{"inlineData": {"mimeType": "text/plain", "data": "QUJD"}, "x": {marker: marker}}]},
        {
            "role": "model",
            "parts": [{"text": marker, "thought": True}, {"functionCall": call, "thoughtSignature": "QUJD"}],
        },
        {"role": "user", "parts": [{"functionResponse": {"id": "g1", "name": "find", "response": {marker: [marker]}}}]},
        {"role": "model", "parts": [{"executableCode": {"language": "PYTHON", "code": f"print('{marker}')"}}]},
        {"role": "model", "parts": [{"text": f"it is {marker}"}]},
    ]


MESSAGES = {"openai": _openai, "openai-responses": _responses, "anthropic": _anthropic, "gemini": _gemini}
"""Functions that return messages of each format that can be decoded."""


def play(session: Any, marker: str) -> None:
    """Put the marker into every place of a session without a policy."""
    session.add_entries(entries(marker))
    session.add_context(f"new {marker}", name=f"{marker} notes.md")
    session.add_user_message("gone")
    session.erase([session.entries()[-1].id], reason=f"because of {marker}")
    session.context()
    session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})


def export(marker: str, session_id: str = "s") -> dict[str, Any]:
    """Return the export of a session without a policy, with the marker in every field of an export."""

    def summarizer(prompt: str) -> str:
        return f"They spoke of {marker}.\n\n## Facts\n- {marker} is open [1]\n"

    with Memory.open("memory://") as memory:
        options: dict[str, Any] = {"counter": quarters, "summarizer": summarizer, "max_tokens": 100_000}
        session = memory.session(session_id, **options)
        for number in range(4):
            session.add_user_message(f"{number} {marker} " + "words to be summarised " * 30)
            session.add_assistant_message(f"{number} {marker} " + "many words of an answer " * 30)
        play(session, marker)
        strange = f"not contains(message.content, 'x{marker}')"
        memory.session(session_id, **{**options, "max_tokens": 900, "view": "small", "conditions": [strange]}).context()
        exported = session.export()
    head = exported["head"]
    head["epoch_reason"] = f"because of {marker}"
    head["attempts"] = {"cursors": {f"mine {marker}": 3}, "fingerprint": marker, "failures": 1}
    for record in exported["records"]:
        record["reason"] = f"because of {marker}"
        record["detail"] = {**record.get("detail", {}), marker: [marker, {"to": marker}]}
        summary = (record.get("compaction") or {}).get("summary")
        if summary:
            summary |= {"model": f"model {marker}", "prompt": marker, "fallback": marker, "counter": marker}
            summary["items"] = [*summary.get("items", ()), {"kind": "open", "text": marker, "status": marker}]
        for shown in (record.get("cut") or {}).get("summaries", ()):
            if len(shown) > 3:
                shown[3] = marker
    for tombstone in exported["tombstones"]:
        tombstone |= {"content": marker, "name": marker, "metadata": metadata(marker)}
    return exported


# --- files


def files(marker: str, folder: Path) -> dict[str, Path]:
    """Write a file for every import source; return the paths by source, those of messages by source and format."""
    found: dict[str, Path] = {}
    for name, make in MESSAGES.items():
        found[f"messages {name}"] = _put(
            folder / f"{name}.jsonl", "".join(f"{json.dumps(one)}\n" for one in make(marker))
        )
    found["palimpsest"] = _put(folder / "session.json", json.dumps(export(marker, "exported")))
    found["chatgpt"] = _put(folder / "chatgpt.json", json.dumps([_chatgpt(marker).done()]))
    found["claude"] = _put(folder / "claude.json", json.dumps([_claude(marker).done()]))
    found["langchain"] = _put(folder / "langchain.json", json.dumps(_langchain(marker)))
    found["pydantic-ai"] = _put(folder / "pydantic.json", json.dumps(_pydantic(marker)))
    found["openai-agents"] = _agents(folder / "agents.db", marker)
    return found


def _put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _chatgpt(marker: str) -> ChatGPT:
    talk = ChatGPT("talk-1", f"About {marker}")
    about = content(kind="user_editable_context", user_profile=f"I am {marker}.", user_instructions=marker)
    talk.said("user", about, metadata={"is_visually_hidden_from_conversation": True, "is_user_system_message": True})
    talk.said("user", f"I am {marker}", metadata={marker: marker, "attachments": [{"name": marker}]}, name=marker)
    thought = {"summary": marker, "content": f"it may be {marker}", "chunks": [marker], "finished": True}
    talk.said("assistant", content(kind="thoughts", thoughts=[thought], source_analysis_msg_id="x"))
    talk.said("assistant", content(kind="code", language="json", text=arguments(marker)), recipient="browser")
    quoted = content(kind="tether_quote", url=f"https://example.org/{marker}", domain=marker, text=marker, title=marker)
    talk.said("tool", quoted, name="browser")
    talk.said("assistant", content(kind=f"strange {marker}", snippet=marker))
    talk.said("assistant", f"it is {marker}")
    talk.said(f"critic {marker}", marker)
    return talk


def _claude(marker: str) -> Claude:
    talk = Claude("claude-1", f"About {marker}")
    attachment = {"file_name": marker, "file_size": 9, "file_type": "md", "extracted_content": f"# {marker}"}
    talk.said("human", f"I am {marker}", attachments=[attachment], files=[{"file_name": marker}])
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": json.loads(arguments(marker)), "message": marker}
    result = {"type": "tool_result", "tool_use_id": "t1", "name": "find", "content": [{"type": "text", "text": marker}]}
    talk.said(
        "assistant",
        {"type": "thinking", "thinking": marker, "summaries": [{"summary": marker}]},
        use,
        result,
        f"is {marker}",
    )
    talk.said("assistant", {"type": f"strange {marker}", marker: marker})
    talk.said(f"somebody {marker}", marker)
    return talk


def _langchain(marker: str) -> list[Message]:
    said = {
        "content": f"it is {marker}",
        "additional_kwargs": {marker: marker},
        "response_metadata": {"x": marker},
        "type": "ai",
    }
    calls = [{"name": "find", "args": json.loads(arguments(marker)), "id": "l1", "type": "tool_call"}]
    bad = [{"name": "find", "args": f"{{bad {marker}", "id": "l2", "error": marker, "type": "invalid_tool_call"}]
    return [
        {
            "type": "human",
            "data": {"content": [f"I am {marker}", {"type": "text", "text": marker}], "name": marker, "type": "human"},
        },
        {"type": "ai", "data": {**said, "tool_calls": calls, "invalid_tool_calls": bad}},
        {
            "type": "tool",
            "data": {"content": f"found {marker}", "tool_call_id": "l1", "artifact": {marker: marker}, "type": "tool"},
        },
        {"type": "ai", "data": said},
    ]


def _pydantic(marker: str) -> list[Message]:
    at = "2025-05-04T03:02:01Z"
    usage = {"input_tokens": 1}
    return [
        {
            "kind": "request",
            "parts": [
                {"part_kind": "system-prompt", "content": f"never tell {marker}", "timestamp": at},
                {
                    "part_kind": "user-prompt",
                    "content": [marker, {"kind": "image-url", "url": f"https://e.org/{marker}"}],
                    "timestamp": at,
                },
            ],
            "instructions": f"be kind to {marker}",
        },
        {
            "kind": "response",
            "parts": [
                {"part_kind": "thinking", "content": marker},
                {"part_kind": "text", "content": marker},
                {"part_kind": "tool-call", "tool_name": "find", "args": arguments(marker), "tool_call_id": "p1"},
            ],
            "usage": usage,
            "timestamp": at,
            "provider_details": {marker: marker},
        },
        {
            "kind": "request",
            "parts": [
                {
                    "part_kind": "tool-return",
                    "tool_name": "find",
                    "content": {marker: marker},
                    "tool_call_id": "p1",
                    "timestamp": at,
                },
                {"part_kind": "retry-prompt", "content": f"again, {marker}", "timestamp": at},
            ],
        },
        {
            "kind": "response",
            "parts": [{"part_kind": "text", "content": f"it is {marker}"}],
            "usage": usage,
            "timestamp": at,
        },
    ]


def _agents(path: Path, marker: str) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TEXT, updated_at TEXT)")
        db.execute(
            "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT, message_data TEXT, created_at TEXT)"
        )
        db.execute("INSERT INTO agent_sessions VALUES ('agents', '2025-05-04 03:02:01', '2025-05-04 03:02:01')")
        rows = [("agents", json.dumps(one), "2025-05-04 03:02:01") for one in _responses(marker)]
        rows.append(("agents", f"{{no JSON {marker}", "2025-05-04 03:02:01"))
        db.executemany("INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (?, ?, ?)", rows)
    return path


def malformed(marker: str) -> list[str]:
    """Return lines that every format refuses, each with the marker where an error could quote it."""
    return [
        f"{{no JSON {marker}",
        json.dumps(marker),
        json.dumps({"role": marker, "content": "x"}),
        json.dumps({"role": "user", "content": {marker: marker}}),
        json.dumps({"role": "user", "content": [{"type": "text", "text": [marker]}]}),
        json.dumps({"role": "assistant", "tool_calls": marker}),
        json.dumps(
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": [marker], "arguments": marker}}]}
        ),
        json.dumps({"role": "tool", "content": [marker], "tool_call_id": [marker]}),
        json.dumps([[marker]]),
    ]
