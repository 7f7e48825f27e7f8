"""`AsyncSession`: one conversation. Every verb of it is written here once; `Session` is its synchronous face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from palimpsest.entries import (
    Entry,
    Part,
    Role,
    Status,
    check,
    check_json,
    derived_ids,
    new_ids,
)
from palimpsest.errors import ConfigError, EntryNotFound, InvalidEntry, shorten
from palimpsest.formats import Message, find_format
from palimpsest.lease import TurnLease
from palimpsest.log import Change, Record, Usage, digest
from palimpsest.reading import Interaction, Reader, Stats, open_calls

if TYPE_CHECKING:
    from palimpsest.context import Context
    from palimpsest.memory import AsyncMemory
    from palimpsest.options import Options

Content = str | Sequence[Part]


class TurnEnd(NamedTuple):
    """What `end_turn` found: entries added since the turn began, calls still open, entries counted ahead."""

    added: int
    open_calls: tuple[str, ...]
    counted: int


class AsyncSession:
    """One conversation's log and its contexts. Made by `AsyncMemory.session`; opening it reads nothing.

    Every write is one commit, and acknowledged when it returns. Any number of sessions of any number of
    processes may write to one conversation: entries never interleave inside one `add` or an atomic turn.
    """

    def __init__(self, memory: AsyncMemory, options: Options) -> None:
        self._memory, self._options = memory, options
        self._store = memory.store
        self._reader = Reader(memory.store, options)
        self._buffer: list[Entry] | None = None
        self._added = 0
        self._lease: TurnLease | None = None
        self._last: Context | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._options.key.session

    @property
    def options(self) -> Options:
        """What the session was opened with."""
        return self._options

    # --- adding

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
        head = await self._store.head(self._options.key)
        known = head.contexts.get(name) if head is not None else None
        if known is not None and known[1] == digest(text):
            there = await self._store.fetch(self._options.key, [known[0]])
            if there and there[0].text == text:
                return there[0]
        entry = Entry(
            kind="context",
            role="user",
            content=text,
            name=name,
            metadata=metadata,
            pinned=pinned,
            expires_at=expires_at,
        )
        return (await self._append([entry], "context"))[0]

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
        batch is idempotent: the ids derive from it, so that adding the same again adds nothing, and adding
        something else under it raises Conflict. `statuses` gives results a status by call id; `metadata` is
        kept with every entry of the batch. Raises InvalidEntry naming the place of what is malformed; then
        nothing of the batch is stored.
        """
        batch = [messages] if isinstance(messages, Mapping) else messages
        entries = find_format(format or self._options.format).decode(batch, "messages")
        if statuses is not None or metadata is not None:
            entries = [_annotated(entry, statuses or {}, metadata) for entry in entries]
            for entry in entries:
                check(entry, "messages")
        if key is not None and (not isinstance(key, str) or not key):
            raise InvalidEntry("key", f"{shorten(key)} is not text; give a text that names this batch")
        return await self._append(entries, "messages", key, checked=True)

    async def resolve(self, call_id: str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Close an open call whose result will not come, and return the result entry that says so.

        Until then a group with an open call is held back from every context. Raises EntryNotFound where no
        call of this id is open.
        """
        head = await self._reader.head()
        if not any(call.call_id == call_id for call in head.calls):
            raise EntryNotFound(self.id, f"open call {call_id}")
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
            content=content if isinstance(content, str) else tuple(content),
            name=name,
            metadata=metadata,
            importance=importance,
            pinned=pinned,
            expires_at=expires_at,
        )
        return (await self._append([entry], "message"))[0]

    async def _append(
        self, entries: Sequence[Entry], where: str, key: str | None = None, *, checked: bool = False
    ) -> tuple[Entry, ...]:
        """Identity, privacy, store, event: the one way into the log."""
        if self._options.readonly:
            raise ConfigError("readonly", True, "False for a session that writes")
        if not checked:
            for entry in entries:
                check(entry, where)
        if not entries:
            return ()
        ids = new_ids(len(entries), self._memory.clock() // 1000) if key is None else derived_ids(key, len(entries))
        stamped = [msgspec.structs.replace(entry, id=id) for entry, id in zip(entries, ids, strict=True)]
        admitted = self._memory.privacy.admit(stamped)
        if self._buffer is not None and key is None:
            self._buffer.extend(admitted)
            return tuple(admitted)
        done = await self._store.append(self._options.key, admitted, check_ids=key is not None)
        self._added += done.added
        if self._lease is not None:
            await self._lease.renew()
        observers = self._memory.observers
        if done.added and observers.wants("entry:added"):
            for entry in done.entries:
                await observers.emit("entry:added", self.id, {"entry": entry}, self._memory.runner.wait)
        return done.entries

    # --- reading

    async def entries(self, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return the log's entries with a `seq` over `after`, oldest first: all, or at most `limit`.

        Evicted entries are there like any other, erased ones as tombstones.
        """
        return await self._store.read(self._options.key, after=after, limit=limit, counter=self._options.counter.name)

    async def entry(self, id: str | int) -> Entry:
        """Return the entry of this id, or of this `seq` (the number that notes in a context give).

        Evicted, masked and clamped entries come back whole. Raises EntryNotFound.
        """
        seqs, ids = ((), (id,)) if isinstance(id, str) and not id.isdecimal() else ((int(id),), ())
        found = await self._store.fetch(self._options.key, seqs, ids, counter=self._options.counter.name)
        if not found:
            raise EntryNotFound(self.id, id)
        return found[0]

    async def active_entries(self) -> list[Entry]:
        """Return what the session's view shows from now on, oldest first; summaries are not included.

        That is what its newest cut has kept, whatever the budget of the next call makes of it.
        """
        return await self._reader.active(await self._reader.head(), self._memory.clock())

    async def interactions(self) -> list[Interaction]:
        """Return the whole log by interaction, oldest first; what came before the first is the preamble, -1."""
        return await self._reader.interactions()

    async def history(self) -> list[Record]:
        """Return the log's records, oldest first: cuts, erasures, pins, with their time, reason and figures."""
        return await self._store.records(self._options.key)

    async def stats(self) -> Stats:
        """Return the session in numbers. What has not been counted yet is counted now, once."""
        return await self._reader.stats(self._memory.clock())

    async def count(self) -> int:
        """Count every entry that has no stored count by the session's counter, and return how many there were."""
        return await self._reader.count()

    # --- the context

    async def context(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Message] = (),
        format: str | None = None,
        reserve: int | None = None,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        view: str | None = None,
        at: int | None = None,
        dry_run: bool = False,
    ) -> Context:
        """Return what to send to the model next: within the budget, valid for the provider, stable at its front.

        `system` and `tools` (schemas as the provider takes them) are counted and sent, not stored. `reserve`
        are tokens kept for the answer. `max_tokens` or `max_messages` other than the session's give a
        context of another budget, which stores no cut; callers with budgets of their own use a `view` each.
        `at` rebuilds what was given at a revision; `dry_run` stores nothing.

        Raises BudgetImpossible, with the figures, where what may not be left out does not fit.
        """
        from palimpsest.assembly import Assembly, Call

        if system is not None and not isinstance(system, str):
            raise ConfigError("system", system, "text, or None")
        call = Call(system or None, tuple(tools or ()), format, reserve, max_tokens, max_messages, view, at, dry_run)
        assembly = Assembly(self._store, self._options, call, self._memory.clock())
        context = await assembly.context()
        await self._tell(assembly, context)
        self._last = context
        return context

    async def _tell(self, assembly: Any, context: Context) -> None:
        observers, wait = self._memory.observers, self._memory.runner.wait
        for text, failure in assembly.failures.items():
            if self._memory.first_failure(self.id, text):
                await observers.emit("condition:error", self.id, {"condition": text, "error": failure}, wait)
        if assembly.changed is not None and (observers.wants("cut") or observers.wants("evicted")):
            change = assembly.changed
            facts = {"view": change.view, "reason": change.reason, "epoch": context.epoch, **change.detail}
            await observers.emit("cut", self.id, facts, wait)
            if change.detail.get("evicted"):
                await observers.emit("evicted", self.id, facts, wait)
        if context.problems:
            await observers.emit("context:over_budget", self.id, {"tokens": context.tokens}, wait)

    async def record_usage(
        self,
        input_tokens: int,
        output_tokens: int = 0,
        *,
        cached_tokens: int = 0,
        context: Context | None = None,
    ) -> Usage:
        """Note what the provider reported for a call, in tokens, and return the session's usage.

        `context` is what was sent (default: the session's last). For a model without a public tokenizer the
        ratio of reported to counted tokens scales the budget from the next cut on.
        """
        for name, value in (
            ("input_tokens", input_tokens),
            ("output_tokens", output_tokens),
            ("cached", cached_tokens),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(name, value, "a whole number of at least 0")
        head = await self._reader.head()
        before = head.usage or Usage(input_tokens=0)
        sent = context or self._last
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            counted=sent.counted if sent is not None else 0,
            epoch=head.epoch,
            calls=before.calls + 1,
            total_input=before.total_input + input_tokens,
            total_output=before.total_output + output_tokens,
            total_cached=before.total_cached + cached_tokens,
        )
        await self._store.compact(self._options.key, Change(kind="usage", reason="usage", usage=usage))
        await self._memory.observers.emit("usage:recorded", self.id, {"usage": usage}, self._memory.runner.wait)
        return usage

    # --- pins, erasure, the whole session

    async def pin(self, *ids: str | int) -> None:
        """Keep these entries in every context. They stay in place until a cut passes them."""
        await self._pin(ids, unpin=False)

    async def unpin(self, *ids: str | int) -> None:
        """Let go of pins, from the next cut on."""
        await self._pin(ids, unpin=True)

    async def _pin(self, ids: Iterable[str | int], *, unpin: bool) -> None:
        seqs = tuple([(await self.entry(id)).seq for id in ids])
        if seqs:
            reason = "unpinned" if unpin else "pinned"
            await self._store.compact(self._options.key, Change(kind="pin", reason=reason, seqs=seqs, unpin=unpin))

    async def erase(self, ids: Iterable[str | int], *, reason: str = "by request") -> int:
        """Destroy the content of these entries for good and return how many there were.

        Their place stays, as a tombstone with id, kind and time. Raises EntryNotFound, and erases nothing,
        where one of them does not exist; one that is erased already is left as it is.
        """
        found = [await self.entry(id) for id in ([ids] if isinstance(ids, str | int) else ids)]
        seqs = tuple(sorted({entry.seq for entry in found if not entry.erased}))
        if seqs:
            await self._store.compact(self._options.key, Change(kind="erase", reason=reason, seqs=seqs))
            await self._memory.observers.emit(
                "erased", self.id, {"seqs": seqs, "reason": reason}, self._memory.runner.wait
            )
        return len(seqs)

    async def clear(self) -> int:
        """Destroy every entry of the session for good and return how many there were; the session stays.

        Clearing an empty or unknown session does nothing and returns 0.
        """
        head = await self._reader.head()
        if head.next_seq == head.first_seq:
            return 0
        await self._store.compact(self._options.key, Change(kind="clear", reason="cleared", detail={"n": head.entries}))
        await self._memory.observers.emit(
            "session:cleared", self.id, {"entries": head.entries}, self._memory.runner.wait
        )
        return head.entries

    async def export(self) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records, usage.

        `memory.import_session` takes it back; tombstones stand for what was erased.
        """
        from palimpsest.export import exported

        head = await self._reader.head()
        entries = [entry async for entry in self._reader.walk()]
        return exported(self._options.key, head, entries, await self.history(), self._memory.clock())

    # --- turns

    @asynccontextmanager
    async def turn(self, *, atomic: bool = False) -> AsyncIterator[AsyncSession]:
        """One run of the model as a block: `async with session.turn():`.

        Adds inside are durable at once, and holders of `turn()` on one session, in whatever process, go one
        after the other. That is advice: plain adds never wait, and after 5 seconds neither does this. With
        `atomic` the adds are gathered and committed together when the block ends, or dropped when it raises.
        """
        if self._buffer is not None or self._lease is not None:
            raise ConfigError("turn", "a turn inside a turn", "one turn at a time on one session object")
        self._added = 0
        if atomic:
            self._buffer = []
        else:
            self._lease = TurnLease(self._store, self._memory.runner, self._options.key)
            await self._lease.take()
        try:
            yield self
            await self.end_turn()
        finally:
            self._buffer = None
            await self._release()

    async def end_turn(self) -> TurnEnd:
        """Say that a run of the model is over: commit what an atomic turn gathered, count what was added.

        Counting here keeps it out of the next `context`. Returns what was added and which calls are open.
        """
        buffer, self._buffer = self._buffer, None
        if buffer:
            done = await self._store.append(self._options.key, buffer)
            self._added += done.added
            for entry in done.entries:
                await self._memory.observers.emit("entry:added", self.id, {"entry": entry}, self._memory.runner.wait)
        counted = await self.count() if self._store.writable else 0
        end = TurnEnd(self._added, open_calls(await self._reader.head()), counted)
        await self._release()
        await self._memory.observers.emit("turn:ended", self.id, end._asdict(), self._memory.runner.wait)
        self._added = 0
        return end

    async def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.give_back()


def _annotated(entry: Entry, statuses: Mapping[str, Status], metadata: dict[str, Any] | None) -> Entry:
    status = statuses.get(entry.call_id or "") if entry.kind == "tool_result" else None
    return msgspec.structs.replace(entry, status=status, metadata=metadata)


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else _json_text(arguments, "arguments")


def _json_text(value: Any, where: str) -> str:
    import json

    check_json(value, where)
    return json.dumps(value, ensure_ascii=False)
