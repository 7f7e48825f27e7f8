"""Redacting what is stored, in processes of their own: killed at each step, or beside others who write.

scan_process.py die FOLDER NAME        for each step a copy of the folder, in which a process was killed there
scan_process.py write ADDRESS NUMBER   append so many entries that a new rule would redact, when told to go
scan_process.py scan ADDRESS           redact until it is told to end
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

from marked import POLICY, session_of
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
        self._left = last

    def step(self) -> None:
        """One more step."""
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A rewrite with a step before each value."""

    def __init__(self, how: Rewrite, steps: Steps) -> None:
        self._how, self._steps = how, steps

    def head(self, head: Head) -> Head:
        self._steps.step()
        return self._how.head(head)

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        self._steps.step()
        return self._how.branch(key, head, seqs)

    def entry(self, entry: Entry) -> Entry:
        new = self._how.entry(entry)
        if new is not entry:
            self._steps.step()
        return new

    def record(self, record: Record) -> Record:
        new = self._how.record(record)
        if new is not record:
            self._steps.step()
        return new


def mortal(kind: str, steps: Steps) -> None:
    """Register a store `mortal:` with steps before and after whatever it changes, and inside it."""

    rewrite = Store.rewrite

    def dying(store: Store, key: SessionKey, how: Rewrite, **options: Any) -> Any:
        return rewrite(store, key, Dying(how, steps), **options)

    def opened(url: str, runner: Runner, **options: Any) -> Backend:
        backend: Any = STORES.find(kind)({"sqlite": "sqlite:///", "file": "file://"}[kind] + url, runner, **options)
        if kind == "sqlite":
            traced = connection(Store(backend))
            traced.set_trace_callback(lambda said: steps.step() if said.startswith(INSIDE) else None)
        else:
            os.replace, os.write = before(os.replace, steps), before(os.write, steps)
        backend.scrub = around(backend.scrub, steps)
        made: Backend = backend
        return made

    patched: Any = Store
    patched.rewrite, patched.commit = around(dying, steps), around(Store.commit, steps)
    STORES.register("mortal", lambda url, runner, **options: opened(url.removeprefix("mortal:"), runner, **options))


def around(verb: Any, steps: Steps) -> Any:
    """The verb with a step before it and one after it."""

    async def stepped(*arguments: Any, **options: Any) -> Any:
        steps.step()
        done = await verb(*arguments, **options)
        steps.step()
        return done

    return stepped


INSIDE = ("INSERT OR REPLACE INTO entry", "INSERT OR REPLACE INTO other", "COMMIT", "VACUUM", "PRAGMA wal_checkpoint")
"""How statements of SQLite begin at which something happens."""


def before(done: Any, steps: Steps) -> Any:
    """The function with a step before it."""

    def stepped(*arguments: Any) -> Any:
        steps.step()
        return done(*arguments)

    return stepped


def die(kind: str, pristine: str, name: str, every: int) -> None:
    """Redact a copy of the folder for one of so many steps, and be killed there; say how many there were."""
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
    """Append entries that are to be redacted, and see that no epoch has two contexts that begin otherwise."""
    given: dict[int, list[dict[str, Any]]] = {}
    with Memory.open(address, synchronous="NORMAL") as memory:
        session = session_of(memory)
        say("ready")
        sys.stdin.readline()
        for i in range(number):
            session.add_user_message(f"zq100secret {i}")
            context = session.context()
            if context.epoch is not None:
                before = given.get(context.epoch, [])
                assert context.messages[: len(before)] == before, f"epoch {context.epoch} has two beginnings"
                given[context.epoch] = context.messages


def scan(address: str) -> None:
    """Redact again and again, until told to end."""
    import select

    with Memory.open(address, synchronous="NORMAL") as memory:
        say("ready")
        sys.stdin.readline()
        redacted = 0
        ended = False
        while not ended:  # once at least: what was there before the writers is found by one who is late, too
            ended = bool(select.select([sys.stdin], [], [], 0)[0])
            redacted += memory.scan(POLICY, apply=True).redacted
        say(redacted)


def say(thing: object) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(json.dumps(thing) + "\n")
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
