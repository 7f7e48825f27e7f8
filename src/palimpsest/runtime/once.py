"""`lazy` and `ProcessLock`: values made once, and locks, that are safe across a fork.

A child inherits every lock in its present state. A lock that another thread of the parent holds at that moment is never
released in the child.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock
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


class ProcessLock:
    """A lock of which each process has its own: in a forked child it is free."""

    def __init__(self) -> None:
        self._locks: dict[int, LockType] = {}

    def own(self) -> LockType:
        """Return this process's lock."""
        return self._locks.setdefault(os.getpid(), allocate_lock())
