"""Scrubbing: have the server rewrite its append-only file, so that no file of it holds what was destroyed.

Each bucket counts how often something was destroyed in it, in the same step. So the next scrub knows that it has work
to do, even if the process that destroyed something died before it could scrub.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from palimpsest.stores.backend import Scrubbed
from palimpsest.stores.redis.layout import BUCKETS
from palimpsest.stores.redis.link import Link, info
from palimpsest.stores.redis.listing import Run
from palimpsest.stores.redis.scripts import DESTROYED, SCRUBBED

With = Callable[[Callable[[Link], Awaitable[Any]]], Awaitable[Any]]

LOOKED_EVERY = 0.02
"""Seconds between two checks whether the file is rewritten."""

LARGE = 256 << 20
"""Bytes of append-only files above which they are rewritten only when somebody asks for that, not after each erasure.
"""

LATER = "the append-only file of the server holds erased data until it is rewritten: `palimpsest vacuum` does that"
DENIED = (
    "the user of the address may not rewrite the server's append-only file (BGREWRITEAOF), so erased data stays in it "
    "until the server does that by itself"
)
FAILED = "the server could not rewrite its append-only file, so erased data is still in it: look at the server's log"
SNAPSHOTS = "the server saves snapshots (its setting `save`): the last one holds erased data until the next is saved"
FILELESS = "when a server ends, what was acknowledged since its last snapshot is lost (appendonly no)"
UNSHOWN = (
    "a crash of a server's machine loses what is not yet on the disk: nothing, or the last second or more, depending "
    "on its setting appendfsync, which it does not show"
)
HIDDEN = "it does not show its settings: check there that appendonly is yes, and what appendfsync is"
REPLICAS = "the server has replicas: their files hold erased data until they rewrite them"


async def scrubbed(run: Run, with_link: With, seconds: float, whole: bool) -> Scrubbed:
    """Have every server rewrite its append-only file, if something was destroyed since the last time. See
    `Backend.scrub`."""
    counts = await run(DESTROYED, range(BUCKETS), ())
    if not any(counts):
        return Scrubbed()
    servers = await _infos(with_link)
    remains = [
        *(await _snapshots(with_link)),
        *([REPLICAS] if any(int(server["connected_slaves"]) for server in servers) else ()),
    ]
    with_file = [server for server in servers if server.get("aof_enabled") == "1"]
    size = sum(int(server.get("aof_current_size", 0)) for server in with_file)
    if with_file:
        if size > LARGE and not whole:
            return Scrubbed((*remains, LATER))
        try:
            obstacle = await _rewritten(with_link, servers, seconds)
        except Denied:
            return Scrubbed((*remains, DENIED))
        if obstacle is not None:
            give_up = obstacle == FAILED or not whole
            return Scrubbed((*remains, obstacle)) if give_up else Scrubbed(tuple(remains), left=size)
    for bucket, count in enumerate(counts):
        if count:
            await run(SCRUBBED, [bucket], [count], True)
    after = sum(int(server.get("aof_current_size", 0)) for server in await _infos(with_link)) if with_file else 0
    return Scrubbed(tuple(remains), freed=size - after)


class Denied(Exception):
    """The server refuses this user a command."""


async def _infos(with_link: With) -> list[dict[str, str]]:
    """Return each server's answer to INFO."""
    return [info(answer) for answer in await with_link(lambda link: link.each(b"INFO"))]


async def _rewritten(with_link: With, servers: Sequence[dict[str, str]], seconds: float) -> str | None:
    """Have the files rewritten, and wait for that at most `seconds`. Return None, or why some are not.

    Only rewrites that begin after this call count: one that is running already may have copied the destroyed bytes. The
    server counts rewrites when they begin, so that one is in the count of before.
    """
    rewrites_before = [int(server["aof_rewrites"]) for server in servers]
    end = time.monotonic() + seconds
    while True:
        idle = [not _is_busy(server) for server in servers]
        done = [
            server.get("aof_enabled") != "1" or (is_idle and int(server["aof_rewrites"]) > before)
            for server, is_idle, before in zip(servers, idle, rewrites_before, strict=True)
        ]
        if all(done):
            return FAILED if any(server.get("aof_last_bgrewrite_status") == "err" for server in servers) else None
        if time.monotonic() > end:
            return LATER
        if any(is_idle and not is_done for is_idle, is_done in zip(idle, done, strict=True)):
            await with_link(_begin)
        await asyncio.sleep(LOOKED_EVERY)
        servers = await _infos(with_link)


def _is_busy(server: dict[str, str]) -> bool:
    return server.get("aof_rewrite_in_progress") == "1" or server.get("aof_rewrite_scheduled") == "1"


async def _begin(link: Link) -> None:
    """Ask all servers to rewrite. One that is rewriting or saving a snapshot refuses, and is asked later."""
    try:
        await link.each(b"BGREWRITEAOF")
    except ResponseError as fault:
        if "in progress" not in str(fault) and "already" not in str(fault):
            raise Denied from fault


async def _snapshots(with_link: With) -> list[str]:
    """Return what to report about snapshots. A server that hides its settings is assumed to save some."""

    async def setting(link: Link) -> list[Any]:
        try:
            return await link.each(b"CONFIG", b"GET", b"save")
        except ResponseError:
            return [["save", b"unknown"]]

    return [SNAPSHOTS] if any(_value(answer) for answer in await with_link(setting)) else []


def _value(answer: Any) -> Any:
    """Return the value of an answer to CONFIG GET: a list of name and value, or a dictionary."""
    return next(iter(answer.values()), b"") if isinstance(answer, dict) else (answer or [b"", b""])[1]


async def describe_durability(link: Link) -> str:
    """Say what is lost with a server, by its settings; of several servers, by those of the one that loses most.

    A server that hides its settings, as many hosted ones do, still shows whether it has an append-only file.
    """
    try:
        appendonly, appendfsync = [await link.each(b"CONFIG", b"GET", name) for name in (b"appendonly", b"appendfsync")]
    except ResponseError:
        enabled = {info(answer).get("aof_enabled") for answer in await link.each(b"INFO")}
        return FILELESS if "0" in enabled else UNSHOWN if enabled == {"1"} else HIDDEN
    answers = zip(appendonly, appendfsync, strict=True)
    settings = [tuple(bytes(_value(answer)).decode() for answer in pair) for pair in answers]
    policies = {policy for _, policy in settings}
    if any(on != "yes" for on, _ in settings):
        return FILELESS
    if policies == {"always"}:
        return "a crash of a server loses nothing that was acknowledged (appendfsync always)"
    worst = "no" if "no" in policies else "everysec"
    span = "what the system has not written yet" if worst == "no" else "the last second"
    return f"a crash of a server's machine loses {span}; one of the server alone nothing (appendfsync {worst})"
