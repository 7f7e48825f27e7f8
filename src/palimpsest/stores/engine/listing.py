"""Which sessions there are: by id, by their last use, and those of one user."""

from __future__ import annotations

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Backend, Listed, Place, PlaceHead
from palimpsest.stores.engine.forms import DAMAGED, read_cold, read_hot, whole
from palimpsest.stores.engine.owners import OWNED
from palimpsest.stores.engine.places import FAR
from palimpsest.stores.values import SessionInfo

HEADS = 100
"""Heads of a user's sessions that are looked at together."""


class Listing:
    """Lists the sessions of tenants, a page at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def sessions(self, tenant: str, after: str, limit: int, begin: str, user: str | None) -> list[SessionInfo]:
        if user is not None:
            return await self._owned(tenant, user, after, limit, begin)
        found: dict[str, SessionInfo] = {}
        last = _behind(tenant, "session", after, begin)
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self._backend.places(tenant, "session", after=last, limit=wanted)
            found |= {one.place.name: self._info(one.place.name, one.head) for one in page}
            if len(page) < wanted:
                break
            last = page[-1].place
        return list(found.values())

    async def by_use(
        self, tenant: str, mark: int | None, after: str, limit: int, newest_first: bool
    ) -> list[tuple[int, SessionInfo]]:
        behind = Place(tenant, FAR, "session", after) if after else None
        if newest_first:
            page = await self._backend.newest(tenant, "session", until=mark, after=behind, limit=limit)
        else:
            page = await self._backend.recent(tenant, "session", since=mark or 0, after=behind, limit=limit)
        return [(one.mark, self._info(one.place.name, one.head)) for one in page]

    async def _owned(self, tenant: str, user: str, after: str, limit: int, begin: str) -> list[SessionInfo]:
        last, found = _behind(tenant, OWNED + user, after, begin), list[SessionInfo]()
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self._backend.places(tenant, OWNED + user, after=last, limit=wanted)
            for i in range(0, len(page), HEADS):
                found += [one for one in await self._of(page[i : i + HEADS]) if one.user == user]
            if len(page) < wanted:
                break
            last = Place(tenant, page[-1].place.home, OWNED + user, page[-1].place.name)
        return found

    async def _of(self, notes: list[Listed]) -> list[SessionInfo]:
        """The sessions that these notes are of, and that are still there."""
        places = [one.place._replace(space="session") for one in notes]
        seen = await self._backend.look([Ask(place) for place in places])
        heads = ((place.name, one.head) for place, one in zip(places, seen, strict=True))
        return [self._info(name, head) for name, head in heads if head is not None]

    def _info(self, session: str, head: PlaceHead) -> SessionInfo:
        try:
            return SessionInfo.of(session, whole(read_hot(head.hot), read_cold(head.cold).head))
        except DAMAGED as cause:
            told = f"the head of session {session!r} cannot be read ({cause})"
            raise StoreCorrupt(self._backend.url, told) from cause


def _behind(tenant: str, space: str, after: str, begin: str) -> Place:
    """What sorts behind this session, and before one that is called as a listing begins."""
    return Place(tenant, "", space, begin) if begin > after else Place(tenant, FAR, space, after)
