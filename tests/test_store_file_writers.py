"""Several writers to one folder of files: threads, processes, branches and locks."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filestore import BIG, KEY, OTHER, add, erase, everything, fork, held, log_of, opened, quick, texts
from palimpsest import (
    Conflict,
    Entry,
    StoreUnavailable,
)
from palimpsest.log.change import Change
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Dump, Store
from palimpsest.testing import FakeClock
from processes import at_once, lines_integrity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a test's store."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path, clock: FakeClock) -> Iterator[Store]:
    """Yield an empty store in that folder, whose clock stands still."""
    store = opened(folder, clock=clock)
    yield store
    drive(store.close())


def test_appends_and_erasures_at_once_lose_nothing(folder: Path) -> None:
    """While one store rewrites the log again and again, appends of another store go to the log that is there now."""
    writer, eraser = opened(folder), opened(folder)
    add(writer, *map(str, range(20)))
    done = threading.Event()

    def append() -> None:
        for number in range(60):
            add(writer, f"later {number}")
        done.set()

    thread = threading.Thread(target=append)
    thread.start()
    for seq in itertools.count(1):
        if done.is_set() or seq > 20:
            break
        erase(eraser, seq)
    thread.join()

    assert texts(eraser, after=20) == [f"later {number}" for number in range(60)]
    assert [entry.erased for entry in drive(writer.read(KEY, before=seq))] == [True] * (seq - 1)
    assert lines_integrity(folder) == "ok"


def test_forks_and_erasures_of_one_family_never_deadlock(folder: Path) -> None:
    """Threads that erase in, and fork, branches of one family all come to an end, and erasures reach all branches."""
    stores = [opened(folder, busy_seconds=20) for _ in range(3)]
    add(stores[0], *map(str, range(12)))
    fork(stores[0])

    def work(store: Store, number: int) -> None:
        key = (KEY, OTHER)[number % 2]
        for step in range(4):
            erase(store, 1 + number * 4 + step, key=key)
            into = KEY._replace(session=f"branch {number} {step}")
            while drive(store.head(into)) is None:
                with contextlib.suppress(Conflict):  # an erasure in another branch changed this one meanwhile
                    fork(store, key, into.session)

    threads = [threading.Thread(target=work, args=(store, i)) for i, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    sessions = drive(stores[0].sessions(KEY.tenant))
    assert len(sessions) == 14
    for info in sessions:
        assert all(entry.erased for entry in drive(stores[0].read(SessionKey(KEY.tenant, info.session))))


def anything(store: Store, dice: random.Random) -> None:
    """Do one random thing that a store can do, in one of a few sessions, so that writers meet."""
    key, other = (KEY._replace(session=dice.choice("abcd")) for _ in range(2))
    text = dice.choice(["small", "large " * 20, "larger " * 20])
    head = drive(store.head(key)) or Head()
    seqs = [entry.seq for entry in drive(store.read(key, limit=5, newest_first=True)) if not entry.erased]
    steps: list[Callable[[], object]] = [
        *[lambda: add(store, text, "small", key=key)] * 4,
        lambda: drive(store.append(key, [Entry(id="given", content="same")], check_ids=True)),
        lambda: drive(store.commit(key, Change(kind="erase", reason="r", seqs=tuple(sorted(seqs[:2]))))),
        lambda: drive(store.commit(key, Change(kind="clear", reason="r"))),
        lambda: drive(store.fork(key, other.session, head, expect_epoch=head.epoch, created=head.created)),
        lambda: drive(store.load(other, Dump(head=Head(), entries=(), records=()), replace=True)),
        lambda: drive(store.delete(key)),
        lambda: drive(store.count(key, "words", {seq: seq for seq in seqs})),
        lambda: drive(store.read(key, counter="words")),
        lambda: drive(store.records(key)),
        lambda: drive(store.sessions(KEY.tenant)),
        lambda: drive(store.sweep(KEY.tenant, 0)),
    ]
    with contextlib.suppress(Conflict):
        dice.choice(steps)()


def test_concurrent_writers_damage_nothing(folder: Path) -> None:
    """Appends, erasures, clears, forks, imports, deletions and sweeps that meet succeed or raise Conflict."""

    def work(seed: int) -> None:
        store, dice = quick(folder, large_bytes=64), random.Random(seed)
        for _ in range(250):
            anything(store, dice)

    at_once(work, 3)

    store = opened(folder)
    assert drive(store.scrub()).remains == ()
    stored = everything(folder)
    for info in drive(store.sessions(KEY.tenant)):
        entries = drive(store.read(KEY._replace(session=info.session)))
        assert not [entry for entry in entries if entry.damaged]
    readable = [
        text for info in drive(store.sessions(KEY.tenant)) for text in texts(store, KEY._replace(session=info.session))
    ]
    for text in ("large " * 20, "larger " * 20):
        assert (text in readable) == (text.encode() in stored)


ENDS: dict[str, Callable[[Store], object]] = {
    "erase": lambda store: erase(store, 1),
    "clear": lambda store: drive(store.commit(KEY, Change(kind="clear", reason="r"))),
    "replace": lambda store: drive(store.load(KEY, Dump(head=Head(), entries=(), records=()), replace=True)),
    "delete": lambda store: drive(store.delete(KEY)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_content_added_again_stays(folder: Path, end: str) -> None:
    """Ending the last use of a large content while another store adds it again loses it for nobody."""
    for _ in range(5):
        writer, other = quick(folder), quick(folder)
        add(writer, BIG)
        work = threading.Thread(target=lambda writer=writer: ENDS[end](writer))
        work.start()
        add(other, BIG)
        work.join()

        assert drive(writer.scrub()).remains == ()
        assert [entry for entry in drive(quick(folder).read(KEY)) if entry.damaged] == []
        assert texts(quick(folder), limit=1, newest_first=True) in ([BIG], [])


def test_a_writer_that_waits_too_long_learns_who_holds_the_log(store: Store, folder: Path) -> None:
    """After `busy_seconds` a write raises StoreUnavailable with file and holder; reads and other sessions go on."""
    add(store, "a")
    impatient = opened(folder, busy_seconds=0.02)

    with held(log_of(folder)):
        with pytest.raises(StoreUnavailable, match=r"has kept .*one-.*jsonl locked for 0.02 seconds") as caught:
            add(impatient, "b")
        assert texts(impatient) == ["a"]
        add(impatient, "c", key=OTHER)

    if Path("/proc/locks").exists():
        assert f"process {os.getpid()}" in str(caught.value) or "another writer" in str(caught.value)
    add(impatient, "b")
    assert texts(store) == ["a", "b"]


def test_a_clock_that_goes_backwards_changes_no_order(store: Store, folder: Path, clock: FakeClock) -> None:
    """Places, revisions and fences of leases rise though the clock goes back."""
    fences, other = [], opened(folder, clock=clock)
    for text in "abc":
        add(store, text)
        drive(store.commit(KEY, Change(kind="pin", reason=text, seqs=())))
        for opened_store in (store, other):
            fences.append(drive(opened_store.lease("t", "turn", text, 10)))
            drive(opened_store.lease("t", "turn", text, 0))
        clock.advance(-3600)

    assert texts(store) == ["a", "b", "c"]
    assert texts(store, after=1) == ["b", "c"]
    assert [record.reason for record in drive(store.records(KEY, after=2))] == ["b", "c"]
    assert fences == sorted(set(fences))
