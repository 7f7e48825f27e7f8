"""Importing LangChain's messages, written by langchain_core itself."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from palimpsest import Audio, File, Image, Memory, Opaque, Reasoning, Text
from palimpsest.formats import find_format
from sdks import load


@pytest.fixture(scope="module")
def lc() -> Any:
    """Return langchain_core.messages."""
    return load("langchain_core.messages")


def as_dicts(messages: list[Any]) -> Any:
    """Return the messages as `messages_to_dict` writes them."""
    return load("langchain_core.messages").messages_to_dict(messages)


def as_constructors(messages: list[Any]) -> Any:
    """Return the messages as `dumpd` writes them."""
    return load("langchain_core.load").dumpd(messages)


def as_models(messages: list[Any]) -> Any:
    """Return the messages as `model_dump` writes them."""
    return [message.model_dump() for message in messages]


WAYS = [as_dicts, as_constructors, as_models]


def taken(memory: Memory, dumped: Any, **options: Any) -> Any:
    """Import what was dumped into the session `talk`."""
    return memory.import_file(io.BytesIO(json.dumps(dumped).encode()), session_id="talk", **options)


def conversation(lc: Any) -> list[Any]:
    """Return a conversation with every type of message."""
    return [
        lc.SystemMessage("Be brief."),
        lc.HumanMessage(
            ["Look: ", {"type": "image_url", "image_url": {"url": "https://example.org/i.png"}}], name="ann"
        ),
        lc.AIMessage(
            "I look.",
            id="run-1",
            tool_calls=[
                {"name": "look", "args": {"at": 1}, "id": "c1"},
                {"name": "look", "args": {"at": 2}, "id": "c2"},
            ],
            invalid_tool_calls=[{"name": "broken", "args": "{bad", "id": "c3", "error": "no JSON"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        lc.ToolMessage("found", tool_call_id="c1", artifact={"rows": [1]}),
        lc.ToolMessage("lost", tool_call_id="c2", status="error"),
        lc.ToolMessage("no", tool_call_id="c3", name="broken"),
        lc.AIMessageChunk("It is bread."),
        lc.ChatMessage(role="moderator", content="Calm."),
        lc.ChatMessage(role="assistant", content="Sure."),
        lc.FunctionMessage(name="old", content="of old"),
        lc.RemoveMessage(id="x"),
        lc.HumanMessageChunk("Bye."),
    ]


@pytest.mark.parametrize("dump", WAYS)
def test_messages_are_imported_however_they_were_written(memory: Memory, lc: Any, dump: Callable[..., Any]) -> None:
    """Roles, texts, calls, results, statuses and names are the same for all three ways to write messages."""
    report = taken(memory, dump(conversation(lc)))

    entries = memory.session("talk").entries()
    assert report.source == "langchain"
    assert report.refused == ()
    assert report.left_out == {"orders to remove a message": 1}
    assert [(entry.kind, entry.role, entry.name) for entry in entries] == [
        ("message", "system", None),
        ("message", "user", "ann"),
        ("message", "assistant", None),
        ("tool_call", "assistant", "look"),
        ("tool_call", "assistant", "look"),
        ("tool_call", "assistant", "broken"),
        ("tool_result", "tool", "look"),
        ("tool_result", "tool", "look"),
        ("tool_result", "tool", "broken"),
        ("message", "assistant", None),
        ("message", "user", "moderator"),
        ("message", "assistant", None),
        ("tool_result", "tool", "old"),
        ("message", "user", None),
    ]
    assert entries[1].content == (Text(text="Look: "), Image(source="https://example.org/i.png"))
    assert [entry.text for entry in entries[3:6]] == ['{"at": 1}', '{"at": 2}', "{bad"]
    assert [entry.answers for entry in entries[6:9]] == [4, 5, 6]
    assert [entry.status for entry in entries[6:9]] == ["success", "error", "success"]
    assert entries[2].metadata["langchain"]["usage_metadata"]["total_tokens"] == 3
    assert entries[5].metadata["langchain"]["error"] == "no JSON"
    assert entries[6].metadata["langchain"]["artifact"] == {"rows": [1]}
    assert entries[-1].text == "Bye."


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses", "text"])
def test_contexts_of_imported_sessions_are_valid(memory: Memory, lc: Any, format: str) -> None:
    """Contexts of imported sessions are valid for each provider."""
    taken(memory, as_dicts(conversation(lc)))

    context = memory.session("talk", max_tokens=8000).context(format=format)

    assert find_format(format).validate(context.messages) == []


BLOCKS: list[tuple[Any, Any]] = [
    ({"type": "text", "text": "hi"}, Text(text="hi")),
    ({"type": "image_url", "image_url": {"url": "u", "detail": "low"}}, Image(source="u", detail="low")),
    ({"type": "image_url", "image_url": "u"}, Image(source="u")),
    ({"type": "image", "url": "u"}, Image(source="u")),
    ({"type": "image", "base64": "aGk=", "mime_type": "image/png"}, Image(source="data:image/png;base64,aGk=")),
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        Image(source="data:image/png;base64,aGk="),
    ),
    ({"type": "image", "source": {"type": "url", "url": "u"}}, Image(source="u")),
    ({"type": "image", "file_id": "f1"}, File(file_id="f1")),
    ({"type": "audio", "base64": "aGk=", "mime_type": "audio/wav"}, Audio(data="aGk=", format="wav")),
    ({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}}, Audio(data="aGk=", format="mp3")),
    ({"type": "file", "base64": "aGk=", "mime_type": "application/pdf"}, File(data="data:application/pdf;base64,aGk=")),
    ({"type": "file", "file": {"file_id": "f1"}}, File(file_id="f1")),
    ({"type": "video", "base64": "aGk=", "mime_type": "video/mp4"}, File(data="data:video/mp4;base64,aGk=")),
    ({"type": "text-plain", "text": "plain", "mime_type": "text/plain"}, Text(text="plain")),
    ({"type": "reasoning", "reasoning": "hm"}, Reasoning(text="hm")),
    ({"type": "thinking", "thinking": "hm", "signature": "s"}, Reasoning(text="hm")),
    ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, Reasoning(text="hm")),
    (
        {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"q": "x"}},
        Opaque(item={"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"q": "x"}}),
    ),
    (
        {"type": "non_standard", "value": {"a": [1]}},
        Opaque(item={"type": "non_standard", "value": {"a": [1]}}),
    ),
    ({"type": "file", "url": "u"}, Opaque(item={"type": "file", "url": "u"})),
]


@pytest.mark.parametrize(("block", "part"), BLOCKS, ids=lambda value: value.get("type") if type(value) is dict else "")
def test_blocks_of_every_kind_become_parts(memory: Memory, lc: Any, block: Any, part: Any) -> None:
    """Blocks in OpenAI's, Anthropic's and LangChain's shapes become parts; others are kept whole."""
    message = lc.AIMessage([block, {"type": "text", "text": "end"}])
    assert message.model_dump()["content"][0] == block

    taken(memory, as_dicts([message]))

    (entry,) = memory.session("talk").entries()
    assert entry.content == (part, Text(text="end"))


def test_calls_in_the_content_are_calls_of_the_message(memory: Memory, lc: Any) -> None:
    """A call in the content and in `tool_calls` is one call; one in the content alone is a call too."""
    blocks = [
        {"type": "text", "text": "now"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "c2", "name": "look", "input": {"at": 2}},
    ]

    taken(memory, as_dicts([lc.AIMessage(blocks, tool_calls=[{"name": "look", "args": {"at": 1}, "id": "c1"}])]))

    entries = memory.session("talk").entries()
    assert [(entry.kind, entry.call_id) for entry in entries] == [
        ("message", None),
        ("tool_call", "c2"),
        ("tool_call", "c1"),
    ]
    assert {entry.group for entry in entries[1:]} == {entries[1].group}


@pytest.mark.parametrize(
    ("kept", "result"),
    [
        (
            {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]},
            {"type": "tool", "data": {"content": "bread", "tool_call_id": "c1"}},
        ),
        (
            {"function_call": {"name": "look", "arguments": '{"at": 1}'}},
            {"type": "function", "data": {"content": "bread", "name": "look"}},
        ),
    ],
    ids=["tools", "functions"],
)
def test_calls_that_an_older_langchain_wrote_are_calls(
    memory: Memory, kept: dict[str, Any], result: dict[str, Any]
) -> None:
    """Calls in `additional_kwargs` alone are calls, and their results answer them."""
    asked = {"type": "human", "data": {"content": "What is there?"}}
    calls = {"type": "ai", "data": {"content": "", "additional_kwargs": kept}}

    report = taken(memory, [asked, calls, result])

    assert report.refused == ()
    _, call, answer = memory.session("talk").entries()
    assert (call.kind, call.name, call.text, answer.answers) == ("tool_call", "look", '{"at": 1}', call.seq)
    context = memory.session("talk", max_tokens=900).context(format="anthropic")
    assert [block["type"] for block in context.messages[1]["content"]] == ["tool_use"]


def test_importing_again_adds_nothing_and_a_grown_dump_its_end(memory: Memory, lc: Any) -> None:
    """Importing the same state again adds nothing; a later state adds its new messages."""
    history = [lc.HumanMessage(f"message {number}") for number in range(6)]
    figures = []
    for length in (3, 3, 6):
        report = taken(memory, as_dicts(history[:length]))
        figures.append((report.sessions["talk"].added, report.sessions["talk"].already_there))

    assert figures == [(3, 0), (0, 3), (3, 3)]
    assert [entry.text for entry in memory.session("talk").entries()] == [message.content for message in history]


def test_states_and_lines_of_messages_are_read(memory: Memory, lc: Any) -> None:
    """An object with `messages`, and JSON lines of messages, are imported like a list."""
    dumped = as_models([lc.HumanMessage("one"), lc.AIMessage("two")])
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in dumped)

    memory.import_file(io.BytesIO(json.dumps({"messages": dumped, "session_id": "state"}).encode()))
    memory.import_file(io.BytesIO(lines), session_id="lines")

    assert [entry.text for entry in memory.session("state").entries()] == ["one", "two"]
    assert [entry.text for entry in memory.session("lines").entries()] == ["one", "two"]


def test_malformed_messages_are_named_and_the_rest_imported(memory: Memory, lc: Any) -> None:
    """An unknown type, a result without id and invalid content are reported; the rest is imported."""
    dumped = as_dicts(
        [lc.HumanMessage("one"), lc.HumanMessage("x"), lc.ToolMessage("x", tool_call_id="c"), lc.AIMessage("x")]
    )
    dumped[1]["type"] = "alien"
    del dumped[2]["data"]["tool_call_id"]
    dumped[3]["data"]["content"] = 7

    report = taken(memory, dumped)

    assert [one.place for one in report.refused] == ["messages[1]", "messages[2]", "messages[3]"]
    assert [one.reason.split(":")[0] for one in report.refused][1:] == ["tool_call_id", "content"]
    assert [entry.text for entry in memory.session("talk").entries()] == ["one"]


@pytest.mark.parametrize(
    "beside",
    [{"lc": 1}, {"lc": 2}, {"lc": 1, "id": []}, {"data": "a"}, {"data": 5}, {"data": ["a"]}, {"data": {"a": 1}}],
)
def test_a_field_named_like_another_layout_is_kept(memory: Memory, beside: Any) -> None:
    """A message with `content` of its own is read by that; a field that another layout uses is kept as metadata."""
    report = taken(memory, [{"type": "human", "content": "hello"} | beside, {"type": "ai", "content": "yes"}])

    entries = memory.session("talk").entries()
    assert (report.source, report.refused) == ("langchain", ())
    assert [(entry.role, entry.text) for entry in entries] == [("user", "hello"), ("assistant", "yes")]
    assert (entries[0].metadata or {}).get("langchain", {}) == {name: held for name, held in beside.items() if held}
