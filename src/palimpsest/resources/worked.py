"""What a worker says of its work: a record of each thing that it did, and figures of all of it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

import msgspec


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker did, or tried in vain, at a time (`at`, UTC).

    `duty` is "compact", "sweep" or "index", `store` the address without a password, `session` the id of the session,
    and `memory` that of what is declared of it (None of both: it was about the tenant). `reason` says why nothing came
    of it (None: it was done), `why` tells a reader more. Of a compaction there are the `strategy`, the tokens of the
    active set (`tokens_before`, `tokens_after`), how many entries it `covered`, `evicted` and `erased`, and by which
    model (None: by none). `swept` is how much a sweep destroyed, `indexed` how many sessions had something to search.
    """

    at: datetime
    duty: str
    store: str
    tenant: str
    session: str | None = None
    memory: str | None = None
    reason: str | None = None
    why: str = ""
    strategy: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    covered: int = 0
    evicted: int = 0
    erased: int = 0
    model: str | None = None
    swept: int = 0
    indexed: int = 0


Told: TypeAlias = Callable[[Worked], object]
"""Called with what was done, as soon as it is."""


class WorkReport(msgspec.Struct, kw_only=True):
    """What a worker has done: `rounds`, sessions that it `listed` (their heads were read) and `looked` at (their log
    was), compactions (`compacted`), what was `swept` in entries, items and sessions, how often a session was `indexed`,
    and what `failed`. `waiting` is how many sessions wait to be looked at again, as it knew last: another is at work on
    them, or they have failed."""

    rounds: int = 0
    listed: int = 0
    looked: int = 0
    compacted: int = 0
    swept: int = 0
    indexed: int = 0
    failed: int = 0
    waiting: int = 0
