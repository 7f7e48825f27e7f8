"""Run every benchmark that needs no file from you, one after the other.

python bench/run_all.py [--gate]      with --gate the exit status is 1 if a target was missed

Without PALIMPSEST_DATA, `retention` and a part of `recall` are skipped, with a message.
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
"""Benchmarks with a command line of their own, of which only --gate and --json are passed on."""


def main() -> int:
    """Run the benchmarks, and return the worst status."""
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
