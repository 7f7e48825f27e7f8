"""The operations of the service on declared memories: each takes a request and returns the data of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from palimpsest.errors import PalimpsestError
from palimpsest.log.ids import ID_RULE, is_id
from palimpsest.log.values import texts
from palimpsest.resources import AsyncDeclaredMemory, AsyncResources
from palimpsest.resources.answering import NO_KEY, AsyncAnswers
from palimpsest.resources.refusals import Refusal
from palimpsest.resources.replies import (
    UNWRITTEN,
    Reply,
    append_reply,
    check,
    health_reply,
    page_reply,
    write_reply,
)
from palimpsest.resources.service.requests import (
    ClearRequest,
    DeleteRequest,
    FlushRequest,
    HealthRequest,
    ReadRequest,
    StatsRequest,
    WriteRequest,
)


class Operations:
    """The operations on the declared memories of `resources`. Those in `read_only` are never changed.

    Raises ConfigError if a memory cannot be opened as it is declared, or `read_only` names one that is not declared.
    """

    def __init__(self, resources: AsyncResources, read_only: Collection[str] = ()) -> None:
        self._memories: Mapping[str, AsyncDeclaredMemory] = {id: resources.keyed(id) for id in resources}
        self._read_only = {resources[id].id for id in texts("read_only", read_only, "ids")}

    def memory(self, id: str, *, writes: bool = False) -> AsyncDeclaredMemory:
        """Return a declared memory. Raises Refusal for an unknown one, and for a change of a read-only one."""
        memory = self._memories.get(id)
        if memory is None:
            raise Refusal(404, "unknown_memory", f"no memory {id!r} is declared", field="ref", rule="a declared memory")
        if writes and (memory.readonly or id in self._read_only):
            raise Refusal(403, "read_only", f"memory {id!r} is read-only here", field="ref", rule="a writable memory")
        return memory

    async def read(self, memory: AsyncDeclaredMemory, ask: ReadRequest) -> Reply:
        """Return a page of the active messages of a key."""
        page = await memory.read(ask.key, offset=ask.offset, limit=ask.limit)
        return page_reply(ask.key, page, ask.offset, ask.limit)

    async def append(self, memory: AsyncDeclaredMemory, ask: WriteRequest, idempotency_key: str | None) -> Reply:
        """Add messages to a key."""
        if idempotency_key is not None and not is_id(idempotency_key):
            rule = ID_RULE
            raise Refusal(400, "invalid_request", f"Idempotency-Key: {rule}", field="Idempotency-Key", rule=rule)
        appended = await memory.append(ask.key, ask.messages, idempotency_key=idempotency_key)
        try:
            total = (await memory.read(ask.key, limit=0)).total
        except PalimpsestError:  # the messages are stored, and no answer may say that they are not
            total = None
        return append_reply(ask.key, appended, total)

    async def write(self, memory: AsyncDeclaredMemory, ask: WriteRequest) -> Reply:
        """Replace the active messages of a key."""
        return write_reply(ask.key, await memory.write(ask.key, ask.messages))

    async def delete(self, memory: AsyncDeclaredMemory, ask: DeleteRequest) -> Reply:
        """Destroy keys. Raises Refusal for a key that nothing was written to."""
        return await AsyncAnswers(memory).delete(ask.key, max_keys=ask.max_keys)

    async def flush(self, memory: AsyncDeclaredMemory, ask: FlushRequest) -> Reply:
        """Let old messages of keys go to the archive. Raises Refusal if a flush of a key is under way, or fails."""
        return await AsyncAnswers(memory).flush(
            ask.key,
            strategy=ask.strategy,
            dry_run=ask.dry_run,
            force=ask.force,
            threshold=ask.threshold,
            max_keys=ask.max_keys,
        )

    async def clear(self, memory: AsyncDeclaredMemory, ask: ClearRequest) -> Reply:
        """Destroy all entries of keys. Raises Refusal unless it is confirmed."""
        if not ask.confirm:
            rule = "true: what is cleared is destroyed"
            raise Refusal(400, "unconfirmed", f"confirm: {rule}", field="confirm", rule=rule)
        return await AsyncAnswers(memory).clear(ask.key, backup=ask.backup, max_keys=ask.max_keys)

    async def stats(self, memory: AsyncDeclaredMemory, ask: StatsRequest) -> Reply:
        """Return the figures of keys."""
        return await AsyncAnswers(memory).stats(ask.key, max_keys=ask.max_keys)

    async def health(self, memory: AsyncDeclaredMemory, ask: HealthRequest) -> Reply:
        """Check a memory's store, and keys. Raises Refusal, with what was found, if something is not healthy."""
        health = await memory.health(ask.key, max_keys=ask.max_keys)
        stats = None
        if ask.include_stats and "*" not in ask.key and health.works and not health.failed:
            stats = (await memory.stats(ask.key)).get(ask.key, UNWRITTEN)
        return _healthy(health_reply(ask.key, health, stats, memory.strategy))

    async def all_healthy(self) -> Reply:
        """Check the store of every memory. Raises Refusal, with what was found, if one is not healthy."""
        checked = await asyncio.gather(*(memory.health(NO_KEY) for memory in self._memories.values()))
        checks = [check(id, error=health.error) for id, health in zip(self._memories, checked, strict=True)]
        return _healthy({"healthy": all(one["healthy"] for one in checks), "checks": checks})


def _healthy(reply: Reply) -> Reply:
    if reply["healthy"]:
        return reply
    failed = "; ".join(f"{one['name']}: {one['error']}" for one in reply["checks"] if not one["healthy"])
    raise Refusal(503, "unhealthy", failed, **reply)
