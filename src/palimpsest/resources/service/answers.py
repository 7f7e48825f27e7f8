"""The form of every answer: `{status, message, data}`, or for an error `{status, error {code, message, details}}`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from palimpsest.resources.refusals import Refusal


def answered(message: str, data: object) -> Response:
    """Return the answer of an operation that was done."""
    return _json(200, {"status": 200, "message": message, "data": data})


def refused(refusal: Refusal) -> Response:
    """Return the answer of a request that was refused or failed."""
    return _json(refusal.status, {"status": refusal.status, "error": refusal.error}, dict(refusal.headers))


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(value),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )
