"""A process that forks while a signal's handler raises at any moment of that: `struck_forker.py run STORE FORKS`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from random import Random
from typing import Any

from palimpsest import Memory
from writer import say

SOONEST, LATEST = 0.00005, 0.0012
"""Seconds after which the handler is called: about as long as a fork takes."""


class Struck(Exception):
    """What the handler raises."""


armed: list[bool] = []
"""Whether the handler raises."""


def strike(*_: object) -> None:
    """The handler."""
    if armed:
        armed.clear()
        raise Struck


def forked(where: str, number: int) -> int:
    """Fork once, beside the handler; every tenth child adds with a memory of its own. How many children there were."""
    chance, child = Random(number), None
    try:
        armed.append(True)
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(SOONEST, LATEST))
        child = os.fork()
        armed.clear()
    except Struck:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    if child == 0 or os.getpid() != parent:
        status = 1
        try:
            if number % 10 == 0:
                with Memory.open(where) as own:
                    own.session("child").add_user_message(f"{number}")
            status = 0
        finally:
            os._exit(status)
    if number % 5 == 0:  # nothing is held that another thread needs
        beside = threading.Thread(target=lambda: memory.session("s").add_user_message(f"{number}"))
        beside.start()
        beside.join()
    ended = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            _, status = os.wait()
            assert status == 0, status
            ended += 1
    return ended


if __name__ == "__main__":
    ignored = Counter[str]()

    def ignore(what: Any) -> None:
        """Count in which hook a handler has raised."""
        ignored[getattr(what.object, "__name__", "?")] += 1

    sys.unraisablehook = ignore
    signal.signal(signal.SIGALRM, strike)
    parent = os.getpid()
    with Memory.open(sys.argv[2]) as memory:
        memory.session("s").add_user_message("begun")
        ended = [forked(sys.argv[2], number) for number in range(int(sys.argv[3]))]
        say({"children": sum(ended), "adding": sum(ended[::10]), "struck": sum(ignored.values())})
        for name in ("s", "child"):
            say([memory.session(name).info().entries, memory.session(name).verify().ok])
