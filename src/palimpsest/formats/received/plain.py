"""Objects of a vendor's client as plain JSON, by what they are made of: no vendor's package is imported. Pure.

The clients' objects are models of pydantic, which tell their fields, and hold what they do not know beside them. What
came over the wire comes out as it was: a key that was not there is left out, and one that was null is null.
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
"""Keys under which Google's client holds bytes, that are base64 in JSON."""


def is_model(value: object) -> bool:
    """Whether a value is an object of a vendor's client, as far as one can see without knowing the client."""
    kind = type(value)
    return isinstance(getattr(kind, "model_fields", None), Mapping) and hasattr(kind, "model_fields_set")


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """The value with objects of clients in it as mappings; the same value where it holds none.

    What is neither plain JSON nor such an object stays as it is. Raises InvalidEntry over 100 levels.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEEPEST:
        raise InvalidEntry(where, f"more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        made = {key: _binary(key, plain(inner, where, depth + 1)) for key, inner in value.items()}
        same = kind is dict and all(made[key] is inner for key, inner in value.items())
        return value if same else made
    if kind is list or kind is tuple:
        items = [plain(inner, where, depth + 1) for inner in value]
        same = kind is list and all(one is other for one, other in zip(items, value, strict=True))
        return value if same else items
    return _fields(value, where, depth) if is_model(value) else _leaf(value)


def _leaf(value: Any) -> Any:
    """What a dump for Python holds of JSON's texts; any other value as it is."""
    if isinstance(value, str):  # of a class of its own, such as numpy's
        return str.__str__(value)
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, datetime | date) else value


def _fields(model: Any, where: str, depth: int) -> dict[str, Any]:
    """What an object of a client holds, by the names that its provider gives."""
    held, given = vars(model), model.model_fields_set
    found = {}
    for name, field in type(model).model_fields.items():
        value = held.get(name)
        if name not in held or (value is None and name not in given):
            continue
        key = field.alias if name.endswith("_") and field.alias else name  # `async_`, which is a word of Python
        found[key] = _binary(key, plain(value, where, depth + 1))
    for key, value in (getattr(model, "model_extra", None) or {}).items():
        found[key] = plain(value, where, depth + 1)
    return found


def _binary(key: object, value: Any) -> Any:
    return base64.urlsafe_b64encode(value).decode() if isinstance(value, bytes) and key in _BINARY else value
