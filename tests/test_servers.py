"""The servers of a run of tests end with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import servers


@pytest.mark.parametrize("kind", ["redis", "postgres", "mongodb"])
def test_who_keeps_a_server_ends_it_when_the_run_is_over(kind: str, shelf: Path) -> None:
    """Without an error, with all of the server's processes, and with nothing left that the run would wait for."""
    command = [sys.executable, servers.__file__, kind, str(shelf / kind), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        told = json.loads(keeper.stdout.readline())
        if "why" in told:
            pytest.skip(f"no {kind}: {told['why']}")
        assert list(shelf.glob("*.kept"))

        (shelf / "over").touch()
        _, complaints = keeper.communicate(timeout=servers.PATIENCE)

    assert (keeper.returncode, complaints) == (0, "")
    assert not list(shelf.glob("*.kept"))
    assert not servers._speaks(kind, int(told["address"].split(":")[-1].split("/")[0]))
