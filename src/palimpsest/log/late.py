"""JSON and SHA-256 of the standard library, loaded where they are first used: two and five milliseconds of a start."""

from __future__ import annotations

from typing import Any


def dumps(value: object, **how: Any) -> str:
    """As `json.dumps`."""
    import json  # see above

    return json.dumps(value, **how)


def loads(text: str | bytes) -> Any:
    """As `json.loads`."""
    import json  # see above

    return json.loads(text)


def sha256(data: bytes) -> bytes:
    """The 32 bytes of SHA-256."""
    import hashlib  # see above

    return hashlib.sha256(data).digest()
