"""The fast recognisers of numbers find what plain definitions find, on any text, with RE2 and without."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest.privacy.policy import load, rules_of
from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.privacy.recognisers.prefilter import Prefilter
from palimpsest.privacy.recognisers.scanning import Scan
from palimpsest.privacy.redaction import Redactor
from plain_numbers import PLAIN, found
from privacy_corpus import NEGATIVE, POSITIVE, corpus

USES = rules_of(load({"recognisers": "default"})).uses
GLANCES = (Prefilter(USES, linear=True), Prefilter(USES, linear=False))

NAMES = (
    "phone",
    "Tel.",
    "mobile",
    "MOBİL",
    "fax",
    "cell",
    "call",
    "Handy",
    "WhatsApp",
    "telefon",
    "fone",
    "ssn",
    "\u017fSN",
)
NAMES += ("Social Security No.", "social security number is", "SSN is", "app", "iphone", "total", "cancelled")
SEPARATORS = (
    " ",
    "  ",
    "-",
    ".",
    "/",
    "(",
    ")",
    ") ",
    ")-",
    " - ",
    "+",
    "+(",
    ":",
    "::",
    ", ",
    "_",
    "\n",
    "\t",
    "\\n",
    "?",
)
SEPARATORS += (
    "\u00a0",
    "\u202f",
    "\u2009",
    "\u2011",
    "é",
    "٣",
    "²",
    "联",
    "가",
    "1. ",
    "2) ",
    '"',
    '": ',
    '": "',
    "x",
    "A",
    "",
    "",
    "",
)


def number(rng: random.Random) -> str:
    """Draw digits of any length, often with the beginning of a real number."""
    begin = rng.choice(("", "", "0", "00", "1", "4111", "555", "2026", "+", "DE89", "ab"))
    return begin + "".join(
        rng.choices("0123456789", k=rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7, 9, 11, 13, 15, 16)))
    )


def value(rng: random.Random) -> str:
    """Draw a real-looking number, sometimes with a character changed, removed or inserted."""
    made = rng.choice((*(POSITIVE[kind] for kind in PLAIN), rng.choice(NEGATIVE)))(rng)
    text = "".join(made) if isinstance(made, tuple) else made
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((*SEPARATORS, *"0123456789")) + text[at + rng.randrange(2) :]
    return text


def one_gap(rng: random.Random) -> str:
    """Draw groups of digits with the same separator."""
    sizes = rng.choice(
        ((4, 4, 4, 4), (4, 6, 5), (3, 2, 4), (3, 3, 4), (2, 3, 3, 3), (1, 2, 2, 2, 3, 3, 2), (8, 8), (13, 2))
    )
    return rng.choice(SEPARATORS).join("".join(rng.choices("0123456789", k=size)) for size in sizes)


def in_json(rng: random.Random) -> str:
    row = {
        rng.choice(NAMES): rng.choice(
            (rng.randrange(10 ** rng.randrange(1, 17)), value(rng), number(rng), rng.random())
        )
    }
    return json.dumps(row, ensure_ascii=rng.random() < 0.5)


PIECES: tuple[Callable[[random.Random], str], ...] = (number, number, value, value, value, value, one_gap, in_json)
PIECES += (lambda rng: rng.choice(NAMES), lambda rng: f"{rng.choice(NAMES)}{rng.choice(SEPARATORS)}{number(rng)}")
PIECES += (lambda rng: ":".join(f"{rng.randrange(65536):x}" for _ in range(rng.randrange(2, 10))),)
PIECES += (lambda rng: ".".join(str(rng.randrange(300)) for _ in range(rng.randrange(2, 7))),)


def text_of(rng: random.Random) -> str:
    """Draw a text of digits, separators, labels and JSON."""
    return "".join(
        rng.choice(PIECES)(rng) + rng.choice((" ", ", ", rng.choice(SEPARATORS))) for _ in range(rng.randrange(1, 7))
    )


def quick(text: str, kind: str, glance: Prefilter) -> list[tuple[int, int]]:
    """Return what the recogniser finds, if the prefilter asks it at all."""
    scan, asked = glance.candidates(text)
    if scan is None or kind not in [use.name for use in asked]:
        return []
    return sorted({(span.start, span.end) for span in BUILT_IN[kind].find(scan)})


def check(text: str) -> None:
    for kind in PLAIN:
        expected = found(kind, text)
        assert [quick(text, kind, glance) for glance in GLANCES] == [expected, expected], (kind, text)


@pytest.mark.wide
@settings(max_examples=examples(900), deadline=None)
@given(st.integers(0, 10**9))
def test_numbers_are_found_as_the_plain_definition_finds_them(seed: int) -> None:
    """Over texts of digits, separators, labels and JSON both ways find the same places."""
    check(text_of(random.Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_numbers_are_found_as_the_plain_definition_finds_them_on_many_texts(part: int) -> None:
    """Both ways find the same places on 30,000 texts."""
    for seed in range(3_000):
        check(text_of(random.Random(part * 10**6 + seed)))


def test_numbers_of_the_corpus_are_found_as_the_plain_definition_finds_them() -> None:
    """Both ways find the same places in every sample of the corpus, alone and joined."""
    texts = [sample.text for sample in corpus(seed=3, each=25)]
    texts += ["\n".join(texts[i : i + 4]) for i in range(0, len(texts), 4)]

    for text in texts:
        check(text)


def test_drawn_texts_contain_and_lack_numbers_of_every_kind() -> None:
    """The drawn texts contain numbers of each kind, and most lack each kind, so that the comparison means something."""
    texts = [text_of(random.Random(seed)) for seed in range(600)]

    counts = {kind: sum(bool(found(kind, text)) for text in texts) for kind in PLAIN}

    assert min(counts.values()) >= 10, counts
    assert max(counts.values()) <= 300, counts


WORDS = (
    "password",
    "pass",
    "PASSWORT",
    "passe",
    "api_key",
    "sshKey",
    "token",
    "secret",
    "cookie",
    "pin",
    "PIN",
    "clave",
)
WORDS += (
    "sk-",
    "ghp_",
    "AKIA",
    "xoxb-",
    "eyJ",
    "SG.",
    "12345:AA",
    "https://ann:",
    "@host",
    "curl -u a:",
    "mysql -p",
    "sig=",
)
WORDS += (
    " is ",
    "=",
    ": ",
    '": "',
    "\u00a0",
    "</",
    ">",
    "<",
    "@",
    " ",
    "a1B2c3D4e5F6g7H8i9J0k1L2",
    "hunter2",
    "é",
    "-",
    "_",
)


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
def test_whatever_a_recogniser_finds_matches_its_prefilter(words: list[str]) -> None:
    """Whatever a recogniser finds also matches its sign in the prefilter."""
    scan = Scan("".join(words))

    for kind, recogniser in BUILT_IN.items():
        if list(recogniser.find(scan)):
            assert re.search(recogniser.sign, scan.ascii.decode("ascii")), (kind, scan.text)


def test_the_prefilter_rules_out_ordinary_numbers_in_json() -> None:
    """The prefilter alone rules out ids, prices, measurements, times and places in JSON."""
    row = {
        "id": 436665542,
        "uuid": "3f2b8a10-5c1d-4e6f-9a7b-0c2345f789ab",
        "price": "1299.90",
        "measured": [0.4111111111111111, 61.5, -3.25e-05, 1013.2],
        "created_at": "2026-11-21T10:15:30.123456Z",
        "seen": "2026-11-21 10:15:30+01:00",
        "updated_ms": 1767225600000,
        "latitude": 52.520008,
        "longitude": 13.404954,
        "sku": "BARLEY-0042",
        "url": "https://api.example.com/v2/orders/436665542?page=2",
    }

    scan, asked = GLANCES[0].candidates(json.dumps([row] * 20))

    assert (scan, asked) == (None, [])
    assert Redactor({"recognisers": "default"}).text(json.dumps(row)) == json.dumps(row)
