"""A process that changes a session at random beside readers: `python vandal_process.py STORE OPTIONS SESSION SEED`.

It adds, erases, redacts, clears, deletes, replaces, forks, compacts, rewinds, and changes the keys of an encrypted
store, until a line comes in. OPTIONS is a JSON object of options for `Memory.open`; its member `keys` has two
hexadecimal keys by name.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from palimpsest import Conflict, EntryNotFound, Keys, Memory, SessionNotFound
from palimpsest.stores.encrypted.rotation import rotate_keys
from writer import quarters, say

PATTERN = {"redact_patterns": ["SECRET[0-9]+"]}
LARGE = "large enough to be kept apart, whatever else there is in it " * 4


def opened(where: str, options: dict[str, Any], turn: int = 0) -> Memory:
    """Open the store; in every other turn the second key is the current one."""
    given = dict(options)
    keys = given.pop("keys", None)
    if keys is not None:
        ring = {name: bytes.fromhex(key) for name, key in keys.items()}
        names = sorted(ring, reverse=turn % 2 == 1)
        given["encryption"] = Keys({name: ring[name] for name in names})
    return Memory.open(where, **given)


def fill(memory: Memory, name: str, numbers: range) -> None:
    """Add an interaction for each number; the answers, and half of the questions, are large content."""
    session = memory.session(name)
    for number in numbers:
        question = f"{number} SECRET{number} {LARGE if number % 2 else ''}"
        session.add([{"role": "user", "content": question}, {"role": "assistant", "content": f"{number} {LARGE}"}])


class Vandal:
    """The changes to one session."""

    def __init__(self, memory: Memory, name: str, dice: random.Random) -> None:
        self._memory, self._name, self._dice = memory, name, dice
        self._numbers = itertools.count(1)
        source = f"source {dice.random()}"
        fill(memory, source, range(6))
        self._kept = memory.session(source).export()
        memory.delete_session(source)

    def _session(self) -> Any:
        return self._memory.session(self._name, max_tokens=2_000, counter=quarters)

    def add(self) -> None:
        first = next(self._numbers)
        fill(self._memory, self._name, range(first, first + 4))

    def erase(self) -> None:
        entries = [entry for entry in self._session().entries() if not entry.erased]
        self._session().erase([entry.id for entry in self._dice.sample(entries, min(3, len(entries)))])

    def redact(self) -> None:
        self._memory.scan(PATTERN, apply=True, session=self._name)

    def clear(self) -> None:
        self._session().clear()
        self.add()

    def delete(self) -> None:
        self._memory.delete_session(self._name)
        self.add()

    def replace(self) -> None:
        self._memory.import_session(self._kept, session_id=self._name, on_conflict="replace")

    def fork(self) -> None:
        branch = f"{self._name} branch {next(self._numbers)}"
        self._session().fork(branch)
        self._memory.delete_session(branch)

    def compact(self) -> None:
        self._session().compact(strategy="summarizer")

    def rewind(self) -> None:
        self._session().rewind(self._session().entries()[0])

    def acts(self) -> list[Callable[[], None]]:
        """Return the changes to choose from; frequent ones are in the list twice."""
        once = [self.redact, self.clear, self.delete, self.replace, self.fork, self.compact, self.rewind]
        return [*once, self.add, self.add, self.erase, self.erase]


def main(where: str, options: str, name: str, seed: str) -> None:
    """Change the session until a line comes in; print "ready" after the first change, and the number at the end."""
    dice, given, over, done = random.Random(int(seed)), json.loads(options), threading.Event(), 0

    def listen() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    for turn in itertools.count():
        with opened(where, given, turn) as memory:
            if "keys" in given:
                rotate_keys(memory)
            vandal = Vandal(memory, name, dice)
            for _ in range(10):
                act = dice.choice(vandal.acts())
                with suppress(
                    Conflict, EntryNotFound, SessionNotFound, IndexError
                ):  # another vandal may have changed it first
                    act()
                done += 1
                if turn == 0 and done == 1:
                    say("ready")
                if over.is_set():
                    say(["done", done])
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
