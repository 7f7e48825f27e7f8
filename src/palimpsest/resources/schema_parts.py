"""Pieces that schemas are made of, and what structs and their docstrings say of a field. Pure."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from inspect import cleandoc, getsource
from typing import Any, TypeAlias

import msgspec

from palimpsest.resources.schema_texts import TEXTS as TEXTS_INSIDE
from palimpsest.sessions.options import GivenOptions

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "array", "items": TEXT}
SWITCH: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer", "minimum": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
SHARE: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
PART: Schema = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
"""A share that is less than all of it."""
LENGTH: Schema = {"type": ["string", "number"], "examples": ["45s", "1h30m", "30d", "5 minutes"]}
"""A length of time, as text or in seconds."""
ANY: Schema = {"type": "object"}
NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,100}$"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def or_null(*given: Schema) -> Schema:
    return {"anyOf": [*given, {"type": "null"}]}


def words(names: Sequence[str]) -> Schema:
    """One of these, in any letter case, those that are completed first."""
    written = "|".join("".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in name) for name in names)
    return {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": f"^({written})$"}]}


def closed(properties: Mapping[str, Schema], required: Iterable[str] = (), **more: Any) -> Schema:
    """An object of these keys, and of no other."""
    needed = list(required)
    return {
        "type": "object",
        "properties": dict(properties),
        **({"required": needed} if needed else {}),
        "additionalProperties": False,
        **more,
    }


def inside(key: str, properties: Mapping[str, Schema], texts: Mapping[str, str] | None = None) -> dict[str, Schema]:
    """The keys that stand inside of another one, each with what it is for."""
    told = {**(texts or {}), **TEXTS_INSIDE[key]}
    return {name: {**one, "description": told.get(name, "")} for name, one in properties.items()}


def one_or_many(name: str) -> Schema:
    return or_null(ref(name), {"type": "array", "items": ref(name)})


def chosen(key: str, kinds: Mapping[str, Schema], other: Schema) -> Schema:
    """What depends on the word under a key."""
    found = other
    for word, one in reversed(list(kinds.items())):
        found = {"if": {"properties": {key: {"const": word}}, "required": [key]}, "then": one, "else": found}
    return found


# --- what structs and their docstrings say


def fields(struct: type[msgspec.Struct]) -> dict[str, Schema]:
    """The fields of a struct that is made of a mapping, each with what the docstring says of it."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    told, found = arguments(struct.__doc__), dict[str, Schema]()
    for name, one in components[struct.__name__]["properties"].items():
        if name == "triggers":
            found[name] = {"anyOf": [ref("triggers"), {"type": "null"}]}
        elif one.get("type") == "array":  # a list of texts, which may be missing
            found[name] = or_null({"type": "array", "items": one["items"]}) | {"default": one["default"]}
        else:
            found[name] = dict(one)
        if name in told:
            found[name]["description"] = told[name]
    return found


def arguments(text: str | None) -> dict[str, str]:
    """What stands under `Args:` of a docstring, by name."""
    _, _, listed = cleandoc(text or "").partition("Args:\n")
    joined = re.sub(r"\n {5,}", " ", textwrap.dedent(listed).replace("\n    ", "\n     "))
    return dict(re.findall(r"^(\w+): (.+)$", joined, re.MULTILINE))


def option_texts() -> dict[str, str]:
    """What the source says of each option of a session; nothing, where there is no source."""
    try:
        body = ast.parse(getsource(GivenOptions)).body[0]
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef), "it is the source of a class"
    found, name = dict[str, str](), ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = cleandoc(str(node.value.value)).replace("\n", " ")
    return found
