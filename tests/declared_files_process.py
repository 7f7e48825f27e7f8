"""A process that loads each file of a folder as a declared memory: `python declared_files_process.py FOLDER`.

It prints a JSON object with the outcome of each file by name: "loaded" or "refused".
"""

from __future__ import annotations

import sys
from pathlib import Path

from palimpsest.errors import InvalidResource
from palimpsest.resources import Resources
from writer import say


def outcome(path: Path) -> str:
    """Load a file and return the outcome. Any error but InvalidResource ends the process."""
    try:
        Resources.load(path)
    except InvalidResource as fault:
        return "refused" if str(fault) else "refused without a word"
    return "loaded"


if __name__ == "__main__":
    say({path.name: outcome(path) for path in sorted(Path(sys.argv[1]).iterdir())})
