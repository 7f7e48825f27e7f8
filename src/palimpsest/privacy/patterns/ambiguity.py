"""Whether a regular expression can backtrack exponentially, decided from its syntax alone. Pure; no text is ever tried.

A backtracking engine takes exponential time if it can read the same text in exponentially many ways. An automaton can
do that exactly if some state comes back to itself on two different paths over one word (Weber and Seidl, "On the degree
of ambiguity of finite automata", 1991; for patterns: Weideman and others, "Analyzing matching time behavior of
backtracking regular expression matchers by using ambiguity of NFA", 2016). So the pattern is turned into Glushkov's
automaton, in which every place of the pattern that reads a character is a state. Its edges are counted, because `(a*)*`
has two ways from `a` to `a`. Then two readers start together in a loop of the automaton: they must never be able to
part and meet again over the same characters.

This finds nested repeats (star height) that overlap and accepts those that do not: `(\\d{3}-)+` is fine. Polynomial
time (`.*.*x`) is not refused: the linear engine or the timeout deals with it. Character classes are those of ASCII, and
alternatives of one character each are a class, as in the engines. What is not regular is over-approximated: a
back-reference reads any character, `^` and `$` demand nothing; `\\b` and `\\B` are respected. Atomic groups and
look-arounds are checked separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from palimpsest.log.spans import union
from palimpsest.privacy.patterns.characters import ALL, WORD, Ranges, characters, negated, overlap
from palimpsest.privacy.patterns.loops import loops_of

MANY = 10
"""A repeat of this many times or more counts as unbounded if its body is ambiguous when repeated. `(a+){9}` is merely
slow, and every further repeat multiplies its time."""

MOST_COPIES = 256
"""A bounded repeat is written out as up to so many places; a larger one is treated as unbounded."""

MOST_WORK = 2_000_000
"""Steps after which a pattern counts as too large to check: about two seconds."""

NESTED = "a repeat inside a repeat can share out the same text in exponentially many ways"
OVERLAP = (
    "alternatives or neighbours inside a repeat overlap, so that it can read the same text in exponentially many ways"
)
LARGE = f"its body, repeated up to {MANY} times or more, can read the same text in too many ways"
COMPLEX = "it is too large to be checked; split it into several"

_Guard = str
"""What must hold between two adjacent characters: "" nothing, "b" a word boundary, "B" no word boundary."""

_Ways = dict[tuple[int, _Guard], int]
"""Places, each with the guard before or after it, and in how many ways it is reached (2 means more than one)."""


class Ambiguous(Exception):
    """The pattern can backtrack exponentially, or is too large to tell; `reason` says which."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def check(pattern: str) -> None:
    """Raise Ambiguous if the pattern, which `re` must accept, can backtrack exponentially."""
    parsed = _parsed(pattern)
    automaton = _Automaton(_Work())
    automaton.sequence(parsed, parsed.state.flags)
    automaton.check()


@lru_cache(maxsize=256)
def spelled_out(pattern: str) -> int:
    """Return how many places the counted repeats of a pattern add when they are written out.

    `re` must accept the pattern.
    """
    tree = _parsed(pattern)
    return _size(tree) - _size(tree, counted=False)


@lru_cache(maxsize=4)  # `check` and `spelled_out` are called for a pattern one after the other
def _parsed(pattern: str) -> Any:
    return _parser.parse(pattern)


class _Work:
    """Counts the steps that checking one pattern takes, which are quadratic at worst."""

    steps = 0

    def spend(self, steps: int) -> None:
        """Count steps. Raises Ambiguous if they become too many."""
        self.steps += steps
        if self.steps > MOST_WORK:
            raise Ambiguous(COMPLEX)


class _Piece(NamedTuple):
    """A part of the pattern: the ways in which it matches nothing, its first places, and its last places."""

    empty: dict[_Guard, int]
    first: _Ways
    last: _Ways


_NOTHING = _Piece({"": 1}, {}, {})
_NEVER = _Piece({}, {}, {})


_GUARDS: dict[Any, _Guard] = {op.AT_BOUNDARY: "b", op.AT_NON_BOUNDARY: "B"}


class _Automaton:
    """Glushkov's automaton of a pattern. `edges[p][q]` counts the ways from place `p` to place `q`, up to 2."""

    def __init__(self, work: _Work) -> None:
        self.reads: list[Ranges] = []
        self.edges: list[dict[int, int]] = []
        self.work = work

    # --- building

    def sequence(self, tree: Iterable[Any], flags: int) -> _Piece:
        piece = _NOTHING
        for code, value in tree:
            piece = self._concatenated(piece, self._node(code, value, flags))
        return piece

    def _node(self, code: Any, value: Any, flags: int) -> _Piece:
        """Add one node of the parsed pattern, and return its piece."""
        reads = ALL if code is op.GROUPREF else characters(code, value, flags)
        if reads is not None:
            return self._place(reads)
        if code is op.MAX_REPEAT or code is op.MIN_REPEAT:
            least, most, body = value
            return self._repeat(least, most, body, flags)
        if code is op.BRANCH or code is op.GROUPREF_EXISTS:
            branches = value[1] if code is op.BRANCH else value[1:]
            return _either([self.sequence(branch or (), flags) for branch in branches])
        return self._group(code, value, flags)

    def _group(self, code: Any, value: Any, flags: int) -> _Piece:
        """Add a group, an assertion or an anchor, and return its piece."""
        if code is op.SUBPATTERN:
            _, on, off, inner = value
            return self.sequence(inner, (flags | on) & ~off)
        if code is op.POSSESSIVE_REPEAT or code is op.ATOMIC_GROUP:
            least, body = (value[0], value[2]) if code is op.POSSESSIVE_REPEAT else (1, value)
            return self._atom(body, flags, optional=not least or body.getwidth()[0] == 0)
        if code is op.ASSERT or code is op.ASSERT_NOT:
            self._apart(value[1], flags).check()
            return _NOTHING
        if code is op.AT:
            return _Piece({_GUARDS.get(value, ""): 1}, {}, {})
        return _NEVER  # FAILURE, as of `(?!)`

    def _place(self, reads: Ranges) -> _Piece:
        self.work.spend(1)
        place = len(self.reads)
        self.reads.append(reads)
        self.edges.append({})
        return _Piece({}, {(place, ""): 1}, {(place, ""): 1})

    def _concatenated(self, left: _Piece, right: _Piece) -> _Piece:
        """Return the piece that matches one piece and then another."""
        if left is _NOTHING or right is _NOTHING:  # a shortcut: the general case below gives the same
            return right if left is _NOTHING else left
        self._connect(left.last, right.first)
        empty: dict[_Guard, int] = {}
        for before, ways in left.empty.items():
            for after, further in right.empty.items():
                _add(empty, _combined(before, after), ways * further)
        return _Piece(empty, _beyond(left.first, left.empty, right.first), _beyond(right.last, right.empty, left.last))

    def _connect(self, lasts: _Ways, firsts: _Ways) -> None:
        self.work.spend(len(lasts) * len(firsts))
        for (p, before), ways in lasts.items():
            for (q, after), further in firsts.items():
                guard = _combined(before, after)
                if guard is not None and _may_adjoin(guard, self.reads[p], self.reads[q]):
                    self.edges[p][q] = min(self.edges[p].get(q, 0) + ways * further, 2)

    def loop(self, piece: _Piece) -> _Piece:
        """Return the piece repeated once or more.

        If it can match nothing, a last empty round is one more way to leave it.
        """
        self._connect(piece.last, piece.first)
        if not piece.empty:
            return piece
        return _Piece(piece.empty, piece.first, {place: min(2 * ways, 2) for place, ways in piece.last.items()})

    def _repeat(self, least: int, most: int, body: Any, flags: int) -> _Piece:
        """Return the piece of a repeat, written out; a large one as a loop."""
        size = _size(body)
        unbounded = most == op.MAXREPEAT or most * size > MOST_COPIES
        if most != op.MAXREPEAT and most >= MANY and not _is_one_character(body):
            self._check_large(body, flags)
        copies = min(least, max(MOST_COPIES // size, 1)) - unbounded
        piece = _NOTHING
        for _ in range(copies):
            piece = self._concatenated(piece, self.sequence(body, flags))
        if unbounded:
            looped = self.loop(self.sequence(body, flags))
            return self._concatenated(piece, looped if least else _optional(looped))
        rest = _NOTHING
        for _ in range(most - least):  # from the inside out: x(x(x)?)?
            rest = _optional(self._concatenated(self.sequence(body, flags), rest))
        return self._concatenated(piece, rest)

    def _check_large(self, body: Any, flags: int) -> None:
        trial = _Automaton(self.work)
        trial.loop(trial.sequence(body, flags))
        try:
            trial.check()
        except Ambiguous as fault:
            raise Ambiguous(fault.reason if fault.reason == COMPLEX else LARGE) from None

    def _atom(self, body: Any, flags: int, *, optional: bool) -> _Piece:
        """Return one place that reads all that the body reads: an atomic group that has matched is never entered
        again."""
        inside = self._apart(body, flags)
        inside.check()
        piece = self._place(union(*inside.reads))
        return _optional(piece) if optional else piece

    def _apart(self, body: Any, flags: int) -> _Automaton:
        """Return a separate automaton for a part of the pattern."""
        apart = _Automaton(self.work)
        apart.sequence(body, flags)
        return apart

    # --- checking

    def check(self) -> None:
        """Raise Ambiguous if two readers that start together in a loop can part and meet again."""
        loops = loops_of(self.edges)
        inner = [
            {q: ways for q, ways in following.items() if loops[p] == loops[q]} if loops[p] >= 0 else {}
            for p, following in enumerate(self.edges)
        ]
        if any(ways > 1 for following in inner for ways in following.values()):
            raise Ambiguous(NESTED)
        overlaps: dict[tuple[Ranges, Ranges], bool] = {}

        def together(p: int, q: int) -> Iterable[tuple[int, int]]:
            for left in inner[p]:
                for right in inner[q]:
                    pair = self.reads[left], self.reads[right]
                    if pair not in overlaps:
                        overlaps[pair] = overlap(*pair)
                    if overlaps[pair]:
                        yield (left, right) if left < right else (right, left)
            self.work.spend(len(inner[p]) * len(inner[q]))

        parted: set[tuple[int, int]] = set()
        waiting = [pair for p in range(len(inner)) for pair in together(p, p) if pair[0] != pair[1]]
        while waiting:
            pair = waiting.pop()
            if pair not in parted:
                parted.add(pair)
                following = list(together(*pair))
                if any(left == right for left, right in following):
                    raise Ambiguous(OVERLAP)
                waiting.extend(following)


def _add(ways: dict[Any, int], key: Any, more: int) -> None:
    if key is not None:
        ways[key] = min(ways.get(key, 0) + more, 2)


def _combined(left: _Guard, right: _Guard) -> _Guard | None:
    """Return the guard that stands for both; None if they contradict each other."""
    if left and right and left != right:
        return None
    return left or right


def _beyond(near: _Ways, empty: Mapping[_Guard, int], far: _Ways) -> _Ways:
    """Return the near places, and those far places that are reached because what lies between can match nothing."""
    reached = dict(near)
    for guard, ways in empty.items():
        for (place, held), further in far.items():
            both = _combined(guard, held)
            _add(reached, None if both is None else (place, both), ways * further)
    return reached


def _size(tree: Iterable[Any], *, counted: bool = True) -> int:
    """Return roughly how many places a part of the pattern has, at least 1.

    With `counted` its repeats are written out.
    """
    size = 0
    for code, value in tree:
        if code in _REPEATS:
            times = max(value[0], 1) if value[1] == op.MAXREPEAT else max(value[1], 1)
            size += _size(value[2], counted=counted) * (times if counted else 1)
        elif code is op.SUBPATTERN:
            size += _size(value[3], counted=counted)
        elif code is op.BRANCH:
            size += sum(_size(branch, counted=counted) for branch in value[1])
        else:
            size += 1
    return max(size, 1)


def _is_one_character(body: Any) -> bool:
    return len(body) == 1 and body[0][0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)


_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


def _either(pieces: Iterable[_Piece]) -> _Piece:
    """Return the piece that matches any of these pieces."""
    joined = _Piece({}, {}, {})
    for piece in pieces:
        for guard, ways in piece.empty.items():
            _add(joined.empty, guard, ways)
        for into, places in ((joined.first, piece.first), (joined.last, piece.last)):
            for place, ways in places.items():
                _add(into, place, ways)
    return joined


def _optional(piece: _Piece) -> _Piece:
    return _either([piece, _NOTHING])


def _may_adjoin(guard: _Guard, left: Ranges, right: Ranges) -> bool:
    """Return whether a character of `left` may stand before a character of `right` under this guard."""
    if not guard:
        return True
    ends = [(overlap(reads, WORD), overlap(reads, negated(WORD))) for reads in (left, right)]
    (word, none), (next_word, next_none) = ends
    if guard == "b":
        return (word and next_none) or (none and next_word)
    return (word and next_word) or (none and next_none)
