"""Give the parts of an index their vectors: a few new ones when somebody searches, a backlog in the background."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, islice

from palimpsest.errors import EmbedderFailed, PalimpsestError
from palimpsest.log.head import SessionKey
from palimpsest.recall.embedders import Embedder
from palimpsest.recall.follower import Progress
from palimpsest.recall.fusion import NEAREST
from palimpsest.recall.index import LAST_PART, LAST_SEQ, Cursor, Index
from palimpsest.recall.parts import parts_of, searchable_text
from palimpsest.recall.postings import key_of, place_of
from palimpsest.recall.vectors import State, VectorRows, Vectors
from palimpsest.runtime.logs import log_failure, warn
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Store

AT_ONCE = 256
"""How many parts a search waits for. If more have no vector yet, the rest are embedded in the background, and are found
by words until then."""

TOGETHER = 64
"""How many entries are read together to be embedded."""


class Embedding:
    """The vectors of one tenant's index, kept in `rows` and made by an embedder."""

    def __init__(
        self, store: Store, tenant: str, index: Index, rows: VectorRows, embedder: Embedder, runner: Runner
    ) -> None:
        self._store, self._tenant, self._index, self._runner = store, tenant, index, runner
        self._vectors = Vectors(rows, embedder)
        self._state: State | None = None
        # State of the vectors, generation, entries and mark of the index when no part lacked a vector.
        self._complete_at: tuple[State, int, int, int] | None = None
        self._embedded = dict[int, Cursor]()  # by session number, the cursor when all its parts had vectors
        self._in_background = False
        self._last_failure = ""

    async def nearest(
        self,
        query: str,
        numbers: Sequence[int] | None,
        sessions: Sequence[str] | None = None,
        among: Collection[int] | None = None,
    ) -> Mapping[int, float]:
        """Return the cosines of the `NEAREST` parts nearest to a query, by key, and of as many nearest parts of some
        entries.

        Empty if the embedder fails.

        Args:
            query: what is asked.
            numbers: the sessions to search; None: all.
            sessions: their names; None: all.
            among: the places of those entries.
        """
        try:
            found = await self._searched(query, numbers, sessions, among)
            if self._vectors.renewed:
                self._vectors.renewed = False
                found = await self._searched(query, numbers, sessions, among)
        except EmbedderFailed as fault:
            self._tell(fault)
            return {}
        self._last_failure = ""
        return found

    async def _searched(
        self,
        query: str,
        numbers: Sequence[int] | None,
        sessions: Sequence[str] | None,
        among: Collection[int] | None,
    ) -> Mapping[int, float]:
        """Search by meaning, after a few parts without vectors were embedded; the rest of these in the background."""
        if await self.catch_up(AT_ONCE, sessions):
            self._go_on()
        return await self._vectors.search(self._redacted(query), numbers, limit=NEAREST, among=among)

    async def complete(self, progress: Progress | None = None) -> None:
        """Embed everything that has no vector yet. If the embedder fails, a warning says so, and search goes by words.

        Args:
            progress: called with the number of sessions done, and of all.
        """
        try:
            await self._embed_rest(progress)
        except EmbedderFailed as fault:
            self._tell(fault)

    def _redacted(self, text: str) -> str:
        """Return what of a text the embedder may be given: the text may be older than the memory's privacy policy."""
        redact = self._runner.redact
        return text if redact is None else redact(text)

    def _tell(self, fault: EmbedderFailed) -> None:
        if self._last_failure != fault.kind:  # one warning for each kind of failure in a row
            warn("searches compare only words, not meanings: %s", self._redacted(str(fault)))
        self._last_failure = fault.kind

    async def catch_up(
        self, most: int | None = None, sessions: Sequence[str] | None = None, progress: Progress | None = None
    ) -> bool:
        """Embed parts of the index that have no vector yet; return whether some are left.

        Args:
            most: how many parts at most; None: all.
            sessions: of which sessions; None: of all.
            progress: called with the number of sessions done, and of all.
        """
        state, generation = await self._vectors.state(), await self._index.generation()
        seen = state, generation, (await self._index.size()).entries, await self._index.mark()
        if sessions is None and self._complete_at == seen:
            return False
        if state != self._state:  # vectors were removed, of sessions unknown, or all of them
            self._embedded.clear()
            self._state = state
        cursors = await self._index.cursors(sessions)
        for number, (session, cursor) in enumerate(cursors.items(), 1):
            if self._embedded.get(cursor.number) != cursor:
                remaining = await self._embed(session, cursor.number, most)
                if remaining is None:
                    return True
                most = None if most is None else remaining
                self._embedded[cursor.number] = cursor
            if progress is not None:
                progress(number, len(cursors))
        current = await self._vectors.state()
        if current.generation == state.generation and not self._vectors.renewed:
            self._state = current
            if sessions is None:
                self._complete_at = current, *seen[1:]
        return False

    async def _embed(self, session: str, number: int, most: int | None) -> int | None:
        """Embed new parts of a session; return how many more may be embedded, or None if the session has more to
        embed."""
        # Read before the texts are: no vector of a text that is removed from now on will be kept.
        generation = (await self._vectors.state()).generation
        missing = await self._vectors.missing(await self._index.parts(number))
        remaining = len(missing) if most is None else most
        places = ((place, list(keys)) for place, keys in groupby(missing, place_of))
        while page := dict(islice(places, TOGETHER)):
            if remaining <= 0:
                return None
            wanted = {key for keys in page.values() for key in keys}
            entries = await self._store.fetch(SessionKey(self._tenant, session), [place & LAST_SEQ for place in page])
            texts = dict[int, str]()
            for entry in entries:
                text = searchable_text(entry)
                for i, part in enumerate(parts_of(entry)):
                    key = key_of(number, entry.seq, i)
                    if i <= LAST_PART and key in wanted:
                        texts[key] = self._redacted(text[part.start : part.end])
            if texts and not await self._vectors.put(texts, generation):
                return None  # something was removed meanwhile, perhaps one of these: the next call looks again
            remaining -= len(texts)
        return remaining

    async def _embed_rest(self, progress: Progress | None = None) -> None:
        """Embed what is left, starting again if something is removed meanwhile, but not without end."""
        for _ in range(TOGETHER):
            if not await self.catch_up(progress=progress):
                break

    def _go_on(self) -> None:
        """Embed the rest in the background."""

        async def rest() -> None:
            try:
                await self._embed_rest()
            except PalimpsestError as fault:  # the next search tries again, and reports a failure
                log_failure(self._runner.redact, fault, "new entries could not be embedded for search")
            finally:
                self._in_background = False

        if not self._in_background:
            self._in_background = True
            self._runner.background(rest)
