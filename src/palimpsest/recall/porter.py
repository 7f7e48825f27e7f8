"""English stems by Porter's algorithm (M. F. Porter, "An algorithm for suffix stripping", Program 14, 1980). Pure.

It has the two changes that its author made later and that SQLite's tokenizer has, too: "logi" becomes "log", and "bli"
becomes "ble". The measure of a word is the number of its groups of vowels followed by consonants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CONSONANT = "(?:[^aeiouy]|(?<![^aeiou])y)"  # a y is a consonant at the beginning and behind a vowel
_VOWEL = "(?:[aeiou]|(?<=[^aeiou])y)"
_CONSONANTS, _VOWELS = f"(?>{_CONSONANT}*)", f"(?>{_VOWEL}+)"
_GROUP = f"{_CONSONANTS}{_VOWELS}{_CONSONANT}"
_MORE_THAN_0 = re.compile(_GROUP).match
_MORE_THAN_1 = re.compile(f"{_GROUP}{_GROUP}").match
_EXACTLY_1 = re.compile(f"{_GROUP}{_CONSONANTS}(?>{_VOWEL}*)$").match
_WITH_VOWEL = re.compile(f"{_CONSONANTS}{_VOWEL}").match
_DOUBLE = re.compile(r".*([^aeiouylsz])\1$").match
_SHORT = re.compile(f".*{_CONSONANT}{_VOWEL}(?![wxy]){_CONSONANT}$").match

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def stem(word: str) -> str:
    """Return the stem of an English word in lower case; a word of fewer than three letters is its own stem."""
    if len(word) < 3:
        return word
    word = _past(_plural(word))
    if word[-1] == "y" and _WITH_VOWEL(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(_replaced(word, _STEP_2), _STEP_3)
    word = _removed(word)
    if word[-1] == "e":
        rest = word[:-1]
        if _MORE_THAN_1(rest) or (_EXACTLY_1(rest) and not _SHORT(rest)):
            word = rest
    if word.endswith("ll") and _MORE_THAN_1(word[:-1]):
        word = word[:-1]
    return word


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word[-1] == "s" and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _MORE_THAN_0(word[:-3]) else word
    rest = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    if not _WITH_VOWEL(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _DOUBLE(rest):
        return rest[:-1]
    return rest + "e" if _EXACTLY_1(rest) and _SHORT(rest) else rest


def _replaced(word: str, endings: Mapping[str, str]) -> str:
    """Return the word with its longest ending among these replaced, if a group of vowels and consonants precedes it."""
    for length in range(7, 2, -1):
        ending = word[-length:]
        if ending in endings:
            rest = word[:-length]
            return rest + endings[ending] if _MORE_THAN_0(rest) else word
    return word


def _removed(word: str) -> str:
    ending = max((ending for ending in _STEP_4 if word.endswith(ending)), key=len, default="")
    rest = word[: len(word) - len(ending)]
    if ending == "ion" and not rest.endswith(("s", "t")):
        return word
    return rest if ending and _MORE_THAN_1(rest) else word
