"""The servers that tests start end with the run of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import servers


@pytest.mark.parametrize("kind", ["redis", "postgres", "mongodb"])
def test_a_server_ends_when_the_run_is_over(kind: str, shelf: Path) -> None:
    """The keeper of a server ends it, with all its processes, when the run is over, and leaves no file to wait for."""
    command = [sys.executable, servers.__file__, kind, str(shelf / kind), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        report = json.loads(keeper.stdout.readline())
        if "why" in report:
            pytest.skip(f"no {kind}: {report['why']}")
        assert list(shelf.glob("*.kept"))

        (shelf / "over").touch()
        _, complaints = keeper.communicate(timeout=servers.PATIENCE)

    assert (keeper.returncode, complaints) == (0, "")
    assert not list(shelf.glob("*.kept"))
    assert not servers._speaks(kind, int(report["address"].split(":")[-1].split("/")[0]))
