"""Exporting a session and importing it again, on both embedded stores."""

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

from palimpsest import ConfigError, Conflict, Entry, ImportFailed, Memory, Session, Text
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores.opening import open_store
from palimpsest.testing import FakeClock
from palimpsest.transfer.writing import replacing_file
from strategies import WORDS
from worlds import cut_session
from writer import quarters, turn


def texts(entries: list) -> list[str]:
    """Return the texts of these entries."""
    return [entry.text for entry in entries]


def without_time(data: dict) -> dict:
    """Return an export without the time at which it was made."""
    return {name: value for name, value in data.items() if name != "exported_at"}


def filled(memory: Memory) -> Session:
    """Make a session that holds every kind of thing an export can hold."""
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
    """An export is plain JSON; imported into another store it exports equal and gives the same context."""
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


def test_an_imported_session_can_be_continued(memory: Memory, clock: FakeClock) -> None:
    """An imported session continues with the next seq, and a result still finds its open call."""
    filled(memory)
    memory.import_session(memory.session("one").export(), session_id="two")
    copy = memory.session("two", counter=quarters)

    assert copy.add_tool_result(None, "at last", call_id="open").answers == 123
    assert copy.entries()[-1].seq == 125
    assert memory.session("one").entries()[-1].seq == 124


def test_an_import_does_not_overwrite_by_default(memory: Memory) -> None:
    """An import of a session that exists raises Conflict and changes nothing."""
    session = memory.session("one")
    session.add(turn("1"))
    data = session.export()
    session.add(turn("2"))

    with pytest.raises(Conflict):
        memory.import_session(data)

    assert len(session.entries()) == 12


def test_an_import_can_replace_a_session(memory: Memory) -> None:
    """`on_conflict="replace"` makes the session what the export says, in one step and a new epoch."""
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


def test_an_import_can_merge_into_a_session(memory: Memory) -> None:
    """`on_conflict="merge"` appends the entries that the session lacks, with their ids and times.

    Entries that it has stay as they are, and merging again adds nothing.
    """
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
def test_an_import_of_an_unknown_session_creates_it(memory: Memory, on_conflict: Any) -> None:
    """With every `on_conflict`, an unknown session is created under the export's id or the one given."""
    session = memory.session("one")
    session.add(turn("1"))

    assert memory.import_session(session.export(), session_id="two", on_conflict=on_conflict) == "two"

    assert [info.session for info in memory.sessions()] == ["one", "two"]
    assert texts(memory.session("two").entries()) == texts(session.entries())


def test_an_expired_pin_before_the_cut_is_imported(memory: Memory, clock: FakeClock) -> None:
    """An export whose cut notes an expired pin before its start can be imported and gives the same context."""
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


def test_a_group_that_is_left_out_after_a_part_of_it_had_expired_is_imported(memory: Memory, clock: FakeClock) -> None:
    """What a cut leaves out is named once, in ascending ranges, as an import wants it."""
    options: dict[str, Any] = {"counter": WORDS, "max_tokens": 30, "low_water": 0.3}
    session = memory.session("s", **options)
    session.add_assistant_message("first " * 16)
    session.context()
    soon = datetime.fromtimestamp(clock() / 1_000_000, UTC) + timedelta(seconds=30)
    call = Entry(kind="tool_call", role="assistant", name="find", call_id="c", content="{}", continues=True)
    session.add_entries(
        [
            Entry(role="assistant", content="look " * 20, expires_at=soon),
            call,
            Entry(kind="tool_result", role="tool", call_id="c", content="found " * 19),
        ]
    )
    clock.advance(40)
    context = session.context()

    assert session.export()["head"]["views"]["main"]["gone"] == [[2, 4]]
    memory.import_session(session.export(), session_id="copy")
    assert memory.session("copy", **options).context().messages == context.messages


@pytest.mark.parametrize("erased", [2, 4])
def test_a_session_in_which_an_id_stands_twice_is_mended_by_erasing_one(tmp_path: Path, erased: int) -> None:
    """`verify` names both places; an export is refused as long as both have their content, and imported afterwards."""
    where = f"sqlite:///{tmp_path}/a.db"
    store = open_store(where, Inline())
    for text in ("one", "two"):
        drive(store.append(SessionKey("default", "s"), [Entry(content=text), Entry(id="k", content="again")]))
    drive(store.close())
    with Memory.open(where) as memory:
        session = memory.session("s", max_tokens=100)

        assert session.verify().problems == ("entries 2 and 4 have the same id; erase one of them by its number",)
        with pytest.raises(ImportFailed, match="the id 'k' of entry 2 is repeated by entry 4; erase one"):
            memory.import_session(session.export(), session_id="copy")
        session.erase(erased)

        assert session.verify().ok
        memory.import_session(session.export(), session_id="copy")
        copy = memory.session("copy", max_tokens=100)
        assert copy.verify().ok
        assert [entry.seq for entry in copy.entries() if entry.id == "k"] == [6 - erased]
        assert copy.context().messages == session.context().messages


def test_a_hidden_entry_before_the_cut_is_imported(memory: Memory) -> None:
    """A cut forgets hidden entries that its start has passed, so its export can be imported."""
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


def test_hidden_entries_noted_by_an_older_version_are_imported(memory: Memory) -> None:
    """An export whose cut still notes hidden entries before its start, as older versions wrote it, can be imported."""
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
    """Do one step to a session, if the session accepts it."""
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
def test_an_export_is_importable_after_any_steps(seed: int, clock: FakeClock) -> None:
    """After any steps, also of a fork, an export can be imported, exports equal and gives the same context."""
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


def test_an_export_for_a_provider_has_no_cache_marks(memory: Memory, tmp_path: Path) -> None:
    """An export in Anthropic's format has no cache marks.

    Marks belong to a request; imported again they would count as the log's own.
    """
    session = memory.session("s")
    session.add_system_message("You are brief.")
    session.add_user_message([Text(text="one"), Text(text="two")])
    session.export_to(tmp_path / "s.json", format="anthropic")
    file = json.loads((tmp_path / "s.json").read_text())
    assert file["messages"] == session.messages(format="anthropic")
    assert "cache_control" not in str(file)


def test_an_export_onto_the_open_store_releases_no_lock(tmp_path: Path) -> None:
    """An export to the path of the open store is refused without opening the file.

    Opening and closing it would release SQLite's locks, and another process would delete the journal.
    """
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


def test_an_export_to_a_link_writes_its_target(memory: Memory, tmp_path: Path) -> None:
    """An export to a symbolic link writes the file it leads to, existing or not, and keeps the link."""
    memory.session("s").add_user_message("x")
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "s.json")
    for _ in range(2):
        memory.session("s").export_to(link)
        assert link.is_symlink()
        assert json.loads((tmp_path / "real" / "s.json").read_text())["session_id"] == "s"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_an_export_to_a_pipe_or_device_does_not_replace_it(memory: Memory, tmp_path: Path) -> None:
    """An export to a pipe or device is written into it: exporting to /dev/null must not make it a file."""
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


@pytest.mark.parametrize("most", [1, 1000])
def test_an_export_to_a_stream_that_takes_a_part_at_a_time_is_whole(memory: Memory, most: int) -> None:
    """A stream without a buffer may take a part of what it is given; it gets the rest, too."""
    session = memory.session("s")
    session.add_user_message("hello " * 500)
    taken: list[bytes] = []

    class Slow(io.RawIOBase):
        def write(self, data: Any, /) -> int:
            taken.append(bytes(data[:most]))
            return len(taken[-1])

    class Full(io.RawIOBase):
        def write(self, data: Any, /) -> None:
            return None

    with pytest.raises(BlockingIOError):
        session.export_to(Full())
    size = session.export_to(Slow(), format="openai")

    assert json.loads(b"".join(taken)) == [{"role": "user", "content": "hello " * 500}]
    assert size == len(b"".join(taken))


def test_two_exports_to_one_file_do_not_mix(memory: Memory, tmp_path: Path) -> None:
    """While one export is half written another to the same path succeeds; the file is whole at any time.

    No temporary file is left.
    """
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
    """Return a file object that holds these exports, one per line."""
    return io.BytesIO("".join(json.dumps(export) + "\n" for export in exports).encode())


@pytest.mark.parametrize("fault", ["facts", "accesses", "content"])
def test_a_strict_import_finds_faults_before_storing(memory: Memory, fault: str) -> None:
    """A strict import of exports finds bad facts, bad fetches and contradicting content before it stores any."""
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


def test_a_strict_import_emits_events_once(memory: Memory) -> None:
    """A strict import stores each session once and emits one event for it: the check emits none."""
    heard = list[str]()
    memory.on("session:imported", lambda session, facts: heard.append(session))
    memory.session("one").add_user_message("x")
    good = {**memory.session("one").export(), "session_id": "good"}

    report = memory.import_file(lines_of(good), strict=True)

    assert report.sessions["good"].added == 1
    assert heard == ["good"]


def test_a_strict_import_raises_if_a_session_contradicts_itself(memory: Memory) -> None:
    """A file with one session twice and different content raises ImportFailed at the second, even if strict."""
    memory.session("one").add_user_message("x")
    first = {**memory.session("one").export(), "session_id": "twice"}
    second = json.loads(json.dumps(first))
    second["entries"][0]["content"] = "other"

    with pytest.raises(ImportFailed, match="line 2"):
        memory.import_file(lines_of(first, second), strict=True)


@pytest.mark.parametrize("kind", ["memory", "file", "temporary"])
def test_a_text_stream_is_refused_with_advice(memory: Memory, tmp_path: Path, kind: str) -> None:
    """A stream opened as text is refused with the advice to open it as binary, before anything is read or written."""
    memory.session("s").add_user_message("x")
    (path := tmp_path / "file").touch()
    with open(path, "r+") as file, NamedTemporaryFile("w+") as temporary:
        text: Any = {"memory": io.StringIO(), "file": file, "temporary": temporary}[kind]
        with pytest.raises(ConfigError, match="binary stream"):
            memory.session("s").export_to(text)
        with pytest.raises(ConfigError, match='opened as "rb"'):
            memory.import_file(text)
