"""What laying out a context asks of the log. The pure part yields an ask, is sent what it asked for, and goes on.

So what is decided is written once, as plain functions, and whoever can read the log answers: from a thread, on an event
loop, or out of a list.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Newest(msgspec.Struct, frozen=True):
    """The session's head as it is now: answered by a `Head`, an empty one for a session that does not exist.

    What is computed of that answer alone, up to the next ask, takes no time to speak of.
    """


class Page(msgspec.Struct, frozen=True):
    """Up to `limit` entries between two places, both exclusive, with their counts: answered by a list of entries."""

    after: int
    before: int
    limit: int
    newest_first: bool = False


class Places(msgspec.Struct, frozen=True):
    """The entries at these places, with their counts, in order: answered by a list of entries."""

    seqs: AbstractSet[int]


class Compacted(msgspec.Struct, frozen=True):
    """What the record of a compaction says that was made at this revision (0: none was): answered by a `Compaction`."""

    revision: int


class Recalled(msgspec.Struct, frozen=True):
    """What was remembered of the session as the head that was told last has it: answered by that, or by None."""


class Long(msgspec.Struct, frozen=True):
    """That what is computed from here on may take long, however little was read: answered by None."""


Ask: TypeAlias = Newest | Page | Places | Compacted | Recalled | Long
Steps: TypeAlias = Generator[Ask, Any, T]
"""What asks, and comes to a T."""


class Done(msgspec.Struct, Generic[T], frozen=True):
    """That the steps have ended, and what they came to."""

    value: T


def advance(steps: Steps[T], answer: object) -> Ask | Done[T]:
    """Answer the last ask (None: begin), and return the next one, or the end."""
    try:
        ask: Ask = steps.send(answer)
    except StopIteration as end:
        return Done(end.value)
    return ask
