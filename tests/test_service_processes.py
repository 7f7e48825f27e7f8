"""The service as a program: beside other programs, with stores that fail, with tokens, and how it starts and stops."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from commands import read, start
from palimpsest.resources import AsyncDeclaredMemory, AsyncResources, Resources
from palimpsest.resources.service import running, serve
from palimpsest.resources.service.running import listening
from running_service import Served, called, served
from servers import started

CHAT = """\
resource: memory
id: chat
type: token_based
max_tokens: 1000
flushing: {type: simple_fifo}
persistence: {type: sqlite, path: chat.db}
default_key_template: "user:{user_id}"
"""
TOKEN = "a token of the tests"
ANYWHERE = "0.0.0.0"  # noqa: S104 (a host that other machines reach, for which a token is needed)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that declares one memory, in the current folder, where its store is, too."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT)
    return path


@pytest.fixture
def service(config: Path) -> Iterator[Served]:
    """The service of that memory, in a process of its own."""
    with served(config) as service:
        yield service


def test_service_library_and_command_line_see_the_same(service: Served, config: Path) -> None:
    """What the service writes is read by the service, through the template, and by `palimpsest memory`; the JSON of
    the command line is the data of the service."""
    key, where = "user:api_test_user", ("--config", str(config))
    messages = ["Where is order 7?", {"role": "assistant", "content": "On its way."}]
    assert service.ask("/memory/chat/write", {"key": key, "messages": messages}).data["count"] == 2

    by_service = service.ask("/memory/chat/read", key=key).data
    with Resources.load(config) as resources:
        entries = resources.session("chat", {"user_id": "api_test_user"}).entries()
        assert [entry.text for entry in entries] == ["Where is order 7?", "On its way."]
    by_command = read("memory", "read", "chat", key, "--limit", "50", *where)
    assert by_command == by_service
    stats = service.ask("/memory/chat/stats", key=key).data
    assert stats["message_count"] == 2
    assert read("memory", "stats", "chat", key, *where) == stats
    assert read("memory", "health", "chat", key, *where) == service.ask("/memory/chat/health", key=key).data
    dry = {"key": key, "dry_run": True, "force": True}
    assert (
        read("memory", "flush", "chat", key, "--dry-run", "--force", *where)
        == service.ask("/memory/chat/flush", dry).data
    )
    for name in ("x:1", "x:2"):
        service.ask("/memory/chat/append", {"key": name, "messages": "x"})
    by_service = service.ask("/memory/chat/delete", {"key": "x:*"}).data
    for name in ("x:1", "x:2"):
        service.ask("/memory/chat/append", {"key": name, "messages": "x"})
    assert read("memory", "delete", "chat", "x:*", "--yes", *where) == by_service
    assert read("memory", "stats", "chat", "user:*", *where) == service.ask("/memory/chat/stats", key="user:*").data


def test_many_clients_and_another_service_lose_nothing(service: Served, config: Path) -> None:
    """Appends of many clients to two services over one store are all kept, whole and once."""
    with served(config) as other, ThreadPoolExecutor(8) as clients:
        asked = [
            clients.submit(
                one.ask,
                "/memory/chat/append",
                {"key": "k", "messages": [f"{i} asks", {"role": "assistant", "content": f"{i} is answered"}]},
                {"Idempotency-Key": f"request-{i}"},
            )
            for i in range(20)
            for one in (service, other)  # the second asks for the same again
        ]
        assert {answer.result().status for answer in asked} == {200}
        entries = service.ask("/memory/chat/read", key="k", limit=1000).data["messages"]

    texts = [entry["content"] for entry in entries]
    assert sorted(texts[::2]) == sorted(f"{i} asks" for i in range(20))
    assert [text.replace("is answered", "asks") for text in texts[1::2]] == texts[::2]


def test_a_client_that_disconnects_is_no_fault(config: Path, tmp_path: Path) -> None:
    """A client that goes away in the middle of its request stores nothing, and the log has no fault."""
    log = tmp_path / "log"
    with served(config, "--access-log", log=log) as service:
        where = urlsplit(service.address)
        with socket.create_connection((where.hostname, where.port)) as connection:
            head = "POST /api/v0/memory/chat/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"key": "k", "messages": "x"'.encode())
        while "disconnected" not in service.ask("/metrics").body:
            assert service.process.poll() is None
        assert service.ask("/memory/chat/read", key="k").data["total_count"] == 0
        service.stop()

    assert "POST append chat 400" in log.read_text()
    assert "fault" not in log.read_text()


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_after_running_requests(config: Path, tmp_path: Path, by: signal.Signals) -> None:
    """A signal ends the service with status 0, after the requests under way; what they added is kept."""
    log = tmp_path / "log"
    with served(config, "--access-log", log=log) as service:
        answers: list[int] = []

        def append() -> None:
            for i in range(1000):
                try:
                    answers.append(service.ask("/memory/chat/append", {"key": "user:ann", "messages": f"{i}"}).status)
                except OSError:  # the service has stopped listening
                    return
                if len(answers) == 3:
                    reached.set()

        reached = threading.Event()
        client = threading.Thread(target=append)
        client.start()
        assert reached.wait(120)
        assert service.stop(by) == 0
        client.join()

    assert set(answers) == {200}
    with Resources.load(config) as resources:
        assert resources.keyed("chat").read("user:ann").total >= len(answers)
    lines = log.read_text()
    assert "POST append chat 200" in lines
    assert "user:ann" not in lines


class Sent:
    """A request to `serve` on this event loop, under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, address: str, path: str, body: object) -> Sent:
        """Send a POST to a path under the base."""
        where, content = urlsplit(address), json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        head = f"POST /api/v0{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return cls(reader, writer)

    async def answer(self) -> tuple[int, Any]:
        """Return the status and the parsed body of the answer."""
        head, _, body = (await self._reader.read()).partition(b"\r\n\r\n")
        self._writer.close()
        return int(head.split()[1]), json.loads(body)


@pytest.mark.anyio
@pytest.mark.parametrize("grace", [0, 10])
async def test_cancelling_serve_answers_running_requests(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, grace: int
) -> None:
    """Once the task of `serve` is cancelled, its requests have been answered, in the one form also if they took too
    long, and logged; it no longer listens, and the event loop is as it was."""
    caplog.set_level(logging.INFO, "palimpsest.service")
    monkeypatch.setattr(running, "GRACE_SECONDS", grace)
    begun, may_end = asyncio.Event(), asyncio.Event()
    append = AsyncDeclaredMemory.append

    async def slow(self: AsyncDeclaredMemory, key: str, payload: object, **options: Any) -> int:
        begun.set()
        await may_end.wait()
        return await append(self, key, payload, **options)

    monkeypatch.setattr(AsyncDeclaredMemory, "append", slow)
    addresses = asyncio.Queue[str]()
    serving = asyncio.create_task(serve(config, port=0, ready=lambda address, _: addresses.put_nowait(address)))
    address = await addresses.get()
    sent = await Sent.to(address, "/memory/chat/append", {"key": "k", "messages": "x"})
    await begun.wait()
    serving.cancel()
    if grace:
        may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    status, body = await sent.answer()

    assert (status, body["status"]) == ((200, 200) if grace else (503, 503))
    assert grace or (body["error"]["code"], body["error"]["details"]) == ("cancelled", {"written": None})
    lines = [record.getMessage() for record in caplog.records if record.name == "palimpsest.service"]
    assert [line.split()[:4] for line in lines] == [["POST", "append", "chat", str(status)]]
    with listening("127.0.0.1", urlsplit(address).port or 0) as again:
        server = await asyncio.start_server(lambda *_: None, sock=again)
        server.close()
    with pytest.raises(OSError):  # noqa: PT011 (which one depends on the system)
        await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
    async with AsyncResources.load(config) as resources:
        assert (await resources.keyed("chat").read("k")).total == bool(grace)


def test_a_token_comes_from_the_environment_or_a_file(config: Path, tmp_path: Path) -> None:
    """The token is in PALIMPSEST_SERVICE_TOKEN, or in a file, which takes precedence; no process list shows it."""
    right = {"Authorization": f"Bearer {TOKEN}"}
    with served(config, environ={"PALIMPSEST_SERVICE_TOKEN": f" {TOKEN}\n"}) as service:
        assert service.ask("/memory/health").code == (401, "unauthorized")
        assert service.ask("/memory/health", None, right).status == 200
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    environ = {"PALIMPSEST_SERVICE_TOKEN": "another token of the tests"}
    with served(config, "--token-file", str(tmp_path / "token"), "--host", ANYWHERE, environ=environ) as service:
        port = service.address.rpartition(":")[2]
        local = Served(f"http://127.0.0.1:{port}", service.process)
        assert local.ask("/memory/health", None, {"Authorization": "Bearer another token of the tests"}).status == 401
        assert local.ask("/memory/health", None, right).status == 200


@pytest.mark.parametrize("empty", ["", " \n"])
def test_a_token_that_is_empty_is_refused(config: Path, empty: str) -> None:
    """A variable for the token that holds none is refused: the service would be open to every program here."""
    done = start("serve", "--config", str(config), "--port", "0", env={**os.environ, "PALIMPSEST_SERVICE_TOKEN": empty})

    assert (done.returncode, done.stdout) == (2, "")
    assert "PALIMPSEST_SERVICE_TOKEN is empty" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--host", ANYWHERE), 2, "give a token"),
        pytest.param(("--host", "no.such.host.invalid"), 2, "give a token", marks=pytest.mark.wide),
        pytest.param(("--host", "no..host", "--token-file", "right"), 2, "can listen at", marks=pytest.mark.wide),
        (("--host", "no.such.host.invalid", "--token-file", "right"), 2, "can listen at"),
        (("--port", "70000"), 2, "70000"),
        (("--read-only", "caht"), 2, "did you mean 'chat'"),
        (("--token-file", "empty"), 2, "empty is empty"),
        pytest.param(("--token-file", "short"), 2, "at least 16", marks=pytest.mark.wide),
        pytest.param(("--token-file", "nothing"), 2, "nothing", marks=pytest.mark.wide),
        (("--config", "no.yaml"), 2, "no.yaml"),
        pytest.param(("--config", "nothing.yaml"), 2, "nothing.yaml", marks=pytest.mark.wide),
        pytest.param(("--config", "folder"), 3, "declares a memory", marks=pytest.mark.wide),
        (("--config", "broken.yaml"), 2, "max_token"),
    ],
)
def test_an_impossible_start_is_refused_with_the_reason(
    config: Path, arguments: tuple[str, ...], status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that cannot start says why, and exits with the status of that."""
    monkeypatch.chdir(config.parent)
    Path("folder").mkdir()
    Path("empty").write_text("\n")
    Path("short").write_text("secret")
    Path("right").write_text(TOKEN)
    Path("nothing.yaml").write_text("a: 1\n")
    Path("broken.yaml").write_text(CHAT.replace("max_tokens", "max_token"))
    where = () if "--config" in arguments else ("--config", "chat.yaml")
    done = start("serve", *where, "--port", "0", *arguments)

    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_small_answers_are_sent_at_once() -> None:
    """The socket says that it speaks TCP, so that asyncio does not hold small packets back for 40 milliseconds."""
    with listening("127.0.0.1", 0) as one:
        assert one.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_named(config: Path) -> None:
    """A port that another program has is an error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = start("serve", "--config", str(config), "--port", port)

    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "in use" in done.stderr


def test_without_the_extra_the_command_says_what_to_install(config: Path, tmp_path: Path) -> None:
    """Where the extra `service` is not installed, `serve` says how to install it, and `--help` works."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "starlette.py").write_text("raise ModuleNotFoundError('no starlette', name='starlette')\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "none"), os.environ.get("PYTHONPATH", "")])}
    done = start("serve", "--config", str(config), env=environ)
    shown = start("serve", "--help", env=environ)

    assert done.returncode == 1
    assert "pip install 'palimpsest-memory[service]'" in done.stderr
    assert (shown.returncode, "--token-file" in shown.stdout) == (0, True)


REDIS: dict[str, Any] = {
    "resource": "memory",
    "id": "chat",
    "type": "token_based",
    "max_tokens": 1000,
    "flushing": {"type": "simple_fifo"},
}


@pytest.mark.anyio
async def test_a_stopped_store_answers_503_until_it_is_back(tmp_path: Path) -> None:
    """While the store is down, requests answer 503 and say when to try again; once it is back, the same service works,
    with all that was acknowledged."""
    with started("redis", tmp_path) as server:
        store = {"type": "redis", "url": server.address, "ttl": "1h"}
        breaker = {"circuit_breaker": {"enabled": True, "timeout": "2s", "max_failures": 2, "reset_timeout": "200ms"}}
        async with called({**REDIS, "persistence": {**store, **breaker}}) as service:
            body = {"key": "k", "messages": "hello"}
            assert (await service.ask("/memory/chat/append", body)).status == 200
            server.kill()
            for _ in range(3):
                for path, asked, query in (
                    ("/memory/chat/append", body, {}),
                    ("/memory/chat/read", None, {"key": "k"}),
                    ("/memory/chat/stats", None, {"key": "k"}),
                    ("/memory/chat/clear", {"key": "k", "confirm": True}, {}),
                ):
                    refused = await service.ask(path, asked, **query)
                    assert refused.code == (503, "store_unavailable")
                    assert int(refused.headers["retry-after"]) > 0
                    assert refused.body["error"]["details"]["written"] in {False, None}
            unhealthy = await service.ask("/memory/health")
            assert unhealthy.code == (503, "unhealthy")
            assert unhealthy.body["error"]["details"]["checks"][0]["healthy"] is False
            server.start()
            answer = await service.ask("/memory/health")
            while answer.status == 503:  # the breaker lets one try through after its pause
                answer = await service.ask("/memory/health")
            assert answer.data["healthy"] is True
            assert (await service.ask("/memory/chat/read", key="k")).data["total_count"] == 1
