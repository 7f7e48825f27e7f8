"""A message in pieces: texts that follow each other are read as one, for a value may begin in one and end in the next.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from palimpsest.formats.fences import UNREADABLE
from palimpsest.log.entry import Part, Text


def pieces(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts in order: texts that follow each other together, and each other part alone."""
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, Text)):
        if is_text:
            yield list(run)
        else:
            yield from ([part] for part in run)


def whole(texts: Sequence[Part]) -> str:
    """What several texts say together, as a model reads them; nothing, where it is one part alone."""
    return "".join(part.text for part in texts if isinstance(part, Text)) if len(texts) > 1 else ""


def cleaned_across(parts: Sequence[Part], clean: Callable[[str], str]) -> tuple[Part, ...]:
    """The parts, whose texts are `clean` each, without what is private in several together: those become one.

    It has what stood beside them, but for signatures, which no longer fit.
    """
    done: list[Part] = []
    for texts in pieces(parts):
        said = whole(texts)
        kept = clean(said) if said else said
        if kept == said:
            done += texts
            continue
        beside = {key: value for part in texts for key, value in (part.extra or {}).items()}
        extra = {key: value for key, value in beside.items() if not key.startswith(UNREADABLE)}
        done.append(Text(text=kept, extra=extra or None))
    return tuple(done)
