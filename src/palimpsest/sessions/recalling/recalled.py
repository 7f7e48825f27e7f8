"""What a search returns: passages, each a piece of an entry, and all of them as one text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from palimpsest.formats.fences import HIDDEN, fenced
from palimpsest.log.entry import Kind, Role, moment
from palimpsest.recall.search import highlighted

LETTERS = 16
"""Characters of a token, at most about: what is behind so many is not counted to see whether it has room."""


class Passage(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A piece of what was said: `text`, from `session`, the characters `start` to `end` of the entry of this `id` and
    `seq`, which was written `at` (microseconds since 1970, UTC).

    `kind`, `role` and `name` are the entry's: who said it, or which tool. `score` tells how well it answers: 1 for the
    best hit, 0 for what stands beside one, where `is_hit` is False. `matched` are the characters of `text`, first and
    end, that the query asked for. `chars` is how many characters the whole entry has, `tokens` what the passage costs
    as `Recalled.text` has it.
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
        """When it was written, UTC."""
        return moment(self.at)

    @property
    def heading(self) -> str:
        """A line that says when it was written, and who said it."""
        who = f"{self.role} {_label(self.name)}" if self.name else self.role
        what = "" if self.kind == "message" else f", {self.kind.replace('_', ' ')}"
        return f"[{self.created_at:%Y-%m-%d %H:%M}, {who}{what}, entry {self.seq}]"

    @property
    def shown(self) -> str:
        """The passage with its heading, and dots where more of the entry stands before or behind it. Lines of it that
        could be taken for a heading are quoted."""
        before, behind = "… " if self.start else "", " …" if self.end < self.chars else ""
        return f"{self.heading}\n{before}{_quoted(self.text)}{behind}"


class Recalled(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What a search has found: `passages` in the order in which they are read, session by session, and what they cost
    as `text`, in `tokens`.

    `found` is how many entries answered, `left_out` how many of these had no room.
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
        """What answers, best first, without what stands beside it."""
        return tuple(sorted((one for one in self.passages if one.is_hit), key=lambda one: -one.score))

    @property
    def text(self) -> str:
        """All passages as one text for a prompt: fenced, so that nothing in them can pass for anything but data."""
        return rendered(self.passages) if self.passages else ""


class IndexStatus(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The search index of a tenant: `where` it is, for people, and whether it `is_kept` there for other processes, or
    made anew by each.

    `sessions`, `entries` and their `parts` are in it; `stale` parts are of what is gone: nobody finds them, and their
    words are there until it is rebuilt. `bytes` is its size, of all tenants that share it. `behind` is how many
    sessions have had something that it has not taken in yet: the next search does.
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
    """Return passages as one fenced text, under the names of their sessions where there are several.

    Args:
        passages: in the order in which they are read.
    """
    return fenced("context", plain(passages), name="recalled")


def plain(passages: Iterable[Passage]) -> str:
    """Return the same without the fence.

    Args:
        passages: in the order in which they are read.
    """
    lines = list[str]()
    given = list(passages)
    several = len({one.session for one in given}) > 1
    last = None
    for one in given:
        if several and one.session != last:
            lines.append(f"# session {_label(one.session)}")
            last = one.session
        lines.append(one.shown)
    return "\n".join(lines)


_LIKE_HEADING = re.compile(
    rf"((?:\A|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])[\s{HIDDEN}]*)(?=\[[\s{HIDDEN}]*\d{{4}}-|#+[\s{HIDDEN}]*session\b)",
    re.IGNORECASE,
)


def _quoted(text: str) -> str:
    """The text with `> ` before what begins a line as a heading does: so nobody's words pass for somebody else's."""
    return _LIKE_HEADING.sub(r"\1> ", text) if "[" in text or "#" in text else text


def _label(name: str) -> str:
    """A name as it stands in a heading, which it cannot end."""
    return " ".join(name.split()).translate(_BRACKETS)


_BRACKETS = str.maketrans("[]", "()")


SHORTEST = 60
"""Characters that are left, at least, of a passage that is cut to have room."""


def has_room(
    ranked: Sequence[Passage], most: int | None, count: Callable[[str], int], terms: Sequence[str] = ()
) -> bool:
    """Whether there is room left beside these passages in so many tokens (None: always), if only for a heading.

    Args:
        ranked: hits, best first.
        most: tokens; None: no limit.
        count: what counts tokens.
        terms: what the query asked for.
    """
    if most is None:
        return True
    chosen = _fitting(ranked, most, count, terms)
    left = most - count(rendered(())) - sum(one.tokens for one in chosen)
    return bool(chosen) and left > count(chosen[0].heading)


def packed(
    ranked: Sequence[Passage],
    beside: Sequence[Passage],
    most: int | None,
    count: Callable[[str], int],
    terms: Sequence[str] = (),
) -> tuple[list[Passage], int]:
    """Return as many passages as have room in so many tokens (None: any number), the best first, then what stands
    beside them, in reading order, and what they cost. The best hit is cut, where that gives it room.

    Args:
        ranked: hits, best first.
        beside: what stands beside hits, in the order of these.
        most: tokens; None: no limit.
        count: what counts tokens.
        terms: what the query asked for: of a hit that is cut what stands around it is left.
    """
    if most is None:
        chosen = [msgspec.structs.replace(one, tokens=count(one.shown)) for one in (*ranked, *beside)]
    else:
        chosen = _fitting((*ranked, *beside), most, count, terms)
    order = _order(chosen)
    tokens = count(rendered(order)) if order else 0
    while order and most is not None and tokens > most:
        chosen.pop()  # the sum of pieces is a good guess, and no more than that
        order = _order(chosen)
        tokens = count(rendered(order)) if order else 0
    return order, tokens


def _fitting(
    passages: Sequence[Passage], most: int, count: Callable[[str], int], terms: Sequence[str]
) -> list[Passage]:
    left, chosen = most - count(rendered(())), list[Passage]()
    sessions = set[str]()
    for i, given in enumerate(passages):
        if i and len(given.text) > LETTERS * left:
            continue
        above = 0 if given.session in sessions else count(f"# session {given.session}\n")
        one, cost = given, count(given.shown) + 1
        if i == 0 and cost + above > left:
            one = _cut(given, left - above - 1, count, terms)
            cost = count(one.shown) + 1
        if cost + above <= left:
            chosen.append(msgspec.structs.replace(one, tokens=cost))
            sessions.add(one.session)
            left -= cost + above
    return chosen


def _cut(one: Passage, most: int, count: Callable[[str], int], terms: Sequence[str]) -> Passage:
    """What of a passage has room in so many tokens, around the first word that was asked for; all, if nothing has."""
    matched = highlighted(one.text, terms)
    first, size = matched[0][0] if matched else 0, len(one.text)
    while (size := size * 2 // 3) >= SHORTEST:
        begin = max(0, min(first - size // 4, len(one.text) - size))
        start, text = one.start + begin, one.text[begin : begin + size]
        piece = msgspec.structs.replace(one, text=text, start=start, end=start + size)
        if count(piece.shown) <= most:
            return piece
    return one


def _order(passages: Sequence[Passage]) -> list[Passage]:
    """Passages as they are read: the session of the best first, each in the order of its log."""
    ranks = dict[str, int]()
    for one in passages:
        ranks.setdefault(one.session, len(ranks))
    return sorted(passages, key=lambda one: (ranks[one.session], one.seq, one.start))
