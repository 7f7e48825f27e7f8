"""Helpers that start `writer.py` as a process, read what it prints, and check the files that it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import pytest

from palimpsest import AsyncMemory, Entry, Memory
from palimpsest.stores.file.lines import is_sound
from writer import SESSION, turn

SCRIPT = Path(__file__).with_name("writer.py")
PATIENCE = 300.0
"""Seconds after which a process or a thread counts as hanging."""


class Process:
    """A running `writer.py`. A thread reads its output, so that a kill loses no line that the process has printed."""

    def __init__(self, mode: str, path: Path | str, *arguments: object, script: Path = SCRIPT, **options: Any) -> None:
        command = [sys.executable, str(script), mode, str(path), *map(str, arguments)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._wait()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    def hear(self) -> Any:
        """Return the next JSON value that the process prints, or None when it has ended."""
        line = self._lines.get(timeout=PATIENCE)
        if line is None:
            self._lines.put(None)  # for the next call
        return json.loads(line) if line is not None and line.endswith("\n") else None

    def tell(self, line: str = "go") -> None:
        """Send a line, which lets a waiting process go on."""
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def kill(self) -> list[Any]:
        """Kill the process with SIGKILL and return everything it had printed that was not yet read."""
        self._child.send_signal(signal.SIGKILL)
        return self.end(expect=-signal.SIGKILL)

    def end(self, expect: int = 0) -> list[Any]:
        """Wait until the process ends, check its exit code, and return everything it printed that was not yet read."""
        try:
            self._wait()
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._wait()
            raise
        assert self._child.returncode == expect, f"ended with {self._child.returncode}"
        values: list[Any] = []
        while (value := self.hear()) is not None:
            values.append(value)
        return values

    def _wait(self) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process may end before it has read everything
            self._child.stdin.close()
        self._child.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)


def run(mode: str, path: Path | str, *arguments: object, **options: Any) -> list[Any]:
    """Run `writer.py` to its end and return what it printed."""
    return Process(mode, path, *arguments, **options).end()


def together(processes: Iterable[Process]) -> list[list[Any]]:
    """Let processes that are ready go on at the same moment; return what each printed until its end."""
    processes = list(processes)
    for process in processes:
        assert process.hear() == "ready"
    for process in processes:
        process.tell()
    return [process.end() for process in processes]


def opened_at_once(address: str, count: int) -> None:
    """Open the same store `count` times at once on one event loop; each memory adds a session to it."""

    async def open_and_add(number: int) -> None:
        async with AsyncMemory.open(address) as memory:
            await memory.session(f"s{number}").add_user_message("x")

    async def all_of_them() -> None:
        await asyncio.gather(*(open_and_add(number) for number in range(count)))

    asyncio.run(all_of_them())


def at_once(work: Callable[[int], object], count: int) -> None:
    """Run `work` in `count` threads that begin together, each with its number; raise the first error of any of them."""
    barrier, faults = threading.Barrier(count), list[BaseException]()

    def run_one(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            work(number)
        except BaseException as fault:  # noqa: BLE001 (raised again below, in the test's own thread)
            faults.append(fault)

    threads = [threading.Thread(target=run_one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    if faults:
        raise faults[0]


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until the condition holds; fail after `patience` seconds. For conditions that nothing announces."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


def integrity(path: Path | str) -> str:
    """Return "ok", or what is broken: asks SQLite about a database file, and a JSON parser about a folder of files."""
    if str(path).startswith("file:"):
        return lines_integrity(folder_of(str(path)))
    db = sqlite3.connect(str(path).removeprefix("sqlite:///"))
    try:
        result: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        return result
    finally:
        db.close()


def lines_integrity(folder: Path) -> str:
    """Check that each complete line of each log is a JSON object as it was written, and that times do not decrease."""
    for log in folder.rglob("*.jsonl"):
        first, *lines = log.read_bytes().splitlines(keepends=True) or [b""]
        if not first.endswith(b"\n"):
            continue  # the writer was killed before the first line was complete
        whole = [line for line in lines if line.endswith(b"\n")]  # an incomplete last line was never acknowledged
        if not all(map(is_sound, (first, *whole))):
            return f"{log}: a line is not as it was written"
        times = [json.loads(line)["at"] for line in whole]
        if times != sorted(times):
            return f"{log}: times {times}"
    return "ok"


def folder_of(address: str) -> Path:
    """Return the folder of a store's address `file:///folder`."""
    return Path(address.removeprefix("file://"))


def remains(path: Path | str) -> bytes:
    """Return all bytes of the database and its write-ahead log, or of all files of a folder, ordered by name."""
    if isinstance(path, str):
        files = [file for file in sorted(folder_of(path).rglob("*")) if file.is_file()]
    else:
        files = [path, path.with_name(path.name + "-wal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


def label(entry: Entry) -> str:
    """Return the label of the turn, as given to `writer.turn`, that an entry belongs to."""
    if entry.kind == "tool_call":
        return str(json.loads(entry.text)["at"])
    return entry.text.split()[-1] if entry.text else ""


def whole_turns(entries: list[Entry], size: int) -> Counter[str]:
    """Return how often each turn is in the log, after checking that each batch is complete, contiguous and linked."""
    assert [entry.seq for entry in entries] == list(range(entries[0].seq, entries[-1].seq + 1)) if entries else True
    assert len({entry.id for entry in entries}) == len(entries)
    counts: Counter[str] = Counter()
    for start in range(0, len(entries), size):
        batch = entries[start : start + size]
        human, left, right, left_result, right_result, answer = batch
        assert {entry.revision for entry in batch} == {human.revision}
        assert {label(entry) for entry in batch if not entry.erased} == {label(answer)}
        assert [entry.kind for entry in batch] == ["message", *["tool_call"] * 2, *["tool_result"] * 2, "message"]
        assert {entry.turn for entry in batch} == {human.seq}
        assert left.group == right.group == left_result.group == right_result.group == left.seq
        assert (left_result.answers, right_result.answers) == (left.seq, right.seq)
        assert not any(entry.late for entry in batch)
        assert answer.group == answer.seq
        counts[label(answer)] += 1
    return counts


def can_be_anybody() -> bool:
    """Whether this process runs as root and so may start children of another user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def filled(path: Path | str, *, turns: int = 3, sessions: tuple[str, ...] = (SESSION,)) -> list[str]:
    """Make a store with some turns in each session; return the texts of the first session."""
    with Memory.open(path) as memory:
        for name in sessions:
            for number in range(turns):
                memory.session(name).add(turn(f"{name}.{number}"))
        return [entry.text for entry in memory.session(sessions[0]).entries()]


def stuff(place: Path) -> Path:
    """Fill the disk to the last byte and return the file that does so."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return ballast


def tried(path: Path | str, how: str) -> dict[str, Any]:
    """Open, read and write in a process of a user without rights; return what each step returned or raised."""
    outcome: dict[str, Any] = run("attempt", path, how)[0]
    if outcome.get("error") == "PermissionError":
        pytest.skip(f"no other user can be had here: {outcome['text']}")
    return outcome
