"""The Redis backend: each verb is one call of a script, in a cluster one for each bucket.

`palimpsest.stores.backend` states the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from palimpsest.errors import ConfigError, PalimpsestError, StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.runtime.logs import warn
from palimpsest.stores.backend import Again, Ask, Batch, Place, PlaceHead, Refusal, Scrubbed, Seen, Step
from palimpsest.stores.redis.address import RedisOptions
from palimpsest.stores.redis.calls import Call, look_call, refusal_of, seen_of, write_call
from palimpsest.stores.redis.layout import TAGS, VERSION, Damaged, home_of
from palimpsest.stores.redis.link import FAULTS, Cluster, Link, Server, info, translate
from palimpsest.stores.redis.listing import Listings
from palimpsest.stores.redis.scripts import LOOK, Script
from palimpsest.stores.redis.scrubbing import describe_durability, scrubbed
from palimpsest.stores.redis.writing import DESTROY, WRITE
from palimpsest.stores.rules import READ_ONLY, ask_again, expect_of
from palimpsest.stores.servers import ServerBackend

T = TypeVar("T")

OLDEST = (7, 0)
"""The first version of Redis whose scripts may declare flags (`no-writes`, `allow-oom`)."""


class RedisBackend(ServerBackend[Link]):
    """A backend over hashes and sorted sets, which scripts read and change."""

    faults = FAULTS

    def __init__(self, address: str, options: RedisOptions) -> None:
        super().__init__(address, options)
        self._options, self._in_cluster = options, options.cluster
        self.gathers = not options.cluster  # there each node is asked by itself, and may fail by itself
        self.keys = [f"{options.prefix}:{{{tag}}}:i" for tag in TAGS]
        self._listings = Listings(self._scripts, self.writable)

    # --- the way to the server

    async def connect(self) -> Link:
        kind = Cluster if self._in_cluster else Server
        link = kind(self.address, self._options.pool_size, self.seconds)
        try:
            await self._check(link)
        except BaseException:
            await link.close()
            raise
        return link

    async def _check(self, link: Link) -> None:
        """Check that the server can be used, and that its keys were written in this version of the layout.

        Writes the version if there is none yet. Raises StoreCorrupt, StoreTooNew, and what `check_server` raises.
        """
        for answer in await link.each(b"INFO"):
            check_server(self.url, info(answer), in_cluster=self._in_cluster)
        key = f"{self._options.prefix}:store"
        version = await link.call(b"GET", key)
        if version is None and self.writable:
            await link.call(b"SET", key, VERSION, b"NX")
            version = await link.call(b"GET", key)
        if version is not None and version != VERSION:
            if not version.isdigit():
                raise StoreCorrupt(
                    self.url, f"the key {key} does not hold a version: another program writes under its prefix"
                )
            raise StoreTooNew(self.url, int(version), int(VERSION))

    def translate(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return translate(self.url, fault, writes)

    async def _with(self, do: Callable[[Link], Awaitable[T]], *, writes: bool = False) -> T:
        return await self.run(lambda link: link.using(do, writes=writes), writes=writes)

    async def _scripts(
        self, script: Script, buckets: Sequence[int], arguments: Sequence[bytes | str | int], writes: bool = False
    ) -> list[Any]:
        """Run a script over buckets with the same arguments for each, and return its answer for each, in order."""

        async def do(link: Link) -> list[Any]:
            keys = [self.keys[bucket] for bucket in buckets]
            calls = [[key] for key in keys] if self._in_cluster else [keys]
            answers = await asyncio.gather(*(link.run(script, call_keys, arguments) for call_keys in calls))
            return [bucket_answer for answer in answers for bucket_answer in answer]

        return await self._with(do, writes=writes)

    # --- the verbs

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        if not asks:
            return []
        groups = self._group(asks, lambda ask: ask.place)

        async def do(link: Link) -> list[Seen]:
            return await self._answer(link, asks, groups)

        return await self._with(do)

    async def _answer(self, link: Link, asks: Sequence[Ask], groups: Sequence[Sequence[int]]) -> list[Seen]:
        """Answer the asks, in their order, with a call for each group of their indexes."""
        calls = [look_call([asks[number] for number in group]) for group in groups]
        if len(groups) == 1:  # the common case, without the tasks of `gather`
            answers = [await self._look(link, calls[0])]
        else:
            answers = await asyncio.gather(*(self._look(link, call) for call in calls))
        seen: dict[int, Seen] = {}
        for group, answer in zip(groups, answers, strict=True):
            seen.update(zip(group, seen_of([asks[number] for number in group], answer), strict=True))
        return [seen[number] for number in range(len(asks))]

    async def _look(self, link: Link, call: Call) -> bytes:
        answer: bytes = await link.run(LOOK, [self.keys[bucket] for bucket in call.buckets], call.arguments)
        return answer

    def _group(self, items: Sequence[T], place_of: Callable[[T], Place]) -> list[list[int]]:
        """Group the indexes of items by the call they go into: one for all, in a cluster one for each bucket."""
        if not self._in_cluster:
            return [list(range(len(items)))]
        groups: dict[int, list[int]] = {}
        for number, item in enumerate(items):
            place = place_of(item)
            groups.setdefault(home_of(place.tenant, place.home).bucket, []).append(number)
        return list(groups.values())

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        refusals = await self._write_batches(batches)
        if again is not None:
            for number, refusal in enumerate(refusals):
                if refusal is not None:
                    try:
                        refusals[number] = await self._write_instead(again, number, batches[number], refusal)
                    except StoreUnavailable as fault:
                        if any(other is None for other, batch in zip(refusals, batches, strict=True) if batch):
                            fault.written = None  # other batches of this call are written
                        raise
        return refusals

    async def _write_batches(self, batches: Sequence[Batch]) -> list[Refusal | None]:
        """Write batches, in one call, but in a cluster in one for each bucket. Return the refusal of each, or None."""
        refusals: list[Refusal | None] = [None] * len(batches)
        numbers = [number for number, batch in enumerate(batches) if batch]
        if not numbers:
            return refusals
        groups = self._group([batches[number] for number in numbers], lambda batch: batch[0].place)
        for group in groups:
            group_numbers = [numbers[i] for i in group]
            try:
                answers = await self._run_write([batches[number] for number in group_numbers])
            except StoreUnavailable as fault:
                if group is not groups[0]:
                    fault.written = None  # batches of an earlier group may be written
                raise
            for number, answer in zip(group_numbers, answers, strict=True):
                try:
                    refusals[number] = refusal_of(batches[number], answer) if answer else None
                except Damaged as fault:
                    raise self.translate(fault, False) from fault
        return refusals

    async def _run_write(self, batches: Sequence[Batch]) -> list[Any]:
        """Write batches in one call of the script. Return its answer for each: the present heads if refused, or nil."""
        call = write_call(batches)
        script = DESTROY if any(step.destroys for batch in batches for step in batch) else WRITE
        keys = [self.keys[bucket] for bucket in call.buckets]
        answers: list[Any] = await self._with(lambda link: link.run(script, keys, call.arguments), writes=True)
        return answers

    async def _write_instead(self, again: Again, number: int, batch: Batch, refusal: Refusal) -> Refusal | None:
        """Write what `again` returns in the place of a refused batch. Return its refusal, or None.

        It is tried once only, for other writers may be faster again. They may also write between a look of `again` and
        this write. So steps are added that compare each head that was looked at with what was seen.
        """
        looked: dict[Place, PlaceHead | None] = {}

        async def look(asks: Sequence[Ask]) -> list[Seen]:
            seen = await self.look(asks)
            looked.update({ask.place: answer.head for ask, answer in zip(asks, seen, strict=True) if ask.head})
            return seen

        instead = await ask_again(again, number, batch, refusal, look)
        if instead is None:
            return refusal
        compared = {step.place for step in instead if not step.rows_only}
        seen_hot = {place: expect_of(head) for place, head in looked.items() if place not in compared}
        guarded = [*instead, *(Step(place, hot, hot) for place, hot in seen_hot.items())]
        (refused,) = await self._write_batches([guarded])
        return None if refused is None else tuple(refused[: len(instead)])  # without the steps added here

    async def list_with(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await ask(self._listings)
        except Damaged as fault:
            raise self.translate(fault, False) from fault

    # --- the end

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        if not self.writable:
            return Scrubbed()
        return await scrubbed(self._scripts, self._with, self.seconds, whole)

    async def durability(self) -> str:
        return await self._with(describe_durability)

    async def close(self) -> None:
        link = self.release()
        if link is not None:
            await link.close()


def check_server(url: str, server: dict[str, str], *, in_cluster: bool) -> None:
    """Raise StoreUnavailable or ConfigError if this server cannot be used; `server` is its answer to INFO.

    Warns if the server keeps no append-only file.
    """
    version = server.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise StoreUnavailable(url, f"it is version {version}: Redis 7 or newer is needed, or any Valkey")
    if server.get("cluster_enabled") == "1" and not in_cluster:
        raise ConfigError("cluster", False, "true: the server is a node of a cluster")
    policy = server.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        problem = f"its maxmemory-policy is {policy}, which deletes stored data when its memory is full"
        raise StoreUnavailable(url, f"{problem}; set it to noeviction")
    if server.get("aof_enabled") == "0":
        note = "%s: its append-only file is off (appendonly no): when the server ends, acknowledged writes are lost"
        warn(note, url)
