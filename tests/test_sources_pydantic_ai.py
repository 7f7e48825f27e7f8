"""Importing message histories of Pydantic AI, written by its own adapter."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from palimpsest import Audio, File, Image, Memory, Opaque, Reasoning, Text
from palimpsest.formats import find_format
from sdks import load

AT = datetime(2025, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)
AT_US = 1_746_327_721_500_000


@pytest.fixture(scope="module")
def pai() -> Any:
    """Return pydantic_ai.messages."""
    return load("pydantic_ai.messages")


def dumped(pai: Any, messages: list[Any]) -> bytes:
    """Return the messages as Pydantic AI's adapter dumps them."""
    body: bytes = pai.ModelMessagesTypeAdapter.dump_json(messages)
    return body


def taken(memory: Memory, body: bytes, **options: Any) -> Any:
    """Import a history into the session `talk`."""
    return memory.import_file(io.BytesIO(body), session_id="talk", **options)


def conversation(pai: Any) -> list[Any]:
    """Return a history with every kind of part that has content."""
    picture = pai.BinaryContent(data=b"\xfb\xff\xfe", media_type="image/png")
    return [
        pai.ModelRequest(
            parts=[
                pai.SystemPromptPart("Be brief.", timestamp=AT),
                pai.UserPromptPart(
                    [
                        "Look:",
                        pai.ImageUrl(url="https://example.org/i.png"),
                        picture,
                        pai.BinaryContent(data=b"hi", media_type="audio/wav"),
                        pai.BinaryContent(data=b"hi", media_type="application/pdf"),
                        pai.DocumentUrl(url="https://example.org/d.pdf"),
                        pai.CachePoint(),
                        pai.TextContent(content="tagged", metadata={"a": 1}),
                        pai.UploadedFile(file_id="f1", provider_name="openai"),
                    ],
                    timestamp=AT,
                ),
            ],
            instructions="Answer in English.",
            run_id="r1",
        ),
        pai.ModelResponse(
            parts=[
                pai.ThinkingPart("hm", signature="s", provider_name="anthropic"),
                pai.TextPart("I look."),
                pai.ToolCallPart("look", {"at": 1}, tool_call_id="c1"),
                pai.ToolCallPart("look", '{"at": 2}', tool_call_id="c2"),
                pai.ToolCallPart("stop", None, tool_call_id="c3"),
            ],
            model_name="test",
            timestamp=AT,
        ),
        pai.ModelRequest(
            parts=[
                pai.ToolReturnPart("look", {"found": [1]}, tool_call_id="c1", timestamp=AT),
                pai.ToolReturnPart("look", "wrong", tool_call_id="c2", outcome="retried", timestamp=AT),
                pai.ToolReturnPart("stop", ["seen", picture], tool_call_id="c3", outcome="denied", timestamp=AT),
            ]
        ),
        pai.ModelResponse(
            parts=[
                pai.NativeToolCallPart("web_search", {"query": "bread"}, tool_call_id="w1"),
                pai.NativeToolReturnPart("web_search", "rolls", tool_call_id="w1", timestamp=AT),
                pai.FilePart(picture),
                pai.TextPart("It is bread."),
            ],
            timestamp=AT,
        ),
        pai.ModelRequest(parts=[pai.ToolAvailabilityDeltaPart(tools_added=["x"])]),
        pai.ModelRequest(parts=[pai.UserPromptPart("Bye.", timestamp=AT)]),
        pai.ModelResponse(parts=[]),
    ]


def test_histories_are_imported_with_every_part(memory: Memory, pai: Any) -> None:
    """Prompts, thoughts, calls, results and files become entries with their times; the rest is kept as metadata."""
    report = taken(memory, dumped(pai, conversation(pai)))

    entries = memory.session("talk").entries()
    assert (report.source, report.refused) == ("pydantic-ai", ())
    assert report.left_out == {
        "requests that say nothing to the model but instructions or settings": 1,
        "responses without parts": 1,
    }
    assert [(entry.kind, entry.role, entry.name, entry.text) for entry in entries] == [
        ("message", "system", None, "Be brief."),
        ("message", "user", None, "Look:\ntagged"),
        ("message", "assistant", None, "hm\nI look."),
        ("tool_call", "assistant", "look", '{"at": 1}'),
        ("tool_call", "assistant", "look", '{"at": 2}'),
        ("tool_call", "assistant", "stop", "{}"),
        ("tool_result", "tool", "look", '{"found": [1]}'),
        ("tool_result", "tool", "look", "wrong"),
        ("tool_result", "tool", "stop", "seen"),
        ("message", "assistant", None, "It is bread."),
        ("message", "user", None, "Bye."),
    ]
    assert {entry.at for entry in entries} == {AT_US}
    assert [entry.answers for entry in entries if entry.kind == "tool_result"] == [4, 5, 6]
    assert [entry.status for entry in entries if entry.kind == "tool_result"] == [
        "success",
        "error",
        "denied",
    ]
    picture = Image(source="data:image/png;base64,+//+")
    document = entries[1].content[5]
    assert entries[1].content[:5] == (
        Text(text="Look:"),
        Image(source="https://example.org/i.png"),
        picture,
        Audio(data="aGk=", format="wav"),
        File(data="data:application/pdf;base64,aGk="),
    )
    assert isinstance(document, Opaque)
    assert document.item["url"] == "https://example.org/d.pdf"
    assert entries[1].content[6:] == (Text(text="tagged"), File(file_id="f1"))
    assert entries[2].content == (Reasoning(text="hm"), Text(text="I look."))
    assert entries[8].content == (Text(text="seen"), picture)
    assert [part.item["type"] for part in entries[9].content[:2]] == ["builtin-tool-call", "builtin-tool-return"]
    assert entries[9].content[2:] == (picture, Text(text="It is bread."))
    assert entries[0].metadata["pydantic-ai"]["instructions"] == "Answer in English."
    assert entries[2].metadata["pydantic-ai"]["model_name"] == "test"
    assert entries[2].metadata["pydantic-ai"]["parts"][0]["signature"] == "s"


def test_metadata_of_parts_keeps_their_order(memory: Memory, pai: Any) -> None:
    """Metadata of a message's parts is in the order of the parts, with an empty place for a part without any.

    That of parts without content comes last.
    """
    thought = pai.ThinkingPart("hm", signature="s")
    parts = [pai.TextPart("So."), pai.TextPart("", id="msg_0"), thought, pai.TextPart("I see.", id="msg_1")]

    taken(memory, dumped(pai, [pai.ModelResponse(parts=parts)]))

    (message,) = memory.session("talk").entries()
    assert message.content == (Text(text="So."), Reasoning(text="hm"), Text(text="I see."))
    assert message.metadata["pydantic-ai"]["parts"] == [{}, {"signature": "s"}, {"id": "msg_1"}, {"id": "msg_0"}]


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses", "text"])
def test_contexts_of_imported_sessions_are_valid(memory: Memory, pai: Any, format: str) -> None:
    """Contexts of imported sessions are valid for each provider."""
    taken(memory, dumped(pai, conversation(pai)))

    context = memory.session("talk", max_tokens=8000).context(format=format)

    assert find_format(format).validate(context.messages) == []


def test_a_run_of_an_agent_is_imported(memory: Memory, pai: Any, tmp_path: Any) -> None:
    """The history of a real run with a tool gives prompt, call, result and answer in a session of its own id."""
    agent = load("pydantic_ai").Agent(load("pydantic_ai.models.test").TestModel(), instructions="Be brief.")

    @agent.tool_plain
    def look(at: int) -> str:
        return f"looked at {at}"

    run = asyncio.run(agent.run("What is there?"))  # `run_sync` would leave an unclosed event loop
    (tmp_path / "history.json").write_bytes(run.all_messages_json())

    report = memory.import_file(tmp_path / "history.json")

    (name,) = report.sessions
    assert name == json.loads(run.all_messages_json())[0]["conversation_id"]
    assert [(entry.kind, entry.text) for entry in memory.session(name).entries()] == [
        ("message", "What is there?"),
        ("tool_call", '{"at": 0}'),
        ("tool_result", "looked at 0"),
        ("message", '{"look":"looked at 0"}'),
    ]


def test_retries_of_older_histories_are_errors_or_messages(memory: Memory) -> None:
    """A retry that names a tool is its failed result; one that names none is a message to the model."""
    history = [
        {
            "kind": "response",
            "parts": [{"part_kind": "tool-call", "tool_name": "f", "args": "{}", "tool_call_id": "1"}],
        },
        {
            "kind": "request",
            "parts": [
                {"part_kind": "retry-prompt", "content": [{"msg": "no"}], "tool_name": "f", "tool_call_id": "1"},
                {"part_kind": "retry-prompt", "content": "again", "tool_name": None, "tool_call_id": "2"},
            ],
        },
    ]

    taken(memory, json.dumps(history).encode())

    _, result, message = memory.session("talk").entries()
    assert (result.kind, result.status, result.answers, result.text) == ("tool_result", "error", 1, '[{"msg": "no"}]')
    assert (message.kind, message.role, message.text) == ("message", "user", "again")


def test_results_of_provider_tools_are_shown_and_redacted(pai: Any) -> None:
    """Calls of provider tools and their results are shown to other providers as data, redacted.

    Encrypted parts are not shown.
    """
    load("palimpsest.integrations.pydantic_ai")  # which makes its format known
    search_result = {"results": [{"title": "Ann, ann@example.org", "encrypted_content": "c2VhbGVk"}]}
    parts = [
        pai.NativeToolCallPart("web_search", '{"query": "ann@example.org"}', tool_call_id="w1"),
        pai.NativeToolReturnPart("web_search", search_result, tool_call_id="w1", timestamp=AT),
        pai.TextPart("She is there."),
    ]
    with Memory.open("memory://", privacy="default") as memory:
        taken(memory, dumped(pai, [pai.ModelRequest([pai.UserPromptPart("Who?")]), pai.ModelResponse(parts=parts)]))
        chat = memory.session("talk", max_tokens=4000)
        shown = [str(chat.context(format=name).messages) for name in ("openai", "anthropic", "pydantic-ai")]

        assert "ann@" not in str(chat.entries())
    for text in shown:
        assert "web_search" in text
        assert "Ann, " in text
        assert not any(word in text for word in ("ann@", "c2VhbGVk", "tool_calls", "tool_use"))


@pytest.mark.parametrize("returned", [{"kind": "binary"}, [{"kind": "image-url"}], [{"kind": "task", "of": 1}]])
def test_data_that_looks_like_media_is_text(memory: Memory, pai: Any, returned: Any) -> None:
    """A tool's result that only looks like a medium is kept as JSON text."""
    call = pai.ModelResponse(parts=[pai.ToolCallPart("look", {}, tool_call_id="c1")])
    response = pai.ModelRequest(parts=[pai.ToolReturnPart("look", returned, tool_call_id="c1")])

    taken(memory, dumped(pai, [call, response]))

    assert memory.session("talk").entries()[1].content == json.dumps(returned)


def test_the_detail_of_an_image_is_kept(memory: Memory, pai: Any) -> None:
    """The detail at which an image is read is kept, for its cost and for other providers."""
    image = pai.ImageUrl("https://example.org/i.png", vendor_metadata={"detail": "low"})

    taken(memory, dumped(pai, [pai.ModelRequest([pai.UserPromptPart(["Look:", image])])]))

    assert memory.session("talk").entries()[0].content[1] == Image(source="https://example.org/i.png", detail="low")


def test_importing_again_adds_nothing_and_a_grown_history_its_end(memory: Memory, pai: Any) -> None:
    """Importing the same history again adds nothing; a longer one adds its new messages."""
    history = conversation(pai)
    figures = []
    for length in (2, 2, len(history)):
        report = taken(memory, dumped(pai, history[:length]))
        figures.append((report.sessions["talk"].added, report.sessions["talk"].already_there))

    assert figures == [(6, 0), (0, 6), (5, 6)]


def test_malformed_parts_are_named_and_the_rest_imported(memory: Memory, pai: Any) -> None:
    """Parts without kind or call id are reported with their path; the rest is imported."""
    history = json.loads(dumped(pai, conversation(pai)))
    del history[1]["parts"][3]["tool_call_id"]
    history[3]["kind"] = "rumour"
    history[5]["parts"] = ["text"]

    report = taken(memory, json.dumps(history).encode())

    assert [(one.place, one.reason.split(":")[0]) for one in report.refused] == [
        ("messages[1]", "parts[3].tool_call_id"),
        ("messages[3]", "kind"),
        ("messages[5]", "parts[0]"),
    ]
    assert len(memory.session("talk").entries()) == 5
