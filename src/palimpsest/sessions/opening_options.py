"""Checks of the options of `Memory.open`, before a store is opened. An unknown option is reported with the one that was
probably meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from palimpsest.errors import ConfigError, nearest
from palimpsest.sessions.options import GivenOptions
from palimpsest.stores.opening import has_our_options
from palimpsest.stores.options import HARMLESS

OPENING = (
    *("tenant", "clock", "encryption", "privacy", "view_bytes", "circuit_breaker", "sweep_every", "turn_lease"),
    *("compaction_lease", "embedder", "recall_index"),
)
"""The options of `Memory.open` apart from the address and options of stores (a test compares)."""


def check_opening(where: object, given: Iterable[str]) -> None:
    """Raise ConfigError for an option that neither `Memory.open` nor a built-in store has.

    The error names the nearest option, or the verb that the option belongs to. Options of a store from another package
    are not checked.
    """
    if not has_our_options(where):
        return
    for name in given:
        if name in OPENING or name in HARMLESS:
            continue
        if name in GivenOptions.__struct_fields__:
            advice = f"options of a memory; give this one to session(), as in memory.session('support-7', {name}=...)"
            raise ConfigError("option", name, advice)
        allowed = f"{', '.join(OPENING)}, and options of the store"
        raise ConfigError("option", name, allowed, nearest=nearest(name, (*OPENING, *HARMLESS)))
