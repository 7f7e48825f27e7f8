"""The command line. Thin: it only calls the public API."""

import os
import sys


def main() -> None:
    """Run the command `palimpsest`, which ends the process with an exit status."""
    _open_streams()
    try:
        from palimpsest.cli.app import palimpsest  # here, so that an interruption meanwhile ends quietly, too

        palimpsest(prog_name="palimpsest")
    except KeyboardInterrupt:  # before a command could take care of it
        sys.exit(130)


def _open_streams() -> None:
    """Open the standard streams that the process was started without.

    Otherwise the next file that is opened, such as a store, would get the number of one of them. Nothing is there to be
    read, and nobody sees an error; but data that has nowhere to go is an error: standard output cannot be written.
    """
    streams = ("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)
    for name, mode, access in streams:  # each gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))
