"""What sees to it that what was destroyed is in no file of the server's: its append-only file is written anew.

Each bucket counts how often something was destroyed in it, in the step that does so. So whoever scrubs next hears of
it, also where the process that destroyed did not live to scrub.
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
"""Seconds between two looks at whether the file has been written."""

LARGE = 256 << 20
"""Bytes of an append-only file from which on it is written anew when somebody asks for that, not after each erasure."""

LATER = (
    "the append-only file of the server holds what was erased until it is written anew: `palimpsest vacuum` does that"
)
DENIED = (
    "the user of the address may not have the server's append-only file written anew (BGREWRITEAOF), "
    "so that what was erased stays in it until the server does that by itself"
)
FAILED = "the server could not write its append-only file anew, so that what was erased is still in it: look at its log"
SNAPSHOTS = (
    "the server saves snapshots (its setting `save`): the last one holds what was erased until the next is saved"
)
FILELESS = "when a server ends, what was acknowledged since its last snapshot is lost (appendonly no)"
UNSHOWN = (
    "a crash of a server's machine loses what its append-only file has not on the disk yet: nothing, or the last "
    "second or more, as its setting appendfsync says, which it does not show"
)
HIDDEN = "it does not show its settings: see in them that appendonly is yes, and what appendfsync is"
REPLICAS = "the server has replicas: what files of theirs hold goes when they write those anew"


async def scrubbed(run: Run, with_link: With, seconds: float, whole: bool) -> Scrubbed:
    """Have every server write its append-only file anew, if something was destroyed since that was last done."""
    counts = await run(DESTROYED, range(BUCKETS), ())
    if not any(counts):
        return Scrubbed()
    said = await _said(with_link)
    remains = [
        *(await _snapshots(with_link)),
        *([REPLICAS] if any(int(one["connected_slaves"]) for one in said) else ()),
    ]
    begun = [one for one in said if one.get("aof_enabled") == "1"]
    size = sum(int(one.get("aof_current_size", 0)) for one in begun)
    if begun:
        if size > LARGE and not whole:
            return Scrubbed((*remains, LATER))
        try:
            why = await _rewritten(with_link, said, seconds)
        except Denied:
            return Scrubbed((*remains, DENIED))
        if why is not None:
            return Scrubbed((*remains, why)) if why == FAILED or not whole else Scrubbed(tuple(remains), left=size)
    for bucket, count in enumerate(counts):
        if count:
            await run(SCRUBBED, [bucket], [count], True)
    after = sum(int(one.get("aof_current_size", 0)) for one in await _said(with_link)) if begun else 0
    return Scrubbed(tuple(remains), freed=size - after)


class Denied(Exception):
    """A server does not do what it is asked for by this user."""


async def _said(with_link: With) -> list[dict[str, str]]:
    """What each server says of itself."""
    return [info(answer) for answer in await with_link(lambda link: link.each(b"INFO"))]


async def _rewritten(with_link: With, said: Sequence[dict[str, str]], seconds: float) -> str | None:
    """Have the files written by writers that begin after now; return why some are not, or None."""
    before = [int(one["aof_rewrites"]) for one in said]
    end = time.monotonic() + seconds
    while True:
        idle = [not _is_busy(one) for one in said]
        over = [
            one.get("aof_enabled") != "1" or (free and int(one["aof_rewrites"]) > count)
            for one, free, count in zip(said, idle, before, strict=True)
        ]
        if all(over):
            return FAILED if any(one.get("aof_last_bgrewrite_status") == "err" for one in said) else None
        if time.monotonic() > end:
            return LATER
        if any(free and not done for free, done in zip(idle, over, strict=True)):
            await with_link(_begin)
        await asyncio.sleep(LOOKED_EVERY)
        said = await _said(with_link)


def _is_busy(said: dict[str, str]) -> bool:
    return said.get("aof_rewrite_in_progress") == "1" or said.get("aof_rewrite_scheduled") == "1"


async def _begin(link: Link) -> None:
    """Have files written anew; where a server writes one already, or a snapshot, it is asked again later."""
    try:
        await link.each(b"BGREWRITEAOF")
    except ResponseError as fault:
        if "in progress" not in str(fault) and "already" not in str(fault):
            raise Denied from fault


async def _snapshots(with_link: With) -> list[str]:
    """What is to be said of snapshots. A server that does not show its settings is taken for one that saves some."""

    async def setting(link: Link) -> list[Any]:
        try:
            return await link.each(b"CONFIG", b"GET", b"save")
        except ResponseError:
            return [["save", b"unknown"]]

    return [SNAPSHOTS] if any(_value(answer) for answer in await with_link(setting)) else []


def _value(answer: Any) -> Any:
    """The value in the answer to CONFIG GET: a list of names and values, or what the driver has made of that."""
    return next(iter(answer.values()), b"") if isinstance(answer, dict) else (answer or [b"", b""])[1]


async def told_durability(link: Link) -> str:
    """What is lost with a server, as its settings say: of several, with the one that loses most.

    One that does not show its settings, as many that are run by others do not, still says whether it has the file.
    """
    try:
        kept, synced = [await link.each(b"CONFIG", b"GET", name) for name in (b"appendonly", b"appendfsync")]
    except ResponseError:
        files = {info(answer).get("aof_enabled") for answer in await link.each(b"INFO")}
        return FILELESS if "0" in files else UNSHOWN if files == {"1"} else HIDDEN
    settings = [tuple(bytes(_value(one)).decode() for one in pair) for pair in zip(kept, synced, strict=True)]
    files = {how for _, how in settings}
    if any(on != "yes" for on, _ in settings):
        return FILELESS
    if files == {"always"}:
        return "a crash of a server loses nothing that was acknowledged (appendfsync always)"
    how = "no" if "no" in files else "everysec"
    span = "what the system has not written yet" if how == "no" else "the last second"
    return f"a crash of a server's machine loses {span}; one of the server alone nothing (appendfsync {how})"
