"""What a store on PostgreSQL writes for an append, and what it takes on the disk."""

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
"""What makes the head of a session long."""


def logged(address: str, sql: str, values: tuple[Any, ...]) -> int:
    """Bytes of write-ahead log of an append that was made, once more behind itself. It is undone.

    A page that is written first after a checkpoint is logged whole, whoever writes it: so the least of some counts.
    """
    expect, keys, hot = 2, 8, values[3]

    async def again(db: Any, number: int) -> int:
        undone = db.transaction()
        await undone.start()
        given = [*values]
        given[expect], given[keys] = hot, [key + 1_000 * (number + 1) for key in values[keys]]
        told = json.loads(await db.fetchval(f"EXPLAIN (ANALYZE, WAL, TIMING OFF, FORMAT JSON) {sql}", *given))
        await undone.rollback()
        plan = told[0]["Plan"]
        assert sum(node["Actual Rows"] for node in plan["Plans"] if node["Node Type"] == "ModifyTable") > 0
        return sum(node["WAL Bytes"] for node in plan["Plans"] if node["Node Type"] == "ModifyTable")

    async def least() -> int:
        db = await asyncpg.connect(address.partition("?")[0])
        try:
            return min([await again(db, number) for number in range(6)])
        finally:
            await db.close()

    return asyncio.run(least())


@pytest.mark.sampled
@pytest.mark.parametrize("filler", FILLERS)
def test_an_append_logs_as_much_however_long_the_head_is(filler: str) -> None:
    """With 60 pins, named contexts or pseudonyms as much as with a few: what rarely changes stands in a value of its
    own, which an append neither moves nor logs."""
    address, found = address_of("logged"), list[int]()
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
            found.append(logged(address, *sent[-1]))

    assert 0 < found[1] < found[0] + 150  # a head that has gone to another page is logged whole, but for that value


def test_what_is_said_takes_little_more_room_than_it_has() -> None:
    """Turns of three messages and some 5 KB: tables and indexes, with the counts, take 1.6 times their JSON at most."""
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
