"""What one model call is given, with its account: budget, context, report. Pure.

A context is system text, head (pins and open human messages that a cut has passed), log messages, and
nothing after them yet. Its log messages only grow until the next cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from palimpsest.entries import Entry
from palimpsest.errors import BudgetImpossible, ConfigError, InvalidContext
from palimpsest.formats import Format, Message, Shown
from palimpsest.log import Clamp, Cut, Head
from palimpsest.window import Group, Meter, Window, fill

if TYPE_CHECKING:
    from palimpsest.models import Model


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits resolved to numbers, in tokens.

    `limit` bounds the whole request and the answer: the smaller of `max_tokens` and the model's window.
    `reserve` is kept for the answer, `fixed` is what system text, tools and the request itself cost. `room`
    is what is left for the log: high water; `low_water` is where a cut stops. `factor` is how many of the
    provider's tokens one counted token stands for (1 where the model's tokenizer is public); `room`,
    `low_water` and `fixed` are counted tokens. `max_messages` bounds provider messages of the log.
    """

    limit: int
    reserve: int
    fixed: int
    room: int
    low_water: int
    factor: float = 1.0
    max_messages: int | None = None

    @property
    def available(self) -> int:
        """Tokens that the request may take: the limit less the reserve."""
        return self.limit - self.reserve


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a context by part; their sum is `Context.tokens`."""

    system: int
    tools: int
    overhead: int
    head: int
    log: int


class LeftOut(NamedTuple):
    """A run of entries that the context does not hold: first and last `seq`, how many, and why."""

    first: int
    last: int
    entries: int
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a context, what is not and why.

    `first_seq` and `last_seq` bound what stands in place; `pinned` and `anchors` came before it. `masked`,
    `clamped` and `repaired` list entries shown in another form (repaired: calls given a stand-in result).
    `pending` are the calls of the open group, which is held back until they are answered. `epoch_reason`
    says why this context begins a new epoch (None: it continues one). `rungs` are the steps of the ladder
    that its cut took. `warnings` are things a user should know, `notes` says why a cut was not stored.
    """

    entries: int
    messages: int
    interactions: int
    first_seq: int
    last_seq: int
    pinned: tuple[int, ...] = ()
    anchors: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    clamped: tuple[int, ...] = ()
    repaired: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    epoch_reason: str | None = None
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


class Fixed(NamedTuple):
    """What a call brings itself: system text and tools, with their cost in counted tokens."""

    system: str | None
    tools: Sequence[Message]
    system_tokens: int
    tools_tokens: int
    prime: int
    exact: bool

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.system_tokens + self.tools_tokens + self.prime


class Outcome(NamedTuple):
    """How a context's cut came about: what `Context` needs beside the window."""

    cut: Cut
    head: Head
    epoch: int | None
    reason: str | None
    rungs: tuple[str, ...] = ()
    before: int | None = None
    over: bool = False
    notes: tuple[str, ...] = ()


class Context:
    """What one model call is given.

    `messages` is the provider's list, system text first. `revision` is the session's revision that this
    context shows, `epoch` the epoch that it belongs to, or None where its cut was not stored (another
    budget than the view's, a past revision, a read-only store). `pending` are ids of calls still open.
    `problems` names what a user's own option lets through (`over_budget`).
    """

    def __init__(
        self, window: Window, head: Sequence[Group], fixed: Fixed, meter: Meter, budget: Budget | None, outcome: Outcome
    ) -> None:
        self._window, self._head, self._fixed, self._meter, self._outcome = window, head, fixed, meter, outcome
        self._report: Report | None = None
        self.budget = budget
        self.format = meter.format.name
        self.revision, self.epoch = outcome.head.revision, outcome.epoch
        self.problems: tuple[str, ...] = ("over_budget",) if outcome.over else ()
        fmt = meter.format
        leading = fmt.system(fixed.system) if fixed.system else []
        leading.extend(message for group in head for message in rendered(group, fmt))
        self.head_messages = len(leading)
        self.messages: list[Message] = leading
        for group in window.groups:
            leading.extend(rendered(group, fmt))
        problems = fmt.validate(leading)
        if problems:
            raise InvalidContext(problems)

    def __repr__(self) -> str:
        return f"<Context revision={self.revision} epoch={self.epoch} messages={len(self.messages)}>"

    @property
    def log_messages(self) -> list[Message]:
        """The messages of the log: after system and head, before what varies by call."""
        return self.messages[self.head_messages :]

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
        total = self.counted
        factor = self.budget.factor if self.budget is not None else 1.0
        return total if factor == 1.0 else -int(-total * factor // 1)

    @property
    def counted(self) -> int:
        """Tokens of everything that is sent, in the counter's own scale."""
        parts = self.parts
        return parts.system + parts.tools + parts.overhead + parts.head + parts.log

    @property
    def parts(self) -> Parts:
        """Counted tokens by part of the context, exact."""
        meter, cut = self._meter, self._outcome.cut
        fixed = self._fixed if self._fixed.exact else measure(self._fixed.system, self._fixed.tools, meter, exact=True)
        if meter.guessed:
            meter.exact, meter.guessed = True, False
            clamps = by_seq(cut)
            for group in (*self._head, *self._window.groups):
                fill(group, cut.mask, clamps, meter)
        self._fixed = fixed
        return Parts(
            system=fixed.system_tokens,
            tools=fixed.tools_tokens,
            overhead=fixed.prime,
            head=sum(group.cost for group in self._head),
            log=sum(group.cost for group in self._window.groups),
        )

    @property
    def prefix(self) -> Prefix:
        """The stable prefix: everything up to the newest log message."""
        from hashlib import sha256

        body = msgspec.json.encode(self.messages)
        return Prefix(len(self.messages), self.tokens, sha256(body).hexdigest())

    @property
    def report(self) -> Report:
        """What is in, what is out and why."""
        if self._report is None:
            self._report = _report(self, self._window, self._head, self._outcome)
        return self._report

    def request(self) -> dict[str, Any]:
        """Return the keyword arguments for the provider's own client: messages, and tools where there are any."""
        return self._meter.format.request(self.messages, self._fixed.tools)


def rendered(group: Group, fmt: Format) -> list[Message]:
    """The group's provider messages, without text that no provider takes."""
    shown = [item.shown for item in group.items]
    messages = fmt.render(shown)
    if any(one.entry.lone for one in shown):
        return [_scrubbed(message) for message in messages]
    return messages


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {key: _scrubbed(inner) for key, inner in value.items()}
    return [_scrubbed(inner) for inner in value] if isinstance(value, list) else value


def by_seq(cut: Cut) -> dict[int, Clamp]:
    """The cut's clamps by the entry that they shorten."""
    return {clamp.seq: clamp for clamp in cut.clamps}


def measure(system: str | None, tools: Sequence[Message], meter: Meter, *, exact: bool) -> Fixed:
    """Count what a call brings itself: exactly, or by an upper bound that needs no vocabulary."""
    counter, fmt = meter.counter, meter.format
    bound = getattr(counter, "upper_bound", None)
    count = counter.count if exact or bound is None else bound
    probe = Entry(kind="message", role="system")
    system_tokens = count(system) + meter.overhead(probe) if system else 0
    tools_tokens = 0
    if tools and (exact or bound is None):
        from palimpsest.tokens import tool_schema_tokens

        newer = getattr(counter, "name", "") != "cl100k_base"
        tools_tokens = tool_schema_tokens(tools, counter, gpt4o_family=newer)
    elif tools:
        tools_tokens = 64 * len(tools) + 4 * len(msgspec.json.encode(tools))
    prime = fmt.prime if counter.overhead else 0
    return Fixed(system, tools, system_tokens, tools_tokens, prime, exact or bound is None or not (system or tools))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a session or a call says about its budget, not yet resolved. Tokens; None: not given."""

    max_tokens: int | None = None
    max_messages: int | None = None
    max_context_ratio: float | None = None
    reserve: int | None = None

    def check(self) -> None:
        """Raise ConfigError for a value that no budget can have."""
        for name, value in (
            ("max_tokens", self.max_tokens),
            ("max_messages", self.max_messages),
            ("reserve", self.reserve),
        ):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigError(name, value, "a whole number of at least 0, or None")
        ratio = self.max_context_ratio
        if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1):
            raise ConfigError("max_context_ratio", ratio, "a number over 0 and at most 1, or None")


def limit_of(limits: Limits, model: Model | None, name: str | None) -> tuple[int | None, int]:
    """Return the limit of the whole request (None: no bound) and the reserve, in the provider's tokens."""
    window = model.window if model is not None else None
    if limits.max_context_ratio is not None:
        if window is None:
            raise ConfigError("max_context_ratio", limits.max_context_ratio, f"a model of known window, not {name!r}")
        window = int(limits.max_context_ratio * window)
    bounds = [bound for bound in (limits.max_tokens, window) if bound is not None]
    limit = min(bounds) if bounds else None
    if limits.reserve is not None:
        return limit, limits.reserve
    if limits.max_tokens is not None or limit is None or model is None:
        return limit, 0
    return limit, min(model.max_output or 0, limit // 2)


LOW_WATER = 0.36
"""Share of the limit that a cut goes down to, system text and tools included: the lowest bill that still holds
enough of real tool-calling conversations at 8,000 and at 16,000 tokens (`bench/cache_bill.py`)."""

LEAST_LOW_WATER = 0.2
"""Share of the room that a cut keeps at least, where system text and tools take most of the limit."""


def resolve(limit: int | None, reserve: int, limits: Limits, fixed: Fixed, factor: float, low: float) -> Budget | None:
    """Return the budget in numbers, or None where nothing bounds the context."""
    if limit is None and limits.max_messages is None:
        return None
    if limit is None:
        limit, reserve = 2**62, 0
    counted = int((limit - reserve) / factor)
    room = counted - fixed.tokens
    return Budget(
        limit=limit,
        reserve=reserve,
        fixed=fixed.tokens,
        room=room,
        low_water=max(int(limit / factor * low) - fixed.tokens, int(room * LEAST_LOW_WATER), 0),
        factor=factor,
        max_messages=limits.max_messages,
    )


def refuse_fixed(budget: Budget, fixed: Fixed) -> None:
    """Raise BudgetImpossible where what the call brings itself already exceeds the budget."""
    if budget.room < 0:
        parts = {"system": fixed.system_tokens, "tools": fixed.tools_tokens, "overhead": fixed.prime}
        raise BudgetImpossible(fixed.tokens, budget.room + fixed.tokens, {**parts, "reserve": budget.reserve})


def _report(context: Context, window: Window, head: Sequence[Group], outcome: Outcome) -> Report:
    cut = outcome.cut
    everything = [*head, *window.groups]
    items = [item for group in everything for item in group.items]
    left = [LeftOut(entry.seq, entry.seq, 1, reason) for entry, reason in window.left_out]
    first = outcome.head.first_seq
    before = cut.start - first - sum(len(group.entries) for group in head)
    if before > 0:
        left.insert(0, LeftOut(first, cut.start - 1, before, "evicted to the archive"))
    for group in window.pending:
        left.append(LeftOut(group.seq, group.entries[-1].seq, len(group.entries), "open calls"))
    forms: dict[str, list[Shown]] = {}
    for item in items:
        forms.setdefault(item.form, []).append(item.shown)
    turns = {group.turn for group in everything if group.turn}
    warnings = []
    if context.budget is None:
        warnings.append("no budget: neither max_tokens nor a known model bounds this context")
    return Report(
        entries=sum(len(group.entries) for group in everything),
        messages=len(context.messages),
        interactions=len(turns),
        first_seq=window.groups[0].seq if window.groups else 0,
        last_seq=window.groups[-1].entries[-1].seq if window.groups else 0,
        pinned=tuple(seq for seq in cut.pins if seq < cut.start),
        anchors=cut.anchors,
        masked=tuple(shown.entry.seq for shown in forms.get("masked", ())),
        clamped=tuple(shown.entry.seq for shown in forms.get("clamped", ())),
        repaired=tuple(shown.entry.call_id or str(shown.entry.answers) for shown in forms.get("placeholder", ())),
        pending=context.pending,
        left_out=tuple(left),
        epoch_reason=outcome.reason,
        rungs=outcome.rungs,
        tokens_before_cut=outcome.before,
        warnings=tuple(warnings),
        notes=outcome.notes,
        parts=context.parts,
    )
