"""A process that forks with an open memory: `python forker_process.py MODE ADDRESS ENCRYPTED [ARGUMENT ...]`.

`test_forks.py` starts it. ENCRYPTED is "encrypted" or "plain". Each line that it prints is a JSON value: first the exit
codes of children, then the texts in the session.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from palimpsest import Memory
from palimpsest.errors import ForkedProcess
from palimpsest.stores import forking
from sqlitestore import Held

KEYS = {"k": bytes(range(32))}
SESSION = "s"


def opened(address: str, encrypted: str) -> Memory:
    """Open a memory in this process."""
    options: dict[str, Any] = {"encryption": KEYS} if encrypted == "encrypted" else {}
    return Memory.open(address, synchronous="NORMAL", busy_seconds=20, **options)


def say(value: object) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def texts(address: str, encrypted: str) -> list[str]:
    """Return the texts in the session, read with a newly opened memory."""
    with opened(address, encrypted) as memory:
        return [entry.text for entry in memory.session(SESSION).entries()]


def child(work: Any) -> int:
    """Fork; the child calls `work` and ends. Return the child's process id."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Wait until a child ends and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def imports(address: str, encrypted: str, folder: str) -> None:
    """Fork while a thread imports a slow module; the child imports the same module."""
    name, begun = "slow_module", Path(folder) / "begun"
    (Path(folder) / f"{name}.py").write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(0.2)\n")
    sys.path.insert(0, folder)
    with opened(address, encrypted) as memory:
        memory.session(SESSION).add_user_message("parent")
        thread = threading.Thread(target=importlib.import_module, args=(name,))
        thread.start()
        while not begun.exists():
            time.sleep(0.001)

        def work() -> None:
            signal.alarm(20)  # kills a child that waits for ever for the import lock
            importlib.import_module(name)
            with opened(address, encrypted) as own:
                own.session(SESSION).add_user_message("child")

        pid = child(work)
        thread.join()
        say(ended(pid))
    say(texts(address, encrypted))


def outlives(address: str, encrypted: str) -> None:
    """The child adds with its own memory, before and after the parent closes its memory."""
    memory = opened(address, encrypted)
    memory.session(SESSION).add_user_message("parent")
    closed, close = os.pipe()
    begun, begin = os.pipe()

    def work() -> None:
        with opened(address, encrypted) as own:
            own.session(SESSION).add_user_message("child before")
            os.write(begin, b"1")
            os.read(closed, 1)
            own.session(SESSION).add_user_message("child after")

    pid = child(work)
    os.read(begun, 1)
    memory.close()
    os.write(close, b"1")
    say(ended(pid))
    say(texts(address, encrypted))


def _added(address: str, encrypted: str, pipe: Connection) -> None:
    with opened(address, encrypted) as own:
        for number in range(20):
            own.session(SESSION).add_user_message(f"child {number}")
            pipe.send(number)
            pipe.recv()


def started(address: str, encrypted: str, method: str) -> None:
    """A child process of multiprocessing adds while the parent closes its memory."""
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    with opened(address, encrypted) as memory:
        memory.session(SESSION).add_user_message("parent")
        process = context.Process(target=_added, args=(address, encrypted, there))
        process.start()
        for _ in range(10):
            here.recv()
            here.send(None)
    for _ in range(10):
        here.recv()
        here.send(None)
    process.join()
    say(process.exitcode)
    say(texts(address, encrypted))


def beside(address: str, encrypted: str) -> None:
    """Fork children while a thread of the parent writes; each child writes with its own memory."""
    memory, stop = opened(address, encrypted), threading.Event()
    # The first append imports modules. Were that done in the thread, a fork meanwhile would leave import locks held.
    memory.session(SESSION).add_user_message("first")
    acknowledged = ["first"]

    def write() -> None:
        while not stop.is_set():
            text = f"parent {len(acknowledged)}"
            memory.session(SESSION).add_user_message(text)
            acknowledged.append(text)
            if encrypted == "encrypted":  # an append tries again if another was first: without pauses this thread wins
                time.sleep(0.005)

    def add(number: int) -> None:
        with opened(address, encrypted) as own:
            own.session(SESSION).add_user_message(f"child {number}")

    thread = threading.Thread(target=write)
    thread.start()
    codes = []
    for number in range(0, 20, 2):
        pids = [child(lambda number=number: add(number)), child(lambda number=number: add(number + 1))]
        codes += [ended(pid) for pid in pids]
    stop.set()
    thread.join()
    memory.close()
    say(codes)
    stored = texts(address, encrypted)
    say(sorted(stored) == sorted([*acknowledged, *(f"child {number}" for number in range(20))]))


def stuck(address: str, encrypted: str) -> None:
    """Fork while a thread holds a transaction open; print the error that opening the store raises in the child."""
    forking.PATIENCE = 0.1
    memory = opened(address, encrypted)
    session = memory.session(SESSION)
    session.add_user_message("before")
    held = Held(memory)
    thread = threading.Thread(target=session.add_user_message, args=("held",))
    thread.start()
    held.inside.wait()

    def work() -> None:
        try:
            Memory.open(address)
        except ForkedProcess as fault:
            say([fault.path, fault.opened_in == os.getppid(), fault.used_in == os.getpid(), str(fault)])
        with Memory.open(address + "-another") as other:
            say(len(other.session(SESSION).entries()))

    say(ended(child(work)))
    held.let.set()
    thread.join()
    session.add_user_message("after")
    memory.close()
    say(texts(address, encrypted))


def again(address: str, encrypted: str) -> None:
    """Fork again and again, children of children too; parent and children go on with their own memories."""
    memory = opened(address, encrypted)
    session = memory.session(SESSION)

    def work(name: str, depth: int) -> None:
        with opened(address, encrypted) as own:
            own.session(SESSION).add_user_message(f"{name} before")
            if depth:
                assert ended(child(lambda: work(f"{name}.1", depth - 1))) == 0
            own.session(SESSION).add_user_message(f"{name} after")

    codes = []
    for number in range(5):
        session.add_user_message(f"parent {number}")
        codes.append(ended(child(lambda number=number: work(str(number), 2))))
    session.add_user_message("parent at the end")
    say(codes)
    say([entry.text for entry in session.entries()])
    memory.close()


MODES = {mode.__name__: mode for mode in (imports, outlives, started, beside, stuck, again)}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
