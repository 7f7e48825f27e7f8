"""Moving what a store has into another one: heads and rows as they are, home by home, compared when they are there.

Nothing of it is understood, so nothing of it is lost: branches, items, what was erased, and, of an encrypted store, the
ciphertext, for which no key is needed. Rows come first, in pieces; then one step makes all heads of the home. So who
reads the new store sees a home whole or not at all, and a copy that was interrupted goes on with the homes that are not
there yet. Last, sessions are put in the order in which they were used.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, nearest
from palimpsest.log.checks import check_progress
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import MARK
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Cells, Place, Range, Step
from palimpsest.stores.engine.forms import TOKENS, figure_tables
from palimpsest.stores.engine.items import ITEMS
from palimpsest.stores.engine.known import LAID, PATIENCE
from palimpsest.stores.engine.loading import BYTES, PIECE, in_pieces
from palimpsest.stores.homes import (
    Home,
    Listing,
    check_heads,
    homes_of,
    is_list,
    is_users,
    listed_of,
    owner_of,
    tenants_of,
    unread_of,
)
from palimpsest.stores.opening import open_store
from palimpsest.stores.options import discreet_address
from palimpsest.stores.rules import all_places
from palimpsest.stores.used import SECOND, Drop, Heads, Puts, heads_of, put, put_in_order, steps_of
from palimpsest.tokens.counter import ENCODINGS

if TYPE_CHECKING:
    from pathlib import Path

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of homes that are done, and of all."""

TRIES = 20
"""How often a home that others write to meanwhile is begun again."""

TABLES = {"log": ("entry", "record", "held"), "tree": ("share",), "large": ("large", "uses")}
"""The tables of the places of a home that have rows; and counts by each counter, and figures, beside entries."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What `copy_store` did: how many `sessions` and `items` of how many `tenants` are in the new store now, how many
    of them were there `already`, from a copy before; how many `rows` were put, and their `bytes`.

    Items are facts, and what else is kept for a tenant beside its sessions, such as the documents of knowledge bases.
    """

    tenants: int = 0
    sessions: int = 0
    items: int = 0
    already: int = 0
    rows: int = 0
    bytes: int = 0


def copy_store(
    source: str | Path,
    target: str | Path,
    *,
    tenants: Sequence[str] | None = None,
    replace: bool = False,
    counters: Iterable[str] = (),
    progress: Progress | None = None,
) -> Copied:
    """Copy what one store has into another: sessions with branches, token counts and how often entries were fetched,
    facts, knowledge bases, the order of their use.

    The copy is compared with what was copied. Of an encrypted store ciphertext is copied, so the new one has the same
    keys. Others may go on writing to the source: each session is copied as it is at one moment. Interrupted, it goes on
    where it was when it is called again. Leases are not copied, nor counts by counters that are not named, how far
    workers have come, and the search index, which the new store makes anew. Raises StoreCorrupt, when all the rest is
    copied, for a session or item of which something cannot be read.

    Args:
        source: the address of the store that is copied, which is not changed.
        target: the address of the store to copy to, which is made where it is not there.
        tenants: whose sessions and items are copied; None: all tenants'. One that has none is refused by name.
        replace: whether a session or item of the same name in the target, that is another, is replaced. By default
            Conflict is raised, which names it.
        counters: names of counters of your own, whose counts are copied, too.
        progress: called with the number of homes (sessions with their branches, namespaces of items) that are done, and
            of all: of more, where others write meanwhile.
    """
    check_progress(progress)
    if str(source) == str(target):
        raise ConfigError("target", discreet_address(str(target)), "another store than the one that is copied")
    for name, where in (("source", source), ("target", target)):
        if str(where).startswith(("memory:", ":memory:")):
            raise ConfigError(name, str(where), "a store that others can open; this one is gone with its process")
    return drive(_copied(source, target, tenants, replace, tuple(counters), progress))


async def _copied(
    source: str | Path,
    target: str | Path,
    tenants: Sequence[str] | None,
    replace: bool,
    counters: tuple[str, ...],
    progress: Progress | None,
) -> Copied:
    async with AsyncExitStack() as opened:
        one = _opened(opened, source, readonly=True)
        there = await tenants_of(one)
        names = there if tenants is None else list(dict.fromkeys(tenants))
        for name in names:
            if name not in there:
                raise ConfigError("tenants", name, "a tenant that the source has", nearest=nearest(name, there))
        other = _opened(opened, target)  # which makes it, where it is not there
        copying = _Copying(one, other, names, replace, [TOKENS + name for name in (*ENCODINGS, *counters)])
        await copying.begin()
        copying.damaged += await unread_of(one, tenants and names)
        await copying.all(progress)
        for name in names:
            await put_in_order(one, other, name, copying.at)
        if copying.damaged:
            raise copying.damaged[0]
        return copying.done()


def _opened(closing: AsyncExitStack, where: str | Path, **options: Any) -> Backend:
    runner = Inline()
    closing.push_async_callback(runner.close)
    store = open_store(where, runner, **options)
    closing.push_async_callback(store.close)
    return store.backend


ALL: Drop = [("*", 0, LAST_KEY)]
"""All rows of a place."""


class _Copying:
    """A copy that is under way."""

    def __init__(
        self, source: Backend, target: Backend, names: Sequence[str], replace: bool, counts: list[str]
    ) -> None:
        self._source, self._target, self._names = source, target, names
        self._replace, self._counts, self._beside, self._sealed = replace, counts, counts, False
        self._theirs: dict[Home, list[Place]] = {}
        self._copied: dict[Home, tuple[Heads, bool]] = {}
        self._rows_put, self.at, self.damaged = (0, 0), now_us(), list[StoreCorrupt]()

    async def begin(self) -> None:
        """See that both stores are encrypted alike; a new one becomes so. Look at what is there of these tenants."""
        there = [await heads_of(backend, [_mark()]) for backend in (self._source, self._target)]
        ours, theirs = (heads[_mark()] for heads in there)
        self._sealed = ours is not None
        self._theirs = await homes_of(self._target, self._names)
        if ours == theirs:
            return
        if theirs is not None or await tenants_of(self._target):
            told = "a store that is encrypted as the source is, or an empty one"
            raise ConfigError("target", self._target.url, told)
        assert ours is not None, "one of the two has a mark"
        await self._put([Step(_mark(), None, ours.hot, ours.cold)], MARK[0])

    async def all(self, progress: Progress | None) -> None:
        """Copy every home, and again those in which a place came, went or got another time to expire meanwhile.

        A listing is not of one moment. So a home has been copied as it was when the listing after that is as before.
        """
        listed = await listed_of(self._source, self._names, self.damaged)
        self.at -= SECOND * (1 + sum(place.space == "session" for places in listed.values() for place in places))
        seen, todo, number = dict[Home, Listing](), [*listed], 0
        for _ in range(TRIES):
            total = number + len(todo)
            for home in todo:
                seen[home] = listed.get(home, {})
                try:
                    await (self._joined if is_list(home) else self._home)(home, seen[home])
                except StoreCorrupt as fault:  # it keeps nobody from the other homes
                    self.damaged.append(fault)
                number += 1
                if progress is not None:
                    progress(number, total)
            listed = await listed_of(self._source, self._names, self.damaged)
            named = [(home[0], place.name) for home in seen for place in seen[home] if place.space == "session"]
            todo = [home for home in dict.fromkeys([*seen, *named]) if listed.get(home, {}) != seen.get(home, {})]
            if not todo:
                return
        raise _busy(todo[0])

    def done(self) -> Copied:
        """What has come of it."""
        sessions, items, already = 0, 0, 0
        for home, (heads, was_there) in self._copied.items():
            there = [place.space for place, head in heads.items() if head is not None]
            some, others = there.count("session") * is_users(home[0]), sum(one.startswith(ITEMS) for one in there)
            sessions, items, already = sessions + some, items + others, already + was_there * (some + others)
        tenants = len({owner_of(home) for home in self._copied})
        put = self._rows_put
        return Copied(tenants=tenants, sessions=sessions, items=items, already=already, rows=put[0], bytes=put[1])

    async def _joined(self, home: Home, places: Listing) -> None:
        """Have the target list what the source does, too. What it has there itself stays."""
        ours, theirs = await heads_of(self._source, [*places]), await heads_of(self._target, [*places])
        new = [(place, head) for place, head in ours.items() if head is not None and theirs[place] is None]
        if new:
            await self._put([Step(place, None, head.hot, head.cold) for place, head in new], home[1])
        self._copied[home] = {}, False

    async def _home(self, where: Home, listed: Listing) -> None:
        """Copy a home, unless it is there as it is.

        What it replaces goes in the step that puts it there. If it is too large for one step, what it replaces goes
        before: so there is never a head in the target with the rows of another.
        """
        tenant, home = where
        mine, again = self._copied.get(where, ({}, False))[0], where in self._copied
        places = list(dict.fromkeys([*listed, *self._theirs.get(where, ()), *mine]))
        rows = [Place(tenant, home, space, "") for space in TABLES]
        sessions = [place.name for place in places if place.space == "session"]
        self._beside = [*self._counts, *(table for one in sessions for table in figure_tables(one))]
        for _ in range(TRIES):
            laid = [place for place in listed if place.space == LAID]
            before = await heads_of(self._source, places)
            if not self._sealed:
                check_heads(self._source.url, before)
            there = await heads_of(self._target, [*before])
            if not again and before == there and await self._same(rows):
                self._copied[where] = before, True
                return
            self._refuse(before, there, mine)
            whole, drop = await self._whole(rows) if any(before.values()) else {}, dict.fromkeys(rows, ALL)
            if whole is None:
                for place in rows if any(there.values()) else ():  # nothing goes for what cannot be read
                    await self._digest(self._source, place, beside=True)
                await self._put(steps_of(there, dict.fromkeys(there), {}, drop, {}), home)
                there, whole, drop = dict.fromkeys(there), {}, {}
                for place in rows:
                    await self._rows(place)
            if not await self._is_as(before, where):
                continue  # somebody has written to it meanwhile
            ends = {**listed, **dict.fromkeys(laid, now_us() + PATIENCE)}
            await self._put(steps_of(there, before, ends, drop, whole), home)
            self._copied[where] = before, False
            same = await self._same(rows, beside=False)  # what is kept beside entries moves no head
            if not same and await self._is_as(before, where, laid=True):
                raise StoreCorrupt(self._target.url, f"what was copied of {home!r} is not what was read")
            for pieces in whole.values():
                self._count([row for _, piece in pieces for row in piece])
            return
        raise _busy(where)

    async def _laid(self, where: Home) -> list[Place]:
        """Where it says that a log of the home is being laid: its rows go along, and are nobody's there, too."""
        return [one.place async for one in all_places(self._source, where[0], LAID) if one.place.home == where[1]]

    async def _is_as(self, before: Heads, where: Home, *, laid: bool = False) -> bool:
        """Whether the source's heads are those; with `laid` those of all logs that are being laid, and no further."""
        places = [*before, *(await self._laid(where) if laid else ())]
        now = await heads_of(self._source, [*dict.fromkeys(places)])
        moved = [place for place, head in now.items() if head != before.get(place)]
        return all(place.space == LAID and not laid and now[place] and before.get(place) for place in moved)

    async def _whole(self, rows: Sequence[Place]) -> Puts | None:
        """The rows of these places, if one step can put them all."""
        found, number, size = Puts(), 0, 0
        for place in rows:
            async for table, piece in self._pieces(self._source, place):
                found.setdefault(place, []).append((table, piece))
                number, size = number + len(piece), size + sum(len(row[1]) for row in piece)
                if number > PIECE or size > BYTES:
                    return None
        return found

    def _refuse(self, ours: Heads, theirs: Heads, mine: Heads) -> None:
        """Raise Conflict if what is there is neither the source's nor what was put there, and is not to be replaced."""
        others = (place for place, head in theirs.items() if head not in (None, ours[place], mine.get(place)))
        other = next((place for place in others if place.space != LAID), None)
        if other is None or self._replace:
            return
        told = f"the item {other.name!r} of {other.home!r}" if other.space.startswith(ITEMS) else f"{other.home!r}"
        if not is_users(other.tenant):
            told = "a knowledge base"
        elif other.space == "session":
            told = f"the session {other.name!r}"
        another = "is in the target already, with other content; to put the source's in its place, say `replace`"
        raise Conflict(f"{told} of tenant {owner_of((other.tenant, other.home))!r}", another)

    async def _rows(self, place: Place) -> None:
        async for table, piece in self._pieces(self._source, place):
            await self._put([Step(place, rows_only=True, put=[(table, piece)])], place.home)
            self._count(piece)

    def _count(self, rows: Sequence[Cells]) -> None:
        """Count rows that were put."""
        number, size = self._rows_put
        self._rows_put = number + len(rows), size + sum(len(row[1]) for row in rows)

    async def _pieces(
        self, backend: Backend, place: Place, *, beside: bool = True
    ) -> AsyncIterator[tuple[str, list[Cells]]]:
        tables = TABLES[place.space]
        for table in (*tables, *(self._beside if beside and place.space == "log" else ())):
            low = 0
            while True:
                (seen,) = await backend.look([Ask(place, [Range(table, [(low, LAST_KEY)], PIECE)], head=False)])
                found = list(seen.rows[0])
                for piece in in_pieces(found):
                    yield table, piece
                if len(found) < PIECE:
                    break
                low = found[-1][0] + 1

    async def _same(self, rows: Sequence[Place], *, beside: bool = True) -> bool:
        return [await self._digest(self._source, one, beside=beside) for one in rows] == [
            await self._digest(self._target, one, beside=beside) for one in rows
        ]

    async def _digest(self, backend: Backend, place: Place, *, beside: bool) -> bytes:
        found = hashlib.sha256()
        async for table, piece in self._pieces(backend, place, beside=beside):
            for row in piece:
                found.update(msgspec.msgpack.encode((table, *row)))
        return found.digest()

    async def _put(self, steps: Sequence[Step], home: str) -> None:
        await put(self._target, steps, home, self.at)


def _busy(home: Home) -> Conflict:
    told = f"was written to {TRIES} times while it was copied: copy when there is less to do"
    return Conflict(f"{home[1]!r} of tenant {owner_of(home)!r}", told)


def _mark() -> Place:
    return Place(MARK[0], MARK[1], ITEMS + MARK[1], MARK[2])
