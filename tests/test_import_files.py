"""What an import does to the file it reads: it keeps locks of databases, and leaves no copies on the disk."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from commands import CHAT, START, run
from exports_chatgpt import simple
from palimpsest import ImportFailed, Memory
from test_import_identity import agents, lines, said

WRITES = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    db.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as fault:
    print(fault)
else:
    print("wrote")
"""


def other_writer(path: Path) -> str:
    """Return what another process gets that tries to write to a database."""
    done = subprocess.run([sys.executable, "-c", WRITES, path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(params=["delete", "wal"])
def locked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A database of the OpenAI Agents SDK in which this process has an open transaction."""
    path = tmp_path / "agents.db"
    path.write_bytes(agents(["committed"]))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {request.param}")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('talk', '{}')")
        assert other_writer(path) == "database is locked"
        yield path
        db.execute("COMMIT")


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{}, {"strict": True}, {"source": "openai-agents"}], ids=str)
def test_a_database_in_use_stays_locked(memory: Memory, locked: Path, options: dict[str, Any]) -> None:
    """Importing a database that this process is writing to keeps its lock, and imports what is committed.

    Opening and closing the file would release SQLite's locks of this process.
    """
    memory.import_file(locked, session_id="talk", **options)

    assert [entry.text for entry in memory.session("talk").entries()] == ["committed"]
    assert other_writer(locked) == "database is locked"


@pytest.mark.sampled
@pytest.mark.parametrize("source", ["chatgpt", "messages", "palimpsest"])
def test_a_refused_database_stays_locked(memory: Memory, locked: Path, source: str) -> None:
    """A database that is refused keeps its lock, too."""
    with pytest.raises(ImportFailed, match="is an SQLite database"):
        memory.import_file(locked, source=source)

    assert other_writer(locked) == "database is locked"


def test_the_command_keeps_locks(here: Path, locked: Path) -> None:
    """The command line checks that a file is readable without opening it, so locks are kept."""
    assert run("import", str(locked)).exit_code == 0
    assert other_writer(locked) == "database is locked"


def test_a_database_without_content_stays_locked(memory: Memory, tmp_path: Path) -> None:
    """An empty database file that is locked stays locked."""
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")

        with pytest.raises(ImportFailed, match="is empty"):
            memory.import_file(path)

        assert other_writer(path) == "database is locked"


def test_importing_the_own_store_is_refused_and_keeps_its_locks(tmp_path: Path) -> None:
    """Importing the store's own file is refused and keeps its locks, so that no other process deletes the journal."""
    path = tmp_path / "log.db"
    with Memory.open(path) as memory:
        memory.session("one").add_user_message("kept")
        with pytest.raises(ImportFailed, match="no table agent_messages"):
            memory.import_file(path)

        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM place WHERE space = 'session'").fetchone() == (1,)
        reader = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT 1 FROM place').fetchall()"
        subprocess.run([sys.executable, "-c", reader, path], check=True)

        assert path.with_name("log.db-wal").exists()  # which whoever is the last to leave takes along
        memory.session("one").add_user_message("kept, too")
    with Memory.open(path) as memory:
        assert len(memory.session("one").entries()) == 2


@pytest.mark.sampled
@pytest.mark.skipif(sys.platform == "win32", reason="there a file has its name for as long as it is open")
@pytest.mark.parametrize("kind", ["archive", "strict", "database"])
def test_a_stream_leaves_no_copy_on_the_disk(here: Path, kind: str) -> None:
    """A stream that is read leaves no file in the temporary folder, not even if the process is killed."""
    body = b"secret" * 200_000
    if kind == "archive":
        with zipfile.ZipFile(here / "a.zip", "w") as archive:
            archive.writestr("conversations.json", json.dumps([simple("talk", 9000).done()]))
        body = (here / "a.zip").read_bytes()
    if kind == "database":
        body = agents([f"secret {number}" for number in range(20_000)])
    if kind == "strict":
        body = lines(said([f"secret {number}" for number in range(30_000)]))
    assert len(body) > 1_000_000
    folder = here / "temporary"
    folder.mkdir()
    command = [*START, "import", "-", "--session", "talk", *(["--strict"] if kind == "strict" else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_with(folder)) as process:
        assert process.stdin is not None
        process.stdin.write(body[:-1])  # more than a pipe holds: it has read most of it, and waits for the rest
        process.stdin.flush()
        seen = sorted(folder.rglob("*"))
        process.send_signal(signal.SIGKILL)

    assert seen == []
    assert sorted(folder.rglob("*")) == []


def _with(folder: Path) -> dict[str, str]:
    import os

    return {**os.environ, "TMPDIR": str(folder)}


def test_an_unreadable_file_exits_with_2(here: Path) -> None:
    """A folder or a missing file exits with 2 before anything is done."""
    for name in (".", "missing.json"):
        result = run("import", name)
        assert result.exit_code == 2
        assert name in result.stderr


def test_a_stream_of_a_database_in_wal_mode_is_read(memory: Memory, tmp_path: Path) -> None:
    """The bytes of a database in WAL mode are read, although the copy has no journal."""
    path = tmp_path / "agents.db"
    path.write_bytes(agents(["one", "two"]))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")

    with path.open("rb") as stream:
        report = memory.import_file(stream, session_id="talk", strict=True)

    assert report.sessions["talk"].added == 2


@pytest.mark.parametrize("id", ["", "a\nb", "x" * 257, 5])
@pytest.mark.parametrize("layout", ["value", "list", "lines"])
def test_an_export_without_a_usable_id_is_refused(memory: Memory, tmp_path: Path, layout: str, id: Any) -> None:
    """An export with an invalid session id is refused at its place; other exports of the file are imported.

    With an id given, it is imported.
    """
    memory.session("good").add_user_message("hello")
    good = memory.session("good").export()
    bad = good | {"session_id": id}
    texts = {
        "value": json.dumps(bad),
        "list": json.dumps([bad, good]),
        "lines": f"{json.dumps(bad)}\n{json.dumps(good)}",
    }
    path = tmp_path / "exports.json"
    path.write_text(texts[layout])
    with Memory.open("memory://") as other:
        with pytest.raises(ImportFailed, match="session"):
            other.import_file(path, strict=True)
        assert other.sessions() == []
        report = other.import_file(path)
        assert [refused.reason.partition(":")[0] for refused in report.refused] == ["import refused at data.session_id"]
        assert list(report.sessions) == ([] if layout == "value" else ["good"])
        other.import_file(path, session_id="named")
        assert id == 5 or [entry.text for entry in other.session("named").entries()] == ["hello"]
    with pytest.raises(ImportFailed, match=r"data\.session_id"):
        memory.import_session(bad)


PACKS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("what", PACKS)
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_a_compressed_file_is_named_as_such(memory: Memory, tmp_path: Path, what: str, stream: bool) -> None:
    """A compressed file is refused with the name of its compression and the advice to unpack it."""
    path = tmp_path / "conversations.json.gz"
    path.write_bytes(PACKS[what](b"[]"))
    with open(path, "rb") as file, pytest.raises(ImportFailed, match=rf"conversations.*compressed with {what}: unpack"):
        memory.import_file(file if stream else path)


def test_rewound_entries_count_as_added(memory: Memory) -> None:
    """Entries hidden by a rewind count as added, since an export has them; the second time they exist already."""
    with Memory.open("memory://") as other:
        session = other.session("talk")
        for text in ("one", "two", "three", "four"):
            session.add_user_message(text)
        session.rewind(2)
        session.erase([1])
        body = json.dumps(session.export()).encode()

    counts = [memory.import_file(io.BytesIO(body)).sessions["talk"] for _ in range(2)]

    assert [(one.added, one.already_there) for one in counts] == [(3, 0), (0, 3)]


def test_an_export_without_entries_makes_an_empty_session(memory: Memory) -> None:
    """An export with no entries makes a session without entries, whether its list is empty or null."""
    with Memory.open("memory://") as other:
        session = other.session("talk")
        session.describe(title="Nothing yet")
        data = session.export()

    report = memory.import_file(io.BytesIO(json.dumps({**data, "entries": None}).encode()))

    assert (report.sessions["talk"].added, report.sessions["talk"].already_there) == (0, 0)
    assert memory.session("talk").info().title == "Nothing yet"


@pytest.mark.parametrize("strict", [False, True])
def test_a_stream_needs_no_method_but_read(memory: Memory, *, strict: bool) -> None:
    """A stream that has nothing but `read`, such as the body of an answer over HTTP, is imported as any other."""

    class Body:
        def __init__(self) -> None:
            self.read = io.BytesIO(b"".join(json.dumps(message).encode() + b"\n" for message in CHAT)).read

    report = memory.import_file(cast("Any", Body()), session_id="talk", strict=strict)

    assert (report.sessions["talk"].added, report.refused) == (len(CHAT), ())
