"""Keeping the summaries on shelves up to date with their sessions.

A session's log is the outbox: the summaries on a shelf can be made again from it, and are made again whenever they may
be outdated. So nothing is lost if a process ends or a write fails, and what the log does not say any more is not found.
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
"""How many embedders are remembered."""

TRIES = 8
"""How often to put a session's summaries on a shelf again because it changed meanwhile. Then it is left for later."""

DEFAULT = "o200k_base"


class Keeper:
    """Keeps the shelves of one tenant. For erasures it is a `Derived`, `Settling` and `Summarised` object."""

    name = KNOWLEDGE

    def __init__(self, home: Home) -> None:
        self._home = home
        self._shelves = dict[Place, Shelf]()
        self._touched = set[Place]()
        self._embedders: dict[int, tuple[Any, Embedder]] = {}

    def shelf(self, place: Place) -> Shelf:
        """Return the shelf of this place."""
        return self._shelves.setdefault(place, Shelf(self._home, place))

    # --- links

    async def link(self, session: str, link: Link) -> None:
        """Note in the store that the summaries of a session go to a shelf. Call it before any is put there."""
        store, owner, value = self._home.store, tenant_of(self._home.tenant), msgspec.json.encode(link)
        item = await store.get_item(owner, LINKS + session, link.place.key)
        if item is None or item.value != value:
            await store.put_item(owner, LINKS + session, link.place.key, value)

    async def links(self, session: str) -> list[Link]:
        """Return the links to the shelves that have summaries of a session, or should have."""
        items = await self._home.store.list_items(tenant_of(self._home.tenant), LINKS + session)
        return [msgspec.json.decode(item.value, type=Link) for item in items]

    async def linked(self) -> list[str]:
        """Return the sessions that have links."""
        names = await self._home.store.namespaces(tenant_of(self._home.tenant), prefix=LINKS)
        return [name.removeprefix(LINKS) for name in names]

    async def drop_former_owners(self, session: str, link: Link) -> None:
        """Remove the summaries of a session that changed hands from other owners' shelves of the same collection."""
        for other in await self.links(session):
            if other.place.collection == link.place.collection and other.place != link.place:
                await self.shelf(other.place).remove("summary", session)
                owner = tenant_of(self._home.tenant)
                await self._home.store.delete_item(owner, LINKS + session, other.place.key)

    async def handed_over(self, session: str) -> None:
        """Remove the summaries of a session from all shelves, since it has another user now.

        The next use of the session puts them on the new user's shelf.
        """
        for link in await self.links(session):
            await self.shelf(link.place).remove("summary", session)
            self._touched.add(link.place)
        await self._home.store.clear_items(tenant_of(self._home.tenant), LINKS + session)

    # --- bringing up to date

    def embedder(self, given: Any) -> Embedder | None:
        """Return the `Embedder` of what a user has given, or None for None.

        The same object gets the same embedder, which may be paused after failures. Raises ConfigError, or MissingExtra
        if its package is not installed.
        """
        if given is None:
            return None
        cached = self._embedders.get(id(given))
        if cached is None:
            from palimpsest.recall.embedders import embedder  # loads numpy

            if len(self._embedders) >= EMBEDDERS:
                del self._embedders[next(iter(self._embedders))]
            cached = self._embedders[id(given)] = given, embedder(given, self._home.runner)
        return cached[1]

    async def bring_up_to_date(
        self, session: str, link: Link, given: Any = None, count: Callable[[str], int] | None = None
    ) -> bool:
        """Make a shelf hold exactly the summaries that a session has now; return whether anything changed.

        With an embedder (`given`) their chunks get its vectors. Without one, chunks that need no change keep theirs.
        """
        embedder = self.embedder(given)
        store, key, shelf, changed = (
            self._home.store,
            SessionKey(self._home.tenant, session),
            self.shelf(link.place),
            False,
        )
        for _ in range(TRIES):
            head = await store.head(key)
            record = await shelf.record("summary", session)
            summaries = await self._summaries(key)
            if head is None or not summaries:
                changed = await shelf.remove("summary", session) > 0 or changed
            elif record is None or _differs(record, summaries, link, embedder):
                await self._put(shelf, session, head, summaries, link, embedder, count)
                changed = True
            elif (record.epoch, record.created) != (head.epoch, head.created):
                record = msgspec.structs.replace(record, epoch=head.epoch, created=head.created)
                await shelf.note(record)
            after = await store.head(key)
            if _state(after) == _state(head):
                break
        return changed

    async def outdated(self, place: Place, records: Sequence[Record]) -> set[str]:
        """Return the sessions whose summaries in these records of a shelf are not what the session has now.

        In a writable store these are brought up to date by this call. A record of an earlier epoch is not outdated if
        the session still has the same summaries.
        """
        outdated = set[str]()
        for record in records:
            key = SessionKey(self._home.tenant, record.id)
            if record.kind == "document" or (record.epoch, record.created) == _state(await self._home.store.head(key)):
                continue
            link = next((each for each in await self.links(record.id) if each.place == place), None)
            if link is None or not self._home.store.writable:
                if link is None or _differs(record, await self._summaries(key), link, None):
                    outdated.add(record.id)
            elif await self.bring_up_to_date(record.id, link):
                outdated.add(record.id)
        return outdated

    async def _summaries(self, key: SessionKey) -> list[Summary]:
        """Return the session's current summaries as the policy shows them, oldest first."""
        head = await self._home.store.head(key)
        if head is None or not head.compaction:
            return []
        state = await compaction_of(self._home.store, key, head.compaction)
        current = [(await compaction_of(self._home.store, key, revision)).summary for revision in state.current]
        living = [each for each in current if each is not None and not each.withdrawn and each.text]
        return [self._home.gate.summary(each) for each in living]

    async def _put(
        self,
        shelf: Shelf,
        session: str,
        head: Head,
        summaries: Sequence[Summary],
        link: Link,
        embedder: Embedder | None,
        count: Callable[[str], int] | None,
    ) -> None:
        """Put the summaries of a session on a shelf as one document."""
        counting = count or encoding(link.counter or DEFAULT).count

        def split_all() -> list[Chunk]:
            chunks = [chunk for each in summaries for chunk in split(each.text, link.splitter, counting)]
            return [chunk for chunk in chunks if chunk.text.strip()]

        chunks = await self._home.store.apart(split_all)
        vectors = await embedded(embedder, [chunk.text for chunk in chunks]) if embedder is not None else None
        name = embedder.name if embedder is not None else ""
        record = Record(
            id=session,
            kind="summary",
            version=summary_version(summaries, link.splitter, name),
            chunks=len(chunks),
            at=max(summary.at for summary in summaries),
            embedder=name,
            epoch=head.epoch,
            created=head.created,
            covers=spans.union(*(summary.covers for summary in summaries)),
        )
        await shelf.put(record, chunk_entries(record, chunks, vectors, start_index=link.splitter.add_start_index))

    # --- the verbs of `Derived`, `Settling` and `Summarised`

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Remove summaries that cover these entries, before the entries go. Return how many chunks were removed."""
        removed = 0
        for link in await self.links(session):
            shelf = self.shelf(link.place)
            record = await shelf.record("summary", session)
            if record is None or any(spans.within(record.covers, seq) for seq in entries):
                removed += await shelf.remove("summary", session)
                self._touched.add(link.place)
        return removed

    async def gone(self, tenant: str, session: str) -> int:
        """Remove the summaries of a session, before it goes. Return how many chunks were removed."""
        removed = 0
        for link in await self.links(session):
            removed += await self.shelf(link.place).remove("summary", session)
            self._touched.add(link.place)
        return removed

    async def settled(self, tenant: str, session: str, entries: Mapping[int, str] | None) -> None:
        """After an erasure, put back the summaries that the session still has; drop links of a session that is gone."""
        await self.summarised(session)
        if entries is None and await self._home.store.head(SessionKey(tenant, session)) is None:
            await self._home.store.clear_items(tenant_of(tenant), LINKS + session)

    async def summarised(self, session: str) -> None:
        """Replace the summaries of a session that an erasure or redaction has changed. Old words are scrubbed later."""
        for link in await self.links(session):
            shelf, summaries = self.shelf(link.place), await self._summaries(SessionKey(self._home.tenant, session))
            record = await shelf.record("summary", session)
            if record is not None and _differs(record, summaries, link, None):
                await shelf.remove("summary", session)
                self._touched.add(link.place)
            await self.bring_up_to_date(session, link)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """Overwrite every byte of what was removed from shelves; return plain sentences about what remains."""
        places, remains = set(self._touched), list[str]()
        self._touched.clear()
        if whole:  # all shelves, since another process may have removed something, too
            places.update(shelf.place for shelf in await shelves(self._home))
        for place in places:
            scope: Any = self.shelf(place).scope
            remains += await scope.derivations.scrub(whole=whole)
        return tuple(dict.fromkeys(remains))


def _state(head: Head | None) -> tuple[int, int] | None:
    return None if head is None else (head.epoch, head.created)


def _differs(record: Record, summaries: Sequence[Summary], link: Link, embedder: Embedder | None) -> bool:
    """Return whether a record is of other summaries than these, or lacks the vectors that this embedder would give."""
    version = summary_version(summaries, link.splitter, record.embedder)
    return record.version != version or (embedder is not None and embedder.name != record.embedder)
