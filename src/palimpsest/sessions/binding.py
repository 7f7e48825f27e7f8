"""The memory, and the session, that a block of a program works with, for functions that are not given it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

from palimpsest.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class Bound(NamedTuple):
    """What is bound."""

    memory: Any
    session: Any


CURRENT: ContextVar[Bound | None] = ContextVar("palimpsest", default=None)


@contextmanager
def bound(memory: T, session: object) -> Iterator[T]:
    """Have a memory, with one of its sessions, be the current one in a block."""
    if isinstance(session, str):
        session = memory.session(session)  # type: ignore[attr-defined]
    elif session is not None and not hasattr(session, "add_user_message"):
        raise ConfigError("session", type(session).__name__, "a session of this memory, its id, or None")
    token = CURRENT.set(Bound(memory, session))
    try:
        yield memory
    finally:
        CURRENT.reset(token)


def _current(what: str, kind: type[T] | None) -> Any:
    there = CURRENT.get()
    found = getattr(there, what) if there is not None else None
    if found is None:
        where = "with memory.bind():" if what == "memory" else "with memory.bind(session):"
        allowed = f"one inside `{where}`; a thread is given its function as `palimpsest.carry(function)`"
        raise ConfigError(f"current {what}", "none", allowed)
    if kind is not None and not isinstance(found, kind):
        raise ConfigError("kind", kind.__name__, f"{type(found).__name__}, which is what is bound")
    return found


@overload
def current_memory() -> Any: ...
@overload
def current_memory(kind: type[T]) -> T: ...
def current_memory(kind: type[T] | None = None) -> Any:
    """Return the memory that `memory.bind()` has made the current one here.

    A task sees what was bound where it was made, and so does a function that `asyncio.to_thread` runs; for other
    threads there is `carry`. Raises ConfigError where there is none.

    Args:
        kind: `Memory` or `AsyncMemory`, for type checkers; raises ConfigError where the other is bound. None: either.
    """
    return _current("memory", kind)


@overload
def current_session() -> Any: ...
@overload
def current_session(kind: type[T]) -> T: ...
def current_session(kind: type[T] | None = None) -> Any:
    """Return the session that `memory.bind(session)` has made the current one here.

    Raises ConfigError where none was bound.

    Args:
        kind: `Session` or `AsyncSession`, for type checkers; raises ConfigError where the other is bound. None: either.
    """
    return _current("session", kind)


def carry(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function so that it sees, in whatever thread it runs, what is bound here and now.

    A thread, or a pool of threads, begins without what its maker has bound: `Thread(target=carry(work))`,
    `pool.submit(carry(work))`.

    Args:
        function: what another thread is to run.
    """
    if not callable(function):
        raise ConfigError("function", function, "a function, which another thread is to run")
    context = copy_context()

    @wraps(function)
    def carried(*args: P.args, **options: P.kwargs) -> T:
        return context.copy().run(function, *args, **options)

    return carried
