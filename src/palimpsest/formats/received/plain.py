"""Conversion of vendors' client objects to plain JSON, without importing any vendor's package. Pure.

The clients' objects are pydantic models, which list their fields and keep unknown keys as extras. The result is what
came over the wire: an absent key is left out, and a null stays null.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date, datetime
from enum import Enum
from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.log.checks import DEEPEST

_PLAIN = frozenset({str, int, float, bool, type(None)})
_BINARY = frozenset({"data", "thought_signature", "thoughtSignature", "continuation_token"})
"""Keys under which Google's client holds bytes, which are base64 in JSON."""


def is_model(value: object) -> bool:
    """Whether a value looks like an object of a vendor's client: a pydantic model."""
    kind = type(value)
    return isinstance(getattr(kind, "model_fields", None), Mapping) and hasattr(kind, "model_fields_set")


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return the value with all client objects in it as mappings; the same object if it holds none.

    Anything else that is no plain JSON stays as it is. Raises InvalidEntry if it is more than 100 levels deep.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEEPEST:
        raise InvalidEntry(where, f"more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        converted = {key: _binary(key, plain(inner, where, depth + 1)) for key, inner in value.items()}
        same = kind is dict and all(converted[key] is inner for key, inner in value.items())
        return value if same else converted
    if kind is list or kind is tuple:
        items = [plain(inner, where, depth + 1) for inner in value]
        same = kind is list and all(item is inner for item, inner in zip(items, value, strict=True))
        return value if same else items
    return _fields(value, where, depth) if is_model(value) else _leaf(value)


def _leaf(value: Any) -> Any:
    """Return a value of a Python dump that stands for a text in JSON as that text; any other value unchanged."""
    if isinstance(value, str):  # a subclass, such as numpy's
        return str.__str__(value)
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, datetime | date) else value


def _fields(model: Any, where: str, depth: int) -> dict[str, Any]:
    """Return the values of a client object, by the names that its provider uses."""
    attributes, fields_set = vars(model), model.model_fields_set
    values = {}
    for name, field in type(model).model_fields.items():
        value = attributes.get(name)
        if name not in attributes or (value is None and name not in fields_set):
            continue
        key = field.alias if name.endswith("_") and field.alias else name  # `async_` is `async` in JSON
        values[key] = _binary(key, plain(value, where, depth + 1))
    for key, value in (getattr(model, "model_extra", None) or {}).items():
        values[key] = plain(value, where, depth + 1)
    return values


def _binary(key: object, value: Any) -> Any:
    return base64.urlsafe_b64encode(value).decode() if isinstance(value, bytes) and key in _BINARY else value
