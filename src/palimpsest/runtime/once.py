"""What is made once, or done by one thread at a time, and does no harm in a process that is forked meanwhile.

A child inherits every lock as it is. One that another thread of the parent had is never given back in the child.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 (it is used as a decorator is)
    """A property whose value is made once: of threads that make it at the same time, all get the first.

    Nobody waits for anybody. `functools.cached_property` of Python 3.11 has one lock for all objects of a class.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

    def __get__(self, owner: Any, kind: type) -> T:
        if owner is None:  # somebody looks at the class
            return self  # type: ignore[return-value]
        kept: dict[str, Any] = owner.__dict__
        made: T = kept.setdefault(self._name, self._make(owner))
        return made

    if TYPE_CHECKING:  # without it, so that what is made, or set, is found on the object at once

        def __set__(self, owner: Any, value: T) -> None: ...


class ProcessLock:
    """A lock of which each process has its own, for what outlives a fork: in the child it is free."""

    def __init__(self) -> None:
        self._locks: dict[int, LockType] = {}

    def own(self) -> LockType:
        """This process's lock."""
        return self._locks.setdefault(os.getpid(), allocate_lock())
