"""Stores on servers behind a network that fails.

Each call ends and says what is known, and a repeated add doubles nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from on_servers import KINDS
from palimpsest import Memory, Session, StoreUnavailable
from proxy import Network, network
from test_server_times import EACH

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of cut connections

LATE = r"within 1 seconds \(timeout_seconds\)"


@pytest.fixture(params=EACH)
def behind(request: pytest.FixtureRequest) -> Iterator[tuple[str, Network]]:
    """Yield the address of an empty store with a short timeout, and the network between."""
    more = {"directConnection": "true"} if request.param == "mongodb" else {}
    address = KINDS[request.param].address_of("networks", timeout_seconds=1, **more)
    port = urlsplit(address).port
    assert port is not None
    with network(port) as between:
        yield address.replace(f":{port}/", f":{between.port}/"), between


VERBS: dict[str, Callable[[Session], Any]] = {
    "entries": lambda session: session.entries(),
    "context": lambda session: session.context(max_tokens=900),
    "add": lambda session: session.add_user_message("lost"),
    "add by key": lambda session: session.add({"role": "user", "content": "two"}, key="two"),
    "erase": lambda session: session.erase([1]),
}
READS = ("entries", "context", "add by key")
"""Verbs that read, or read first, so that a failure has written nothing."""


@pytest.mark.wide
@pytest.mark.parametrize("how", ["stalls", "is deaf"])
def test_every_call_ends_in_time(behind: tuple[str, Network], how: Any) -> None:
    """Every call ends in time if the network holds back requests or answers.

    A read says that nothing was written; a write does not claim that it was not sent.
    """
    address, between = behind
    with Memory.open(address) as memory:
        session = memory.session("s")
        session.add_user_message("one")
        for name, verb in VERBS.items():
            session.entries()  # so that there is a connection: without one an add would surely not have been sent
            between.becomes(how)
            with pytest.raises(StoreUnavailable) as caught:
                verb(session)
            assert name != "add" or caught.value.written is None
            assert name not in READS or caught.value.written is False
            between.becomes("passes")

        session.add({"role": "user", "content": "two"}, key="two")
        session.add({"role": "user", "content": "three"}, key="three")
        texts = [entry.text for entry in session.entries()][1:]
        assert texts in (["two", "three"], ["lost", "two", "three"])
        assert session.verify().problems == ()


@pytest.mark.parametrize("how", ["drops", "loses"])
def test_an_add_over_a_breaking_connection_is_stored_once(behind: tuple[str, Network], how: Any) -> None:
    """If the connection breaks before a request arrives or after its write, an add repeated by key is stored once."""
    address, between = behind
    with Memory.open(address) as memory:
        session = memory.session("s")
        session.add_user_message("one")
        written_flags = list[bool | None]()
        for number in range(6):
            message = {"role": "user", "content": f"message {number}"}
            between.once(how)
            try:
                session.add(message, key=f"key {number}")
            except StoreUnavailable as fault:
                written_flags.append(fault.written)
                session.add(message, key=f"key {number}")

        texts = [entry.text for entry in session.entries()]
        assert texts == ["one", *(f"message {number}" for number in range(6))]
        assert how == "drops" or False not in written_flags


def test_adds_repeated_by_key_are_stored_once(behind: tuple[str, Network], dice: random.Random) -> None:
    """Forty adds by key over a network that keeps breaking are each stored once."""
    address, between = behind
    with Memory.open(address) as memory:
        session = memory.session("s")
        for number in range(40):
            how = dice.choice(["drops", "loses", "passes", "passes"])
            between.once(how)
            while True:
                try:
                    session.add({"role": "user", "content": str(number)}, key=str(number))
                    break
                except StoreUnavailable:
                    if dice.random() < 0.3:
                        between.once("drops")

        assert [entry.text for entry in session.entries()] == [str(number) for number in range(40)]
        assert session.verify().problems == ()


def test_a_server_that_is_unreachable_at_first_raises_in_time(behind: tuple[str, Network]) -> None:
    """A server that cannot be reached when a memory opens raises in time, and can be opened later."""
    address, between = behind
    between.becomes("stalls")

    with pytest.raises(StoreUnavailable, match=LATE) as caught:
        Memory.open(address).session("s").add_user_message("one")

    assert caught.value.written is False
    between.becomes("passes")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("two")
        assert [entry.text for entry in memory.session("s").entries()] == ["two"]
