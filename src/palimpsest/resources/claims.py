"""How far workers have come with the sessions of a tenant, as its store knows it, and which somebody has in hand.

Of each duty there is a mark: up to which write all sessions have been given to somebody. With the step that moves the
mark a claim comes into being, which names those sessions. It is there until they are done. So whoever is killed leaves
a claim, which another takes up. A claim may wait, too, where a session is to be looked at again later.

Marks and claims are items of a tenant of their own, which no user's can be called. `Store.used` gives the marks, and
they are of that store: they are not copied into another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.codec import ready
from palimpsest.log.entry import new_ids
from palimpsest.log.late import sha256
from palimpsest.stores.homes import WORKERS
from palimpsest.stores.values import Put, SessionInfo

if TYPE_CHECKING:
    from palimpsest.stores import Store

SEEN = 16_000
"""Sessions that a mark remembers: more than most stores write at one mark. SQLite's lasts a second."""
MARK = "mark/"
CLAIM = "claim/"

Used = tuple[int, SessionInfo]
"""A session with the mark of its last write."""


class Mark(msgspec.Struct, frozen=True):
    """All sessions have been given out whose last write came before `at`; of those that the store may list once more
    from there, which are `seen`, each with the mark of its write.

    Most stores list again what was written at `at` alone. One that sees writes late goes `back` by so much.
    """

    at: int = 0
    seen: tuple[tuple[int, int], ...] = ()
    back: int = 0

    def after(self, page: Sequence[Used]) -> Mark:
        """The mark when these have been given out, too, which are in the order of their writes."""
        at = max(self.at, page[-1][0])
        back = max(self.back, self.at - page[0][0] if self.at else 0)
        seen = {known: mark for mark, known in self.seen} | {known_as(info): mark for mark, info in page}
        kept = [(mark, known) for known, mark in seen.items() if mark >= at - back]
        return Mark(at, tuple(kept[-SEEN:]), back)


def known_as(info: SessionInfo) -> int:
    """What a session at its revision is known as: ids do not stay where marks are."""
    return int.from_bytes(sha256(f"{info.revision} {info.created} {info.session}".encode())[:7])


class Claim(msgspec.Struct, frozen=True):
    """Sessions that somebody has in hand, or that are to be looked at again: nobody else takes them up before `due`
    (microseconds since 1970). Whoever works on them moves that on meanwhile; where nobody does it `waits`. `tries`
    counts those that failed.
    """

    sessions: tuple[str, ...]
    due: int = 0
    tries: int = 0
    waits: bool = False


ready(Mark, Claim)


class Open(NamedTuple):
    """A claim that is not done, by its id, at a version."""

    id: str
    version: int
    claim: Claim


class Claims:
    """The marks and claims of one duty for one tenant."""

    def __init__(self, store: Store, tenant: str, duty: str) -> None:
        self._store, self._space, self.duty = store, f"{duty}\x01{tenant}", duty

    async def mark(self, name: str) -> tuple[Mark, int]:
        """The mark of this name, and its version."""
        item = await self._store.get_item(WORKERS, self._space, MARK + name)
        return (msgspec.msgpack.decode(item.value, type=Mark), item.version) if item is not None else (Mark(), 0)

    async def advance(self, name: str, version: int, mark: Mark, claim: Claim) -> tuple[int, Open] | None:
        """Move a mark that is at this version, and claim these sessions, if there are any, in the same step.

        Returns the mark's new version, and the claim; None: another was first, and nothing has happened.
        """
        id, puts = new_ids(1, 0)[0], [Put(MARK + name, msgspec.msgpack.encode(mark), expect=version)]
        if claim.sessions:
            puts.append(Put(CLAIM + id, msgspec.msgpack.encode(claim)))
        try:
            items = await self._store.put_items(WORKERS, self._space, puts)
        except Conflict:
            return None
        return items[0].version, Open(id, items[-1].version, claim)

    async def open(self) -> list[Open]:
        """The claims that are not done, oldest first."""
        items = await self._store.list_items(WORKERS, self._space, prefix=CLAIM)
        return [
            Open(item.key.removeprefix(CLAIM), item.version, msgspec.msgpack.decode(item.value, type=Claim))
            for item in items
        ]

    async def hold(self, known: Open, claim: Claim) -> Open | None:
        """Let a claim be this from now on; None: it is another's by now, or done, and stays as it is."""
        value = msgspec.msgpack.encode(claim)
        try:
            item = await self._store.put_item(WORKERS, self._space, CLAIM + known.id, value, expect=known.version)
        except Conflict:
            return None
        return Open(known.id, item.version, claim)

    async def done(self, known: Open) -> None:
        """Take a claim away, unless it is another's by now."""
        with suppress(Conflict):
            await self._store.delete_item(WORKERS, self._space, CLAIM + known.id, expect=known.version)

    async def turn(self, name: str, seconds: float, now: int) -> bool:
        """Whether it is time for what is done every so many seconds, whoever does it; then it is taken for done."""
        item = await self._store.get_item(WORKERS, self._space, name)
        if item is not None and int(item.value) <= now < int(item.value) + int(seconds * 1_000_000):
            return False
        version = item.version if item is not None else 0
        try:
            await self._store.put_item(WORKERS, self._space, name, b"%d" % now, expect=version)
        except Conflict:
            return False
        return True
