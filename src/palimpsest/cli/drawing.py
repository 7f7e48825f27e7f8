"""Drawings of calls: what each sends, how much of it the provider has seen before, and which entries it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from palimpsest.cli.markup import Html, label, svg, tag

LEFT, RIGHT = 60, 12
"""Room beside a chart: for the figures of its axis, and at its end."""


class Bar(NamedTuple):
    """What one call sends, in tokens, and how much of that the call before sent, too."""

    sent: int
    repeated: int


class Way(NamedTuple):
    """One way of sending a conversation: its name, its calls, and two lines about it."""

    name: str
    bars: Sequence[Bar]
    price: str
    remark: str


class Held(NamedTuple):
    """The entries that stand in one call's context, the first and the last, and whether a cut came before it."""

    first: int
    last: int
    cut: bool


def steps(heights: Sequence[float], x: float, base: float, width: float) -> str:
    """Return a path over columns of these heights, from left to right, standing on `base`."""
    moves = [f"M{x:g} {base:g}"]
    moves += [f"V{base - height:.4g}h{width:.4g}" for height in heights]
    return "".join([*moves, f"V{base:g}z"])


def columns(
    bars: Sequence[Bar], x: float, base: float, width: float, scale: Callable[[int], float]
) -> tuple[Html, Html]:
    """Return the columns of calls: all that is sent in one colour, and over it what is repeated in the other."""
    step = width / max(len(bars), 1)
    return (
        tag("path", class_="new", d=steps([scale(bar.sent) for bar in bars], x, base, step)),
        tag("path", class_="cached", d=steps([scale(bar.repeated) for bar in bars], x, base, step)),
    )


def legend(x: float, y: float, *kinds: tuple[str, str]) -> Html:
    """Return what the colours mean, on one line."""
    made: list[Html] = []
    for style, what in kinds:
        made += [
            tag("rect", class_=style, x=x, y=y - 10, width=11, height=11, rx=2),
            label(x + 16, y, what, class_="q"),
        ]
        x += 36 + 6.6 * len(what)
    return tag("g", *made)


def ways_picture(title: str, ways: Sequence[Way], budget: int, cuts: Sequence[int], note: str, style: str = "") -> Html:
    """Return the picture of several ways of sending one conversation, a row each, with a column a call."""
    width, top, row, chart_x, chart_width = 880, 86, 92, 160, 540
    height = top + row * len(ways) + 38
    made: list[Html] = [tag("rect", class_="paper", width=width, height=height, rx=8), label(20, 34, title, class_="h")]
    made.append(legend(chart_x, 62, ("cached", "from the provider's cache"), ("new", "new, at full price")))
    made.append(label(width - 20, 62, "a month *", class_="q", anchor="end"))
    limit = budget * 1.08
    for place, way in enumerate(ways):
        base = top + row * place + 70

        def scale(tokens: int) -> float:
            return min(tokens, limit) / limit * 64

        made += [
            label(20, base - 30, way.name, class_="b"),
            label(20, base - 12, way.remark, class_="q"),
            *columns(way.bars, chart_x, base, chart_width, scale),
            tag("path", class_="limit", d=f"M{chart_x} {base - scale(budget):g}h{chart_width}"),
            tag("path", class_="grid", d=f"M{chart_x} {base:g}h{chart_width}"),
            label(width - 20, base - 16, way.price, class_="big", anchor="end"),
        ]
        if (largest := max(bar.sent for bar in way.bars)) > budget:
            made.append(label(chart_x + chart_width + 6, base - 56, f"↑ to {largest:,}", class_="cut"))
    base, step = top + row * (len(ways) - 1) + 70, chart_width / max(len(ways[-1].bars), 1)
    made += [tag("path", class_="cut", d=f"M{chart_x + step * call:.4g} {base + 3}l-4 7h8z") for call in cuts]
    made.append(label(20, height - 12, "▴ a cut · dashed: the budget · from left to right call after call", class_="q"))
    made.append(label(width - 20, height - 12, note, class_="q", anchor="end"))
    told = "; ".join(f"{way.name}: {way.price} a month, {way.remark}" for way in ways)
    return svg(width, height, title, f"A column for every call of the model. {told}.", *made, style=style)


def calls_chart(bars: Sequence[Bar], cuts: Sequence[int], budget: int | None, told: Sequence[str]) -> Html:
    """Return what each call sends; `told` is what a reader's pointer is told of each, `cuts` the places of cuts."""
    width, height, top = 880, 250, 34
    inner, base = width - LEFT - RIGHT, height - 34
    largest = max([bar.sent for bar in bars] + [budget or 0, 1]) * 1.05
    step = inner / max(len(bars), 1)

    def scale(tokens: int) -> float:
        return tokens / largest * (base - top)

    made: list[Html] = [legend(LEFT, 18, ("cached", "sent before, too"), ("new", "new"), ("cut", "a cut came before"))]
    made += _axis(largest, scale, base, inner)
    made += columns(bars, LEFT, base, inner, scale)
    if budget is not None:
        made.append(tag("path", class_="limit", d=f"M{LEFT} {base - scale(budget):.4g}h{inner}"))
    made += [tag("path", class_="cut", d=f"M{LEFT + step * (call + 0.5):.4g} {base + 3}l-4 7h8z") for call in cuts]
    made += [
        tag("rect", tag("title", text), x=f"{LEFT + step * call:.4g}", y=top, width=f"{step:.3g}", height=base - top,
            fill="transparent")
        for call, text in enumerate(told)
    ]  # fmt: skip
    made += _calls_below(len(bars), inner, height)
    most = max((bar.sent for bar in bars), default=0)
    about = f"{len(bars)} calls, {len(cuts)} cuts; the largest call sends {most:,} tokens."
    return svg(width, height, "Tokens a call", about, *made)


def held_chart(held: Sequence[Held], entries: int) -> Html:
    """Return which entries of the log stand in each call's context: a staircase, with a step at each cut."""
    width, height, top = 880, 270, 34
    inner, base = width - LEFT - RIGHT, height - 34
    step = inner / max(len(held), 1)

    def scale(seq: float) -> float:
        return seq / max(entries, 1) * (base - top)

    whole = [scale(one.last) for one in held]
    below = [scale(max(one.first - 1, 0)) for one in held]
    made: list[Html] = [
        legend(LEFT, 18, ("cached", "in the context"), ("archive", "in the log, left out of the context"))
    ]
    made += _axis(max(entries, 1), scale, base, inner)
    made.append(tag("path", class_="cached", d=steps(whole, LEFT, base, step)))
    made.append(tag("path", class_="archive", d=steps(below, LEFT, base, step)))
    made += [
        tag("path", class_="mark", d=f"M{LEFT + step * call:.4g} {base - whole[call]:.4g}V{base:g}")
        for call, one in enumerate(held)
        if one.cut
    ]
    made += _calls_below(len(held), inner, height)
    cuts = sum(one.cut for one in held)
    about = f"{entries:,} entries and {len(held)} calls. Red lines are the {cuts} cuts; nothing leaves the log."
    return svg(width, height, "Which entries each call held", about, *made)


def share_bar(parts: Sequence[tuple[str, int]], whole: int) -> Html:
    """Return one bar of what a context is made of, with its figures under it."""
    width, x = 880, 0.0
    made: list[Html] = [tag("rect", class_="archive", width=width, height=22, rx=4)]
    told = []
    for place, (name, tokens) in enumerate(part for part in parts if part[1]):
        size = tokens / max(whole, 1) * width
        shade = f"{1 - 0.14 * place:.2f}"
        made.append(tag("rect", class_="cached", x=f"{x:.4g}", width=f"{size:.4g}", height=22, opacity=shade))
        told.append(f"{name} {tokens:,}")
        x += size
    text = "  ·  ".join(told)
    made.append(label(0, 42, text, class_="q"))
    return svg(width, 48, "What the newest context is made of", f"{text}, of {whole:,} tokens.", *made)


def _axis(largest: float, scale: Callable[[int], float], base: float, inner: float) -> list[Html]:
    made = []
    every = next(size * 10**power for power in range(12) for size in (1, 2, 5) if largest / (size * 10**power) <= 5)
    for mark in range(0, int(largest) + 1, every):
        y = base - scale(mark)
        made.append(tag("path", class_="grid", d=f"M{LEFT} {y:.4g}h{inner}"))
        made.append(label(LEFT - 8, y + 4, f"{mark:,}", class_="q", anchor="end"))
    return made


def _calls_below(calls: int, inner: float, height: int) -> list[Html]:
    last = label(LEFT + inner, height - 6, f"call {calls:,}", class_="q", anchor="end")
    return [label(LEFT, height - 6, "call 1", class_="q"), last]
