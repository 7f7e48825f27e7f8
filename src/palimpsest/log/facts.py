"""Facts of a working memory: their stored form, and their text in a prompt. Pure.

A fact is one item: its value, importance and times, and the values it had before. So a change of it is one step, an
erasure of it takes its history along, and whatever moves items moves facts.
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

LINE_BREAKS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"} | {
    10: "\\n",
    13: "\\r",
}
"""Characters that begin a new line for some reader, and what is written instead."""


class Before(msgspec.Struct, frozen=True, array_like=True):
    """A former value of a fact as JSON, its version, and when it had this value, in microseconds since 1970."""

    value: str
    version: int
    until: int
    since: int


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a fact. Times are microseconds since 1970; `value` is JSON, unchanged `since` that time."""

    value: str
    version: int
    importance: float
    created: int
    updated: int
    since: int
    before: tuple[Before, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the bytes to store."""
        return encoded(self)

    @classmethod
    def of(cls, body: bytes) -> Stored:
        """Return what `to_bytes` wrote. Raises ValueError for anything else."""
        return decoded(body, cls)


ready(Stored)


class Superseded(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A former value of a fact: the `value` that it had `since` then, and its `version`.

    `superseded_at` is when it was replaced, and `superseded_by` the version that replaced it.
    """

    value: Any
    version: int
    since: datetime
    superseded_at: datetime
    superseded_by: int


class Fact(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `value` that a working memory keeps under a `key`.

    `version` counts from 1 and grows with every change. `created_at` is the time of the first change, `updated_at` that
    of the last, and `since` when the fact got its present value. `importance` is from 0 to 1. After `expires_at` the
    fact is not visible any more (None: never). `history` holds the former values, latest first.
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
    """Return the fact stored under a key. Raises ValueError if a value cannot be read."""
    history = [
        Superseded(
            value=from_json(before.value),
            version=before.version,
            since=moment(before.since),
            superseded_at=moment(before.until),
            superseded_by=before.version + 1,  # later versions may have set the same value as that one
        )
        for before in stored.before
    ]
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
    """Return these facts as they were `then`, as far as their histories tell.

    Facts that were created later are left out. If the value of that time is not kept any more, the present one is used,
    with its later `since`.
    """
    return [_as_of(fact, then) for fact in facts if fact.created_at <= then]


def _as_of(fact: Fact, then: datetime) -> Fact:
    versions: list[Fact | Superseded] = [fact, *fact.history]
    for version in versions:
        if version.since <= then:  # `updated_at` may be later, since setting the same value again moves it
            return msgspec.structs.replace(fact, value=version.value, since=version.since, updated_at=version.since)
    return fact


def changed(stored: Stored | None, value: str, importance: float, now: int, most: int, most_bytes: int) -> Stored:
    """Return what to store when a fact (None: there is none yet) gets this value.

    Setting the same value adds no history. The history keeps at most `most` values of at most `most_bytes` together,
    the latest ones.
    """
    if stored is None:
        return Stored(value, 1, importance, now, now, now)
    before, since = stored.before, stored.since
    if stored.value != value:
        since = now
        before = (Before(stored.value, stored.version, now, stored.since), *before)[:most]
        while before and sum(len(former.value) for former in before) > most_bytes:
            before = before[:-1]
    return Stored(value, stored.version + 1, importance, stored.created, now, since, before)


def line(key: str, value: object) -> str:
    """Return one fact as a line of a prompt, `- key: value`. Line breaks in the texts are escaped."""
    shown = value if isinstance(value, str) else str(_steady(value))
    return f"- {key.translate(LINE_BREAKS)}: {shown.translate(LINE_BREAKS)}"


class _Written(str):
    """A text that is written without quotes inside a list or a mapping."""

    __slots__ = ()
    __repr__ = str.__str__


def _steady(value: object) -> object:
    """Return the value with its sets in sorted order.

    The order of a set differs between processes, but the prompt has to be the same in all of them.
    """
    if isinstance(value, set | frozenset) and value:
        text = "{" + ", ".join(sorted(repr(_steady(item)) for item in value)) + "}"
        return _Written(text if isinstance(value, set) else f"frozenset({text})")
    if isinstance(value, list):
        return [_steady(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_steady(item) for item in value)
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items()}
    return value


def rendered(facts: Sequence[Fact], most: int | None, count: Callable[[str], int]) -> str:
    """Return the facts as a text for a prompt, in their order; "" if there are none.

    With `most` the text has at most so many tokens: the least important facts are left out, the oldest of these first,
    and a last line says how many. If not even that fits, the text is "".
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
    while low <= high:  # bisection over how many facts are kept
        middle = (low + high) // 2
        kept = sorted(ranked[:middle])
        omitted = len(facts) - middle
        note = f"({omitted} less important {'fact' if omitted == 1 else 'facts'} left out)"
        shown = "\n".join([HEADING, *(lines[i] for i in kept), note])
        if count(shown) <= most:
            text, low = shown, middle + 1
        else:
            high = middle - 1
    return text
