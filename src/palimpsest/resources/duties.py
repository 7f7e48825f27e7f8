"""The duties of a worker. A duty is a coroutine function of a `Workplace` (one tenant of a memory), named in `DUTIES`.

A duty that acts on sessions that have changed goes through `Workplace.changed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from palimpsest.log.head import SessionKey
from palimpsest.resources.claims import Claims
from palimpsest.resources.definition import Resource
from palimpsest.resources.workplace import Workplace
from palimpsest.sessions.compacting.result import CompactionResult
from palimpsest.stores.derivers import INDEX

SWEEP_SECONDS, INDEX_SECONDS = 60, 5
"""Seconds between two sweeps of a tenant, and between two updates of its index, by all workers together."""


async def compact(at: Workplace) -> None:
    """Compact the sessions of declared memories in which a trigger holds.

    A session is looked at when it was written to, and again when nobody has written to it for as long as one of its
    strategies says (`idle_seconds`).
    """
    idle = {resource.id: _idle(at, resource) for resource in at.resources if _compacts(at, resource)}
    if not idle:
        return

    def wanted(session: str) -> bool:
        resource = at.resource_of(session)
        return resource is not None and resource.id in idle

    async def look(session: str) -> int:
        resource = at.resource_of(session)
        assert resource is not None, "only wanted sessions are looked at"
        return await _compacted(at, resource, session)

    await at.changed("compact", look, wanted=wanted)
    for seconds in sorted(set().union(*idle.values())):

        def has_trigger(session: str, seconds: float = seconds) -> bool:
            resource = at.resource_of(session)
            return resource is not None and seconds in idle.get(resource.id, ())

        await at.changed("compact", look, wanted=has_trigger, name=f"idle {seconds:g}", delay=seconds)


async def _compacted(at: Workplace, resource: Resource, id: str) -> int:
    """Run the compactions of a session that are due. Return when to look again, as `Look` does."""
    session = at.memory.session(id, **at.options(resource))
    auto = await session._auto()  # noqa: SLF001 (automatic compaction has no public verb)
    again = 0
    for result in await auto.due():
        _tell(at, id, result)
        if result.reason in ("pending", "conflict"):
            again = max(again, at.soon())
        elif result.reason in ("failed", "paused"):
            again = max(again, await _paused_until(at, id, failed=result.reason == "failed"))
    return again


def _tell(at: Workplace, id: str, result: CompactionResult) -> None:
    """Report a compaction, unless it had nothing to do or has to wait."""
    if result.reason not in (None, "failed", "empty", "no_gain"):
        return
    at.report.compacted += result.done
    summary = result.summary
    at.tell(
        "compact",
        id,
        reason=result.reason,
        why=result.why,
        strategy=result.strategy,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
        covered=result.covered,
        evicted=result.evicted,
        erased=result.erased,
        model=summary.model if summary is not None else None,
    )


async def _paused_until(at: Workplace, id: str, *, failed: bool) -> int:
    """Return when to look again at a session whose compaction failed, or is paused after failures (microseconds).

    0: when it is written to.
    """
    head = await at.memory.store.head(SessionKey(at.memory.tenant, id))
    until = head.attempts.paused_until if head is not None and head.attempts is not None else 0
    return max(until, at.soon()) if failed or until > at.now() else 0


def _compacts(at: Workplace, resource: Resource) -> bool:
    options = at.options(resource)
    is_kept = options.get("persistence") != "ephemeral" and not options.get("readonly")
    return bool(options.get("long_term")) and is_kept


def _idle(at: Workplace, resource: Resource) -> set[float]:
    """Return after how many seconds without a write strategies of its sessions run."""
    strategies = at.memory.session("x", **at.options(resource)).options.long_term
    return {float(idle) for strategy in strategies if (idle := strategy.triggers.idle_seconds or 0) > 0}


async def sweep(at: Workplace) -> None:
    """Destroy what has expired of the tenant, if no worker has done so within `SWEEP_SECONDS`."""
    turn = Claims(at.memory.store, at.memory.tenant, "sweep").turn
    if not await turn("last", at.pace(SWEEP_SECONDS), at.now()):
        return
    swept = await at.memory.sweep()
    at.report.swept += swept
    if swept:
        at.tell("sweep", None, swept=swept)


async def index(at: Workplace) -> None:
    """Add what is new in the tenant's sessions to its search index, if it has a lasting one, which the first search
    makes.

    A search does this itself, before it searches; after this it has less to wait for.
    """
    if INDEX not in {name.partition(":")[0] for name in await at.memory.derivers()}:
        return
    if not await Claims(at.memory.store, at.memory.tenant, "index").turn("last", at.pace(INDEX_SECONDS), at.now()):
        return
    indexed = await (await at.memory._recalling()).index()  # noqa: SLF001 (has no public verb: searches do it)
    at.report.indexed += indexed
    if indexed:
        at.tell("index", None, indexed=indexed)


Duty = Callable[[Workplace], Awaitable[None]]
"""Does for one tenant of a memory what is due."""

DUTIES: dict[str, Duty] = {"compact": compact, "sweep": sweep, "index": index}
"""The duties by name, in the order in which a worker does them."""
