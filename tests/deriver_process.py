"""A process that keeps a derived index of entries in a file: `python deriver_process.py MODE STORE INDEX`.

Every mode registers the index. "index" then fills it, "open" does nothing more, and "stay" waits for a line and sweeps.
At the end the process prints how many texts it was asked to remove from the index.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from palimpsest import Memory
from writer import say

SESSION = "talk"


class FileIndex:
    """A derived index: texts by session and entry in a JSON file, which all processes share."""

    name = "index"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.removed = 0

    def texts(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return found

    def put(self, session: str, id: str, text: str) -> None:
        """Add a text to the index."""
        self._path.write_text(json.dumps({**self.texts(), f"{session} {id}": text}))

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Remove these entries."""
        return self._drop([f"{session} {id}" for id in entries.values()])

    async def gone(self, tenant: str, session: str) -> int:
        """Remove a session."""
        return self._drop([key for key in self.texts() if key.startswith(f"{session} ")])

    def _drop(self, keys: list[str]) -> int:
        before = self.texts()
        after = {key: text for key, text in before.items() if key not in keys}
        self._path.write_text(json.dumps(after))
        self.removed += len(before) - len(after)
        return len(before) - len(after)


def main(mode: str, where: str, path: str) -> None:
    index = FileIndex(Path(path))
    with Memory.open(where) as memory:
        memory.derive(index)
        if mode == "index":
            for info in memory.sessions():
                for entry in memory.session(info.session).entries():
                    if not entry.erased:
                        index.put(info.session, entry.id, entry.text)
        elif mode == "stay":
            say("ready")
            sys.stdin.readline()
            memory.sweep()
    say(index.removed)


if __name__ == "__main__":
    main(*sys.argv[1:])
