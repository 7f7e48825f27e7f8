"""A process that uses an encrypted store: `python sealed_process.py MODE STORE [ARGUMENT ...]`.

Like `writer.py` it prints one JSON value a line for each acknowledged step, and never before that.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from palimpsest import Memory
from palimpsest.runtime.runner import drive
from palimpsest.stores.encrypted.rotation import rotate_keys
from sealed import BOTH, RING, relaxed
from writer import meet, say, turn


def write(where: str, name: str, threads: str) -> None:
    """Add turns to one session and to new ones until a line comes in, with the old key as the current one."""
    stop = threading.Event()
    printing = threading.Lock()
    with Memory.open(where, encryption=RING, **relaxed(where)) as memory:

        def work(thread: int) -> None:
            for number in itertools.count():
                label = f"{name}.{thread}.{number}"
                session = f"{name}-{number}" if number % 4 == 0 else "shared"
                memory.session(session).add(turn(label))
                drive(memory.store.put_item("default", "notes", label, label.encode()))
                with printing:
                    say([session, label])
                if stop.is_set():
                    return

        meet()
        with ThreadPoolExecutor(int(threads)) as pool:
            workers = [pool.submit(work, thread) for thread in range(int(threads))]
            sys.stdin.readline()
            stop.set()
        for worker in workers:
            worker.result()  # raises a thread's error, with which the process ends


def rotate(where: str) -> None:
    """Rotate the keys, and print after each session how many are done."""
    with Memory.open(where, encryption=BOTH, **relaxed(where)) as memory:
        meet()
        done = rotate_keys(memory, progress=lambda done, total: say([done, total]))
        say(["done", done.texts, done.items])
        sys.stdin.readline()  # keeps the process alive for a kill that comes late


if __name__ == "__main__":
    modes: dict[str, Callable[..., Any]] = {"write": write, "rotate": rotate}
    modes[sys.argv[1]](*sys.argv[2:])
