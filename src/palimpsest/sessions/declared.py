"""The declaration of a session: as the option `definition`, and as it is stored. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from palimpsest.log.codec import decoded, ready
from palimpsest.log.head import Definition

HELD = (
    *("max_messages", "max_context_ratio", "max_log_tokens", "reserve", "short_term", "conditions"),
    *("oversize", "mask", "low_water", "summary_share", "tag_shares", "cache_seconds", "long_term"),
)
"""Options whose change in a definition takes effect at a session's next cut. Changes of all others act at once."""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored form of a definition: its memory's name, its version, the sessions' `options`, and all settings."""

    memory: str
    version: str | None = None
    options: dict[str, Any] = {}
    settings: tuple[tuple[str, Any], ...] = ()


ready(Kept)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the option `definition`: the definition, its stored form (`kept`), and in `given` the names of the
    options that the program passed itself, which no definition overrides."""

    definition: Definition
    kept: Kept
    given: frozenset[str] = frozenset()


class DefinitionInfo(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `definition` of declared sessions, the number of its `sessions`, and its `settings` by name, as `palimpsest
    config show` prints them (None: it came with an import, and its settings are unknown)."""

    definition: Definition
    sessions: int
    settings: dict[str, Any] | None = None


def read_kept(value: bytes) -> Kept | None:
    """Decode the stored form of a definition; None if it cannot be read."""
    try:
        return decoded(value, Kept)
    except ValueError:
        return None
