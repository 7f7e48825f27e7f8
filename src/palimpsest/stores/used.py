"""Writing heads and rows to another store in one step, and restoring the order in which sessions were used.

A store keeps that order by its marks, which are its own numbers. So heads are written again unchanged, one after the
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
"""How many times are tried to find one that a store takes for later than its last one. Each is twice as far ahead."""

Heads: TypeAlias = dict[Place, PlaceHead | None]
Puts: TypeAlias = dict[Place, list[tuple[str, Sequence[Cells]]]]
Drop: TypeAlias = Sequence[tuple[str, int, int]]


async def heads_of(backend: Backend, places: Sequence[Place]) -> Heads:
    """Return the heads of these places."""
    return dict(zip(places, await heads_at(backend, places), strict=True))


def steps_of(
    stored: Heads, wanted: Heads, expiries: Mapping[Place, int | None], drop: Mapping[Place, Drop], put: Puts
) -> list[Step]:
    """Return the steps that turn the stored heads into the wanted ones, and drop and put rows, in one batch."""
    steps = []
    for place in dict.fromkeys([*stored, *drop, *put]):
        step = Step(place, rows_only=True, drop=drop.get(place, ()), put=put.get(place, ()))
        if place in stored:
            head, expect = wanted[place], expect_of(stored[place])
            hot, cold = (None, None) if head is None else (head.hot, head.cold)
            step = msgspec.structs.replace(
                step, rows_only=False, expect=expect, hot=hot, cold=cold, expires=expiries.get(place)
            )
        steps.append(step)
    return steps


async def put(target: Backend, steps: Sequence[Step], home: str, at: int) -> None:
    """Write steps to a store that nobody else uses. Raises Conflict if somebody does."""
    (refusal,) = await target.write([steps], at)
    if refusal is not None:
        raise Conflict(f"{home!r}", "was written to in the target of a copy: let nobody use that store while copying")


async def put_in_order(source: Backend, target: Backend, tenant: str, at: int) -> None:
    """Give the tenant's sessions in the target the order of last use that they have in the source.

    A store may only tell apart writes that are a second apart. So the sessions that are out of order are written again,
    from the time `at` on, a second apart, and after everything that the target has.
    """
    source_marks, target_marks = [
        {one.place: one.mark async for one in _used(backend, tenant)} for backend in (source, target)
    ]
    misplaced = _misplaced({place: mark for place, mark in source_marks.items() if place in target_marks}, target_marks)
    if misplaced:
        at = await _put_behind(target, misplaced[0], max(target_marks.values()), at)
    for places in misplaced[1:]:
        at += SECOND
        await _put_again(target, places, at)


async def _put_behind(target: Backend, places: Sequence[Place], last: int, at: int) -> int:
    """Write heads unchanged, so that their marks come after the target's last; return the time at which that worked.

    An earlier copy, or whoever has used the target, may have given out marks that lie in the future.
    """
    for doubled in range(TRIES):
        at += SECOND
        await _put_again(target, places, at)
        if await target.recent(places[0].tenant, "session", since=last + 1, limit=1):
            break
        at = max(at, now_us()) + (SECOND << doubled)
    return at


async def _put_again(target: Backend, places: Sequence[Place], at: int) -> None:
    """Write heads unchanged."""
    for place, head in (await heads_of(target, places)).items():
        if head is not None:
            await put(target, [Step(place, head.hot, head.hot, head.cold)], place.home, at)


def _misplaced(source_marks: dict[Place, int], target_marks: dict[Place, int]) -> list[list[Place]]:
    """Return the groups of places written together, oldest first, from the first group that is out of order on."""
    groups: dict[int, list[Place]] = {}
    for place, mark in sorted(source_marks.items(), key=lambda marked: marked[1]):
        groups.setdefault(mark, []).append(place)
    last, ordered = -1, list(groups.values())
    for number, places in enumerate(ordered):
        marks = {target_marks[place] for place in places}
        if len(marks) > 1 or min(marks) <= last:
            return ordered[number:]
        last = max(marks)
    return []


async def _used(backend: Backend, tenant: str) -> AsyncIterator[Listed]:
    """Yield the tenant's sessions, the most recently written last."""
    since, after = 0, None
    while page := await backend.recent(tenant, "session", since=since, after=after, limit=PIECE):
        for listed in page:
            yield listed
        if len(page) < PIECE:  # stop here, or a writer that goes on could keep this going
            return
        since, after = page[-1].mark, page[-1].place
