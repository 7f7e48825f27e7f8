"""Deleting sessions that nobody has used for long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory
from palimpsest.errors import ConfigError, ImportFailed, InvalidEntry, StoreCorrupt
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Place, Step
from palimpsest.stores.engine.items import ITEMS
from palimpsest.stores.engine.maintenance import Maintenance
from palimpsest.stores.values import Dump
from palimpsest.testing import FakeClock
from test_session_owners import KINDS, ids, opened, said

DAY = 86_400


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store of each kind."""
    with opened(request.param, tmp_path, clock) as memory:
        yield memory


def test_a_sweep_deletes_untouched_sessions(memory: Memory, clock: FakeClock) -> None:
    """`sweep(untouched_for=…)` deletes the tenant's sessions without a recent write; a dry run counts the same."""
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


@pytest.mark.wide
def test_more_than_a_page_of_untouched_sessions_is_deleted(clock: FakeClock) -> None:
    """More unused sessions than a page are all deleted, and no newer one."""
    with Memory.open("memory://", clock=clock) as memory:
        for number in range(1100):
            said(memory, f"old-{number}")
        clock.advance(2 * DAY)
        for number in range(10):
            said(memory, f"new-{number}")

        assert memory.sweep(untouched_for="1d") == 1100
        assert len(memory.sessions()) == 10


def test_expired_entries_are_swept_with_or_without_retention(memory: Memory, clock: FakeClock) -> None:
    """Expired entries are swept with retention or without; a dry run counts them."""
    later = datetime.fromtimestamp(clock() / 1_000_000, UTC) + timedelta(days=1)
    memory.session("s").add_user_message("for a day", expires_at=later)
    clock.advance(2 * DAY)

    assert memory.sweep(dry_run=True) == 1
    assert memory.session("s").entries()[0].text == "for a day"
    assert memory.sweep(untouched_for="30d") == 1
    assert memory.session("s").entries()[0].erased


OLD = ["0001-01-01T00:00:00Z", "0001-01-01T23:00:00+23:00", "1960-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z"]


@pytest.mark.parametrize("at", [*OLD, "1970-01-01T00:00:00Z"])
def test_entries_expired_before_1970_are_swept(memory: Memory, at: str) -> None:
    """Entries and facts that expired before 1970 are never seen and are swept."""
    chat = memory.session("s")
    chat.add_user_message("over for long", expires_at=datetime.fromisoformat(at))
    chat.add_user_message("stays")
    data = chat.export()
    times = dict.fromkeys(("created_at", "updated_at", "since"), "2020-01-01T00:00:00Z")
    data["facts"] = [{"key": "seat", "value": "aisle", "version": 1, "importance": 0.5, **times, "expires_at": at}]
    memory.import_session(data, session_id="copy")
    assert not memory.session("copy").export().get("facts")

    assert memory.sweep(dry_run=True) == 2  # which counts entries alone
    assert memory.sweep() == 3
    assert [entry.text for entry in memory.session("copy").entries()] == ["", "stays"]
    assert memory.sweep() == 0


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59.999999-00:01", "0001-01-01T00:00:00+00:01"])
@pytest.mark.parametrize("field", ["expires_at", "created_at", "updated_at", "since"])
def test_a_time_outside_the_years_1_to_9999_is_refused(at: str, field: str) -> None:
    """A time outside the years 1 to 9999 in UTC is refused by name, in verbs and imports."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s")
        with pytest.raises(InvalidEntry, match=r"message\.expires_at: .* is outside of the years 1 to 9999 in UTC"):
            chat.add_user_message("x", expires_at=datetime.fromisoformat(at))
        chat.add_user_message("x")
        memory.working("session/s").set("seat", "aisle")
        data = chat.export()
        places = {"data.facts[0]": data["facts"][0]}
        if field in ("expires_at", "created_at"):
            places["data.entries[0]"] = data["entries"][0]
        for where, what in places.items():
            whole, what[field] = what.get(field), at
            with pytest.raises(ImportFailed, match=re.escape(where)):
                memory.import_session(data, session_id="copy")
            what[field] = whole
        assert [info.session for info in memory.sessions()] == ["s"]


@pytest.mark.parametrize(
    "length", ["90", "d", "0d", "-1d", "1y", 0, -5, float("nan"), True, timedelta(0), "9" * 30 + "d"]
)
def test_an_invalid_untouched_for_is_refused_by_name(length: Any) -> None:
    """An invalid `untouched_for` is refused by name, and nothing is deleted."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="untouched_for"):
        memory.sweep(untouched_for=length)


def test_a_sweep_reports_a_damaged_item_after_the_rest(clock: FakeClock) -> None:
    """A sweep reports a damaged item after everything else that is due is gone."""
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


class Between:
    """Runs something when a sweep has found who shares the due entries, before it erases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Maintenance, SessionKey], Any]) -> None:
        readers, erased, erasing = Maintenance._readers, Maintenance._erase_expired, False

        async def found(maintenance: Maintenance, *given: Any) -> Any:
            there = await readers(maintenance, *given)
            for key in there if erasing else ():  # what is due was looked for before
                await happens(maintenance, key)
            return there

        async def erase(maintenance: Maintenance, *given: Any) -> int:
            nonlocal erasing
            erasing = True
            return await erased(maintenance, *given)

        monkeypatch.setattr(Maintenance, "_readers", found)
        monkeypatch.setattr(Maintenance, "_erase_expired", erase)


def soon_over(memory: Memory, clock: FakeClock, id: str, **options: Any) -> None:
    """Return a session with an entry that expires in ten seconds and one that stays."""
    session = memory.session(id, **options)
    session.add_user_message("soon over", expires_at=datetime.fromtimestamp(clock() / 1e6 + 10, UTC))
    session.add_user_message("stays")


def test_a_sweep_continues_if_a_session_ends_meanwhile(
    memory: Memory, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a session ends during a sweep, the rest is swept, and the session goes with the next sweep."""
    for id in ("a", "b", "c"):
        soon_over(memory, clock, id, lifetime="15s" if id == "b" else None)

    async def later(_: Maintenance, key: SessionKey) -> None:
        if key.session == "b":
            clock.advance(5)

    Between(monkeypatch, later)
    clock.advance(11)

    assert memory.sweep() == 2
    assert [memory.session(id).entry(1).erased for id in ("a", "c")] == [True, True]
    monkeypatch.undo()
    assert memory.sweep() == 1
    assert ids(memory.sessions()) == ["a", "c"]


def test_a_sweep_does_not_recreate_a_session_deleted_meanwhile(
    memory: Memory, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep neither recreates a session deleted meanwhile nor touches its successor."""
    soon_over(memory, clock, "gone")
    soon_over(memory, clock, "anew")
    with Memory.open("memory://", clock=clock) as other:
        other.session("anew").add([{"role": "user", "content": f"anew {which}"} for which in ("one", "two")])
        key = SessionKey("default", "anew")
        head = drive(other.store.head(key))
        assert head is not None
        dump = Dump(head=head, entries=tuple(drive(other.store.read(key))), records=())

    async def replaced(maintenance: Maintenance, key: SessionKey) -> None:
        await maintenance.wholes.delete(key, None)
        if key.session == "anew":
            await maintenance.loading.load(key, dump, replace=False)

    Between(monkeypatch, replaced)
    clock.advance(11)

    assert memory.sweep() == 0
    assert ids(memory.sessions()) == ["anew"]
    assert [entry.text for entry in memory.session("anew").entries()] == ["anew one", "anew two"]
