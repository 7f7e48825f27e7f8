"""The configuration of AGTerm's memory manager: the documented fields, checked, and their native equivalents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from palimpsest import AsyncMemory, Memory
from palimpsest.compat.agterm.spelling import Record, snake_case
from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.strategies import Summarize, Triggers

if TYPE_CHECKING:
    from typing import TypedDict

    class ConfigChanges(TypedDict, total=False):
        """The fields of `MemoryConfig`, for type checkers."""

        max_entries: int
        max_tokens: int
        recent_window: int
        min_entries_to_compress: int
        auto_compress: bool
        compression_ratio: float
        recent_window_tokens: int | None
        on_failure: Literal["keep", "heuristic"]


class MemoryConfig(Record, frozen=True, kw_only=True):
    """When and how sessions are compressed. Raises ConfigError, naming the key, for an invalid value.

    Args:
        max_entries: a session with more active entries is compressed; 100 by default.
        max_tokens: a session with more active tokens is compressed, and no context is larger; 50,000 by default.
        recent_window: how many of the last entries stay, extended back to the start of their interaction; 10 by
            default.
        min_entries_to_compress: fewer entries than this are not compressed; 5 by default.
        auto_compress: whether sessions are compressed automatically; True by default.
        compression_ratio: a summary's tokens as a share of those of its entries, over 0 and up to 1; 0.3 by default.
        recent_window_tokens: the most tokens of the recent window, in whole groups; None: half of `max_tokens`.
        on_failure: what happens if the callback returns no acceptable summary: "keep" (default) compresses nothing,
            "heuristic" makes a summary without a model.
    """

    max_entries: int = 100
    max_tokens: int = 50_000
    recent_window: int = 10
    min_entries_to_compress: int = 5
    auto_compress: bool = True
    compression_ratio: float = 0.3
    recent_window_tokens: int | None = None
    on_failure: Literal["keep", "heuristic"] = "keep"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            values.whole(name, getattr(self, name), least, none=name == "recent_window_tokens")
        values.share("compression_ratio", self.compression_ratio)
        values.switch("auto_compress", self.auto_compress)
        values.choice("on_failure", self.on_failure, ("keep", "heuristic"))

    def changed(self, *many: Mapping[str, Any]) -> MemoryConfig:
        """Return the configuration with these changes, whose keys have either spelling. Raises ConfigError."""
        config = self
        for changes in many:
            config = config._with(changes)
        return config

    def _with(self, changes: Mapping[str, Any]) -> MemoryConfig:
        if not isinstance(changes, Mapping):
            raise ConfigError("config", changes, "a MemoryConfig, or a mapping with some of its fields")
        given = snake_case(changes)
        values.known("config", given, self.__struct_fields__)
        if len(given) < len(changes):
            twice = [name for name in changes if name not in given and next(iter(snake_case({name: 0}))) in changes]
            raise ConfigError("config", twice[0], "each key in only one spelling: this one is given in both")
        return msgspec.structs.replace(self, **given)


_LEAST = {
    "max_entries": 1,
    "max_tokens": 1,
    "recent_window": 0,
    "min_entries_to_compress": 1,
    "recent_window_tokens": 1,
}

Opened = TypeVar("Opened", AsyncMemory, Memory)


def opened(store: object, kind: type[Opened]) -> tuple[Opened, bool]:
    """Return the memory for `store`, of class `kind`, and whether it was opened here. Raises ConfigError."""
    if isinstance(store, kind):
        return store, False
    if not isinstance(store, str | Path):
        a_memory = "an AsyncMemory" if kind is AsyncMemory else "a Memory"
        allowed = f"an address or a path, or {a_memory} that is open already"
        raise ConfigError("store", type(store).__name__, allowed)
    return kind.open(store), True


DEFAULT_MEMORY_CONFIG = MemoryConfig()
"""The documented defaults."""


def config_of(given: MemoryConfig | Mapping[str, Any] | None) -> MemoryConfig:
    """Return the configuration that is given as an object, as changes to the defaults, or as None for the defaults."""
    if isinstance(given, MemoryConfig):
        return given
    return DEFAULT_MEMORY_CONFIG if given is None else DEFAULT_MEMORY_CONFIG.changed(given)


def strategy_of(config: MemoryConfig, prompt: str | None) -> Summarize:
    """Return the compaction strategy: everything before the recent window goes into a new summary of a chain."""
    window = config.recent_window_tokens or max(config.max_tokens // 2, 1)
    return Summarize(
        name="agterm",
        recent_entries=config.recent_window,
        recent_tokens=window,
        min_entries=config.min_entries_to_compress,
        summaries="chain",
        target_ratio=config.compression_ratio,
        cod_max_loops=0,
        prompt_template=prompt,
        on_failure=config.on_failure,
        bare_heuristic=True,
        triggers=Triggers(max_entries=config.max_entries, max_active_tokens=config.max_tokens),
    )
