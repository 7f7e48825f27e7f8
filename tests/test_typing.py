"""Type checkers take what users write with the clients of vendors: `typing_vendors`, which `mypy` reads, too."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import palimpsest

HERE = Path(__file__).parent
SOURCE = Path(palimpsest.__file__).parents[1]
HOMES = ["palimpsest", "palimpsest.errors", "palimpsest.strategies", "palimpsest.testing", "palimpsest.types"]
"""Where public names are."""

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
    assert pyright(tmp_path, copied(tmp_path), strict=["typing_public.py"]) == ""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_knows_the_type_of_every_public_name(tmp_path: Path) -> None:
    """In strict mode, too, nothing that a user meets on an object of ours has a type that is unknown, or half known."""
    lines = ["from __future__ import annotations", "", *(f"import {home}" for home in HOMES), ""]
    for home in HOMES:
        for name in import_module(home).__all__:
            thing = getattr(import_module(home), name)
            met = [f"one.{own}" for own in owned(thing)] if isinstance(thing, type) else []
            lines.append(f"print({home}.{name})")
            if met:
                lines += [f"def {name}_of_{home.replace('.', '_')}(one: {home}.{name}) -> None:"]
                lines += [f"    print({one})" for one in met]
    (tmp_path / "program.py").write_text("\n".join(lines) + "\n", encoding="utf-8")

    assert len(lines) > 500
    assert pyright(tmp_path, ["program.py"], strict=["program.py"]) == ""


def owned(thing: type) -> list[str]:
    """The public attributes of a class that are ours, not those of a class of somebody else's that it is made of."""
    ours = [kind for kind in thing.__mro__ if kind.__module__.startswith("palimpsest")]
    return sorted({name for kind in ours for name in vars(kind) if not name.startswith("_")})


def pyright(folder: Path, programs: list[str], strict: list[str]) -> str:
    """What pyright told of programs in a folder."""
    settings = {
        "include": programs,
        "strict": strict,
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "extraPaths": [str(SOURCE)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return run(folder, "basedpyright", "--pythonpath", sys.executable)
