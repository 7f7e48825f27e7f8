"""JSON and SHA-256 of the standard library, imported on first use by modules that every start loads."""

from __future__ import annotations

from typing import Any


def dumps(value: object, **how: Any) -> str:
    """Like `json.dumps`."""
    text: str = _json().dumps(value, **how)
    return text


def loads(text: str | bytes) -> Any:
    """Like `json.loads`."""
    return _json().loads(text)


def _json() -> Any:
    import json  # adds 2 ms to a cold start

    return json


def sha256(data: bytes) -> bytes:
    """Return the 32 bytes of the SHA-256 digest."""
    import hashlib  # adds 5 ms to a cold start

    return hashlib.sha256(data).digest()
