"""Parse a summarizer's answer into items, in whatever form it was given, as far as possible. Pure."""

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
"""Most characters of a list of sources that are read."""

_STARTS = 20
"""Most places in an answer at which JSON is looked for."""


class Pass(msgspec.Struct, frozen=True):
    """One pass of an answer: items, or a text if it has none, and what the previous pass lacked (None: not said)."""

    items: tuple[SummaryItem, ...] = ()
    text: str = ""
    missing: tuple[str, ...] | None = None


def flaw_of(reply: object) -> str | None:
    """Return why an answer cannot be used, whoever gave it; None if it can."""
    if not isinstance(reply, Reply):
        return f"it returned a {type(reply).__name__}, not a Reply"
    if not isinstance(reply.text, str):
        return f"the `text` of its Reply is a {type(reply.text).__name__}, not text"
    if not isinstance(reply.spent, Spent):
        return f"`spent` of its Reply is a {type(reply.spent).__name__}, not a Spent"
    flaw = reply.spent.flaw()
    return flaw and f"in `spent` of its Reply, {flaw}"


def is_longer(reply: Reply, most: int) -> bool:
    """Whether an answer has more than `most` characters; each value in its `data` counts as at least one."""
    remaining, values = most - len(reply.text), [reply.data]
    while values and remaining >= 0:
        value = values.pop()
        remaining -= max(len(value), 1) if isinstance(value, str) else 1
        if isinstance(value, Mapping):
            values += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            values += value
    return remaining < 0


def parse(reply: Reply) -> Pass | None:
    """Return the reply as a pass, or None if it cannot be read as one.

    It may be an object or a list made by a provider, or JSON in the text, bare or fenced: an object, a list of steps
    (the last one counts) or a list of items. Items may be objects, lines, one text with `;`, or lists by section.
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
    return _whole_items(reply.text)


def plain(reply: Reply) -> str:
    """Return the reply as plain text, without a fence around it."""
    text = reply.text
    if not text.strip() and isinstance(reply.data, str):
        text = reply.data
    elif not text.strip() and (step := _step(reply.data)) is not None:
        text = step.text or rendered(step.items)
    return _bare(text)


def _bare(text: str) -> str:
    """Return a text without thoughts before it and a fence around it."""
    return _FENCE.sub("", _THOUGHT.sub("", text).strip()).strip()


def _values(text: str) -> Iterator[Any]:
    """Yield the first JSON value of a text: an object, or a list if the text begins with it."""
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


def _whole_items(text: str) -> Pass | None:
    """Return the complete items of an answer that broke off."""
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
    """Return a parsed value as a pass, or None if it is not one."""
    if isinstance(value, list):
        return _last_step(value)
    if not isinstance(value, Mapping) or _is_item(value):  # a single item is a piece of a broken answer
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
    """Return the last usable step of a list, which is the densest; or the items if it is a list of items."""
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
    """Yield the items of an object with a list for each section."""
    for title, inner in value.items():
        if kind := kind_of(title):
            yield from _items(inner, kind)


def _items(value: Any, kind: ItemKind = "fact") -> Iterator[SummaryItem]:
    """Yield the items of a list, of one object, or of a text with `;`."""
    if isinstance(value, Mapping):
        item = _item(value, kind)
        items: Iterable[SummaryItem | None] = [item] if item is not None else _sections(value)
    elif isinstance(value, list):
        items = [_item(element, kind) for element in value]
    else:
        items = [_item(line, kind) for line in _lines(value)]
    yield from (item for item in items if item is not None)


def _item(value: Any, kind: ItemKind) -> SummaryItem | None:
    """Return a line, or an object with text, as an item."""
    if isinstance(value, str):
        title, colon, after_colon = value.partition(":")
        kind_in_text = kind_of(title) if colon else None
        text = " ".join((after_colon if kind_in_text else value).split()).removeprefix("- ")
        return SummaryItem(kind=kind_in_text or kind, text=text) if text else None
    if not isinstance(value, Mapping):
        return None
    keys = {_plain_key(key): inner for key, inner in value.items()}
    content = keys.get("text", keys.get("item", keys.get("content")))
    if not isinstance(content, str) or not content.strip():
        return None
    status = keys.get("status")
    return SummaryItem(
        kind=kind_of(keys.get("kind", keys.get("type"))) or kind,
        text=" ".join(content.split()).removeprefix("- "),
        status=" ".join(status.split()) or None if isinstance(status, str) else None,
        sources=_sources(keys.get("sources", keys.get("source"))),
    )


def _sources(value: Any) -> tuple[int, ...]:
    """Return the numbers in a list, a text or a number."""
    elements = value if isinstance(value, list) else [value]
    return tuple(
        int(number)
        for element in elements
        if isinstance(element, int | str)
        for number in _NUMBER.findall(str(element)[:_LONGEST])
    )


def _lines(value: Any) -> list[str]:
    """Return the lines of a list, of a mapping's values, or of a text with `;`."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elements = value if isinstance(value, list) else value.split(";") if isinstance(value, str) else []
    texts = [
        element.get("text", element.get("item")) if isinstance(element, Mapping) else element for element in elements
    ]
    return [" ".join(text.split()) for text in texts if isinstance(text, str) and text.strip()]


def _plain_key(key: object) -> str:
    return "".join(filter(str.isalpha, key.lower())) if isinstance(key, str) else ""
