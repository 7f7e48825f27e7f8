"""A process that writes to a store on a Redis server: `redis_writer.py MODE ADDRESS ARGUMENT ...`.

It prints one JSON value a line for what was acknowledged, and never before that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from palimpsest import AsyncMemory
from redisstore import watched
from writer import say


async def add(address: str, session: str, name: str, many: str) -> None:
    """Add so many entries after a line has come in; print the number of round trips, and the longest time of an add."""
    with watched() as sent:
        async with AsyncMemory.open(address) as memory:
            log = memory.session(session)
            await log.stats()
            say("ready")
            sys.stdin.readline()
            sent.clear()
            longest = 0.0
            for number in range(int(many)):
                begun = time.perf_counter()
                await log.add_user_message(f"{name} {number}")
                longest = max(longest, time.perf_counter() - begun)
            say([len(sent), longest])


async def begin(address: str, name: str) -> None:
    """Begin one session after another, with two entries each, until killed; print each that is acknowledged."""
    async with AsyncMemory.open(address) as memory:
        number = 0
        while True:
            session = memory.session(f"{name} {number}", user="ann")
            await session.add_user_message("one")
            await session.add_user_message("two")
            say(f"{name} {number}")
            number += 1


if __name__ == "__main__":
    modes: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"add": add, "begin": begin}
    asyncio.run(modes[sys.argv[1]](*sys.argv[2:]))
