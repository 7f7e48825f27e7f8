"""Facts of a working memory: how one is stored, and how several stand in a prompt. Pure.

A fact is one item: its value with its importance, its times and the values that it had before. So a change of it is one
step, an erasure of it takes its history along, and whatever moves items moves facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from palimpsest.log.codec import decoded, encoded, ready
from palimpsest.log.entry import moment
from palimpsest.log.typed import from_json

HEADING = "Working Memory:"

UNDONE = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"} | {10: "\\n", 13: "\\r"}
"""What begins a new line somewhere, and how it is written."""


class Before(msgspec.Struct, frozen=True, array_like=True):
    """A value that a fact had, as JSON: its version, and from when until when it had it, in microseconds since 1970."""

    value: str
    version: int
    until: int
    since: int


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """What an item holds of a fact; times are microseconds since 1970, `value` is JSON, which it has `since` then."""

    value: str
    version: int
    importance: float
    created: int
    updated: int
    since: int
    before: tuple[Before, ...] = ()

    def to_bytes(self) -> bytes:
        """What is stored."""
        return encoded(self)

    @classmethod
    def of(cls, body: bytes) -> Stored:
        """What `to_bytes` wrote. Raises ValueError for another."""
        return decoded(body, cls)


ready(Stored)


class Superseded(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `value` that a fact had `since` then: its `version`, when another came (`superseded_at`), and which version
    that has (`superseded_by`)."""

    value: Any
    version: int
    since: datetime
    superseded_at: datetime
    superseded_by: int


class Fact(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `value` that a working memory keeps under a `key`.

    `version` counts up from 1 with every change, the first of which was at `created_at` and the last at `updated_at`;
    the value is the same `since` then.
    `importance` is from 0 to 1. `expires_at` is when nobody sees it any more (None: never). `history` has the values
    that it had before, the latest first.
    """

    key: str
    value: Any
    importance: float
    version: int
    created_at: datetime
    updated_at: datetime
    since: datetime
    expires_at: datetime | None = None
    history: tuple[Superseded, ...] = ()


def fact_of(key: str, stored: Stored, expires: int | None) -> Fact:
    """The fact of what is stored under a key. Raises ValueError where its value cannot be read."""
    later, history = stored.version, list[Superseded]()
    for before in stored.before:
        history.append(
            Superseded(
                value=from_json(before.value),
                version=before.version,
                since=moment(before.since),
                superseded_at=moment(before.until),
                superseded_by=later,
            )
        )
        later = before.version
    return Fact(
        key=key,
        value=from_json(stored.value),
        importance=stored.importance,
        version=stored.version,
        created_at=moment(stored.created),
        updated_at=moment(stored.updated),
        since=moment(stored.since),
        expires_at=None if expires is None else moment(expires),
        history=tuple(history),
    )


def as_of(facts: Sequence[Fact], then: datetime) -> list[Fact]:
    """These facts as they were `then`, as far as their histories say.

    One that was made later is not among them. One whose value of then is not kept is as it is now, `since` later.
    """
    return [_as_of(fact, then) for fact in facts if fact.created_at <= then]


def _as_of(fact: Fact, then: datetime) -> Fact:
    known: list[Fact | Superseded] = [fact, *fact.history]
    for one in known:
        if one.since <= then:  # and `updated_at` is what the same value, set again, does not move
            return msgspec.structs.replace(fact, value=one.value, since=one.since, updated_at=one.since)
    return fact


def changed(was: Stored | None, value: str, importance: float, now: int, most: int, most_bytes: int) -> Stored:
    """What is stored when a fact that was so (None: there was none) becomes this value.

    A value that is the same is no change, and leaves no history. The history has at most `most` values, and no more
    than `most_bytes` in all: what is older goes.
    """
    if was is None:
        return Stored(value, 1, importance, now, now, now)
    before, since = was.before, was.since
    if was.value != value:
        since = now
        before = (Before(was.value, was.version, now, was.since), *before)[:most]
        while before and sum(len(one.value) for one in before) > most_bytes:
            before = before[:-1]
    return Stored(value, was.version + 1, importance, was.created, now, since, before)


def line(key: str, value: object) -> str:
    """One fact as a line of a prompt: `- key: value`, of which no text can make two."""
    shown = value if isinstance(value, str) else str(_steady(value))
    return f"- {key.translate(UNDONE)}: {shown.translate(UNDONE)}"


class _Written(str):
    """A text that stands in a list or a mapping as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def _steady(value: object) -> object:
    """The value with its sets written in the order of what stands in them: that of a set is another one in each
    process, and a prompt is to be the same in all."""
    if isinstance(value, set | frozenset) and value:
        inner = "{" + ", ".join(sorted(repr(_steady(one)) for one in value)) + "}"
        return _Written(inner if isinstance(value, set) else f"frozenset({inner})")
    if isinstance(value, list):
        return [_steady(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_steady(one) for one in value)
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in value.items()}
    return value


def rendered(facts: Sequence[Fact], most: int | None, count: Callable[[str], int]) -> str:
    """The facts as a text for a prompt, in their order; "" without any.

    With `most` it has at most so many tokens: the least important facts, of these the oldest, are left out, and a last
    line says how many. Where not even that has room it is "".
    """
    if not facts:
        return ""
    lines = [line(fact.key, fact.value) for fact in facts]
    whole = "\n".join([HEADING, *lines])
    if most is None or count(whole) <= most:
        return whole
    ranked = sorted(range(len(facts)), key=lambda i: (facts[i].importance, facts[i].updated_at, i), reverse=True)
    low, high = 0, len(facts) - 1
    text = ""
    while low <= high:  # how many fit
        middle = (low + high) // 2
        kept = sorted(ranked[:middle])
        left = len(facts) - middle
        told = f"({left} less important {'fact' if left == 1 else 'facts'} left out)"
        shown = "\n".join([HEADING, *(lines[i] for i in kept), told])
        if count(shown) <= most:
            text, low = shown, middle + 1
        else:
            high = middle - 1
    return text
