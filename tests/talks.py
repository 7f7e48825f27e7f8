"""Conversations of known cost for tests of compaction, and scripted summarizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from palimpsest import Session
from palimpsest.runtime.runner import Runner
from palimpsest.strategies import CallableSummarizer


def words(text: str) -> int:
    """Count one token for each word: the counter of most tests of compaction."""
    return len(text.split())


def filler(tokens: int, word: str = "word") -> str:
    """Return a text of so many words."""
    return " ".join([word] * tokens)


def talk(session: Session, *costs: int, start: int = 0) -> None:
    """Add one interaction for each cost in tokens: a question that costs half, an answer that costs the rest."""
    for i, cost in enumerate(costs, start):
        half = cost // 2
        session.add_user_message(f"q{i} {filler(half - 1)}".strip())
        session.add_assistant_message(f"a{i} {filler(cost - half - 1)}".strip())


def use_tool(session: Session, name: str, status: str, output: str = "done") -> None:
    """Add a complete interaction with one tool call, whose result has this status."""
    session.add_user_message(f"please {name}")
    call = session.add_tool_call(name, {"x": 1})
    session.add_tool_result(name, output, call_id=call.call_id, status=status)  # type: ignore[arg-type]
    session.add_assistant_message("it is done")


class Scripted:
    """A summarizer that returns prepared answers in order and keeps the prompts. The last answer repeats.

    Its answers are accepted whatever the conversation was about, unless `checked` is true.
    """

    name = "scripted"

    def __init__(self, *answers: str | Exception | Callable[[str], str], checked: bool = False) -> None:
        self.answers: Sequence[Any] = answers
        self.checked = checked
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        answer = self.answers[min(len(self.prompts), len(self.answers) - 1)]
        self.prompts.append(prompt)
        if isinstance(answer, Exception):
            raise answer
        return str(answer(prompt) if callable(answer) else answer)

    def bound(self, runner: Runner, clock: Callable[[], int]) -> Any:
        """Bind it as a memory binds the summarizers it is given."""
        return CallableSummarizer(self, name=self.name, checked=self.checked).bound(runner, clock)

    @property
    def calls(self) -> int:
        """How often it was called."""
        return len(self.prompts)


def as_it_is(function: Callable[[str], Any]) -> CallableSummarizer:
    """Make a summarizer whose answers are accepted whatever the conversation was about."""
    return CallableSummarizer(function, checked=False)


class Listener:
    """Records events with their facts, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def to(self, memory: Any, *events: str) -> Listener:
        """Listen to these events of a memory."""
        for event in events:
            memory.on(event, lambda session, facts, event=event: self.heard.append((event, facts)))
        return self

    def names(self) -> list[str]:
        """The names of the events heard, in order."""
        return [name for name, _ in self.heard]

    def facts(self, event: str) -> list[dict[str, Any]]:
        """The facts of every event of this name, in order."""
        return [facts for name, facts in self.heard if name == event]
