"""What exports and imports promise, over every store."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from palimpsest import ConfigError, Conflict, ImportFailed, Memory, Session, Text
from palimpsest.testing import FakeClock
from palimpsest.transfer.writing import replacing_file
from worlds import cut_session
from writer import quarters, turn


def texts(entries: list) -> list[str]:
    return [entry.text for entry in entries]


def without_time(data: dict) -> dict:
    return {name: value for name, value in data.items() if name != "exported_at"}


def filled(memory: Memory) -> Session:
    """Return a session with everything that an export can hold."""
    session = cut_session(memory)
    session.add_context("text", name="notes.md")
    session.add_assistant_message([Text(text="one"), Text(text="two")])
    session.add_tool_call("look", {}, call_id="open")
    session.add_user_message("next", metadata={"a": [1, None]}, importance=0.5, pinned=True)
    session.erase([1, 9])
    session.pin(120)
    session.record_usage(input_tokens=10, output_tokens=5)
    return session


def test_an_export_is_plain_json_and_comes_back_equal(memory: Memory, clock: FakeClock) -> None:
    """Export, import into another store, export: equal but for `exported_at`, and so is the next context."""
    session = filled(memory)
    data = json.loads(json.dumps(session.export()))
    assert data == session.export()
    clock.advance(60)

    with Memory.open("memory://", clock=clock) as other:
        assert other.import_session(data) == "one"
        copy = other.session("one", max_tokens=200, counter=quarters)

        assert without_time(copy.export()) == without_time(data)
        assert copy.context().messages == session.context().messages
        assert copy.stats() == session.stats()


def test_an_imported_session_goes_on(memory: Memory, clock: FakeClock) -> None:
    """An imported session continues its seqs and knows its open calls and ids."""
    filled(memory)
    memory.import_session(memory.session("one").export(), session_id="two")
    copy = memory.session("two", counter=quarters)

    assert copy.add_tool_result(None, "at last", call_id="open").answers == 123
    assert copy.entries()[-1].seq == 125
    assert memory.session("one").entries()[-1].seq == 124


def test_an_import_does_not_overwrite(memory: Memory) -> None:
    """An import of an existing session raises Conflict by default and changes nothing."""
    session = memory.session("one")
    session.add(turn("1"))
    data = session.export()
    session.add(turn("2"))

    with pytest.raises(Conflict):
        memory.import_session(data)

    assert len(session.entries()) == 12


def test_an_import_may_replace(memory: Memory) -> None:
    """With "replace" the session becomes the export, in one step and a new epoch."""
    session = memory.session("one")
    session.add(turn("1"))
    data = session.export()
    session.add(turn("2"))

    before = session.context()
    memory.import_session(data, on_conflict="replace")

    export, given = without_time(session.export()), without_time(data)
    moved = {name: export["head"].pop(name) for name in ("revision", "epoch", "epoch_reason")}
    for name in moved:
        given["head"].pop(name)
    assert export == given
    assert moved["epoch"] > before.epoch
    assert session.context().report.epoch_reason == "import"


def test_an_import_may_merge(memory: Memory) -> None:
    """With "merge" the missing entries are appended with their ids and times."""
    session, other = memory.session("one"), memory.session("two")
    shared = session.add(turn("shared"))
    memory.import_session(session.export(), session_id="two")
    session.add(turn("here"))
    there = other.add(turn("there"))

    memory.import_session(other.export(), session_id="one", on_conflict="merge")
    memory.import_session(other.export(), session_id="one", on_conflict="merge")

    entries = session.entries()
    assert len(entries) == 18
    assert [entry.id for entry in entries[:6]] == [entry.id for entry in shared]
    assert [entry.id for entry in entries[12:]] == [entry.id for entry in there]
    assert entries[12].at == there[0].at
    assert entries[15].answers == 14


@pytest.mark.parametrize("on_conflict", ["error", "replace", "merge"])
def test_an_import_of_an_unknown_session_makes_it(memory: Memory, on_conflict: Any) -> None:
    """For an unknown session all three modes store the export, under its id or the given one."""
    session = memory.session("one")
    session.add(turn("1"))

    assert memory.import_session(session.export(), session_id="two", on_conflict=on_conflict) == "two"

    assert [info.session for info in memory.sessions()] == ["one", "two"]
    assert texts(memory.session("two").entries()) == texts(session.entries())


def test_a_pin_that_has_expired_behind_the_window_is_no_damage(memory: Memory, clock: FakeClock) -> None:
    """An export with an expired pin before the window can be imported."""
    session = memory.session("s", counter=quarters, max_tokens=300)
    later = datetime.fromtimestamp(clock() / 1_000_000, UTC) + timedelta(seconds=50)
    session.add_user_message("for a while", pinned=True, expires_at=later)
    for number in range(20):
        session.add_user_message(f"question {number}")
        session.add_assistant_message("answer " * 20)
        session.context()
    clock.advance(60)
    session.context()
    cut = session.export()["head"]["views"]["main"]
    assert cut["start"] > 1
    assert cut["gone"] == [[1, 1]]

    memory.import_session(session.export(), session_id="copy")

    copy = memory.session("copy", counter=quarters, max_tokens=300)
    assert copy.verify().ok
    assert copy.context().messages == session.context().messages


def test_an_entry_that_was_hidden_before_the_window_is_no_damage(memory: Memory) -> None:
    """An export with an entry hidden before the window can be imported."""
    session = memory.session("s", counter=quarters, max_tokens=200)
    for number in range(3):
        session.add_user_message(f"question {number}")
        session.add_assistant_message("answer")
    session.hide(3)
    assert session.context().report.left_out
    for number in range(20):
        session.add_user_message(f"later question {number}")
        session.add_assistant_message("answer " * 10)
        session.context()
    cut = session.export()["head"]["views"]["main"]
    assert cut["start"] > 3
    assert "skipped" not in cut

    memory.import_session(session.export(), session_id="copy")

    assert memory.session("copy", counter=quarters, max_tokens=200).context().messages == session.context().messages


def test_what_a_cut_of_an_earlier_version_says_of_hidden_entries_is_no_damage(memory: Memory) -> None:
    """An export of an earlier version whose cut still lists hidden entries before its start can be imported."""
    session = cut_session(memory)
    data = json.loads(json.dumps(session.export()))
    assert data["head"]["views"]["main"]["start"] > 4
    data["head"]["views"]["main"]["skipped"] = [[3, 4]]

    memory.import_session(data, session_id="copy")

    copy = memory.session("copy", max_tokens=200, counter=quarters)
    assert copy.verify().ok
    assert copy.context().messages == session.context().messages


STEPS = [
    *("add", "add", "talk", "context", "hide", "show", "pin"),
    *("rewind", "erase", "summarise", "evict", "restore", "replace"),
]


def step(session: Session, how: str, dice: random.Random) -> None:
    """Do something to a session if it is allowed there."""
    there, active = session.entries(), session.active_entries()
    with suppress(ConfigError):  # an entry that is pinned is not hidden, for example
        match how:
            case "add":
                session.add(turn(str(len(there))))
            case "talk":
                for _ in range(4):
                    session.add_user_message("question " * dice.randint(1, 20))
                    session.add_assistant_message("answer " * dice.randint(1, 20))
                    session.context()
            case "context":
                session.context()
            case "hide" | "pin" if active:
                (session.hide if how == "hide" else session.pin)(dice.choice(active).id)
            case "show" | "rewind" | "erase" if there:
                {"show": session.show, "rewind": session.rewind, "erase": lambda one: session.erase([one])}[how](
                    dice.choice(there).id
                )
            case "summarise" | "evict":
                keep = {"strategy": "summarizer", "interaction_keep": 1} if how == "summarise" else "ladder"
                session.compact(keep)
            case "restore" if session.summaries():
                session.restore(session.summaries()[-1].id)
            case "replace" if dice.random() < 0.3:
                session.replace([{"role": "user", "content": "anew"}])


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_done_to_a_session_its_export_is_taken_back(seed: int, clock: FakeClock) -> None:
    """At any time, an export of a session or branch can be imported, exports the same and gives the same context."""
    dice = random.Random(seed)
    limits: dict[str, Any] = {"max_tokens": dice.choice([200, 4_000]), "counter": quarters}
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("s", **limits)
        session.add(turn("first"))
        for number in range(40):
            step(session, dice.choice(STEPS), dice)
            if dice.random() < 0.05 and session.entries():
                session = session.fork(f"f{number}")
            data = json.loads(json.dumps(session.export()))
            memory.import_session(data, session_id="copy", on_conflict="replace")
            memory.delete_session("copy")
            memory.import_session(data, session_id="copy")
            copy = memory.session("copy", **limits)
            again = json.loads(json.dumps(copy.export()))
            assert without_time(again) | {"session_id": ""} == without_time(data) | {"session_id": ""}
            assert copy.verify().ok
            if number % 5 == 0:  # a context may cut
                assert copy.context().messages == session.context().messages


def test_an_export_for_a_provider_has_no_marks_for_its_cache(memory: Memory, tmp_path: Path) -> None:
    """Marks are for a request. In a file they would come back as the log's own, where system text stands beside it."""
    session = memory.session("s")
    session.add_system_message("You are brief.")
    session.add_user_message([Text(text="one"), Text(text="two")])
    session.export_to(tmp_path / "s.json", format="anthropic")
    file = json.loads((tmp_path / "s.json").read_text())
    assert file["messages"] == session.messages(format="anthropic")
    assert "cache_control" not in str(file)


def test_an_export_over_the_store_that_is_open_takes_none_of_its_locks(tmp_path: Path) -> None:
    """An export onto the open store is refused without dropping its locks."""
    path = tmp_path / "log.db"
    with Memory.open(path) as memory, Memory.open(path) as other:
        memory.session("s").add_user_message("x")
        with pytest.raises(ConfigError, match="no database"):
            memory.session("s").export_to(path)
        visit = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT 1 FROM meta'); db.close()"
        assert subprocess.run([sys.executable, "-c", visit, path], check=False).returncode == 0
        assert path.with_name("log.db-wal").exists()
        other.session("s").add_user_message("y")
        assert [entry.text for entry in memory.session("s").entries()] == ["x", "y"]


def test_an_export_to_a_link_is_written_to_what_it_leads_to(memory: Memory, tmp_path: Path) -> None:
    """An export to a symbolic link writes the target and keeps the link."""
    memory.session("s").add_user_message("x")
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "s.json")
    for _ in range(2):
        memory.session("s").export_to(link)
        assert link.is_symlink()
        assert json.loads((tmp_path / "real" / "s.json").read_text())["session_id"] == "s"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_an_export_to_what_is_no_file_goes_there_and_replaces_nothing(memory: Memory, tmp_path: Path) -> None:
    """A pipe, as a device, is written to and stays: an export to the null device must not make a file of it."""
    memory.session("s").add_user_message("x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        size = memory.session("s").export_to(pipe)
        assert pipe.is_fifo()
        assert len(os.read(reader, 65536)) == size
    finally:
        os.close(reader)


def test_two_exports_to_one_file_do_not_write_into_one_another(memory: Memory, tmp_path: Path) -> None:
    """While one is half written another is done: the file is whole at any time, both succeed, and nothing is left."""
    for id in ("a", "b"):
        memory.session(id).add_user_message("x" * 100_000)
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "s.json"
    with replacing_file(path) as half:
        half.write(b'{"session_id": ')
        memory.session("b").export_to(path)
        assert json.loads(path.read_text())["session_id"] == "b"
        half.write(b'"a"}')
    assert json.loads(path.read_text()) == {"session_id": "a"}
    assert os.listdir(tmp_path / "out") == ["s.json"]


def lines_of(*exports: dict) -> io.BytesIO:
    """Return a file of several exports, one a line."""
    return io.BytesIO("".join(json.dumps(export) + "\n" for export in exports).encode())


@pytest.mark.parametrize("fault", ["facts", "accesses", "content"])
def test_a_strict_import_of_exports_finds_every_fault_before_anything_is_stored(memory: Memory, fault: str) -> None:
    """Facts and fetches that cannot be, and what the store has with other content, are faults of a file like others."""
    memory.session("one").add_user_message("x")
    memory.session("there").add_user_message("y")
    good = {**memory.session("one").export(), "session_id": "good"}
    bad = json.loads(json.dumps(memory.session("there").export()))
    if fault == "content":
        bad["entries"][0]["content"] = "other"
    else:
        bad[fault] = [{"x": 1}]

    with pytest.raises(ImportFailed, match="line 2"):
        memory.import_file(lines_of(good, bad), strict=True)

    assert sorted(one.session for one in memory.sessions()) == ["one", "there"]
    assert [entry.text for entry in memory.session("there").entries()] == ["y"]


def test_a_strict_import_tells_no_more_than_a_file_of_itself(memory: Memory) -> None:
    """A strict import imports sound sessions once and sends no events for its check."""
    heard = list[str]()
    memory.on("session:imported", lambda session, facts: heard.append(session))
    memory.session("one").add_user_message("x")
    good = {**memory.session("one").export(), "session_id": "good"}

    report = memory.import_file(lines_of(good), strict=True)

    assert report.sessions["good"].added == 1
    assert heard == ["good"]


def test_a_strict_import_raises_for_a_session_that_contradicts_itself(memory: Memory) -> None:
    """A file may hold the same session twice, with other content: that shows when the second is stored."""
    memory.session("one").add_user_message("x")
    first = {**memory.session("one").export(), "session_id": "twice"}
    second = json.loads(json.dumps(first))
    second["entries"][0]["content"] = "other"

    with pytest.raises(ImportFailed, match="line 2"):
        memory.import_file(lines_of(first, second), strict=True)


@pytest.mark.parametrize("kind", ["memory", "file", "temporary"])
def test_a_stream_of_text_is_refused_with_how_to_open_it(memory: Memory, tmp_path: Path, kind: str) -> None:
    """A text stream is refused before anything is read or written, with the advice to open it as binary."""
    memory.session("s").add_user_message("x")
    (path := tmp_path / "file").touch()
    with open(path, "r+") as file, NamedTemporaryFile("w+") as temporary:
        text: Any = {"memory": io.StringIO(), "file": file, "temporary": temporary}[kind]
        with pytest.raises(ConfigError, match="binary stream"):
            memory.session("s").export_to(text)
        with pytest.raises(ConfigError, match='opened as "rb"'):
            memory.import_file(text)
