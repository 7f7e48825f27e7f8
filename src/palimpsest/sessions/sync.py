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
from palimpsest.sessions.adding.streaming import Answer, CutOff
from palimpsest.sessions.adding.verbs import Content
from palimpsest.sessions.lease import COMPACTION_SECONDS, TURN_SECONDS
from palimpsest.sessions.listing import Order, SessionPage
from palimpsest.sessions.memory import DEFAULT_TENANT, AsyncMemory, OnConflict, Privacy, declared
from palimpsest.sessions.options import HISTORY, VALUE_BYTES, Options
from palimpsest.sessions.remembered import VIEW_BYTES
from palimpsest.sessions.session import AsyncSession
from palimpsest.sessions.turns import TurnEnd
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
    from palimpsest.sessions.options import SessionOptions
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.sessions.recalling.recalled import IndexStatus, Recalled
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
    """One conversation's log and its contexts. Made by `Memory.session`; opening it reads nothing.

    `add` and its kin keep what is said, and `context` returns what the next call of the model is given. `entries` and
    `recall` read the log; `compact` makes contexts smaller; `fork` and `rewind` go back; `erase` destroys.

    Every write is one commit, and acknowledged when it returns. Any number of sessions of any number of
    processes may write to one conversation: entries never interleave inside one `add` or an atomic turn.
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
        """What the session was opened with."""
        return self._core.options

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that takes out of a text what the memory's policy finds, as `memory.redact`; None without one."""
        return self._core.redact

    @property
    def in_turn(self) -> bool:
        """Whether a `turn()` of this object is open."""
        return self._core.in_turn

    @property
    def in_atomic_turn(self) -> bool:
        """Whether it is an atomic one: then no context holds what was added in it before it ends."""
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
        """Append what the human said, which starts an interaction, and return its entry.

        Raises InvalidEntry, and stores nothing, for what is malformed or says nothing.

        Args:
            content: text, or a list of parts such as `Text` and `Image`; neither empty nor white space alone.
            name: who says it, of several users; at most 256 characters.
            metadata: JSON values of your own, kept with the entry; never sent to a model.
            importance: from 0 to 1, for conditions; None: not said.
            pinned: whether every context shows it, whatever a cut passes.
            expires_at: a datetime with a time zone from which no context shows it; `sweep` erases it then. None: never.
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
        """Append what the model said and return its entry.

        Raises InvalidEntry, and stores nothing, for what is malformed.

        Args:
            content: text, or a list of parts such as `Text` and `Reasoning`.
            name: which model or agent says it; None: not said.
            metadata: JSON values of your own, kept with the entry; never sent to a model.
            importance: from 0 to 1, for conditions; None: not said.
            pinned: whether every context shows it, whatever a cut passes.
            expires_at: a datetime with a time zone from which no context shows it; None: never.
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
        """Append a system message to the log: every context keeps it, as if it were pinned.

        A system prompt that every call brings along belongs into `context(system=…)`, not here. Raises InvalidEntry,
        and stores nothing, for what is malformed or says nothing.

        Args:
            content: text, or a list of parts; neither empty nor white space alone.
            name: who it is from; None: not said.
            metadata: JSON values of your own, kept with the entry; never sent to a model.
            expires_at: a datetime with a time zone from which no context shows it; None: never.
        """
        return drive(self._core.add_system_message(content, name=name, metadata=metadata, expires_at=expires_at))

    def add_tool_call(
        self, name: str, arguments: Any, *, call_id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Entry:
        """Append the model's call of a tool and return its entry, whose `call_id` the result refers to.

        Calls added before the first of them is answered are parallel calls of one group. Raises InvalidEntry, and
        stores nothing, for what is malformed.

        Args:
            name: the tool's name.
            arguments: any JSON value, or JSON text as the provider gave it.
            call_id: the provider's id of the call; None: one is made.
            metadata: JSON values of your own, kept with the entry; never sent to a model.
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

        It answers the open call of `call_id`, of several that share it in one group the oldest; without an id, the
        oldest open call of the tool `name`. A result that answers no call is kept, and shown as plain data. Raises
        InvalidEntry, and stores nothing, for what is malformed.

        Args:
            name: the tool's name; None where `call_id` says which call it answers.
            output: text, or any JSON value, which is kept as JSON text.
            call_id: the id of the call that it answers; None: found by `name`.
            status: how the call ended: "success", "error", "unknown" (default), "pending" or "denied".
            metadata: JSON values of your own, kept with the entry; never sent to a model.
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
        """Append background data such as a file, shown fenced and marked with its `name`, and return its entry.

        The same text under the same name again adds nothing and returns the entry that is there, while contexts show
        that, and it is pinned and expires as this one would. A new one supersedes the older one in every context; both
        stay in the log. Raises InvalidEntry, and stores nothing, for what is malformed.

        Args:
            text: the data.
            name: what it is, such as a path: by it a newer version is known.
            metadata: JSON values of your own, kept with the entry; never sent to a model.
            pinned: whether every context shows it, whatever a cut passes.
            expires_at: a datetime with a time zone from which no context shows it; None: never.
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
        """Append what a vendor gives, or was given, as one atomic batch and return the entries.

        `messages` is one of these, or a list of them in any mixture: a message, a choice, a whole response, content
        blocks, parts or items of the `openai`, `anthropic` or `google-genai` client, as objects, as dumps of these, or
        as mappings. Each is recognised by its shape. What may be anybody's, such as a role with text, is taken as
        `format` (default: the session's); with `format` all mappings are but whole responses. What a response says is
        kept, and no more of it is sent back than a request may hold. What it says of its cost is recorded, once, as
        `record_usage` does; figures that cannot be lead to a warning. Of a response that its provider broke off, as a
        `status` of "failed" or "cancelled" says, the text is kept, and the metadata of its entry says `cut_off`.

        Raises InvalidEntry, and stores nothing, naming the place of what is malformed or nobody knows, and of a message
        of the user, the system or the developer that says nothing. With `key` the batch is idempotent, since its ids
        derive from the key: adding it again adds nothing, adding it grown adds what is new at its end (so a list of
        messages that grows can be added whole after every step), and other content at any place raises Conflict.
        `statuses` gives results a status by call id; `metadata` is kept with every entry of the batch.

        Args:
            messages: what a vendor gives, or was given: one, or a list in any mixture.
            format: what mappings are, but whole responses; None: each by its shape, and what may be anybody's as the
                session's.
            key: what makes the batch idempotent, such as the id of a request; None: every call adds.
            statuses: how tools' calls ended, by call id: "success", "error", "unknown", "pending" or "denied".
            metadata: JSON values of your own, kept with every entry of the batch; never sent to a model.
            unless_last: whether nothing is added where the log ends with these very messages: their entries are
                returned then, so a request that failed can be made again. Without a key, a result that the log ends
                with is not added again beside others, either.
        """
        return drive(
            self._core.add(
                messages, format=format, key=key, statuses=statuses, metadata=metadata, unless_last=unless_last
            )
        )

    def stream(
        self, *, cut_off: CutOff = "keep", key: str | None = None, metadata: dict[str, Any] | None = None
    ) -> AbstractContextManager[Answer]:
        """One answer that comes in pieces, as a block: `with session.stream() as answer:`.

        Inside, `answer.feed(event)` takes each event of a stream of the `openai`, `anthropic` or `google-genai` client
        and returns the text in it; `answer.text` is the text so far. When the block ends the answer is stored whole, as
        `add` stores a response, and `answer.entries` are its entries. Where the stream ended before the answer did, or
        the block raises, its text is stored, and the metadata of the entry says `cut_off`: thoughts and calls that may
        be half are left out, so that any provider takes it. With `cut_off="drop"` nothing is stored then. What the call
        cost is recorded as far as it was told. `key` and `metadata` are as in `add`.

        Raises ConfigError for another `cut_off`; `feed` raises InvalidEntry for what is no event.

        Args:
            cut_off: what becomes of an answer that was cut off: "keep" (default) its text, or "drop" all of it.
            key: what makes it idempotent, as in `add`; None: every call adds.
            metadata: JSON values of your own, kept with every entry of the answer.
        """
        return within(self._core.stream(cut_off=cut_off, key=key, metadata=metadata))

    def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
        """Append entries that were made elsewhere, such as by an import, as one atomic batch; return them in place.

        Place and links are made anew, but a result stays with its call; the time of an entry (`at`) is kept where it
        has one. With `key` the batch is idempotent as in `add`. Without it an entry keeps an id of its own: one that is
        there and says the same adds nothing, one that says something else raises Conflict. An entry may say nothing.
        Of one that is erased a tombstone comes in, and nothing that it says. Raises InvalidEntry, and stores nothing,
        for an entry with a field that is not allowed, or of a role that its kind does not have, such as a message of a
        tool.

        Args:
            entries: the entries, oldest first.
            key: what makes the batch idempotent; None: each entry's own id does, where it has one.
        """
        return drive(self._core.add_entries(entries, key=key))

    def resolve(self, call: Entry | str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Close an open call whose result will not come, and return the result entry that says so.

        Until then a group with an open call is held back from every context. Raises EntryNotFound where the entry
        is no open call, or no call of the id is open.

        Args:
            call: the open call, or its `call_id`.
            status: how it ended: "success", "error", "unknown" (default), "pending" or "denied".
            output: what the result says instead; empty by default.
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

        The messages that the list begins with, and that are active in this order, stay the entries that they are, with
        id and place. Those from the first new one on are appended. Whatever is left out goes to the archive, pinned or
        not, as do current summaries; calls that wait there are not open any more. Nothing is destroyed: `entries`,
        `entry`, `expand` and exports hold it, a rewind brings it back. An empty list leaves nothing active.

        What others add while it runs stays active. With `seen`, a context or a revision, so does all that was added
        since then: give what the list was made of. `format`, `statuses` and `metadata` are as in `add`. With `key` it
        happens once: the same again returns the same entries and changes nothing, and other messages raise Conflict.
        Raises InvalidEntry for what is malformed, ConfigError inside an atomic turn: then nothing is changed.

        Args:
            messages: the whole new list, as in `add`; an empty one leaves nothing active.
            format: what mappings are, as in `add`; None: the session's.
            key: what makes it happen once; None: every call replaces.
            statuses: how tools' calls ended, by call id, as in `add`.
            metadata: JSON values of your own, kept with every entry that is new.
            seen: the context, or the revision, that the list was made of; None: what is there now.
        """
        return drive(
            self._core.replace(messages, format=format, key=key, statuses=statuses, metadata=metadata, seen=seen)
        )

    def info(self) -> SessionInfo:
        """Return the session as a listing shows it: user, title, metadata, times, how much there is.

        Raises SessionNotFound for one that nothing was written to.
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
        """Say whose the session is, what it is called, how long it lasts, or what else there is to say of it; return
        what is said then.

        What is not given stays as it is, and None takes it away. `metadata` (JSON values, at most 16 KiB) takes the
        place of all that was there. A session that nothing was written to yet comes into being. A privacy policy is
        applied to title and metadata. Raises ConfigError for what is not accepted.

        Args:
            user: whose it is from now on, an id; None: nobody's.
            title: what it is called, at most 1,000 characters; None: nothing.
            metadata: what else is said of it, JSON values; None: nothing.
            lifetime: how long it lasts from now on, and from when somebody adds to it: a timedelta, seconds, or text
                such as "30d"; None: for ever.
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
        """Return the log's entries with a `seq` over `after`, and under `before`, oldest first: all, the first `limit`,
        or the `last`.

        Evicted entries are there like any other, erased ones as tombstones, those that a rewind has taken back
        only with `rewound`. With `at` it is the log as it was at that revision. A call with `after` and `limit` reads
        what it returns, so a long log can be read page by page: the next one after the last `seq`. With `last` it is
        read from its end: the page ahead is `before` the first `seq`. Raises Conflict where others change a long log
        faster than it can be read whole, ConfigError for what is not accepted.

        Args:
            after: a `seq`; entries up to it are left out. 0: from the first.
            limit: the most entries to return, the first ones; None: all.
            before: a `seq`; entries from it on are left out. None: to the newest.
            last: the most entries to return, the newest ones, oldest first; None: all.
            at: a revision (no `seq`), as the log was then; None: as it is now.
            rewound: whether entries that a rewind has taken back are there, too.
        """
        return drive(self._core.entries(after=after, limit=limit, before=before, last=last, at=at, rewound=rewound))

    def messages(self, *, format: FormatName | None = None, after: int = 0, before: int | None = None) -> list[Any]:
        """Return the log as messages of a provider, without any budget: all of it, or what has a `seq` over `after` and
        under `before`, with the whole groups at both ends.

        Entries that were summarised, evicted or hidden are there, and summaries are not. Left out is what was erased,
        rewound or has expired, and calls that are still open. The list is valid for the provider of `format` (default:
        the session's), which may take system text beside it. Its items are of the type that its client takes. Nothing
        is stored. Raises ConfigError for what is not accepted, Conflict where others change the session faster
        than it can be read.

        Args:
            format: the provider's format of messages; None: the session's.
            after: a `seq`; groups up to it are left out. 0: from the first.
            before: a `seq`; groups from it on are left out. None: to the newest.
        """
        return drive(self._core.messages(format=format, after=after, before=before))

    def entry(self, id: str | int | Entry) -> Entry:
        """Return the entry of this id, or of this `seq` (the number that notes in a context give).

        Evicted, masked and clamped entries come back whole. It counts as an access, for `lru`. Raises EntryNotFound.

        Args:
            id: the entry's id (text), its `seq` (a number, which is no revision), or an `Entry`.
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
        """Find what was said in the session, archived and evicted entries included, and return the passages that answer
        a query best, as many as `max_tokens` have room for.

        Words count by their stems and by how rare they are; words in quotes are a phrase. `text` of what is returned is
        for a prompt, fenced as data; `passages` are what it is made of. What was erased, rewound or has expired is not
        found, and a policy is applied to what is. The session's entries are indexed by the first search, and what is
        new by the next ones: in a file beside an SQLite file or a folder, else in memory. A hit counts as an access,
        for `lru`. Raises ConfigError for what is not accepted; no error and no log quotes the query.

        Args:
            query: what is looked for, at most 10,000 characters.
            max_tokens: tokens that the result may have, as `text`; 2,000 by default. None: no limit.
            limit: the most entries that answer; 20 by default.
            kinds: kinds of entries that may answer, such as "message"; None: all. Of an empty list nothing is.
            roles: roles that may have said it, such as "user"; None: all. Of an empty list nobody has.
            names: who may have said it, or which tools; None: anybody. Of an empty list nobody has.
            since: a datetime with a time zone: written then or later. None: at any time.
            until: a datetime with a time zone: written before it. None: at any time.
            neighbours: how many entries of the same interaction on each side of a hit are shown, where there is room
                left; 1 by default.
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
        """Return entries of the session as `recall` returns what it finds: for a prompt, within a budget of tokens.

        They are whole, also where a context shows them masked or clamped, and in the order of the log. What has no room
        is left out; the text of the last one may end early: `end` is where the next call goes on (`start`). An entry
        that is not there is left out, and so is one that was erased, rewound or has expired, and thoughts; a policy is
        applied to the rest. It counts as an access, for `lru`. Raises ConfigError for what is not accepted.

        Args:
            entries: by `seq` (a number), by id (text), or as they are (`Entry`), one or several, at most 1,000.
            max_tokens: tokens that the result may have, as `text`; 2,000 by default. None: no limit.
            start: a character of each entry's text, from 0: what is before it is left out.
        """
        return drive(self._core.passages(entries, max_tokens=max_tokens, start=start))

    def active_entries(self) -> list[Entry]:
        """Return the entries that are active, oldest first: neither covered by a summary, nor evicted, nor expired.

        That is what the newest cut has kept, whatever the budget of the next call makes of it. A context may show more:
        a question whose answer is still in the window stands beside the summary that covers it.
        """
        return drive(self._core.active_entries())

    def interactions(self, *, after: Interaction | None = None, limit: int | None = None) -> list[Interaction]:
        """Return the log by interaction, oldest first; what came before the first is the preamble, -1.

        With `limit` a long log is read page by page: the next page is after the last interaction of the one before.
        What was added to that one since is in no page. Raises ConfigError for what is not accepted.

        Args:
            after: an interaction that this verb has returned; those up to it are left out. None: from the first.
            limit: the most interactions to return; None: all.
        """
        return drive(self._core.interactions(after=after, limit=limit))

    def stats(self) -> Stats:
        """Return the session in numbers. What has not been counted yet is counted now, once."""
        return drive(self._core.stats())

    def count(self) -> int:
        """Count every entry that has no stored count by the session's counter, and return how many there were."""
        return drive(self._core.count())

    def cost(self, entry: Entry) -> int:
        """Return what the entry takes in a context, shown whole, in tokens by the session's counter.

        Text, name and arguments, media, and what the session's format adds to them: the scale of `stats` and triggers.
        What is stored of its count is used; else it is counted now, and not stored. Raises InvalidEntry for what is
        no entry, or one with a field that is not allowed.

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
        """Return what to send to the model next: within the budget, valid for the provider, stable at its front.

        A budget other than the session's gives a context that stores no cut; callers with budgets of their own use a
        `view` each. Raises BudgetImpossible, with the figures, where what may not be left out does not fit, PastUnknown
        where nothing tells any more what was given, ConfigError for what is not accepted, such as a tail without room.

        Args:
            system: the system prompt: counted and sent, not stored.
            tools: schemas of tools, as the provider takes them: counted and sent, not stored.
            format: the provider's format for this context; None: the session's.
            reserve: tokens kept free for the answer; None: the session's, or else nothing beside `max_tokens`, and
                without it the model's longest answer, but at most half of the window.
            max_tokens: the most tokens of the request, with the answer; None: the session's.
            max_messages: the most messages, as the format counts them; None: the session's.
            view: the name of the window whose cuts hold; None: the session's.
            model: the one that this call is for, where it is another than the session's, or the session has none.
            at: a revision (`ctx.revision`, no `seq`): rebuilds what the same call was given then, less what was erased
                since. None: now.
            tail: what stands behind the newest entry in this context alone, as data of the user: a text, or texts by
                name, whole or not at all, within `tail_share`; None: nothing.
            recall: a query, such as what the user has just said: passages of the session that answer it, and that the
                context does not show anyway, stand behind the newest entry, as many as `tail_share` has room for. None:
                nothing is recalled.
            dry_run: whether nothing is stored, not even a cut.
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
        """Note what the provider reported for a call, in tokens, and return the session's usage.

        `usage` is a response of the `openai`, `anthropic` or `google-genai` client, its usage, or the dump of either;
        each vendor's way of counting is known. Responses that are given to `add` need none of this: one that was noted
        last is not noted again. Otherwise give figures: `input_tokens` is all of the input, what a cache served or
        stored included, `cached_tokens` how much of it a cache served.

        `context` is what was sent (default: the session's last). For a model without a public tokenizer the ratio of
        reported to counted tokens scales the budget from the next cut on, within bounds: a report beyond them is named
        in the warnings of contexts. Raises ConfigError, and notes nothing, for what tells no usage and for figures that
        cannot be: more from a cache than all of the input, or no input for a context of 1,000 counted tokens and more.

        Args:
            usage: a response of a vendor, its usage, or the dump of either; None: figures are given instead.
            input_tokens: all tokens of the input, with those that a cache served or stored.
            output_tokens: tokens of the answer.
            cached_tokens: those of the input that a cache served.
            context: what was sent; None: the session's last context.
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
        """Keep these entries in every context. They stay in place until a cut passes them.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`). Raises
                EntryNotFound for one that is not there, ConfigError for one that is erased.
        """
        drive(self._core.pin(*ids))

    def unpin(self, *ids: str | int | Entry) -> None:
        """Let go of pins, from the next cut on.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`). Raises
                EntryNotFound for one that is not there.
        """
        drive(self._core.unpin(*ids))

    def hide(self, *ids: str | int | Entry) -> int:
        """Leave these entries out of every context from the next call on; return how many entries that were.

        Groups go whole: with a call goes its result, however late it came, and the group of a later call in which that
        stands. Nothing is destroyed, and nothing stands for them: `entries` and exports hold them, and `show` brings
        them back. It begins an epoch, so the provider's cache
        holds no more than what came before the first of them.

        Raises EntryNotFound, and ConfigError for what is pinned (`unpin` it first), covered by a summary (`restore`
        that first), erased, rewound, or still waits for a result.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`).
        """
        return drive(self._core.hide(*ids))

    def show(self, *ids: str | int | Entry) -> int:
        """Bring back entries that were hidden, whole groups, and return how many entries that were.

        Where everything together is over the budget, the next context cuts as always. Raises EntryNotFound.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`).
        """
        return drive(self._core.show(*ids))

    def turn(
        self, *, atomic: bool = False, wait: timedelta | float | str | None = None
    ) -> AbstractContextManager[Session]:
        """One run of the model as a block: `with session.turn():`.

        Adds inside are durable at once, and holders of `turn()` on one session, in whatever process, go one
        after the other: it waits as long as the other run lives, or for the time `wait` (0: not at all), and raises
        LockTimeout then. A run whose process was killed is over 30 seconds later. Plain adds never wait. With `atomic`
        the adds are gathered and committed together when the block ends, or dropped when it raises; such a block waits
        for nobody but who has a turn of this very object. What others add by this object meanwhile is of the turn, too.

        Args:
            atomic: whether adds are committed together when the block ends.
            wait: how long to wait for the other run: a timedelta, seconds, or text such as "2m"; 0 or False: not at
                all; None (default): as long as it lives.
        """
        return within(self._core.turn(atomic=atomic, wait=wait), self)

    def end_turn(self) -> TurnEnd:
        """Say that a run of the model is over: commit what an atomic turn gathered, compact where a trigger says so,
        and persist as the session's `persistence` has it.

        INCREMENTAL has stored everything already. FLUSH without `archive` destroys what compactions have replaced. What
        an EPHEMERAL session has added is gone. Returns what was added, which calls are open and what was compacted.
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
        """Compact now and return what came of it; where there is nothing to do, that is no error but a `reason`.

        What is covered or evicted stays in the log: `expand`, `restore` and `entry` reach it; only the neuralyzer
        destroys. Raises ConfigError for an unknown strategy or a value that is not accepted; never for what a
        summarizer does.

        Args:
            strategy: an object, a mapping or a name such as "lru"; None: the session's first, else the ladder:
                superseded contexts, then old tool results, then a summary, then eviction.
            dry_run: whether the plan is only shown.
            threshold: a share of the session's limits, over 0 and up to 1, under which nothing is done; None: no such
                share.
            force: whether it runs whatever the triggers say. False: only if the strategy's triggers, or `threshold`,
                say so.
        """
        return drive(self._core.compact(strategy, dry_run=dry_run, threshold=threshold, force=force))

    def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first; with `history` every version that was ever made, too.

        One whose text went with an erasure is in the history, `withdrawn` and without words.

        Args:
            history: whether every version that was ever made is there, too.
        """
        return drive(self._core.summaries(history=history))

    def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first: of the newest, or of the one given.

        What was erased since is there as a tombstone. Raises EntryNotFound for an id that is no summary's.

        Args:
            summary: a summary or its id; None: the newest.
        """
        return drive(self._core.expand(summary))

    def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        The summary stands in no context from then on; `summaries(history=True)` keeps it. Where everything together is
        over the budget, the next context cuts as always. Raises ConfigError for a version that another has superseded,
        and where a flush without archive has destroyed entries of it: it alone tells of them.

        Args:
            summary: a current summary or its id; None: the newest.
        """
        return drive(self._core.restore(summary))

    def verify(self) -> Verification:
        """Walk the whole log and say what became of each entry: nothing may be lost, or be there twice.

        Every entry is active, covered, evicted, erased, rewound or expired, exactly once; `problems` names what does
        not hold together, and is empty for a session that is whole.
        """
        return drive(self._core.verify())

    def erase(
        self, what: Iterable[str | int | Entry] | str | int | Entry | Query, *, reason: str = BY_REQUEST
    ) -> Erased:
        """Destroy the content of these entries, by id or number, or of all that meet a `Query`; say what that took.

        Their place stays, as a tombstone with id, kind and time, in every branch that shares them. Summaries that held
        something of them lose their text, in every version, and are made anew from the rest; with the text of a query
        so does whatever else tells of it. One that is erased already is left as it is. `reason` is kept in the log.

        It ends beside others who never stop adding. All that is meant and was in the log when it was called is gone in
        one step; then what has come since is looked at, and goes, until a look finds nothing, at most 7 times more. A
        query cannot look into what is damaged: `remains` of the report names it.

        Raises EntryNotFound where one of them does not exist, ErasureFailed where what was made from them cannot be
        removed, ConfigError for what is not accepted: then nothing is erased.

        Args:
            what: an entry, by its id (text), by its `seq` (a number) or as it is, several of these, or a `Query`.
            reason: why, kept in the log in clear words.
        """
        return drive(self._core.erase(what, reason=reason))

    def repair(self) -> Erased:
        """Take out for good every entry that cannot be read, as `erase` does, and say what that took.

        Such an entry is named in the log of `palimpsest` when it is met, and set aside: contexts, listings and exports
        have a tombstone in its place, whose `damaged` is set, and all the rest goes on. `verify` lists them. Restore
        a backup first, if there is one.
        """
        return drive(self._core.repair())

    def clear(self, *, seen: Context | int | None = None) -> int:
        """Destroy every entry of the session for good; the session stays. Return how many there were, of which those do
        not count that a rewind had taken back.

        What others add until it is done goes, too. With `seen`, a context or a revision, the session is cleared only if
        nothing has changed since then: else Conflict is raised, and nothing destroyed. Clearing an empty or unknown
        session does nothing and returns 0.

        Args:
            seen: the context, or the revision, after which nothing may have come; None: whatever has.
        """
        return drive(self._core.clear(seen=seen))

    def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return what happened to the session, oldest first, one record a revision.

        Additions (kind add, `seqs` are the new entries), cuts, erasures, pins, clears and rewinds, with their time,
        reason and figures; of all revisions, or of those between `after` and `before`, both exclusive.

        Args:
            after: a revision: records up to it are left out. 0: from the first.
            before: a revision: records from it on are left out. None: to the last.
        """
        return drive(self._core.history(after=after, before=before))

    @property
    def working(self) -> WorkingMemory:
        """The session's working memory: values that an agent keeps under keys, in the scope "session/ID".

        A branch begins with a copy of it, an export has it, and it goes with the session. That of an EPHEMERAL session
        is written to no store.
        """
        from palimpsest.sessions.working_sync import WorkingMemory  # only for who has one

        return WorkingMemory(self._core.working)

    def knowledge(self, collection: str | None = None) -> Knowledge:
        """Return a knowledge base that a strategy of this session names: to search it, or to add documents, as its
        user. Nothing is read yet.

        Raises ConfigError where no strategy names it, or several do and it is not said which.

        Args:
            collection: its `collection_id`, as the strategy has it; None: the only one.
        """
        from palimpsest.sessions.knowledge_sync import Knowledge  # only for who has one

        return Knowledge(self._core.knowledge(collection))

    def fork(self, session_id: str | None = None, *, at: When | None = None) -> Session:
        """Return a new session that branches off this one: now, at a revision, or right behind an entry.

        The branch shares every entry before that point, with id, number and counts, and goes its own way from
        there; neither sees what is added to the other. Erasing an entry that is shared erases it in every branch,
        while clearing or deleting a session leaves its branches whole. Without `session_id` one is made. Raises
        SessionNotFound for a session without entries, Conflict where `session_id` is taken.

        Args:
            session_id: the new session's id; None: one is made.
            at: a revision (a number, which is no `seq`), or the entry behind which it branches off (an id, or an
                `Entry`); None: now.
        """
        return Session(drive(self._core.fork(session_id, at=at)))

    def rewind(self, to: When) -> int:
        """Go back to how the session was: at a revision, or right behind an entry. Return how many entries went.

        What came after is taken back, not destroyed: no context shows it and `entries()` leaves it out, but
        `entry(id)` finds it, exports hold it, and rewinding to a later revision brings it back. What was erased
        stays erased. Calls that were open then are open again. What others add until it is done is taken back, too.

        Args:
            to: a revision (a number, which is no `seq`), or the entry behind which all is taken back (an id, or an
                `Entry`).
        """
        return drive(self._core.rewind(to))

    def export(self, *, left_out: Callable[[str], object] | None = None) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records, usage.

        `memory.import_session` takes it back; tombstones stand for what was erased, and for entries that are damaged.
        Raises StoreCorrupt where something else cannot be read, Conflict where others change the session faster than it
        can be read.

        Args:
            left_out: called with a sentence for each thing that cannot be read; all else is exported then, so that it
                holds together. None: nothing is left out.
        """
        return drive(self._core.export(left_out=left_out))

    def export_to(
        self,
        file: str | os.PathLike[str] | Sink,
        *,
        format: FormatName | Literal["palimpsest"] = "palimpsest",
        left_out: Callable[[str], object] | None = None,
    ) -> int:
        """Write the session as JSON to a file, or to a path, whole or not at all; return the bytes written.

        The format `palimpsest` is what `export` returns, written a batch at a time, so that a log may be larger
        than memory. Any format of messages gives what a model would be sent without any budget, as the list that
        its provider takes (an object with the system text, where that is sent beside it; for `text` plain text):
        calls that are still open are left out, and so is what was erased, has expired or was rewound. Raises
        OSError where the path cannot be written, ConfigError where it is that of a database, such as the store's own,
        StoreCorrupt where something cannot be read, Conflict where others change the session faster than it can be
        read.

        Args:
            file: a path, which is written whole or not at all, or a binary file that is open for writing.
            format: "palimpsest" (default), which an import takes back, or a format of messages.
            left_out: called with a sentence for each thing that cannot be read, as for `export`.
        """
        return drive(self._core.export_to(file, format=format, left_out=left_out))


class Memory:
    """A store and its sessions: `with Memory.open("sqlite:///agent.db") as memory:`.

    Needs no event loop; safe to share between threads. What goes on beside your code has threads of its own: work in
    the background, and, while a `turn()` is open, one that renews its lease.

    `session` gives a conversation, `working` values under keys, `knowledge` documents. `sessions` and `recall` look
    into all conversations of the tenant, `for_tenant` is the same store for another one. `forget` destroys what belongs
    to somebody. `close` ends it.
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
        """Who owns this memory's sessions."""
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
        """Open the store of a declared memory. Its sessions have what is declared, beside the options they are given.

        They have the ids that you give them; for keys, templates and several memories there is
        `palimpsest.resources`. Raises InvalidResource with every mistake, and what `open` raises.

        Args:
            source: a file (.yaml, .yml, .json), a folder, or a mapping, as `Resources.load` takes it.
            id: which memory, where the source declares several; None: the only one.
            tenant: who owns every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        given, defaults = declared("single", source, id)
        memory = cls.open(**given, tenant=tenant, clock=clock)
        memory._core._defaults = defaults  # noqa: SLF001 (one of ours)
        return memory

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
    ) -> Memory:
        """Open the store that environment variables name: `PALIMPSEST_MEMORY_BACKEND` (in_memory, file, sqlite,
        postgres, mongodb, redis), with `_FILE_DIR`, `_SQLITE_PATH`, `_POSTGRES_URL`, `_MONGODB_URL` or `_REDIS_URL`; or
        `PALIMPSEST_MEMORY_RESOURCE`, a file that declares the memory.

        `_MAX_CONVERSATION_TOKENS` and `_SUMMARIZE_THRESHOLD`, in tokens, are options of each session; without them
        there is no such limit, and no summary. Raises ConfigError naming the variable, and what `from_resource` raises.

        Args:
            environ: the variables by name; None: those of this process.
            tenant: who owns every session of this memory; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
        """
        given, defaults = declared("environment", environ)
        memory = cls.open(**given, tenant=tenant, clock=clock)
        memory._core._defaults = defaults  # noqa: SLF001 (one of ours)
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
        """Open a store: a path (`agent.db`, `~/agent.db`, a `pathlib.Path`) of an SQLite file, or an address:
        `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:relative/folder`, `file:///absolute/folder`, `memory://`.

        Raises ConfigError for an address or option that is unknown, StoreError where
        the store cannot be opened, and WrongKey where it is encrypted with other keys.

        Args:
            where: the store's address, or a path.
            tenant: who owns every session of this memory, and sees no other tenant's; "default" by default.
            clock: a function that returns microseconds since 1970, as a whole number.
            encryption: keys that what is stored is encrypted with: `Keys`, or a mapping of key ids to keys. None: it is
                not.
            privacy: what may not be kept: a preset ("default", "secrets"), a mapping or a `Policy`, or a `Redactor`,
                which has a key for pseudonyms, too. None: all is kept as it is.
            view_bytes: about how many bytes of what contexts were made of are remembered; 64 MiB by default, 0: none.
            circuit_breaker: when a store that does not answer is left alone for a while: True (after 5 calls in a row,
                for 30 seconds), a `CircuitBreaker`, or a mapping with its fields. None: never.
            sweep_every: how often `sweep` runs by itself, for this tenant, while the memory is open: a timedelta,
                seconds, or text such as "1h". None: never.
            turn_lease: how long a `turn()` whose process was killed holds up the next one: a timedelta, seconds, or
                text such as "30s" (default). It is renewed three times in that time while its process lives.
            compaction_lease: the same of a compaction that pays for a summary; "5m" by default.
            embedder: what gives texts vectors, so that `recall` finds by meaning, too: a model's name ("wordllama",
                "minilm"), a function or coroutine function of a list of texts that returns a vector for each, or an
                object with `embed_documents` or `encode`. It needs the extra `vectors`. None: words alone count.
            recall_index: the path of a file on this machine in which the search index is kept, for this store alone.
                None: beside a store on a disk, inside one on PostgreSQL, and for all others in memory. It holds words
                in plain text, so an encrypted store has it in memory.
            synchronous: on disk, what a loss of power leaves: "FULL" (default), all that was acknowledged; "NORMAL",
                all but the last commits.
            busy_seconds: on disk, how long to wait for other writers; 30 by default.
            timeout_seconds: on a server, how long a call may take, whatever it waits for; 30 by default.
            pool_size: on a server, how many connections there are at most; 10 by default.
            schema_name: on PostgreSQL, the schema that the tables are in; "palimpsest" by default.
            prefix: on Redis, what every key begins with; "palimpsest" by default.
            cluster: on Redis, whether the address names a node of a cluster; False by default.
            readonly: on a disk or a server, whether nothing may be written; False by default.
            large_bytes: on a disk or a server, from how many bytes a text, or an image's data, is kept once, however
                many entries hold it.
        """
        given = {**options, "circuit_breaker": circuit_breaker}
        parts = where, Inline(), tenant, clock, encryption, gate_of(privacy), view_bytes, given
        core = AsyncMemory(*parts, sweep_every, turn_lease, compaction_lease, embedder, recall_index)
        drive(core.__aenter__())
        return cls(core)

    def connect(self) -> None:
        """Open the store, which `open` does by itself."""
        drive(self._core.connect())

    def for_tenant(self, tenant: str) -> Memory:
        """Return the memory of another tenant over the same store, with the same policy, keys and clock.

        It has no connection and no thread of its own, so make one for each request. It need not be closed:
        that leaves the store open, and when the memory that opened the store closes it is over. Observers, and what
        joins with `derive`, are the tenant's, whichever of its memories they were given to. Raises ConfigError for
        what is no id.

        Args:
            tenant: who owns every session of that memory, an id.
        """
        return Memory(self._core.for_tenant(tenant))

    @property
    def store(self) -> Store:
        """The store behind this memory."""
        return self._core.store

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> Session:
        """Return the session of this id; nothing is read or written before its first verb.

        The options are kept by this object, not in the store. Raises ConfigError naming the option that is not
        accepted.

        Args:
            session_id: 1 to 256 characters, none of them a control character.
            model: the model's name: its window, tokenizer and prices are taken from the table. None: not known.
            max_tokens: the most tokens of a whole request, with the answer; None: the model's window.
            max_messages: the most messages of a context, as the format counts them; None: no limit.
            max_context_ratio: the share of the model's window that the log may take, over 0 and up to 1; answer, system
                text and tools come beside it. None: no such share.
            max_log_tokens: tokens that the log may take, with its summaries; answer, system text and tools come beside
                it. None: no such limit.
            reserve: tokens kept free for the answer: they come off `max_tokens`, or off the model's window where that
                is smaller, or the only limit. None: beside `max_tokens` nothing, so the request may take all of it;
                without it the model's longest answer, but at most half of the window.
            counter: what counts tokens: a function from text to a number, an encoding's name, or an object with
                `name`, `count` and `overhead`: whether what a provider adds to messages is counted. None: the model's.
            format: the provider's format of messages, "openai" by default.
            view: the name of the window that cuts are made for, "main" by default.
            short_term: what contexts show: a `MaxTokens`, a mapping with its fields, or a list of these; None: one of
                `conditions` and `oversize`.
            conditions: expressions that entries must meet to be shown, for the default short-term strategy.
            oversize: what becomes of what does not fit alone: "clamp" (default), "drop", "error" or "keep_newest".
            mask: whether a cut may replace old tool results by a note; True by default.
            low_water: the share of the budget that a cut goes down to, over 0 and under 1; 0.36 by default.
            summary_share: the share of the budget that summaries take at most, over 0 and under 1. None: a quarter, and
                only where interactions want the room.
            tag_shares: by tag, the share of the budget that entries with it take at most, from 0 to 1; the oldest are
                left out first. An entry has the tags in `metadata["tags"]`. None: they take what there is.
            cache_seconds: how long the provider's cache holds what it was sent, since the last call; None: what the
                format says; `math.inf`: no cut heeds it.
            readonly: whether the session only reads: contexts store no cut, and verbs that write raise ConfigError;
                False by default.
            long_term: strategies of compaction, such as `Summarize(interaction_keep=3)`: one or a list of objects,
                names and mappings. None: none.
            summarizer: what writes summaries: a function from prompt to text, a model string such as
                "openai:gpt-4o-mini", a `ModelSummarizer`; None: no model is asked.
            auto_compact: where a strategy that fires runs: "inline" (default), "background", or "off": only in workers.
            long_term_run: which strategies that fire run: the "first" (default) or "all".
            before_turn: whether the triggers are looked at before each context, too; False by default.
            persistence: when what is added is stored: "incremental" (default), "flush" (with `archive=False`: what was
                compacted is destroyed at the turn's end) or "ephemeral" (nothing is written).
            archive: whether what was compacted is kept; True by default, and False only for "flush".
            user: whose session it is, an id. Where it is another's, or nobody's, every verb raises WrongUser. None: not
                said, and not looked at.
            title: what it is called, kept with a session that its first entry makes; `describe` changes it. None: none.
            metadata: what else is said of it, JSON values, kept like the title. None: nothing.
            lifetime: how long it lasts when nothing is added to it any more, kept like the title: a timedelta, seconds,
                or text such as "30d" or "1h30m". Then there is no such session, and `sweep` destroys what is stored of
                it. None: for ever.
            facts: a scope of a working memory, or a list of these, whose facts stand in each context; none by default.
            facts_in: where they stand: `tail`, behind the newest entry, as they are at each call (default), or
                `prefix`, before the log, as they were at the last cut.
            tail_share: the share of the log's room that is kept for facts and tails, at most 0.5; None: 0.1 with
                `facts`, else nothing.
            definition: what declares the session; `palimpsest.resources` gives it. None: nothing does.
        """
        return Session(self._core.session(session_id, **options))

    def fork(self, scope: str) -> Memory:
        """Return a memory with the same conversations and a working memory of its own: for a sub-agent.

        Its sessions are those of this memory, and what is added to one is seen by both. `working()` of it is the scope
        given. It destroys nothing that it shares: `delete_session`, `forget`, a sweep of what is `untouched_for` long
        and an import that is to "replace" raise ConfigError there, and in what `for_tenant` makes of it; closing it
        leaves the store open. For a conversation of its own there is `session.fork`. Raises ConfigError for a scope
        that is this memory's own, or that of one which this was forked from, or none.

        Args:
            scope: what `working()` of the fork is, an id or a path of ids, such as "agent/billing".
        """
        return Memory(self._core.fork(scope))

    def bind(self, session: Session | str | None = None) -> AbstractContextManager[Memory]:
        """Make this memory the current one in a block, with one of its sessions: `with memory.bind(session):`.

        Inside, `palimpsest.current_memory()` and `palimpsest.current_session()` return them, in functions that are not
        given them, and in tasks that are made there; `palimpsest.carry` takes them into threads. A block inside has its
        own; after it these are current again.

        Args:
            session: the session, or its id; None: none is current.
        """
        from palimpsest.sessions.binding import bound  # only for who binds

        return bound(self, session)

    def working(
        self, scope: str | None = None, *, history: int = HISTORY, value_bytes: int = VALUE_BYTES
    ) -> WorkingMemory:
        """Return the working memory of a scope: values that an agent keeps under keys. Nothing is read or written yet.

        Raises ConfigError for what is no scope.

        Args:
            scope: an id, or a path of ids such as "user/ann"; None: the memory's own, which is "default", or what
                `fork` was given. What is in "user/ann", and beneath it, goes with the user "ann" in `forget`, and what
                is in "session/7" with that session.
            history: how many older values of each fact are kept; 5 by default.
            value_bytes: the most bytes of JSON that a value may have, and the older values of a fact together; 65,536
                by default.
        """
        from palimpsest.sessions.working_sync import WorkingMemory  # only for who has one

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
        """Return a knowledge base: documents and summaries of sessions that a search finds. Nothing is read yet.

        Raises ConfigError for what is not accepted.

        Args:
            collection: its name, as `collection_id` of a strategy's knowledge base has it.
            user: an id: what is added is found for that user alone, and found is what is theirs, or everybody's. None:
                what is everybody's, or of sessions without a user.
            embedder: what makes a vector of each text: a model's name such as "wordllama", a function or coroutine
                function of a list of texts, or an object with `embed_documents` or `encode`. None: words are compared.
            text_splitter: how documents are split, a `TextSplitter` or a mapping with its fields; None: as that does by
                default.
            counter: what counts tokens for that, as for a session; None: the default encoding.
        """
        from palimpsest.sessions.knowledge_sync import Knowledge  # only for who has one

        return Knowledge(
            self._core.knowledge(collection, user=user, embedder=embedder, text_splitter=text_splitter, counter=counter)
        )

    def scopes(self, prefix: str = "") -> list[str]:
        """Return the scopes of working memories that have facts, by code points.

        Args:
            prefix: only scopes that begin so, such as "user/".
        """
        return drive(self._core.scopes(prefix))

    def definitions(self) -> list[DefinitionInfo]:
        """Return each definition that sessions are under which are declared, with their number, by name and version.

        It reads the heads of all sessions of the tenant.
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
        """Return this tenant's sessions: all that fit, or a page of them, whose `next` is `after` for the page behind
        (None: there is none). One that is written to while the latest are listed may be left out. One that cannot be
        read is `damaged`: it fits whatever its id and its user fit, is the oldest, and a warning names it once.

        Raises ConfigError for what is not accepted.

        Args:
            user: only sessions of this user; nothing is read of any other's. None: of all, and of nobody.
            title: only sessions in whose titles this is, in any letter case; None: with any title, and without.
            since: only sessions that were written to at this time, with a time zone, or later; None: whenever.
            before: only sessions that were last written to before this time, with a time zone; None: whenever.
            prefix: only sessions whose ids begin so.
            order: "id" (by code points), or "latest": the one that was written to last comes first.
            after: the `next` of the page before, in the same order; by id also any id. "": from the first.
            limit: the most sessions of a page; None: all.
        """
        return drive(
            self._core.sessions(
                user=user, title=title, since=since, before=before, prefix=prefix, order=order, after=after, limit=limit
            )
        )

    def info(self, session_id: str) -> SessionInfo:
        """Return the session as a listing shows it. Raises SessionNotFound.

        Args:
            session_id: the session's id.
        """
        return drive(self._core.info(session_id))

    def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        """Store a session that `export()` gave, under its own id or another, and return that id.

        Every reference is checked and every total made anew; ids, times and links are kept. Where the session
        exists, "error" raises Conflict, "replace" puts the export in its place in one step, and "merge"
        appends those of its entries that are not there, but for what was taken back, and results whose call was
        erased. Raises ImportFailed, and stores nothing, for an export that does not hold together.

        Args:
            data: what `export()` gave.
            session_id: the id to store it under; None: its own.
            on_conflict: what happens where the session exists: "error" (default), "replace" or "merge".
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
        """Take the conversations of a file, or of a binary stream, into sessions and say what came of it.

        `source` is what the file is: "messages" (JSON or JSON lines of provider messages, in the `format` named or
        found), "chatgpt" or "claude" (their data exports, also as archives), "palimpsest" (our own exports),
        "openai-agents" (its SQLite database), "langchain" or "pydantic-ai"; "auto" finds out. Everything goes into
        `session_id` where one is given, else into sessions of the conversations' own ids, or named after the file. The
        title of a conversation becomes that of a session which it makes.

        Importing a file again adds nothing, one that has grown adds what is new, and an import that was
        interrupted is completed by repeating it; under another `key` the same messages come once more. With
        `branches` the branches of a conversation that are not current become sessions, too (`<id>~2`, ...).
        `progress` is called with the bytes done and their total (None where nobody knows). `limits` (`Limits`, or a
        mapping with some of them) bounds what the file may hold: what is larger than one is refused, naming it.

        What is malformed is reported with its place, and the rest is taken. Raises ImportFailed, and stores nothing,
        for a file that is of no source, or could be of several, and with `strict` for the first fault; OSError where
        the file cannot be opened; ConfigError for an option that is not accepted.

        Args:
            path: the file's path, or a binary file that is open for reading.
            source: what the file is; "auto" (default) finds out.
            format: what messages of the source "messages" are; None: found by their shape.
            session_id: the session that takes everything; None: one for each conversation.
            key: what makes an import of the same messages another one; None: the same again adds nothing.
            strict: whether the first fault refuses the whole file.
            branches: whether branches that are not current become sessions, too.
            progress: called with the bytes done and their total (None: unknown).
            limits: the most that the file may hold; None: the limits' own defaults.
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
        """Find what was said in any session of this tenant, and return the passages that answer a query best, as many
        as `max_tokens` have room for.

        It is `session.recall` over several sessions. An entry that branches share is found once. Sessions that nobody
        has written to since the last search are not read. Raises ConfigError for what is not accepted; no error and no
        log quotes the query.

        Args:
            query: what is looked for, at most 10,000 characters; words in quotes are a phrase.
            sessions: ids of the sessions to look in; None: all.
            user: an id: only sessions that are theirs. None: anybody's.
            max_tokens: tokens that the result may have, as `text`; 2,000 by default. None: no limit.
            limit: the most entries that answer; 20 by default.
            kinds: kinds of entries that may answer, such as "message"; None: all. Of an empty list nothing is.
            roles: roles that may have said it, such as "user"; None: all. Of an empty list nobody has.
            names: who may have said it, or which tools; None: anybody. Of an empty list nobody has.
            since: a datetime with a time zone: written then or later. None: at any time.
            until: a datetime with a time zone: written before it. None: at any time.
            neighbours: how many entries of the same interaction on each side of a hit are shown, where there is room
                left; 1 by default.
            model: the model whose tokens are counted; None: not known.
            counter: what counts tokens, as for a session; None: the model's.
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
        """Return where this tenant's search index is, how large, and how many sessions it is behind.

        Nothing is indexed by it. An index that is damaged is found empty, and is filled by the next search.
        """
        return drive(self._core.index_status())

    def rebuild_index(self, *, progress: Callable[[int, int], object] | None = None) -> IndexStatus:
        """Make this tenant's search index anew from the logs, its vectors too where there is an embedder, and return
        how it is then.

        Searches meanwhile find what is in it so far, and complete it for themselves. Interrupted, the next search, or
        the same again, goes on. `progress` is called with the number of sessions done, and of all: for the words, and
        then for the vectors. An embedder that fails leaves the words, and a warning. Raises ConfigError in a memory
        that only reads.

        Args:
            progress: called with the sessions done and their total.
        """
        return drive(self._core.rebuild_index(progress=progress))

    def delete_session(self, session_id: str) -> bool:
        """Destroy the session with everything that belongs to it, its working memory too, and return whether there was
        one.

        So goes one that is damaged, too; its branches keep what they share. Raises StoreCorrupt where nobody can tell
        any more what that is, because who reads what is damaged as well. A warning tells of a copy of it that lies
        where the store does not read it; `forget` returns that.

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
        """Destroy for good all that belongs to one of these, in every session and branch, and say what that was.

        `session` goes with every copy of its entries in branches, and with its working memory ("session/ID"). `tenant`,
        which must be this memory's own, goes with all sessions and items. What `matches` a text, or a `Query`, goes as
        `erase` has it, with the facts of working memories that have the text. Of a `user` (an id) go the sessions that
        are theirs, as with `session`, and their working memory ("user/ID"). In other sessions goes what messages of
        that `name`, or with that `user_id` in their metadata, said, with the whole interactions that they began; one in
        which nothing else is left is deleted. Where nothing names the user, `unknown` of the result says so. Summaries
        are made anew from what is left, without a model, or withdrawn.

        A session that is damaged goes where it is meant by its id, its tenant or its user; into any other nobody can
        look, and `remains` of the result names it. It names the branches, too, that keep what one shared with them.

        Interrupted, the same again goes on with what is left. Sessions that come into being meanwhile are found.
        `progress` is called with the number of sessions done, and of all. `dry_run` changes nothing. Raises ConfigError
        unless exactly one is given, and in a memory that only reads; ErasureFailed where what was made from entries
        cannot be removed: what is erased by then stays erased.

        Args:
            user: an id, as sessions have it, or messages in `name` or in `user_id` of their metadata.
            session: a session's id.
            tenant: this memory's own tenant.
            matches: a text, or a `Query`.
            reason: why, kept in the log in clear words.
            dry_run: whether nothing is changed, and only told what would go.
            progress: called with the sessions done and their total.
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
        """Write anew what is kept where something was destroyed, and give back what the store does not use.

        That is of all tenants. Others go on writing meanwhile. It is what `remains` of an erasure in a large file asks
        for: then no byte of what was erased before is left. Interrupted, the same again goes on with what is left.
        `progress` is called with about how many bytes were gone through, and of how many. Raises ConfigError in a
        memory that only reads; StoreUnavailable where there is no room for a second copy of the largest table.

        Args:
            progress: called with the bytes gone through and their total, both about.
        """
        return drive(self._core.vacuum(progress=progress))

    def durability(self) -> str:
        """Return a sentence for people: what is lost with the machine, or with the server, of what was acknowledged."""
        return drive(self._core.durability())

    def derive(self, derived: Derived) -> Callable[[], None]:
        """Have something that is made from this tenant's entries, such as a search index, told before entries go.

        From then on the store knows its name, in every process: who erases where it has not joined leaves a note in the
        store. What such notes say is removed here first, before this returns, and later by `sweep`. Join before
        anything is made.

        Returns a function after which it is told no longer in this memory; the store knows of it until `underive`.
        Raises ConfigError for what is not as `palimpsest.sessions.derived.Derived` says, ErasureFailed where it does
        not remove what it should, and StoreUnavailable in a memory that only reads.

        Args:
            derived: an object with a name, and a coroutine that removes what was made from entries.
        """
        return drive(self._core.derive(derived))

    def derivers(self) -> tuple[str, ...]:
        """Return the names of what is made from this tenant's entries, in this process or another."""
        return drive(self._core.derivers())

    def underive(self, name: str) -> bool:
        """Have the store forget what joined under this name, with the notes for it: for what is there no more.

        Returns whether the store knew of it.

        Args:
            name: the name that joined with `derive`.
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
        """Find what a policy would have redacted in what is stored already, and with `apply` redact it there.

        `privacy` is what `open` takes; without it, it is this memory's own. Looked at are all sessions of the tenant,
        or `session`: entries, rewound and archived ones, too, summaries of every version, records, names of contexts,
        facts of working memories.
        Up to `sample` findings are shown as they would be. `progress` is called with the sessions done and all.

        With `apply` entries and summaries are rewritten in place, and entries of types that the policy withholds are
        erased, in every branch; each session begins a new epoch. The branches of `session`, which have copies of what
        was made of it, are scanned, too. What others add meanwhile is looked at, too. Interrupted, the same again goes
        on with what is left. What cannot be checked stays as it is, and is reported. Raises ConfigError without a
        policy, and for `apply` in a memory that only reads, or over a store that cannot rewrite; SessionNotFound;
        ErasureFailed where what was made from entries cannot be removed.

        Args:
            privacy: a preset's name, a policy, a mapping or a `Redactor`; None: the memory's own.
            session: a session's id; None: every session of the tenant.
            apply: whether what is found is redacted where it is stored.
            sample: the most findings to show.
            progress: called with the sessions done and their total.
        """
        return drive(self._core.scan(privacy, session=session, apply=apply, sample=sample, progress=progress))

    def sweep(
        self,
        *,
        untouched_for: timedelta | float | str | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Erase what has expired of all that this tenant owns; return how many entries and items that were.

        With `untouched_for` the sessions that nobody has written to for so long are deleted, too, and counted; one that
        somebody writes to meanwhile stays, and so do branches of one that goes. `sessions(before=…)` lists them. A
        damaged one stays: nobody knows when it was written to. Raises ConfigError for what is not accepted, and in a
        memory that only reads; StoreCorrupt, when all else is swept, for what is damaged and may have expired.

        Summaries that told of it are made anew from the rest, without a model. What joined with `derive` removes what
        was erased elsewhere meanwhile, too.

        Args:
            untouched_for: a timedelta, seconds, or text such as "90d" (s, m, h, d, w); None: no session is deleted.
            dry_run: whether nothing is changed, and only sessions and entries are counted that would go.
            progress: called with the sessions done and their total, of those that are deleted.
        """
        return drive(self._core.sweep(untouched_for=untouched_for, dry_run=dry_run, progress=progress))

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that takes out of a text what this memory's policy finds, for log lines of your own, and never
        raises. None without a policy.
        """
        return self._core.redact

    def on(self, event: EventName, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event` and return a function that stops it.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        summarizer:failed, session:cleared, session:forked, session:imported, session:replaced, session:rewound,
        context:over_budget, condition:error, knowledge:deferred, privacy:refused, redacted, usage:recorded, turn:ended,
        config:changed. A handler may be a coroutine function; one that raises is logged and breaks nothing.

        Args:
            event: the event's name.
            handler: a function, or coroutine function, of the session's id and the event's facts (a dict).
        """
        return self._core.on(event, handler)

    def close(self) -> None:
        """Close the store, when what runs in the background is done; whoever uses it afterwards gets Closed.

        What is not done within 10 seconds is given up, which a warning in the log says: it loses nothing that was
        acknowledged. Closing twice is fine. One that `for_tenant` gave leaves the store open.
        """
        drive(self._core.close())
