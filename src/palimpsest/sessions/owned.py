"""`OwnedSession`: a session that was opened for one user. Its verbs raise WrongUser if it belongs to another."""

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
"""Verbs that return a block: the user is checked when the block is entered."""


def _checked(cls: type[T]) -> type[T]:
    """Make each verb check the session's user first, except those that add: there the store checks in the same step."""
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
        await scope.check_user_seen()  # the session may have changed hands between the check and the verb's reads
        return result

    return checked_verb


def _entered_by_user(verb: Callable[..., AbstractAsyncContextManager[T]]) -> Callable[..., Any]:
    @wraps(verb)
    def checked_block(self: Any, *args: Any, **options: Any) -> AbstractAsyncContextManager[T]:
        return _entered(self._scope, verb(self, *args, **options))

    return checked_block


@asynccontextmanager
async def _entered(scope: SessionScope, block: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    await _check_user_now(scope)
    async with block as value:
        yield value


async def _check_user_now(scope: SessionScope) -> None:
    """Raise WrongUser if the session belongs to another user now. For verbs that do not read the head themselves."""
    await scope.gate.opened()
    scope.check_user(await scope.store.head(scope.key))


@guarded
@_checked
class OwnedSession(AsyncSession):
    """One conversation of one user, as `AsyncMemory.session` creates it if `user` is given."""

    @property
    def working(self) -> AsyncWorkingMemory:
        """The session's working memory. Each of its verbs checks the session's user first."""
        return self._working(partial(_check_user_now, self._scope))
