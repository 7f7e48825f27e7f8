"""A memory that one resource declares: how its store is opened, and the options that its sessions have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import ConfigError, nearest
from palimpsest.resources.loading import loaded
from palimpsest.resources.opening import opened_with, session_options


def opening(
    source: str | Path | Mapping[str, Any], id: str | None, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `Memory.open` for the one memory that is declared, or the one of this id, and the options
    of its sessions. Raises InvalidResource, and ConfigError where it is not said which of several is meant.
    """
    resources = {resource.id: resource for resource in loaded(source)}
    if id is None and len(resources) != 1:
        told = f"the id of a memory, for there are {len(resources)}: {', '.join(sorted(resources)) or 'none'}"
        raise ConfigError("id", None, told)
    if id is not None and id not in resources:
        told = ", ".join(sorted(resources)) or "the id of a declared memory: there is none"
        raise ConfigError("id", id, told, nearest=nearest(id, resources))
    resource = resources[id] if id is not None else next(iter(resources.values()))
    return opened_with(resource, environ), session_options(resource)
