"""Identifiers and names in texts: what they are, and when a text contains one, in any script and in linear time."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import plain_mentions
from laws import examples
from palimpsest.summaries.identifiers import contains, missing
from palimpsest.summaries.mentions import identifiers, mentions, terms
from summaries import HOSTILE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://example.org/a?b=c&d=1, please", ["https://example.org/a?b=c&d=1"]),
        ("mail ann.lee+x@example.co.uk.", ["ann.lee+x@example.co.uk"]),
        ("edit ./src/app.py and C:\\dir\\x.txt", ["./src/app.py", "C:\\dir\\x.txt"]),
        ("open README.md or .gitignore", ["README.md", ".gitignore"]),
        ("id 123e4567-e89b-12d3-a456-426614174000", ["123e4567-e89b-12d3-a456-426614174000"]),
        ("commit 9f8e7d6c5b", ["9f8e7d6c5b"]),
        ("order ORD-1234, ticket #123", ["ORD-1234", "#123"]),
        ("version v1.2.3 of 1.0.0-rc1", ["v1.2.3", "1.0.0-rc1"]),
        ("it weighs 5 kg, costs $1,234.50, up 20%", ["5 kg", "$1,234.50", "20%"]),
        ("on 7 May 2023, or May 5th, or 2023-05-07", ["7 May 2023", "May 5th", "2023-05-07"]),
        ("at 8:56 pm on 2023-05-07T10:00:00Z", ["8:56 pm", "2023-05-07T10:00:00Z"]),
        ("call snake_case or CamelCase or os.path", ["snake_case", "CamelCase", "os.path"]),
        ('he read "The Long Way" twice', ["The Long Way"]),
        ("@bob likes #fish", ["@bob", "#fish"]),
        ("在2023年5月7日花了300元", ["2023年", "5月", "7日", "300元"]),
    ],
)
def test_identifiers_are_found_as_they_stand(text, expected):
    """Paths, addresses, ids, versions, amounts, dates, times, code names and short quotes are found whole."""
    assert list(identifiers(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "and/or he/she", "e.g. this, i.e. that", "It ends here.Then it goes on", "one 5 two", "don't stop - ever"],
)
def test_ordinary_words_are_no_identifiers(text):
    """Alternatives, abbreviations, missing spaces and single digits are no identifiers."""
    assert identifiers(text) == ()


def test_an_overlong_run_is_no_identifier():
    """An unbroken run of more than 256 characters is no identifier."""
    assert identifiers("a1" * 200 + " ORD-7") == ("ORD-7",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hey, I met Ann Lee in New York.", ["Ann Lee", "New York"]),
        ("The rector of the University of Oslo's choir", ["University of Oslo"]),
        ("Berlin is nice. Running is fun. Thanks for all.", ["Berlin"]),
        ("Apples are red. I like apples.", []),
        ("I work with NASA and Bob's dog", ["NASA", "Bob"]),
        ("Straße nach Köln mit Élodie", ["Straße", "Köln", "Élodie"]),
    ],
)
def test_names_are_found(text, expected):
    """Capitalised words are names, several in a row are one, and so is an uncommon first word of a sentence."""
    assert list(terms(text)) == expected


def test_terms_are_identifiers_and_names_in_order():
    """Identifiers and names are returned in the order in which they stand, each once, and none inside another."""
    text = "Ann Lee has ORD-1 since 7 May 2023, and ORD-1 is Ann Lee's."

    assert terms(text) == ("Ann Lee", "ORD-1", "7 May 2023")


@pytest.mark.parametrize(
    ("text", "identifier", "expected"),
    [
        ("v1.2.3", "1.2", False),
        ("paid 1,200", "200", False),
        ("ends with 12.", "12", True),
        ("ORD-12345", "ORD-1234", False),
        ("(ORD-1234)", "ORD-1234", True),
        ("Ann and Annabel", "Annabel", True),
        ("only Annabel", "Ann", False),
        ("在2023年5月", "2023年", True),
        ("Case", "case", False),
        ("anything", "", False),
    ],
)
def test_contains_looks_for_the_whole_identifier(text, identifier, expected):
    """A text contains an identifier letter by letter, and not as a part of a longer word or number."""
    assert contains(text, identifier) is expected


def test_missing_keeps_the_order_asked_for():
    """`missing` returns what is missing in the order in which it was asked for."""
    assert missing("b here", ["c", "b", "a"]) == ("c", "a")


@given(st.one_of(st.text(), st.lists(st.sampled_from(HOSTILE)).map(" ".join)))
def test_every_term_stands_in_its_text(text):
    """Each term is found at its place in any text, and the text contains every identifier."""
    for term in mentions(text):
        passage = text[term.start : term.start + len(term.text)]
        assert passage == term.text or " ".join(passage.split()) == term.text


PIECES = [
    "the",
    "The",
    "Ann",
    "Lee",
    "New",
    "York",
    "NASA",
    "I",
    "I'm",
    "May",
    "may",
    "Sept.",
    "June",
    "7",
    "12",
    "2023",
    "5",
    "kg",
    "$5",
    "1,234",
    "1,234.5%",
    "ORD-12",
    "of",
    "de",
    "la",
    "U.S.",
    "e.g.",
    "ann.lee@x.org",
    "os.path",
    "snake_case",
    "camelCase",
    "lot",
    "Lot",
    "Running",
    "O'Brien",
    "Bob's",
    "don\u2019t",
    "Élodie",
    "élodie",
    "中文",
    "在2023年5月",
    "Привет",
    "мир",
    "m²",
    "①",
    "*bold*",
    "`code`",
    "@bob",
    "#7",
    "./a/b",
    "C:\\x\\y.txt",
    "and/or",
    "a::b",
    "::",
    "\u2013",
    "—",
    "-",
    "...",
    ":",
    ";",
    "'",
    "\u2019",
    '"',
    "(",
    ")",
    "{",
    "[",
    "=",
    "!",
    "?",
    "…",
    "€",
    "~",
    "&",
    "*",
    "_",
    "__x__",
    "kg",
    "pm",
    "8:56",
    "https://x.org/a,berlin?b=(c)",
    "berlin",
    "Berlin",
    '"lot":',
    '"New”',
]
GAPS = [" ", " ", " ", "", ", ", ". ", "\n", ": ", "'", "\u2019", "/"]


@pytest.mark.wide
@settings(max_examples=examples(1_500))
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(GAPS)), max_size=14))
@example([("The Ann of the Lee de la New York A B C D E F G H", " ")])
@example([("A" * 300, " "), ("1" * 300, " "), ("a1" * 140, " ")])
def test_the_fast_search_finds_what_the_plain_one_does(pieces):
    """The search that skips words finds the same as one that reads one token after the other."""
    text = "".join(piece + gap for piece, gap in pieces)

    found_mentions, found_identifiers = mentions(text), identifiers(text)

    assert found_mentions == plain_mentions.mentions(text)
    assert found_identifiers == plain_mentions.identifiers(text)


def test_a_shared_cache_of_tokens_changes_nothing():
    """Texts that share a cache of known tokens mention the same as each does alone."""
    texts, known = ["Mail ann@x.org of Bob's 4th.", "Bob's 4th was ann@x.org, 4th"], {}

    together = [mentions(text, known) for text in texts]

    assert together == [mentions(text) for text in texts]
    assert {"ann@x.org", "Bob's"} < known.keys()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "piece",
    ["a", "A", "1", '"', "a.", "a/", "A ", "1,", ",111", "May ", "1 ", "a@", "://", "<", "\ud800", "A b. ", "'", "'a"],
)
def test_a_megabyte_is_searched_in_linear_time(piece):
    """A megabyte of any one piece is searched, and has no more terms than a part of it."""
    short, long = (terms(piece * (size // len(piece))) for size in (20_000, 1_000_000))

    assert len(long) <= len(short) + 2
