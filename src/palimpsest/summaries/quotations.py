"""What a summary without a model quotes of a message. Pure."""

from __future__ import annotations

import re

QUOTED = 100
"""Most characters quoted of a message or an error."""

_AROUND = ".,;:!?\"'()[]“”\u2018\u2019…"
_DIGIT = re.compile(r"[^ ]*\d").match
_NUMBERS_AT_THE_END = re.compile(r"(?:(?:^| )[^ ]*\d[^ ]*)+$")


def quoted(text: str) -> str:
    """Return a text on one line, cut to `QUOTED` characters.

    A word that is not plain is never cut, and neither is a number in groups: no privacy policy would recognise half a
    card number, address or key afterwards.
    """
    line = " ".join(text.lstrip()[: 20 * QUOTED].split())
    if len(line) <= QUOTED:
        return line
    start = line.rfind(" ", 0, QUOTED + 1) + 1
    word = line[start:].partition(" ")[0]  # the word that is cut, or the next one
    is_plain = start > QUOTED or word.strip(_AROUND).isalpha()
    kept = line[:QUOTED] if is_plain else line[:start].rstrip()
    if _DIGIT(word):
        kept = _NUMBERS_AT_THE_END.sub("", kept)
    return kept + "..."
