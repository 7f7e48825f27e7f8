"""Sections of a page about calls of a model: what each was sent, what it saw, and what was left out and why."""

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
"""Calls of which every message is on the page, and characters of each message."""
PARTS = ("system", "tools", "overhead", "head", "summaries", "log", "tail")


class Seen(NamedTuple):
    """One call: its number from 1, where in the conversation it is, what it was given, and the cut before it."""

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
        """Dollars that the input of a call costs."""
        return ((bar.sent - bar.repeated) * self.new + bar.repeated * self.cached) / 1e6


def price_of(model: Model | None) -> Price | None:
    """Return what input of a model costs, or None where nobody knows."""
    if model is None or model.input_price is None:
        return None
    cached = model.cached_input_price
    return Price(model.input_price, model.input_price if cached is None else cached)


def told_cut(reason: str, detail: Mapping[str, Any]) -> str:
    """Return what a cut did, in words."""
    done = [f"{detail[name]} {name}" for name in ("masked", "evicted", "clamped") if detail.get(name)]
    sizes = (
        f"the log {detail['tokens_before']:,} → {detail['tokens_after']:,} tokens" if "tokens_before" in detail else ""
    )
    return f"cut ({reason})" + (f": {sizes}" if sizes else "") + (f", {', '.join(done)}" if done else "")


def sections(seen: Sequence[Seen], price: Price | None, words: Mapping[int, str], entries: int) -> Html:
    """Return all that a page says of calls, the newest being the last of them; `words` are texts by entry."""
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
    made = [call for call in seen if call.cut]
    if made:
        yield table(["call", "where", "what happened"], [[f"{one.number:,}", one.where, one.cut] for one in made])


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
    """Return the places of calls that are shown whole: the first and the last, those around cuts, and some between."""
    chosen = {0, calls - 1}
    for cut in cuts[: SHOWN // 2]:
        chosen |= {max(cut - 1, 0), cut}
    every = max(calls // max(SHOWN - len(chosen), 1), 1)
    return sorted(chosen | set([*range(0, calls, every)][: max(SHOWN - len(chosen), 0)]))


def repeated(before: Sequence[Message], now: Sequence[Message]) -> int:
    """Return how many messages two requests have in common from their start."""
    same = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        same += 1
    return same


def _listed(messages: Sequence[Message], style: str) -> Html:
    if not messages:
        return Html("")
    return tag("dl", *(part for one in messages for part in _message(one)), class_=style)


def _message(message: Message) -> tuple[Html, Html]:
    role = message.get("role") or message.get("type") or message.get("section") or "message"
    rest = {key: value for key, value in message.items() if key not in ("role", "section") and value is not None}
    said = [rest.pop("content")] if isinstance(rest.get("content"), str) else []
    rest.pop("tool_call_id", None)
    for call in rest.pop("tool_calls", ()):
        function = call.get("function", {})
        said.append(f"{function.get('name')}({function.get('arguments')})")
    if rest:
        said.append(json.dumps(rest, ensure_ascii=False))
    return tag("dt", str(role)), tag("dd", shortened("\n".join(said)))


def shortened(text: str) -> str:
    """Return the beginning of a text, and how much more of it there is."""
    more = len(text) - WORDS
    return text if more <= 0 else f"{text[:WORDS]}… ({more:,} more characters)"


def _newest(context: Context) -> Iterable[Html]:
    parts = [(name, getattr(context.parts, name)) for name in PARTS]
    budget = context.budget
    whole = budget.available if budget is not None and budget.limit < 2**62 else context.tokens
    yield tag("h2", "What the newest context is made of")
    yield tag("p", f"{context.tokens:,} of {whole:,} tokens.")
    yield share_bar(parts, max(whole, context.counted))


def _left_out(context: Context, words: Mapping[int, str]) -> Iterable[Html]:
    yield tag("h2", "What is left out of it, and why")
    report = context.report
    rows: list[list[object]] = [
        [_places(left.first, left.last), left.reason, shortened(words.get(left.first, "")), f"{left.entries:,}"]
        for left in report.left_out
    ]
    short = (("shown as a note of one line", report.masked), ("shown shortened", report.clamped))
    for reason, seqs in short:
        if seqs:
            rows.append([_places(seqs[0], seqs[-1]), reason, shortened(words.get(seqs[0], "")), f"{len(seqs):,}"])
    if not rows:
        yield tag("p", "Nothing: it holds the whole log.")
        return
    yield tag("p", "All of it is in the log, but what was erased.")
    yield table(["entries", "why", "the first of them", "how many"], rows, figures=1)
    for warning in report.warnings:
        yield tag("p", shown(warning), class_="quiet")


def _places(first: int, last: int) -> str:
    return str(first) if first == last else f"{first:,} to {last:,}"
