"""Stores on read-only media, under clocks that run backwards, and with contents too large to be stored twice."""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest import Image, Memory, Session, StoreUnavailable, Text
from palimpsest.testing import FakeClock
from processes import filled, integrity, remains, tried
from sqlitestore import of
from writer import SESSION, quarters, turn

KINDS = ["sqlite", "file"]


def address(kind: str, folder: Path) -> Path | str:
    """Return the address of a store of this kind in a folder."""
    return folder / "log.db" if kind == "sqlite" else f"file://{folder}/logs"


# --- media that can only be read


@pytest.fixture
def sealed(small_disk: Path) -> Iterator[Path]:
    """Yield a disk that a test may remount read-only; it is writable again at the end."""
    yield small_disk
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_on_read_only_media_is_read(sealed: Path, kind: str) -> None:
    """With `readonly=True` a store on read-only media is read and makes contexts; without it the error says why not."""
    where = address(kind, sealed)
    texts = filled(where, turns=20)
    subprocess.run(["mount", "-o", "remount,ro", sealed], check=True)

    with Memory.open(where, readonly=True) as memory:
        session = memory.session(SESSION, max_tokens=200, counter=quarters)
        assert [entry.text for entry in session.entries()] == texts
        context = session.context()
        assert context.tokens <= 200
        assert "read-only" in context.report.notes
        assert session.context(at=5).messages
        assert len(memory.sessions()) == 1
        with pytest.raises(StoreUnavailable, match=r"read-?only"):
            session.add_user_message("no")
    with (
        pytest.raises(StoreUnavailable, match=r"(?i)read-?only|cannot be written|permissions"),
        Memory.open(where) as memory,
    ):
        memory.session(SESSION).add_user_message("no")


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_another_user_is_read(shelf: Path, kind: str) -> None:
    """A store whose files and folder may only be read is read."""
    where = address(kind, shelf)
    texts = filled(where)
    for path in (*shelf.rglob("*"), shelf):
        path.chmod(0o555 if path.is_dir() else 0o444)

    assert tried(where, "readonly")["read"] == texts


# --- clocks


def test_a_clock_that_runs_backwards_changes_no_order(memory: Memory, clock: FakeClock) -> None:
    """If the clock runs backwards, entries keep the order of writing and unique ids, and contexts stay stable.

    Nothing expires early.
    """
    session = memory.session("one", max_tokens=300, counter=quarters)
    before = session.context()
    for number in range(30):
        session.add(turn(str(number)))
        clock.advance(-3_600)
        context = session.context()
        if context.epoch == before.epoch:
            assert context.log_messages[: len(before.log_messages)] == before.log_messages
        before = context

    entries = session.entries()
    assert [entry.seq for entry in entries] == list(range(1, 181))
    assert len({entry.id for entry in entries}) == 180
    assert all(one.at >= other.at for one, other in itertools.pairwise(entries))
    assert [record.revision for record in session.history()] == sorted(
        {entry.revision for entry in entries}
        | {record.revision for record in session.history() if record.kind == "cut"}
    )
    with session.turn():
        session.add_user_message("still here")
    assert session.fork(at=5).entries()[-1].revision <= 5
    assert memory.sweep() == 0


# --- large contents


PICTURE = "data:image/png;base64," + "iVBOR" * 40_000


def pictured(session: Session) -> int:
    """Add a message with the picture and return its seq."""
    return session.add_user_message([Text(text="look at this"), Image(source=PICTURE)]).seq


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_stored_once_per_home(tmp_path: Path, kind: str) -> None:
    """A picture is stored once however many messages and branches of a session hold it.

    After the last of them no byte of it is left.
    """
    where = address(kind, tmp_path)
    with Memory.open(where) as memory:
        first, second = memory.session("one"), memory.session("two")
        places = [pictured(first) for _ in range(10)]
        pictured(second)
        branch = first.fork("branch")

        assert len(remains(where)) < 5 * len(PICTURE)  # for each of two homes once in the store, once in its journal
        assert first.context().messages[0]["content"][1]["image_url"]["url"] == PICTURE
        first.erase(places[1:])
        second.clear()
        assert branch.entry(places[0]) == first.entry(places[0])
        memory.delete_session("one")
        assert branch.entry(places[0]).content[1] == Image(source=PICTURE)
        assert b"iVBORiVBOR" in remains(where)
        branch.erase([places[0]])
    assert b"iVBOR" not in remains(where)
    assert integrity(where) == "ok"


def test_tenants_share_no_content(tmp_path: Path) -> None:
    """Tenants with the same picture each have their own, so that deleting one leaves the other.

    Nor can a tenant find out that another has the same.
    """
    path = tmp_path / "log.db"
    for tenant in ("a", "b"):
        with Memory.open(path, tenant=tenant) as memory:
            pictured(memory.session("s"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute(f"SELECT count(*), count(DISTINCT id) FROM other WHERE {of('large')}").fetchone() == (2, 1)

    with Memory.open(path, tenant="a") as memory:
        memory.delete_session("s")

    with Memory.open(path, tenant="b") as memory:
        assert memory.session("s").entries()[0].content[1] == Image(source=PICTURE)


def test_a_damaged_large_content_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A large content is checked against its digest; a damaged one marks its entry, and the others can be read."""
    path = tmp_path / "log.db"
    with Memory.open(path) as memory:
        pictured(memory.session("s"))
        memory.session("s").add_user_message("after")
    with contextlib.closing(sqlite3.connect(path)) as db:
        changed = "CAST(replace(CAST(value AS TEXT), 'iV', 'iW') AS BLOB)"
        db.execute(f"UPDATE other SET value = {changed} WHERE {of('large')}")
        db.commit()

    with Memory.open(path) as memory:
        assert [entry.damaged for entry in memory.session("s").entries()] == [True, False]
        assert re.search(r"entry 1 .*large content .* is missing or damaged", caplog.text)
        assert memory.session("s").entry(2).text == "after"
