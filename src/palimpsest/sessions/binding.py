"""The current memory and session of a block, for functions that do not get them as arguments."""

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
    """The memory and the session that are current."""

    memory: Any
    session: Any


CURRENT: ContextVar[Bound | None] = ContextVar("palimpsest", default=None)


@contextmanager
def bound(memory: T, session: object) -> Iterator[T]:
    """Return a block in which a memory, and one of its sessions, are the current ones."""
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
    binding = CURRENT.get()
    current = getattr(binding, what) if binding is not None else None
    if current is None:
        where = "with memory.bind():" if what == "memory" else "with memory.bind(session):"
        allowed = f"a call inside `{where}`; for a thread, pass its function through `palimpsest.carry(function)`"
        raise ConfigError(f"current {what}", "none", allowed)
    if kind is not None and not isinstance(current, kind):
        raise ConfigError("kind", kind.__name__, f"{type(current).__name__}, the class of the bound object")
    return current


@overload
def current_memory() -> Any: ...
@overload
def current_memory(kind: type[T]) -> T: ...
def current_memory(kind: type[T] | None = None) -> Any:
    """Return the memory that is current inside a block of `memory.bind()`.

    A task, and a function that `asyncio.to_thread` runs, see what was current where they were started; other threads
    need `carry`. Raises ConfigError if no memory is current, or one of another `kind`.

    Args:
        kind: `Memory` or `AsyncMemory`, for type checkers. None: either.
    """
    return _current("memory", kind)


@overload
def current_session() -> Any: ...
@overload
def current_session(kind: type[T]) -> T: ...
def current_session(kind: type[T] | None = None) -> Any:
    """Return the session that is current inside a block of `memory.bind(session)`.

    Raises ConfigError if no session is current, or one of another `kind`.

    Args:
        kind: `Session` or `AsyncSession`, for type checkers. None: either.
    """
    return _current("session", kind)


def carry(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that, in whatever thread it runs, it sees the memory and session that are current now.

    A new thread has no current memory, nor do the threads of a pool. So pass the wrapped function:
    `Thread(target=carry(work))`, `pool.submit(carry(work))`.

    Args:
        function: the function that another thread is to run.
    """
    if not callable(function):
        raise ConfigError("function", function, "a function for another thread to run")
    context = copy_context()

    @wraps(function)
    def carried(*args: P.args, **options: P.kwargs) -> T:
        return context.copy().run(function, *args, **options)

    return carried
