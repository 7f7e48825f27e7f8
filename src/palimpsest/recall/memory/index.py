"""An index in this process's memory that does without SQLite's FTS5, for a Python whose SQLite was built without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.recall.index import COMMON, LAST_PART, LAST_SEQ, RANGES, Cursor, Document, Filter, Size, Update, is_same
from palimpsest.recall.postings import SEQ_BITS, Postings, inverse_frequency, key_of, place_of
from palimpsest.recall.ranking import Facts
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.runner import Runner

if TYPE_CHECKING:
    from palimpsest.recall.memory.vectors import PlainVectors
    from palimpsest.recall.vectors import VectorRows

T = TypeVar("T")

BYTES = 2
"""Roughly the bytes that an indexed character takes in memory: a term takes 12."""


class _Indexed(NamedTuple):
    """An entry that is in the index: its facts, and the number of its parts."""

    facts: Facts
    parts: int


class PlainIndex:
    """The index of one tenant, in memory. Its verbs are those of `palimpsest.recall.index.Index`."""

    name, where = "", "in memory, without FTS5"

    def __init__(self, runner: Runner) -> None:
        self._runner, self._lock = runner, new_lock()
        self._mark = self._generation = self._last_number = 0
        self._vectors: PlainVectors | None = None
        self._clear()

    def _clear(self) -> None:
        self._postings, self._cursors = Postings(), dict[str, Cursor]()
        self._names, self._entries = dict[int, str](), dict[int, dict[int, _Indexed]]()
        self._blocked = dict[str, dict[int, int]]()

    async def _do(self, body: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return body()

        return await self._runner.read(locked)

    # --- cursors

    async def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        if sessions is None:
            return await self._do(self._cursors.copy)
        return await self._do(
            lambda: {session: self._cursors[session] for session in sessions if session in self._cursors}
        )

    async def parts(self, number: int) -> list[int]:
        ends = key_of(number, 0), key_of(number + 1, 0)
        return await self._do(lambda: sorted(self._postings.keys(*ends)))

    async def vectors(self) -> VectorRows | None:
        from palimpsest.recall.memory.vectors import PlainVectors  # an extra

        self._vectors = self._vectors or PlainVectors()
        return self._vectors

    async def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        return await self._do(lambda: {number: self._names[number] for number in numbers if number in self._names})

    async def mark(self) -> int:
        return self._mark

    async def set_mark(self, mark: int, generation: int) -> None:
        def body() -> None:
            if self._generation == generation:
                self._mark = max(self._mark, mark)

        await self._do(body)

    async def generation(self) -> int:
        return self._generation

    # --- writing

    async def update(self, session: str, update: Update) -> bool:
        def body() -> bool:
            current, blocked = self._cursors.get(session), self._blocked.get(session, {})
            if not is_same(current, update.expect) or self._generation != update.generation or 0 in blocked:
                return False
            if current is None:
                self._last_number += 1
            number = current.number if current is not None else self._last_number
            self._names[number] = session
            self._drop(number, spans.union(spans.of(document.seq for document in update.drop), update.lost))
            self._put(number, [document for document in update.add if document.seq not in blocked])
            self._cursors[session] = msgspec.structs.replace(update.cursor, number=number)
            return True

        return await self._do(body)

    async def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        def body() -> int:
            if seqs:
                self._blocked.setdefault(session, {}).update(dict.fromkeys(seqs, now))
            self._generation += 1
            cursor = self._cursors.get(session)
            gone = spans.of({*seqs, *(document.seq for document in drop)})
            return self._drop(cursor.number, gone) if cursor is not None else 0

        return await self._do(body)

    async def blocked(self, before: int) -> dict[str, list[int]]:
        def body() -> dict[str, list[int]]:
            old = {
                session: [seq for seq, since in sorted(places.items()) if since < before]
                for session, places in self._blocked.items()
            }
            return {session: seqs for session, seqs in old.items() if seqs}

        return await self._do(body)

    async def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document] = ()) -> bool:
        def body() -> bool:
            if self._generation != generation:
                return False
            blocked = self._blocked.get(session, {})
            for seq in seqs:
                blocked.pop(seq, None)
            cursor = self._cursors.get(session)
            if cursor is not None:
                self._drop(cursor.number, spans.of({*seqs}.difference([0])))
                self._put(cursor.number, [document for document in add if document.seq < cursor.next_seq])
            self._generation += 1
            return True

        return await self._do(body)

    async def end(self, session: str) -> int:
        def body() -> int:
            cursor, gone = self._cursors.pop(session, None), 0
            if cursor is not None:
                gone = self._drop(cursor.number, [(0, LAST_SEQ)])
                del self._names[cursor.number]
            self._generation += 1
            return gone

        return await self._do(body)

    def _put(self, number: int, documents: Sequence[Document]) -> None:
        indexed = self._entries.get(number, ())
        self._drop(number, spans.of(document.seq for document in documents if document.seq in indexed))
        for document in documents:
            self._entries.setdefault(number, {})[document.seq] = _Indexed(document.facts, len(document.parts))
            for part, terms in enumerate(document.parts):
                self._postings.put(key_of(number, document.seq, part), terms)

    def _drop(self, number: int, dropped_spans: Iterable[Span]) -> int:
        """Remove what the index has of these entries; return how many parts that was."""
        indexed, parts, dropped_spans = self._entries.get(number, {}), 0, list(dropped_spans)
        if self._vectors is not None and dropped_spans:
            self._vectors.let_go(
                [(key_of(number, low), key_of(number, high, LAST_PART) + 1) for low, high in dropped_spans]
            )
        for low, high in dropped_spans:
            seqs = range(low, high + 1) if high - low < len(indexed) else [seq for seq in indexed if low <= seq <= high]
            for seq in seqs:
                entry = indexed.pop(seq, None)
                for part in range(entry.parts if entry is not None else 0):
                    parts += self._postings.drop(key_of(number, seq, part))
        if not indexed:
            self._entries.pop(number, None)
        return parts

    # --- searching

    async def matches(
        self, terms: Sequence[str], numbers: Collection[int] | None = None, most: int = COMMON
    ) -> list[Mapping[int, float]]:
        def body() -> list[Mapping[int, float]]:
            wanted = [*terms, *{word for term in terms for word in term.split()}]
            matches_by_term = dict(zip(wanted, self._postings.matches(wanted), strict=True))
            return [
                self._in_scope(matches_by_term[term], self._weight(term, matches_by_term), numbers, most)
                for term in terms
            ]

        return await self._do(body)

    def _weight(self, term: str, matches: Mapping[str, Mapping[int, float]]) -> float | None:
        """Return what a phrase or a common word adds to each part that holds it; None for a rare word (see
        `Postings`)."""
        if " " not in term and len(matches[term]) <= COMMON:
            return None
        parts = len(self._postings)
        return max((inverse_frequency(len(matches[word]), parts) for word in term.split()), default=0.0)

    def _in_scope(
        self, found: Mapping[int, float], weight: float | None, numbers: Collection[int] | None, most: int
    ) -> Mapping[int, float]:
        """Return the matches in these sessions, the newest `most` of them; with `weight` that is the score of each."""
        if numbers is None or len(numbers) > RANGES:
            wanted = None if numbers is None else set(numbers)
            keys = nlargest(most, (key for key in found if wanted is None or _number_of(key) in wanted))
        else:
            newest = (nlargest(most, (key for key in found if _number_of(key) == number)) for number in numbers)
            keys = [key for keys_of_session in newest for key in keys_of_session]
        return {key: found[key] if weight is None else weight for key in keys}

    async def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        def body() -> dict[int, Facts]:
            split = ((place, place >> SEQ_BITS, place & LAST_SEQ) for place in places)
            return {place: self._entries[n][seq].facts for place, n, seq in split if seq in self._entries.get(n, ())}

        return await self._do(body)

    async def places(self, only: Filter, numbers: Collection[int] | None = None) -> list[int]:
        def body() -> list[int]:
            searched = self._entries if numbers is None else {*numbers} & self._entries.keys()
            indexed = ((key_of(n, seq), entry.facts) for n in searched for seq, entry in self._entries[n].items())
            return [place_of(key) for key, facts in indexed if only.takes(facts)]

        return await self._do(body)

    # --- the index as a whole

    async def size(self) -> Size:
        def body() -> Size:
            indexed = [entry for of_session in self._entries.values() for entry in of_session.values()]
            taken, parts = BYTES * sum(entry.facts.chars for entry in indexed), len(self._postings)
            return Size(sessions=len(self._cursors), entries=len(indexed), parts=parts, bytes=taken, stale=0)

        return await self._do(body)

    async def empty(self) -> None:
        def body() -> None:
            blocked = self._blocked
            self._clear()
            self._blocked, self._mark = blocked, 0
            if self._vectors is not None:
                self._vectors.let_go([(0, 1 << 63)])
            self._generation += 1

        await self._do(body)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        return ()


def _number_of(key: int) -> int:
    return place_of(key) >> SEQ_BITS
