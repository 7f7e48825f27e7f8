"""The verbs for recall of a session and of a memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING
from weakref import finalize

import msgspec

from palimpsest.context.tail import TailPart
from palimpsest.errors import ConfigError
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.ids import check_id
from palimpsest.log.spans import Span
from palimpsest.log.values import check_progress
from palimpsest.recall.follower import Progress
from palimpsest.recall.opening import Indexes
from palimpsest.recall.parts import searchable_text, span_of
from palimpsest.recall.questions import question
from palimpsest.recall.search import highlighted
from palimpsest.sessions.accesses import note_accesses
from palimpsest.sessions.counting import counter_of, model_of
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.recalling.asked import Asked, ends, some_of
from palimpsest.sessions.recalling.finding import Finder, Found, living
from palimpsest.sessions.recalling.reading import check_bounds, names_of, read
from palimpsest.sessions.recalling.recalled import IndexStatus, Passage, Recalled, has_room, packed, passage_of, plain
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.stores import compaction_of

if TYPE_CHECKING:
    from palimpsest.stores import Store
    from palimpsest.tokens.counter import TokenCounter

WHOLE = 1200
"""The most characters of an entry that becomes a passage whole. Of a longer one the part that answers is taken."""

RECALLED = 100
"""The number of hits that a context chooses from."""


class Recollection(TailPart):
    """Passages of one session, best first, that answer the `terms` of a query: as many as fit, in the log's order."""

    name = "recalled"

    def __init__(self, passages: Sequence[Passage], terms: Sequence[str]) -> None:
        self._passages, self._terms = passages, terms

    def beside(self, shown: Collection[int]) -> Recollection:
        """Return only the passages of entries that the context does not show."""
        return Recollection([passage for passage in self._passages if passage.seq not in shown], self._terms)

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the best passages that fit into `most` tokens, in the order of the log; "" if none fits."""
        return plain(packed(self._passages, (), most, count, self._terms)[0])


class Recalling:
    """Recall in a memory, or in one of its sessions."""

    asked = staticmethod(Asked.of)

    def __init__(self, memory: MemoryScope, session: SessionScope | None = None) -> None:
        self._memory, self._session = memory, session
        self._own: tuple[Store | None, Indexes | None] = None, None
        self._close_own: Callable[[], object] = lambda: None

    async def in_session(self, asked: Asked) -> Recalled:
        """Find entries of the session that answer, within the budget."""
        finder, found, scope = await self._search(asked)
        return await self._note_hits(await passages(finder, asked, found, scope.options.counter), scope.store)

    async def passages(self, entries: object, max_tokens: int | None, start: int) -> Recalled:
        """Return these entries of the session as passages, within the budget."""
        scope = self._session
        assert scope is not None, "it is asked of a session"
        check_bounds(max_tokens, start)
        seqs, ids = names_of(entries)
        scope.check_user(await scope.store.head(scope.key))
        entries_found = await living(self._memory, scope.store, scope.key.session, seqs, ids)
        count = scope.options.counter.count
        result = await scope.store.apart(read, scope.key.session, entries_found, start, max_tokens, count)
        if scope.store.writable and not scope.options.readonly:
            await note_accesses(scope.store, scope.key, [passage.seq for passage in result.passages])
        return result

    async def recollection(self, query: object) -> Recollection:
        """Return the passages that the session's next context may recall for a user's message.

        Of a message that is longer than a query its beginning and its end count. Lone surrogates are ignored.
        """
        if isinstance(query, str):
            query = ends(query).encode("utf-8", "replace").decode()
        hidden = await self._hidden()
        asked = Asked.of(query, None, RECALLED + spans.size(hidden), None, None, None, None, None, 0)
        finder, found, _ = await self._search(asked)
        found = [each for each in found if not spans.within(hidden, each.entry.seq)]
        terms = question(asked.query).terms
        return Recollection(await finder.apart(_passages, found, terms), terms)

    async def _hidden(self) -> tuple[Span, ...]:
        """Return the ranges that were left out of the session's contexts by hand: no context recalls them by itself."""
        scope = self._session
        assert scope is not None, "it is asked of a session"
        head = await scope.head()
        return (await compaction_of(scope.store, scope.key, head.compaction)).hidden

    async def _search(self, asked: Asked) -> tuple[Finder, list[Found], SessionScope]:
        """Search the session. Return the finder, the entries found, and the session's scope."""
        scope = self._session
        assert scope is not None, "it is asked of a session"
        scope.check_user(await scope.store.head(scope.key))
        indexes = self._own_indexes(scope) if scope.is_ephemeral else None
        try:
            recall = await (self._memory.recall() if indexes is None else indexes.of(scope.tenant))
            finder = Finder(self._memory, scope.store, recall)
            return finder, await finder.find(asked, [scope.key.session]), scope
        finally:
            if indexes is not None and indexes is not self._own[1]:
                indexes.close()

    def _own_indexes(self, scope: SessionScope) -> Indexes:
        """Return the indexes of an EPHEMERAL session: its entries are not stored, so no shared index may have them.

        They are made for each search. With an embedder they are kept until the log begins anew, so that nothing is
        embedded twice.
        """
        embedder, (of, kept) = self._memory.embedder, self._own
        if kept is not None and of is scope.store:
            return kept
        indexes = Indexes(scope.store, scope.runner, scope.clock, None, embedder)
        if embedder is not None:
            self._close_own()
            self._own, self._close_own = (scope.store, indexes), finalize(self, indexes.close)
        return indexes

    async def everywhere(
        self,
        asked: Asked,
        sessions: Iterable[str] | str | None,
        user: str | None,
        model: str | None,
        counter: TokenCounter | Callable[[str], int] | str | None,
    ) -> Recalled:
        """Find entries of the tenant's sessions that answer, within the budget."""
        scope, counting = self._memory, counter_of(counter, model_of(model))
        names = await _searched_sessions(scope, sessions, user)
        finder = Finder(scope, scope.store, await scope.recall())
        found = await finder.find(asked, names)
        return await self._note_hits(await passages(finder, asked, found, counting), scope.store)

    async def status(self) -> IndexStatus:
        """Return the state of the tenant's index."""
        recall = await self._memory.recall()
        size, behind = await recall.size()
        return IndexStatus(
            where=recall.index.where,
            is_kept=not recall.index.where.startswith("in memory"),
            sessions=size.sessions,
            entries=size.entries,
            parts=size.parts,
            stale=size.stale,
            bytes=size.bytes,
            behind=behind,
        )

    async def index(self) -> int:
        """Bring the tenant's index up to date, if it is kept. Return how many sessions were behind."""
        recall = await self._memory.recall()
        if not recall.index.name:
            return 0
        behind = await recall.follower.catch_up()
        if recall.embedding is not None:
            await recall.embedding.complete()
        return behind

    async def rebuild(self, progress: Progress | None) -> IndexStatus:
        """Make the tenant's index anew."""
        check_progress(progress)
        if not self._memory.store.writable:
            raise ConfigError("readonly", True, "False: a memory opened with readonly=True cannot rebuild its index")
        recall = await self._memory.recall()
        await recall.follower.rebuild(progress)
        if recall.embedding is not None:
            await recall.embedding.complete(progress)
        return await self.status()

    async def _note_hits(self, result: Recalled, store: Store) -> Recalled:
        """Note an access to each entry that was found, and return the result."""
        if store.writable and not (self._session is not None and self._session.options.readonly):
            await store.together(partial(self._note, result, store), reads=True)
        return result

    async def _note(self, result: Recalled, store: Store) -> None:
        for session in dict.fromkeys(hit.session for hit in result.hits):
            seqs = [hit.seq for hit in reversed(result.hits) if hit.session == session]  # the best is the freshest
            await note_accesses(store, SessionKey(self._memory.tenant, session), seqs)


async def _searched_sessions(
    scope: MemoryScope, sessions: Iterable[str] | str | None, user: str | None
) -> list[str] | None:
    """Return the sessions that a search goes through; None: all."""
    named = some_of("sessions", sessions, None)
    given = None if named is None else sorted(named)
    for session in given or ():
        check_id(session, "sessions")
    if user is None:
        return given
    check_id(user, "user")
    owned = [info.session async for info in sessions_of(scope.store, scope.tenant, user)]
    return owned if given is None else sorted(set(owned).intersection(given))


async def passages(finder: Finder, asked: Asked, found: Sequence[Found], counter: TokenCounter) -> Recalled:
    """Make passages of what was found, and pack them into the budget."""
    terms, count = question(asked.query).terms, lru_cache(maxsize=None)(counter.count)  # cached for this search only

    def ranked() -> tuple[list[Passage], bool]:
        hits = _passages(found, terms)
        return hits, asked.neighbours > 0 and has_room(hits, asked.max_tokens, count, terms)

    def chosen(hits: Sequence[Passage], beside: Sequence[Passage]) -> Recalled:
        order, tokens = packed(hits, beside, asked.max_tokens, count, terms)
        order = [_marked(passage, terms) if passage.is_hit else passage for passage in order]
        left_out = len(found) - sum(passage.is_hit for passage in order)
        return Recalled(passages=tuple(order), tokens=tokens, found=len(found), left_out=left_out)

    hits, with_neighbours = await finder.apart(ranked)
    return await finder.apart(chosen, hits, await _neighbours(finder, asked, found) if with_neighbours else [])


def _passages(found: Iterable[Found], terms: Sequence[str]) -> list[Passage]:
    return [_passage(hit.session, hit.entry, hit.score, hit.part, terms) for hit in found]


def _passage(session: str, entry: Entry, score: float, part: int | None, terms: Sequence[str]) -> Passage:
    """Make the passage of an entry: all of its text, or of a long one the part that answers.

    `part` is None for a neighbour of a hit: of a long one the beginning is taken.
    """
    whole, start = searchable_text(entry), 0
    end = len(whole)
    if end > WHOLE:
        start, end = span_of(entry, part or 0)
    if end - start > WHOLE:  # a part may be longer still: take the text around the first match
        matched = highlighted(whole[start:end], terms) if part is not None else ()
        first = matched[0][0] if matched else 0
        start += max(0, min(first - WHOLE // 4, end - start - WHOLE))
        end = start + WHOLE
    return passage_of(session, entry, whole, (start, end), score=score, is_hit=part is not None)


def _marked(passage: Passage, terms: Sequence[str]) -> Passage:
    """Return the passage with its matches of the query. Only passages that are returned are searched for these."""
    return msgspec.structs.replace(passage, matched=highlighted(passage.text, terms))


async def _neighbours(finder: Finder, asked: Asked, found: Sequence[Found]) -> list[Passage]:
    """Return the neighbours of hits in the same interactions, those of the best hit first, and the nearest first."""
    hits = {(hit.session, hit.entry.seq) for hit in found}
    wanted = dict[tuple[str, int], set[int]]()
    for hit in found:
        for distance in range(1, asked.neighbours + 1):
            for seq in (hit.entry.seq - distance, hit.entry.seq + distance):
                if seq > 0 and (hit.session, seq) not in hits:
                    wanted.setdefault((hit.session, seq), set()).add(hit.entry.turn)

    async def neighbours() -> dict[tuple[str, int], Entry]:
        entries = dict[tuple[str, int], Entry]()
        for session in dict.fromkeys(session for session, _ in wanted):
            seqs = [seq for name, seq in wanted if name == session]
            entries |= {(session, entry.seq): entry for entry in await finder.living(session, seqs)}
        return entries

    return await finder.apart(_neighbour_passages, found, wanted, await finder.together(neighbours))


def _neighbour_passages(
    found: Sequence[Found], wanted: Mapping[tuple[str, int], set[int]], entries: Mapping[tuple[str, int], Entry]
) -> list[Passage]:
    """Make passages of the wanted neighbours that are in the interaction of their hit and do not repeat other words."""
    known_words = {(hit.entry.role, searchable_text(hit.entry)) for hit in found}
    beside = list[Passage]()
    for place, turns in wanted.items():
        entry = entries.get(place)
        text = searchable_text(entry) if entry is not None and entry.turn in turns else ""
        if entry is not None and text and (entry.role, text) not in known_words:
            known_words.add((entry.role, text))
            beside.append(_passage(place[0], entry, 0.0, None, ()))
    return beside
