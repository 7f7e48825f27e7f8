"""What becomes of open stores when their process forks: they let go before it, and both sides open anew.

SQLite keeps the locks of a process in its memory. A child that inherits it believes that it has the parent's locks,
and writes into a journal that the parent removes; and a file lock (flock) that is inherited lasts until the child ends.
So nothing may be held or open while the process is copied. A store that cannot let go in time is remembered by device
and inode: the child is refused that file, by name.

Python keeps a lock of each module that is being imported. A child inherits that of another thread's import for ever,
and what verbs need late is imported when they need it. So a fork waits for imports, too.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import LockType, allocate_lock, get_ident
from _weakref import ref  # `weakref` costs a cold start a millisecond
from functools import partial
from typing import Protocol

from palimpsest.errors import ForkedProcess
from palimpsest.runtime.once import ProcessLock
from palimpsest.runtime.threads import CALL, unbroken

PATIENCE = 10.0
"""Seconds that a fork waits for what other threads have begun in a store."""

IMPORT, GLANCE = 1.0, 0.001
"""Seconds that it waits for what other threads import, and between two looks at that. A program may be one import."""


class Holder(Protocol):
    """A store that holds what no child may inherit."""

    path: str

    @property
    def locks(self) -> tuple[LockType, ...]:
        """Whoever has all these can be sure that nothing is under way in the store."""
        ...

    def let_go(self) -> None:
        """Close everything, for somebody who has the locks. What is needed again is opened again."""
        ...

    def abandon(self) -> object:
        """Give up what is open, in the child. What may not even be closed there is returned, and kept for ever."""
        ...


_watched: list[ref[Holder]] = []  # without a callback, in which a signal's exception would be lost
_watching = ProcessLock()
_one = allocate_lock()  # of the fork that is under way
_held: list[tuple[int, LockType]] = []  # the locks that it was given, each with the thread that forks
_stuck: list[Holder] = []
_inherited: dict[tuple[int, int], int] = {}  # device and inode -> the process that had it open
_kept: list[object] = []
_hooks: list[bool] = []
_ready: list[bool] = []  # whether all has let go for the fork that is under way

HOOKS = 3
"""How often each hook is registered: one that a signal's handler ends by raising is gone on with by the next."""


def watch(store: Holder) -> None:
    """Have the store let go before each fork from now on."""
    with _watching.own():
        _watched[:] = [*(one for one in _watched if one() is not None), ref(store)]
    if not _hooks and hasattr(os, "register_at_fork"):
        _hooks.append(True)
        for _ in range(HOOKS):
            os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)


def refuse(path: str) -> None:
    """Raise ForkedProcess for a file that was in use, and could not be let go of, when this process was forked."""
    parent = _inherited.get(_identity(path)) if _inherited else None
    if parent is not None:
        raise ForkedProcess(parent, os.getpid(), path)


def _identity(path: str) -> tuple[int, int]:
    try:
        there = os.stat(path)
    except OSError:
        return 0, 0
    return there.st_dev, there.st_ino


def _take(lock: LockType, patience: float) -> bool:
    """Take a lock until after the fork; say whether that was possible in time.

    It is taken and noted in one call of C, so that no signal's handler comes between the two.
    """
    note = (get_ident(), lock)
    if note in _held:  # before a handler's exception
        return True
    all(map(CALL, (partial(lock.acquire, True, patience), partial(_held.append, note))))
    return note in _held


def _before() -> None:
    if _ready and (get_ident(), _one) in _held:
        return
    _take(_one, -1)
    _stuck[:] = [store for one in _watched if (store := one()) is not None]
    for store in tuple(_stuck):
        if all(_take(lock, PATIENCE) for lock in store.locks):
            store.let_go()
            _stuck.remove(store)
    _ready.append(True)
    until = time.monotonic() + IMPORT
    while _others_import() and time.monotonic() < until:
        time.sleep(GLANCE)


def _others_import() -> bool:
    """Whether another thread is importing a module, by the locks that Python keeps of such."""
    locks = [one() for one in list(getattr(sys.modules["_frozen_importlib"], "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, get_ident()) for lock in locks)


def _release() -> None:
    _ready.clear()
    while _held and _held[-1][0] == get_ident():
        unbroken(_held[-1][1].release, _held.pop)


def _in_child() -> None:
    global _one  # noqa: PLW0603 (whoever waited for it is not in this process)
    _inherited.update((_identity(store.path), os.getppid()) for store in _stuck)
    _kept.extend(store.abandon() for one in _watched if (store := one()) is not None)
    _watched.clear()
    _stuck.clear()
    _release()
    _held.clear()
    _one = allocate_lock()
