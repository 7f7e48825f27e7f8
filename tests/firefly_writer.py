"""A process that uses a store of entries, as a child of tests.

    firefly_writer.py same KIND FOLDER NAME THREADS TIMES      sets one key from so many threads, again and again
    firefly_writer.py own KIND FOLDER NAME THREADS TIMES       saves entries of its own, and as many facts
    firefly_writer.py ten KIND FOLDER NAME TIMES               sets ten keys in turn, in a store that may be new
    firefly_writer.py saves KIND FOLDER NAME MANY              saves entries, and says each that is acknowledged
    firefly_writer.py full KIND FOLDER BYTES                   sets values until no file may grow further

It says that it is ready, waits for a line, and does it.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import fireflies
from palimpsest import StoreUnavailable
from palimpsest.compat.firefly import MemoryEntry, WorkingMemory
from palimpsest.compat.firefly.store import EntryStore
from writer import say


def same(store: EntryStore, name: str, thread: int, times: int) -> None:
    """Set one key that others set, too."""
    facts = WorkingMemory(store=store, scope_id="shared")
    for i in range(times):
        facts.set("key", f"{name} {thread} {i}")
        found = facts.get("key")
        assert isinstance(found, str), found


def own(store: EntryStore, name: str, thread: int, times: int) -> None:
    """Save what nobody else does, and count what everybody does."""
    facts = WorkingMemory(store=store, scope_id="shared")
    for i in range(times):
        store.save("entries", MemoryEntry(entry_id=f"{name} {thread} {i}", content=i))
        facts.set(f"{name} {thread} {i}", i)
        counted(store)


def counted(store: EntryStore) -> None:
    """Count up what is under a key, however many others do."""
    while True:
        seen = store.load_by_key("counts", "count")
        new = MemoryEntry(key="count", content=1 if seen is None else seen.content + 1)
        if store.compare_and_set("counts", "count", new, seen):
            return


def threads(do: Callable[[int], None], many: int) -> None:
    """Do this in so many threads; say what went wrong in any."""
    wrong: list[BaseException] = []

    def tried(thread: int) -> None:
        try:
            do(thread)
        except BaseException as fault:  # noqa: BLE001 (the test is told)
            wrong.append(fault)

    all_of_them = [threading.Thread(target=tried, args=(i,)) for i in range(many)]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    say([repr(fault) for fault in wrong])


def begin() -> None:
    """Wait until the test says so."""
    say("ready")
    sys.stdin.readline()


def full(kind: str, folder: Path, size: int) -> None:
    """Set values until files may not grow, then again where they may; say what is there after each."""
    with fireflies.opened(kind, folder) as store:
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
    """Do what is asked."""
    folder, figures = Path(where), [int(number) for number in numbers]
    if mode == "full":
        full(kind, folder, int(name))
        return
    if mode == "ten":
        begin()
    with fireflies.opened(kind, folder) as store:
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
