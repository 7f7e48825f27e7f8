"""Benchmarks that need no data, and no server but those of the tests, run to their end with little work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
LITTLE: dict[str, tuple[str, ...]] = {
    "append": ("--turns", "20", "--large", "2000"),
    "cold": ("--starts", "1", "--large", "2000"),
    "compaction": ("--turns", "60", "--large", "300"),
    "compat": (),
    "concurrency": ("--turns", "3"),
    "context": ("--calls", "5", "--large", "2000"),
    "encryption": ("--turns", "20", "--calls", "5"),
    "erasing": ("--large", "1000"),
    "firefly": (),
    "indexing": ("--large", "1000"),
    "large": ("--large", "1000"),
    "loop": ("--entries", "200", "--megabytes", "0.5"),
    "mongodb": ("--calls", "12", "--large", "2000"),
    "postgres": ("--calls", "12", "--large", "2000"),
    "privacy": ("--turns", "20"),
    "redis_store": ("--calls", "12", "--large", "2000"),
    "resources": (),
    "search": ("--large", "2000"),
    "service": ("--calls", "5"),
    "sessions": ("--cycles", "4"),
    "storage": (),
    "stores": ("--calls", "20"),
    "workers": ("--sessions", "50"),
    "working": (),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LITTLE)
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    """A benchmark with little work ends, prints figures as JSON and no warning; its speeds mean nothing then."""
    command = [sys.executable, str(BENCH / f"{name}.py"), "--runs", "1", "--json", "--disk", str(tmp_path)]

    done = subprocess.run([*command, *LITTLE[name]], capture_output=True, text=True, check=False)

    if ": left out, " in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def test_every_benchmark_is_in_the_table() -> None:
    """The page of the benchmarks has a line for each."""
    page = (BENCH / "README.md").read_text("utf-8")
    helpers = {"measure", "prices", "raw", "replies", "run_all", "workload", "crowd", "recall_corpora"}
    names = {path.stem for path in BENCH.glob("*.py")} - helpers

    assert {name for name in names if f"| `{name}.py` |" not in page} == set()
