"""A process that loads each file of a folder as a declared memory: `python refused_process.py FOLDER`.

It says what became of each, by name: whether it was refused, or loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

from palimpsest.errors import InvalidResource
from palimpsest.resources import Resources
from writer import say


def told(path: Path) -> str:
    """What became of a file. Any other error than that of a wrong file ends the process."""
    try:
        Resources.load(path)
    except InvalidResource as fault:
        return "refused" if str(fault) else "refused without a word"
    return "loaded"


if __name__ == "__main__":
    say({path.name: told(path) for path in sorted(Path(sys.argv[1]).iterdir())})
