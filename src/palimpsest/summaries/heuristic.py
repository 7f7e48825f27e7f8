"""The summary without a model: documented lines first, then what was found worth keeping, word for word. Pure.

What there is no room for is left out by its weight: rarely mentioned and old things first, pinned ones never.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from palimpsest.log.summary import SummaryItem
from palimpsest.summaries import Count, Draft, Recipe, Rejected, SummarySource
from palimpsest.summaries.gleaning import (
    CONTEXT,
    EARLIER,
    ERRORS,
    MENTIONED,
    SAID,
    SAID_BY_ASSISTANT,
    SAID_BY_USER,
    TOLD,
    TOOL,
    USERS,
    Gleaned,
    glean,
    outcome,
    weight,
)
from palimpsest.summaries.guards import cut, pinned_of
from palimpsest.summaries.identifiers import missing
from palimpsest.summaries.mentions import terms

HEADING = "[Previous conversation summary]"

_NOTES_SHARE = 0.35
"""Of the length that errors, decisions and facts may take before what was mentioned has had its turn."""

_EARLIER_SHARE = 0.75
"""Of the length that the text of a model's summary may take while there is something new to tell."""

_CHARACTERS = 5
"""Of items, for one token of the text that tells them: more than they take in most, for some stand in it already."""

_GUESSES = 6
"""How often the end of the room is guessed before the search goes on by halves."""

_TOOLS = 40
"""Tools that are named at most."""

_RARE = 0.3
"""What a quoted sentence mentions, each mention being worth 1 / places: one of three places, or several of more."""


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a text is put together from. `quoted` is not told again: the documented lines quote it."""

    earlier: str = ""
    heading: bool = True
    head: tuple[str, ...] = ()
    notes: tuple[SummaryItem, ...] = ()
    mentions: tuple[SummaryItem, ...] = ()
    pinned: tuple[str, ...] = ()
    quoted: tuple[SummaryItem, ...] = ()

    def text(self) -> str:
        """What was there before, the documented lines, what is mentioned in no section, the sections.

        Names and numbers stand before what was said: a context that has no room for all of it leaves out the end.
        """
        blocks = [self.earlier] if self.earlier else []
        if self.heading:
            blocks.append("\n".join((HEADING, *self.head)))
        sections = []
        for title, belongs in _SECTIONS:
            if items := sorted(filter(belongs, self.notes), key=lambda item: item.sources[:1]):
                sections.append("\n".join((title, *(f"- {_told(item)}" for item in items))))
        named = _listed("\n".join((*blocks, *sections)), self.mentions, self.pinned)
        if named:
            blocks.append(f"Mentioned: {named}")
        return "\n".join((*blocks, *sections))


def heuristic(source: SummarySource, recipe: Recipe, count: Count) -> Draft:
    """Return a summary that no model was asked for: `recipe.target` tokens if there is so much to tell.

    It takes at most `recipe.most` tokens, less than its source, and holds every pinned identifier. Where that is `bare`
    it has the documented lines alone, between what a model's summary said before and where contexts were from; the rest
    only where these say nothing. Raises Rejected: empty where there is nothing to tell, no_gain where what may not be
    left out is longer than that.
    """
    found, pinned = glean(source), pinned_of(source)
    if found.is_empty and not pinned:
        raise Rejected("empty", "there is nothing in the entries that could be told")
    most = min(recipe.most, recipe.source_tokens - 1)
    least = _least(found, pinned, most, count, bare=recipe.bare)
    aim = max(min(recipe.target, most), count(least.text()))
    parts = _after_earlier(least, found, aim, count)
    bare = _with_contexts(parts, found, most, count) if recipe.bare else None
    parts = bare if bare is not None and bare.text() != HEADING else _filled(parts, found, aim, count)
    text = parts.text()
    if count(text) > most or missing(text, pinned):  # a counter by which more text may be fewer tokens
        parts, text = least, least.text()
    if text in ("", HEADING):
        raise Rejected("no_gain", f"nothing of it can be told in {max(most, 0)} tokens")
    return Draft(text=text, method="heuristic", items=_items(found, parts))


# --- choosing


def _least(found: Gleaned, pinned: tuple[str, ...], most: int, count: Count, *, bare: bool) -> _Parts:
    """Return what is pinned, and the documented lines that there is room for beside it."""
    head = [line for line in _head(found) if not (bare and line[0] == _OUTCOMES)]
    fewer = (_Parts(head=tuple(line for rank, line in head if rank < worst), pinned=pinned) for worst in _RANKS)
    for parts in (*fewer, _Parts(heading=False, pinned=pinned)):
        text = parts.text()
        if count(text) <= most and not missing(text, pinned):
            return parts
    raise Rejected("no_gain", f"what may not be left out takes more than {max(most, 0)} tokens")


def _after_earlier(parts: _Parts, found: Gleaned, aim: int, count: Count) -> _Parts:
    """Return the parts with the texts of a model's summaries, or as much of them as there is room for."""
    earlier = "\n\n".join(text.strip() for text in found.earlier if text.strip())
    if not earlier:
        return parts
    room = aim - count(parts.text()) - 2
    if found.notes or found.mentioned:
        room = min(room, int(aim * _EARLIER_SHARE))
    return msgspec.structs.replace(parts, earlier=cut(earlier, room, count))


def _with_contexts(parts: _Parts, found: Gleaned, most: int, count: Count) -> _Parts:
    """Return the parts with the sources of background data, which nobody can ask for whom nobody tells of them."""
    items = tuple(found.contexts.values())
    return msgspec.structs.replace(parts, notes=items[: _longest(parts, "notes", items, most, count)])


def _filled(parts: _Parts, found: Gleaned, aim: int, count: Count) -> _Parts:
    """Return the parts with as much as there is room for: some notes, mentions, more notes, sentences."""
    lines, telling = "\n".join(parts.head), _telling(found)
    quoted = tuple(item for item in (*found.notes, *telling) if item.text in lines)
    parts = msgspec.structs.replace(parts, quoted=quoted)
    notes = [item for item in found.notes if item not in quoted]
    mentioned = _by_weight(found, parts)
    room = min(aim, count(parts.text()) + int(aim * _NOTES_SHARE))
    some = _longest(parts, "notes", notes, room, count)
    parts = msgspec.structs.replace(parts, notes=tuple(notes[:some]))
    many = _longest(parts, "mentions", mentioned, aim, count)
    parts = msgspec.structs.replace(parts, mentions=tuple(mentioned[:many]))
    told = [*notes, *(item for item in telling if item not in quoted)]
    some = max(_longest(parts, "notes", told, aim, count), some)
    parts = msgspec.structs.replace(parts, notes=tuple(told[:some]))
    mentioned = [*mentioned[:many], *sorted(found.unsure.values(), key=_rank)]
    many = max(_longest(parts, "mentions", mentioned, aim, count), many)
    return msgspec.structs.replace(parts, mentions=tuple(mentioned[:many]))


def _longest(parts: _Parts, field: str, items: Sequence[SummaryItem], room: int, count: Count) -> int:
    """Return how many of the items there is room for in a field of the parts.

    For every number that is tried a text is made and counted. So the first is a guess that is seldom far behind the
    end of the room, and the next are where the ones before let expect it.
    """

    def tokens(number: int) -> int:
        return count(msgspec.structs.replace(parts, **{field: tuple(items[:number])}).text())

    low, high, least, most = 0, len(items) + 1, tokens(0), 0
    if least > room:
        return 0
    lengths = accumulate(len(item.text) for item in items)
    number = 1 + sum(length <= _CHARACTERS * (room - least) for length in lengths)
    tries = 0
    while low + 1 < high:
        number = min(max(number, low + 1), high - 1)
        made = tokens(number)
        if made <= room:
            low, least = number, made
        else:
            high, most = number, made
        tries += 1
        if not most:
            number = 2 * low
        elif tries < _GUESSES:
            number = low + (room - least) * (high - low) // (most - least)
        else:
            number = (low + high) // 2
    return low


def _by_weight(found: Gleaned, parts: _Parts) -> list[SummaryItem]:
    """Return what was mentioned, what matters most first; of an earlier text that was cut, too."""
    for text in found.earlier:
        if text.strip() not in parts.earlier:
            for term in terms(text):
                found.mentioned.setdefault(term, SummaryItem(kind="fact", text=term, status=MENTIONED))
    return sorted(found.mentioned.values(), key=_rank)


def _rank(item: SummaryItem) -> tuple[float, int]:
    """What matters most sorts first; of equals the newest."""
    return -weight(item), -max(item.sources, default=0)


def _telling(found: Gleaned) -> list[SummaryItem]:
    """Return sentences by what they mention: what few others mention counts most, and shortness.

    Those that mention only what everything mentions are left out: greetings, for the most part.
    """
    ranked: dict[str, tuple[float, int, SummaryItem]] = {}
    for item, inside in found.sentences:
        mentions = [known for term in dict.fromkeys(inside) if (known := found.mentioned.get(term)) is not None]
        rare = sum([1 / (len(mention.sources) or 1) for mention in mentions])
        if rare >= _RARE or not inside:
            value = rare / (1 + len(item.text) / 160)
            ranked.setdefault(item.text, (-value, -max(item.sources, default=0), item))
    return [item for _, _, item in sorted(ranked.values(), key=lambda rank: rank[:2])]


# --- wording


def _head(found: Gleaned) -> list[tuple[int, str]]:
    """Return the documented lines that have something to say, each with how soon it is left out: the highest first."""
    lines = []
    if found.users:
        lines.append((0, f"{found.users} user message{'' if found.users == 1 else 's'}"))
    if found.first is not None:
        lines.append((3, f'First: "{found.first.text}"'))
    if found.last is not None and found.users > 1:
        lines.append((4, f'Last: "{found.last.text}"'))
    if found.tools:
        names = list(found.tools)
        more = f" and {len(names) - _TOOLS} more" if len(names) > _TOOLS else ""
        lines.append((2, f"Tools used: {', '.join(names[:_TOOLS])}{more}"))
    if found.errors:
        lines.append((1, f"{found.errors} error{'' if found.errors == 1 else 's'} encountered"))
    ends = [f"{name} {words}" for name, counts in list(found.tools.items())[:_TOOLS] if (words := outcome(counts))]
    if ends:
        lines.append((_OUTCOMES, f"Outcomes: {'; '.join(ends)}"))
    return lines


_OUTCOMES = 5
_RANKS = range(_OUTCOMES + 1, -1, -1)

_WHO = {SAID_BY_USER: "user: ", SAID_BY_ASSISTANT: "assistant: ", SAID: ""}

_SECTIONS = (
    ("Errors:", lambda item: item.kind == "error"),
    ("Decisions:", lambda item: item.kind == "decision"),
    ("User facts and preferences:", lambda item: item.status == TOLD),
    ("Context:", lambda item: item.status == CONTEXT),
    ("Said:", lambda item: item.kind == "fact" and item.status in _WHO),
)


def _told(item: SummaryItem) -> str:
    """The item as a line tells it: what was said, with who said it."""
    return f"{_WHO.get(item.status or '', '')}{item.text}"


def _listed(above: str, mentions: Sequence[SummaryItem], pinned: Sequence[str]) -> str:
    """What is pinned and what was mentioned, without what stands above: of one place by commas, else by semicolons."""
    lost = missing(above, [*pinned, *(item.text for item in mentions)])
    wanted = set(lost)
    groups: dict[int, list[str]] = {}
    if first := [text for text in dict.fromkeys(pinned) if text in wanted]:
        groups[-1] = first
        wanted -= set(first)
    for item in sorted(mentions, key=lambda item: item.sources[:1]):
        if item.text in wanted:
            groups.setdefault(item.sources[0] if item.sources else 0, []).append(item.text)
    return "; ".join(", ".join(names) for names in groups.values())


def _items(found: Gleaned, parts: _Parts) -> tuple[SummaryItem, ...]:
    """What the next summary goes on from: the counts, and the items that are told."""
    made = [SummaryItem(kind="fact", text=identifier, pinned=True) for identifier in parts.pinned]
    if parts.earlier:
        made.append(SummaryItem(kind="fact", text=parts.earlier, status=EARLIER))
    made.append(SummaryItem(kind="done", text=str(found.users), status=USERS))
    made.append(SummaryItem(kind="error", text=str(found.errors), status=ERRORS))
    made.extend(quote for quote in (found.first, found.last) if quote is not None)
    for name, counts in list(found.tools.items())[: 4 * _TOOLS]:
        words = outcome(counts)
        made.append(SummaryItem(kind="done", text=name, status=f"{TOOL}: {words}" if words else TOOL))
    return (*made, *parts.quoted, *parts.notes, *parts.mentions)
