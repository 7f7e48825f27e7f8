"""Importing ChatGPT's data export.

The files are built by exports_chatgpt.py: the vendor has no tool that makes them.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from exports_chatgpt import BEGAN, Talk, archive, branched, content, simple, with_tools, written
from palimpsest import ImportFailed, Memory, Opaque, Reasoning


def stream(body: bytes) -> io.BytesIO:
    """Return a file without a name."""
    return io.BytesIO(body)


def told(memory: Memory, session: str) -> list[tuple[str, str, str]]:
    """Return kind, role and text of a session's entries."""
    return [(entry.kind, entry.role, entry.text) for entry in memory.session(session).entries()]


def texts(memory: Memory, session: str) -> list[str]:
    """Return the texts of a session's entries."""
    return [entry.text for entry in memory.session(session).entries()]


def test_conversations_become_sessions_with_their_texts_and_times(memory: Memory) -> None:
    """Each conversation becomes a session of its own id, with texts in order and the messages' times."""
    report = memory.import_file(stream(written([simple("a"), simple("b", 3)])))

    assert (report.source, report.format) == ("chatgpt", None)
    assert {name: one.added for name, one in report.sessions.items()} == {"a": 4, "b": 6}
    assert [one.title for one in report.sessions.values()] == ["A talk", "A talk"]
    assert report.refused == ()
    assert report.left_out == {"hidden or empty system messages": 2}
    assert texts(memory, "b") == [f"b {what} {turn}" for turn in range(3) for what in ("question", "answer")]
    entries = memory.session("a").entries()
    assert [entry.role for entry in entries] == ["user", "assistant"] * 2
    assert [entry.at for entry in entries] == [int((BEGAN + second) * 1_000_000) for second in range(2, 6)]


def test_tools_are_paired_and_everything_is_kept(memory: Memory) -> None:
    """Calls and results are paired where that is certain; other results are data; unknown content is kept whole."""
    report = memory.import_file(stream(written([with_tools()])))

    entries = memory.session("tools").entries()
    assert [(entry.kind, entry.role, entry.name) for entry in entries] == [
        ("context", "user", "custom instructions"),
        ("message", "user", None),
        ("message", "assistant", None),
        ("message", "assistant", None),
        ("tool_call", "assistant", "python"),
        ("tool_result", "tool", "python"),
        ("tool_call", "assistant", "browser"),
        ("tool_result", "tool", "browser"),
        ("tool_result", "tool", "browser"),
        ("message", "assistant", None),
        ("message", "assistant", None),
        ("tool_call", "assistant", "python"),
        ("tool_result", "tool", "python"),
        ("context", "user", "critic"),
    ]
    by_seq = {entry.seq: entry for entry in entries}
    assert [
        by_seq[entry.answers].name if entry.answers else None for entry in entries if entry.kind == "tool_result"
    ] == [
        "python",
        "browser",
        None,
        "python",
    ]
    assert entries[0].text == "I am a baker.\n\nBe brief."
    image, question = entries[1].content
    assert image == Opaque(
        item={
            "type": "image_asset_pointer",
            "content_type": "image_asset_pointer",
            "asset_pointer": "file-service://file-1",
            "width": 10,
            "height": 20,
        }
    )
    assert question.text == "What is in the picture?"
    assert entries[2].content == (Reasoning(text="Looking\nIt may be bread."),)
    assert json.loads(entries[4].text) == {"code": "print(1)"}
    assert json.loads(entries[6].text) == {"query": "bread"}
    assert entries[8].text == "Bread\n\nhttps://example.org/\n\nBread is"
    assert entries[9].metadata["chatgpt"]["metadata"] == {"model_slug": "o3"}
    assert entries[10].content[0].item["snippet"] == "?"
    assert (entries[12].status, entries[12].text) == ("error", "It broke.")
    assert report.left_out == {"hidden or empty system messages": 1, "messages without content": 1}
    assert report.refused == ()


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses", "text"])
def test_contexts_of_imported_sessions_are_valid(memory: Memory, format: str) -> None:
    """Contexts of imported sessions are valid for each provider, whatever branches and tools there are."""
    from palimpsest.formats import find_format

    memory.import_file(stream(written([with_tools(), branched()])), branches=True)

    for info in memory.sessions():
        context = memory.session(info.session, max_tokens=8000).context(format=format)
        assert find_format(format).validate(context.messages) == []
        assert context.messages


def test_the_current_branch_is_imported(memory: Memory) -> None:
    """Only the current branch is imported; the report counts messages in other branches."""
    report = memory.import_file(stream(written([branched()])))

    assert texts(memory, "branched") == ["edited question", "edited answer, again"]
    assert report.left_out == {"messages in other branches (edits and regenerated answers)": 3}
    assert [info.session for info in memory.sessions()] == ["branched"]


def test_branches_are_imported_when_asked_for(memory: Memory) -> None:
    """With `branches` each further leaf becomes a session of its own, from the root on."""
    for _ in range(2):
        report = memory.import_file(stream(written([branched()])), branches=True)

    assert texts(memory, "branched") == ["edited question", "edited answer, again"]
    assert texts(memory, "branched~2") == ["first question", "first answer"]
    assert texts(memory, "branched~3") == ["edited question", "edited answer, once"]
    assert report.left_out == {}
    assert {one.added for one in report.sessions.values()} == {0}


def test_a_later_export_adds_only_what_is_new(memory: Memory) -> None:
    """A later export, with longer conversations in another order, adds only its new messages."""
    early, later = simple("kept", 2), simple("kept", 4)
    memory.import_file(stream(written([simple("old"), early])))

    report = memory.import_file(stream(written([simple("new"), later, simple("old")])))

    assert {name: (one.added, one.already_there) for name, one in report.sessions.items()} == {
        "new": (4, 0),
        "kept": (4, 4),
        "old": (0, 4),
    }
    assert texts(memory, "kept") == [f"kept {what} {turn}" for turn in range(4) for what in ("question", "answer")]


def test_a_changed_message_stays_as_it_was_imported(memory: Memory) -> None:
    """A message whose text has changed stays as it was imported and is counted; changed metadata is not."""
    first = simple("talk")
    memory.import_file(stream(written([first])))
    changed = simple("talk")
    changed.title = "Renamed"
    changed.nodes["talk-2"]["message"]["metadata"] = {"read_aloud": True}
    changed.nodes["talk-3"]["message"]["content"]["parts"] = ["another answer"]

    report = memory.import_file(stream(written([changed])))

    assert texts(memory, "talk")[1] == "talk answer 0"
    assert report.left_out["messages that have changed since they were imported (left as they were)"] == 1
    assert report.sessions["talk"].added == 0


def test_another_key_imports_again(memory: Memory) -> None:
    """Under another key the same messages are imported once more, each once."""
    for key in (None, "again", "again"):
        memory.import_file(stream(written([simple("talk")])), key=key)

    assert len(texts(memory, "talk")) == 8


def test_malformed_parts_are_named_and_the_rest_imported(memory: Memory) -> None:
    """Malformed nodes, messages and conversations are reported with their path; the rest is imported."""
    talk = simple("talk", 3)
    talk.nodes["talk-2"]["message"]["content"] = "text"
    talk.nodes["talk-4"]["message"]["author"] = None
    talk.nodes["lost"] = None  # type: ignore[assignment]
    lost = simple("lost").done() | {"current_node": "nowhere"}
    bad_id = simple("bad\x07id")

    report = memory.import_file(stream(written([talk, {"mapping": 3}, lost, bad_id, simple("good")])))

    assert [one.place for one in report.refused] == [
        "conversations[0].mapping.lost",
        "conversations[0].mapping.talk-2.message.content",
        "conversations[0].mapping.talk-4.message.author",
        "conversations[1].mapping",
        "conversations[2].current_node",
        "conversations[3].mapping.bad\x07id-2",
    ]
    assert texts(memory, "talk") == ["talk answer 0", "talk answer 1", "talk question 2", "talk answer 2"]
    for name in ("lost", "good"):
        assert texts(memory, name) == [f"{name} {what} {turn}" for turn in range(2) for what in ("question", "answer")]


def test_a_broken_conversation_costs_no_other(memory: Memory) -> None:
    """A conversation that is no JSON is reported, and those around it are imported.

    So is what comes before a sudden end of the file.
    """
    items = [json.dumps(simple(name).done()) for name in "abc"]
    items[1] = items[1].replace('"mapping": {', '"mapping": {nonsense ', 1)

    report = memory.import_file(stream(f"[{', '.join(items)}]".encode()))
    cut = memory.import_file(stream(f"[{items[0]}, {items[2][:-40]}".encode()), key="again")

    assert sorted(report.sessions) == ["a", "c"]
    assert [one.place for one in report.refused] == ["conversations[1]"]
    assert report.refused[0].reason.startswith("not valid JSON: ")
    assert sorted(cut.sessions) == ["a"]
    assert cut.refused[0].reason == "the file ends before the end of this item"


def test_strict_stores_nothing_of_a_file_with_a_fault(memory: Memory) -> None:
    """With `strict` a fault ends the import before anything is stored, and names its place."""
    talk = simple("talk")
    talk.nodes["talk-4"]["message"]["content"] = None

    with pytest.raises(ImportFailed) as failed:
        memory.import_file(stream(written([simple("good"), talk])), strict=True)

    assert failed.value.where == "conversations[1].mapping.talk-4.message.content"
    assert memory.sessions() == []


def test_the_vendors_archive_is_read(memory: Memory, tmp_path: Path) -> None:
    """The vendor's zip archive gives what its conversations.json gives; its other files are counted."""
    body = written([simple("a"), simple("b")])
    (tmp_path / "export.zip").write_bytes(archive(body))

    report = memory.import_file(tmp_path / "export.zip")
    again = memory.import_file(stream(archive(body, "data/conversations.json")), source="chatgpt", strict=True)

    assert report.source == "chatgpt"
    assert {one.added for one in report.sessions.values()} == {4}
    assert report.left_out["other files of the archive"] == 2
    assert {one.added for one in again.sessions.values()} == {0}


def test_an_archive_without_conversations_is_refused(memory: Memory) -> None:
    """An archive without conversations.json is refused with the names of its files."""
    with pytest.raises(ImportFailed, match=r"no conversations.json; it has user.json, photos.json, chat.html"):
        memory.import_file(stream(archive(b"[]", "photos.json")))


@pytest.mark.sampled
def test_a_damaged_archive_is_refused_or_reported(memory: Memory) -> None:
    """An archive that is cut off is refused; one damaged inside gives what can be read and reports where it ends."""
    whole = archive(written([simple(f"talk-{number}", 50) for number in range(20)]))
    with pytest.raises(ImportFailed, match="the archive cannot be read"):
        memory.import_file(stream(whole[: len(whole) // 2]))
    damaged = bytearray(whole)
    middle = len(whole) // 2
    damaged[middle : middle + 200] = bytes(200)

    report = memory.import_file(stream(bytes(damaged)), source="chatgpt")

    assert "cannot be read on" in report.refused[-1].reason or "cannot be unpacked" in report.refused[-1].reason


def test_a_missing_time_is_that_of_the_message_before(memory: Memory) -> None:
    """A message without a time gets that of the one before, and the first that of the conversation."""
    talk = Talk("talk")
    talk.said("user", "one", at=None)
    talk.said("assistant", "two", at=BEGAN + 5)
    talk.said("user", "three", at=None)

    memory.import_file(stream(written([talk])))

    began = int(BEGAN * 1_000_000)
    assert [entry.at for entry in memory.session("talk").entries()] == [began, began + 5_000_000, began + 5_000_000]


def test_a_circle_of_nodes_ends(memory: Memory) -> None:
    """Nodes that are each other's parents do not make the import loop."""
    talk = simple("talk", 1)
    talk.nodes["root"]["parent"] = talk.current

    report = memory.import_file(stream(written([talk])))

    assert texts(memory, "talk") == ["talk question 0", "talk answer 0"]
    assert report.refused == ()


def test_odd_texts_come_through_unchanged(memory: Memory) -> None:
    """Lone surrogates, brackets in texts, and numbers without a JSON form come through."""
    talk = Talk("talk")
    odd = 'cut \ud83d here ]}{[ "quoted\\" \n'
    talk.said("user", content(odd), metadata={"score": float("nan"), "big": 2**70})

    memory.import_file(stream(written([talk])))

    (entry,) = memory.session("talk").entries()
    assert entry.text == odd
    assert entry.metadata["chatgpt"]["metadata"] == {"score": "nan", "big": str(2**70)}
