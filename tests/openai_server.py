"""A server on the loopback interface that speaks OpenAI's chat completions, and fails as scripted.

Each request is answered by the next of the plays that the server was given, or with "An answer." when there are none
left. It records what it was asked.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

PATIENCE = 300.0
"""Seconds after which a held answer is given up; a test that takes so long has failed."""


class Asked(NamedTuple):
    """A request that the server has received. Names of headers are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class Exchange(BaseHTTPRequestHandler):
    """One connection. A play, a function of it, answers each request."""

    protocol_version = "HTTP/1.1"
    server: _Server
    asked: Asked

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return a constant date: tests compare answers of clients, which may hold the headers."""
        return "Thu, 01 Jan 1970 00:00:00 GMT"

    def do_POST(self) -> None:
        """Record the request and let the next play answer it."""
        text = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked = Asked(self.path, headers, json.loads(text))
        self.server.owner.begin(self)

    def reply(self, status: int, body: bytes, headers: Mapping[str, str], kind: str = "application/json") -> None:
        """Send a whole response."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def open_stream(self) -> None:
        """Send the head of a stream."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_event(self, data: str) -> None:
        """Send one event of a stream."""
        event = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.flush()

    def end_stream(self) -> None:
        """Send the end of a complete stream."""
        self.send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Drop the connection."""
        self.close_connection = True

    def wait_for_hangup(self) -> None:
        """Wait until the client has closed the connection."""
        self.connection.settimeout(PATIENCE)
        try:
            gone = not self.connection.recv(1)
        except ConnectionError:
            gone = True
        if gone:
            self.server.owner.hung_up.set()
        self.cut()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


Play = Callable[[Exchange], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    owner: OpenAIServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client has closed its connection."""


class OpenAIServer:
    """`with OpenAIServer(fails(503), says("Done.")) as server:` and its `url`.

    `asked` are the requests, oldest first; `arrived` is released once for each; `hung_up` is set when a client has
    gone for which a play waited.
    """

    def __init__(self, *plays: Play) -> None:
        self.plays = deque(plays)
        self.asked: list[Asked] = []
        self.arrived = threading.Semaphore(0)
        self.hung_up = threading.Event()
        self._server = _Server(("127.0.0.1", 0), Exchange)
        self._server.owner = self

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def begin(self, exchange: Exchange) -> None:
        """Answer a request."""
        self.asked.append(exchange.asked)
        self.arrived.release()
        play = self.plays.popleft() if self.plays else says("An answer.")
        if exchange.asked.path != "/v1/chat/completions":
            play = fails(404, f"there is no {exchange.asked.path}")
        play(exchange)


def says(
    text: str,
    *,
    input_tokens: int = 20,
    output_tokens: int = 5,
    cached_tokens: int = 0,
    usage: bool = True,
    finish: str = "stop",
    when: threading.Event | None = None,
) -> Play:
    """Answer with a text, whole or as a stream, as the request asks; wait for `when` before, if given."""
    reported = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }

    def play(exchange: Exchange) -> None:
        if when is not None:
            when.wait(PATIENCE)
        if not exchange.asked.body.get("stream"):
            choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
            body = _completion("chat.completion", [choice], reported if usage else None)
            exchange.reply(200, json.dumps(body).encode(), {})
            return
        exchange.open_stream()
        for event in _events(text):
            exchange.send_event(event)
        exchange.send_event(_chunk({}, finish))
        if usage:
            exchange.send_event(json.dumps(_completion("chat.completion.chunk", [], reported)))
        exchange.end_stream()

    return play


def fails(status: int, message: str = "not today", code: str | None = None, **headers: str) -> Play:
    """Answer with an error. Names of headers are written with underscores."""
    body = json.dumps({"error": {"message": message, "type": "error", "code": code}}).encode()
    return lambda exchange: exchange.reply(status, body, {name.replace("_", "-"): v for name, v in headers.items()})


def sends(body: str, kind: str = "application/json") -> Play:
    """Answer with status 200 and any body at all."""
    return lambda exchange: exchange.reply(200, body.encode(), {}, kind)


def cuts() -> Play:
    """Drop the connection before the first byte of an answer."""
    return Exchange.cut


def breaks_off(text: str) -> Play:
    """Begin a stream, and drop the connection after this text."""

    def play(exchange: Exchange) -> None:
        exchange.open_stream()
        for event in _events(text):
            exchange.send_event(event)
        exchange.cut()

    return play


def ends_early(text: str) -> Play:
    """Begin a stream, and end the response properly but without the final events."""

    def play(exchange: Exchange) -> None:
        exchange.open_stream()
        for event in _events(text):
            exchange.send_event(event)
        exchange.end_stream()

    return play


def stalls(text: str = "") -> Play:
    """Send nothing, or in a stream nothing after this text, until the client closes the connection."""

    def play(exchange: Exchange) -> None:
        if text:
            exchange.open_stream()
            for event in _events(text):
                exchange.send_event(event)
        exchange.wait_for_hangup()

    return play


def _completion(kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
    made = {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "a-model", "choices": choices}
    return made if usage is None else {**made, "usage": usage}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps(_completion("chat.completion.chunk", [choice], None))


def _events(text: str) -> Iterator[str]:
    """Return the pieces of a text in a stream: its words."""
    yield _chunk({"role": "assistant", "content": ""})
    for number, word in enumerate(text.split(" ")):
        yield _chunk({"content": word if number == 0 else f" {word}"})
