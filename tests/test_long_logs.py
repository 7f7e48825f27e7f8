"""Opening, reading, branching, erasing and exporting a very long log takes constant memory."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import long_log_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="peak memory is read by POSIX means")
LONG = [8_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
SHORT = 1_000
MEBIBYTE = 1 << 20


def where(kind: str, folder: Path) -> str:
    """Return the address of a store of this kind in a folder."""
    return f"sqlite:///{folder}/log.db" if kind == "sqlite" else f"file://{folder}/logs"


def taken(mode: str, store: str, *arguments: object) -> int:
    """Do one thing in a new process and return its peak memory in bytes."""
    command = [sys.executable, str(Path(long_log_process.__file__)), mode, store, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak: int = json.loads(done.stdout)["peak"]
    return peak


@pytest.mark.wide
@pytest.mark.parametrize("entries", LONG)
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_memory_does_not_grow_with_the_log(tmp_path: Path, kind: str, entries: int) -> None:
    """Each operation takes at most a few mebibytes more on a long log than on a short one; an export is complete."""
    peaks: dict[str, list[int]] = {}
    for count in (SHORT, entries):
        folder = tmp_path / str(count)
        folder.mkdir()
        store = where(kind, folder)
        taken("make", store, count)
        for mode in ("window", "branch", "erase"):
            peaks.setdefault(mode, []).append(taken(mode, store))
        peaks.setdefault("export", []).append(taken("export", store, folder / "out.json"))

    for mode, (short, long) in peaks.items():
        assert long - short < 24 * MEBIBYTE, f"{mode}: {short} bytes for {SHORT} entries, {long} for {entries}"
    with (tmp_path / str(entries) / "out.json").open(encoding="utf-8") as out:
        # A whole document would not fit the bound of this test: its lines are entries.
        lines = (line.strip().rstrip(",]") for line in out)
        found = (json.loads(line) for line in lines if line.startswith('{"id"'))
        assert [entry["seq"] for entry in itertools.islice(found, 10)] == list(range(1, 11))
        assert sum(1 for _ in found) + 10 == entries + 1  # with one more, and a tombstone
