"""A process that has run out of file descriptors or disk space: `exhausted_process.py RESOURCE ADDRESS ENCRYPTED`.

RESOURCE is "descriptors" or "room". It prints, as JSON, the outcome of every verb: "ok", the name of an error of the
library, or the traceback of any other error; and how many acknowledged entries are lost.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from palimpsest import Memory, PalimpsestError, Session

GUARD: dict[str, Any] = {}
"""The options of the store."""

READS: dict[str, Callable[[Memory, Session], object]] = {
    "stats": lambda m, s: s.stats(),
    "context": lambda m, s: s.context(),
    "another context": lambda m, s: s.context(format="text", max_tokens=2000),
    "dry run": lambda m, s: s.context(dry_run=True),
    "then": lambda m, s: s.context(at=5),
    "entries": lambda m, s: s.entries(),
    "entry": lambda m, s: s.entry(3),
    "verify": lambda m, s: s.verify(),
    "export": lambda m, s: s.export(),
    "history": lambda m, s: s.history(),
    "active": lambda m, s: s.active_entries(),
    "interactions": lambda m, s: s.interactions(),
    "summaries": lambda m, s: s.summaries(),
    "sessions": lambda m, s: m.sessions(),
    "info": lambda m, s: m.info("s"),
    "export to": lambda m, s: s.export_to(io.BytesIO()),
    "compaction": lambda m, s: s.compact("summarizer", dry_run=True),
    "scan": lambda m, s: m.scan("default"),
    "forget": lambda m, s: m.forget(session="s", dry_run=True),
}
WRITES: dict[str, Callable[[Memory, Session], object]] = {
    "add": lambda m, s: s.add_user_message("x" * 50),
    "large": lambda m, s: s.add_user_message("x" * 200_000),
    "new": lambda m, s: m.session("new").add_user_message("x"),
    "fork": lambda m, s: s.fork(),
    "erase": lambda m, s: s.erase([s.entries()[0].seq]),
    "compact": lambda m, s: s.compact("summarizer"),
    "replace": lambda m, s: s.replace([{"role": "user", "content": "x"}]),
    "rewind": lambda m, s: s.rewind(2),
    "sweep": lambda m, s: m.sweep(),
    "import": lambda m, s: m.import_session(s.export(), session_id="copy", on_conflict="replace"),
    "turn": lambda m, s: s.turn().__enter__(),
    "delete": lambda m, s: m.delete_session("new"),
    "open": lambda m, s: Memory.open(m.store.url, **GUARD).close(),
}


@contextlib.contextmanager
def without_descriptors(spare: int) -> Iterator[None]:
    """Let at most `spare` more files be opened in the block."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limit[1]))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(spare):
        os.close(held.pop())
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@contextlib.contextmanager
def without_room(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes in the block."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def outcome(call: Callable[[Memory, Session], object], memory: Memory) -> str:
    """Call a verb and return its outcome."""
    try:
        call(memory, memory.session("s", max_tokens=3000))
    except PalimpsestError as fault:
        return type(fault).__name__
    except Exception:  # noqa: BLE001 (the test shows every error)
        return traceback.format_exc()
    return "ok"


def main(what: str, address: str, encrypted: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    GUARD.update({"encryption": {"k": "11" * 32}} if encrypted == "True" else {})
    with Memory.open(address, synchronous="NORMAL", **GUARD) as memory:
        session = memory.session("s", max_tokens=3000)
        for i in range(12):
            session.add_user_message(f"hello {i} " * 30)
            session.add_tool_call("f", {}, call_id=f"c{i}")
            session.add_tool_result("f", "out " * 20, call_id=f"c{i}")
            session.add_assistant_message("fine " * 40)
    outcomes: dict[str, dict[str, str]] = {}
    with Memory.open(address, synchronous="NORMAL", **GUARD) as memory:
        acknowledged = {entry.id for entry in memory.session("s").entries()}
        for few in (0, 2) if what == "descriptors" else (0, 4096):
            with without_descriptors(few) if what == "descriptors" else without_room(few):
                verbs = {**READS, **WRITES} if what == "descriptors" else {**READS, "large": WRITES["large"]}
                outcomes[str(few)] = {name: outcome(call, memory) for name, call in verbs.items()}
            memory.session("s").add_user_message("there is some again")
            assert memory.session("s").verify().ok
        kept = {entry.id for entry in memory.session("s").entries(rewound=True)}
    sys.stdout.write(json.dumps({"told": outcomes, "lost": len(acknowledged - kept)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
