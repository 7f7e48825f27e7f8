"""`Guard`: what every request passes before an operation: who may ask, from where, and how much it may send.

Without a token the service answers programs on its own machine. Pages of other sites in a browser on that machine must
not reach it, so a request must name the machine itself as its host, and a change must say that it is JSON, which
browsers do not send to other sites without asking them first.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from palimpsest.errors import ConfigError
from palimpsest.log.values import is_whole, texts
from palimpsest.resources.refusals import Refusal
from palimpsest.resources.service.answers import refused

BODY_BYTES = 4_194_304
"""The most bytes of a request's body, by default. What it may hold is further limited by the memory that it is for."""

LEAST_TOKEN = 16
"""The fewest characters of a token."""


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach a host, given by its name or address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses requests without the `token`, or if there is none, those that name another host than this machine.

    It also refuses changes that are not JSON, and bodies over `body_bytes`. `hosts` are further names by which the
    service may be asked. `note` is called with the method, the status and the code of what is refused. Raises
    ConfigError for a token that is too short.
    """

    def __init__(
        self,
        app: ASGIApp,
        note: Callable[[str, int, str], None],
        token: str | None,
        hosts: Collection[str] = (),
        body_bytes: int = BODY_BYTES,
    ) -> None:
        if token is not None and not _is_token(token):
            rule = f"ASCII text of at least {LEAST_TOKEN} characters, without spaces at its ends and control characters"
            raise ConfigError("token", "a token", rule)
        if not is_whole(body_bytes, 1):
            raise ConfigError("body_bytes", body_bytes, "a whole number of at least 1")
        self._app, self._note, self._most = app, note, body_bytes
        self._hosts = {_name_of(host) for host in texts("hosts", hosts, "names")}
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_caller(headers)
            if scope["method"] == "POST":
                self._check_body(headers)
        except Refusal as refusal:
            self._note(scope["method"], refusal.status, refusal.code)
            await refused(refusal)(scope, receive, send)
            return
        scope.setdefault("state", {})["body_bytes"] = self._most
        await self._app(scope, receive, send)

    def _check_caller(self, headers: Headers) -> None:
        if self._token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
            if scheme.lower() != "bearer" or not known:
                raise Refusal(401, "unauthorized", "give the token of this service: Authorization: Bearer TOKEN")
            return
        host = _name_of(headers.get("host", ""))
        if not is_loopback(host) and host not in self._hosts:
            rule = "the name of the machine itself, such as localhost"
            raise Refusal(400, "wrong_host", f"Host: without a token, {rule}", field="Host", rule=rule)

    def _check_body(self, headers: Headers) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(
                400,
                "invalid_request",
                "Content-Type: application/json is needed",
                field="Content-Type",
                rule="application/json",
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > self._most:
            raise too_large(self._most)


def _is_token(token: object) -> bool:
    """Whether a token is long enough, and can be sent in a header."""
    if not isinstance(token, str) or len(token) < LEAST_TOKEN:
        return False
    return token.isascii() and token.isprintable() and token == token.strip()


def too_large(most: int) -> Refusal:
    """Return the refusal of a body that has more than so many bytes."""
    return Refusal(
        413, "too_large", f"the body has more than {most:,} bytes", field="body", rule=f"at most {most:,} bytes"
    )


def _name_of(host: str) -> str:
    """Return the name in a `Host` header, without the port, in lower case."""
    if host.count(":") > 1 and not host.startswith("["):  # an address of IPv6, as people write it
        return f"[{host.lower()}]"
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
