"""Processes that scan a store: killed at each step, or beside processes that write.

scan_process.py die FOLDER NAME EVERY  for every so many steps, scan a copy of the folder and be killed at that step
scan_process.py write ADDRESS NUMBER   after a line has come in, append so many entries that the policy redacts
scan_process.py scan ADDRESS           scan again and again until a line comes in
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from marked_sessions import POLICY, session_of
from palimpsest import Memory
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Runner
from palimpsest.stores import STORES, Store
from palimpsest.stores.backend import Backend
from palimpsest.stores.engine.changing import Rewrite
from sqlitestore import connection

EVERYTHING: Mapping[str, Any] = {**POLICY, "non_persistable_message_types": ["health"]}


class Steps:
    """Counts steps, and kills this process at one of them."""

    def __init__(self, last: int) -> None:
        self._remaining = last

    def step(self) -> None:
        """Count a step, or kill this process if it is the last."""
        self._remaining -= 1
        if self._remaining < 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A rewrite with a step at each head, and at each entry and record that changes."""

    def __init__(self, rewrite: Rewrite, steps: Steps) -> None:
        self._rewrite, self._steps = rewrite, steps

    def head(self, head: Head) -> Head:
        self._steps.step()
        return self._rewrite.head(head)

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        self._steps.step()
        return self._rewrite.branch(key, head, seqs)

    def entry(self, entry: Entry) -> Entry:
        new = self._rewrite.entry(entry)
        if new is not entry:
            self._steps.step()
        return new

    def record(self, record: Record) -> Record:
        new = self._rewrite.record(record)
        if new is not record:
            self._steps.step()
        return new


def mortal(kind: str, steps: Steps) -> None:
    """Register the scheme `mortal:`: a store with steps before, within and after each of its changes."""

    original = Store.rewrite

    def dying(store: Store, key: SessionKey, rewrite: Rewrite, **options: Any) -> Any:
        return original(store, key, Dying(rewrite, steps), **options)

    def opened(url: str, runner: Runner, **options: Any) -> Backend:
        backend: Any = STORES.find(kind)({"sqlite": "sqlite:///", "file": "file://"}[kind] + url, runner, **options)
        if kind == "sqlite":
            traced = connection(Store(backend))
            traced.set_trace_callback(lambda sql: steps.step() if sql.startswith(INSIDE) else None)
        else:
            os.replace, os.write = before(os.replace, steps), before(os.write, steps)
        backend.scrub = around(backend.scrub, steps)
        opened_backend: Backend = backend
        return opened_backend

    patched: Any = Store
    patched.rewrite, patched.commit = around(dying, steps), around(Store.commit, steps)
    STORES.register("mortal", lambda url, runner, **options: opened(url.removeprefix("mortal:"), runner, **options))


def around(verb: Any, steps: Steps) -> Any:
    """Return the coroutine function with a step before and after it."""

    async def stepped(*arguments: Any, **options: Any) -> Any:
        steps.step()
        result = await verb(*arguments, **options)
        steps.step()
        return result

    return stepped


INSIDE = ("INSERT OR REPLACE INTO entry", "INSERT OR REPLACE INTO other", "COMMIT", "VACUUM", "PRAGMA wal_checkpoint")
"""The beginnings of SQL statements that count as steps."""


def before(function: Any, steps: Steps) -> Any:
    """Return the function with a step before it."""

    def stepped(*arguments: Any) -> Any:
        steps.step()
        return function(*arguments)

    return stepped


def die(kind: str, pristine: str, name: str, every: int) -> None:
    """For every so many steps, scan a copy of the folder in a child that is killed at that step; print each copy.

    The last child, which has fewer steps, is not killed.
    """
    Memory.open("memory://").session("s", model="gpt-4o").options.counter.count("loaded once, for all children")
    for last in range(0, 1_000, every):
        copy = f"{pristine}-{last}"
        shutil.copytree(pristine, copy)
        child = os.fork()
        if child == 0:
            mortal(kind, Steps(last))
            with Memory.open(f"mortal:{copy}/{name}", synchronous="NORMAL") as memory:
                memory.scan(EVERYTHING, apply=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say({"folder": copy, "killed": os.WIFSIGNALED(status)})
        if not os.WIFSIGNALED(status):
            return


def write(address: str, number: int) -> None:
    """Append entries that the policy redacts; check that all contexts of an epoch begin with the same messages."""
    by_epoch: dict[int, list[dict[str, Any]]] = {}
    with Memory.open(address, synchronous="NORMAL") as memory:
        session = session_of(memory)
        say("ready")
        sys.stdin.readline()
        for i in range(number):
            session.add_user_message(f"zq100secret {i}")
            context = session.context()
            if context.epoch is not None:
                earlier = by_epoch.get(context.epoch, [])
                assert context.messages[: len(earlier)] == earlier, f"epoch {context.epoch} has two beginnings"
                by_epoch[context.epoch] = context.messages


def scan(address: str) -> None:
    """Scan again and again until a line comes in; print how much was redacted."""
    import select

    with Memory.open(address, synchronous="NORMAL") as memory:
        say("ready")
        sys.stdin.readline()
        redacted = 0
        ended = False
        while (
            not ended
        ):  # scans at least once, even if the line has come in already, for the entries from before the writers
            ended = bool(select.select([sys.stdin], [], [], 0)[0])
            redacted += memory.scan(POLICY, apply=True).redacted
        say(redacted)


def say(value: object) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    if mode == "die":
        folder = Path(arguments[0])
        die("sqlite" if (folder / "a.db").exists() else "file", str(folder), arguments[1], int(arguments[2]))
    elif mode == "write":
        write(arguments[0], int(arguments[1]))
    else:
        scan(arguments[0])
