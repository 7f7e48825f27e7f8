"""The reports of a worker: a record of each thing that it did, and the figures of all of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

import msgspec


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a worker did, or tried in vain, and when (`at`, UTC).

    `duty` is "compact", "sweep" or "index", `store` the address without a password, `session` the id of the session,
    and `memory` the id of its declared memory (both None: it was about the tenant). `reason` says why nothing was done
    (None: it was done), and `why` explains it for people. A compaction has the `strategy`, the tokens of the active set
    before and after it (`tokens_before`, `tokens_after`), how many entries it `covered`, `evicted` and `erased`, and
    the `model` that wrote the summary (None: there is none). `swept` is how much a sweep destroyed, `indexed` how many
    sessions had something new to index.
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
"""Called with each thing that a worker did, as soon as it is done."""


class WorkReport(msgspec.Struct, kw_only=True):
    """The figures of a worker: `rounds`, sessions that it `listed` (it read their heads) and `looked` at (it read their
    logs), compactions (`compacted`), entries, items and sessions that it `swept`, how often it `indexed` a session, and
    what `failed`. `waiting` is how many sessions wait to be looked at again, as last read: because somebody else was
    working on them, or because they have failed."""

    rounds: int = 0
    listed: int = 0
    looked: int = 0
    compacted: int = 0
    swept: int = 0
    indexed: int = 0
    failed: int = 0
    waiting: int = 0
