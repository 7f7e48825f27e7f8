"""A program of its own that makes an index from entries, in a file: `python deriver.py MODE STORE INDEX`.

`index` joins and makes the index, and ends; `open` joins and ends; `stay` joins, waits, sweeps and ends. It speaks as
`writer.py` does: what it says last is how much of the index it was told to remove.
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
    """Texts by session and entry, in a JSON file, which all processes share."""

    name = "index"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.removed = 0

    def texts(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return found

    def put(self, session: str, id: str, text: str) -> None:
        """Have the index find a text."""
        self._path.write_text(json.dumps({**self.texts(), f"{session} {id}": text}))

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Remove these entries."""
        return self._drop([f"{session} {id}" for id in entries.values()])

    async def gone(self, tenant: str, session: str) -> int:
        """Remove a session."""
        return self._drop([key for key in self.texts() if key.startswith(f"{session} ")])

    def _drop(self, keys: list[str]) -> int:
        there = self.texts()
        left = {key: text for key, text in there.items() if key not in keys}
        self._path.write_text(json.dumps(left))
        self.removed += len(there) - len(left)
        return len(there) - len(left)


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
