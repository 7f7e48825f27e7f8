"""`AsyncResources`: declared memories by id. `collection_sync.py` is written out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.resources.agents import AsyncAgentMemory
from palimpsest.resources.catalogue import Catalogue
from palimpsest.resources.definition import Resource
from palimpsest.resources.opening import session_options
from palimpsest.resources.operations import AsyncDeclaredMemory
from palimpsest.resources.payloads import Limits
from palimpsest.resources.worked import Told
from palimpsest.resources.working import LEASE, Worker
from palimpsest.sessions.memory import AsyncMemory
from palimpsest.sessions.session import AsyncSession


class AsyncResources(Catalogue[AsyncMemory]):
    """Declared memories by id, opened when they are first used, for programs with an event loop:
    `async with AsyncResources.load("memory/") as resources:`."""

    def session(
        self, reference: str | Mapping[str, Any], variables: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncSession:
        """Return the session that a reference names. Raises ConfigError for an invalid reference.

        Args:
            reference: the id of a memory, or a mapping of `id`, `key` (a key or a template; without it the memory's own
                template makes one) and `mode` ("read-write", or "read-only").
            variables: values for the template's variables, by name; `a.b` is `b` in the mapping `a`.
            options: options of the session, such as `format`: they override what is declared.
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
        """Return the sessions of several memories as one memory of an agent.

        Its contexts show all of them in the order of the references; what is added is stored in each that is
        read-write. Raises ConfigError, naming the reference, for an invalid one, and for two that name one session.

        Args:
            references: ids of memories, or mappings of `id`, `key` and `mode`, as `session` takes them.
            variables: values for the templates' variables, by name.
            options: options of all sessions, such as `format`: they override what is declared.
        """
        named = self._all_named(references, variables, options)
        opened = [(self.memory(resource.id), id, given) for resource, id, given in named]
        return AsyncAgentMemory([(memory, memory.session(id, **given)) for memory, id, given in opened])

    def keyed(self, id: str, *, limits: Limits | Mapping[str, int] | None = None) -> AsyncDeclaredMemory:
        """Return a declared memory for operations by key: read, append, write, flush, clear, delete, figures, health.

        Args:
            id: the id of the declared memory.
            limits: how much one call may write; None: what the variables MAX_MESSAGE_CONTENT_LENGTH and
                MAX_TOTAL_CONTENT_SIZE say, else what is declared, else 10,240 bytes a message, 102,400 in all, 100
                messages.
        """
        resource = self[id]
        checked = Limits.of(limits, resource.limits)
        return AsyncDeclaredMemory(self.memory(id), resource, session_options(resource), checked)

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
        """Return a worker that does all that is due in the declared memories: `await worker.run()` or `worker.once()`.

        It uses the memories of this object, which has to stay open. Raises ConfigError for an invalid argument.

        Args:
            tenants: the tenants whose sessions are worked on; None: the one that this object was loaded with.
            all_tenants: True: all tenants that the stores have, instead.
            duties: the duties, by name: "compact", "sweep", "index"; None: all of them.
            lease: how long sessions stay claimed by a worker that gives no sign of life; "60s" by default.
            told: called with a `Worked` for each thing that was done. If it raises, that is logged, and work goes on.
            options: options of the sessions, such as `summarizer`: they override what is declared.
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
        """Close every store that was opened. A second call does nothing. Later calls for a session raise Closed."""
        self._closed = True
        while self._memories:
            _, (_, memory) = self._memories.popitem()
            await memory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
