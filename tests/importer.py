"""A process that imports a file and says so batch by batch, to be killed; or that measures what importing takes.

`python importer.py kill STORE FILE` says a line after each commit; `python importer.py peak STORE FILE` prints by how
many bytes the process grew at most, and what was imported.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from palimpsest import Memory


def kill(store: str, path: str) -> None:
    """Import the file; after each commit say how many entries there are and wait to be told to go on."""
    with Memory.open(f"sqlite:///{store}") as memory:
        told = set()

        def said(session: str, facts: dict[str, Any]) -> None:
            revision = (session, facts["entry"].revision)
            if revision not in told:
                told.add(revision)
                sys.stdout.write(f"{len(told)}\n")
                sys.stdout.flush()
                sys.stdin.readline()

        memory.on("entry:added", said)
        memory.import_file(path)


def peak(store: str, path: str) -> None:
    """Import the file and print by how much the process grew while it did."""
    import resource

    def most() -> int:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    with Memory.open(f"sqlite:///{store}", synchronous="NORMAL") as memory:
        memory.session("warm").add_user_message("loads what is loaded once")
        before = most()
        report = memory.import_file(path)
        added = sum(one.added for one in report.sessions.values())
        json.dump({"grown": most() - before, "added": added, "sessions": len(report.sessions)}, sys.stdout)


if __name__ == "__main__":
    {"kill": kill, "peak": peak}[sys.argv[1]](*sys.argv[2:])
