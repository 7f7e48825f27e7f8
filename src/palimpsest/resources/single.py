"""Opening a single declared memory: the arguments for its store, and the options of its sessions."""

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
    """Return the arguments of `Memory.open` for a declared memory, and the options of its sessions.

    `id` None stands for the only one that is declared. Raises InvalidResource, and ConfigError if there are several and
    no id is given, or none has the id.
    """
    resources = {resource.id: resource for resource in loaded(source)}
    if id is None and len(resources) != 1:
        allowed = f"the id of one of the {len(resources)} declared memories: {', '.join(sorted(resources)) or 'none'}"
        raise ConfigError("id", None, allowed)
    if id is not None and id not in resources:
        allowed = ", ".join(sorted(resources)) or "the id of a declared memory, but none is declared"
        raise ConfigError("id", id, allowed, nearest=nearest(id, resources))
    resource = resources[id] if id is not None else next(iter(resources.values()))
    return opened_with(resource, environ), session_options(resource)
