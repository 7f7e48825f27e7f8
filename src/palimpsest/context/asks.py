"""What the pure part of a context asks of the log. It yields an ask, is sent the answer, and continues.

So the decision is written once, in plain generator functions, and anything that can read the log may drive it: a
thread, an event loop, or a test with a list of entries.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Newest(msgspec.Struct, frozen=True):
    """The session's head as it is now. The answer is a `Head`, an empty one for a session that does not exist.

    What is computed between this answer and the next ask takes next to no time, so it needs no thread.
    """


class Page(msgspec.Struct, frozen=True):
    """Up to `limit` entries with `after` < `seq` < `before`, with their counts. The answer is a list of entries."""

    after: int
    before: int
    limit: int
    newest_first: bool = False


class BySeqs(msgspec.Struct, frozen=True):
    """The entries with these `seqs`, with their counts, in log order. The answer is a list of entries."""

    seqs: AbstractSet[int]


class Compacted(msgspec.Struct, frozen=True):
    """The record of the compaction made at this `revision` (0: there was none). The answer is a `Compaction`."""

    revision: int


class Cached(msgspec.Struct, frozen=True):
    """What is remembered of the session at the head answered last. The answer is a `CachedContext`, or None."""


class Long(msgspec.Struct, frozen=True):
    """Announces that the computation from here on may take long, however little was read. The answer is None."""


Ask: TypeAlias = Newest | Page | BySeqs | Compacted | Cached | Long
Steps: TypeAlias = Generator[Ask, Any, T]
"""A generator that yields asks and returns a T."""


class Done(msgspec.Struct, Generic[T], frozen=True):
    """The steps have ended; `value` is what they returned."""

    value: T


def advance(steps: Steps[T], answer: object) -> Ask | Done[T]:
    """Send the answer to the last ask (None to begin), and return the next ask, or `Done` at the end."""
    try:
        ask: Ask = steps.send(answer)
    except StopIteration as end:
        return Done(end.value)
    return ask
