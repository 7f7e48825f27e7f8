"""`Resources` and `AsyncResources`: declared memories by id, and the sessions that their keys name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.privacy.gate import Gate, gate_of
from palimpsest.resources.agents import AsyncAgentMemory
from palimpsest.resources.agents_sync import AgentMemory
from palimpsest.resources.definition import Resource, StorePlace
from palimpsest.resources.keys import Template
from palimpsest.resources.loading import loaded
from palimpsest.resources.opening import opened_with, session_options
from palimpsest.resources.operations import AsyncDeclaredMemory
from palimpsest.resources.operations_sync import DeclaredMemory
from palimpsest.resources.payloads import Limits
from palimpsest.resources.worked import Told
from palimpsest.resources.working import LEASE, Worker
from palimpsest.runtime.hushing import quietly
from palimpsest.sessions.memory import DEFAULT_TENANT, AsyncMemory
from palimpsest.sessions.session import AsyncSession
from palimpsest.sessions.sync import Memory, Session

M = TypeVar("M", AsyncMemory, Memory)

MODES = ("read-write", "read-only")


class _Collection(Generic[M]):
    """Declared memories by id. Each store is opened when the first session of it is asked for; two memories in one
    place, under one policy, share it."""

    def __init__(self, resources: Iterable[Resource], tenant: str = DEFAULT_TENANT, **options: Any) -> None:
        self._resources = {resource.id: resource for resource in resources}
        self._tenant, self._given = tenant, options
        self._memories: dict[str, tuple[StorePlace, M]] = {}
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
        """Load what is declared in a file, in all files of a folder that say `resource: memory`, or in a mapping.

        Nothing is opened yet. Raises InvalidResource with every mistake, its file and its line, and loads nothing then;
        MissingExtra for YAML without the extra `config`.

        Args:
            source: a file (.yaml, .yml, .json), a folder, which is searched with the folders in it, or a mapping.
            project: the project of memories that name none, 1 to 100 letters, digits, _ and -.
            tenant: who owns every session, "default" by default.
            options: further options of the memories, as `Memory.open` takes them, such as `clock`. With `where`, the
                address of a store, all of them are kept there, in the place of what is declared.
        """
        return cls(loaded(source, project), tenant, **options)

    def __getitem__(self, id: str) -> Resource:
        return self._known(id, "id")

    def _known(self, id: str, where: str) -> Resource:
        found = self._resources.get(id)
        if found is None:
            told = f"a declared memory: {_names(self._resources)}"
            raise ConfigError(where, id, told, nearest=nearest(id, self._resources))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_names(self._resources)}>"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the definitions should know, each with its memory."""
        return tuple(f"memory {one.id!r}: {text}" for one in self._resources.values() for text in one.warnings)

    def _opened(self, resource: Resource, kind: type[M]) -> M:
        """The memory of a resource: one for all that are in one place."""
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
        """What keeps out of errors what the policy of a memory finds, whose store need not be open."""
        policy = self._given.get("privacy", resource.place.privacy)
        if policy is None:
            return quietly(None)
        if (gate := self._gates.get(resource.id)) is None:
            gate = self._gates[resource.id] = gate_of(policy)
        return quietly(gate.redact)

    def _named(
        self, reference: object, variables: Mapping[str, Any] | None, where: str = "reference"
    ) -> tuple[Resource, str, dict[str, Any]]:
        """The resource of a reference, the session that it names, and what the reference adds to its options."""
        given = {"id": reference} if isinstance(reference, str) else reference
        if not isinstance(given, Mapping) or not isinstance(given.get("id"), str):
            raise ConfigError(where, reference, "the id of a memory, or {id, key, mode}")
        for name in given:
            if name not in ("id", "key", "mode"):
                raise ConfigError(
                    f"{where}.{name}", name, "id, key, mode", nearest=nearest(name, ("id", "key", "mode"))
                )
        resource, mode = self._known(given["id"], f"{where}.id"), given.get("mode", MODES[0])
        where = f"{where} {resource.id!r}"
        if mode not in MODES:
            raise ConfigError(f"{where}.mode", mode, ", ".join(MODES), nearest=nearest(mode, MODES))
        with self._quiet(resource):
            id = _session_id(resource, given.get("key"), variables, f"{where}.key")
        return resource, id, {"readonly": True} if mode == MODES[1] else {}

    def _all_named(
        self, references: object, variables: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> list[tuple[Resource, str, dict[str, Any]]]:
        """The same of each reference of a list, no two of which name one session, in one format of a provider."""
        if not isinstance(references, Sequence) or isinstance(references, str | bytes) or not references:
            raise ConfigError("references", references, "a list of references, one at least")
        found = list[tuple[Resource, str, dict[str, Any]]]()
        for i, reference in enumerate(references):
            resource, id, added = self._named(reference, variables, f"references[{i}]")
            if any(id == other for _, other, _ in found):
                raise ConfigError(f"references[{i}]", id, "a session that no other reference of the list names")
            found.append((resource, id, session_options(resource, {**options, **added})))
        formats = sorted({str(given.get("format", "openai")) for _, _, given in found})
        if len(formats) > 1:
            raise ConfigError("format", ", ".join(formats), "one format for all: give `format`")
        return found


def _session_id(resource: Resource, key: object, variables: Mapping[str, Any] | None, where: str) -> str:
    template = Template(key, where) if isinstance(key, str) and "{" in key else None
    if key is None:
        template = resource.template
        if template is None:
            raise ConfigError(where, None, f"a key: memory {resource.id!r} has no default_key_template")
    return resource.session_id(template.key(variables or {}) if template is not None else key)  # type: ignore[arg-type]


class Resources(_Collection[Memory]):
    """Declared memories by id, opened when they are first used: `with Resources.load("memory/") as resources:`."""

    def session(
        self, reference: str | Mapping[str, Any], variables: Mapping[str, Any] | None = None, **options: Any
    ) -> Session:
        """Return the session that a key of a declared memory names. Raises ConfigError for what names none.

        Args:
            reference: the id of a memory, or a mapping of `id`, `key` (a key or a template; without it the memory's own
                template makes one) and `mode` ("read-write", or "read-only").
            variables: values for the template's places by name; `a.b` is `b` in the mapping `a`.
            options: options of the session, such as `format`: they hold in the place of what is declared.
        """
        resource, id, added = self._named(reference, variables)
        return self.memory(resource.id).session(id, **session_options(resource, {**options, **added}))

    def memory(self, id: str) -> Memory:
        """Return the memory that keeps the sessions of a declared one.

        Args:
            id: the id of the declared memory.
        """
        return self._opened(self[id], Memory)

    def agent(
        self,
        references: Sequence[str | Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AgentMemory:
        """Return several memories of one agent together: what they give to a call stands in the references' order,
        and what is said is stored in each that is read-write. Raises ConfigError, naming the reference, for what names
        none, and for two that name one session.

        Args:
            references: ids of memories, or mappings of `id`, `key` and `mode`, as `session` takes them.
            variables: values for the templates' places by name.
            options: options of all the sessions, such as `format`: they hold in the place of what is declared.
        """
        named = self._all_named(references, variables, options)
        opened = [(self.memory(resource.id), id, given) for resource, id, given in named]
        return AgentMemory([(memory, memory.session(id, **given)) for memory, id, given in opened])

    def keyed(self, id: str, *, limits: Limits | Mapping[str, int] | None = None) -> DeclaredMemory:
        """Return a declared memory by its keys: read, append, write, flush, clear, delete, figures, health.

        Args:
            id: the id of the declared memory.
            limits: how large what is written at once may be; None: what MAX_MESSAGE_CONTENT_LENGTH and
                MAX_TOTAL_CONTENT_SIZE say, else what is declared, else 10,240 bytes a message, 102,400 in all, 100
                messages.
        """
        resource = self[id]
        most = Limits.of(limits, resource.limits)
        return DeclaredMemory(self.memory(id), resource, session_options(resource), most)

    def close(self) -> None:
        """Close every store that was opened. Again it does nothing."""
        while self._memories:
            _, (_, memory) = self._memories.popitem()
            memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncResources(_Collection[AsyncMemory]):
    """The same for a program with an event loop: `async with AsyncResources.load("memory/") as resources:`."""

    def session(
        self, reference: str | Mapping[str, Any], variables: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncSession:
        """Return the session that a key of a declared memory names. Raises ConfigError for what names none.

        Args:
            reference: the id of a memory, or a mapping of `id`, `key` and `mode`, as `Resources.session` takes it.
            variables: values for the template's places by name.
            options: options of the session, in the place of what is declared.
        """
        resource, id, added = self._named(reference, variables)
        return self.memory(resource.id).session(id, **session_options(resource, {**options, **added}))

    def memory(self, id: str) -> AsyncMemory:
        """Return the memory that keeps the sessions of a declared one; its first verb opens the store.

        Args:
            id: the id of the declared memory.
        """
        return self._opened(self[id], AsyncMemory)

    def agent(
        self,
        references: Sequence[str | Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncAgentMemory:
        """Return several memories of one agent together: what they give to a call stands in the references' order,
        and what is said is stored in each that is read-write. Raises ConfigError, naming the reference, for what names
        none, and for two that name one session.

        Args:
            references: ids of memories, or mappings of `id`, `key` and `mode`, as `session` takes them.
            variables: values for the templates' places by name.
            options: options of all the sessions, such as `format`: they hold in the place of what is declared.
        """
        named = self._all_named(references, variables, options)
        opened = [(self.memory(resource.id), id, given) for resource, id, given in named]
        return AsyncAgentMemory([(memory, memory.session(id, **given)) for memory, id, given in opened])

    def keyed(self, id: str, *, limits: Limits | Mapping[str, int] | None = None) -> AsyncDeclaredMemory:
        """Return a declared memory by its keys: read, append, write, flush, clear, delete, figures, health.

        Args:
            id: the id of the declared memory.
            limits: how large what is written at once may be, as `Resources.keyed` takes it.
        """
        resource = self[id]
        most = Limits.of(limits, resource.limits)
        return AsyncDeclaredMemory(self.memory(id), resource, session_options(resource), most)

    def worker(
        self,
        *,
        tenants: Sequence[str] | None = None,
        all_tenants: bool = False,
        duties: Sequence[str] | None = None,
        lease: timedelta | float | str = LEASE,
        told: Told | None = None,
        **options: Any,
    ) -> Worker:
        """Return what does all that is due of the declared memories: `await worker.run()`, or `await worker.once()`.

        It works through the memories of this object, which have to stay open. Raises ConfigError for what is not
        accepted.

        Args:
            tenants: whose sessions; None: those of the tenant that this object was loaded with.
            all_tenants: whether the sessions of all tenants are meant that the stores have, in the place of that.
            duties: what is done, by name: "compact", "sweep", "index"; None: all of it.
            lease: for how long sessions are taken by a worker that gives no sign of life; "60s" by default.
            told: called with a `Worked` for each thing that was done.
            options: options of the sessions, such as `summarizer`: they hold in the place of what is declared.
        """
        values.switch("all_tenants", all_tenants)
        places = dict[int, tuple[AsyncMemory, list[Resource]]]()
        for resource in self._resources.values():
            memory = self.memory(resource.id)
            places.setdefault(id(memory), (memory, []))[1].append(resource)
        return Worker(
            places.values(),
            tenants=None if all_tenants else [self._tenant] if tenants is None else tenants,
            duties=duties,
            lease=lease,
            told=told,
            options=options,
            clock=self._given.get("clock", now_us),
        )

    async def close(self) -> None:
        """Close every store that was opened. Again it does nothing."""
        while self._memories:
            _, (_, memory) = self._memories.popitem()
            await memory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _names(resources: Iterable[str]) -> str:
    return ", ".join(sorted(resources)) or "none"
