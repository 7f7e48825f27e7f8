"""Options of `Memory.open`, looked at before a store is: what is none of them is told with what was meant. Pure."""

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
"""What `Memory.open` takes beside an address and options of stores (a test compares)."""


def check_opening(where: object, given: Iterable[str]) -> None:
    """Raise ConfigError for an option that neither `Memory.open` nor any store of ours has: with the one that is meant,
    or with where it belongs. A store of somebody else's takes what it will."""
    if not has_our_options(where):
        return
    for name in given:
        if name in OPENING or name in HARMLESS:
            continue
        if name in GivenOptions.__struct_fields__:
            belongs = f"options of a memory; give this one to session(), as in memory.session('support-7', {name}=...)"
            raise ConfigError("option", name, belongs)
        allowed = f"{', '.join(OPENING)}, and what the store takes"
        raise ConfigError("option", name, allowed, nearest=nearest(name, (*OPENING, *HARMLESS)))
