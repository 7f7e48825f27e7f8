"""Building blocks of schemas, and the schemas and descriptions of fields, taken from structs and docstrings. Pure."""

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
"""A share above 0 and below 1."""
LENGTH: Schema = {"type": ["string", "number"], "examples": ["45s", "1h30m", "30d", "5 minutes"]}
"""A duration, as text or in seconds."""
ANY: Schema = {"type": "object"}
NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,100}$"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def or_null(*given: Schema) -> Schema:
    return {"anyOf": [*given, {"type": "null"}]}


def words(names: Sequence[str]) -> Schema:
    """Return the schema of one of these words in any letter case; editors complete them as they are given."""
    written = "|".join("".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in name) for name in names)
    return {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": f"^({written})$"}]}


def closed(properties: Mapping[str, Schema], required: Iterable[str] = (), **more: Any) -> Schema:
    """Return the schema of an object with these keys and no others."""
    needed = list(required)
    return {
        "type": "object",
        "properties": dict(properties),
        **({"required": needed} if needed else {}),
        "additionalProperties": False,
        **more,
    }


def inside(key: str, properties: Mapping[str, Schema], texts: Mapping[str, str] | None = None) -> dict[str, Schema]:
    """Return the schemas of the keys within another one, with their descriptions, which those of `schema_texts`
    override."""
    descriptions = {**(texts or {}), **TEXTS_INSIDE[key]}
    return {name: {**schema, "description": descriptions.get(name, "")} for name, schema in properties.items()}


def one_or_many(name: str) -> Schema:
    return or_null(ref(name), {"type": "array", "items": ref(name)})


def chosen(key: str, kinds: Mapping[str, Schema], other: Schema) -> Schema:
    """Return a schema that depends on the word under a key: the one of that word, else `other`."""
    schema = other
    for word, of_word in reversed(list(kinds.items())):
        schema = {"if": {"properties": {key: {"const": word}}, "required": [key]}, "then": of_word, "else": schema}
    return schema


# --- from structs and their docstrings


def fields(struct: type[msgspec.Struct]) -> dict[str, Schema]:
    """Return the schema of each field of a struct, with the description that its docstring has."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    descriptions, schemas = arguments(struct.__doc__), dict[str, Schema]()
    for name, schema in components[struct.__name__]["properties"].items():
        if name == "triggers":
            schemas[name] = {"anyOf": [ref("triggers"), {"type": "null"}]}
        elif schema.get("type") == "array":  # a list of texts, for which a file may say null
            schemas[name] = or_null({"type": "array", "items": schema["items"]}) | {"default": schema["default"]}
        else:
            schemas[name] = dict(schema)
        if name in descriptions:
            schemas[name]["description"] = descriptions[name]
    return schemas


def arguments(text: str | None) -> dict[str, str]:
    """Return the descriptions under `Args:` of a docstring, by name."""
    _, _, listed = cleandoc(text or "").partition("Args:\n")
    joined = re.sub(r"\n {5,}", " ", textwrap.dedent(listed).replace("\n    ", "\n     "))
    return dict(re.findall(r"^(\w+): (.+)$", joined, re.MULTILINE))


def option_texts() -> dict[str, str]:
    """Return the docstrings of the options of a session, out of the source; none if the source is not installed."""
    try:
        body = ast.parse(getsource(GivenOptions)).body[0]
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef), "it is the source of a class"
    texts, name = dict[str, str](), ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            texts[name] = cleandoc(str(node.value.value)).replace("\n", " ")
    return texts
