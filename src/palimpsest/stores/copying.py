"""Copying one store into another: heads and rows as they are, home by home, compared afterwards.

The content is not interpreted, so nothing is lost: branches, items, tombstones, and an encrypted store's ciphertext,
for which no key is needed. Rows come first, in pieces; then one step makes all heads of the home. So readers of the new
store see a home whole or not at all, and an interrupted copy goes on with the missing homes. Last, sessions are put in
the order of use.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, nearest
from palimpsest.log.entry import now_us
from palimpsest.log.ids import check_id
from palimpsest.log.values import check_progress
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import MARK
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Cells, Place, PlaceHead, Range, Step
from palimpsest.stores.engine.forms import TOKENS, figure_tables
from palimpsest.stores.engine.items import ITEMS, place_of
from palimpsest.stores.engine.known import LAID, PATIENCE
from palimpsest.stores.engine.loading import BYTES, PIECE, in_pieces
from palimpsest.stores.homes import (
    Home,
    Listing,
    check_heads,
    check_mark,
    homes_of,
    is_list,
    is_users,
    listed_of,
    mark_of,
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
"""Called with the number of homes that are done, and the number of all homes."""

TRIES = 20
"""How often a home is begun again that others write to meanwhile."""

TABLES = {"log": ("entry", "record", "held"), "tree": ("share",), "large": ("large", "uses")}
"""The tables of a home's places with rows; beside entries there are also counts by each counter, and figures."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What `copy_store` did: how many `sessions` and `items` of how many `tenants` are in the new store now, how many
    of them were there `already`, from an earlier copy; how many `rows` were put, and their `bytes`.

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
    facts, knowledge bases, and the order of their use.

    The copy is compared with the source. Ciphertext is copied as it is, so the copy of an encrypted store has the same
    keys. Others may go on writing to the source: each session is copied as of one moment. After an interruption, a
    second call goes on where the first stopped. Not copied are leases, counts by counters that are not named, how far
    workers have come, and the search index, which is made anew. Raises StoreCorrupt, after copying the rest, if part of
    a session or item cannot be read, and Conflict if the source's keys were changed meanwhile.

    Args:
        source: the address of the store that is copied, which is not changed.
        target: the address of the store to copy to, which is made if it does not exist.
        tenants: whose sessions and items are copied; None: all tenants'. A tenant that has none is refused by name.
        replace: whether other content under the same name in the target is replaced; by default it raises Conflict.
        counters: names of counters of your own whose counts are copied, too.
        progress: called with the number of homes (sessions with branches, namespaces of items) done, and of all so far.
    """
    check_progress(progress)
    if str(source) == str(target):
        raise ConfigError("target", discreet_address(str(target)), "a store other than the source")
    for name, where in (("source", source), ("target", target)):
        if str(where).startswith(("memory:", ":memory:")):
            raise ConfigError(name, str(where), "a store on disk or on a server; this one ends with its process")
    for name in (counters := tuple(counters)):
        check_id(name, "counters")
    return drive(_copied(source, target, tenants, replace, counters, progress))


async def _copied(
    source: str | Path,
    target: str | Path,
    tenants: Sequence[str] | None,
    replace: bool,
    counters: tuple[str, ...],
    progress: Progress | None,
) -> Copied:
    async with AsyncExitStack() as opened:
        old = _opened(opened, source, readonly=True)
        present = await tenants_of(old)
        names = present if tenants is None else list(dict.fromkeys(tenants))
        for name in names:
            if name not in present:
                raise ConfigError("tenants", name, "a tenant of the source", nearest=nearest(name, present))
        new = _opened(opened, target)  # makes the store if it does not exist
        copying = _Copying(old, new, names, replace, [TOKENS + name for name in (*ENCODINGS, *counters)])
        await copying.begin()
        copying.damaged += await unread_of(old, tenants and names)
        await copying.all(progress)
        for name in names:
            await put_in_order(old, new, name, copying.at)
        await check_mark(old, copying.mark)
        if copying.damaged:
            raise copying.damaged[0]
        return copying.done()


def _opened(closing: AsyncExitStack, address: str | Path, **options: Any) -> Backend:
    runner = Inline()
    closing.push_async_callback(runner.close)
    store = open_store(address, runner, **options)
    closing.push_async_callback(store.close)
    return store.backend


ALL: Drop = [("*", 0, LAST_KEY)]
"""Drops all rows of a place."""


class _Copying:
    """One copy under way."""

    def __init__(
        self, source: Backend, target: Backend, names: Sequence[str], replace: bool, counts: list[str]
    ) -> None:
        self._source, self._target, self._names = source, target, names
        self._replace, self._counts, self._beside = replace, counts, counts
        self.mark: PlaceHead | None = None
        self._target_homes: dict[Home, list[Place]] = {}
        self._copied: dict[Home, tuple[Heads, bool]] = {}
        self._rows_put, self.at, self.damaged = (0, 0), now_us(), list[StoreCorrupt]()

    async def begin(self) -> None:
        """See that both stores are encrypted alike (an empty target becomes so), and list the target's homes."""
        self.mark, target_mark = await mark_of(self._source), await mark_of(self._target)
        self._target_homes = await homes_of(self._target, self._names)
        if self.mark == target_mark:
            return
        if target_mark is not None or await tenants_of(self._target):
            raise ConfigError("target", self._target.url, "an empty store, or one encrypted as the source is")
        assert self.mark is not None, "one of the two has a mark"
        await self._put([Step(place_of(*MARK), None, self.mark.hot, self.mark.cold)], MARK[0])

    async def all(self, progress: Progress | None) -> None:
        """Copy every home; then copy again those in which a place came, went or changed its expiry meanwhile.

        A listing is not of one moment: a home is known to be copied whole only if the next listing shows it unchanged.
        """
        listed = await listed_of(self._source, self._names, self.damaged)
        self.at -= SECOND * (1 + sum(place.space == "session" for places in listed.values() for place in places))
        copied, todo, done = dict[Home, Listing](), [*listed], 0
        for _ in range(TRIES):
            total = done + len(todo)
            for home in todo:
                copied[home] = listed.get(home, {})
                try:
                    await (self._joined if is_list(home) else self._home)(home, copied[home])
                except StoreCorrupt as fault:  # raised after the other homes were copied
                    self.damaged.append(fault)
                done += 1
                if progress is not None:
                    progress(done, total)
            listed = await listed_of(self._source, self._names, self.damaged)
            named = [(home[0], place.name) for home in copied for place in copied[home] if place.space == "session"]
            todo = [home for home in dict.fromkeys([*copied, *named]) if listed.get(home, {}) != copied.get(home, {})]
            if not todo:
                return
        raise _busy(todo[0])

    def done(self) -> Copied:
        """Return what was copied."""
        sessions, items, already = 0, 0, 0
        for home, (heads, was_there) in self._copied.items():
            spaces = [place.space for place, head in heads.items() if head is not None]
            own_sessions = spaces.count("session") * is_users(home[0])
            own_items = sum(space.startswith(ITEMS) for space in spaces)
            sessions, items = sessions + own_sessions, items + own_items
            already += was_there * (own_sessions + own_items)
        tenants, (rows, size) = len({owner_of(home) for home in self._copied}), self._rows_put
        return Copied(tenants=tenants, sessions=sessions, items=items, already=already, rows=rows, bytes=size)

    async def _joined(self, home: Home, places: Listing) -> None:
        """Add to a list of the target what the source lists, too. What the target lists itself stays."""
        wanted, stored = await heads_of(self._source, [*places]), await heads_of(self._target, [*places])
        missing = [(place, head) for place, head in wanted.items() if head is not None and stored[place] is None]
        if missing:
            await self._put([Step(place, None, head.hot, head.cold) for place, head in missing], home[1])
        self._copied[home] = {}, False

    async def _home(self, home: Home, listed: Listing) -> None:
        """Copy a home, unless the target has the same.

        What it replaces is dropped in the step that puts the home. A home too large for one step has what it replaces
        dropped before: so the target never has a head with the rows of another.
        """
        tenant, name = home
        put_before, again = self._copied.get(home, ({}, False))[0], home in self._copied
        places = list(dict.fromkeys([*listed, *self._target_homes.get(home, ()), *put_before]))
        rows = [Place(tenant, name, space, "") for space in TABLES]
        sessions = [place.name for place in places if place.space == "session"]
        self._beside = [*self._counts, *(table for session in sessions for table in figure_tables(session))]
        for _ in range(TRIES):
            laid = [place for place in listed if place.space == LAID]
            wanted = await heads_of(self._source, places)
            if self.mark is None:
                check_heads(self._source.url, wanted)
            stored = await heads_of(self._target, [*wanted])
            if not again and wanted == stored and await self._same(rows):
                self._copied[home] = wanted, True
                return
            self._refuse(wanted, stored, put_before)
            whole, drop = await self._whole(rows) if any(wanted.values()) else {}, dict.fromkeys(rows, ALL)
            if whole is None:  # too large for one step
                for place in rows if any(stored.values()) else ():  # raises before anything is dropped, if unreadable
                    await self._digest(self._source, place, beside=True)
                await self._put(steps_of(stored, dict.fromkeys(stored), {}, drop, {}), name)
                stored, whole, drop = dict.fromkeys(stored), {}, {}
                for place in rows:
                    await self._put_rows(place)
            if not await self._is_as(wanted, home):
                continue  # another writer has changed the source meanwhile
            ends = {**listed, **dict.fromkeys(laid, now_us() + PATIENCE)}
            await self._put(steps_of(stored, wanted, ends, drop, whole), name)
            self._copied[home] = wanted, False
            same = await self._same(rows, beside=False)  # counts and figures may change without a change of heads
            if not same and await self._is_as(wanted, home, laid=True):
                raise StoreCorrupt(self._target.url, f"the copy of {name!r} differs from its source; copy it again")
            for pieces in whole.values():
                self._count_put([row for _, piece in pieces for row in piece])
            return
        raise _busy(home)

    async def _laid(self, home: Home) -> list[Place]:
        """Return the places of the home's logs that are being laid. Their rows are copied, and stay nobody's."""
        return [one.place async for one in all_places(self._source, home[0], LAID) if one.place.home == home[1]]

    async def _is_as(self, before: Heads, home: Home, *, laid: bool = False) -> bool:
        """Return whether the source's heads are still these; without `laid` those of logs being laid may have moved."""
        places = [*before, *(await self._laid(home) if laid else ())]  # logs that began to be laid since, too
        current = await heads_of(self._source, [*dict.fromkeys(places)])
        changed = [place for place, head in current.items() if head != before.get(place)]
        return all(place.space == LAID and not laid and current[place] and before.get(place) for place in changed)

    async def _whole(self, rows: Sequence[Place]) -> Puts | None:
        """Return the rows of these places if one step can put them all; else None."""
        puts, number, size = Puts(), 0, 0
        for place in rows:
            async for table, piece in self._pieces(self._source, place):
                puts.setdefault(place, []).append((table, piece))
                number, size = number + len(piece), size + sum(len(row[1]) for row in piece)
                if number > PIECE or size > BYTES:
                    return None
        return puts

    def _refuse(self, wanted: Heads, stored: Heads, put_before: Heads) -> None:
        """Raise Conflict for content of the target that is not from the source, unless it is to be replaced."""
        foreign = (place for place, head in stored.items() if head not in (None, wanted[place], put_before.get(place)))
        place = next((place for place in foreign if place.space != LAID), None)
        if place is None or self._replace:
            return
        name = repr(place.home)
        if not is_users(place.tenant):
            name = "a knowledge base"
        elif place.space == "session":
            name = f"the session {place.name!r}"
        elif place.space.startswith(ITEMS):
            name = f"the item {place.name!r} of {place.home!r}"
        problem = "exists in the target with other content; to overwrite it with the source's, give `replace`"
        raise Conflict(f"{name} of tenant {owner_of((place.tenant, place.home))!r}", problem)

    async def _put_rows(self, place: Place) -> None:
        async for table, piece in self._pieces(self._source, place):
            await self._put([Step(place, rows_only=True, put=[(table, piece)])], place.home)
            self._count_put(piece)

    def _count_put(self, rows: Sequence[Cells]) -> None:
        number, size = self._rows_put
        self._rows_put = number + len(rows), size + sum(len(row[1]) for row in rows)

    async def _pieces(
        self, backend: Backend, place: Place, *, beside: bool = True
    ) -> AsyncIterator[tuple[str, list[Cells]]]:
        """Yield the rows of a place by table, in pieces; with `beside` also counts and figures of its entries."""
        tables = TABLES[place.space]
        for table in (*tables, *(self._beside if beside and place.space == "log" else ())):
            low = 0
            while True:
                (seen,) = await backend.look([Ask(place, [Range(table, [(low, LAST_KEY)], PIECE)], head=False)])
                rows = list(seen.rows[0])
                for piece in in_pieces(rows):
                    yield table, piece
                if len(rows) < PIECE:
                    break
                low = rows[-1][0] + 1

    async def _same(self, rows: Sequence[Place], *, beside: bool = True) -> bool:
        return [await self._digest(self._source, place, beside=beside) for place in rows] == [
            await self._digest(self._target, place, beside=beside) for place in rows
        ]

    async def _digest(self, backend: Backend, place: Place, *, beside: bool) -> bytes:
        digest = hashlib.sha256()
        async for table, piece in self._pieces(backend, place, beside=beside):
            for row in piece:
                digest.update(msgspec.msgpack.encode((table, *row)))
        return digest.digest()

    async def _put(self, steps: Sequence[Step], home: str) -> None:
        await put(self._target, steps, home, self.at)


def _busy(home: Home) -> Conflict:
    problem = f"was written to during each of {TRIES} attempts to copy it: copy again when fewer writers are at work"
    return Conflict(f"{home[1]!r} of tenant {owner_of(home)!r}", problem)
