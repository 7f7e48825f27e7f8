"""`serve(...)`: runs the service in a server of its own, until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palimpsest.errors import ConfigError
from palimpsest.log.values import is_whole, text
from palimpsest.resources import AsyncResources
from palimpsest.resources.refusals import CANCELLED
from palimpsest.resources.service.answers import refused
from palimpsest.resources.service.application import application
from palimpsest.resources.service.guard import is_loopback
from palimpsest.runtime.lasting import settled

GRACE_SECONDS = 10
"""How long requests under way may take after a signal to stop."""


async def serve(
    config: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8321,
    token: str | None = None,
    read_only: Collection[str] = (),
    hosts: Collection[str] = (),
    ready: Callable[[str, AsyncResources], None] | None = None,
    **options: Any,
) -> None:
    """Serve the memories that a file or a folder declares over HTTP, until SIGTERM or SIGINT, or until the task is
    cancelled; then requests under way are completed, within 10 seconds.

    Raises InvalidResource for mistakes in the declarations, and ConfigError for an invalid argument, such as a host
    that other machines reach without a token.

    Args:
        config: a file or a folder, as `AsyncResources.load` takes it.
        host: the name or address to listen at; by default only programs on this machine reach it.
        port: the port, 8321 by default; 0: any free one.
        token: what every request must give, at least 16 ASCII characters; None: nothing, on this machine alone.
        read_only: ids of memories that requests may not change.
        hosts: further names by which requests without a token may call the host.
        ready: called once requests are answered, with the address of the service and its memories.
        options: further options of `AsyncResources.load`, such as `tenant`.
    """
    text("host", host, none=False)
    if not is_whole(port, 0, 65_535):
        raise ConfigError("port", port, "a whole number from 0 to 65535")
    if token is None and not is_loopback(host):
        raise ConfigError("host", host, "without a token only this machine, such as 127.0.0.1: give a token")
    async with AsyncResources.load(config, **options) as resources:
        app = application(resources, token=token, read_only=read_only, hosts=hosts)
        with closing(listening(host, port)) as at:
            server = _Server(
                uvicorn.Config(
                    _Answered(app),
                    lifespan="off",
                    ws="none",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    timeout_graceful_shutdown=GRACE_SECONDS,
                )
            )
            if ready is not None:
                address, number = at.getsockname()[:2]
                ready(f"http://{f'[{address}]' if ':' in address else address}:{number}", resources)
            await _until_stopped(server, at)


async def _until_stopped(server: _Server, at: socket.socket) -> None:
    """Run the server until a signal or the caller's cancellation stops it. Then no request is under way any more."""
    running = asyncio.ensure_future(server.serve([at]))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        server.should_exit = True
        await settled(running)
        raise
    finally:
        late = list(server.server_state.tasks)
        for request in late:
            if not request.cancelling():
                request.cancel()
        for request in late:
            await settled(request)


class _Answered:
    """Answers requests that the end of the server cuts short, so that none of them gets an answer that is no JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if begun:
                raise
            await refused(CANCELLED)(scope, receive, send)


class _Server(uvicorn.Server):
    """A server whose signals end it, and nothing else: uvicorn's own raises them again once it has ended."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have SIGINT and SIGTERM end the server while the block lasts, if it runs in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ConfigError for an address that cannot be listened at."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        at = socket.socket(family, kind, protocol)  # asyncio sends small answers at once only if it is told TCP
        try:
            at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            at.bind(address)
            at.listen(1024)
        except BaseException:
            at.close()
            raise
    except (OSError, UnicodeError) as fault:  # UnicodeError: a name that has no form in the DNS
        why = getattr(fault, "strerror", None) or fault
        allowed = f"an address that this machine can listen at, with a free port ({why})"
        raise ConfigError("host and port", f"{host}:{port}", allowed) from fault
    return at
