"""`Memory` and `Session`: the synchronous faces of `AsyncMemory` and `AsyncSession`."""

# Written by `python tools/make_sync.py`. Not to be edited: edit the asynchronous classes, and run that again.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from palimpsest.formats import Message
from palimpsest.log.change import BY_REQUEST, Record
from palimpsest.log.entry import Entry, Status, now_us
from palimpsest.log.head import Usage
from palimpsest.privacy.gate import gate_of
from palimpsest.runtime.events import Handler
from palimpsest.runtime.runner import Inline, drive, within
from palimpsest.sessions.adding.streaming import Answer, CutOff
from palimpsest.sessions.adding.verbs import Content
from palimpsest.sessions.memory import DEFAULT_TENANT, AsyncMemory, OnConflict, Privacy
from palimpsest.sessions.options import Options
from palimpsest.sessions.remembered import VIEW_BYTES
from palimpsest.sessions.session import AsyncSession
from palimpsest.sessions.turns import TurnEnd
from palimpsest.stores import SessionInfo, Store

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import BinaryIO, Unpack

    from palimpsest.compaction import Strategy
    from palimpsest.context.result import Context
    from palimpsest.log.summary import Summary
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.derived import Derived
    from palimpsest.sessions.erased import Erased, Vacuumed
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.scanned import Scanned
    from palimpsest.sessions.history import When
    from palimpsest.sessions.importing.report import ImportReport
    from palimpsest.sessions.importing.verbs import Progress
    from palimpsest.sessions.options import SessionOptions
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.sessions.verifying import Verification
    from palimpsest.stores.encrypted import Encryption
    from palimpsest.transfer.sources.limits import Given
    from palimpsest.transfer.writing import Sink


class Session:
    """One conversation's log and its contexts. Made by `Memory.session`; opening it reads nothing.

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

        `content` is text or a list of parts. `importance` is 0 to 1; a pinned entry is in every context; an
        entry that has expired is in none. Raises InvalidEntry, and stores nothing, for what is malformed.
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
        """Append what the model said and return its entry. Options as in `add_user_message`."""
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

        A system prompt that every call brings along belongs into `context(system=…)`, not here.
        """
        return drive(self._core.add_system_message(content, name=name, metadata=metadata, expires_at=expires_at))

    def add_tool_call(
        self, name: str, arguments: Any, *, call_id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> Entry:
        """Append the model's call of a tool and return its entry, whose `call_id` the result refers to.

        `arguments` is any JSON value, or JSON text as the provider gave it. Without `call_id` one is made.
        Calls added before the first of them is answered are parallel calls of one group.
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

        It answers the nearest earlier open call of `call_id`; without one, the oldest open call of the tool
        `name`. A result that answers no call is kept, and shown as plain data. `output` is text, or any JSON
        value, which is kept as JSON text. `status` is success, error, unknown, pending or denied.
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

        The same text under the same name again adds nothing and returns the entry that is there. A new text
        supersedes the older one in every context; both stay in the log.
        """
        return drive(self._core.add_context(text, name=name, metadata=metadata, pinned=pinned, expires_at=expires_at))

    def add(
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
        return drive(self._core.add(messages, format=format, key=key, statuses=statuses, metadata=metadata))

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
        """
        return within(self._core.stream(cut_off=cut_off, key=key, metadata=metadata))

    def add_entries(self, entries: Sequence[Entry], *, key: str | None = None) -> tuple[Entry, ...]:
        """Append entries that were made elsewhere, such as by an import, as one atomic batch; return them in place.

        Place and links are made anew, but a result stays with its call; the time of an entry (`at`) is kept where it
        has one. With `key` the batch is idempotent as in `add`. Without it an entry keeps an id of its own: one that is
        there and says the same adds nothing, one that says something else raises Conflict. Raises InvalidEntry, and
        stores nothing, for an entry with a field that is not allowed.
        """
        return drive(self._core.add_entries(entries, key=key))

    def resolve(self, call_id: str, *, status: Status = "unknown", output: str = "") -> Entry:
        """Close an open call whose result will not come, and return the result entry that says so.

        Until then a group with an open call is held back from every context. Raises EntryNotFound where no
        call of this id is open.
        """
        return drive(self._core.resolve(call_id, status=status, output=output))

    def replace(
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
        return drive(
            self._core.replace(messages, format=format, key=key, statuses=statuses, metadata=metadata, seen=seen)
        )

    def entries(
        self, *, after: int = 0, limit: int | None = None, at: int | None = None, rewound: bool = False
    ) -> list[Entry]:
        """Return the log's entries with a `seq` over `after`, oldest first: all, or at most `limit`.

        Evicted entries are there like any other, erased ones as tombstones, those that a rewind has taken back
        only with `rewound`. With `at` it is the log as it was at that revision. A call with `after` and `limit` reads
        what it returns, so a long log can be read page by page: the next one after the last `seq`. Raises Conflict
        where others change a long log faster than it can be read whole.
        """
        return drive(self._core.entries(after=after, limit=limit, at=at, rewound=rewound))

    def entry(self, id: str | int) -> Entry:
        """Return the entry of this id, or of this `seq` (the number that notes in a context give).

        Evicted, masked and clamped entries come back whole. It counts as an access, for `lru`. Raises EntryNotFound.
        """
        return drive(self._core.entry(id))

    def active_entries(self) -> list[Entry]:
        """Return what the session's view shows from now on, oldest first; summaries are not included.

        That is what its newest cut has kept, whatever the budget of the next call makes of it.
        """
        return drive(self._core.active_entries())

    def interactions(self) -> list[Interaction]:
        """Return the whole log by interaction, oldest first; what came before the first is the preamble, -1."""
        return drive(self._core.interactions())

    def stats(self) -> Stats:
        """Return the session in numbers. What has not been counted yet is counted now, once."""
        return drive(self._core.stats())

    def count(self) -> int:
        """Count every entry that has no stored count by the session's counter, and return how many there were."""
        return drive(self._core.count())

    def context(
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
        return drive(
            self._core.context(
                system=system,
                tools=tools,
                format=format,
                reserve=reserve,
                max_tokens=max_tokens,
                max_messages=max_messages,
                view=view,
                at=at,
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

    def pin(self, *ids: str | int) -> None:
        """Keep these entries in every context. They stay in place until a cut passes them."""
        drive(self._core.pin(*ids))

    def unpin(self, *ids: str | int) -> None:
        """Let go of pins, from the next cut on."""
        drive(self._core.unpin(*ids))

    def turn(self, *, atomic: bool = False, wait: float | None = None) -> AbstractContextManager[Session]:
        """One run of the model as a block: `with session.turn():`.

        Adds inside are durable at once, and holders of `turn()` on one session, in whatever process, go one
        after the other: it waits as long as the other run lives, or for `wait` seconds (0: not at all), and raises
        LockTimeout then. A run whose process was killed is over 30 seconds later. Plain adds never wait. With `atomic`
        the adds are gathered and committed together when the block ends, or dropped when it raises; such a block waits
        for nobody.
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
        return drive(self._core.compact(strategy, dry_run=dry_run, threshold=threshold, force=force))

    def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first; with `history` every version that was ever made, too.

        One whose text went with an erasure is in the history, `withdrawn` and without words.
        """
        return drive(self._core.summaries(history=history))

    def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first: of the newest, or of the one given.

        What was erased since is there as a tombstone. Raises EntryNotFound for an id that is no summary's.
        """
        return drive(self._core.expand(summary))

    def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        The summary stands in no context from then on; `summaries(history=True)` keeps it. Where everything together is
        over the budget, the next context cuts as always. Raises ConfigError for a version that another has superseded.
        """
        return drive(self._core.restore(summary))

    def verify(self) -> Verification:
        """Walk the whole log and say what became of each entry: nothing may be lost, or be there twice.

        Every entry is active, covered, evicted, erased, rewound or expired, exactly once; `problems` names what does
        not hold together, and is empty for a session that is whole.
        """
        return drive(self._core.verify())

    def erase(self, what: Iterable[str | int] | str | int | Query, *, reason: str = BY_REQUEST) -> Erased:
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
        return drive(self._core.erase(what, reason=reason))

    def repair(self) -> Erased:
        """Take out for good every entry that cannot be read, as `erase` does, and say what that took.

        Such an entry is named in the log of `palimpsest` when it is met, and set aside: contexts, listings and exports
        have a tombstone in its place, whose `damaged` is set, and all the rest goes on. `verify` lists them. Restore
        a backup first, if there is one.
        """
        return drive(self._core.repair())

    def clear(self) -> int:
        """Destroy every entry of the session for good and return how many there were; the session stays.

        What others add until it is done goes, too. Clearing an empty or unknown session does nothing and returns 0.
        """
        return drive(self._core.clear())

    def history(self, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return what happened to the session, oldest first, one record a revision.

        Additions (kind add, `seqs` are the new entries), cuts, erasures, pins, clears and rewinds, with their time,
        reason and figures; of all revisions, or of those between `after` and `before`, both exclusive.
        """
        return drive(self._core.history(after=after, before=before))

    def fork(self, session_id: str | None = None, *, at: When | None = None) -> Session:
        """Return a new session that branches off this one: now, at a revision, or right behind an entry.

        The branch shares every entry before that point, with id, number and counts, and goes its own way from
        there; neither sees what is added to the other. Erasing an entry that is shared erases it in every branch,
        while clearing or deleting a session leaves its branches whole. Without `session_id` one is made. Raises
        SessionNotFound for a session without entries, Conflict where `session_id` is taken.
        """
        return Session(drive(self._core.fork(session_id, at=at)))

    def rewind(self, to: When) -> int:
        """Go back to how the session was: at a revision, or right behind an entry. Return how many entries went.

        What came after is taken back, not destroyed: no context shows it and `entries()` leaves it out, but
        `entry(id)` finds it, exports hold it, and rewinding to a later revision brings it back. What was erased
        stays erased. Calls that were open then are open again. What others add until it is done is taken back, too.
        """
        return drive(self._core.rewind(to))

    def export(self) -> dict[str, Any]:
        """Return the whole session as plain JSON values: entries with state and links, records, usage.

        `memory.import_session` takes it back; tombstones stand for what was erased. Raises Conflict where others change
        the session faster than it can be read.
        """
        return drive(self._core.export())

    def export_to(self, file: str | os.PathLike[str] | Sink, *, format: str = "palimpsest") -> int:
        """Write the session as JSON to a file, or to a path, whole or not at all; return the bytes written.

        The format `palimpsest` is what `export` returns, written a batch at a time, so that a log may be larger
        than memory. Any format of messages gives what a model would be sent without any budget, as the list that
        its provider takes (an object with the system text, where that is sent beside it; for `text` plain text):
        calls that are still open are left out, and so is what was erased, has expired or was rewound. Raises
        OSError where the path cannot be written, Conflict where others change the session faster than it can be read.
        """
        return drive(self._core.export_to(file, format=format))


class Memory:
    """A store and its sessions: `with Memory.open("sqlite:///agent.db") as memory:`.

    Needs no event loop; safe to share between threads. What goes on beside your code has threads of its own: work in
    the background, and, while a `turn()` is open, one that renews its lease.
    """

    def __init__(self, core: AsyncMemory) -> None:
        self._core = core

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tenant(self) -> str:
        """Who owns this memory's sessions."""
        return self._core.tenant

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
        **options: Any,
    ) -> Memory:
        """Open a store: `sqlite:///relative.db`, `sqlite:////absolute.db`, or a path (of an SQLite file),
        `file:relative/folder`, `file:///absolute/folder`, or `memory://`.

        `tenant` owns every session of this memory and sees no other tenant's. `clock` returns microseconds
        since 1970. With `encryption` (`Keys`, a mapping of key ids to keys) what is stored is encrypted. `privacy`
        says what may not be kept: a preset ("default", "secrets"), a mapping or a `Policy`, or a `Redactor`, which has
        a key for pseudonyms, too; without it all is kept as it is. What contexts were made of is remembered in about
        `view_bytes` (default 64 MiB; 0: nothing is). Further options are the store's: on disk `synchronous` ("FULL",
        "NORMAL"), `busy_seconds`, `readonly`, `large_bytes`.
        Raises ConfigError for an address or option that is unknown,
        StoreError where the store cannot be opened, and WrongKey where it is encrypted with other keys.
        """
        core = AsyncMemory(where, Inline(), tenant, clock, encryption, gate_of(privacy), view_bytes, options)
        drive(core.connect())
        return cls(core)

    def connect(self) -> None:
        """Open the store, which `open` does by itself."""
        drive(self._core.connect())

    @property
    def store(self) -> Store:
        """The store behind this memory."""
        return self._core.store

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> Session:
        """Return the session of this id; nothing is read or written before its first verb.

        Options: `model` (its window, tokenizer and prices are taken from the table), `max_tokens` for the
        whole request, `max_messages` as the format counts them, `max_context_ratio` (the share of the model's window
        that the log may take; answer, system text and tools come beside it), `reserve` for the answer,
        `format` (default "openai"), `view` (default "main"), `counter` (a function from text to tokens),
        `short_term` (strategies, see `MaxTokens`), or `conditions` and `oversize` for the default one, `mask`
        (False: old tool results are never replaced by a note), `low_water` (share of the budget that a cut
        goes down to), `cache_seconds` (how long the provider's cache holds what it was sent, since the last call;
        None: what the format says; `math.inf`: no cut heeds it), `readonly`.

        Compaction: `long_term` (a strategy such as `Summarize(interaction_keep=3)`, its name, a mapping, or a list of
        these), `summarizer` (a function from prompt to text, a model string such as "openai:gpt-4o-mini", a
        `ModelSummarizer`; None: no model is asked), `auto_compact` ("inline", "background" or "off"), `long_term_run`
        ("first" that fires, or "all"), `before_turn` (look at the triggers before each context, too). `persistence` is
        "incremental", "flush" (with `archive=False`: what was compacted is destroyed at the turn's end) or "ephemeral"
        (nothing is written). Raises ConfigError naming the option.
        """
        return Session(self._core.session(session_id, **options))

    def sessions(self, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        """Return this tenant's sessions in the order of their ids: at most `limit` of those after `after`."""
        return drive(self._core.sessions(after=after, limit=limit))

    def info(self, session_id: str) -> SessionInfo:
        """Return the session as a listing shows it. Raises SessionNotFound."""
        return drive(self._core.info(session_id))

    def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        """Store a session that `export()` gave, under its own id or another, and return that id.

        Every reference is checked and every total made anew; ids, times and links are kept. Where the session
        exists, "error" raises Conflict, "replace" puts the export in its place in one step, and "merge"
        appends those of its entries that are not there, but for what was taken back, and results whose call was
        erased. Raises ImportFailed, and stores nothing, for an export that does not hold together.
        """
        return drive(self._core.import_session(data, session_id=session_id, on_conflict=on_conflict))

    def import_file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: str = "auto",
        format: str | None = None,
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
        `session_id` where one is given, else into sessions of the conversations' own ids, or named after the file.

        Importing a file again adds nothing, one that has grown adds what is new, and an import that was
        interrupted is completed by repeating it; under another `key` the same messages come once more. With
        `branches` the branches of a conversation that are not current become sessions, too (`<id>~2`, ...).
        `progress` is called with the bytes done and their total (None where nobody knows). `limits` (`Limits`, or a
        mapping with some of them) bounds what the file may hold: what is larger than one is refused, naming it.

        What is malformed is reported with its place, and the rest is taken. Raises ImportFailed, and stores nothing,
        for a file that is of no source, or could be of several, and with `strict` for the first fault; OSError where
        the file cannot be opened; ConfigError for an option that is not accepted.
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

    def delete_session(self, session_id: str) -> bool:
        """Destroy the session with everything that belongs to it and return whether there was one."""
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

        `session` goes with every copy of its entries in branches. `tenant`, which must be this memory's own, goes with
        all sessions and items. What `matches` a text, or a `Query`, goes as `erase` has it. Of a `user` (an id) goes
        what messages of that `name`, or with that `user_id` in their metadata, said, with the whole interactions that
        they began; a session in which nothing else is left is deleted. Summaries are made anew from what is left,
        without a model, or withdrawn.

        Interrupted, the same again goes on with what is left. Sessions that come into being meanwhile are found.
        `progress` is called with the number of sessions done, and of all. `dry_run` changes nothing. Raises ConfigError
        unless exactly one is given, and in a memory that only reads; ErasureFailed where what was made from entries
        cannot be removed: what is erased by then stays erased.
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
        """
        return drive(self._core.vacuum(progress=progress))

    def derive(self, derived: Derived) -> Callable[[], None]:
        """Have something that is made from this tenant's entries, such as a search index, told before entries go.

        From then on the store knows its name, in every process: who erases where it has not joined leaves a note in the
        store. What such notes say is removed here first, before this returns, and later by `sweep`. Join before
        anything is made.

        Returns a function after which it is told no longer in this memory; the store knows of it until `underive`.
        Raises ConfigError for what is not as `palimpsest.sessions.derived.Derived` says, ErasureFailed where it does
        not remove what it should, and StoreUnavailable in a memory that only reads.
        """
        return drive(self._core.derive(derived))

    def derivers(self) -> tuple[str, ...]:
        """Return the names of what is made from this tenant's entries, in this process or another."""
        return drive(self._core.derivers())

    def underive(self, name: str) -> bool:
        """Have the store forget what joined under this name, with the notes for it: for what is there no more.

        Returns whether the store knew of it.
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
        or `session`: entries, rewound and archived ones, too, summaries of every version, records, names of contexts.
        Up to `sample` findings are shown as they would be. `progress` is called with the sessions done and all.

        With `apply` entries and summaries are rewritten in place, and entries of types that the policy withholds are
        erased, in every branch; each session begins a new epoch. The branches of `session`, which have copies of what
        was made of it, are scanned, too. What others add meanwhile is looked at, too. Interrupted, the same again goes
        on with what is left. What cannot be checked stays as it is, and is reported. Raises ConfigError without a
        policy, and for `apply` in a memory that only reads, or over a store that cannot rewrite; SessionNotFound;
        ErasureFailed where what was made from entries cannot be removed.
        """
        return drive(self._core.scan(privacy, session=session, apply=apply, sample=sample, progress=progress))

    def sweep(self) -> int:
        """Erase what has expired of all that this tenant owns; return how many entries and items that were.

        Summaries that told of it are made anew from the rest, without a model. What joined with `derive` removes what
        was erased elsewhere meanwhile, too.
        """
        return drive(self._core.sweep())

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call `handler(session_id, facts)` after each `event` and return a function that stops it.

        Events: entry:added, cut, compressed, evicted, erased, restored, compaction:skipped, compaction:failed,
        summarizer:failed, session:cleared, session:forked, session:imported, session:replaced, session:rewound,
        context:over_budget, condition:error, privacy:refused, redacted, usage:recorded, turn:ended. A handler may be a
        coroutine function; one that raises is logged and breaks nothing.
        """
        return self._core.on(event, handler)

    def close(self) -> None:
        """Close the store, when what runs in the background is done; whoever uses it afterwards gets Closed.

        What is not done within 10 seconds is given up, which a warning in the log says: it loses nothing that was
        acknowledged. Closing twice is fine.
        """
        drive(self._core.close())
