"""The tail of a context: what varies from call to call, behind the newest entry, fenced as data of the user. Pure.

It has a room of its own, a fixed share of what the request may take, which is kept free of the log whether or not it is
used. So nothing in a tail makes a cut, and everything before it is what it would be without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from palimpsest.context.groups import Group, Meter, by_group, fill
from palimpsest.log.entry import Entry
from palimpsest.log.facts import Fact, rendered


class Text(NamedTuple):
    """A text of a tail, whole or not at all."""

    name: str
    text: str

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """The text, or "" where it has more than so many tokens."""
        return self.text if most is None or count(self.text) <= most else ""


class Facts(NamedTuple):
    """The facts of a working memory, as many as have room, the most important ones first."""

    name: str
    facts: Sequence[Fact]

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """The facts in at most so many tokens; "" where there are none, or no room."""
        return rendered(self.facts, most, count)


def tail_of(
    parts: Sequence[Text | Facts], seq: int, room: int | None, meter: Meter
) -> tuple[list[Group], tuple[str, ...]]:
    """These parts as they are sent, within so many counted tokens (None: any number), the first ones first, and the
    names of those that have no room.

    `seq` is the first number behind the log.
    """
    groups, left = list[Group](), list[str]()
    for part in parts:
        most = None if room is None else room - sum(group.cost for group in groups)
        shown = _fitting(part, seq + len(groups), most, meter)
        if shown is not None:
            groups.append(shown)
        elif part.within(None, len):
            left.append(part.name)
    return groups, tuple(left)


def _fitting(part: Text | Facts, seq: int, most: int | None, meter: Meter) -> Group | None:
    """A part as it is sent, with its fence; None where it says nothing, or has no room."""
    inner = most
    while inner is None or inner > 0:
        text = part.within(inner, meter.counter.count)
        if not text:
            return None
        shown = _group(part.name, text, seq, meter)
        if most is None or inner is None or shown.cost <= most:
            return shown
        inner = min(inner, meter.counter.count(text)) - (shown.cost - most)
    return None


def _group(name: str, text: str, seq: int, meter: Meter) -> Group:
    exact = Meter(meter.counter, meter.format, meter.model)  # which remembers what it has counted by number
    exact.exact = True  # a bound would leave out what has room
    entry = Entry(kind="context", role="user", content=text, name=name, seq=seq, group=seq, lone=True)
    (group,) = by_group([entry])
    fill(group, 0, {}, exact)
    return group


def marked_before(stable: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """A request with a tail, `whole`, with the marks for the prompt cache that it has without one, `stable`.

    The tail may have been merged into the last message; then its blocks come behind those that are marked. A request
    that has its conversation elsewhere is of a provider that wants no marks, and stays as it is.
    """
    marked, sent = stable.get("messages"), whole.get("messages")
    if sent is None:
        return whole
    if not marked:
        return {**whole, **{key: value for key, value in stable.items() if key in whole and key != "messages"}}
    last, own = len(marked) - 1, marked[-1].get("content")
    blocks = own if isinstance(own, list) else [{"type": "text", "text": own}]
    joined = sent[last].get("content")
    more = joined[len(blocks) :] if isinstance(joined, list) else []
    message = {**sent[last], "content": [*blocks, *more]} if more else marked[last]
    return {**whole, **stable, "messages": [*marked[:last], message, *sent[last + 1 :]]}
