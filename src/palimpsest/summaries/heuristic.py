"""The summary without a model: documented lines, then what was found worth keeping, word for word. Pure.

If there is no room for everything, rarely mentioned and old things are left out first, pinned ones never.
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
"""Share of the length that errors, decisions and facts may take before mentions get theirs."""

_EARLIER_SHARE = 0.75
"""Share of the length that the text of a model's summary may take while there is something new to write."""

_CHARACTERS = 5
"""Characters of items for one token of text: more than they usually take, since some of them are in the text
already."""

_GUESSES = 6
"""How often the end of the room is estimated before the search continues by bisection."""

_TOOLS = 40
"""Most tools that are named."""

_RARE = 0.3
"""Least rarity of what a quoted sentence mentions. A mention is worth 1 / places: one with three places, or several
with more."""


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a text. `quoted` items are not written again, since the documented lines quote them."""

    earlier: str = ""
    heading: bool = True
    head: tuple[str, ...] = ()
    notes: tuple[SummaryItem, ...] = ()
    mentions: tuple[SummaryItem, ...] = ()
    pinned: tuple[str, ...] = ()
    quoted: tuple[SummaryItem, ...] = ()

    def text(self) -> str:
        """Join the earlier text, the documented lines, mentions outside of all sections, and the sections.

        Names and numbers come before quotes, since a context without room for everything cuts the end.
        """
        blocks = [self.earlier] if self.earlier else []
        if self.heading:
            blocks.append("\n".join((HEADING, *self.head)))
        sections = []
        for title, belongs in _SECTIONS:
            if items := sorted(filter(belongs, self.notes), key=lambda item: item.sources[:1]):
                sections.append("\n".join((title, *(f"- {_line_of(item)}" for item in items))))
        named = _listed("\n".join((*blocks, *sections)), self.mentions, self.pinned)
        if named:
            blocks.append(f"Mentioned: {named}")
        return "\n".join((*blocks, *sections))


def heuristic(source: SummarySource, recipe: Recipe, count: Count) -> Draft:
    """Return a summary made without a model: `recipe.target` tokens, if there is so much to write.

    It takes at most `recipe.most` tokens, less than its source, and contains every pinned identifier. With
    `recipe.bare` it has only the documented lines, between the text of a model's earlier summary and the sources of
    contexts; the rest follows only if these say nothing. Raises Rejected: empty if there is nothing to write, no_gain
    if what must be kept does not fit.
    """
    gleaned, pinned = glean(source), pinned_of(source)
    if gleaned.is_empty and not pinned:
        raise Rejected("empty", "there is nothing in the entries that could be told")
    most = min(recipe.most, recipe.source_tokens - 1)
    least = _least(gleaned, pinned, most, count, bare=recipe.bare)
    aim = max(min(recipe.target, most), count(least.text()))
    parts = _after_earlier(least, gleaned, aim, count)
    with_contexts = _with_contexts(parts, gleaned, most, count) if recipe.bare else None
    parts = (
        with_contexts
        if with_contexts is not None and with_contexts.text() != HEADING
        else _filled(parts, gleaned, aim, count)
    )
    text = parts.text()
    if count(text) > most or missing(text, pinned):  # with some counters a longer text may have fewer tokens
        parts, text = least, least.text()
    if text in ("", HEADING):
        raise Rejected("no_gain", f"nothing of it can be told in {max(most, 0)} tokens")
    return Draft(text=text, method="heuristic", items=_items(gleaned, parts))


# --- choosing


def _least(gleaned: Gleaned, pinned: tuple[str, ...], most: int, count: Count, *, bare: bool) -> _Parts:
    """Return the pinned identifiers, and as many documented lines as fit beside them."""
    head = [line for line in _head(gleaned) if not (bare and line[0] == _OUTCOMES)]
    fewer = (
        _Parts(head=tuple(line for rank, line in head if rank < lowest_dropped), pinned=pinned)
        for lowest_dropped in _RANKS
    )
    for parts in (*fewer, _Parts(heading=False, pinned=pinned)):
        text = parts.text()
        if count(text) <= most and not missing(text, pinned):
            return parts
    raise Rejected("no_gain", f"what may not be left out takes more than {max(most, 0)} tokens")


def _after_earlier(parts: _Parts, gleaned: Gleaned, aim: int, count: Count) -> _Parts:
    """Add the texts of a model's earlier summaries, or as much of them as fits."""
    earlier = "\n\n".join(text.strip() for text in gleaned.earlier if text.strip())
    if not earlier:
        return parts
    room = aim - count(parts.text()) - 2
    if gleaned.notes or gleaned.mentioned:
        room = min(room, int(aim * _EARLIER_SHARE))
    return msgspec.structs.replace(parts, earlier=cut(earlier, room, count))


def _with_contexts(parts: _Parts, gleaned: Gleaned, most: int, count: Count) -> _Parts:
    """Add the sources of background data: nobody can ask for data that nobody knows of."""
    items = tuple(gleaned.contexts.values())
    return msgspec.structs.replace(parts, notes=items[: _longest(parts, "notes", items, most, count)])


def _filled(parts: _Parts, gleaned: Gleaned, aim: int, count: Count) -> _Parts:
    """Fill the room: some notes, then mentions, more notes, sentences."""
    lines, sentences = "\n".join(parts.head), _ranked_sentences(gleaned)
    quoted = tuple(item for item in (*gleaned.notes, *sentences) if item.text in lines)
    parts = msgspec.structs.replace(parts, quoted=quoted)
    notes = [item for item in gleaned.notes if item not in quoted]
    ranked_mentions = _by_weight(gleaned, parts)
    room = min(aim, count(parts.text()) + int(aim * _NOTES_SHARE))
    note_count = _longest(parts, "notes", notes, room, count)
    parts = msgspec.structs.replace(parts, notes=tuple(notes[:note_count]))
    mention_count = _longest(parts, "mentions", ranked_mentions, aim, count)
    parts = msgspec.structs.replace(parts, mentions=tuple(ranked_mentions[:mention_count]))
    candidates = [*notes, *(item for item in sentences if item not in quoted)]
    note_count = max(_longest(parts, "notes", candidates, aim, count), note_count)
    parts = msgspec.structs.replace(parts, notes=tuple(candidates[:note_count]))
    ranked_mentions = [*ranked_mentions[:mention_count], *sorted(gleaned.unsure.values(), key=_rank)]
    mention_count = max(_longest(parts, "mentions", ranked_mentions, aim, count), mention_count)
    return msgspec.structs.replace(parts, mentions=tuple(ranked_mentions[:mention_count]))


def _longest(parts: _Parts, field: str, items: Sequence[SummaryItem], room: int, count: Count) -> int:
    """Return how many of the items fit in this field of the parts.

    Each number that is tried costs making and counting a text. So the first guess is usually near the answer, and the
    next ones interpolate between the costs found so far.
    """

    def tokens(number: int) -> int:
        return count(msgspec.structs.replace(parts, **{field: tuple(items[:number])}).text())

    low, high, cost_at_low, cost_at_high = 0, len(items) + 1, tokens(0), 0
    if cost_at_low > room:
        return 0
    lengths = accumulate(len(item.text) for item in items)
    number = 1 + sum(length <= _CHARACTERS * (room - cost_at_low) for length in lengths)
    attempts = 0
    while low + 1 < high:
        number = min(max(number, low + 1), high - 1)
        cost = tokens(number)
        if cost <= room:
            low, cost_at_low = number, cost
        else:
            high, cost_at_high = number, cost
        attempts += 1
        if not cost_at_high:
            number = 2 * low
        elif attempts < _GUESSES:
            number = low + (room - cost_at_low) * (high - low) // (cost_at_high - cost_at_low)
        else:
            number = (low + high) // 2
    return low


def _by_weight(gleaned: Gleaned, parts: _Parts) -> list[SummaryItem]:
    """Return the mentions, most important first, including those of an earlier text that was cut."""
    for text in gleaned.earlier:
        if text.strip() not in parts.earlier:
            for term in terms(text):
                gleaned.mentioned.setdefault(term, SummaryItem(kind="fact", text=term, status=MENTIONED))
    return sorted(gleaned.mentioned.values(), key=_rank)


def _rank(item: SummaryItem) -> tuple[float, int]:
    """Sort key: the most important first, of equals the newest."""
    return -weight(item), -max(item.sources, default=0)


def _ranked_sentences(gleaned: Gleaned) -> list[SummaryItem]:
    """Return the quotable sentences, best first: those that mention what few others mention, and short ones.

    Sentences that mention only what everything mentions, mostly greetings, are left out.
    """
    ranked: dict[str, tuple[float, int, SummaryItem]] = {}
    for item, terms_inside in gleaned.sentences:
        mentions = [
            mention_item
            for term in dict.fromkeys(terms_inside)
            if (mention_item := gleaned.mentioned.get(term)) is not None
        ]
        rarity = sum([1 / (len(mention.sources) or 1) for mention in mentions])
        if rarity >= _RARE or not terms_inside:
            value = rarity / (1 + len(item.text) / 160)
            ranked.setdefault(item.text, (-value, -max(item.sources, default=0), item))
    return [item for _, _, item in sorted(ranked.values(), key=lambda rank: rank[:2])]


# --- wording


def _head(gleaned: Gleaned) -> list[tuple[int, str]]:
    """Return the documented lines with something to report, each with its rank: the highest is left out first."""
    lines = []
    if gleaned.users:
        lines.append((0, f"{gleaned.users} user message{'' if gleaned.users == 1 else 's'}"))
    if gleaned.first is not None:
        lines.append((3, f'First: "{gleaned.first.text}"'))
    if gleaned.last is not None and gleaned.users > 1:
        lines.append((4, f'Last: "{gleaned.last.text}"'))
    if gleaned.tools:
        names = list(gleaned.tools)
        unnamed = f" and {len(names) - _TOOLS} more" if len(names) > _TOOLS else ""
        lines.append((2, f"Tools used: {', '.join(names[:_TOOLS])}{unnamed}"))
    if gleaned.errors:
        lines.append((1, f"{gleaned.errors} error{'' if gleaned.errors == 1 else 's'} encountered"))
    outcomes = [
        f"{name} {words}" for name, counts in list(gleaned.tools.items())[:_TOOLS] if (words := outcome(counts))
    ]
    if outcomes:
        lines.append((_OUTCOMES, f"Outcomes: {'; '.join(outcomes)}"))
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


def _line_of(item: SummaryItem) -> str:
    """Return the item as a line, with who said it."""
    return f"{_WHO.get(item.status or '', '')}{item.text}"


def _listed(above: str, mentions: Sequence[SummaryItem], pinned: Sequence[str]) -> str:
    """List pinned identifiers and mentions missing in the text above: by commas within a place, else by semicolons."""
    not_above = missing(above, [*pinned, *(item.text for item in mentions)])
    remaining = set(not_above)
    groups: dict[int, list[str]] = {}
    if pinned_names := [text for text in dict.fromkeys(pinned) if text in remaining]:
        groups[-1] = pinned_names
        remaining -= set(pinned_names)
    for item in sorted(mentions, key=lambda item: item.sources[:1]):
        if item.text in remaining:
            groups.setdefault(item.sources[0] if item.sources else 0, []).append(item.text)
    return "; ".join(", ".join(names) for names in groups.values())


def _items(gleaned: Gleaned, parts: _Parts) -> tuple[SummaryItem, ...]:
    """Return what the next summary continues from: the counts, and the items that were written."""
    items = [SummaryItem(kind="fact", text=identifier, pinned=True) for identifier in parts.pinned]
    if parts.earlier:
        items.append(SummaryItem(kind="fact", text=parts.earlier, status=EARLIER))
    items.append(SummaryItem(kind="done", text=str(gleaned.users), status=USERS))
    items.append(SummaryItem(kind="error", text=str(gleaned.errors), status=ERRORS))
    items.extend(quote for quote in (gleaned.first, gleaned.last) if quote is not None)
    for name, counts in list(gleaned.tools.items())[: 4 * _TOOLS]:
        words = outcome(counts)
        items.append(SummaryItem(kind="done", text=name, status=f"{TOOL}: {words}" if words else TOOL))
    return (*items, *parts.quoted, *parts.notes, *parts.mentions)
