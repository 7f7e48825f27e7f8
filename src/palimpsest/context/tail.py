"""What stands in a context beside its log, fenced as data of the user: a tail behind the newest entry, which varies
from call to call, and, where a session says so, facts before all entries, which change with its cuts. Pure.

It has a room of its own, a fixed share of what the request may take, which is kept free of the log whether or not it is
used. So nothing in a tail makes a cut, and everything before it is what it would be without one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from palimpsest.context.budget import Beside
from palimpsest.context.groups import Group, Meter, by_group, fill
from palimpsest.log.entry import Entry, moment
from palimpsest.log.facts import Fact, as_of, rendered
from palimpsest.log.late import sha256


class TailPart(Protocol):
    """What may stand in a tail, under a name."""

    @property
    def name(self) -> str: ...

    def beside(self, shown: Collection[int]) -> TailPart:
        """It without what says the same as these entries of the log (by `seq`), which the context shows whole."""
        ...

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """What of it has room in so many tokens (None: any number); "" for nothing."""
        ...

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """It as it is sent, with its fence; None where it says nothing, or has no room."""
        ...


class Text(NamedTuple):
    """A text of a tail, whole or not at all."""

    name: str
    text: str

    def beside(self, shown: Collection[int]) -> Text:
        """It as it is."""
        return self

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """The text, or "" where it has more than so many tokens."""
        return self.text if most is None or count(self.text) <= most else ""

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """It as it is sent, with its fence; None where it says nothing, or has no room."""
        return fitting(self, most, meter)


class Facts:
    """The facts of a working memory, as many as have room, the most important ones first.

    What was made of them last is kept with them: they are often the same from one context to the next.
    """

    def __init__(self, name: str, facts: Sequence[Fact]) -> None:
        self.name, self.facts = name, facts
        self._made: tuple[object, Group | None] = (None, None)
        self._then: tuple[int, Facts] | None = None
        self._times: str | None = None

    def beside(self, shown: Collection[int]) -> Facts:
        """They as they are."""
        return self

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """The facts in at most so many tokens; "" where there are none, or no room."""
        return rendered(self.facts, most, count)

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """They as they are sent, with their fence; None where there are none, or no room."""
        asked = (most, meter.counter, meter.format, meter.model)
        if self._made[0] != asked:
            self._made = asked, fitting(self, most, meter)
        return self._made[1]

    def as_of(self, at: int) -> Facts:
        """They as they were at a time (microseconds since 1970)."""
        if self._then is None or self._then[0] != at:
            self._then = at, Facts(self.name, as_of(self.facts, moment(at)))
        return self._then[1]

    @property
    def times(self) -> str:
        """Since when each has its value, and its importance, hashed."""
        if self._times is None:
            known = [(fact.since.timestamp(), fact.importance) for fact in self.facts]
            self._times = sha256(repr(known).encode()).hex()
        return self._times


def tail_of(parts: Sequence[TailPart], room: Beside | None, meter: Meter) -> tuple[list[Group], tuple[str, ...]]:
    """These parts as they are sent, within this room (None: any), the first ones first, and the names of those that
    have none."""
    groups, left = list[Group](), list[str]()
    for part in parts:
        shown = part.group(None if room is None else room.tokens, meter)
        if shown is not None and (room is None or room.messages is None or shown.messages <= room.messages):
            groups.append(shown)
            room = room and room.less(shown.cost, shown.messages)
        elif part.within(None, len):
            left.append(part.name)
    return groups, tuple(left)


class Lead(NamedTuple):
    """Facts before the log, as they are sent; the names of those scopes whose facts have no room; and their mark."""

    groups: Sequence[Group]
    left: tuple[str, ...]
    mark: str


def lead_of(parts: Sequence[Facts], at: int, room: Beside | None, meter: Meter) -> Lead:
    """Facts before the log as they were at this time (microseconds since 1970), within this room (None: any).

    The mark is made of times, importance and cost, since it is kept with the session, where no text may be known by it.
    """
    shown = [part.as_of(at) for part in parts]
    groups, left = tail_of(shown, room, meter)
    known = [part.times for part in shown], sum(group.cost for group in groups)
    return Lead(groups, left, sha256(repr(known).encode()).hex()[:16])


def fitting(part: TailPart, most: int | None, meter: Meter) -> Group | None:
    """What of a part has room in so many counted tokens (None: any number) with its fence, as it is sent."""
    inner = most
    while inner is None or inner > 0:
        text = part.within(inner, meter.counter.count)
        if not text:
            return None
        shown = _group(part.name, text, meter)
        if most is None or inner is None or shown.cost <= most:
            return shown
        inner = min(inner, meter.counter.count(text)) - (shown.cost - most)
    return None


def _group(name: str, text: str, meter: Meter) -> Group:
    exact = Meter(meter.counter, meter.format, meter.model)  # which remembers what it has counted by number
    exact.exact = True  # a bound would leave out what has room
    entry = Entry(kind="context", role="user", content=text, name=name, lone=True)
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
