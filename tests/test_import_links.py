"""Links of entries (which call a result answers, groups, interactions) survive export and import on every store."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import strategies
from laws import examples
from palimpsest import ImportFailed, Memory, Session
from palimpsest.errors import BudgetImpossible
from palimpsest.log.entry import Entry, Reasoning
from test_import_identity import STORES, opened

law = settings(deadline=None, max_examples=4, suppress_health_check=list(HealthCheck))


_numbers = itertools.count()


def fresh(kind: str, folder: Path) -> Memory:
    """Return a new and empty store of this kind that does not sync to the disk."""
    options: dict[str, Any] = {} if kind.startswith("memory") else {"synchronous": "NORMAL"}
    return opened(kind, folder / str(next(_numbers)), **options)


def exported(session: Session) -> dict[str, Any]:
    """Return a session's export without its time."""
    return {name: value for name, value in json.loads(json.dumps(session.export())).items() if name != "exported_at"}


def answered(session: Session) -> list[tuple[str, str]]:
    """Return the results that answer a call, each with the call's text."""
    calls = {entry.seq: entry.text for entry in session.entries()}
    return [(calls[entry.answers], entry.text) for entry in session.entries() if entry.answers]


def twice(session: Session) -> None:
    """Add two calls with one id, whose results are added by the tool's name."""
    session.add_user_message("Weather in Oslo and Rome?")
    for city in ("Oslo", "Rome"):
        session.add_tool_call("weather", city, call_id="c")
    for weather in ("snow", "sun"):
        session.add_tool_result("weather", weather)


# --- kept


@pytest.mark.parametrize("on_conflict", ["error", "replace", "merge"])
def test_results_stay_with_their_calls(memory: Memory, on_conflict: Any) -> None:
    """If two calls have one id, each keeps its result through an import, whatever `on_conflict`."""
    session = memory.session("s")
    twice(session)
    if on_conflict == "replace":
        memory.session("t").add_user_message("gone soon")
    elif on_conflict == "merge":
        memory.session("t").add_user_message("here before")

    memory.import_session(session.export(), session_id="t", on_conflict=on_conflict)

    assert answered(session) == [("Oslo", "snow"), ("Rome", "sun")]
    assert answered(memory.session("t")) == answered(session)
    if on_conflict != "merge":  # a merge places the calls elsewhere, so equal ids get other numbers
        assert memory.session("t").context().messages == session.context().messages


def test_a_merge_links_results_to_the_existing_calls(memory: Memory) -> None:
    """A result that is newer than its call is linked to that call by a merge, not to another of its id."""
    session = memory.session("s")
    for city in ("Oslo", "Rome"):
        session.add_tool_call("weather", city, call_id="c")
    memory.import_session(session.export(), session_id="t")
    for weather in ("snow", "sun"):
        session.add_tool_result("weather", weather)

    memory.import_session(session.export(), session_id="t", on_conflict="merge")

    assert answered(memory.session("t")) == [("Oslo", "snow"), ("Rome", "sun")]


@pytest.mark.parametrize("on_conflict", ["error", "merge"])
def test_the_result_of_an_erased_call_stays_out(memory: Memory, on_conflict: Any) -> None:
    """A result whose call was erased is in no context after an import, and the other call keeps its own."""
    session = memory.session("s")
    session.add_user_message("q")
    session.add_tool_call("f", "one", call_id="c")
    second = session.add_tool_call("f", "two", call_id="c")
    session.add_tool_result("f", "of one", call_id="c")
    session.add_tool_result("f", "of two", call_id="c")
    session.erase([second.seq])
    if on_conflict == "merge":
        memory.session("t").add_user_message("here before")

    memory.import_session(session.export(), session_id="t", on_conflict=on_conflict)

    assert "of two" not in str(session.context().messages)
    assert memory.session("t").context().messages[-2:] == session.context().messages[-2:]
    assert "of two" not in str(memory.session("t").context().messages)


def test_a_merge_adds_nothing_that_was_rewound(memory: Memory) -> None:
    """What a rewind hid in an export is not added to a session that never had it."""
    session, other = memory.session("s"), memory.session("t")
    session.add_user_message("kept")
    session.add_user_message("taken back")
    session.rewind(1)
    other.add_user_message("here before")

    memory.import_session(session.export(), session_id="t", on_conflict="merge")

    assert [entry.text for entry in other.entries(rewound=True)] == ["here before", "kept"]


def test_an_entry_without_links_is_linked_as_if_added(memory: Memory) -> None:
    """Entries without links, as in an export written by hand, are linked by ids and names as if added."""
    session = memory.session("s")
    twice(session)
    data = session.export()
    for entry in data["entries"]:
        entry.pop("links")

    memory.import_session(data, session_id="t")

    copied = memory.session("t")
    assert answered(copied) == [("Oslo", "snow"), ("Rome", "sun")]
    assert [entry.group for entry in copied.entries()] == [1, 2, 2, 2, 2]


# --- believed only where they can be


def links(seq: int, **changes: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that changes the links of one entry of an export."""

    def change(data: dict[str, Any]) -> None:
        (entry,) = (entry for entry in data["entries"] if entry["seq"] == seq)
        entry["links"].update(changes)

    return change


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (links(4, answers=5), "answers 5, which is not an earlier call"),
        (links(4, answers=1), "answers 1, which is not an earlier call"),
        (links(4, answers=99), "answers 99, which is not an earlier call"),
        (links(5, answers=2), "entry 5 answers the call 2, which has a result already"),
        (links(4, answers=7), "answers 7, which is not an earlier call"),
        (links(8, answers=3), "answers the call 3, which has a result already"),
        (links(6, answers=2), "entry 6 answers the call 2, which"),
        (links(3, group=1), "entry 3 is in group 1"),
        (links(3, group=5), "entry 3 is in group 5"),
        (links(6, group=2), "entry 6 is in group 2"),
        (links(7, group=2), "entry 7 is in group 2"),
        (links(5, revision=1), "entry 5 has revision 1, but the entry before it has 4"),
        (links(9, group=3), "entry 9 is in group 3, which does not exist"),
        (links(9, group=99), "entry 9 is in group 99, which does not exist"),
        (links(9, turn=2), "entry 9 is in interaction 2, but entry 2 is not a human message"),
    ],
)
def test_impossible_links_are_refused(memory: Memory, damage: Any, why: str) -> None:
    """Links that no log can have raise ImportFailed that names the entry."""
    session = memory.session("s")
    twice(session)
    session.add_user_message("again")
    session.add_tool_call("weather", "Bonn", call_id="d")
    session.add_tool_result("weather", "rain", call_id="d")
    session.add_assistant_message("all told")
    session.rewind(8)
    data = session.export()
    memory.import_session(data, session_id="sound")

    damage(data)

    with pytest.raises(ImportFailed, match=why):
        memory.import_session(data, session_id="t")
    assert [one.session for one in memory.sessions()] == ["s", "sound"]


def test_a_result_of_another_call_is_refused(memory: Memory) -> None:
    """A link between a call and a result of different ids is refused."""
    session = memory.session("s")
    session.add_tool_call("f", "one", call_id="a")
    session.add_tool_call("f", "two", call_id="b")
    session.add_tool_result("f", "of one", call_id="a")
    data = session.export()

    links(3, answers=2)(data)

    with pytest.raises(ImportFailed, match="entry 3 answers the call 2, which has another call_id"):
        memory.import_session(data, session_id="t")


def test_derived_links_are_computed_anew(memory: Memory) -> None:
    """The interaction of an entry, and whether a result came late, are computed and not taken from a file."""
    session = memory.session("s")
    twice(session)
    data, sound = session.export(), session.entries()

    links(4, late=True, turn=3)(data)
    memory.import_session(data, session_id="t")

    assert memory.session("t").entries() == sound


# --- the laws


def grown(session: Session, log: list[Any], data: st.DataObject) -> None:
    """Add to the session, with rewinds, pins, erasures and compactions in between."""
    revisions = [session.stats().revision]
    for operation in log:
        strategies.perform(session, operation)
        revisions.append(session.stats().revision)
        entries = [entry.seq for entry in session.entries() if not entry.erased]
        action = data.draw(st.sampled_from(["add"] * 4 + ["erase", "erase", "rewind", "pin", "compact"]), label="what")
        if action == "rewind":
            session.rewind(data.draw(st.sampled_from(revisions), label="to"))
        elif action == "compact":
            session.compact(strategy="simple_fifo")
        elif entries and action != "add":
            seq = data.draw(st.sampled_from(entries), label="entry")
            getattr(session, action)(*([[seq]] if action == "erase" else [seq]))


def shown(session: Session) -> Any:
    """Return the messages of a small and of an unlimited context, or None if no context fits."""
    try:
        return session.context(dry_run=True, max_tokens=60).messages, session.context(view="all", dry_run=True).messages
    except BudgetImpossible:
        return None


def options_of() -> dict[str, Any]:
    """Return a session's counter and budget."""
    return {"counter": strategies.WORDS, "max_tokens": 200}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
@law
@given(log=strategies.logs(most=8), more=strategies.logs(most=3), data=st.data())
def test_an_imported_session_equals_its_original(
    kind: str, folder: Path, log: list[Any], more: list[Any], data: st.DataObject
) -> None:
    """An imported session has equal entries, links, head and contexts, and develops like its original."""
    with Memory.open("memory://") as source, fresh(kind, folder) as target:
        session = source.session("s", **options_of())
        grown(session, log, data)
        if not log:
            return
        original = exported(session)

        target.import_session(original)
        copied = target.session("s", **options_of())

        assert exported(copied) == original
        assert shown(copied) == shown(session)
        target.session("other").add_user_message("in the way")
        target.import_session(original, session_id="other", on_conflict="replace")
        other = target.session("other", **options_of())
        assert other.entries(rewound=True) == copied.entries(rewound=True)
        assert shown(other) == shown(session)
        for operation in strategies.numbered(more, start=1000):
            for continued in (session, copied):
                strategies.perform(continued, operation)
        assert bare(copied) == bare(session)
        assert without_made_up(shown(copied)) == without_made_up(shown(session))


def without_made_up(messages: Any) -> str:
    """Return the messages as text without generated ids."""
    return re.sub(r"call_[0-9a-f]{24}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", json.dumps(messages))


def test_a_copy_groups_like_its_original_after_an_erased_thought(memory: Memory) -> None:
    """After an erased thought nothing joins its group, in the original and in a copy.

    A tombstone does not say that it was a thought.
    """
    session = memory.session("s")
    session.add_assistant_message((Reasoning(text="hm"),))
    session.erase(1)
    memory.import_session(session.export(), session_id="t")

    for continued in (session, memory.session("t")):
        continued.add_assistant_message((Reasoning(text="hm"),))

        assert [entry.group for entry in continued.entries()] == [1, 2]


def bare(session: Session) -> list[Entry]:
    """Return the entries without what depends on when and where they were added."""
    return [replace(entry, id="", at=0, revision=0, tokens=None, call_id=_kept(entry)) for entry in session.entries()]


def _kept(entry: Entry) -> str | None:
    """Return the call id, unless it was generated for a call without one."""
    return entry.call_id if entry.call_id in {*strategies.CALL_IDS, "call_4", "nobody"} else None


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
@law
@given(log=strategies.logs(most=8), more=strategies.logs(most=5), data=st.data())
def test_a_merge_adds_new_entries_with_their_links(
    kind: str, folder: Path, log: list[Any], more: list[Any], data: st.DataObject
) -> None:
    """A copy that merges what its original has added since equals the original, in links and contexts."""
    with Memory.open("memory://") as source, fresh(kind, folder) as target:
        session = source.session("s", **options_of())
        grown(session, log, data)
        if not log:
            return
        target.import_session(session.export())
        for operation in strategies.numbered(more, start=1000):
            strategies.perform(session, operation)

        target.import_session(session.export(), on_conflict="merge")
        copied = target.session("s", **options_of())
        merged = copied.entries()
        target.import_session(session.export(), on_conflict="merge")

        assert bare(copied) == bare(session)
        assert shown(copied) == shown(session)
        assert copied.entries() == merged


@settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(log=strategies.logs(most=8), data=st.data())
def test_any_links_are_imported_or_refused(log: list[Any], data: st.DataObject) -> None:
    """Any links of an export are refused, or the session that they make works with every verb."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", **options_of())
        grown(session, log, data)
        if not log:
            return
        damaged = copy.deepcopy(session.export())
        for _ in range(data.draw(st.integers(1, 4), label="how many")):
            entry = data.draw(st.sampled_from([*damaged["entries"], *damaged["tombstones"]]), label="entry")
            name = data.draw(st.sampled_from(["turn", "group", "answers", "revision", "late"]), label="link")
            entry["links"][name] = (
                data.draw(st.booleans()) if name == "late" else data.draw(st.integers(0, len(log) * 2), label="value")
            )
        try:
            memory.import_session(damaged, session_id="t")
        except ImportFailed:
            return
        imported = memory.session("t", **options_of())
        for revision in (None, 1):
            shown(imported)
            imported.entries(at=revision)
        imported.interactions()
        imported.rewind(1)
        imported.rewind(imported.stats().revision - 1)
        shown(imported)
