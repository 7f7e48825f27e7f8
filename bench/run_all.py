"""Run every benchmark that needs no data of yours, one after the other.

python bench/run_all.py [--gate]      the status is 1 with --gate if any target was missed
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("append", "context", "cold", "concurrency", "storage")


def main() -> int:
    """Run them and return the worst status."""
    here = Path(__file__).parent
    worst = 0
    for name in NAMES:
        worst = max(worst, subprocess.run([sys.executable, here / f"{name}.py", *sys.argv[1:]], check=False).returncode)
        print(flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
