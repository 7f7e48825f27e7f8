"""The command line, a thin layer over the public API."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = ("SIGTERM", "SIGHUP")
"""The signals that ask a program to end, by name: not every system has both."""

_ending: list[int] = []
"""The signal that ends this process, once it has come."""


def main() -> None:
    """Run the command `palimpsest` and end the process with its exit status."""
    _open_streams()
    try:
        _end_by_signals()
        from palimpsest.cli.app import palimpsest  # imported here, so that Ctrl-C during the import ends quietly, too

        palimpsest(prog_name="palimpsest")
    except KeyboardInterrupt:  # it came before `LazyGroup.invoke` could handle it
        sys.exit(130)
    finally:
        if _ending:
            signal.raise_signal(_ending[0])


def _end_by_signals() -> None:
    """Have the signals that end a process unwind the command first, so that it closes and removes what it opened.

    The process dies of the signal all the same, for whoever started it to see. A second signal ends it at once. Signals
    that are ignored, as under `nohup`, stay ignored.
    """
    for number in _with_handler(signal.SIG_DFL):
        signal.signal(number, _end)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Have these signals end the process without unwinding it in the block, which waits for what somebody types.

    There is nothing to unwind then, and `readline` does not notice a signal that came just before it began to wait.
    """
    heeded = _with_handler(_end)
    for number in heeded:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, _end)


def _with_handler(handler: object) -> list[int]:
    """Return those of these signals that have this handler."""
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is handler]


def _end(number: int, _frame: FrameType | None) -> None:
    for heeded in _with_handler(_end):
        signal.signal(heeded, signal.SIG_DFL)
    _ending.append(number)
    raise SystemExit(128 + number)  # no KeyboardInterrupt: `chat` takes that for the end of an answer


def _open_streams() -> None:
    """Open /dev/null for each standard stream that was closed when the process started (as with `>&-`).

    Otherwise the next opened file, such as a store, would get descriptor 0, 1 or 2. Standard input then reads as empty,
    and standard error is discarded. Standard output is opened for reading only, so that writing data to it fails:
    losing a command's data without a word would be worse than an error.
    """
    streams = ("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)
    for name, mode, access in streams:  # in this order: each gets the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))
