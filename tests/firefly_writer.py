"""A process that uses a store of the compatibility layer for Firefly, as a child of tests.

    firefly_writer.py same KIND FOLDER NAME THREADS TIMES      sets one key from so many threads, again and again
    firefly_writer.py own KIND FOLDER NAME THREADS TIMES       saves its own entries and facts, and counts them in one
    firefly_writer.py ten KIND FOLDER NAME TIMES               sets ten keys in turn, in a store that may be new
    firefly_writer.py saves KIND FOLDER NAME MANY              saves entries, and prints each that is acknowledged
    firefly_writer.py full KIND FOLDER BYTES                   sets values until no file may grow further

All but "full" print "ready" and wait for a line before they begin.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import firefly_stores
from palimpsest import StoreUnavailable
from palimpsest.compat.firefly import MemoryEntry, WorkingMemory
from palimpsest.compat.firefly.store import EntryStore
from writer import say


def same(store: EntryStore, name: str, thread: int, times: int) -> None:
    """Set one key that other threads and processes set, too."""
    facts = WorkingMemory(store=store, scope_id="shared")
    for i in range(times):
        facts.set("key", f"{name} {thread} {i}")
        value = facts.get("key")
        assert isinstance(value, str), value


def own(store: EntryStore, name: str, thread: int, times: int) -> None:
    """Save entries and facts under keys of this thread, and count each in a shared entry."""
    facts = WorkingMemory(store=store, scope_id="shared")
    for i in range(times):
        store.save("entries", MemoryEntry(entry_id=f"{name} {thread} {i}", content=i))
        facts.set(f"{name} {thread} {i}", i)
        counted(store)


def counted(store: EntryStore) -> None:
    """Add one to a shared count by compare-and-set, until it succeeds."""
    while True:
        seen = store.load_by_key("counts", "count")
        new = MemoryEntry(key="count", content=1 if seen is None else seen.content + 1)
        if store.compare_and_set("counts", "count", new, seen):
            return


def threads(do: Callable[[int], None], many: int) -> None:
    """Run `do` in so many threads, with the number of each; print the errors that they raised."""
    errors: list[BaseException] = []

    def tried(thread: int) -> None:
        try:
            do(thread)
        except BaseException as fault:  # noqa: BLE001 (printed for the test)
            errors.append(fault)

    running = [threading.Thread(target=tried, args=(i,)) for i in range(many)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    say([repr(fault) for fault in errors])


def begin() -> None:
    """Print "ready" and wait for a line."""
    say("ready")
    sys.stdin.readline()


def full(kind: str, folder: Path, size: int) -> None:
    """Set values until files may not grow, lift the limit and set another; print the number of keys after each."""
    with firefly_stores.opened(kind, folder) as store:
        facts = WorkingMemory(store=store)
        done = 0
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            while done < 10_000:
                facts.set(f"key {done}", "x" * 200)
                done += 1
        except StoreUnavailable as fault:
            say(str(fault))
        say([done, len(facts.keys())])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        facts.set("after", "all")
        say([len(facts.keys()), facts.get("after")])


def main(mode: str, kind: str, where: str, name: str, *numbers: str) -> None:
    """Run one of the modes."""
    folder, figures = Path(where), [int(number) for number in numbers]
    if mode == "full":
        full(kind, folder, int(name))
        return
    if mode == "ten":
        begin()
    with firefly_stores.opened(kind, folder) as store:
        if mode == "ten":
            for i in range(figures[0]):
                WorkingMemory(store=store).set(f"key {i % 10}", f"{name} {i}")
            say("done")
            return
        store.load("nothing")
        begin()
        if mode == "saves":
            for i in range(figures[0]):
                store.save(
                    "entries", MemoryEntry(entry_id=f"{name} {i}", key=f"{name} {i % 50}", content="x" * (i % 700))
                )
                say(i)
            return
        do = {"same": same, "own": own}[mode]
        threads(lambda thread: do(store, name, thread, figures[1]), figures[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
