"""Taking what is private out of errors: their messages and fields, their notes, and what led to them; and doing so with
whatever leaves a verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from palimpsest.errors import PrivacyRefused, quoting
from palimpsest.runtime.logs import Redact

T = TypeVar("T")

_OUTSIDE = ("msg", "object", "strerror", "filename", "filename2", "text", "name", "path")
"""Fields of errors that are built in, which neither `args` nor `vars` lead to."""

COROUTINE = 0x80
"""The flag of a function's code that is `async`, as `inspect` has it, which a cold start does without."""


class Hushed:
    """While a verb runs: as a class, for a generator costs every append a microsecond."""

    __slots__ = ("_redact", "_token")

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def __enter__(self) -> None:
        self._token = quoting.set(self._redact)

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        quoting.reset(self._token)
        if isinstance(fault, Exception):  # one of a user's counter, or of Python, may quote as much as ours
            told = redact_error(fault, self._redact)
            if told is not fault:
                try:
                    raise told.with_traceback(fault.__traceback__)
                finally:
                    told.__context__ = None  # the one that quotes it


def quietly(redact: Redact | None) -> AbstractContextManager[None]:
    """What lets no error leave a block that quotes what is private; without `redact` nothing is changed."""
    return nullcontext() if redact is None else Hushed(redact)


def hushed(redact_of: Callable[[Any], Redact | None]) -> Callable[[type[T]], type[T]]:
    """Return what lets no error leave a public verb of a class that quotes what is private.

    `redact_of` returns, for an object of the class, what takes that out of a text; None: nothing does.
    """

    def decorate(cls: type[T]) -> type[T]:
        for name, verb in list(vars(cls).items()):
            if not name.startswith("_") and isinstance(verb, FunctionType):
                setattr(cls, name, _hushed_verb(verb, redact_of))
        return cls

    return decorate


def _hushed_verb(verb: FunctionType, redact_of: Callable[[Any], Redact | None]) -> Callable[..., Any]:
    if verb.__code__.co_flags & COROUTINE:

        @wraps(verb)
        async def hushed_coroutine(self: Any, *args: Any, **options: Any) -> Any:
            redact = redact_of(self)
            if redact is None:
                return await verb(self, *args, **options)
            with Hushed(redact):
                return await verb(self, *args, **options)

        return hushed_coroutine

    @wraps(verb)
    def hushed_verb(self: Any, *args: Any, **options: Any) -> Any:
        redact = redact_of(self)
        if redact is None:
            return verb(self, *args, **options)
        with Hushed(redact):
            return verb(self, *args, **options)

    return hushed_verb


def redact_error(fault: BaseException, redact: Redact) -> BaseException:
    """Take what is private out of an error, let go of causes that hold some of it, and return it.

    Fields that hold some of it become the text that they show, without it. What the frames of a traceback hold stays.
    Where an error shows some of it even so, what is returned stands for it: an error of a plain class.
    """
    if isinstance(fault, PrivacyRefused):  # that one holds nothing of the text, and is to say why nothing is told
        told: BaseException = fault
    else:
        fault.args = tuple(_plain(one, redact) for one in fault.args)
        fields = vars(fault)
        for name, value in fields.items():
            fields[name] = _plain(value, redact)
        for name, value in _outside(fault):
            if (plain := _plain(value, redact)) is not value:
                setattr(fault, name, plain)
        told = _told(fault, redact)
    if any(_quotes(cause, redact) for cause in _causes(fault)):
        fault.__cause__ = fault.__context__ = None
    return told


_PLAIN = (ValueError, TypeError, LookupError, OSError, RuntimeError)
"""Classes of what stands for an error: the first that it is of, else `Exception`."""


def _told(fault: BaseException, redact: Redact) -> BaseException:
    """The error, or what stands for it where it shows what is private, wherever it has that from."""
    if isinstance(fault, BaseExceptionGroup):
        members = [redact_error(one, redact) for one in fault.exceptions]
        message = redact(fault.message)
        same = all(new is old for new, old in zip(members, fault.exceptions, strict=True))
        return fault if same and message == fault.message else BaseExceptionGroup(message, members)
    try:
        shown = [str(fault), *([] if type(fault).__repr__ is BaseException.__repr__ else [repr(fault)])]
    except Exception:  # noqa: BLE001 (whatever it cannot show any more)
        shown = []
    told = [redact(text) for text in shown]
    if shown and told == shown:
        return fault
    kind = next((one for one in _PLAIN if isinstance(fault, one)), Exception)
    return kind(": ".join([type(fault).__name__, *told[:1]]))


def _plain(value: Any, redact: Redact) -> Any:
    """The value itself where nothing was found in what it shows."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        text = redact(value)
        return value if text == value else text
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return value if redact(text) == text else b""
    if type(value) in (list, tuple):
        items = [_plain(one, redact) for one in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
    shown = repr(value)
    text = redact(shown)
    if text != shown and type(value) is dict:
        return _pairs(value, text, redact)
    return value if text == shown else text


def _pairs(value: dict[Any, Any], told: str, redact: Redact) -> Any:
    """A mapping with what is private in it stays one where that is enough, for an error may make its words of it."""
    pairs = {_plain(key, redact): _plain(one, redact) for key, one in value.items()}
    return pairs if redact(repr(pairs)) == repr(pairs) else told


def _outside(fault: BaseException) -> list[tuple[str, Any]]:
    found = [(name, getattr(fault, name, None)) for name in _OUTSIDE if name not in vars(fault)]
    return [(name, value) for name, value in found if isinstance(value, str | bytes)]


def _quotes(fault: BaseException, redact: Redact) -> bool:
    """Whether something private is in what an error says or keeps."""
    kept = [str(fault), fault.args, vars(fault), *(value for _, value in _outside(fault))]
    return any(_plain(one, redact) is not one for one in kept)


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """What led to an error, and to that, and so on."""
    seen, todo = {id(fault)}, _links(fault)
    while todo:
        link = todo.pop()
        if id(link) not in seen:
            seen.add(id(link))
            yield link
            todo += _links(link)


def _links(fault: BaseException) -> list[BaseException]:
    beside = fault.exceptions if isinstance(fault, BaseExceptionGroup) else ()
    return [one for one in (fault.__cause__, fault.__context__, *beside) if one is not None]
