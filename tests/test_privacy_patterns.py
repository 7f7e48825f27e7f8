"""Users' patterns: which are refused and why, and that no accepted one runs away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import Redactor
from palimpsest.errors import ConfigError, PrivacyRefused
from palimpsest.privacy.patterns import allowed_seconds, compiled
from palimpsest.privacy.patterns.ambiguity import Ambiguous, check

ENGINES = pytest.mark.parametrize("linear", [True, False], ids=["re2", "regex"])

EXPONENTIAL = [
    *(r"(a+)+", r"(a*)*", r"(a|a)*", r"(.+)+", r"(x+x+)+y", r"(.*a){10,}"),
    *(r"(\d+,?)+$", r"(a|aa)+$", r"(\w+\s*)+$", r"([a-z]+)*$", r"(?:\w+\.?)+@", r"(ab|a|b)*$", r"^(.*?,){11}P"),
    *(r"(a+){10}", r"(\d{1,3},?){1,20}", r"(\d{1,3})+x", r"(?=(a+)+)b", r"(?>(a+)+b)", r"(a(b*|c*))*d", r"((a?)*b)*c"),
    *(r"(?:a?b?)*c", r"(?i)(?:a+A)+b", r"(?s)(?:.+\n?)+x", r"(.{0,1000},)+", "(" * 50 + "a" + ")*" * 50),
]
HARMLESS = [
    *(r"\b\d{3}-\d{2}-\d{4}\b", r"(\d{3}-)+\d{4}", r"(?i)(?:password|pwd)\s*[:=]\s*\S+"),
    *(r"(?:\d[ -]*?){13,16}", r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", r"(\w+\.)+\w+", r"(?:\b\w+\b\s*)+"),
    *(r"(\d{3})+", r"(\d{16}\s?)+", r"([0-9a-f]{2}:){5}[0-9a-f]{2}", r"(?:[A-Z0-9]{4} ?){2,7}", r"\d{1000}"),
    *(r"(?:foo|foobar)+", r"(?:(?!foo).)*", r"(['\"]).*?\1", r"(?>a+)+b", r"(a++)+", r".*.*=.*", r"(\d{1,3}){4}"),
    *(r"(?:\+\d{1,2}\s?)?\(?\d{3}\)?[\s.-]?\d{3}[\s.-]?\d{4}", r"(?s)-----BEGIN.*?-----END", r"x*", r"\bgr(?:a|e)y\B"),
    *(r"(?x) \d{3}  # three", r"(a)?(?(1)b|c)+", r"(?<=: )\w+", r"(?i:ann)|bob", r"[^\n]+\n", r"(?:[^,]*,)+"),
]


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_an_exponential_pattern_is_refused_with_place_and_reason(pattern: str) -> None:
    """A pattern that can backtrack exponentially is refused, with place and reason, whichever engine would run it."""
    with pytest.raises(ConfigError) as caught:
        compiled(pattern, "privacy_policy.redact_patterns[3]")

    assert caught.value.where == "privacy_policy.redact_patterns[3]"
    assert "backtrack exponentially" in str(caught.value)


@pytest.mark.parametrize("pattern", HARMLESS)
@ENGINES
def test_a_harmless_pattern_is_accepted(pattern: str, linear: bool) -> None:
    """Nested repeats, alternatives and long repeats are accepted if they do not overlap."""
    assert compiled(pattern, "redact_patterns[0]", linear=linear).find("", 1.0) == []


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("[invalid(", "unterminated character set"),
        ("a{99999999}", "at most 100,000 places"),
        ("(?P<a", "missing >"),
        ("a(?i)b", "not at the start"),
        (r"\p{L}", "bad escape"),
        ("[[:digit:]]", "backslash before a bracket"),
        ("(" * 5_000 + ")" * 5_000, "less deeply nested"),
        ("a" * 10_001, "at most 10,000 characters"),
        ("", "regular expression as text"),
        (7, "regular expression as text"),
    ],
)
def test_an_invalid_pattern_is_refused_with_the_reason(pattern: object, says: str) -> None:
    """An invalid pattern is refused with its place and the fault in its syntax."""
    with pytest.raises(ConfigError, match=r"^redact_patterns\[1\]: ") as caught:
        compiled(pattern, "redact_patterns[1]")

    assert says in str(caught.value)


def test_the_reason_names_the_kind_of_ambiguity() -> None:
    """The reason tells apart nested repeats, overlaps, large repeats and patterns too large to check."""
    words = "|".join("".join(word) for word in product("abcdefgh", repeat=4))

    reasons = []
    for pattern in ("(a+)+", "(a|aa)+", "(a+b?){50}", f"(?:(?:{words})+x?)+"):
        with pytest.raises(Ambiguous) as caught:
            check(pattern)
        reasons.append(caught.value.reason)

    assert "a repeat inside a repeat" in reasons[0]
    assert "overlap" in reasons[1]
    assert "10 times or more" in reasons[2]
    assert "too large" in reasons[3]


def test_the_check_of_any_pattern_ends() -> None:
    """The check of a pattern ends with an answer, even for long word lists and deep nesting."""
    words = "|".join("".join(word) for word in product("abcdef", repeat=4))
    patterns = [f"(?:{words})", rf"(?:(?:{words[:900]})\s)+", "(" * 80 + "ab?" + "){10}" * 80, r"(?:\w{1,250},){1,250}"]

    for pattern in patterns:
        try:
            check(pattern)
        except Ambiguous as fault:
            assert fault.reason  # noqa: PT017 (either answer is fine here: it is that there is one that counts)


# --- what is accepted stays quick, as counted by an oracle that knows no automata


class Node:
    """A small pattern, with the number of ways in which a backtracking engine reaches each end from a start."""

    letters: frozenset[str] = frozenset()
    """The letters of the set, if the node reads one letter of a set."""

    def __init__(self, text: str, ways: Callable[[str, int], dict[int, int]]) -> None:
        self.text, self._ways, self._known = text, ways, dict[tuple[str, int], dict[int, int]]()

    def ways(self, word: str, start: int) -> dict[int, int]:
        """Return the number of ways by the end of the match."""
        if (word, start) not in self._known:
            self._known[word, start] = self._ways(word, start)
        return self._known[word, start]


def _one_of(text: str, letters: frozenset[str]) -> Node:
    node = Node(text, lambda word, i: {i + 1: 1} if word[i : i + 1] in letters else {})
    node.letters = letters
    return node


def _character(char: str) -> Node:
    if char == ".":
        return Node(char, lambda word, i: {i + 1: 1} if i < len(word) else {})
    return _one_of(char, frozenset(char))


def _sum(*several: dict[int, int]) -> dict[int, int]:
    total: dict[int, int] = {}
    for ways in several:
        for end, count in ways.items():
            total[end] = total.get(end, 0) + count
    return total


def _then(one: Node, two: Node) -> Node:
    def ways(word: str, start: int) -> dict[int, int]:
        return _sum(
            *({end: n * m for end, m in two.ways(word, mid).items()} for mid, n in one.ways(word, start).items())
        )

    return Node(one.text + two.text, ways)


def _either(one: Node, two: Node) -> Node:
    if one.letters and two.letters:  # engines read alternatives of one letter as a set
        both = one.letters | two.letters
        return _one_of(f"(?:{one.text}|{two.text})", both)
    return Node(f"(?:{one.text}|{two.text})", lambda word, i: _sum(one.ways(word, i), two.ways(word, i)))


def _repeated(body: Node, sign: str) -> Node:
    def star(word: str, start: int) -> dict[int, int]:
        """Nothing, or one round that reads something and then the rest, or a last round that reads nothing."""
        total = {start: 1 + min(body.ways(word, start).get(start, 0), 1)}
        for mid, n in body.ways(word, start).items():
            if mid > start:
                total = _sum(total, {end: n * m for end, m in node.ways(word, mid).items()})
        return total

    node = Node(f"(?:{body.text})*", star)
    if sign == "?":
        return Node(f"(?:{body.text})?", lambda word, i: _sum({i: 1}, body.ways(word, i)))
    return node if sign == "*" else Node(f"(?:{body.text})+", _then(body, node)._ways)


_NODES = st.recursive(
    st.sampled_from("aab.").map(_character),
    lambda inner: st.one_of(
        st.builds(_then, inner, inner),
        st.builds(_either, inner, inner),
        st.builds(_repeated, inner, st.sampled_from("*+?")),
    ),
    max_leaves=5,
)


@settings(max_examples=examples(300), deadline=None)
@given(_NODES)
def test_an_accepted_pattern_matches_in_polynomially_many_ways(node: Node) -> None:
    """A pattern that is accepted does not have vastly more ways on a text twice as long."""
    try:
        check(node.text)
    except Ambiguous:
        return

    for size in (1, 2, 3):
        for unit in map("".join, product("ab", repeat=size)):
            short, long = (sum(node.ways(unit * (n // size), 0).values()) for n in (48, 96))
            assert long <= 100 * max(short, 1), (node.text, unit)


@settings(max_examples=examples(60), deadline=None)
@given(_NODES, st.sampled_from(["a", "b", "ab", "aab"]))
def test_an_accepted_pattern_ends_on_a_hostile_text(node: Node, unit: str) -> None:
    """The backtracking engine answers or stops at its timeout."""
    try:
        matcher = compiled(f"{node.text}[^ab.]$", "redact_patterns[0]", linear=False)
    except ConfigError:
        return

    with contextlib.suppress(TimeoutError):
        matcher.find(unit * 30 + "a!?", 2.0)


# --- the engines


def test_re2_runs_all_patterns_that_it_supports() -> None:
    """RE2 runs every pattern but those with look-around, back-references, atomic groups or huge repeats."""
    assert compiled(r"\b\d{3}-\d{2}-\d{4}\b", "x").linear
    assert [compiled(p, "x").linear for p in (r"(?<=a)b", r"(a)\1", r"(?>a)b", r"a{2000}")] == [False] * 4


@pytest.mark.parametrize(
    "pattern", [r"(?:a?){1000}a{1000}", r"(?:[ab]{30}){30}c", r"[ab]*a[ab]{600}c", r"(?:[A-Z]\d{3}-){150}"]
)
def test_counted_repeats_of_many_places_go_to_the_engine_with_a_timeout(pattern: str) -> None:
    """Large counted repeats go to the engine with a timeout, since RE2 would be slow and cannot be interrupted."""
    assert not compiled(pattern, "x").linear
    assert compiled(r"(?:[A-Z]{2}\d{2} ?){1,8}[a-z]{1,255}", "x").linear


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("pattern", "unit"),
    [(r"(?s)BEGIN.*?END|BEGIN", "BEGIN "), (r"\bkey: .*?;;|\bkey", "key: "), ("<[^>]*>|<", "<")],
)
def test_a_search_of_quadratic_total_time_is_stopped(pattern: str, unit: str) -> None:
    """A search that takes quadratic time over all its matches is refused by the rule's name."""
    redactor = Redactor({"redact_patterns": [pattern]})

    with pytest.raises(PrivacyRefused) as caught:
        redactor.text(unit * (150_000 // len(unit)))

    assert (caught.value.rule, caught.value.kind) == ("redact_patterns[0]", "timeout")


def test_a_text_of_many_matches_is_redacted_completely() -> None:
    """A text of nothing but matches is redacted, since each match adds to the time allowed."""
    assert Redactor({"redact_patterns": [r"\d"]}).text("1" * 100_000) == "[REDACTED]" * 100_000


TEXTS = [
    "",
    "call 555-1234 now",
    "é 123-45-6789 \U0001f600 999-11-2222",
    "a \ud800 123-45-6789",
    "x" * 500 + "12-3",
    "٣٣٣-٤٤",
]


@pytest.mark.parametrize(
    "pattern", [r"\d+(?:-\d+)+", r"\b\w{3,}\b", r"(?i)CALL|now$", r"\s", r"x*", r"(?m)^.", r"[^a]"]
)
def test_both_engines_find_the_same_places(pattern: str) -> None:
    """Both engines find the same places, counted in characters, with ASCII classes, empty matches and lone
    surrogates."""
    for text in TEXTS:
        quick, slow = (compiled(pattern, "x", linear=linear).find(text, 1.0) for linear in (True, False))
        assert quick == slow
        assert all(start < end for start, end in quick)


@ENGINES
def test_inline_flags_and_back_references_work(linear: bool) -> None:
    """Inline flags and back-references work."""
    found = compiled(r"(?i)(?:password|pwd)\s*[:=]\s*\S+", "x", linear=linear).find("PWD: a1 and Password=b2", 1.0)

    assert found == [(0, 7), (12, 23)]
    assert compiled(r"(\w)\1", "x", linear=linear).find("aabbc", 1.0) == [(0, 2), (2, 4)]


SLOW = r"(?=(.*))(?:.*)(?:.*)(?:.*)(?:.*)\d(?!x)"


def test_the_engine_that_backtracks_stops_at_its_timeout() -> None:
    """The backtracking engine is interrupted at its timeout, and does not start without time."""
    matcher = compiled(SLOW, "x", linear=False)

    with pytest.raises(TimeoutError):
        matcher.find("a" * 3_000, 0.05)
    with pytest.raises(TimeoutError):
        matcher.find("a", 0.0)


def test_the_linear_engine_is_linear_at_a_megabyte() -> None:
    """RE2 handles a megabyte that a backtracking engine would never finish."""
    matcher: Any = compiled(r".*.*.*=\d", "x")

    assert matcher.find("a" * 1_000_000, 0.05) == []


def test_the_time_that_is_allowed_grows_with_the_text() -> None:
    """The allowed time is 50 ms, and 50 ms more for each further 64 KiB."""
    assert [round(allowed_seconds(size), 3) for size in (0, 65_535, 65_536, 200_000)] == [0.05, 0.05, 0.1, 0.2]
