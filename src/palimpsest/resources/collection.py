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
        """Return the session that a key of a declared memory names. Raises ConfigError for what names none.

        Args:
            reference: the id of a memory, or a mapping of `id`, `key` (a key or a template; without it the memory's own
                template makes one) and `mode` ("read-write", or "read-only").
            variables: values for the template's places by name; `a.b` is `b` in the mapping `a`.
            options: options of the session, such as `format`: they hold in the place of what is declared.
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
            limits: how large what is written at once may be; None: what MAX_MESSAGE_CONTENT_LENGTH and
                MAX_TOTAL_CONTENT_SIZE say, else what is declared, else 10,240 bytes a message, 102,400 in all, 100
                messages.
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
            told: called with a `Worked` for each thing that was done. One that raises is logged, and breaks nothing.
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
        """Close every store that was opened. Again it does nothing; whoever asks for a session after it gets Closed."""
        self._closed = True
        while self._memories:
            _, (_, memory) = self._memories.popitem()
            await memory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
