"""Measure what the service adds to an operation on a declared memory, over the same call of the library.

    python bench/service.py [--runs 3] [--calls 200] [--json] [--gate]

One request at a time, over a connection of this machine that stays open, to the service in a process of its own. The
library does the same work in this process, in turn. Needs the extras `config` and `service`.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from measure import Figure, arguments, over_runs, report, scratch

from palimpsest.resources import DeclaredMemory, Resources

DECLARED = {
    "resource": "memory",
    "id": "chat",
    "type": "token_based",
    "max_tokens": 200_000,
    "auto_compact": "off",
    "flushing": {"type": "simple_fifo"},
}
MESSAGES = [
    {"role": "user", "content": "Where is order 7? " * 10},
    {"role": "assistant", "content": "It left the warehouse this morning. " * 20},
]
LONG = 1_000
"""Messages of the long key."""


@contextmanager
def served(config: Path) -> Iterator[http.client.HTTPConnection]:
    """Serve the memories in a new process, and yield a connection to it."""
    command = [sys.executable, "-m", "palimpsest.cli", "serve", "--config", str(config), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        where = urlsplit(json.loads(process.stdout.readline())["address"])
        connection = http.client.HTTPConnection(where.hostname or "", where.port)
        try:
            yield connection
        finally:
            connection.close()
            process.terminate()


def ask(connection: http.client.HTTPConnection, path: str, body: object = None) -> None:
    """Send a request and read its answer."""
    content = None if body is None else json.dumps(body).encode()
    method = "GET" if content is None else "POST"
    connection.request(method, f"/api/v0/memory/chat/{path}", content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body


def run(connection: http.client.HTTPConnection, memory: DeclaredMemory, calls: int) -> dict[str, float]:
    """Return medians in milliseconds of each operation, by the service and by the library, in turn."""
    pairs = {
        "append": (
            lambda: ask(connection, "append", {"key": "short", "messages": MESSAGES}),
            lambda: memory.append("plain", MESSAGES),
        ),
        "append, long": (
            lambda: ask(connection, "append", {"key": "long", "messages": MESSAGES[0]}),
            lambda: memory.append("also_long", MESSAGES[0]),
        ),
        "read": (lambda: ask(connection, "read?key=long&limit=50"), lambda: memory.read("also_long", limit=50)),
        "stats": (lambda: ask(connection, "stats?key=long"), lambda: memory.stats("also_long")),
    }
    values: dict[str, float] = {}
    for name, both in pairs.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(calls):
            for side, act in zip(times, both, strict=True):
                begin = time.perf_counter()
                act()
                side.append(time.perf_counter() - begin)
        values |= {f"{name}: service": median(times[0]) * 1e3, f"{name}: library": median(times[1]) * 1e3}
    return values


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", calls=200)
    with scratch(given.disk) as folder:
        config = folder / "chat.json"
        config.write_text(json.dumps({**DECLARED, "persistence": {"type": "sqlite", "path": str(folder / "chat.db")}}))
        with Resources.load(config) as resources, served(config) as connection:
            memory = resources.keyed("chat")
            for key in ("long", "also_long"):
                for _ in range(LONG // 100):
                    memory.append(key, [MESSAGES[0]] * 100)
            run(connection, memory, 5)
            m = over_runs(given.runs, lambda: run(connection, memory, given.calls))
    figures = [
        Figure(
            f"{name}, in calls of the library",
            m[f"{name}: service"] / m[f"{name}: library"],
            None,
            f"{m[f'{name}: service']:.2f} / {m[f'{name}: library']:.2f} ms",
        )
        for name in ("append", "append, long", "read", "stats")
    ]
    note = f"Wall time, one request at a time. A long key has {LONG:,} messages and more."
    return report("The service", figures, given, note)


if __name__ == "__main__":
    sys.exit(main())
