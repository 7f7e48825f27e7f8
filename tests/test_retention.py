"""Deleting sessions that nobody has used for long."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory
from palimpsest.errors import ConfigError, StoreCorrupt
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Place, Step
from palimpsest.stores.engine.items import ITEMS
from palimpsest.testing import FakeClock
from test_owners import KINDS, ids, opened, said

DAY = 86_400


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store of each kind."""
    with opened(request.param, tmp_path, clock) as memory:
        yield memory


def test_what_nobody_has_touched_goes(memory: Memory, clock: FakeClock) -> None:
    """By the last write, of whatever kind; of this tenant alone; a dry run counts the same and deletes nothing."""
    for id in ("old", "touched", "titled"):
        said(memory, id, user="ann")
    said(memory.for_tenant("other"), "old")
    memory.session("old").fork("branch")
    clock.advance(60 * DAY)
    memory.session("branch").add_user_message("more")
    memory.session("touched").add_user_message("more")
    memory.session("titled").describe(title="Rome")
    said(memory, "new")
    clock.advance(40 * DAY)
    told: list[tuple[int, int]] = []

    assert memory.sweep(untouched_for="90d", dry_run=True) == 1
    assert len(memory.sessions()) == 5
    assert ids(memory.sessions(before=_ago(clock, 90))) == ["old"]
    assert memory.sweep(untouched_for="90d", progress=lambda *done: told.append(done)) == 1

    assert ids(memory.sessions()) == ["branch", "new", "titled", "touched"]
    assert memory.session("branch").entries()[0].text == "hello"
    assert ids(memory.sessions(user="ann")) == ["branch", "titled", "touched"]
    assert ids(memory.for_tenant("other").sessions()) == ["old"]
    assert told == [(1, 1)]
    assert memory.sweep(untouched_for=timedelta(days=90)) == 0
    assert memory.sweep(untouched_for=30 * DAY) == 4


def _ago(clock: FakeClock, days: int) -> datetime:
    return datetime.fromtimestamp(clock() / 1_000_000, UTC) - timedelta(days=days)


def test_more_than_a_page_of_them(clock: FakeClock) -> None:
    """All of them go, and none that is newer."""
    with Memory.open("memory://", clock=clock) as memory:
        for number in range(1100):
            said(memory, f"old-{number}")
        clock.advance(2 * DAY)
        for number in range(10):
            said(memory, f"new-{number}")

        assert memory.sweep(untouched_for="1d") == 1100
        assert len(memory.sessions()) == 10


def test_what_has_expired_goes_as_before(memory: Memory, clock: FakeClock) -> None:
    """With and without retention; a dry run counts entries."""
    later = datetime.fromtimestamp(clock() / 1_000_000, UTC) + timedelta(days=1)
    memory.session("s").add_user_message("for a day", expires_at=later)
    clock.advance(2 * DAY)

    assert memory.sweep(dry_run=True) == 1
    assert memory.session("s").entries()[0].text == "for a day"
    assert memory.sweep(untouched_for="30d") == 1
    assert memory.session("s").entries()[0].erased


@pytest.mark.parametrize(
    "length", ["90", "d", "0d", "-1d", "1y", 0, -5, float("nan"), True, timedelta(0), "9" * 30 + "d"]
)
def test_what_is_no_length_of_time_is_refused(length: Any) -> None:
    """With the option's name, and nothing is deleted."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="untouched_for"):
        memory.sweep(untouched_for=length)


def test_a_damaged_item_keeps_no_sweep_from_the_rest(clock: FakeClock) -> None:
    """All else that is due is gone when the damage is told."""
    with Memory.open("memory://", clock=clock) as memory:
        chat = memory.session("s")
        chat.add_user_message("soon over", expires_at=datetime.fromtimestamp(clock() / 1e6 + 10, UTC))
        due = clock() + 5_000_000
        item = Place("default", "n", f"{ITEMS}n", "k")
        drive(memory.store.backend.write([[Step(item, None, b"damaged", b"", due)]], 0))
        clock.advance(20)

        with pytest.raises(StoreCorrupt):
            memory.sweep()

        assert chat.entry(1).erased
