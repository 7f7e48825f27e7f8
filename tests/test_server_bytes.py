"""What is on the disk of a server: nothing that a policy takes out, and nothing readable of what is encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from on_servers import KINDS, own_server
from palimpsest import Memory
from sealed import FIRST, MARKER, bytes_of, play
from servers import Server
from watched import PATTERN, Unstored, Watched, found_in
from write_paths import KNOWLEDGE, MEMORY, SESSION, WORKING

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATHS: dict[str, Any] = {
    "add": SESSION["add"],
    "compact": SESSION["end_turn"],
    "facts": WORKING["set_many"],
    "knowledge": KNOWLEDGE["add"],
    "scan": MEMORY["scan"],
}
"""Ways into a store, of `write_paths`, in which all kinds of texts come."""


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.slow) if kind == "mongodb" else kind for kind in KINDS])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of a test's own, of each kind: its folder has all that it writes."""
    with own_server(request.param) as one:
        yield one


def test_nothing_private_reaches_the_disk_of_a_server(server: Server) -> None:
    """Neither tables nor logs of the server have it, nor is it told; what stands for it is there."""
    for number, (name, path) in enumerate(PATHS.items()):
        with Watched(PATTERN, server.address, server.folder, tenant=f"tenant {number}") as watched:
            proof = path(watched)
            assert isinstance(proof, Unstored) or PATTERN.stand_in in watched.stored(), name
        assert not [told for _, told in watched.told if found_in(told.encode("utf-8", "replace"), PATTERN.marker)]
    server.stop()

    assert found_in(bytes_of(server.folder), PATTERN.marker) == []


def test_nothing_of_an_encrypted_session_can_be_read_on_the_disk(server: Server) -> None:
    """Neither while it is there, nor after it was deleted with its key, though the server keeps the bytes."""
    with Memory.open(server.address, encryption=FIRST) as memory:
        play(memory)
        assert MARKER in repr(memory.session("one").export())
        memory.delete_session("one")
    server.stop()

    assert found_in(bytes_of(server.folder), MARKER) == []
