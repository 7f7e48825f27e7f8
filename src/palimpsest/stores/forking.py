"""Open stores when their process forks: they let go before the fork, and both sides open them anew.

SQLite keeps the locks of a process in its memory. A child that inherits it believes that it holds the parent's locks,
and writes to a journal that the parent removes. An inherited file lock (flock) lasts until the child ends. So nothing
may be locked or open while the process is copied. A store that cannot let go in time is remembered by device and inode:
the child is refused that file, by name.

Python has a lock for each module that is being imported. A child inherits the lock of another thread's import locked
for ever, and verbs import some modules only when they need them. So a fork waits for imports, too.
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
"""Seconds that a fork waits for imports of other threads (a program may be one import), and between two looks at
them."""


class Holder(Protocol):
    """A store that holds what no child may inherit."""

    path: str

    @property
    def locks(self) -> tuple[LockType, ...]:
        """The locks under which everything in the store happens: a thread that holds them all is alone in it."""
        ...

    def let_go(self) -> None:
        """Close everything. The caller holds the locks. What is needed again is opened again."""
        ...

    def abandon(self) -> object:
        """Give up what is open, in the child. What may not even be closed there is returned, and kept for ever."""
        ...


_watched: list[ref[Holder]] = []  # without a callback, in which a signal's exception would be lost
_watching = ProcessLock()
_fork_lock = allocate_lock()  # held by the fork that is under way
_held: list[tuple[int, LockType]] = []  # the locks that it took, each with the thread that forks
_stuck: list[Holder] = []
_inherited: dict[tuple[int, int], int] = {}  # device and inode -> the process that had it open
_kept: list[object] = []
_hooks: list[bool] = []
_ready: list[bool] = []  # whether everything has let go for the fork that is under way

HOOKS = 3
"""How often each hook is registered: if a signal handler ends one by raising, the next one goes on."""


def watch(store: Holder) -> None:
    """Make the store let go before each fork from now on."""
    with _watching.own():
        _watched[:] = [*(one for one in _watched if one() is not None), ref(store)]
    if not _hooks and hasattr(os, "register_at_fork"):
        _hooks.append(True)
        for _ in range(HOOKS):
            os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)


def refuse(path: str) -> None:
    """Raise ForkedProcess for a file that was in use when this process was forked, and could not be let go of."""
    parent = _inherited.get(_identity(path)) if _inherited else None
    if parent is not None:
        raise ForkedProcess(parent, os.getpid(), path)


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _take(lock: LockType, patience: float) -> bool:
    """Take a lock until after the fork; return whether that was possible in time.

    Taking it and noting that is one call of C, so that no signal handler runs between the two.
    """
    note = (get_ident(), lock)
    if note in _held:  # taken before a signal handler raised
        return True
    all(map(CALL, (partial(lock.acquire, True, patience), partial(_held.append, note))))
    return note in _held


def _before() -> None:
    """Run before a fork: make all stores let go, and wait for imports. A repeated run (see `HOOKS`) finds that done."""
    if _ready and (get_ident(), _fork_lock) in _held:
        return
    _take(_fork_lock, -1)
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
    """Return whether another thread is importing a module, by the locks that Python keeps for imports."""
    locks = [one() for one in list(getattr(sys.modules["_frozen_importlib"], "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, get_ident()) for lock in locks)


def _release() -> None:
    """Run in the parent after a fork: release the locks that this thread took for it."""
    _ready.clear()
    while _held and _held[-1][0] == get_ident():
        unbroken(_held[-1][1].release, _held.pop)


def _in_child() -> None:
    """Run in the child after a fork: note the files that were not let go of, and drop the parent's state."""
    global _fork_lock  # noqa: PLW0603 (threads that waited for it do not exist in this process)
    _inherited.update((_identity(store.path), os.getppid()) for store in _stuck)
    _kept.extend(store.abandon() for one in _watched if (store := one()) is not None)
    _watched.clear()
    _stuck.clear()
    _release()
    _held.clear()
    _fork_lock = allocate_lock()
