"""The command line, a thin layer over the public API."""

import os
import signal
import sys
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
    for name in ENDING:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    for name in ENDING:
        ending = getattr(signal, name, None)
        if ending is not None and signal.getsignal(ending) is _end:
            signal.signal(ending, signal.SIG_DFL)
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
