"""Writers and readers of one home whose calls of the store interleave in every order.

Two memories share a store in which every verb is one step and waits for a random while before and after it. What each
does is what `vandal_process.Vandal` does. Readers find nothing damaged, and at the end the store holds exactly the
contents that its sessions have.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from intercepting_backend import Stepping
from palimpsest import AsyncMemory, Conflict, EntryNotFound, SessionNotFound
from palimpsest.log.lazy_imports import sha256
from palimpsest.runtime.runner import Inline
from palimpsest.stores import STORES
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Place, Range
from palimpsest.stores.encrypted.rotation import rotate
from palimpsest.stores.memory import MemoryBackend
from sealed import BOTH, RING
from writer import quarters

LARGE = "large enough to be kept apart, whatever else there is in it " * 4
PATTERN = {"redact_patterns": ["SECRET[0-9]+"]}
GONE = (Conflict, EntryNotFound, SessionNotFound, IndexError)
"""What one is told whose session another has done away with."""

NAMES = ("shared", "shared branch", "another branch")


class Interleaved(Stepping):
    """A wrapper of a backend whose verbs wait for a random while before and after their step."""

    url = "interleaved://"

    def __init__(self, below: Backend, dice: random.Random) -> None:
        self._below, self._dice = below, dice
        self.large_bytes = 64

    async def _step(self, verb: str, *given: Any, **named: Any) -> Any:
        for _ in range(self._dice.choice((0, 0, 1, 3))):
            await asyncio.sleep(0)
        result = await getattr(self._below, verb)(*given, **named)
        for _ in range(self._dice.choice((0, 0, 1, 8))):
            await asyncio.sleep(0)
        return result

    async def apart(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)


class Someone:
    """A writer that works at random on the sessions of a home."""

    def __init__(self, memory: AsyncMemory, dice: random.Random, kept: dict[str, Any]) -> None:
        self._memory, self._dice, self._kept = memory, dice, kept
        self._numbers = itertools.count(1)

    def _session(self) -> Any:
        return self._memory.session(self._dice.choice(NAMES), max_tokens=2_000, counter=quarters)

    async def add(self) -> None:
        number = self._dice.randrange(8)
        question = f"{number} SECRET{number} {LARGE if number % 2 else ''}"
        answer = {"role": "assistant", "content": f"{number} {LARGE}"}
        await self._session().add([{"role": "user", "content": question}, answer])

    async def erase(self) -> None:
        session = self._session()
        found = [entry.id for entry in await session.entries() if not entry.erased]
        await session.erase(self._dice.sample(found, min(2, len(found))))

    async def redact(self) -> None:
        await self._memory.scan(PATTERN, apply=True)

    async def clear(self) -> None:
        await self._session().clear()

    async def delete(self) -> None:
        await self._memory.delete_session(self._dice.choice(NAMES))

    async def replace(self) -> None:
        await self._memory.import_session(self._kept, session_id=self._dice.choice(NAMES), on_conflict="replace")

    async def fork(self) -> None:
        await self._memory.session(self._dice.choice(NAMES[:2])).fork(self._dice.choice(NAMES[1:]))

    async def fork_early(self) -> None:
        session = self._session()
        await session.fork(self._dice.choice(NAMES), at=(await session.entries())[0])

    async def rewind(self) -> None:
        session = self._session()
        await session.rewind((await session.entries())[0])

    async def compact(self) -> None:
        await self._session().compact(strategy="summarizer")

    async def read(self) -> None:
        session = self._session()
        read = self._dice.choice((session.entries, session.context, session.export, session.stats, session.verify))
        found = await read()
        assert read != session.verify or found.problems == ()

    async def change_keys(self) -> None:
        await rotate(self._memory.store)

    async def go_on(self, acts: int, *more: Callable[[], Awaitable[None]]) -> None:
        once = [self.redact, self.clear, self.delete, self.replace, self.fork, self.fork_early, self.compact, *more]
        every = [*once, self.rewind, self.delete, self.fork, *[self.add] * 6, *[self.erase] * 3, *[self.read] * 4]
        for _ in range(acts):
            with suppress(*GONE):
                await self._dice.choice(every)()


async def contents_of(backend: Backend) -> list[str]:
    """Return the faults in the contents that are stored once for a home."""
    found: list[str] = []
    for home in NAMES:
        log, large = Place("default", home, "log", ""), Place("default", home, "large", "")
        everything = [(0, LAST_KEY)]
        entries, contents = await backend.look(
            [
                Ask(log, [Range("entry", everything), Range("held", everything)], head=False),
                Ask(large, [Range("large", everything), Range("uses", everything)], head=False),
            ]
        )
        rows, held = ({row[0]: row[1] for row in some} for some in entries.rows)
        texts = {row[2]: row[1] for row in contents.rows[0]}
        uses = {row[2]: int(row[1]) for row in contents.rows[1]}
        used = Counter(digest for value in held.values() for digest in json.loads(value))
        found += [f"{home}: {len(uses)} counts and {len(used)} in use"] * (uses != dict(used))
        found += [f"{home}: contents that nobody has, or none for some"] * (set(texts) != set(used))
        found += [f"{home}: a content is another"] * any(sha256(text).hex() != name for name, text in texts.items())
        found += [f"{home}: row {key} is of no entry" for key in held if key not in rows]
    return found


async def rows_of(memory: AsyncMemory, backend: Backend) -> list[str]:
    """Return the rows of entries that no session has."""
    found = []
    for home in NAMES:
        (seen,) = await backend.look(
            [Ask(Place("default", home, "log", ""), [Range("entry", [(0, LAST_KEY)])], head=False)]
        )
        mine = set[int]()
        for one in await memory.sessions():
            known = await memory.store._sessions.find(memory._scope.key(one.session))
            if known.place.home == home:
                mine |= {key for low, high in known.spans(0, known.head.next_seq) for key in range(low, high + 1)}
        found += [f"{home}: row {row[0]} is nobody's" for row in seen.rows[0] if row[0] not in mine]
    return found


def play(seed: int, acts: int, *, sealed: bool) -> list[str]:
    """Let three writers work on the same sessions; return the faults afterwards."""
    dice, below = random.Random(seed), MemoryBackend(Inline())
    STORES.register("interleaved", lambda url, runner: Interleaved(below, dice))
    keys = ({"encryption": RING}, {"encryption": BOTH}) if sealed else ({}, {})

    async def go() -> list[str]:
        first, second = (AsyncMemory.open("interleaved://", **some) for some in keys)
        async with first, second:
            await first.session("source").add([{"role": "user", "content": f"{n} {LARGE}"} for n in range(3)])
            kept = await first.session("source").export()
            await first.delete_session("source")
            someone = [Someone(memory, dice, kept) for memory in (first, second, second)]
            more = [[one.change_keys] if sealed and one is not someone[2] else [] for one in someone]
            await asyncio.gather(*(one.go_on(acts, *some) for one, some in zip(someone, more, strict=True)))
            for one in await first.sessions():
                problems = (await second.session(one.session).verify()).problems
                assert problems == (), (seed, one.session)
            async with AsyncMemory.open("interleaved://", **keys[0]) as fresh:
                return [*await contents_of(fresh.store.backend), *await rows_of(fresh, fresh.store.backend)]

    return asyncio.run(go())


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_any_order_of_writers_steps_keeps_exactly_the_used_content(sealed: bool, dice: random.Random) -> None:
    """In any order of several writers' steps, no used content is deleted and no unused content stays."""
    for _ in range(20 if sealed else 40):
        seed = dice.randrange(2**32)

        assert (seed, play(seed, 25, sealed=sealed)) == (seed, [])
