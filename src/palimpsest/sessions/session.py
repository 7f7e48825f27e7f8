"""`AsyncSession`: one conversation. What each verb promises stands here, and nothing else: a part does it.

`Session` is its synchronous face. It is longer than other modules for its docstrings, which are the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from palimpsest.formats import Message
from palimpsest.log.change import BY_REQUEST, Record
from palimpsest.log.entry import Entry, Status
from palimpsest.log.head import Usage
from palimpsest.privacy.gate import guarded
from palimpsest.sessions.adding.appender import Appender, OpenTurn
from palimpsest.sessions.adding.streaming import Answer, CutOff, Streaming
from palimpsest.sessions.adding.verbs import Adding, Content
from palimpsest.sessions.compacting.lazily import LazyAutoCompaction
from palimpsest.sessions.options import Options
from palimpsest.sessions.parts import Part
from palimpsest.sessions.reading import LogReader
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.timeline import Timeline
from palimpsest.sessions.turns import TurnEnd, Turns

if TYPE_CHECKING:
    import os

    from palimpsest.compaction import Strategy
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
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.sessions.replacing import Replacing
    from palimpsest.sessions.verifying import Verification
    from palimpsest.transfer.writing import Sink


@guarded
class AsyncSession:
    """One conversation's log and its contexts. Made by `AsyncMemory.session`; opening it reads nothing.

    Every write is one commit, and acknowledged when it returns. Any number of sessions of any number of
    processes may write to one conversation: entries never interleave inside one `add` or an atomic turn.
    """

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._gate = scope, scope.gate
        self._auto = LazyAutoCompaction(scope)
        self._appender = Appender(scope, OpenTurn(scope), self._auto)
        self._adding = Adding(scope, self._appender)
        self._streaming = Streaming(self.add, self._adding.usage)
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

    # --- parts, each made when it is first asked; what adding and contexts do without is loaded then, too

    @property
    def _log(self) -> LogReader:
        return LogReader(self._scope.store, self._scope.options)

    @cached_property
    def _contexts(self) -> Contexts:
        from palimpsest.sessions.contexts.verbs import Contexts  # five milliseconds

        return Contexts(self._scope, self._auto)

    @cached_property
    def _compacting(self) -> Part[Compacting]:
        def make() -> Compacting:
            from palimpsest.sessions.compacting.verbs import Compacting  # forty milliseconds

            return Compacting(self._scope, self._auto)

        return Part(self._scope.runner, make)

    @cached_property
    def _replacing(self) -> Replacing:
        from palimpsest.sessions.replacing import Replacing  # seven milliseconds

        return Replacing(self._scope, self._adding, self._appender)

    @cached_property
    def _erasing(self) -> Part[Erasing]:
        def make() -> Erasing:
            from palimpsest.sessions.erasing.verbs import Erasing  # forty milliseconds

            return Erasing(self._scope)

        return Part(self._scope.runner, make)

    @cached_property
    def _timeline(self) -> Timeline:
        return Timeline(self._scope)

    @cached_property
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

        `content` is text or a list of parts. `importance` is 0 to 1; a pinned entry is in every context; an
        entry that has expired is in none. Raises InvalidEntry, and stores nothing, for what is malformed.
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
        """Append what the model said and return its entry. Options as in `add_user_message`."""
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

        A system prompt that every call brings along belongs into `context(system=…)`, not here.
        """
        return await self._adding.say("system", content, name, metadata, None, False, expires_at)

    async def add_tool_call(
        self, name: str, arguments: Any, *, call_id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Entry:
        """Append the model's call of a tool and return its entry, whose `call_id` the result refers to.

        `arguments` is any JSON value, or JSON text as the provider gave it. Without `call_id` one is made.
        Calls added before the first of them is answered are parallel calls of one group.
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

        It answers the nearest earlier open call of `call_id`; without one, the oldest open call of the tool
        `name`. A result that answers no call is kept, and shown as plain data. `output` is text, or any JSON
        value, which is kept as JSON text. `status` is success, error, unknown, pending or denied.
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

        The same text under the same name again adds nothing and returns the entry that is there. A new text
        supersedes the older one in every context; both stay in the log.
        """
        return await self._adding.context(text, name, metadata, pinned, expires_at)

    async def add(
        self,
        messages: object,
        *,
        format: str | None = None,
        key: str | None = None,
        statuses: Mapping[str, Status] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[Entry, ...]:
        """Append what a vendor gives, or was given, as one atomic batch and return the entries.

        `messages` is one of these, or a list of them in any mixture: a message, a choice, a whole response, content
        blocks, parts or items of the `openai`, `anthropic` or `google-genai` client, as objects, as dumps of these, or
        as mappings. Each is recognised by its shape. What may be anybody's, such as a role with text, is taken as
        `format` (default: the session's); with `format` all mappings are but whole responses. What a response says is
        kept, and no more of it is sent back than a request may hold. What it says of its cost is recorded, once, as
        `record_usage` does; figures that cannot be lead to a warning.

        Raises InvalidEntry, and stores nothing, naming the place of what is malformed or nobody knows. With `key` the
        batch is idempotent, since its ids derive from the key: adding it again adds nothing, adding it grown
        adds what is new at its end (so a list of messages that grows can be added whole after every step),
        and other content at any place raises Conflict. `statuses` gives results a status by call id;
        `metadata` is kept with every entry of the batch.
        """
        return await self._adding.messages(messages, format, key, statuses, metadata)

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
        """
        return self._streaming.stream(cut_off, key, metadata)

    async def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
        """Append entries that were made elsewhere, such as by an import, as one atomic batch; return them in place.

        Place and links are made anew, but a result stays with its call; the time of an entry (`at`) is kept where it
        has one. With `key` the batch is idempotent as in `add`. Without it an entry keeps an id of its own: one that is
        there and says the same adds nothing, one that says something else raises Conflict. Raises InvalidEntry, and
        stores nothing, for an entry with a field that is not allowed.
        """
        return await self._adding.entries(entries, key)

    async def resolve(self, call_id: str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Close an open call whose result will not come, and return the result entry that says so.

        Until then a group with an open call is held back from every context. Raises EntryNotFound where no
        call of this id is open.
        """
        return await self._adding.resolve(call_id, status, output)

    async def replace(
        self,
        messages: object,
        *,
        format: str | None = None,
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
        """
        return await self._replacing.replace(messages, format, key, statuses, metadata, seen)

    # --- reading

    async def entries(
        self, *, after: int = 0, limit: int | None = None, at: int | None = None, rewound: bool = False
    ) -> list[Entry]:
        """Return the log's entries with a `seq` over `after`, oldest first: all, or at most `limit`.

        Evicted entries are there like any other, erased ones as tombstones, those that a rewind has taken back
        only with `rewound`. With `at` it is the log as it was at that revision. A call with `after` and `limit` reads
        what it returns, so a long log can be read page by page: the next one after the last `seq`. Raises Conflict
        where others change a long log faster than it can be read whole.
        """
        return await self._log.entries(after, limit, rewound=rewound, at=at)

    async def entry(self, id: str | int) -> Entry:
        """Return the entry of this id, or of this `seq` (the number that notes in a context give).

        Evicted, masked and clamped entries come back whole. It counts as an access, for `lru`. Raises EntryNotFound.
        """
        return await self._log.entry(id)

    async def active_entries(self) -> list[Entry]:
        """Return what the session's view shows from now on, oldest first; summaries are not included.

        That is what its newest cut has kept, whatever the budget of the next call makes of it.
        """
        return await self._log.active(await self._scope.head(), self._scope.clock())

    async def interactions(self) -> list[Interaction]:
        """Return the whole log by interaction, oldest first; what came before the first is the preamble, -1."""
        return await self._log.interactions()

    async def stats(self) -> Stats:
        """Return the session in numbers. What has not been counted yet is counted now, once."""
        return await self._log.stats(self._scope.clock(), (await self._compacting()).costs)

    async def count(self) -> int:
        """Count every entry that has no stored count by the session's counter, and return how many there were."""
        return await self._log.count()

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
        `at` rebuilds what the same call was given at a revision (`ctx.revision`); what was erased since is left out.
        `dry_run` stores nothing.

        Raises BudgetImpossible, with the figures, where what may not be left out does not fit, PastUnknown where
        nothing tells any more what was given.
        """
        return await self._contexts.next(
            system, tools, format, reserve, max_tokens, max_messages, view, at, dry_run=dry_run
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
        """
        return await self._adding.usage.record(usage, input_tokens, output_tokens, cached_tokens, context)

    async def pin(self, *ids: str | int) -> None:
        """Keep these entries in every context. They stay in place until a cut passes them."""
        await self._replacing.pin(ids, unpin=False)

    async def unpin(self, *ids: str | int) -> None:
        """Let go of pins, from the next cut on."""
        await self._replacing.pin(ids, unpin=True)

    # --- turns

    def turn(self, *, atomic: bool = False, wait: float | None = None) -> AbstractAsyncContextManager[AsyncSession]:
        """One run of the model as a block: `async with session.turn():`.

        Adds inside are durable at once, and holders of `turn()` on one session, in whatever process, go one
        after the other: it waits as long as the other run lives, or for `wait` seconds (0: not at all), and raises
        LockTimeout then. A run whose process was killed is over 30 seconds later. Plain adds never wait. With `atomic`
        the adds are gathered and committed together when the block ends, or dropped when it raises; such a block waits
        for nobody.
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
        strategy: Strategy | Mapping[str, Any] | str | None = None,
        *,
        dry_run: bool = False,
        threshold: float | None = None,
        force: bool = True,
    ) -> CompactionResult:
        """Compact now and return what came of it; where there is nothing to do, that is no error but a `reason`.

        `strategy` is an object, a mapping or a name such as "lru". Default is the session's first, else the ladder:
        superseded contexts, then old tool results, then a summary, then eviction. `dry_run` shows the plan and changes
        nothing. Without `force`, or with `threshold` (a share of the session's limits), it runs only if the strategy's
        triggers, or that threshold, say so. What is covered or evicted stays in the log: `expand`, `restore` and
        `entry` reach it; only the neuralyzer destroys.

        Raises ConfigError for an unknown strategy or a value that is not accepted; never for what a summarizer does.
        """
        return await (await self._compacting()).compact(strategy, dry_run=dry_run, threshold=threshold, force=force)

    async def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first; with `history` every version that was ever made, too.

        One whose text went with an erasure is in the history, `withdrawn` and without words.
        """
        return await (await self._compacting()).summaries(history=history)

    async def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first: of the newest, or of the one given.

        What was erased since is there as a tombstone. Raises EntryNotFound for an id that is no summary's.
        """
        return await (await self._compacting()).expand(summary)

    async def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        The summary stands in no context from then on; `summaries(history=True)` keeps it. Where everything together is
        over the budget, the next context cuts as always. Raises ConfigError for a version that another has superseded.
        """
        return await (await self._compacting()).restore(summary)

    async def verify(self) -> Verification:
        """Walk the whole log and say what became of each entry: nothing may be lost, or be there twice.

        Every entry is active, covered, evicted, erased, rewound or expired, exactly once; `problems` names what does
        not hold together, and is empty for a session that is whole.
        """
        return await (await self._compacting()).verify()

    # --- erasing

    async def erase(self, what: Iterable[str | int] | str | int | Query, *, reason: str = BY_REQUEST) -> Erased:
        """Destroy the content of these entries, by id or number, or of all that meet a `Query`; say what that took.

        Their place stays, as a tombstone with id, kind and time, in every branch that shares them. Summaries that held
        something of them lose their text, in every version, and are made anew from the rest; with the text of a query
        so does whatever else tells of it. One that is erased already is left as it is. `reason` is kept in the log.

        It ends beside others who never stop adding. All that is meant and was in the log when it was called is gone in
        one step; then what has come since is looked at, and goes, until a look finds nothing, at most 7 times more. A
        query cannot look into what is damaged: `remains` of the report names it.

        Raises EntryNotFound where one of them does not exist, ErasureFailed where what was made from them cannot be
        removed, ConfigError for what is not accepted: then nothing is erased.
        """
        return await (await self._erasing()).erase(what, reason)

    async def repair(self) -> Erased:
        """Take out for good every entry that cannot be read, as `erase` does, and say what that took.

        Such an entry is named in the log of `palimpsest` when it is met, and set aside: contexts, listings and exports
        have a tombstone in its place, whose `damaged` is set, and all the rest goes on. `verify` lists them. Restore
        a backup first, if there is one.
        """
        return await (await self._erasing()).repair()

    async def clear(self) -> int:
        """Destroy every entry of the session for good and return how many there were; the session stays.

        What others add until it is done goes, too. Clearing an empty or unknown session does nothing and returns 0.
        """
        return await (await self._erasing()).clear()

    # --- the past, and elsewhere

    async def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return what happened to the session, oldest first, one record a revision.

        Additions (kind add, `seqs` are the new entries), cuts, erasures, pins, clears and rewinds, with their time,
        reason and figures; of all revisions, or of those between `after` and `before`, both exclusive.
        """
        return await self._timeline.history(after, before)

    async def fork(self, session_id: str | None = None, *, at: When | None = None) -> Self:
        """Return a new session that branches off this one: now, at a revision, or right behind an entry.

        The branch shares every entry before that point, with id, number and counts, and goes its own way from
        there; neither sees what is added to the other. Erasing an entry that is shared erases it in every branch,
        while clearing or deleting a session leaves its branches whole. Without `session_id` one is made. Raises
        SessionNotFound for a session without entries, Conflict where `session_id` is taken.
        """
        return type(self)(await self._timeline.fork(session_id, at))

    async def rewind(self, to: When) -> int:
        """Go back to how the session was: at a revision, or right behind an entry. Return how many entries went.

        What came after is taken back, not destroyed: no context shows it and `entries()` leaves it out, but
        `entry(id)` finds it, exports hold it, and rewinding to a later revision brings it back. What was erased
        stays erased. Calls that were open then are open again. What others add until it is done is taken back, too.
        """
        return await self._timeline.rewind(to)

    async def export(self) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records, usage.

        `memory.import_session` takes it back; tombstones stand for what was erased. Raises Conflict where others change
        the session faster than it can be read.
        """
        return await (await self._exporting()).export()

    async def export_to(self, file: str | os.PathLike[str] | Sink, *, format: str = "palimpsest") -> int:
        """Write the session as JSON to a file, or to a path, whole or not at all; return the bytes written.

        The format `palimpsest` is what `export` returns, written a batch at a time, so that a log may be larger
        than memory. Any format of messages gives what a model would be sent without any budget, as the list that
        its provider takes (an object with the system text, where that is sent beside it; for `text` plain text):
        calls that are still open are left out, and so is what was erased, has expired or was rewound. Raises
        OSError where the path cannot be written, Conflict where others change the session faster than it can be read.
        """
        return await (await self._exporting()).export_to(file, format)
