"""`application(resources)`: the service as an ASGI application, with a route for each operation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from palimpsest.errors import PalimpsestError
from palimpsest.resources import AsyncDeclaredMemory, AsyncResources
from palimpsest.resources.refusals import CANCELLED, Refusal, refusal_of
from palimpsest.resources.replies import Reply
from palimpsest.resources.service.answers import answered, refused
from palimpsest.resources.service.guard import BODY_BYTES, Guard, too_large
from palimpsest.resources.service.metrics import NOTHING, Metrics
from palimpsest.resources.service.openapi import document
from palimpsest.resources.service.operations import Operations
from palimpsest.resources.service.requests import (
    ClearRequest,
    DeleteRequest,
    FlushRequest,
    HealthRequest,
    NoRequest,
    ReadRequest,
    StatsRequest,
    WriteRequest,
    of_body,
    of_query,
)
from palimpsest.resources.service.routes import BASE, Operation
from palimpsest.runtime.logs import log_failure


def application(
    resources: AsyncResources,
    *,
    token: str | None = None,
    read_only: Collection[str] = (),
    hosts: Collection[str] = (),
    body_bytes: int = BODY_BYTES,
) -> ASGIApp:
    """Return the service of these declared memories as an ASGI application, which another one may mount.

    The application does not close the resources. Raises ConfigError for an invalid argument, and for a memory that
    cannot be opened as it is declared, such as one whose environment variable is missing.

    Args:
        resources: declared memories, open on the event loop that runs the application.
        token: what every request must give as `Authorization: Bearer TOKEN`, at least 16 ASCII characters. None: no
            token is needed, and only requests that name the machine itself as their host are answered.
        read_only: ids of memories that requests may not change.
        hosts: further names by which requests without a token may call the host.
        body_bytes: the most bytes of a request's body; 4 MiB by default.
    """
    operations, metrics = Operations(resources, read_only), Metrics()
    for memory in {id(memory): memory for memory in map(resources.memory, resources)}.values():
        metrics.watch(memory)
    service = _Service(operations, metrics, resources)
    app = Starlette(
        routes=[
            Route(f"{BASE}/memory/health", service.health, methods=["GET"]),
            *(
                Route(operation.path, service.endpoint(operation), methods=[operation.method])
                for operation in service.operations
            ),
            Route(f"{BASE}/metrics", service.exposition, methods=["GET"]),
            Route(f"{BASE}/openapi.json", service.description, methods=["GET"]),
        ],
        exception_handlers={HTTPException: service.lost},
    )
    app.router.redirect_slashes = False  # a redirection is no JSON, and behind a proxy may lead around TLS
    return Guard(app, metrics.note, token, hosts, body_bytes)


class _Service:
    """The endpoints."""

    def __init__(self, operations: Operations, metrics: Metrics, resources: AsyncResources) -> None:
        self._do, self._metrics, self._resources = operations, metrics, resources
        do = operations
        self.operations = (
            Operation("read", ReadRequest, False, lambda memory, ask, _: do.read(memory, ask), "read"),
            Operation("append", WriteRequest, True, self._append, "appended"),
            Operation("write", WriteRequest, True, lambda memory, ask, _: do.write(memory, ask), "written"),
            Operation("delete", DeleteRequest, True, lambda memory, ask, _: do.delete(memory, ask), "deleted"),
            Operation("flush", FlushRequest, True, lambda memory, ask, _: do.flush(memory, ask), "flush ended"),
            Operation("clear", ClearRequest, True, lambda memory, ask, _: do.clear(memory, ask), "cleared"),
            Operation("health", HealthRequest, False, lambda memory, ask, _: do.health(memory, ask), "healthy"),
            Operation("stats", StatsRequest, False, lambda memory, ask, _: do.stats(memory, ask), "figures"),
        )

    async def _append(self, memory: AsyncDeclaredMemory, ask: WriteRequest, request: Request) -> Reply:
        return await self._do.append(memory, ask, request.headers.get("idempotency-key"))

    def endpoint(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of an operation."""

        async def act(request: Request) -> Response:
            memory = self._do.memory(request.path_params["ref"], writes=operation.writes)
            if operation.method == "POST":
                of_query(NoRequest, request.query_params.multi_items())
                ask = of_body(operation.request, await _body(request))
            else:
                ask = of_query(operation.request, request.query_params.multi_items())
            return answered(operation.message, await operation.verb(memory, ask, request))

        return self._answering(operation.name, act)

    async def health(self, request: Request) -> Response:
        """Answer whether the store of each memory works."""

        async def act(request: Request) -> Response:
            of_query(NoRequest, request.query_params.multi_items())
            return answered("healthy", await self._do.all_healthy())

        return await self._answering("memory_health", act)(request)

    async def exposition(self, request: Request) -> Response:
        """Answer with the metrics."""
        return self._metrics.exposition()

    async def description(self, request: Request) -> Response:
        """Answer with the OpenAPI document, which lists routes and what requests say."""
        return document(self.operations, request.scope.get("root_path", ""))

    async def lost(self, request: Request, fault: Exception) -> Response:
        """Answer a request for a path or a method that there is not."""
        assert isinstance(fault, HTTPException), "registered for these"
        code = {404: "unknown_route", 405: "wrong_method"}.get(fault.status_code, "invalid_request")
        path, mounted = request.scope["path"], request.scope.get("root_path", "")
        message = f"{request.method} {path}: {fault.detail}; {mounted}{BASE}/openapi.json lists the routes"
        response = refused(Refusal(fault.status_code, code, message))
        response.headers.update(fault.headers or {})
        self._metrics.note(request.method, fault.status_code, code)
        return response

    def _answering(
        self, name: str, act: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Turn errors into answers, count the request, and log it."""

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            ref = str(request.path_params.get("ref", NOTHING))

            def note(status: int, outcome: str) -> None:
                seconds, known = time.perf_counter() - started, ref if ref in self._resources else NOTHING
                self._metrics.note(request.method, status, outcome, seconds, operation=name, memory=known)

            try:
                response, outcome = await act(request), "ok"
            except (Refusal, PalimpsestError) as fault:
                refusal = fault if isinstance(fault, Refusal) else refusal_of(fault) or self._own_fault(fault, ref)
                response, outcome = refused(refusal), refusal.code
            except Exception as fault:  # noqa: BLE001 (a boundary: one request's fault must not end the service)
                response, outcome = refused(self._own_fault(fault, ref)), "internal"
            except asyncio.CancelledError:
                note(CANCELLED.status, CANCELLED.code)
                raise
            note(response.status_code, outcome)
            return response

        return endpoint

    def _own_fault(self, fault: Exception, ref: str) -> Refusal:
        """Log a fault of the service's own under an id, and return the refusal that names this id."""
        number = os.urandom(8).hex()
        redact = None
        if ref in self._resources:
            redact = self._resources.memory(ref).redact
        log_failure(redact, fault, "a request failed by a fault of the service's own, %s", number)
        message = f"a fault of the service's own, which its log has under {number}"
        return Refusal(500, "internal", message, id=number)


async def _body(request: Request) -> bytes:
    """Read the body. Raises Refusal once it is over the limit, and for a client that goes away."""
    most, body = request.scope["state"]["body_bytes"], bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large(most)
    except ClientDisconnect:  # nobody reads the answer, but metrics and log have it
        raise Refusal(400, "disconnected", "the client went away before it had sent the whole body") from None
    return bytes(body)
