"""A process that forgets, or writes what another one forgets: `python forgetter_process.py MODE STORE ARGUMENT`.

Like `writer.py` it prints one JSON value a line.
"""

from __future__ import annotations

import sys
from typing import Any

from palimpsest import Memory
from palimpsest.log.entry import moment
from sealed import FIRST
from writer import say

WORD = "zanzibar"
USER = "ann"


def forget(path: str, what: str) -> None:
    """Forget a user or a word; print the progress after each session, and the report."""
    with Memory.open(path) as memory:
        say("ready")
        sys.stdin.readline()
        subject: dict[str, Any] = {"user": USER} if what == "user" else {"matches": WORD}
        report = memory.forget(**subject, progress=lambda done, total: say([done, total]))
        say({"entries": report.entries, "remains": [*report.remains]})
        sys.stdin.readline()  # keeps the process alive for a kill that comes late


def append(path: str, number: str) -> None:
    """Add entries that are to be forgotten and others, to existing sessions and to new ones."""
    with Memory.open(path) as memory:
        say("ready")
        sys.stdin.readline()
        for i in range(int(number)):
            session = memory.session(f"s{i % 7}" if i % 3 else f"new {i}")
            session.add_user_message(f"to {WORD} {i}", name=USER)
            session.add_assistant_message(f"kept {i}" if i % 3 else f"yes, {WORD}")
        say("done")


def pester(path: str, sealed: str) -> None:
    """Add to a session as fast as possible, until killed."""
    with Memory.open(path, encryption=FIRST if int(sealed) else None, synchronous="NORMAL") as memory:
        session = memory.session("one")
        session.add_user_message("and on")
        say("going")
        while True:
            session.add_user_message("and on")


def branch(path: str, sealed: str) -> None:
    """Add expired entries and fork after every fifth, until killed."""
    with Memory.open(path, encryption=FIRST if int(sealed) else None, synchronous="NORMAL") as memory:
        session, number = memory.session("one"), 0
        while True:
            for _ in range(5):
                session.add_user_message("and on", expires_at=moment(1_000_000_000_000_000))
            number += 1
            session.fork(f"branch {number}")
            if number == 20:
                say("going")


if __name__ == "__main__":
    {"forget": forget, "append": append, "pester": pester, "branch": branch}[sys.argv[1]](*sys.argv[2:])
