"""Which sessions a tenant has, a page at a time: by id or by their last use, all or those that fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Literal, TypeAlias

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import check_whole, unfit
from palimpsest.log.ids import check_id
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import SessionInfo, Store

Order: TypeAlias = Literal["id", "latest"]
"""How sessions are listed: by id (Unicode code points), or the one that was written to last first."""

CHUNK = 1000
"""Sessions that are read at once."""

Cursor: TypeAlias = str
Found: TypeAlias = tuple[Cursor, SessionInfo]


class SessionPage(list[SessionInfo]):
    """Sessions of a listing, and where it goes on: `next` is what `after` is for the page behind, None at the end."""

    next: str | None = None


async def listed(
    scope: MemoryScope,
    user: str | None,
    title: str | None,
    since: datetime | None,
    before: datetime | None,
    prefix: str,
    order: Order,
    after: str,
    limit: int | None,
) -> SessionPage:
    """As `AsyncMemory.sessions` says."""
    if user is not None:
        check_id(user, "user")
    for name, text in (("after", after), ("prefix", prefix), ("title", "" if title is None else title)):
        if not isinstance(text, str) or unfit(text) is not None:
            raise ConfigError(name, text, "text, such as that of an id")
    values.choice("order", order, ("id", "latest"))
    check_whole(limit, "limit", or_none=True)
    first, last = values.instant("since", since) or 0, values.instant("before", before)
    chunk = CHUNK if limit is None else min(limit + 1, CHUNK)
    source = _by_id if order == "id" else _by_use
    fits = _filter(title, first, last, prefix, scope.clock())
    page = SessionPage()
    cursor = ""
    async for place, one in source(scope.store, scope.tenant, user, prefix, after, chunk, first):
        if fits(one):
            if limit is not None and len(page) >= limit:
                page.next = cursor or after
                break
            page.append(one)
            cursor = place
    return page


def _filter(title: str | None, since: int, before: int | None, prefix: str, now: int) -> Callable[[SessionInfo], bool]:
    wanted = title.casefold() if title else ""

    def fits(one: SessionInfo) -> bool:
        if one.damaged:  # nobody knows when it was written to, or what it is called
            return one.session.startswith(prefix) and not (since or before is not None or wanted)
        return (
            one.updated >= since
            and (one.expires is None or one.expires > now)
            and (before is None or one.updated < before)
            and one.session.startswith(prefix)
            and (not wanted or wanted in (one.title or "").casefold())
        )

    return fits


async def _by_id(
    store: Store, tenant: str, user: str | None, prefix: str, after: str, chunk: int, _: int
) -> AsyncIterator[Found]:
    """The sessions by id, from the first on that begins with the prefix to the last that does."""
    while page := await store.sessions(tenant, after=after, limit=chunk, begin=prefix, user=user):
        for one in page:
            if prefix and not one.session.startswith(prefix):
                return
            yield one.session, one
        if len(page) < chunk:
            return
        after = page[-1].session


async def _by_use(
    store: Store, tenant: str, user: str | None, prefix: str, after: str, chunk: int, since: int
) -> AsyncIterator[Found]:
    """The sessions that were used last first; of a user all are read, and put in order here."""
    mark, name = _read_cursor(after)
    if user is not None:
        there = [one async for _, one in _by_id(store, tenant, user, prefix, "", CHUNK, 0)]
        for one in sorted(there, key=lambda one: (-one.updated, one.session)):
            if mark is None or (-one.updated, one.session) > (-mark, name):
                yield f"{one.updated}:{one.session}", one
        return
    while page := await store.used(tenant, mark=mark, after=name, limit=chunk, newest_first=True):
        for at, one in page:
            yield f"{at}:{one.session}", one
        if len(page) < chunk or all(
            one.updated < since and not one.damaged for _, one in page
        ):  # all that come now are older
            return
        mark, name = page[-1][0], page[-1][1].session


def _read_cursor(after: str) -> tuple[int | None, str]:
    """Where the page before has ended."""
    if not after:
        return None, ""
    mark, colon, name = after.partition(":")
    if not colon or not mark.isascii() or not mark.isdecimal() or len(mark) > 19:
        raise ConfigError("after", after, "the `next` of a page in the same order, or ''")
    return int(mark), name
