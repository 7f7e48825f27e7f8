"""Chaos: processes run every verb on one store while they are killed, stopped, interrupted and forked.

    python tests/chaos.py --url sqlite:////tmp/x/chaos.db --seconds 600 --seed 7 [--sealed] [--without fork,query]

After each round, when all processes have ended, `chaos_judge` compares the store with the operations that were
acknowledged. If a rule is broken, the program prints the faults and exits with 1. The seed determines which operations
and signals are chosen, but not the moments at which the operating system runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from chaos_judge import Fault, Judge
from chaos_nursery import Nursery
from chaos_verbs import POLICY
from chaos_worker import Setting
from palimpsest import Memory
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import drive
from processes import integrity
from sealed import BOTH

WORKER = Path(__file__).with_name("chaos_worker.py")
PROCESSES = 8
ROUND = 30.0
"""Seconds that a round lasts. Then the store is judged, and the next round begins in the same store."""

PATIENCE = 90.0
"""Seconds after which a process that should have ended counts as hanging."""

VIOLENCE = {
    "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT, "alarm": signal.SIGALRM,
}  # fmt: skip
LEASES = 120
"""Seconds after which every lease of a round must have expired."""


class Round:
    """One round: a fixed number of slots, each with a process that works on the same store.

    A killed process is replaced by a new one in its slot.
    """

    def __init__(self, setting: Setting, chance: Random) -> None:
        self._setting, self._chance = setting, chance
        self._running: dict[int, int] = {}  # the process id in each slot
        self._begun: Counter[int] = Counter()  # how many processes each slot has had
        self._stopped: dict[int, float] = {}  # slots of stopped processes, and when to resume each
        self.done: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self._errors = Path(setting.folder) / "errors"

    def run(self) -> None:
        """Start the processes, send them signals until the round is over, and wait until they end.

        No process is left running, even if this raises.
        """
        with self._errors.open("wb") as errors, Nursery(WORKER, errors) as nursery:
            for slot in range(PROCESSES):
                self._start(slot, nursery)
            kinds = [kind for kind in VIOLENCE if kind not in self._setting.without]
            while time.monotonic() < self._setting.until:
                time.sleep(self._chance.uniform(0.005, 0.05))
                self._resume()
                if kinds:
                    self._hurt(self._chance.choice(kinds), self._chance.randrange(PROCESSES), nursery)
            self._resume(all_slots=True)
            if nursery.all_ended(PATIENCE):
                for slot, process in self._running.items():
                    if code := nursery.wait(process):
                        self._fault(f"process {slot}.{self._begun[slot] - 1} ended with {code}")
            else:
                for process in nursery.forked():  # includes children whose parent was killed
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGUSR2)
                time.sleep(3)
                self._fault("a process hangs")

    def _start(self, slot: int, nursery: Nursery) -> None:
        setting = msgspec.structs.replace(self._setting, writer=f"{slot}.{self._begun[slot]}")
        self._begun[slot] += 1
        self._running[slot] = nursery.start(msgspec.json.encode(setting).decode())

    def _hurt(self, kind: str, slot: int, nursery: Nursery) -> None:
        if slot in self._stopped:
            return
        self.done[kind] += 1
        os.kill(self._running[slot], VIOLENCE[kind])
        if kind == "kill":
            nursery.wait(self._running[slot])
            self._start(slot, nursery)
        elif kind == "stop":
            self._stopped[slot] = time.monotonic() + self._chance.uniform(0.02, 0.6)

    def _resume(self, *, all_slots: bool = False) -> None:
        """Continue the stopped processes whose time has come, or all of them."""
        for slot, until in list(self._stopped.items()):
            if all_slots or time.monotonic() > until:
                os.kill(self._running[slot], signal.SIGCONT)
                del self._stopped[slot]

    def _fault(self, rule: str) -> None:
        self.faults.append(Fault(f"{rule}:\n{self._errors.read_text(errors='replace')[-12000:]}"))


def judged(setting: Setting, faults: Sequence[Fault]) -> Judge:
    """Judge a finished round; the faults of the round itself come first.

    If a process failed, the rest is not judged: every later fault would be a consequence of that one.
    """
    folder = Path(setting.folder)
    keys: dict[str, Any] = {"encryption": BOTH} if setting.sealed else {}
    judge = Judge(folder)
    judge.faults += faults
    judge.journals()
    if judge.faults:
        return judge
    command = [sys.executable, str(WORKER), "fresh", msgspec.json.encode(setting).decode()]
    fresh = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    if fresh.returncode:
        judge.faults.append(Fault(f"a fresh process cannot write at once:\n{fresh.stderr.decode()[-3000:]}"))
        return judge
    judge = Judge(folder)
    judge.journals()
    with Memory.open(setting.url, tenant=setting.tenant, synchronous="NORMAL", busy_seconds=1, **keys) as memory:
        judge.store(memory)
        remains = drive(memory.store.scrub()).remains
        judge.bytes_of(all_bytes(setting.url), sealed=setting.sealed)
        memory.sweep()
        memory.scan(POLICY, apply=True)
        remains += drive(memory.store.scrub()).remains
        if remains:
            judge.faults.append(Fault(f"a scrub without other readers left this undone: {remains}"))
        if b"@example.com" in all_bytes(setting.url):
            judge.faults.append(Fault("a private address is in the store's files after the last scan"))
    place: Any = Path(setting.url.removeprefix("sqlite:///")) if setting.url.startswith("sqlite") else setting.url
    if (problem := integrity(place)) != "ok":
        judge.faults.append(Fault(f"the store's files are damaged: {problem}"))
    with Memory.open(setting.url, tenant=setting.tenant, clock=lambda: now_us() + LEASES * 10**6, **keys) as memory:
        for session in [info.session for info in memory.sessions()]:
            for kind in ("turn", "compaction"):
                if drive(memory.store.lease(memory.tenant, f"{kind}:{session}", "judge", 1)) is None:
                    judge.faults.append(Fault(f"the lease of {kind}:{session} outlives its time"))
    return judge


def all_bytes(url: str) -> bytes:
    """Return the names and contents of all files of the store."""
    path = Path(url.removeprefix("sqlite:///").removeprefix("file://"))
    files = sorted(path.rglob("*")) if path.is_dir() else sorted(path.parent.glob(f"{path.name}*"))
    return b"\n".join(str(file).encode() + b"\n" + file.read_bytes() for file in files if file.is_file())


def chaos(url: str, *, seconds: float, seed: int, sealed: bool = False, without: Sequence[str] = ()) -> list[Fault]:
    """Run rounds for so many seconds; return the faults of the first round that has any, or an empty list."""
    chance = Random(seed)
    variant = f"{' sealed' if sealed else ''}{' without ' if without else ''}{','.join(without)}"
    say(f"seed {seed}: {seconds:g} s on {url}{variant}")
    rounds = max(1, round(seconds / ROUND))
    for number in range(rounds):
        folder = tempfile.mkdtemp(prefix="chaos-")
        setting = Setting(
            url=url, tenant=f"round{number}", seed=f"{seed} {number}", writer="fresh", folder=folder,
            until=time.monotonic() + seconds / rounds, sealed=sealed, without=tuple(without),
        )  # fmt: skip
        this_round = Round(setting, chance)
        this_round.run()
        judge = judged(setting, this_round.faults)
        say(f"round {number}: {dict(this_round.done)} {json.dumps(judge.count())}")
        if judge.faults:
            say(f"the journals are in {folder}")
            return judge.faults
        shutil.rmtree(folder)
    return []


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="sqlite:////path/to.db or file:///folder; default: a new SQLite file")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--sealed", action="store_true", help="encrypted, with changes of keys")
    parser.add_argument("--without", default="", help=f"verbs to leave out, or fork, {', '.join(VIOLENCE)}")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = given.url or f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/chaos.db"
        without = [name for name in given.without.split(",") if name]
        faults = chaos(url, seconds=given.seconds, seed=given.seed, sealed=given.sealed, without=without)
    for fault in faults[:20]:
        say(f"FAULT {fault}")
    say(f"{len(faults)} faults" if faults else "all is well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
