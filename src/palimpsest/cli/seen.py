"""Sections of an HTML page about model calls: what each was sent, what it saw, and what was left out and why.

Used by `palimpsest demo --html` and `palimpsest context --html`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from palimpsest.cli.drawing import Bar, Held, calls_chart, held_chart, share_bar
from palimpsest.cli.markup import Html, joined, shown, table, tag
from palimpsest.cli.output import counted

if TYPE_CHECKING:
    from palimpsest import Context
    from palimpsest.tokens.models import Model

Message = dict[str, Any]
SHOWN, WORDS = 24, 280
"""How many calls a page shows with all their messages, and the most characters of each message."""
PARTS = ("system", "tools", "overhead", "head", "summaries", "log", "tail")


class Seen(NamedTuple):
    """One call: its number from 1, its place in the conversation, its context, its size, and the cut before it.

    `cut` is a text, empty if no cut came before the call.
    """

    number: int
    where: str
    context: Context
    bar: Bar
    cut: str


class Price(NamedTuple):
    """US dollars per million tokens of input, new and from the cache."""

    new: float
    cached: float

    def of(self, bar: Bar) -> float:
        """Return what the input of a call costs, in dollars."""
        return ((bar.sent - bar.repeated) * self.new + bar.repeated * self.cached) / 1e6


def price_of(model: Model | None) -> Price | None:
    """Return the price of a model's input, or None if it is not known."""
    if model is None or model.input_price is None:
        return None
    cached = model.cached_input_price
    return Price(model.input_price, model.input_price if cached is None else cached)


def cut_text(reason: str, detail: Mapping[str, Any]) -> str:
    """Return what a cut did, in words."""
    effects = [f"{detail[name]} {name}" for name in ("masked", "evicted", "clamped") if detail.get(name)]
    sizes = (
        f"the log {detail['tokens_before']:,} → {detail['tokens_after']:,} tokens" if "tokens_before" in detail else ""
    )
    return f"cut ({reason})" + (f": {sizes}" if sizes else "") + (f", {', '.join(effects)}" if effects else "")


def sections(seen: Sequence[Seen], price: Price | None, words: Mapping[int, str], entries: int) -> Html:
    """Return the sections about these calls, oldest first. `words` maps the `seq` of entries to their texts."""
    cuts = [place for place, call in enumerate(seen) if call.cut]
    return joined(
        [
            *_sent(seen, price, cuts),
            *_held(seen, entries),
            *_messages(seen, price, cuts),
            *_newest(seen[-1].context),
            *_left_out(seen[-1].context, words),
        ]
    )


def _sent(seen: Sequence[Seen], price: Price | None, cuts: Sequence[int]) -> Iterable[Html]:
    budget = seen[-1].context.budget
    limit = budget.available if budget is not None and budget.limit < 2**62 else None
    bars = [call.bar for call in seen]
    sent, repeated = sum(bar.sent for bar in bars), sum(bar.repeated for bar in bars)
    cost = f" Their input costs ${sum(map(price.of, bars)):,.2f}." if price is not None else ""
    yield tag("h2", "Tokens and cost, call by call")
    yield tag(
        "p",
        f"{counted(len(seen), 'call')} sent {sent:,} tokens. {repeated / max(sent, 1):.0%} of that repeats the "
        f"beginning of the call before, which is what a provider's prompt cache keeps.{cost}",
    )
    yield calls_chart(bars, cuts, limit, [_title(call, price) for call in seen])


def _title(call: Seen, price: Price | None) -> str:
    new = call.bar.sent - call.bar.repeated
    cost = f", ${price.of(call.bar):.4f}" if price is not None else ""
    return f"call {call.number:,}, {call.where}: {call.bar.sent:,} tokens, {new:,} new{cost}"


def _held(seen: Sequence[Seen], entries: int) -> Iterable[Html]:
    held = [
        Held(report.first_seq, report.last_seq, bool(call.cut)) for call in seen for report in [call.context.report]
    ]
    yield tag("h2", "The timeline of cuts")
    yield tag(
        "p",
        "Each call sees the newest entries of the log, counted on the left. A cut takes old ones out of the context, "
        "deep and rarely. Between cuts a context only grows at its end.",
    )
    yield held_chart(held, entries)
    cut_calls = [call for call in seen if call.cut]
    if cut_calls:
        rows: list[list[object]] = [[f"{call.number:,}", call.where, call.cut] for call in cut_calls]
        yield table(["call", "where", "what happened"], rows)


def _messages(seen: Sequence[Seen], price: Price | None, cuts: Sequence[int]) -> Iterable[Html]:
    whole = set(chosen_calls(len(seen), cuts))
    yield tag("h2", "What the model saw")
    yield tag("p", "A green edge marks messages that the call before had, too, an orange one those that are new.")
    calls = []
    for place, call in enumerate(seen):
        messages = call.context.messages
        same = repeated(seen[place - 1].context.messages, messages) if place else 0
        about = (tag("b", f"Call {call.number:,}"), f", {_title(call, price).partition(', ')[2]}")
        cut = (tag("small", f": {call.cut}"),) if call.cut else ()
        kept = _listed(messages[:same], "kept")
        if same and place not in whole:
            before = f"The first {counted(same, 'message')} of call {seen[place - 1].number:,}, and:"
            kept = tag("p", before, class_="kept quiet")
        inside = (tag("summary", *about, *cut), kept, _listed(messages[same:], "fresh"))
        calls.append(tag("details", *inside, class_="iscut" if call.cut else None))
    yield tag("div", *calls, class_="calls", tabindex=0, role="group", aria_label="Calls")


def chosen_calls(calls: int, cuts: Sequence[int]) -> list[int]:
    """Return the indexes of the calls that are shown whole: the first, the last, those around cuts, some in between."""
    chosen = {0, calls - 1}
    for cut in cuts[: SHOWN // 2]:
        chosen |= {max(cut - 1, 0), cut}
    every = max(calls // max(SHOWN - len(chosen), 1), 1)
    return sorted(chosen | set([*range(0, calls, every)][: max(SHOWN - len(chosen), 0)]))


def repeated(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Return how many messages two requests have in common at their start."""
    same = 0
    for earlier, later in zip(before, after, strict=False):
        if earlier != later:
            break
        same += 1
    return same


def _listed(messages: Sequence[Message], style: str) -> Html:
    if not messages:
        return Html("")
    return tag("dl", *(part for message in messages for part in _message(message)), class_=style)


def _message(message: Message) -> tuple[Html, Html]:
    role = message.get("role") or message.get("type") or message.get("section") or "message"
    rest = {key: value for key, value in message.items() if key not in ("role", "section") and value is not None}
    texts = [rest.pop("content")] if isinstance(rest.get("content"), str) else []
    rest.pop("tool_call_id", None)
    for call in rest.pop("tool_calls", ()):
        function = call.get("function", {})
        texts.append(f"{function.get('name')}({function.get('arguments')})")
    if rest:
        texts.append(json.dumps(rest, ensure_ascii=False))
    return tag("dt", str(role)), tag("dd", shortened("\n".join(texts)))


def shortened(text: str) -> str:
    """Return the beginning of a text, with the number of characters that follow."""
    omitted = len(text) - WORDS
    return text if omitted <= 0 else f"{text[:WORDS]}… ({omitted:,} more characters)"


def _newest(context: Context) -> Iterable[Html]:
    parts = [(name, getattr(context.parts, name)) for name in PARTS]
    budget = context.budget
    available = budget.available if budget is not None and budget.limit < 2**62 else context.tokens
    yield tag("h2", "What the newest context is made of")
    yield tag("p", f"{context.tokens:,} of {available:,} tokens.")
    yield share_bar(parts, max(available, context.counted))


def _left_out(context: Context, words: Mapping[int, str]) -> Iterable[Html]:
    yield tag("h2", "What is left out of it, and why")
    report = context.report
    rows: list[list[object]] = [
        [
            _seq_range(omission.first, omission.last),
            omission.reason,
            shortened(words.get(omission.first, "")),
            f"{omission.entries:,}",
        ]
        for omission in report.left_out
    ]
    abridged = (("shown as a note of one line", report.masked), ("shown shortened", report.clamped))
    for reason, seqs in abridged:
        if seqs:
            rows.append([_seq_range(seqs[0], seqs[-1]), reason, shortened(words.get(seqs[0], "")), f"{len(seqs):,}"])
    if not rows:
        yield tag("p", "Nothing: it holds the whole log.")
        return
    yield tag("p", "All of it is still in the log, except for what was erased.")
    yield table(["entries", "why", "the first of them", "how many"], rows, figures=1)
    for warning in report.warnings:
        yield tag("p", shown(warning), class_="quiet")


def _seq_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first:,} to {last:,}"
