"""Connections to one server or to the nodes of a cluster, behind one interface; and the translation of driver errors.

The driver's own retries are turned off: it would send a command again whose answer was lost, also a write.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 (the driver's own)
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from palimpsest.errors import ConfigError, PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.stores.redis.layout import Damaged
from palimpsest.stores.redis.scripts import Script
from palimpsest.stores.rules import UNSENT
from palimpsest.stores.servers import Line, Unsent

T = TypeVar("T")


FAULTS: tuple[type[BaseException], ...] = (RedisError, RedisClusterException, OSError, Unsent, Damaged)
LOST: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError, OSError)
"""The connection is lost: a new one may work."""

FULL = ("max number of clients reached", "Connection not ready")
"""What the driver reports if a server closes a new connection at once, because it has as many as it accepts."""

NO_MORE = "it accepts no more connections (maxclients); nothing was written"
"""What to tell the user then."""

CLOSING = "the store is being closed"
"""The fault of a call that would make a new connection while the store is closed."""

HOW: dict[str, Any] = {"protocol": 2, "socket_timeout": None, "driver_info": None}
"""Options of every connection. No socket timeout, because `timeout_seconds` ends a call that hangs; no CLIENT SETINFO
and, with protocol 2, no HELLO when it is opened."""


class Link(ABC):
    """The connection to the server or the cluster; at most `size` commands are under way at once."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)

    async def using(self, do: Callable[[Link], Awaitable[T]], *, writes: bool = False) -> T:
        """Return what `do` returns. If the connection is lost, try once more, unless something may have been written.

        It is tried once more, too, if the server has become a read-only replica: by now the address may lead to the new
        primary.
        """
        try:
            return await do(self)
        except ReadOnlyError:
            await self.renew()
        except Unsent as fault:
            if not isinstance(fault.__cause__, LOST):
                raise
        except LOST:
            if writes:
                raise
        return await do(self)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[bytes | str | int]) -> Any:
        """Run a script and return its answer. In a cluster its keys must be in one slot."""
        try:
            return await self.call(b"EVALSHA", script.name, len(keys), *keys, *arguments)
        except NoScriptError:
            return await self.call(b"EVAL", script.text, len(keys), *keys, *arguments)

    async def call(self, *command: bytes | str | int) -> Any:
        """Send a command and return its answer. Raises Unsent if a single server cannot be connected to."""
        try:
            await self._free.acquire()
        except asyncio.CancelledError as ended:
            ended.add_note(UNSENT)
            raise
        try:
            return await self._call(command)
        finally:
            self._free.release()

    @abstractmethod
    async def _call(self, command: Sequence[bytes | str | int]) -> Any: ...

    @abstractmethod
    async def each(self, *command: bytes | str | int) -> list[Any]:
        """Send a command to every primary, and return their answers."""

    async def renew(self) -> None:  # noqa: B027 (the driver of a cluster finds new primaries by itself)
        """Use new connections for all later commands."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


class Server(Link):
    """The link to a single server."""

    def __init__(self, address: str, size: int, seconds: float) -> None:
        super().__init__(size)
        how = {**HOW, "max_connections": size, "retry": Retry(NoBackoff(), 0), "socket_connect_timeout": seconds}
        self._make_pool: Callable[[], Any] = partial(ConnectionPool.from_url, address, **how)
        self._pool: Any = self._make_pool()
        self._line, self._under_way, self._closed = Line(), 0, False

    async def _call(self, command: Sequence[bytes | str | int]) -> Any:
        """Send a command and return its answer. If the server accepts no further connection, wait for one in use."""
        while True:
            self._under_way, full = self._under_way + 1, False
            try:
                return await self._sent(command)
            except Unsent as fault:
                full = str(fault.__cause__) in FULL and (self._under_way > 1 or self._has_idle())
                if not full:
                    raise
            finally:
                self._under_way -= 1
                if not full:
                    self._line.wake()
            if not self._has_idle():
                await self._line.wait()

    def _has_idle(self) -> bool:
        """Return whether a connection is open and idle. It will be the next one that is used."""
        idle = self._pool._available_connections  # noqa: SLF001 (the driver has no other way to know)
        idle.sort(key=lambda connection: connection.is_connected)
        return bool(idle) and idle[-1].is_connected

    async def _sent(self, command: Sequence[bytes | str | int]) -> Any:
        pool = self._pool
        try:
            if self._closed:
                raise ConnectionError(CLOSING)
            connection = await pool.get_connection()
        except FAULTS as fault:
            raise Unsent from fault
        except asyncio.CancelledError as ended:
            ended.add_note(UNSENT)
            raise
        try:
            await connection.send_packed_command(packed(command))
            return await connection.read_response()
        except ConnectionError as fault:
            if str(fault) in FULL:
                raise Unsent from fault
            raise
        finally:
            await pool.release(connection)
            if pool is not self._pool:  # `renew` was called meanwhile
                await connection.disconnect()

    async def each(self, *command: bytes | str | int) -> list[Any]:
        return [await self.call(*command)]

    async def renew(self) -> None:
        old_pool, self._pool = self._pool, self._make_pool()
        await old_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        self._closed = True
        await self._pool.aclose()


class Cluster(Link):
    """The link to the nodes of a cluster. The driver knows which node has which slot."""

    def __init__(self, address: str, size: int, seconds: float) -> None:
        super().__init__(size)
        how = {**HOW, "max_connections": size, "retry": Retry(NoBackoff(), 0), "socket_connect_timeout": seconds}
        self._client = client = RedisCluster.from_url(address, **how)
        kind = checked(client.connection_kwargs["connection_class"])
        client.connection_kwargs["connection_class"] = kind
        for node in client.nodes_manager.startup_nodes.values():
            node.connection_class = kind

    async def _call(self, command: Sequence[bytes | str | int]) -> Any:
        return await self._client.execute_command(*_spelled(command))

    async def each(self, *command: bytes | str | int) -> list[Any]:
        await self._client.initialize()
        nodes = self._client.get_primaries()
        spelled = _spelled(command)
        return [await self._client.execute_command(*spelled, target_nodes=node) for node in nodes]

    async def close(self) -> None:
        await self._client.aclose()


def checked(kind: Any) -> Any:
    """Derive a connection class that reconnects before a command if the connection was closed since its last use.

    The driver's pool for a single server does that; its cluster client does not.
    """

    class Checked(kind):  # type: ignore[misc]
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if check_health and self.is_connected:  # while it connects, the driver sends without this check
                try:
                    unusable = await self.can_read()  # the stream has ended, or holds an answer that nobody awaits
                except LOST:
                    unusable = True
                if unusable:
                    await self.disconnect()
            await super().send_packed_command(command, check_health)

    return Checked


def packed(command: Sequence[bytes | str | int]) -> bytes:
    """Return a command as it is sent. The driver's encoder makes eight calls for each part; a look has twenty."""
    parts = [b"*%d\r\n" % len(command)]
    for part in command:
        value = part if isinstance(part, bytes) else str(part).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


def _spelled(command: Sequence[bytes | str | int]) -> tuple[Any, ...]:
    """Return the command with its name as a text: the driver looks it up by that to find the slot."""
    name = command[0]
    return (name.decode() if isinstance(name, bytes) else name, *command[1:])


def info(answer: bytes | dict[str, Any]) -> dict[str, str]:
    """Return the answer to INFO as a dictionary."""
    if isinstance(answer, dict):
        return {str(name): str(value) for name, value in answer.items()}
    lines = answer.decode(errors="replace").splitlines()
    return {name: value for name, mark, value in (line.partition(":") for line in lines) if mark}


# --- faults

_ADVICE: tuple[tuple[type[BaseException] | str, str], ...] = (
    (OutOfMemoryError, "the server's memory is full (maxmemory): make room, and try again; nothing was written"),
    (ReadOnlyError, "it is a replica, which takes no writes: give the address of the primary"),
    (NoPermissionError, "the user of the address lacks a permission: it needs all commands of the documentation"),
    (AuthenticationError, "look at user and password of the address"),
    ("Protocol error: unauthenticated", "look at user and password of the address"),
    (BusyLoadingError, "the server is starting, and loads its data; try again"),
    (ClusterDownError, "nodes of the cluster are missing; try again when it is complete"),
    (MovedError, "it is a node of a cluster: give the option cluster=true"),
    ("MISCONF", "the server cannot save to its disk, and takes no writes: look at its log and its disk"),
    ("BUSY", "a script has kept the server busy for too long; try again"),
    ("NOREPLICAS", "too few replicas are connected (min-replicas-to-write); nothing was written"),
)
"""What to do about a fault, by the driver's class for it, or else by the beginning of the server's message."""


def _advice(fault: BaseException) -> str:
    """Return the advice for a fault, "" if there is none."""
    for kind, advice in _ADVICE:
        if str(fault).startswith(kind) if isinstance(kind, str) else isinstance(fault, kind):
            return advice
    return ""


def translate(url: str, fault: BaseException, writes: bool) -> PalimpsestError:
    """Translate an error of the driver. `writes` says that a write was under way.

    StoreUnavailable has `written` None if the write may have happened, also in part, where a script failed half way.
    """
    if isinstance(fault, Damaged):
        return StoreCorrupt(url, f"{fault}: another program has changed it. Nothing was changed now")
    if isinstance(fault, Unsent) and fault.__cause__ is not None:
        fault, writes = fault.__cause__, False
    text = str(fault).rstrip(".")
    if "Cluster mode is not enabled" in text:
        return ConfigError("cluster", True, "false: the server is no node of a cluster")
    if "WRONGTYPE" in text:
        return StoreCorrupt(
            url, "a key of it has another type: another program writes under its prefix. Nothing was changed"
        )
    if isinstance(fault, ResponseError | BusyLoadingError | AuthenticationError):
        advice = _advice(fault)
        halfway = writes and "user_script" in text
        return StoreUnavailable(url, f"{text}: {advice}" if advice else text, written=None if halfway else False)
    if isinstance(fault, LOST):
        advice = NO_MORE if text == FULL[0] else "check that the server runs, and that the address is right"
        reason = f"cannot be reached ({_plain(fault)}); {advice}"
        return StoreUnavailable(url, reason, written=None if writes and advice != NO_MORE else False)
    return StoreUnavailable(url, text or type(fault).__name__, written=None if writes else False)


def _plain(fault: BaseException) -> str:
    """Say what happened to a connection, in the words of the operating system if it reported it."""
    origin = fault.__cause__ if isinstance(fault.__cause__, OSError) else fault
    return getattr(origin, "strerror", None) or str(fault) or type(fault).__name__
