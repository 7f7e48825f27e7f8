"""Find the parts that hold terms, with their scores: one statement if all terms are rare.

A common word, as `palimpsest.recall.index.COMMON` says, takes a second statement. If many parts hold it, the newest of
them are found by reading all parts backwards, otherwise by sorting those that hold it. How many hold it is counted
once, and again when the index has grown or shrunk by a tenth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from palimpsest.recall.index import COMMON, RANGES, CommonWords, fit
from palimpsest.recall.postgres.layout import found_by
from palimpsest.recall.postings import K1, PART_BITS, SEQ_BITS, B, inverse_frequency, key_of

_HOLDS = f"{found_by('p.words', 'p.tenant')} @> {found_by(chr(39) + ' ' + chr(39) + ' || a.needle', 't.number')}"
"""SQL: whether a part holds all words of a needle. The tenant's number stands before each of them."""

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
"""SQL: the parts that hold each word and how often it stands there; of a common word only that it is common."""

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
"""SQL: the newest parts in ranges of keys that hold a word or a phrase. `SORTED` uses the index of terms, `BACK` reads
all parts."""

Found = dict[str, Mapping[int, float]]


class Matching:
    """Finds parts of one tenant over a connection, and remembers which words are common.

    A *needle* is a word, or words side by side, as they stand in the words of a part.
    """

    def __init__(self, schema: str, tenant: str) -> None:
        self._tenant = tenant
        self._common = CommonWords()
        over = (text.replace("{s}", schema) for text in (PARTS, FOUND, HOLDING, SORTED, BACK))
        self._parts, self._found, self._holding, self._sorted, self._back = over

    def forget(self) -> None:
        """Forget which words are common."""
        self._common.clear()

    async def matches(
        self, db: Any, terms: Sequence[str], numbers: Collection[int] | None, most: int
    ) -> list[Mapping[int, float]]:
        """See `Index.matches`."""
        needles = [_needle(term) for term in terms]
        row = await db.fetchrow(self._parts, self._tenant)
        if row is None or not row["parts"] or not any(needles):
            return [{} for _ in terms]
        parts = row["parts"]
        found, holding = await self._of_words(db, needles, numbers, parts, row["terms"] / parts)
        unscored = {needle for needle in needles if needle and needle not in found}
        weights = {
            needle: max(inverse_frequency(holding[f" {word} "], parts) for word in needle.split())
            for needle in unscored
            if all(holding[f" {word} "] for word in needle.split())
        }
        found |= await self._newest(db, weights, numbers, parts, most)
        return [found.get(needle, {}) for needle in needles]

    async def _of_words(
        self, db: Any, needles: Sequence[str], numbers: Collection[int] | None, parts: int, average: float
    ) -> tuple[Found, dict[str, int]]:
        """Return the parts that hold the rare words, with their scores, and how many parts hold each word."""
        words = {f" {word} " for needle in needles for word in needle.split()}
        counts = {word: self._common.count(word, parts) for word in words}
        found, holding = Found(), {word: count for word, count in counts.items() if count is not None}
        scope = None if numbers is None else list(numbers)
        rare = [word for word in words if word not in holding]
        for word, count, *columns in await db.fetch(self._found, self._tenant, rare, scope) if rare else ():
            holding[word] = count
            if count <= COMMON:
                found[word] = _scores(*columns, idf=inverse_frequency(count, parts), average=average)
        newly_common = [word for word in rare if word not in found]
        for word, exact in await db.fetch(self._holding, self._tenant, newly_common) if newly_common else ():
            holding[word] = exact
            self._common.note(word, exact, parts)
        return found, holding

    async def _newest(
        self, db: Any, weights: Mapping[str, float], numbers: Collection[int] | None, parts: int, most: int
    ) -> Found:
        """Return the newest parts that hold common words or phrases, with what each of these adds to the score."""
        few_sessions = numbers is not None and len(numbers) <= RANGES
        ranges = (
            [(number, number + 1) for number in numbers or ()]
            if few_sessions
            else [(0, 1 << 63 - SEQ_BITS - PART_BITS)]
        )
        lows, highs = [key_of(low, 0) for low, _ in ranges], [key_of(high, 0) - 1 for _, high in ranges]
        bounds = lows, highs, most, None if numbers is None or few_sessions else list(numbers)
        keys: dict[str, list[int]] = {needle: [] for needle in weights}
        for statement, back in ((self._back, True), (self._sorted, False)):
            asked = [needle for needle in weights if self._is_met_going_back(needle, few_sessions, parts, most) is back]
            for needle, key in await db.fetch(statement, self._tenant, asked, *bounds) if asked else ():
                keys[needle].append(key)
        return {needle: dict.fromkeys(found, weights[needle]) for needle, found in keys.items()}

    def _is_met_going_back(self, needle: str, few_sessions: bool, parts: int, most: int) -> bool:
        """Return whether reading all parts backwards finds enough of them sooner than sorting those that hold the
        needle."""
        count = self._common.count(needle, parts)
        return count is not None and (few_sessions or count**2 > most * parts)


def _needle(term: str) -> str:
    """Return a term as it stands in the words of a part; "" for one that cannot stand in any."""
    words = fit(term).split()
    return f" {'  '.join(words)} " if words else ""


def _scores(
    keys: list[int] | None, lengths: list[int] | None, counts: list[int] | None, *, idf: float, average: float
) -> dict[int, float]:
    """Return the BM25 score of each part, as SQLite's FTS5 computes it."""
    parts = zip(keys or (), lengths or (), counts or (), strict=True)
    return {key: idf * (K1 + 1) * count / (count + K1 * (1 - B + B * length / average)) for key, length, count in parts}
