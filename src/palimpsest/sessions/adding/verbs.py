"""The verbs of a session that add: they turn their arguments into checked entries and hand these to the appender."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from palimpsest.errors import ConfigError, EntryNotFound, InvalidEntry, shorten
from palimpsest.formats import find_format
from palimpsest.formats.common import is_blank
from palimpsest.formats.media_types import lacks
from palimpsest.formats.received import is_plain, received
from palimpsest.log.checks import check, check_json, unfit
from palimpsest.log.entry import STATUSES, Entry, Part, Role, Status
from palimpsest.log.ids import new_ids
from palimpsest.log.lazy_imports import dumps
from palimpsest.log.withdrawal import arriving
from palimpsest.sessions.adding.appender import Appender
from palimpsest.sessions.adding.decoding import BLANK, annotated, message_at, of_messages, of_run
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.formats.received.values import Received

T = TypeVar("T")

Content = str | Sequence[Part]
"""The content of a message: text, or parts such as `Text` and `Image`."""

_MUCH, _CHARACTERS = 1_000, 1_000
"""How many values are much, and how many characters count as one more. Going through so many takes a millisecond."""

_NO_PARTS = str | bytes | bytearray | memoryview | range
_LISTS, _HOLDING = (list, tuple), (dict, list, tuple, Mapping)  # types that hold values; first what isinstance knows


class Adding:
    """Implements the verbs of a session that add.

    The order is fixed: decode or build, check, identify, privacy, store, event.
    """

    def __init__(self, scope: SessionScope, appender: Appender) -> None:
        self._scope, self._options, self._appender = scope, scope.options, appender

    async def say(
        self,
        role: Role,
        content: Content,
        name: str | None,
        metadata: dict[str, Any] | None,
        importance: float | None,
        pinned: bool,
        expires_at: datetime | None,
    ) -> Entry:
        """Append a message. Raises InvalidEntry if the user or the system says nothing, or a part holds nothing."""
        fixed = content if type(content) is str else _fixed(content)
        if role != "assistant" and not (type(fixed) is str and "!" <= fixed[:1] <= "~") and is_blank(fixed):
            raise InvalidEntry("message.content", BLANK)
        about: dict[str, Any] = {"metadata": metadata, "importance": importance, "expires_at": expires_at}
        entry = Entry(role=role, content=fixed, name=name, pinned=pinned, **about)
        return (await self._appender.append([entry], "message"))[0]

    async def tool_call(self, name: str, arguments: Any, call_id: str | None, metadata: dict[str, Any] | None) -> Entry:
        """Append a tool call."""
        if not isinstance(name, str) or not name:
            raise InvalidEntry("name", f"{shorten(name)} is not the name of a tool; give it as text")
        entry = Entry(
            kind="tool_call",
            role="assistant",
            content=arguments if isinstance(arguments, str) else await self._json_text(arguments, "arguments"),
            name=name,
            call_id=call_id or f"call_{new_ids(1, 0)[0].replace('-', '')[-24:]}",
            metadata=metadata,
        )
        return (await self._appender.append([entry], "tool_call"))[0]

    async def tool_result(
        self,
        name: str | None,
        output: Any,
        call_id: str | None,
        status: Status,
        metadata: dict[str, Any] | None,
        answers: int = 0,
    ) -> Entry:
        """Append a tool result. `answers` is the seq of the call that it answers, or 0 if id and name are to say it."""
        call_id = call_id or None  # no stored call has an empty id
        if name is None and call_id is None and not answers:
            raise InvalidEntry("call_id", "a result needs the id of its call, or at least the name of the tool")
        content = output if isinstance(output, str) else await self._json_text(output, "output")
        fields: dict[str, Any] = {"call_id": call_id, "answers": answers, "status": status, "metadata": metadata}
        entry = Entry(kind="tool_result", role="tool", content=content, name=name, **fields)
        return (await self._appender.append([entry], "tool_result"))[0]

    async def context(
        self,
        text: str,
        name: str,
        metadata: dict[str, Any] | None,
        pinned: bool,
        expires_at: datetime | None,
    ) -> Entry:
        """Append background data, unless contexts show the same data already."""
        if not isinstance(text, str) or not isinstance(name, str) or not name:
            raise InvalidEntry("name" if isinstance(text, str) else "text", "a context needs text and a name, both str")
        entry = Entry(
            kind="context",
            role="user",
            content=text,
            name=name,
            metadata=metadata,
            pinned=pinned,
            expires_at=expires_at,
        )
        check(entry, "context")
        existing = await self._appender.existing.context(entry)
        return existing or (await self._appender.append([entry], "context", checked=True))[0]

    async def messages(
        self,
        messages: object,
        format: str | None,
        key: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
        unless_last: bool = False,
    ) -> tuple[Entry, ...]:
        """Append messages in a provider's shape, and record the usage that responses report. Raises InvalidEntry."""
        if self._scope.runner.suspends:
            entries, recognised = await self._apart(messages, self._decoded, messages, format, statuses, metadata)
        else:
            entries, recognised = self._decoded(messages, format, statuses, metadata)
        existing, new = await self._appender.existing.last(entries, key) if unless_last else ([], entries)
        if existing and not new:
            await self._appender.usage.unless_noted([*recognised.usages.values()] if recognised is not None else ())
            return tuple(existing)
        notes = partial(self._note_usage, messages, recognised) if recognised and recognised.usages else None
        stored = await self._appender.append(new, "messages", checked_key(key), checked=True, note_usage=notes)
        return *existing, *stored

    async def _note_usage(self, messages: object, recognised: Received, first: int) -> None:
        """Record the usage of the given messages, from the one on that became the entry with the index `first`."""
        since = await self._apart(messages, message_at, recognised.runs, first) if first else 0
        await self._appender.usage.of_answers([usage for i, usage in recognised.usages.items() if i >= since])

    async def _json_text(self, value: Any, where: str) -> str:
        """Return the value as JSON text. Raises InvalidEntry, naming the place, for what is not a JSON value."""
        return await self._apart(value, _json_text, value, where)

    async def _apart(self, value: object, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that goes through `value`, in a thread if that would block an event loop for long."""
        if self._scope.runner.suspends and takes_long(value):
            return await self._scope.store.apart(function, *arguments)
        return function(*arguments)

    def decoded(
        self,
        messages: object,
        format: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
    ) -> list[Entry]:
        """Return messages in a provider's shape as checked entries. Raises InvalidEntry, naming the place, for bad
        ones.

        Empty messages are allowed, since `replace` is given a list that was made from a log.
        """
        return self._decoded(messages, format, statuses, metadata, blank=True)[0]

    def _decoded(
        self,
        messages: object,
        format: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
        blank: bool = False,
    ) -> tuple[list[Entry], Received | None]:
        batch = [messages] if type(messages) is dict else messages
        name = self._options.format if format is None else format
        shape = find_format(name)
        recognised: Received | None = None
        if is_plain(batch, shape) or _is_text(batch):
            entries = of_messages(shape, batch, blank)
        else:
            recognised = received(batch, name, settled=format is not None)
            entries = [entry for run in recognised.runs for entry in of_run(run, blank)]
        if statuses is not None and not isinstance(statuses, Mapping):
            raise ConfigError("statuses", statuses, "a mapping from call ids to statuses")
        if statuses is not None or metadata is not None:
            entries = [annotated(entry, statuses or {}, metadata) for entry in entries]
            for entry in entries:
                check(entry, "messages")
        return entries, recognised

    async def entries(self, entries: Sequence[Entry], key: str | None) -> tuple[Entry, ...]:
        """Append existing entries, such as those of another session."""
        if not isinstance(entries, Sequence) or not all(isinstance(entry, Entry) for entry in entries):
            raise InvalidEntry("entries", "give a list of Entry objects; `add` takes messages of providers")
        entries = [arriving(entry, f"entries[{i}]") for i, entry in enumerate(entries)]
        if entries and entries[0].continues:  # the message that it continues is another log's
            entries[0] = msgspec.structs.replace(entries[0], continues=False)
        return await self._appender.append(entries, "entries", checked_key(key), checked=True)

    async def resolve(self, call: Entry | str, status: Status, output: str) -> Entry:
        """Append a result for an open call. The seq of an entry says which, as does that of a call without an id."""
        if not isinstance(status, str) or status not in STATUSES:
            raise InvalidEntry("status", f"{shorten(status)} is none of {', '.join(STATUSES)}")
        named = call if isinstance(call, Entry) else Entry(call_id=call)
        open_calls = await self._appender.existing.calls() if isinstance(call, Entry | str) else ()
        if isinstance(call, str) and all(one.call_id != call for one in open_calls):
            without_id = (one for one in open_calls if one.call_id is None and str(one.seq) == call)
            named = next((Entry(seq=one.seq, name=one.name) for one in without_id), named)
        seq, id, tool = named.seq, named.call_id, named.name
        if not any(one.call_id == id and tool in (None, one.name) and seq in (0, one.seq) for one in open_calls):
            raise EntryNotFound(self._scope.key.session, named.id if id is None else id, "open call")
        text, metadata = output or f"[no result: {status}]", {"resolved": True}
        return await self.tool_result(tool if id is None else None, text, id, status, metadata, answers=seq)


def _is_text(batch: object) -> bool:
    """Whether it is a string or a list of strings, which the format `text` reads."""
    return isinstance(batch, str) or (isinstance(batch, list) and all(isinstance(one, str) for one in batch or [0]))


def _fixed(content: Content) -> str | tuple[Part, ...]:
    """Return content as an entry holds it. What is not a list of parts comes back as it is, for `check` to reject."""
    if not isinstance(content, Sequence) or isinstance(content, _NO_PARTS):
        return content
    for i, part in enumerate(content):
        if lacking := lacks(part):
            raise InvalidEntry(f"message.content[{i}].{lacking[0]}", lacking[1])
    return tuple(content)


def checked_key(key: str | None) -> str | None:
    """Return the key. Raises InvalidEntry if it is empty, not text, or has characters that cannot be stored."""
    if key is not None and (not isinstance(key, str) or not key):
        raise InvalidEntry(
            "key", f"{shorten(key)} is no key; give text that names this batch, such as the id of a webhook's event"
        )
    if key is not None and (reason := unfit(key)) is not None:
        raise InvalidEntry("key", reason)
    return key


def takes_long(value: object) -> bool:
    """Whether a value holds so much that going through all of it would block an event loop noticeably."""
    remaining = _MUCH
    containers: list[Any] = [value if isinstance(value, _HOLDING) else [value]]
    while containers and remaining > 0:
        container = containers.pop()
        for inner in islice(container if isinstance(container, _LISTS) else container.values(), remaining):
            remaining -= 1
            if isinstance(inner, str):
                remaining -= len(inner) // _CHARACTERS
            elif isinstance(inner, _HOLDING):
                containers.append(inner)
    return remaining <= 0


def _json_text(value: Any, where: str) -> str:
    check_json(value, where)
    return dumps(value, ensure_ascii=False)
