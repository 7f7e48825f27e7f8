"""Listings across homes: each bucket has its own index, and a page is merged from the indexes of all buckets.

Each bucket gives rising marks: the server's time, or its last mark plus one if that is later. The servers of a cluster
have different clocks, and buckets are read one after the other. So before `recent` returns a page that ends at a mark,
each bucket whose last mark is lower raises it to that mark (`RAISE`), and is read again: from then on it gives only
later marks. A reader who goes on from that mark misses nothing, whatever the clocks say. A bucket that is as far
already is not written to.
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
    listed_place,
    names,
    read_name,
)
from palimpsest.stores.redis.scripts import DUE, LIST, RAISE, TENANTS, Script
from palimpsest.stores.rules import by_mark, listing_key, page_of

T = TypeVar("T")
ALL = range(BUCKETS)

Run = Callable[..., Awaitable[list[Any]]]
"""Runs a script over buckets, and returns its answer for each bucket, as `RedisBackend._scripts`."""


class Part(NamedTuple):
    """A bucket's part of a page. `whole`: it has no more.

    `last` is the bucket's last mark, and `now` the higher of that and the server's time: later writes get higher marks
    than `last`, and none below `now` while the clock goes on.
    """

    found: list[Listed]
    whole: bool
    last: int
    now: int


Order = Callable[[Listed], Any]


class Listings:
    """The listings of a store. Each verb does what that of `Backend` with its name says.

    A store that is not `writable` cannot raise marks: there `recent` returns only what is older than each server's
    time.
    """

    def __init__(self, run: Run, writable: bool) -> None:
        self._run, self._writable = run, writable

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        of_tenant = b"p" + escaped(tenant)
        prefix = of_tenant + (escaped_beginning(space) if beneath else escaped(space))
        low = b"[" + prefix
        if after is not None:
            last_member = of_tenant + escaped(after.space) + escaped(after.name) + escaped(after.home)
            low = max(low, b"(" + last_member, key=lambda bound: bound[1:])
        found, _ = await self._merged(low, b"[" + prefix + BEHIND, limit, lambda listed: listing_key(listed.place))
        return found

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        prefix = b"r" + escaped(tenant) + escaped(space)
        low = b"[" + prefix + since.to_bytes(8)

        def order(listed: Listed) -> Any:
            return listed.mark, listing_key(listed.place)

        found, parts = await self._merged(low, b"[" + prefix + BEHIND, limit + BUCKETS, order)
        found = by_mark(found, since, after, limit)
        if not found:
            return []
        if not self._writable:
            horizon = min(part.now for part in parts.values())
            return [listed for listed in found if listed.mark < horizon]
        last = found[-1].mark
        behind = [bucket for bucket, part in parts.items() if part.last < last]
        if not behind:
            return found
        high = b"[" + prefix + last.to_bytes(8) + BEHIND
        raised = await self._parts(behind, low, high, limit + BUCKETS, False, last)
        kept = [listed for bucket, part in parts.items() if bucket not in raised for listed in part.found]
        kept = [listed for listed in kept if listed.mark <= last]
        return by_mark([*kept, *(listed for part in raised.values() for listed in part.found)], since, after, limit)

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        prefix = b"r" + escaped(tenant) + escaped(space)
        high = b"[" + prefix + (until.to_bytes(8) if until is not None else b"") + BEHIND

        def order(listed: Listed) -> Any:
            return -listed.mark, listed.place.name, listed.place.home

        found, _ = await self._merged(b"[" + prefix, high, limit + BUCKETS, order, newest=True)
        return newest_of(found, until, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        prefix = b"e" + escaped(tenant)
        low = b"[" + prefix
        if after is not None:
            place = after.place
            within = b"".join(map(escaped, (place.home, place.space, place.name, after.table)))
            low = b"(" + prefix + after.at.to_bytes(8) + within + after.key.to_bytes(8)
        high = b"[" + prefix + min(max(now, 0), 2**63 - 1).to_bytes(8) + BEHIND
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
        """Return the first `limit` places of all buckets between two bounds, and the parts that they are merged from.

        Each bucket is asked for about its share first, and asked again for more if it may have more of the page.
        """
        share = min(limit, limit * 2 // BUCKETS + 8)
        parts = await self._parts(ALL, low, high, share, newest)
        while True:
            found = sorted((listed for part in parts.values() for listed in part.found), key=order)[:limit]
            ends = [order(part.found[-1]) for part in parts.values() if not part.whole]
            if not ends or (len(found) == limit and order(found[-1]) <= min(ends)):
                return found, parts
            share = min(limit, share * 4)
            short = [bucket for bucket, part in parts.items() if not part.whole]
            parts |= await self._parts(short, low, high, share, newest)

    async def _parts(
        self, buckets: Sequence[int], low: bytes, high: bytes, limit: int, newest: bool, floor: int | None = None
    ) -> dict[int, Part]:
        """Read the parts of these buckets; with a `floor`, each first raises its last mark to it."""
        arguments = (low, high, limit, int(newest), b"" if floor is None else floor)
        script: Script = LIST if floor is None else RAISE
        answers = await self._run(script, buckets, arguments)
        return {bucket: _part(answer, limit) for bucket, answer in zip(buckets, answers, strict=True)}


def _part(answer: Sequence[Any], limit: int) -> Part:
    """Decode a bucket's answer: its last mark, its time, and three values for each place. Raises Damaged."""
    found = list(_listed(answer[2:]))
    return Part(found, len(answer) - 2 < 3 * limit, int(answer[0]), int(answer[1]))


def _listed(answer: Sequence[Any]) -> Iterator[Listed]:
    """Decode places, each of three values: its member of the index, and the two stored values of its head."""
    for i in range(0, len(answer), 3):
        place, mark = listed_place(answer[i])
        head = head_of(answer[i + 1], answer[i + 2])
        if head is None:
            raise Damaged(f"the index names a place without a head, {place.name!r} of {place.space!r}")
        yield Listed(place, head, mark)


def _due(member: bytes) -> Due:
    """Decode a member `e` of the index. Raises Damaged."""
    (tenant,), rest = names(member[1:], 1)
    (home, space, name, table), key = names(rest[8:], 4)
    return Due(int.from_bytes(rest[:8]), Place(tenant, home, space, name), table, int.from_bytes(key))
