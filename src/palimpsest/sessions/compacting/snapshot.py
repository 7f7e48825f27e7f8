"""Loading a session into a snapshot, as triggers and strategies see it. Writes nothing but token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from palimpsest.compaction import InteractionGroups, Snapshot
from palimpsest.context.budget import Reckoned, bounds_of
from palimpsest.context.groups import Group, Meter, by_group, fill
from palimpsest.context.window import without
from palimpsest.formats import find_format
from palimpsest.formats.wording import is_maskable, mask_note, mask_tokens, summary_entry, summary_entry_tokens
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary
from palimpsest.log.withdrawal import bare
from palimpsest.sessions.accesses import access_times
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import batches_of
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import evicted_by_cut, pinned_groups
from palimpsest.stores import Store, best_effort, compaction_of
from palimpsest.tokens.counter import TokenCounter


class Loaded(msgspec.Struct, frozen=True):
    """A session at one revision: its head, its compaction `state`, the snapshot made of it, its entries by `seq`.

    `archived` is what cuts of the session's view have evicted since the last compaction. `questions` are entries that
    are covered, evicted or hidden, and shown only because the present cut anchors them; the next compaction ends that.
    """

    head: Head
    state: Compaction
    snapshot: Snapshot
    archived: tuple[Span, ...]
    entries: Mapping[int, Entry]
    questions: tuple[Span, ...] = ()

    def within(self, where: Iterable[Span]) -> list[Entry]:
        """Return the loaded entries in these spans, oldest first, without erased ones."""
        return [self.entries[seq] for seq in spans.members(where) if seq in self.entries]


class SnapshotReader:
    """Reads one session. `reckoned` is the budget of its last context, if that is known."""

    def __init__(self, store: Store, options: Options, *, reckoned: Reckoned | None = None) -> None:
        self._store, self._options, self._reckoned = store, options, reckoned
        self.apart = store.apart
        """Runs long computations that do no I/O."""

    @classmethod
    def of(cls, scope: SessionScope) -> SnapshotReader:
        """Return a reader of an open session."""
        return cls(scope.store, scope.options, reckoned=scope.reckoned)

    async def state(self, head: Head) -> Compaction:
        """Return the compaction state of this head: what is covered, evicted and hidden, and the current summaries."""
        return await self._recorded(head.compaction)

    async def summaries(self, state: Compaction) -> list[Summary]:
        """Return the current summaries, oldest first."""
        current = [(await self._recorded(revision)).summary for revision in state.current]
        return [summary for summary in current if summary is not None and not summary.withdrawn]

    async def _recorded(self, revision: int) -> Compaction:
        return await compaction_of(self._store, self._options.key, revision)

    async def evicted(self, head: Head, state: Compaction) -> tuple[Span, ...]:
        """Return what cuts of the session's view have evicted since the last compaction, without pinned groups."""
        return await evicted_by_cut(self._store, self._options, head, state)

    async def load(
        self, head: Head, now: int, *, archive: bool, passed: bool = False, strategy: str = "", stores: bool = True
    ) -> Loaded:
        """Load the session at this head.

        With `archive`, evicted entries are loaded, too; with `passed`, only those that cuts have evicted since the last
        compaction. `strategy` is the name of the strategy whose last run the snapshot knows. With `stores`, token
        counts that are made on the way are stored.
        """
        state = await self.state(head)
        archived = await self.evicted(head, state)
        meter = Meter(self._options.counter, find_format(self._options.format), self._options.model)
        meter.exact = True

        def weigh(summary: Summary) -> int:
            return meter.cost(summary_entry(summary, tokens=summary.shown_tokens))

        cut = head.cut_of(self._options.view)
        inactive = spans.union(state.inactive, state.hidden)
        pinned = spans.of(await pinned_groups(self._store, self._options, head, head.pinned))
        anchors = spans.of(cut.anchors) if cut.compaction == head.compaction else ()
        questions = spans.minus(spans.common(inactive, anchors), pinned)
        shown = spans.union(pinned, questions)  # even if covered, evicted or hidden
        out_of_sight = [*spans.minus(inactive, shown), *bare(head), *archived]
        kept_in_place = spans.members(spans.common(inactive, shown))  # strategies treat these like pinned entries
        active = await self.read(spans.visible(spans.union(out_of_sight), head.first_seq - 1, head.next_seq))
        evicted = spans.union(archived, state.evicted) if archive else archived if passed else ()
        old = await self.read(spans.minus(evicted, spans.union(bare(head), shown)))
        summaries = await self.summaries(state)
        accessed, clock = await access_times(self._store, self._options.key, head, active)

        def make() -> Snapshot:
            return Snapshot(
                interactions=self._interactions(active, head, max(state.mask, cut.mask), meter, now, cut),
                archived=self._interactions(old, head, state.mask, meter, now),
                summaries=[self._counted(summary) for summary in summaries],
                pinned=frozenset((*head.pinned, *kept_in_place)),
                max_tokens=self._limit(),
                max_messages=self._options.limits.max_messages,
                mask=max(state.mask, cut.mask),
                seen=head.attempts.cursors.get(strategy, 0) if head.attempts else 0,
                tried=head.attempts.tried if head.attempts else 0,
                now=now,
                accessed=accessed,
                clock=clock,
                weigh=weigh,
                fence=fence(_sample(head), meter.counter, weigh) if archive else 0,
                notes=_notes(active, meter),
            )

        snapshot = await self.apart(make)
        if stores and meter.counted and self._store.writable:
            counter = self._options.counter.name
            await best_effort(self._store.count(self._options.key, counter, meter.counted, epoch=head.epoch))
        entries = {entry.seq: entry for entry in (*old, *active) if not entry.erased}
        return Loaded(head, state, snapshot, archived, entries, questions)

    async def costs(self, head: Head, now: int) -> tuple[int, int]:
        """Return the tokens of the active set, and how many of these are in the current summaries."""
        snapshot = (await self.load(head, now, archive=False, stores=not self._options.readonly)).snapshot
        return snapshot.tokens, snapshot.standing(snapshot.summaries)

    def _limit(self) -> int | None:
        """Return what the budget leaves for the log, in counted tokens; None if nothing bounds it."""
        budget = self._reckoned.exactly().budget if self._reckoned is not None else None
        if budget is not None:
            return budget.room
        options = self._options
        return bounds_of(options.limits, options.model, options.model_name).log(options.default_factor())

    async def ancestors(self, summary: Summary, steps: int) -> list[Summary]:
        """Return the ancestor of `summary` so many versions before it, in a list.

        The list is empty if a version on the way has several parents or none, or was withdrawn.
        """
        for _ in range(steps):
            if len(summary.parents) != 1:
                return []
            parent = (await self._recorded(summary.parents[0])).summary
            if parent is None or parent.withdrawn:
                return []
            summary = parent
        return [summary]

    async def read(self, where: Iterable[Span]) -> list[Entry]:
        """Return the entries in these spans, oldest first, with their counts."""
        batches = batches_of(self._store, self._options.key, where, counter=self._options.counter.name)
        return [entry async for batch in batches for entry in batch]

    def _counted(self, summary: Summary) -> Summary:
        """Return the summary with token counts by the session's counter, since counts of two are never mixed."""
        counter = self._options.counter
        if summary.counter == counter.name:
            return summary
        tokens, shown = counter.count(summary.text), summary_entry_tokens(summary, counter.count)
        return msgspec.structs.replace(summary, tokens=tokens, shown_tokens=shown, counter=counter.name)

    def _interactions(
        self, entries: Sequence[Entry], head: Head, mask: int, meter: Meter, now: int, cut: Cut | None = None
    ) -> tuple[InteractionGroups, ...]:
        """Return the entries by interaction. Active ones cost what they cost under the `cut` that shows them."""
        groups = by_group(entries)
        open_groups = {call.group for call in head.calls} | ({head.group} if head.group else set())
        interactions: list[tuple[int, list[Group]]] = []
        for group in groups:
            group.pinned = any(entry.seq in head.pinned for entry in group.entries)  # even if the pinned one is erased
            group.entries = [entry for entry in group.entries if not entry.erased and not entry.expired(now)]
            if not group.entries:
                continue
            group.pending = group.seq in open_groups
            _show(group, mask, head, meter, cut)
            if not interactions or interactions[-1][0] != group.turn:
                interactions.append((group.turn, []))
            interactions[-1][1].append(group)
        newest = 0 if cut is None else head.turn
        return tuple(
            InteractionGroups(turn, tuple(members), 0 < turn == newest and not is_complete(members))
            for turn, members in interactions
        )


def fence(shell: Summary, counter: TokenCounter, weigh: Callable[[Summary], int]) -> int:
    """Return about how many tokens a context adds to the text of a summary like `shell`."""
    sample = msgspec.structs.replace(shell, text=_SAMPLE)
    shown = summary_entry_tokens(sample, counter.count)
    return weigh(msgspec.structs.replace(sample, shown_tokens=shown)) - counter.count(_SAMPLE)


_SAMPLE = "They spoke about it. " * 20
"""A text that is long enough for all that formats add to long texts."""


def _notes(active: Sequence[Entry], meter: Meter) -> dict[int, int]:
    """Return, by `seq`, the tokens of the note that would replace each tool result that may be masked."""
    results = (entry for entry in active if entry.kind == "tool_result" and is_maskable(entry))
    return {entry.seq: meter.note(entry, mask_note(entry), mask_tokens(entry.seq)) for entry in results}


def _sample(head: Head) -> Summary:
    """Return a summary without text, about like the next one of a session."""
    covers = ((head.first_seq, max(head.next_seq - 1, head.first_seq)),)
    return Summary(id="019a9f3c-7b2e-7d41-8c5a-6e1f0b9d4a27", text="", covers=covers)


def _show(group: Group, mask: int, head: Head, meter: Meter, cut: Cut | None) -> None:
    """Compute what the group costs as the cut shows it: without superseded contexts and what the cut leaves out."""
    members, clamps = group.entries, {clamp.seq: clamp for clamp in cut.clamps} if cut is not None else {}
    left_out = {entry.seq for entry in members if cut is not None and _is_left_out(entry, head, cut)}
    if left_out:
        group.entries = without(members, left_out, [])
    fill(group, mask, clamps, meter)
    group.entries = members


def _is_left_out(entry: Entry, head: Head, cut: Cut) -> bool:
    if entry.kind == "context" and head.has_newer(entry.name, entry.seq):
        return True
    returns = entry.seq in head.pinned and (cut.compaction != head.compaction or entry.seq not in cut.pins)
    return not returns and any(low <= entry.seq <= high for low, high in cut.gone)  # they may overlap


def is_complete(groups: Sequence[Group]) -> bool:
    """Whether an interaction has its final answer and no unanswered call."""
    last = groups[-1].entries[-1]
    answered = last.kind == "message" and last.role == "assistant" and not (last.is_reasoning or last.pauses)
    return answered and not any(group.pending for group in groups)
