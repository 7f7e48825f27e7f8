"""What one call of `context` asks for, by what terms that is computed, and whether it may commit a cut. Pure."""

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
"""What of its view's budget a call may give."""


class ContextRequest(msgspec.Struct, frozen=True):
    """What one call of `context` asks for."""

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
    """Whether no cut is made for a cold cache: the next call would know nothing of it."""
    lead: Sequence[Facts] | None = None
    """Facts that stand before the log; None: none may."""
    tail: Sequence[TailPart] = ()
    """What stands behind it."""

    def check(self) -> None:
        """Raise ConfigError, naming it, for what no provider takes as tools, and for a view of no such name."""
        if self.view is not None:
            check_id(self.view, "view")
        for i, tool in enumerate(self.tools):
            if not isinstance(tool, Mapping):
                raise ConfigError(f"tools[{i}]", tool, "a mapping: the tool's schema as the provider takes it")
            check_depth(tool, f"tools[{i}]")


def terms_of(options: Options, call: ContextRequest) -> Terms:
    """By what this call of a session is computed. Raises ConfigError for a value of the call that cannot be."""
    call.check()
    terms = options.terms
    given = {name: value for name in _LIMITS if (value := getattr(call, name)) is not None}
    if given:
        limits = msgspec.structs.replace(terms.limits, **given)
        limits.check()
        bounds = bounds_of(limits, options.model, options.model_name)
        terms = msgspec.structs.replace(terms, limits=limits, bounds=bounds)
    if call.format is not None:
        format = find_format(call.format)
        terms = msgspec.structs.replace(terms, format=format, cache_life=options.cache_life(format))
    if call.system or call.tools or call.view is not None or call.at is not None:
        view, past = call.view or options.view, call.at is not None
        terms = msgspec.structs.replace(terms, system=call.system, tools=call.tools, view=view, past=past)
    if call.lead is not None or call.tail:
        terms = msgspec.structs.replace(terms, lead=call.lead, tail=call.tail)
    if call.warm or call.at is not None:  # what is given again was given once
        terms = msgspec.structs.replace(terms, cache_life=None)
    return terms


def why_unstored(options: Options, call: ContextRequest, terms: Terms, store: Store) -> str | None:
    """Why this call may not commit a cut, or None."""
    if call.dry_run:
        return "a dry run"
    if options.exact:
        return "an exact walk"
    if options.readonly or not store.writable:
        return "read-only"
    return "another budget than the view's" if is_another(options, terms) else None


def is_another(options: Options, terms: Terms) -> bool:
    """Whether the limits of a call are not those of the session's view."""
    limits, own = terms.limits, options.terms.limits
    return (limits.max_tokens, limits.max_messages) != (own.max_tokens, own.max_messages)
