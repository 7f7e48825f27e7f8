"""The prefilter, which decides which recognisers are asked about a text, hides nothing from them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from palimpsest.privacy.policy import load, rules_of
from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.privacy.recognisers.prefilter import Prefilter
from palimpsest.privacy.recognisers.scanning import Scan
from palimpsest.privacy.redaction import Redactor
from privacy_corpus import corpus

USES = rules_of(load({"recognisers": "default"})).uses
PREFILTERS = (Prefilter(USES, linear=True), Prefilter(USES, linear=False))
SPACES = ("\n", "\t", "\r\n", "\u00a0", "  ", "\u3000", "\n\n", "\\n", " \n", "\x0b", "\u2028")
BESIDE = (*"x1-_([,./@%\\\"'`<>=:#9Z\n\0", "", "1.", "é", "中", "“", "\u200b", "ß", "ж", "\U0001f600", "\ud800")


def found(text: str) -> set[str]:
    """Return the recognisers that find something in the text."""
    scan = Scan(text)
    return {use.name for use in USES if any(span.start < span.end for span in BUILT_IN[use.name].find(scan))}


def asked(glance: Prefilter, text: str) -> set[str]:
    """Return the recognisers that the prefilter asks."""
    return {use.name for use in glance.candidates(text)[1]}


def varied(text: str, chance: random.Random, span: tuple[int, int]) -> Iterator[str]:
    """Vary the text: white space, letters, and characters beside the private value or anywhere."""
    start, end = span
    yield from (text, text.upper(), text.lower())
    yield from (text.replace(" ", space) for space in chance.sample(SPACES, 3))
    for _ in range(3):
        before, after, at = chance.choice(BESIDE), chance.choice(BESIDE), chance.randrange(len(text) + 1)
        yield f"{text[:start]}{before}{text[start:end]}{after}{text[end:]}"
        yield f"{before}{text[start:end]}{after}"
        yield f"{text[:at]}{chance.choice((*BESIDE, *SPACES))}{text[at:]}"


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4))
def test_every_recogniser_that_finds_something_passes_the_prefilter(seed: int) -> None:
    """Every recogniser that finds something in a text is asked about it, with RE2 and without."""
    chance = random.Random(seed)
    for sample in corpus(seed=seed, each=20):
        start, end = sample.spans[0][:2] if sample.spans else (0, 0)
        for text in varied(sample.text, chance, (start, end)):
            finding = found(text)
            for glance in PREFILTERS:
                assert finding - asked(glance, text) == set(), text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("the password is\nhunter2x9", "the password is\n[REDACTED]"),
        ("the password\tis\thunter2x9", "the password\tis\t[REDACTED]"),
        ("MY PASSWORD IS HUNTER2X9", "MY PASSWORD IS [REDACTED]"),
        ("password\uff1ahunter2x9", "password\uff1a[REDACTED]"),
        ("API_KEY\uff1d12345678abcd", "API_KEY\uff1d[REDACTED]"),
        ("My PIN\nis\n4821.", "My PIN\nis\n[REDACTED]."),
        ("MY PIN IS 4821", "MY PIN IS [REDACTED]"),
        ("PIN code: 4821", "PIN code: [REDACTED]"),
        ("Pin Code is 4821", "Pin Code is [REDACTED]"),
        ("1.531.858.5180", "[REDACTED]"),
        ("mysql\t-u\troot\t-phunter2x9", "mysql\t-u\troot\t-p[REDACTED]"),
        ("THIS PIN IS ON THE BOARD", "THIS PIN IS ON THE BOARD"),
        ("pin 4 is 4821 mV", "pin 4 is 4821 mV"),
        ("The password is\nthe name of my cat", "The password is\nthe name of my cat"),
    ],
)
@pytest.mark.parametrize("linear", [True, False])
def test_capitals_line_breaks_and_full_width_signs_hide_no_value(text: str, left: str, linear: bool) -> None:
    """Capitals, line ends and full-width signs in a label do not hide its value."""
    assert Redactor("default", linear=linear).text(text) == left
