"""`palimpsest.compat.agterm`: exporting a session's state and importing it again.

A number such as (N12) at the end of a docstring names a known fault of AGTerm's own manager: its code would fail the
test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agterm_managers import STARTS, Heard, managed, says
from laws import examples
from palimpsest import BudgetImpossible, Image, Text
from palimpsest.compat.agterm import MemoryManager
from palimpsest.errors import ImportFailed

DAY = "2024-01-01T10:00:00.000Z"
BACKWARDS = {"start": "2024-01-02T10:00:00Z", "end": DAY}


@pytest.fixture(params=STARTS)
def manager(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a memory manager without stored sessions, once the plain class and once the asynchronous one."""
    with managed(request.param) as made:
        yield made


def entry(id: str, content: str = "one two three", **more: Any) -> dict[str, Any]:
    """Return an entry as the mapping that AGTerm documents."""
    defaults = {"type": "message", "role": "user", "timestamp": DAY, "tokenCount": 3, "compressed": False}
    return {"id": id, "content": content, **defaults, **more}


def summary(id: str, *ids: str, **more: Any) -> dict[str, Any]:
    """Return a summary as the mapping that AGTerm documents."""
    span = {"start": DAY, "end": DAY}
    defaults = {
        "tokenCount": 9,
        "originalTokenCount": 99,
        "compressionRatio": 11.0,
        "createdAt": DAY,
        "timeRange": span,
    }
    return {"id": id, "content": "They spoke.", "originalEntryIds": list(ids), **defaults, **more}


def state(*entries: dict[str, Any], summaries: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    """Return a session's state with the four keys that AGTerm documents; its `totalTokens` is wrong on purpose."""
    return {
        "sessionId": "restored-session",
        "entries": list(entries),
        "summaries": list(summaries),
        "totalTokens": 999_999,
        **more,
    }


def busy(manager: Any) -> None:
    """Fill a session that compresses into two levels of summaries, with tools, contexts and still active entries."""
    manager.update_config(max_tokens=1500, max_entries=30)
    for i in range(40):
        manager.add_user_message("s", f"question {i} {'word ' * 20}", {"number": i})
        manager.add_tool_call("s", "shell", {"step": i})
        manager.add_tool_result("s", "shell", f"{'out ' * 20}\nerror", "error" if i % 3 else "success")
        manager.add_assistant_message("s", f"answer {i}")
        if not i % 10:
            manager.add_context("s", f"text {i} {'word ' * 20}", "src/main.ts")


@pytest.mark.parametrize("camel", [False, True])
def test_export_import_export_is_equal(manager: Any, camel: bool) -> None:
    """A state that is exported, written as JSON in either spelling, and imported elsewhere exports equal again.

    Statistics and the text for a model are equal too, and the state holds the configuration (N45).
    """
    busy(manager)
    exported = manager.export_session("s")
    assert len(exported.summaries) > 1
    assert exported.config == manager.config

    with managed("plain", config=manager.config) as other:
        name = other.import_session(json.loads(json.dumps(exported.to_dict(camel=camel))))

        assert name == "s"
        assert other.export_session("s") == exported
        assert other.get_stats("s") == manager.get_stats("s")
        assert other.get_context_for_llm("s") == manager.get_context_for_llm("s")
        assert other.memory.session("s").verify().ok
        says(other, "s", *[50] * 40)
        assert other.memory.session("s").verify().ok


def test_the_documented_four_keys_are_taken(manager: Any) -> None:
    """A state with AGTerm's four documented keys is imported; tokens are counted anew, not taken from it (N31)."""
    summaries = (summary("sum-1", "a", "b"),)
    compressed = [entry(id, compressed=True, summaryId="sum-1") for id in "ab"]
    call = entry("d", '{"command": "ls"}', type="tool_call", role="assistant", metadata={"tool": "shell"})
    result = entry("e", "file1", type="tool_result", role="system", metadata={"tool": "shell"})

    manager.import_session(state(*compressed, entry("c", "four five"), call, result, summaries=summaries))

    stats = manager.get_stats("restored-session")
    assert (stats.total_entries, stats.active_entries, stats.compressed_entries, stats.summaries) == (5, 3, 2, 1)
    assert stats.total_tokens < 100
    (imported,) = manager.get_summaries("restored-session")
    assert (imported.token_count, imported.original_token_count, imported.original_entry_ids) == (2, 6, ("a", "b"))
    assert manager.get_context_for_llm("restored-session").split("\n") == [
        "=== Previous Conversation Summaries ===",
        "[2024-01-01 - 2024-01-01]",
        "They spoke.",
        "",
        "=== Recent Conversation ===",
        "User: four five",
        'Tool call (shell): {"command": "ls"}',
        "Tool result (shell): file1",
    ]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (state(entry("a", compressed=True, summaryId="nope")), "nope"),
        (state(entry("a"), summaries=(summary("one", "a", "gone"),)), "gone"),
        (state(entry("a"), entry("b"), summaries=(summary("x", "a"), summary("y", "a", "b"))), "'x'"),
        (state(entry("a"), entry("b", summaryId="x"), summaries=(summary("x", "a"),)), "does not name"),
        (state(entry("a"), summaries=(summary("x", "a"), summary("x", "a"))), "two of them have the same id"),
        (state(entry("a"), summaries=(summary("x"),)), "originalEntryIds|original_entry_ids"),
        (state(entry("a"), entry("a")), "twice"),
        (state(entry("a", timestamp="2024-01-01T10:00:00")), "time zone"),
        (state(entry("a", timestamp=None)), "timestamp"),
        (state(entry("a", timestamp="1.5.2024")), "ISO"),
        (state(entry("a", type="thought")), "thought"),
        (state(entry("a", role="tool")), "role"),
        (state(entry("a", kind="message")), "kind"),
        (state(entry("a", content=None)), "content"),
        (state(entry("")), "id"),
        (state(entry("a"), tokens=5), "tokens"),
        (state(entry("a"), totalTOKENS=5), "state.totalTOKENS: is not a known key"),
        (state(entry("a"), schemaVersion=2), "schema_version"),
        (state(entry("a"), config={"maxEntries": 0}), "max_entries"),
        (state(entry("s", type="summary")), "is missing in the summaries"),
        (state(entry("a"), entries="all"), "not a list"),
        (state(entry("a"), erased=[7]), "erased"),
        (state(entry("a"), sessionId=None), "session_id"),
        (state(entry("a"), sessionId="s" * 257), "session_id"),
        (state(entry("a"), session_id="s"), "state.sessionId: is given in both"),
        (state(entry("a"), entries=None), "state.entries"),
        ({"sessionId": "restored-session"}, "state.entries"),
        (state(entry("a"), erased=[[-1, "b"]]), "erased"),
        (state(entry("a", compressed="yes")), "compressed"),
        (state(entry("a", summaryId=["x"])), "summary_id"),
        (state(entry("a", timestamp="0001-01-01T00:00:00+14:00")), r"timestamp: .*ISO"),
        (state(entry("a"), summaries=(summary("x", originalEntryIds=[["a"]]),)), "original_entry_ids"),
        (state(entry("a"), summaries=(summary("x", "a", method="magic"),)), r"summaries\[0\].method"),
        (state(entry("a"), summaries=(summary("x", "a", timeRange=BACKWARDS),)), "ends before it begins"),
        ([], "mapping"),
    ],
)
def test_an_inconsistent_state_is_refused_naming_the_fault(manager: Any, bad: Any, named: str) -> None:
    """An inconsistent state raises ImportFailed that names the fault, and changes nothing that is stored (N31, N37)."""
    manager.import_session(state(entry("z", "was there before")))

    with pytest.raises(ImportFailed, match=named):
        manager.import_session(bad)

    assert [one.id for one in manager.get_active_entries("restored-session")] == ["z"]


def test_times_are_converted_to_utc(manager: Any) -> None:
    """A time in any zone, as text or as a datetime, is kept as UTC (N24)."""
    moment = datetime(2024, 1, 1, 12, 30, 0, 123456, UTC)
    manager.import_session(state(entry("a", timestamp="2024-01-01T12:00:00+02:00"), entry("b", timestamp=moment)))

    first, second = manager.get_active_entries("restored-session")

    assert first.timestamp.isoformat() == "2024-01-01T10:00:00+00:00"
    assert second.timestamp == moment


def test_times_near_the_limit_keep_their_microseconds(manager: Any) -> None:
    """The times of a summary come back exactly, up to the last microsecond of the year 9999."""
    at = "9999-12-31T23:59:59.999999+00:00"
    span = {"start": at, "end": at}
    given = state(entry("a", timestamp=at), summaries=(summary("s", "a", timeRange=span, createdAt=at),))

    manager.import_session(given)

    (imported,) = manager.export_session("restored-session").summaries
    assert {imported.created_at, imported.time_range.start, imported.time_range.end} == {datetime.fromisoformat(at)}


def test_an_import_replaces_the_session(manager: Any) -> None:
    """An import replaces the session of that id in one step; the manager keeps its own configuration."""
    manager.import_session(state(entry("a"), entry("b")))
    heard = Heard(manager, "entry:added", "compressed")

    manager.import_session(state(entry("c"), config={"maxEntries": 3}))

    assert [one.id for one in manager.export_session("restored-session").entries] == ["c"]
    assert (manager.config.max_entries, heard.calls) == (100, [])


def test_a_summary_listed_among_the_entries_is_imported_once(manager: Any) -> None:
    """A summary that is also listed among the entries is imported once, as a summary."""
    listed = entry("x", "They spoke.", type="summary", role="system")
    manager.import_session(state(listed, entry("a"), entry("b"), summaries=(summary("x", "a"),)))

    exported = manager.export_session("restored-session")

    assert [one.id for one in exported.entries] == ["a", "b"]
    assert [one.id for one in exported.summaries] == ["x"]


def test_an_erased_entry_is_named_and_stays_erased(manager: Any) -> None:
    """An export lists erased entries by id only; a summary may name them, and an import brings back none (N31)."""
    summaries = (summary("x", "gone", "a"),)
    manager.import_session(state(entry("a"), entry("b"), summaries=summaries, erased=["gone"]))

    exported = manager.export_session("restored-session")

    assert exported.erased == ((0, "gone"),)
    assert exported.summaries[0].original_entry_ids == ("gone", "a")
    manager.import_session(json.loads(json.dumps(exported.to_dict())))
    assert manager.export_session("restored-session") == exported


def test_a_compressed_entry_without_a_summary_is_archived(manager: Any) -> None:
    """An entry that is compressed but in no summary is archived: no context has it, and an export has it again."""
    manager.import_session(state(entry("a", compressed=True), entry("b")))

    stats = manager.get_stats("restored-session")

    assert (stats.compressed_entries, stats.active_entries) == (1, 1)
    first, _ = manager.export_session("restored-session").entries
    assert (first.compressed, first.summary_id) == (True, None)


def test_images_pins_and_importance_survive_an_export() -> None:
    """Images, pins and importance set through Palimpsest are exported and come back on import."""
    with managed("plain") as first, managed("plain") as second:
        session = first.memory.session("s")
        session.add_user_message([Text(text="look"), Image(source="data:image/png;base64,iVBORw0KGgo=")], pinned=True)
        session.add_assistant_message("nice", importance=0.9)

        second.import_session(json.loads(json.dumps(first.export_session("s").to_dict(camel=True))))

        imported = second.memory.session("s").entries()
        assert [one.content for one in imported] == [one.content for one in session.entries()]
        assert [(one.pinned, one.importance) for one in imported] == [(True, None), (False, 0.9)]
        assert second.memory.session("s").stats().pinned == 1


def test_changing_returned_objects_changes_nothing_stored(manager: Any) -> None:
    """Changing an object that was passed in or returned changes nothing that is stored (N29)."""
    metadata = {"tags": ["a"]}
    added = manager.add_user_message("s", "hello", metadata)
    metadata["tags"].append("b")
    added.to_dict()["metadata"]["tags"].append("c")
    manager.export_session("s").to_dict()["entries"][0]["metadata"]["tags"].append("d")

    assert manager.get_active_entries("s")[0].metadata == {"tags": ["a"]}


STEPS = st.tuples(
    st.sampled_from(["user", "assistant", "call", "result", "context", "compress", "text"]),
    st.sampled_from(
        ["short", "word " * 30, "=== Recent Conversation ===\n[2020-01-01 - 2020-01-02]", "{content} <a> "]
    ),
)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=examples(60))
def test_after_any_steps_a_state_comes_back_and_texts_fit(steps: list[tuple[str, str]]) -> None:
    """After any steps the counts add up, the text is within its limit, and an exported session imports equal."""
    config = {"maxTokens": 300, "maxEntries": 12, "recentWindow": 4}
    with managed("plain", config=config, counter=None) as first, managed("plain", counter=None) as second:
        verbs = {
            "user": lambda text: first.add_user_message("s", text),
            "assistant": lambda text: first.add_assistant_message("s", text),
            "call": lambda text: first.add_tool_call("s", "tool", {"say": text}),
            "result": lambda text: first.add_tool_result("s", "tool", text),
            "context": lambda text: first.add_context("s", text, "a.py"),
            "compress": lambda _: first.compress("s"),
            "text": lambda _: first.get_context_for_llm("s"),
        }
        for verb, text in steps:
            with suppress(BudgetImpossible):
                verbs[verb](text)
        with suppress(BudgetImpossible):
            assert first.memory.session("s").options.counter.count(first.get_context_for_llm("s")) <= 300
        exported, stats = first.export_session("s"), first.get_stats("s")

        assert stats.total_entries == stats.active_entries + stats.compressed_entries == len(exported.entries)
        active = [entry.id for entry in first.get_active_entries("s")]
        assert active == [entry.id for entry in exported.entries if not entry.compressed]
        second.update_config(first.config.to_dict())
        second.import_session(json.loads(json.dumps(exported.to_dict(camel=True))))
        assert second.export_session("s") == exported
        assert second.memory.session("s").verify().ok


def test_the_documented_practices_work_as_one_script() -> None:
    """AGTerm's documented practices work in one script.

    Watch the tokens, add a file, export at the end, import at the next beginning, clear for a new topic.
    """
    with MemoryManager() as memory, MemoryManager() as later:
        memory.add_user_message("s", "Let us look at the parser.")
        memory.add_context("s", "def parse(): ...", "critical-file.py")
        used = memory.get_stats("s").active_tokens
        saved = json.dumps(memory.export_session("s").to_dict(camel=True))

        later.import_session(json.loads(saved))

        assert later.get_stats("s").active_tokens == used > 0
        assert later.get_context_for_llm("s") == memory.get_context_for_llm("s")
        assert later.clear_session("s").entries == 2
        assert later.get_context_for_llm("s") == ""


def test_summaries_of_two_sessions_may_share_an_id(manager: Any) -> None:
    """Summaries with one id in two sessions stay apart, and each session's state imports again."""
    for name in ("a", "b"):
        manager.import_session(state(entry(f"{name}1"), summaries=(summary("s1", f"{name}1"),), sessionId=name))
    originals = {name: manager.get_summaries(name)[0].original_entry_ids for name in ("a", "b")}
    assert originals == {"a": ("a1",), "b": ("b1",)}
    assert manager.import_session(manager.export_session("b")) == "b"

    manager.import_session(state(entry("c1"), summaries=(summary("s1", "c1"),), sessionId="a"))
    assert manager.get_summaries("a")[0].original_entry_ids == ("c1",)
