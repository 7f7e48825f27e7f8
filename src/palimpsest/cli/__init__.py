"""The command line. Thin: it only calls the public API."""


def main() -> None:
    """Run the command `palimpsest`, which ends the process with an exit status."""
    import sys

    try:
        from palimpsest.cli.app import palimpsest

        palimpsest(prog_name="palimpsest")
    except KeyboardInterrupt:  # before a command could take care of it
        sys.exit(130)
