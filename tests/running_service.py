"""The service: in a process of its own, asked over a connection, or called in this process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import httpx2

from commands import START
from palimpsest.resources import AsyncResources
from palimpsest.resources.service import application

BASE = "/api/v0"


class Answer(NamedTuple):
    """An answer: its status, its headers in lower case, and its body, parsed if it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def data(self) -> Any:
        """The data of an operation that was done."""
        assert self.status == 200, self.body
        return self.body["data"]

    @property
    def code(self) -> tuple[int, str]:
        """The status and the code of a refusal."""
        return self.status, self.body["error"]["code"]


def _parsed(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    names = {name.lower(): value for name, value in headers.items()}
    is_json = names.get("content-type", "").startswith("application/json")
    return Answer(status, names, json.loads(body) if is_json else body.decode())


def _request(body: object, query: Mapping[str, object]) -> tuple[str, bytes | None, dict[str, str]]:
    """Return the query, the body and the headers of a request. A body of bytes is sent as it is."""
    question = f"?{urlencode(query)}" if query else ""
    if body is None:
        return question, None, {}
    return (
        question,
        body if isinstance(body, bytes) else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )


class Served:
    """The service in a process of its own."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address, self.process = address, process

    def ask(self, path: str, body: object = None, headers: Mapping[str, str] | None = None, **query: object) -> Answer:
        """Send a GET, or with a body a POST, to a path under the base, and return the answer."""
        question, content, own = _request(body, query)
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
        try:
            method = "GET" if content is None else "POST"
            connection.request(method, f"{BASE}{path}{question}", content, {**own, **(headers or {})})
            answer = connection.getresponse()
            return _parsed(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit status."""
        self.process.send_signal(by)
        return self.process.wait(120)


@contextmanager
def served(
    config: Path, *arguments: str, environ: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[Served]:
    """Serve declared memories in a new process, on a free port; its standard error goes to `log`."""
    command = [*START, "serve", "--config", str(config), "--port", "0", "--json", *arguments]
    with open(log or os.devnull, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **(environ or {})}
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "it ended before it listened"
            yield Served(json.loads(line)["address"], process)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


class Called:
    """The service in this process, called without a connection."""

    def __init__(self, client: httpx2.AsyncClient, resources: AsyncResources) -> None:
        self._client, self.resources = client, resources

    async def ask(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
        **query: object,
    ) -> Answer:
        """Send a GET, or with a body a POST, to a path under the base, and return the answer."""
        question, content, own = _request(body, query)
        answer = await self._client.request(
            method or ("GET" if content is None else "POST"),
            f"{BASE}{path}{question}",
            content=content,
            headers={**own, **(headers or {})},
        )
        return _parsed(answer.status_code, answer.headers, answer.content)


@asynccontextmanager
async def called(
    config: Path | Mapping[str, Any], *, loading: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Called]:
    """Yield the service of declared memories, called in this process. `loading` are options of the memories."""
    async with AsyncResources.load(config, **(loading or {})) as resources:
        transport = httpx2.ASGITransport(app=application(resources, **options), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Called(client, resources)
