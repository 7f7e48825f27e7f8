"""JSON and SHA-256 of the standard library for modules that every start loads: loaded when they are first used."""

from __future__ import annotations

from typing import Any


def dumps(value: object, **how: Any) -> str:
    """As `json.dumps`."""
    text: str = _json().dumps(value, **how)
    return text


def loads(text: str | bytes) -> Any:
    """As `json.loads`."""
    return _json().loads(text)


def _json() -> Any:
    import json  # two milliseconds of a start

    return json


def sha256(data: bytes) -> bytes:
    """The 32 bytes of SHA-256."""
    import hashlib  # five milliseconds of a start

    return hashlib.sha256(data).digest()
