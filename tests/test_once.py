"""Values that are made once, or by one thread at a time, in threads and in forked children."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import palimpsest
from palimpsest.runtime.once import ProcessLock, lazy
from palimpsest.tokens.counter import Encoding

PATIENCE = 20
"""Seconds after which something is taken to hang."""


class Maker:
    """An object with a part that `make` makes."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    @lazy
    def part(self) -> object:
        """The part."""
        return self.make()


def child_does(work: Callable[[], object]) -> int:
    """Return the exit code of a forked child that does this; negative if a signal ended it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(PATIENCE)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Stands:
    """Calls a function in a thread, which stands still where it calls `here` until the block ends."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work)
        self._there, self._go = threading.Event(), threading.Event()

    def here(self) -> object:
        if threading.current_thread() is self._thread:
            self._there.set()
            self._go.wait()
        return object()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._there.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._thread.join()


def test_a_part_is_made_once() -> None:
    """A part is made once for each object and kept."""
    one, other = Maker(object), Maker(object)

    first = one.part

    assert one.part is first
    assert other.part is not first


def test_threads_that_make_a_part_at_once_all_get_the_first_one() -> None:
    """Threads that make a part at once do not wait for each other, and all get the first one made."""
    slow = Stands(lambda: found.append(maker.part))
    maker, found = Maker(slow.here), list[object]()

    with slow:
        found.append(maker.part)

    assert found == [maker.part] * 2


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@needs_fork
def test_a_forked_child_makes_a_part_that_a_thread_was_making() -> None:
    """A fork while another thread makes the part keeps the child from nothing, of this object or of others."""
    slow = Stands(lambda: maker.part)
    maker, other = Maker(slow.here), Maker(object)

    with slow:
        code = child_does(lambda: (maker.part, other.part))

    assert code == 0


@needs_fork
def test_a_lock_held_at_a_fork_is_free_in_the_child() -> None:
    """A lock that another thread had at the fork is free in the child, and the parent's is as it was."""
    lock = ProcessLock()

    with lock.own():
        code = child_does(lambda: lock.own().acquire())

        assert code == 0
        assert lock.own().locked()


@needs_fork
def test_a_forked_child_counts_with_a_tokenizer_that_a_thread_was_loading() -> None:
    """A fork while another thread reads a vocabulary keeps the child from counting with it in no way."""

    class Letters:
        def encode_ordinary(self, text: str, /) -> list[int]:
            return [*text.encode()]

    def load() -> Letters:
        slow.here()
        return Letters()

    slow = Stands(lambda: encoding.count("text"))
    encoding = Encoding("letters", load=load)

    with slow:
        code = child_does(lambda: encoding.count("text"))

    assert code == 0


STORM = """
import signal, sys, threading
from palimpsest.runtime import once

class Struck(BaseException): pass

lock, strikes, left_taken = getattr(once, sys.argv[1])(), 0, 0

def strike(*_):
    global armed
    if armed:
        armed = False
        raise Struck

def is_free():
    free = []
    def look():
        free.append(lock.acquire(False))
        if free[0]:
            lock.release()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return free[0]

def take_and_release():
    while True:
        with lock:
            pass

armed = False
signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while strikes < 400:
    try:
        armed = True
        take_and_release()
    except Struck:
        pass
    strikes += 1
    if not is_free():
        left_taken += 1
        lock.release()
signal.setitimer(signal.ITIMER_REAL, 0)
print(left_taken)
"""


@pytest.mark.parametrize("make", ["new_lock", "new_rlock"])
def test_a_signal_handler_that_raises_leaves_no_lock_taken(make: str) -> None:
    """Wherever a handler raises while a lock is taken and given back again and again, the lock is free afterwards."""
    done = subprocess.run([sys.executable, "-c", STORM, make], capture_output=True, text=True, check=True)

    assert done.stdout == "0\n"


def test_locks_for_with_are_made_in_one_place() -> None:
    """A lock that is entered by `with` is made by `new_lock`, since the interpreter's own are not safe from signals."""
    own = {"runtime/once.py", "runtime/threads.py", "stores/bridged.py", "stores/forking.py"}
    """The maker, and locks that are taken and given back by calls, partly in two threads."""
    root = Path(palimpsest.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"allocate_lock\b", path.read_text("utf-8"))
    }

    assert found == own
