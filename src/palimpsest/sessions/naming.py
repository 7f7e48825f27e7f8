"""What names an entry of a session: its `seq`, its id, or the entry itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from palimpsest.errors import ConfigError
from palimpsest.log.checks import unfit
from palimpsest.log.entry import Entry

END = 2**32 - 1
"""Over every `seq`."""


def ways(name: object) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Yield the places and ids that are looked for, one after the other, until something is there.

    A text of digits is a `seq` first, as a command line gives it, then an id. An entry is known by its id alone,
    whatever that looks like. Raises ConfigError for a list.
    """
    if isinstance(name, list | tuple | set | frozenset):
        raise ConfigError("id", name, "one id, or one number; where a verb takes several, they are given one by one")
    seq = _seq(name)
    if seq is not None:
        yield (seq,), ()
    id = name.id if isinstance(name, Entry) else name
    if isinstance(id, str) and unfit(id) is None:
        yield (), (id,)


def _seq(name: object) -> int | None:
    """The place that a number names, or a text of digits; None for what is neither, or more than any log has."""
    if isinstance(name, str) and name.isdecimal() and len(name) <= len(str(END)):
        name = int(name)
    return name if isinstance(name, int) and not isinstance(name, bool) and name < END else None
