"""Every resolved value of a declared memory, with its origin. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.compaction import loading
from palimpsest.context.short_term import MaxTokens
from palimpsest.resources.definition import Origin, Resource, Setting, StorePlace
from palimpsest.resources.payloads import KEYS, Limits
from palimpsest.sessions.options import GivenOptions
from palimpsest.stores.circuit_breaker import CircuitBreaker
from palimpsest.stores.options import discreet_address

FLUSHING = ("threshold", "summarize_oldest_percent", "interaction_keep", "on_failure", "low_water")
"""The options of flushing for which the document has a default."""

SOURCES = {
    "max_log_tokens": ("max_tokens", "max_log_tokens", "max_context_ratio"),
    "model": ("token_provider", "model"),
    "counter": ("token_provider",),
    "summary_share": ("token_allocation", "summary_share"),
    "tag_shares": ("token_allocation", "tag_shares"),
    "tail_share": ("tail_share", "token_allocation"),
    "persistence": ("persistence_strategy",),
    "lifetime": ("persistence", "lifetime"),
}
"""The keys of a resource that an option may come from, for options that do not come from a key of their own name."""

WITHIN = {("lifetime", "persistence"): "persistence.ttl"}
"""The full path of a key that is within another one, by the option and the outer key."""


def effective_of(root: Mapping[str, Any], resource: Resource) -> tuple[Setting, ...]:
    """Return every setting: names, the place, what holds by key, the options of sessions, then the strategies."""
    first = (*_of_name(root, resource), *_of_place(root, resource.place))
    return (*first, *_of_keyed(root, resource), *_of_options(root, resource.options))


def _of_name(root: Mapping[str, Any], resource: Resource) -> Iterator[Setting]:
    for name in ("id", "project", "version"):
        given = root.get(name) is not None
        yield Setting(name, getattr(resource, name), _said(given), name if given else "")
    template = resource.template.text if resource.template is not None else None
    key = "default_key_template" if template is not None else ""
    yield Setting("default_key_template", template, _said(template is not None), key)


def _of_place(root: Mapping[str, Any], place: StorePlace) -> Iterator[Setting]:
    given: Origin = "given" if root.get("persistence") or root.get("store") else "our default"
    key = "store" if root.get("store") else "persistence"
    address = f"${{{place.variable}}}" if place.address is None else discreet_address(place.address)
    yield Setting("store", address, given, key if given == "given" else "")
    policy = next((name for name in ("privacy_policy", "privacy") if root.get(name) is not None), "")
    yield Setting("privacy", place.privacy, "given" if policy else "our default", policy)
    yield from _of_breaker(root, place)
    yield Setting("encryption", place.keys_env, _said(place.keys_env is not None))
    locking = root.get("locking") or {}
    for ours, key in (("turn_lease", "append_ttl"), ("compaction_lease", "flush_ttl")):
        yield Setting(ours, getattr(place, ours), "given" if key in locking else "document default", f"locking.{key}")


def _of_breaker(root: Mapping[str, Any], place: StorePlace) -> Iterator[Setting]:
    """Yield the circuit breaker, and if there is one, its fields."""
    persistence = root.get("persistence")
    given, key = root.get("circuit_breaker"), "circuit_breaker"
    if given is None and isinstance(persistence, Mapping):
        given, key = persistence.get("circuit_breaker"), "persistence.circuit_breaker"
    breaker = place.circuit_breaker
    yield Setting("circuit_breaker", breaker, _said(given is not None), key if given is not None else "")
    fields = breaker if isinstance(breaker, Mapping) else {}
    for name in CircuitBreaker.__struct_fields__ if breaker is not None else ():
        origin: Origin = "given" if name in fields else "document default"
        at = f"{key}.{name}" if name in fields else ""
        yield Setting(f"circuit_breaker.{name}", fields.get(name, getattr(CircuitBreaker(), name)), origin, at)


def _of_keyed(root: Mapping[str, Any], resource: Resource) -> Iterator[Setting]:
    """Yield the settings of writing and destroying by key."""
    given = "clear_ttl" in (root.get("locking") or {})
    yield Setting("clear_lease", resource.clear_lease, "given" if given else "document default", "locking.clear_ttl")
    for key, name in KEYS.items():
        origin: Origin = "given" if name in resource.limits else "document default"
        yield Setting(f"limits.{name}", resource.limits.get(name, getattr(Limits(), name)), origin, f"limits.{key}")


def _said(given: bool) -> Origin:
    return "given" if given else "our default"


def _of_options(root: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Setting]:
    defaults = GivenOptions()
    for name in GivenOptions.__struct_fields__:
        if name in ("user", "title", "metadata", "short_term", "long_term", "definition"):
            continue
        if name in options:
            key = next((source for source in SOURCES.get(name, (name,)) if root.get(source) is not None), name)
            yield Setting(name, options[name], "given", WITHIN.get((name, key), key))
        elif name == "lifetime" and (key := _endless(root)):
            yield Setting(name, None, "given", key)
        else:
            yield Setting(name, getattr(defaults, name), "our default")
    yield from _of_short_term(options.get("short_term") or ())
    for i, block in enumerate(options.get("long_term") or ()):
        key = "flushing" if "long_term_memory_id" not in block else f"long_term_memory_strategy[{i}]"
        is_given = key != "flushing" or "flushing" in root
        yield from _of_long_term(f"long_term[{i}]", block, key, is_given=is_given)


def _endless(root: Mapping[str, Any]) -> str:
    """Return the key that says that sessions last for ever (a ttl of 0), for a memory without a lifetime; "": none."""
    persistence = root.get("persistence")
    return "persistence.ttl" if isinstance(persistence, Mapping) and persistence.get("ttl") is not None else ""


def _of_short_term(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Setting]:
    documented = ("memory_strategy_id", "memory_max_tokens", "conditions")
    for i, block in enumerate(blocks):
        for name in MaxTokens.__struct_fields__:
            origin: Origin = "document default" if name in documented else "our default"
            value = block.get(name, getattr(MaxTokens(), name))
            key = f"short_term_memory_strategy[{i}].{name}" if name in block else ""
            yield Setting(f"short_term[{i}].{name}", value, "given" if key else origin, key)


def _of_long_term(where: str, block: Mapping[str, Any], at: str, *, is_given: bool) -> Iterator[Setting]:
    """Yield the fields of a strategy, those of its triggers in place of `triggers`.

    `at` is the key of its block. Unless `is_given`, it is the document's default for a memory with a type.
    """
    ((strategy,), _) = loading.load(dict(block), where)
    kind = block.get("long_term_memory_id")
    documented = {**loading.ALQUIMIA_SHARED, **loading.ALQUIMIA_DEFAULTS.get(str(kind), {})} if kind is not None else {}
    documented |= dict.fromkeys(FLUSHING) if kind is None else {}
    given = {name: name for name in block} | (
        {"threshold": "summarize_threshold"} if "summarize_threshold" in block else {}
    )
    yield Setting(
        f"{where}.strategy",
        type(strategy).__name__,
        "given" if is_given else "document default",
        at if is_given else "",
    )
    fields = {
        name: getattr(strategy, name) for name in getattr(strategy, "__struct_fields__", ()) if name != "triggers"
    }
    rules = msgspec.structs.asdict(strategy.triggers)
    for name, value in {**rules, **fields}.items():
        origin: Origin = "document default" if name in documented else "our default"
        key = f"{at}.{given[name]}" if name in given else ""
        yield Setting(f"{where}.{name}", value, "given" if key else origin, key)
