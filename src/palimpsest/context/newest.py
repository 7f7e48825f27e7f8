"""The context of a session as it is now, by the terms that it is under: its own, or those before. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from palimpsest.context.asks import Long, Newest, Recalled, Steps
from palimpsest.context.layout import Recollection
from palimpsest.context.result import Context
from palimpsest.context.settle import Settled, Settler
from palimpsest.context.terms import Terms
from palimpsest.errors import BudgetImpossible
from palimpsest.log.head import Head

REDEFINED = "changed definition"
"""Why a cut is made that the definition before makes due: by the new one."""


class NotRead(Exception):
    """What a definition says has not been read yet."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(digest)


Before: TypeAlias = Callable[[Head], Terms | None]
"""The terms that a session of this head keeps until its next cut; None: those of the call hold. Raises NotRead."""


def newest(
    terms: Terms, now: int, *, last_try: bool, before: Before | None = None
) -> Steps[tuple[Settled, Context | None]]:
    """Settle what is shown of a session as it is now, and the context of that.

    Where it is under other terms than these, it is shown as these have it, until they make a cut due: that is made by
    the new ones.

    None for the context: a new cut is to be stored first, or, but for the last try, others have begun an epoch
    meanwhile: then some texts may be as they were, and others as they are.
    """
    head: Head = yield Newest()
    recalled: Recollection | None = yield Recalled()
    held = before(head) if before is not None else None
    settled = (yield from _held(held, now, head, recalled)) if held is not None else None
    if settled is None:
        terms = terms if held is None else msgspec.structs.replace(terms, due=REDEFINED)
        settled = yield from Settler(terms, now, recalled=recalled).settle(head)
    if settled.reason is not None:
        return settled, None
    given = settled.given(head, head.epoch)
    if (yield Newest()).epoch == head.epoch:
        return settled, given
    if not last_try:
        return settled, None
    yield Long()
    note = "others began new epochs meanwhile, so this context belongs to none"
    return settled, settled.given(head, None, (note,))


def _held(terms: Terms, now: int, head: Head, recalled: Recollection | None) -> Steps[Settled | None]:
    """What is shown by the terms before; None: they make a cut due, or have no room for what may not be left out."""
    try:
        settled = yield from Settler(terms, now, recalled=recalled).settle(head)
    except BudgetImpossible:
        return None
    return settled if settled.reason is None else None
