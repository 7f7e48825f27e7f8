"""`Memory` and `Session` are written by `tools/make_sync.py` out of `AsyncMemory` and `AsyncSession`."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from palimpsest import WorkingMemory
from palimpsest.sessions import sync
from palimpsest.sessions.knowledge_sync import Knowledge
from test_async import FACES, verbs

TOOL = Path(__file__).resolve().parent.parent / "tools" / "make_sync.py"
FILE = Path(sync.__file__)


def make_sync(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the tool."""
    command = [sys.executable, TOOL, *arguments]
    return subprocess.run(command, capture_output=True, check=False, encoding="utf-8")


def test_the_synchronous_classes_are_what_the_tool_writes() -> None:
    """Whoever changes a verb of an asynchronous class runs the tool: the file in the tree is what it writes."""
    done = make_sync("--check")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run `python tools/make_sync.py`"


@pytest.mark.wide
def test_a_file_that_was_edited_is_told_and_written_anew(tmp_path: Path) -> None:
    """A default that was changed by hand ends the check with 1 and is in the difference; writing takes it back."""
    for name in ("sync.py", "working_sync.py"):
        shutil.copy(FILE.with_name(name), tmp_path)
    edited, text = tmp_path / "sync.py", FILE.read_text(encoding="utf-8")
    edited.write_text(text.replace('status: Status = "unknown"', 'status: Status = "success"', 1), encoding="utf-8")

    checked, written = make_sync("--check", "--into", tmp_path), make_sync("--into", tmp_path)

    assert checked.returncode == 1
    changed = [line for line in checked.stdout.splitlines() if re.match(r"[-+] ", line)]
    assert changed == ['-        status: Status = "success",', '+        status: Status = "unknown",']
    assert (written.returncode, edited.read_text(encoding="utf-8")) == (0, text)


def test_editors_see_a_docstring_on_every_verb_that_speaks_of_no_event_loop() -> None:
    """In the source both classes, every verb and every property have a docstring, and none waits or is asynchronous."""
    classes = [node for node in ast.parse(FILE.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    told = {cls.name: ast.get_docstring(cls) for cls in classes}
    for cls in classes:
        functions = [node for node in cls.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
        told |= {f"{cls.name}.{node.name}": ast.get_docstring(node) for node in functions}

    assert {name for name, docstring in told.items() if not docstring} == set()
    assert {
        name for name, docstring in told.items() if re.search("async|await", docstring or "", re.IGNORECASE)
    } == set()
    assert len(told) > 50


@pytest.mark.parametrize(("core", "face"), FACES)
def test_both_classes_tell_the_same_of_a_verb(core: type, face: type) -> None:
    """A program sees one docstring in both classes, but for four in which a few words fit one of them alone."""
    shared = set(verbs(core)) & set(verbs(face)) - {"open", "connect", "turn", "stream"}

    assert {name for name in shared if getattr(face, name).__doc__ != getattr(core, name).__doc__} == set()
    assert {name for name in set(verbs(core)) & set(verbs(face)) if not getattr(core, name).__doc__} == set()


RETURNED = object()
"""What every verb of a `Recorded` returns."""


class Recorded:
    """A core that keeps what its verbs were given, by the names of their parameters, and does nothing."""

    def __init__(self, core: type) -> None:
        self.core = core
        self.given: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self.core, name)

        async def nothing() -> object:
            return RETURNED

        def called(*args: Any, **options: Any) -> Coroutine[Any, Any, object] | object:
            self.given = dict(inspect.signature(verb).bind(self, *args, **options).arguments)
            return nothing() if inspect.iscoroutinefunction(verb) else RETURNED

        return called


@pytest.mark.parametrize(("core", "face"), FACES)
def test_every_verb_hands_on_what_it_was_given(core: type, face: type) -> None:
    """Each argument reaches the parameter of its name, and what comes back is returned, a session in its face."""
    for name, verb in verbs(face).items():
        if isinstance(verb, property | classmethod) or name == "bind":  # which is of the face itself
            continue
        recorded = Recorded(core)
        _, *parameters = inspect.signature(getattr(face, name)).parameters.values()
        given: dict[str, Any] = {
            one.name: ("many",) if one.kind is one.VAR_POSITIONAL else {"x": 1} if one.kind is one.VAR_KEYWORD else one
            for one in parameters
        }
        bound = inspect.BoundArguments(inspect.signature(getattr(face, name)), {"self": face(recorded), **given})

        returned = getattr(face, name)(*bound.args, **bound.kwargs)

        assert {**recorded.given, "self": None} == {**given, "self": None}, name
        annotation = inspect.signature(getattr(face, name)).return_annotation
        if annotation == "Session":
            assert (type(returned), returned._core) == (sync.Session, RETURNED), name
        elif annotation == "Memory":
            assert (type(returned), returned._core) == (sync.Memory, RETURNED), name
        elif annotation == "WorkingMemory":
            assert (type(returned), returned._core) == (WorkingMemory, RETURNED), name
        elif annotation == "Knowledge":
            assert (type(returned), returned._core) == (Knowledge, RETURNED), name
        elif name not in ("turn", "stream"):
            assert returned == (None if annotation == "None" else RETURNED), name
