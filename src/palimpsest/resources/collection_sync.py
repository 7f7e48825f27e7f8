"""`Resources`: declared memories by id, and several of one agent."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.resources.collection`, and run that again.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.resources.catalogue import Catalogue
from palimpsest.resources.opening import session_options
from palimpsest.resources.operations_sync import DeclaredMemory
from palimpsest.resources.payloads import Limits
from palimpsest.resources.sharing import AgentContext, redacting, together
from palimpsest.runtime.hushing import hushed
from palimpsest.sessions.sync import Memory, Session


@hushed(lambda self: self._redact)
class AgentMemory:
    """The sessions that an agent's references name, together. Made by
    `Resources.agent`.

    `sessions` are in the order of the references. A read-only session is shown in contexts, and never written to.
    """

    def __init__(self, named: Iterable[tuple[Memory, Session]]) -> None:
        self._named = tuple(named)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(session.id for session in self.sessions)}>"

    @property
    def _redact(self) -> Callable[[str], str] | None:
        """A function that redacts a text by the policies of all memories; None: none of them has a policy."""
        return redacting([memory.redact for memory, _ in self._named])

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions, in the order of the references."""
        return tuple(session for _, session in self._named)

    def context(
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
        contexts = [session.context(system=system, tools=tools) for session in self.sessions]
        return together(contexts, question, system, tools, self.sessions[0].cost)

    def add(self, question: str, answer: str, *, key: str | None = None) -> int:
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
            session.add(pair, format="openai", key=key)
        return len(writable)


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
