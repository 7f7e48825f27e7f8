"""Starting many processes quickly: one that has imported everything forks them, all in a process group of its own.

The nursery opens no store. What it forks stays its child until it is asked for the end of it, so that no signal ever
goes to a process of somebody else that was given the same number.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self


class Nursery:
    """A process that forks others, which run what `script` makes of the text that each is given.

    Leaving it kills all of them, and all that they have forked.
    """

    def __init__(self, script: Path, errors: IO[bytes]) -> None:
        self._alive, held = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(script), "nursery", str(held)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0, pass_fds=[held],
        )  # fmt: skip
        os.close(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        os.close(self._alive)

    def start(self, told: str) -> int:
        """Start a process and return its number."""
        number: int = self._ask({"start": told})
        return number

    def wait(self, number: int) -> int:
        """Wait for the end of a process and return how it ended."""
        code: int = self._ask({"wait": number})
        return code

    def all_ended(self, patience: float) -> bool:
        """Wait until all processes have ended, also those that they have forked; return whether they have."""
        self._ask({"release": True})
        return bool(select.select([self._alive], [], [], patience)[0])

    def forked(self) -> list[int]:
        """All that have not ended, by their numbers: children of children, too, whoever is their parent by now."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                group = int(status.read_text().rpartition(")")[2].split()[2])
            except (OSError, ValueError):  # it has just ended
                continue
            if group == self._process.pid != int(status.parent.name):
                found.append(int(status.parent.name))
        return found

    def _ask(self, what: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def nurse(held: int, run: Callable[[str], None]) -> None:
    """Be a nursery: do what comes in, line by line. All that is forked holds the end `held` of a pipe."""
    for line in sys.stdin.buffer:
        told, answer = json.loads(line), 0
        if "start" in told:
            answer = os.fork()
            if not answer:
                _be(told["start"], run)
        elif "wait" in told:
            answer = os.waitstatus_to_exitcode(os.waitpid(told["wait"], 0)[1])
        else:
            os.close(held)
        os.write(1, json.dumps(answer).encode() + b"\n")


def _be(told: str, run: Callable[[str], None]) -> None:
    """Be one of those that are forked, to the end."""
    status = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        run(told)
        status = 0
    except BaseException:  # noqa: BLE001 (nothing of the nursery's may run here)
        traceback.print_exc()
    finally:
        os._exit(status)
