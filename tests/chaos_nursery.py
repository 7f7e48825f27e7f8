"""Start many processes quickly: a nursery process that has imported everything forks them, in its own process group.

The nursery opens no store. A process that has ended stays a zombie until `wait` asks for its exit code. So its id is
not given to another process meanwhile, and no signal can reach a foreign process.
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
    """A context manager for a nursery process, which runs `script` and forks a process for each text given to `start`.

    At its exit the whole process group is killed: the nursery, its children, and their children.
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

    def start(self, argument: str) -> int:
        """Start a process with this argument and return its process id."""
        pid: int = self._ask({"start": argument})
        return pid

    def wait(self, pid: int) -> int:
        """Wait until a process ends and return its exit code."""
        code: int = self._ask({"wait": pid})
        return code

    def all_ended(self, patience: float) -> bool:
        """Return whether all processes, including those that they forked, end within `patience` seconds.

        Each of them holds the write end of a pipe; the pipe becomes readable (end of file) when the last has ended.
        """
        self._ask({"release": True})
        return bool(select.select([self._alive], [], [], patience)[0])

    def forked(self) -> list[int]:
        """Return the ids of all running processes of the group but the nursery's, also of orphans."""
        pids = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                group = int(status.read_text().rpartition(")")[2].split()[2])
            except (OSError, ValueError):  # the process has just ended
                continue
            if group == self._process.pid != int(status.parent.name):
                pids.append(int(status.parent.name))
        return pids

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def nurse(held: int, run: Callable[[str], None]) -> None:
    """Serve as the nursery process: carry out the requests on standard input, one per line.

    Every forked process inherits the pipe end `held`.
    """
    for line in sys.stdin.buffer:
        request, answer = json.loads(line), 0
        if "start" in request:
            answer = os.fork()
            if not answer:
                _run_child(request["start"], run)
        elif "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            os.close(held)
        os.write(1, json.dumps(answer).encode() + b"\n")


def _run_child(argument: str, run: Callable[[str], None]) -> None:
    """Run a forked process and end it; never returns into the nursery's loop."""
    status = 1
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 0)
        os.dup2(2, 1)
        run(argument)
        status = 0
    except BaseException:  # noqa: BLE001 (no code of the nursery may run in the child)
        traceback.print_exc()
    finally:
        os._exit(status)
