"""The contexts of several memories, joined to one model call in the form of its provider. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.context.budget import scaled
from palimpsest.context.result import Context
from palimpsest.errors import BudgetImpossible, InvalidContext
from palimpsest.formats import Joined, Message, Shown, find_format
from palimpsest.log.entry import Entry


class AgentContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of an agent with several memories: their `contexts`, in the order of the references, `messages`, the
    provider's list of all of them and the question, `system`, the system text in the provider's form if it is sent
    beside the messages, and `tokens`, of all that is sent, in the provider's scale."""

    contexts: tuple[Context, ...]
    messages: list[Any]
    system: Any
    tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()

    def request(self) -> dict[str, Any]:
        """Return the keyword arguments for the provider's own client: messages, system text, tools."""
        joined = Joined(self.messages, self.system)
        return find_format(self.contexts[0].format).request(joined, [dict(tool) for tool in self.tools])


def redacting(policies: Sequence[Callable[[str], str] | None]) -> Callable[[str], str] | None:
    """Return a function that redacts a text by each of these policies in turn; None if there is none."""
    redactors = [redact for redact in policies if redact is not None]

    def redact_all(text: str) -> str:
        for redact in redactors:
            text = redact(text)
        return text

    return redact_all if redactors else None


def together(
    contexts: Sequence[Context],
    question: str | None,
    system: str | None,
    tools: Sequence[Mapping[str, Any]],
    cost: Callable[[Entry], int],
) -> AgentContext:
    """Join contexts of one format, with a question behind them; `cost` returns the tokens of an entry.

    Raises BudgetImpossible if they have more tokens than the smallest of their limits, and InvalidContext if the
    provider would refuse the messages.
    """
    fmt = find_format(contexts[0].format)
    pieces = [message for context in contexts for message in _pieces(context)]
    question_entry = _entry_of(question) if question is not None else None
    if question_entry is not None:
        pieces += fmt.render([Shown(question_entry)])
    joined = fmt.join(system, pieces)
    if problems := fmt.validate(joined.messages):
        raise InvalidContext(problems)
    tokens = _tokens(contexts, cost(question_entry) if question_entry is not None else 0)
    return AgentContext(
        contexts=tuple(contexts), messages=joined.messages, system=joined.system, tokens=tokens, tools=tuple(tools)
    )


def _pieces(context: Context) -> list[Message]:
    return [*context.head_messages, *context.log_messages, *context.tail_messages]


def _entry_of(question: str) -> Entry:
    (entry,) = find_format("openai").decode([{"role": "user", "content": question}], "question")
    return entry


def _tokens(contexts: Sequence[Context], question: int) -> int:
    """Return the tokens of everything; system text, tools and overhead, which each context counts, are counted once.

    Raises BudgetImpossible if they are more than the smallest budget.
    """
    first = contexts[0].parts
    fixed = first.system + first.tools + first.overhead
    parts_of_all = [context.parts for context in contexts]
    own = [parts.head + parts.summaries + parts.log + parts.tail for parts in parts_of_all]
    budgets = [context.budget for context in contexts if context.budget is not None]
    factor = max((budget.factor for budget in budgets), default=1.0)
    tokens = scaled(fixed + sum(own) + question, factor)
    available = min((budget.available for budget in budgets), default=tokens)
    if tokens > available:
        parts = {"fixed": fixed, **{f"references[{i}]": size for i, size in enumerate(own)}, "question": question}
        raise BudgetImpossible(tokens, available, parts)
    return tokens
