"""The contract of backends, applied to each backend of the package."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import LAST_KEY, Ask, Due, Place, Range, Row, Step
from palimpsest.stores.file.backend import FileBackend
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.stores.sqlite.layout import FIRST, MIGRATIONS, migrate
from palimpsest.testing import BackendFactory, StoreConformance


class TestMemoryBackend(StoreConformance):
    """The backend of dictionaries keeps the contract."""

    @pytest.fixture
    def backend(self) -> BackendFactory:
        return lambda: MemoryBackend(Inline())


class TestSQLiteBackend(StoreConformance):
    """The SQLite backend keeps the contract."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        path = str(tmp_path / "a.db")
        return lambda: SQLiteBackend(f"sqlite:///{path}", path, Inline(), DiskOptions(synchronous="NORMAL"))


class TestFileBackend(StoreConformance):
    """The backend of log files keeps the contract."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        path = str(tmp_path / "logs")
        return lambda: FileBackend(f"file://{path}", path, Inline(), DiskOptions(synchronous="NORMAL"))


WRITER = """
import sys
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores.backend import Place, Row, Step
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.sqlite.backend import SQLiteBackend

backend = SQLiteBackend("sqlite:///" + sys.argv[1], sys.argv[1], Inline(), DiskOptions(synchronous="NORMAL"))
one, two = (Place("t", "h", "s", name) for name in ("one", "two"))
hot = None
for number in range(1_000_000):
    now = b"%d" % number
    put = [("t", [Row(number, now * 50, now.decode())])]
    assert drive(backend.write([[Step(one, hot, now, put=put), Step(two, hot, now, put=put)]], number)) == [None]
    hot = now
    print(number, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 40])
def test_a_killed_writer_leaves_whole_batches(tmp_path: Path, acknowledged: int) -> None:
    """After a kill, each acknowledged batch is there, and a batch for two places is in both of them or in neither."""
    path = str(tmp_path / "a.db")
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(acknowledged):
            last = int(writer.stdout.readline())
        writer.kill()
        last = max([last, *map(int, writer.stdout.read().split())])

    backend = SQLiteBackend(f"sqlite:///{path}", path, Inline(), DiskOptions())
    places = [Place("t", "h", "s", name) for name in ("one", "two")]
    one, two = drive(backend.look([Ask(place, [Range("t", [(0, LAST_KEY)])]) for place in places]))
    drive(backend.close())

    assert one == two
    assert one.head is not None
    assert int(one.head.hot) in {last, last + 1}
    assert [row[0] for row in one.rows[0]] == list(range(int(one.head.hot) + 1))


# --- versions of the file


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


def opened(path: Path) -> SQLiteBackend:
    return SQLiteBackend(f"sqlite:///{path}", str(path), Inline(), DiskOptions())


def test_a_file_of_an_earlier_version_is_migrated(tmp_path: Path) -> None:
    """Migrations run in order, each whole and with its number or not at all; they keep the data and run once.

    A memory that is opened read-only asks to be opened writable.
    """
    path, place = tmp_path / "a.db", Place("t", "h", "s", "one")
    backend = opened(path)
    assert drive(backend.write([[Step(place, None, b"hot", b"cold", put=[("t", [Row(1, b"row")])])]], 0)) == [None]
    drive(backend.close())
    later = (*MIGRATIONS, ("CREATE TABLE later(x)", "INSERT INTO later VALUES(1)"), ("UPDATE later SET x = x + 1",))
    failing = (*later[:2], ("UPDATE later SET x = 7", "no statement"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        with pytest.raises(
            StoreUnavailable,
            match=f"version {FIRST} needs migration to {FIRST + 2}: open it once without readonly=True",
        ):
            migrate(db, "a", writable=False, migrations=later)
        with pytest.raises(sqlite3.OperationalError):
            migrate(db, "a", writable=True, migrations=failing)
        assert (version_of(path), db.execute("SELECT x FROM later").fetchall()) == (FIRST + 1, [(1,)])

    for _ in range(2):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            migrate(db, "a", writable=True, migrations=later)
            assert db.execute("SELECT x FROM later").fetchall() == [(2,)]
            assert db.execute("SELECT hot FROM place").fetchall() == [(b"hot",)]
    assert version_of(path) == FIRST + 2

    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=str(FIRST + 2)):
        opened(path)
    assert path.read_bytes() == before


def test_a_file_of_an_unknown_version_is_refused_untouched(tmp_path: Path) -> None:
    """A file that cannot be migrated, or is another program's, is refused with its version and left as it is."""
    for name, statements, match in (
        (
            "old",
            ["CREATE TABLE session(x)", "PRAGMA user_version = 2", "PRAGMA application_id = 1346456649"],
            "2.*xport",
        ),
        ("other", ["CREATE TABLE session(x)"], "another program"),
    ):
        path = tmp_path / name
        with contextlib.closing(sqlite3.connect(path)) as db:
            for statement in statements:
                db.execute(statement)
        before = path.read_bytes()

        with pytest.raises(StoreCorrupt, match=match):
            opened(path)

        assert path.read_bytes() == before


# --- what has expired


def test_a_page_of_expired_rows_costs_the_same_in_any_file(tmp_path: Path) -> None:
    """A page of expired rows and heads reads only those of the page, however many have expired."""
    costs: dict[int, list[int]] = {}
    for size in (200, 4_000):
        backend = opened(tmp_path / f"{size}.db")
        places = [Place("t", "h", "s", f"{number}") for number in range(size // 10)]
        put = [("entry", [Row(number, b"", "", 1_000 + number) for number in range(size)])]
        rows = Step(Place("t", "h", "log", ""), rows_only=True, put=put)
        drive(backend.write([[rows, *(Step(one, None, b"", expires=2_000 + i) for i, one in enumerate(places))]], 0))
        found, costs[size] = list[Due](), []
        for _ in range(3):
            with counted_steps(backend) as steps:
                found += drive(backend.expired("t", 10_000, after=found[-1] if found else None, limit=10))
            costs[size].append(steps[0])
        assert [due.key for due in found] == list(range(30))
        with counted_steps(backend) as steps:
            assert drive(backend.expired("t", 999)) == []
        costs[size].append(steps[0])
        drive(backend.close())

    assert all(more <= 1.2 * less for more, less in zip(costs[4_000], costs[200], strict=True))


@contextlib.contextmanager
def counted_steps(backend: SQLiteBackend) -> Iterator[list[int]]:
    """Count the steps of SQLite's virtual machine inside the block, in tens."""
    steps = [0]

    def step() -> None:
        steps[0] += 1

    connection = backend._database._writer.use().connection
    connection.set_progress_handler(step, 10)
    yield steps
    connection.set_progress_handler(None, 10)


def test_a_refused_batch_is_made_again_in_the_same_transaction(tmp_path: Path) -> None:
    """Two writers that always overtake each other need one transaction for each append."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    options = DiskOptions(synchronous="NORMAL")
    backends = [SQLiteBackend(url, str(tmp_path / "a.db"), Inline(), options) for _ in range(2)]
    one, other = stores = [Store(backend) for backend in backends]
    key = SessionKey("tenant", "one")
    for store in stores:
        drive(store.append(key, [Entry(content="first")]))
    statements: list[str] = []
    for backend in backends:
        backend._database._writer.use().connection.set_trace_callback(statements.append)

    for number in range(20):
        drive((one, other)[number % 2].append(key, [Entry(content=str(number))]))

    assert statements.count("BEGIN IMMEDIATE") == statements.count("COMMIT") == 20
    assert [entry.text for entry in drive(one.read(key))] == ["first", "first", *map(str, range(20))]
    for backend in backends:
        drive(backend.close())
