"""Searching shelves: by words, by meaning, or by both, and with variety.

A chunk's score by words is the share of the question's words that the best one holds, times how near it comes to that
one in rank; by meaning it is the cosine of the vectors; by both the mean of the two. Whatever is found holds only where
its record says so, and that of a summary only where its session says the same now.
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
from palimpsest.sessions.recalling.finding import Finder
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.shelves.keeping import Keeper
from palimpsest.sessions.shelves.records import KnowledgeHit, Place, Record, hit_of
from palimpsest.sessions.shelves.shelf import Shelf
from palimpsest.sessions.shelves.vectors import embedded_query, likeness, vector_of

AGAIN = 3
"""How often is searched anew because a summary on a shelf was not what its session says."""

FETCH, FETCH_FOR_EACH = 20, 4
WORDS = 0.5
"""What words count for where meaning counts, too."""


class Candidate(msgspec.Struct):
    """A chunk that may answer, with what it is from, and how well it does by words, and by meaning."""

    place: Place
    record: Record
    entry: Entry
    words: float = 0.0
    meaning: float = 0.0


class Searcher:
    """Searches some shelves of a tenant, as a knowledge base says."""

    def __init__(self, scope: MemoryScope, keeper: Keeper, base: KnowledgeBase, without: str | None = None) -> None:
        self._scope, self._keeper, self._base, self._without = scope, keeper, base, without
        how = base.search_type or ("hybrid" if base.embedder is not None else "keyword")
        self._by_words = how != "similarity"
        self._by_meaning = how != "keyword" and base.embedder is not None
        self._varies = how == "mmr"
        self._embedder: str | None = None

    async def hits(self, query: str, places: Sequence[Place]) -> list[KnowledgeHit]:
        """Return the chunks that answer, best first."""
        base, query = self._base, ends(query)
        vector = await self._vector(query)
        fetch = base.fetch_k or max(FETCH, FETCH_FOR_EACH * base.top_k)
        found = list[Candidate]()
        for place in places:
            found += await self._candidates(query, vector, place, fetch)
        return await self._scope.store.apart(self._best, found, vector, fetch)

    def _best(self, found: Sequence[Candidate], vector: list[int] | None, fetch: int) -> list[KnowledgeHit]:
        base, least = self._base, self._base.score_threshold
        for one in filter(lambda one: self._is_ours(one.record), found) if vector is not None else ():
            one.meaning = likeness(vector or (), vector_of(one.entry.metadata) or ())
        scored = sorted(((self._score(one, vector), one) for one in found), key=lambda pair: -pair[0])
        scored = [(score, one) for score, one in scored if score > 0 and (least is None or score >= least)]
        if self._varies:
            scored = _varied(scored[:fetch], base)
        return [hit_of(one.place, one.record, one.entry, score) for score, one in scored[: base.top_k]]

    async def _vector(self, query: str) -> list[int] | None:
        """The question's vector. Where words are compared, too, an embedder that fails leaves these."""
        if not self._by_meaning:
            return None
        try:
            embedder = self._keeper.embedder(self._base.embedder)
            self._embedder = embedder.name if embedder is not None else None
            return await embedded_query(embedder, self._scope.gate.redact(query)) if embedder is not None else None
        except EmbedderFailed as fault:
            if not self._by_words:
                raise
            warn("only words are compared: %s", self._scope.gate.redact(str(fault)))
            return None

    def _is_ours(self, record: Record) -> bool:
        """Whether a document has vectors of the embedder that was given the question: those of others tell nothing."""
        return record.embedder == self._embedder

    def _score(self, one: Candidate, vector: list[int] | None) -> float:
        if vector is None:
            return one.words
        return WORDS * one.words + (1 - WORDS) * one.meaning if self._by_words else one.meaning

    async def _candidates(self, query: str, vector: list[int] | None, place: Place, fetch: int) -> list[Candidate]:
        shelf = self._keeper.shelf(place)
        for _ in range(AGAIN):
            by_id = dict[str, Candidate]()
            if self._by_words:
                by_id = {one.entry.id: one for one in await self._of_words(query, shelf, fetch)}
            if vector is not None:
                for one in await self._of_meaning(vector, shelf, fetch):
                    by_id.setdefault(one.entry.id, one)
            untrue = await self._keeper.untrue(
                place, list({one.record.key: one.record for one in by_id.values()}.values())
            )
            if not (untrue and self._scope.store.writable):
                break
        return [
            one
            for one in by_id.values()
            if one.record.kind == "document" or one.record.id not in {self._without, *untrue}
        ]

    async def _of_words(self, query: str, shelf: Shelf, fetch: int) -> list[Candidate]:
        scope: Any = shelf.scope
        asked = Asked(query=query, limit=fetch)
        finder = Finder(scope, scope.store, await scope.recall(), once=False)  # versions that do not hold say the same
        found = await finder.find(asked, None)
        records = await self._holding(shelf, [one.session for one in found])
        there = [one for one in found if one.session in records]
        if not there:
            return []
        wanted = {piece for term in question(query).terms for piece in term.split()}
        best = len(wanted.intersection(terms_of(there[0].entry.text))) / max(len(wanted), 1)
        return [
            Candidate(shelf.place, records[one.session], one.entry, words=best * one.score / (there[0].score or 1.0))
            for one in there
        ]

    async def _of_meaning(self, vector: list[int], shelf: Shelf, fetch: int) -> list[Candidate]:
        """The chunks whose vectors are nearest: all are compared."""
        scope: Any = shelf.scope
        found = list[Candidate]()

        def nearest(record: Record, entries: Sequence[Entry]) -> list[Candidate]:
            shown = [one for one in scope.gate.shown(entries) if not one.erased and vector_of(one.metadata) is not None]
            both = [*found, *(Candidate(shelf.place, record, one) for one in shown)]
            return nlargest(fetch, both, key=lambda one: likeness(vector, vector_of(one.entry.metadata) or ()))

        for record in filter(self._is_ours, await shelf.records()):
            entries = await scope.store.read(SessionKey(scope.tenant, record.session))
            found = await scope.store.apart(nearest, record, entries)
        return found

    async def _holding(self, shelf: Shelf, sessions: Sequence[str]) -> dict[str, Record]:
        """The records of these versions of documents, of those that hold."""
        keys = list(dict.fromkeys(session.partition(".")[0] for session in sessions))
        known = await shelf.records_of(keys)
        return {record.session: record for record in known if record is not None}


def _varied(scored: Sequence[tuple[float, Candidate]], base: KnowledgeBase) -> list[tuple[float, Candidate]]:
    """What answers and is not all alike: as vectors tell, or the words that two chunks share."""
    vectors = [vector_of(one.entry.metadata) for _, one in scored]
    words = [frozenset(terms_of(one.entry.text)) for _, one in scored]

    def alike(i: int, j: int) -> float:
        mine, other = vectors[i], vectors[j]
        if mine is not None and other is not None:
            return likeness(mine, other)
        return len(words[i] & words[j]) / max(len(words[i] | words[j]), 1)

    taken = diverse([score for score, _ in scored], alike, base.top_k, base.lambda_mult)
    return [scored[place] for place in taken]
