"""`Memory` and `Session`: the synchronous faces of `AsyncMemory` and `AsyncSession`."""

# Written by `python tools/make_sync.py`. Not to be edited: edit the asynchronous classes, and run that again.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import UNSET, UnsetType

from palimpsest.errors import ConfigError
from palimpsest.formats import FormatName
from palimpsest.log.change import BY_REQUEST, Record
from palimpsest.log.entry import Entry, Kind, Role, Status, now_us
from palimpsest.log.head import Usage
from palimpsest.privacy.gate import gate_of
from palimpsest.runtime.events import EventName, Handler
from palimpsest.runtime.runner import Inline, drive, within
from palimpsest.sessions.adding.verbs import Content
from palimpsest.sessions.lease import COMPACTION_SECONDS, TURN_SECONDS
from palimpsest.sessions.memory import DEFAULT_TENANT, AsyncMemory, OnConflict, Privacy, declared
from palimpsest.sessions.options import HISTORY, VALUE_BYTES, Options
from palimpsest.sessions.remembered import VIEW_BYTES
from palimpsest.sessions.session import AsyncSession
from palimpsest.stores import SessionInfo, Store

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import BinaryIO, Unpack

    from palimpsest.compaction import Strategy
    from palimpsest.compaction.knowledge import Embed, TextSplitter
    from palimpsest.compaction.loading import StrategyName
    from palimpsest.context.result import Context
    from palimpsest.log.summary import Summary
    from palimpsest.sessions.adding.streaming import Answer, CutOff
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.declared import DefinitionInfo
    from palimpsest.sessions.derived import Derived
    from palimpsest.sessions.erased import Erased, Vacuumed
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.scanned import Scanned
    from palimpsest.sessions.history import When
    from palimpsest.sessions.importing.report import ImportReport
    from palimpsest.sessions.importing.verbs import Progress
    from palimpsest.sessions.knowledge_sync import Knowledge
    from palimpsest.sessions.listing import Order, SessionPage
    from palimpsest.sessions.options import SessionOptions
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.sessions.recalling.recalled import IndexStatus, Recalled
    from palimpsest.sessions.turns import TurnEnd
    from palimpsest.sessions.verifying import Verification
    from palimpsest.sessions.working_sync import WorkingMemory
    from palimpsest.stores.encrypted import Encryption
    from palimpsest.stores.opening import GivenBreaker
    from palimpsest.stores.options import StoreOptions
    from palimpsest.tokens.counter import TokenCounter
    from palimpsest.transfer.sources import SourceName
    from palimpsest.transfer.sources.limits import Given
    from palimpsest.transfer.writing import Sink


class Session:
    """One conversation's log and its contexts. Created by `Memory.session`; creating it reads nothing.

    `add` and the other `add_…` methods append to the log, and `context` returns what to send to the model next.
    `entries` and `recall` read the log, `compact` makes contexts smaller, `fork` and `rewind` go back to an earlier
    state, and `erase` destroys content.

    Every write is one commit, and is stored when the method returns. Any number of session objects in any number of
    processes may write to the same conversation: entries of one `add`, or of one atomic turn, are never interleaved
    with those of others.
    """

    def __init__(self, core: AsyncSession) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Session {self.id!r}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._core.id

    @property
    def options(self) -> Options:
        """The options that the session was opened with."""
        return self._core.options

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that redacts a text by the memory's privacy policy, as `memory.redact`; None without a policy."""
        return self._core.redact

    @property
    def in_turn(self) -> bool:
        """Whether a `turn()` of this object is open."""
        return self._core.in_turn

    @property
    def in_atomic_turn(self) -> bool:
        """Whether an atomic `turn()` of this object is open: contexts do not show what it adds until it ends."""
        return self._core.in_atomic_turn

    def add_user_message(
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
        return drive(
            self._core.add_user_message(
                content, name=name, metadata=metadata, importance=importance, pinned=pinned, expires_at=expires_at
            )
        )

    def add_assistant_message(
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
        return drive(
            self._core.add_assistant_message(
                content, name=name, metadata=metadata, importance=importance, pinned=pinned, expires_at=expires_at
            )
        )

    def add_system_message(
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
        return drive(self._core.add_system_message(content, name=name, metadata=metadata, expires_at=expires_at))

    def add_tool_call(
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
        return drive(self._core.add_tool_call(name, arguments, call_id=call_id, metadata=metadata))

    def add_tool_result(
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
        return drive(self._core.add_tool_result(name, output, call_id=call_id, status=status, metadata=metadata))

    def add_context(
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
        return drive(self._core.add_context(text, name=name, metadata=metadata, pinned=pinned, expires_at=expires_at))

    def add(
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
        return drive(
            self._core.add(
                messages, format=format, key=key, statuses=statuses, metadata=metadata, unless_last=unless_last
            )
        )

    def stream(
        self, *, cut_off: CutOff = "keep", key: str | None = None, metadata: dict[str, Any] | None = None
    ) -> AbstractContextManager[Answer]:
        """Return a block that stores a streamed answer: `with session.stream() as answer:`.

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
        return within(self._core.stream(cut_off=cut_off, key=key, metadata=metadata))

    def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
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
        return drive(self._core.add_entries(entries, key=key))

    def resolve(self, call: Entry | str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Answer an open call whose own result will never come, and return the result entry.

        A group with an open call is held back from every context until the call is answered. Raises EntryNotFound if
        `call` is not an open call, or the id of one.

        Args:
            call: the open call, or what `open_calls` and `pending` call it: its `call_id`, or its `seq` as text if it
                has no id.
            status: how the call ended: "success", "error", "unknown" (default), "pending" or "denied".
            output: the text of the result; by default a note that there is none.
        """
        return drive(self._core.resolve(call, status=status, output=output))

    def replace(
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
        return drive(
            self._core.replace(messages, format=format, key=key, statuses=statuses, metadata=metadata, seen=seen)
        )

    def info(self) -> SessionInfo:
        """Return the session as `memory.sessions()` lists it: user, title, metadata, times and numbers of entries.

        Raises SessionNotFound if nothing was ever written to the session.
        """
        return drive(self._core.info())

    def describe(
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
        return drive(self._core.describe(user=user, title=title, metadata=metadata, lifetime=lifetime))

    def entries(
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
        return drive(self._core.entries(after=after, limit=limit, before=before, last=last, at=at, rewound=rewound))

    def messages(self, *, format: FormatName | None = None, after: int = 0, before: int | None = None) -> list[Any]:
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
        return drive(self._core.messages(format=format, after=after, before=before))

    def entry(self, id: str | int | Entry) -> Entry:
        """Return the entry with this id, or with this `seq` (the number that notes in a context give).

        Entries that contexts leave out, mask or clamp are returned whole. The call counts as an access for the `lru`
        strategy. Raises EntryNotFound.

        Args:
            id: the entry's id (text), its `seq` (a number; not a revision), or an `Entry`.
        """
        return drive(self._core.entry(id))

    def recall(
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
        return drive(
            self._core.recall(
                query,
                max_tokens=max_tokens,
                limit=limit,
                kinds=kinds,
                roles=roles,
                names=names,
                since=since,
                until=until,
                neighbours=neighbours,
            )
        )

    def passages(
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
        return drive(self._core.passages(entries, max_tokens=max_tokens, start=start))

    def active_entries(self) -> list[Entry]:
        """Return the active entries, oldest first: those not covered by a summary, evicted, erased or expired.

        These are the entries that the newest cut has kept; the budget of the next context may leave out more of them.
        A context may also show more: a question whose answer is still in the window is shown beside the summary that
        covers it.
        """
        return drive(self._core.active_entries())

    def interactions(self, *, after: Interaction | None = None, limit: int | None = None) -> list[Interaction]:
        """Return the log by interaction, oldest first. Entries before the first interaction are the preamble, -1.

        To read a long log page by page, pass `limit`, and the last interaction of each page as the next `after`.
        Entries that were added to that interaction in the meantime are on no page. Raises ConfigError for a value that
        is not accepted.

        Args:
            after: an interaction that this method has returned; it and all before it are left out. None: from the
                first.
            limit: the most interactions to return; None: all.
        """
        return drive(self._core.interactions(after=after, limit=limit))

    def stats(self) -> Stats:
        """Return statistics of the session. Entries whose tokens were not counted yet are counted now, once."""
        return drive(self._core.stats())

    def count(self) -> int:
        """Count the tokens of every entry that has no stored count by the session's counter; return how many it was."""
        return drive(self._core.count())

    def cost(self, entry: Entry) -> int:
        """Return how many tokens the entry takes in a context if it is shown whole, by the session's counter.

        The number includes text, name, arguments, media and the overhead of the session's format; `stats` and triggers
        use the same measure. A stored count is used if there is one; otherwise the entry is counted now, and the count
        is not stored. Raises InvalidEntry if `entry` is not an entry, or has a field that is not allowed.

        Args:
            entry: an entry of this session, or of another.
        """
        return self._core.cost(entry)

    def context(
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
        return drive(
            self._core.context(
                system=system,
                tools=tools,
                format=format,
                reserve=reserve,
                max_tokens=max_tokens,
                max_messages=max_messages,
                view=view,
                model=model,
                at=at,
                tail=tail,
                recall=recall,
                dry_run=dry_run,
            )
        )

    def record_usage(
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
        return drive(
            self._core.record_usage(
                usage,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cached_tokens=cached_tokens,
                context=context,
            )
        )

    def pin(self, *ids: str | int | Entry) -> None:
        """Pin these entries, so that every context shows them. They stay in place until a cut passes them.

        Raises EntryNotFound for an entry that does not exist, and ConfigError for one that is erased.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        drive(self._core.pin(*ids))

    def unpin(self, *ids: str | int | Entry) -> None:
        """Unpin these entries, from the next cut on. Raises EntryNotFound for an entry that does not exist.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        drive(self._core.unpin(*ids))

    def hide(self, *ids: str | int | Entry) -> int:
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
        return drive(self._core.hide(*ids))

    def show(self, *ids: str | int | Entry) -> int:
        """Show hidden entries in contexts again, as whole groups; return how many entries were brought back.

        If the log is over the budget then, the next context cuts as usual. Raises EntryNotFound.

        Args:
            ids: entries, by id (text), by `seq` (a number; not a revision), or as `Entry` objects.
        """
        return drive(self._core.show(*ids))

    def turn(
        self, *, atomic: bool = False, wait: timedelta | float | str | None = None
    ) -> AbstractContextManager[Session]:
        """Return a block for one run of the model: `with session.turn():`.

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
        return within(self._core.turn(atomic=atomic, wait=wait), self)

    def end_turn(self) -> TurnEnd:
        """End the current run of the model, and return what was added, which calls are open and what was compacted.

        This commits what an atomic turn has collected, compacts if a trigger fires, and applies the session's
        `persistence`: with "incremental" everything is stored already; "flush" without `archive` destroys what
        compactions have replaced; what an "ephemeral" session has added is dropped.
        """
        return drive(self._core.end_turn())

    def compact(
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
        return drive(self._core.compact(strategy, dry_run=dry_run, threshold=threshold, force=force))

    def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first, or with `history` every version that was ever made.

        The history includes summaries whose text was destroyed by an erasure; they are `withdrawn` and have no text.

        Args:
            history: whether to include every version that was ever made.
        """
        return drive(self._core.summaries(history=history))

    def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first.

        Entries that were erased since are tombstones. Raises EntryNotFound for an id that is not a summary's.

        Args:
            summary: a summary or its id; None: the newest summary.
        """
        return drive(self._core.expand(summary))

    def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        From then on no context shows the summary, but `summaries(history=True)` still returns it. If the log is over
        the budget then, the next context cuts as usual. Raises ConfigError for a version that a newer one has
        superseded, and for a summary of entries that a flush without archive has destroyed: nothing else tells of
        these.

        Args:
            summary: a current summary or its id; None: the newest.
        """
        return drive(self._core.restore(summary))

    def verify(self) -> Verification:
        """Check the whole log, and return how many entries are in each state and which problems were found.

        Every entry must be active, covered, evicted, erased, rewound or expired, and in exactly one of these states.
        `problems` lists whatever is inconsistent, lost or doubled, and is empty for an intact session. What was
        erased or cleared in the stored session beside an "ephemeral" one is no problem of that one.
        """
        return drive(self._core.verify())

    def erase(
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
        return drive(self._core.erase(what, reason=reason))

    def repair(self) -> Erased:
        """Erase every entry that cannot be read, as `erase` does, and return what was destroyed.

        Until then a damaged entry does not stop the session: contexts, listings and exports have a tombstone in its
        place, whose `damaged` is set, the logger `palimpsest` names the entry when it is met, and `verify` lists it. If
        there is a backup, restore that first.
        """
        return drive(self._core.repair())

    def clear(self, *, seen: Context | int | None = None) -> int:
        """Destroy every entry of the session for good; the session itself stays. Return how many entries there were.

        Entries that others add while it runs are destroyed, too, and so are those that a rewind had taken back, which
        are not counted. With `seen`, the session is cleared only if nothing has changed since then; otherwise Conflict
        is raised and nothing is destroyed. Clearing an empty or unknown session does nothing and returns 0.

        Args:
            seen: the context, or the revision, since which nothing may have changed; None: clear in any case.
        """
        return drive(self._core.clear(seen=seen))

    def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return the session's records, oldest first: what happened to it, one record for each revision.

        A record tells of an addition (kind "add", with the new entries' `seqs`), a cut, an erasure, a pin, a clear, a
        rewind and so on, with time, reason and numbers.

        Args:
            after: a revision: records up to and including it are left out. 0: from the first.
            before: a revision: records from it on are left out. None: up to the last.
        """
        return drive(self._core.history(after=after, before=before))

    @property
    def working(self) -> WorkingMemory:
        """The session's working memory: values that an agent keeps under keys, in the scope "session/ID".

        A branch starts with a copy of it, exports include it, and deleting the session deletes it. The working memory
        of an "ephemeral" session is written to no store.
        """
        from palimpsest.sessions.working_sync import WorkingMemory  # not needed by most programs

        return WorkingMemory(self._core.working)

    def knowledge(self, collection: str | None = None) -> Knowledge:
        """Return a knowledge base of one of this session's strategies, to search it or add documents as its user.

        Nothing is read yet. Raises ConfigError if no strategy has this knowledge base, or if there are several and
        `collection` is not given.

        Args:
            collection: the `collection_id` of the strategy; None: the only knowledge base of the session.
        """
        from palimpsest.sessions.knowledge_sync import Knowledge  # not needed by most programs

        return Knowledge(self._core.knowledge(collection))

    def fork(self, session_id: str | None = None, *, at: When | None = None) -> Session:
        """Return a new session that branches off this one: now, at a revision, or right after an entry.

        The branch shares every entry up to that point, with its id, `seq` and counts. From there on neither session
        sees what is added to the other. Erasing a shared entry erases it in every branch, but clearing or deleting a
        session leaves its branches intact. Raises SessionNotFound for a session without entries, and Conflict if
        `session_id` is taken.

        Args:
            session_id: the new session's id; None: an id is generated.
            at: a revision (a number; not a `seq`), or the last entry to share (an id, or an `Entry`); None: now.
        """
        return Session(drive(self._core.fork(session_id, at=at)))

    def rewind(self, to: When) -> int:
        """Return the session to an earlier state: at a revision, or right after an entry. Return how many entries went.

        Later entries are taken back, not destroyed: no context shows them and `entries()` leaves them out, but
        `entry(id)` finds them, exports include them, and rewinding to a later revision brings them back. Erased entries
        stay erased. Calls that were open at that point are open again. Entries that others add while it runs are taken
        back, too.

        Args:
            to: a revision (a number; not a `seq`), or the last entry to keep (an id, or an `Entry`).
        """
        return drive(self._core.rewind(to))

    def export(self, *, left_out: Callable[[str], object] | None = None) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records and usage.

        `memory.import_session` takes such an export. Erased and damaged entries are exported as tombstones. Raises
        StoreCorrupt if anything else cannot be read, and Conflict if others change the session faster than it can be
        read.

        Args:
            left_out: called with a sentence for each thing that cannot be read, instead of raising; the rest is
                exported so that it is consistent. None: raise StoreCorrupt.
        """
        return drive(self._core.export(left_out=left_out))

    def export_to(
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
        return drive(self._core.export_to(file, format=format, left_out=left_out))


class Memory:
    """A store and its sessions: `with Memory.open("sqlite:///agent.db") as memory:`.

    It needs no event loop, and threads may share it. Background work runs in threads of its own, and so does the
    renewal of the lease of an open `turn()`.

    `session` returns a conversation, `working` a working memory of values under keys, `knowledge` a knowledge base of
    documents. `sessions` lists and `recall` searches all conversations of the tenant; `for_tenant` returns the memory
    of another tenant in the same store. `forget` destroys everything that belongs to a user. `close` closes the store.
    """

    def __init__(self, core: AsyncMemory | None = None) -> None:
        if core is None or isinstance(core, str) or hasattr(core, "__fspath__"):
            raise ConfigError("Memory", core, "what Memory.open(address) gives, such as Memory.open('agent.db')")
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tenant(self) -> str:
        """The tenant that owns this memory's sessions."""
        return self._core.tenant

    @classmethod
    def from_resource(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        id: str | None = None,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
    ) -> Memory:
        """Open the store of a declared memory. Its sessions have the declared options; `session` may override them.

        Sessions have the ids that you pass to `session`; for session keys, templates and several memories use
        `palimpsest.resources`. Raises InvalidResource, which lists every mistake, and whatever `open` raises.

        Args:
            source: a file (.yaml, .yml, .json), a folder, or a mapping, as `Resources.load` takes it.
            id: which memory to open if the source declares several; None: the only one.
            tenant: the owner of every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        arguments, defaults = declared("single", source, id)
        memory = cls.open(**arguments, tenant=tenant, clock=clock)
        memory._core._defaults = defaults  # noqa: SLF001 (the face of this class)
        return memory

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
    ) -> Memory:
        """Open the store that environment variables name.

        `PALIMPSEST_MEMORY_BACKEND` is in_memory, file, sqlite, postgres, mongodb or redis, and `PALIMPSEST_MEMORY` with
        `_FILE_DIR`, `_SQLITE_PATH`, `_POSTGRES_URL`, `_MONGODB_URL` or `_REDIS_URL` says where the store is.
        Alternatively, `PALIMPSEST_MEMORY_RESOURCE` names a file that declares the memory. The variables that end in
        `_MAX_CONVERSATION_TOKENS` and `_SUMMARIZE_THRESHOLD`, both in tokens, are options of each session; without them
        there is no such limit, and no summary.

        Raises ConfigError, which names the variable, and whatever `from_resource` raises.

        Args:
            environ: the variables by name; None: those of this process.
            tenant: the owner of every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        arguments, defaults = declared("environment", environ)
        memory = cls.open(**arguments, tenant=tenant, clock=clock)
        memory._core._defaults = defaults  # noqa: SLF001 (the face of this class)
        return memory

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
        encryption: Encryption | None = None,
        privacy: Privacy | None = None,
        view_bytes: int = VIEW_BYTES,
        circuit_breaker: GivenBreaker = None,
        sweep_every: timedelta | float | str | None = None,
        turn_lease: timedelta | float | str = TURN_SECONDS,
        compaction_lease: timedelta | float | str = COMPACTION_SECONDS,
        embedder: object = None,
        recall_index: str | Path | None = None,
        **options: Unpack[StoreOptions],
    ) -> Memory:
        """Open a store: a path (`agent.db`, `~/agent.db`, a `pathlib.Path`) of an SQLite file, or an
        address: `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:relative/folder`, `file:///absolute/folder`,
        `memory://`, or that of a server.

        Raises ConfigError for an unknown address or option, StoreError if the store cannot be opened, and
        WrongKey if it is encrypted with other keys.

        Args:
            where: the store's address, or a path.
            tenant: the owner of every session of this memory, which sees no sessions of other tenants; "default" by
                default.
            clock: a function that returns microseconds since 1970, as a whole number.
            encryption: the keys that encrypt the stored content: `Keys`, or a mapping of key ids to keys. None: no
                encryption.
            privacy: the policy that says what must not be stored: a preset ("default", "secrets"), a mapping, a
                `Policy`, or a `Redactor`, which can also have a key for pseudonyms. None: everything is stored as is.
            view_bytes: about how many bytes of what contexts are made from to cache; 64 MiB by default, 0: no cache.
            circuit_breaker: when to stop calling a store that does not answer, for a while: True (after 5 calls in a
                row without an answer, for 30 seconds), a `CircuitBreaker`, or a mapping with its fields. None: never.
            sweep_every: how often to run `sweep` for this tenant while the memory is open: a timedelta, seconds, or
                text such as "1h". None: never.
            turn_lease: how long a `turn()` whose process was killed keeps the next one waiting: a timedelta, seconds,
                or text such as "30s" (default). A living process renews the lease three times in that time.
            compaction_lease: the same for a compaction that asks a summarizer; "5m" by default.
            embedder: turns texts into vectors, so that `recall` also searches by meaning: a model's name ("wordllama",
                "minilm"), a function or coroutine function from a list of texts to a vector for each, or an object with
                `embed_documents` or `encode`. It needs the extra `vectors`. None: `recall` compares words only.
            recall_index: the path of a local file for the search index of this store alone. None: beside a store on
                disk, inside a PostgreSQL store, and in memory for all others. The index holds words in plain text, so
                that of an encrypted store is always in memory.
            synchronous: on disk, what survives a power loss: "FULL" (default), every acknowledged write; "NORMAL", all
                but the last commits.
            busy_seconds: on disk, how long to wait for other writers; 30 by default.
            timeout_seconds: on a server, the most seconds that a call may take, including all waiting; 30 by default.
            pool_size: on a server, the most connections; 10 by default.
            schema_name: on PostgreSQL, the schema of the tables; "palimpsest" by default.
            prefix: on Redis, the prefix of every key; "palimpsest" by default.
            cluster: on Redis, whether the address names a node of a cluster; False by default.
            readonly: on disk or on a server, whether to write nothing; False by default.
            large_bytes: on disk or on a server, the size in bytes from which a text, or the data of an image, is stored
                only once, however many entries hold it.
        """
        store_options = {**options, "circuit_breaker": circuit_breaker}
        parts = where, Inline(), tenant, clock, encryption, gate_of(privacy), view_bytes, store_options
        core = AsyncMemory(*parts, sweep_every, turn_lease, compaction_lease, embedder, recall_index)
        drive(core.__aenter__())
        return cls(core)

    def connect(self) -> None:
        """Open the store, which `open` does by itself."""
        drive(self._core.connect())

    def for_tenant(self, tenant: str) -> Memory:
        """Return the memory of another tenant over the same store, with the same policy, keys and clock.

        It has no connection and no thread of its own, so it is cheap enough to make one for each request. It need not
        be closed: closing it leaves the store open, and it ends when the memory that opened the store is closed. All
        memories of one tenant share their observers and what joined with `derive`. Raises ConfigError for an invalid
        id.

        Args:
            tenant: the owner of every session of that memory, an id.
        """
        return Memory(self._core.for_tenant(tenant))

    @property
    def store(self) -> Store:
        """The store behind this memory."""
        return self._core.store

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> Session:
        """Return the session with this id. Nothing is read or written before the first verb of the session.

        This object keeps the options; except where noted they are not stored. Raises ConfigError, which names the
        option, for a value that is not accepted.

        Args:
            session_id: 1 to 256 characters, none of them a control character.
            model: the model's name, by which its window, tokenizer and prices are looked up. None: unknown.
            max_tokens: the most tokens of a whole request and its answer together; None: the model's window.
            max_messages: the most messages of a context, as the format counts them; None: no limit.
            max_context_ratio: the share of the model's window that the log may take, over 0 and up to 1; answer, system
                text and tools are not part of it. None: no such limit.
            max_log_tokens: the most tokens of the log with its summaries; answer, system text and tools are not part
                of it. None: no such limit.
            reserve: tokens kept free for the answer, subtracted from `max_tokens`, or from the model's window if that
                is smaller or the only limit. None: with `max_tokens` 0, so that the request may take all of it; without
                it the model's longest answer, but at most half of the window.
            counter: counts tokens: a function from text to a number, the name of an encoding, or an object with `name`,
                `count` and `overhead` (whether to count what a provider adds to each message). None: the model's.
            format: the provider's format of messages; "openai" by default.
            view: the name of the view for which cuts are made; "main" by default.
            short_term: what contexts show: a `MaxTokens`, a mapping with its fields, or a list of these; None: a
                `MaxTokens` with `conditions` and `oversize`.
            conditions: expressions that entries must meet to be shown, for the default short-term strategy.
            oversize: what to do with an entry that is too large to fit even alone: "clamp" (default), "drop", "error"
                or "keep_newest".
            mask: whether a cut may replace old tool results by a note; True by default.
            low_water: the share of the budget that a cut goes down to, over 0 and under 1; 0.36 by default.
            summary_share: the share of the budget that summaries may take, over 0 and under 1. None: a quarter, and
                only if interactions need the room.
            tag_shares: for each tag the share of the budget that entries with this tag may take, from 0 to 1; the
                oldest are left out first. An entry's tags are in `metadata["tags"]`. None: no such limits.
            cache_seconds: how long after a call the provider's cache still holds what was sent; None: the default of
                the format; `math.inf`: cuts take no account of it.
            readonly: whether the session only reads: contexts store no cut, and verbs that write raise ConfigError;
                False by default.
            long_term: strategies of compaction, such as `Summarize(interaction_keep=3)`: an object, a name or a
                mapping, or a list of these. None: none.
            summarizer: writes summaries: a function from prompt to text, a model string such as "openai:gpt-4o-mini",
                or a `ModelSummarizer`; None: no model is called.
            auto_compact: where a strategy runs whose trigger fires: "inline" (default), "background", or "off": only in
                workers.
            long_term_run: which strategies run if several triggers fire: the "first" (default) or "all".
            before_turn: whether to check the triggers before each context, too; False by default.
            persistence: when added entries are stored: "incremental" (default), "flush" (with `archive=False` the end
                of a turn destroys what was compacted) or "ephemeral" (nothing is written).
            archive: whether to keep what was compacted; True by default; False is allowed only with "flush".
            user: the id of the user that the session belongs to, stored like the title. If the session belongs to
                another user, or to nobody, every verb raises WrongUser. None: the user is not checked.
            title: the session's title, stored when its first entry creates it; `describe` changes it. None: no title.
            metadata: your own JSON values about the session, stored like the title. None: none.
            lifetime: how long the session lasts after the last addition, stored like the title: a timedelta, seconds,
                or text such as "30d" or "1h30m". After that it no longer exists for any verb, and `sweep` destroys what
                is stored of it. None: for ever.
            facts: a scope of working memory, or a list of scopes, whose facts each context shows; none by default.
            facts_in: where contexts show them: `tail`, after the newest entry, as they are at each call (default), or
                `prefix`, before the log, as they were at the last cut.
            tail_share: the share of the log's room that is reserved for facts and tails, at most 0.5; None: 0.1 with
                `facts`, otherwise 0.
            definition: the declaration of the session, as `palimpsest.resources` returns it. None: not declared.
        """
        return Session(self._core.session(session_id, **options))

    def fork(self, scope: str) -> Memory:
        """Return a memory for a sub-agent: with the same conversations, but a working memory of its own.

        It shares its sessions with this memory: each sees what the other adds. Its `working()` is the given scope. The
        fork cannot destroy what it shares: `delete_session`, `forget`, `sweep` with `untouched_for` and an import with
        "replace" raise ConfigError there, and in memories that its `for_tenant` returns. Closing it leaves the store
        open. For a conversation of its own, a sub-agent uses `session.fork`. Raises ConfigError for an invalid scope,
        or the scope of this memory or of one that it was forked from.

        Args:
            scope: the scope of the fork's `working()`, an id or a path of ids, such as "agent/billing".
        """
        return Memory(self._core.fork(scope))

    def bind(self, session: Session | str | None = None) -> AbstractContextManager[Memory]:
        """Make this memory, and one of its sessions, the current ones inside a block: `with memory.bind(session):`.

        Inside, `palimpsest.current_memory()` and `palimpsest.current_session()` return them, also in functions that are
        called there and in tasks that are started there; `palimpsest.carry` takes them along into threads. Blocks can
        be nested: when an inner one ends, those of the outer one are current again.

        Args:
            session: the session, or its id; None: no session is current.
        """
        from palimpsest.sessions.binding import bound  # not needed by most programs

        return bound(self, session)

    def working(
        self, scope: str | None = None, *, history: int = HISTORY, value_bytes: int = VALUE_BYTES
    ) -> WorkingMemory:
        """Return the working memory of a scope: values that an agent keeps under keys. Nothing is read or written yet.

        Raises ConfigError for an invalid scope.

        Args:
            scope: an id, or a path of ids such as "user/ann"; None: the memory's own scope, which is "default", or the
                one that was passed to `fork`. Facts in "user/ann" and below are destroyed when `forget` forgets the
                user "ann", and facts in "session/7" with that session.
            history: how many older values of each fact to keep; 5 by default.
            value_bytes: the most bytes of JSON that a value, and the older values of a fact together, may have; 65,536
                by default.
        """
        from palimpsest.sessions.working_sync import WorkingMemory  # not needed by most programs

        return WorkingMemory(self._core.working(scope, history=history, value_bytes=value_bytes))

    def knowledge(
        self,
        collection: str,
        *,
        user: str | None = None,
        embedder: Embed | None = None,
        text_splitter: TextSplitter | Mapping[str, Any] | None = None,
        counter: TokenCounter | Callable[[str], int] | str | None = None,
    ) -> Knowledge:
        """Return a knowledge base: a searchable collection of documents and of summaries of sessions.

        Nothing is read yet. Raises ConfigError for a value that is not accepted.

        Args:
            collection: the name of the collection, like the `collection_id` of a strategy's knowledge base.
            user: an id: what you add can be found for this user alone, and searches find what belongs to this user or
                to everybody. None: what belongs to everybody, or to sessions without a user.
            embedder: turns texts into vectors: a model's name such as "wordllama", a function or coroutine function of
                a list of texts, or an object with `embed_documents` or `encode`. None: searches compare words.
            text_splitter: how to split documents: a `TextSplitter`, or a mapping with its fields; None: its defaults.
            counter: counts tokens for the splitter, as for a session; None: the default encoding.
        """
        from palimpsest.sessions.knowledge_sync import Knowledge  # not needed by most programs

        return Knowledge(
            self._core.knowledge(collection, user=user, embedder=embedder, text_splitter=text_splitter, counter=counter)
        )

    def scopes(self, prefix: str = "") -> list[str]:
        """Return the scopes of working memory that have facts, sorted by code points.

        Args:
            prefix: only scopes that start with this text, such as "user/".
        """
        return drive(self._core.scopes(prefix))

    def definitions(self) -> list[DefinitionInfo]:
        """Return each definition of declared sessions, with the number of its sessions, sorted by name and version.

        This reads the heads of all sessions of the tenant.
        """
        return drive(self._core.definitions())

    def sessions(
        self,
        *,
        user: str | None = None,
        title: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        prefix: str = "",
        order: Order = "id",
        after: str = "",
        limit: int | None = None,
    ) -> SessionPage:
        """Return this tenant's sessions that match, all of them or one page.

        Pass the `next` of a page as `after` to get the following one; it is None on the last page. In the order
        "latest", a session that is written to during the listing may be missing. A session that cannot be read is
        listed as `damaged` if its id and user match, whatever else is asked for; it sorts as the oldest, and a warning
        names it once. Raises ConfigError for a value that is not accepted.

        Args:
            user: only sessions of this user; no other user's sessions are read. None: all sessions, also those without
                a user.
            title: only sessions whose title contains this text, in any letter case; None: any title or none.
            since: only sessions last written to at this time, with a time zone, or later; None: no bound.
            before: only sessions last written to before this time, with a time zone; None: no bound.
            prefix: only sessions whose ids start with this text.
            order: "id" (by code points), or "latest": the session that was written to last comes first.
            after: the `next` of the previous page, in the same order; in the order "id" also any id. "": from the
                first.
            limit: the most sessions on a page; None: all.
        """
        return drive(
            self._core.sessions(
                user=user, title=title, since=since, before=before, prefix=prefix, order=order, after=after, limit=limit
            )
        )

    def info(self, session_id: str) -> SessionInfo:
        """Return the session as `sessions` lists it. Raises SessionNotFound.

        Args:
            session_id: the session's id.
        """
        return drive(self._core.info(session_id))

    def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        """Store a session that `export()` returned, under its own id or another, and return that id.

        Every reference is checked and every total computed anew; ids, times and links are kept. If the session exists,
        "error" raises Conflict, "replace" replaces it by the export in one step, and "merge" appends the entries of the
        export that it does not have, except rewound entries and results whose call was erased. Raises ImportFailed, and
        stores nothing, for an export that is inconsistent.

        Args:
            data: what `export()` returned.
            session_id: the id to store the session under; None: its own.
            on_conflict: what to do if the session exists: "error" (default), "replace" or "merge".
        """
        return drive(self._core.import_session(data, session_id=session_id, on_conflict=on_conflict))

    def import_file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: SourceName = "auto",
        format: FormatName | None = None,
        session_id: str | None = None,
        key: str | None = None,
        strict: bool = False,
        branches: bool = False,
        progress: Progress | None = None,
        limits: Given = None,
    ) -> ImportReport:
        """Import the conversations of a file, or of a binary stream, into sessions and return a report.

        Sources are "messages" (JSON or JSON lines of provider messages, whose `format` is given or detected), "chatgpt"
        and "claude" (their data exports, also as archives), "palimpsest" (exports of this library), "openai-agents"
        (its SQLite database), "langchain" and "pydantic-ai". Everything is imported into `session_id` if that is given,
        otherwise into one session for each conversation, with the conversation's id or a name made from that of the
        file. A session that the import creates takes the title of its conversation.

        Importing a file again adds nothing, importing one that has grown adds what is new, and an interrupted import is
        completed by repeating it. With another `key` the same messages are added once more.

        Content that is malformed, or exceeds one of the `limits`, is reported with its place, and the rest is imported.
        Raises ImportFailed, and stores nothing, for a file that fits no source or several, and with `strict` for the
        first fault; OSError if the file cannot be opened; and ConfigError for an option that is not accepted.

        Args:
            path: the file's path, or a binary file that is open for reading.
            source: the kind of file; "auto" (default) detects it.
            format: the format of messages of the source "messages"; None: detected by their shape.
            session_id: the session to import everything into; None: one session for each conversation.
            key: makes this import distinct from other imports of the same messages; None: the same messages are added
                once.
            strict: whether the first fault refuses the whole file.
            branches: whether branches of a conversation that are not its current one become sessions (`<id>~2`, ...),
                too.
            progress: called with the bytes done and their total (None: unknown).
            limits: `Limits`, or a mapping with some of them: the most that the file may hold. None: the defaults of
                `Limits`.
        """
        return drive(
            self._core.import_file(
                path,
                source=source,
                format=format,
                session_id=session_id,
                key=key,
                strict=strict,
                branches=branches,
                progress=progress,
                limits=limits,
            )
        )

    def recall(
        self,
        query: str,
        *,
        sessions: Iterable[str] | str | None = None,
        user: str | None = None,
        max_tokens: int | None = 2000,
        limit: int = 20,
        kinds: Iterable[Kind] | Kind | None = None,
        roles: Iterable[Role] | Role | None = None,
        names: Iterable[str] | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        neighbours: int = 1,
        model: str | None = None,
        counter: TokenCounter | Callable[[str], int] | str | None = None,
    ) -> Recalled:
        """Search the logs of this tenant's sessions, and return the passages that match best.

        This is `session.recall` over several sessions: as many passages are returned as fit into `max_tokens`. An entry
        that branches share is found once. Sessions that were not written to since the last search are not read. Raises
        ConfigError for a value that is not accepted. No error and no log line quotes the query.

        Args:
            query: what to search for, at most 10,000 characters; words in quotes are a phrase.
            sessions: ids of the sessions to search; None: all.
            user: an id: only sessions of this user. None: sessions of all users and of nobody.
            max_tokens: the most tokens of the result's `text`; 2,000 by default. None: no limit.
            limit: the most entries that may match; 20 by default.
            kinds: kinds of entries that may match, such as "message"; None: all. An empty list matches nothing.
            roles: roles that may match, such as "user"; None: all. An empty list matches nothing.
            names: names of speakers or tools that may match; None: all. An empty list matches nothing.
            since: a datetime with a time zone: only entries written then or later. None: no bound.
            until: a datetime with a time zone: only entries written before it. None: no bound.
            neighbours: how many entries of the same interaction to show on each side of a hit, if there is room; 1 by
                default.
            model: the model by whose tokenizer tokens are counted; None: unknown.
            counter: counts tokens, as for a session; None: the model's.
        """
        return drive(
            self._core.recall(
                query,
                sessions=sessions,
                user=user,
                max_tokens=max_tokens,
                limit=limit,
                kinds=kinds,
                roles=roles,
                names=names,
                since=since,
                until=until,
                neighbours=neighbours,
                model=model,
                counter=counter,
            )
        )

    def index_status(self) -> IndexStatus:
        """Return where this tenant's search index is, its size, and how many sessions it is behind.

        The call indexes nothing. A damaged index counts as empty; the next search fills it again.
        """
        return drive(self._core.index_status())

    def rebuild_index(self, *, progress: Callable[[int, int], object] | None = None) -> IndexStatus:
        """Rebuild this tenant's search index from the logs, with vectors if there is an embedder; return its new
        status.

        Searches in the meantime use what is indexed so far, and index what they miss. If the call is interrupted, the
        next search or the next call goes on. If the embedder fails, words are indexed all the same, and a warning is
        issued. Raises ConfigError in a read-only memory.

        Args:
            progress: called with the number of sessions done and their total, first for the words, then for the
                vectors.
        """
        return drive(self._core.rebuild_index(progress=progress))

    def delete_session(self, session_id: str) -> bool:
        """Destroy the session with all that belongs to it, including its working memory; return whether it existed.

        Damaged sessions can be deleted, too. Branches keep the entries that they share with the session. Raises
        StoreCorrupt if these can no longer be determined, because the records of who shares them are damaged as well. A
        warning names copies of the session in places that the store does not read; `forget` returns them.

        Args:
            session_id: the session's id.
        """
        return drive(self._core.delete_session(session_id))

    def forget(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
        matches: str | Query | None = None,
        reason: str = BY_REQUEST,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Erased:
        """Destroy for good everything that belongs to a user, a session or a tenant, or that matches a query.

        The result says what was destroyed. Exactly one of the first four arguments must be given:

        - `user`: the sessions that belong to this user, as with `session`, and the user's working memory ("user/ID").
          In all other sessions, messages with this `name`, or with this `user_id` in their metadata, are erased with
          the whole interactions that they began; a session of which nothing else is left is deleted. If nothing names
          the user, `unknown` of the result says so.
        - `session`: the session with every copy of its entries in branches, and its working memory ("session/ID").
        - `tenant`: all sessions and items of the tenant, which must be this memory's own.
        - `matches`: all entries that match, as `erase` does it, and the facts of working memories that have the text.

        Summaries are made anew from what is left, without a model, or withdrawn. A damaged session is destroyed if its
        id, tenant or user is the one that is given. Other damaged sessions cannot be searched; `remains` of the result
        names them, and also the branches that keep entries which a damaged session shared with them.

        If the call is interrupted, the next one goes on with what is left. Sessions that are created in the meantime
        are included. Raises ConfigError unless exactly one of the four is given, and in a read-only memory; and
        ErasureFailed if something derived from entries cannot be removed: what was erased before that stays erased.

        Args:
            user: an id, as sessions have it, or messages in `name` or in `user_id` of their metadata.
            session: a session's id.
            tenant: this memory's own tenant.
            matches: a text, or a `Query`.
            reason: the reason, stored in the log in plain text.
            dry_run: whether to change nothing, and only return what would be destroyed.
            progress: called with the number of sessions done and their total.
        """
        return drive(
            self._core.forget(
                user=user,
                session=session,
                tenant=tenant,
                matches=matches,
                reason=reason,
                dry_run=dry_run,
                progress=progress,
            )
        )

    def vacuum(self, *, progress: Callable[[int, int], object] | None = None) -> Vacuumed:
        """Rewrite the parts of the store in which something was destroyed, and free the space that is not used.

        This covers all tenants, and others can go on writing meanwhile. `remains` of an erasure in a large file asks
        for it: afterwards no byte is left of what was erased before. If the call is interrupted, the next one goes on
        with what is left. Raises ConfigError in a read-only memory, and StoreUnavailable if there is no room for a
        second copy of the largest table.

        Args:
            progress: called with the number of bytes gone through and their total, both approximate.
        """
        return drive(self._core.vacuum(progress=progress))

    def durability(self) -> str:
        """Return a sentence for people: which acknowledged writes may be lost if the machine or the server fails."""
        return drive(self._core.durability())

    def derive(self, derived: Derived) -> Callable[[], None]:
        """Register something that is derived from this tenant's entries, such as a search index.

        Before entries are erased, `derived` is asked to remove what it made from them. The store keeps its name for all
        processes: an erasure in a process in which it is not registered leaves a note in the store. Notes that are
        there already are carried out before this method returns, and later ones by `sweep`. Register before deriving
        anything.

        Returns a function that unregisters `derived` from this memory; the store keeps its name until `underive`.
        Raises ConfigError for an object that is not as `palimpsest.sessions.derived.Derived` says, ErasureFailed if it
        fails to remove what it should, and StoreUnavailable in a read-only memory.

        Args:
            derived: an object with a name, and a coroutine that removes what was made from entries.
        """
        return drive(self._core.derive(derived))

    def derivers(self) -> tuple[str, ...]:
        """Return the names of everything that was registered with `derive` for this tenant, in any process."""
        return drive(self._core.derivers())

    def underive(self, name: str) -> bool:
        """Make the store forget a name that was registered with `derive`, and the notes for it.

        Use it when what was derived no longer exists. Returns whether the store knew the name.

        Args:
            name: the name that was registered with `derive`.
        """
        return drive(self._core.underive(name))

    def scan(
        self,
        privacy: Privacy | None = None,
        *,
        session: str | None = None,
        apply: bool = False,
        sample: int = 5,
        progress: Callable[[int, int], object] | None = None,
    ) -> Scanned:
        """Find stored content that a privacy policy would redact, and with `apply` redact it in the store.

        The scan covers all sessions of the tenant, or `session` alone: entries, also rewound and archived ones,
        summaries of every version, records, names of contexts and facts of working memories. Up to `sample` findings
        are shown as they would look after redaction.

        With `apply`, entries and summaries are rewritten in place, and entries of types that the policy withholds are
        erased, in every branch; each changed session begins a new epoch. Branches of `session` are scanned, too, since
        they hold copies of what was derived from it. What others add meanwhile is included. If the call is interrupted,
        the next one goes on with what is left. Content that cannot be checked stays as it is, and is reported.

        Raises ConfigError without a policy, and for `apply` in a read-only memory or over a store that cannot rewrite;
        SessionNotFound; and ErasureFailed if something derived from entries cannot be removed.

        Args:
            privacy: a preset's name, a policy, a mapping or a `Redactor`, as for `open`; None: the memory's own.
            session: a session's id; None: every session of the tenant.
            apply: whether to redact in the store what is found.
            sample: the most findings to show.
            progress: called with the number of sessions done and their total.
        """
        return drive(self._core.scan(privacy, session=session, apply=apply, sample=sample, progress=progress))

    def sweep(
        self,
        *,
        untouched_for: timedelta | float | str | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Erase everything of this tenant that has expired; return how many entries and items were erased.

        Summaries of erased entries are made anew from what is left, without a model. Notes of erasures in other
        processes are carried out for what is registered with `derive`.

        With `untouched_for`, sessions that were not written to for so long are deleted, too, and counted. A session
        that is written to meanwhile stays, and so do branches of a deleted one. `sessions(before=…)` lists such
        sessions. A damaged session stays, since its last write is unknown.

        Raises ConfigError for a value that is not accepted, and in a read-only memory; and StoreCorrupt, after
        everything else is swept, if something damaged may have expired.

        Args:
            untouched_for: a timedelta, seconds, or text such as "90d" (s, m, h, d, w); None: no session is deleted.
            dry_run: whether to change nothing, and only count the sessions and entries that would go.
            progress: called with the number of deleted sessions so far and their total.
        """
        return drive(self._core.sweep(untouched_for=untouched_for, dry_run=dry_run, progress=progress))

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that redacts a text by this memory's privacy policy, for your own log lines; it never raises.

        None without a policy.
        """
        return self._core.redact

    def on(self, event: EventName, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event`; return a function that removes the handler.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        summarizer:failed, session:cleared, session:forked, session:imported, session:replaced, session:rewound,
        context:over_budget, condition:error, knowledge:deferred, privacy:redacted, privacy:refused, lock:waited,
        redacted, usage:recorded, turn:ended, config:changed. A handler may be a coroutine function. If it raises, the
        error is logged, and the operation that caused the event goes on.

        Args:
            event: the event's name.
            handler: a function, or coroutine function, of the session's id and the event's facts (a dict).
        """
        return self._core.on(event, handler)

    def close(self) -> None:
        """Close the store after waiting for background work; later use of it raises Closed.

        Work that is not done within 10 seconds is given up, with a warning in the log; nothing acknowledged is lost by
        that. Closing twice is allowed. Closing a memory that `for_tenant` returned leaves the store open.
        """
        drive(self._core.close())
