"""The public names and the four modules they live in."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import palimpsest
from palimpsest import errors, resources, strategies, types
from palimpsest.compat import agterm, firefly

HOMES: dict[str, ModuleType] = {
    module.__name__: module  # type: ignore[attr-defined]
    for module in (palimpsest, errors, strategies, types)
}
LAZY = [palimpsest, strategies, types]
DOORS = [agterm, firefly, resources]
"""Names for some programs alone, such as those of other memories: two doors may have the same ones."""
NAMES = [(home, name) for home, module in HOMES.items() for name in module.__all__]


def documented(module: ModuleType, name: str) -> bool:
    """Whether a text documents this name of a module."""
    body = source(module).body
    return any(
        [target.id for target in targets(node) if isinstance(target, ast.Name)] == [name]
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        for node, after in pairwise(body)
    )


def targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def source(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))


def imported_for_type_checkers(module: ModuleType) -> dict[str, str]:
    """Return the names that the TYPE_CHECKING block imports, with their modules."""
    blocks = [
        node for node in source(module).body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    assert len(blocks) == 1
    found = {}
    for statement in blocks[0].body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            assert alias.asname == alias.name, f"{alias.name} is not exported: write `import X as X`"
            assert alias.name not in found
            found[alias.name] = str(statement.module).removeprefix("palimpsest.")
    return found


@pytest.mark.parametrize("home", HOMES)
def test_the_list_of_public_names_is_sorted(home: str) -> None:
    """`__all__` is sorted and names nothing twice."""
    assert list(HOMES[home].__all__) == sorted(set(HOMES[home].__all__))


@pytest.mark.parametrize("module", [*LAZY, *DOORS], ids=lambda module: module.__name__)
def test_imports_for_type_checkers_equal_the_lazy_names(module: ModuleType) -> None:
    """The table of homes and the imports for type checkers agree name by name, module by module."""
    assert imported_for_type_checkers(module) == module._HOMES
    assert set(module._HOMES) == set(module.__all__)


def test_each_name_is_in_one_public_module() -> None:
    """A name is in one public module only, except common errors, which are at the top as well."""
    homes = {name: [home for home, module in HOMES.items() if name in module.__all__] for _, name in NAMES}

    twice = {name: found for name, found in homes.items() if len(found) > 1}

    assert all(found == ["palimpsest", "palimpsest.errors"] for found in twice.values()), twice
    assert all(issubclass(getattr(palimpsest, name), Exception) for name in twice)
    assert all(getattr(palimpsest, name) is getattr(errors, name) for name in twice)


def test_at_most_40_names_are_at_the_top() -> None:
    """At most 40 names are at the top."""
    assert len(palimpsest.__all__) <= 40


@pytest.mark.parametrize(("home", "name"), NAMES)
def test_every_public_name_resolves_and_is_documented(home: str, name: str) -> None:
    """A public name resolves to the thing of that name in the module that it comes from, and has a docstring."""
    module = HOMES[home]
    origin = f"palimpsest.{module._HOMES[name]}" if module in LAZY else home

    value = getattr(module, name)

    assert value is getattr(import_module(origin), name)
    assert getattr(module, name) is value
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value)
        assert value.__module__ == origin
    else:
        assert documented(import_module(origin), name), "an alias has its meaning under it"


@pytest.mark.parametrize("module", [*LAZY, *DOORS], ids=lambda module: module.__name__)
def test_nothing_else_is_public(module: ModuleType) -> None:
    """A home defines and lists no other public name, and an unknown one is an AttributeError that names it."""
    defined = {name for node in source(module).body for name in _assigned(node) if not name.startswith("_")}

    assert defined == set()
    assert dir(module) == list(module.__all__)
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Memroy'"):
        module.Memroy  # noqa: B018 (the look-up is the test)


def _assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def test_every_error_is_public() -> None:
    """`palimpsest.errors` lists each error and warning that is defined in it."""
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == "palimpsest.errors"
    }

    assert defined == set(errors.__all__)


def test_errors_that_a_public_verb_raises_are_public() -> None:
    """Every error named under "Raises" in a docstring of a public class is a public name or a builtin."""
    named = set()
    for home, name in NAMES:
        value = getattr(HOMES[home], name)
        if not inspect.isclass(value):
            continue
        texts = [inspect.getdoc(value), *(inspect.getdoc(getattr(value, verb)) for verb in _verbs(value))]
        words = {word.strip(".,:;()`") for text in texts if text for word in text.split()}
        named |= words & _error_names()

    assert named <= set(errors.__all__)
    assert {"InvalidEntry", "Conflict"} <= named


def _verbs(value: type) -> list[str]:
    return [name for name in vars(value) if not name.startswith("_")]


def _error_names() -> set[str]:
    values = vars(errors).values()
    return {value.__name__ for value in values if inspect.isclass(value) and issubclass(value, Exception)}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_public_error_has_one_root(name: str) -> None:
    """Every public error derives from `PalimpsestError`."""
    error = getattr(errors, name)

    assert issubclass(error, palimpsest.PalimpsestError | palimpsest.PalimpsestWarning)
    assert not issubclass(palimpsest.PalimpsestError, (ValueError, LookupError, OSError))
