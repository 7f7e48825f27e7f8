"""What the store on PostgreSQL writes to the log for an append, and what it takes on the disk."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.privacy.redaction import Redactor
from postgres_writer import watched
from postgresstore import address_of, asked, schema_of
from writer import turn

asyncpg = pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")

POLICY = {"recognisers": {"default": True, "email": "pseudonym"}}

FILLERS: dict[str, Callable[[Session, int], object]] = {
    "pins": lambda session, number: session.pin(number + 1),
    "contexts": lambda session, number: session.add_context("text", name=f"file-{number}.py"),
    "pseudonyms": lambda session, number: session.add_user_message(f"write to a{number}@example.com"),
}
"""Verbs that make the head of a session longer."""


def logged(address: str, sql: str, values: tuple[Any, ...]) -> int:
    """Return the bytes of write-ahead log that a repeated append takes, and undo it.

    The first write to a page after a checkpoint logs the whole page, so the least of several tries counts.
    """
    expect, keys, hot = 2, 8, values[3]

    async def repeat(db: Any, number: int) -> int:
        undone = db.transaction()
        await undone.start()
        given = [*values]
        given[expect], given[keys] = hot, [key + 1_000 * (number + 1) for key in values[keys]]
        explained = json.loads(await db.fetchval(f"EXPLAIN (ANALYZE, WAL, TIMING OFF, FORMAT JSON) {sql}", *given))
        await undone.rollback()
        plan = explained[0]["Plan"]
        assert sum(node["Actual Rows"] for node in plan["Plans"] if node["Node Type"] == "ModifyTable") > 0
        return sum(node["WAL Bytes"] for node in plan["Plans"] if node["Node Type"] == "ModifyTable")

    async def least() -> int:
        db = await asyncpg.connect(address.partition("?")[0])
        try:
            return min([await repeat(db, number) for number in range(6)])
        finally:
            await db.close()

    return asyncio.run(least())


@pytest.mark.sampled
@pytest.mark.parametrize("filler", FILLERS)
def test_an_append_logs_as_much_however_long_the_head_is(filler: str) -> None:
    """An append logs as much with 60 pins, named contexts or pseudonyms as with a few.

    What rarely changes is in a value of its own, which an append neither moves nor logs.
    """
    address, sizes = address_of("logged"), list[int]()
    with watched() as sent, Memory.open(address, privacy=Redactor(POLICY, key=b"sixteen bytes and more")) as memory:
        session = memory.session("s")
        for _ in range(12):
            session.add(turn("of six entries"))
        for many in (range(3), range(3, 60)):
            for number in many:
                FILLERS[filler](session, number)
            session.add_user_message("from here on alike")
            sent.clear()
            session.add_user_message("measured")
            sizes.append(logged(address, *sent[-1]))

    assert 0 < sizes[1] < sizes[0] + 150  # a head that has gone to another page is logged whole, but for that value


def test_a_log_takes_little_more_room_than_its_text() -> None:
    """Turns of three messages take at most 1.6 times their JSON in tables and indexes, counts included."""
    dice, name = random.Random(7), "room"
    address, schema = address_of(name), schema_of(name)
    asked(address, f"DROP SCHEMA IF EXISTS {schema} CASCADE")

    def said(role: str) -> dict[str, str]:
        return {"role": role, "content": " ".join(f"{dice.randrange(16**6):06x}" for _ in range(230))}

    turns = [[said("user"), said("assistant"), said("user")] for _ in range(150)]
    payload = sum(len(json.dumps(message)) for messages in turns for message in messages)
    with Memory.open(address) as memory:
        session = memory.session("s")
        for messages in turns:
            session.add(messages)
        session.count()
    asked(address, f"VACUUM {schema}.rows", f"VACUUM {schema}.places")

    ((size,),) = asked(
        address, f"SELECT pg_total_relation_size('{schema}.rows') + pg_total_relation_size('{schema}.places')"
    )

    assert payload < size < 1.6 * payload
