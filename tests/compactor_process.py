"""A process that compacts, for tests that kill it: `python compactor_process.py MODE STORE [ARGUMENT ...]`.

Like `writer.py` it prints one JSON value a line for each step, and never before the step is acknowledged.
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
    """Return a clock that is `start` seconds ahead, so that leases of processes killed before have expired.

    A test passes a greater `start` to each process.
    """
    return lambda: now_us() + int(start) * 1_000_000


def compact(path: str, start: str) -> None:
    """Add a turn and compact, over and over; print each step: "added", "asked" (the summarizer), "compacted"."""

    def summarizer(prompt: str) -> str:
        say(["asked", len(prompt)])
        return "they looked left and right"

    with Memory.open(address(path), clock=later(start)) as memory:
        session = memory.session(SESSION, counter=quarters, summarizer=CallableSummarizer(summarizer, checked=False))
        for number in itertools.count(int(start)):
            session.add(turn(str(number)))
            say(["added", number])
            report = session.compact(STRATEGY)
            say(["compacted", report.summary.version if report.summary else 0])


def neuralyze(path: str, start: str) -> None:
    """Add a turn and erase all but the newest, over and over; print each step."""
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION, counter=quarters)
        for number in itertools.count(int(start)):
            session.add(turn(str(number)))
            say(["added", number])
            session.compact({"strategy": "neuralyzer", "interaction_keep": 1})
            say(["erased", number])


def flush(path: str, start: str) -> None:
    """Hold turns of a session that erases what it has compacted; print each step."""
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
    """Do the same as `flush` with a memory that is declared in a file."""
    with Resources.load(path, clock=later(start)) as resources:
        session = resources.session(DECLARED, counter=quarters)
        for number in itertools.count(int(start)):
            with session.turn():
                session.add(turn(str(number)))
            say(["flushed", number])


def replace(path: str, start: str) -> None:
    """Replace the session's active messages by the turn before and a new one, over and over; print each step."""
    with Memory.open(address(path), clock=later(start)) as memory:
        session = memory.session(SESSION, counter=quarters)
        before: list[dict[str, Any]] = []
        for number in itertools.count(int(start)):
            session.replace([*before, *turn(str(number))])
            before = turn(str(number))
            say(["replaced", number])


def once(path: str, name: str, seconds: str) -> None:
    """Compact once beside other processes, with a slow summarizer; print how often it was called, and the result."""
    asked = []

    def summarizer(prompt: str) -> str:
        asked.append(prompt)
        time.sleep(float(seconds))  # simulates a slow model; no test relies on it to be long enough
        return f"by {name}"

    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION, counter=quarters, summarizer=CallableSummarizer(summarizer, checked=False))
        meet()
        report = session.compact(STRATEGY)
        say({"asked": len(asked), "reason": report.reason, "text": report.summary.text if report.summary else None})


MODES: dict[str, Callable[..., None]] = {
    mode.__name__: mode for mode in (compact, neuralyze, flush, flush_declared, replace, once)
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
