"""From a query to entries: ask the index for hits, rank them, and read their entries from the log as it is now."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.recall.follower import is_found
from palimpsest.recall.opening import Recall
from palimpsest.recall.parts import searchable_text
from palimpsest.recall.questions import question
from palimpsest.recall.search import Hit, Nearest, search, unnamed
from palimpsest.sessions.recalling.asked import Asked
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import Store

T = TypeVar("T")

SPARE = 5
"""How many more hits than wanted are searched for and read, since some may be gone or repeat others."""

WIDER, WIDEST = 8, 10_000
"""If too many hits were gone or repeated others, search again for `WIDER` times as many, up to about `WIDEST`."""

TRIES = 4
"""How often a search is made if something is removed from the index meanwhile."""


class Found(NamedTuple):
    """An entry that answers, read from the log and redacted, with its score and the number of its best part."""

    session: str
    entry: Entry
    score: float
    part: int


class Finder:
    """Finds entries in a store. With `once`, entries that say the same count as one."""

    def __init__(self, scope: MemoryScope, store: Store, recall: Recall, *, once: bool = True) -> None:
        self._scope, self._store, self._recall, self._once = scope, store, recall, once
        self.apart = store.apart

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run reads from several sessions in one go where the store runs its reads."""
        return await self._store.together(start, reads=True)

    async def find(self, asked: Asked, sessions: Sequence[str] | None) -> list[Found]:
        """Return the entries of these sessions (None: of all) that answer, best first.

        An entry that branches share is returned only once, and so is one whose words another entry repeats.
        """
        found, known_marks, read = list[Found](), set[object](), set[tuple[int, int]]()
        most = asked.limit + SPARE
        while True:
            hits = [hit for hit in await self._hits(asked, sessions, most) if (hit.number, hit.seq) not in read]
            hit_count = len(read) + len(hits)
            names = await self._recall.index.sessions({hit.number for hit in hits})
            while len(found) < asked.limit and hits:
                batch, hits = hits[: asked.limit - len(found) + SPARE], hits[asked.limit - len(found) + SPARE :]
                read.update((hit.number, hit.seq) for hit in batch)
                for candidate in await self.together(partial(self._read, batch, names)):
                    marks = _marks(candidate.entry) if self._once else {candidate.entry.id}
                    if known_marks.isdisjoint(marks):
                        found.append(candidate)
                    known_marks.update(marks)
            if len(found) >= asked.limit or hit_count < most or most > WIDEST:
                return found[: asked.limit]
            most *= WIDER  # too many of the best hits have gone or repeat others

    async def _hits(self, asked: Asked, sessions: Sequence[str] | None, most: int) -> list[Hit]:
        """Bring the index up to date and return its hits. Search again if something was removed from it meanwhile."""
        index, hits = self._recall.index, list[Hit]()
        parsed, entry_filter = question(asked.query, self._scope.clock()), asked if asked.is_narrow else None
        for _ in range(TRIES):
            generation, numbers = await index.generation(), None
            await self._recall.follower.catch_up(sessions)
            if sessions is not None:
                numbers = sorted(cursor.number for cursor in (await index.cursors(sessions)).values())
            nearest = self._nearest(asked.query, numbers, sessions)
            hits = await search(index, parsed, numbers, entry_filter, most, self.apart, nearest)
            if len(hits) >= most or await index.generation() == generation:
                break
        return hits

    def _nearest(self, query: str, numbers: Sequence[int] | None, sessions: Sequence[str] | None) -> Nearest | None:
        """Return a function that finds what is near to the query in meaning, or None without an embedder."""
        embedding = self._recall.embedding
        if embedding is None:
            return None
        return lambda names, among: embedding.nearest(unnamed(query, names), numbers, sessions, among)

    async def _read(self, hits: Sequence[Hit], names: dict[int, str]) -> list[Found]:
        """Return the entries of those hits that may still be found, in the order of the hits."""
        by_place = dict[tuple[int, int], Entry]()
        for number, group in groupby(sorted(hits, key=lambda hit: hit.number), lambda hit: hit.number):
            if number in names:
                entries = await self.living(names[number], [hit.seq for hit in group])
                by_place |= {(number, entry.seq): entry for entry in entries}
        return [
            Found(names[hit.number], by_place[hit.number, hit.seq], hit.score, hit.part)
            for hit in hits
            if (hit.number, hit.seq) in by_place
        ]

    async def living(self, session: str, seqs: Iterable[int]) -> list[Entry]:
        """Return those of these entries that may be found, redacted as the memory's policy demands."""
        return await living(self._scope, self._store, session, seqs)


def _marks(entry: Entry) -> set[object]:
    """Return the id and the words of an entry, neither of which another found entry may share.

    Branches share entries, and people repeat themselves.
    """
    return {entry.id, (entry.kind, entry.role, entry.name, searchable_text(entry))}


async def living(
    scope: MemoryScope, store: Store, session: str, seqs: Iterable[int], ids: Sequence[str] = ()
) -> list[Entry]:
    """Return those of a session's entries that may be found, redacted as the memory's policy demands.

    A damaged session gives none.
    """
    key = SessionKey(scope.tenant, session)

    async def read() -> list[Entry]:
        head, entries = await store.fetch_with_head(key, seqs, ids)
        return await store.apart(_shown, scope, head, entries) if head is not None else []

    try:
        return await store.together(read, reads=True)
    except StoreCorrupt:  # a damaged session must not stop a search over others; `verify` reports it
        return []


def _shown(scope: MemoryScope, head: Head, entries: Sequence[Entry]) -> list[Entry]:
    now = scope.clock()
    living = [entry for entry in entries if is_found(entry, now) and not spans.within(head.rewound, entry.seq)]
    return [entry for entry in scope.gate.shown(living) if not entry.erased]
