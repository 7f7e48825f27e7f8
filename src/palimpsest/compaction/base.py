"""What strategies have in common: name, triggers, limits and low water, and the style of summaries. Pure."""

from __future__ import annotations

from math import floor
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from palimpsest.compaction import Snapshot
from palimpsest.compaction.knowledge import BLOCKS, KnowledgeBase, TextSplitter
from palimpsest.compaction.style import Style
from palimpsest.compaction.triggers import Triggers
from palimpsest.context.cut import Room
from palimpsest.errors import ConfigError
from palimpsest.log import values

FULL = {"threshold": 0.8}
"""The rule of strategies with a limit to keep, unless another is given."""

KEEP = 2
"""How many interactions a strategy keeps by default."""


class Triggered(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that may run by itself. Its last run is remembered by `name`, so each one of a session has its own."""

    triggers: Triggers = Triggers()
    name: str

    usual_rules: ClassVar[dict[str, Any]] = FULL
    """The rules that it gets where it is given by name, or in a mapping without any rule."""

    def __post_init__(self) -> None:
        values.text("name", self.name, none=False)
        if not isinstance(self.triggers, Triggers):
            raise ConfigError("triggers", self.triggers, "a Triggers")

    @property
    def summarizes(self) -> bool:
        """Whether its plans may cover entries."""
        return False

    @property
    def erases(self) -> bool:
        """Whether its plans may erase entries."""
        return False

    @property
    def style(self) -> Style:
        """How its summaries are made."""
        return Style()


class Summarizing(Triggered, frozen=True, kw_only=True):
    """A strategy whose plans cover entries. The fields are those of `Style`."""

    cod_max_loops: int = 3
    instructions: str | None = None
    prompt_template: str | None = None
    on_failure: Literal["keep", "heuristic"] = "heuristic"
    rebuild_every: int = 5
    bare_heuristic: bool = False
    knowledge_base: KnowledgeBase | None = None
    text_splitter: TextSplitter | None = None

    def __post_init__(self) -> None:
        Triggered.__post_init__(self)
        self.style.check()
        for key, kind in BLOCKS.items():
            if not isinstance(getattr(self, key), kind | None):
                raise ConfigError(key, getattr(self, key), f"a {kind.__name__}, or None")

    @property
    def summarizes(self) -> bool:
        """Whether its plans may cover entries."""
        return True

    @property
    def style(self) -> Style:
        """How its summaries are made."""
        return Style(**{name: getattr(self, name) for name in Style.__struct_fields__})


class Limited(Protocol):
    """A strategy that reduces the active set to low water, a share of its own limits or the session's."""

    @property
    def low_water(self) -> float: ...

    @property
    def max_tokens(self) -> int | None: ...

    @property
    def max_messages(self) -> int | None: ...

    @property
    def triggers(self) -> Triggers: ...


def check_limits(strategy: Limited) -> None:
    """Check limits and low water, and make `Triggers.threshold` a share of the strategy's own limits, if it has any."""
    assert isinstance(strategy, msgspec.Struct), "strategies with limits are structs of ours"
    values.share("low_water", strategy.low_water, one=False)
    values.whole("max_tokens", strategy.max_tokens, 1, none=True)
    values.whole("max_messages", strategy.max_messages, 1, none=True)
    triggers = strategy.triggers
    if triggers.threshold is not None and strategy.low_water >= triggers.threshold:
        raise ConfigError("low_water", strategy.low_water, f"a share under the threshold, {triggers.threshold}")
    own_limits = {name: getattr(strategy, name) for name in ("max_tokens", "max_messages")}
    own_limits = {
        name: limit for name, limit in own_limits.items() if limit is not None and getattr(triggers, name) is None
    }
    if own_limits:  # safe, since nobody else has seen the new strategy
        msgspec.structs.force_setattr(strategy, "triggers", msgspec.structs.replace(triggers, **own_limits))


def check_keep(keep: int, triggers: Triggers) -> None:
    """Check how many interactions are kept: fewer than the number that alone triggers the strategy."""
    values.whole("interaction_keep", keep)
    quantity = triggers.interaction_threshold_qty or 0
    if triggers.enabled == ("interaction_threshold_qty",) and keep >= quantity:
        raise ConfigError(
            "interaction_keep", keep, f"fewer than interaction_threshold_qty ({quantity}), or nothing is ever compacted"
        )


def low(strategy: Limited, snapshot: Snapshot) -> Room:
    """Return low water in tokens and messages (None: no limit)."""
    tokens = strategy.max_tokens or snapshot.max_tokens
    messages = strategy.max_messages or snapshot.max_messages
    share = strategy.low_water
    return Room(
        floor(values.part(share, tokens)) if tokens else None, floor(values.part(share, messages)) if messages else None
    )
