"""Make strategies from what a user wrote: an object, a name, native keys, or a block of Alquimia's or Compozy's. Pure.

A native mapping names its `strategy`; Alquimia's has `long_term_memory_id`, Compozy's `type`. In all of them the rules
of `Triggers` may be given beside the strategy's own keys; a native one may also have them under `triggers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from itertools import count
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import fields, replace

from palimpsest.compaction import Strategy, knowledge
from palimpsest.compaction.base import FULL
from palimpsest.compaction.style import Style
from palimpsest.compaction.triggers import Triggers
from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.runtime.registry import Registry

NAMES = {
    "cod-summarizer": "palimpsest.compaction.summarize:Summarize",
    "fifo": "palimpsest.compaction.evict:SimpleFifo",
    "hybrid_summary": "palimpsest.compaction.summarize:HybridSummary",
    "ladder": "palimpsest.compaction.ladder:Ladder",
    "lru": "palimpsest.compaction.evict:Lru",
    "mask_results": "palimpsest.compaction.mask:MaskResults",
    "neuralyzer": "palimpsest.compaction.erase:Neuralyzer",
    "simple_fifo": "palimpsest.compaction.evict:SimpleFifo",
    "summarizer": "palimpsest.compaction.summarize:Summarize",
    "superseded_contexts": "palimpsest.compaction.mask:SupersededContexts",
    "token_aware_lru": "palimpsest.compaction.evict:TokenAwareLru",
}

StrategyName: TypeAlias = Literal[
    "cod-summarizer",
    "fifo",
    "hybrid_summary",
    "ladder",
    "lru",
    "mask_results",
    "neuralyzer",
    "simple_fifo",
    "summarizer",
    "superseded_contexts",
    "token_aware_lru",
]
"""The strategies that come with Palimpsest. A strategy of your own is given as an object or a mapping, for type
checkers."""

STRATEGIES = Registry("strategy", "palimpsest.strategies", NAMES)
"""Strategies by name. `STRATEGIES.register("mine", Mine)` adds a class, or a function that returns a strategy."""

FLUSHES = ("simple_fifo", "lru", "hybrid_summary", "token_aware_lru")
"""Compozy's strategies; `fifo` is another name of the first."""

ALQUIMIA_SHARED: dict[str, Any] = {
    "interaction_keep": 0,
    "input_tokens_threshold": 0,
    "interaction_conditions": (),
    "interaction_threshold_qty": 0,
    "interaction_threshold_tokens": 0,
    "on_tools_success_threshold": (),
    "on_tools_error_threshold": (),
}
"""Keys that every block of Alquimia's has, with their defaults if these differ from ours."""

ALQUIMIA_DEFAULTS: dict[str, dict[str, Any]] = {
    "summarizer": {
        "interaction_threshold_qty": 20,
        "interaction_threshold_tokens": 20_000,
        "cod_max_loops": 5,
        "on_failure": "keep",
    },
    "neuralyzer": {"interaction_threshold_qty": -1, "interaction_threshold_tokens": -1},
}
"""Defaults that Alquimia's strategies override."""

LOW_WATER = 0.5 / 0.8
"""Low water as a share of the threshold, used if the threshold is at or below the default low water."""

_ALIASES = {"cod-summarizer": "summarizer", "fifo": "simple_fifo"}
_RULES = Triggers.__struct_fields__
_NAMED = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def load(given: object, where: str = "long_term") -> tuple[tuple[Strategy, ...], list[str]]:
    """Return the given strategies in order, and warnings.

    `given` is a strategy, its name, a mapping, or a list of these; None gives none. A second strategy of a kind without
    a name of its own is numbered: `summarizer`, `summarizer-2`. Raises ConfigError naming the place of the mistake:
    `where`, the index in a list, the key.
    """
    if given is None:
        return (), []
    items: Iterable[tuple[str, object]] = [(where, given)]
    if isinstance(given, Sequence) and not isinstance(given, str):
        items = ((f"{where}[{i}]", item) for i, item in enumerate(given))
    strategies: list[Strategy] = []
    warnings: list[str] = []
    for place, item in items:
        strategy = _numbered(_strategy_of(item, place, warnings), [other.name for other in strategies])
        if any(strategy.name == other.name for other in strategies):
            raise ConfigError(f"{place}.name", strategy.name, "a name that no other strategy of this session has")
        if not strategy.triggers.enabled:
            warnings.append(f"{place}: {strategy.name} has no enabled trigger, so it can never fire by itself")
        strategies.append(strategy)
    return tuple(strategies), warnings


def load_with_knowledge(
    given: object, where: str, persistence: str
) -> tuple[tuple[Strategy, ...], list[str], list[knowledge.Linked]]:
    """Like `load`, but also return the strategies' knowledge bases, checked for a session of this persistence."""
    strategies, warnings = load(given, where)
    return strategies, warnings, knowledge.linked(strategies, persistence)


def _strategy_of(given: object, where: str, warnings: list[str]) -> Strategy:
    if isinstance(given, str):
        return _native(given, {}, where, where)
    if isinstance(given, Mapping):
        return _mapping({str(key): value for key, value in given.items()}, where, warnings)
    return _checked(given, where)


def _numbered(strategy: Strategy, taken_names: Sequence[str]) -> Strategy:
    """Return the strategy with a free name, if it has the default name of its kind and that is taken."""
    if not isinstance(strategy, Struct):
        return strategy
    default_name = next((field.default for field in fields(strategy) if field.name == "name"), None)
    if strategy.name != default_name or default_name not in taken_names:
        return strategy
    free = next(name for number in count(2) if (name := f"{default_name}-{number}") not in taken_names)
    numbered: Strategy = replace(strategy, name=free)
    return numbered


def _checked(given: Any, where: str) -> Strategy:
    """Return the object if it is a strategy. Raises ConfigError otherwise."""
    missing = [
        name for name in ("name", "summarizes", "erases", "style", "triggers", "plan") if not hasattr(given, name)
    ]
    if missing or isinstance(given, type):
        hint = f"; it has no {', no '.join(missing)}" if missing else ""
        raise ConfigError(where, given, f"a strategy, its name, or a mapping of its options{hint}")
    for name, kind in (("style", Style), ("triggers", Triggers)):
        if not isinstance(getattr(given, name), kind):
            raise ConfigError(f"{where}.{name}", getattr(given, name), f"a {kind.__name__}")
    with _in_place(where):
        values.text("name", given.name, none=False)
    strategy: Strategy = given
    return strategy


def _mapping(block: dict[str, Any], where: str, warnings: list[str]) -> Strategy:
    """Make a strategy from a mapping, by the key that tells whose block it is."""
    if "long_term_memory_id" in block:
        return _alquimia(block, where)
    if "strategy" in block:
        return _native(block.pop("strategy"), block, where, f"{where}.strategy")
    if "type" in block or "summarize_threshold" in block:
        return _compozy(block, where, warnings)
    if "memory_strategy_id" in block:  # which says what a context shows, and summarises nothing
        told = "this block under short_term (in a file: short_term_memory_strategy)"
        raise ConfigError(f"{where}.memory_strategy_id", block["memory_strategy_id"], told)
    kinds = ("strategy", "long_term_memory_id", "type")
    key = next((key for key in block if nearest(key, kinds)), None)
    near = nearest(key, kinds) if key else None
    raise ConfigError(f"{where}.{key or 'strategy'}", key, f"one of the keys {', '.join(kinds)}", nearest=near)


def _native(name: object, options: dict[str, Any], where: str, at: str) -> Strategy:
    """Make the strategy of this name; `at` is the place of the name."""
    if not isinstance(name, str):
        raise ConfigError(at, name, f"the name of a strategy: {', '.join(NAMES)}")
    try:
        target = STRATEGIES.find(name)
    except ConfigError as fault:
        raise ConfigError(at, name, fault.allowed, nearest=fault.nearest) from None
    if not any(key in _RULES or key == "triggers" for key in options):
        options = {**options, **getattr(target, "usual_rules", {})}
    return _make(target, options, where)


def _alquimia(block: dict[str, Any], where: str) -> Strategy:
    """Make a strategy from Alquimia's keys, with Alquimia's defaults."""
    name = block.pop("long_term_memory_id")
    with _in_place(where):
        values.choice("long_term_memory_id", name, ("summarizer", "cod-summarizer", "neuralyzer"))
    name = _ALIASES.get(name, name)
    return _make(STRATEGIES.find(name), {**ALQUIMIA_SHARED, **ALQUIMIA_DEFAULTS[name], **block}, where)


def _compozy(block: dict[str, Any], where: str, warnings: list[str]) -> Strategy:
    """Make a strategy from Compozy's keys, with Compozy's defaults."""
    name = block.pop("type", "simple_fifo")
    if _ALIASES.get(str(name), name) not in FLUSHES:
        raise ConfigError(f"{where}.type", name, ", ".join(FLUSHES), nearest=nearest(name, FLUSHES))
    threshold = block.pop("summarize_threshold", FULL["threshold"])
    with _in_place(where):
        values.share("summarize_threshold", threshold)
        if "threshold" in block:
            raise ConfigError("threshold", block["threshold"], "this or summarize_threshold, which is the same")
        if name != "hybrid_summary":
            _drop_ignored(block, name, where, warnings)
    documented = {"interaction_keep": 0, "on_failure": "keep"} if name == "hybrid_summary" else {}
    return _make(STRATEGIES.find(name), {**documented, **block, "threshold": threshold}, where)


def _drop_ignored(block: dict[str, Any], name: str, where: str, warnings: list[str]) -> None:
    """Check and remove options that only `hybrid_summary` uses."""
    if "summary_tokens" in block:
        values.whole("summary_tokens", block["summary_tokens"], 1)
    if "summarize_oldest_percent" in block:
        values.share("summarize_oldest_percent", block["summarize_oldest_percent"])
    for key in ("summary_tokens", "summarize_oldest_percent"):
        if key in block:
            del block[key]
            told = "makes no summaries, and only a flush that asks for hybrid_summary does"
            warnings.append(f"{where}.{key} has no effect: {name} {told}")


def _make(target: Any, options: dict[str, Any], where: str) -> Strategy:
    """Make a strategy by its class or function, with the trigger rules among the options gathered."""
    if not callable(target):
        if options:
            raise ConfigError(f"{where}.{next(iter(options))}", options, "no options: it is registered as it is")
        return _checked(target, where)
    parameters = signature(target).parameters
    options = _with_triggers(options, parameters, where)
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        values.known(where, options, [*parameters, *_RULES] if "triggers" in parameters else [*parameters], inside=True)
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and name not in options and parameter.kind in _NAMED:
            raise ConfigError(f"{where}.{name}", None, "a value: it has no default, so give a mapping that has it")
    threshold = getattr(options.get("triggers"), "threshold", None) or 1
    if "low_water" in parameters and "low_water" not in options and parameters["low_water"].default >= threshold:
        options["low_water"] = threshold * LOW_WATER
    for key in knowledge.BLOCKS:
        if key in parameters and key in options:
            options[key] = knowledge.loaded(key, options[key], f"{where}.{key}")
    with _in_place(where):
        strategy = target(**options)
    return _checked(strategy, where)


def _with_triggers(options: dict[str, Any], parameters: Mapping[str, Parameter], where: str) -> dict[str, Any]:
    """Return the options with one `Triggers` instead of the rules among them or under `triggers`."""
    if "triggers" not in parameters:
        return options
    rules_beside = {key: value for key, value in options.items() if key in _RULES and key not in parameters}
    others = {key: value for key, value in options.items() if key not in rules_beside}
    given = others.get("triggers")
    if given is None or not isinstance(given, Mapping):
        place, rules = where, rules_beside
        if isinstance(given, Triggers) and not rules_beside:
            return others
    else:
        place, rules = f"{where}.triggers", {str(key): value for key, value in given.items()}
        values.known(place, rules, _RULES, inside=True)
    if given is not None and (rules_beside or not isinstance(given, Mapping)):
        raise ConfigError(f"{where}.triggers", given, "a Triggers or a mapping, and no rules beside it")
    with _in_place(place):
        return {**others, "triggers": Triggers(**rules)}


@contextmanager
def _in_place(where: str) -> Iterator[None]:
    """Add the place to a ConfigError that names only an option."""
    try:
        yield
    except ConfigError as fault:
        raise ConfigError(f"{where}.{fault.where}", fault.found, fault.allowed, nearest=fault.nearest) from None
