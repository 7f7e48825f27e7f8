"""The result of a search: passages, each a piece of an entry, and their packing and rendering as one text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from palimpsest.formats.fences import HIDDEN, fenced
from palimpsest.log.entry import Entry, Kind, Role, moment
from palimpsest.recall.search import highlighted

LETTERS = 16
"""About the most characters of a token. A text longer than this times the budget cannot fit and is not counted."""


class Passage(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A piece of an entry: its characters `start` to `end` as `text`, with the `session`, `id` and `seq` of the entry,
    which was written `at` (microseconds since 1970, UTC).

    `kind`, `role` and `name` are the entry's: who said it, or which tool. `score` says how well it answers: 1 for the
    best hit, 0 for a neighbour of a hit, where `is_hit` is False. `matched` are the ranges of characters in `text`
    (first and end) that match the query. `chars` is the length of the whole entry, `tokens` what the passage costs in
    `Recalled.text`.
    """

    session: str
    id: str
    seq: int
    kind: Kind
    role: Role
    name: str | None
    at: int
    text: str
    start: int
    end: int
    score: float = 0.0
    is_hit: bool = True
    matched: tuple[tuple[int, int], ...] = ()
    chars: int = 0
    tokens: int = 0

    @property
    def created_at(self) -> datetime:
        """When the entry was written, UTC."""
        return moment(self.at)

    @property
    def heading(self) -> str:
        """A line that says when the entry was written, and who said it."""
        speaker = f"{self.role} {_label(self.name)}" if self.name else self.role
        kind = "" if self.kind == "message" else f", {self.kind.replace('_', ' ')}"
        return f"[{self.created_at:%Y-%m-%d %H:%M}, {speaker}{kind}, entry {self.seq}]"

    @property
    def shown(self) -> str:
        """The passage with its heading, and dots where the entry continues before or behind it.

        Lines of it that could be taken for a heading are quoted.
        """
        before, behind = "… " if self.start else "", " …" if self.end < self.chars else ""
        return f"{self.heading}\n{before}{_quoted(self.text)}{behind}"


def passage_of(
    session: str, entry: Entry, whole: str, span: tuple[int, int], *, score: float = 0.0, is_hit: bool = False
) -> Passage:
    """Return the characters from the first to the end of `span` of an entry, whose text is `whole`."""
    start, end = span
    return Passage(
        session=session,
        id=entry.id,
        seq=entry.seq,
        kind=entry.kind,
        role=entry.role,
        name=entry.name,
        at=entry.at,
        text=whole[start:end],
        start=start,
        end=end,
        chars=len(whole),
        score=score,
        is_hit=is_hit,
    )


class Recalled(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The result of a search: `passages` in reading order, session by session, and what their `text` costs in `tokens`.

    `found` is how many entries answered, `left_out` how many of these did not fit into the budget.
    """

    passages: tuple[Passage, ...] = ()
    tokens: int = 0
    found: int = 0
    left_out: int = 0

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self.passages)

    @property
    def hits(self) -> tuple[Passage, ...]:
        """The passages that answer, best first, without their neighbours."""
        return tuple(sorted((each for each in self.passages if each.is_hit), key=lambda each: -each.score))

    @property
    def text(self) -> str:
        """All passages as one text for a prompt: fenced, so that nothing in them can pass for anything but data."""
        return rendered(self.passages) if self.passages else ""


class IndexStatus(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The state of a tenant's search index: `where` it is, for people, and whether it `is_kept` there for other
    processes, or made anew by each.

    `sessions`, `entries` and `parts` are the numbers of those in it. `stale` parts are of entries that are gone: no
    search finds them, but their words stay in the index until it is rebuilt. `bytes` is its size, of all tenants that
    share it. `behind` is how many sessions have new entries that the index has not taken in yet; the next search does.
    """

    where: str
    is_kept: bool
    sessions: int
    entries: int
    parts: int
    stale: int
    bytes: int
    behind: int


def rendered(passages: Iterable[Passage]) -> str:
    """Return passages as one fenced text, with a heading for each session if there are several.

    Args:
        passages: in reading order.
    """
    return fenced("context", plain(passages), name="recalled")


def plain(passages: Iterable[Passage]) -> str:
    """Return the same text as `rendered`, without the fence.

    Args:
        passages: in reading order.
    """
    lines = list[str]()
    listed = list(passages)
    has_several_sessions = len({passage.session for passage in listed}) > 1
    last = None
    for passage in listed:
        if has_several_sessions and passage.session != last:
            lines.append(f"# session {_label(passage.session)}")
            last = passage.session
        lines.append(passage.shown)
    return "\n".join(lines)


_LIKE_HEADING = re.compile(
    rf"((?:\A|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])[\s{HIDDEN}]*)(?=\[[\s{HIDDEN}]*\d{{4}}-|#+[\s{HIDDEN}]*session\b)",
    re.IGNORECASE,
)


def _quoted(text: str) -> str:
    """Put `> ` before text that begins a line like a heading, so that no words pass for those of another speaker."""
    return _LIKE_HEADING.sub(r"\1> ", text) if "[" in text or "#" in text else text


def _label(name: str) -> str:
    """Return a name for use in a heading, without brackets and line breaks that could end the heading."""
    return " ".join(name.split()).translate(_BRACKETS)


_BRACKETS = str.maketrans("[]", "()")


SHORTEST = 60
"""The least characters to which a passage is cut to fit."""


def has_room(
    ranked: Sequence[Passage], most: int | None, count: Callable[[str], int], terms: Sequence[str] = ()
) -> bool:
    """Return whether the budget has room beside these passages, at least for a heading.

    Args:
        ranked: hits, best first.
        most: the budget in tokens; None: no limit, so there is always room.
        count: counts the tokens of a text.
        terms: the terms of the query.
    """
    if most is None:
        return True
    chosen = _fitting(ranked, most, count, terms)
    room = most - count(rendered(())) - sum(passage.tokens for passage in chosen)
    return bool(chosen) and room > count(chosen[0].heading)


def packed(
    ranked: Sequence[Passage],
    beside: Sequence[Passage],
    most: int | None,
    count: Callable[[str], int],
    terms: Sequence[str] = (),
) -> tuple[list[Passage], int]:
    """Return as many passages as fit into the budget, in reading order, and their tokens as one text.

    Hits are taken first, the best ones before others, then their neighbours. The best hit is cut if it does not fit.

    Args:
        ranked: hits, best first.
        beside: neighbours of hits, in the order of the hits.
        most: the budget in tokens; None: no limit.
        count: counts the tokens of a text.
        terms: the terms of the query: a hit that is cut keeps the text around the first of them.
    """
    if most is None:
        chosen = [msgspec.structs.replace(passage, tokens=count(passage.shown)) for passage in (*ranked, *beside)]
    else:
        chosen = _fitting((*ranked, *beside), most, count, terms)
    order = _order(chosen)
    tokens = count(rendered(order)) if order else 0
    while order and most is not None and tokens > most:
        chosen.pop()  # `_fitting` adds up single counts, which only estimates the count of the whole text
        order = _order(chosen)
        tokens = count(rendered(order)) if order else 0
    return order, tokens


def _fitting(
    passages: Sequence[Passage], most: int, count: Callable[[str], int], terms: Sequence[str]
) -> list[Passage]:
    """Return the passages that fit, by the sum of their single counts. Those that do not fit are passed over."""
    room, chosen = most - count(rendered(())), list[Passage]()
    sessions = set[str]()
    for i, whole in enumerate(passages):
        if i and len(whole.text) > LETTERS * room:
            continue
        heading_cost = 0 if whole.session in sessions else count(f"# session {whole.session}\n")
        passage, cost = whole, count(whole.shown) + 1
        if i == 0 and cost + heading_cost > room:
            passage = _cut(whole, room - heading_cost - 1, count, terms)
            cost = count(passage.shown) + 1
        if cost + heading_cost <= room:
            chosen.append(msgspec.structs.replace(passage, tokens=cost))
            sessions.add(passage.session)
            room -= cost + heading_cost
    return chosen


def _cut(whole: Passage, most: int, count: Callable[[str], int], terms: Sequence[str]) -> Passage:
    """Cut a passage to fit into `most` tokens, around the first match of the query. Return it whole if no cut fits."""
    matched = highlighted(whole.text, terms)
    first, size = matched[0][0] if matched else 0, len(whole.text)
    while (size := size * 2 // 3) >= SHORTEST:
        begin = max(0, min(first - size // 4, len(whole.text) - size))
        start, text = whole.start + begin, whole.text[begin : begin + size]
        piece = msgspec.structs.replace(whole, text=text, start=start, end=start + size)
        if count(piece.shown) <= most:
            return piece
    return whole


def _order(passages: Sequence[Passage]) -> list[Passage]:
    """Sort passages into reading order: the session of the best one first, and each session in the order of its log."""
    ranks = dict[str, int]()
    for passage in passages:
        ranks.setdefault(passage.session, len(ranks))
    return sorted(passages, key=lambda passage: (ranks[passage.session], passage.seq, passage.start))
