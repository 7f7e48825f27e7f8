"""What in the JSON schema of a secret is no value and stays, as in `"password": {"type": "string"}`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_FORMATS = frozenset(
    (
        *("password", "email", "uri", "uri-reference", "uuid", "date-time", "date", "time", "duration", "hostname"),
        *("ipv4", "ipv6", "byte", "binary", "regex", "json-pointer", "int32", "int64", "float", "double"),
    )
)
_BOUNDS = frozenset(
    (
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_CHOICES = ("anyOf", "oneOf", "allOf", "$ref")


def is_schema(value: Mapping[Any, Any]) -> bool:
    """Return whether a mapping may be a JSON schema."""
    return _is_type(value.get("type")) or any(key in value for key in _CHOICES)


def says_no_value(key: Any, value: Any, schema: Mapping[Any, Any]) -> bool:
    """Return whether this pair of a `schema` only says which values it allows, and is no secret itself."""
    if key == "type":
        return _is_type(value)
    if key == "format":
        return isinstance(value, str) and value in _FORMATS
    if key == "$ref":
        return isinstance(value, str) and value.startswith("#/")
    if key == "required":
        names = schema.get("properties")
        return isinstance(names, Mapping) and isinstance(value, list) and all(name in [*names] for name in value)
    return key in _BOUNDS and isinstance(value, int | float)


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_type, value))
    return isinstance(value, str) and value in _TYPES
