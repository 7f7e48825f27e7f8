"""What an index in SQLite's FTS5 answers: which parts hold a term, and the facts of entries. For one tenant."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from palimpsest.log.checks import unfit
from palimpsest.log.entry import KINDS, ROLES
from palimpsest.recall.index import COMMON, LAST_SEQ, RANGES, CommonWords, Filter, fit
from palimpsest.recall.postings import PART_BITS, SEQ_BITS, inverse_frequency, key_of, place_of
from palimpsest.recall.ranking import Facts
from palimpsest.recall.sqlite.layout import TenantTables

NAMES = 500
"""How many names one statement looks for."""

_keys = msgspec.json.Decoder(list[int]).decode
_Kind = Annotated[int, msgspec.Meta(ge=0, lt=len(KINDS))]
_Role = Annotated[int, msgspec.Meta(ge=0, lt=len(ROLES))]
_facts = msgspec.json.Decoder(list[tuple[int, int, _Kind, _Role, int, str | None]]).decode


class Matching(TenantTables):
    """Reads the index of the tenant with this number. `parts` returns how many parts that has.

    Each method is called inside a transaction.
    """

    def __init__(self, db: sqlite3.Connection, number: int, parts: Callable[[], int]) -> None:
        super().__init__(db, number)
        self._parts = parts
        self._common = CommonWords()

    def forget(self) -> None:
        """Forget which terms are common."""
        self._common.clear()

    def matches(self, terms: Sequence[str], numbers: Collection[int] | None, most: int) -> list[Mapping[int, float]]:
        """See `Index.matches`."""
        parts, asked = self._parts(), [fit(term).replace('"', " ") for term in terms]
        holding = {word: self._frequency(word, parts) for word in {word for term in asked for word in term.split()}}
        return [self._matching(term, numbers, parts, holding, most) for term in asked]

    def _matching(
        self, term: str, numbers: Collection[int] | None, parts: int, holding_word: Mapping[str, int], most: int
    ) -> dict[int, float]:
        """Return the parts that hold a term, with their scores. `holding_word` has how many parts hold each word."""
        phrase, scores = f'"{term}"', dict[int, float]()
        holding = min((holding_word[word] for word in term.split()), default=0)  # of a phrase, an upper bound
        if not holding:
            return scores
        is_scored, many = " " not in term and holding <= COMMON, numbers is not None and len(numbers) > RANGES
        searches_all = numbers is None or (many and holding <= most)
        for number in [None] if numbers is None or searches_all else sorted(numbers, reverse=True):
            if is_scored:
                scores.update(self._scored(phrase, number))
            else:
                keys = self._newest(phrase, number, holding, most - len(scores) if many else most)
                scores.update(dict.fromkeys(keys, inverse_frequency(holding, parts)))
            if many and len(scores) >= most:
                break
        if numbers is None or not searches_all:
            return scores
        wanted = set(numbers)
        return {key: score for key, score in scores.items() if place_of(key) >> SEQ_BITS in wanted}

    def _scored(self, phrase: str, number: int | None) -> list[tuple[int, float]]:
        """Return the parts that hold a word which is not common, each with what it adds to the score."""
        within, ends = _range(number)
        score = f"SELECT rowid, -bm25(words_N) FROM words_N WHERE words_N MATCH ?{within}"  # noqa: S608 (our own words)
        return self._run(score, (phrase, *ends)).fetchall()

    def _newest(self, phrase: str, number: int | None, holding: int, most: int) -> list[int]:
        """Return the keys of the newest parts that hold a phrase, of one session or of all.

        The keys come as one JSON text, which costs half of what as many rows do. Reading backwards takes several times
        as long, so that is done only if more than `most` parts hold the phrase.
        """
        within, ends = _range(number)
        keys = "SELECT json_group_array(rowid) FROM (SELECT rowid FROM words_N WHERE words_N MATCH ?{} LIMIT ?)"
        if number is not None or holding <= most:
            found = _keys(self._run(keys.format(within), (phrase, *ends, most + 1)).fetchone()[0])
            if len(found) <= most:
                return found
        return _keys(self._run(keys.format(f"{within} ORDER BY rowid DESC"), (phrase, *ends, most)).fetchone()[0])

    def _frequency(self, word: str, parts: int) -> int:
        """Return how many of these parts hold a word; a common word is held by more than `COMMON`.

        The count of a common word is remembered.
        """
        holding = self._common.count(word, parts)
        if holding is None:
            row = self._run("SELECT doc FROM temp.count_N WHERE term = ?", (word,)).fetchone()
            holding = int(row[0]) if row else 0
            self._common.note(word, holding, parts)
        return holding

    def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        """See `Index.facts`. They come as one JSON text, which costs half of what as many rows do."""
        asked = msgspec.json.encode(places).decode()
        facts = "SELECT json_group_array(json_array(place, at, kind, role, chars, name))"
        source = " FROM json_each(?) CROSS JOIN entry_N ON place = value AND checksum != -1"
        found = _facts(self._run(facts + source, (asked,)).fetchone()[0])
        return {place: Facts(at, KINDS[kind], ROLES[role], chars, name) for place, at, kind, role, chars, name in found}

    def places(self, only: Filter, numbers: Collection[int] | None) -> list[int]:
        """See `Index.places`."""
        found_places = list[int]()
        scopes = sorted(numbers) if numbers is not None and len(numbers) <= RANGES else [None]
        for number in scopes:
            for condition, values in _conditions(only, number):
                places = f"SELECT json_group_array(place) FROM entry_N WHERE checksum != -1 {condition}"  # noqa: S608 (ours)
                found_places += _keys(self._run(places, values).fetchone()[0])
        if numbers is None or scopes != [None]:  # no session is left to filter out
            return found_places
        wanted = set(numbers)
        return [place for place in found_places if place >> SEQ_BITS in wanted]

    def parts(self, number: int) -> list[int]:
        """Return the keys of the parts of a session's entries."""
        ends = place_of(key_of(number, 0)), place_of(key_of(number, LAST_SEQ))
        living = "SELECT place, parts FROM entry_N WHERE place BETWEEN ? AND ? AND checksum != -1"
        return [place << PART_BITS | i for place, parts in self._run(living, ends).fetchall() for i in range(parts)]


def _conditions(only: Filter, number: int | None) -> Iterator[tuple[str, list[object]]]:
    """Yield SQL conditions, with their values, that select the entries which a filter takes, in one session or in all.

    Each is for one statement, with at most `NAMES` names.
    """
    text, values = "", list[object]()
    if number is not None:
        text, values = " AND place BETWEEN ? AND ?", [place_of(key_of(number, seq)) for seq in (0, LAST_SEQ)]
    for column, given, every in (("kind", only.kinds, KINDS), ("role", only.roles, ROLES)):
        if given is not None:
            text += f" AND {column} IN ({', '.join(str(i) for i, choice in enumerate(every) if choice in given)})"
    for sign, time in ((">=", only.since), ("<", only.until)):
        if time is not None:
            text, values = f"{text} AND at {sign} ?", [*values, time]
    if only.names is None:
        yield text, values
        return
    names = [name for name in only.names if unfit(name) is None]
    for i in range(0, len(names), NAMES):
        page = names[i : i + NAMES]
        yield f"{text} AND name IN ({', '.join('?' * len(page))})", [*values, *page]


def _range(number: int | None) -> tuple[str, tuple[int, ...]]:
    """Return the SQL condition, with its values, that selects the parts of a session; an empty one for all sessions."""
    return (
        (" AND rowid BETWEEN ? AND ?", (key_of(number, 0), key_of(number + 1, 0) - 1))
        if number is not None
        else ("", ())
    )
