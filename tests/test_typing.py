"""Type checkers accept the documentation's examples and programs with the vendors' clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import palimpsest
from test_docs import FENCE, ROOT, listed

HERE = Path(__file__).parent
SOURCE = Path(palimpsest.__file__).parents[1]
HOMES = ["palimpsest", "palimpsest.errors", "palimpsest.strategies", "palimpsest.testing", "palimpsest.types"]
"""Where public names are."""

PROGRAMS = ["typing_vendors.py", "typing_public.py", "typing_frameworks.py"]

UNTOLD = ["no-untyped-call", "no-untyped-def", "untyped-decorator"]
"""What `mypy --strict` says of functions that say nothing of their types, as short examples do."""

MEANT = {"docs_errors.py": ["call-arg"]}
"""Mistakes that a page makes to show what comes of them."""


def copied(folder: Path) -> list[str]:
    """Copy the programs away from the project and its settings."""
    for name in PROGRAMS:
        (folder / name).write_text((HERE / name).read_text(encoding="utf-8"), encoding="utf-8")
    return PROGRAMS


def run(folder: Path, *command: str) -> str:
    """Run a type checker and return its output, "" if it reports nothing."""
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


@pytest.mark.wide
def test_mypy_accepts_the_examples_of_the_pages(tmp_path: Path) -> None:
    """`mypy --strict` accepts all examples of a page as one program.

    Settings and cache are the project's, so that its imports are not checked again.
    """
    names = written(tmp_path)
    ours = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"))

    told = run(tmp_path, "mypy", *ours, "--scripts-are-modules", *names)

    found: dict[str, list[str]] = {}
    for line in told.splitlines():
        error = re.fullmatch(r"(\w+\.py):\d+: error: .*\[([\w-]+)]", line)
        if error and error[2] not in UNTOLD:
            found.setdefault(error[1], []).append(error[2])
    assert found == MEANT, told
    assert len(names) > 40


def written(folder: Path) -> list[str]:
    """Write the Python examples of each page to a file, with the page's line numbers."""
    names = []
    for page in [ROOT / "README.md", *listed()]:
        text, lines = page.read_text("utf-8"), list[str]()
        for fence in FENCE.finditer(text):
            if fence["language"] == "python":
                lines += [""] * (text.count("\n", 0, fence.start("body")) - len(lines))
                lines += textwrap.dedent(fence["body"]).splitlines()
        if lines:
            names.append(re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix(""))) + ".py")
            (folder / names[-1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return names


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_accepts_what_users_write(tmp_path: Path) -> None:
    """Pyright, which editors use, accepts the programs."""
    assert pyright(tmp_path, copied(tmp_path), strict=["typing_public.py"]) == ""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_knows_the_type_of_every_public_name(tmp_path: Path) -> None:
    """In strict mode every public name and attribute has a fully known type."""
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
    """Return the public attributes of a class that the library defines."""
    ours = [kind for kind in thing.__mro__ if kind.__module__.startswith("palimpsest")]
    return sorted({name for kind in ours for name in vars(kind) if not name.startswith("_")})


def pyright(folder: Path, programs: list[str], strict: list[str]) -> str:
    """Return pyright's output for programs in a folder."""
    settings = {
        "include": programs,
        "strict": strict,
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "extraPaths": [str(SOURCE)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return run(folder, "basedpyright", "--pythonpath", sys.executable)
