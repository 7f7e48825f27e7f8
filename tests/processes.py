"""Starting `writer.py` as a process, reading what it says, and checking the files that it leaves behind."""

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
"""Seconds after which a process that does not end is taken for hanging."""


class Process:
    """A running `writer.py`. A thread reads what it says, so that no line is lost between hearing and ending."""

    def __init__(self, mode: str, path: Path | str, *arguments: object, script: Path = SCRIPT, **options: Any) -> None:
        command = [sys.executable, str(script), mode, str(path), *map(str, arguments)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as said:
            for line in said:
                self._said.put(line)
        self._said.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._wait()

    @property
    def pid(self) -> int:
        """Its id."""
        return self._child.pid

    def hear(self) -> Any:
        """Return the next thing that it says, None at its end."""
        line = self._said.get(timeout=PATIENCE)
        if line is None:
            self._said.put(None)
        return json.loads(line) if line is not None and line.endswith("\n") else None

    def tell(self, line: str = "go") -> None:
        """Let it go on."""
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def kill(self) -> list[Any]:
        """Kill it with a signal that it cannot catch, and return what it had said and was not heard yet."""
        self._child.send_signal(signal.SIGKILL)
        return self.end(expect=-signal.SIGKILL)

    def end(self, expect: int = 0) -> list[Any]:
        """Wait for its end and return what it had said and was not heard yet."""
        try:
            self._wait()
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._wait()
            raise
        assert self._child.returncode == expect, f"ended with {self._child.returncode}"
        said: list[Any] = []
        while (thing := self.hear()) is not None:
            said.append(thing)
        return said

    def _wait(self) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may have ended before it was told all
            self._child.stdin.close()
        self._child.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)


def run(mode: str, path: Path | str, *arguments: object, **options: Any) -> list[Any]:
    """Run `writer.py` to its end and return what it said."""
    return Process(mode, path, *arguments, **options).end()


def together(processes: Iterable[Process]) -> list[list[Any]]:
    """Let processes that are ready go on at once; return what each said until its end."""
    processes = list(processes)
    for process in processes:
        assert process.hear() == "ready"
    for process in processes:
        process.tell()
    return [process.end() for process in processes]


def opened_at_once(address: str, count: int) -> None:
    """Let so many memories open one store at once in a loop, each of which adds a session to it."""

    async def one(number: int) -> None:
        async with AsyncMemory.open(address) as memory:
            await memory.session(f"s{number}").add_user_message("x")

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(count)))

    asyncio.run(all_of_them())


def at_once(work: Callable[[int], object], count: int) -> None:
    """Run `work` in so many threads, each given its number, that begin together; what one of them raises is raised."""
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
    """Wait until something is so of which nobody tells, at most so many seconds."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


def integrity(path: Path | str) -> str:
    """What SQLite itself says about a file, or a JSON parser about a folder of files: "ok", or what is broken."""
    if str(path).startswith("file:"):
        return lines_integrity(folder_of(str(path)))
    db = sqlite3.connect(str(path).removeprefix("sqlite:///"))
    try:
        found: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        return found
    finally:
        db.close()


def lines_integrity(folder: Path) -> str:
    """Whether every whole line of every log is a JSON object as it was written, and times do not fall."""
    for log in folder.rglob("*.jsonl"):
        first, *lines = log.read_bytes().splitlines(keepends=True) or [b""]
        if not first.endswith(b"\n"):
            continue  # a kill came before its first line was there
        whole = [line for line in lines if line.endswith(b"\n")]  # what has no end was never acknowledged
        if not all(map(is_sound, (first, *whole))):
            return f"{log}: a line is not as it was written"
        times = [json.loads(line)["at"] for line in whole]
        if times != sorted(times):
            return f"{log}: times {times}"
    return "ok"


def folder_of(address: str) -> Path:
    """The folder of a store's address `file:///folder`."""
    return Path(address.removeprefix("file://"))


def remains(path: Path | str) -> bytes:
    """Every byte of the database file and of its write-ahead log, or of every file of a folder, by its name."""
    if isinstance(path, str):
        files = [file for file in sorted(folder_of(path).rglob("*")) if file.is_file()]
    else:
        files = [path, path.with_name(path.name + "-wal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


def label(entry: Entry) -> str:
    """The label of the turn that an entry of `writer.turn` belongs to."""
    if entry.kind == "tool_call":
        return str(json.loads(entry.text)["at"])
    return entry.text.split()[-1] if entry.text else ""


def whole_turns(entries: list[Entry], size: int) -> Counter[str]:
    """Return how often each turn is in the log, after checking that each batch is whole, in one piece and linked."""
    assert [entry.seq for entry in entries] == list(range(entries[0].seq, entries[-1].seq + 1)) if entries else True
    assert len({entry.id for entry in entries}) == len(entries)
    found: Counter[str] = Counter()
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
        found[label(answer)] += 1
    return found


def can_be_anybody() -> bool:
    """Whether this process may start children of another user."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def filled(path: Path | str, *, turns: int = 3, sessions: tuple[str, ...] = (SESSION,)) -> list[str]:
    """Make a store with some turns in each session and return the texts of the first."""
    with Memory.open(path) as memory:
        for name in sessions:
            for number in range(turns):
                memory.session(name).add(turn(f"{name}.{number}"))
        return [entry.text for entry in memory.session(sessions[0]).entries()]


def stuff(place: Path) -> Path:
    """Fill the disk to the last byte and return the file that does."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return ballast


def tried(path: Path | str, how: str) -> dict[str, Any]:
    """What opening, reading and writing gave or raised in a process of somebody whom permissions bind."""
    outcome: dict[str, Any] = run("attempt", path, how)[0]
    if outcome.get("error") == "PermissionError":
        pytest.skip(f"no other user can be had here: {outcome['text']}")
    return outcome
