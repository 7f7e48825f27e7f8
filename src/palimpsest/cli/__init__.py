"""The command line, a thin layer over the public API."""

import os
import sys


def main() -> None:
    """Run the command `palimpsest` and end the process with its exit status."""
    _open_streams()
    try:
        from palimpsest.cli.app import palimpsest  # imported here, so that Ctrl-C during the import ends quietly, too

        palimpsest(prog_name="palimpsest")
    except KeyboardInterrupt:  # it came before `LazyGroup.invoke` could handle it
        sys.exit(130)


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
