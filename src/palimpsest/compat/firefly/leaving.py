"""Which turns leave a conversation, and the summary that stands for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from palimpsest.log import spans
from palimpsest.strategies import Plan, Step, Style, Triggers

if TYPE_CHECKING:
    from palimpsest import Entry
    from palimpsest.strategies import Snapshot

NAME = "firefly"


class Leaving:
    """Takes the oldest turns out of the active set where they cost more than the limit, until they cost no more than
    the target: by a summary, or to the archive. The newest always stays.
    """

    name, erases, triggers, style = NAME, False, Triggers(), Style(on_failure="keep")

    def __init__(self, limit: int, target: int, cost: Callable[[Sequence[Entry]], int], *, summarizes: bool) -> None:
        self._limit, self._target, self._cost, self.summarizes = limit, target, cost, summarizes

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return which turns leave."""
        turns = [one for one in snapshot.interactions if one.turn]
        costs = [self._cost(one.entries) for one in turns]
        total = sum(costs)
        if total <= self._limit:
            return Plan(reason="below_threshold")
        leaving: list[int] = []
        taken = entries = 0
        for turn, cost in zip(turns[:-1], costs, strict=False):
            if total - taken <= self._target:
                break
            free = [group for group in turn.groups if not (group.pending or _stays(group.entries, snapshot))]
            leaving += [entry.seq for group in free for entry in group.entries]
            taken, entries = taken + cost, entries + len(turn.entries)
        if not leaving:
            return Plan(reason="nothing_to_compact")
        if not self.summarizes:
            return Plan(evict=spans.of(leaving), steps=(Step("evict", entries, taken, "the oldest turns"),))
        # What has left without a summary is covered from now on, too: else every run would read all of it.
        before = [entry.seq for turn in snapshot.archived for group in turn.groups for entry in group.entries]
        return Plan(
            cover=spans.of([*before, *leaving]),
            fold=tuple(summary.revision for summary in snapshot.summaries),
            summary_tokens=max(taken // 3, 1),
            steps=(Step("summarize", entries, taken, "the oldest turns"),),
        )


def _stays(entries: Sequence[Entry], snapshot: Snapshot) -> bool:
    return any(entry.seq in snapshot.pinned or entry.role == "system" for entry in entries)


def joined(before: str, made: str, budget: int, count: Callable[[str], int]) -> str:
    """An earlier summary and a new one as one text of at most so many tokens, unless one has the other in it."""
    if not before or _says(made, before):
        return made
    if _says(before, made):
        return before
    text = f"{before}\n{made}"
    return text if count(text) <= budget else _bounded(before, made, budget, count)


def _says(text: str, part: str) -> bool:
    """Whether a text has another one in it, as whole words."""
    at = text.find(part)
    while at >= 0:
        end = at + len(part)
        if not any(one.isalnum() for one in (*text[max(at - 1, 0) : at], *text[end : end + 1])):
            return True
        at = text.find(part, at + 1)
    return False


def _bounded(before: str, made: str, budget: int, count: Callable[[str], int]) -> str:
    """Both within the budget: of each, lines from its front and its end, half of the room for either."""
    half = max(budget // 2, 1)
    room = max(budget - min(count(made), half), half)
    return "\n".join((_ends(before, room, count), _ends(made, max(budget - room, half), count)))


def _ends(text: str, room: int, count: Callable[[str], int]) -> str:
    """The text, or its first and its last characters within so many tokens, around a mark."""
    size = count(text)
    characters = len(text) if size <= room else len(text) * room // size
    while size > room and characters > 1:
        characters = characters * 9 // 10
        short = f"{text[: characters // 2].rstrip()} […] {text[len(text) - characters // 2 :].lstrip()}"
        if count(short) <= room:
            return short
    return text if size <= room else "[…]"
