"""A chaos process, forked by `python chaos_worker.py nursery`, which passes it a `Setting` as JSON.

It works until the round is over or it is killed. SIGINT and SIGALRM raise in the middle of its operations. Now and then
it forks; the child opens its own memory and works for a while or until it is killed.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from chaos_hand import LARGE, JournaledWriter, Strikes, Struck
from chaos_journal import SHARED, Journal
from chaos_nursery import nurse
from chaos_own import WEIGHTS, Writer
from chaos_verbs import SESSIONS
from palimpsest import Memory
from palimpsest.errors import ForkedProcess
from sealed import BOTH, RING

FORKS = 0.01
"""The probability that a process forks before an operation."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for a process.

    `until` is a time of the monotonic clock. `without` names verbs, signals (keys of `chaos.VIOLENCE`) or "fork" to
    leave out.
    """

    url: str
    tenant: str
    seed: str
    writer: str
    folder: str
    until: float
    sealed: bool = False
    without: tuple[str, ...] = ()

    def opened(self, chance: Random, **options: Any) -> Memory:
        """Open a memory with this process's options."""
        if self.sealed:
            options["encryption"] = chance.choice([BOTH, RING])
        return Memory.open(self.url, tenant=self.tenant, synchronous="NORMAL", large_bytes=LARGE, **options)

    @property
    def verbs(self) -> list[str]:
        """The verbs to choose from; keys are changed only in an encrypted store."""
        return [verb for verb in WEIGHTS if verb not in self.without and (self.sealed or verb != "rotate")]


class Worker:
    """The process: its main thread runs all verbs; in half of the processes a second thread appends meanwhile."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._strikes = setting, Strikes()
        self._chance = Random(f"{setting.seed} {setting.writer}")
        self._children = 0

    def run(self) -> None:
        """Work until the round is over."""
        signal.signal(signal.SIGINT, lambda *_: self._strikes.strike(KeyboardInterrupt))
        signal.signal(signal.SIGALRM, lambda *_: self._strikes.strike(Struck))
        setting, has_helper = self._setting, self._chance.random() < 0.5
        with setting.opened(self._chance) as memory:
            helper = threading.Thread(target=self._append_beside, args=(memory,), daemon=True)
            if has_helper:
                helper.start()
            writer = self._writer(memory, setting.writer)
            while time.monotonic() < setting.until:
                with suppress(KeyboardInterrupt, Struck):  # a signal that came just as an operation ended
                    self._work(writer)
            if has_helper:
                helper.join()
        for _ in range(self._children):
            os.wait()

    def _writer(self, memory: Memory, name: str) -> Writer:
        journal = Journal(Path(self._setting.folder), name)
        return Writer(memory, journal, Random(f"{self._setting.seed} {name}"), self._strikes, self._setting.seed)

    def _work(self, writer: Writer) -> None:
        if "fork" not in self._setting.without and self._chance.random() < FORKS:
            self._fork(writer.memory)
        writer.once(self._setting.verbs)

    def _append_beside(self, memory: Memory) -> None:
        """Append from another thread, in which no signal handler runs."""
        writer = self._writer(memory, f"{self._setting.writer}t")
        writer._strikes = Strikes()
        while time.monotonic() < self._setting.until:
            writer.once(["append", "turn", "large", "context"])

    # --- forking

    def _fork(self, inherited: Memory) -> None:
        name = f"{self._setting.writer}c{self._children}"
        self._children += 1
        if not os.fork():
            status = 1
            try:
                self._child(inherited, name)
                status = 0
            except BaseException:  # noqa: BLE001 (no code of the parent may run in the child)
                traceback.print_exc()
            finally:
                os._exit(status)

    def _child(self, inherited: Memory, name: str) -> None:
        """Work with the child's own memory, for a while or until SIGALRM kills the child."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        chance, journal = Random(f"{self._setting.seed} {name}"), Journal(Path(self._setting.folder), f"{name}i")
        self._strikes = Strikes()
        dies = chance.random() < 0.3
        if dies:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.02, 0.5))
        JournaledWriter(inherited, journal, chance, self._strikes, "").done("inherited", lambda: _refused(inherited))
        until = min(self._setting.until, time.monotonic() + chance.uniform(0.1, 1))
        with self._setting.opened(chance) as memory:
            writer = self._writer(memory, name)
            while time.monotonic() < until:
                writer.once(self._setting.verbs)


def _refused(inherited: Memory) -> None:
    """Check that a memory opened before the fork raises `ForkedProcess`."""
    try:
        inherited.session("s0").add_user_message("never")
    except ForkedProcess:
        return
    raise AssertionError("a memory that was opened before the fork was used after it")


def main(arguments: Collection[str]) -> None:
    """Run as the nursery, which forks workers; in the mode "fresh" write to every shared session without waiting."""
    mode, argument = arguments
    if mode == "fresh":
        _write_at_once(msgspec.json.decode(argument, type=Setting))
        return
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)  # the nursery itself is not to be interrupted
    _rehearse()
    nurse(int(argument), lambda given: Worker(msgspec.json.decode(given, type=Setting)).run())


def _rehearse() -> None:
    """Run every verb once, so that all modules are imported: an interrupted import also fails in other threads."""
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("sqlite", f"sqlite:///{folder}/log.db"), ("file", f"file://{folder}/logs")):
            setting = Setting(url=url, tenant="t", seed="", writer=name, folder=folder, until=0, sealed=True)
            with setting.opened(Random(0)) as memory:
                writer = Writer(memory, Journal(Path(folder), name), Random(0), Strikes(), name)
                for verb in ("append", "append", "append", *setting.verbs, *setting.verbs):
                    getattr(writer, verb)()


def _write_at_once(setting: Setting) -> None:
    """Add to every shared session; fails if a lock that a dead process held makes it wait."""
    with setting.opened(Random(setting.seed), busy_seconds=1) as memory:
        writer = Writer(memory, Journal(Path(setting.folder), setting.writer), Random(0), Strikes(), setting.seed)
        for number in range(SESSIONS):
            writer.add_to(f"{SHARED}{number}", memory.session(f"{SHARED}{number}").add)


if __name__ == "__main__":
    main(sys.argv[1:])
