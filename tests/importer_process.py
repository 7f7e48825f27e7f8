"""A process that imports a file and reports each batch, to be killed; or that measures the memory that an import takes.

importer_process.py kill STORE FILE             prints a line after each commit and waits for one
importer_process.py peak STORE FILE             prints by how many bytes the process grew, and what was imported
importer_process.py refused STORE LIMITS FILE…  prints the same for files that cannot be imported
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

from palimpsest import ImportFailed, Memory


def kill(store: str, path: str) -> None:
    """Import the file; after each commit print the number of commits and wait for a line."""
    with Memory.open(f"sqlite:///{store}") as memory:
        reported = set()

        def added(session: str, facts: dict[str, Any]) -> None:
            revision = (session, facts["entry"].revision)
            if revision not in reported:
                reported.add(revision)
                sys.stdout.write(f"{len(reported)}\n")
                sys.stdout.flush()
                sys.stdin.readline()

        memory.on("entry:added", added)
        memory.import_file(path)


def most() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak(store: str, path: str) -> None:
    """Import the file and print by how many bytes the process grew meanwhile."""
    with Memory.open(f"sqlite:///{store}", synchronous="NORMAL") as memory:
        memory.session("warm").add_user_message("loads what is loaded once")
        before = most()
        report = memory.import_file(path)
        added = sum(imported.added for imported in report.sessions.values())
        json.dump({"grown": most() - before, "added": added, "sessions": len(report.sessions)}, sys.stdout)


def refused(store: str, limits: str, *paths: str) -> None:
    """Import files with these limits as each source that might read them; print by how many bytes each file grew it."""
    grown: dict[str, int] = {}
    added = 0
    with Memory.open(f"sqlite:///{store}") as memory:
        memory.import_file(io.BytesIO(b'{"role": "user", "content": "loads what is loaded once"}'), session_id="warm")
        for path in paths:
            before = most()
            for source in ("auto", "messages", "chatgpt"):
                try:
                    report = memory.import_file(path, source=source, session_id="talk", limits=json.loads(limits))
                except ImportFailed:
                    continue
                added += sum(imported.added for imported in report.sessions.values())
            grown[path] = most() - before
        json.dump({"grown": grown, "added": added}, sys.stdout)


if __name__ == "__main__":
    modes: dict[str, Callable[..., None]] = {"kill": kill, "peak": peak, "refused": refused}
    modes[sys.argv[1]](*sys.argv[2:])
