"""A network between a client and a server of this machine, which can be told to stall, to deafen, and to drop."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias

How: TypeAlias = Literal["passes", "stalls", "is deaf", "drops", "loses"]
"""What becomes of what comes: it passes; nothing passes, in either direction, until it does again; no answer does; a
request ends its connection, and is not handed on; an answer ends its connection, and is not handed on."""


class Network:
    """Connections to one port, handed on to another. `port` is where it is, `how` what it does from now on, `once`
    what it does the next time alone. With `tls` it is spoken to encrypted, and hands on what it was told."""

    def __init__(self, to: int, tls: ssl.SSLContext | None = None) -> None:
        self._to, self._tls, self._loop = to, tls, asyncio.new_event_loop()
        self._how: How = "passes"
        self._once: How | None = None
        self._flows = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    def becomes(self, how: How) -> None:
        """Do this from now on; what was held back passes when it passes again."""
        self._run(self._become(how))

    def leads(self, to: int) -> None:
        """Hand connections that are made from now on to another port; those that there are stay."""
        self._to = to

    def once(self, how: How) -> None:
        """Do this to what comes next, and then pass again."""
        self._once = how

    async def _become(self, how: How) -> None:
        self._how = how
        (self._flows.set if how == "passes" else self._flows.clear)()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._writers.append(to_client)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            to_client.close()
            return
        self._writers.append(to_server)
        both = to_client, to_server
        ways: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, tuple[How, ...]]] = [
            (from_client, to_server, ("stalls", "drops")),
            (from_server, to_client, ("stalls", "is deaf", "loses")),
        ]
        for reader, writer, hindered in ways:
            task = asyncio.get_running_loop().create_task(self._pump(reader, writer, hindered, both))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hindered: tuple[How, ...],
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                how = self._how
                if self._once in hindered:
                    how, self._once = self._once or how, None
                if how in hindered:
                    if how in ("drops", "loses"):
                        break
                    await self._flows.wait()
                writer.write(data)
                await writer.drain()
        for one in both:
            one.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # closed in the next turn of the loop, and not by the collector in another test
        await asyncio.sleep(0)


@contextmanager
def network(to: int, tls: ssl.SSLContext | None = None) -> Iterator[Network]:
    """A network to a port of this machine."""
    made = Network(to, tls)
    thread = threading.Thread(target=made._loop.run_forever)
    thread.start()
    made._run(made._serve())
    try:
        yield made
    finally:
        made._run(made._end())
        made._loop.call_soon_threadsafe(made._loop.stop)
        thread.join()
        made._loop.close()
