"""What a context shows beside its log, fenced as data of the user. Pure.

A tail comes behind the newest entry and varies from call to call. Facts may come before all entries, if the session
says so; they change only with its cuts. Both share a room of their own: a fixed share of what the request may take,
kept free whether or not it is used. So a tail never causes a cut, and everything before it is what it would be without
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from palimpsest.context.budget import Beside
from palimpsest.context.groups import Group, Meter, by_group, fill
from palimpsest.log.entry import Entry, moment
from palimpsest.log.facts import Fact, as_of, rendered
from palimpsest.log.lazy_imports import sha256


class TailPart(ABC):
    """A part of a tail; `name` stands on its fence."""

    name: str

    @abstractmethod
    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the text of the part that fits this many tokens (None: any number), or ""."""

    def beside(self, shown: Collection[int]) -> TailPart:
        """Return the part without what repeats these entries of the log (by `seq`), which the context shows whole."""
        return self

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """Return the part with its fence, in this many counted tokens (None: any number). None if it has no room."""
        inner = most
        while inner is None or inner > 0:
            text = self.within(inner, meter.counter.count)
            if not text:
                return None
            fitted = _group(self.name, text, meter)
            if most is None or inner is None or fitted.cost <= most:
                return fitted
            inner = min(inner, meter.counter.count(text)) - (fitted.cost - most)
        return None


class Text(TailPart):
    """A text in a tail, shown whole or not at all."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self._text = name, text

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the text, or "" if it has more than `most` tokens."""
        return self._text if most is None or count(self._text) <= most else ""


class Facts(TailPart):
    """The facts of a working memory, most important first, as many as have room.

    The last rendered group is kept, since facts are often the same from one context to the next.
    """

    def __init__(self, name: str, facts: Sequence[Fact]) -> None:
        self.name, self.facts = name, facts
        self._last_group: tuple[object, Group | None] = (None, None)
        self._past: tuple[int, Facts] | None = None
        self._times_hash: str | None = None

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the facts that fit this many tokens as text; "" if there are none, or no room."""
        return rendered(self.facts, most, count)

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """Return the facts as they are sent, with their fence. None if there are none, or no room."""
        key = (most, meter.counter, meter.format, meter.model)
        if self._last_group[0] != key:
            self._last_group = key, super().group(most, meter)
        return self._last_group[1]

    def as_of(self, at: int) -> Facts:
        """Return the facts as they were at this time (microseconds since 1970)."""
        if self._past is None or self._past[0] != at:
            self._past = at, Facts(self.name, as_of(self.facts, moment(at)))
        return self._past[1]

    @property
    def times(self) -> str:
        """A hash of when each fact got its value, and of its importance."""
        if self._times_hash is None:
            times = [(fact.since.timestamp(), fact.importance) for fact in self.facts]
            self._times_hash = sha256(repr(times).encode()).hex()
        return self._times_hash


def tail_of(parts: Sequence[TailPart], room: Beside | None, meter: Meter) -> tuple[list[Group], tuple[str, ...]]:
    """Return the groups of these parts within this room (None: any), and the names of those that have no room.

    Earlier parts get room first.
    """
    groups, without_room = list[Group](), list[str]()
    for part in parts:
        group = part.group(None if room is None else room.tokens, meter)
        if group is not None and (room is None or room.messages is None or group.messages <= room.messages):
            groups.append(group)
            room = room and room.less(group.cost, group.messages)
        elif part.within(None, len):
            without_room.append(part.name)
    return groups, tuple(without_room)


class Lead(NamedTuple):
    """Facts before the log as they are sent, the names of scopes whose facts have no room, and the mark of all."""

    groups: Sequence[Group]
    without_room: tuple[str, ...]
    mark: str


def lead_of(parts: Sequence[Facts], at: int, room: Beside | None, meter: Meter) -> Lead:
    """Return the facts before the log as of this time (microseconds since 1970), within this room (None: any).

    The mark is made of times, importance and length only: it is stored with the session, and must not reveal any text.
    It is the same for every counter and format, so that contexts of several models need no cut between them.
    """
    current_facts = [part.as_of(at) for part in parts]
    groups, without_room = tail_of(current_facts, room, meter)
    fingerprint = [part.times for part in current_facts], sum(len(group.entries[0].text) for group in groups)
    return Lead(groups, without_room, sha256(repr(fingerprint).encode()).hex()[:16])


def _group(name: str, text: str, meter: Meter) -> Group:
    """Return the text as a group of one fenced entry, counted exactly."""
    # A meter of its own: counts are keyed by `seq`, and this entry has none.
    exact = Meter(meter.counter, meter.format, meter.model)
    exact.exact = True  # an upper bound would leave out parts that fit
    entry = Entry(kind="context", role="user", content=text, name=name, lone=True)
    (group,) = by_group([entry])
    fill(group, 0, {}, exact)
    return group


def marked_before(stable: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return `whole`, a request with a tail, with the prompt cache marks of `stable`, the same request without it.

    The tail may have been merged into the last message; its blocks then come behind the marked ones. Requests without
    `messages` belong to providers that want no marks, and stay unchanged.
    """
    marked, messages = stable.get("messages"), whole.get("messages")
    if messages is None:
        return whole
    if not marked:
        return {**whole, **{key: value for key, value in stable.items() if key in whole and key != "messages"}}
    last_index, content = len(marked) - 1, marked[-1].get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    joined = messages[last_index].get("content")
    tail_blocks = joined[len(blocks) :] if isinstance(joined, list) else []
    message = {**messages[last_index], "content": [*blocks, *tail_blocks]} if tail_blocks else marked[last_index]
    return {**whole, **stable, "messages": [*marked[:last_index], message, *messages[last_index + 1 :]]}
