"""Listing a tenant's sessions in pages, by id or by last use, all or those that pass a filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Literal, TypeAlias

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import unfit
from palimpsest.log.ids import check_id
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import SessionInfo, Store

Order: TypeAlias = Literal["id", "latest"]
"""How sessions are listed: by id (Unicode code points), or the one that was written to last first."""

CHUNK = 1000
"""How many sessions are read from the store at once."""

Cursor: TypeAlias = str
Found: TypeAlias = tuple[Cursor, SessionInfo]


class SessionPage(list[SessionInfo]):
    """One page of a listing. `next` is the `after` for the next page, or None at the end."""

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
    """Implement `AsyncMemory.sessions`."""
    if user is not None:
        check_id(user, "user")
    for name, text in (("after", after), ("prefix", prefix), ("title", "" if title is None else title)):
        if not isinstance(text, str) or unfit(text) is not None:
            raise ConfigError(name, text, "text, such as that of an id")
    values.choice("order", order, ("id", "latest"))
    values.whole("limit", limit, none=True)
    first, last = values.instant("since", since) or 0, values.instant("before", before)
    chunk = CHUNK if limit is None else min(limit + 1, CHUNK)
    source = _by_id if order == "id" else _by_use
    fits = _filter(title, first, last, prefix, scope.clock())
    page = SessionPage()
    cursor = ""
    async for info_cursor, info in source(scope.store, scope.tenant, user, prefix, after, chunk, first):
        if fits(info):
            if limit is not None and len(page) >= limit:
                page.next = cursor or after
                break
            page.append(info)
            cursor = info_cursor
    return page


def _filter(title: str | None, since: int, before: int | None, prefix: str, now: int) -> Callable[[SessionInfo], bool]:
    wanted = title.casefold() if title else ""

    def fits(info: SessionInfo) -> bool:
        if info.damaged:  # its head is unreadable, so its times and title are unknown
            return info.session.startswith(prefix) and not (since or before is not None or wanted)
        return (
            info.updated >= since
            and (info.expires is None or info.expires > now)
            and (before is None or info.updated < before)
            and info.session.startswith(prefix)
            and (not wanted or wanted in (info.title or "").casefold())
        )

    return fits


async def _by_id(
    store: Store, tenant: str, user: str | None, prefix: str, after: str, chunk: int, _: int
) -> AsyncIterator[Found]:
    """Yield the sessions by id, from the first to the last one whose id begins with the prefix."""
    while page := await store.sessions(tenant, after=after, limit=chunk, begin=prefix, user=user):
        for info in page:
            if prefix and not info.session.startswith(prefix):
                return
            yield info.session, info
        if len(page) < chunk:
            return
        after = page[-1].session


async def _by_use(
    store: Store, tenant: str, user: str | None, prefix: str, after: str, chunk: int, since: int
) -> AsyncIterator[Found]:
    """Yield the sessions by last use, the latest first. Of a user, all are read and sorted here."""
    mark, name = _read_cursor(after)
    if user is not None:
        infos = [info async for _, info in _by_id(store, tenant, user, prefix, "", CHUNK, 0)]
        for info in sorted(infos, key=lambda info: (-info.updated, info.session)):
            if mark is None or (-info.updated, info.session) > (-mark, name):
                yield f"{info.updated}:{info.session}", info
        return
    while page := await store.used(tenant, mark=mark, after=name, limit=chunk, newest_first=True):
        for at, info in page:
            yield f"{at}:{info.session}", info
        all_older = all(info.updated < since and not info.damaged for _, info in page)
        if len(page) < chunk or all_older:  # later pages are older still
            return
        mark, name = page[-1][0], page[-1][1].session


def _read_cursor(after: str) -> tuple[int | None, str]:
    """Return the mark and the session at which the previous page ended. Raises ConfigError for no such cursor."""
    if not after:
        return None, ""
    mark, colon, name = after.partition(":")
    if not colon or not mark.isascii() or not mark.isdecimal() or len(mark) > 19:
        raise ConfigError("after", after, "the `next` of a page in the same order, or ''")
    return int(mark), name
