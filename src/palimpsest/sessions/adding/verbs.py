"""Adding to a session: what the verbs are given becomes entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, EntryNotFound, InvalidEntry, shorten
from palimpsest.formats import Message, find_format
from palimpsest.formats.common import canonical
from palimpsest.log.checks import check, check_json, unfit
from palimpsest.log.entry import STATUSES, Entry, Part, Role, Status, digest, new_ids
from palimpsest.sessions.adding.appender import Appender

Content = str | Sequence[Part]


class Writer(Appender):
    """The adding half of `AsyncSession`.

    The order is fixed: decode or build, check, identify, privacy, store, event.
    """

    async def add_user_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        """Append what the human said, which starts an interaction, and return its entry.

        `content` is text or a list of parts. `importance` is 0 to 1; a pinned entry is in every context; an
        entry that has expired is in none. Raises InvalidEntry, and stores nothing, for what is malformed.
        """
        return await self._say("user", content, name, metadata, importance, pinned, expires_at)

    async def add_assistant_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        """Append what the model said and return its entry. Options as in `add_user_message`."""
        return await self._say("assistant", content, name, metadata, importance, pinned, expires_at)

    async def add_system_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> Entry:
        """Append a system message to the log: every context keeps it, as if it were pinned.

        A system prompt that every call brings along belongs into `context(system=…)`, not here.
        """
        return await self._say("system", content, name, metadata, None, False, expires_at)

    async def add_tool_call(
        self, name: str, arguments: Any, *, call_id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Entry:
        """Append the model's call of a tool and return its entry, whose `call_id` the result refers to.

        `arguments` is any JSON value, or JSON text as the provider gave it. Without `call_id` one is made.
        Calls added before the first of them is answered are parallel calls of one group.
        """
        if not isinstance(name, str) or not name:
            raise InvalidEntry("name", f"{shorten(name)} is no tool's name; give its name as text")
        entry = Entry(
            kind="tool_call",
            role="assistant",
            content=_arguments(arguments),
            name=name,
            call_id=call_id or f"call_{new_ids(1, 0)[0].replace('-', '')[-24:]}",
            metadata=metadata,
        )
        return (await self._append([entry], "tool_call"))[0]

    async def add_tool_result(
        self,
        name: str | None,
        output: Any,
        *,
        call_id: str | None = None,
        status: Status = "unknown",
        metadata: dict[str, Any] | None = None,
    ) -> Entry:
        """Append a tool's result and return its entry.

        It answers the nearest earlier open call of `call_id`; without one, the oldest open call of the tool
        `name`. A result that answers no call is kept, and shown as plain data. `output` is text, or any JSON
        value, which is kept as JSON text. `status` is success, error, unknown, pending or denied.
        """
        if name is None and call_id is None:
            raise InvalidEntry("call_id", "a result needs the id of its call, or at least the tool's name")
        content = output if isinstance(output, str) else _json_text(output, "output")
        entry = Entry(
            kind="tool_result",
            role="tool",
            content=content,
            name=name,
            call_id=call_id,
            status=status,
            metadata=metadata,
        )
        return (await self._append([entry], "tool_result"))[0]

    async def add_context(
        self,
        text: str,
        *,
        name: str,
        metadata: dict[str, Any] | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        """Append background data such as a file, shown fenced and marked with its `name`, and return its entry.

        The same text under the same name again adds nothing and returns the entry that is there. A new text
        supersedes the older one in every context; both stay in the log.
        """
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
        return await self._known_context(entry) or (await self._append([entry], "context", checked=True))[0]

    async def _known_context(self, entry: Entry) -> Entry | None:
        """The newest version of a context, where it says what this one would say."""
        kept = (await self._admitted([entry]))[0].kept
        head = await self._scope.store.head(self._scope.key)
        known = head.contexts.get(kept.name or "") if head is not None and kept is not None else None
        if kept is None or known is None or known[1] != digest(kept.text):
            return None
        there = await self._scope.store.fetch(self._scope.key, [known[0]])
        return there[0] if there and there[0].text == kept.text else None

    async def add(
        self,
        messages: Message | Sequence[Message],
        *,
        format: str | None = None,
        key: str | None = None,
        statuses: Mapping[str, Status] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[Entry, ...]:
        """Append provider messages as one atomic batch and return their entries.

        `messages` is one message or a list of them in `format` (default: the session's). With `key` the
        batch is idempotent, since its ids derive from the key: adding it again adds nothing, adding it grown
        adds what is new at its end (so a list of messages that grows can be added whole after every step),
        and other content at any place raises Conflict. `statuses` gives results a status by call id;
        `metadata` is kept with every entry of the batch. Raises InvalidEntry naming the place of what is
        malformed; then nothing of the batch is stored.
        """
        entries = self._decoded(messages, format, statuses, metadata)
        return await self._append(entries, "messages", checked_key(key), checked=True)

    def _decoded(
        self,
        messages: Message | Sequence[Message],
        format: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
    ) -> list[Entry]:
        """Return provider messages as entries, checked. Raises InvalidEntry naming the place of what is malformed."""
        batch = [messages] if type(messages) is dict or isinstance(messages, Mapping) else messages
        shape = find_format(self._options.format if format is None else format)
        entries = shape.decode(canonical(batch, shape.name), "messages")
        if statuses is not None and not isinstance(statuses, Mapping):
            raise ConfigError("statuses", statuses, "a mapping from call ids to statuses")
        if statuses is not None or metadata is not None:
            entries = [_annotated(entry, statuses or {}, metadata) for entry in entries]
            for entry in entries:
                check(entry, "messages")
        return entries

    async def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
        """Append entries that were made elsewhere, such as by an import, as one atomic batch; return them in place.

        Place and links are made anew, but a result stays with its call; the time of an entry (`at`) is kept where it
        has one. With `key` the batch is idempotent as in `add`. Without it an entry keeps an id of its own: one that is
        there and says the same adds nothing, one that says something else raises Conflict. Raises InvalidEntry, and
        stores nothing, for an entry with a field that is not allowed.
        """
        if not isinstance(entries, Sequence) or not all(isinstance(entry, Entry) for entry in entries):
            raise InvalidEntry("entries", "a list of entries is needed")
        for i, entry in enumerate(entries):
            check(entry, f"entries[{i}]")
        return await self._append(entries, "entries", checked_key(key), checked=True)

    async def resolve(self, call_id: str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Close an open call whose result will not come, and return the result entry that says so.

        Until then a group with an open call is held back from every context. Raises EntryNotFound where no
        call of this id is open.
        """
        if status not in STATUSES:
            raise InvalidEntry("status", f"{shorten(status)} is none of {', '.join(STATUSES)}")
        head = await self._reader.head()
        if not any(call.call_id == call_id for call in head.calls):
            raise EntryNotFound(self.id, f"open call {call_id}" if isinstance(call_id, str) else call_id)
        return await self.add_tool_result(
            None, output or f"[no result: {status}]", call_id=call_id, status=status, metadata={"resolved": True}
        )

    async def _say(
        self,
        role: Role,
        content: Content,
        name: str | None,
        metadata: dict[str, Any] | None,
        importance: float | None,
        pinned: bool,
        expires_at: datetime | None,
    ) -> Entry:
        entry = Entry(
            role=role,
            content=content if isinstance(content, str) else _fixed(content),
            name=name,
            metadata=metadata,
            importance=importance,
            pinned=pinned,
            expires_at=expires_at,
        )
        return (await self._append([entry], "message"))[0]


def _fixed(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts as an entry holds them; what is no list of parts comes back as it is, for the check to name it."""
    return tuple(parts) if isinstance(parts, Sequence) else parts


def checked_key(key: str | None) -> str | None:
    """Return the key. Raises InvalidEntry for what is no text or empty."""
    if key is not None and (not isinstance(key, str) or not key):
        raise InvalidEntry("key", f"{shorten(key)} is not text; give a text that names this batch")
    if key is not None and (reason := unfit(key)) is not None:
        raise InvalidEntry("key", reason)
    return key


def _annotated(entry: Entry, statuses: Mapping[str, Status], metadata: dict[str, Any] | None) -> Entry:
    status = statuses.get(entry.call_id or "", entry.status) if entry.kind == "tool_result" else None
    return msgspec.structs.replace(entry, status=status, metadata=metadata)


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else _json_text(arguments, "arguments")


def _json_text(value: Any, where: str) -> str:
    import json

    check_json(value, where)
    return json.dumps(value, ensure_ascii=False)
