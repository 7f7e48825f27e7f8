"""From what a summarizer answers to items: whatever form it chose, as far as it can be understood. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from palimpsest.log.summary import ItemKind, Spent, SummaryItem
from palimpsest.summaries import Reply
from palimpsest.summaries.sections import kind_of, rendered

_FENCE = re.compile(r"^\s*```[\w-]*[ \t]*\n?|\n?```\s*$")
_THOUGHT = re.compile(r"^\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_OBJECT = re.compile(r"\{[^{}]*+\}")
_NUMBER = re.compile(r"\d{1,12}")
_SUMMARY = ("summary", "densersummary", "densesummary", "text")
_MISSING = ("missing", "missingitems", "missingentities")
_ITEMS = ("items", "entities")
_LONGEST = 200
"""Characters of a list of sources that are read."""

_STARTS = 20
"""Places in an answer where its JSON is looked for."""


class Pass(msgspec.Struct, frozen=True):
    """One pass as it was answered: items, or a text without any, and what the pass before lacked (None: not said)."""

    items: tuple[SummaryItem, ...] = ()
    text: str = ""
    missing: tuple[str, ...] | None = None


def flaw_of(reply: object) -> str | None:
    """Why an answer is none that anything can be made of, whoever gave it; None: it is one."""
    if not isinstance(reply, Reply):
        return f"it returned a {type(reply).__name__}, not a Reply"
    if not isinstance(reply.text, str):
        return f"the `text` of its Reply is a {type(reply.text).__name__}, not text"
    if not isinstance(reply.spent, Spent):
        return f"`spent` of its Reply is a {type(reply.spent).__name__}, not a Spent"
    flaw = reply.spent.flaw()
    return flaw and f"of what its Reply has `spent`, {flaw}"


def is_longer(reply: Reply, most: int) -> bool:
    """Whether an answer has more than so many characters, where each value of its `data` counts as one at least."""
    left, waiting = most - len(reply.text), [reply.data]
    while waiting and left >= 0:
        value = waiting.pop()
        left -= max(len(value), 1) if isinstance(value, str) else 1
        if isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
    return left < 0


def parse(reply: Reply) -> Pass | None:
    """Return the pass that a reply is, or None where it cannot be read as one.

    It may be an object or a list that a provider made, or JSON in the text, bare or fenced: an object, a list of steps
    (the last counts) or a list of items. Items may be objects, lines, one text with `;`, or lists by section.
    """
    values = [reply.data] if reply.data is not None else []
    for value in (*values, *_values(reply.text)):
        if isinstance(value, str):
            steps = [step for inner in _values(value) if (step := _step(inner)) is not None]
            step = steps[0] if steps else None
        else:
            step = _step(value)
        if step is not None:
            return step
    return _salvaged(reply.text)


def plain(reply: Reply) -> str:
    """Return the reply as plain text, without the fence around it."""
    text = reply.text
    if not text.strip() and isinstance(reply.data, str):
        text = reply.data
    elif not text.strip() and (step := _step(reply.data)) is not None:
        text = step.text or rendered(step.items)
    return _bare(text)


def _bare(text: str) -> str:
    """A text without the thoughts before it and the fence around it."""
    return _FENCE.sub("", _THOUGHT.sub("", text).strip()).strip()


def _values(text: str) -> Iterator[Any]:
    """Yield the first JSON value of a text: an object, or a list where the text begins with it."""
    text = _bare(text)
    decoder = json.JSONDecoder()
    at = 0
    for _ in range(_STARTS):
        starts = [place for place in (text.find("{", at), text.find("[", at)) if place >= 0]
        if not starts:
            return
        at = min(starts)
        try:
            value, _end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if value and (isinstance(value, dict) or at == 0):
            yield value
            return
        at += 1


def _salvaged(text: str) -> Pass | None:
    """The items of an answer that broke off, as far as they are whole."""
    items: list[SummaryItem] = []
    for match in _OBJECT.finditer(text):
        try:
            value = json.loads(match.group())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "kind" in value:
            items += _items([value])
    return Pass(tuple(items)) if items else None


def _step(value: Any) -> Pass | None:
    if isinstance(value, list):
        return _last_step(value)
    if not isinstance(value, Mapping) or _is_item(value):  # an item by itself is a piece of what broke off
        return None
    keys = {_plain_key(key): inner for key, inner in value.items()}
    missing = next((tuple(_lines(keys[key])) for key in _MISSING if key in keys), None)
    items = next((tuple(_items(keys[key])) for key in _ITEMS if key in keys), ())
    summary = next((keys[key] for key in _SUMMARY if key in keys), None)
    if not items and isinstance(summary, Mapping | list):
        inner = _step(summary)
        items = inner.items if inner is not None else ()
    items = items or tuple(_sections(value))
    text = summary.strip() if isinstance(summary, str) else ""
    if items or text or missing is not None:
        return Pass(items, "" if items else text, missing)
    return None


def _last_step(value: list[Any]) -> Pass | None:
    """A list of steps, of which the last is the densest; else a list of items."""
    steps = [inner for inner in value if isinstance(inner, Mapping) and not _is_item(inner)]
    for inner in reversed(steps):
        step = _step(inner)
        if step is not None and (step.items or step.text):
            return step
    items = tuple(_items(value))
    return Pass(items) if items else None


def _is_item(value: Mapping[Any, Any]) -> bool:
    return "kind" in {_plain_key(key) for key in value}


def _sections(value: Mapping[Any, Any]) -> Iterator[SummaryItem]:
    """Yield the items of an object that has a list for each section."""
    for title, inner in value.items():
        if kind := kind_of(title):
            yield from _items(inner, kind)


def _items(value: Any, kind: ItemKind = "fact") -> Iterator[SummaryItem]:
    """Yield the items of a list, of one object, or of a text with `;`."""
    if isinstance(value, Mapping):
        item = _item(value, kind)
        found: Iterable[SummaryItem | None] = [item] if item is not None else _sections(value)
    elif isinstance(value, list):
        found = [_item(one, kind) for one in value]
    else:
        found = [_item(line, kind) for line in _lines(value)]
    yield from (item for item in found if item is not None)


def _item(value: Any, kind: ItemKind) -> SummaryItem | None:
    if isinstance(value, str):
        title, colon, rest = value.partition(":")
        named = kind_of(title) if colon else None
        text = " ".join((rest if named else value).split()).removeprefix("- ")
        return SummaryItem(kind=named or kind, text=text) if text else None
    if not isinstance(value, Mapping):
        return None
    keys = {_plain_key(key): inner for key, inner in value.items()}
    said = keys.get("text", keys.get("item", keys.get("content")))
    if not isinstance(said, str) or not said.strip():
        return None
    status = keys.get("status")
    return SummaryItem(
        kind=kind_of(keys.get("kind", keys.get("type"))) or kind,
        text=" ".join(said.split()).removeprefix("- "),
        status=" ".join(status.split()) or None if isinstance(status, str) else None,
        sources=_sources(keys.get("sources", keys.get("source"))),
    )


def _sources(value: Any) -> tuple[int, ...]:
    """The numbers in a list, a text or a number."""
    given = value if isinstance(value, list) else [value]
    return tuple(
        int(number) for one in given if isinstance(one, int | str) for number in _NUMBER.findall(str(one)[:_LONGEST])
    )


def _lines(value: Any) -> list[str]:
    """What a list or a text with `;` says, item by item."""
    if isinstance(value, Mapping):
        value = list(value.values())
    given = value if isinstance(value, list) else value.split(";") if isinstance(value, str) else []
    texts = [one.get("text", one.get("item")) if isinstance(one, Mapping) else one for one in given]
    return [" ".join(text.split()) for text in texts if isinstance(text, str) and text.strip()]


def _plain_key(key: object) -> str:
    return "".join(filter(str.isalpha, key.lower())) if isinstance(key, str) else ""
