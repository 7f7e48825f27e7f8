"""A process that forks with an open memory while a signal handler may raise at any moment of the fork.

`python interrupted_forker_process.py run STORE FORKS` prints how many children there were and how often a handler
raised in a hook of `os.register_at_fork`, where the error is only reported as unraisable. Then it prints, for each
session, the number of entries and whether it verifies.
"""

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
"""The shortest and longest time in seconds until the signal: about as long as a fork takes."""


class Struck(Exception):
    """Raised by the signal handler."""


armed: list[bool] = []
"""Not empty while the handler is to raise. It raises once."""


def strike(*_: object) -> None:
    """Handle SIGALRM."""
    if armed:
        armed.clear()
        raise Struck


def forked(where: str, number: int) -> int:
    """Fork once with a signal under way, and return how many children there were: 0 or 1.

    `number` is the seed of the moment. Every tenth child adds an entry with its own memory.
    """
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
    if number % 5 == 0:  # checks that the fork has left no lock held that another thread needs
        thread = threading.Thread(target=lambda: memory.session("s").add_user_message(f"{number}"))
        thread.start()
        thread.join()
    ended = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            _, status = os.wait()
            assert status == 0, status
            ended += 1
    return ended


if __name__ == "__main__":
    ignored = Counter[str]()

    def ignore(unraisable: Any) -> None:
        """Count the hook in which the handler has raised."""
        ignored[getattr(unraisable.object, "__name__", "?")] += 1

    sys.unraisablehook = ignore
    signal.signal(signal.SIGALRM, strike)
    parent = os.getpid()
    with Memory.open(sys.argv[2]) as memory:
        memory.session("s").add_user_message("begun")
        ended = [forked(sys.argv[2], number) for number in range(int(sys.argv[3]))]
        say({"children": sum(ended), "adding": sum(ended[::10]), "struck": sum(ignored.values())})
        for name in ("s", "child"):
            say([memory.session(name).info().entries, memory.session(name).verify().ok])
