"""What declares a session, as an option of it and as it is stored. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from palimpsest.log.codec import decoded, ready
from palimpsest.log.head import Definition

HELD = (
    *("max_messages", "max_context_ratio", "max_log_tokens", "reserve", "short_term", "conditions"),
    *("oversize", "mask", "low_water", "summary_share", "tag_shares", "cache_seconds", "long_term"),
)
"""Options that a session keeps, as the definition before has them, until the next cut. All others act at once."""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a definition: its name, its version, the `options` of its sessions, and every setting."""

    memory: str
    version: str | None = None
    options: dict[str, Any] = {}
    settings: tuple[tuple[str, Any], ...] = ()


ready(Kept)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What declares a session, as an option of it: which definition that is, what is to be `kept` of it, and the names
    of those options that the program gave itself (`given`), which no definition changes."""

    definition: Definition
    kept: Kept
    given: frozenset[str] = frozenset()


class DefinitionInfo(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `definition` that sessions are under, how many `sessions` these are, and what it comes to: its `settings` by
    name, as `palimpsest config show` prints them (None: it came with an import, and nothing is known of it)."""

    definition: Definition
    sessions: int
    settings: dict[str, Any] | None = None


def read_kept(value: bytes) -> Kept | None:
    """What was stored of a definition; None where that cannot be read."""
    try:
        return decoded(value, Kept)
    except ValueError:
        return None
