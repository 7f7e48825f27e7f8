"""A process that imports a file and says so batch by batch, to be killed; or that measures what importing takes.

`python importer.py kill STORE FILE` says a line after each commit; `python importer.py peak STORE FILE` prints by how
many bytes the process grew at most, and what was imported; `refused STORE LIMITS FILE...` does the same of files of
which nothing can be taken.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

from palimpsest import ImportFailed, Memory


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


def most() -> int:
    """The most bytes that this process had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak(store: str, path: str) -> None:
    """Import the file and print by how much the process grew while it did."""
    with Memory.open(f"sqlite:///{store}", synchronous="NORMAL") as memory:
        memory.session("warm").add_user_message("loads what is loaded once")
        before = most()
        report = memory.import_file(path)
        added = sum(one.added for one in report.sessions.values())
        json.dump({"grown": most() - before, "added": added, "sessions": len(report.sessions)}, sys.stdout)


def refused(store: str, limits: str, *paths: str) -> None:
    """Import files with these limits, from each source that would read them, and print by how much each grew it."""
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
                added += sum(one.added for one in report.sessions.values())
            grown[path] = most() - before
        json.dump({"grown": grown, "added": added}, sys.stdout)


if __name__ == "__main__":
    does: dict[str, Callable[..., None]] = {"kill": kill, "peak": peak, "refused": refused}
    does[sys.argv[1]](*sys.argv[2:])
