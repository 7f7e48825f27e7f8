"""The OpenAPI document of the service, made of the types of its requests."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import Response

from palimpsest.resources.refusals import ANSWERS
from palimpsest.resources.service.requests import REQUESTS
from palimpsest.resources.service.routes import BASE, Operation

Schema = dict[str, Any]

REFERENCE: Schema = {
    "name": "ref", "in": "path", "required": True, "description": "The id of a declared memory.",
    "schema": {"type": "string"},
}  # fmt: skip
IDEMPOTENCY: Schema = {
    "name": "Idempotency-Key", "in": "header", "schema": {"type": "string"},
    "description": "A text that names this request: repeating it with the same text adds nothing.",
}  # fmt: skip
DONE: Schema = {
    "type": "object",
    "properties": {"status": {"const": 200}, "message": {"type": "string"}, "data": {"type": "object"}},
    "required": ["status", "message", "data"],
}
FAILED: Schema = {
    "type": "object",
    "properties": {
        "status": {"type": "integer"},
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object"},
            },
            "required": ["code", "message", "details"],
        },
    },
    "required": ["status", "error"],
}


def document(operations: Iterable[Operation], mounted: str = "") -> Response:
    """Return the OpenAPI document of these operations, and of the routes beside them.

    `mounted` is the path under which another application has them.
    """
    _, components = msgspec.json.schema_components(REQUESTS, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(REQUESTS, (components[kind.__name__] for kind in REQUESTS), strict=True))
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths[operation.path] = {operation.method.lower(): _described(operation, by_type[operation.request])}
    paths[f"{BASE}/memory/health"] = {"get": _answers("Check the store of every memory", {})}
    text = {"description": "The metrics, as text for Prometheus", "content": {"text/plain": {}}}
    told = {"200": text, **{status: _answer("Refused", FAILED) for status in ("400", "401")}}
    paths[f"{BASE}/metrics"] = {"get": {"summary": "What happened in the service", "responses": told}}
    body = {
        "openapi": "3.1.0",
        "info": {"title": "Palimpsest", "version": version("palimpsest-memory")},
        "servers": [{"url": mounted or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Done": DONE, "Failed": FAILED},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


def _described(operation: Operation, schema: Schema) -> Schema:
    """Describe one route: a request's fields are those of a body, or each a parameter of the address."""
    described: Schema = {"parameters": [REFERENCE]}
    if operation.writes:
        reference = {"$ref": f"#/components/schemas/{operation.request.__name__}"}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
        described["parameters"] += [IDEMPOTENCY] if operation.name == "append" else []
    else:
        required = schema.get("required", ())
        described["parameters"] += [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in schema["properties"].items()
        ]
    return _answers((operation.request.__doc__ or operation.name).rstrip("."), described)


def _answers(summary: str, described: Schema) -> Schema:
    statuses = sorted({400, 401, 404, 413, 500, *(status for _, status, _ in ANSWERS)})
    answers = {
        "200": _answer("Done", DONE),
        **{str(status): _answer("Refused or failed", FAILED) for status in statuses},
    }
    return {"summary": summary, **described, "responses": answers}


def _answer(description: str, schema: Schema) -> Schema:
    name = "Done" if schema is DONE else "Failed"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"description": description, "content": content}
