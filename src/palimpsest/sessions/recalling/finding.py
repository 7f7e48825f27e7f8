"""From a query to entries: what the index answers, ranked, and read from the log as it is now."""

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
from palimpsest.recall.parts import said
from palimpsest.recall.questions import question
from palimpsest.recall.search import Hit, Nearest, search, unnamed
from palimpsest.sessions.recalling.asked import Asked
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import Store

T = TypeVar("T")

SPARE = 5
"""How many more than are wanted are looked for, and read: some of them may be gone, or the same."""

WIDER, WIDEST = 8, 10_000
"""Times as many as before are looked at where most of them were gone, or the same, and beyond how many never more."""

TRIES = 4
"""How often a search is made where something was removed from the index meanwhile."""


class Found(NamedTuple):
    """An entry that answers, as it is in the log and may leave this process, with its score and its best part."""

    session: str
    entry: Entry
    score: float
    part: int


class Finder:
    """Finds entries in a store."""

    def __init__(self, scope: MemoryScope, store: Store, recall: Recall, *, once: bool = True) -> None:
        self._scope, self._store, self._recall, self._once = scope, store, recall, once
        self.apart = store.apart

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what reads from several sessions where the store reads, in one go."""
        return await self._store.together(start, reads=True)

    async def find(self, asked: Asked, sessions: Sequence[str] | None) -> list[Found]:
        """Return the entries of these sessions (None: of all) that answer, best first; each `once`, whoever has it."""
        found, known, looked = list[Found](), set[object](), set[tuple[int, int]]()
        most = asked.limit + SPARE
        while True:
            hits = [hit for hit in await self._hits(asked, sessions, most) if (hit.number, hit.seq) not in looked]
            there = len(looked) + len(hits)
            names = await self._recall.index.sessions({hit.number for hit in hits})
            while len(found) < asked.limit and hits:
                wanted, hits = hits[: asked.limit - len(found) + SPARE], hits[asked.limit - len(found) + SPARE :]
                looked.update((hit.number, hit.seq) for hit in wanted)
                for one in await self.together(partial(self._read, wanted, names)):
                    if known.isdisjoint(same := _marks(one.entry) if self._once else {one.entry.id}):
                        found.append(one)
                    known.update(same)
            if len(found) >= asked.limit or there < most or most > WIDEST:
                return found[: asked.limit]
            most *= WIDER  # most of what answers best has gone, or is the same

    async def _hits(self, asked: Asked, sessions: Sequence[str] | None, most: int) -> list[Hit]:
        """What the index answers, when it is up to date; another time, where it was emptied in between."""
        index, hits = self._recall.index, list[Hit]()
        wanted, only = question(asked.query, self._scope.clock()), asked if asked.is_narrow else None
        for _ in range(TRIES):
            generation, numbers = await index.generation(), None
            await self._recall.follower.catch_up(sessions)
            if sessions is not None:
                numbers = sorted(one.number for one in (await index.cursors(sessions)).values())
            nearest = self._nearest(asked.query, numbers, sessions)
            hits = await search(index, wanted, numbers, only, most, self.apart, nearest)
            if len(hits) >= most or await index.generation() == generation:
                break
        return hits

    def _nearest(self, query: str, numbers: Sequence[int] | None, sessions: Sequence[str] | None) -> Nearest | None:
        """What finds what is near to a query in meaning; None where nothing gives texts vectors."""
        embedding = self._recall.embedding
        if embedding is None:
            return None
        return lambda names, among: embedding.nearest(unnamed(query, names), numbers, sessions, among)

    async def _read(self, hits: Sequence[Hit], names: dict[int, str]) -> list[Found]:
        """The entries of hits that are still to be found, in the order of the hits."""
        there = dict[tuple[int, int], Entry]()
        for number, group in groupby(sorted(hits, key=lambda hit: hit.number), lambda hit: hit.number):
            if number in names:
                entries = await self.living(names[number], [hit.seq for hit in group])
                there |= {(number, entry.seq): entry for entry in entries}
        return [
            Found(names[hit.number], there[hit.number, hit.seq], hit.score, hit.part)
            for hit in hits
            if (hit.number, hit.seq) in there
        ]

    async def living(self, session: str, seqs: Iterable[int]) -> list[Entry]:
        """Return those of these entries that may be found, as the memory's policy lets them go."""
        return await living(self._scope, self._store, session, seqs)


def _marks(entry: Entry) -> set[object]:
    """What no other entry may share that is found: branches have the same entries, and people say the same again."""
    return {entry.id, (entry.kind, entry.role, entry.name, said(entry))}


async def living(
    scope: MemoryScope, store: Store, session: str, seqs: Iterable[int], ids: Sequence[str] = ()
) -> list[Entry]:
    """Return those of a session's entries that may be found, as the memory's policy lets them go."""
    key = SessionKey(scope.tenant, session)

    async def read() -> list[Entry]:
        head, entries = await store.fetch_with_head(key, seqs, ids)
        return await store.apart(_shown, scope, head, entries) if head is not None else []

    try:
        return await store.together(read, reads=True)
    except StoreCorrupt:  # `verify` names it; what is damaged keeps nobody from the rest
        return []


def _shown(scope: MemoryScope, head: Head, entries: Sequence[Entry]) -> list[Entry]:
    now = scope.clock()
    there = [one for one in entries if is_found(one, now) and not spans.within(head.rewound, one.seq)]
    return [entry for entry in scope.gate.shown(there) if not entry.erased]
