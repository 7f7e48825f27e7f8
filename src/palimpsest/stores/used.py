"""How another store gets heads and rows in one step, and the order in which the sessions of a store were used.

A store keeps that order by its marks, which are its own numbers: so heads are written again as they are, one behind the
other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.entry import now_us
from palimpsest.stores.backend import Backend, Cells, Listed, Place, PlaceHead, Step
from palimpsest.stores.engine.loading import PIECE
from palimpsest.stores.rules import expect_of, heads_at

SECOND = 1_000_000
"""Microseconds."""

TRIES = 20
"""How often a time is looked for that a store takes for later than its last one; each is twice as far ahead."""

Heads: TypeAlias = dict[Place, PlaceHead | None]
Puts: TypeAlias = dict[Place, list[tuple[str, Sequence[Cells]]]]
Drop: TypeAlias = Sequence[tuple[str, int, int]]


async def heads_of(backend: Backend, places: Sequence[Place]) -> Heads:
    """The heads that there are in these places."""
    return dict(zip(places, await heads_at(backend, places), strict=True))


def steps_of(
    there: Heads, wanted: Heads, ends: Mapping[Place, int | None], drop: Mapping[Place, Drop], put: Puts
) -> list[Step]:
    """What makes heads of those that are there, and takes and puts rows, in one step."""
    steps = []
    for place in dict.fromkeys([*there, *drop, *put]):
        step = Step(place, rows_only=True, drop=drop.get(place, ()), put=put.get(place, ()))
        if place in there:
            head, expect = wanted[place], expect_of(there[place])
            hot, cold = (None, None) if head is None else (head.hot, head.cold)
            step = msgspec.structs.replace(
                step, rows_only=False, expect=expect, hot=hot, cold=cold, expires=ends.get(place)
            )
        steps.append(step)
    return steps


async def put(target: Backend, steps: Sequence[Step], home: str, at: int) -> None:
    """Write steps to a store that nobody else uses. Raises Conflict where somebody does."""
    (refusal,) = await target.write([steps], at)
    if refusal is not None:
        raise Conflict(f"{home!r}", "was written to in the store that is copied to: nobody may use that meanwhile")


async def put_in_order(source: Backend, target: Backend, tenant: str, at: int) -> None:
    """Put the tenant's sessions in the order in which those of the source were written to last, from a time on.

    A store may tell apart only what is written a second apart: so those that are not behind the ones before them seem
    to be written then, a second apart, and behind all that the target has.
    """
    ours, theirs = [{one.place: one.mark async for one in _used(each, tenant)} for each in (source, target)]
    late = _misplaced({place: mark for place, mark in ours.items() if place in theirs}, theirs)
    if late:
        at = await _put_behind(target, late[0], max(theirs.values()), at)
    for places in late[1:]:
        at += SECOND
        await _put_again(target, places, at)


async def _put_behind(target: Backend, places: Sequence[Place], last: int, at: int) -> int:
    """Write heads as they are, behind the last mark of the target, which an earlier copy may have given out, or whoever
    has used it; return the time at which that was."""
    for doubled in range(TRIES):
        at += SECOND
        await _put_again(target, places, at)
        if await target.recent(places[0].tenant, "session", since=last + 1, limit=1):
            break
        at = max(at, now_us()) + (SECOND << doubled)
    return at


async def _put_again(target: Backend, places: Sequence[Place], at: int) -> None:
    """Write heads as they are."""
    for place, head in (await heads_of(target, places)).items():
        if head is not None:
            await put(target, [Step(place, head.hot, head.hot, head.cold)], place.home, at)


def _misplaced(ours: dict[Place, int], theirs: dict[Place, int]) -> list[list[Place]]:
    """Places that were written together, oldest first, from the first on that are not behind those before them."""
    groups: dict[int, list[Place]] = {}
    for place, mark in sorted(ours.items(), key=lambda one: one[1]):
        groups.setdefault(mark, []).append(place)
    last, found = -1, list(groups.values())
    for number, places in enumerate(found):
        marks = {theirs[place] for place in places}
        if len(marks) > 1 or min(marks) <= last:
            return found[number:]
        last = max(marks)
    return []


async def _used(backend: Backend, tenant: str) -> AsyncIterator[Listed]:
    """The tenant's sessions, those that were written to last at the end."""
    since, after = 0, None
    while page := await backend.recent(tenant, "session", since=since, after=after, limit=PIECE):
        for one in page:
            yield one
        if len(page) < PIECE:  # or whoever goes on writing would keep it going
            return
        since, after = page[-1].mark, page[-1].place
