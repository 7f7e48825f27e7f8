"""Type checkers take what users write with the clients of vendors: `typing_vendors`, which `mypy` reads, too."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import palimpsest

HERE = Path(__file__).parent
SOURCE = Path(palimpsest.__file__).parents[1]
PROGRAMS = ["typing_vendors.py", "typing_public.py"]


def copied(folder: Path) -> list[str]:
    """The programs, away from the project and its settings."""
    for name in PROGRAMS:
        (folder / name).write_text((HERE / name).read_text(encoding="utf-8"), encoding="utf-8")
    return PROGRAMS


def run(folder: Path, *command: str) -> str:
    """What a type checker told; "" where it had nothing to tell."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_accepts_what_users_write(tmp_path: Path) -> None:
    """`mypy --strict` takes contexts for what each vendor's client asks for, and knows what that returns."""
    folder = tmp_path / "program"
    folder.mkdir()

    config = folder / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {SOURCE}\n", encoding="utf-8")

    assert run(folder, "mypy", "--config-file", str(config), *copied(folder)) == ""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_accepts_what_users_write(tmp_path: Path) -> None:
    """So does pyright, which editors ask."""
    settings = {
        "include": copied(tmp_path),
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "extraPaths": [str(SOURCE)],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")

    assert run(tmp_path, "basedpyright", "--pythonpath", sys.executable) == ""
