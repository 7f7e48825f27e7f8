"""Run every benchmark that needs no file of yours, one after the other.

python bench/run_all.py [--gate]      the status is 1 with --gate if any target was missed

`retention` says that it is skipped where PALIMPSEST_DATA is not set, `recall` that a part of it is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "append",
    "context",
    "cold",
    "compat",
    "firefly",
    "concurrency",
    "sessions",
    "storage",
    "compaction",
    "erasing",
    "indexing",
    "large",
    "loop",
    "mongodb",
    "postgres",
    "redis_store",
    "resources",
    "search",
    "stores",
    "workers",
    "working",
)
ALONE = ("recall", "retention")
"""Those with a command line of their own: they take no more than --gate and --json."""


def main() -> int:
    """Run them and return the worst status."""
    here = Path(__file__).parent
    worst = 0
    common = [option for option in sys.argv[1:] if option in ("--gate", "--json")]
    for name in (*NAMES, *ALONE):
        options = common if name in ALONE else sys.argv[1:]
        worst = max(worst, subprocess.run([sys.executable, here / f"{name}.py", *options], check=False).returncode)
        print(flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
