"""The request of one call of `context`, the terms by which it is computed, and whether it may commit a cut. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.context.budget import bounds_of
from palimpsest.context.terms import Terms
from palimpsest.errors import ConfigError
from palimpsest.formats import Message, find_format
from palimpsest.log.checks import check_depth
from palimpsest.log.ids import check_id
from palimpsest.sessions.options import Options
from palimpsest.stores import Store

if TYPE_CHECKING:
    from palimpsest.context.tail import Facts, TailPart

_LIMITS = ("max_tokens", "max_messages", "reserve")
"""The limits of a budget that a call may give."""


class ContextRequest(msgspec.Struct, frozen=True):
    """The arguments of one call of `context`, with the texts that it shows besides the log."""

    system: str | None = None
    tools: Sequence[Message] = ()
    format: str | None = None
    reserve: int | None = None
    max_tokens: int | None = None
    max_messages: int | None = None
    view: str | None = None
    model: str | None = None
    at: int | None = None
    dry_run: bool = False
    warm: bool = False
    """Whether to treat the provider's cache as warm, so that no cut is made because the cache is cold."""
    lead: Sequence[Facts] | None = None
    """Facts to show before the log; None: the session shows none there."""
    tail: Sequence[TailPart] = ()
    """What to show after the log."""

    def check(self) -> None:
        """Raise ConfigError, which names the argument, for tools that no provider takes and an invalid view name."""
        if self.view is not None:
            check_id(self.view, "view")
        for i, tool in enumerate(self.tools):
            if not isinstance(tool, Mapping):
                raise ConfigError(f"tools[{i}]", tool, "a mapping: the tool's schema as the provider takes it")
            check_depth(tool, f"tools[{i}]")


def terms_of(options: Options, call: ContextRequest) -> Terms:
    """Return the terms for this call of a session. Raises ConfigError for an argument that is not accepted."""
    call.check()
    terms = options.terms
    own_limits = {name: value for name in _LIMITS if (value := getattr(call, name)) is not None}
    if own_limits:
        limits = msgspec.structs.replace(terms.limits, **own_limits)
        limits.check()
        bounds = bounds_of(limits, options.model, options.model_name)
        terms = msgspec.structs.replace(terms, limits=limits, bounds=bounds)
    if call.format is not None:
        format = find_format(call.format).for_model(options.model_name)
        terms = msgspec.structs.replace(terms, format=format, cache_life=options.cache_life(format))
    if call.system or call.tools or call.view is not None or call.at is not None:
        view, past = call.view or options.view, call.at is not None
        terms = msgspec.structs.replace(terms, system=call.system, tools=call.tools, view=view, past=past)
    if call.lead is not None or call.tail:
        terms = msgspec.structs.replace(terms, lead=call.lead, tail=call.tail)
    if call.warm or call.at is not None:  # a context of the past is rebuilt without regard to the cache
        terms = msgspec.structs.replace(terms, cache_life=None)
    return terms


def why_unstored(options: Options, call: ContextRequest, terms: Terms, store: Store) -> str | None:
    """Return why this call may not commit a cut, or None if it may."""
    if call.dry_run:
        return "a dry run"
    if options.exact:
        return "an exact walk"
    if options.readonly or not store.writable:
        return "read-only"
    return "another budget than the view's" if is_another(options, terms) else None


def is_another(options: Options, terms: Terms) -> bool:
    """Whether the limits of a call differ from those of the session's view."""
    limits, own = terms.limits, options.terms.limits
    return (limits.max_tokens, limits.max_messages) != (own.max_tokens, own.max_messages)
