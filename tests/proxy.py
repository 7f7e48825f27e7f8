"""A TCP proxy between a client and a server of this machine, which can hold data back and break connections."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias

How: TypeAlias = Literal["passes", "stalls", "is deaf", "drops", "loses"]
"""What the proxy does with data.

"passes" forwards it. "stalls" holds back requests and answers until it "passes" again, "is deaf" only answers. "drops"
closes a connection instead of forwarding a request, "loses" instead of forwarding an answer.
"""


class Network:
    """A proxy that listens on `port` and forwards connections to the port `to`.

    With `tls`, clients connect with TLS, and the proxy forwards the decrypted data.
    """

    def __init__(self, to: int, tls: ssl.SSLContext | None = None) -> None:
        self._to, self._tls, self._loop = to, tls, asyncio.new_event_loop()
        self._how: How = "passes"
        self._once: How | None = None
        self._flows = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    def becomes(self, how: How) -> None:
        """Change what happens to data from now on; data that was held back is forwarded once it "passes" again."""
        self._run(self._become(how))

    def leads(self, to: int) -> None:
        """Forward new connections to another port; existing ones stay."""
        self._to = to

    def once(self, how: How) -> None:
        """Do this with the next data of the direction that it concerns, and then pass again."""
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
        directions: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, tuple[How, ...]]] = [
            (from_client, to_server, ("stalls", "drops")),
            (from_server, to_client, ("stalls", "is deaf", "loses")),
        ]
        for reader, writer, hindered in directions:
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
        """Forward data in one direction, which the states in `hindered` concern; close `both` sides at the end."""
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
        for side in both:
            side.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            # Closes it in the loop's next turn; otherwise the garbage collector would, in the middle of another test.
            writer.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def network(to: int, tls: ssl.SSLContext | None = None) -> Iterator[Network]:
    """Yield a proxy to a port of this machine, which runs on an event loop in a thread of its own."""
    proxy = Network(to, tls)
    thread = threading.Thread(target=proxy._loop.run_forever)
    thread.start()
    proxy._run(proxy._serve())
    try:
        yield proxy
    finally:
        proxy._run(proxy._end())
        proxy._loop.call_soon_threadsafe(proxy._loop.stop)
        thread.join()
        proxy._loop.close()
