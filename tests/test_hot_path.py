"""The costs of the most frequent operations, in counts that no machine changes: statements, rows, modules, calls."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.stores.sqlite import db
from palimpsest.summaries.mentions import mentions
from sealed import RING
from sqlitestore import commits, connection, synced
from writer import SESSION, quarters, turn

OPENED = """
import json, sys
from palimpsest import Memory
with Memory.open("sqlite:///" + sys.argv[1]) as memory:
    session = memory.session("one", max_tokens=1000, counter=lambda text: len(text) // 4)
    session.add_user_message("hello")
    {more}
sys.stdout.write(json.dumps([name for name in sys.modules if name.startswith("palimpsest.")]))
"""

ELSEWHERE = (
    *("cli", "compaction", "recall", "resources", "sessions.definitions", "sessions.knowledge", "sessions.shelves"),
    *("sessions.owned", "sessions.recalling", "stores.encrypted", "stores.file", "stores.memory", "stores.overlay"),
    "summaries",
)
"""Packages and modules that have no part in what is added to a file of SQLite, nor in its context."""

RARE = tuple(f"stores.engine.{name}" for name in ("changing", "loading", "maintenance", "trees", "whole_sessions"))


def loaded(path: Path, more: str = "pass") -> set[str]:
    """Return the library's modules that a new process has loaded after an append and `more`."""
    command = [sys.executable, "-c", OPENED.format(more=more), str(path)]
    names = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {name.removeprefix("palimpsest.") for name in names}


def test_a_cold_start_loads_what_it_needs(tmp_path: Path) -> None:
    """A process that adds to a file of SQLite and asks for a context loads few modules, and none of another's work."""
    path = tmp_path / "log.db"
    loaded(path, "session.context()")  # stores what was counted

    added, shown = loaded(path), loaded(path, "session.context()")
    cut = loaded(
        tmp_path / "cut.db", "session.add([{'role': 'user', 'content': 'word ' * 400}] * 5); session.context()"
    )

    assert sorted(cut.intersection(RARE)) == ["stores.engine.changing", "stores.engine.trees"]
    for found in (added, shown):
        assert not [name for name in found if name.startswith(ELSEWHERE + RARE)]
    assert len(added) <= 89
    assert len(shown) <= 107


IMPORTED = """
import json, sys
import msgspec
before = set(sys.modules)
from palimpsest import Memory
sys.stdout.write(json.dumps([name for name in set(sys.modules) - before if not name.startswith("palimpsest")]))
"""


def test_an_import_loads_little_of_the_standard_library() -> None:
    """Importing the library loads four small modules of the standard library beside those of msgspec."""
    told = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True).stdout

    found = {name.removeprefix("_") for name in json.loads(told)}

    assert found <= {"bisect", "contextvars", "errno", "zlib"}


@pytest.mark.parametrize(
    ("add", "entries"),
    [(lambda session: session.add_user_message("one"), 1), (lambda session: session.add(turn("one")), 6)],
    ids=["message", "turn"],
)
def test_an_append_is_four_statements(tmp_path: Path, add: Callable[[Any], object], entries: int) -> None:
    """An append to a known session moves its head and adds its rows in one transaction of four statements."""
    with Memory.open(tmp_path / "log.db", clock=lambda: 1_790_000_000_000_000) as memory:
        session = memory.session(SESSION)
        add(session)
        database, seen = connection(memory), list[str]()
        rows = database.total_changes
        database.set_trace_callback(seen.append)

        add(session)

        database.set_trace_callback(None)
        assert [statement.split()[0] for statement in seen] == ["BEGIN", "UPDATE", *["INSERT"] * entries, "COMMIT"]
        assert database.total_changes - rows == entries + 1


def test_a_small_file_is_small(tmp_path: Path) -> None:
    """The file of a short conversation has few pages; each table and index is at least one."""
    with Memory.open(tmp_path / "log.db") as memory:
        memory.session(SESSION).add_user_message("hello")
        (pages,) = connection(memory).execute("PRAGMA page_count").fetchone()

    assert pages <= 19


def in_a_turn(session: Session) -> None:
    """Hold a turn that adds twice."""
    with session.turn():
        session.add_user_message("one")
        session.add_assistant_message("two")


@pytest.mark.parametrize("sealed", [False, True])
def test_a_turn_waits_for_the_disk_as_often_as_it_adds(tmp_path: Path, sealed: bool) -> None:
    """Only the adds of a turn wait for the disk; taking and giving back its lease do not."""
    encryption = RING if sealed else None
    with Memory.open(tmp_path / "log.db", encryption=encryption) as memory:
        session, seen = memory.session(SESSION), list[str]()
        in_a_turn(session)
        session.add_user_message("between")
        connection(memory).set_trace_callback(seen.append)

        in_a_turn(session)
        session.add_user_message("after")

        connection(memory).set_trace_callback(None)
        assert commits(seen) == 2 + 2 + 1
        assert synced(seen) == 2 + 1


@pytest.mark.parametrize("sealed", [False, True])
def test_a_turn_waits_for_the_disk_as_often_as_it_adds_to_files(
    tmp_path: Path, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file store, too, only the adds of a turn wait for the disk."""
    encryption, seen = RING if sealed else None, list[int]()
    with Memory.open(f"file://{tmp_path}/logs", encryption=encryption) as memory:
        session = memory.session(SESSION)
        in_a_turn(session)
        for sync in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, sync, seen.append)

        in_a_turn(session)

        assert len(seen) == 2


def cuts(session: Session) -> bool:
    """Add twice and return whether the next context is a new cut."""
    session.context()
    session.add_user_message("what is it? " * 10)
    session.add_assistant_message("this and that " * 40)
    return session.context(dry_run=True).report.new_cut


@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_does_not_wait_for_the_disk(tmp_path: Path, sealed: bool) -> None:
    """A cut does not wait for the disk, since it can be computed again from the log.

    An encrypted head waits: losing it would look as if somebody had put an earlier one back.
    """
    with Memory.open(tmp_path / "log.db", encryption=RING if sealed else None) as memory:
        session, seen = memory.session(SESSION, max_tokens=1_000), list[str]()
        while not cuts(session):
            pass
        connection(memory).set_trace_callback(seen.append)

        epoch = session.context().epoch
        assert (commits(seen), synced(seen)) == (1, int(sealed))
        session.add_user_message("one more")

        connection(memory).set_trace_callback(None)
        assert (commits(seen), synced(seen)) == (2, 1 + sealed)
        assert session.context().epoch == epoch


@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_in_files_waits_for_the_disk(tmp_path: Path, sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file store a cut waits for the disk, since a torn line could not be told from damage."""
    seen = list[int]()
    with Memory.open(f"file://{tmp_path}/logs", encryption=RING if sealed else None) as memory:
        session = memory.session(SESSION, max_tokens=1_000)
        while not cuts(session):
            pass
        for sync in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, sync, seen.append)

        epoch = session.context().epoch
        assert len(seen) == 1
        session.add_user_message("one more")

        assert len(seen) == 2
        assert session.context().epoch == epoch


def calls(work: Callable[[], object]) -> tuple[int, int]:
    """Return how many Python and C functions a call takes at least; other work may happen beside it."""
    found = []
    for _ in range(5):
        seen: list[str] = []
        sys.setprofile(lambda _, what, __, note=seen.append: note(what))
        try:
            work()
        finally:
            sys.setprofile(None)
        found.append((seen.count("call"), seen.count("c_call")))
    return min(found)


def test_an_append_calls_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append to a known session calls few functions, and fewer for each further message."""
    monkeypatch.setattr(db, "LOOK", 3_600.0)  # on a busy machine it would be time to look at the file in every run

    def said(count: int) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "hello"}] * count

    with Memory.open(tmp_path / "log.db", clock=lambda: 1_790_000_000_000_000) as memory:
        session = memory.session(SESSION, max_tokens=8_000)
        for number in range(40):  # by then nobody is expected beside it
            session.add_user_message(str(number))

        one = calls(lambda: session.add_user_message("one"))
        two, six = calls(lambda: session.add(said(2))), calls(lambda: session.add(said(6)))

    # Python 3.14 counts methods of C that it called unseen before; locks are entered by functions of Python there.
    of_python, of_c = (49, 58) if sys.version_info < (3, 14) else (52, 61)
    assert (one[0] <= of_python, one[1] <= of_c) == (True, True), one
    assert (six[0] - two[0] <= 4 * 5, six[1] - two[1] <= 4 * 26) == (True, True), (two, six)


def test_plain_numbers_and_names_are_found_by_few_calls() -> None:
    """A compaction reads all that it covers: a number that is no amount costs no call, a name of one word two."""
    said = "Lot 2178 came back from the loading bay. Please weigh it, so that Brennan can send lot 3943 on Thursday. "

    once, often = calls(lambda: mentions(said)), calls(lambda: mentions(101 * said))

    assert often[0] - once[0] <= 100 * 6, (once, often)


def allocated(work: Callable[[], object]) -> int:
    """Return the peak of bytes that a call allocates, the least of several tries."""
    found = []
    gc.collect()
    for _ in range(3):
        tracemalloc.start()
        try:
            work()
            found.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(found)


def said(memory: Memory, count: int) -> Session:
    """Return a session of so many messages of a hundred tokens, of which a context was made."""
    session = memory.session(SESSION, max_tokens=8_000, counter=quarters)
    session.add([{"role": "user", "content": "so " * 130}] * count)
    session.context()
    for number in range(40):  # by then nobody is expected beside it
        session.add_user_message(str(number))
    return session


@pytest.mark.wide
def test_an_append_and_a_context_allocate_few_copies(tmp_path: Path) -> None:
    """An append and an uncached context allocate a few copies of their data, however long the log is."""
    appends, large, contexts = [], [], []
    for count in (100, 2_000):
        with Memory.open(tmp_path / f"{count}.db", view_bytes=0) as memory:
            session = said(memory, count)
            contexts.append(allocated(session.context) / len(json.dumps(session.context().messages)))
            appends.append(allocated(lambda session=session: session.add_user_message("hello")))
            large.append(allocated(lambda session=session: session.add_user_message("x" * 100_000)) / 100_000)

    assert max(appends) <= 12_000, appends
    assert max(large) <= 6, large
    assert max(contexts) <= 8, contexts
    assert max(appends) <= 1.2 * min(appends), appends
    assert max(contexts) <= 1.2 * min(contexts), contexts


def test_appends_leave_nothing_in_memory(tmp_path: Path) -> None:
    """Appended entries are not kept in memory: after two hundred appends the process holds no more than before."""
    with Memory.open(tmp_path / "log.db") as memory:
        session = said(memory, 100)

        def more() -> int:
            before = sys.getallocatedblocks()
            for number in range(200):
                session.add_user_message(str(number))
            return sys.getallocatedblocks() - before

        left = min(more() for _ in range(3))

    assert left < 100
