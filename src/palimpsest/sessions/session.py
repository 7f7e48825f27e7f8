"""`AsyncSession`: one conversation. Every verb of it is written here once; `Session` is its synchronous face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.errors import ConfigError, Conflict, EntryNotFound
from palimpsest.formats import Message
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.checks import check_descriptors, check_whole
from palimpsest.log.entry import Entry
from palimpsest.log.head import Usage
from palimpsest.privacy.gate import guarded
from palimpsest.sessions.adding.appender import TurnBuffer
from palimpsest.sessions.erasing.verbs import Erasing
from palimpsest.sessions.lease import Lease
from palimpsest.sessions.scope import Sent

if TYPE_CHECKING:
    from palimpsest.context.result import Context
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.contexts.builder import ContextBuilder
    from palimpsest.sessions.reading import Interaction, Stats
    from palimpsest.stores import Store


class TurnEnd(msgspec.Struct, frozen=True):
    """What `end_turn` found: how many entries were added since the turn began, ids of calls still open, and what
    triggers have led to."""

    added: int
    open_calls: tuple[str, ...]
    compactions: tuple[CompactionResult, ...] = ()


_PART_OF = "They are a part of it: where a provider reports them beside it, as Anthropic does, add all of its input up"


@guarded
class AsyncSession(Erasing):
    """One conversation's log and its contexts. Made by `AsyncMemory.session`; opening it reads nothing.

    Every write is one commit, and acknowledged when it returns. Any number of sessions of any number of
    processes may write to one conversation: entries never interleave inside one `add` or an atomic turn.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"

    # --- reading

    async def entries(
        self, *, after: int = 0, limit: int | None = None, at: int | None = None, rewound: bool = False
    ) -> list[Entry]:
        """Return the log's entries with a `seq` over `after`, oldest first: all, or at most `limit`.

        Evicted entries are there like any other, erased ones as tombstones, those that a rewind has taken back
        only with `rewound`. With `at` it is the log as it was at that revision.
        """
        check_whole(after, "after")
        check_whole(limit, "limit", or_none=True)
        then = None if at is None else await self._past.view(await self._reader.head(), self._options.view, at)
        return await self._reader.entries(after, limit, rewound=rewound, then=then)

    async def entry(self, id: str | int) -> Entry:
        """Return the entry of this id, or of this `seq` (the number that notes in a context give).

        Evicted, masked and clamped entries come back whole. It counts as an access, for `lru`. Raises EntryNotFound.
        """
        found = await self._reader.named(id)
        if self._scope.store.writable and not self._options.readonly:
            from palimpsest.sessions.accesses import accessed

            await accessed(self._scope.store, self._options, found)
        return found

    async def active_entries(self) -> list[Entry]:
        """Return what the session's view shows from now on, oldest first; summaries are not included.

        That is what its newest cut has kept, whatever the budget of the next call makes of it.
        """
        return await self._reader.active(await self._reader.head(), self._scope.clock())

    async def interactions(self) -> list[Interaction]:
        """Return the whole log by interaction, oldest first; what came before the first is the preamble, -1."""
        return await self._reader.interactions()

    async def stats(self) -> Stats:
        """Return the session in numbers. What has not been counted yet is counted now, once."""
        return await self._reader.stats(self._scope.clock(), self._snapshots.costs)

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
        `at` rebuilds what the same call was given at a revision (`ctx.revision`); what was erased since is left out.
        `dry_run` stores nothing.

        Raises BudgetImpossible, with the figures, where what may not be left out does not fit, PastUnknown where
        nothing tells any more what was given.
        """
        from palimpsest.sessions.contexts.builder import ContextBuilder
        from palimpsest.sessions.contexts.request import ContextRequest

        if system is not None and not isinstance(system, str):
            raise ConfigError("system", system, "text, or None")
        if isinstance(tools, str | bytes | Mapping) or not isinstance(tools or (), Sequence):
            raise ConfigError("tools", tools, "a list of tools' schemas")
        if isinstance(view, str):
            self._gate.refuse([view], "view")
        call = ContextRequest(
            system or None, tuple(tools or ()), format, reserve, max_tokens, max_messages, view, at, dry_run
        )
        own = at is None and view in (None, self._options.view)
        compacts = bool(self._options.long_term) and own and not dry_run and not self._options.readonly
        if compacts and self._options.before_turn:
            await self._watch.turn_ended()
        whole, revision = await self._with_withheld() if at is None else (None, 0)
        noted, compacts = compacts, compacts and whole is None
        if at is not None:
            from palimpsest.sessions.contexts.earlier import EarlierContext  # few sessions look back

            builder: ContextBuilder = EarlierContext(self._scope.store, self._options, call, self._scope.clock())
        else:
            yields = compacts and self._options.auto_compact == "inline"
            builder = ContextBuilder(
                whole or self._scope.store, self._options, call, self._scope.clock(), yields=yields
            )
        context = await self._scope.runner.whole(builder.context, reads=True)
        if own and (max_tokens, max_messages) == (None, None) and context.budget is not None:
            self._scope.room = context.budget.room
        if builder.overflow is not None:
            await self._watch.overflowed(*builder.overflow)
            builder = ContextBuilder(self._scope.store, self._options, call, self._scope.clock())
            context = await self._scope.runner.whole(builder.context, reads=True)
        if whole is not None:
            builder.changed = None
            context.unstored(revision, "it shows what is withheld, so nothing of it was stored")
        await self._tell(builder, context)
        if at is None:
            self._scope.sent = context if whole is None else Sent.of(context)
        if noted:
            await self._note_prompt(context)
        if compacts and self._options.auto_compact == "background":
            await self._evicted(builder, context)
        return context

    async def _evicted(self, builder: ContextBuilder, context: Context) -> None:
        """Have what a cut has evicted summarised."""
        cut = builder.changed.detail if builder.changed is not None else {}
        if cut.get("evicted") and context.budget:
            await self._watch.overflowed(cut["tokens_before"], context.budget.room)

    async def _with_withheld(self) -> tuple[Store | None, int]:
        """Where the session is with what is withheld of its open interaction (None: nothing is), and its revision."""
        held = self._scope.withheld.get(self._scope.place)
        if held is None:
            return None, 0
        head = await self._reader.head()
        whole = await self._scope.runner.whole(lambda: held.session(head), reads=True)
        if whole is None:
            self._scope.let_go()
        return whole, head.revision

    async def _tell(self, builder: Any, context: Context) -> None:
        observers, told = self._scope.observers, self._gate.redact
        for text, failure in builder.layout_reader.failures.items():
            if observers.first_failure(self.id, text):
                await self._scope.tell("condition:error", condition=told(text), error=told(failure))
        if builder.changed is not None and (observers.wants("cut") or observers.wants("evicted")):
            change = builder.changed
            facts = {"view": change.view, "reason": change.reason, "epoch": context.epoch, **change.detail}
            await self._scope.tell("cut", **facts)
            if change.detail.get("evicted"):
                await self._scope.tell("evicted", **facts)
        if context.problems:
            await self._scope.tell("context:over_budget", tokens=context.tokens)

    async def record_usage(
        self,
        input_tokens: int,
        output_tokens: int = 0,
        *,
        cached_tokens: int = 0,
        context: Context | None = None,
    ) -> Usage:
        """Note what the provider reported for a call, in tokens, and return the session's usage.

        `input_tokens` is all of the input, what a cache served or stored included; `cached_tokens` is how much of it a
        cache served. Raises ConfigError where that is more than all. `context` is what was sent (default: the session's
        last). For a model without a public tokenizer the ratio of reported to counted tokens scales the budget from the
        next cut on, within bounds: a report beyond them is named in the warnings of contexts.
        """
        for name, value in (
            ("input_tokens", input_tokens),
            ("output_tokens", output_tokens),
            ("cached_tokens", cached_tokens),
        ):
            check_whole(value, name)
        if cached_tokens > input_tokens:
            raise ConfigError("cached_tokens", cached_tokens, f"at most input_tokens ({input_tokens}). {_PART_OF}")
        if context is not None and not hasattr(context, "counted"):
            raise ConfigError("context", context, "the Context that was sent, or None for the last one")
        self._scope.may_write()
        head = await self._reader.head()
        before = head.usage or Usage(input_tokens=0)
        sent = context or self._scope.sent
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            counted=sent.counted if sent is not None else 0,
            margin=self._options.default_factor(),
            epoch=head.epoch,
            revision=sent.revision if sent is not None else head.revision,
            stale=sent is not None and sent.revision < head.compaction,
            calls=before.calls + 1,
            total_input=before.total_input + input_tokens,
            total_output=before.total_output + output_tokens,
            total_cached=before.total_cached + cached_tokens,
        )
        await self._scope.store.commit(self._scope.key, Change(kind="usage", reason="usage", usage=usage))
        await self._scope.tell("usage:recorded", usage=usage)
        return usage

    # --- pins

    async def pin(self, *ids: str | int) -> None:
        """Keep these entries in every context. They stay in place until a cut passes them."""
        await self._pin(ids, unpin=False)

    async def unpin(self, *ids: str | int) -> None:
        """Let go of pins, from the next cut on."""
        await self._pin(ids, unpin=True)

    async def _pin(self, ids: Iterable[str | int], *, unpin: bool) -> None:
        self._scope.may_write()
        named, reason = tuple(ids), "unpinned" if unpin else "pinned"
        while named:
            head = await self._reader.head()
            seqs = tuple([(await self._reader.named(id)).seq for id in named])
            for seq in seqs if not unpin else ():
                if spans.within(head.rewound, seq):
                    raise EntryNotFound(self.id, f"{seq}, which was rewound")
            change = Change(kind="pin", reason=reason, created=head.created, seqs=seqs, unpin=unpin)
            try:
                await self._scope.store.commit(self._scope.key, change)
                return
            except Conflict:  # it was deleted; another may be in its place
                continue

    # --- turns

    def turn(self, *, atomic: bool = False, wait: float | None = None) -> AbstractAsyncContextManager[AsyncSession]:
        """One run of the model as a block: `async with session.turn():`.

        Adds inside are durable at once, and holders of `turn()` on one session, in whatever process, go one
        after the other: it waits as long as the other run lives, or for `wait` seconds (0: not at all), and raises
        LockTimeout then. A run whose process was killed is over 30 seconds later. Plain adds never wait. With `atomic`
        the adds are gathered and committed together when the block ends, or dropped when it raises; such a block waits
        for nobody.
        """
        if not isinstance(atomic, bool):
            raise ConfigError("atomic", atomic, "True or False")
        if wait is not None and (isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0):
            raise ConfigError("wait", wait, "a number of seconds, 0 or more, or None: as long as the other run lives")
        return self._turn(atomic, wait)

    @asynccontextmanager
    async def _turn(self, atomic: bool, wait: float | None) -> AsyncIterator[AsyncSession]:
        if self._in_turn:
            raise ConfigError("turn", "a turn inside a turn", "one turn at a time on one session object")
        try:
            self._added, self._in_turn = 0, True
            if atomic:
                self._buffer = TurnBuffer()
            else:
                renewals, runner = self._scope.memory.renewals, self._scope.runner
                self._lease = Lease(self._scope.store, runner, self._scope.key, "turn", renewals.seconds)
                try:
                    await self._lease.take(renewals, wait)
                except OSError as fault:
                    check_descriptors(fault)
                    raise
            yield self
            await self.end_turn()
        except BaseException:
            self._forget()
            raise
        finally:
            try:
                await self._left()
            finally:
                await self._left()  # an interrupt may have cut the first one short

    async def end_turn(self) -> TurnEnd:
        """Say that a run of the model is over: commit what an atomic turn gathered, compact where a trigger says so,
        and persist as the session's `persistence` has it.

        INCREMENTAL has stored everything already. FLUSH without `archive` destroys what compactions have replaced. What
        an EPHEMERAL session has added is gone. Returns what was added, which calls are open and what was compacted.
        """
        buffer, self._buffer = self._buffer, None
        if buffer is not None and buffer.slots:
            await self._commit(buffer.slots, given_ids=buffer.given_ids)
        self._scope.let_go()
        await self._release()
        flushes = self._options.persistence == "flush" and not self._options.archive
        done = await self._watch.turn_ended(self._flush if flushes else None)
        end = TurnEnd(self._added, (await self._reader.head()).open_calls, done)
        self._forget()
        await self._scope.tell("turn:ended", **msgspec.structs.asdict(end))
        self._added = 0
        return end

    def _forget(self) -> None:
        """Let go of what an EPHEMERAL session has added."""
        self._scope.let_go()
        if self._options.persistence == "ephemeral":
            self._scope.begin_anew()
            self._watched = None

    async def _left(self) -> None:
        self._buffer, self._in_turn = None, False
        await self._release()

    async def _release(self) -> None:
        if self._lease is not None:
            await self._lease.give_back()
            self._lease = None
