"""`AsyncSession`: one conversation. Its methods only document and delegate; parts in other modules do the work.

`Session` in `sync.py` is its synchronous face. This module is longer than others because its docstrings are the
reference documentation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import UNSET, UnsetType

from palimpsest.formats import FormatName
from palimpsest.log.change import BY_REQUEST, Record
from palimpsest.log.entry import Entry, Kind, Role, Status
from palimpsest.log.head import Usage
from palimpsest.privacy.gate import guarded
from palimpsest.runtime.once import lazy
from palimpsest.sessions.adding.appender import Appender, OpenTurn
from palimpsest.sessions.adding.verbs import Adding, Content
from palimpsest.sessions.lazy_parts import Part
from palimpsest.sessions.options import Options
from palimpsest.sessions.scope import SessionScope
from palimpsest.stores import SessionInfo

if TYPE_CHECKING:
    import os

    from palimpsest.compaction import Strategy
    from palimpsest.compaction.loading import StrategyName
    from palimpsest.context.result import Context
    from palimpsest.log.summary import Summary
    from palimpsest.sessions.adding.streaming import Answer, CutOff, Streaming
    from palimpsest.sessions.compacting.auto import AutoCompaction
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.compacting.verbs import Compacting
    from palimpsest.sessions.contexts.verbs import Contexts
    from palimpsest.sessions.describing import Describing
    from palimpsest.sessions.erased import Erased
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.verbs import Erasing
    from palimpsest.sessions.exporting import Exporting
    from palimpsest.sessions.history import When
    from palimpsest.sessions.knowledge.base import AsyncKnowledge
    from palimpsest.sessions.reading import Interaction, LogReader, Stats
    from palimpsest.sessions.recalling.recalled import Recalled
    from palimpsest.sessions.recalling.verbs import Recalling
    from palimpsest.sessions.replacing import Replacing
    from palimpsest.sessions.timeline import Timeline
    from palimpsest.sessions.turns import TurnEnd, Turns
    from palimpsest.sessions.verifying import Verification
    from palimpsest.sessions.working import AsyncWorkingMemory
    from palimpsest.transfer.writing import Sink


@guarded
class AsyncSession:
    """One conversation's log and its contexts. Created by `AsyncMemory.session`; creating it reads nothing.

    `add` and the other `add_…` methods append to the log, and `context` returns what to send to the model next.
    `entries` and `recall` read the log, `compact` makes contexts smaller, `fork` and `rewind` go back to an earlier
    state, and `erase` destroys content.

    Every write is one commit, and is stored when the method returns. Any number of session objects in any number of
    processes may write to the same conversation: entries of one `add`, or of one atomic turn, are never interleaved
    with those of others.
    """

    def __init__(self, scope: SessionScope) -> None:

        def auto() -> AutoCompaction:
            from palimpsest.sessions.compacting.auto import AutoCompaction  # forty milliseconds

            return AutoCompaction(scope)

        self._scope, self._gate = scope, scope.gate
        self._auto = Part(scope.runner, auto)
        self._appender = Appender(scope, OpenTurn(scope), self._auto)
        self._adding = Adding(scope, self._appender)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._scope.key.session

    @property
    def options(self) -> Options:
        """The options that the session was opened with."""
        return self._scope.options

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that redacts a text by the memory's privacy policy, as `memory.redact`; None without a policy."""
        return self._gate.redact if self._gate.redactor is not None else None

    @property
    def in_turn(self) -> bool:
        """Whether a `turn()` of this object is open."""
        return self._appender.turn.is_open

    @property
    def in_atomic_turn(self) -> bool:
        """Whether an atomic `turn()` of this object is open: contexts do not show what it adds until it ends."""
        return self._appender.turn.buffer is not None

    # --- parts, each created at its first use; a part that adding and contexts do not need is also imported only then

    @lazy
    def _readers(self) -> Part[type[LogReader]]:
        def make() -> type[LogReader]:
            from palimpsest.sessions.reading import LogReader  # three milliseconds

            return LogReader

        return Part(self._scope.runner, make)

    async def _log(self) -> LogReader:
        return (await self._readers())(self._scope.store, self._scope.options)

    @lazy
    def _contexts(self) -> Contexts:
        from palimpsest.sessions.contexts.verbs import Contexts  # twenty milliseconds; imported early on an event loop

        return Contexts(self._scope, self._auto, self._recalling)

    @lazy
    def _compacting(self) -> Part[Compacting]:
        def make() -> Compacting:
            from palimpsest.sessions.compacting.verbs import Compacting  # forty milliseconds

            return Compacting(self._scope, self._auto)

        return Part(self._scope.runner, make)

    @lazy
    def _replacing(self) -> Part[Replacing]:
        def make() -> Replacing:
            from palimpsest.sessions.replacing import Replacing  # seven milliseconds

            return Replacing(self._scope, self._adding, self._appender)

        return Part(self._scope.runner, make)

    @lazy
    def _erasing(self) -> Part[Erasing]:
        def make() -> Erasing:
            from palimpsest.sessions.erasing.verbs import Erasing  # forty milliseconds

            return Erasing(self._scope)

        return Part(self._scope.runner, make)

    @lazy
    def _recalling(self) -> Part[Recalling]:
        scope = self._scope

        def make() -> Recalling:
            from palimpsest.sessions.recalling.verbs import Recalling  # twenty milliseconds

            return Recalling(scope.memory, scope)

        return Part(scope.runner, make)

    @lazy
    def _describing(self) -> Part[Describing]:
        def make() -> Describing:
            from palimpsest.sessions.describing import Describing  # a millisecond

            return Describing(self._scope)

        return Part(self._scope.runner, make)

    @lazy
    def _turns(self) -> Turns:
        from palimpsest.sessions.turns import Turns  # a millisecond

        return Turns(self._scope, self._appender, self._auto)

    @lazy
    def _streaming(self) -> Streaming:
        from palimpsest.sessions.adding.streaming import Streaming  # a millisecond

        return Streaming(self._scope.runner, self.add, self._appender.usage, self.redact)

    @lazy
    def _timeline(self) -> Part[Timeline]:
        def make() -> Timeline:
            from palimpsest.sessions.timeline import Timeline  # loads twenty modules

            return Timeline(self._scope)

        return Part(self._scope.runner, make)

    @lazy
    def _exporting(self) -> Part[Exporting]:
        def make() -> Exporting:
            from palimpsest.sessions.exporting import Exporting  # seven milliseconds

            return Exporting(self._scope)

        return Part(self._scope.runner, make)

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
        """Append a message of the human, which starts a new interaction, and return its entry.

        Raises InvalidEntry, and stores nothing, if the message is malformed or empty.

        Args:
            content: text, or a list of parts such as `Text` and `Image`; it must not be empty or only white space.
            name: which of several users wrote it; at most 256 characters.
            metadata: your own JSON values, stored with the entry; never sent to a model.
            importance: from 0 to 1, for conditions; None: unspecified.
            pinned: whether every context shows the message, however far cuts have moved past it.
            expires_at: a datetime with a time zone; from then on no context shows the message, and `sweep` erases it.
                None: never.
        """
        return await self._adding.say("user", content, name, metadata, importance, pinned, expires_at)

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
        """Append a message of the model and return its entry.

        Raises InvalidEntry, and stores nothing, if the message is malformed.

        Args:
            content: text, or a list of parts such as `Text` and `Reasoning`.
            name: which model or agent wrote it; None: unspecified.
            metadata: your own JSON values, stored with the entry; never sent to a model.
            importance: from 0 to 1, for conditions; None: unspecified.
            pinned: whether every context shows the message, however far cuts have moved past it.
            expires_at: a datetime with a time zone from which on no context shows the message; None: never.
        """
        return await self._adding.say("assistant", content, name, metadata, importance, pinned, expires_at)

    async def add_system_message(
        self,
        content: Content,
        *,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> Entry:
        """Append a system message to the log and return its entry. Every context shows it, as if it were pinned.

        A system prompt that you send with every call belongs in `context(system=…)`, not here. Raises InvalidEntry, and
        stores nothing, if the message is malformed or empty.

        Args:
            content: text, or a list of parts; it must not be empty or only white space.
            name: who wrote it; None: unspecified.
            metadata: your own JSON values, stored with the entry; never sent to a model.
            expires_at: a datetime with a time zone from which on no context shows the message; None: never.
        """
        return await self._adding.say("system", content, name, metadata, None, False, expires_at)

    async def add_tool_call(
        self, name: str, arguments: Any, *, call_id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Entry:
        """Append a tool call of the model and return its entry, whose `call_id` the result refers to.

        Calls that are added before the first of them is answered are parallel calls of one group. Raises InvalidEntry,
        and stores nothing, if the call is malformed.

        Args:
            name: the tool's name.
            arguments: any JSON value, or JSON text as the provider gave it.
            call_id: the provider's id of the call; None: an id is generated.
            metadata: your own JSON values, stored with the entry; never sent to a model.
        """
        return await self._adding.tool_call(name, arguments, call_id, metadata)

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

        The result answers the open call with this `call_id`; if several calls of one group share the id, the oldest of
        them. Without an id it answers the oldest open call of the tool `name`. A result that answers no call is stored,
        too, and contexts show it as plain data. Raises InvalidEntry, and stores nothing, if the result is malformed.

        Args:
            name: the tool's name; may be None if `call_id` says which call is answered.
            output: text, or any JSON value, which is stored as JSON text.
            call_id: the id of the call that is answered; None: the call is found by `name`.
            status: how the call ended: "success", "error", "unknown" (default), "pending" or "denied".
            metadata: your own JSON values, stored with the entry; never sent to a model.
        """
        return await self._adding.tool_result(name, output, call_id, status, metadata)

    async def add_context(
        self,
        text: str,
        *,
        name: str,
        metadata: dict[str, Any] | None = None,
        pinned: bool = False,
        expires_at: datetime | None = None,
    ) -> Entry:
        """Append background data such as a file and return its entry. Contexts show it fenced and marked with its name.

        If the newest data of this name has the same text, nothing is added and its entry is returned, provided that
        contexts still show that entry, that it has the same expiry, and that it is pinned if this call asks for a pin.
        Otherwise the new entry supersedes the older one in every context; both stay in the log. Raises InvalidEntry,
        and stores nothing, if the data is malformed.

        Args:
            text: the data.
            name: identifies the data, such as a path; newer data of the same name supersedes it.
            metadata: your own JSON values, stored with the entry; never sent to a model.
            pinned: whether every context shows the data, however far cuts have moved past it.
            expires_at: a datetime with a time zone from which on no context shows the data; None: never.
        """
        return await self._adding.context(text, name, metadata, pinned, expires_at)

    async def add(
        self,
        messages: object,
        *,
        format: FormatName | None = None,
        key: str | None = None,
        statuses: Mapping[str, Status] | None = None,
        metadata: dict[str, Any] | None = None,
        unless_last: bool = False,
    ) -> tuple[Entry, ...]:
        """Append messages in a provider's shape as one atomic batch and return their entries.

        `messages` is a message, a choice, a whole response, a content block, a part or an item of the `openai`,
        `anthropic` or `google-genai` client, as an object, as its dump, or as a mapping; or a list of these in any
        mixture. Each is recognised by its shape. A shape that several providers share, such as a role with text, is
        read as `format` (default: the session's). If `format` is given, every mapping that is not a whole response is
        read as that format.

        The content of a response is stored, and contexts later send back only those parts of it that a request may
        hold. The usage that a response reports is recorded once, as by `record_usage`; impossible figures cause a
        warning. If the provider broke the response off (its `status` is "failed" or "cancelled"), its text is stored,
        and the metadata of its entry has `cut_off`.

        A mapping `metadata` in a message is the metadata of its entries; neither `context` nor `messages` shows it.

        With `key` the batch is idempotent, because the ids of its entries are derived from the key. Adding the same
        batch again adds nothing. Adding it with more messages at its end adds those, so a growing list can be added
        whole after every step. Different content at any place raises Conflict.

        Raises InvalidEntry, which names the place, and stores nothing, if a message is malformed, has an unknown shape,
        or is an empty message of the user, the system or the developer.

        Args:
            messages: a provider's message, response or other item, or a list of these in any mixture.
            format: the format of all mappings except whole responses; None: each is recognised by its shape, and a
                shape that several providers share is read as the session's format.
            key: makes the batch idempotent, such as the id of a request; None: every call adds.
            statuses: how tool calls ended, by call id: "success", "error", "unknown", "pending" or "denied".
            metadata: your own JSON values, stored with every entry of the batch, beside a message's own; never sent to
                a model.
            unless_last: whether to add nothing if the log already ends with these very messages; their entries are
                returned then, so a failed request can be repeated. Without a key, tool results at the start of the
                batch that the log already ends with are not added again, either, even if the rest is new.
        """
        return await self._adding.messages(messages, format, key, statuses, metadata, unless_last)

    def stream(
        self, *, cut_off: CutOff = "keep", key: str | None = None, metadata: dict[str, Any] | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """Return a block that stores a streamed answer: `async with session.stream() as answer:`.

        Inside, `answer.feed(event)` takes each event of a stream of the `openai`, `anthropic` or `google-genai` client
        and returns the text in it; `answer.text` is the text so far. When the block ends, the answer is stored as `add`
        stores a response, and `answer.entries` are its entries. If the stream ends before the answer is complete, or
        the block raises, the text so far is stored, and the metadata of its entry has `cut_off`. Thoughts and calls,
        which may be incomplete, are left out then, so that every provider accepts the message. With `cut_off="drop"`
        nothing is stored in that case. The usage is recorded as far as the stream reported it.

        Raises ConfigError for any other `cut_off`; `feed` raises InvalidEntry for an argument that is not an event.

        Args:
            cut_off: what to do with an incomplete answer: "keep" (default) its text, or "drop" all of it.
            key: makes the answer idempotent, as in `add`; None: every call adds.
            metadata: your own JSON values, stored with every entry of the answer.
        """
        return self._streaming.stream(cut_off, key, metadata)

    async def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
        """Append existing entries, such as those of another session, as one atomic batch and return them as stored.

        `seq` and links are assigned anew, but a result stays with its call. An entry keeps its time (`at`) if it has
        one. If the first one continues a message, of which the beginning is not given, it begins a message here. With
        `key` the batch is idempotent as in `add`. Without a key an entry that has an id keeps it: if the log
        has an entry of this id with the same content, nothing is added for it; with other content, Conflict is raised.
        Empty messages are accepted. An erased entry is added as a tombstone, without any content. Raises InvalidEntry,
        and stores nothing, for an entry with a field that is not allowed, or with a role that its kind does not have,
        such as a message of a tool.

        Args:
            entries: the entries, oldest first.
            key: makes the batch idempotent; None: an entry is idempotent by its own id, if it has one.
        """
        return await self._adding.entries(entries, key)

    async def resolve(self, call: Entry | str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Answer an open call whose own result will never come, and return the result entry.

        A group with an open call is held back from every context until the call is answered. Raises EntryNotFound if
        `call` is not an open call, or the id of one.

        Args:
            call: the open call, or what `open_calls` and `pending` call it: its `call_id`, or its `seq` as text if it
                has no id.
            status: how the call ended: "success", "error", "unknown" (default), "pending" or "denied".
            output: the text of the result; by default a note that there is none.
        """
        return await self._adding.resolve(call, status, output)

    async def replace(
        self,
        messages: object,
        *,
        format: FormatName | None = None,
        key: str | None = None,
        statuses: Mapping[str, Status] | None = None,
        metadata: dict[str, Any] | None = None,
        seen: Context | int | None = None,
    ) -> tuple[Entry, ...]:
        """Make these messages the active set, in one step, and return their entries, in the order of the list.

        Messages at the start of the list that are already active in this order keep their entries, with id and `seq`.
        From the first new message on, all are appended. Active entries that the list leaves out are archived, pinned or
        not, and so are current summaries; calls among them are no longer open. Nothing is destroyed: `entries`,
        `entry`, `expand` and exports still return what was archived, and a rewind makes it active again.

        Entries that others add meanwhile stay active. With `seen`, so do all entries that were added after that context
        or revision: pass the one from which you made the list. If the session was cleared since, Conflict is raised.
        With `key` the replacement happens once: repeating it returns the same entries and changes nothing, and
        repeating it with other messages raises Conflict. Raises InvalidEntry for a malformed message, and ConfigError
        inside an atomic turn; nothing is changed then.

        Args:
            messages: the whole new list, as in `add`; an empty list leaves nothing active.
            format: the format of mappings, as in `add`; None: the session's.
            key: makes the replacement happen once; None: every call replaces.
            statuses: how tool calls ended, by call id, as in `add`.
            metadata: your own JSON values, stored with every new entry.
            seen: the context, or the revision, from which the list was made; None: the present state.
        """
        return await (await self._replacing()).replace(messages, format, key, statuses, metadata, seen)

    # --- user, title and metadata

    async def info(self) -> SessionInfo:
        """Return the session as `memory.sessions()` lists it: user, title, metadata, times and numbers of entries.

        Raises SessionNotFound if nothing was ever written to the session.
        """
        return await (await self._describing()).info()

    async def describe(
        self,
        *,
        user: str | UnsetType | None = UNSET,
        title: str | UnsetType | None = UNSET,
        metadata: dict[str, Any] | UnsetType | None = UNSET,
        lifetime: timedelta | float | str | UnsetType | None = UNSET,
    ) -> SessionInfo:
        """Set the session's user, title, metadata or lifetime, and return the session's description as it is then.

        An argument that is not given leaves its value as it is; None removes the value. `metadata` (at most 16 KiB)
        replaces all earlier metadata. A session that nothing was written to yet is created. A privacy policy is applied
        to title and metadata. Raises ConfigError for a value that is not accepted.

        Args:
            user: the id of the user that the session belongs to; None: nobody.
            title: the session's title, at most 1,000 characters; None: no title.
            metadata: your own JSON values; None: none.
            lifetime: how long the session lasts from now on, and again from each time that something is added: a
                timedelta, seconds, or text such as "30d"; None: for ever.
        """
        return await (await self._describing()).describe(user, title, metadata, lifetime)

    # --- reading

    async def entries(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        before: int | None = None,
        last: int | None = None,
        at: int | None = None,
        rewound: bool = False,
    ) -> list[Entry]:
        """Return entries of the log, oldest first: those with a `seq` greater than `after` and less than `before`.

        Covered, evicted and hidden entries are included like any others, erased ones as tombstones, and rewound ones
        only with `rewound`. With `at` the log is returned as it was at that revision.

        To read a long log page by page, pass `limit`, and the last `seq` of each page as the next `after`; such a call
        reads only what it returns. To page backwards, pass `last`, and the first `seq` of each page as the next
        `before`. Raises Conflict if others change a long log faster than it can be read whole, and ConfigError for a
        value that is not accepted.

        Args:
            after: a `seq`; entries up to and including it are left out. 0: from the first.
            limit: the most entries to return, the oldest of the range; None: all.
            before: a `seq`; entries from it on are left out. None: up to the newest.
            last: the most entries to return, the newest of the range, oldest first; None: all.
            at: a revision (not a `seq`): returns the log as it was then. None: as it is now.
            rewound: whether to include entries that a rewind has taken back.
        """
        return await (await self._log()).entries(after, limit, before=before, last=last, rewound=rewound, at=at)

    async def messages(
        self, *, format: FormatName | None = None, after: int = 0, before: int | None = None
    ) -> list[Any]:
        """Return the log as messages of a provider, without a budget: those with a `seq` between `after` and `before`.

        Groups at both ends of the range are returned whole. Entries that were summarised, evicted or hidden are
        included; summaries are not. Entries that were erased or rewound or have expired, and calls that are still open,
        are left out. The list is valid for the provider of `format`, to which system text may have to be passed
        separately. Its items have the type that the provider's client takes. Nothing is stored. Raises ConfigError for
        a value that is not accepted, and Conflict if others change the session faster than it can be read.

        Args:
            format: the provider's format of messages; None: the session's.
            after: a `seq`; groups up to it are left out. 0: from the first.
            before: a `seq`; groups from it on are left out. None: up to the newest.
        """
        return await (await self._exporting()).messages(format, after, before)

    async def entry(self, id: str | int | Entry) -> Entry:
        """Return the entry with this id, or with this `seq` (the number that notes in a context give).

        Entries that contexts leave out, mask or clamp are returned whole. The call counts as an access for the `lru`
        strategy. Raises EntryNotFound.

        Args:
            id: the entry's id (text), its `seq` (a number; not a revision), or an `Entry`.
        """
        return await (await self._log()).entry(id)

    async def recall(
        self,
        query: str,
        *,
        max_tokens: int | None = 2000,
        limit: int = 20,
        kinds: Iterable[Kind] | Kind | None = None,
        roles: Iterable[Role] | Role | None = None,
        names: Iterable[str] | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        neighbours: int = 1,
    ) -> Recalled:
        """Search the session's log, archived and evicted entries included, and return the passages that match best.

        As many passages are returned as fit into `max_tokens`. Words are compared by their stems, and rare words weigh
        more; words in quotes are a phrase. The result's `text` is meant for a prompt, fenced as data; `passages` are
        the entries that it consists of. Entries that were erased or rewound or have expired are not found, and a
        privacy policy is applied to those that are. The first search indexes the session's entries, and later searches
        index the new ones. The index is kept in a file beside an SQLite file or a folder, else in memory. A hit counts
        as an access for the `lru` strategy. Raises ConfigError for a value that is not accepted. No error and no log
        line quotes the query.

        Args:
            query: what to search for, at most 10,000 characters.
            max_tokens: the most tokens of the result's `text`; 2,000 by default. None: no limit.
            limit: the most entries that may match; 20 by default.
            kinds: kinds of entries that may match, such as "message"; None: all. An empty list matches nothing.
            roles: roles that may match, such as "user"; None: all. An empty list matches nothing.
            names: names of speakers or tools that may match; None: all. An empty list matches nothing.
            since: a datetime with a time zone: only entries written then or later. None: no bound.
            until: a datetime with a time zone: only entries written before it. None: no bound.
            neighbours: how many entries of the same interaction to show on each side of a hit, if there is room; 1 by
                default.
        """
        part = await self._recalling()
        asked = part.asked(query, max_tokens, limit, kinds, roles, names, since, until, neighbours)
        return await part.in_session(asked)

    async def passages(
        self,
        entries: Iterable[int | str | Entry] | int | str | Entry,
        *,
        max_tokens: int | None = 2000,
        start: int = 0,
    ) -> Recalled:
        """Return given entries in the form in which `recall` returns hits: for a prompt, within a budget of tokens.

        The passages are in the order of the log, and whole even if a context shows the entries masked or clamped.
        Passages that do not fit are left out. The text of the last one may end early: pass its `end` as `start` of the
        next call to go on. Unknown, erased, rewound and expired entries are left out, and so are thoughts; a privacy
        policy is applied to the rest. The call counts as an access for the `lru` strategy. Raises ConfigError for a
        value that is not accepted.

        Args:
            entries: one or several entries, by `seq` (a number), by id (text), or as `Entry` objects; at most 1,000.
            max_tokens: the most tokens of the result's `text`; 2,000 by default. None: no limit.
            start: the position in each entry's text, in characters from 0, at which its passage starts.
        """
        return await (await self._recalling()).passages(entries, max_tokens, start)

    async def active_entries(self) -> list[Entry]:
        """Return the active entries, oldest first: those not covered by a summary, evicted, erased or expired.

        These are the entries that the newest cut has kept; the budget of the next context may leave out more of them.
        A context may also show more: a question whose answer is still in the window is shown beside the summary that
        covers it.
        """
        return await (await self._compacting()).active_entries()

    async def interactions(self, *, after: Interaction | None = None, limit: int | None = None) -> list[Interaction]:
        """Return the log by interaction, oldest first. Entries before the first interaction are the preamble, -1.

        To read a long log page by page, pass `limit`, and the last interaction of each page as the next `after`.
        Entries that were added to that interaction in the meantime are on no page. Raises ConfigError for a value that
        is not accepted.

        Args:
            after: an interaction that this method has returned; it and all before it are left out. None: from the
                first.
            limit: the most interactions to return; None: all.
        """
        return await (await self._log()).interactions(after, limit)

    async def stats(self) -> Stats:
        """Return statistics of the session. Entries whose tokens were not counted yet are counted now, once."""
        return await (await self._log()).stats(self._scope.clock(), await self._compacting())

    async def count(self) -> int:
        """Count the tokens of every entry that has no stored count by the session's counter; return how many it was."""
        return await (await self._log()).count()

    def cost(self, entry: Entry) -> int:
        """Return how many tokens the entry takes in a context if it is shown whole, by the session's counter.

        The number includes text, name, arguments, media and the overhead of the session's format; `stats` and triggers
        use the same measure. A stored count is used if there is one; otherwise the entry is counted now, and the count
        is not stored. Raises InvalidEntry if `entry` is not an entry, or has a field that is not allowed.

        Args:
            entry: an entry of this session, or of another.
        """
        from palimpsest.sessions.reading import cost_of  # as `_readers`

        return cost_of(entry, self._scope.options)

    # --- the context

    async def context(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        format: FormatName | None = None,
        reserve: int | None = None,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        view: str | None = None,
        model: str | None = None,
        at: int | None = None,
        tail: str | Mapping[str, str] | None = None,
        recall: str | None = None,
        dry_run: bool = False,
    ) -> Context:
        """Return what to send to the model next: within the budget, valid for the provider, with a stable prefix.

        A call with another budget than the session's stores no cut; callers that need budgets of their own should use
        one `view` each. Raises BudgetImpossible, with the numbers, if the content that must not be left out does not
        fit; PastUnknown if the context `at` a revision can no longer be rebuilt; and ConfigError for a value that is
        not accepted, such as a tail for which there is no room.

        Args:
            system: the system prompt: counted and sent, not stored.
            tools: schemas of tools, as the provider takes them: counted and sent, not stored.
            format: the provider's format for this context; None: the session's.
            reserve: tokens kept free for the answer. None: the session's; if that has none either, 0 with `max_tokens`,
                and without it the model's longest answer, but at most half of the window.
            max_tokens: the most tokens of the request and the answer together; None: the session's.
            max_messages: the most messages, as the format counts them; None: the session's.
            view: the name of the view whose cuts apply; None: the session's.
            model: the model of this call, if it is not the session's or the session has none.
            at: a revision (`ctx.revision`, not a `seq`): rebuilds the context that the same call returned then, without
                what was erased since. None: now.
            tail: data to place after the newest entry in this context alone, in the role of the user: a text, or texts
                by name; each whole or not at all, within `tail_share`. None: nothing.
            recall: a query, such as the user's last message. Matching passages of the session that the context does
                not show anyway are placed after the newest entry, as many as `tail_share` has room for. None: nothing
                is recalled.
            dry_run: whether to store nothing, not even a cut.
        """
        return await self._contexts.next(
            system, tools, format, reserve, max_tokens, max_messages, view, model, at, tail, recall, dry_run=dry_run
        )

    async def record_usage(
        self,
        usage: object = None,
        /,
        *,
        input_tokens: int | None = None,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        context: Context | None = None,
    ) -> Usage:
        """Record the token usage that the provider reported for a call, and return the session's usage.

        `usage` is a response of the `openai`, `anthropic` or `google-genai` client, the usage in it, or the dump of
        either; the different ways in which these providers count are taken into account. Alternatively pass the
        numbers. A response that is given to `add` needs no such call, since `add` records its usage; the response that
        was recorded last is not recorded twice.

        For a model without a public tokenizer, the ratio of reported to counted tokens scales the budget from the next
        cut on, within bounds; contexts warn of a report beyond these bounds. Raises ConfigError, and records nothing,
        if `usage` holds no usage, or if the numbers are impossible: more cached tokens than input tokens, or no input
        tokens for a context of 1,000 counted tokens or more.

        Args:
            usage: a response of a provider, its usage, or the dump of either; None: the numbers are given instead.
            input_tokens: all tokens of the input, including those that a cache served or stored.
            output_tokens: tokens of the answer.
            cached_tokens: the part of `input_tokens` that a cache served.
            context: the context that was sent; None: the session's last one.
        """
        return await self._appender.usage.record(usage, input_tokens, output_tokens, cached_tokens, context)

    async def pin(self, *ids: str | int | Entry) -> None:
        """Pin these entries, so that every context shows them. They stay in place until a cut passes them.

        Raises EntryNotFound for an entry that does not exist, and ConfigError for one that is erased.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        await (await self._replacing()).pin(ids, unpin=False)

    async def unpin(self, *ids: str | int | Entry) -> None:
        """Unpin these entries, from the next cut on. Raises EntryNotFound for an entry that does not exist.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        await (await self._replacing()).pin(ids, unpin=True)

    async def hide(self, *ids: str | int | Entry) -> int:
        """Leave these entries out of every context from the next call on; return how many entries were hidden.

        Whole groups are hidden: with a call also its result, however late it came, and if that result stands in the
        group of a later call, that group, too. Nothing is destroyed, and no note takes their place: `entries` and
        exports still return hidden entries, and `show` brings them back. Hiding begins a new epoch, so the provider's
        cache is of use only for what comes before the first hidden entry.

        Raises EntryNotFound for an entry that does not exist, and ConfigError for one that is pinned (`unpin` it
        first), covered by a summary (`restore` that first), erased or rewound, or that still waits for a result.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        return await (await self._compacting()).hiding.hide(ids)

    async def show(self, *ids: str | int | Entry) -> int:
        """Show hidden entries in contexts again, as whole groups; return how many entries were brought back.

        If the log is over the budget then, the next context cuts as usual. Raises EntryNotFound.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        return await (await self._compacting()).hiding.show(ids)

    # --- turns

    def turn(
        self, *, atomic: bool = False, wait: timedelta | float | str | None = None
    ) -> AbstractAsyncContextManager[AsyncSession]:
        """Return a block for one run of the model: `async with session.turn():`.

        Turns of one session run one after the other, in all processes: a block waits while another turn is open, for
        `wait` at most, and then raises LockTimeout. The turn of a killed process ends after 30 seconds (`turn_lease`).
        Adds outside of a turn never wait. Entries that are added inside the block are stored at once.

        With `atomic` they are collected instead and committed together when the block ends, or dropped if it raises. An
        atomic turn waits only for other turns of this very session object.

        Whatever other threads or tasks add through this object while the block is open belongs to the turn, too.

        Args:
            atomic: whether to commit all adds together when the block ends.
            wait: how long to wait for another turn: a timedelta, seconds, or text such as "2m"; 0 or False: not at all;
                None (default): until it ends.
        """
        return self._turns.turn(self, atomic, wait)

    async def end_turn(self) -> TurnEnd:
        """End the current run of the model, and return what was added, which calls are open and what was compacted.

        This commits what an atomic turn has collected, compacts if a trigger fires, and applies the session's
        `persistence`: with "incremental" everything is stored already; "flush" without `archive` destroys what
        compactions have replaced; what an "ephemeral" session has added is dropped.
        """
        return await self._turns.end()

    # --- compaction

    async def compact(
        self,
        strategy: Strategy | Mapping[str, Any] | StrategyName | None = None,
        *,
        dry_run: bool = False,
        threshold: float | None = None,
        force: bool = True,
    ) -> CompactionResult:
        """Compact the session now and return the result. If there is nothing to do, the result's `reason` says so.

        What is covered or evicted stays in the log, where `expand`, `restore` and `entry` reach it; only the neuralyzer
        strategy destroys anything. Raises ConfigError for an unknown strategy or a value that is not accepted. A
        failing summarizer raises nothing.

        Args:
            strategy: a strategy object, a mapping, or a name such as "lru". None: the session's first strategy; if it
                has none, the default ladder: superseded contexts, then old tool results, then a summary, then eviction.
            dry_run: whether to return the plan without carrying it out.
            threshold: a share of the session's limits, over 0 and up to 1, below which nothing is done; None: no
                threshold.
            force: whether to compact regardless of the triggers. False: only if the strategy's triggers, or
                `threshold`, call for it.
        """
        return await (await self._compacting()).compact(strategy, dry_run=dry_run, threshold=threshold, force=force)

    async def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first, or with `history` every version that was ever made.

        The history includes summaries whose text was destroyed by an erasure; they are `withdrawn` and have no text.

        Args:
            history: whether to include every version that was ever made.
        """
        return await (await self._compacting()).summaries(history=history)

    async def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first.

        Entries that were erased since are tombstones. Raises EntryNotFound for an id that is not a summary's.

        Args:
            summary: a summary or its id; None: the newest summary.
        """
        return await (await self._compacting()).expand(summary)

    async def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        From then on no context shows the summary, but `summaries(history=True)` still returns it. If the log is over
        the budget then, the next context cuts as usual. Raises ConfigError for a version that a newer one has
        superseded, and for a summary of entries that a flush without archive has destroyed: nothing else tells of
        these.

        Args:
            summary: a current summary or its id; None: the newest.
        """
        return await (await self._compacting()).restore(summary)

    async def verify(self) -> Verification:
        """Check the whole log, and return how many entries are in each state and which problems were found.

        Every entry must be active, covered, evicted, erased, rewound or expired, and in exactly one of these states.
        `problems` lists whatever is inconsistent, lost or doubled, and is empty for an intact session. What was
        erased or cleared in the stored session beside an "ephemeral" one is no problem of that one.
        """
        return await (await self._compacting()).verify()

    # --- erasing

    async def erase(
        self, what: Iterable[str | int | Entry] | str | int | Entry | Query, *, reason: str = BY_REQUEST
    ) -> Erased:
        """Destroy the content of these entries, or of all that match a `Query`; return what was destroyed.

        Each leaves a tombstone with its id, kind and time, in every branch that shares it. Summaries made from erased
        entries lose their text, in every version, and are made anew from what is left. If a query has a text, so are
        other summaries that contain it, and records lose it. Entries that are erased already stay as they are.

        All matching entries that were in the log at the time of the call are erased in one step. Then entries that were
        added meanwhile are searched and erased, until a search finds none, but at most 7 times, so the call also ends
        beside writers that never stop. A query cannot search damaged entries; `remains` of the result names them.

        Raises EntryNotFound if one of the entries does not exist, ErasureFailed if something derived from them cannot
        be removed, and ConfigError for a value that is not accepted; nothing is erased then.

        Args:
            what: an entry, by its id (text), by its `seq` (a number) or as an `Entry`; several of these; or a `Query`.
            reason: the reason, stored in the log in plain text.
        """
        return await (await self._erasing()).erase(what, reason)

    async def repair(self) -> Erased:
        """Erase every entry that cannot be read, as `erase` does, and return what was destroyed.

        Until then a damaged entry does not stop the session: contexts, listings and exports have a tombstone in its
        place, whose `damaged` is set, the logger `palimpsest` names the entry when it is met, and `verify` lists it. If
        there is a backup, restore that first.
        """
        return await (await self._erasing()).repair()

    async def clear(self, *, seen: Context | int | None = None) -> int:
        """Destroy every entry of the session for good; the session itself stays. Return how many entries there were.

        Entries that others add while it runs are destroyed, too, and so are those that a rewind had taken back, which
        are not counted. With `seen`, the session is cleared only if nothing has changed since then; otherwise Conflict
        is raised and nothing is destroyed. Clearing an empty or unknown session does nothing and returns 0.

        Args:
            seen: the context, or the revision, since which nothing may have changed; None: clear in any case.
        """
        return await (await self._erasing()).clear(seen)

    # --- history, branches, export and what else belongs to the session

    async def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return the session's records, oldest first: what happened to it, one record for each revision.

        A record tells of an addition (kind "add", with the new entries' `seqs`), a cut, an erasure, a pin, a clear, a
        rewind and so on, with time, reason and numbers.

        Args:
            after: a revision: records up to and including it are left out. 0: from the first.
            before: a revision: records from it on are left out. None: up to the last.
        """
        return await (await self._timeline()).history(after, before)

    @property
    def working(self) -> AsyncWorkingMemory:
        """The session's working memory: values that an agent keeps under keys, in the scope "session/ID".

        A branch starts with a copy of it, exports include it, and deleting the session deletes it. The working memory
        of an "ephemeral" session is written to no store.
        """
        return self._working()

    def _working(self, look: Callable[[], Awaitable[None]] | None = None) -> AsyncWorkingMemory:
        from palimpsest.sessions.working import AsyncWorkingMemory  # not needed by most sessions

        scope, readonly = f"session/{self.id}", self._scope.options.readonly
        return AsyncWorkingMemory(self._scope, scope, readonly=readonly, look=look)

    def knowledge(self, collection: str | None = None) -> AsyncKnowledge:
        """Return a knowledge base of one of this session's strategies, to search it or add documents as its user.

        Nothing is read yet. Raises ConfigError if no strategy has this knowledge base, or if there are several and
        `collection` is not given.

        Args:
            collection: the `collection_id` of the strategy; None: the only knowledge base of the session.
        """
        from palimpsest.sessions.knowledge.making import of_session  # not needed by most sessions

        return of_session(self._scope, collection)

    async def fork(self, session_id: str | None = None, *, at: When | None = None) -> Self:
        """Return a new session that branches off this one: now, at a revision, or right after an entry.

        The branch shares every entry up to that point, with its id, `seq` and counts. From there on neither session
        sees what is added to the other. Erasing a shared entry erases it in every branch, but clearing or deleting a
        session leaves its branches intact. Raises SessionNotFound for a session without entries, and Conflict if
        `session_id` is taken.

        Args:
            session_id: the new session's id; None: an id is generated.
            at: a revision (a number; not a `seq`), or the last entry to share (an id, or an `Entry`); None: now.
        """
        return type(self)(await (await self._timeline()).fork(session_id, at))

    async def rewind(self, to: When) -> int:
        """Return the session to an earlier state: at a revision, or right after an entry. Return how many entries went.

        Later entries are taken back, not destroyed: no context shows them and `entries()` leaves them out, but
        `entry(id)` finds them, exports include them, and rewinding to a later revision brings them back. Erased entries
        stay erased. Calls that were open at that point are open again. Entries that others add while it runs are taken
        back, too.

        Args:
            to: a revision (a number; not a `seq`), or the last entry to keep (an id, or an `Entry`).
        """
        return await (await self._timeline()).rewind(to)

    async def export(self, *, left_out: Callable[[str], object] | None = None) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records and usage.

        `memory.import_session` takes such an export. Erased and damaged entries are exported as tombstones. Raises
        StoreCorrupt if anything else cannot be read, and Conflict if others change the session faster than it can be
        read.

        Args:
            left_out: called with a sentence for each thing that cannot be read, instead of raising; the rest is
                exported so that it is consistent. None: raise StoreCorrupt.
        """
        return await (await self._exporting()).export(left_out)

    async def export_to(
        self,
        file: str | os.PathLike[str] | Sink,
        *,
        format: FormatName | Literal["palimpsest"] = "palimpsest",
        left_out: Callable[[str], object] | None = None,
    ) -> int:
        """Write the session as JSON to a path or an open file; return how many bytes were written.

        With the format "palimpsest" it writes what `export` returns, a batch at a time, so the log may be larger than
        memory. With a provider's format of messages it writes what a model would be sent without any budget, as the
        list that the provider takes; if the provider takes the system text separately, as an object that holds both;
        for "text" as plain text. Open calls, and entries that were erased or rewound or have expired, are left out
        then.

        Raises OSError if the path cannot be written, ConfigError if it is the path of a database, such as the store's
        own, StoreCorrupt if something cannot be read, and Conflict if others change the session faster than it can be
        read.

        Args:
            file: a path, which is written whole or not at all, or a binary file that is open for writing.
            format: "palimpsest" (default), which can be imported again, or a format of messages.
            left_out: called with a sentence for each thing that cannot be read, as for `export`.
        """
        return await (await self._exporting()).export_to(file, format, left_out)
