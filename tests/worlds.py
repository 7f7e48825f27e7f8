"""Opens memories for tests, in this process or in a new file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import strategies
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import BudgetImpossible
from palimpsest.sessions.sync import Session
from palimpsest.testing import FakeClock
from writer import quarters, turn

STORES = ("memory", "sqlite", "file")
KINDS = (*STORES, "forgetful")
""""forgetful" is a memory store that caches no contexts: its contexts must equal those of the others."""

_numbers = itertools.count()


def attempt(session: Session, **call: Any) -> Context | None:
    """Return the context, or None if the budget is too small for any."""
    try:
        return session.context(**call)
    except BudgetImpossible:
        return None


class World:
    """A store with one session in it, its clock, and its address."""

    def __init__(self, memory: Memory, clock: FakeClock, where: str | Path, options: dict[str, Any]) -> None:
        self.memory, self.clock, self.where, self.options = memory, clock, where, options
        self.session: Session = memory.session("s", **options)

    def play(self, log: Sequence[strategies.Operation]) -> Session:
        """Perform the operations of a log; return the session."""
        for operation in log:
            strategies.perform(self.session, operation, self.clock.now)
        return self.session

    @contextmanager
    def elsewhere(self) -> Iterator[Session]:
        """Yield the session as another program sees it: in a store opened again, or (in memory) as a new object."""
        if self.where == "memory://":
            yield self.memory.session("s", **self.options)
            return
        with Memory.open(self.where, clock=self.clock, synchronous="NORMAL") as other:
            yield other.session("s", **self.options)


@contextmanager
def open_world(kind: str, folder: Path, **options: Any) -> Iterator[World]:
    """Open a new, empty store of this kind, with a session of these options."""
    clock = FakeClock()
    options.setdefault("counter", strategies.WORDS)
    name = next(_numbers)
    addresses = {"memory": "memory://", "forgetful": "memory://", "file": f"file://{folder}/{name}"}
    where: str | Path = addresses.get(kind, folder / f"{name}.db")
    open_options: dict[str, Any] = {"synchronous": "NORMAL"} if where != "memory://" else {}
    if kind == "forgetful":
        open_options["view_bytes"] = 0
    with Memory.open(where, clock=clock, **open_options) as memory:
        yield World(memory, clock, where, options)


def cut_session(memory: Memory, name: str = "one", **options: Any) -> Session:
    """Return a session whose context has been cut several times."""
    session = memory.session(name, max_tokens=200, counter=quarters, **options)
    for number in range(20):
        session.add(turn(str(number)))
        session.context()
    return session
