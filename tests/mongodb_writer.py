"""A process that adds to a session on a server that speaks MongoDB's protocol: `mongodb_writer.py ADDRESS NAME MANY`.

It prints "ready", waits for a line, and prints the number of entries at the end.
"""

from __future__ import annotations

import asyncio
import sys

from palimpsest import AsyncMemory
from writer import SESSION, say


async def write(address: str, name: str, many: int) -> None:
    """Add so many entries, one after the other."""
    async with AsyncMemory.open(address) as memory:
        log = memory.session(SESSION)
        await log.stats()
        say("ready")
        sys.stdin.readline()
        for number in range(many):
            await log.add_user_message(f"{name} {number}")
        say(many)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
