"""Tools with which a model looks into its memory: `MemoryTools(memory, session="trip", facts="user/ann")`.

What a model may see is decided by whoever makes the tools, never by an argument of a call: the tenant is the memory's,
and sessions, user and scope are fixed. A call whose arguments do not fit is answered with words for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypedDict, Unpack, get_args

import msgspec

from palimpsest import AsyncMemory, AsyncSession, ConfigError, Memory, Session
from palimpsest.errors import PrivacyRefused, WrongUser, nearest, shorten
from palimpsest.integrations.streams import ready
from palimpsest.integrations.tool_schemas import (
    SESSION,
    TOOLS,
    Refused,
    Tool,
    ToolFormat,
    ToolName,
    checked,
    definition,
)
from palimpsest.log import values
from palimpsest.log.ids import check_scope, is_id
from palimpsest.runtime.hushing import quietly
from palimpsest.runtime.runner import drive
from palimpsest.types import Recalled

FOUND = 5
"""How many passages a search returns, unless the model asks for another number."""

LEAST, NOTES = 200, 100
"""The least limit of tokens for a result, and how many of a result's tokens are kept for the text beside its
passages."""


class ToolResult(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The result of a call: the `text` for the model. If it `is_error`, the text says what to do about it."""

    text: str
    is_error: bool = False


class ToolOptions(TypedDict, total=False):
    """The options of `MemoryTools`, for type checkers."""

    session: Session | AsyncSession | str | None
    sessions: Iterable[Session | AsyncSession | str] | None
    user: str | None
    whole_tenant: bool
    facts: str | None
    offer: Collection[ToolName] | None
    max_tokens: int
    max_facts: int
    model: str | None
    counter: Callable[[str], int] | str | None


class _Tools:
    """What both faces share. `memory` may be of either kind."""

    def __init__(
        self,
        memory: Memory | AsyncMemory,
        *,
        session: Session | AsyncSession | str | None = None,
        sessions: Iterable[Session | AsyncSession | str] | None = None,
        user: str | None = None,
        whole_tenant: bool = False,
        facts: str | None = None,
        offer: Collection[ToolName] | None = None,
        max_tokens: int = 2000,
        max_facts: int = 200,
        model: str | None = None,
        counter: Callable[[str], int] | str | None = None,
    ) -> None:
        values.whole("max_tokens", max_tokens, LEAST)
        values.whole("max_facts", max_facts, 1)
        self._memory: Any = memory
        self._user, self._most, self._most_facts = user, max_tokens - NOTES, max_facts
        self._counting: dict[str, Any] = {"model": model, "counter": counter}
        self._session = None if session is None else _id_of(session)
        self._sessions = _seen(self._session, sessions, user, whole_tenant)
        for id in self._sessions or ("any",):
            memory.session(id, user=user, **self._counting)  # raises ConfigError for options that are not accepted
        if facts is not None:
            check_scope(facts, "facts")
        self._facts: Any = None if facts is None else memory.working(facts)
        self._tools = self._offered(offer)

    def _offered(self, offer: Collection[ToolName] | None) -> dict[str, Tool]:
        """Return the offered tools, by name. Raises ConfigError."""
        names = get_args(ToolName)
        if isinstance(offer, str):
            raise ConfigError("offer", offer, "a list of tool names")
        for name in offer or ():
            if name not in names:
                raise ConfigError("offer", name, ", ".join(names), nearest=nearest(name, names))
            if self._facts is None and name.endswith("fact"):
                raise ConfigError(
                    "offer", name, "tools for facts only together with facts=…, the scope that keeps the facts"
                )
        wanted = names if offer is None else offer
        offered = [tool for tool in TOOLS if tool.name in wanted and not (tool.writes and self._facts is None)]
        if self._session is None:
            offered = [tool if tool.writes else _with_session(tool) for tool in offered]
        return {tool.name: tool for tool in offered}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._tools)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools that are offered."""
        return tuple(self._tools)

    def definitions(self, format: ToolFormat = "openai") -> list[Any]:
        """Return the tools in the shape of a provider, for `tools=` of its client.

        The items are dicts that fit the provider's client; their type is `Any`, so a type checker accepts them for
        every client. For "gemini" that is one tool with all declarations, for "mcp" what a server lists. Raises
        ConfigError for an unknown format.

        Args:
            format: "openai" (chat completions, default), "openai-responses", "anthropic", "gemini" or "mcp".
        """
        shaped = [definition(tool, format) for tool in self._tools.values()]
        return [{"function_declarations": shaped}] if format == "gemini" else shaped

    async def _called(self, name: object, arguments: object) -> ToolResult:
        """Run a call of the model's, and return its result, or its error in words."""
        try:
            with quietly(self._memory.redact):  # errors quote the call's arguments to the model
                tool = self._named(name)
                verb: Callable[..., Any] = getattr(self, f"_{tool.name}")
                return ToolResult(text=await verb(**checked(tool, arguments)))
        except Refused as refused:
            text = f"Error: {refused}"
            return ToolResult(text=text if text.endswith((".", "?")) else f"{text}.", is_error=True)

    def _named(self, name: object) -> Tool:
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise Refused(f"there is no tool {shorten(name)}; there are {', '.join(self._tools)}")
        return tool

    # --- reading

    async def _search_memory(
        self, query: str, limit: int = FOUND, since: Any = None, until: Any = None, session: str | None = None
    ) -> str:
        sessions = self._sessions
        if session is not None:
            self._check_seen(session)
            sessions = [session]
        try:
            recalled = await ready(
                self._memory.recall(
                    query,
                    sessions=sessions,
                    user=self._user,
                    max_tokens=self._most,
                    limit=limit,
                    since=since,
                    until=until,
                    **self._counting,
                )
            )
        except ConfigError as fault:
            raise Refused(f"the query is not accepted: {fault.where}") from fault
        if not recalled.found:
            return "Nothing was found. Try other words, or fewer."
        lines = [recalled.text] if recalled else []
        sessions_found = {passage.session for passage in recalled.passages}
        if self._session is None and len(sessions_found) == 1:  # several sessions are named beside their passages
            lines.append(f"All of it is of the conversation {sessions_found.pop()}.")
        if recalled.left_out:
            lines.append(f"{recalled.left_out} more had no room: ask for something narrower.")
        return "\n".join(lines)

    async def _read_entries(self, entries: list[int | str], start: int = 0, session: str | None = None) -> str:
        session_id = session or self._session
        if session_id is None:
            raise Refused("read_entries needs the argument session: the id of the conversation that they are in")
        self._check_seen(session_id)
        options = {**self._counting, **({"user": self._user} if self._user is not None else {})}
        chat: Any = self._memory.session(session_id, **options)
        try:
            recalled: Recalled = await ready(chat.passages(entries, max_tokens=self._most, start=start))
        except WrongUser:  # the model must not learn that another user has such a session
            recalled = Recalled()
        shown = {passage.seq for passage in recalled.passages} | {passage.id for passage in recalled.passages}
        if not recalled.found:
            raise Refused("there are no such entries, or what was in them is gone")
        lines = [recalled.text] if recalled else []
        last = recalled.passages[-1] if recalled else None
        if last is not None and last.end < last.chars:
            lines.append(f"Entry {last.seq} goes on at character {last.end} of {last.chars}: give start.")
        if recalled.left_out:
            lines.append(f"{recalled.left_out} of them had no room: read them by themselves.")
        elif absent := [name for name in entries if name not in shown]:
            lines.append(f"Not there: {', '.join(shorten(name, 24) for name in absent[:5])}.")
        return "\n".join(lines)

    def _check_seen(self, session: str) -> None:
        if not is_id(session) or (self._sessions is not None and session not in self._sessions):
            hint = "search_memory names those that there are"
            raise Refused(f"there is no conversation {shorten(session)}; {hint}")

    # --- facts

    async def _remember_fact(self, key: str, value: str, importance: float = 0.5) -> str:
        keys = await ready(self._facts.keys())
        if key not in keys and len(keys) >= self._most_facts:
            raise Refused(f"there are {self._most_facts} facts, and no room for more: forget one, or replace one")
        try:
            await ready(self._facts.set(key, value, importance=importance))
        except (PrivacyRefused, ConfigError):  # the key has control characters, or something private
            raise Refused("it was not kept, for it holds what may not be stored") from None
        return f"Remembered under {shorten(key)}."

    async def _forget_fact(self, key: str) -> str:
        keys = await ready(self._facts.keys())
        if key not in keys or not await ready(self._facts.delete(key)):
            near = nearest(key, keys)
            hint = f"; did you mean {shorten(near)}?" if near else ""
            raise Refused(f"there is no fact {shorten(key)}{hint}")
        return f"Forgot {shorten(key)}."


class MemoryTools(_Tools):
    """Tools for a model over a `Memory`: to search what was said, to read whole entries, to keep and forget facts.

    What the model may see is one `session`, some `sessions`, those of a `user`, or those that both arguments allow; the
    `whole_tenant` only if that is given. Facts are kept in one scope; without it the tools for facts are not offered.
    Results are fenced as data, and have at most `max_tokens`. Raises ConfigError for what is not accepted.

    Args:
        memory: an open memory. Its tenant is the only one that is ever seen.
        session: the session that may be searched and read, or its id.
        sessions: several sessions, or their ids, instead of one.
        user: an id: only this user's sessions.
        whole_tenant: whether all sessions of the tenant may be seen, of all users; False by default.
        facts: the scope that facts are kept in, such as "user/ann".
        offer: names of the tools that are offered; None: all that are possible.
        max_tokens: tokens that a result may have, at least 200; 2,000 by default.
        max_facts: the most facts that the scope may have; 200 by default.
        model: the model whose tokens are counted; None: not known.
        counter: what counts tokens, as for a session; None: the model's.
    """

    def __init__(self, memory: Memory, **options: Unpack[ToolOptions]) -> None:
        if not isinstance(memory, Memory):
            raise ConfigError("memory", type(memory).__name__, "a Memory; for an AsyncMemory there is AsyncMemoryTools")
        super().__init__(memory, **options)

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> ToolResult:
        """Do what a model has called, and return the result for it.

        A mistake of the model's is a result that `is_error`, never an exception. Raises StoreError if the store fails.

        Args:
            name: the tool's name, as the model gave it.
            arguments: its arguments, as JSON or as a mapping; None: none.
        """
        return drive(self._called(name, arguments))


class AsyncMemoryTools(_Tools):
    """The same tools over an `AsyncMemory`: `await tools.call(name, arguments)`.

    Args:
        memory: an open memory; the other arguments are those of `MemoryTools`.
    """

    def __init__(self, memory: AsyncMemory, **options: Unpack[ToolOptions]) -> None:
        if not isinstance(memory, AsyncMemory):
            raise ConfigError("memory", type(memory).__name__, "an AsyncMemory; for a Memory there is MemoryTools")
        super().__init__(memory, **options)

    async def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> ToolResult:
        """Do what a model has called, and return the result for it, like `MemoryTools.call`.

        Args:
            name: the tool's name, as the model gave it.
            arguments: its arguments, as JSON or as a mapping; None: none.
        """
        return await self._called(name, arguments)


def _seen(
    session: str | None,
    sessions: Iterable[Session | AsyncSession | str] | None,
    user: str | None,
    whole_tenant: object,
) -> list[str] | None:
    """Return the sessions that may be seen; None for all of the user's, or of the tenant."""
    values.switch("whole_tenant", whole_tenant)
    if (session is not None) + (sessions is not None) + bool(whole_tenant) > 1:
        raise ConfigError("session", session, "only one of session, sessions and whole_tenant")
    if isinstance(sessions, str):
        raise ConfigError("sessions", sessions, "a list of ids; give a single id as `session`")
    if session is not None:
        return [session]
    if sessions is not None:
        return [_id_of(each) for each in sessions]
    if user is None and not whole_tenant:
        allowed = "session, sessions or user, to say what the model may see, or whole_tenant=True for everything"
        raise ConfigError("session", None, allowed)
    return None


def _id_of(session: Session | AsyncSession | str) -> str:
    return session.id if isinstance(session, Session | AsyncSession) else session


def _with_session(tool: Tool) -> Tool:
    """Return the tool for several sessions: reading needs the argument `session`, a search may have it."""
    return tool._replace(params=(*tool.params, SESSION._replace(required=tool.name == "read_entries")))
