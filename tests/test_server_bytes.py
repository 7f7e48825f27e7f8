"""The files of a server: they hold nothing that a policy redacts, and nothing readable of an encrypted store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from on_servers import KINDS, own_server
from palimpsest import Memory
from sealed import FIRST, MARKER, bytes_of, play
from servers import Server
from watched_memory import PATTERN, Unstored, Watched, found_in
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
"""Verbs of `write_paths` that together write every kind of text to a store."""


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.slow) if kind == "mongodb" else kind for kind in KINDS])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server of the test's own, of each kind; its folder has everything that it writes."""
    with own_server(request.param) as one:
        yield one


def test_nothing_private_reaches_the_disk_of_a_server(server: Server) -> None:
    """Private text that a policy redacts is in no table and no log of a server, and in no log line of ours.

    Its replacement is stored.
    """
    for number, (name, path) in enumerate(PATHS.items()):
        with Watched(PATTERN, server.address, server.folder, tenant=f"tenant {number}") as watched:
            proof = path(watched)
            assert isinstance(proof, Unstored) or PATTERN.stand_in in watched.stored(), name
        assert not [text for _, text in watched.emitted if found_in(text.encode("utf-8", "replace"), PATTERN.marker)]
    server.stop()

    assert found_in(bytes_of(server.folder), PATTERN.marker) == []


def test_nothing_of_an_encrypted_session_is_readable_on_the_disk(server: Server) -> None:
    """Text of an encrypted session is not readable in a server's files, before and after it is deleted."""
    with Memory.open(server.address, encryption=FIRST) as memory:
        play(memory)
        assert MARKER in repr(memory.session("one").export())
        memory.delete_session("one")
    server.stop()

    assert found_in(bytes_of(server.folder), MARKER) == []
