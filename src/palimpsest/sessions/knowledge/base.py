"""`AsyncKnowledge`: one knowledge base. `palimpsest.sessions.knowledge_sync.Knowledge` has the same verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.compaction.knowledge import KnowledgeBase, SearchType, TextSplitter
from palimpsest.errors import ConfigError, InvalidEntry
from palimpsest.log.checks import check_json, check_keys, checked_about, unfit
from palimpsest.log.ids import check_id
from palimpsest.privacy.gate import Gate, guarded
from palimpsest.recall.splitter import Chunk, split
from palimpsest.sessions.shelves.records import (
    KnowledgeDocument,
    KnowledgeHit,
    Place,
    Record,
    chunk_entries,
    places_of,
    version_of,
)
from palimpsest.sessions.shelves.vectors import embedded

if TYPE_CHECKING:
    from palimpsest.sessions.scope import MemoryScope
    from palimpsest.sessions.shelves.keeping import Keeper
    from palimpsest.tokens.counter import TokenCounter


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """Of whose knowledge base what is asked: `whose` gives the user, `search` what is found, `session` is the one that
    has asked for it, if any did."""

    base: KnowledgeBase
    splitter: TextSplitter
    counter: TokenCounter
    whose: Callable[[], Awaitable[str | None]]
    search: Callable[[KnowledgeBase, str, Sequence[Place]], Awaitable[list[KnowledgeHit]]]
    session: str = ""
    keep: Callable[[], Awaitable[None]] | None = None
    """What brings the session's own summaries up to date first."""


@guarded
class AsyncKnowledge:
    """A knowledge base, for programs with an event loop: `memory.knowledge("handbook")`, or a session's.

    It has documents that somebody added, and summaries of sessions, as chunks that a search finds. What is of a user is
    found for that user alone; documents without a user are found for all. Made by `memory.knowledge` and
    `session.knowledge`.
    """

    def __init__(self, scope: MemoryScope, asking: Asking) -> None:
        self._scope, self._asking = scope, asking

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._asking.base.collection_id!r}>"

    @property
    def _gate(self) -> Gate:
        return self._scope.gate

    async def add(
        self, document_id: str, text: str, *, title: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> KnowledgeDocument:
        """Add a document, or put another version in the place of the one of this id. The same again adds nothing.

        What the memory's policy does not let be kept is taken out first. Raises ConfigError for what is not accepted,
        EmbedderFailed where there is one that fails: then the version before holds.

        Args:
            document_id: an id in this knowledge base, of its user or of everybody.
            text: what it says.
            title: what it is called where it is found; None: its id.
            metadata: what else is said of it, as JSON values: hits have it.
        """
        record, entries = await self._made(document_id, text, title, metadata)
        place = await self._place(document_id)
        shelf = (await self._keeper(writes=True)).shelf(place)
        there = await shelf.record("document", document_id)
        if there is not None and there.version == record.version:
            record = msgspec.structs.replace(record, at=there.at)
        await shelf.put(record, entries)
        return KnowledgeDocument.of(place, record)

    async def remove(self, document_id: str) -> bool:
        """Destroy a document that was added, with all that was made of it; return whether there was one.

        Args:
            document_id: the id that it was added with.
        """
        place = await self._place(document_id)
        shelf = (await self._keeper(writes=True)).shelf(place)
        there = await shelf.record("document", document_id) is not None
        await shelf.remove("document", document_id)
        await shelf.scope.scrub(self._scope.store)
        return there

    async def documents(self) -> list[KnowledgeDocument]:
        """Return what can be found here: documents that were added, and those of summaries, in the order in which they
        came first."""
        keeper, found = await self._keeper(), list[KnowledgeDocument]()
        for place in await self._places():
            untrue = await keeper.untrue(place, await keeper.shelf(place).records())
            if untrue and self._scope.store.writable:  # which are brought up to date by now
                untrue = set()
            records = [
                one for one in await keeper.shelf(place).records() if one.kind == "document" or one.id not in untrue
            ]
            found += [KnowledgeDocument.of(place, one) for one in records]
        return found

    async def search(
        self,
        query: str,
        *,
        top_k: int | None = None,
        search_type: SearchType | None = None,
        score_threshold: float | None = None,
        fetch_k: int | None = None,
        lambda_mult: float | None = None,
    ) -> list[KnowledgeHit]:
        """Return the chunks that answer a query, best first; without one that does, none.

        What is not given is as the knowledge base says. Raises ConfigError for what is not accepted, and EmbedderFailed
        where meaning alone is compared: else words are, then, and a warning says so.

        Args:
            query: what is looked for; of a longer text 5,000 characters at each end.
            top_k: the most chunks; 4 by default.
            search_type: "keyword", "similarity", "hybrid" (both) or "mmr" (with variety); None: "hybrid" with an
                embedder, else "keyword".
            score_threshold: the least score, from 0 to 1; None: any.
            fetch_k: how many chunks are looked at; None: 20, or four times `top_k` where that is more.
            lambda_mult: what counts for "mmr", from 0, variety alone, to 1, the question alone; 0.5 by default.
        """
        if not isinstance(query, str) or not query.strip() or unfit(query) is not None:
            raise ConfigError("query", type(query).__name__, "text that is not blank, without lone surrogates")
        asked = {
            "top_k": top_k,
            "search_type": search_type,
            "score_threshold": score_threshold,
            "fetch_k": fetch_k,
            "lambda_mult": lambda_mult,
        }
        base = msgspec.structs.replace(
            self._asking.base, **{name: value for name, value in asked.items() if value is not None}
        )
        if self._asking.keep is not None:
            await self._asking.keep()
        return await self._asking.search(base, query, await self._places())

    async def refresh(self) -> int:
        """Bring the summaries that are here up to date with their sessions; return of how many something was new.

        That is done by itself where a session is used, and where one is found that is not: it is needed where a process
        ended, or a store or an embedder failed, between a summary and its chunks.
        """
        keeper, places, done = await self._keeper(writes=True), await self._places(), 0
        for session in await keeper.linked():
            for link in await keeper.links(session):
                if link.place in places:
                    done += await keeper.bring(session, link, self._asking.base.embedder)
        return done

    async def _made(
        self, id: str, text: str, title: str | None, metadata: Mapping[str, Any] | None
    ) -> tuple[Record, list[Any]]:
        """A document as it may be kept, and the entries of its chunks."""
        check_id(id, "document_id")
        self._gate.refuse([id], "document_id", "; give documents ids that say nothing private")
        if not isinstance(text, str) or not text.strip() or unfit(text) is not None:
            raise ConfigError("text", type(text).__name__, "text that is not blank, without lone surrogates")
        checked_about({"title": title})
        if metadata is not None and not isinstance(metadata, Mapping):
            raise ConfigError("metadata", type(metadata).__name__, "a mapping of JSON values, or None")
        said = dict(metadata or {})
        try:
            check_json(said, "metadata")
            check_keys(said, "metadata")
            said = msgspec.json.decode(msgspec.json.encode(said))  # as nobody can change it any more
        except (InvalidEntry, UnicodeEncodeError) as fault:
            told = fault if isinstance(fault, InvalidEntry) else "a text in it has a lone surrogate"
            raise ConfigError("metadata", "what is no JSON", f"a mapping of JSON values, or None ({told})") from None
        asking, gate, apart = self._asking, self._gate, self._scope.store.apart
        embedder = (await self._keeper()).embedder(asking.base.embedder)
        name = embedder.name if embedder is not None else ""

        def made() -> tuple[str | None, dict[str, Any], list[Chunk], str]:
            kept, named, beside = gate.text(text), title and gate.text(title), gate.value(said)
            chunks = [one for one in split(kept, asking.splitter, asking.counter.count) if one.text.strip()]
            splitter = msgspec.to_builtins(asking.splitter)
            version = version_of([kept, named, beside, splitter, asking.counter.name, name])
            return named, beside, chunks, version

        title, said, chunks, version = await apart(made)
        vectors = await embedded(embedder, [one.text for one in chunks]) if embedder is not None else None
        record = Record(
            id=id,
            kind="document",
            version=version,
            chunks=len(chunks),
            at=self._scope.clock(),
            title=title,
            metadata=said,
            embedder=name,
        )
        entries = partial(chunk_entries, record, chunks, vectors, start_index=asking.splitter.add_start_index)
        return record, await apart(entries)

    async def _keeper(self, *, writes: bool = False) -> Keeper:
        if writes and not self._scope.store.writable:
            raise ConfigError("readonly", True, "False, for a memory whose knowledge bases are changed")
        return await self._scope.keeper(joins=writes)

    async def _collection(self) -> tuple[str, str | None]:
        user = await self._asking.whose()
        collection = self._asking.base.collection(self._asking.session, user)
        return collection, user

    async def _place(self, id: object) -> Place:
        check_id(id, "document_id")
        collection, user = await self._collection()
        self._gate.refuse([collection], "collection")
        return Place.of(collection, user, "document")

    async def _places(self) -> list[Place]:
        return places_of(*await self._collection())
