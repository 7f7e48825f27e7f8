"""Warnings point to the program's own line."""

from __future__ import annotations

import asyncio
import linecache
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from drivers import driven
from palimpsest import AsyncMemory, Memory
from palimpsest.errors import PalimpsestWarning
from palimpsest.stores import STORES


def unbounded(told: list[warnings.WarningMessage]) -> list[str]:
    """Return the lines of warnings that nothing bounds a context."""
    meant = [one for one in told if "nothing bounds this context" in str(one.message)]
    assert all(one.category is PalimpsestWarning for one in meant)
    return [linecache.getline(one.filename, one.lineno).strip() for one in meant]


@pytest.fixture
def told() -> Any:
    """Every warning, as often as it comes."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


def test_an_unbounded_context_warns_once_at_the_callers_line(told: list[warnings.WarningMessage]) -> None:
    """Whichever session is first, of whatever tenant; not where a budget or a model's window bounds it."""
    with Memory.open("memory://") as memory:
        memory.session("a", max_tokens=1000).context()
        memory.session("b", model="gpt-4o").context()
        assert unbounded(told) == []

        memory.session("c").context()  # here
        memory.session("d").context()
        memory.for_tenant("other").session("e").context()

    assert unbounded(told) == ['memory.session("c").context()  # here']


@pytest.mark.parametrize("store", ["memory://", "file", "suspended://"])
def test_a_warning_in_asynchronous_code_points_to_its_line(
    store: str, tmp_path: Path, told: list[warnings.WarningMessage]
) -> None:
    """A warning in asynchronous code points to the program's line, even if the store was awaited."""
    STORES.register("suspended", lambda _, __: driven())

    async def main() -> None:
        async with AsyncMemory.open(tmp_path / "log" if store == "file" else store) as memory:
            chat = memory.session("s")
            await chat.add_user_message("hello")
            await chat.context()  # there

    asyncio.run(main())

    assert unbounded(told) == ["await chat.context()  # there"]


def test_an_unknown_model_warns_at_the_line_that_names_it(told: list[warnings.WarningMessage]) -> None:
    """The warning of an unknown model points to the line that names it and gives the nearest."""
    with Memory.open("memory://") as memory:
        memory.session("s", model="gpt-4oo", max_tokens=1000)

    (one,) = [one for one in told if "not in the table" in str(one.message)]
    assert linecache.getline(one.filename, one.lineno).strip().startswith('memory.session("s", model="gpt-4oo"')


def test_a_strategys_warning_points_to_the_line_that_gives_it(told: list[warnings.WarningMessage]) -> None:
    """A strategy's warning points to the line that gives it, also with a privacy policy or a declared memory."""
    nothing = {"memory_strategy_id": "max_tokens", "memory_max_tokens": 0}
    with Memory.open("memory://") as memory, Memory.open("memory://", privacy="default") as careful:
        memory.session("s", short_term=[nothing])
        careful.session("s", short_term=[nothing])

    lines = [linecache.getline(one.filename, one.lineno) for one in told if "no interaction" in str(one.message)]
    assert [line.split(".")[0].strip() for line in lines] == ["memory", "careful"]


def test_the_command_line_does_not_warn(tmp_path: Path) -> None:
    """The command line does not warn of a context without a budget, since it prints that."""
    with Memory.open(tmp_path / "log.db") as memory:
        memory.session("s").add_user_message("hello")

    ran = subprocess.run(
        [sys.executable, "-m", "palimpsest.cli", "--store", str(tmp_path / "log.db"), "context", "s"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "nothing bounds" not in ran.stderr
    assert "no budget" in ran.stdout + ran.stderr
