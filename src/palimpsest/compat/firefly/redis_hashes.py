"""Entries on a Redis server. Each change and each read is one script.

    {prefix}:ids        hash: the namespace of each id
    {prefix}:expires    sorted set: entries that expire, as <bytes of the namespace>:<namespace><id>, by microseconds
                        since 1970
    {prefix}:place      the last place in the order that was given out
    {prefix}:n:<namespace>:rows, :keys, :order      hashes: entries by id, ids by key; sorted set: ids by place

An entry is `<expires>|<bytes of the key, or nothing>|<key><JSON>`. The braces put all keys in one slot of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from palimpsest.compat.firefly.entries import Packed, dumped, parsed
from palimpsest.compat.firefly.served import Server
from palimpsest.compat.firefly.store import elsewhere, spelled, unspelled
from palimpsest.errors import PalimpsestError
from palimpsest.runtime.logs import warn
from palimpsest.stores.options import discreet_address
from palimpsest.stores.redis.backend import check_server
from palimpsest.stores.redis.link import FAULTS, Cluster, Link, info, translate
from palimpsest.stores.redis.link import Server as OneServer
from palimpsest.stores.redis.scripts import NO_WRITES, Script

T = TypeVar("T")

PAGE = 500
"""How many entries one step of a cleanup looks at."""

_BASE = """
local ids, expiring, counter, rows, keys, order = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local call, namespace = redis.call, ARGV[1]
local function member(id)
  return string.len(namespace) .. ':' .. namespace .. id
end
local function expired(row, now)
  local ends = string.match(row, '^(%d*)|')
  return ends ~= '' and tonumber(ends) <= now
end
local function key_of(row)
  local length, at = string.match(row, '^%d*|(%d*)|()')
  if length == '' then return nil end
  return string.sub(row, at, at + tonumber(length) - 1)
end
local function drop(id)
  local row = call('HGET', rows, id)
  if not row then return 0 end
  local key = key_of(row)
  if key then call('HDEL', keys, key) end
  call('HDEL', rows, id)
  call('HDEL', ids, id)
  call('ZREM', order, id)
  call('ZREM', expiring, member(id))
  return 1
end
"""

_PUT = """
local function put(id, row, now)
  local key, stored, place = key_of(row), call('HGET', rows, id), nil
  local owner = call('HGET', ids, id)
  if owner and owner ~= namespace then return -1 end
  local id_of_key = key and call('HGET', keys, key)
  local old = stored and id or id_of_key
  if old and not expired(stored or call('HGET', rows, old), now) then place = call('ZSCORE', order, old) end
  drop(id)
  if id_of_key then drop(id_of_key) end
  call('HSET', rows, id, row)
  call('HSET', ids, id, namespace)
  call('ZADD', order, place or call('INCR', counter), id)
  if key then call('HSET', keys, key, id) end
  local ends = string.match(row, '^(%d*)|')
  if ends ~= '' then call('ZADD', expiring, ends, member(id)) end
  return 1
end
"""

SAVE = Script(f"{_BASE}{_PUT}\nreturn put(ARGV[2], ARGV[3], tonumber(ARGV[4]))")

SWAP = Script(
    f"""{_BASE}{_PUT}
local id, row, now, key, seen = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local id_of_key = call('HGET', keys, key)
local current = id_of_key and call('HGET', rows, id_of_key) or ''
if current ~= seen then return 0 end
if row ~= '' then return put(id, row, now) end
if id_of_key then drop(id_of_key) end
return 1
"""
)

LOAD = Script(
    f"""{NO_WRITES}{_BASE}
local found, all = {{}}, call('ZRANGE', order, 0, -1)
for i = 1, #all, 1000 do
  for _, row in ipairs(call('HMGET', rows, unpack(all, i, math.min(i + 999, #all)))) do found[#found + 1] = row end
end
return found
"""
)

LOAD_BY_KEY = Script(
    f"""{NO_WRITES}{_BASE}
local id = call('HGET', keys, ARGV[2])
return id and call('HGET', rows, id)
"""
)

DELETE = Script(f"{_BASE}return drop(ARGV[2])")

CLEAR = Script(f"{_BASE}for _, id in ipairs(call('HKEYS', rows)) do drop(id) end")

EXPIRED = Script(
    f"""{_BASE}
local gone = 0
for i = 3, #ARGV do
  local row = call('HGET', rows, ARGV[i])
  if row and expired(row, tonumber(ARGV[2])) then gone = gone + drop(ARGV[i]) end
  if not row then call('ZREM', expiring, member(ARGV[i])) end
end
return gone
"""
)


class Hashes(Server):
    """The keys of one prefix, and the connections to the server."""

    faults = FAULTS

    def __init__(self, address: str, prefix: str, *, size: int, seconds: float, in_cluster: bool) -> None:
        self._address, self._url, self._prefix = address, discreet_address(address), f"{{{prefix}}}"
        self._size, self._seconds, self._in_cluster = size, seconds, in_cluster
        self._link: Link | None = None

    async def connect(self) -> None:
        link = (Cluster if self._in_cluster else OneServer)(self._address, self._size, self._seconds)
        try:
            for answer in await link.each(b"INFO"):
                check_server(self._url, info(answer), in_cluster=self._in_cluster)
        except BaseException:
            await link.close()
            raise
        self._link = link

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def translated(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return translate(self._url, fault, writes)

    async def _with(self, do: Callable[[Link], Awaitable[T]], *, writes: bool = False) -> T:
        assert self._link is not None, "it is connected"
        return await self._link.using(do, writes=writes)

    async def _run(self, script: Script, namespace: str, *arguments: bytes | str | int, writes: bool = False) -> Any:
        spelled_namespace = spelled(namespace)
        names = [f"{self._prefix}:{name}" for name in ("ids", "expires", "place")]
        names += [f"{self._prefix}:n:{spelled_namespace}:{name}" for name in ("rows", "keys", "order")]
        return await self._with(lambda link: link.run(script, names, (spelled_namespace, *arguments)), writes=writes)

    # --- operations of a store

    async def save(self, namespace: str, row: Packed, now: int) -> None:
        if await self._run(SAVE, namespace, spelled(row.entry_id), _written(row), now, writes=True) < 0:
            raise elsewhere(row.entry_id)

    async def load(self, namespace: str, now: int) -> list[Packed]:
        rows = [self._read(namespace, row) for row in await self._run(LOAD, namespace)]
        return [row for row in rows if row is not None and not row.is_over(now)]

    async def load_by_key(self, namespace: str, key: str, now: int) -> Packed | None:
        stored = await self._run(LOAD_BY_KEY, namespace, spelled(key))
        row = None if stored is None else self._read(namespace, stored)
        return None if row is None or row.is_over(now) else row

    async def delete(self, namespace: str, entry_id: str) -> None:
        await self._run(DELETE, namespace, spelled(entry_id), writes=True)

    async def clear(self, namespace: str) -> None:
        await self._run(CLEAR, namespace, writes=True)

    async def swap(self, namespace: str, key: str, row: Packed | None, was: Packed | None, now: int) -> bool:
        new = ("", b"") if row is None else (spelled(row.entry_id), _written(row))
        while True:
            stored = await self._run(LOAD_BY_KEY, namespace, spelled(key))
            current = None if stored is None else self._read(namespace, stored)
            if (None if current is None or current.is_over(now) else current) != was:
                return False
            if row is None and was is None:
                return True
            done = await self._run(SWAP, namespace, *new, now, spelled(key), stored or b"", writes=True)
            if done < 0:
                raise elsewhere(new[0])
            if done:
                return True

    async def cleanup(self, now: int) -> int:
        count, expiring = 0, f"{self._prefix}:expires"
        while True:
            command = ("ZRANGEBYSCORE", expiring, "-inf", now, "LIMIT", 0, PAGE)
            members: list[bytes] = await self._with(lambda link: link.call(*command))  # noqa: B023 (called at once)
            removed = 0
            for namespace, entries in _by_namespace(members).items():
                removed += await self._run(EXPIRED, namespace, now, *entries, writes=True)
            count += removed
            if len(members) < PAGE or not removed:
                return count

    def _read(self, namespace: str, row: bytes) -> Packed | None:
        """Return the entry of a stored value; None, and a line in the log, if it cannot be read."""
        try:
            _, length, rest = row.split(b"|", 2)
            return parsed(json.loads(rest[int(length or 0) :]))
        except (ValueError, RecursionError) as fault:
            warn("%s: an entry of %r cannot be read, and is left out: %s", self._url, namespace, fault)
            return None


def _written(row: Packed) -> bytes:
    key = b"" if row.key is None else spelled(row.key).encode()
    length = "" if row.key is None else len(key)
    return f"{'' if row.expires is None else row.expires}|{length}|".encode() + key + dumped(row).encode()


def _by_namespace(members: list[bytes]) -> dict[str, list[bytes]]:
    """Return the ids in members of the sorted set of entries that expire, by namespace."""
    ids: dict[str, list[bytes]] = {}
    for member in members:
        length, _, rest = member.partition(b":")
        ids.setdefault(unspelled(rest[: int(length)].decode()), []).append(rest[int(length) :])
    return ids
