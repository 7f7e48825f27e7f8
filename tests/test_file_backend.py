"""The file backend: how its logs look, torn and damaged logs, scrubbing, and concurrent processes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest
from msgspec.structs import replace

from filestore import KEY, OTHER, add, erase, everything, files, fork, texts
from palimpsest import StoreUnavailable
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Ask, Place, PlaceHead, Range, Row, Step
from palimpsest.stores.file import backend as file_backend
from palimpsest.stores.file import listing
from palimpsest.stores.file.backend import FileBackend
from palimpsest.stores.file.folder import log_of
from palimpsest.stores.file.lines import seal
from palimpsest.stores.options import DiskOptions
from palimpsest.testing import FakeClock
from processes import at_once

PLACE = Place("tenant", "home", "things", "one")


def backend(folder: Path, **options: object) -> FileBackend:
    """Return the backend of this folder, which does not sync to the disk unless told to."""
    given = DiskOptions(**{"synchronous": "NORMAL", **options})
    return FileBackend(f"file://{folder}", str(folder), Inline(), given)


def opened(folder: Path, **options: object) -> Store:
    """Return the engine over that backend."""
    return Store(backend(folder, **options), FakeClock())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the test's store."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """Yield an empty store in that folder."""
    store = opened(folder)
    yield store
    drive(store.close())


@pytest.fixture
def log(folder: Path) -> Path:
    """Return the path of the log of session KEY, to which tests write."""
    return Path(log_of(str(folder), KEY.tenant, KEY.session))


def moved(expect: bytes | None, hot: bytes | None, *rows: Row, **more: object) -> Step:
    """Return a step that sets the head of PLACE and puts rows into it."""
    return Step(PLACE, expect, hot, put=[("rows", rows)] if rows else [], **more)


def written(files: FileBackend, *steps: Step, at: int = 1) -> object:
    """Write a batch of these steps and return its result."""
    return drive(files.write([steps], at))[0]


def values(files: FileBackend) -> list[bytes]:
    """Return the values of the rows of PLACE."""
    (seen,) = drive(files.look([Ask(PLACE, [Range("rows", [(0, 99)])])]))
    return [row[1] for row in seen.rows[0]]


# --- what a person sees


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"{}", b'{"a":1}x', b'{"a":1} ', b"[1]12345678", b'["\xff"]', b"\xff\x00", b'{"a":\n1}', b"null", b'"',
     b'{"a":"\\ud800"}', "☂".encode(), b"[01]", b"]{", b'[1]"', b"[1]" + b"a" * 100, bytes(range(256))],
)  # fmt: skip
def test_a_value_comes_back_whatever_its_bytes(folder: Path, value: bytes) -> None:
    """A value comes back byte for byte, also in another store object: JSON, nearly JSON, text or neither."""
    files = backend(folder)
    written(files, moved(None, value, Row(1, value, "é\n", 5)), at=7)
    written(files, Step(PLACE, value, value, value))

    for reader in (files, backend(folder)):
        (seen,) = drive(reader.look([Ask(PLACE, [Range("rows", [(1, 1)])])]))
        assert seen.head == PlaceHead(value, value)
        assert [tuple(row) for row in seen.rows[0]] == [(1, value, "é\n", 5)]


def test_a_folder_of_another_version_is_refused_untouched(folder: Path) -> None:
    """A folder of version 1 raises StoreCorrupt, one of a newer version StoreTooNew; no file changes."""
    folder.mkdir()
    mark = folder / "palimpsest.json"
    for version, fault in ((1, StoreCorrupt), (7, StoreTooNew)):
        mark.write_text(f'{{"kind":"palimpsest/files","version":{version}}}')
        before = everything(folder)

        with pytest.raises(fault, match=f"version {version}"):
            backend(folder)

        assert everything(folder) == before


# --- torn ends


# --- damage


def test_a_line_with_changed_content_is_refused_by_name(store: Store, folder: Path, log: Path) -> None:
    """A log whose line was changed raises StoreCorrupt with file, line and byte, until it is deleted."""
    for text in "abc":
        add(store, text)
    add(store, "fine", key=OTHER)
    first, *lines = log.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"space":"log"', b'"space":"lof"')
    log.write_bytes(b"".join((first, *lines)))
    before = log.read_bytes()
    reopened = opened(folder)

    for attempt in (lambda: texts(reopened), lambda: add(reopened, "x")):
        with pytest.raises(StoreCorrupt, match=rf"{log.name}, line 3 \(byte {len(first + lines[0])}\)"):
            attempt()

    assert log.read_bytes() == before
    assert drive(reopened.delete(KEY))
    assert not log.exists()
    assert texts(reopened, OTHER) == ["fine"]


@pytest.mark.parametrize("flips", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flipped_bit_never_gives_a_wrong_answer(folder: Path, log: Path, dice: random.Random, flips: int) -> None:
    """A flipped bit in a log raises an error, damages an entry visibly, or loses nothing but token counts."""
    store = opened(folder, large_bytes=64)
    for number in range(3):
        add(store, f"question {number}", "large " * 20 * (number + 1), metadata={"n": number})
    erase(store, 2)
    drive(store.count(KEY, "words", {1: 5, 3: 7}))
    fork(store)
    add(store, "mine", key=OTHER)
    sound, wanted = log.read_bytes(), {}
    reads = {
        "head": lambda one, key: drive(one.head(key)),
        "entries": lambda one, key: drive(one.read(key, counter="words")),
        "back": lambda one, key: drive(one.read(key, newest_first=True, limit=3)),
        "records": lambda one, key: drive(one.records(key)),
    }
    for name, key in itertools.product(reads, (KEY, OTHER)):
        wanted[name, key] = reads[name](store, key)
    for _ in range(flips):
        changed = bytearray(sound)
        changed[dice.randrange(len(changed) - 2)] ^= 1 << dice.randrange(8)
        log.write_bytes(changed)
        for (name, key), right in wanted.items():
            try:
                found = reads[name](opened(folder, large_bytes=64), key)
            except (StoreCorrupt, StoreUnavailable):
                continue
            if isinstance(found, list) and name != "records":
                damaged = {entry.seq for entry in found if entry.damaged}
                counts = {entry.seq: entry.tokens for entry in found}
                assert [e for e in found if e.seq not in damaged] == [
                    replace(e, tokens=e.tokens and counts[e.seq]) for e in right if e.seq not in damaged
                ]
                assert all(counts[e.seq] in (None, e.tokens) for e in right)
            else:
                assert found == right


@pytest.mark.parametrize("row", [b"[1,-6]", b'["x"]', b"[1,{}]", b"[1]", b"{}", b"[1,-999999]"])
def test_a_line_with_impossible_rows_is_refused(folder: Path, row: bytes) -> None:
    """A line with a valid checksum but impossible rows raises StoreCorrupt, also for a reader that knew the log."""
    reader = backend(folder)
    written(reader, moved(None, b"x", Row(1, b"\xff")))
    (log,) = files(folder, "*.jsonl")
    first, line = log.read_bytes().splitlines(keepends=True)
    forged = line[: line.rindex(b',"sum":"')].replace(b"[1,6]", row)
    assert forged not in line
    log.write_bytes(first + seal(forged))

    for backend_ in (reader, backend(folder)):
        with pytest.raises(StoreCorrupt, match=log.name):
            values(backend_)


# --- what is not there any more


def test_another_process_scrubs_for_one_that_was_killed(store: Store, folder: Path, log: Path) -> None:
    """A scrub removes what another process destroyed or left half written before it was killed."""
    add(store, "sesame", "stays")
    drive(store.put_item("tenant", "facts", "k", b"sesame"))
    drive(store.delete_item("tenant", "facts", "k"))
    erase(store, 1)
    Path(f"{log}.new").write_bytes(b"half of sesame")
    Path(f"{log.parent}/gone-1.jsonl.new").write_bytes(b"half of sesame")

    assert drive(opened(folder).scrub()).remains == ()

    assert b"sesame" not in everything(folder)
    assert texts(store) == ["", "stays"]
    assert files(folder, "*.new") == []


def test_a_log_does_not_grow_with_replaced_values(folder: Path) -> None:
    """The log of a place that is rewritten again and again stays small, and keeps the last head and rows."""
    files, hot = backend(folder), None
    for number in range(1500):
        after = b"%d" % number
        assert written(files, moved(hot, after, Row(number % 5, b'{"n":%d}' % number))) is None
        hot = after

    (log,) = folder.rglob("*.jsonl")
    assert log.stat().st_size < 150_000
    for reader in (files, backend(folder)):
        assert drive(reader.look([Ask(PLACE)]))[0].head == PlaceHead(b"1499", b"")
        assert values(reader) == [b'{"n":%d}' % number for number in range(1495, 1500)]


# --- who reads and writes when


def test_a_log_is_not_read_again(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store reads only what is new in a log that it has read, whoever wrote it, and the rows asked for."""
    other = opened(folder)
    for _ in range(50):
        add(store, *["x" * 1000] * 10)
    assert len(texts(other)) == 500
    pread, sizes = os.pread, []
    monkeypatch.setattr(os, "pread", lambda *how: sizes.append(how[1]) or pread(*how))

    add(store, "meanwhile")
    add(other, "new")

    assert texts(other, after=500) == ["meanwhile", "new"]
    assert sum(sizes) < 20_000


def test_concurrent_writers_lose_nothing(folder: Path) -> None:
    """Stores of one folder that append, erase, delete and scrub at once lose nothing and agree on the log."""

    def work(seed: int) -> None:
        store, dice = opened(folder, large_bytes=64), random.Random(seed)
        for number in range(60):
            add(store, f"{seed}.{number}", "large " * dice.choice([1, 20]))
            erase(store, dice.randrange(1, 50))
            drive(store.scrub(whole=dice.random() < 0.1))
            texts(store, newest_first=True, limit=5)

    at_once(work, 3)

    found = [text for text in texts(opened(folder), after=50) if not text.startswith("large")]
    for seed in range(3):
        numbers = [int(text.partition(".")[2]) for text in found if text.startswith(f"{seed}.")]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 59
    assert drive(opened(folder).head(KEY)).next_seq == 361


def test_marks_rise_whatever_the_clock_does(folder: Path) -> None:
    """A later write has a later mark, in any home and by any store, even if the clock goes back."""
    first, second = backend(folder), backend(folder)
    places = [PLACE._replace(home=f"home {number}") for number in range(4)]
    for number, place in enumerate(places):
        drive((first, second)[number % 2].write([[Step(place, None, b"x")]], 1000 - number))

    marks = {listed.place: listed.mark for listed in drive(first.recent("tenant", "things"))}

    assert [marks[place] for place in places] == sorted(marks.values())
    since = marks[places[2]]
    assert {listed.place for listed in drive(second.recent("tenant", "things", since=since))} >= {places[3]}


def test_each_log_is_read_once_per_page_of_newest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the newest places takes each log's lock once, whatever its length."""
    files = backend(folder)
    places = [PLACE._replace(home=f"home {number}") for number in range(5)]
    for number, place in enumerate(places):
        drive(files.write([[Step(place, None, b"x")]], number * 1_000_000))
    flock, shared = fcntl.flock, []
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: shared.append(how & fcntl.LOCK_SH) or flock(fd, how))

    first = drive(files.newest("tenant", "things", limit=2))
    locked = sum(shared)
    second = drive(files.newest("tenant", "things", until=first[-1].mark, after=first[-1].place, limit=2))

    assert [one.place for one in [*first, *second]] == places[:0:-1]
    assert (locked, sum(shared)) == (5 * fcntl.LOCK_SH, 10 * fcntl.LOCK_SH)


def listed(files: FileBackend) -> object:
    """Return what a listing says of each log, or the error's text."""
    try:
        return drive(files.places("tenant", "things")), drive(files.expired("tenant", 5))
    except StoreCorrupt as fault:
        return str(fault)


def test_a_log_unchanged_since_its_listing_is_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing does not open logs that have not changed since the last listing.

    Logs changed a moment ago are opened: another change may bear the same time.
    """
    files, opens = backend(folder), list[object]()
    for number in range(20):
        drive(files.write([[Step(PLACE._replace(home=f"home {number}"), None, b"x")]], 1))
    monkeypatch.setattr(file_backend, "FileIO", lambda path: opens.append(path) or FileIO(path))

    young = [len(opens) for _ in range(2) if listed(files)]
    monkeypatch.setattr(listing, "SETTLED", -1)
    old = [len(opens) for _ in range(4) if listed(files)]

    assert young == [40, 80]
    assert old == [100, 100, 100, 100]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_a_listing_equals_one_without_memory(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A listing that remembers logs equals that of a new backend.

    This holds whatever is written, dropped, scrubbed, torn, copied, removed or appended in between.
    """
    monkeypatch.setattr(listing, "SETTLED", -1)
    monkeypatch.setattr(file_backend, "KNOWN", 4)
    dice, files = random.Random(seed), [backend(folder) for _ in range(2)]
    for turn in range(80):
        place = PLACE._replace(home=f"home {dice.randrange(6)}", name=dice.choice("ab"))
        path, act = Path(log_of(str(folder), place.tenant, place.home)), dice.choice("wwwwddstgxc")
        backend_ = dice.choice(files)
        with contextlib.suppress(StoreCorrupt, FileNotFoundError):
            before = drive(backend_.look([Ask(place)]))[0].head
            expect = None if before is None else before.hot
            if act == "w":
                ends = dice.choice([None, 1, 9])
                drive(backend_.write([[Step(place, expect, b"%d" % turn, expires=ends, destroys=True)]], turn))
            elif act == "d" and expect is not None:
                drive(backend_.write([[Step(place, expect, destroys=dice.random() < 0.5)]], turn))
            elif act == "s":
                drive(backend_.scrub(whole=dice.random() < 0.5))
            elif act == "t":
                with path.open("ab") as file:
                    file.write(b'{"half')
            elif act == "g":
                with path.open("ab") as file:
                    file.write(b"garbage\n")
            elif act == "c":
                path.with_suffix(".copy").write_bytes(path.read_bytes())
                path.with_suffix(".copy").replace(path)
            elif act == "x":
                path.unlink()
        fresh = backend(folder)
        assert [listed(backend_) for backend_ in files for _ in range(2)] == [listed(fresh)] * 4


WRITER = """
import sys
from filestore import KEY, add
from test_file_backend import erase, opened, drive
from pathlib import Path
store = opened(Path(sys.argv[1]), synchronous="FULL")
for number in range(10_000):
    add(store, f"{number}.a", f"{number}.b")
    if number % 3 == 2:
        erase(store, 2 * number - 1)
        drive(store.scrub(whole=False))
    print(number, flush=True)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_an_acknowledged_batch_survives_a_kill(folder: Path, dice: random.Random, kills: int) -> None:
    """A writer killed at any moment leaves every acknowledged batch whole, and at most one more."""
    for number in range(kills):
        subfolder = folder / str(number)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, subfolder], stdout=subprocess.PIPE, cwd=Path(__file__).parent
        )
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(dice.randrange(1, 12))]
        process.send_signal(signal.SIGSTOP if dice.random() < 0.2 else signal.SIGKILL)
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
        process.wait()
        process.stdout.close()

        store = opened(subfolder)
        found = drive(store.read(KEY))

        assert len(found) in (2 * len(acknowledged), 2 * len(acknowledged) + 2)
        assert {entry.text for entry in found} - {""} <= {f"{i // 2}.{'ab'[i % 2]}" for i in range(len(found))}
        assert sum(entry.erased for entry in found) in (len(acknowledged) // 3, len(acknowledged) // 3 + 1)
        assert drive(store.scrub()).remains == ()
        add(store, "after")
        assert texts(opened(subfolder))[-1] == "after"
