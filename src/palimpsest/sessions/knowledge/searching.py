"""Searching shelves by words, by meaning or by both, and with variety.

The score of a chunk by words is the share of the question's words that the best chunk holds, times the chunk's score
relative to that of the best. By meaning it is the cosine of the vectors, by both the mean of the two. Only chunks of
the version that a document's record names are found, and those of a summary only if its session still has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

import msgspec

from palimpsest.compaction.knowledge import KnowledgeBase
from palimpsest.errors import EmbedderFailed
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.recall.analysis import terms as terms_of
from palimpsest.recall.diversity import diverse
from palimpsest.recall.questions import question
from palimpsest.runtime.logs import warn
from palimpsest.sessions.recalling.asked import Asked, ends
from palimpsest.sessions.recalling.finding import WIDER, WIDEST, Finder
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.shelves.keeping import Keeper
from palimpsest.sessions.shelves.records import KnowledgeHit, Place, Record, hit_of
from palimpsest.sessions.shelves.shelf import Shelf
from palimpsest.sessions.shelves.vectors import embedded_query, likeness, vector_of

AGAIN = 3
"""How often a search is made if it finds summaries that are not up to date with their sessions."""

FETCH, FETCH_FOR_EACH = 20, 4
"""The default `fetch_k`: at least so many chunks, and so many for each one of `top_k`."""

WORDS = 0.5
"""The weight of words where meaning counts, too."""


class Candidate(msgspec.Struct):
    """A chunk that may answer, with its shelf and document, and its scores by words and by meaning."""

    place: Place
    record: Record
    entry: Entry
    words: float = 0.0
    meaning: float = 0.0


class Searcher:
    """Searches shelves of a tenant, with the settings of a knowledge base."""

    def __init__(self, scope: MemoryScope, keeper: Keeper, base: KnowledgeBase, without: str | None = None) -> None:
        self._scope, self._keeper, self._base, self._without = scope, keeper, base, without
        search_type = base.search_type or ("hybrid" if base.embedder is not None else "keyword")
        self._by_words = search_type != "similarity"
        self._by_meaning = search_type != "keyword" and base.embedder is not None
        self._varies = search_type == "mmr"
        self._embedder: str | None = None

    async def hits(self, query: str, places: Sequence[Place]) -> list[KnowledgeHit]:
        """Return the chunks that answer, best first."""
        base, query = self._base, ends(query)
        vector = await self._vector(query)
        fetch = base.fetch_k or max(FETCH, FETCH_FOR_EACH * base.top_k)
        candidates = list[Candidate]()
        for place in places:
            candidates += await self._candidates(query, vector, place, fetch)
        return await self._scope.store.apart(self._best, candidates, vector, fetch)

    def _best(self, candidates: Sequence[Candidate], vector: list[int] | None, fetch: int) -> list[KnowledgeHit]:
        base, least = self._base, self._base.score_threshold
        if vector is not None:
            for candidate in candidates:
                if self._is_ours(candidate.record):
                    candidate.meaning = likeness(vector, vector_of(candidate.entry.metadata) or ())
        scored = sorted(((self._score(each, vector), each) for each in candidates), key=lambda pair: -pair[0])
        scored = [(score, each) for score, each in scored if score > 0 and (least is None or score >= least)]
        if self._varies:
            scored = _varied(scored[:fetch], base)
        return [hit_of(each.place, each.record, each.entry, score) for score, each in scored[: base.top_k]]

    async def _vector(self, query: str) -> list[int] | None:
        """Return the question's vector; None if only words are to be compared, or the embedder fails and words can be.

        Raises EmbedderFailed if only meaning is to be compared.
        """
        if not self._by_meaning:
            return None
        try:
            embedder = self._keeper.embedder(self._base.embedder)
            self._embedder = embedder.name if embedder is not None else None
            return await embedded_query(embedder, self._scope.gate.redact(query)) if embedder is not None else None
        except EmbedderFailed as fault:
            if not self._by_words:
                raise
            warn("a search of a knowledge base compares only words: %s", self._scope.gate.redact(str(fault)))
            return None

    def _is_ours(self, record: Record) -> bool:
        """Return whether a document's vectors are of the embedder that made the question's: others do not compare."""
        return record.embedder == self._embedder

    def _score(self, candidate: Candidate, vector: list[int] | None) -> float:
        words, meaning = candidate.words, candidate.meaning
        if vector is None:
            return words
        return WORDS * words + (1 - WORDS) * meaning if self._by_words else meaning

    async def _candidates(self, query: str, vector: list[int] | None, place: Place, fetch: int) -> list[Candidate]:
        """Return the chunks of a shelf that may answer. Outdated summaries are brought up to date, or left out."""
        shelf = self._keeper.shelf(place)
        for _ in range(AGAIN):
            by_id = dict[str, Candidate]()
            if self._by_words:
                by_id = {candidate.entry.id: candidate for candidate in await self._of_words(query, shelf, fetch)}
            if vector is not None:
                for candidate in await self._of_meaning(vector, shelf, fetch):
                    by_id.setdefault(candidate.entry.id, candidate)
            records = {candidate.record.key: candidate.record for candidate in by_id.values()}
            outdated = await self._keeper.outdated(place, list(records.values()))
            if not (outdated and self._scope.store.writable):
                break
        return [each for each in by_id.values() if each.record.kind == "document" or each.record.id not in outdated]

    def _is_searched(self, record: Record) -> bool:
        """Return whether the chunks of a document may answer: those of the session that asks may not."""
        return record.kind == "document" or record.id != self._without

    async def _of_words(self, query: str, shelf: Shelf, fetch: int) -> list[Candidate]:
        scope: Any = shelf.scope
        # Without `once`: a former version of a document says the same as the current one, and must not hide it.
        finder = Finder(scope, scope.store, await scope.recall(), once=False)
        limit = fetch
        while True:
            found = await finder.find(Asked(query=query, limit=limit), None)
            records = await self._current(shelf, [hit.session for hit in found])
            hits = [hit for hit in found if hit.session in records][:fetch]
            if len(hits) == fetch or len(found) < limit or limit > WIDEST:
                break
            limit *= WIDER  # too many of the best are of former versions, or of the session that asks
        if not hits:
            return []
        wanted = {piece for term in question(query).terms for piece in term.split()}
        best = len(wanted.intersection(terms_of(hits[0].entry.text))) / max(len(wanted), 1)
        top = hits[0].score or 1.0
        return [Candidate(shelf.place, records[hit.session], hit.entry, words=best * hit.score / top) for hit in hits]

    async def _of_meaning(self, vector: list[int], shelf: Shelf, fetch: int) -> list[Candidate]:
        """Return the `fetch` chunks whose vectors are nearest. The vectors of all chunks are compared."""
        scope: Any = shelf.scope
        nearest = list[Candidate]()

        def merged(record: Record, entries: Sequence[Entry]) -> list[Candidate]:
            shown = [
                chunk
                for chunk in scope.gate.shown(entries)
                if not chunk.erased and vector_of(chunk.metadata) is not None
            ]
            both = [*nearest, *(Candidate(shelf.place, record, chunk) for chunk in shown)]
            return nlargest(fetch, both, key=lambda each: likeness(vector, vector_of(each.entry.metadata) or ()))

        for record in await shelf.records():
            if not (self._is_ours(record) and self._is_searched(record)):
                continue
            entries = await scope.store.read(SessionKey(scope.tenant, record.session))
            nearest = await scope.store.apart(merged, record, entries)
        return nearest

    async def _current(self, shelf: Shelf, sessions: Sequence[str]) -> dict[str, Record]:
        """Return the records of the documents whose chunks these sessions have, and which are searched, by the current
        version's session."""
        keys = list(dict.fromkeys(session.partition(".")[0] for session in sessions))
        records = await shelf.records_of(keys)
        return {record.session: record for record in records if record is not None and self._is_searched(record)}


def _varied(scored: Sequence[tuple[float, Candidate]], base: KnowledgeBase) -> list[tuple[float, Candidate]]:
    """Choose chunks that answer and differ from each other, by their vectors, or else by the words that they share."""
    vectors = [vector_of(each.entry.metadata) for _, each in scored]
    words = [frozenset(terms_of(each.entry.text)) for _, each in scored]

    def alike(i: int, j: int) -> float:
        first, second = vectors[i], vectors[j]
        if first is not None and second is not None:
            return likeness(first, second)
        return len(words[i] & words[j]) / max(len(words[i] | words[j]), 1)

    taken = diverse([score for score, _ in scored], alike, base.top_k, base.lambda_mult)
    return [scored[place] for place in taken]
