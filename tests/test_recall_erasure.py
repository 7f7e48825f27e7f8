"""Destroyed entries are never found and are in no byte of the index, whatever has destroyed them."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import postgresstore
from commands import start
from palimpsest import Memory, Query
from palimpsest.recall.sqlite.index import File
from palimpsest.testing import FakeClock
from recall_helpers import companion, finds, index_bytes, marks, place_of, remaining, rows, texts, traces
from writer import quarters

EVERY = pytest.mark.parametrize("kind", ["sqlite", "file", "postgres"])
EACH = pytest.mark.parametrize("kind", ["sqlite", "file", pytest.param("postgres", marks=pytest.mark.wide)])


def talked(memory: Memory, words: list[str], *, user: str | None = None, expires: Any = None, **options: Any) -> None:
    """Add entries with one word each, on every surface that an entry has, and sessions beside them."""
    dice = random.Random(7)
    session = memory.session("one", counter=quarters, user=user, **options)
    for number, word in enumerate(words):
        match number % 4:
            case 0:
                session.add_user_message(f"{word} " * dice.choice([1, 3, 300]), expires_at=expires)
            case 1:
                session.add_tool_call("look", {"at": word}, call_id=f"c{number}")
                session.add_tool_result("look", f"there is {word}", call_id=f"c{number}")
            case 2:
                session.add_assistant_message(f"about that: {word}", expires_at=expires)
            case _:
                session.add_user_message("said by one", name=word, expires_at=expires)
        memory.session(f"beside {number % 3}").add_user_message(f"kept {number} beside it " * dice.choice([1, 20]))


DESTROYERS: dict[str, Callable[[Memory], object]] = {
    "erase": lambda m: m.session("one").erase([entry.id for entry in m.session("one").entries()]),
    "query": lambda m: m.session("one").erase(Query(since="0")),
    "clear": lambda m: m.session("one").clear(),
    "delete": lambda m: m.delete_session("one"),
    "forget session": lambda m: m.forget(session="one"),
    "forget user": lambda m: m.forget(user="ann"),
    "forget tenant": lambda m: m.forget(tenant="default"),
    "replace": lambda m: m.session("one").replace([{"role": "user", "content": "something else"}], destroy=True),
}


@pytest.mark.sampled
@EVERY
@pytest.mark.parametrize("how", ["erase", "clear", "delete", "forget session", "forget user", "forget tenant"])
def test_destroyed_entries_are_not_found_and_leave_no_byte(tmp_path: Path, kind: str, how: str) -> None:
    """Destroyed entries are found by no memory, and no byte of the index has them, open or closed."""
    words = marks(how, 24)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        talked(memory, words, user="ann")
        assert all(finds(memory, word) for word in words)
        assert traces(words, index_bytes(kind, tmp_path)) == words
    with Memory.open(place_of(kind, tmp_path)) as memory:
        done = DESTROYERS[how](memory)

        assert remaining(done) == []
        assert traces(words, index_bytes(kind, tmp_path)) == []
        assert not any(finds(memory, word) for word in words)
        assert finds(memory, "kept") is (how != "forget tenant")
        assert traces(words, index_bytes(kind, tmp_path)) == []
    assert traces(words, index_bytes(kind, tmp_path)) == []


@EACH
def test_forget_matches_removes_only_matching_entries_from_the_index(tmp_path: Path, kind: str) -> None:
    """`forget(matches=)` removes the matching entries of all sessions from the index, and nothing else."""
    words, kept = marks("gone", 6), marks("kept", 6)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        for number, (word, other) in enumerate(zip(words, kept, strict=True)):
            memory.session(f"s{number % 2}").add_user_message(f"zanzibar and {word}")
            memory.session(f"s{number % 2}").add_user_message(f"lima and {other}")
        assert finds(memory, "zanzibar")

        assert remaining(memory.forget(matches="zanzibar")) == []

        assert traces([*words, *kept], index_bytes(kind, tmp_path)) == kept
        assert not any(finds(memory, word) for word in [*words, "zanzibar"])
        assert all(finds(memory, word) for word in kept)


@EACH
def test_expired_entries_are_not_found_and_are_swept_from_the_index(
    tmp_path: Path, kind: str, clock: FakeClock
) -> None:
    """Expired entries and ended sessions are not found from that moment on, and a sweep removes them from the index."""
    words, over = marks("expired", 8), marks("over", 2)
    with Memory.open(place_of(kind, tmp_path), clock=clock) as memory:
        until = memory.session("first").add_user_message("when").created_at + timedelta(seconds=60)
        talked(memory, words, expires=until)
        memory.session("short", lifetime=60).add_user_message(" ".join(over))
        assert all(finds(memory, word) for word in [*words, *over])
        clock.advance(61)

        assert not any(finds(memory, word) for number, word in enumerate(words) if number % 4 != 1)
        assert not any(finds(memory, word) for word in over)
        memory.sweep()

        assert traces([*over, *(words[number] for number in (0, 2, 3))], index_bytes(kind, tmp_path)) == []
        assert finds(memory, words[1])


@EACH
def test_entries_already_expired_are_never_indexed(tmp_path: Path, kind: str, clock: FakeClock) -> None:
    """Expired entries are not indexed, since a sweep could remove them without telling the index."""
    words = marks("before", 2)
    with Memory.open(place_of(kind, tmp_path), clock=clock) as memory:
        until = memory.session("one").add_user_message(f"first {words[0]}").created_at + timedelta(seconds=60)
        memory.session("one").add_user_message(f"second {words[1]}", expires_at=until)
        clock.advance(61)
        assert finds(memory, words[0])
        assert not finds(memory, words[1])

        assert traces(words, index_bytes(kind, tmp_path)) == words[:1]
        memory.sweep()
        assert traces(words, index_bytes(kind, tmp_path)) == words[:1]


@EACH
def test_rewound_entries_are_not_found(tmp_path: Path, kind: str) -> None:
    """Rewound entries are not found; entries added in their place are."""
    words = marks("rewound", 4)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        session = memory.session("one")
        for word in words:
            session.add_user_message(f"then {word}")
        assert all(finds(memory, word) for word in words)

        session.rewind(to=2)
        session.add_user_message("and now something else")

        assert [finds(memory, word) for word in words] == [True, True, False, False]
        assert finds(memory, "else")
        assert [finds(session, word) for word in words] == [True, True, False, False]


@EACH
@pytest.mark.parametrize("searched", [True, False])
def test_erasing_a_rewound_entry_leaves_no_byte_in_the_index(tmp_path: Path, kind: str, searched: bool) -> None:
    """Erasing a rewound entry removes it from the index, whether the index knows of the rewind or not."""
    words = marks("rewound", 4)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        session = memory.session("one")
        for word in words:
            session.add_user_message(f"then {word}")
        assert finds(memory, words[3])
        session.rewind(to=2)
        if searched:
            assert not finds(memory, words[3])

        memory.forget(matches=words[3])

        assert traces([words[3]], index_bytes(kind, tmp_path)) == []
        assert finds(memory, words[0])


@EACH
def test_redacted_text_is_replaced_in_the_index(tmp_path: Path, kind: str) -> None:
    """After `scan(apply=True)` the index has the new text and no byte of the old one."""
    with (
        Memory.open(place_of(kind, tmp_path), privacy={"redact_patterns": [r"\w+@\w+"]}) as memory,
        Memory.open(place_of(kind, tmp_path)) as plain,
    ):
        session = plain.session("one")
        session.add_user_message("write to qwvxzkjh@bcdfghjk.org about pelicans")
        session.add_user_message("nothing of that kind, albatross")
        assert texts(plain, "qwvxzkjh pelicans") == ["write to qwvxzkjh@bcdfghjk.org about pelicans"]

        memory.scan(apply=True)

        assert b"vxzkjh" not in index_bytes(kind, tmp_path)
        for one in (plain, memory):
            (text,) = texts(one, "pelicans")
            assert "qwvx" not in text
            assert texts(one, "qwvxzkjh") == []
            assert finds(one, "albatross")
        assert b"vxzkjh" not in index_bytes(kind, tmp_path)


@EACH
def test_entries_destroyed_by_a_flush_are_not_found(tmp_path: Path, kind: str) -> None:
    """Entries that a flush without archive has destroyed are not in the index; the others are found."""
    words = marks("flush", 60)
    options: dict[str, Any] = {"persistence": "flush", "archive": False, "max_messages": 10}
    with Memory.open(place_of(kind, tmp_path)) as memory:
        session = memory.session("one", counter=quarters, **options)
        for word in words:
            session.add_user_message(f"then {word}")
            session.add_assistant_message("yes")
        assert finds(memory, words[3])
        session.compact("simple_fifo")
        session.end_turn()

        left = [word for word in words if any(word in entry.text for entry in session.entries())]
        assert 0 < len(left) < 20
        assert traces(words, index_bytes(kind, tmp_path)) == left
        assert [word for word in words if finds(memory, word)] == left


@EACH
def test_an_import_that_replaces_a_session_replaces_its_indexed_text(tmp_path: Path, kind: str) -> None:
    """An import that replaces a session replaces its text in the index."""
    old, new = marks("import", 2)
    with Memory.open(place_of(kind, tmp_path)) as memory, Memory.open("memory://") as elsewhere:
        elsewhere.session("one").add_user_message(f"new {new}")
        memory.session("one").add_user_message(f"old {old}")
        assert finds(memory, old)

        memory.import_session(elsewhere.session("one").export(), on_conflict="replace")

        assert traces([old], index_bytes(kind, tmp_path)) == []
        assert (finds(memory, old), finds(memory, new)) == (False, True)


@EACH
def test_erasing_in_a_root_removes_shared_entries_from_branches(tmp_path: Path, kind: str) -> None:
    """Erasing in a root removes the entry from branches; a branch whose root was deleted still finds the rest."""
    shared, erased, own = marks("branches", 3)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        root = memory.session("root")
        root.add_user_message(f"shared {shared}")
        root.add_user_message(f"erased {erased}")
        branch = root.fork("branch")
        branch.add_user_message(f"own {own}")
        assert len(texts(memory, shared)) == 1
        assert finds(branch, erased)

        root.erase([2])
        assert traces([shared, erased], index_bytes(kind, tmp_path)) == [shared]
        assert not finds(branch, erased)
        memory.delete_session("root")

        assert texts(memory, shared) == [f"shared {shared}"]
        assert branch.recall(shared).hits[0].session == "branch"
        assert not finds(memory, erased)


@EACH
def test_an_erasure_by_a_program_without_an_index_reaches_the_index(tmp_path: Path, kind: str) -> None:
    """An erasure by a program that has never searched reaches the index."""
    words = marks("cli", 3)
    with Memory.open(place_of(kind, tmp_path)) as memory:
        for word in words:
            memory.session("one").add_user_message(f"said {word}")
        assert finds(memory, words[0])

        done = start("forget", "--store", place_of(kind, tmp_path), "--matches", words[0], "--yes")

        assert done.returncode == 0, done.stderr
        assert not [line for line in done.stderr.splitlines() if "recall" in line and "PostgreSQL keeps" not in line]
        assert traces(words, index_bytes(kind, tmp_path)) == words[1:]
        assert [finds(memory, word) for word in words] == [False, True, True]


@EACH
def test_no_verb_finds_entries_of_another_tenant(tmp_path: Path, kind: str) -> None:
    """No verb finds another tenant's entries, even with equal session names in one file."""
    mine, theirs = marks("tenants", 2)
    with Memory.open(place_of(kind, tmp_path), tenant="a") as memory:
        other = memory.for_tenant("b")
        memory.session("one").add_user_message(f"mine {mine}")
        other.session("one").add_user_message(f"theirs {theirs}")
        for _ in range(2):
            assert finds(memory, mine)
            assert finds(other, theirs)
            assert not finds(memory, theirs)
            assert not finds(other.session("one"), mine)
            assert not finds(memory, theirs, sessions=["one"])

        memory.forget(tenant="a")

        assert traces([mine, theirs], index_bytes(kind, tmp_path)) == [theirs]
        assert finds(other, theirs)


def test_an_erased_summary_is_not_found(tmp_path: Path) -> None:
    """A summary that is withdrawn because of an erasure is removed from the index."""
    secret, kept = marks("summary", 2)
    with Memory.open(place_of("sqlite", tmp_path)) as memory:
        session = memory.session(
            "one", counter=quarters, summarizer=lambda text: f"they spoke of it: {secret if secret in text else kept}"
        )
        for number in range(30):
            session.add_user_message(f"{secret if number == 2 else 'nothing'} {number} " * 20)
            session.add_assistant_message(f"well {number} " * 20)
        session.compact("summarizer")
        assert session.summaries()
        assert finds(memory, secret)

        memory.forget(matches=secret)

        assert traces([secret], index_bytes("sqlite", tmp_path)) == []
        assert not finds(memory, secret)


def test_erasing_an_unindexed_entry_does_not_rewrite_the_index_file(tmp_path: Path) -> None:
    """Erasing an entry that was never indexed does not rewrite the index file; erasing an indexed one does."""
    known, new = marks("never", 2)
    with Memory.open(place_of("sqlite", tmp_path)) as memory:
        session = memory.session("one")
        session.add_user_message(f"said {known}")
        assert finds(memory, known)
        before = written_anew(tmp_path)

        session.add_user_message(f"said {new}")
        assert session.erase([2]).remains == ()
        assert (written_anew(tmp_path), traces([known, new], index_bytes("sqlite", tmp_path))) == (before, [known])
        assert session.erase([1]).remains == ()
        assert written_anew(tmp_path) > before
        assert traces([known, new], index_bytes("sqlite", tmp_path)) == []


def written_anew(folder: Path) -> int:
    """Return a number that grows whenever the index file is rewritten."""
    ((version,),) = rows(companion("sqlite", folder), "PRAGMA schema_version")
    return int(version)


def test_an_erasure_merges_segments_only_before_sqlite_3_42(tmp_path: Path) -> None:
    """Since SQLite 3.42 an erasure merges no FTS5 segments; before, it does. Either way no byte is left."""
    words = marks("segments", 40)
    with Memory.open(place_of("sqlite", tmp_path)) as memory:
        session = memory.session("one")
        for word in words:
            session.add_user_message(f"said {word} among many others " * 40)
            assert finds(memory, word)
        before = segments(tmp_path)
        assert before > 1

        assert session.erase([3]).remains == ()

        assert segments(tmp_path) == (before if sqlite3.sqlite_version_info >= (3, 42) else 1)
        assert traces(words, index_bytes("sqlite", tmp_path)) == words[:2] + words[3:]


def segments(folder: Path) -> int:
    """Return how many segments the index of one tenant has."""
    ((number,),) = rows(companion("sqlite", folder), "SELECT count(DISTINCT segid) FROM words_1_idx")
    return int(number)


class Crowded:
    """A connection to a database on a disk that has no room for a second copy of it."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def __enter__(self) -> Any:
        return self._db.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._db.__exit__(*error)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql == "VACUUM":
            raise sqlite3.OperationalError("database or disk is full")
        return self._db.execute(sql, *values)


def test_an_index_that_cannot_be_rewritten_is_reported_and_rewritten_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no room to rewrite the index, an erasure reports that, and the next process that searches does it."""
    words = marks("crowded", 400)
    place = place_of("sqlite", tmp_path)
    with Memory.open(place) as memory:
        for number in range(0, len(words), 10):
            memory.session("one").add_user_message(" ".join(words[number : number + 10]))
            memory.recall("nothing")
        with monkeypatch.context() as full:
            opened = File._opened
            full.setattr(File, "_opened", lambda file: Crowded(opened(file)))
            (told,) = memory.session("one").erase(list(range(1, 31))).remains
        assert str(companion("sqlite", tmp_path)) in told
        assert "disk is full" in told
    with Memory.open(place) as memory:
        memory.recall("nothing")
        assert traces(words, index_bytes("sqlite", tmp_path)) == words[300:]
        assert rows(companion("sqlite", tmp_path), "SELECT * FROM meta WHERE name LIKE 'scrub%'") == []


def test_vacuum_removes_erased_bytes_from_a_large_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large index is not rewritten at each erasure: the erasure reports that, and `vacuum` does it."""
    monkeypatch.setattr("palimpsest.recall.sqlite.index.SMALL", 1)
    (word, other) = marks("vacuum", 2)
    with Memory.open(place_of("sqlite", tmp_path)) as memory:
        memory.session("one").add_user_message(f"said {word}")
        memory.session("one").add_user_message(f"said {other}")
        assert finds(memory, word)

        (told,) = memory.session("one").erase([1]).remains

        assert str(companion("sqlite", tmp_path)) in told
        assert "vacuum" in told
        assert not finds(memory, word)
        assert memory.vacuum().remains == ()
        assert traces([word, other], index_bytes("sqlite", tmp_path)) == [other]


def test_postgresql_keeps_no_byte_after_the_reported_tables_are_rewritten(tmp_path: Path) -> None:
    """An erasure names the PostgreSQL tables to rewrite; afterwards no file of the schema has the text or its
    vector."""
    np = pytest.importorskip("numpy", reason="the extra vectors is not installed")
    gone, kept = marks("postgres", 2)
    rows = {gone: [0.6, 0.8, 0.0], kept: [0.0, 0.8, 0.6]}
    near = np.array(rows[gone], np.float32).astype("<f2").tobytes()
    address = place_of("postgres", tmp_path)

    def embedder(given: list[str]) -> list[list[float]]:
        return [next((row for word, row in rows.items() if word in text), [1.0, 0.0, 0.0]) for text in given]

    with Memory.open(address, embedder=embedder) as memory:
        memory.session("one").add_user_message(f"said {gone}")
        memory.session("one").add_user_message(f"said {kept}")
        assert finds(memory, gone)
        before = server_bytes(address)
        assert traces([gone, kept], before) == [gone, kept]
        assert near in before

        told = memory.session("one").erase([1]).remains
        assert memory.vacuum().remains == told
    (tables,) = [found[1] for found in map(re.compile("schema .*, until (.*) are written anew").search, told) if found]
    schema = postgresstore.schema_of("recalls")
    assert f"{schema}.vector" in tables
    for table in (*tables.split(", "), f"{schema}.places", f"{schema}.rows"):
        postgresstore.asked(address, f"VACUUM FULL {table}")

    after = server_bytes(address)

    assert traces([gone, kept], after) == [kept]
    assert near not in after


def server_bytes(address: str) -> bytes:
    """Return the bytes of all files of the schema's tables and indexes, from the server's disk."""
    schema = postgresstore.schema_of("recalls")
    read = (
        "SELECT pg_read_binary_file(pg_relation_filepath(c.oid)) FROM pg_class c JOIN pg_namespace n "
        f"ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'i')"
    )
    return b"".join(data for (data,) in postgresstore.asked(address, "CHECKPOINT", read))
