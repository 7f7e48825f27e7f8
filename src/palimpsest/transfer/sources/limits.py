"""How large what is imported may be, so that a file that was made to harm takes only so much memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values

MEBIBYTE = 1 << 20
RAISE = "raise it with limits={{{name!r}: ...}}, or --limit {name}=NUMBER"


class Limits(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What a file may have, at most. Real exports are far below all of these.

    `value` is for the bytes of one JSON value: a line, an item of a list, a document that is one value, a row of a
    database. `string` is for the characters of one string in it, `values` for how many objects, lists and items it has.
    `unpacked` is for the bytes of all conversations in an archive, `ratio` for how many times larger than the archive
    they are (beyond 64 MiB), `members` for the files in it. `branches` is for the branches of one conversation,
    `branch_messages` for the messages of all of them together. `database` is for the bytes of an SQLite database that
    comes as a stream: it is held in memory. `refused` is for how many faults the report lists; others are counted.
    """

    value: int = 128 * MEBIBYTE
    string: int = 64 * MEBIBYTE
    values: int = 4_000_000
    unpacked: int = 64 * 1024 * MEBIBYTE
    ratio: int = 200
    members: int = 100_000
    branches: int = 1_000
    branch_messages: int = 1_000_000
    database: int = 256 * MEBIBYTE
    refused: int = 10_000

    def told(self, name: str, what: str) -> str:
        """What to say where the limit `name` is passed, and how to raise it. `what` is counted."""
        most = getattr(self, name)
        return f"more than {most:,} {what} (the limit {name!r}; {RAISE.format(name=name)})"


Given: TypeAlias = Limits | Mapping[str, int] | None
"""What `limits=` takes: limits, or those of them that are others than the usual ones."""


def limits_of(given: object) -> Limits:
    """Return the limits that were given. Raises ConfigError, naming it, for one that is unknown or no number."""
    if given is None:
        return Limits()
    numbers: Any = msgspec.structs.asdict(given) if isinstance(given, Limits) else given
    if not isinstance(numbers, Mapping):
        raise ConfigError("limits", given, "Limits, a mapping of limits to numbers, or None")
    values.known("limits", numbers, Limits.__struct_fields__)
    for name, number in numbers.items():
        values.whole(f"limits.{name}", number, 1)
    return Limits(**numbers)
