"""What several memories give to one model call, put in a row as its provider wants it. Pure."""

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
    """What the memories of one agent give to a model call: the `contexts` of each, in the order of the references,
    `messages`, the provider's list with all of them and the question, `system`, the system text in the provider's form
    where it is sent beside the messages, and `tokens` of all that is sent, in the provider's scale."""

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
    """Return what redacts a text by each of these in turn; None where none is there."""
    known = [redact for redact in policies if redact is not None]

    def redact_all(text: str) -> str:
        for redact in known:
            text = redact(text)
        return text

    return redact_all if known else None


def together(
    contexts: Sequence[Context],
    question: str | None,
    system: str | None,
    tools: Sequence[Mapping[str, Any]],
    cost: Callable[[Entry], int],
) -> AgentContext:
    """Put contexts of one format in a row, and a question behind them, whose tokens `cost` tells.

    Raises BudgetImpossible where that is more than the least of their limits.
    """
    fmt = find_format(contexts[0].format)
    pieces = [message for one in contexts for message in _pieces(one)]
    asked = _asked(question) if question is not None else None
    if asked is not None:
        pieces += fmt.render([Shown(asked)])
    joined = fmt.join(system, pieces)
    if problems := fmt.validate(joined.messages):
        raise InvalidContext(problems)
    tokens = _tokens(contexts, cost(asked) if asked is not None else 0)
    return AgentContext(
        contexts=tuple(contexts), messages=joined.messages, system=joined.system, tokens=tokens, tools=tuple(tools)
    )


def _pieces(context: Context) -> list[Message]:
    return [*context.head_messages, *context.log_messages, *context.tail_messages]


def _asked(question: str) -> Entry:
    (entry,) = find_format("openai").decode([{"role": "user", "content": question}], "question")
    return entry


def _tokens(contexts: Sequence[Context], question: int) -> int:
    """What all of it comes to, with what is fixed once. Raises BudgetImpossible where it is more than there may be."""
    first = contexts[0].parts
    fixed = first.system + first.tools + first.overhead
    own = [one.parts.head + one.parts.summaries + one.parts.log + one.parts.tail for one in contexts]
    budgets = [one.budget for one in contexts if one.budget is not None]
    factor = max((budget.factor for budget in budgets), default=1.0)
    tokens = scaled(fixed + sum(own) + question, factor)
    available = min((budget.available for budget in budgets), default=tokens)
    if tokens > available:
        parts = {"fixed": fixed, **{f"references[{i}]": size for i, size in enumerate(own)}, "question": question}
        raise BudgetImpossible(tokens, available, parts)
    return tokens
