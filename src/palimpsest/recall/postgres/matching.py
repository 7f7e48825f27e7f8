"""Which parts hold terms, and what that adds to their scores, by one statement where all of them are rare words.

A common word, as `palimpsest.recall.index.COMMON` says, takes a second one: the newest parts that hold it are found by
going back through all of them where many do, and else by sorting those that do. How many do is counted once, and again
when the index has grown or shrunk by a tenth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from palimpsest.recall.index import COMMON, RANGES, fit
from palimpsest.recall.postgres.layout import found_by
from palimpsest.recall.postings import K1, PART_BITS, SEQ_BITS, B, inverse_frequency, key_of

KNOWN = 10_000
"""Common words of which is remembered how many parts hold them."""

_HOLDS = f"{found_by('p.words', 'p.tenant')} @> {found_by(chr(39) + ' ' + chr(39) + ' || a.needle', 't.number')}"
"""Whether a part has all words of what is looked for. The tenant's number is before each of them."""

_COUNT = "(octet_length(m.words) - octet_length(replace(m.words, a.needle, ''))) / octet_length(a.needle)"
_ASKED = "{s}.recall_tenants t CROSS JOIN unnest($2::text[]) AS a(needle)"

PARTS = "SELECT parts, terms FROM {s}.recall_tenants WHERE name = $1"

FOUND = f"""SELECT a.needle, f.* FROM {_ASKED} CROSS JOIN LATERAL (
    SELECT count(*) AS there, array_agg(m.key) FILTER (WHERE w.meant) AS keys,
        array_agg(m.length) FILTER (WHERE w.meant) AS lengths, array_agg({_COUNT}) FILTER (WHERE w.meant) AS counts
    FROM (SELECT p.key, p.length, p.words FROM {{s}}.recall_parts p WHERE {_HOLDS} LIMIT {COMMON + 1}) m
    CROSS JOIN LATERAL (
        SELECT $3::bigint[] IS NULL OR m.key >> {SEQ_BITS + PART_BITS} = ANY($3::bigint[]) AS meant
    ) w
) f WHERE t.name = $1"""
"""The parts that hold each word, with how often it stands there; of a common one, that it is."""

HOLDING = f"""SELECT a.needle, (SELECT count(*) FROM {{s}}.recall_parts p WHERE {_HOLDS}) FROM {_ASKED}
WHERE t.name = $1"""

_RANGES = "CROSS JOIN unnest($3::bigint[], $4::bigint[]) AS r(low, high)"
_MEANT = f"($6::bigint[] IS NULL OR p.key >> {SEQ_BITS + PART_BITS} = ANY($6::bigint[]))"
_NEWEST = f"""p.key BETWEEN r.low AND r.high AND strpos(p.words, a.needle) > 0 AND {_MEANT}
    ORDER BY p.key DESC LIMIT $5"""
SORTED = f"""SELECT a.needle, f.key FROM {_ASKED} {_RANGES} CROSS JOIN LATERAL (
    SELECT p.key FROM {{s}}.recall_parts p WHERE {_HOLDS} AND {_NEWEST}
) f WHERE t.name = $1"""
BACK = f"""SELECT a.needle, f.key FROM {_ASKED} {_RANGES} CROSS JOIN LATERAL (
    SELECT p.key FROM {{s}}.recall_parts p WHERE p.tenant = t.number AND {_NEWEST}
) f WHERE t.name = $1"""
"""The newest parts in ranges of keys that hold a word or a phrase: by the index of words, or through all of them."""

Found = dict[str, Mapping[int, float]]


class Matching:
    """Finds parts of one tenant over a connection. Remembers which words are common.

    A *needle* is a word, or words side by side, as it stands in the words of a part.
    """

    def __init__(self, schema: str, tenant: str) -> None:
        self._tenant = tenant
        self._known = dict[str, tuple[int, int]]()
        over = (text.replace("{s}", schema) for text in (PARTS, FOUND, HOLDING, SORTED, BACK))
        self._parts, self._found, self._holding, self._sorted, self._back = over

    def forget(self) -> None:
        """Count anew what is common."""
        self._known.clear()

    async def matches(
        self, db: Any, terms: Sequence[str], numbers: Collection[int] | None, most: int
    ) -> list[Mapping[int, float]]:
        """As `Index.matches` says."""
        needles = [_needle(term) for term in terms]
        row = await db.fetchrow(self._parts, self._tenant)
        if row is None or not row["parts"] or not any(needles):
            return [{} for _ in terms]
        parts = row["parts"]
        found, holding = await self._of_words(db, needles, numbers, parts, row["terms"] / parts)
        left = {needle for needle in needles if needle and needle not in found}
        weights = {
            needle: max(inverse_frequency(holding[f" {word} "], parts) for word in needle.split())
            for needle in left
            if all(holding[f" {word} "] for word in needle.split())
        }
        found |= await self._newest(db, weights, numbers, parts, most)
        return [found.get(needle, {}) for needle in needles]

    async def _of_words(
        self, db: Any, needles: Sequence[str], numbers: Collection[int] | None, parts: int, average: float
    ) -> tuple[Found, dict[str, int]]:
        """The parts that hold the words that are not common, with their scores, and how many parts hold each word."""
        words = {f" {word} " for needle in needles for word in needle.split()}
        common = {word for word in words if 0.9 * parts <= self._known.get(word, (0, 0))[1] <= parts * 1.1}
        found, holding = Found(), {word: self._known[word][0] for word in common}
        scope = None if numbers is None else list(numbers)
        rare = list(words - common)
        for word, there, *of in await db.fetch(self._found, self._tenant, rare, scope) if rare else ():
            holding[word] = there
            if there <= COMMON:
                found[word] = _scores(*of, idf=inverse_frequency(there, parts), average=average)
        new = [word for word in rare if word not in found]
        if len(self._known) + len(new) > KNOWN:
            self._known.clear()
        for word, count in await db.fetch(self._holding, self._tenant, new) if new else ():
            holding[word] = count
            self._known[word] = count, parts
        return found, holding

    async def _newest(
        self, db: Any, weights: Mapping[str, float], numbers: Collection[int] | None, parts: int, most: int
    ) -> Found:
        """The newest parts that hold common words, and phrases, with what each adds."""
        some = numbers is not None and len(numbers) <= RANGES
        of = [(number, number + 1) for number in numbers or ()] if some else [(0, 1 << 63 - SEQ_BITS - PART_BITS)]
        lows, highs = [key_of(low, 0) for low, _ in of], [key_of(high, 0) - 1 for _, high in of]
        bounds = lows, highs, most, None if numbers is None or some else list(numbers)
        keys: dict[str, list[int]] = {needle: [] for needle in weights}
        for statement, back in ((self._back, True), (self._sorted, False)):
            asked = [one for one in weights if self._is_met_going_back(one, some, parts, most) is back]
            for needle, key in await db.fetch(statement, self._tenant, asked, *bounds) if asked else ():
                keys[needle].append(key)
        return {needle: dict.fromkeys(there, weights[needle]) for needle, there in keys.items()}

    def _is_met_going_back(self, needle: str, some: bool, parts: int, most: int) -> bool:
        """Whether going back through all parts meets enough of those that hold it before all of these were sorted."""
        if needle not in self._known:
            return False
        return some or self._known[needle][0] ** 2 > most * parts


def _needle(term: str) -> str:
    """A term as it stands in the words of a part; nothing for what cannot stand in any."""
    words = fit(term).split()
    return f" {'  '.join(words)} " if words else ""


def _scores(
    keys: list[int] | None, lengths: list[int] | None, counts: list[int] | None, *, idf: float, average: float
) -> dict[int, float]:
    """BM25 of each part, as SQLite's FTS5 has it."""
    found = zip(keys or (), lengths or (), counts or (), strict=True)
    return {key: idf * (K1 + 1) * count / (count + K1 * (1 - B + B * length / average)) for key, length, count in found}
