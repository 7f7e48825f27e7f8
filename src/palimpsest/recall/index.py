"""The seam to where a search index is kept: documents by the places of their entries, and a cursor for each session.

An index belongs to one tenant. It is derived from the logs and can be made again from them at any time. It answers
which parts of which entries hold a term; `palimpsest.recall.ranking` orders them, and the text that a user sees is read
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
from palimpsest.recall.parts import parts_of, searchable_text
from palimpsest.recall.postings import PART_BITS, SEQ_BITS
from palimpsest.recall.ranking import Facts

if TYPE_CHECKING:
    from palimpsest.recall.vectors import VectorRows

LAST_SEQ, LAST_PART = (1 << SEQ_BITS) - 1, (1 << PART_BITS) - 1
LAST_NUMBER = (1 << 63 - SEQ_BITS - PART_BITS) - 1

COMMON = 4000
"""A term that more parts than this hold is common. Each part that holds it scores as if the term stood once in a part
of average length, and only the newest such parts that a search may return are candidates: ranking every part that holds
a common word takes long and tells little."""

KNOWN = 10_000
"""For how many common words the number of parts that hold them is remembered."""


class CommonWords:
    """How many parts hold each common word, as long as the index has neither grown nor shrunk by a tenth since."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}  # of each: how many parts held it, of how many

    def count(self, word: str, parts: int) -> int | None:
        """Return how many parts of an index of so many hold a word; None: it is to be counted."""
        count, of = self._counts.get(word, (0, 0))
        return count if of and 0.9 * parts <= of <= parts * 1.1 else None

    def note(self, word: str, count: int, parts: int) -> None:
        """Remember what was counted, if the word is common."""
        self._counts.pop(word, None)
        if count > COMMON:
            if len(self._counts) >= KNOWN:
                self._counts.clear()
            self._counts[word] = count, parts

    def clear(self) -> None:
        """Forget all words."""
        self._counts.clear()


RANGES = 16
"""Up to this many sessions are searched one by one. For more, all sessions are searched and the others filtered out."""


SILENT = frozenset(
    terms(
        "a an and are as at be been but by can did do does for from had has have he her his i if in is it its me my of "
        "on or our she so that the their them then they this those to was we were will with would you your"
    )
)
"""Words that say nothing about the topic of a text. They are not indexed: they would take up a quarter of the index."""


def spoken(term: str) -> str:
    """Return the term as an index may hold it: without its `SILENT` words."""
    return " ".join(word for word in term.split() if word not in SILENT)


def fit(term: str) -> str:
    """Return the term without characters that databases refuse. A term made by `terms` has none of them."""
    return term if term.isprintable() else term.replace("\x00", " ").encode("utf-8", "ignore").decode()


FORMAT = 5
"""Version of how parts are made and kept. An index with another format is made anew."""


class Document(msgspec.Struct, frozen=True, gc=False):
    """An entry as an index takes it: its `seq`, the facts, and the terms of each part, in order."""

    seq: int
    facts: Facts
    parts: Sequence[Sequence[str]]

    @classmethod
    def of(cls, entry: Entry) -> Document:
        """Return the document of an entry. The same entry always gives the same document."""
        parts = [[term for term in part.terms if term not in SILENT] for part in parts_of(entry)]
        facts = Facts(entry.at, entry.kind, entry.role, len(searchable_text(entry)), entry.name)
        return cls(entry.seq, facts, parts)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries a search may return.

    `kinds`, `roles` and `names` (who said it, or which tool) list what is allowed; None allows any, an empty set allows
    nothing. `since` and `until` (excluded) bound the time of the entry, in microseconds.
    """

    kinds: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    names: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None

    def takes(self, facts: Facts) -> bool:
        """Return whether the search may return an entry with these facts.

        Args:
            facts: what the index knows of the entry.
        """
        return (
            (self.kinds is None or facts.kind in self.kinds)
            and (self.roles is None or facts.role in self.roles)
            and (self.names is None or facts.name in self.names)
            and (self.since is None or facts.at >= self.since)
            and (self.until is None or facts.at < self.until)
        )


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the index has read one session.

    `created` tells the session from an earlier one of the same name. The index shows the session as of `revision`, and
    has its entries before `next_seq`, except the rewound ones (`hidden`). `last` is the id of the last entry that was
    read; `number` stands for the session in keys.
    """

    number: int = 0
    created: int = 0
    revision: int = 0
    next_seq: int = 1
    hidden: tuple[Span, ...] = ()
    last: str = ""


ready(Cursor)


def is_same(found: Cursor | None, expected: Cursor | None) -> bool:
    """Return whether two cursors say the same.

    Their numbers are not compared: a caller may expect a cursor without one.
    """
    if found is None or expected is None:
        return found is expected
    return msgspec.structs.replace(found, number=0) == msgspec.structs.replace(expected, number=0)


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """A change to one session of the index, applied in one step.

    It is applied only if the session's cursor is still `expect` (None: it has none) and the index's generation is still
    `generation`, that is, nothing was removed meanwhile. First the documents of `drop` are removed, and all that is
    indexed in the spans of `lost`, for which no text is left to make documents from. Then the documents of `add` are
    put in, except in blocked places. Then `cursor` becomes the session's cursor.
    """

    expect: Cursor | None
    generation: int
    cursor: Cursor
    add: Sequence[Document] = ()
    drop: Sequence[Document] = ()
    lost: Sequence[Span] = ()


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large an index is.

    `sessions`, `entries` and `parts` are the tenant's. `bytes` is for all tenants that share a file. `stale` counts
    parts of removed entries that no search finds, but whose words stay in the file until it is purged or made anew.
    """

    sessions: int
    entries: int
    parts: int
    bytes: int
    stale: int


class Index(Protocol):
    """Where one tenant's index is kept. Every verb is atomic: it happens as a whole, or not at all.

    Verbs raise StoreUnavailable if the index cannot be reached, is full, or is locked for too long. A damaged index
    empties itself, since it can be made again. The store knows the index by `name`; "" means that it lives no longer
    than this process, and nobody has to tell it of erasures. `where` tells people where it is kept.
    """

    name: str
    where: str

    async def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        """Return the cursors of these sessions (None: all), by name; sessions without a cursor are left out."""
        ...

    async def parts(self, number: int) -> list[int]:
        """Return the keys of all parts of a session."""
        ...

    async def vectors(self) -> VectorRows | None:
        """Return where the vectors of the parts are kept, or None if only words can be searched.

        The index removes the vectors of the parts that it removes, in the same step.
        """
        ...

    async def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        """Return the names of the sessions with these numbers."""
        ...

    async def mark(self) -> int:
        """Return the mark up to which the tenant's writes were looked at; 0 for none."""
        ...

    async def set_mark(self, mark: int, generation: int) -> None:
        """Remember that all writes before this mark were looked at, if the index's generation is still `generation`.

        Otherwise an index that was emptied meanwhile would never be filled again.
        """
        ...

    async def generation(self) -> int:
        """Return a number that changes whenever something is removed from the index, or the index is made anew."""
        ...

    async def update(self, session: str, update: Update) -> bool:
        """Apply an update to a session; return False, with nothing changed, if what it expects no longer holds."""
        ...

    async def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        """Remove these documents and these places, and take no entry of these places until `unblock`.

        Place 0 stands for the whole session. `now` is the time, in microseconds. Returns how many parts were removed.
        """
        ...

    async def blocked(self, before: int) -> dict[str, list[int]]:
        """Return the places that were blocked before a time (microseconds), by session."""
        ...

    async def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document] = ()) -> bool:
        """Unblock these places and put in these documents of them, if the generation is still `generation`.

        Returns whether that was done.
        """
        ...

    async def end(self, session: str) -> int:
        """Remove a session with its parts and cursor, but keep its blocks; return how many parts were removed."""
        ...

    async def matches(
        self, terms: Sequence[str], numbers: Collection[int] | None = None, most: int = COMMON
    ) -> list[Mapping[int, float]]:
        """Return for each term the parts that hold it, by key, with what the term adds to the score of each.

        Only parts of the sessions with these `numbers` are returned (None: all). If more than `most` (at least
        `COMMON`) parts hold a term, only the newest `most` are returned; with up to `RANGES` sessions, that many for
        each.

        Scores are BM25 as in SQLite's FTS5 (k1 = 1.2, b = 0.75). A `COMMON` word adds its inverse document frequency
        alone. A phrase (words joined by spaces) adds that of its rarest word.
        """
        ...

    async def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        """Return the facts of these entries, by place, for those that are in the index.

        Args:
            places: ascending, each as `place_of` gives it. The result may have further entries, too.
        """
        ...

    async def places(self, only: Filter, numbers: Collection[int] | None = None) -> list[int]:
        """Return the places of all entries that the filter takes, in these sessions (None: all), in no order."""
        ...

    async def size(self) -> Size:
        """Return how large the index is."""
        ...

    async def empty(self) -> None:
        """Remove everything but the blocks, so that the index can be made anew."""
        ...

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """Erase the bytes of what was removed from wherever they may remain; without `whole`, skip steps that take
        long.

        Returns sentences for people that say what remains; empty if nothing does.
        """
        ...
