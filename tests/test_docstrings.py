"""What an editor shows of a public name says what each of its parameters means."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec
import pytest

import palimpsest
from palimpsest import (
    AsyncMemory,
    AsyncSession,
    AsyncWorkingMemory,
    Memory,
    Session,
    WorkingMemory,
    errors,
    strategies,
    types,
)
from palimpsest.sessions.options import GivenOptions
from palimpsest.stores.options import StoreOptions

CLASSES = {
    name: value
    for home in (palimpsest, errors, strategies, types)
    for name in home.__all__
    if inspect.isclass(value := getattr(home, name))
}
FACES = {
    "Memory": Memory,
    "AsyncMemory": AsyncMemory,
    "Session": Session,
    "AsyncSession": AsyncSession,
    "WorkingMemory": WorkingMemory,
    "AsyncWorkingMemory": AsyncWorkingMemory,
    "Knowledge": types.Knowledge,
    "AsyncKnowledge": types.AsyncKnowledge,
}
GIVEN = {*FACES, "Answer", "Context"}
"""What programs are given, and never make themselves: how it is made is not told."""
MADE = {
    *(
        name
        for name in strategies.__all__
        if name not in {"Plan", "Reply", "Snapshot", "Step", "Strategy", "TriggerDecision"}
    ),
    *("Keys", "Policy", "Query", "Redactor"),
}
"""What programs make: how stands under `Args:`, one by one."""
OPTIONS = {"session": GivenOptions.__struct_fields__, "open": StoreOptions.__annotations__}
"""What `**options` of a verb may be."""


def listed(told: str) -> set[str]:
    """Return the parameters that are listed under `Args:`."""
    return set(re.findall(r"^    (\w+): \S", told.partition("Args:\n")[2], re.MULTILINE))


def parameters(value: Any, name: str = "") -> set[str]:
    """Return the names of a callable's parameters."""
    if inspect.isclass(value) and issubclass(value, msgspec.Struct):
        return set(value.__struct_fields__)
    if inspect.isclass(value) and "palimpsest" not in getattr(
        value.__init__, "__module__", "palimpsest" * issubclass(value, tuple)
    ):
        return set()  # a builtin's own
    given = inspect.signature(value).parameters.values()
    names = {one.name for one in given if one.kind != one.VAR_KEYWORD} - {"self", "cls"}
    return names | {option for one in given if one.kind == one.VAR_KEYWORD for option in OPTIONS[name]}


def verbs(value: type) -> Iterator[tuple[str, Any]]:
    """Return the public functions of a class that this project defines."""
    for name in dir(value):
        verb = getattr(value, name)
        ours = (getattr(verb, "__module__", None) or "").startswith("palimpsest.")
        if ours and not name.startswith("_") and inspect.isroutine(verb):
            yield name, verb


@cache
def classes_of(module: ModuleType) -> dict[str, ast.ClassDef]:
    body = ast.parse(inspect.getsource(module)).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def told_of(value: type) -> str:
    """Return the docstrings of a class and its bases, and the names of their documented fields."""
    texts = []
    for one in value.__mro__:
        if one.__module__.startswith("palimpsest."):
            texts.append(inspect.cleandoc(one.__doc__ or ""))
            fields = classes_of(import_module(one.__module__))[one.__name__].body
            for node, after in pairwise(fields):
                if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                    texts.append(f"`{ast.unparse(node.target)}`")
    return "\n".join(texts)


def unnamed(names: set[str], told: str) -> set[str]:
    """Return the names that a text neither lists nor marks as code."""
    return {name for name in names - listed(told) if not re.search(rf"`{name}\b", told)}


@pytest.mark.parametrize("face", FACES)
def test_every_option_of_a_verb_is_listed(face: str) -> None:
    """Each public verb of a memory or session has a line for each of its parameters, and for no other."""
    wrong = {}
    for name, verb in verbs(FACES[face]):
        there = listed(inspect.getdoc(verb) or "")
        if there != (names := parameters(verb, name)):
            wrong[name] = (sorted(names - there), sorted(there - names))

    assert wrong == {}


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_option_of_a_public_object_is_listed(name: str) -> None:
    """The docstring of a strategy, a policy, keys or the like has a line for each option, inherited ones, too."""
    assert listed(inspect.getdoc(CLASSES[name]) or "") == parameters(CLASSES[name])


@pytest.mark.parametrize("name", sorted(set(CLASSES) - GIVEN))
def test_every_parameter_of_a_public_class_is_named(name: str) -> None:
    """How a class is made, and what each of its functions takes, is told by name."""
    value = CLASSES[name]
    own = set() if issubclass(value, dict) else unnamed(parameters(value), told_of(value))

    lost = {verb: unnamed(parameters(one, verb), inspect.getdoc(one) or "") for verb, one in verbs(value)}

    assert own == set()
    assert {verb: names for verb, names in lost.items() if names} == {}
