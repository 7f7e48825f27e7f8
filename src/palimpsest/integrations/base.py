"""A client that remembers: an object in front of a vendor's client, which asks models through the log of a session.

Written once for synchronous and asynchronous clients. With a synchronous one nothing suspends, and the coroutines are
driven to their end at once.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from copy import copy
from functools import partial, update_wrapper
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from palimpsest import AsyncSession, Session
from palimpsest.errors import ConfigError, InvalidEntry, PalimpsestError, shorten
from palimpsest.formats.openai_chat_answers import wants_thoughts
from palimpsest.formats.received.broken import is_broken_off
from palimpsest.formats.received.plain import plain
from palimpsest.integrations.asking import Asked, Dialect, Kind, streams_of, with_tools_listed
from palimpsest.integrations.streams import (
    AsyncEvents,
    AsyncHelper,
    Events,
    Helper,
    OpenAnswer,
    entered,
    ready,
    surely_of,
)
from palimpsest.integrations.waiting import names_of_open_calls
from palimpsest.runtime.hushing import quietly
from palimpsest.runtime.logs import warn_caller
from palimpsest.runtime.runner import drive
from palimpsest.runtime.task_lock import TaskLock
from palimpsest.tokens.models import find_model
from palimpsest.types import CutOff

C = TypeVar("C")
AnySession: TypeAlias = Session | AsyncSession


class Vendor(NamedTuple):
    """What a vendor's client can do. Paths start at the client: `chat.completions.create`.

    `ways` lead to a model through the log. `refused` would go around it; each has the way to use instead. `again` are
    methods that return another client. `probe` is a method beside every way that is a coroutine function exactly in
    asynchronous clients.
    """

    name: str
    probe: str
    ways: Mapping[str, tuple[Dialect, Kind]]
    refused: Mapping[str, str]
    again: frozenset[str] = frozenset()


def remembered(client: C, session: AnySession, vendor: Vendor, cut_off: CutOff) -> C:
    """Return the client with memory. Raises ConfigError if it is not this vendor's, or does not fit the session."""
    if not isinstance(cut_off, str) or cut_off not in ("keep", "drop"):
        raise ConfigError("cut_off", cut_off, "keep or drop")
    if not isinstance(session, Session | AsyncSession):
        raise ConfigError("session", _named(session), "a session: memory.session(…)")
    if type(client) is Remembered:
        client = object.__getattribute__(client, "_own_target")
    holder: object = client
    for name in next(iter(vendor.ways)).split(".")[:-1]:
        holder = getattr(holder, name, None)
    probe = getattr(holder, vendor.probe, None)
    if probe is None:
        raise ConfigError("client", _named(client), f"a client of the package {vendor.name}")
    if not hasattr(client, "aio"):  # Google's is both
        _check_fits(probe, session)
    return cast("C", Remembered(client, _Memory(session, vendor, cut_off), ""))


class _Memory(NamedTuple):
    """What the objects in front of one client share."""

    session: AnySession
    vendor: Vendor
    cut_off: CutOff


class Remembered:
    """An object in front of a vendor's client, or of a part of it.

    What does not ask a model is passed on to the client.
    """

    __slots__ = ("__weakref__", "_own_memory", "_own_path", "_own_target")

    def __init__(self, target: object, memory: _Memory, path: str) -> None:
        for name, value in (("_own_target", target), ("_own_memory", memory), ("_own_path", path)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<remembered {self._own_target!r}>"

    @property  # type: ignore[misc]  # so that isinstance() sees the client's class
    def __class__(self) -> type:
        return type(self._own_target)

    def __copy__(self) -> Remembered:
        return Remembered(copy(self._own_target), self._own_memory, self._own_path)

    def __dir__(self) -> list[str]:
        return dir(self._own_target)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._own_target, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_own_"):  # not set yet: copying makes an object without calling `__init__`
            raise AttributeError(name)
        memory, path = self._own_memory, self._own_path + name
        vendor = memory.vendor
        if path in vendor.refused:
            raise _bypass(path, vendor.refused[path])
        value = getattr(self._own_target, name)
        if path in vendor.ways:
            dialect, kind = vendor.ways[path]
            probe = getattr(self._own_target, vendor.probe)
            return _method(value, memory, dialect, kind, asynchronous=_check_fits(probe, memory.session))
        if name in ("with_raw_response", "with_streaming_response") and self._leads(""):
            raise _bypass(path, f"client.{self._own_path}".removesuffix("."))
        if not self._own_path and name in vendor.again:
            return update_wrapper(lambda *args, **given: Remembered(value(*args, **given), memory, ""), value)
        return Remembered(value, memory, f"{path}.") if self._leads(f"{name}.") else value

    def _leads(self, name: str) -> bool:
        """Return whether a way to a model, allowed or refused, begins with this name."""
        path, vendor = self._own_path + name, self._own_memory.vendor
        return any(way.startswith(path) for way in (*vendor.ways, *vendor.refused))

    def __enter__(self) -> Any:
        self._own_target.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._own_target.__exit__(*error)

    async def __aenter__(self) -> Any:
        await self._own_target.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._own_target.__aexit__(*error)


def _named(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _bypass(path: str, instead: str) -> ConfigError:
    """Return the error for a path of the client that would ask a model without the log."""
    allowed = (
        f"{instead}, since this call would ask a model without the log; if you mean that, use your original client"
    )
    return ConfigError("the client that remembers", path, allowed)


def _check_fits(probe: Callable[..., Any], session: AnySession) -> bool:
    """Return whether a client is asynchronous. Raises ConfigError unless the session is of the same kind."""
    asynchronous = inspect.iscoroutinefunction(inspect.unwrap(probe))
    if asynchronous != isinstance(session, AsyncSession):
        fits = "an AsyncSession, of an AsyncMemory" if asynchronous else "a Session, of a Memory"
        raise ConfigError("session", type(session).__name__, f"{fits}, beside this client")
    return asynchronous


def _method(
    send: Callable[..., Any], memory: _Memory, dialect: Dialect, kind: Kind, *, asynchronous: bool
) -> Callable[..., Any]:
    """Return the method that stands in front of a client's method that asks a model."""

    def ask(**given: Any) -> Any:
        given = {name: value for name, value in given.items() if type(value).__name__ not in ("Omit", "NotGiven")}
        call = _Call(memory, dialect, send, given, kind, asynchronous=asynchronous)
        if kind == "helper":
            return AsyncHelper(call.opened) if asynchronous else Helper(call.opened)
        coroutine = call.opened() if call.streams else call.answered()
        return coroutine if asynchronous else drive(coroutine)

    return update_wrapper(ask, send)


class _Line:
    """The calls through one session object, which go one after the other.

    `open` is the answer that is being streamed.
    """

    def __init__(self, *, asynchronous: bool) -> None:
        self.lock = TaskLock() if asynchronous else threading.Lock()
        self.open: OpenAnswer | None = None


_lines: WeakKeyDictionary[AnySession, _Line] = WeakKeyDictionary()


class _Call:
    """One call of a method that asks a model."""

    def __init__(
        self,
        memory: _Memory,
        dialect: Dialect,
        send: Callable[..., Any],
        given: Mapping[str, Any],
        kind: Kind,
        *,
        asynchronous: bool,
    ) -> None:
        self._session, self._cut_off = cast("Any", memory.session), memory.cut_off
        self._dialect, self._send, self._given, self._kind = dialect, send, given, kind
        self._asynchronous = asynchronous
        self.streams = kind in ("stream", "helper") or (kind == "create" and streams_of(given))
        self._line = _lines.setdefault(memory.session, _Line(asynchronous=asynchronous))

    async def answered(self) -> Any:
        """Ask, store the answer, and return it. A PalimpsestError raised once the answer has come has it as
        `answer`."""
        response: Any = None
        try:
            async with AsyncExitStack() as stack:
                response = await self._response(await self._begun(stack))
                keep = partial(self._keep, response)
                await surely_of(self._session, keep, partial(keep, unless_last=True))
        except PalimpsestError as fault:
            fault.answer = fault.answer if response is None else response
            raise
        return response

    async def _response(self, built: Mapping[str, Any]) -> Any:
        """Ask, and return the response. If the client cannot parse it, record at least what it cost."""
        try:
            return await ready(self._send(**built))
        except Exception as fault:
            if (unread := getattr(fault, "completion", None)) is not None:
                try:
                    await ready(self._session.record_usage(unread))
                except PalimpsestError as unnoted:
                    fault.add_note(f"its usage is not recorded: {unnoted}")
            raise

    async def _keep(self, response: object, *, unless_last: bool = False) -> None:
        """Add an answer to the log.

        The answer was paid for: it is stored even if the caller is cancelled, and if it cannot be stored the caller
        gets it all the same.
        """
        if self._cut_off == "drop" and is_broken_off(plain(response, "response")):
            await self._unkept(response, InvalidEntry("response", 'the provider broke it off, and cut_off is "drop"'))
            return
        try:
            await ready(self._session.add(response, unless_last=unless_last))
        except InvalidEntry as fault:
            await self._unkept(response, fault)

    async def opened(self) -> Any:
        """Ask, and return the answer as a stream. The turn lasts until the stream has ended."""
        async with AsyncExitStack() as stack:
            built = await self._begun(stack)
            stream = await ready(self._send(**built))
            if self._kind == "helper":
                stream = await entered(stack, stream)
            answer = await entered(stack, self._session.stream(cut_off=self._cut_off))
            line = self._line
            ended = partial(setattr, line, "open", None)
            line.open = OpenAnswer(stack.pop_all(), answer, self._hides, ended, self._session.redact)
        return (AsyncEvents if self._asynchronous else Events)(stream, line.open)

    def _hides(self, event: object) -> bool:
        return self._kind != "helper" and self._dialect.hides(self._given, event)

    async def _begun(self, stack: AsyncExitStack) -> dict[str, Any]:
        """Begin a turn, add the new messages, and return the arguments to send. The turn ends with the stack."""
        session = self._session
        with quietly(session.redact):
            self._given = with_tools_listed(self._given)
            asked = self._dialect.read(self._given)
        earlier = self._line.open
        if earlier is not None and earlier.is_own:
            await earlier.end()  # a caller who asks again has stopped reading the answer before
        await entered(stack, self._line.lock)
        if session.in_atomic_turn:
            allowed = "turn(), since the messages of an atomic turn are in no request before its end"
            raise ConfigError("atomic", True, allowed)
        if not session.in_turn:
            await entered(stack, session.turn())
        if asked.messages:
            try:
                await ready(session.add(list(asked.messages), format=self._dialect.format, unless_last=True))
            except InvalidEntry as fault:
                raise InvalidEntry(asked.place(fault.where), fault.reason) from fault
        model = find_model(asked.model) if isinstance(asked.model, str) else None  # None: not in the table of models
        unnamed = session.options.model_name is None and wants_thoughts(asked.model)
        context = await ready(
            session.context(
                system=asked.system,
                tools=[*asked.forms, *asked.tools],
                format=self._dialect.format,
                reserve=_reserve(session, asked, model.window if model is not None else None),
                model=asked.model if model is not None or unnamed else None,
            )
        )
        if context.pending and asked.messages:  # a request shows calls only once all of them have results
            waiting = ", ".join(map(shorten, await names_of_open_calls(session)))
            allowed = f"the results of all calls of one answer: give that of {waiting} next; the others are in the log"
            raise ConfigError(asked.where, "the results of only some calls", allowed)
        request = _without_forms(context.request(cache_breakpoints=asked.marks), asked)
        return self._dialect.build(self._given, request, streams=self.streams)

    async def _unkept(self, response: object, fault: InvalidEntry) -> None:
        """Warn that an answer is not stored, and record what it cost."""
        try:
            await ready(self._session.record_usage(response))
        except ConfigError as untold:
            fault.add_note(str(untold))
        warn_caller(f"the answer is not in the log: {fault}")


def _without_forms(request: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """Return the request without the schemas of the answer, which were counted as tools but stay where the caller put
    them."""
    tools = request.pop("tools", ())[len(asked.forms) :]
    return {**request, "tools": tools} if tools else request


def _reserve(session: AnySession, asked: Asked, window: int | None) -> int | None:
    """Return the tokens of the window to keep for the answer, at most half of it; None: as the session's options say.

    A budget that the session sets is for the request alone. Then the answer takes room from it only if the window ends
    sooner.
    """
    limits = session.options.limits
    if asked.answer is None or limits.reserve is not None:
        return None
    if limits.max_tokens is None:
        return asked.answer if window is None else min(asked.answer, window // 2)
    return None if window is None else max(min(limits.max_tokens, window) + min(asked.answer, window // 2) - window, 0)
