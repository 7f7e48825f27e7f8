"""Text analysis: the terms of a text, in order. Pure.

A term is what an index stores and a question asks for: letters and digits without blanks, quotes or ASCII punctuation
other than `_`, with ASCII letters in lower case. Terms are joined by spaces before they are given to an index, so a
tokenizer that splits at blanks alone gives the same terms back.

| text | terms |
|---|---|
| plain English words | their stems (`palimpsest.recall.porter`); of irregular forms, the stem of the base form |
| the, of, is and a few others | none |
| `max_retry_count`, `src/app.py`, `2.10.3`, `ERR-42` | their pieces; a question asks for these as a phrase |
| `parseHttpResponse`, `GitHub` | pieces and the whole |
| `HAT170`, `10am` | the whole and pieces |
| 1,299 | 1299 |
| Han, kana, Thai and others written without blanks | overlapping pairs of letters; Han each letter, too |
| Hangul | overlapping pairs of the syllables of each word |
| letters with accents or strokes, ligatures | those letters without, in Latin, Greek and Cyrillic |
| Hebrew and Arabic with vowel points, alef with hamza or madda | the letters without those |
| emoji | each of them, whatever its skin tone |
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from palimpsest.recall.english import FORMS, NOT_INDEXED
from palimpsest.recall.porter import stem

LONGEST = 40
"""Letters of a term at most. A longer run without a break is no word, and is found by its beginning."""

_WORD = re.compile(r"[0-9A-Za-z\x80-\U0010ffff]+")
# A normal form sorts the marks of a letter, in time quadratic in their number: `_folded` breaks longer runs of them.
_MARKS = re.compile(r"[^\w\s\x00-\x7f]{32}")
_ASCII = re.compile(r"[\x00-\x7f]*+").fullmatch
# `'s`, `n't` and the like are not words, and the digits of 1,299 are one number.
_CONTRACTED = re.compile(
    r"(?<=[a-zA-Z])(?:'(?:[sS]|ll|LL|re|RE|ve|VE|[dmDM])|n't|N'T)(?![a-zA-Z'])|(?<=\d),(?=\d{3}(?!\d))"
)
_BETWEEN_PIECES = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}")
_MIXED = re.compile(r"([a-z]+)([0-9]+)|([0-9]+)([a-z]+)")

# Scripts that are written without blanks between words, as ranges of code points.
_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3041-\u309f\u30a0-\u30ff\u3105-\u312f\u31f0-\u31ff"
_THAI_AND_OTHERS = (
    "\u0e00-\u0eff\u0f40-\u0fbc\u1000-\u109f\u1780-\u17dd\u1950-\u19df\u1a20-\u1aad\ua9e0-\ua9ff\uaa60-\uaa7f"
)
_HANGUL = "\u1100-\u11ff\u3131-\u318e\uac00-\ud7af"
UNSPACED = re.compile(f"([{_HAN}{_KANA}]+|[{_THAI_AND_OTHERS}]+|[{_HANGUL}]+)")
_IS_HAN = re.compile(f"[{_HAN}]").match

EMOJI = "\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0010ffff"
"""The ranges of characters that emoji are in, for use in a pattern."""
_IS_EMOJI = re.compile(f"[{EMOJI}]").match

_STROKED = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "\u0131": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)
"""What people type for letters that no Unicode normal form takes apart."""


def terms(text: str) -> list[str]:
    """Return the terms of a text, in its order, in time linear in its length.

    Args:
        text: Any text, also hostile input. Lone surrogates count as blanks.
    """
    terms_of_text: list[str] = []
    for word in words(text):
        terms_of_text += terms_of_word(word)
    return terms_of_text


def words(text: str) -> list[str]:
    """Return the words of a text as they are written; those that are not ASCII are folded."""
    text = _folded(text)
    if "'" in text or "," in text:
        text = _CONTRACTED.sub("", text)
    return _WORD.findall(text)


def terms_of_word(word: str) -> tuple[str, ...]:
    """Return the terms of one of the `words`: one for most words, none for those in `NOT_INDEXED`."""
    if len(word) <= LONGEST:
        return _terms_of_short(word)
    return _terms_of_short(word[:LONGEST]) if word.isascii() else tuple(_terms_of_scripts(word))


@lru_cache(maxsize=1 << 15)
def _terms_of_short(word: str) -> tuple[str, ...]:
    if not word.isascii():
        return tuple(_terms_of_scripts(word))
    lower = word.lower()
    if lower in NOT_INDEXED:
        return ()
    whole = term_of(lower)
    if _CAMEL.search(word):
        pieces = _BETWEEN_PIECES.split(word)
        return (*(term_of(piece.lower()) for piece in pieces if len(piece) > 1), whole)
    mixed = _MIXED.fullmatch(lower)
    if mixed is not None:
        return (whole, *(term_of(piece) for piece in mixed.groups() if piece and (len(piece) > 1 or piece.isdigit())))
    return (whole,)


def term_of(word: str) -> str:
    """Return the stem of a word in lower case; of an irregular form, the stem of its base form."""
    return stem(FORMS.get(word, word)) if word.isalpha() else word


def _terms_of_scripts(word: str) -> list[str]:
    """Return the terms of a word with letters beyond ASCII, which is folded already."""
    terms_of_runs: list[str] = []
    for run in UNSPACED.split(word.lower()):
        if not run:
            continue
        if UNSPACED.match(run) is None:
            terms_of_runs += terms_of_word(run) if run.isascii() else (run[:LONGEST],)
            continue
        for at, letter in enumerate(run):
            if _IS_HAN(letter) or len(run) == 1:
                terms_of_runs.append(letter)
            if at + 1 < len(run):
                terms_of_runs.append(run[at : at + 2])
    return terms_of_runs


def _folded(text: str) -> str:
    """Return the text with compatible forms unified and accents removed; non-ASCII characters that are no letters are
    blanks."""
    if _ASCII(text):
        return text
    broken = _MARKS.sub("\\g<0>\u034f", text)  # U+034F ends a run of marks, and is folded to nothing
    return unicodedata.normalize("NFKC", broken).translate(_FOLDED)


class _Folding(dict[int, str]):
    """How each character is folded; worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = _folded_letter(chr(code))
        return folded


def _folded_letter(letter: str) -> str:
    """Return what a character becomes: folded letters, a blank, or nothing."""
    code, category = ord(letter), unicodedata.category(letter)
    if code < 0x80:
        return letter
    if letter in "\u2018\u2019\u02bc":
        return "'"
    if category == "Cf" or _adds_nothing(code, category):
        return ""
    if category[0] not in "LNM":
        is_emoji = category == "So" and _IS_EMOJI(letter)
        return f" {letter} " if is_emoji else " "  # an emoji is a word
    lower = letter.casefold()
    if code < 0x530 or 0x600 <= code < 0x700 or 0x1E00 <= code < 0x2000:
        taken_apart = unicodedata.normalize("NFD", lower)
        bare = "".join(each for each in taken_apart if not _adds_nothing(ord(each), unicodedata.category(each)))
        bare = bare.translate(_STROKED)
        return bare if all(each.isalnum() for each in bare) else " "
    return lower


def _adds_nothing(code: int, category: str) -> bool:
    """Return whether a character only changes how a letter looks or sounds.

    Such are combining accents, Hebrew and Arabic vowel points, the Arabic tatweel that stretches a word, and variation
    selectors.
    """
    is_point = 0x591 <= code < 0x700 and category == "Mn"
    return 0x300 <= code < 0x370 or is_point or code == 0x640 or 0xFE00 <= code < 0xFE10 or 0xE0100 <= code < 0xE01F0


_FOLDED = _Folding()
