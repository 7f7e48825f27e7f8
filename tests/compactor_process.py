"""A process of its own that compacts, for tests that kill it: `python compactor_process.py MODE STORE [ARGUMENT ...]`.

It speaks as `writer.py` does: one JSON value a line, what has happened so far, and never before that.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from palimpsest import Memory
from palimpsest.log.entry import now_us
from palimpsest.resources import Resources
from palimpsest.strategies import CallableSummarizer
from writer import SESSION, address, meet, quarters, say, turn

DECLARED = {"id": "memory", "key": "killed"}
STRATEGY = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}


def later(start: str) -> Callable[[], int]:
    """A clock far enough ahead that leases of processes killed before have run out. `start` rises from one to the
    next."""
    return lambda: now_us() + int(start) * 1_000_000


def compact(path: str, start: str) -> None:
    """Add a turn and compact, over and over; say each step: added, asked, answered, compacted."""

    def summarizer(prompt: str) -> str:
        say(["asked", len(prompt)])
        return "they looked left and right"

    with Memory.open(address(path), clock=later(start)) as memory:
        session = memory.session(SESSION, counter=quarters, summarizer=CallableSummarizer(summarizer, checked=False))
        for number in itertools.count(int(start)):
            session.add(turn(str(number)))
            say(["added", number])
            done = session.compact(STRATEGY)
            say(["compacted", done.summary.version if done.summary else 0])


def neuralyze(path: str, start: str) -> None:
    """Add a turn and erase all but the newest, over and over; say each step."""
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION, counter=quarters)
        for number in itertools.count(int(start)):
            session.add(turn(str(number)))
            say(["added", number])
            session.compact({"strategy": "neuralyzer", "interaction_keep": 1})
            say(["erased", number])


def flush(path: str, start: str) -> None:
    """Hold turns of a session that destroys what it has compacted; say each step."""
    rules = {"triggers": {"interaction_threshold_qty": 2}}
    with Memory.open(address(path), clock=later(start)) as memory:
        session = memory.session(
            SESSION, counter=quarters, persistence="flush", archive=False, long_term={**STRATEGY, **rules}
        )
        for number in itertools.count(int(start)):
            with session.turn():
                session.add(turn(str(number)))
            say(["flushed", number])


def flush_declared(path: str, start: str) -> None:
    """The same of the session of a key, whose memory is declared in a file; say each step as `flush` does."""
    with Resources.load(path, clock=later(start)) as resources:
        session = resources.session(DECLARED, counter=quarters)
        for number in itertools.count(int(start)):
            with session.turn():
                session.add(turn(str(number)))
            say(["flushed", number])


def replace(path: str, start: str) -> None:
    """Say what is active anew, over and over: the turn before, and a new one; say each step."""
    with Memory.open(address(path), clock=later(start)) as memory:
        session = memory.session(SESSION, counter=quarters)
        before: list[dict[str, Any]] = []
        for number in itertools.count(int(start)):
            session.replace([*before, *turn(str(number))])
            before = turn(str(number))
            say(["replaced", number])


def once(path: str, name: str, seconds: str) -> None:
    """Compact once beside others; the summarizer takes its time. Say how often it was asked, and what came of it."""
    asked = []

    def summarizer(prompt: str) -> str:
        asked.append(prompt)
        time.sleep(float(seconds))  # a model takes its time; nothing here waits for it to pass
        return f"by {name}"

    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION, counter=quarters, summarizer=CallableSummarizer(summarizer, checked=False))
        meet()
        done = session.compact(STRATEGY)
        say({"asked": len(asked), "reason": done.reason, "text": done.summary.text if done.summary else None})


MODES: dict[str, Callable[..., None]] = {
    mode.__name__: mode for mode in (compact, neuralyze, flush, flush_declared, replace, once)
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
