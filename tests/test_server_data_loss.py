"""A server whose backup is restored, or that has lost acknowledged writes, while its clients live on."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from lossy_store import losing
from on_servers import SERVERS, own_server
from palimpsest import Memory, Session
from palimpsest.errors import StoreCorrupt
from servers import Server

KEYS = {"k": "a" * 64}
WORDS = ("gamma", "kappa", "epsilon", "theta")


def saved(server: Server) -> None:
    """Copy all data of the server, as a backup does."""
    server.stop()
    subprocess.run(["cp", "-a", server.folder, f"{server.folder}.backup"], check=True)
    server.start()


def put_back(server: Server) -> None:
    """Restore that copy in place of the server's own data."""
    server.kill()
    shutil.rmtree(server.folder)
    subprocess.run(["cp", "-a", f"{server.folder}.backup", server.folder], check=True)
    server.start()


def texts(session: Session) -> list[Any]:
    return [message["content"] for message in session.context().messages]


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("more", [["epsilon zeta"], ["epsilon zeta", "eta theta", "iota"]])
def test_searches_find_exactly_the_stored_entries_after_a_loss(more: list[str], noticed: bool) -> None:
    """After a loss, searches find exactly what is stored, although the index had seen lost and erased entries."""
    address = f"losing://search/{len(more)}/{noticed}"
    with Memory.open(address) as mine, Memory.open(address) as theirs:
        mine.session("s").add_user_message("alpha beta")
        losing(address).save()
        for text in ("gamma delta", "kappa"):
            mine.session("s").add_user_message(text)
            mine.session("other").add_user_message(f"{text} elsewhere")
            mine.session("s").context()
        assert sum("gamma" in hit.text for hit in mine.recall("gamma").hits) == 2
        losing(address).crash()
        if noticed:
            mine.session("s").entries()

        for text in more:
            (mine if noticed else theirs).session("s").add_user_message(text)
            (mine if noticed else theirs).session("new").add_user_message(f"{text} anew")

        assert mine.session("s").verify().ok
        found = {
            word: {(hit.session, hit.text) for hit in mine.recall(word).hits if word in hit.text} for word in WORDS
        }
        assert found["gamma"] == found["kappa"] == set()
        assert found["epsilon"] == {("s", "epsilon zeta"), ("new", "epsilon zeta anew")}
        assert len(found["theta"]) == (2 if len(more) > 1 else 0)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_running_client_shows_the_stored_entries_after_a_loss(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """After a loss a running client shows what is stored, even if others have written since in the same places."""
    with own_server(kind) as server, Memory.open(server.address) as mine, Memory.open(server.address) as theirs:
        own, other = (memory.session("s", max_tokens=1_000, counter=len) for memory in (mine, theirs))
        own.add_user_message("one")
        saved(server)
        for text in ("two", "three"):
            own.add_user_message(text)
            texts(own)
        put_back(server)

        own.add_user_message("four")

        assert texts(own) == texts(other) == ["one", "four"]
        assert "lost acknowledged writes" in caplog.text
        put_back(server)
        for text in ("five", "six", "seven"):
            other.add_user_message(text)
        assert texts(own) == ["one", "five", "six", "seven"]
        assert own.verify().ok
        assert [hit.text for hit in mine.recall("seven").hits][:1] == ["seven"]


@pytest.mark.parametrize("kind", SERVERS)
def test_an_encrypted_store_is_refused_after_a_loss_until_reopened(kind: str) -> None:
    """After a loss an encrypted store is refused until it is opened again: it looks as if somebody put back old
    data."""
    with own_server(kind) as server:
        with Memory.open(server.address, encryption=KEYS) as memory:
            session = memory.session("s", max_tokens=1_000, counter=len)
            session.add_user_message("one")
            saved(server)
            session.add_user_message("two")
            put_back(server)

            with pytest.raises(StoreCorrupt, match=r"is an earlier version than before.*open the memory anew"):
                texts(session)

        with Memory.open(server.address, encryption=KEYS) as memory:
            memory.session("s").add_user_message("three")
            assert texts(memory.session("s", max_tokens=1_000, counter=len)) == ["one", "three"]
