"""The command line. Thin: it only calls the public API."""

import sys


def main() -> None:
    """Run the command `palimpsest`, which ends the process with an exit status."""
    try:
        from palimpsest.cli.app import palimpsest  # here, so that an interruption meanwhile ends quietly, too

        palimpsest(prog_name="palimpsest")
    except KeyboardInterrupt:  # before a command could take care of it
        sys.exit(130)
