"""Batches with a key that two programs add at once to one session on a server: each is stored once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from on_servers import KINDS, SERVERS
from palimpsest import AsyncMemory
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Ask, Batch, Look, Place, PlaceHead, Refusal, Seen, Step
from palimpsest.stores.rules import ask_again
from sealed import FIRST


def messages(i: int) -> list[dict[str, Any]]:
    """Return a question and its answer."""
    return [{"role": "user", "content": f"{i} is asked"}, {"role": "assistant", "content": f"{i} is answered"}]


async def repeated(address: str, options: dict[str, Any]) -> None:
    """Add the same batches by two memories at once, to a new session and to an existing one, and check what is kept."""
    async with AsyncMemory.open(address, **options) as one, AsyncMemory.open(address, **options) as other:
        for session, before in (("new", 0), ("old", 1)):
            await asyncio.gather(*(one.session(session).add(messages(i), key=f"key {i}") for i in range(before)))
            added = await asyncio.gather(
                *(
                    memory.session(session).add(messages(i), key=f"key {i}")
                    for i in range(15)
                    for memory in (one, other)
                )
            )
            entries = await one.session(session).entries()

            texts = [message["content"] for i in range(15) for message in messages(i)]
            assert sorted(entry.text for entry in entries) == sorted(texts)
            assert {entry.id for batch in added for entry in batch} == {entry.id for entry in entries}


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("options", [{}, {"encryption": FIRST}], ids=["plain", "encrypted"])
def test_keyed_batches_repeated_by_two_programs_are_stored_once(kind: str, options: dict[str, Any]) -> None:
    """Of batches with keys that two memories add at once, many in one write, none is stored twice: not if some of a
    refused write were stored by the other, either."""
    asyncio.run(repeated(KINDS[kind].address_of(f"repeated_{len(options)}"), options))


def test_ask_again_gives_each_look_its_own_answer() -> None:
    """`ask_again` gives each look its own answer, also if the caller no longer asks what an earlier answer settled."""
    places = [Place("t", "home", "space", name) for name in "abc"]
    heads = {place: PlaceHead(place.name.encode(), b"") for place in places}
    settled, batch = dict[Place, PlaceHead | None](), (Step(places[0]),)

    async def look(asks: Any) -> list[Seen]:
        return [Seen(heads[ask.place], []) for ask in asks]

    def again(_: int, given: Batch, refusal: Refusal, look: Look) -> Batch:
        for place in places:
            if place not in settled:
                settled[place] = look([Ask(place)])[0].head
        return given

    assert drive(ask_again(again, 0, batch, (None,), look)) == batch
    assert settled == heads
