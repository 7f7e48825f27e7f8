"""Keeping the summaries on shelves true to the sessions that they are of.

A session's log is the outbox: whatever is on a shelf can be made again of it, and is wherever it may lag behind. So
nothing is lost with a process, or with a write that fails; and what the log no longer says holds nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.log import spans
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.summary import Summary
from palimpsest.recall.splitter import Chunk, split
from palimpsest.sessions.shelves.records import (
    LINKS,
    Link,
    Place,
    Record,
    chunk_entries,
    summary_version,
    tenant_of,
)
from palimpsest.sessions.shelves.shelf import Home, Shelf, shelves
from palimpsest.sessions.shelves.vectors import embedded
from palimpsest.stores import compaction_of
from palimpsest.stores.derivers import KNOWLEDGE
from palimpsest.tokens.counter import encoding

if TYPE_CHECKING:
    from palimpsest.recall.embedders import Embedder

EMBEDDERS = 16
"""Embedders that are remembered."""

TRIES = 8
"""How often a session may change while its summaries are put on a shelf, until that is left for another time."""

DEFAULT = "o200k_base"


class Keeper:
    """What keeps the shelves of one tenant: `Derived`, as erasures know it."""

    name = KNOWLEDGE

    def __init__(self, home: Home) -> None:
        self._home = home
        self._shelves = dict[Place, Shelf]()
        self._touched = set[Place]()
        self._embedders: dict[int, tuple[Any, Embedder]] = {}

    def shelf(self, place: Place) -> Shelf:
        """The shelf of this place."""
        return self._shelves.setdefault(place, Shelf(self._home, place))

    # --- links

    async def link(self, session: str, link: Link) -> None:
        """Remember that the summaries of a session go to a shelf, before any does."""
        store, owner, value = self._home.store, tenant_of(self._home.tenant), msgspec.json.encode(link)
        there = await store.get_item(owner, LINKS + session, link.place.key)
        if there is None or there.value != value:
            await store.put_item(owner, LINKS + session, link.place.key, value)

    async def links(self, session: str) -> list[Link]:
        """Which shelves have summaries of a session, or should have."""
        items = await self._home.store.list_items(tenant_of(self._home.tenant), LINKS + session)
        return [msgspec.json.decode(item.value, type=Link) for item in items]

    async def linked(self) -> list[str]:
        """The sessions that have links."""
        names = await self._home.store.namespaces(tenant_of(self._home.tenant), prefix=LINKS)
        return [name.removeprefix(LINKS) for name in names]

    async def moved(self, session: str, link: Link) -> None:
        """Take the summaries of a session off shelves of the same collection that are another's: it is not his now."""
        for other in await self.links(session):
            if other.place.collection == link.place.collection and other.place != link.place:
                await self.shelf(other.place).remove("summary", session)
                owner = tenant_of(self._home.tenant)
                await self._home.store.delete_item(owner, LINKS + session, other.place.key)

    async def handed_over(self, session: str) -> None:
        """Take the summaries of a session off all shelves: it is another's by now, who puts them on his own."""
        for link in await self.links(session):
            await self.shelf(link.place).remove("summary", session)
            self._touched.add(link.place)
        await self._home.store.clear_items(tenant_of(self._home.tenant), LINKS + session)

    # --- bringing up to date

    def embedder(self, given: Any) -> Embedder | None:
        """What gives vectors, where something was given for that: of one thing there is one, which may be paused.
        Raises ConfigError, MissingExtra where its package is not installed."""
        if given is None:
            return None
        known = self._embedders.get(id(given))
        if known is None:
            from palimpsest.recall.embedders import embedder  # numpy, only for who has one

            if len(self._embedders) >= EMBEDDERS:
                del self._embedders[next(iter(self._embedders))]
            known = self._embedders[id(given)] = given, embedder(given, self._home.runner)
        return known[1]

    async def bring(
        self, session: str, link: Link, given: Any = None, count: Callable[[str], int] | None = None
    ) -> bool:
        """Have a shelf hold the summaries that a session has now, and no other; return whether anything was new.

        With an embedder (`given`) their chunks have its vectors; without one they keep those that they have.
        """
        embedder = self.embedder(given)
        store, key, shelf, new = self._home.store, SessionKey(self._home.tenant, session), self.shelf(link.place), False
        for _ in range(TRIES):
            head = await store.head(key)
            record = await shelf.record("summary", session)
            made = await self._summaries(key)
            if head is None or not made:
                new = await shelf.remove("summary", session) > 0 or new
            elif record is None or _is_other(record, made, link, embedder):
                await self._put(shelf, session, head, made, link, embedder, count)
                new = True
            elif (record.epoch, record.created) != (head.epoch, head.created):
                record = msgspec.structs.replace(record, epoch=head.epoch, created=head.created)
                await shelf.note(record)
            after = await store.head(key)
            if _place(after) == _place(head):
                break
        return new

    async def untrue(self, place: Place, records: Sequence[Record]) -> set[str]:
        """Those of these summaries, by their sessions, that their sessions do not say now. They are brought up to date,
        where that can be done; what was only said in another epoch is true."""
        found = set[str]()
        for record in records:
            key = SessionKey(self._home.tenant, record.id)
            if record.kind == "document" or (record.epoch, record.created) == _place(await self._home.store.head(key)):
                continue
            link = next((one for one in await self.links(record.id) if one.place == place), None)
            if link is None or not self._home.store.writable:
                if link is None or _is_other(record, await self._summaries(key), link, None):
                    found.add(record.id)
            elif await self.bring(record.id, link):
                found.add(record.id)
        return found

    async def _summaries(self, key: SessionKey) -> list[Summary]:
        """The summaries that stand for entries of a session now, oldest first."""
        head = await self._home.store.head(key)
        if head is None or not head.compaction:
            return []
        state = await compaction_of(self._home.store, key, head.compaction)
        found = [(await compaction_of(self._home.store, key, revision)).summary for revision in state.current]
        return [self._home.gate.summary(one) for one in found if one is not None and not one.withdrawn and one.text]

    async def _put(
        self,
        shelf: Shelf,
        session: str,
        head: Head,
        made: Sequence[Summary],
        link: Link,
        embedder: Embedder | None,
        count: Callable[[str], int] | None,
    ) -> None:
        counting = count or encoding(link.counter or DEFAULT).count

        def parted() -> list[Chunk]:
            return [one for each in made for one in split(each.text, link.splitter, counting) if one.text.strip()]

        chunks = await self._home.store.apart(parted)
        vectors = await embedded(embedder, [one.text for one in chunks]) if embedder is not None else None
        name = embedder.name if embedder is not None else ""
        record = Record(
            id=session,
            kind="summary",
            version=summary_version(made, link.splitter, name),
            chunks=len(chunks),
            at=max(one.at for one in made),
            embedder=name,
            epoch=head.epoch,
            created=head.created,
            covers=spans.union(*(one.covers for one in made)),
        )
        await shelf.put(record, chunk_entries(record, chunks, vectors, start_index=link.splitter.add_start_index))

    # --- as erasures know it

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Take off what tells of these entries, before they go."""
        gone = 0
        for link in await self.links(session):
            shelf = self.shelf(link.place)
            record = await shelf.record("summary", session)
            if record is None or any(spans.within(record.covers, seq) for seq in entries):
                gone += await shelf.remove("summary", session)
                self._touched.add(link.place)
        return gone

    async def gone(self, tenant: str, session: str) -> int:
        """Take off what tells of a session, before it goes."""
        gone = 0
        for link in await self.links(session):
            gone += await self.shelf(link.place).remove("summary", session)
            self._touched.add(link.place)
        return gone

    async def settled(self, tenant: str, session: str, entries: Mapping[int, str] | None) -> None:
        """Put back what is still said, now that what was to go has gone."""
        await self.summarised(session)
        if entries is None and await self._home.store.head(SessionKey(tenant, session)) is None:
            await self._home.store.clear_items(tenant_of(tenant), LINKS + session)

    async def summarised(self, session: str) -> None:
        """Know that a session has other summaries than before an erasure: what was said goes, to the byte."""
        for link in await self.links(session):
            shelf, made = self.shelf(link.place), await self._summaries(SessionKey(self._home.tenant, session))
            record = await shelf.record("summary", session)
            if record is not None and _is_other(record, made, link, None):
                await shelf.remove("summary", session)
                self._touched.add(link.place)
            await self.bring(session, link)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """See that no byte is left of what was taken off; return in plain sentences what remains."""
        places, remains = set(self._touched), list[str]()
        self._touched.clear()
        if whole:  # of all, also of what another process has taken off
            places.update(shelf.place for shelf in await shelves(self._home))
        for place in places:
            scope: Any = self.shelf(place).scope
            remains += await scope.derivations.scrub(whole=whole)
        return tuple(dict.fromkeys(remains))


def _place(head: Head | None) -> tuple[int, int] | None:
    return None if head is None else (head.epoch, head.created)


def _is_other(record: Record, made: Sequence[Summary], link: Link, embedder: Embedder | None) -> bool:
    """Whether a shelf has something else than these summaries, or without the vectors that it could have."""
    known = summary_version(made, link.splitter, record.embedder)
    return record.version != known or (embedder is not None and embedder.name != record.embedder)
