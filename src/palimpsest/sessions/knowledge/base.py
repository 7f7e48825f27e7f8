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
    chunk_entry,
    places_of,
    version_of,
)
from palimpsest.sessions.shelves.vectors import embedded

if TYPE_CHECKING:
    from palimpsest.sessions.scope import MemoryScope
    from palimpsest.sessions.shelves.keeping import Keeper
    from palimpsest.tokens.counter import TokenCounter


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What an `AsyncKnowledge` is made from.

    `whose` returns the user that it belongs to (None: nobody), `search` searches shelves. If it was made by a session,
    `session` is the id of that, and `keep` brings the session's own summaries up to date before a search.
    """

    base: KnowledgeBase
    splitter: TextSplitter
    counter: TokenCounter
    whose: Callable[[], Awaitable[str | None]]
    search: Callable[[KnowledgeBase, str, Sequence[Place]], Awaitable[list[KnowledgeHit]]]
    session: str = ""
    keep: Callable[[], Awaitable[None]] | None = None


@guarded
class AsyncKnowledge:
    """A knowledge base, for programs with an event loop: `memory.knowledge("handbook")`, or a session's.

    It holds documents that programs added and summaries of sessions, split into chunks that a search finds. Documents
    of a user are found for that user alone; documents without a user are found for everybody. Made by
    `memory.knowledge` and `session.knowledge`.
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
        """Add a document, or replace the one with this id by a new version. Adding the same again changes nothing.

        The text is redacted first, as the memory's policy demands. Raises ConfigError for an argument that is not
        accepted, or a document that the policy withholds, and EmbedderFailed if there is an embedder and it fails: then
        the previous version stays.

        Args:
            document_id: an id in this knowledge base, of its user or of everybody.
            text: the document's text.
            title: the title that hits show; None: the id.
            metadata: more about the document, as JSON values; hits have it.
        """
        record, entries = await self._prepared(document_id, text, title, metadata)
        place = await self._place(document_id)
        shelf = (await self._keeper(writes=True)).shelf(place)
        previous = await shelf.record("document", document_id)
        if previous is not None and previous.version == record.version:
            record = msgspec.structs.replace(record, at=previous.at)
        await shelf.put(record, entries, replaces=previous is not None)
        return KnowledgeDocument.of(place, record)

    async def remove(self, document_id: str) -> bool:
        """Destroy a document that was added, with its chunks; return whether there was one.

        Args:
            document_id: the id that it was added with.
        """
        place = await self._place(document_id)
        shelf = (await self._keeper(writes=True)).shelf(place)
        existed = await shelf.record("document", document_id) is not None
        await shelf.remove("document", document_id)
        await shelf.scope.scrub(self._scope.store)
        return existed

    async def documents(self) -> list[KnowledgeDocument]:
        """Return the documents that a search can find, those made of summaries included, in the order in which they
        were first added."""
        keeper, documents = await self._keeper(), list[KnowledgeDocument]()
        for place in await self._places():
            outdated = await keeper.outdated(place, await keeper.shelf(place).records())
            if outdated and self._scope.store.writable:  # `outdated` has brought them up to date
                outdated = set()
            for record in await keeper.shelf(place).records():
                if record.kind == "document" or record.id not in outdated:
                    documents.append(KnowledgeDocument.of(place, record))
        return documents

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
        """Return the chunks that answer a query, best first; an empty list if none does.

        Arguments that are not given default to the settings of the knowledge base. Raises ConfigError for an argument
        that is not accepted. If the embedder fails, only words are compared and a warning is given; with "similarity",
        which compares meaning alone, EmbedderFailed is raised.

        Args:
            query: the question; of a longer text 5,000 characters at each end count.
            top_k: the most chunks; 4 by default.
            search_type: "keyword", "similarity", "hybrid" (both) or "mmr" (with variety); None: "hybrid" with an
                embedder, else "keyword".
            score_threshold: the least score, from 0 to 1; None: any.
            fetch_k: how many chunks are compared; None: 20, or four times `top_k` if that is more.
            lambda_mult: for "mmr", from 0 (only variety counts) to 1 (only the question counts); 0.5 by default.
        """
        if not isinstance(query, str) or not query.strip() or unfit(query) is not None:
            raise ConfigError("query", type(query).__name__, "text that is not blank, without lone surrogates")
        given = {
            "top_k": top_k,
            "search_type": search_type,
            "score_threshold": score_threshold,
            "fetch_k": fetch_k,
            "lambda_mult": lambda_mult,
        }
        base = msgspec.structs.replace(
            self._asking.base, **{name: value for name, value in given.items() if value is not None}
        )
        if self._asking.keep is not None:
            await self._asking.keep()
        return await self._asking.search(base, query, await self._places())

    async def refresh(self) -> int:
        """Bring the summaries here up to date with their sessions; return how many sessions had something new.

        Using a session, and a search that meets an outdated summary, do that by themselves. Call this after a process
        ended, or a store or an embedder failed, between a summary and the writing of its chunks.
        """
        keeper, places, done = await self._keeper(writes=True), await self._places(), 0
        for session in await keeper.linked():
            for link in await keeper.links(session):
                if link.place in places:
                    done += await keeper.bring_up_to_date(session, link, self._asking.base.embedder)
        return done

    async def _prepared(
        self, id: str, text: str, title: str | None, metadata: Mapping[str, Any] | None
    ) -> tuple[Record, list[Any]]:
        """Check and redact a document. Return its record and the entries of its chunks."""
        check_id(id, "document_id")
        self._gate.refuse([id], "document_id", "; give documents ids without private text")
        if not isinstance(text, str) or not text.strip() or unfit(text) is not None:
            raise ConfigError("text", type(text).__name__, "text that is not blank, without lone surrogates")
        checked_about({"title": title})
        if metadata is not None and not isinstance(metadata, Mapping):
            raise ConfigError("metadata", type(metadata).__name__, "a mapping of JSON values, or None")
        values = dict(metadata or {})
        try:
            check_json(values, "metadata")
            check_keys(values, "metadata")
            values = msgspec.json.decode(msgspec.json.encode(values))  # a deep copy that the caller cannot change
        except (InvalidEntry, UnicodeEncodeError) as fault:
            reason = fault if isinstance(fault, InvalidEntry) else "a text in it has a lone surrogate"
            raise ConfigError("metadata", "what is not JSON", f"a mapping of JSON values, or None ({reason})") from None
        if self._gate.withholds_entry(chunk_entry(metadata=values)):
            raise ConfigError("a document", "this one", "one of no type that the policy withholds")
        asking, gate, apart = self._asking, self._gate, self._scope.store.apart
        embedder = (await self._keeper()).embedder(asking.base.embedder)
        name = embedder.name if embedder is not None else ""

        def redact_and_split() -> tuple[str | None, dict[str, Any], list[Chunk], str]:
            clean_text, clean_title, clean_values = gate.text(text), title and gate.text(title), gate.value(values)
            chunks = [chunk for chunk in split(clean_text, asking.splitter, asking.counter.count) if chunk.text.strip()]
            splitter = msgspec.to_builtins(asking.splitter)
            version = version_of([clean_text, clean_title, clean_values, splitter, asking.counter.name, name])
            return clean_title, clean_values, chunks, version

        title, values, chunks, version = await apart(redact_and_split)
        vectors = await embedded(embedder, [chunk.text for chunk in chunks]) if embedder is not None else None
        record = Record(
            id=id,
            kind="document",
            version=version,
            chunks=len(chunks),
            at=self._scope.clock(),
            title=title,
            metadata=values,
            embedder=name,
        )
        entries = partial(chunk_entries, record, chunks, vectors, start_index=asking.splitter.add_start_index)
        return record, await apart(entries)

    async def _keeper(self, *, writes: bool = False) -> Keeper:
        if writes and not self._scope.store.writable:
            allowed = "False: a memory opened with readonly=True cannot change knowledge bases"
            raise ConfigError("readonly", True, allowed)
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
