"""A process that forks while a thread uses a memory: `python fork_moments_process.py ADDRESS ENCRYPTED REST EVERY`.

The thread runs most verbs of a memory. It is traced, and stops the first time it reaches each of a sample of the
library's lines: those whose place has a CRC that leaves REST when divided by EVERY. At each stop the process forks. The
child uses a memory of its own in the same way, and checks that the inherited memory raises `ForkedProcess`. The thread
does not stop while it holds a lock, since a fork rightly waits for that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from zlib import crc32

import palimpsest
from forker_process import KEYS, child, ended
from palimpsest import Memory
from palimpsest.errors import ForkedProcess
from palimpsest.stores import forking
from writer import quarters

SOURCES = os.path.dirname(palimpsest.__file__)
PATIENCE = 20
"""Seconds after which a child counts as hanging and is killed."""


class Stops:
    """A trace function that calls `stop` with the place of each sampled line, the first time the thread reaches it."""

    def __init__(self, rest: int, every: int, stop: Callable[[str], None]) -> None:
        self._rest, self._every, self._stop = rest, every, stop
        self._seen: set[str] = set()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace a frame; passed to `sys.settrace`."""
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        line = f"{os.path.relpath(frame.f_code.co_filename, SOURCES)}:{frame.f_lineno}"
        sampled = event == "line" and crc32(line.encode()) % self._every == self._rest and line not in self._seen
        if sampled and not _is_locked():
            self._seen.add(line)
            self._stop(line)
        return self.trace


def _is_locked() -> bool:
    """Whether this process holds a lock for which a fork or another process would wait."""
    stores = [store for reference in forking._watched if (store := reference()) is not None]
    locked = any(lock.locked() for store in stores for lock in store.locks)
    return locked or any(getattr(store, "_locked", ()) for store in stores)


def work(address: str, encrypted: str, name: str) -> None:
    """Open a memory and run most verbs on a session of this name."""
    options: dict[str, Any] = {"encryption": KEYS} if encrypted == "encrypted" else {}
    with Memory.open(address, synchronous="NORMAL", busy_seconds=PATIENCE, **options) as memory:
        session = memory.session(name, max_tokens=400, counter=quarters)
        for number in range(4):
            with session.turn():
                session.add_user_message(f"question {number} of mail {number}@example.com {'and so on ' * 30}")
                session.add_assistant_message("an answer")
        session.context()
        session.compact("ladder")
        session.context()
        branch = session.fork()
        branch.add_user_message("more")
        branch.entries()
        session.rewind(session.entries()[-2])
        session.erase([session.entries()[0].id])
        memory.sweep()


def _run_child(address: str, encrypted: str, inherited: Memory, name: str) -> None:
    """Check in a child that the inherited memory refuses every verb and that a new memory works."""
    signal.alarm(PATIENCE)
    session = inherited.session("s")
    uses: list[Callable[[], object]] = [
        lambda: session.add_user_message("never"), session.context, session.compact, session.fork, inherited.sweep,
    ]  # fmt: skip
    for use in uses:
        try:
            use()
        except ForkedProcess:
            continue
        raise AssertionError("a memory that was opened before the fork was used after it")
    work(address, encrypted, name)


def main(address: str, encrypted: str, rest: str, every: str) -> None:
    """Print the places at which the process forked a child that failed, and the number of forks."""
    work(address, encrypted, "before")  # imports all modules: a child cannot import one that a thread was importing
    options: dict[str, Any] = {"encryption": KEYS} if encrypted == "encrypted" else {}
    moments, failed = list[str](), list[str]()
    stopped, go_on = threading.Semaphore(0), threading.Semaphore(0)
    over = False

    def stop(moment: str) -> None:
        moments.append(moment)
        stopped.release()
        go_on.acquire()

    def run() -> None:
        nonlocal over
        sys.settrace(stops.trace)
        try:
            work(address, encrypted, "parent")
        finally:
            sys.settrace(None)
            over = True
            stopped.release()

    stops = Stops(int(rest), int(every), stop)
    with Memory.open(address, **options) as inherited:
        thread = threading.Thread(target=run)
        thread.start()
        while stopped.acquire() and not over:
            number = len(moments)
            code = ended(child(lambda number=number: _run_child(address, encrypted, inherited, f"child {number}")))
            if code:
                failed.append(f"{moments[-1]}: {code}")
            go_on.release()
        thread.join()
    sys.stdout.write(json.dumps([failed, len(moments)]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
