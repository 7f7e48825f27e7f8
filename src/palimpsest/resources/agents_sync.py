"""`AgentMemory`: several declared memories of one agent, together."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.resources.agents`, and run that again.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.log import values
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
