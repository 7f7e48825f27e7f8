"""What the file store looks at where a verb goes through all sessions: each log some times, not all for each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory
from palimpsest.log.entry import now_us
from palimpsest.sessions.scopes import Leaving
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
    """How often a verb asks what a file is like, where there are so many sessions, each with a fact."""
    clock, real, asked = FakeClock(now_us()), os.stat, 0
    with Memory.open(f"file://{folder}", synchronous="NORMAL", clock=clock) as memory:
        for one in range(number):
            session = memory.session(f"s{one}", user="ann", lifetime=lifetime)
            session.add_user_message("the heron stands")
            session.working.set("bird", "heron")
    clock.advance(2 * 3600)

    def counting(*given: Any, **named: Any) -> os.stat_result:
        nonlocal asked
        asked += 1
        return real(*given, **named)

    with Memory.open(f"file://{folder}", synchronous="NORMAL", clock=clock) as memory, monkeypatch.context() as patch:
        patch.setattr(os, "stat", counting)
        verb(memory)
    return asked


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_what_goes_through_all_sessions_looks_at_each_log_some_times(
    verb: Callable[[Memory], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many sessions take about twice as many looks, not four times as many."""
    few = looks(verb, 25, tmp_path / "few", monkeypatch)
    many = looks(verb, 50, tmp_path / "many", monkeypatch)

    assert many < 2.5 * few


def test_a_sweep_of_sessions_that_are_over_does_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its facts along, and all scopes are not listed for each."""
    few = looks(lambda memory: memory.sweep(), 25, tmp_path / "few", monkeypatch, "1h")
    many = looks(lambda memory: memory.sweep(), 50, tmp_path / "many", monkeypatch, "1h")

    assert many < 2.5 * few


def test_facts_that_are_asked_for_by_name_are_in_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading those of one scope takes as many looks, however many sessions there are."""

    def read(memory: Memory) -> None:
        assert memory.working("session/s7").to_dict() == {"bird": "heron"}
        assert memory.working("other").to_dict() == {}

    few = looks(read, 10, tmp_path / "few", monkeypatch)

    assert looks(read, 30, tmp_path / "many", monkeypatch) == few


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_facts_that_somebody_keeps_meanwhile_go_with_their_session(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a session that goes later, too; but not those of one that somebody has begun anew by then."""
    where = f"file://{tmp_path}/logs" if kind == "file" else f"sqlite:///{tmp_path}/a.db"
    names, dropped = [f"s{one:02}" for one in range(30)], []
    with Memory.open(where, synchronous="NORMAL") as memory, Memory.open(where, synchronous="NORMAL") as other:
        for name in names:
            memory.session(name, user="ann").add_user_message("the heron stands")
        drop = Leaving.drop

        async def dropping(leaving: Leaving, name: str, *given: Any, **named: Any) -> dict[str, int]:
            found = await drop(leaving, name, *given, **named)
            dropped.append(name)
            if len(dropped) == 20:
                other.working(f"session/{names[-1]}").set("late", 1)
                for again in (dropped[0], dropped[12]):
                    other.session(again, user="bob").add_user_message("anew")
                    other.working(f"session/{again}").set("mine", 1)
            return found

        monkeypatch.setattr(Leaving, "drop", dropping)
        memory.forget(user="ann")

        assert sorted(dropped) == names
        assert sorted(one.session for one in memory.sessions()) == sorted((dropped[0], dropped[12]))
        assert memory.scopes() == [f"session/{one}" for one in sorted((dropped[0], dropped[12]))]
