"""Arguments for opening a declared memory and its sessions: from its definition and the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.errors.secret import unsealed
from palimpsest.log.head import Definition
from palimpsest.resources.allocation import RECALLS, shared_out
from palimpsest.resources.definition import Resource, plain
from palimpsest.resources.places import address_of
from palimpsest.resources.strategies import model_summarizer
from palimpsest.sessions.counting import DEFAULT_ENCODING
from palimpsest.sessions.declared import Declared, Kept
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.tokens.fallback import COUNTERS, FallbackCounter


def opened_with(resource: Resource, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the arguments of `Memory.open` for a resource, with these environment variables (None: the process's).

    Raises ConfigError, naming it, for a variable that is missing or empty.
    """
    place = resource.place
    address = place.address
    if address is None:
        where = f"memory {resource.id!r}: persistence.url"
        address = address_of(where, _variable(place.variable or "", where, environ), place.backend)
    return {
        "where": address,
        "privacy": place.privacy,
        "circuit_breaker": place.circuit_breaker,
        "encryption": _keys(resource),
        "turn_lease": place.turn_lease,
        "compaction_lease": place.compaction_lease,
    }


def session_options(resource: Resource, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options of a resource's sessions, with summarizer and counter as objects, overridden by those that the
    program has `given`. Raises ConfigError, and MissingExtra for a model."""
    options, given = dict(resource.options), given or {}
    if resource.long_term_share is not None and RECALLS & given.keys():
        options |= shared_out(resource.long_term_share, {**options, **given})
    summarizer = options.get("summarizer")
    if isinstance(summarizer, Mapping):
        settings = unsealed(summarizer)
        name = settings.pop("api_key_env", None)
        if name is not None:
            settings["api_key"] = _variable(name, f"memory {resource.id!r}: summarizer.api_key_env")
        options["summarizer"] = model_summarizer(settings.pop("model"), **settings)
    if isinstance(counter := options.get("counter"), Mapping):
        options["counter"] = _fallback_counter(resource, counter)
    return {**options, "definition": declared(resource, given), **given}


def _fallback_counter(resource: Resource, given: Mapping[str, Any]) -> Any:
    """Return a counter that asks the counting service that a memory names, and falls back to an encoding."""
    settings = unsealed(given)
    provider, fallback = settings.pop("provider"), settings.pop("fallback", DEFAULT_ENCODING)
    if (name := settings.pop("api_key_env", None)) is not None:
        settings["api_key"] = _variable(name, f"memory {resource.id!r}: token_provider.api_key_env")
    label = f"{provider}:{settings['model']}" if settings.get("model") else provider
    return FallbackCounter(COUNTERS.find(provider)(settings), fallback, name=label)


def declared(resource: Resource, given: Iterable[str] = ()) -> Declared:
    """Return the definition that a session notes, and what is stored about it once; `given` are the names of options
    that the program itself has given."""
    memory = f"{resource.project}/{resource.id}"
    definition = Definition(memory=memory, digest=resource.digest[:32], version=resource.version)
    settings = tuple((setting.option, plain(setting.value)) for setting in resource.effective())
    kept = Kept(memory=memory, version=resource.version, options=plain(resource.options), settings=settings)
    return Declared(definition=definition, kept=kept, given=frozenset(given))


def _keys(resource: Resource) -> Any:
    name = resource.place.keys_env
    if name is None:
        return None
    _variable(name, f"memory {resource.id!r}: encryption.keys_env")
    return Keys.from_env(name)


def _variable(name: str, where: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the value of an environment variable. Raises ConfigError if it is missing or empty."""
    value = (os.environ if environ is None else environ).get(name, "")
    if not value.strip():
        raise ConfigError(where, None, f"a value in the environment variable {name}")
    return value
