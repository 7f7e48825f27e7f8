"""Rules of the seam that every backend shares: which batches are refused, how pages of listings are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import chain
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
"""Places, or tenants, in one page."""

READ_ONLY = "it was opened read-only (readonly=True), and nothing was written"
"""Why nothing is written to a store that is not `writable`."""

UNSENT = "nothing was sent"
"""The note on an exception that ended a call before it had sent anything."""


def is_unsent(fault: BaseException | None) -> bool:
    """Return whether an exception has the note that nothing was sent."""
    return UNSENT in getattr(fault, "__notes__", ())


# --- batches


def refused(batch: Batch, heads: Sequence[PlaceHead | None]) -> Refusal | None:
    """Return the refusal of a batch, given the stored heads in the order of its steps; None if all are as expected."""
    for step, head in zip(batch, heads, strict=True):
        if not step.rows_only and (head.hot if head is not None else None) != step.expect:
            return tuple(None if other.rows_only else stored for other, stored in zip(batch, heads, strict=True))
    return None


def expect_of(head: PlaceHead | None) -> bytes | None:
    """Return what a step expects in order to find this head: its hot value, or None for no head."""
    return None if head is None else head.hot


def is_meant(table: str, name: str) -> bool:
    """Return whether a name in a step's `drop` means this table."""
    return table.startswith(name[:-1]) if name.endswith("*") else table == name


def try_batch(
    number: int, batch: Batch, do: Callable[[Batch], Refusal | None], again: Again | None, look: Look
) -> Refusal | None:
    """Try a batch with `do`; if that refuses it, try what `again` says instead. Nobody else can write meanwhile."""
    refusal = do(batch)
    instead = again(number, batch, refusal, look) if refusal is not None and again is not None else None
    return refusal if instead is None else do(instead)


class _Unseen(Exception):
    """Raised through `again` to name what `ask_again` has to look at before `again` can go on."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks


async def ask_again(
    again: Again, number: int, batch: Batch, heads: Refusal, look: Callable[[Sequence[Ask]], Awaitable[list[Seen]]]
) -> Batch | None:
    """Return what `again` says to write instead of a batch, over a driver, where looking has to be awaited.

    `again` is called anew after each look, and each time gets the answers of all looks so far: so a later look may
    depend on what an earlier one saw. It may also leave out looks whose answers have settled something, so each answer
    is found by what was asked, beginning after the last one that was found.
    """
    seen: list[tuple[Sequence[Ask], list[Seen]]] = []
    at = 0

    def replayed(asks: Sequence[Ask]) -> list[Seen]:
        nonlocal at
        for i in chain(range(at, len(seen)), range(at)):
            if seen[i][0] == asks:
                at = i + 1
                return seen[i][1]
        raise _Unseen(asks)

    while True:
        at = 0
        try:
            return again(number, batch, heads, replayed)
        except _Unseen as unseen:
            seen.append((unseen.asks, await look(unseen.asks)))


# --- what is looked at


AsyncLook = Callable[[Sequence[Ask]], Awaitable[list[Seen]]]
"""Like `Backend.look`: that method itself, or one that looks while nobody else can write."""


def async_look(look: Look) -> AsyncLook:
    """Return a `Look` as a coroutine function, for a coroutine that is driven while nobody else can write."""

    async def looked(asks: Sequence[Ask]) -> list[Seen]:
        return look(asks)

    return looked


async def heads_at(backend: Backend, places: Sequence[Place]) -> list[PlaceHead | None]:
    """Return the heads of these places, all at one moment; None for a place without one."""
    return [seen.head for seen in await backend.look([Ask(place) for place in places])]


# --- rows and pages of listings


def rows_in_spans(ask: Range, among: Callable[[int, int], Sequence[T]]) -> list[T]:
    """Return the rows that a `Range` asks for, given `among`, which returns the rows between two keys in order."""
    rows: list[T] = []
    for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
        span_rows = among(low, high)
        rows += reversed(span_rows) if ask.newest_first else span_rows
        if ask.limit is not None and len(rows) >= ask.limit:
            return rows[: ask.limit]
    return rows


def listing_key(place: Place) -> tuple[str, str, str]:
    """Return the sort key of a place in listings of a tenant."""
    return place.space, place.name, place.home


def after_prefix(begin: str) -> str:
    """Return the first text, by code points and without surrogates, that sorts after all texts with this prefix."""
    begin = begin.rstrip(chr(0x10FFFF))
    last = ord(begin[-1])
    return begin[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


def by_name(listed: Iterable[Listed], after: Place | None, limit: int) -> list[Listed]:
    """Return the page that `Backend.places` gives, from places listed in any order."""
    later = [one for one in listed if after is None or listing_key(one.place) > listing_key(after)]
    return sorted(later, key=lambda one: listing_key(one.place))[:limit]


def by_mark(listed: Iterable[Listed], since: int, after: Place | None, limit: int) -> list[Listed]:
    """Return the page that `Backend.recent` gives, from places listed in any order, with their marks."""
    begin = since, listing_key(after) if after is not None else ()
    later = [one for one in listed if (one.mark, listing_key(one.place)) > begin]
    return sorted(later, key=lambda one: (one.mark, listing_key(one.place)))[:limit]


def page_of(values: Iterable[S], after: S | None, limit: int) -> list[S]:
    """Return the page that `Backend.tenants` and `Backend.expired` give, from values in any order."""
    return sorted(one for one in values if after is None or one > after)[:limit]


async def all_tenants(backend: Backend) -> AsyncIterator[str]:
    """Yield the tenants that `Backend.tenants` lists, page by page."""
    tenant: str | None = None
    while page := await backend.tenants(after=tenant, limit=PAGE):
        for tenant in page:
            yield tenant


async def all_places(
    backend: Backend, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None
) -> AsyncIterator[Listed]:
    """Yield the places that `Backend.places` lists, page by page."""
    while True:
        page = await backend.places(tenant, space, beneath=beneath, after=after, limit=PAGE)
        for listed in page:
            yield listed
        if len(page) < PAGE:
            return
        after = page[-1].place
