"""The strategy that removes the oldest turns of a conversation, and how an earlier summary is joined with a new one."""

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
    """A compaction strategy that removes the oldest turns once all together cost more than `limit` tokens.

    Turns leave until the rest costs at most `target`. They are covered by a summary if `summarizes`, else archived. The
    newest turn always stays.
    """

    name, erases, triggers, style = NAME, False, Triggers(), Style(on_failure="keep")

    def __init__(self, limit: int, target: int, cost: Callable[[Sequence[Entry]], int], *, summarizes: bool) -> None:
        self._limit, self._target, self._cost, self.summarizes = limit, target, cost, summarizes

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the plan of which turns leave."""
        turns = [interaction for interaction in snapshot.interactions if interaction.turn]
        costs = [self._cost(turn.entries) for turn in turns]
        total = sum(costs)
        if total <= self._limit:
            return Plan(reason="below_threshold")
        leaving: list[int] = []
        freed = entry_count = 0
        for turn, cost in zip(turns[:-1], costs, strict=False):
            if total - freed <= self._target:
                break
            free = [group for group in turn.groups if not (group.pending or _stays(group.entries, snapshot))]
            leaving += [entry.seq for group in free for entry in group.entries]
            freed, entry_count = freed + cost, entry_count + len(turn.entries)
        if not leaving:
            return Plan(reason="nothing_to_compact")
        if not self.summarizes:
            return Plan(evict=spans.of(leaving), steps=(Step("evict", entry_count, freed, "the oldest turns"),))
        # Cover the turns that were archived earlier, too. Else each compaction would read them all again.
        archived = [entry.seq for turn in snapshot.archived for group in turn.groups for entry in group.entries]
        return Plan(
            cover=spans.of([*archived, *leaving]),
            fold=tuple(summary.revision for summary in snapshot.summaries),
            summary_tokens=max(freed // 3, 1),
            steps=(Step("summarize", entry_count, freed, "the oldest turns"),),
        )


def _stays(entries: Sequence[Entry], snapshot: Snapshot) -> bool:
    return any(entry.seq in snapshot.pinned or entry.role == "system" for entry in entries)


def joined(before: str, new: str, budget: int, count: Callable[[str], int]) -> str:
    """Return an earlier summary and a new one as one text of at most `budget` tokens.

    If one of them contains the other, the containing one is returned alone, whatever it costs.
    """
    if not before or _says(new, before):
        return new
    if _says(before, new):
        return before
    text = f"{before}\n{new}"
    return text if count(text) <= budget else _bounded(before, new, budget, count)


def _says(text: str, part: str) -> bool:
    """Return whether `text` contains `part` as whole words."""
    start = text.find(part)
    while start >= 0:
        end = start + len(part)
        if not any(neighbour.isalnum() for neighbour in (*text[max(start - 1, 0) : start], *text[end : end + 1])):
            return True
        start = text.find(part, start + 1)
    return False


def _bounded(before: str, new: str, budget: int, count: Callable[[str], int]) -> str:
    """Return both texts within `budget` tokens, each shortened in its middle.

    The new one gets at most half of the budget, and the earlier one the rest.
    """
    half = max(budget // 2, 1)
    room = max(budget - min(count(new), half), half)
    return "\n".join((_ends(before, room, count), _ends(new, max(budget - room, half), count)))


def _ends(text: str, room: int, count: Callable[[str], int]) -> str:
    """Return the text, or its beginning and its end around a mark, within `room` tokens."""
    size = count(text)
    characters = len(text) if size <= room else len(text) * room // size
    while size > room and characters > 1:
        characters = characters * 9 // 10
        short = f"{text[: characters // 2].rstrip()} […] {text[len(text) - characters // 2 :].lstrip()}"
        if count(short) <= room:
            return short
    return text if size <= room else "[…]"
