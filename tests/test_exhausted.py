"""Without descriptors or disk space, errors are the library's, reads go on, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")

STORED = pytest.mark.parametrize(
    ("kind", "encrypted"),
    [
        ("sqlite", True),
        ("file", False),
        pytest.param("sqlite", False, marks=pytest.mark.slow),
        pytest.param("file", True, marks=pytest.mark.slow),
    ],
)

SCRIPT = Path(__file__).with_name("exhausted_process.py")


def told(what: str, kind: str, folder: Path, encrypted: bool) -> dict[str, dict[str, str]]:
    """Return the outcome of every verb by what was left; checks that no earlier entry is missing."""
    address = f"sqlite:///{folder}/log.db" if kind == "sqlite" else f"file://{folder}/logs"
    command = [sys.executable, "-W", "error", str(SCRIPT), what, address, str(encrypted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["lost"] == 0
    return found["told"]


@pytest.mark.sampled
@STORED
def test_without_descriptors_every_verb_raises_a_library_error(kind: str, encrypted: bool, tmp_path: Path) -> None:
    """Without descriptors verbs raise the library's errors, even if they need an import, and work again later."""
    for spare, verbs in told("descriptors", kind, tmp_path, encrypted).items():
        for verb, came in verbs.items():
            assert came in ("ok", "StoreUnavailable", "EntryNotFound", "SessionNotFound"), (spare, verb, came)


@pytest.mark.sampled
@STORED
def test_reads_succeed_on_a_full_disk(kind: str, encrypted: bool, tmp_path: Path) -> None:
    """On a full disk reads succeed without storing counts, and writes say that there is no room."""
    for size, verbs in told("room", kind, tmp_path, encrypted).items():
        assert verbs.pop("large") == "StoreUnavailable", size
        assert set(verbs.values()) == {"ok"}, (size, verbs)
