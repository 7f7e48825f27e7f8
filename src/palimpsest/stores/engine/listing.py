"""Which sessions there are: by id, by their last use, and those of one user."""

from __future__ import annotations

from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import Ask, Listed, Place
from palimpsest.stores.engine.heads import Sessions
from palimpsest.stores.engine.owners import OWNED
from palimpsest.stores.engine.places import FAR
from palimpsest.stores.values import SessionInfo

HEADS = 100
"""Heads of a user's sessions that are looked at together."""


class Listing:
    """Lists the sessions of tenants, a page at a time."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self._backend = sessions, sessions.backend

    async def sessions(self, tenant: str, after: str, limit: int, begin: str, user: str | None) -> list[SessionInfo]:
        space = "session" if user is None else OWNED + user
        found: dict[str, SessionInfo] = {}
        last = Place(tenant, "", space, begin) if begin > after else Place(tenant, FAR, space, after)
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self._backend.places(tenant, space, after=last, limit=wanted)
            infos = map(self._info, page) if user is None else await self._of(page)
            found |= {info.session: info for info in infos if user in (None, info.user)}
            if len(page) < wanted:
                break
            last = page[-1].place._replace(space=space)  # an encrypted store has another name for a user's
        return list(found.values())

    async def by_use(
        self, tenant: str, mark: int | None, after: str, limit: int, newest_first: bool
    ) -> list[tuple[int, SessionInfo]]:
        behind = Place(tenant, FAR, "session", after) if after else None
        if newest_first:
            page = await self._backend.newest(tenant, "session", until=mark, after=behind, limit=limit)
        else:
            page = await self._backend.recent(tenant, "session", since=mark or 0, after=behind, limit=limit)
        return [(one.mark, self._info(one)) for one in page]

    async def _of(self, notes: list[Listed]) -> list[SessionInfo]:
        """The sessions that these notes are of, and that are still there."""
        found: list[SessionInfo] = []
        for i in range(0, len(notes), HEADS):
            places = [one.place._replace(space="session") for one in notes[i : i + HEADS]]
            seen = await self._backend.look([Ask(place) for place in places])
            heads = zip(places, seen, strict=True)
            found += [self._info(Listed(place, one.head)) for place, one in heads if one.head is not None]
        return found

    def _info(self, one: Listed) -> SessionInfo:
        key = SessionKey(one.place.tenant, one.place.name)
        return SessionInfo.of(key.session, self._sessions.read(key, one.place, one.head).head)
