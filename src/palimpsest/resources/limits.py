"""The limits of a declared memory, resolved to options of its sessions, and the model's window. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import floor
from typing import Any, TypeGuard

from palimpsest.errors import ConfigError, nearest
from palimpsest.errors.secret import Secret, sealed
from palimpsest.log import values
from palimpsest.resources.allocation import allocation_of
from palimpsest.resources.payloads import KEYS as SIZES
from palimpsest.resources.problems import Problems
from palimpsest.tokens.counter import ENCODINGS
from palimpsest.tokens.fallback import COUNTERS
from palimpsest.tokens.models import find_model, model_names

WINDOWS = {
    "openai": 128_000,
    "anthropic": 200_000,
    "google": 1_000_000,
    "groq": 32_768,
    "ollama": 32_768,
    "deepseek": 128_000,
    "xai": 131_072,
    "cerebras": 128_000,
    "openrouter": 128_000,
    "mock": 4_096,
}
"""The windows, in tokens, that Compozy assumes for a provider if no model is named."""

PROVIDER_KEYS = ("provider", "model", "api_key", "api_key_env", "endpoint", "fallback", "settings")
NEEDED = {
    "token_based": ("max_tokens", "max_context_ratio", "max_messages"),
    "message_count_based": ("max_messages",),
    "buffer": ("max_tokens", "max_messages"),
}
"""The limits of which each type needs at least one."""

MEANT = {
    "max_tokens": "tokens of what the memory gives to a context; a strategy may have a max_tokens of its own",
    "max_messages": "messages of what the memory gives to a context",
    "max_log_tokens": "tokens of what the memory gives to a context, as max_tokens",
    "context_window": "tokens of the model's window",
}
"""What each limit bounds, for errors: elsewhere in a resource the same names mean other things."""

_VERSION = re.compile(r"(?a)v?\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z.-]{1,64})?(\+[0-9A-Za-z.-]{1,64})?")


def sizes_of(root: Mapping[str, Any], problems: Problems) -> dict[str, int]:
    """Return what the key `limits` says, in fields of `Limits`, and note what is wrong with it."""
    given, place = root.get("limits"), ("limits",)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        problems.add(place, type(given).__name__, f"a mapping of {', '.join(SIZES)}")
        return {}
    problems.check_keys(given, place, tuple(SIZES))
    sizes = {SIZES[key]: value for key, value in given.items() if key in SIZES and value is not None}
    for key, name in SIZES.items():
        with problems.at(*place, key):
            values.whole(key, sizes.get(name, 1), 1)
    return sizes


def version_of(root: Mapping[str, Any], problems: Problems) -> None:
    """Note a version that is not a semantic one."""
    given = root.get("version")
    if given is not None and (not isinstance(given, str) or not _VERSION.fullmatch(given)):
        problems.add(("version",), given, "a semantic version, such as 1.0.0 or 2.1.0-beta")


def limits_of(root: Mapping[str, Any], problems: Problems, warnings: list[str], kind: str | None) -> dict[str, Any]:
    """Return the options that the limits, the counting and the allocation of a resource set, and note mistakes."""
    options = _model(root, problems, warnings)
    for name, meant in MEANT.items():
        if root.get(name) is not None and not _is_limit(root[name]):
            bound = " (and at most 2**53)" if values.is_whole(root[name], 1) else ""
            problems.add((name,), root[name], f"a whole number of at least 1{bound}: {meant}")
    tokens = [root[name] for name in ("max_tokens", "max_log_tokens") if _is_limit(root.get(name))]
    if (share := root.get("max_context_ratio")) is not None:
        with problems.at("max_context_ratio"):
            values.share("max_context_ratio", share)
            tokens.append(max(floor(values.part(share, _window(root))), 1))
    elif root.get("context_window") is not None:
        warnings.append("context_window has no effect without max_context_ratio, which is a share of it")
    if tokens:
        options["max_log_tokens"] = min(tokens)
    if _is_limit(root.get("max_messages")):
        options["max_messages"] = root["max_messages"]
    needed = NEEDED.get(kind or "", ())
    if needed and not any(root.get(name) is not None for name in needed):
        problems.add((needed[0],), None, f"a value: {kind} needs {' or '.join(needed)}")
    has_budget = "model" in root or not {"max_log_tokens", "model"}.isdisjoint(options)
    if root.get("token_allocation") is not None and not has_budget:
        warnings.append("token_allocation has no effect without max_tokens or max_context_ratio, which it shares out")
    return options | allocation_of(root, problems, kind)


def _is_limit(value: object) -> TypeGuard[int]:
    """Whether a value can be a limit."""
    return values.is_whole(value, 1, values.MOST)


def _model(root: Mapping[str, Any], problems: Problems, warnings: list[str]) -> dict[str, Any]:
    """Return the options of counting that `token_provider` sets: the model, or a registered service as counter."""
    given = root.get("token_provider")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        problems.add(("token_provider",), type(given).__name__, "a mapping")
        return {}
    problems.check_keys(given, ("token_provider",), PROVIDER_KEYS)
    for key in ("provider", "model", "api_key", "api_key_env", "endpoint", "fallback"):
        with problems.at("token_provider", key):
            values.text(key, given.get(key))
    if given.get("settings") is not None and not isinstance(given["settings"], Mapping):
        problems.add(("token_provider", "settings"), given["settings"], "a mapping")
    secret = given.get("api_key")
    if isinstance(secret, str) and not secret.startswith("${"):
        warnings.append(
            "token_provider.api_key: who can read this file can read the key; name a variable with api_key_env instead"
        )
    provider = given.get("provider")
    if isinstance(provider, str) and COUNTERS.knows(provider):
        return _service(given, problems)
    if isinstance(provider, str) and provider.lower() not in WINDOWS:
        problem = "no program has registered a counter of this name yet, so tokens are counted on this machine"
        warnings.append(f"token_provider.provider: {provider}: {problem}")
    if {"api_key", "api_key_env", "endpoint", "settings"} & set(given):
        problem = "tokens are counted on this machine, so api_key, api_key_env, endpoint and settings are not used"
        warnings.append(f"token_provider: {problem}")
    return _local_counter(given, root, warnings)


def _local_counter(given: Mapping[str, Any], root: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """Return the options for counting on this machine: with the model, or if it is unknown or not named, the fallback,
    a model or an encoding. Empty if neither is known."""
    model, fallback = given.get("model"), given.get("fallback")
    if isinstance(model, str) and find_model(model) is not None:
        return {"model": model}
    if isinstance(fallback, str):
        known = find_model(fallback)
        if known is not None or fallback in ENCODINGS:
            if isinstance(model, str):
                warnings.append(f"token_provider.model: {model} is not in the table of models, so {fallback} counts")
            # Only its encoding: as the option `model`, the fallback's window would become a limit.
            return {"counter": fallback if known is None else known.encoding}
        warnings.append(
            f"token_provider.fallback: {fallback} has no effect: it is neither a known model nor an encoding"
        )
    if isinstance(model, str) and root.get("context_window") is None and root.get("max_context_ratio") is None:
        near = nearest(model, model_names())
        hint = f" (did you mean {near}?)" if near else ""
        warnings.append(f"token_provider.model: {model} is not in the table of models{hint}: counts are estimates")
    return {}


def _service(given: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the options for a counting service that the program has registered; where it fails, the fallback counts, a
    model or an encoding.

    A secret in the file is used if no variable names one, and wrapped so that nothing shows it.
    """
    fallback, model = given.get("fallback"), given.get("model")
    known = find_model(fallback) if isinstance(fallback, str) else None
    if isinstance(fallback, str) and known is None and fallback not in ENCODINGS:
        allowed = f"a known model, or {', '.join(ENCODINGS)}"
        problems.add(("token_provider", "fallback"), fallback, allowed, nearest=nearest(fallback, model_names()))
    used = ("provider", "model", "endpoint", "api_key_env", "settings")
    counter = sealed({key: given[key] for key in used if given.get(key)})
    if isinstance(secret := given.get("api_key"), str) and secret.startswith("${"):
        counter.setdefault("api_key_env", secret[2:-1])
    elif isinstance(secret, str):
        counter.setdefault("api_key", Secret(secret.encode()))
    encoding = known.encoding if known is not None else fallback
    options: dict[str, Any] = {"counter": {**counter, **({"fallback": encoding} if encoding else {})}}
    return {**options, "model": model} if isinstance(model, str) and find_model(model) is not None else options


def _window(root: Mapping[str, Any]) -> int:
    """Return the model's window in tokens. Raises ConfigError if it is not known."""
    given, provider = root.get("context_window"), root.get("token_provider")
    if given is not None:
        return given if _is_limit(given) else 1  # an invalid one is noted where all limits are checked
    model = (provider.get("model") if isinstance(provider, Mapping) else None) or root.get("model")
    name = provider.get("provider") if isinstance(provider, Mapping) else None
    if isinstance(model, str):
        known = find_model(model)
        if known is not None and known.window is not None:
            return known.window
        allowed = f"max_context_ratio together with context_window, since the window of {model!r} is not known"
        raise ConfigError("max_context_ratio", root["max_context_ratio"], allowed)
    if isinstance(name, str) and name.lower() in WINDOWS:
        return WINDOWS[name.lower()]
    allowed = (
        "max_context_ratio together with context_window, token_provider.model, or one of these providers: "
        + ", ".join(WINDOWS)
    )
    raise ConfigError("max_context_ratio", root["max_context_ratio"], allowed)
