"""Adding to a session: what the verbs are given becomes entries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from palimpsest.errors import ConfigError, EntryNotFound, InvalidEntry, shorten
from palimpsest.formats import Format, find_format
from palimpsest.formats.common import canonical, is_blank
from palimpsest.formats.media_types import lacks
from palimpsest.formats.received import is_plain, received
from palimpsest.formats.received.values import Received, Run
from palimpsest.log.checks import check, check_json, unfit
from palimpsest.log.entry import STATUSES, Entry, Part, Role, Status, new_ids
from palimpsest.log.late import dumps
from palimpsest.log.withdrawal import arriving
from palimpsest.sessions.adding.appender import Appender
from palimpsest.sessions.adding.usage import UsageRecorder
from palimpsest.sessions.scope import SessionScope

T = TypeVar("T")

Content = str | Sequence[Part]
"""What somebody says: text, or parts such as `Text` and `Image`."""

MARK = "cut_off"
"""The key of an entry's metadata, true where the answer was cut off."""

_MUCH = 1_000
"""Values, or so many times `_CHARACTERS` of text: a millisecond at the most."""

_NO_PARTS = str | bytes | bytearray | memoryview | range
_CHARACTERS, _HOLDING = 1_000, (dict, list, tuple, Mapping)  # the quick ones to ask for first


class Adding:
    """What the verbs of a session that add do.

    The order is fixed: decode or build, check, identify, privacy, store, event.
    """

    def __init__(self, scope: SessionScope, appender: Appender) -> None:
        self._scope, self._options, self._appender = scope, scope.options, appender
        self.usage = UsageRecorder(scope)

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
        """Append what somebody said. Raises InvalidEntry where a person, or the system, says nothing, or nobody can
        read a part."""
        given = content if type(content) is str else _fixed(content)
        if role != "assistant" and not (type(given) is str and "!" <= given[:1] <= "~") and is_blank(given):
            raise InvalidEntry("message.content", _BLANK)
        about: dict[str, Any] = {"metadata": metadata, "importance": importance, "expires_at": expires_at}
        entry = Entry(role=role, content=given, name=name, pinned=pinned, **about)
        return (await self._appender.append([entry], "message"))[0]

    async def tool_call(self, name: str, arguments: Any, call_id: str | None, metadata: dict[str, Any] | None) -> Entry:
        """Append a call."""
        if not isinstance(name, str) or not name:
            raise InvalidEntry("name", f"{shorten(name)} is no tool's name; give its name as text")
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
        """Append a result."""
        call_id = call_id or None  # a call that is given none gets one
        if name is None and call_id is None and not answers:
            raise InvalidEntry("call_id", "a result needs the id of its call, or at least the tool's name")
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
        """Append background data, unless it is there."""
        if not isinstance(text, str) or not isinstance(name, str) or not name:
            raise InvalidEntry("name" if isinstance(text, str) else "text", "a context needs text and a name")
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
        there = await self._appender.there.context(entry)
        return there or (await self._appender.append([entry], "context", checked=True))[0]

    async def messages(
        self,
        messages: object,
        format: str | None,
        key: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
        unless_last: bool = False,
    ) -> tuple[Entry, ...]:
        """Append what a vendor gives, and note its cost. Raises InvalidEntry where a person or the system is silent."""
        if self._scope.runner.suspends:
            entries, found = await self._apart(messages, self._decoded, messages, format, statuses, metadata)
        else:
            entries, found = self._decoded(messages, format, statuses, metadata)
        there, left = await self._appender.there.last(entries, key) if unless_last else ([], entries)
        if there and not left:
            await self.usage.unless_noted([*found.usages.values()] if found is not None else ())
            return tuple(there)
        told = partial(self._noted, messages, found) if found is not None and found.usages else None
        return *there, *await self._appender.append(left, "messages", checked_key(key), checked=True, told=told)

    async def _noted(self, messages: object, found: Received, first: int) -> None:
        """Note what was given cost, from that on of which the entry of this number comes."""
        since = await self._apart(messages, _given_at, found.runs, first) if first else 0
        await self.usage.of_answers([usage for i, usage in found.usages.items() if i >= since])

    async def _json_text(self, value: Any, where: str) -> str:
        """The value as JSON. Raises InvalidEntry, naming the place, where it is none."""
        return await self._apart(value, _json_text, value, where)

    async def _apart(self, what: object, function: Callable[..., T], *given: Any) -> T:
        """What a function makes of what it is given, without holding up an event loop where there is much of that."""
        if self._scope.runner.suspends and takes_long(what):
            return await self._scope.store.apart(function, *given)
        return function(*given)

    def decoded(
        self,
        messages: object,
        format: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
    ) -> list[Entry]:
        """Return what a vendor gives as entries, checked. Raises InvalidEntry naming the place of what is malformed.

        Messages that say nothing are taken: this is a list that somebody made of a log.
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
        found: Received | None = None
        if is_plain(batch, shape.name) or _is_text(batch):
            entries = _of_messages(shape, batch, blank)
        else:
            found = received(batch, name, settled=format is not None)
            entries = [entry for run in found.runs for entry in _of_run(run, blank)]
        if statuses is not None and not isinstance(statuses, Mapping):
            raise ConfigError("statuses", statuses, "a mapping from call ids to statuses")
        if statuses is not None or metadata is not None:
            entries = [_annotated(entry, statuses or {}, metadata) for entry in entries]
            for entry in entries:
                check(entry, "messages")
        return entries, found

    async def entries(self, entries: Sequence[Entry], key: str | None) -> tuple[Entry, ...]:
        """Append entries that were made elsewhere."""
        if not isinstance(entries, Sequence) or not all(isinstance(entry, Entry) for entry in entries):
            raise InvalidEntry("entries", "a list of entries is needed")
        entries = [arriving(entry, f"entries[{i}]") for i, entry in enumerate(entries)]
        return await self._appender.append(entries, "entries", checked_key(key), checked=True)

    async def resolve(self, call: Entry | str, status: Status, output: str) -> Entry:
        """Append the result of a call that waits, in the log or the open turn. An entry says by its place which one."""
        if not isinstance(status, str) or status not in STATUSES:
            raise InvalidEntry("status", f"{shorten(status)} is none of {', '.join(STATUSES)}")
        meant = call if isinstance(call, Entry) else Entry(call_id=call)
        place, id, tool = meant.seq, meant.call_id, meant.name
        calls = await self._appender.there.calls() if isinstance(call, Entry | str) else ()
        if not any(one.call_id == id and tool in (None, one.name) and place in (0, one.seq) for one in calls):
            raise EntryNotFound(self._scope.key.session, meant.id if id is None else id, "open call")
        said, more = output or f"[no result: {status}]", {"resolved": True}
        return await self.tool_result(tool if id is None else None, said, id, status, more, answers=place)


def _is_text(batch: object) -> bool:
    """Whether it is a prompt, or prompts: what the format `text` reads."""
    return isinstance(batch, str) or (isinstance(batch, list) and all(isinstance(one, str) for one in batch or [0]))


def _of_messages(shape: Format, messages: Any, blank: bool) -> list[Entry]:
    """The entries of messages of one format. Raises InvalidEntry naming the place of what is malformed, and, unless
    `blank` ones are taken, of a message in which a person, or the system, says nothing."""
    messages = canonical(messages, shape.name)
    entries = shape.decode(messages, "messages")
    for i, entry in enumerate(() if blank else entries):
        content, role = entry.content, entry.role
        if type(content) is str and "!" <= content[:1] <= "~":
            continue  # as most do
        if entry.kind != "message" or not (role == "user" or role == "system") or not is_blank(content):
            continue
        native = entry.native
        beside = native is not None and "content" in native.absent  # it says something else, and that alone
        if not (beside or entry.continues or (i + 1 < len(entries) and entries[i + 1].continues)):
            raise InvalidEntry(_place_of(shape, messages, i), _BLANK)
    return entries


def _place_of(shape: Format, messages: Sequence[Any], number: int) -> str:
    """Where the message is whose entry has this number."""
    return f"messages[{_message_of(shape, messages, number)}]{_SAID.get(shape.name, '.content')}"


def _message_of(shape: Format, messages: Sequence[Any], number: int) -> int:
    """Which message the entry of this number comes from: the first that so many entries end with."""

    def entries(count: int) -> int:
        return len(shape.decode(messages[:count], "messages"))

    return bisect_right(range(1, len(messages) + 1), number, key=entries)


def _given_at(runs: Sequence[Run], number: int) -> int:
    """Which of those that were given the entry of this number comes from."""
    for run in runs:
        shape = find_format(run.format)
        messages = canonical(run.messages, shape.name)
        many = len(shape.decode(messages, "messages"))
        if number < many:
            return run.places[_message_of(shape, messages, number)]
        number -= many
    raise AssertionError("an entry comes from something that was given")


_SAID = {"gemini": ".parts", "text": ""}
"""Under what messages hold what they say, where that is not `content`."""

_BLANK = (
    "the message says nothing: give text, or parts such as an image; where there is nothing to say, add no message "
    "(add_entries and imports take a log as it is)"
)


def _of_run(run: Run, blank: bool) -> list[Entry]:
    """The entries of messages of one format. Raises InvalidEntry naming which of those that were given is malformed."""
    try:
        entries = _of_messages(find_format(run.format), run.messages, blank)
        return list(map(_as_cut_off, entries)) if run.cut_off else entries
    except InvalidEntry as fault:
        place, found, rest = fault.where.removeprefix("messages[").partition("]")
        if not found or not place.isdecimal():
            raise
        raise InvalidEntry(f"messages[{run.places[int(place)]}]{rest}", fault.reason) from fault


def _fixed(content: Content) -> str | tuple[Part, ...]:
    """Content as an entry holds it; what is no list of parts comes back as it is, for the check to name it."""
    if not isinstance(content, Sequence) or isinstance(content, _NO_PARTS):
        return content
    for i, part in enumerate(content):
        if lacking := lacks(part):
            raise InvalidEntry(f"message.content[{i}].{lacking[0]}", lacking[1])
    return tuple(content)


def checked_key(key: str | None) -> str | None:
    """Return the key. Raises InvalidEntry for what is no text or empty."""
    if key is not None and (not isinstance(key, str) or not key):
        raise InvalidEntry(
            "key", f"{shorten(key)} names nothing; give a text that names this batch, such as the id of a webhook"
        )
    if key is not None and (reason := unfit(key)) is not None:
        raise InvalidEntry("key", reason)
    return key


def takes_long(value: object) -> bool:
    """Whether there is so much in a value that to look at all of it would hold up an event loop."""
    left = _MUCH
    some: list[Any] = [value if isinstance(value, _HOLDING) else [value]]
    while some and left > 0:
        one = some.pop()
        for inner in islice(one if isinstance(one, list | tuple) else one.values(), left):
            left -= 1
            if isinstance(inner, str):
                left -= len(inner) // _CHARACTERS
            elif isinstance(inner, _HOLDING):
                some.append(inner)
    return left <= 0


def _json_text(value: Any, where: str) -> str:
    check_json(value, where)
    return dumps(value, ensure_ascii=False)


def _annotated(entry: Entry, statuses: Mapping[str, Status], metadata: dict[str, Any] | None) -> Entry:
    """The entry with the status of its call's id, if it is a result, and with this metadata; a mark stays."""
    status = statuses.get(entry.call_id or "", entry.status) if entry.kind == "tool_result" else None
    marked = entry.metadata is not None and MARK in entry.metadata
    made = msgspec.structs.replace(entry, status=status, metadata=metadata)
    return _as_cut_off(made) if marked else made


def _as_cut_off(entry: Entry) -> Entry:
    """The entry with the mark of an answer that was cut off."""
    return msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), MARK: True})
