"""`lazy`, `new_lock` and `ProcessLock`: values made once, and locks, that are safe across signals and forks.

A signal handler that raises must not leave a lock taken: so locks are held by `with`, and no handler may run between
taking one and the block behind it. A forked child inherits every lock in its present state: one that another thread of
the parent holds at that moment is never released in the child.
"""

from __future__ import annotations

import os
import sys
from _thread import LockType, RLock, allocate_lock
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 (it is used as a decorator)
    """A property whose value is made once. If several threads make it at the same time, all get the first value.

    No thread waits for another. (`functools.cached_property` of Python 3.11 has one lock for all objects of a class.)
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

    def __get__(self, owner: Any, kind: type) -> T:
        if owner is None:  # accessed on the class
            return self  # type: ignore[return-value]
        kept: dict[str, Any] = owner.__dict__
        value: T = kept.setdefault(self._name, self._make(owner))
        return value

    if TYPE_CHECKING:  # without `__set__` at run time, the value in the object's `__dict__` is found first

        def __set__(self, owner: Any, value: T) -> None: ...


def new_lock() -> LockType:
    """Return a lock for `with`, which a signal handler that raises does not leave taken."""
    return allocate_lock()


def new_rlock() -> RLock:
    """Return such a lock that its thread may take again."""
    return RLock()


if sys.version_info >= (3, 14):

    class _Lock(RLock):  # type: ignore[misc]  # final only in typeshed
        """A lock that is entered by bytecodes between which no handler runs.

        Since Python 3.14 `with` calls the C function `__enter__` by an instruction that runs handlers at its end: one
        that raises there leaves the lock taken, and the block not begun. None run after a step of `for`, nor when a
        function of Python returns. The C function `__exit__` is inherited.
        """

        __slots__ = ()

        def __enter__(self) -> bool:  # type: ignore[override]
            for taken in iter(self.acquire, None):  # its first step
                return taken
            raise AssertionError("`acquire` never returns None")

    new_lock = new_rlock = _Lock  # type: ignore[assignment]


class ProcessLock:
    """A lock of which each process has its own: in a forked child it is free."""

    def __init__(self) -> None:
        self._locks: dict[int, LockType] = {}

    def own(self) -> LockType:
        """Return this process's lock."""
        return self._locks.setdefault(os.getpid(), new_lock())
