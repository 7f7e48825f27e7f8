"""`palimpsest vacuum`: what it does to a large file, and what it prints."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from commands import run
from palimpsest import Memory
from palimpsest.stores.sqlite import scrubbing
from processes import remains


@pytest.fixture
def large(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store with erased entries in a file that counts as large, because SMALL is lowered; return the file."""
    monkeypatch.setattr(scrubbing, "SMALL", 1 << 16)
    with Memory.open("sqlite:///chats.db", synchronous="NORMAL") as memory:
        session = memory.session("one")
        session.add([{"role": "user", "content": f"zanzibar {number} " * 60} for number in range(300)])
        session.erase(list(range(1, 200)))
    return here / "chats.db"


def test_vacuum_shrinks_the_file_and_removes_erased_bytes(large: Path) -> None:
    """`vacuum` prints how many bytes it gave back; the file is smaller by them and holds nothing erased."""
    before = large.stat().st_size

    done = run("vacuum")

    (freed,) = re.findall("^Freed ([0-9,]+) bytes.$", done.stderr, re.MULTILINE)
    assert (done.exit_code, done.stdout) == (0, "")
    assert before - large.stat().st_size == int(freed.replace(",", "")) > 50_000
    assert b"zanzibar 7 " not in remains(large)
    assert b"zanzibar 250 " in remains(large)


def test_nothing_to_vacuum_is_no_error(large: Path) -> None:
    """A second `vacuum`, and one of a store in memory, has nothing to give back and exits with 0."""
    first, second = (json.loads(run("vacuum", "--json").stdout) for _ in range(2))
    nowhere = run("vacuum", "--store", "memory://")

    assert (first["remains"], second) == ([], {"freed": 0, "remains": []})
    assert (nowhere.exit_code, nowhere.stderr) == (0, "There was no unused space to free.\n")


def test_vacuum_fails_if_another_writer_holds_the_file(large: Path) -> None:
    """`vacuum` exits with 5 and changes nothing if another process holds the file longer than `busy_seconds`."""
    with closing(sqlite3.connect(large, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        done = run("vacuum", "--store", "sqlite:///chats.db?busy_seconds=0.1")

        other.execute("ROLLBACK")
    assert done.exit_code == 5
    assert "other writers held it for too long" in done.stderr
    assert run("vacuum").exit_code == 0


def test_vacuum_without_room_on_disk_loses_nothing(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the copy `vacuum` exits with 5 and advice, and no entry is lost."""
    take = scrubbing.step

    def bounded(db: sqlite3.Connection) -> int | None:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages}").fetchone()
        return take(db)

    with monkeypatch.context() as while_full:
        while_full.setattr(scrubbing, "step", bounded)
        done = run("vacuum")

    assert done.exit_code == 5
    assert "make room and try again" in done.stderr
    with Memory.open("sqlite:///chats.db") as memory:
        assert len(memory.session("one").entries()) == 300
