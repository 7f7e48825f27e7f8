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
    """Open the standard streams that the process was started without: nobody writes or reads there.

    Otherwise the next file that is opened, such as a store, would get the number of one of them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each gets the lowest number that is free
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8"))
