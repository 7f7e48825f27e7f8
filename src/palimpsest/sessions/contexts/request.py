"""What one call of `context` asks for, and whether it may commit a cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from palimpsest.context.budget import BudgetLimits
from palimpsest.formats import Message
from palimpsest.sessions.options import Options
from palimpsest.stores import Store


class ContextRequest(msgspec.Struct, frozen=True):
    """What one call of `context` asks for."""

    system: str | None = None
    tools: Sequence[Message] = ()
    format: str | None = None
    reserve: int | None = None
    max_tokens: int | None = None
    max_messages: int | None = None
    view: str | None = None
    at: int | None = None
    dry_run: bool = False


def limits_of(options: Options, call: ContextRequest) -> BudgetLimits:
    """The call's budget where it gives one, else the view's."""
    own = options.limits
    BudgetLimits(max_tokens=call.max_tokens, max_messages=call.max_messages, reserve=call.reserve).check()
    bounds = [bound for bound in (own.max_tokens, options.strategy_limit) if bound is not None]
    if any(bound < 0 for bound in bounds):
        bounds = [0]
    configured = min(bounds) if bounds else None
    return msgspec.structs.replace(
        own,
        max_tokens=configured if call.max_tokens is None else call.max_tokens,
        max_messages=own.max_messages if call.max_messages is None else call.max_messages,
        reserve=own.reserve if call.reserve is None else call.reserve,
    )


def why_unstored(options: Options, call: ContextRequest, limits: BudgetLimits, store: Store) -> str | None:
    """Why this call may not commit a cut, or None."""
    if call.dry_run:
        return "a dry run"
    if options.exact:
        return "an exact walk"
    if options.readonly or not store.writable:
        return "read-only"
    return "another budget than the view's" if is_another(options, limits) else None


def is_another(options: Options, limits: BudgetLimits) -> bool:
    """Whether these limits are not those of the session's view."""
    configured = limits_of(options, ContextRequest())
    return (limits.max_tokens, limits.max_messages) != (configured.max_tokens, configured.max_messages)
