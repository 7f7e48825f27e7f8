"""`AsyncSession`: one conversation. What each verb promises stands here, and nothing else: a part does it.

`Session` is its synchronous face. It is longer than other modules for its docstrings, which are the reference.
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
from palimpsest.sessions.adding.streaming import Answer, CutOff, Streaming
from palimpsest.sessions.adding.verbs import Adding, Content
from palimpsest.sessions.compacting.lazily import LazyAutoCompaction
from palimpsest.sessions.describing import Describing
from palimpsest.sessions.options import Options
from palimpsest.sessions.parts import Part
from palimpsest.sessions.reading import LogReader, cost_of
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.turns import TurnEnd, Turns
from palimpsest.stores import SessionInfo

if TYPE_CHECKING:
    import os

    from palimpsest.compaction import Strategy
    from palimpsest.compaction.loading import StrategyName
    from palimpsest.context.result import Context
    from palimpsest.log.summary import Summary
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.compacting.verbs import Compacting
    from palimpsest.sessions.contexts.verbs import Contexts
    from palimpsest.sessions.erased import Erased
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.verbs import Erasing
    from palimpsest.sessions.exporting import Exporting
    from palimpsest.sessions.history import When
    from palimpsest.sessions.knowledge.base import AsyncKnowledge
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.sessions.recalling.recalled import Recalled
    from palimpsest.sessions.recalling.verbs import Recalling
    from palimpsest.sessions.replacing import Replacing
    from palimpsest.sessions.timeline import Timeline
    from palimpsest.sessions.verifying import Verification
    from palimpsest.sessions.working import AsyncWorkingMemory
    from palimpsest.transfer.writing import Sink


@guarded
class AsyncSession:
    """One conversation's log and its contexts. Made by `AsyncMemory.session`; opening it reads nothing.

    `add` and its kin keep what is said, and `context` returns what the next call of the model is given. `entries` and
    `recall` read the log; `compact` makes contexts smaller; `fork` and `rewind` go back; `erase` destroys.

    Every write is one commit, and acknowledged when it returns. Any number of sessions of any number of
    processes may write to one conversation: entries never interleave inside one `add` or an atomic turn.
    """

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._gate = scope, scope.gate
        self._auto = LazyAutoCompaction(scope)
        self._appender = Appender(scope, OpenTurn(scope), self._auto)
        self._adding = Adding(scope, self._appender)
        self._streaming = Streaming(scope.runner, self.add, self._adding.usage, self.redact)
        self._turns = Turns(scope, self._appender, self._auto)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._scope.key.session

    @property
    def options(self) -> Options:
        """What the session was opened with."""
        return self._scope.options

    @property
    def redact(self) -> Callable[[str], str] | None:
        """A function that takes out of a text what the memory's policy finds, as `memory.redact`; None without one."""
        return self._gate.redact if self._gate.redactor is not None else None

    @property
    def in_turn(self) -> bool:
        """Whether a `turn()` of this object is open."""
        return self._turns.is_open

    @property
    def in_atomic_turn(self) -> bool:
        """Whether it is an atomic one: then no context holds what was added in it before it ends."""
        return self._turns.is_atomic

    # --- parts, each made when it is first asked; what adding and contexts do without is loaded then, too

    @property
    def _log(self) -> LogReader:
        return LogReader(self._scope.store, self._scope.options)

    @lazy
    def _contexts(self) -> Contexts:
        from palimpsest.sessions.contexts.verbs import Contexts  # twenty milliseconds; under an event loop it is there

        return Contexts(self._scope, self._auto)

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
        def make() -> Recalling:
            from palimpsest.sessions.recalling.verbs import Recalling  # twenty milliseconds

            return Recalling(self._scope.memory, self._scope)

        return Part(self._scope.runner, make)

    @property
    def _describing(self) -> Describing:
        return Describing(self._scope)

    @lazy
    def _timeline(self) -> Part[Timeline]:
        def make() -> Timeline:
            from palimpsest.sessions.timeline import Timeline  # twenty modules, for who looks back

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
        return await self._adding.say("assistant", content, name, metadata, importance, pinned, expires_at)

    async def add_system_message(
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
        return await self._adding.say("system", content, name, metadata, None, False, expires_at)

    async def add_tool_call(
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
        return await self._adding.messages(messages, format, key, statuses, metadata, unless_last)

    def stream(
        self, *, cut_off: CutOff = "keep", key: str | None = None, metadata: dict[str, Any] | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """One answer that comes in pieces, as a block: `async with session.stream() as answer:`.

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
        return self._streaming.stream(cut_off, key, metadata)

    async def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
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
        return await self._adding.entries(entries, key)

    async def resolve(self, call: Entry | str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Close an open call whose result will not come, and return the result entry that says so.

        Until then a group with an open call is held back from every context. Raises EntryNotFound where the entry
        is no open call, or no call of the id is open.

        Args:
            call: the open call, or its `call_id`.
            status: how it ended: "success", "error", "unknown" (default), "pending" or "denied".
            output: what the result says instead; empty by default.
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
        return await (await self._replacing()).replace(messages, format, key, statuses, metadata, seen)

    # --- what is said of it

    async def info(self) -> SessionInfo:
        """Return the session as a listing shows it: user, title, metadata, times, how much there is.

        Raises SessionNotFound for one that nothing was written to.
        """
        return await self._describing.info()

    async def describe(
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
        return await self._describing.describe(user, title, metadata, lifetime)

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
        return await self._log.entries(after, limit, before=before, last=last, rewound=rewound, at=at)

    async def messages(
        self, *, format: FormatName | None = None, after: int = 0, before: int | None = None
    ) -> list[Any]:
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
        return await (await self._exporting()).messages(format, after, before)

    async def entry(self, id: str | int | Entry) -> Entry:
        """Return the entry of this id, or of this `seq` (the number that notes in a context give).

        Evicted, masked and clamped entries come back whole. It counts as an access, for `lru`. Raises EntryNotFound.

        Args:
            id: the entry's id (text), its `seq` (a number, which is no revision), or an `Entry`.
        """
        return await self._log.entry(id)

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
        return await (await self._recalling()).passages(entries, max_tokens, start)

    async def active_entries(self) -> list[Entry]:
        """Return the entries that are active, oldest first: neither covered by a summary, nor evicted, nor expired.

        That is what the newest cut has kept, whatever the budget of the next call makes of it. A context may show more:
        a question whose answer is still in the window stands beside the summary that covers it.
        """
        return await (await self._compacting()).active_entries()

    async def interactions(self, *, after: Interaction | None = None, limit: int | None = None) -> list[Interaction]:
        """Return the log by interaction, oldest first; what came before the first is the preamble, -1.

        With `limit` a long log is read page by page: the next page is after the last interaction of the one before.
        What was added to that one since is in no page. Raises ConfigError for what is not accepted.

        Args:
            after: an interaction that this verb has returned; those up to it are left out. None: from the first.
            limit: the most interactions to return; None: all.
        """
        return await self._log.interactions(after, limit)

    async def stats(self) -> Stats:
        """Return the session in numbers. What has not been counted yet is counted now, once."""
        return await self._log.stats(self._scope.clock(), await self._compacting())

    async def count(self) -> int:
        """Count every entry that has no stored count by the session's counter, and return how many there were."""
        return await self._log.count()

    def cost(self, entry: Entry) -> int:
        """Return what the entry takes in a context, shown whole, in tokens by the session's counter.

        Text, name and arguments, media, and what the session's format adds to them: the scale of `stats` and triggers.
        What is stored of its count is used; else it is counted now, and not stored. Raises InvalidEntry for what is
        no entry, or one with a field that is not allowed.

        Args:
            entry: an entry of this session, or of another.
        """
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
        return await self._adding.usage.record(usage, input_tokens, output_tokens, cached_tokens, context)

    async def pin(self, *ids: str | int | Entry) -> None:
        """Keep these entries in every context. They stay in place until a cut passes them.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`). Raises
                EntryNotFound for one that is not there, ConfigError for one that is erased.
        """
        await (await self._replacing()).pin(ids, unpin=False)

    async def unpin(self, *ids: str | int | Entry) -> None:
        """Let go of pins, from the next cut on.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`). Raises
                EntryNotFound for one that is not there.
        """
        await (await self._replacing()).pin(ids, unpin=True)

    async def hide(self, *ids: str | int | Entry) -> int:
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
        return await (await self._compacting()).hiding.hide(ids)

    async def show(self, *ids: str | int | Entry) -> int:
        """Bring back entries that were hidden, whole groups, and return how many entries that were.

        Where everything together is over the budget, the next context cuts as always. Raises EntryNotFound.

        Args:
            ids: entries, by id (text) or `seq` (a number, which is no revision), or as they are (`Entry`).
        """
        return await (await self._compacting()).hiding.show(ids)

    # --- turns

    def turn(
        self, *, atomic: bool = False, wait: timedelta | float | str | None = None
    ) -> AbstractAsyncContextManager[AsyncSession]:
        """One run of the model as a block: `async with session.turn():`.

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
        return self._turns.turn(self, atomic, wait)

    async def end_turn(self) -> TurnEnd:
        """Say that a run of the model is over: commit what an atomic turn gathered, compact where a trigger says so,
        and persist as the session's `persistence` has it.

        INCREMENTAL has stored everything already. FLUSH without `archive` destroys what compactions have replaced. What
        an EPHEMERAL session has added is gone. Returns what was added, which calls are open and what was compacted.
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
        return await (await self._compacting()).compact(strategy, dry_run=dry_run, threshold=threshold, force=force)

    async def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first; with `history` every version that was ever made, too.

        One whose text went with an erasure is in the history, `withdrawn` and without words.

        Args:
            history: whether every version that was ever made is there, too.
        """
        return await (await self._compacting()).summaries(history=history)

    async def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first: of the newest, or of the one given.

        What was erased since is there as a tombstone. Raises EntryNotFound for an id that is no summary's.

        Args:
            summary: a summary or its id; None: the newest.
        """
        return await (await self._compacting()).expand(summary)

    async def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        The summary stands in no context from then on; `summaries(history=True)` keeps it. Where everything together is
        over the budget, the next context cuts as always. Raises ConfigError for a version that another has superseded,
        and where a flush without archive has destroyed entries of it: it alone tells of them.

        Args:
            summary: a current summary or its id; None: the newest.
        """
        return await (await self._compacting()).restore(summary)

    async def verify(self) -> Verification:
        """Walk the whole log and say what became of each entry: nothing may be lost, or be there twice.

        Every entry is active, covered, evicted, erased, rewound or expired, exactly once; `problems` names what does
        not hold together, and is empty for a session that is whole.
        """
        return await (await self._compacting()).verify()

    # --- erasing

    async def erase(
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
        return await (await self._erasing()).erase(what, reason)

    async def repair(self) -> Erased:
        """Take out for good every entry that cannot be read, as `erase` does, and say what that took.

        Such an entry is named in the log of `palimpsest` when it is met, and set aside: contexts, listings and exports
        have a tombstone in its place, whose `damaged` is set, and all the rest goes on. `verify` lists them. Restore
        a backup first, if there is one.
        """
        return await (await self._erasing()).repair()

    async def clear(self, *, seen: Context | int | None = None) -> int:
        """Destroy every entry of the session for good; the session stays. Return how many there were, of which those do
        not count that a rewind had taken back.

        What others add until it is done goes, too. With `seen`, a context or a revision, the session is cleared only if
        nothing has changed since then: else Conflict is raised, and nothing destroyed. Clearing an empty or unknown
        session does nothing and returns 0.

        Args:
            seen: the context, or the revision, after which nothing may have come; None: whatever has.
        """
        return await (await self._erasing()).clear(seen)

    # --- the past, and elsewhere

    async def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return what happened to the session, oldest first, one record a revision.

        Additions (kind add, `seqs` are the new entries), cuts, erasures, pins, clears and rewinds, with their time,
        reason and figures; of all revisions, or of those between `after` and `before`, both exclusive.

        Args:
            after: a revision: records up to it are left out. 0: from the first.
            before: a revision: records from it on are left out. None: to the last.
        """
        return await (await self._timeline()).history(after, before)

    @property
    def working(self) -> AsyncWorkingMemory:
        """The session's working memory: values that an agent keeps under keys, in the scope "session/ID".

        A branch begins with a copy of it, an export has it, and it goes with the session. That of an EPHEMERAL session
        is written to no store.
        """
        return self._working()

    def _working(self, look: Callable[[], Awaitable[None]] | None = None) -> AsyncWorkingMemory:
        from palimpsest.sessions.working import AsyncWorkingMemory  # only for who has one

        scope, readonly = f"session/{self.id}", self._scope.options.readonly
        return AsyncWorkingMemory(self._scope, scope, readonly=readonly, look=look)

    def knowledge(self, collection: str | None = None) -> AsyncKnowledge:
        """Return a knowledge base that a strategy of this session names: to search it, or to add documents, as its
        user. Nothing is read yet.

        Raises ConfigError where no strategy names it, or several do and it is not said which.

        Args:
            collection: its `collection_id`, as the strategy has it; None: the only one.
        """
        from palimpsest.sessions.knowledge.making import of_session  # only for who has one

        return of_session(self._scope, collection)

    async def fork(self, session_id: str | None = None, *, at: When | None = None) -> Self:
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
        return type(self)(await (await self._timeline()).fork(session_id, at))

    async def rewind(self, to: When) -> int:
        """Go back to how the session was: at a revision, or right behind an entry. Return how many entries went.

        What came after is taken back, not destroyed: no context shows it and `entries()` leaves it out, but
        `entry(id)` finds it, exports hold it, and rewinding to a later revision brings it back. What was erased
        stays erased. Calls that were open then are open again. What others add until it is done is taken back, too.

        Args:
            to: a revision (a number, which is no `seq`), or the entry behind which all is taken back (an id, or an
                `Entry`).
        """
        return await (await self._timeline()).rewind(to)

    async def export(self, *, left_out: Callable[[str], object] | None = None) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records, usage.

        `memory.import_session` takes it back; tombstones stand for what was erased, and for entries that are damaged.
        Raises StoreCorrupt where something else cannot be read, Conflict where others change the session faster than it
        can be read.

        Args:
            left_out: called with a sentence for each thing that cannot be read; all else is exported then, so that it
                holds together. None: nothing is left out.
        """
        return await (await self._exporting()).export(left_out)

    async def export_to(
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
        return await (await self._exporting()).export_to(file, format, left_out)
