"""Limits of an import, so that a malicious file cannot take any amount of memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values

MEBIBYTE = 1 << 20
RAISE = "raise it with limits={{{name!r}: ...}}, or --limit {name}=NUMBER"


class Limits(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The most that a file may have. Real exports are far below all of these limits.

    `value` limits the bytes of one JSON value: a line, an item of a list, a document that is one value, a row of a
    database. `string` limits the characters of one string in it, `values` the number of its objects, lists and items.
    `unpacked` limits the bytes of all conversations in an archive, `ratio` how many times larger than the archive they
    may be (beyond 64 MiB), `members` the number of files in it. `branches` limits the branches of one conversation,
    `branch_messages` the messages of all of them together. `database` limits the bytes of an SQLite database that comes
    as a stream, since it is held in memory. `refused` limits how many faults the report lists; others are counted.
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

    def more_than(self, name: str, what: str) -> str:
        """Say for an error that the limit `name` is exceeded, and how to raise it. `what` names what is counted."""
        most = getattr(self, name)
        return f"more than {most:,} {what} (the limit {name!r}; {RAISE.format(name=name)})"


Given: TypeAlias = Limits | Mapping[str, int] | None
"""The argument `limits=`: limits, or a mapping of those that differ from the defaults."""


def limits_of(given: object) -> Limits:
    """Return the given limits. Raises ConfigError, naming the limit, for one that is unknown or no number."""
    if given is None:
        return Limits()
    numbers: Any = msgspec.structs.asdict(given) if isinstance(given, Limits) else given
    if not isinstance(numbers, Mapping):
        raise ConfigError("limits", given, "Limits, a mapping of limits to numbers, or None")
    values.known("limits", numbers, Limits.__struct_fields__)
    for name, number in numbers.items():
        values.whole(f"limits.{name}", number, 1)
    return Limits(**numbers)
