"""`Resources`: declared memories by id."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.resources.collection`, and run that again.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from palimpsest.resources.agents_sync import AgentMemory
from palimpsest.resources.catalogue import Catalogue
from palimpsest.resources.opening import session_options
from palimpsest.resources.operations_sync import DeclaredMemory
from palimpsest.resources.payloads import Limits
from palimpsest.sessions.sync import Memory, Session


class Resources(Catalogue[Memory]):
    """Declared memories by id, opened when they are first used:
    `with Resources.load("memory/") as resources:`."""

    def session(
        self, reference: str | Mapping[str, Any], variables: Mapping[str, Any] | None = None, **options: Any
    ) -> Session:
        """Return the session that a reference names. Raises ConfigError for an invalid reference.

        Args:
            reference: the id of a memory, or a mapping of `id`, `key` (a key or a template; without it the memory's own
                template makes one) and `mode` ("read-write", or "read-only").
            variables: values for the template's variables, by name; `a.b` is `b` in the mapping `a`.
            options: options of the session, such as `format`: they override what is declared.
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
        return AgentMemory([(memory, memory.session(id, **given)) for memory, id, given in opened])

    def keyed(self, id: str, *, limits: Limits | Mapping[str, int] | None = None) -> DeclaredMemory:
        """Return a declared memory for operations by key: read, append, write, flush, clear, delete, figures, health.

        Args:
            id: the id of the declared memory.
            limits: how much one call may write; None: what the variables MAX_MESSAGE_CONTENT_LENGTH and
                MAX_TOTAL_CONTENT_SIZE say, else what is declared, else 10,240 bytes a message, 102,400 in all, 100
                messages.
        """
        resource = self[id]
        checked = Limits.of(limits, resource.limits)
        return DeclaredMemory(self.memory(id), resource, session_options(resource), checked)

    def close(self) -> None:
        """Close every store that was opened. A second call does nothing. Later calls for a session raise Closed."""
        self._closed = True
        while self._memories:
            _, (_, memory) = self._memories.popitem()
            memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
