"""The service: declared memories over HTTP, for programs in any language. Needs the extra `service`.

`application(resources)` is an ASGI application, `serve("memory/")` runs it in a server of its own.
"""

from palimpsest.errors import MissingExtra

try:
    from palimpsest.resources.service.application import application
    from palimpsest.resources.service.running import serve
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in {"starlette", "uvicorn", "prometheus_client"}:
        raise
    raise MissingExtra("the service", "service") from missing

__all__ = ["application", "serve"]
