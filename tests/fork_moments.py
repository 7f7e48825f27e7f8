"""A process that forks while a thread is in the middle of something: `python fork_moments.py ADDRESS plain 7 100`.

The thread does most of what is done with a memory, and stands still when it first comes to the lines of ours whose
number, one given by their place, leaves seven when divided by a hundred; there the process forks. The child does the
same with a memory of its own, and is told what it may not do with one that it inherited. The thread stands still
nowhere where others would rightly wait for it.
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
from forker import KEYS, child, ended
from palimpsest import Memory
from palimpsest.errors import ForkedProcess
from palimpsest.stores import forking
from writer import quarters

SOURCES = os.path.dirname(palimpsest.__file__)
PATIENCE = 20
"""Seconds after which a child is taken to hang."""


class Stops:
    """Stands still, in the thread that it traces, at lines of ours that it has not come to before."""

    def __init__(self, rest: int, every: int, then: Callable[[str], None]) -> None:
        self._rest, self._every, self._then = rest, every, then
        self._seen: set[str] = set()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """What `sys.settrace` calls."""
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        line = f"{os.path.relpath(frame.f_code.co_filename, SOURCES)}:{frame.f_lineno}"
        meant = event == "line" and crc32(line.encode()) % self._every == self._rest and line not in self._seen
        if meant and not _waited_for():
            self._seen.add(line)
            self._then(line)
        return self.trace


def _waited_for() -> bool:
    """Whether a fork, or another process, would wait for what somebody has."""
    stores = [store for one in forking._watched if (store := one()) is not None]
    locked = any(lock.locked() for store in stores for lock in store.locks)
    return locked or any(getattr(store, "_locked", ()) for store in stores)


def work(address: str, encrypted: str, name: str) -> None:
    """Use a memory of one's own, for most of what a memory is used for."""
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


def _inherits(address: str, encrypted: str, inherited: Memory, name: str) -> None:
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
        raise AssertionError("what was opened before the fork was used after it")
    work(address, encrypted, name)


def main(address: str, encrypted: str, rest: str, every: str) -> None:
    """Print the lines at which the process forked whose child did not do its work, and how many forks there were."""
    work(address, encrypted, "before")  # who is forked while another thread imports a module cannot import it
    options: dict[str, Any] = {"encryption": KEYS} if encrypted == "encrypted" else {}
    moments, failed = list[str](), list[str]()
    told, go_on = threading.Semaphore(0), threading.Semaphore(0)
    over = False

    def stand(moment: str) -> None:
        moments.append(moment)
        told.release()
        go_on.acquire()

    def run() -> None:
        nonlocal over
        sys.settrace(stops.trace)
        try:
            work(address, encrypted, "parent")
        finally:
            sys.settrace(None)
            over = True
            told.release()

    stops = Stops(int(rest), int(every), stand)
    with Memory.open(address, **options) as inherited:
        thread = threading.Thread(target=run)
        thread.start()
        while told.acquire() and not over:
            number = len(moments)
            code = ended(child(lambda number=number: _inherits(address, encrypted, inherited, f"child {number}")))
            if code:
                failed.append(f"{moments[-1]}: {code}")
            go_on.release()
        thread.join()
    sys.stdout.write(json.dumps([failed, len(moments)]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
