"""The context of a session as it is now, by its current terms or by those it keeps until its next cut. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from palimpsest.context.asks import Cached, Long, Newest, Steps
from palimpsest.context.layout import CachedContext
from palimpsest.context.result import Context
from palimpsest.context.settle import Settled, Settler
from palimpsest.context.terms import Terms
from palimpsest.errors import BudgetImpossible
from palimpsest.log.head import Head

REDEFINED = "changed definition"
"""Reason of a cut that the previous definition made due. The cut itself is made by the new definition."""


class NotRead(Exception):
    """The definition with this digest has not been read from the store yet."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(digest)


Before: TypeAlias = Callable[[Head], Terms | None]
"""Returns the terms that a session with this head keeps until its next cut (None: the call's terms apply). Raises
NotRead."""


def newest(
    terms: Terms, now: int, *, last_try: bool, before: Before | None = None
) -> Steps[tuple[Settled, Context | None]]:
    """Settle what is shown of the session as it is now, and build its context.

    `before` may return older terms that still apply. They are used until they make a cut due; that cut is made by
    `terms`.

    The context is None if a new cut has to be stored first. It is also None if another writer began an epoch meanwhile,
    since some of the texts may then be older than others; the last try returns a context of no epoch instead.
    """
    head: Head = yield Newest()
    cached: CachedContext | None = yield Cached()
    held_terms = before(head) if before is not None else None
    settled = (yield from _settled_by(held_terms, now, head, cached)) if held_terms is not None else None
    if settled is None:
        terms = terms if held_terms is None else msgspec.structs.replace(terms, due=REDEFINED)
        settled = yield from Settler(terms, now, cached=cached).settle(head)
    if settled.reason is not None:
        return settled, None
    context = settled.build_context(head, head.epoch)
    if (yield Newest()).epoch == head.epoch:
        return settled, context
    if not last_try:
        return settled, None
    yield Long()
    note = "other writers compacted or cut the session meanwhile, so this context belongs to no epoch"
    return settled, settled.build_context(head, None, (note,))


def _settled_by(terms: Terms, now: int, head: Head, cached: CachedContext | None) -> Steps[Settled | None]:
    """Settle by the older terms. None if they make a cut due, or have no room for what may not be left out."""
    try:
        settled = yield from Settler(terms, now, cached=cached).settle(head)
    except BudgetImpossible:
        return None
    return settled if settled.reason is None else None
