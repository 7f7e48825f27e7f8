"""SVG drawings of model calls: what each sends, how much of that repeats the call before, which entries it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from palimpsest.cli.markup import Html, label, svg, tag

LEFT, RIGHT = 60, 12
"""Margins of a chart: on the left for the figures of its axis, and on the right."""


class Bar(NamedTuple):
    """The tokens that one call sends, and how many of them repeat the beginning of the call before."""

    sent: int
    repeated: int


class Way(NamedTuple):
    """One way of sending a conversation: its name, its calls, its price, and a remark."""

    name: str
    bars: Sequence[Bar]
    price: str
    remark: str


class Held(NamedTuple):
    """The `seq` of the first and the last entry in one call's context, and whether a cut came before the call."""

    first: int
    last: int
    cut: bool


def steps(heights: Sequence[float], x: float, base: float, width: float) -> str:
    """Return an SVG path around columns of these heights, side by side from `x`, standing on `base`."""
    moves = [f"M{x:g} {base:g}"]
    moves += [f"V{base - height:.4g}h{width:.4g}" for height in heights]
    return "".join([*moves, f"V{base:g}z"])


def columns(
    bars: Sequence[Bar], x: float, base: float, width: float, scale: Callable[[int], float]
) -> tuple[Html, Html]:
    """Return a column for each call: all tokens sent in one colour, and in front the repeated ones in another."""
    step = width / max(len(bars), 1)
    return (
        tag("path", class_="new", d=steps([scale(bar.sent) for bar in bars], x, base, step)),
        tag("path", class_="cached", d=steps([scale(bar.repeated) for bar in bars], x, base, step)),
    )


def legend(x: float, y: float, *kinds: tuple[str, str]) -> Html:
    """Return a legend on one line; each of `kinds` is a style's name and its meaning."""
    parts: list[Html] = []
    for style, meaning in kinds:
        parts += [
            tag("rect", class_=style, x=x, y=y - 10, width=11, height=11, rx=2),
            label(x + 16, y, meaning, class_="q"),
        ]
        x += 36 + 6.6 * len(meaning)
    return tag("g", *parts)


def ways_picture(title: str, ways: Sequence[Way], budget: int, cuts: Sequence[int], note: str, style: str = "") -> Html:
    """Return a picture of several ways of sending one conversation: a row for each, with a column for each call.

    `cuts` are the indexes of calls that a cut came before, `note` is the footnote, `style` a style sheet to include.
    """
    width, top, row, chart_x, chart_width = 880, 86, 92, 160, 540
    height = top + row * len(ways) + 38
    parts: list[Html] = [
        tag("rect", class_="paper", width=width, height=height, rx=8),
        label(20, 34, title, class_="h"),
    ]
    parts.append(legend(chart_x, 62, ("cached", "from the provider's cache"), ("new", "new, at full price")))
    parts.append(label(width - 20, 62, "a month *", class_="q", anchor="end"))
    limit = budget * 1.08
    for place, way in enumerate(ways):
        base = top + row * place + 70

        def scale(tokens: int) -> float:
            return min(tokens, limit) / limit * 64

        parts += [
            label(20, base - 30, way.name, class_="b"),
            label(20, base - 12, way.remark, class_="q"),
            *columns(way.bars, chart_x, base, chart_width, scale),
            tag("path", class_="limit", d=f"M{chart_x} {base - scale(budget):g}h{chart_width}"),
            tag("path", class_="grid", d=f"M{chart_x} {base:g}h{chart_width}"),
            label(width - 20, base - 16, way.price, class_="big", anchor="end"),
        ]
        if (largest := max(bar.sent for bar in way.bars)) > budget:
            parts.append(label(chart_x + chart_width + 6, base - 56, f"↑ to {largest:,}", class_="cut"))
    base, step = top + row * (len(ways) - 1) + 70, chart_width / max(len(ways[-1].bars), 1)
    parts += [tag("path", class_="cut", d=f"M{chart_x + step * call:.4g} {base + 3}l-4 7h8z") for call in cuts]
    parts.append(
        label(20, height - 12, "▴ a cut · dashed: the budget · from left to right call after call", class_="q")
    )
    parts.append(label(width - 20, height - 12, note, class_="q", anchor="end"))
    description = "; ".join(f"{way.name}: {way.price} a month, {way.remark}" for way in ways)
    return svg(width, height, title, f"A column for every call of the model. {description}.", *parts, style=style)


def calls_chart(bars: Sequence[Bar], cuts: Sequence[int], budget: int | None, tooltips: Sequence[str]) -> Html:
    """Return a chart of what each call sends. `tooltips` has a text for each call, `cuts` the indexes of those with a
    cut before them."""
    width, height, top = 880, 250, 34
    inner, base = width - LEFT - RIGHT, height - 34
    largest = max([bar.sent for bar in bars] + [budget or 0, 1]) * 1.05
    step = inner / max(len(bars), 1)

    def scale(tokens: int) -> float:
        return tokens / largest * (base - top)

    parts: list[Html] = [legend(LEFT, 18, ("cached", "sent before, too"), ("new", "new"), ("cut", "a cut came before"))]
    parts += _axis(largest, scale, base, inner)
    parts += columns(bars, LEFT, base, inner, scale)
    if budget is not None:
        parts.append(tag("path", class_="limit", d=f"M{LEFT} {base - scale(budget):.4g}h{inner}"))
    parts += [tag("path", class_="cut", d=f"M{LEFT + step * (call + 0.5):.4g} {base + 3}l-4 7h8z") for call in cuts]
    parts += [
        tag("rect", tag("title", text), x=f"{LEFT + step * call:.4g}", y=top, width=f"{step:.3g}", height=base - top,
            fill="transparent")
        for call, text in enumerate(tooltips)
    ]  # fmt: skip
    parts += _calls_below(len(bars), inner, height)
    largest_call = max((bar.sent for bar in bars), default=0)
    description = f"{len(bars)} calls, {len(cuts)} cuts; the largest call sends {largest_call:,} tokens."
    return svg(width, height, "Tokens a call", description, *parts)


def held_chart(held: Sequence[Held], entries: int) -> Html:
    """Return a chart of which entries of the log each call's context holds: a staircase, with a step at each cut."""
    width, height, top = 880, 270, 34
    inner, base = width - LEFT - RIGHT, height - 34
    step = inner / max(len(held), 1)

    def scale(seq: float) -> float:
        return seq / max(entries, 1) * (base - top)

    whole = [scale(call_held.last) for call_held in held]
    below = [scale(max(call_held.first - 1, 0)) for call_held in held]
    parts: list[Html] = [
        legend(LEFT, 18, ("cached", "in the context"), ("archive", "in the log, left out of the context"))
    ]
    parts += _axis(max(entries, 1), scale, base, inner)
    parts.append(tag("path", class_="cached", d=steps(whole, LEFT, base, step)))
    parts.append(tag("path", class_="archive", d=steps(below, LEFT, base, step)))
    parts += [
        tag("path", class_="mark", d=f"M{LEFT + step * call:.4g} {base - whole[call]:.4g}V{base:g}")
        for call, call_held in enumerate(held)
        if call_held.cut
    ]
    parts += _calls_below(len(held), inner, height)
    cuts = sum(call_held.cut for call_held in held)
    description = f"{entries:,} entries and {len(held)} calls. Red lines are the {cuts} cuts; nothing leaves the log."
    return svg(width, height, "Which entries each call held", description, *parts)


def share_bar(parts: Sequence[tuple[str, int]], whole: int) -> Html:
    """Return a bar that shows the share of each part of a context, with the figures under it."""
    width, x = 880, 0.0
    drawn: list[Html] = [tag("rect", class_="archive", width=width, height=22, rx=4)]
    figures = []
    for place, (name, tokens) in enumerate(part for part in parts if part[1]):
        size = tokens / max(whole, 1) * width
        shade = f"{1 - 0.14 * place:.2f}"
        drawn.append(tag("rect", class_="cached", x=f"{x:.4g}", width=f"{size:.4g}", height=22, opacity=shade))
        figures.append(f"{name} {tokens:,}")
        x += size
    text = "  ·  ".join(figures)
    drawn.append(label(0, 42, text, class_="q"))
    return svg(width, 48, "What the newest context is made of", f"{text}, of {whole:,} tokens.", *drawn)


def _axis(largest: float, scale: Callable[[int], float], base: float, inner: float) -> list[Html]:
    drawn = []
    every = next(size * 10**power for power in range(12) for size in (1, 2, 5) if largest / (size * 10**power) <= 5)
    for mark in range(0, int(largest) + 1, every):
        y = base - scale(mark)
        drawn.append(tag("path", class_="grid", d=f"M{LEFT} {y:.4g}h{inner}"))
        drawn.append(label(LEFT - 8, y + 4, f"{mark:,}", class_="q", anchor="end"))
    return drawn


def _calls_below(calls: int, inner: float, height: int) -> list[Html]:
    last = label(LEFT + inner, height - 6, f"call {calls:,}", class_="q", anchor="end")
    return [label(LEFT, height - 6, "call 1", class_="q"), last]
