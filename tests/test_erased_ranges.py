"""Erased entries cost nothing: whoever reads what is active passes over ranges of tombstones, and sees the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import Memory, PalimpsestError, Session
from palimpsest.log import change
from palimpsest.runtime.runner import drive
from palimpsest.strategies import Neuralyzer, SimpleFifo, Triggers
from test_erasing_costs import large, watched
from worlds import attempt, open_world
from writer import quarters

__all__ = ["large"]  # the fixture

OPTIONS: dict[str, dict[str, Any]] = {
    "erased by a strategy": {
        "long_term": Neuralyzer(interaction_keep=2, triggers=Triggers(interaction_threshold_qty=6)),
        "max_tokens": 100_000,
    },
    "flushed": {
        "long_term": SimpleFifo(max_messages=10, triggers=Triggers(threshold=1.0, max_messages=12)),
        "persistence": "flush",
        "archive": False,
        "max_tokens": 100_000,
    },
}


def say(session: Session, number: int) -> None:
    """Add a turn of two messages."""
    with session.turn():
        session.add_user_message(f"question {number}")
        session.add_assistant_message(f"answer {number}")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_what_was_erased_is_not_read_again(tmp_path: Path, options: dict[str, Any]) -> None:
    """A context, a plan and the end of a turn read as many rows after 60 erased entries as after 600."""
    found = []
    for turns in (36, 316):
        where = tmp_path / f"{turns}.db"
        with Memory.open(where, synchronous="NORMAL") as memory:
            session = memory.session("s", counter=quarters, **options)
            session.add_system_message("Be brief.")
            for number in range(turns):
                say(session, number)
            assert len(session.active_entries()) < 15
        with Memory.open(where, synchronous="NORMAL") as memory:
            session = memory.session("s", counter=quarters, **options)
            with watched(memory) as seen:
                session.context()
                session.compact(dry_run=True)
                session.end_turn()
                assert len(session.active_entries()) < 15
            found.append(seen.rows())

    assert abs(found[0] - found[1]) < 10, found


MADE = re.compile(r"call_[0-9a-f]{24}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Matches an id that was given to a call or an entry."""

ACTS = st.sampled_from(["erase one", "erase some", "strategy", "rewind", "pin", "fork", "clear", "context", "flush"])


def act(session: Session, kind: str, share: float) -> Session:
    """Do something that erases, or that moves what was erased, and return the session to go on with."""
    entries = session.entries(rewound=True)
    count = len(entries)
    if kind == "fork":
        return session.fork(at=int(share * session.stats().revision)) if count else session
    if kind == "clear" and share > 0.9:
        session.clear()
    elif kind == "context":
        attempt(session)
    elif kind == "flush":
        session.compact({"strategy": "simple_fifo", "max_messages": 4})
        session.end_turn()
    elif count and kind == "erase one":
        session.erase(entries[int(share * count)])
    elif count and kind == "erase some":
        session.erase(entries[: int(share * count)] or entries[:1])
    elif count and kind == "pin":
        if not (entry := entries[int(share * count)]).erased:
            session.pin(entry)
    elif kind == "strategy":
        session.compact({"strategy": "neuralyzer", "interaction_keep": int(share * 3)})
    elif kind == "rewind" and session.stats().revision:
        session.rewind(int(share * session.stats().revision))
    return session


def played(kind: str, folder: Path, script: list[tuple[Any, str, float]], budget: int | None) -> list[Any]:
    """Return what a session of these operations shows after each of them."""
    shown: list[Any] = []
    with open_world(kind, folder, max_tokens=budget, persistence="flush", archive=False) as world:
        session = world.session
        for log, what, share in script:
            for operation in log:
                strategies.perform(session, operation, world.clock.now)
            try:
                session = act(session, what, share)
            except PalimpsestError as fault:
                shown.append(type(fault))
            context = attempt(session, dry_run=True)
            shown.append(None if context is None else MADE.sub("an id", str(context.messages)))
            shown.append([entry.seq for entry in session.active_entries()])
            result = session.compact({"strategy": "simple_fifo", "max_messages": 3}, dry_run=True)
            shown.append((result.reason, result.evicted, result.tokens_before, result.messages_after))
            assert session.verify().problems == ()
    return shown


@settings(max_examples=examples(40), deadline=None)
@given(
    script=st.lists(st.tuples(strategies.logs(most=4, least=1), ACTS, st.floats(0, 0.999)), min_size=1, max_size=6),
    budget=st.none() | st.integers(40, 200),
)
def test_passing_over_erased_entries_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[Any, str, float]], budget: int | None
) -> None:
    """What is shown, active and compacted is the same as where every tombstone is read."""
    folder = tmp_path_factory.mktemp("ranges")
    passed_over = played("forgetful", folder, script, budget)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(change, "MOST_GRAVES", 0)
        read = played("forgetful", folder, script, budget)
    for one, other in zip(read, passed_over, strict=True):
        assert one == other


def test_only_the_longest_ranges_are_named(memory: Memory) -> None:
    """However many entries are erased here and there, the head names at most 16 ranges, the longest."""
    session = memory.session("s", counter=quarters)
    session.add([{"role": "user", "content": f"text {number}"} for number in range(100)])
    session.erase(list(range(1, 80, 2)))
    session.erase(list(range(81, 91)))

    head = drive(memory.store.head(session.options.key))
    assert head is not None
    assert len(head.graves) == 16
    assert (81, 90) in head.graves
    assert session.verify().ok
    assert len(session.active_entries()) == 50


def test_verify_notes_an_entry_that_is_taken_for_erased(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the head says that an entry is erased which is not, `verify` says so."""
    session = memory.session("s", counter=quarters)
    session.add([{"role": "user", "content": f"text {number}"} for number in range(10)])

    def wrong(*_: object) -> object:
        return ((1, 4),)

    monkeypatch.setattr(change.spans, "longest", wrong)
    session.erase([1, 2, 3])

    assert any("entry 4 is not erased" in problem for problem in session.verify().problems)
