"""What a declared memory is opened with: what its definition names, and the environment has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.resources.definition import Resource


def opened_with(resource: Resource, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the arguments of `Memory.open`, by these variables (None: those of this process).

    Raises ConfigError, naming it, for a variable that says nothing.
    """
    place = resource.place
    address = place.address
    if address is None:
        address = _variable(place.variable or "", f"memory {resource.id!r}: persistence.url", environ)
    return {
        "where": address,
        "privacy": place.privacy,
        "circuit_breaker": place.circuit_breaker,
        "encryption": _keys(resource),
        "turn_lease": place.turn_lease,
        "compaction_lease": place.compaction_lease,
    }


def session_options(resource: Resource) -> dict[str, Any]:
    """Return the options of its sessions, the summarizer made. Raises ConfigError, and MissingExtra for a model."""
    options = dict(resource.options)
    summarizer = options.get("summarizer")
    if isinstance(summarizer, Mapping):
        from palimpsest.summaries.models.model_summarizer import ModelSummarizer  # an extra, for who has one

        given = dict(summarizer)
        name = given.pop("api_key_env", None)
        if name is not None:
            given["api_key"] = _variable(name, f"memory {resource.id!r}: summarizer.api_key_env")
        options["summarizer"] = ModelSummarizer(given.pop("model"), **given)
    return options


def _keys(resource: Resource) -> Any:
    name = resource.place.keys_env
    if name is None:
        return None
    from palimpsest.stores.encrypted.keys import Keys  # an extra, for who has keys

    _variable(name, f"memory {resource.id!r}: encryption.keys_env")
    return Keys.from_env(name)


def _variable(name: str, where: str, environ: Mapping[str, str] | None = None) -> str:
    """What an environment variable says. Raises ConfigError where it says nothing."""
    value = (os.environ if environ is None else environ).get(name, "")
    if not value.strip():
        raise ConfigError(where, None, f"a value, or the environment variable {name}")
    return value
