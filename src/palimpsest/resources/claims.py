"""The marks and claims of workers, in the store: how far each duty has come, and which sessions are worked on.

Each duty of a tenant has a mark. All sessions whose last write is before it have been given to some worker. The step
that moves the mark also creates a claim, which names the sessions in between. The claim is deleted when they are done.
So a worker that is killed leaves its claim behind, and another one takes it over. A claim may also wait for a later
time, with sessions that are to be looked at again then.

Marks and claims are items of a reserved tenant, whose name no user's tenant can have. A mark is a number of the store
(see `Store.used`), so marks are not copied into another store.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.codec import ready
from palimpsest.log.ids import new_ids
from palimpsest.log.lazy_imports import sha256
from palimpsest.stores.homes import WORKERS
from palimpsest.stores.values import Put, SessionInfo

if TYPE_CHECKING:
    from palimpsest.stores import Store

SEEN = 16_000
"""The most sessions that a mark remembers: more than most stores write at one mark. A mark of SQLite lasts a second."""
MARK = "mark/"
CLAIM = "claim/"

Used = tuple[int, SessionInfo]
"""The mark of a session's last write, and the session."""


class Mark(msgspec.Struct, frozen=True):
    """How far a duty has come: all sessions whose last write has a mark below `at` have been given to workers.

    From `at` on the store may list some of them once more: `seen` are those, each the mark of its write and what
    `known_as` returns. Most stores list again only what was written at `at`. A store that sees writes late goes
    further back: `back` is by how much, as observed so far.
    """

    at: int = 0
    seen: tuple[tuple[int, int], ...] = ()
    back: int = 0

    def after(self, page: Sequence[Used]) -> Mark:
        """Return the mark after this page, in the order of writes, has been given out, too."""
        at = max(self.at, page[-1][0])
        back = max(self.back, self.at - page[0][0] if self.at else 0)
        seen = {digest: mark for mark, digest in self.seen} | {known_as(info): mark for mark, info in page}
        kept = [(mark, digest) for digest, mark in seen.items() if mark >= at - back]
        return Mark(at, tuple(kept[-SEEN:]), back)


def known_as(info: SessionInfo) -> int:
    """Return a digest of a session and its revision. Marks hold no ids, which an erasure could not reach there."""
    return int.from_bytes(sha256(f"{info.revision} {info.created} {info.session}".encode())[:7])


class Claim(msgspec.Struct, frozen=True):
    """Sessions that a worker works on, or that are to be looked at again (`waits`).

    No other worker takes the claim over before `due` (microseconds since 1970). The worker that holds it moves `due` on
    while it works. `tries` counts failed attempts in a row.
    """

    sessions: tuple[str, ...]
    due: int = 0
    tries: int = 0
    waits: bool = False


ready(Mark, Claim)


class Open(NamedTuple):
    """A claim that is not done: its id, the version of its item, and what it says."""

    id: str
    version: int
    claim: Claim


class Claims:
    """The marks and claims of one duty for one tenant."""

    def __init__(self, store: Store, tenant: str, duty: str) -> None:
        self._store, self._space, self.duty = store, f"{duty}\x01{tenant}", duty

    async def mark(self, name: str) -> tuple[Mark, int]:
        """Return the mark of this name, and its version (0: there is none yet)."""
        item = await self._store.get_item(WORKERS, self._space, MARK + name)
        return (msgspec.msgpack.decode(item.value, type=Mark), item.version) if item is not None else (Mark(), 0)

    async def advance(self, name: str, version: int, mark: Mark, claim: Claim) -> tuple[int, Open] | None:
        """Move a mark that has this version, and create the claim, if it names sessions, in the same step.

        Returns the mark's new version, and the claim. None: another worker has moved the mark, and nothing is changed.
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
        """Return the claims that are not done, oldest first."""
        items = await self._store.list_items(WORKERS, self._space, prefix=CLAIM)
        return [
            Open(item.key.removeprefix(CLAIM), item.version, msgspec.msgpack.decode(item.value, type=Claim))
            for item in items
        ]

    async def hold(self, held: Open, claim: Claim) -> Open | None:
        """Replace what a claim says. None: another worker has taken it over, or it is done, and it is not changed."""
        value = msgspec.msgpack.encode(claim)
        try:
            item = await self._store.put_item(WORKERS, self._space, CLAIM + held.id, value, expect=held.version)
        except Conflict:
            return None
        return Open(held.id, item.version, claim)

    async def done(self, held: Open) -> None:
        """Delete a claim, unless another worker has taken it over."""
        with suppress(Conflict):
            await self._store.delete_item(WORKERS, self._space, CLAIM + held.id, expect=held.version)

    async def turn(self, name: str, seconds: float, now: int) -> bool:
        """Whether it is this worker's turn to do what all workers together do once every so many seconds.

        If so, it is recorded as done now (microseconds).
        """
        item = await self._store.get_item(WORKERS, self._space, name)
        if item is not None and int(item.value) <= now < int(item.value) + int(seconds * 1_000_000):
            return False
        version = item.version if item is not None else 0
        try:
            await self._store.put_item(WORKERS, self._space, name, b"%d" % now, expect=version)
        except Conflict:
            return False
        return True
