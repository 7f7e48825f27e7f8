"""What one model call is given, with its account. Pure.

A context is system text, head (facts in the prefix, pins and open human messages that a cut has passed), log messages,
and an optional tail. Its log messages only grow until the next cut, and everything up to them is the stable prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.context.budget import Budget, Reckoned, doubt, scaled
from palimpsest.context.groups import Group, Meter, counted_anew
from palimpsest.context.rendering import Ready, rendered
from palimpsest.context.window import Window
from palimpsest.errors import ConfigError, InvalidContext
from palimpsest.formats import Joined, Message
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head
from palimpsest.log.lazy_imports import sha256
from palimpsest.log.summary import Summary

if TYPE_CHECKING:
    from palimpsest.context.account import Parts, Prefix, Report
    from palimpsest.context.tail import Lead, TailPart


class CutOutcome(msgspec.Struct, frozen=True):
    """How a context's cut came about: what `Context` needs beside the window.

    `before` is the size before the cut in tokens (None: no cut was planned). `over` says that the room is exceeded on
    purpose.
    """

    cut: Cut
    head: Head
    epoch: int | None
    reason: str | None
    rungs: tuple[str, ...] = ()
    before: int | None = None
    over: bool = False
    notes: tuple[str, ...] = ()
    margin: float = 1.0
    walked: bool = False
    """Whether a strategy bounds it, which walked the log anew."""


class Context:
    """What one model call is given.

    `messages` is the provider's list. `head_messages` (what comes before the log), `log_messages` and `tail_messages`
    (what comes behind it) are the same messages before neighbours of one role are merged for providers that require
    this. `revision` is the session's revision that this context shows. `epoch` is the epoch that it belongs to, or None
    if its cut was not stored (another budget than the view's, a past revision, a read-only store). `pending` are ids of
    calls still open. `problems` names what a user's own option lets through (`over_budget`). `withheld` are those of
    `entries` that the privacy policy keeps out of the store.
    """

    def __init__(
        self,
        window: Window,
        head: Sequence[Group],
        summaries: Sequence[tuple[Summary, Group]],
        reckoned: Reckoned,
        meter: Meter,
        outcome: CutOutcome,
        ready: Ready | None = None,
        lead: Lead | None = None,
        tail: Sequence[TailPart] = (),
    ) -> None:
        self._window, self._head, self._reckoned, self._meter, self._outcome = window, head, reckoned, meter, outcome
        self._summaries = summaries
        self._report: Report | None = None
        self.format = meter.format.name
        self.revision, self.epoch = outcome.head.revision, outcome.epoch
        self.problems: tuple[str, ...] = ("over_budget",) if outcome.over else ()
        self.withheld: tuple[Entry, ...] = ()
        fmt = meter.format
        self._lead: Sequence[Group] = lead.groups if lead is not None else ()
        self.head_messages: list[Message] = [m for group in (*self._lead, *self._ahead) for m in rendered(group, fmt)]
        prepared = ready or Ready()
        unprepared = window.groups[prepared.groups :]
        self.log_messages: list[Message] = [
            *prepared.copies(),
            *(m for group in unprepared for m in rendered(group, fmt)),
        ]
        self._left_out: tuple[str, ...] = lead.without_room if lead is not None else ()
        self._tail: Sequence[Group] = self._fitted_tail(tail) if tail else ()
        self.tail_messages: list[Message] = [m for group in self._tail for m in rendered(group, fmt)]
        self._joined = self._join(self.tail_messages)
        if problems := fmt.validate(self._joined.messages):
            raise InvalidContext(problems)

    def _fitted_tail(self, parts: Sequence[TailPart]) -> list[Group]:
        """Return the groups of these parts that fit the budget's `tail`, beside the facts before the log."""
        from palimpsest.context.tail import tail_of  # imported only for contexts with a tail

        lead, room = self._lead, self.budget.beside if self.budget is not None else None
        if room is not None and lead:
            room = room.less(sum(group.cost for group in lead), sum(group.messages for group in lead))
        whole = (item for group in (*self._ahead, *self._window.groups) for item in group.items if item.form == "whole")
        shown = frozenset(item.entry.seq for item in whole)
        groups, left_out = tail_of([part.beside(shown) for part in parts], room, self._meter)
        self._left_out += left_out
        return groups

    def _join(self, tail: Sequence[Message]) -> Joined:
        """Join all messages, followed by this tail, as the provider wants them."""
        return self._meter.format.join(self._reckoned.fixed.system, [*self.head_messages, *self.log_messages, *tail])

    @property
    def _stable(self) -> Joined:
        """All messages without the tail."""
        return self._join(()) if self.tail_messages else self._joined

    @property
    def _ahead(self) -> Sequence[Group]:
        return ahead(self._head, self._summaries, self._outcome.cut)

    @property
    def summaries(self) -> list[Summary]:
        """The summaries in this context, oldest first."""
        return [summary for summary, _ in self._summaries]

    def __repr__(self) -> str:
        return f"<Context revision={self.revision} epoch={self.epoch} messages={len(self.messages)}>"

    def unstored(self, revision: int, why: str) -> None:
        """Note `why` this context is not a stored view of the session; it shows the session at `revision`."""
        self.revision, self.epoch = revision, None
        self.noted(why)

    def noted(self, why: str) -> None:
        """Note `why` something about this context was not stored."""
        self._outcome = msgspec.structs.replace(self._outcome, notes=(*self._outcome.notes, why))

    @property
    def entries(self) -> list[Entry]:
        """The entries in this context, in the order in which they are shown, without summaries.

        An entry that is masked or clamped has the text shown as its content.
        """
        items = [item for group in (*self._head, *self._window.groups) for item in group.items if item.entry.seq]
        return [_as_shown(item.entry, item.text) for item in items if item.form != "placeholder"]

    @property
    def summary_texts(self) -> list[str]:
        """The texts of `summaries` as they are shown: a summary that exceeds its share is shortened."""
        return [group.entries[0].text for _, group in self._summaries]

    @property
    def messages(self) -> list[Any]:
        """The provider's list: system text first if it belongs there, then head, log and tail.

        Its items are dicts of the shape that the provider's client takes; the annotation lets type checkers accept them
        for any client.
        """
        return self._joined.messages

    @property
    def system(self) -> Any:
        """The system text in the provider's form if it is sent beside the messages, else None."""
        return self._joined.system

    @property
    def text(self) -> str:
        """The context as one text. Raises ConfigError for any format but `text`."""
        if self.format != "text":
            raise ConfigError("format", self.format, "text: only a context of this format is a single text")
        text: str = self.request()["prompt"]
        return text

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of the calls whose results the open group still waits for."""
        ids: list[str] = []
        for group in self._window.pending:
            answered = {entry.answers for entry in group.entries}
            calls = (entry for entry in group.entries if entry.kind == "tool_call" and entry.seq not in answered)
            ids.extend(entry.call_id or str(entry.seq) for entry in calls)
        return tuple(ids)

    @property
    def tokens(self) -> int:
        """Tokens of everything that is sent, in the provider's scale: exact if the tokenizer is public.

        Reading this may load the vocabulary. Building the context loads it only if upper bounds cannot show that it
        fits.
        """
        return scaled(self.counted, self._factor)

    @property
    def is_bounded(self) -> bool:
        """Whether there is a budget. Reading this counts nothing."""
        return self._reckoned.budget is not None

    @property
    def budget(self) -> Budget | None:
        """The limits in numbers, always exact. None if nothing bounds the context.

        Reading this may load the vocabulary, to count system text and tools.
        """
        if self.is_bounded:
            self._reckoned = self._reckoned.exactly()
        return self._reckoned.budget

    @property
    def _factor(self) -> float:
        budget = self._reckoned.budget
        return budget.factor if budget is not None else 1.0

    @property
    def margin(self) -> float:
        """The provider's tokens for one counted token before any usage was reported (1 where counts are exact)."""
        return self._outcome.margin

    @property
    def counted(self) -> int:
        """Tokens of everything that is sent, in the counter's own scale."""
        parts = self.parts
        return parts.system + parts.tools + parts.overhead + parts.head + parts.summaries + parts.log + parts.tail

    @property
    def parts(self) -> Parts:
        """Counted tokens by part of the context, exact."""
        meter, cut = self._meter, self._outcome.cut
        self._reckoned = self._reckoned.exactly()
        fixed = self._reckoned.fixed
        if meter.guessed:
            self._head = counted_anew(self._head, cut, meter)
            self._window = msgspec.structs.replace(self._window, groups=counted_anew(self._window.groups, cut, meter))
            meter.guessed = 0
        from palimpsest.context.account import Parts  # imported only when asked for

        return Parts(
            system=fixed.system_tokens,
            tools=fixed.tools_tokens,
            overhead=fixed.prime,
            head=sum(group.cost for group in (*self._lead, *self._head)),
            summaries=sum(group.cost for _, group in self._summaries),
            log=sum(group.cost for group in self._window.groups),
            tail=sum(group.cost for group in self._tail),
        )

    @property
    def prefix(self) -> Prefix:
        """The stable prefix: everything up to the newest log message."""
        from palimpsest.context.account import Prefix  # imported only when asked for

        stable, factor = self._stable, self._factor
        body = msgspec.json.encode(stable.messages if stable.system is None else [stable.system, stable.messages])
        return Prefix(len(stable.messages), scaled(self.counted - self.parts.tail, factor), sha256(body).hex())

    @property
    def report(self) -> Report:
        """What is in the context, what is not, and why."""
        if self._report is None:
            self._report = self._reported()
        return self._report

    def _reported(self) -> Report:
        from palimpsest.context.account import report_of  # imported only when asked for

        outcome, warnings = self._outcome, list[str]()
        if self._left_out:
            names = ", ".join(map(repr, self._left_out))
            warnings.append(f"the tail has no room for {names}: raise tail_share, or max_tokens")
        if warning := _summaries_without_room(outcome.cut):
            warnings.append(warning)
        if not self.is_bounded and not outcome.walked:
            warnings.append("no budget: neither max_tokens nor a known model bounds this context")
        elif (doubts := doubt(outcome.head.usage, outcome.margin)) is not None:
            warnings.append(doubts)
        return report_of(
            self._window,
            self._head,
            self._summaries,
            self._meter.format,
            outcome.cut,
            outcome.head,
            messages=len(self.messages),
            pending=self.pending,
            epoch_reason=outcome.reason or outcome.head.epoch_reason or None,
            new_cut=outcome.reason is not None,
            rungs=outcome.rungs,
            tokens_before_cut=outcome.before,
            warnings=tuple(warnings),
            notes=outcome.notes,
            parts=self.parts,
            lead=tuple(str(group.entries[0].name) for group in self._lead),
            tail=tuple(str(group.entries[0].name) for group in self._tail),
        )

    def request(self, *, cache_breakpoints: bool = True) -> dict[str, Any]:
        """Return the keyword arguments for the provider's own client: messages, system text, tools.

        The model's name is left to the caller. `cache_breakpoints` marks the stable prefix for providers whose prompt
        cache needs marks (Anthropic), unless it is False. For other providers it changes nothing.
        """
        fmt, tools = self._meter.format, self._reckoned.fixed.tools
        whole = fmt.request(self._joined, tools, cache_breakpoints=cache_breakpoints and not self.tail_messages)
        if not (cache_breakpoints and self.tail_messages):
            return whole
        from palimpsest.context.tail import marked_before  # imported only for contexts with a tail

        return marked_before(fmt.request(self._stable, tools, cache_breakpoints=True), whole)


def _summaries_without_room(cut: Cut) -> str:
    """Return the warning about current summaries that a cut leaves out or shortens, or ""."""
    left_out, cut_short = len(cut.unshown), sum(summary.characters >= 0 for summary in cut.summaries)
    counts = ((left_out, "left out"), (cut_short, "cut short"))
    findings = [f"{count} {'is' if count == 1 else 'are'} {how}" for count, how in counts if count]
    return (
        f"current summaries have no room, {' and '.join(findings)}: raise summary_share, or max_tokens"
        if findings
        else ""
    )


def _as_shown(entry: Entry, text: str | None) -> Entry:
    return entry if text is None else msgspec.structs.replace(entry, content=text, native=None, tokens=None)


def ahead(before: Sequence[Group], summaries: Sequence[tuple[Summary, Group]], cut: Cut) -> Sequence[Group]:
    """Return the groups before the window, in order: pinned entries, the summaries, open human messages."""
    if not summaries:
        return before
    anchors = [group for group in before if group.seq in cut.anchors]
    pins = [group for group in before if group not in anchors]
    return [*pins, *(group for _, group in summaries), *anchors]
