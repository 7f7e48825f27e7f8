"""The names that users may rely on."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import palimpsest
from palimpsest.errors import PalimpsestError

SOURCE = ast.parse(Path(palimpsest.__file__).read_text(encoding="utf-8"))


def imported_for_type_checkers() -> dict[str, str]:
    """The names that the TYPE_CHECKING block imports, with the module that each comes from."""
    blocks = [node for node in SOURCE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    assert len(blocks) == 1
    found = {}
    for statement in blocks[0].body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            assert alias.asname == alias.name, f"{alias.name} is not exported: write `import X as X`"
            assert alias.name not in found
            found[alias.name] = str(statement.module).removeprefix("palimpsest.")
    return found


def test_the_list_of_public_names_is_sorted() -> None:
    """`__all__` is sorted and names nothing twice."""
    assert list(palimpsest.__all__) == sorted(set(palimpsest.__all__))


def test_what_type_checkers_see_is_what_programs_get() -> None:
    """The table of homes and the imports for type checkers agree name by name, module by module."""
    assert imported_for_type_checkers() == palimpsest._HOMES
    assert set(palimpsest._HOMES) == set(palimpsest.__all__)


@pytest.mark.parametrize("name", palimpsest.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """A public name resolves to the thing of that name in its home, and a class or function has a docstring."""
    value = getattr(palimpsest, name)

    assert value is getattr(import_module(f"palimpsest.{palimpsest._HOMES[name]}"), name)
    assert getattr(palimpsest, name) is value
    assert inspect.getdoc(value)
    assert value.__module__ == f"palimpsest.{palimpsest._HOMES[name]}"


def test_nothing_else_is_public() -> None:
    """The package defines and lists no other public name, and an unknown one is an AttributeError that names it."""
    defined = {name for node in SOURCE.body for name in _assigned(node) if not name.startswith("_")}

    assert defined == set()
    assert dir(palimpsest) == list(palimpsest.__all__)
    with pytest.raises(AttributeError, match="module 'palimpsest' has no attribute 'Memroy'"):
        palimpsest.Memroy  # noqa: B018 (the look-up is the test)


def _assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def test_errors_that_a_public_verb_raises_are_public() -> None:
    """Every error named under "Raises" in a docstring of a public class is a public name or a builtin."""
    named = set()
    for name in palimpsest.__all__:
        value = getattr(palimpsest, name)
        if not inspect.isclass(value):
            continue
        texts = [inspect.getdoc(value), *(inspect.getdoc(getattr(value, verb)) for verb in _verbs(value))]
        words = {word.strip(".,:;()`") for text in texts if text for word in text.split()}
        named |= words & _error_names()

    assert named <= set(palimpsest.__all__)
    assert {"InvalidEntry", "Conflict"} <= named


def _verbs(value: type) -> list[str]:
    return [name for name in vars(value) if not name.startswith("_")]


def _error_names() -> set[str]:
    from palimpsest import errors

    values = vars(errors).values()
    return {value.__name__ for value in values if inspect.isclass(value) and issubclass(value, PalimpsestError)}


@pytest.mark.parametrize("name", [name for name in palimpsest.__all__ if name in _error_names()])
def test_every_public_error_has_one_root(name: str) -> None:
    """Whoever catches `PalimpsestError` catches every error that Palimpsest raises on purpose."""
    error = getattr(palimpsest, name)

    assert issubclass(error, palimpsest.PalimpsestError)
    assert not issubclass(palimpsest.PalimpsestError, (ValueError, LookupError, OSError))
