"""Verbs of the file store that go through all sessions look at each log a few times, not once for each other log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory
from palimpsest.log.entry import now_us
from palimpsest.sessions.fact_scopes import Leaving
from palimpsest.testing import FakeClock

VERBS: dict[str, Callable[[Memory], object]] = {
    "all of a user": lambda memory: memory.forget(user="ann"),
    "all of a user, dry": lambda memory: memory.forget(user="ann", dry_run=True),
    "what says a text": lambda memory: memory.forget(matches="heron"),
    "what says a text, dry": lambda memory: memory.forget(matches="heron", dry_run=True),
    "a tenant": lambda memory: memory.forget(tenant=memory.tenant),
    "a tenant, dry": lambda memory: memory.forget(tenant=memory.tenant, dry_run=True),
    "what nobody uses": lambda memory: memory.sweep(untouched_for="1h"),
}


def looks(
    verb: Callable[[Memory], object],
    number: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    lifetime: str | None = None,
) -> int:
    """Return how often a verb asks for a file's status, in a store of `number` sessions with a fact each."""
    clock, real, calls = FakeClock(now_us()), os.stat, 0
    with Memory.open(f"file://{folder}", synchronous="NORMAL", clock=clock) as memory:
        for index in range(number):
            session = memory.session(f"s{index}", user="ann", lifetime=lifetime)
            session.add_user_message("the heron stands")
            session.working.set("bird", "heron")
    clock.advance(2 * 3600)

    def counting(*arguments: Any, **options: Any) -> os.stat_result:
        nonlocal calls
        calls += 1
        return real(*arguments, **options)

    with Memory.open(f"file://{folder}", synchronous="NORMAL", clock=clock) as memory, monkeypatch.context() as patch:
        patch.setattr(os, "stat", counting)
        verb(memory)
    return calls


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_verbs_over_all_sessions_look_at_each_log_a_few_times(
    verb: Callable[[Memory], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many sessions take about twice as many looks at files, not four times as many."""
    few = looks(verb, 25, tmp_path / "few", monkeypatch)
    many = looks(verb, 50, tmp_path / "many", monkeypatch)

    assert many < 2.5 * few


def test_a_sweep_of_expired_sessions_looks_at_each_log_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of expired sessions does not list all scopes for each session whose facts it removes."""
    few = looks(lambda memory: memory.sweep(), 25, tmp_path / "few", monkeypatch, "1h")
    many = looks(lambda memory: memory.sweep(), 50, tmp_path / "many", monkeypatch, "1h")

    assert many < 2.5 * few


def test_facts_are_read_from_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the facts of one scope takes as many looks at files, however many sessions there are."""

    def read(memory: Memory) -> None:
        assert memory.working("session/s7").to_dict() == {"bird": "heron"}
        assert memory.working("other").to_dict() == {}

    few = looks(read, 10, tmp_path / "few", monkeypatch)

    assert looks(read, 30, tmp_path / "many", monkeypatch) == few


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_facts_stored_during_an_erasure_go_with_their_session(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure of a user removes facts that are stored meanwhile, but none of a session that is begun anew."""
    where = f"file://{tmp_path}/logs" if kind == "file" else f"sqlite:///{tmp_path}/a.db"
    names, dropped = [f"s{one:02}" for one in range(30)], []
    with Memory.open(where, synchronous="NORMAL") as memory, Memory.open(where, synchronous="NORMAL") as other:
        for name in names:
            memory.session(name, user="ann").add_user_message("the heron stands")
        drop = Leaving.drop

        async def dropping(leaving: Leaving, name: str, *arguments: Any, **options: Any) -> dict[str, int]:
            counts = await drop(leaving, name, *arguments, **options)
            dropped.append(name)
            if len(dropped) == 20:
                other.working(f"session/{names[-1]}").set("late", 1)
                for session in (dropped[0], dropped[12]):
                    other.session(session, user="bob").add_user_message("anew")
                    other.working(f"session/{session}").set("mine", 1)
            return counts

        monkeypatch.setattr(Leaving, "drop", dropping)
        memory.forget(user="ann")

        assert sorted(dropped) == names
        assert sorted(one.session for one in memory.sessions()) == sorted((dropped[0], dropped[12]))
        assert memory.scopes() == [f"session/{one}" for one in sorted((dropped[0], dropped[12]))]
