"""`palimpsest serve`: declared memories over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import click

from palimpsest.cli.app import Whole, examples, json_option
from palimpsest.cli.failing import InputRefused, Missing
from palimpsest.cli.opening import resolve
from palimpsest.cli.output import json_line, line, note
from palimpsest.resources import AsyncResources

TOKEN = "PALIMPSEST_SERVICE_TOKEN"  # noqa: S105 (the name of a variable)
"""The environment variable that holds the token."""


@click.command(
    "serve",
    epilog=examples(
        "palimpsest serve --config memory/",
        "palimpsest serve --config memory/ --port 9000 --read-only handbook --access-log",
        f"{TOKEN}=... palimpsest serve --config memory/ --host 0.0.0.0",
        "palimpsest serve --config memory/ --host 0.0.0.0 --token-file /run/secrets/palimpsest",
    ),
)
@click.option(
    "--config",
    metavar="FILE|FOLDER",
    envvar="PALIMPSEST_CONFIG",
    show_envvar=True,
    required=True,
    help="File or folder that declares the memories.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Name or address to listen at.")
@click.option(
    "--port", type=Whole(0, 65_535), default=8321, show_default=True, metavar="N", help="Port; 0: a free one."
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=f"File with the token that requests must give.  [default: the variable {TOKEN}]",
)
@click.option("--read-only", multiple=True, metavar="REF", help="Refuse changes of this memory. Repeatable.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Name by which requests may call the host. Repeatable."
)
@click.option(
    "--tenant",
    metavar="NAME",
    default=lambda: resolve(None, None)[1],
    help="Tenant that the sessions belong to. [default: default]",
)
@click.option("--access-log", is_flag=True, help="Print a line for each request, without keys and tokens.")
@json_option
def serve_command(
    config: str,
    host: str,
    port: int,
    token_file: str | None,
    read_only: tuple[str, ...],
    hosts: tuple[str, ...],
    tenant: str,
    access_log: bool,
    as_json: bool,
) -> None:
    """Answer requests for declared memories over HTTP, until it is stopped.

    Programs in any language can read, write, flush and clear the memories in --config by their keys. Without a token
    the service only listens on this machine. SIGTERM and Ctrl-C end it once the requests under way are answered.
    """
    from palimpsest.resources.service import serve  # an extra's, which `--help` must not need

    def ready(address: str, resources: AsyncResources) -> None:
        if as_json:
            click.echo(json_line({"address": address, "memories": list(resources)}))
        else:
            note(f"Serving {', '.join(map(line, resources))} at {address}/api/v0. SIGTERM or Ctrl-C ends it.")

    if not len(AsyncResources.load(config)):
        raise Missing(f"nothing in {config} declares a memory: a file that does says `resource: memory`")
    if access_log:
        _log_requests()
    token = _token(token_file)
    asyncio.run(
        serve(
            config,
            host=host,
            port=port,
            token=token,
            read_only=read_only,
            hosts=hosts,
            ready=ready,
            tenant=tenant,
        )
    )


def _token(file: str | None) -> str | None:
    """Return the token: of the file, else of the environment, else None.

    Raises InputRefused for an empty one: whoever gives it means a service that is not open to everybody here.
    """
    if file is None:
        given = os.environ.get(TOKEN)
        if given is not None and not given.strip():
            raise InputRefused(f"the variable {TOKEN} is empty: it has to hold the token, or not be set")
        return None if given is None else given.strip()
    try:
        token = Path(file).read_text("utf-8").strip()
    except UnicodeDecodeError as fault:
        raise InputRefused(f"{file} is no text") from fault
    if not token:
        raise InputRefused(f"{file} is empty: it has to hold the token")
    return token


def _log_requests() -> None:
    """Print a line on standard error for each request."""
    logger, handler = logging.getLogger("palimpsest.service"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
