"""Read adjacent texts of a message as one: a private value may begin in one part and end in the next. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from palimpsest.formats.fences import UNREADABLE
from palimpsest.log.entry import Part, Text


def pieces(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield the parts in order: adjacent texts together, and each other part alone."""
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, Text)):
        if is_text:
            yield list(run)
        else:
            yield from ([part] for part in run)


def whole(texts: Sequence[Part]) -> str:
    """Return several adjacent texts joined, as a model reads them; "" for a single part."""
    return "".join(part.text for part in texts if isinstance(part, Text)) if len(texts) > 1 else ""


def cleaned_across(parts: Sequence[Part], clean: Callable[[str], str]) -> tuple[Part, ...]:
    """Return parts whose texts are `clean` each, without what is private across several of them: those are merged into
    one.

    A merged text keeps the extra fields of its parts, except signatures, which no longer fit.
    """
    cleaned: list[Part] = []
    for texts in pieces(parts):
        joined = whole(texts)
        kept = clean(joined) if joined else joined
        if kept == joined:
            cleaned += texts
            continue
        every_extra = {key: value for part in texts for key, value in (part.extra or {}).items()}
        extra = {key: value for key, value in every_extra.items() if not key.startswith(UNREADABLE)}
        cleaned.append(Text(text=kept, extra=extra or None))
    return tuple(cleaned)
