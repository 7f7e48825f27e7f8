"""Importing Claude's data export.

The files are built by exports_claude.py: the vendor has no tool that makes them.
"""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest

from exports_chatgpt import archive
from exports_claude import BEGAN, Talk, simple, text, with_tools, written
from palimpsest import Image, Memory, Opaque, Reasoning, Text
from palimpsest.formats import find_format
from palimpsest.testing import FakeClock


def stream(body: bytes) -> io.BytesIO:
    """Return a file without a name."""
    return io.BytesIO(body)


def texts(memory: Memory, session: str) -> list[str]:
    """Return the texts of a session's entries."""
    return [entry.text for entry in memory.session(session).entries()]


def test_conversations_become_sessions_with_their_texts_and_times(memory: Memory) -> None:
    """Each conversation becomes a session of its own id, with texts in order and the messages' times."""
    report = memory.import_file(stream(written([simple("a"), simple("b", 3)])))

    assert (report.source, report.format) == ("claude", None)
    assert {name: one.added for name, one in report.sessions.items()} == {"a": 4, "b": 6}
    assert (report.refused, report.left_out) == ((), {})
    assert texts(memory, "b") == [f"b {what} {turn}" for turn in range(3) for what in ("question", "answer")]
    entries = memory.session("a").entries()
    assert [entry.role for entry in entries] == ["user", "assistant"] * 2
    began = round(BEGAN.timestamp() * 1_000_000)
    assert [entry.at - began for entry in entries] == [0, 1_000_000, 2_000_000, 3_000_000]
    assert entries[0].metadata["claude"]["conversation"] == {"id": "a", "title": "A talk"}


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "1960-05-01T12:00:00Z", "1970-01-01T00:00:00Z"])
def test_a_message_with_an_impossible_time_gets_the_imports(memory: Memory, clock: FakeClock, time: str) -> None:
    """A message with a time before 1970, which some programs write for unknown, gets the time of the import."""
    talk = simple("a").done()
    talk["chat_messages"][0]["created_at"] = time

    report = memory.import_file(stream(json.dumps([talk]).encode()))

    entries = memory.session("a").entries()
    assert report.refused == ()
    assert entries[0].at == clock()
    assert entries[1].at == round((BEGAN + timedelta(seconds=1)).timestamp() * 1_000_000)


def test_blocks_become_entries_in_their_order(memory: Memory) -> None:
    """Thoughts, texts, calls, results, attachments and files become entries in their order, and nothing is lost."""
    report = memory.import_file(stream(written([with_tools()])))

    entries = memory.session("claude-tools").entries()
    assert [(entry.kind, entry.role, entry.name) for entry in entries] == [
        ("context", "user", "plan.md"),
        ("message", "user", None),
        ("message", "assistant", None),
        ("tool_call", "assistant", "search"),
        ("tool_result", "tool", "search"),
        ("tool_call", "assistant", "repl"),
        ("tool_result", "tool", "repl"),
        ("message", "assistant", None),
    ]
    assert entries[0].text == "# The plan"
    assert entries[1].content == (
        Text(text="What is the plan?"),
        Opaque(item={"type": "file", "file_name": "photo.png"}),
    )
    assert entries[2].content == (Reasoning(text="I look it up."), Text(text="One moment."))
    assert entries[3].continues
    assert (entries[3].call_id, json.loads(entries[3].text)) == ("toolu_1", {"q": "plan"})
    assert entries[3].metadata["claude"] == {"message": "Searching"}
    assert [entry.answers for entry in entries if entry.kind == "tool_result"] == [4, 6]
    assert entries[4].content == (Text(text="found"), Opaque(item={"type": "knowledge", "title": "Plans"}))
    assert (entries[6].status, entries[6].text) == ("error", "error")
    assert entries[7].content == (Text(text="Here it is."), Opaque(item={"type": "token_budget", "remaining": 7}))
    assert report.refused == ()


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses", "text"])
def test_contexts_of_imported_sessions_are_valid(memory: Memory, format: str) -> None:
    """Contexts of imported sessions are valid for each provider."""
    memory.import_file(stream(written([with_tools()])))

    context = memory.session("claude-tools", max_tokens=8000).context(format=format)

    assert find_format(format).validate(context.messages) == []
    assert context.messages


def test_images_of_the_messages_api_are_images(memory: Memory) -> None:
    """A block in the shape of the Messages API is read as that API's format reads it."""
    talk = Talk("talk")
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    talk.said("human", {"type": "image", "source": source, "uuid": "x"}, "What is it?")

    memory.import_file(stream(written([talk])))

    (entry,) = memory.session("talk").entries()
    assert entry.content == (Image(source="data:image/png;base64,aGk="), Text(text="What is it?"))


def test_older_exports_have_only_text(memory: Memory) -> None:
    """A message without blocks has its `text`; one without any content is left out and counted."""
    talk = simple("talk", 1)
    talk.messages[0]["content"] = []
    talk.messages[0]["text"] = "as it was"
    del talk.messages[1]["content"]
    talk.said("human")

    report = memory.import_file(stream(written([talk])))

    assert texts(memory, "talk") == ["as it was", "talk answer 0"]
    assert report.left_out == {"messages without content": 1}


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "thinking", "thinking": ""}],
        [{"type": "thinking", "thinking": "hm"}],
        [{"type": "text", "text": ""}, {"type": "flag", "flag": "odd"}],
        [{"type": "token_budget"}],
    ],
)
def test_a_text_beside_blocks_without_text_is_kept(memory: Memory, blocks: list[dict[str, str]]) -> None:
    """A message's `text` is imported if none of its blocks has text."""
    talk = simple("a").done()
    talk["chat_messages"][0] |= {"text": "the question", "content": blocks}

    report = memory.import_file(stream(json.dumps([talk]).encode()))

    first = memory.session("a").entries()[0]
    text_parts = [part.text for part in first.content if isinstance(part, Text)] if first.content else []
    assert report.left_out == {}
    assert (first.content if isinstance(first.content, str) else "".join(text_parts)) == "the question"


def test_a_later_export_adds_only_what_is_new(memory: Memory) -> None:
    """A later export, with longer conversations in another order, adds only its new messages."""
    memory.import_file(stream(written([simple("old"), simple("kept", 2)])))

    report = memory.import_file(stream(archive(written([simple("new"), simple("kept", 4), simple("old")]))))

    assert report.source == "claude"
    assert {name: (one.added, one.already_there) for name, one in report.sessions.items()} == {
        "new": (4, 0),
        "kept": (4, 4),
        "old": (0, 4),
    }


def test_branches_are_counted_or_imported(memory: Memory) -> None:
    """Only the newest branch is imported, and other branches are counted, or imported with `branches`."""
    talk = Talk("talk", parents=True)
    talk.said("human", "first question")
    talk.said("assistant", "first answer")
    talk.said("human", "edited question", after="00000000-0000-4000-8000-000000000000")
    talk.said("assistant", "edited answer")

    report = memory.import_file(stream(written([talk])))
    memory.import_file(stream(written([talk])), branches=True)

    assert texts(memory, "talk") == ["edited question", "edited answer"]
    assert report.left_out == {"messages in other branches (edits and retries)": 2}
    assert texts(memory, "talk~2") == ["first question", "first answer"]


def test_malformed_parts_are_named_and_the_rest_imported(memory: Memory) -> None:
    """Malformed messages and blocks are reported with their path; the rest is imported."""
    talk = simple("talk", 3)
    talk.messages[1]["sender"] = "robot"
    talk.messages[2]["content"] = [text("fine"), 7]
    talk.messages[3] = "text"  # type: ignore[call-overload]

    report = memory.import_file(stream(written([talk])))

    assert [one.place for one in report.refused] == [
        "conversations[0].chat_messages[1].sender",
        "conversations[0].chat_messages[2].content[1]",
        "conversations[0].chat_messages[3]",
    ]
    assert texts(memory, "talk") == ["talk question 0", "talk question 2", "talk answer 2"]


def test_results_without_an_id_answer_the_oldest_open_call_of_their_tool(memory: Memory) -> None:
    """A result without an id answers the oldest open call of its tool, even if ids repeat."""
    calls = [("a", "look"), ("b", "find"), ("c", "look"), ("a", "look")]
    blocks = [{"type": "tool_use", "id": id, "name": name, "input": {}} for id, name in calls]
    results = [{"tool_use_id": "c"}, {"name": "look"}, {"name": "look"}, {"name": "find"}]
    blocks += [{"type": "tool_result", "content": "x", **told} for told in results]
    talk = simple("a").done()
    talk["chat_messages"] = [{"uuid": "m", "sender": "assistant", "text": "", "content": blocks}]

    memory.import_file(stream(json.dumps([talk]).encode()))

    answered = [entry.call_id for entry in memory.session("a").entries() if entry.kind == "tool_result"]
    assert answered[:2] == ["c", "a"]
    assert answered[3] == "b"
    assert answered[2] not in ("a", "b", "c")
