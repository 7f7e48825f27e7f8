"""`Catalogue`: declared memories by id, their opening, and the resolution of references to sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec

from palimpsest.errors import Closed, ConfigError, nearest
from palimpsest.privacy.gate import Gate, gate_of
from palimpsest.resources.definition import Resource, StorePlace
from palimpsest.resources.keys import Template
from palimpsest.resources.loading import loaded
from palimpsest.resources.opening import opened_with, session_options
from palimpsest.runtime.hushing import quietly
from palimpsest.sessions.memory import DEFAULT_TENANT, AsyncMemory
from palimpsest.sessions.sync import Memory

M = TypeVar("M", AsyncMemory, Memory)

MODES = ("read-write", "read-only")


class Catalogue(Generic[M]):
    """Declared memories by id. A store is opened when it is first needed; memories with the same place and policy share
    one."""

    def __init__(self, resources: Iterable[Resource], tenant: str = DEFAULT_TENANT, **options: Any) -> None:
        self._resources = {resource.id: resource for resource in resources}
        self._tenant, self._given = tenant, options
        self._memories: dict[str, tuple[StorePlace, M]] = {}
        self._closed = False
        self._gates: dict[str, Gate] = {}

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        project: str = "default",
        tenant: str = DEFAULT_TENANT,
        **options: Any,
    ) -> Self:
        """Load the memories that a file or a mapping declares, or all files of a folder that say `resource: memory`.

        Opens nothing yet. Raises InvalidResource with every mistake, its file and line, in which case nothing is
        loaded, and MissingExtra for YAML without the extra `config`.

        Args:
            source: a file (.yaml, .yml, .json), a folder, which is searched with its subfolders, or a mapping.
            project: the project of memories that name none, 1 to 100 letters, digits, _ and -.
            tenant: the owner of all sessions, "default" by default.
            options: further options of the memories, as `Memory.open` takes them, such as `clock`. `where`, the address
                of a store, overrides the declared places: all memories are kept there.
        """
        return cls(loaded(source, project), tenant, **options)

    def __getitem__(self, id: str) -> Resource:
        return self._resource(id, "id")

    def _resource(self, id: str, where: str) -> Resource:
        """Return the resource of this id. Raises ConfigError, which names `where` the id was given."""
        resource = self._resources.get(id)
        if resource is None:
            allowed = f"a declared memory: {_names(self._resources)}"
            raise ConfigError(where, id, allowed, nearest=nearest(id, self._resources))
        return resource

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_names(self._resources)}>"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the definitions, each with the id of its memory."""
        return tuple(
            f"memory {resource.id!r}: {text}" for resource in self._resources.values() for text in resource.warnings
        )

    def _opened(self, resource: Resource, kind: type[M]) -> M:
        """Return the memory that keeps a resource's sessions, one for all resources in a place. Raises Closed."""
        if self._closed:
            raise Closed(
                f"this {type(self).__name__}", f"load the declared memories again: {type(self).__name__}.load(...)"
            )
        if (where := self._given.get("where")) is not None:
            place = msgspec.structs.replace(resource.place, backend="", address=str(where), variable=None)
            resource = msgspec.structs.replace(resource, place=place)
        for place, memory in self._memories.values():
            if place == resource.place:
                return memory
        memory = kind.open(**{**opened_with(resource), "tenant": self._tenant, **self._given})
        self._memories[resource.id] = resource.place, memory
        return memory

    def _quiet(self, resource: Resource) -> AbstractContextManager[None]:
        """Return a context manager that redacts errors by a memory's policy; its store need not be open."""
        policy = self._given.get("privacy", resource.place.privacy)
        if policy is None:
            return quietly(None)
        if (gate := self._gates.get(resource.id)) is None:
            gate = self._gates[resource.id] = gate_of(policy)
        return quietly(gate.redact)

    def _named(
        self, reference: object, variables: Mapping[str, Any] | None, where: str = "reference"
    ) -> tuple[Resource, str, dict[str, Any]]:
        """Return the resource of a reference, the id of the session it names, and the options that it adds."""
        given = {"id": reference} if isinstance(reference, str) else reference
        if not isinstance(given, Mapping) or not isinstance(given.get("id"), str):
            raise ConfigError(where, reference, "the id of a memory, or {id, key, mode}")
        for name in given:
            if name not in ("id", "key", "mode"):
                raise ConfigError(
                    f"{where}.{name}", name, "id, key, mode", nearest=nearest(name, ("id", "key", "mode"))
                )
        resource, mode = self._resource(given["id"], f"{where}.id"), given.get("mode", MODES[0])
        where = f"{where} {resource.id!r}"
        if mode not in MODES:
            raise ConfigError(f"{where}.mode", mode, ", ".join(MODES), nearest=nearest(mode, MODES))
        with self._quiet(resource):
            id = _session_id(resource, given.get("key"), variables, f"{where}.key")
        return resource, id, {"readonly": True} if mode == MODES[1] else {}

    def _all_named(
        self, references: object, variables: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> list[tuple[Resource, str, dict[str, Any]]]:
        """Resolve a list of references like `_named`, with the complete options of each session.

        Raises ConfigError for two references to one session, or sessions in different formats.
        """
        if not isinstance(references, Sequence) or isinstance(references, str | bytes) or not references:
            raise ConfigError("references", references, "a list of at least one reference")
        found = list[tuple[Resource, str, dict[str, Any]]]()
        for i, reference in enumerate(references):
            resource, id, added = self._named(reference, variables, f"references[{i}]")
            if any(id == other for _, other, _ in found):
                raise ConfigError(f"references[{i}]", id, "a session that no other reference in the list has")
            found.append((resource, id, session_options(resource, {**options, **added})))
        formats = sorted({str(given.get("format", "openai")) for _, _, given in found})
        if len(formats) > 1:
            raise ConfigError(
                "format", ", ".join(formats), "the same format for all references; give `format` to choose one"
            )
        return found


def _session_id(resource: Resource, key: object, variables: Mapping[str, Any] | None, where: str) -> str:
    """Return the id of the session of a key, which may be a template; None: of the memory's own template."""
    template = Template(key, where) if isinstance(key, str) and "{" in key else None
    if key is None:
        template = resource.template
        if template is None:
            raise ConfigError(where, None, f"a key, since memory {resource.id!r} has no default_key_template")
    return resource.session_id(template.key(variables or {}) if template is not None else key)  # type: ignore[arg-type]


def _names(resources: Iterable[str]) -> str:
    return ", ".join(sorted(resources)) or "none"
