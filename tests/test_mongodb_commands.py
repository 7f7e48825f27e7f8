"""What the store on MongoDB sends to its server: the number of commands, what they ask for, and the order of lists."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest

import mongostore
from palimpsest import Memory, Session
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores.backend import Ask, Listed, Place, Range, Row, Step
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.mongodb import open_mongodb
from palimpsest.stores.mongodb.updating import TAIL
from writer import ENTRIES_A_TURN, known_to, quarters, turn

# --- what it costs


def sent_by(do: Callable[[Session], object], turns: int = 12, summary: bool = False) -> list[str]:
    """Return the commands that a memory sends while `do` runs.

    The memory knows the session's head and remembers no context.
    """
    with mongostore.watched() as sent, Memory.open(mongostore.address_of(), view_bytes=0) as memory:
        session = known_to(memory, turns, summary=summary)
        sent.clear()
        do(session)
        return list(sent)


def test_an_append_is_one_update() -> None:
    """An append by a memory that knows the head is one update, even for a turn with calls and results."""
    assert sent_by(lambda session: session.add(turn("one more"))) == ["update"]


def test_an_append_is_found_by_the_key_of_its_head() -> None:
    """An append finds its head by key, and by the one value that implies all other conditions.

    The more conditions a query has, the longer the server plans.
    """
    commands = list[dict[str, Any]]()
    with mongostore.watched(commands), Memory.open(mongostore.address_of()) as memory:
        session = memory.session("s")
        session.add(turn("0"))
        commands.clear()
        session.add(turn("1"))
        (sent,) = commands

    (head,) = mongostore.documents().find({"tail": {"$exists": True}, "space": "session"})
    assert [list(one["q"]) for one in sent["updates"]] == [["_id", "hot"]]
    assert sent["updates"][0]["q"]["_id"] == head["_id"]
    assert [set(one["u"]) for one in sent["updates"]] == [{"$set", "$push", "$currentDate"}]


@pytest.mark.parametrize("summary", [False, True], ids=["entries", "summary"])
@pytest.mark.parametrize("turns", [12, pytest.param(17_000, marks=pytest.mark.slow)])
def test_a_steady_context_is_one_query(turns: int, summary: bool) -> None:
    """A steady context is one query, even if the memory remembers no context, and however long the log is."""
    assert sent_by(lambda session: session.context(), turns, summary) == ["find"]


def test_a_steady_context_reads_its_head_and_rows() -> None:
    """A steady context reads its head and rows only, unless the head says that a transaction has changed the tail."""
    commands = list[dict[str, Any]]()
    with mongostore.watched(commands), Memory.open(mongostore.address_of(), view_bytes=0) as memory:
        session = memory.session("s", max_tokens=2000, counter=quarters)
        for number in range(40):
            session.add(turn(str(number)))
        session.context()
        shown = session.context()
        queried_ids = [command["filter"]["_id"]["$in"] for command in commands if command.get("find") == "palimpsest"]
        with Memory.open(mongostore.named("one")) as other:
            other.session("s").erase([1])
            for number in range(40, 80):
                other.session("s").add(turn(str(number)))
        later = session.context()
        entries = session.entries()

    assert {bytes(key)[16:17] for key in queried_ids[-1]} == {b"h", b"r"}
    assert later.messages[-1] != shown.messages[-1]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert len(entries) == 80 * ENTRIES_A_TURN


def homes_of(command: dict[str, Any]) -> list[set[bytes]]:
    """Return the homes that each part of a command reads or changes, without listings of a tenant."""
    parts = [command["filter"]] if "filter" in command else []
    parts += [one["q"] for one in (*command.get("updates", ()), *command.get("deletes", ()))]
    parts += command.get("documents", ())
    homes = [part["home"] for part in parts if not part.keys() & {"list", "due.of"} or "_id" in part]
    return [set(map(bytes, home["$in"] if isinstance(home, dict) else [home])) for home in homes]


def test_each_command_of_a_session_goes_to_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a router each command of a session names one home, so that it goes to one shard; listings ask all."""
    monkeypatch.setattr(importlib.import_module("palimpsest.stores.mongodb.backend"), "is_router", bool)
    commands = list[dict[str, Any]]()
    with mongostore.watched(commands), Memory.open(mongostore.address_of()) as memory:
        session = memory.session("s", max_tokens=2000, counter=quarters)
        for number in range(12):
            session.add(turn(str(number)))
            session.context()
        commands.clear()
        session.add(turn("more"), key="once")
        session.context()
        session.erase([3])
        session.pin(5)
        with session.turn():
            session.add_user_message("x" * 300_000)
        session.entries(limit=3)
        session.fork("branch").add_user_message("y")

    homes = [each for command in commands for each in homes_of(command)]
    assert len(homes) > 20
    assert all(len(each) == 1 for each in homes), homes


@pytest.mark.wide
def test_many_small_appends_are_few_transactions() -> None:
    """Many small appends take few transactions: appended rows are moved from the tail to buckets in groups."""
    with mongostore.watched() as sent, Memory.open(mongostore.address_of()) as memory:
        session = memory.session("s")
        session.add_user_message("0")
        sent.clear()
        for number in range(1, 400):
            session.add_user_message(f"{number}")
        appended = len(sent)
        assert [entry.text for entry in session.entries()] == [f"{number}" for number in range(400)]

    assert appended < 399 + 8 * (1 + 400 * 300 // TAIL)


def test_a_full_tail_is_moved_by_two_queries_and_two_writes() -> None:
    """Moving a full tail takes two queries and two writes, and the writer knows the head afterwards."""
    with mongostore.watched() as sent, Memory.open(mongostore.address_of()) as memory:
        session = memory.session("s")
        session.add_user_message("0")
        sent.clear()
        while "find" not in sent:
            session.add_user_message("x" * 8_000)
        session.add_user_message("1")
        full = sent[sent.index("find") :]

    assert full == ["find", "find", "update", "commitTransaction", "update"]


# --- what is remembered of heads


def test_a_stale_head_is_read_again() -> None:
    """A batch whose writer remembers a stale head is done if the head's value is the expected one.

    Otherwise it is refused with the current heads.
    """

    async def work(address: str, sent: list[str]) -> None:
        first, second = (open_mongodb(address, Inline()) for _ in range(2))
        place, other = Place("t", "h", "s", "n"), Place("t", "h", "s", "other")
        rows = Place("t", "h", "rows", "n")

        def put(key: int) -> Step:
            return Step(rows, rows_only=True, put=[("t", [Row(key, b"%d" % key)])])

        assert await first.write([[Step(place, None, b"1"), put(1)]], 0) == [None]
        assert await second.write([[Step(place, b"1", b"1"), Step(other, None, b"x")]], 0) == [None]
        sent.clear()
        assert await first.write([[Step(place, b"1", b"2"), put(2)]], 0) == [None]
        assert sent == ["update", "find", "update"]
        assert await second.write([[Step(place, b"2", b"3"), put(3)]], 0) == [None]
        sent.clear()
        (refusal,) = await first.write([[Step(place, b"2", b"4"), put(4)]], 0)
        assert refusal is not None
        assert [head and head.hot for head in refusal] == [b"3", None]
        assert sent == ["update", "find"]
        (seen,) = await first.look([Ask(rows, [Range("t", [(0, 9)])], head=False)])
        assert [row[0] for row in seen.rows[0]] == [1, 2, 3]
        for backend in (first, second):
            await backend.close()

    with mongostore.watched() as sent:
        asyncio.run(work(mongostore.address_of(), sent))


# --- lists


def test_places_are_listed_by_code_points() -> None:
    """Places are listed in the order of code points, whatever their names, and a space lists only its own."""
    names = [
        "",
        "\0",
        "\0\0",
        "\0\1",
        "\1",
        "a",
        "a\0",
        "a\0b",
        "a\1",
        "ab",
        "\ud7ff",
        "\ue000",
        "\U0010ffff",
        "\U0010ffffa",
    ]
    asked = ["", "a", "a\0", "\0", "\ud7ff", "\U0010ffff"]

    def named(found: list[Listed]) -> list[Place]:
        return [one.place for one in found]

    async def work(address: str) -> None:
        ours, model = open_mongodb(address, Inline()), MemoryBackend(Inline())
        for number, name in enumerate(names):
            other = names[-number]
            for place in (Place("t", "h", name, other), Place(name, other, "a", name), Place("t", name, "a", "x")):
                batch = [Step(place, None, b"1")]
                assert await ours.write([batch], 0) == drive(model.write([batch], 0))
        assert await ours.tenants() == drive(model.tenants())
        assert await ours.tenants(after="a", limit=3) == drive(model.tenants(after="a", limit=3))
        for space in asked:
            for beneath in (False, True):
                whole = named(drive(model.places("t", space, beneath=beneath)))
                assert named(await ours.places("t", space, beneath=beneath)) == whole
                for after in [*whole, Place("t", "h", "a\0a", "x")]:
                    page = await ours.places("t", space, beneath=beneath, after=after, limit=3)
                    assert named(page) == named(drive(model.places("t", space, beneath=beneath, after=after, limit=3)))
        await ours.close()

    asyncio.run(work(mongostore.address_of()))
