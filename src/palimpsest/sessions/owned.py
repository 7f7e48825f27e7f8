"""`OwnedSession`: a session that was opened as one user's, of which no verb reads or changes another user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from palimpsest.privacy.gate import guarded
from palimpsest.sessions.session import AsyncSession

T = TypeVar("T")


def _checked(cls: type[T]) -> type[T]:
    """Have each verb look first whose session it is, unless it adds: then the store looks in the same step."""
    for name, verb in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            setattr(cls, name, _of_user(verb, looks=not name.startswith("add")))
    return cls


def _of_user(verb: Callable[..., Any], *, looks: bool) -> Callable[..., Any]:
    @wraps(verb)
    async def checked_verb(self: Any, *args: Any, **options: Any) -> Any:
        scope = self._scope
        if looks and scope.store.seen(scope.key) is None:
            scope.check_user(await scope.store.head(scope.key))
        scope.check_user_seen()
        result = await verb(self, *args, **options)
        scope.check_user_seen()  # it may have become another's before the verb had read it
        return result

    return checked_verb


@guarded
@_checked
class OwnedSession(AsyncSession):
    """One conversation of one user, as `AsyncMemory.session` makes it with `user`."""
