"""The seam to where a search index is kept: documents by the places of their entries, and cursors of sessions.

An index is derived from logs, of one tenant, and can be made again from them at any time. It answers which parts of
which entries hold a term; what to make of that is `palimpsest.recall.ranking`'s business, and what is shown is read
from the log. So an index that lags behind, or holds too much, never shows what the log no longer says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from palimpsest.log.codec import ready
from palimpsest.log.entry import Entry
from palimpsest.log.spans import Span
from palimpsest.recall.analysis import terms
from palimpsest.recall.parts import parts_of, said
from palimpsest.recall.postings import PART_BITS, SEQ_BITS
from palimpsest.recall.ranking import Facts

if TYPE_CHECKING:
    from palimpsest.recall.vectors import VectorRows

LAST_SEQ, LAST_PART = (1 << SEQ_BITS) - 1, (1 << PART_BITS) - 1
LAST_NUMBER = (1 << 63 - SEQ_BITS - PART_BITS) - 1

COMMON = 4000
"""Parts from which on a term that they hold is common. It scores as if it stood once in a part of average length, and
only the newest of them, of those that may answer, are candidates: ranking all that hold a common word takes long, and
tells little."""


RANGES = 16
"""Sessions up to which each is looked at by itself; where there are more, all are, and the others left out."""


SILENT = frozenset(
    terms(
        "a an and are as at be been but by can did do does for from had has have he her his i if in is it its me my of "
        "on or our she so that the their them then they this those to was we were will with would you your"
    )
)
"""Words that say nothing of what a text is about. No index holds them: they would be a quarter of it."""


def spoken(term: str) -> str:
    """Return what of a term is in an index: a phrase without words that none holds."""
    return " ".join(word for word in term.split() if word not in SILENT)


def fit(term: str) -> str:
    """Return a term without what no database takes; one that was made of text has none of it."""
    return term if term.isprintable() else term.replace("\x00", " ").encode("utf-8", "ignore").decode()


FORMAT = 5
"""What parts are made of, and how they are kept: an index of another format is made anew."""


class Document(msgspec.Struct, frozen=True, gc=False):
    """An entry as an index takes it: its `seq`, the facts, and the terms of each part, in order."""

    seq: int
    facts: Facts
    parts: Sequence[Sequence[str]]

    @classmethod
    def of(cls, entry: Entry) -> Document:
        """Make the document of an entry: the same of the same entry at any time."""
        parts = [[term for term in part.terms if term not in SILENT] for part in parts_of(entry)]
        facts = Facts(entry.at, entry.kind, entry.role, len(said(entry)), entry.name)
        return cls(entry.seq, facts, parts)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries may answer: of these `kinds` and `roles`, from these `names` (who said it, or which tool), written
    `since` a time and before `until` another (microseconds). None is any, and no kind at all is none."""

    kinds: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    names: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None

    def takes(self, facts: Facts) -> bool:
        """Whether an entry may answer.

        Args:
            facts: what the index knows of it.
        """
        return (
            (self.kinds is None or facts.kind in self.kinds)
            and (self.roles is None or facts.role in self.roles)
            and (self.names is None or facts.name in self.names)
            and (self.since is None or facts.at >= self.since)
            and (self.until is None or facts.at < self.until)
        )


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the index has read a session: the one that began at `created`, as of `revision`, whose entries before
    `next_seq` are in it, but for those that were rewound (`hidden`). `last` is the id of the last of these, and
    `number` the session's in keys."""

    number: int = 0
    created: int = 0
    revision: int = 0
    next_seq: int = 1
    hidden: tuple[Span, ...] = ()
    last: str = ""


ready(Cursor)


def is_same(there: Cursor | None, expected: Cursor | None) -> bool:
    """Return whether two cursors say the same of a session; of its number who expects one may not know."""
    if there is None or expected is None:
        return there is expected
    return msgspec.structs.replace(there, number=0) == msgspec.structs.replace(expected, number=0)


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a session in the index, in one step, if its cursor is still `expect` (None: it has none), and
    nothing was removed from the index since its `generation` was that.

    First the documents of `drop` go, and of `lost` (whose words nobody has any more) what can be found; then come those
    of `add`, but for places that are blocked. `cursor` is the one from then on.
    """

    expect: Cursor | None
    generation: int
    cursor: Cursor
    add: Sequence[Document] = ()
    drop: Sequence[Document] = ()
    lost: Sequence[Span] = ()


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large an index is: `sessions`, `entries` and `parts` in it, and `bytes`, of all tenants that share a file.

    Parts that are `stale` are of what is gone: nobody finds them, and their words are there until it is made anew.
    """

    sessions: int
    entries: int
    parts: int
    bytes: int
    stale: int


class Index(Protocol):
    """Where one tenant's index is kept. Every verb is one step: it happens whole, or not at all.

    Verbs raise StoreUnavailable where it cannot be reached, is full, or locked for too long. One that is damaged
    empties itself, for it can be made again. `name` is under which the store knows it ("": it lives no longer than this
    process, and nobody need be told of it), `where` says for people where it is kept.
    """

    name: str
    where: str

    async def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        """Return the cursors of these sessions (None: of all), of those that have one."""
        ...

    async def parts(self, number: int) -> list[int]:
        """Return the keys of all parts of a session."""
        ...

    async def vectors(self) -> VectorRows | None:
        """Return where vectors of its parts are kept: what is removed from it goes there, too, in the same step. None:
        nowhere, and words alone count."""
        ...

    async def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        """Return which sessions have these numbers."""
        ...

    async def mark(self) -> int:
        """Return the mark of the tenant's last write that was looked at; 0 for none."""
        ...

    async def set_mark(self, mark: int, generation: int) -> None:
        """Remember that all was looked at that was written before this mark, if nothing was removed since the
        `generation` was that: or an index that was emptied meanwhile would never be filled again."""
        ...

    async def generation(self) -> int:
        """Return a number that is another one whenever something was removed."""
        ...

    async def update(self, session: str, update: Update) -> bool:
        """Do this to a session; return whether it was done: else somebody was first."""
        ...

    async def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        """Drop these documents, and take none of these places again until they are unblocked (0 stands for all of the
        session's); return how many parts went. `now` is the time, in microseconds."""
        ...

    async def blocked(self, before: int) -> dict[str, list[int]]:
        """Return which places are blocked since before a time (microseconds), by session."""
        ...

    async def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document] = ()) -> bool:
        """Take these places again, and these documents of them, if nothing was removed since the `generation` was that;
        return whether it was done."""
        ...

    async def end(self, session: str) -> int:
        """Forget a session, with what of it is still found, but not what is blocked; return how many parts went."""
        ...

    async def matches(
        self, terms: Sequence[str], numbers: Collection[int] | None = None, most: int = COMMON
    ) -> list[Mapping[int, float]]:
        """Return for each term which parts hold it, by key, and what it adds to the score of each. Of these sessions,
        or of all; where more than `most` (at least `COMMON`) hold it, the newest: of up to `RANGES` sessions, of each.

        That is BM25 as SQLite's FTS5 has it (k1 = 1.2, b = 0.75). A `COMMON` word adds its inverse document frequency
        alone, and a phrase, words with spaces between them, that of its rarest word.
        """
        ...

    async def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        """Return the facts of these entries, ascending (`place_of` each), of those that are in the index: perhaps of
        others beside them, too."""
        ...

    async def places(self, only: Filter, numbers: Collection[int] | None = None) -> list[int]:
        """Return the places of all entries that this takes, of these sessions, or of all; in no order."""
        ...

    async def size(self) -> Size:
        """Return how large it is."""
        ...

    async def empty(self) -> None:
        """Forget everything, to be made anew."""
        ...

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """See that no byte of what was dropped is left; without `whole` not what takes long. Return in plain sentences
        what remains."""
        ...
