"""What one model call is given, with its account: budget, context, report. Pure.

A context is system text, head (pins and open human messages that a cut has passed), log messages, and
nothing after them yet. Its log messages only grow until the next cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from palimpsest.context.budget import Budget, Fixed, doubt, measure, scaled
from palimpsest.context.groups import CostedEntry, Group, Meter, counted_anew
from palimpsest.context.rendering import Ready, rendered
from palimpsest.context.window import Window
from palimpsest.errors import ConfigError, InvalidContext
from palimpsest.formats import Adapted, Format, Message
from palimpsest.log import spans
from palimpsest.log.head import Cut, Head
from palimpsest.log.late import sha256
from palimpsest.log.summary import Summary


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Counted tokens of a context by part; their sum is `Context.counted`.

    `system` is the system text, `tools` are the schemas, `overhead` is what the provider adds to every request, `head`
    what a cut has put before the log, `summaries` with their fences, `log` what stands in place.
    """

    system: int
    tools: int
    overhead: int
    head: int
    summaries: int
    log: int


class LeftOut(NamedTuple):
    """A run of entries that the context does not hold: `first` and `last` `seq`, how many `entries`, the `reason`."""

    first: int
    last: int
    entries: int
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a context, what is not and why.

    `entries`, `messages` and `interactions` are how many stand in it, `parts` what they cost. `first_seq` and
    `last_seq` bound what stands in place; `pinned`, `summaries` (their ids) and `anchors` come before it. `masked`,
    `clamped` and `repaired` list entries shown in another form (repaired: calls given a stand-in result). `pending` are
    the calls of the open group, which is held back until they are answered. `adapted` names what this format has
    nothing like, and what became of it. `epoch_reason` says why the epoch of this context began (None: it is the
    first), `new_cut` whether this call made the cut; `rungs` are the steps of the ladder that it took then, at
    `tokens_before_cut`. `left_out` are runs of entries that it does not hold. `warnings` are things a user should know,
    `notes` says why a cut was not stored.
    """

    entries: int
    messages: int
    interactions: int
    first_seq: int
    last_seq: int
    pinned: tuple[int, ...] = ()
    summaries: tuple[str, ...] = ()
    anchors: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    clamped: tuple[int, ...] = ()
    repaired: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    adapted: tuple[Adapted, ...] = ()
    epoch_reason: str | None = None
    new_cut: bool = False
    rungs: tuple[str, ...] = ()
    tokens_before_cut: int | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: Parts | None = None


class Prefix(NamedTuple):
    """The part of a context that the next ones of its epoch repeat byte for byte.

    `messages` counts system, head and log messages; `tokens` what they and the tools cost; `hash` is
    SHA-256 over their canonical JSON.
    """

    messages: int
    tokens: int
    hash: str


class CutOutcome(msgspec.Struct, frozen=True):
    """How a context's cut came about: what `Context` needs beside the window."""

    cut: Cut
    head: Head
    epoch: int | None
    reason: str | None
    rungs: tuple[str, ...] = ()
    before: int | None = None
    over: bool = False
    notes: tuple[str, ...] = ()
    margin: float = 1.0


class Context:
    """What one model call is given.

    `messages` is the provider's list. `head_messages` (what a cut has put before the log) and `log_messages`
    are the same before neighbours of one role are merged, for providers that want it so. `revision` is the
    session's revision that this context shows, `epoch` the epoch that it belongs to, or None where its cut was
    not stored (another budget than the view's, a past revision, a read-only store). `pending` are ids of calls
    still open. `problems` names what a user's own option lets through (`over_budget`).
    """

    def __init__(
        self,
        window: Window,
        head: Sequence[Group],
        summaries: Sequence[tuple[Summary, Group]],
        fixed: Fixed,
        meter: Meter,
        budget: Budget | None,
        outcome: CutOutcome,
        ready: Ready | None = None,
    ) -> None:
        self._window, self._head, self._fixed, self._meter, self._outcome = window, head, fixed, meter, outcome
        self._summaries = summaries
        self._report: Report | None = None
        self.budget = budget
        self.format = meter.format.name
        self.revision, self.epoch = outcome.head.revision, outcome.epoch
        self.problems: tuple[str, ...] = ("over_budget",) if outcome.over else ()
        fmt = meter.format
        self.head_messages: list[Message] = [message for group in self._ahead for message in rendered(group, fmt)]
        made = ready or Ready()
        rest = window.groups[made.groups :]
        self.log_messages: list[Message] = [*made.copies(), *(m for group in rest for m in rendered(group, fmt))]
        self._joined = fmt.join(fixed.system, [*self.head_messages, *self.log_messages])
        problems = fmt.validate(self._joined.messages)
        if problems:
            raise InvalidContext(problems)

    @property
    def _ahead(self) -> Sequence[Group]:
        return ahead(self._head, self._summaries, self._outcome.cut)

    @property
    def summaries(self) -> list[Summary]:
        """The summaries that stand in this context, oldest first."""
        return [summary for summary, _ in self._summaries]

    def __repr__(self) -> str:
        return f"<Context revision={self.revision} epoch={self.epoch} messages={len(self.messages)}>"

    def unstored(self, revision: int, why: str) -> None:
        """Note `why` this is no view of the session as it is stored, at this `revision` of it."""
        self.revision, self.epoch = revision, None
        self.noted(why)

    def noted(self, why: str) -> None:
        """Note `why` something about this context was not stored."""
        self._outcome = msgspec.structs.replace(self._outcome, notes=(*self._outcome.notes, why))

    @property
    def messages(self) -> list[Any]:
        """The provider's list: system text first where it belongs into it, then head, then log.

        Its items are dicts, of the type that the provider's client takes: a type checker accepts them for any.
        """
        return self._joined.messages

    @property
    def system(self) -> Any:
        """The system text in the provider's form, where it is sent beside the messages; else None."""
        return self._joined.system

    @property
    def text(self) -> str:
        """The context as one text. Only the format `text` has it: raises ConfigError for any other."""
        if self.format != "text":
            raise ConfigError("format", self.format, "text, for a context that is one text")
        text: str = self.request()["prompt"]
        return text

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of the calls that the open group still waits for."""
        found: list[str] = []
        for group in self._window.pending:
            answered = {entry.answers for entry in group.entries}
            calls = (entry for entry in group.entries if entry.kind == "tool_call" and entry.seq not in answered)
            found.extend(entry.call_id or str(entry.seq) for entry in calls)
        return tuple(found)

    @property
    def tokens(self) -> int:
        """Tokens of everything that is sent, in the provider's scale: exact where the tokenizer is public.

        Asking may load the vocabulary; assembling the context did so only if bounds left the fit open.
        """
        return scaled(self.counted, self.budget.factor if self.budget is not None else 1.0)

    @property
    def margin(self) -> float:
        """The provider's tokens for one counted token, before any usage was reported; 1 where counts are exact."""
        return self._outcome.margin

    @property
    def counted(self) -> int:
        """Tokens of everything that is sent, in the counter's own scale."""
        parts = self.parts
        return parts.system + parts.tools + parts.overhead + parts.head + parts.summaries + parts.log

    @property
    def parts(self) -> Parts:
        """Counted tokens by part of the context, exact."""
        meter, cut = self._meter, self._outcome.cut
        fixed = self._fixed if self._fixed.exact else measure(self._fixed.system, self._fixed.tools, meter, exact=True)
        if meter.guessed:
            self._head = counted_anew(self._head, cut, meter)
            self._window = msgspec.structs.replace(self._window, groups=counted_anew(self._window.groups, cut, meter))
            meter.guessed = 0
        self._fixed = fixed
        return Parts(
            system=fixed.system_tokens,
            tools=fixed.tools_tokens,
            overhead=fixed.prime,
            head=sum(group.cost for group in self._head),
            summaries=sum(group.cost for _, group in self._summaries),
            log=sum(group.cost for group in self._window.groups),
        )

    @property
    def prefix(self) -> Prefix:
        """The stable prefix: everything up to the newest log message."""
        body = msgspec.json.encode(self.messages if self.system is None else [self.system, self.messages])
        return Prefix(len(self.messages), self.tokens, sha256(body).hex())

    @property
    def report(self) -> Report:
        """What is in, what is out and why."""
        if self._report is None:
            self._report = _report(self, self._window, self._head, self._summaries, self._meter.format, self._outcome)
        return self._report

    def request(self, *, cache_breakpoints: bool = True) -> dict[str, Any]:
        """Return the keyword arguments for the provider's own client: messages, system text, tools.

        The model's name is left to the caller. `cache_breakpoints` marks the stable prefix for providers whose
        prompt cache wants to be told (Anthropic), unless it is False; elsewhere it changes nothing.
        """
        return self._meter.format.request(self._joined, self._fixed.tools, cache_breakpoints=cache_breakpoints)


def ahead(before: Sequence[Group], summaries: Sequence[tuple[Summary, Group]], cut: Cut) -> Sequence[Group]:
    """What comes before the window, in order: pinned entries, then the summaries, then open human messages."""
    if not summaries:
        return before
    anchors = [group for group in before if group.seq in cut.anchors]
    pins = [group for group in before if group not in anchors]
    return [*pins, *(group for _, group in summaries), *anchors]


def _report(
    context: Context,
    window: Window,
    head: Sequence[Group],
    summaries: Sequence[tuple[Summary, Group]],
    fmt: Format,
    outcome: CutOutcome,
) -> Report:
    cut = outcome.cut
    everything = [*head, *window.groups]
    items = [item for group in everything for item in group.items]
    left = _archived(cut, outcome.head, head, [summary for summary, _ in summaries])
    left += [LeftOut(entry.seq, entry.seq, 1, reason) for entry, reason in window.left_out]
    left.extend(LeftOut(held.seq, held.entries[-1].seq, len(held.entries), "open calls") for held in window.pending)
    forms: dict[str, list[CostedEntry]] = {}
    for item in items:
        forms.setdefault(item.form, []).append(item)
    turns = {group.turn for group in everything if group.turn}
    warnings = []
    adapted: list[Adapted] = []
    for group in everything:
        rendered(group, fmt, adapted)
    if context.budget is None:
        warnings.append("no budget: neither max_tokens nor a known model bounds this context")
    elif (told := doubt(outcome.head.usage, outcome.margin)) is not None:
        warnings.append(told)
    return Report(
        entries=sum(len(group.entries) for group in everything),
        messages=len(context.messages),
        interactions=len(turns),
        first_seq=window.groups[0].seq if window.groups else 0,
        last_seq=window.groups[-1].entries[-1].seq if window.groups else 0,
        pinned=tuple(sorted({*cut.pins}.intersection(entry.seq for group in head for entry in group.entries))),
        summaries=tuple(summary.id for summary, _ in summaries),
        anchors=cut.anchors,
        masked=tuple(item.entry.seq for item in forms.get("masked", ())),
        clamped=tuple(item.entry.seq for item in forms.get("clamped", ())),
        repaired=tuple(item.entry.call_id or str(item.entry.answers) for item in forms.get("placeholder", ())),
        pending=context.pending,
        left_out=tuple(left),
        adapted=tuple(adapted),
        epoch_reason=outcome.reason or outcome.head.epoch_reason or None,
        new_cut=outcome.reason is not None,
        rungs=outcome.rungs,
        tokens_before_cut=outcome.before,
        warnings=tuple(warnings),
        notes=outcome.notes,
        parts=context.parts,
    )


def _archived(cut: Cut, head: Head, ahead: Sequence[Group], summaries: Sequence[Summary]) -> list[LeftOut]:
    """What lies in the archive: what the summaries cover, what was hidden, and what was evicted without either."""
    shown = spans.of(entry.seq for group in ahead for entry in group.entries)
    before = spans.visible(head.rewound, head.first_seq - 1, cut.start)
    archived = spans.minus(spans.union(before, cut.skipped), shown)
    covered = spans.common(archived, spans.union(*(summary.covers for summary in summaries)))
    left = []
    hidden = spans.common(spans.minus(archived, covered), cut.hidden)
    for where, reason in (
        (covered, "covered by a summary"),
        (hidden, "hidden"),
        (spans.minus(archived, spans.union(covered, hidden)), "evicted to the archive"),
    ):
        if where:
            left.append(LeftOut(where[0][0], where[-1][1], spans.size(where), reason))
    return sorted(left)
