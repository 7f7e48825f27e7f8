"""What a declared memory is opened with: what its definition names, and the environment has."""

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
    """Return the arguments of `Memory.open`, by these variables (None: those of this process).

    Raises ConfigError, naming it, for a variable that says nothing.
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
    """Return the options of its sessions, the summarizer made, and in their place those that the program has `given`.
    Raises ConfigError, and MissingExtra for a model."""
    options, given = dict(resource.options), given or {}
    if resource.long_term_share is not None and RECALLS & given.keys():
        options |= shared_out(resource.long_term_share, {**options, **given})
    summarizer = options.get("summarizer")
    if isinstance(summarizer, Mapping):
        said = unsealed(summarizer)
        name = said.pop("api_key_env", None)
        if name is not None:
            said["api_key"] = _variable(name, f"memory {resource.id!r}: summarizer.api_key_env")
        options["summarizer"] = model_summarizer(said.pop("model"), **said)
    if isinstance(asked := options.get("counter"), Mapping):
        options["counter"] = _counting(resource, asked)
    return {**options, "definition": declared(resource, given), **given}


def _counting(resource: Resource, given: Mapping[str, Any]) -> Any:
    """What asks the counting service that a memory names, with what counts where that fails."""
    said = unsealed(given)
    provider, fallback = said.pop("provider"), said.pop("fallback", DEFAULT_ENCODING)
    if (name := said.pop("api_key_env", None)) is not None:
        said["api_key"] = _variable(name, f"memory {resource.id!r}: token_provider.api_key_env")
    named = f"{provider}:{said['model']}" if said.get("model") else provider
    return FallbackCounter(COUNTERS.find(provider)(said), fallback, name=named)


def declared(resource: Resource, given: Iterable[str] = ()) -> Declared:
    """Return what a session keeps of its definition, and what is stored of that; the program has `given` these options
    itself."""
    memory = f"{resource.project}/{resource.id}"
    definition = Definition(memory=memory, digest=resource.digest[:32], version=resource.version)
    settings = tuple((one.option, plain(one.value)) for one in resource.effective())
    kept = Kept(memory=memory, version=resource.version, options=plain(resource.options), settings=settings)
    return Declared(definition=definition, kept=kept, given=frozenset(given))


def _keys(resource: Resource) -> Any:
    name = resource.place.keys_env
    if name is None:
        return None
    _variable(name, f"memory {resource.id!r}: encryption.keys_env")
    return Keys.from_env(name)


def _variable(name: str, where: str, environ: Mapping[str, str] | None = None) -> str:
    """What an environment variable says. Raises ConfigError where it says nothing."""
    value = (os.environ if environ is None else environ).get(name, "")
    if not value.strip():
        raise ConfigError(where, None, f"a value, or the environment variable {name}")
    return value
