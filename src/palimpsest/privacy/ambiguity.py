"""Whether a pattern can backtrack exponentially, told from its syntax alone. Pure; no text is ever tried.

A backtracking engine takes exponential time where it can read the same text in exponentially many ways, and an
automaton can do that exactly if some state comes back to itself on two different paths over one word (Weber and Seidl,
"On the degree of ambiguity of finite automata", 1991; for patterns: Weideman and others, "Analyzing matching time
behavior of backtracking regular expression matchers by using ambiguity of NFA", 2016). So the pattern becomes
Glushkov's automaton, in which every place of the pattern that reads a character is a state. Its edges are counted,
because `(a*)*` has two ways from `a` to `a`. Then two readers start together in a loop of the automaton: they must
never be able to part and meet again over the same characters.

That finds nested repeats (star height) where they overlap and leaves them alone where they do not: `(\\d{3}-)+` is
fine. Polynomial time (`.*.*x`) is not refused: the linear engine or the timeout deals with it. Character classes are
those of ASCII, and alternatives of one character each are a class, as in the engines. What is not regular is taken for
more than it is: a back-reference for any character, `^` and `$` for nothing; `\\b` and `\\B` are heeded. Atomic groups
and look-arounds are checked by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from palimpsest.log.spans import union
from palimpsest.privacy.characters import ALL, WORD, Ranges, characters, negated, overlap
from palimpsest.privacy.loops import loops_of

MANY = 10
"""A repeat of up to so many times counts as unbounded where its body is ambiguous when repeated: `(a+){9}` is merely
slow, and every further repeat multiplies."""

MOST_COPIES = 256
"""A bounded repeat is spelled out up to so many places; a larger one is taken for an unbounded one."""

MOST_WORK = 2_000_000
"""Steps after which a pattern counts as too large to check: about two seconds."""

NESTED = "a repeat inside a repeat can share out the same text in exponentially many ways"
OVERLAP = (
    "alternatives or neighbours inside a repeat overlap, so that it can read the same text in exponentially many ways"
)
LARGE = f"its body, repeated up to {MANY} times or more, can read the same text in too many ways"
COMPLEX = "it is too large to be checked; split it into several"

_Guard = str
"""What must hold between two characters that follow each other: "" nothing, "b" a word's boundary, "B" none."""

_Ways = dict[tuple[int, _Guard], int]
"""Places, each with what must hold before or after it, and in how many ways it is reached (2: more than one)."""


class Ambiguous(Exception):
    """The pattern can backtrack exponentially, or nobody can tell; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def check(pattern: str) -> None:
    """Raise Ambiguous where the pattern can backtrack exponentially. `pattern` is one that `re` takes."""
    parsed = _parsed(pattern)
    automaton = _Automaton(_Work())
    automaton.sequence(parsed, parsed.state.flags)
    automaton.check()


@lru_cache(maxsize=256)
def spelled_out(pattern: str) -> int:
    """How many places the counted repeats of a pattern add to it, spelled out. `pattern` is one that `re` takes."""
    tree = _parsed(pattern)
    return _size(tree) - _size(tree, counted=False)


@lru_cache(maxsize=4)  # both are asked of a pattern, one after the other
def _parsed(pattern: str) -> Any:
    return _parser.parse(pattern)


class _Work:
    """Counts steps, which are quadratic at worst; all that one pattern needs is counted together."""

    steps = 0

    def spend(self, steps: int) -> None:
        """Raises Ambiguous where it becomes too much."""
        self.steps += steps
        if self.steps > MOST_WORK:
            raise Ambiguous(COMPLEX)


class _Piece(NamedTuple):
    """A part of the pattern: the ways to match nothing with it, its first places and its last ones."""

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
            piece = self._then(piece, self._node(code, value, flags))
        return piece

    def _node(self, code: Any, value: Any, flags: int) -> _Piece:
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

    def _then(self, one: _Piece, two: _Piece) -> _Piece:
        if one is _NOTHING or two is _NOTHING:  # what comes of the rest is the other one, too
            return two if one is _NOTHING else one
        self._connect(one.last, two.first)
        empty: dict[_Guard, int] = {}
        for before, ways in one.empty.items():
            for after, more in two.empty.items():
                _add(empty, _both(before, after), ways * more)
        return _Piece(empty, _beyond(one.first, one.empty, two.first), _beyond(two.last, two.empty, one.last))

    def _connect(self, lasts: _Ways, firsts: _Ways) -> None:
        self.work.spend(len(lasts) * len(firsts))
        for (p, before), ways in lasts.items():
            for (q, after), more in firsts.items():
                guard = _both(before, after)
                if guard is not None and _may_adjoin(guard, self.reads[p], self.reads[q]):
                    self.edges[p][q] = min(self.edges[p].get(q, 0) + ways * more, 2)

    def loop(self, piece: _Piece) -> _Piece:
        """The piece, once or more. A last round that matches nothing is one more way to leave."""
        self._connect(piece.last, piece.first)
        if not piece.empty:
            return piece
        return _Piece(piece.empty, piece.first, {place: min(2 * ways, 2) for place, ways in piece.last.items()})

    def _repeat(self, least: int, most: int, body: Any, flags: int) -> _Piece:
        size = _size(body)
        unbounded = most == op.MAXREPEAT or most * size > MOST_COPIES
        if most != op.MAXREPEAT and most >= MANY and not _is_one_character(body):
            self._check_large(body, flags)
        copies = min(least, max(MOST_COPIES // size, 1)) - unbounded
        piece = _NOTHING
        for _ in range(copies):
            piece = self._then(piece, self.sequence(body, flags))
        if unbounded:
            looped = self.loop(self.sequence(body, flags))
            return self._then(piece, looped if least else _optional(looped))
        rest = _NOTHING
        for _ in range(most - least):  # from the inside out: x(x(x)?)?
            rest = _optional(self._then(self.sequence(body, flags), rest))
        return self._then(piece, rest)

    def _check_large(self, body: Any, flags: int) -> None:
        trial = _Automaton(self.work)
        trial.loop(trial.sequence(body, flags))
        try:
            trial.check()
        except Ambiguous as fault:
            raise Ambiguous(fault.reason if fault.reason == COMPLEX else LARGE) from None

    def _atom(self, body: Any, flags: int, *, optional: bool) -> _Piece:
        """What is never entered again once it has matched: one place that reads all that its body reads."""
        inside = self._apart(body, flags)
        inside.check()
        piece = self._place(union(*inside.reads))
        return _optional(piece) if optional else piece

    def _apart(self, body: Any, flags: int) -> _Automaton:
        """An automaton of its own for a part of the pattern."""
        apart = _Automaton(self.work)
        apart.sequence(body, flags)
        return apart

    # --- checking

    def check(self) -> None:
        """Raise Ambiguous where two readers that start together in a loop can part and meet again."""
        loops = loops_of(self.edges)
        inner = [
            {q: ways for q, ways in following.items() if loops[p] == loops[q]} if loops[p] >= 0 else {}
            for p, following in enumerate(self.edges)
        ]
        if any(ways > 1 for following in inner for ways in following.values()):
            raise Ambiguous(NESTED)
        overlaps: dict[tuple[Ranges, Ranges], bool] = {}

        def together(p: int, q: int) -> Iterable[tuple[int, int]]:
            for one in inner[p]:
                for other in inner[q]:
                    pair = self.reads[one], self.reads[other]
                    if pair not in overlaps:
                        overlaps[pair] = overlap(*pair)
                    if overlaps[pair]:
                        yield (one, other) if one < other else (other, one)
            self.work.spend(len(inner[p]) * len(inner[q]))

        parted: set[tuple[int, int]] = set()
        waiting = [pair for p in range(len(inner)) for pair in together(p, p) if pair[0] != pair[1]]
        while waiting:
            pair = waiting.pop()
            if pair not in parted:
                parted.add(pair)
                following = list(together(*pair))
                if any(one == other for one, other in following):
                    raise Ambiguous(OVERLAP)
                waiting.extend(following)


def _add(ways: dict[Any, int], key: Any, more: int) -> None:
    if key is not None:
        ways[key] = min(ways.get(key, 0) + more, 2)


def _both(one: _Guard, other: _Guard) -> _Guard | None:
    """What holds where both hold; None where they contradict each other."""
    if one and other and one != other:
        return None
    return one or other


def _beyond(near: _Ways, empty: Mapping[_Guard, int], far: _Ways) -> _Ways:
    """The near places, and the far ones as far as what lies between can match nothing."""
    found = dict(near)
    for guard, ways in empty.items():
        for (place, held), more in far.items():
            both = _both(guard, held)
            _add(found, None if both is None else (place, both), ways * more)
    return found


def _size(tree: Iterable[Any], *, counted: bool = True) -> int:
    """About how many places a part of the pattern has; 1 at least. Repeats are spelled out if they are `counted`."""
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
    found = _Piece({}, {}, {})
    for piece in pieces:
        for guard, ways in piece.empty.items():
            _add(found.empty, guard, ways)
        for into, places in ((found.first, piece.first), (found.last, piece.last)):
            for place, ways in places.items():
                _add(into, place, ways)
    return found


def _optional(piece: _Piece) -> _Piece:
    return _either([piece, _NOTHING])


def _may_adjoin(guard: _Guard, one: Ranges, other: Ranges) -> bool:
    """Whether a character of one may stand before a character of the other, given what must hold between them."""
    if not guard:
        return True
    ends = [(overlap(reads, WORD), overlap(reads, negated(WORD))) for reads in (one, other)]
    (word, none), (next_word, next_none) = ends
    if guard == "b":
        return (word and next_none) or (none and next_word)
    return (word and next_word) or (none and next_none)
