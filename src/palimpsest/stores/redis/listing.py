"""What lists places of many homes: each bucket has an index of its own, and a page is merged from those of all.

Marks. A bucket gives marks that rise, from the server's clock where that goes on. Servers of a cluster have clocks of
their own, and buckets are read one after the other. So before a page is given that ends at a mark, each bucket is
brought to give only later ones from then on (`RAISE`), and is read again. Whoever asks from that mark later misses
nothing, whatever clocks say. A bucket that is there already is not written to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from palimpsest.stores.backend import Due, Listed, Place, newest_of
from palimpsest.stores.redis.layout import (
    BEHIND,
    BUCKETS,
    Damaged,
    escaped,
    escaped_beginning,
    head_of,
    listed,
    names,
    read_name,
)
from palimpsest.stores.redis.scripts import DUE, LIST, RAISE, TENANTS, Script
from palimpsest.stores.rules import by_mark, in_order, page_of

T = TypeVar("T")
ALL = range(BUCKETS)

Run = Callable[..., Awaitable[list[Any]]]
"""Runs a script over buckets, and returns what it says of each."""


class Part(NamedTuple):
    """What a bucket lists: whether that is all, and the last mark that it gave, or would not give any more now."""

    found: list[Listed]
    whole: bool
    last: int
    now: int


Order = Callable[[Listed], Any]


class Listings:
    """The listings of a store, each verb as the `Backend`'s of its name; one that is not `writable` raises no marks."""

    def __init__(self, run: Run, writable: bool) -> None:
        self._run, self._writable = run, writable

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        begin = b"p" + escaped(tenant)
        first = begin + (escaped_beginning(space) if beneath else escaped(space))
        low = b"[" + first
        if after is not None:
            behind = begin + escaped(after.space) + escaped(after.name) + escaped(after.home)
            low = max(low, b"(" + behind, key=lambda bound: bound[1:])
        found, _ = await self._merged(low, b"[" + first + BEHIND, limit, lambda one: in_order(one.place))
        return found

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        begin = b"r" + escaped(tenant) + escaped(space)
        low = b"[" + begin + since.to_bytes(8)

        def order(one: Listed) -> Any:
            return one.mark, in_order(one.place)

        found, parts = await self._merged(low, b"[" + begin + BEHIND, limit + BUCKETS, order)
        found = by_mark(found, since, after, limit)
        if not found:
            return []
        if not self._writable:
            sure = min(part.now for part in parts.values())
            return [one for one in found if one.mark < sure]
        last = found[-1].mark
        late = [bucket for bucket, part in parts.items() if part.last < last]
        if not late:
            return found
        high = b"[" + begin + last.to_bytes(8) + BEHIND
        again = await self._parts(late, low, high, limit + BUCKETS, False, last)
        there = [one for bucket, part in parts.items() if bucket not in again for one in part.found]
        there = [one for one in there if one.mark <= last]
        return by_mark([*there, *(one for part in again.values() for one in part.found)], since, after, limit)

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        begin = b"r" + escaped(tenant) + escaped(space)
        high = b"[" + begin + (until.to_bytes(8) if until is not None else b"") + BEHIND

        def order(one: Listed) -> Any:
            return -one.mark, one.place.name, one.place.home

        found, _ = await self._merged(b"[" + begin, high, limit + BUCKETS, order, newest=True)
        return newest_of(found, until, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        begin = b"e" + escaped(tenant)
        low = b"[" + begin
        if after is not None:
            place = after.place
            where = b"".join(map(escaped, (place.home, place.space, place.name, after.table)))
            low = b"(" + begin + after.at.to_bytes(8) + where + after.key.to_bytes(8)
        high = b"[" + begin + min(max(now, 0), 2**63 - 1).to_bytes(8) + BEHIND
        answers = await self._run(DUE, ALL, (low, high, limit))
        found, damaged = list[Due](), list[Damaged]()
        for member in (member for answer in answers for member in answer):
            try:
                found.append(_due(member))
            except Damaged as fault:
                damaged.append(fault)
        if damaged and not found:
            raise damaged[0]
        return page_of(found, after, limit)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        low = b"[p" if after is None else b"(p" + escaped(after) + BEHIND
        answers = await self._run(TENANTS, ALL, (low, limit))
        return page_of({read_name(name) for answer in answers for name in answer}, after, limit)

    # --- parts of a page

    async def _merged(
        self, low: bytes, high: bytes, limit: int, order: Order, *, newest: bool = False
    ) -> tuple[list[Listed], dict[int, Part]]:
        """The first so many of all buckets; of a bucket first as many as it may have of them, and more if need be."""
        share = min(limit, limit * 2 // BUCKETS + 8)
        parts = await self._parts(ALL, low, high, share, newest)
        while True:
            found = sorted((one for part in parts.values() for one in part.found), key=order)[:limit]
            ends = [order(part.found[-1]) for part in parts.values() if not part.whole]
            if not ends or (len(found) == limit and order(found[-1]) <= min(ends)):
                return found, parts
            share = min(limit, share * 4)
            short = [bucket for bucket, part in parts.items() if not part.whole]
            parts |= await self._parts(short, low, high, share, newest)

    async def _parts(
        self, buckets: Sequence[int], low: bytes, high: bytes, limit: int, newest: bool, floor: int | None = None
    ) -> dict[int, Part]:
        given = (low, high, limit, int(newest), b"" if floor is None else floor)
        script: Script = LIST if floor is None else RAISE
        answers = await self._run(script, buckets, given)
        return {bucket: _part(answer, limit) for bucket, answer in zip(buckets, answers, strict=True)}


def _part(answer: Sequence[Any], limit: int) -> Part:
    found = list(_listed(answer[2:]))
    return Part(found, len(answer) - 2 < 3 * limit, int(answer[0]), int(answer[1]))


def _listed(answer: Sequence[Any]) -> Iterator[Listed]:
    for i in range(0, len(answer), 3):
        place, mark = listed(answer[i])
        head = head_of(answer[i + 1], answer[i + 2])
        if head is None:
            raise Damaged(f"the index names a place without a head, {place.name!r} of {place.space!r}")
        yield Listed(place, head, mark)


def _due(member: bytes) -> Due:
    (tenant,), rest = names(member[1:], 1)
    (home, space, name, table), key = names(rest[8:], 4)
    return Due(int.from_bytes(rest[:8]), Place(tenant, home, space, name), table, int.from_bytes(key))
