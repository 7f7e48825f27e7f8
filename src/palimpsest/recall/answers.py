"""What an index in SQLite's FTS5 answers: which parts hold a term, and what is known of entries. Of one tenant."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from palimpsest.log.entry import KINDS, ROLES
from palimpsest.recall.index import COMMON, LAST_SEQ, RANGES, fit
from palimpsest.recall.postings import PART_BITS, SEQ_BITS, inverse_frequency, key_of, place_of
from palimpsest.recall.ranking import Facts

NEAR = 16
"""Places that far apart are read together: to look for one costs as much as to read on."""

KNOWN = 10_000
"""Common terms of which is remembered how many parts hold them."""


class Answers:
    """Reads the index of the tenant of this number, which has so many `parts`. Each method is called in a
    transaction."""

    def __init__(self, db: sqlite3.Connection, number: int, parts: Callable[[], int]) -> None:
        self._db, self._number, self._parts = db, number, parts
        self._known = dict[str, tuple[int, int]]()

    def _run(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement over the tenant's own tables."""
        return self._db.execute(sql.replace("_N", f"_{self._number}"), values)

    def forget(self) -> None:
        """Forget what is remembered of common terms."""
        self._known.clear()

    def matches(self, terms: Sequence[str], numbers: Collection[int] | None) -> list[Mapping[int, float]]:
        """As `Index.matches` says."""
        parts = self._parts()
        return [self._matching(fit(term).replace('"', " "), numbers, parts) for term in terms]

    def _matching(self, term: str, numbers: Collection[int] | None, parts: int) -> dict[int, float]:
        phrase = f'"{term}"'
        if " " in term:
            weight = max((inverse_frequency(self._frequency(word, parts), parts) for word in term.split()), default=0.0)
        elif (holding := self._frequency(term, parts)) > COMMON:
            weight = inverse_frequency(holding, parts)
        else:
            score = "SELECT rowid, -bm25(words_N) FROM words_N WHERE words_N MATCH ? {} ORDER BY rowid DESC LIMIT ?"
            return dict(self._in_scope(score, phrase, numbers))
        where = "SELECT rowid FROM words_N WHERE words_N MATCH ? {} ORDER BY rowid DESC LIMIT ?"
        return dict.fromkeys(chain.from_iterable(self._in_scope(where, phrase, numbers)), weight)

    def _in_scope(self, sql: str, phrase: str, numbers: Collection[int] | None) -> list[Any]:
        if numbers is None or len(numbers) > RANGES:
            found = self._run(sql.format(""), (phrase, COMMON)).fetchall()
            wanted = None if numbers is None else set(numbers)
            return found if wanted is None else [row for row in found if place_of(row[0]) >> SEQ_BITS in wanted]
        rows = list[Any]()
        for number in numbers:
            ends = key_of(number, 0), key_of(number + 1, 0) - 1
            rows += self._run(sql.format("AND rowid BETWEEN ? AND ?"), (phrase, *ends, COMMON)).fetchall()
        return rows

    def _frequency(self, word: str, parts: int) -> int:
        """How many of these parts hold a word: more than `COMMON` hold a common one. Of that it is remembered, and
        counted anew when the index has grown or shrunk by a tenth."""
        holding, of = self._known.get(word, (0, 0))
        if of and 0.9 * parts <= of <= parts * 1.1:
            return holding
        some = "SELECT count(*) FROM (SELECT 1 FROM words_N WHERE words_N MATCH ? LIMIT ?)"
        (holding,) = self._run(some, (f'"{word}"', COMMON + 1)).fetchone()
        if holding <= COMMON:
            self._known.pop(word, None)
            return int(holding)
        (holding,) = self._run("SELECT doc FROM temp.count_N WHERE term = ?", (word,)).fetchone()
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[word] = holding, parts
        return int(holding)

    def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        """As `Index.facts` says: what lies near together is read in one go, with what lies between."""
        found = dict[int, Facts]()
        columns = "SELECT place, at, turn, kind, role, chars, name FROM entry_N"
        for low, high in _runs(places):
            rows = self._run(f"{columns} WHERE place BETWEEN ? AND ? AND checksum != -1", (low, high)).fetchall()
            found |= {
                place: Facts(at, turn, KINDS[kind], ROLES[role], chars, name)
                for place, at, turn, kind, role, chars, name in rows
            }
        return found

    def parts(self, number: int) -> list[int]:
        """The keys of the parts of a session's entries."""
        ends = place_of(key_of(number, 0)), place_of(key_of(number, LAST_SEQ))
        living = "SELECT place, parts FROM entry_N WHERE place BETWEEN ? AND ? AND checksum != -1"
        return [place << PART_BITS | i for place, parts in self._run(living, ends).fetchall() for i in range(parts)]


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and last of those places, ascending, that lie near together."""
    for i, place in enumerate(places):
        if not i or place - places[i - 1] > NEAR:
            low = place
        if i + 1 == len(places) or places[i + 1] - place > NEAR:
            yield low, place
