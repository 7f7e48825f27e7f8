"""A damaged entry is named and set aside; the session goes on without it, and `repair` removes it for good."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import read, run
from filestore import changed_line
from palimpsest import Memory, Query, Session
from palimpsest.stores.engine.forms import LAST
from sealed import FIRST
from writer import quarters, turn

WORLDS = ("sqlite", "sealed sqlite", "file", "sealed file", "tampered sqlite", "tampered file")
SEQ = 9
"""The entry that is damaged: the answer to a question, or one of a turn of six entries."""


Tampering = Callable[[int, bytes], bytes | None]
"""From the seq of an entry and what is stored of it to what comes in its place (None: it stays)."""


def tamper(folder: Path, how: Tampering, session: str = "", *, mended: bool = True) -> None:
    """Change stored entries in all branches; in a folder, only in logs whose names begin with `session`.

    With `mended` the checksums of lines fit, as if somebody without a key had done it on purpose.
    """
    for path in folder.glob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            for pos, value in db.execute("SELECT pos, value FROM entry").fetchall():
                now = how(pos & LAST, value)
                if now is not None:
                    db.execute("UPDATE entry SET value = ? WHERE pos = ?", (now, pos))
    for log in folder.rglob(f"{session}*.jsonl"):
        lines = log.read_bytes().splitlines(keepends=True)

        def of_entries(table: str, key: int, value: bytes) -> bytes | None:
            return how(key & LAST, value) if table == "entry" else None

        log.write_bytes(b"".join(changed_line(line, of_entries, mended=mended) for line in lines))


def spoilt(value: bytes) -> bytes:
    """Return the stored entry with something changed: for an encrypted one, the end of its ciphertext."""
    if value.startswith(b"{"):
        return value.replace(b'"turn":', b'"turn":7', 1)
    return value[:-16] + value[:-17:-1]


class World:
    """A closed store of one kind with a session of several turns, whose entries a test can damage."""

    def __init__(self, kind: str, folder: Path) -> None:
        *sealed, self.kind = kind.split()
        self.tampers = sealed == ["tampered"]
        self.folder = folder
        self.where = {"sqlite": f"sqlite:///{folder}/a.db", "file": f"file://{folder}/logs"}[self.kind]
        self.options: dict[str, Any] = {"encryption": FIRST} if sealed else {}
        with Memory.open(self.where, **self.options) as memory:
            session = memory.session("s")
            for number in range(4):
                for message in turn(str(number)):
                    session.add(message)
            session.add_user_message("last")
            self.texts = [entry.text for entry in session.entries()]

    def damage(self, *seqs: int) -> list[int]:
        """Change stored entries in all branches and return the seqs that cannot be read then."""
        tamper(self.folder, lambda seq, value: spoilt(value) if seq in seqs else None, mended=self.tampers)
        return [*seqs]

    @contextlib.contextmanager
    def opened(self) -> Iterator[Memory]:
        """Open the memory again."""
        with Memory.open(self.where, **self.options) as memory:
            yield memory


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A store of each kind."""
    return World(request.param, tmp_path)


def chat(memory: Memory) -> Session:
    """Return the session with a budget that a few turns fill."""
    return memory.session("s", max_tokens=150, counter=quarters)


@pytest.mark.sampled
def test_a_damaged_entry_is_named_and_set_aside(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged entry keeps its place without content; every verb works and reports the damage."""
    damaged = world.damage(SEQ)

    with world.opened() as memory:
        session = chat(memory)
        found = session.entries()

        assert [entry.seq for entry in found if entry.damaged] == damaged
        texts = ["" if n + 1 in damaged else text for n, text in enumerate(world.texts)]
        assert [entry.text for entry in found] == texts
        assert f"at entry {damaged[0]}" in caplog.text or f"entry {SEQ}" in caplog.text
        assert re.search(r"session 's'|/s-\w+\.jsonl", caplog.text)  # a file is named after its session
        assert f"entry {SEQ} is damaged and cannot be read" in session.verify().problems
        assert session.entry(SEQ).damaged
        assert session.context().messages
        assert memory.session("s").context().messages
        session.add(turn("after " * 60))
        session.compact({"strategy": "summarizer", "interaction_keep": 0})
        assert session.summaries()
        assert session.stats().revision
        assert session.interactions()
        assert session.erase([2]).entries == 1
        assert session.erase(Query(text="question 2")) is not None
        session.pin(1)
        session.fork("branch").add(turn("branch"))
        assert memory.session("branch").entry(SEQ).damaged
        memory.import_session(session.export(), session_id="copy")
        assert memory.session("copy").entry(SEQ).erased
        assert memory.session("copy").verify().ok
        session.rewind(session.stats().revision - 1)
        assert [info.session for info in memory.sessions()] == ["branch", "copy", "s"]


@pytest.mark.sampled
@pytest.mark.parametrize("by", ["repair", "erase", "branch"])
def test_repair_and_erase_remove_damaged_entries(world: World, by: str) -> None:
    """`repair` takes out all that is damaged, `erase` one of them, in every branch; then nothing is wrong."""
    with world.opened() as memory:
        memory.session("s").fork("branch")
    damaged = world.damage(SEQ, SEQ + 1)

    with world.opened() as memory:
        session = memory.session("branch" if by == "branch" else "s")
        if by == "erase":
            assert [session.erase([seq]).entries for seq in damaged] == [1] * len(damaged)
        else:
            done = session.repair()
            assert (done.entries, len(done.branches)) == (len(damaged), 1)

        assert session.repair().entries == 0

    with world.opened() as memory:
        for name in ("s", "branch"):
            session = memory.session(name)
            found = session.entries()
            assert [entry.seq for entry in found if entry.erased] == damaged
            assert not any(entry.damaged for entry in found)
            assert session.verify().problems == ()
            assert session.context().messages
            session.add(turn("after"))


@pytest.mark.sampled
@pytest.mark.parametrize("hidden", [False, True])
def test_a_damaged_tombstone_counts_once(world: World, hidden: bool) -> None:
    """A damaged tombstone counts as erased once, rewound or not, in every branch."""
    with world.opened() as memory:
        session = memory.session("s")
        before = session.stats().revision
        session.erase([SEQ, SEQ + 2])
        session.fork("early", at=before)
        session.fork("branch")
        if hidden:
            session.rewind(3)
    damaged = world.damage(SEQ)

    with world.opened() as memory:
        memory.session("s").repair()

    with world.opened() as memory:
        for name in ("s", "branch", "early"):
            session = memory.session(name)
            session.repair()
            assert session.verify().problems == ()
            assert session.repair().entries == 0
            living = [entry for entry in session.entries() if not entry.erased]
            assert memory.info(name).entries == len(living)
        assert {entry.seq for entry in memory.session("early").entries() if entry.erased} == {*damaged, SEQ, SEQ + 2}


def test_repair_of_an_ephemeral_session_leaves_the_store_unchanged(world: World) -> None:
    """`repair` of an ephemeral session removes a damaged entry there and leaves the store unchanged."""
    with world.opened() as memory:
        memory.session("s").erase([SEQ])
    damaged = world.damage(SEQ, SEQ + 1)

    with world.opened() as memory:
        ephemeral = memory.session("s", persistence="ephemeral")
        done = ephemeral.repair()
        found = ephemeral.entries()

        assert done.entries == len(damaged)
        assert not any(entry.damaged for entry in found)
        assert {entry.seq for entry in found if entry.erased} == {*damaged, SEQ}
        assert ephemeral.repair().entries == 0
        assert ephemeral.verify().problems == ()
        assert ephemeral.context().messages
        assert [entry.seq for entry in memory.session("s").entries() if entry.damaged] == damaged


@pytest.mark.sampled
@pytest.mark.parametrize("seq", [1, 2, 3, 4, 6, 7, 24])
def test_contexts_are_valid_whichever_entry_is_damaged(world: World, seq: int) -> None:
    """Whichever entry it is, a question, a call, a result, an answer, the first or the last: the context is valid."""
    world.damage(seq)

    with world.opened() as memory:
        session = chat(memory)
        for _ in range(3):
            session.add(turn("more"))
            assert session.context().messages
        session.repair()
        assert session.context().messages
        assert session.verify().ok


def test_an_erasure_names_the_damaged_entries_that_it_left(world: World) -> None:
    """An erasure by a text, a user or a condition names each damaged entry that it had to leave, and what to do."""
    question = 7
    with world.opened() as memory:
        memory.session("s").fork("branch")
        memory.session("whole").add_user_message("question 2")
    damaged = world.damage(question, SEQ, SEQ + 1)
    named = "entries 7 to 10" if 8 in damaged else "entries 7, 9 to 10"
    told = f"{named} of session 's' cannot be read, so they were not searched"

    with world.opened() as memory:
        session = memory.session("s")
        by_text = session.erase(Query(text="question 2"))
        by_condition = session.erase(Query(where="contains(message.content, 'question 3')"))
        by_user = session.erase(Query(user="ann"))
        for done in (by_text, by_condition, by_user):
            assert told in done.remains[0]
            assert "repair" in done.remains[0]
        assert (by_text.entries, len(by_text.remains), len(by_condition.remains)) == (1, 1, 1)
        assert f"entry {question} of session 's'" in by_user.remains[1]
        assert session.erase([1]).remains == ()
        would = memory.forget(matches="question 0", dry_run=True)
        forgot = memory.forget(matches="question 0")
        for done in (would, forgot):
            assert [told in one or told.replace("'s'", "'branch'") in one for one in done.remains] == [True, True]
        session.repair()

        assert session.erase(Query(text="question")).remains == ()
        assert memory.forget(user="ann").remains == ()


def test_the_command_line_repairs_a_damaged_entry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` names the entry, `show` marks it, `repair` asks, and takes it out."""
    if world.options:
        monkeypatch.setenv("PALIMPSEST_KEY", "old:" + bytes(range(32)).hex())
    damaged = world.damage(SEQ)
    where = ("--store", world.where)

    assert f"entry {damaged[0]} of session 's'" in run("doctor", *where).output
    assert [entry["seq"] for entry in read("show", "s", "--all", *where) if entry.get("damaged")] == damaged
    assert run("show", "s", "--all", *where).stdout.count("(damaged)") == len(damaged)
    assert read("repair", "s", "--dry-run", *where) == {"session": "s", "damaged": damaged, "taken_out": 0}
    assert run("repair", "s", *where).exit_code == 2
    assert run("repair", "s", "--yes", *where).exit_code == 0
    assert read("repair", "s", "--dry-run", *where)["damaged"] == []
    assert run("verify", "s", *where).exit_code == 0
