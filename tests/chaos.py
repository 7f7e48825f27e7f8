"""Chaos: processes that do everything to one store while they are killed, stopped, interrupted and forked.

    python tests/chaos.py --url sqlite:////tmp/x/chaos.db --seconds 600 --seed 7 [--sealed] [--without fork,query]

After each round, when all processes have ended, what is there is compared with what was acknowledged; see
`chaos_judge`. Exits with 1, and what was found, where that does not hold. The choices come from the seed; the moments
at which the system lets them happen do not.
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
"""Seconds that a round lasts; then all is judged, and the next one begins in the same store."""

PATIENCE = 90.0
"""Seconds after which a process that should have ended is taken for hanging."""

VIOLENCE = {
    "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT, "alarm": signal.SIGALRM,
}  # fmt: skip
LEASES = 120
"""Seconds after which no lease may be held any more."""


class Round:
    """Processes over one store for a while."""

    def __init__(self, setting: Setting, chance: Random) -> None:
        self._setting, self._chance = setting, chance
        self._running: dict[int, int] = {}
        self._begun: Counter[int] = Counter()
        self._stopped: dict[int, float] = {}
        self.done: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self._errors = Path(setting.folder) / "errors"

    def run(self) -> None:
        """Let them work, do violence to them, and wait for their end; nothing is left running, whatever happens."""
        with self._errors.open("wb") as errors, Nursery(WORKER, errors) as nursery:
            for slot in range(PROCESSES):
                self._start(slot, nursery)
            kinds = [kind for kind in VIOLENCE if kind not in self._setting.without]
            while time.monotonic() < self._setting.until:
                time.sleep(self._chance.uniform(0.005, 0.05))
                self._resume()
                if kinds:
                    self._hurt(self._chance.choice(kinds), self._chance.randrange(PROCESSES), nursery)
            self._resume(everybody=True)
            if nursery.all_ended(PATIENCE):
                for slot, process in self._running.items():
                    if code := nursery.wait(process):
                        self._fault(f"process {slot}.{self._begun[slot] - 1} ended with {code}")
            else:
                for process in nursery.forked():  # those of a process that was killed, too
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGUSR2)
                time.sleep(3)
                self._fault("somebody hangs")

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

    def _resume(self, *, everybody: bool = False) -> None:
        for slot, until in list(self._stopped.items()):
            if everybody or time.monotonic() > until:
                os.kill(self._running[slot], signal.SIGCONT)
                del self._stopped[slot]

    def _fault(self, rule: str) -> None:
        self.faults.append(Fault(f"{rule}:\n{self._errors.read_text(errors='replace')[-12000:]}"))


def judged(setting: Setting, faults: Sequence[Fault]) -> Judge:
    """Judge a round that is over."""
    folder = Path(setting.folder)
    keys: dict[str, Any] = {"encryption": BOTH} if setting.sealed else {}
    judge = Judge(folder)
    judge.faults += faults
    judge.journals()
    if judge.faults:
        return judge  # what comes after would only be confusing
    fresh = [sys.executable, str(WORKER), "fresh", _told(setting)]
    ended = subprocess.run(fresh, capture_output=True, check=False, timeout=PATIENCE)
    if ended.returncode:
        judge.faults.append(Fault(f"a fresh process cannot write at once:\n{ended.stderr.decode()[-3000:]}"))
        return judge
    judge = Judge(folder)
    judge.journals()
    with Memory.open(setting.url, tenant=setting.tenant, synchronous="NORMAL", busy_seconds=1, **keys) as memory:
        judge.store(memory)
        remains = drive(memory.store.scrub()).remains
        judge.bytes_of(everything(setting.url), sealed=setting.sealed)
        memory.sweep()
        memory.scan(POLICY, apply=True)
        remains += drive(memory.store.scrub()).remains
        if remains:
            judge.faults.append(Fault(f"a scrub with nobody else there left something: {remains}"))
        if b"@example.com" in everything(setting.url):
            judge.faults.append(Fault("a private address is there after the last scan"))
    where: Any = Path(setting.url.removeprefix("sqlite:///")) if setting.url.startswith("sqlite") else setting.url
    if (said := integrity(where)) != "ok":
        judge.faults.append(Fault(f"the store's files are not whole: {said}"))
    with Memory.open(setting.url, tenant=setting.tenant, clock=lambda: now_us() + LEASES * 10**6, **keys) as memory:
        for session in [info.session for info in memory.sessions()]:
            for what in ("turn", "compaction"):
                if drive(memory.store.lease(memory.tenant, f"{what}:{session}", "judge", 1)) is None:
                    judge.faults.append(Fault(f"the lease of {what}:{session} outlives its time"))
    return judge


def _told(setting: Setting) -> str:
    return msgspec.json.encode(setting).decode()


def everything(url: str) -> bytes:
    """Every byte of the store's files, and their names."""
    path = Path(url.removeprefix("sqlite:///").removeprefix("file://"))
    files = sorted(path.rglob("*")) if path.is_dir() else sorted(path.parent.glob(f"{path.name}*"))
    return b"\n".join(str(file).encode() + b"\n" + file.read_bytes() for file in files if file.is_file())


def chaos(url: str, *, seconds: float, seed: int, sealed: bool = False, without: Sequence[str] = ()) -> list[Fault]:
    """Run for so long, and return what does not hold; empty where all is well."""
    chance = Random(seed)
    how = f"{' sealed' if sealed else ''}{' without ' if without else ''}{','.join(without)}"
    say(f"seed {seed}: {seconds:g} s on {url}{how}")
    rounds = max(1, round(seconds / ROUND))
    for number in range(rounds):
        folder = tempfile.mkdtemp(prefix="chaos-")
        setting = Setting(
            url=url, tenant=f"round{number}", seed=f"{seed} {number}", writer="fresh", folder=folder,
            until=time.monotonic() + seconds / rounds, sealed=sealed, without=tuple(without),
        )  # fmt: skip
        one = Round(setting, chance)
        one.run()
        judge = judged(setting, one.faults)
        say(f"round {number}: {dict(one.done)} {json.dumps(judge.count())}")
        if judge.faults:
            say(f"the journals are in {folder}")
            return judge.faults
        shutil.rmtree(folder)
    return []


def say(line: str) -> None:
    """Tell whoever runs this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="sqlite:////path/to.db or file:///folder; default: a new SQLite file")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--sealed", action="store_true", help="encrypted, with changes of keys")
    parser.add_argument("--without", default="", help=f"verbs to leave out, or fork, {', '.join(VIOLENCE)}")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = given.url or f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/chaos.db"
        without = [one for one in given.without.split(",") if one]
        faults = chaos(place, seconds=given.seconds, seed=given.seed, sealed=given.sealed, without=without)
    for fault in faults[:20]:
        say(f"FAULT {fault}")
    say(f"{len(faults)} faults" if faults else "all is well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
