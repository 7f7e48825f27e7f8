"""Rules of the seam, written once: which batches are refused, how heads are looked at, how pages are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from palimpsest.stores.backend import (
    Again,
    Ask,
    Backend,
    Batch,
    Due,
    Listed,
    Look,
    Place,
    PlaceHead,
    Range,
    Refusal,
    Seen,
)

S = TypeVar("S", str, Due)
T = TypeVar("T")

PAGE = 1000
"""Places, or tenants, of one page."""

READ_ONLY = "it was opened read-only (readonly=True), and nothing was written"
"""Why nothing is written to a store that is not `writable`."""

# --- batches


def refused(batch: Batch, heads: Sequence[PlaceHead | None]) -> Refusal | None:
    """What a batch is told where these heads are there, in the order of its steps: None if they are as it expects."""
    for step, head in zip(batch, heads, strict=True):
        if not step.rows_only and (head.hot if head is not None else None) != step.expect:
            return tuple(None if one.rows_only else there for one, there in zip(batch, heads, strict=True))
    return None


def expect_of(head: PlaceHead | None) -> bytes | None:
    """What a step expects that is to find this head: its hot value; None where there is none."""
    return None if head is None else head.hot


def is_meant(table: str, name: str) -> bool:
    """Whether a step means a table by this name in its `drop`."""
    return table.startswith(name[:-1]) if name.endswith("*") else table == name


def tried(
    number: int, batch: Batch, do: Callable[[Batch], Refusal | None], again: Again | None, look: Look
) -> Refusal | None:
    """What came of a batch that this does, or of what `again` says it is to do instead, while nobody else can write."""
    refusal = do(batch)
    other = again(number, batch, refusal, look) if refusal is not None and again is not None else None
    return refusal if other is None else do(other)


class _Unseen(Exception):
    """What `asked_again` has to look at before `again` can say more."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks


async def asked_again(
    again: Again, number: int, batch: Batch, heads: Refusal, look: Callable[[Sequence[Ask]], Awaitable[list[Seen]]]
) -> Batch | None:
    """Return what `again` says is to be done in the place of a batch, over a driver, where looking has to be awaited.

    It is called anew with each thing more that it has looked at, so what it looks at follows from what it saw.
    """
    seen: list[list[Seen]] = []
    while True:
        left = iter(seen)

        def known(asks: Sequence[Ask], left: Iterator[list[Seen]] = left) -> list[Seen]:
            there = next(left, None)
            if there is None:
                raise _Unseen(asks)
            return there

        try:
            return again(number, batch, heads, known)
        except _Unseen as more:
            seen.append(await look(more.asks))


# --- what is looked at


Looks = Callable[[Sequence[Ask]], Awaitable[list[Seen]]]
"""As `Backend.look`: that, or what looks while nobody else can write."""


def awaited(look: Look) -> Looks:
    """What looks at the same, for who awaits it: for a coroutine that is driven while nobody else can write."""

    async def looked(asks: Sequence[Ask]) -> list[Seen]:
        return look(asks)

    return looked


async def heads_at(backend: Backend, places: Sequence[Place]) -> list[PlaceHead | None]:
    """Return the heads that there are in these places, all as they are at one moment; None for one without."""
    return [seen.head for seen in await backend.look([Ask(place) for place in places])]


# --- rows and pages of listings


def in_spans(ask: Range, among: Callable[[int, int], Sequence[T]]) -> list[T]:
    """What is asked for, of an engine that has the rows `among` two keys at hand, in their order."""
    found: list[T] = []
    for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
        some = among(low, high)
        found += reversed(some) if ask.newest_first else some
        if ask.limit is not None and len(found) >= ask.limit:
            return found[: ask.limit]
    return found


def in_order(place: Place) -> tuple[str, str, str]:
    """What places of a tenant are listed by."""
    return place.space, place.name, place.home


def behind(begin: str) -> str:
    """The first text behind all that begin so, by code points, of which none is a surrogate."""
    begin = begin.rstrip(chr(0x10FFFF))
    last = ord(begin[-1])
    return begin[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


def by_name(found: Iterable[Listed], after: Place | None, limit: int) -> list[Listed]:
    """Of places that are listed in any order the page that `Backend.places` gives."""
    behind = [one for one in found if after is None or in_order(one.place) > in_order(after)]
    return sorted(behind, key=lambda one: in_order(one.place))[:limit]


def by_mark(found: Iterable[Listed], since: int, after: Place | None, limit: int) -> list[Listed]:
    """Of places that are listed in any order, with their marks, the page that `Backend.recent` gives."""
    begin = since, in_order(after) if after is not None else ()
    behind = [one for one in found if (one.mark, in_order(one.place)) > begin]
    return sorted(behind, key=lambda one: (one.mark, in_order(one.place)))[:limit]


def page_of(found: Iterable[S], after: S | None, limit: int) -> list[S]:
    """Of what sorts by itself, in any order, the page that `Backend.tenants` and `Backend.expired` give."""
    return sorted(one for one in found if after is None or one > after)[:limit]


async def all_tenants(backend: Backend) -> AsyncIterator[str]:
    """Yield the tenants that `Backend.tenants` lists, page by page."""
    last: str | None = None
    while page := await backend.tenants(after=last, limit=PAGE):
        for last in page:
            yield last


async def all_places(
    backend: Backend, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None
) -> AsyncIterator[Listed]:
    """Yield the places that `Backend.places` lists, page by page."""
    while True:
        page = await backend.places(tenant, space, beneath=beneath, after=after, limit=PAGE)
        for one in page:
            yield one
        if len(page) < PAGE:
            return
        after = page[-1].place
