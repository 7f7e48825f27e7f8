"""Redaction of errors: private text is taken out of their messages, fields, notes and causes when they leave a verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from palimpsest.errors import PalimpsestError, PrivacyRefused, quoting
from palimpsest.runtime.logs import Redact

T = TypeVar("T")

_OUTSIDE = ("msg", "object", "strerror", "filename", "filename2", "text", "name", "path")
"""Text fields of built-in errors, which are neither in `args` nor in `vars`."""

COROUTINE = 0x80
"""The code flag of an `async` function: `inspect.CO_COROUTINE`, without the cost of importing `inspect`."""


WITHHELD = "[withheld]"
"""Stands in for what an error would quote of something that a policy withholds."""


class Hushed:
    """A context for a verb: errors that leave it are redacted. A class, since a generator costs each append 1 us.

    `withholds` says whether the verb was given something that must not be told at all (None: it was not). It is asked
    only when there is an error.
    """

    __slots__ = ("_redact", "_token", "_withholds")

    def __init__(self, redact: Redact, withholds: Callable[[], bool] | None = None) -> None:
        self._redact, self._withholds = redact, withholds

    def __enter__(self) -> None:
        self._token = quoting.set(self._redact if self._withholds is None else self._quoted)

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        quoting.reset(self._token)
        if isinstance(fault, Exception):  # also Python's own, or one of a user's counter
            redact = self._redact
            if self._withholds is not None and self._withholds():
                fault.__cause__ = fault.__context__ = None  # they may quote anything
                if not isinstance(fault, PalimpsestError):  # ours quotes by `_quoted`
                    redact = self._quoted
            redacted = redact_error(fault, redact)
            if redacted is not fault:
                try:
                    raise redacted.with_traceback(fault.__traceback__)
                finally:
                    redacted.__context__ = None  # Python has set it to `fault`, which quotes private text

    def _quoted(self, text: str) -> str:
        """Return a text for an error to quote; nothing of it if something was withheld."""
        return WITHHELD if self._withholds is not None and self._withholds() else self._redact(text)


def quietly(redact: Redact | None) -> AbstractContextManager[None]:
    """Return a context that redacts the errors that leave it; without `redact` it does nothing."""
    return nullcontext() if redact is None else Hushed(redact)


def hushed(redact_of: Callable[[Any], Redact | None]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator: errors that leave a public verb of the class are redacted.

    `redact_of` returns the redaction of an object of the class, or None for none.
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
    """Take private text out of an error, and return it.

    Fields with private text become the text that they show, redacted. Causes with private text are cut off. What the
    frames of a traceback hold stays. If the error shows private text even so, an error of a plain class is returned in
    its place.
    """
    if isinstance(fault, PrivacyRefused):  # it holds no private text, and has to say why
        redacted: BaseException = fault
    else:
        fault.args = tuple(_plain(argument, redact) for argument in fault.args)
        fields = vars(fault)
        for name, value in fields.items():
            fields[name] = _plain(value, redact)
        for name, value in _text_fields(fault):
            if (plain := _plain(value, redact)) is not value:
                setattr(fault, name, plain)
        redacted = _shown_safely(fault, redact)
    if any(_quotes(cause, redact) for cause in _causes(fault)):
        fault.__cause__ = fault.__context__ = None
    return redacted


_PLAIN = (ValueError, TypeError, LookupError, OSError, RuntimeError)
"""Classes that can stand in for an error: the first that it is an instance of, else `Exception`."""


def _shown_safely(fault: BaseException, redact: Redact) -> BaseException:
    """Return the error; or if it still shows private text, from whatever source, one that stands in for it."""
    if isinstance(fault, BaseExceptionGroup):
        members = [redact_error(member, redact) for member in fault.exceptions]
        message = redact(fault.message)
        same = all(new is old for new, old in zip(members, fault.exceptions, strict=True))
        return fault if same and message == fault.message else BaseExceptionGroup(message, members)
    try:
        shown = [str(fault), *([] if type(fault).__repr__ is BaseException.__repr__ else [repr(fault)])]
    except Exception:  # noqa: BLE001 (its words may be made of a field that was replaced above)
        shown = []
    redacted = [redact(text) for text in shown]
    if shown and redacted == shown:
        return fault
    stand_in = next((kind for kind in _PLAIN if isinstance(fault, kind)), Exception)
    return stand_in(": ".join([type(fault).__name__, *redacted[:1]]))


def _plain(value: Any, redact: Redact) -> Any:
    """Return the value itself if it shows no private text; else what it shows, redacted."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        text = redact(value)
        return value if text == value else text
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return value if redact(text) == text else b""
    if type(value) in (list, tuple):
        items = [_plain(item, redact) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
    shown = repr(value)
    text = redact(shown)
    if text != shown and type(value) is dict:
        return _pairs(value, text, redact)
    return value if text == shown else text


def _pairs(value: dict[Any, Any], text: str, redact: Redact) -> Any:
    """Redact the keys and values of a mapping; return `text` if it shows private text even so.

    It should stay a mapping: the error may make its words from it.
    """
    pairs = {_plain(key, redact): _plain(item, redact) for key, item in value.items()}
    return pairs if redact(repr(pairs)) == repr(pairs) else text


def _text_fields(fault: BaseException) -> list[tuple[str, Any]]:
    """Return the fields of `_OUTSIDE` that an error has."""
    fields = [(name, getattr(fault, name, None)) for name in _OUTSIDE if name not in vars(fault)]
    return [(name, value) for name, value in fields if isinstance(value, str | bytes)]


def _quotes(fault: BaseException, redact: Redact) -> bool:
    """Return whether an error shows or holds private text."""
    contents = [str(fault), fault.args, vars(fault), *(value for _, value in _text_fields(fault))]
    return any(_plain(content, redact) is not content for content in contents)


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error, their causes, and so on, each once."""
    seen, pending = {id(fault)}, _links(fault)
    while pending:
        link = pending.pop()
        if id(link) not in seen:
            seen.add(id(link))
            yield link
            pending += _links(link)


def _links(fault: BaseException) -> list[BaseException]:
    """Return the errors that an error refers to directly: its cause, its context, the members of a group."""
    members = fault.exceptions if isinstance(fault, BaseExceptionGroup) else ()
    return [link for link in (fault.__cause__, fault.__context__, *members) if link is not None]
