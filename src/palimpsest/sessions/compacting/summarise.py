"""Making the summary that a plan asks for, by the session's summarizer. Nothing is locked or written meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec

from palimpsest.compaction import Plan, Strategy
from palimpsest.errors import SummarizerFailed
from palimpsest.errors.wording import briefly
from palimpsest.formats.wording import sendable, summary_entry_tokens
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.ids import new_ids
from palimpsest.log.summary import Spent, Summary, SummaryItem
from palimpsest.privacy.gate import Gate
from palimpsest.privacy.mentions import Mentions, summary_mentions
from palimpsest.sessions.compacting.snapshot import Loaded, SnapshotReader, fence
from palimpsest.sessions.options import Options
from palimpsest.summaries import Draft, Passes, Prompt, Recipe, Rejected, Reply, SummarySource
from palimpsest.summaries.density import summarise
from palimpsest.summaries.heuristic import heuristic
from palimpsest.summaries.mentions import identifiers
from palimpsest.summaries.models import Asked, Summarizer
from palimpsest.summaries.models.callables import BoundSource
from palimpsest.summaries.replies import flaw_of, is_longer
from palimpsest.tokens.counter import failures_of

IMPORTANT = 0.8
"""No summary may leave out the identifiers (numbers, names) of entries of this importance or more."""

MOST_TOLD = 600
"""The most characters of the stored reason for a fallback: an error may quote everything that was sent."""

MOST_READ, READ_SHARE = 250_000, 16
"""The most characters of an answer, or if that is more, this many times the tokens asked for. Anything longer is not a
summary, and checking it takes seconds for each megabyte."""

REBUILD_TOKENS = 64_000
"""The most tokens of entries to read again when a summary is made anew from them, so that its errors do not add up."""


class SummaryMaker:
    """Makes summaries for one session. With `without`, none of them contains what that looks for.

    `pays` says that a model or a callable is called, not only the heuristic.
    """

    def __init__(
        self,
        snapshots: SnapshotReader,
        options: Options,
        clock: Callable[[], int],
        summarizer: Asked | None,
        gate: Gate,
        without: Mentions | None = None,
    ) -> None:
        self._snapshots, self._options, self._clock = snapshots, options, clock
        self._summarizer, self.gate, self._without = summarizer, gate, without
        self.pays = summarizer is not None
        self.held: list[object] = []
        """What summaries were made from, for the caller to free in a thread."""
        self.spent = Spent()
        """What the last summary has cost so far, whether it was accepted or not."""

    async def fold(
        self, strategy: Strategy, loaded: Loaded, plan: Plan, renew: Callable[[], Awaitable[object]]
    ) -> Summary:
        """Return the summary that the plan asks for. `renew` is called before every call of the summarizer.

        The privacy policy is applied to the sources once more, since they may be older than the policy. If the summary
        contains what must be left out, the heuristic makes another one. Raises Rejected if no acceptable summary was
        made, SummarizerFailed if the summarizer did not answer, and PrivacyRefused.
        """
        summary = await self._make_summary(strategy, loaded, plan, renew)
        if self._without is None or not await self._snapshots.apart(summary_mentions, summary, self._without):
            return summary
        spent, summarizer, self._summarizer = self.spent, self._summarizer, None
        try:
            summary = await self._make_summary(strategy, loaded, plan, renew)
        finally:
            self.spent, self._summarizer = spent, summarizer
        if await self._snapshots.apart(summary_mentions, summary, self._without):
            raise Rejected("failed", "the summary would repeat erased text")
        return msgspec.structs.replace(summary, spent=spent, fallback="the summarizer repeated erased text")

    async def _make_summary(
        self, strategy: Strategy, loaded: Loaded, plan: Plan, renew: Callable[[], Awaitable[object]]
    ) -> Summary:
        """Make a summary of what the plan covers and of the summaries that it folds in."""
        self.spent = Spent()
        if self.gate.withholds("summary"):
            raise Rejected("failed", "the privacy policy withholds summaries")
        apart = self._snapshots.apart
        folded = [summary for summary in loaded.snapshot.summaries if summary.revision in plan.fold]
        covered_tokens, id = await apart(_cost, loaded, plan.cover), new_ids(1, self._clock() // 1000)[0]
        source_tokens = covered_tokens + loaded.snapshot.standing(folded)
        fence_tokens = await apart(self._fence, loaded, plan, folded, id)
        if source_tokens - fence_tokens < 2 and not self._writes:
            fence = f"the lines around a summary alone take {fence_tokens} tokens"
            raise Rejected("no_gain", f"{fence}, the entries that it would replace {source_tokens}")
        entries, previous = loaded.within(plan.cover), folded
        rebuilt = await self._rebuilt(strategy, plan, folded) if folded else None
        if rebuilt is not None:
            entries, previous = rebuilt
        source = await apart(self._source, entries, previous, folded)
        self.held += (entries, source)
        recipe = self._recipe(strategy, plan, source_tokens - fence_tokens)
        draft, fallback = await self._draft(strategy, source, recipe, renew)
        is_fresh, pinned = rebuilt is not None and not previous, source.pinned
        make = partial(self._summary, loaded, plan, folded, id, draft, fallback, covered_tokens, pinned, fresh=is_fresh)
        summary, cost = await apart(_weighed, make, loaded.snapshot.standing)
        if cost >= source_tokens and not self._writes:
            cost_note = f"the summary takes {cost} tokens"
            raise Rejected("no_gain", f"{cost_note}, the entries that it would replace {source_tokens}")
        return summary

    @property
    def _writes(self) -> bool:
        """Whether a user's function writes the summary itself. Then it is taken whatever its length."""
        return isinstance(self._summarizer, BoundSource)

    def _source(self, entries: list[Entry], previous: list[Summary], folded: list[Summary]) -> SummarySource:
        """Return what the summary is made from, after applying the privacy policy."""
        shown = [entry for entry in self.gate.shown(entries) if not entry.erased]
        redacted = [self.gate.summary(summary) for summary in previous]
        pinned = [self.gate.text(text) for text in _pinned(folded, shown)]
        return SummarySource(entries=shown, previous=redacted, pinned=pinned)

    def _fence(self, loaded: Loaded, plan: Plan, folded: list[Summary], id: str) -> int:
        """Return how many tokens a context adds to the text of the summary that is to be made."""
        covers = spans.union(plan.cover, *(summary.covers for summary in folded))
        return fence(Summary(id=id, text="", covers=covers), self._options.counter, loaded.snapshot.weigh)

    def _recipe(self, strategy: Strategy, plan: Plan, source_tokens: int) -> Recipe:
        style = strategy.style
        bound = None if isinstance(self._summarizer, BoundSource) else self._summarizer
        limit = min(plan.summary_most or source_tokens - 1, source_tokens - 1)
        return Recipe(
            target=max(min(plan.summary_tokens, limit), 1),
            most=max(limit, 1),
            source_tokens=source_tokens,
            loops=style.cod_max_loops,
            instructions=style.instructions,
            template=style.prompt_template,
            window=bound.window if bound is not None else None,
            max_output=bound.max_output if bound is not None else None,
            checked=bound is None or bound.checked,
            bare=style.bare_heuristic,
            nonce=new_ids(1, self._clock() // 1000)[0].replace("-", "")[12:],
        )

    async def _draft(
        self, strategy: Strategy, source: SummarySource, recipe: Recipe, renew: Callable[[], Awaitable[object]]
    ) -> tuple[Draft, str | None]:
        """Return the draft, and why the heuristic made it in place of the configured summarizer (None: it did not)."""
        count = self._options.counter.count
        if self._summarizer is None:
            return await self._snapshots.apart(heuristic, source, recipe, count), None
        try:
            if isinstance(self._summarizer, BoundSource):
                return await self._written(self._summarizer, source, renew), None
            return await self._drive_passes(self._summarizer, summarise(source, recipe, count), renew), None
        except (Rejected, SummarizerFailed) as fault:
            if strategy.style.on_failure != "heuristic":
                raise
            draft = await self._snapshots.apart(heuristic, source, recipe, count)
            return draft, briefly(self.gate.redact(str(fault)), MOST_TOLD)

    async def _written(
        self, author: BoundSource, source: SummarySource, renew: Callable[[], Awaitable[object]]
    ) -> Draft:
        """Return the summary that a user's function writes."""
        await renew()
        reply = await author.write(source)
        self.spent += reply.spent
        text = (await self._snapshots.apart(self._clean_reply, reply)).text.strip()
        if not text:
            raise Rejected("empty", "the summarizer gave an empty answer")
        return Draft(text=text, method="plain")

    async def _drive_passes(
        self, summarizer: Summarizer, passes: Passes, renew: Callable[[], Awaitable[object]]
    ) -> Draft:
        """Drive the passes: send each prompt to the summarizer, and its answer or failure back to the passes."""
        apart = self._snapshots.apart
        step = await apart(_stepped, partial(next, passes))
        while isinstance(step, Prompt):
            await renew()
            try:
                reply = await _answer(summarizer, self._clean_prompt(step))
                self.spent += reply.spent
                _check_length(summarizer, step, reply)
            except SummarizerFailed as fault:
                step = await apart(_stepped, partial(passes.throw, fault))
                continue
            step = await apart(_stepped, partial(passes.send, await apart(self._clean_reply, reply)))
        return step

    def _clean_prompt(self, prompt: Prompt) -> Prompt:
        """Redact the prompt once more: private text may be in what the user configured, or in escapes of an answer."""
        text = self.gate.text(prompt.text)
        return prompt if text == prompt.text else msgspec.structs.replace(prompt, text=text, stable=0)

    def _clean_reply(self, reply: Reply) -> Reply:
        """Redact the answer before it is measured and quoted in the next prompt."""
        text, data = self.gate.text(reply.text), self.gate.value(reply.data)
        return msgspec.structs.replace(reply, text=text, data=data)

    async def _rebuilt(
        self, strategy: Strategy, plan: Plan, folded: list[Summary]
    ) -> tuple[list[Entry], list[Summary]] | None:
        """Return entries and summaries to make the summary anew from, if a rebuild is due; None to fold as usual.

        A rebuild keeps errors of one version from being carried on by every later one. All covered entries are read
        again if they are not too many (`REBUILD_TOKENS`); otherwise those that were folded in since an earlier version.
        There is no rebuild from entries that were erased, such as by a flush, since only summaries tell of these.
        """
        every = strategy.style.rebuild_every
        latest = folded[0]
        if len(folded) > 1 or self._summarizer is None or self._writes or not every or latest.folds + 1 < every:
            return None
        for base in ([], await self._snapshots.ancestors(latest, every)):
            covered, tokens = (base[0].covers, base[0].source_tokens) if base else ((), 0)
            if latest.source_tokens - tokens > REBUILD_TOKENS:
                continue
            entries = await self._snapshots.read(spans.minus(spans.union(latest.covers, plan.cover), covered))
            if not any(entry.erased for entry in entries):
                now = self._clock()
                return [entry for entry in entries if not entry.expired(now)], base
        return None

    def _summary(
        self,
        loaded: Loaded,
        plan: Plan,
        folded: list[Summary],
        id: str,
        draft: Draft,
        fallback: str | None,
        covered_tokens: int,
        pinned: Sequence[str],
        *,
        fresh: bool,
    ) -> Summary:
        """Return the summary to commit. The privacy policy is applied to the draft as to any entry."""
        text = sendable(self.gate.text(draft.text))
        drafted = {item.text for item in draft.items if item.pinned}
        added = [SummaryItem(kind="fact", text=sendable(one), pinned=True) for one in pinned if one not in drafted]
        items = tuple(
            msgspec.structs.replace(item, text=sendable(self.gate.text(item.text))) for item in (*draft.items, *added)
        )
        counter = self._options.counter
        failures = failures_of(counter)
        entries = loaded.within(plan.cover)
        times = [entry.at for entry in entries]
        asked = self._summarizer if draft.method != "heuristic" else None
        summary = Summary(
            id=id,
            text=text,
            covers=spans.union(plan.cover, *(parent.covers for parent in folded)),
            folded=plan.cover,
            parents=tuple(parent.revision for parent in folded),
            version=1 + max((parent.version for parent in folded), default=0),
            level=_level(plan, folded),
            folds=0 if fresh or not folded else 1 + max(parent.folds for parent in folded),
            items=items,
            method=draft.method,
            model=self.gate.redact(asked.name) if asked is not None else None,
            prompt=draft.prompt,
            passes=draft.passes,
            fallback=fallback,
            tokens=counter.count(text),
            counter=counter.name,
            source_tokens=covered_tokens + sum(parent.source_tokens for parent in folded),
            first_at=min([*times, *(parent.first_at for parent in folded)]),
            last_at=max([*times, *(parent.last_at for parent in folded)]),
            at=self._clock(),
            spent=self.spent,
        )
        summary = msgspec.structs.replace(summary, shown_tokens=summary_entry_tokens(summary, counter.count))
        failed = failures_of(counter) != failures  # then its counts are provisional, and made again when it is shown
        return msgspec.structs.replace(summary, counter="") if failed else summary


async def _answer(summarizer: Summarizer, prompt: Prompt) -> Reply:
    """Ask the summarizer. Raises SummarizerFailed also for an answer that cannot be stored."""
    reply = await summarizer.ask(prompt)
    if flaw := flaw_of(reply):
        raise SummarizerFailed(summarizer.name, "answer", flaw)
    return reply


def _check_length(summarizer: Summarizer, prompt: Prompt, reply: Reply) -> None:
    """Raise SummarizerFailed for an answer that is too long for a summary."""
    most = max(MOST_READ, READ_SHARE * prompt.max_tokens)
    if is_longer(reply, most):
        raise SummarizerFailed(summarizer.name, "answer", f"its answer has more than {most:,} characters")


def _stepped(step: Callable[[], Prompt]) -> Prompt | Draft:
    """Advance the passes, and return the next prompt, or the draft at their end."""
    try:
        return step()
    except StopIteration as end:
        draft: Draft = end.value
        return draft


def _weighed(make: Callable[[], Summary], weigh: Callable[[Sequence[Summary]], int]) -> tuple[Summary, int]:
    """Return a summary and its cost."""
    summary = make()
    return summary, weigh([summary])


def _level(plan: Plan, folded: list[Summary]) -> int:
    """Return the level of a summary: one that covers no new entries is a level above the highest that it folds in."""
    highest = max((parent.level for parent in folded), default=0)
    return highest + 1 if folded and not plan.cover else highest


def _cost(loaded: Loaded, where: Iterable[spans.Span]) -> int:
    """Return what the groups in these spans cost in a context."""
    wanted = list(where)
    everything = [*loaded.snapshot.archived, *loaded.snapshot.interactions]
    groups = [group for interaction in everything for group in interaction.groups]
    return sum(group.cost for group in groups if spans.within(wanted, group.entries[0].seq))


def _pinned(folded: list[Summary], entries: list[Entry]) -> list[str]:
    """Return the identifiers that must not be left out: those pinned before, and those of important entries."""
    pinned = [item.text for summary in folded for item in summary.items if item.pinned]
    important = [entry for entry in entries if (entry.importance or 0) >= IMPORTANT]
    pinned += [identifier for entry in important for identifier in identifiers(entry.text)]
    return list(dict.fromkeys(pinned))
