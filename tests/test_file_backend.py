"""The file backend's own ways: what its logs look like, torn and damaged ones, what is dropped, who may write when."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from filestore import BIG, KEY, OTHER, add, erase, everything, files, fork, held, texts
from palimpsest import Conflict, Entry, StoreUnavailable
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.log.change import Change
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Ask, Place, PlaceHead, Range, Row, Step
from palimpsest.stores.file.backend import FileBackend
from palimpsest.stores.file.folder import log_of
from palimpsest.stores.file.lines import seal
from palimpsest.stores.options import DiskOptions
from palimpsest.testing import FakeClock

PLACE = Place("tenant", "home", "things", "one")


def backend(folder: Path, **options: object) -> FileBackend:
    """The backend of this folder, which does not wait for the disk unless it is told to."""
    given = DiskOptions(**{"synchronous": "NORMAL", **options})
    return FileBackend(f"file://{folder}", str(folder), Inline(), given)


def opened(folder: Path, **options: object) -> Store:
    """The engine over it."""
    return Store(backend(folder, **options), FakeClock())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store of a test lives."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """An empty store in that folder."""
    store = opened(folder)
    yield store
    drive(store.close())


@pytest.fixture
def log(folder: Path) -> Path:
    """The log of the session that tests write to."""
    return Path(log_of(str(folder), KEY.tenant, KEY.session))


def moved(expect: bytes | None, hot: bytes | None, *rows: Row, **more: object) -> Step:
    """A step that moves the head of a place and puts rows into it."""
    return Step(PLACE, expect, hot, put=[("rows", rows)] if rows else [], **more)


def written(files: FileBackend, *steps: Step, at: int = 1) -> object:
    """What came of a batch of these."""
    return drive(files.write([steps], at))[0]


def values(files: FileBackend) -> list[bytes]:
    """The values of the rows of that place."""
    (seen,) = drive(files.look([Ask(PLACE, [Range("rows", [(0, 99)])])]))
    return [row[1] for row in seen.rows[0]]


# --- what a person sees


def test_a_log_is_lines_of_json_in_which_texts_are_as_they_were_said(store: Store, log: Path) -> None:
    """Each batch is one line, whatever marks its texts hold, and what has a JSON form stands in it as that."""
    add(store, "Grüße aus Köln", "a\nb\r\n\u2028\x85")
    add(store, "c\ud800\n", "\x00")

    first, *lines = [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]

    assert first == {"kind": "home", "tenant": "tenant", "home": "one", "sum": first["sum"]}
    assert len(lines) == 2
    entry = next(value for value in lines[0]["values"] if "seq" in value)
    assert (entry["seq"], entry["content"]) == (1, "Grüße aus Köln")
    assert "Grüße aus Köln" in log.read_text()
    assert texts(store) == ["Grüße aus Köln", "a\nb\r\n\u2028\x85", "c\ud800\n", "\x00"]


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"{}", b'{"a":1}x', b'{"a":1} ', b"[1]12345678", b'["\xff"]', b"\xff\x00", b'{"a":\n1}', b"null", b'"',
     b'{"a":"\\ud800"}', "☂".encode(), b"[01]", b"]{", b'[1]"', b"[1]" + b"a" * 100, bytes(range(256))],
)  # fmt: skip
def test_whatever_bytes_a_value_has_they_come_back(folder: Path, value: bytes) -> None:
    """Values that are JSON, nearly JSON, text or neither are read as they were, also by another store."""
    files = backend(folder)
    written(files, moved(None, value, Row(1, value, "é\n", 5)), at=7)
    written(files, Step(PLACE, value, value, value))

    for one in (files, backend(folder)):
        (seen,) = drive(one.look([Ask(PLACE, [Range("rows", [(1, 1)])])]))
        assert seen.head == PlaceHead(value, value)
        assert [tuple(row) for row in seen.rows[0]] == [(1, value, "é\n", 5)]


def test_what_an_earlier_version_wrote_is_refused_and_left_as_it_is(folder: Path) -> None:
    """A folder of version 1 raises StoreCorrupt with that number, one of a newer version StoreTooNew."""
    folder.mkdir()
    mark = folder / "palimpsest.json"
    for version, fault in ((1, StoreCorrupt), (7, StoreTooNew)):
        mark.write_text(f'{{"kind":"palimpsest/files","version":{version}}}')
        before = everything(folder)

        with pytest.raises(fault, match=f"version {version}"):
            backend(folder)

        assert everything(folder) == before


def test_a_copied_log_is_refused_by_its_name(store: Store, folder: Path, log: Path) -> None:
    """A log under another home's name is StoreCorrupt that says whose it is; the home itself is unharmed."""
    add(store, "a")
    shutil.copy(log, log_of(str(folder), *OTHER))

    for attempt in (lambda: drive(store.head(OTHER)), lambda: add(store, "x", key=OTHER)):
        with pytest.raises(StoreCorrupt, match=r"log of 'one' of tenant 'tenant'.*own name"):
            attempt()

    assert texts(store) == ["a"]


# --- torn ends


def test_a_log_cut_anywhere_holds_whole_batches(store: Store, folder: Path, log: Path, dice: random.Random) -> None:
    """A log that was cut short at any byte has the batches before it, each whole, and takes new ones."""
    expected = [[]]
    for number in range(8):
        add(store, *(f"{number}.{i} ☂" for i in range(number % 4 + 1)))
        expected.append(texts(store))
    whole = log.read_bytes()
    for cut in (0, 1, *(dice.randrange(len(whole)) for _ in range(40))):
        log.write_bytes(whole[:cut])
        for one in (store, opened(folder)):
            assert texts(one) in expected
        found = texts(opened(folder))

        add(opened(folder), "next")

        assert texts(store) == texts(opened(folder)) == [*found, "next"]


def test_blocks_that_never_reached_the_disk_are_a_torn_end(store: Store, folder: Path, log: Path) -> None:
    """Where a loss of power left zeros in the last line it was never acknowledged."""
    add(store, "a")
    keep = log.stat().st_size
    add(store, "b" * 2000)
    whole = log.read_bytes()
    for begin, end in ((keep, keep + 512), (keep + 700, keep + 1212), (keep + 900, len(whole)), (keep, len(whole) - 1)):
        log.write_bytes(whole[:begin] + bytes(end - begin) + whole[end:])
        after = opened(folder)

        assert texts(after) == ["a"]
        add(after, "c")
        assert texts(after) == texts(store) == ["a", "c"]


def test_a_write_that_cannot_reach_the_disk_is_taken_back(
    folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk does not confirm a write it raises StoreUnavailable with the file's name and stores nothing."""
    store = opened(folder, synchronous="FULL")
    add(store, "a")
    before = log.read_bytes()

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        for attempt in (lambda: add(store, "b"), lambda: add(store, "b", key=OTHER), lambda: erase(store, 1)):
            with pytest.raises(StoreUnavailable, match=r"Input/output error: .*(one|other)-"):
                attempt()
    assert log.read_bytes() == before
    assert files(folder, "other-*") == []
    add(store, "c")
    assert texts(store) == texts(opened(folder)) == ["a", "c"]


def test_an_acknowledged_write_is_on_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default each write waits for the disk once, a new log for its folder, too; with NORMAL none does."""
    synced: list[str] = []
    full, normal = opened(folder, synchronous="FULL"), opened(folder)
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append("file"))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append("folder"))

    add(full, "a")
    assert synced[-2:] == ["file", "folder"]
    synced.clear()
    add(full, "b")
    drive(full.count(KEY, "words", {1: 1}))
    add(normal, "c")
    assert synced == ["file"]


# --- damage


def test_only_what_was_damaged_is_set_aside(store: Store, folder: Path, log: Path) -> None:
    """Where a text was changed its entry alone is set aside; all others are read, and written after it."""
    for number in range(4):
        add(store, f"{number}.a", f"{number}.b")
    log.write_bytes(log.read_bytes().replace(b"2.a", b"2.A"))

    assert texts(opened(folder)) == ["0.a", "0.b", "1.a", "1.b", "", "2.b", "3.a", "3.b"]
    again = opened(folder)
    add(again, "more")
    erase(again, 5)
    drive(again.scrub())

    assert not any(entry.damaged for entry in drive(again.read(KEY)))
    assert b"2.A" not in log.read_bytes()


def test_a_line_that_tells_of_other_things_than_were_written_is_refused_by_name(
    store: Store, folder: Path, log: Path
) -> None:
    """A log in which a key or a name was changed is StoreCorrupt with file, line and byte; other homes go on."""
    for text in "abc":
        add(store, text)
    add(store, "fine", key=OTHER)
    first, *lines = log.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"space":"log"', b'"space":"lof"')
    log.write_bytes(b"".join((first, *lines)))
    before = log.read_bytes()
    again = opened(folder)

    for attempt in (lambda: texts(again), lambda: add(again, "x"), lambda: drive(again.delete(KEY))):
        with pytest.raises(StoreCorrupt, match=rf"{log.name}, line 3 \(byte {len(first + lines[0])}\)"):
            attempt()

    assert log.read_bytes() == before
    assert texts(again, OTHER) == ["fine"]


@pytest.mark.parametrize("flips", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flipped_bit_never_gives_a_wrong_answer(folder: Path, log: Path, dice: random.Random, flips: int) -> None:
    """A bit flipped in a log raises an error, sets an entry aside, or loses nothing but counts."""
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
def test_a_line_of_somebody_elses_making_is_refused(folder: Path, row: bytes) -> None:
    """A line with its checksum whose rows are none of ours is StoreCorrupt, to who has read the log and who has not."""
    one = backend(folder)
    written(one, moved(None, b"x", Row(1, b"\xff")))
    (log,) = files(folder, "*.jsonl")
    first, line = log.read_bytes().splitlines(keepends=True)
    now = line[: line.rindex(b',"sum":"')].replace(b"[1,6]", row)
    assert now not in line
    log.write_bytes(first + seal(now))

    for each in (one, backend(folder)):
        with pytest.raises(StoreCorrupt, match=log.name):
            values(each)


# --- what is not there any more


def test_nothing_is_left_of_what_was_destroyed(store: Store, folder: Path) -> None:
    """After an erasure and `scrub` neither text, name nor large content is in any byte of the folder, in any branch."""
    add(store, "sesame", "sesame " * 20_000)
    drive(store.append(KEY, [Entry(kind="tool_call", role="assistant", name="sesame", call_id="c", content="{}")]))
    fork(store)
    add(store, "stays")

    erase(store, 1, 2, 3)
    assert drive(store.scrub(whole=False)).remains == ()

    assert b"sesame" not in everything(folder)
    assert texts(store, OTHER) == ["", "", ""]
    assert texts(store) == texts(opened(folder)) == ["", "", "", "stays"]


def test_another_process_scrubs_what_one_that_was_killed_has_destroyed(store: Store, folder: Path, log: Path) -> None:
    """What was destroyed, dropped or half written by one that does not live any more goes when another scrubs."""
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


def test_a_log_of_which_nothing_is_left_is_removed(store: Store, folder: Path) -> None:
    """Deleting a session removes its file; what was refused, or came to nothing, leaves none."""
    add(store, "a", BIG)
    with pytest.raises(Conflict):
        drive(store.append(OTHER, [Entry(id="x", content="a"), Entry(id="x", content="b")], check_ids=True))

    drive(store.delete(KEY))

    assert files(folder, "*.jsonl") == []
    assert texts(store) == []


def test_a_log_does_not_grow_with_what_is_replaced(folder: Path) -> None:
    """A place that is written to again and again has a log of bounded size, and the heads and rows that were last."""
    files, hot = backend(folder), None
    for number in range(1500):
        after = b"%d" % number
        assert written(files, moved(hot, after, Row(number % 5, b'{"n":%d}' % number))) is None
        hot = after

    (log,) = folder.rglob("*.jsonl")
    assert log.stat().st_size < 150_000
    for one in (files, backend(folder)):
        assert drive(one.look([Ask(PLACE)]))[0].head == PlaceHead(b"1499", b"")
        assert values(one) == [b'{"n":%d}' % number for number in range(1495, 1500)]


# --- who reads and writes when


def test_what_was_read_is_not_read_again(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has read a log reads only what is new in it, whoever wrote that, and the rows that are asked for."""
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


def test_who_waits_for_a_home_is_told_its_file_and_holds_up_no_other(store: Store, folder: Path, log: Path) -> None:
    """While a log is locked its writers wait for `busy_seconds`; reading and other homes go on."""
    add(store, "a")
    impatient = opened(folder, busy_seconds=0.02)
    patient = opened(folder, busy_seconds=600)

    with held(log):
        waiting = threading.Thread(target=lambda: add(patient, "b"))
        waiting.start()
        with pytest.raises(StoreUnavailable, match=r"has kept .*one-.*jsonl locked for 0.02 seconds"):
            add(impatient, "c")
        for number in range(10):
            add(patient, str(number), key=OTHER)
        assert texts(patient) == ["a"]
        assert waiting.is_alive()
    waiting.join()

    assert texts(store) == ["a", "b"]


def test_writers_that_meet_lose_nothing(folder: Path) -> None:
    """Stores of one folder that append, erase, fork, delete and scrub at once end well, and agree on what is there."""
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        store, dice = opened(folder, large_bytes=64), random.Random(seed)
        try:
            for number in range(60):
                add(store, f"{seed}.{number}", "large " * dice.choice([1, 20]))
                erase(store, dice.randrange(1, 50))
                drive(store.scrub(whole=dice.random() < 0.1))
                texts(store, newest_first=True, limit=5)
        except BaseException as fault:  # noqa: BLE001 (raised again below, in the test's own thread)
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]

    said = [text for text in texts(opened(folder), after=50) if not text.startswith("large")]
    for seed in range(3):
        mine = [int(text.partition(".")[2]) for text in said if text.startswith(f"{seed}.")]
        assert mine == sorted(set(mine))
        assert mine[-1] == 59
    assert drive(opened(folder).head(KEY)).next_seq == 361


def test_marks_rise_whatever_the_clock_does(folder: Path) -> None:
    """What is written later has a later mark, in whatever home and by whatever store, though the time went back."""
    one, two = backend(folder), backend(folder)
    places = [PLACE._replace(home=f"home {number}") for number in range(4)]
    for number, place in enumerate(places):
        drive((one, two)[number % 2].write([[Step(place, None, b"x")]], 1000 - number))

    marks = {listed.place: listed.mark for listed in drive(one.recent("tenant", "things"))}

    assert [marks[place] for place in places] == sorted(marks.values())
    since = marks[places[2]]
    assert {listed.place for listed in drive(two.recent("tenant", "things", since=since))} >= {places[3]}


def test_each_log_is_looked_at_once_for_those_written_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of them, the first or one behind it, takes the lock of every log once, whatever number is asked for."""
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


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied"])
def test_a_folder_that_is_gone_acknowledges_nothing(tmp_path: Path, folder: Path, how: str) -> None:
    """Where the folder was removed or replaced, reads and writes say so, and nothing is made in its place."""
    store = opened(folder)
    add(store, "a")
    folder.rename(tmp_path / "moved")
    if how == "emptied":
        folder.mkdir()
    elif how == "replaced":
        add(opened(folder), "of another")
    before = everything(folder) if folder.exists() else None

    for attempt in (
        lambda: add(store, "b"),
        lambda: texts(store),
        lambda: drive(store.commit(KEY, Change(kind="clear", reason="r"))),
        lambda: drive(store.put_item("tenant", "facts", "k", b"v")),
        lambda: drive(store.sessions("tenant")),
        lambda: drive(store.due("tenant", 0)),
        lambda: drive(store.scrub()),
    ):
        with pytest.raises(StoreUnavailable, match="removed, renamed or replaced"):
            attempt()

    assert (everything(folder) if folder.exists() else None) == before


def test_a_readonly_store_reads_and_changes_nothing(store: Store, folder: Path) -> None:
    """With `readonly=True` all can be read, every write raises StoreUnavailable, and no byte or name changes."""
    add(store, "a")
    before = sorted(folder.rglob("*")), everything(folder)
    readonly = opened(folder, readonly=True)

    for attempt in (lambda: add(readonly, "b"), lambda: erase(readonly, 1), lambda: drive(readonly.delete(KEY))):
        with pytest.raises(StoreUnavailable, match="opened read-only"):
            attempt()
    drive(readonly.count(KEY, "words", {1: 1}))

    assert texts(readonly) == ["a"]
    assert (sorted(folder.rglob("*")), everything(folder)) == before


def test_what_is_made_is_its_owners_alone(folder: Path) -> None:
    """Folders, logs and marks are closed to others, whatever the umask, also where a log was written anew."""
    before = os.umask(0)
    try:
        store = opened(folder)
        add(store, "a", "b", BIG)
        erase(store, 1)
        drive(store.scrub())
    finally:
        os.umask(before)

    assert [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077] == []


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
def test_what_was_acknowledged_survives_a_kill(folder: Path, dice: random.Random, kills: int) -> None:
    """A writer that is killed at any moment leaves every batch that it was told of, whole, and perhaps one more."""
    for number in range(kills):
        here = folder / str(number)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, here], stdout=subprocess.PIPE, cwd=Path(__file__).parent
        )
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(dice.randrange(1, 12))]
        process.send_signal(signal.SIGSTOP if dice.random() < 0.2 else signal.SIGKILL)
        process.kill()
        told += [int(line) for line in process.stdout.read().splitlines()]
        process.wait()
        process.stdout.close()

        store = opened(here)
        found = drive(store.read(KEY))

        assert len(found) in (2 * len(told), 2 * len(told) + 2)
        assert {entry.text for entry in found} - {""} <= {f"{i // 2}.{'ab'[i % 2]}" for i in range(len(found))}
        assert sum(entry.erased for entry in found) in (len(told) // 3, len(told) // 3 + 1)
        assert drive(store.scrub()).remains == ()
        add(store, "after")
        assert texts(opened(here))[-1] == "after"
