"""`AsyncResources`: declared memories by id, and several of one agent. `collection_sync.py` is written out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.resources.catalogue import Catalogue
from palimpsest.resources.definition import Resource
from palimpsest.resources.opening import session_options
from palimpsest.resources.operations import AsyncDeclaredMemory
from palimpsest.resources.payloads import Limits
from palimpsest.resources.sharing import AgentContext, redacting, together
from palimpsest.resources.worked import Told
from palimpsest.resources.working import LEASE, Worker
from palimpsest.runtime.hushing import hushed
from palimpsest.sessions.memory import AsyncMemory
from palimpsest.sessions.session import AsyncSession


@hushed(lambda self: self._redact)
class AsyncAgentMemory:
    """The sessions that an agent's references name, together, for programs with an event loop. Made by
    `AsyncResources.agent`.

    `sessions` are in the order of the references. A read-only session is shown in contexts, and never written to.
    """

    def __init__(self, named: Iterable[tuple[AsyncMemory, AsyncSession]]) -> None:
        self._named = tuple(named)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(session.id for session in self.sessions)}>"

    @property
    def _redact(self) -> Callable[[str], str] | None:
        """A function that redacts a text by the policies of all memories; None: none of them has a policy."""
        return redacting([memory.redact for memory, _ in self._named])

    @property
    def sessions(self) -> tuple[AsyncSession, ...]:
        """The sessions, in the order of the references."""
        return tuple(session for _, session in self._named)

    async def context(
        self, question: str | None = None, *, system: str | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> AgentContext:
        """Return what to send to the model: the context of each session within its own budget, in the order of the
        references, and then the question, which is not stored.

        A tool call that still waits for its result is left out. Raises BudgetImpossible if all of it together does not
        fit into the model's window.

        Args:
            question: what the user has just said, as it will be given to `add`; None: nothing.
            system: the system prompt: counted and sent, not stored.
            tools: schemas of tools, in the provider's form: counted and sent, not stored.
        """
        values.text("question", question)
        if question is not None and self._redact is not None:
            question = self._redact(question)  # as it will be shown once it is stored
        contexts = [await session.context(system=system, tools=tools) for session in self.sessions]
        return together(contexts, question, system, tools, self.sessions[0].cost)

    async def add(self, question: str, answer: str, *, key: str | None = None) -> int:
        """Store a question and its answer in each session that is not read-only, in the order of the references; return
        in how many.

        Each session stores both or neither. If one fails, those before it have stored them: with a `key` the call can
        be repeated, and stores nothing twice.

        Args:
            question: what the user has said.
            answer: what the agent has answered.
            key: an idempotency key, such as the id of a request; None: every call adds.
        """
        for name, text in (("question", question), ("answer", answer)):
            values.text(name, text, none=False)
        pair = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        writable = [session for session in self.sessions if not session.options.readonly]
        if not writable:
            raise ConfigError(
                "references",
                "only read-only references",
                "at least one that is read-write, so that messages can be added",
            )
        for session in writable:
            await session.add(pair, format="openai", key=key)
        return len(writable)


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
