"""The code has the shape that `docs/architecture.md` describes."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

import palimpsest

ROOT = Path(palimpsest.__file__).parent
PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"

GROUPS = frozenset(f"palimpsest.{group}" for group in ("formats", "sources", "stores", "strategies", "summarizers"))
"""Groups of entry points, which the page names, too."""


DOORS = {"palimpsest", "palimpsest.__main__"}
"""The root package, and what `python -m palimpsest` runs: they stand in front of the rooms, and in none."""

INDENTED = re.compile(r"^[ \t]+(from|import)\s", re.MULTILINE)
"""An import that does not stand at the left, or a line of a text that looks like one."""


@cache
def modules() -> Mapping[str, Path]:
    """Return every module and package by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> Mapping[str, AbstractSet[str]]:
    """Return what each module imports of the others, types included, without the root package and its door."""
    return {module: imported(module, path) for module, path in modules().items() if module not in DOORS}


def imported(module: str, path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in whole}
    return {name for name in found if name in modules()} - {"palimpsest", module}


def packages() -> set[str]:
    return {module for module, path in modules().items() if path.name == "__init__.py"} - {"palimpsest"}


def room(module: str) -> str:
    return module.split(".")[1]


def in_circles(graph: Mapping[str, AbstractSet[str]]) -> set[str]:
    """Return the modules that are left after repeatedly removing those that import nothing or are imported by
    nothing."""
    left = set(graph)
    while True:
        importing = {module for module in left if graph[module] & left}
        importers = {name for module in left for name in graph[module]}
        if importing & importers == left:
            return left
        left = importing & importers


def floors(graph: Mapping[str, AbstractSet[str]]) -> int:
    """Return the length of the longest path downwards through the rooms."""

    @cache
    def below(name: str) -> int:
        return 1 + max((below(other) for other in graph[name]), default=0)

    return max(map(below, graph))


def imports_inside_functions() -> dict[tuple[str, int], bool]:
    """Return module and line of each import inside a function, and whether a comment says why."""
    found = {}
    for module, path in modules().items():
        text = path.read_text(encoding="utf-8")
        if not INDENTED.search(text):
            continue
        lines = text.splitlines()
        functions = [
            node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for node in (inner for function in functions for inner in ast.walk(function)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                above = lines[node.lineno - 2].strip()
                own = "".join(lines[node.lineno - 1 : node.end_lineno])
                found[module, node.lineno] = says_why(own) or (above.startswith("#") and says_why(above))
    return found


def says_why(line: str) -> bool:
    """Whether the line has a comment for readers, not only for linters."""
    comments = [comment.strip() for comment in line.split("#")[1:]]
    return any(not comment.startswith(("type:", "noqa:")) or "(" in comment for comment in comments)


def rooms() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {room(module): set() for module in imports()}
    for module, others in imports().items():
        graph[room(module)] |= {room(other) for other in others} - {room(module)}
    return graph


def test_every_module_named_on_the_page_exists() -> None:
    """Every path of a module on the page leads to a module, or to a name in one."""
    named = set(re.findall(r"`(palimpsest(?:\.\w+)+)`", PAGE.read_text(encoding="utf-8"))) - GROUPS

    lost = {name for name in named if name not in modules() and name.rpartition(".")[0] not in modules()}

    assert lost == set()
    assert named


def test_the_page_names_every_package() -> None:
    """A reader finds each package on the page, and in the list of layers each that stands in the root."""
    page = PAGE.read_text(encoding="utf-8")

    assert {package for package in packages() if f"`{package}`" not in page} == set()
    layers = page.partition("## The layers")[2].partition("```text\n")[2].partition("```")[0]
    assert set(re.findall(r"\w+", layers)) == set(rooms())


def test_the_root_package_is_small() -> None:
    """The root package holds at most 20 files and folders beside those that Python looks for there and nowhere else."""
    needed = {"__init__.py", "__main__.py", "py.typed"}
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}

    assert needed <= entries
    assert len(entries - needed) <= 20, sorted(entries)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """No modules import each other in a circle, at run time or for types."""
    assert in_circles(imports()) == set()


def test_the_packages_form_few_layers() -> None:
    """The packages of the root stand on at most 11 floors, and none imports in a circle."""
    graph = rooms()

    assert in_circles(graph) == set()
    assert floors(graph) <= 11


def test_few_imports_stand_inside_functions() -> None:
    """Fewer than 135 imports stand inside functions, and each says why: it costs much, or is an extra's.

    Most spare a cold start the modules of verbs that it does not use.
    """
    inside = imports_inside_functions()

    assert [place for place, explained in inside.items() if not explained] == []
    assert 0 < len(inside) < 135


FACES = {
    "palimpsest.sessions.memory",
    "palimpsest.sessions.session",
    "palimpsest.sessions.sync",
}
"""What says what every verb promises: signatures and docstrings. `sync` is generated from the first two."""


def test_no_module_is_longer_than_350_lines() -> None:
    """No module has more than 350 lines, except the public classes of sessions and memories."""
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in modules().items()}

    assert {module for module, number in lines.items() if number > 350} <= FACES


def test_parts_of_sessions_are_held_and_not_inherited() -> None:
    """In the package of sessions no class inherits from a class that itself inherits from a third one."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module, path in modules().items()
        if module.startswith("palimpsest.sessions.")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    variants = {name for name, own in bases.items() if own & bases.keys()}

    assert {name for name in variants if bases[name] & variants} == set()
    assert bases["AsyncSession"] == bases["AsyncMemory"] == set()


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 gets `(?:...)*+` wrong where the group may be matched in several ways: it finds other text.
    `(?>(?:...)*)` means the same, and is right everywhere."""
    possessive = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in ROOT.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if possessive.search(line)
    }

    assert found == set()


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12.0 to 3.12.3 takes the `?1` of an SQL statement for a name, and warns at each execution."""
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in ROOT.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"(?<![0-9])\?[0-9]", line)
    }

    assert found == set()


def test_every_extra_named_in_an_error_exists() -> None:
    """Every extra that an error advises to install exists."""
    there = set(
        tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    )
    named = {
        node.args[1].value
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MissingExtra"
        if isinstance(node.args[1], ast.Constant)
    }

    assert named >= {"config", "encryption", "postgres"}
    assert named <= there
