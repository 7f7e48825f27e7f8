"""`OwnedSession`: a session that was opened as one user's, of which no verb reads or changes another user's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from palimpsest.privacy.gate import guarded
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.session import AsyncSession

if TYPE_CHECKING:
    from palimpsest.sessions.working import AsyncWorkingMemory

T = TypeVar("T")

BLOCKS = ("stream", "turn")
"""Verbs that give a block: who enters it is looked at, before anything else is."""


def _checked(cls: type[T]) -> type[T]:
    """Have each verb look first whose session it is, unless it adds: then the store looks in the same step."""
    for name, verb in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            setattr(cls, name, _of_user(verb, looks=not name.startswith("add")))
    for name in BLOCKS:
        setattr(cls, name, _entered_by_user(getattr(cls, name)))
    return cls


def _of_user(verb: Callable[..., Any], *, looks: bool) -> Callable[..., Any]:
    @wraps(verb)
    async def checked_verb(self: Any, *args: Any, **options: Any) -> Any:
        scope = self._scope
        if looks and scope.store.seen(scope.key) is None:
            scope.check_user(await scope.store.head(scope.key))
        await scope.check_user_seen()
        result = await verb(self, *args, **options)
        await scope.check_user_seen()  # it may have become another's before the verb had read it
        return result

    return checked_verb


def _entered_by_user(verb: Callable[..., AbstractAsyncContextManager[T]]) -> Callable[..., Any]:
    @wraps(verb)
    def checked_block(self: Any, *args: Any, **options: Any) -> AbstractAsyncContextManager[T]:
        return _entered(self._scope, verb(self, *args, **options))

    return checked_block


@asynccontextmanager
async def _entered(scope: SessionScope, block: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    await _look(scope)
    async with block as given:
        yield given


async def _look(scope: SessionScope) -> None:
    """Raise WrongUser if the session is another's by now. What is done next reads nothing of it that would tell."""
    await scope.gate.opened()
    scope.check_user(await scope.store.head(scope.key))


@guarded
@_checked
class OwnedSession(AsyncSession):
    """One conversation of one user, as `AsyncMemory.session` makes it with `user`."""

    @property
    def working(self) -> AsyncWorkingMemory:
        """The session's working memory, which is the user's as the session is: each verb looks first."""
        return self._working(partial(_look, self._scope))
