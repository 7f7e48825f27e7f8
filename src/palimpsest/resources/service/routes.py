"""`Operation`: a route of the service on one memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from starlette.requests import Request

from palimpsest.resources import AsyncDeclaredMemory
from palimpsest.resources.replies import Reply
from palimpsest.resources.service.requests import RequestFields

BASE = "/api/v0"
"""The path under which all routes are."""

Verb: TypeAlias = Callable[[AsyncDeclaredMemory, Any, Request], Awaitable[Reply]]


class Operation(NamedTuple):
    """One operation on a memory.

    `request` is the type of what a request says. An operation that `writes` changes the memory: its request is the JSON
    body of a POST; that of others is the query of a GET. `verb` does it, `message` says in the answer that it was done.
    """

    name: str
    request: type[RequestFields]
    writes: bool
    verb: Verb
    message: str

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return "POST" if self.writes else "GET"

    @property
    def path(self) -> str:
        """The path, in which `{ref}` stands for the id of a memory."""
        return f"{BASE}/memory/{{ref}}/{self.name}"
