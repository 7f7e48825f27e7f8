"""Damaged files of the file store: damage never gives a wrong answer, and everything else can be read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from filestore import KEY, OTHER, add, erase, fork, lines_of, log_of, quick, texts
from palimpsest import Entry, Memory
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.log.change import Change
from palimpsest.log.entry import moment, now_us
from palimpsest.log.head import Cut, SessionKey
from palimpsest.log.summary import Compaction, Summary
from palimpsest.runtime.runner import drive
from palimpsest.stores import SessionInfo, Store
from palimpsest.stores.file.folder import Marks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a test's store."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """Yield an empty store in that folder, quick because it does not wait for the disk."""
    store = quick(folder)
    yield store
    drive(store.close())


@pytest.fixture
def damaged(store: Store, folder: Path) -> Store:
    """Return a store whose log has five commits of two entries, a cut after the second, and entry 5 damaged."""
    for number in range(5):
        add(store, f"{number}.a", f"{number}.b")
        if number == 1:
            drive(store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=Cut())))
    change(folder, b"2.a", b"2.A")
    return quick(folder)


def change(folder: Path, before: bytes, after: bytes) -> int:
    """Replace these bytes of the log by others, and return the number of the line in which they are."""
    log = log_of(folder)
    data = log.read_bytes()
    assert before in data
    log.write_bytes(data.replace(before, after))
    return data[: data.index(before)].count(b"\n") + 1


@pytest.mark.parametrize("other", [b"2.A", b'2"a', b"\0\xff{", b"2.a and more", b""])
def test_damage_is_named_and_the_rest_can_be_read(
    damaged: Store, folder: Path, caplog: pytest.LogCaptureFixture, other: bytes
) -> None:
    """A damaged entry alone is set aside, and a warning names it with file and line, once."""
    change(folder, b"2.A", other)
    byte = sum(map(len, lines_of(folder)[:4]))
    damaged = quick(folder)

    assert texts(damaged) == ["0.a", "0.b", "1.a", "1.b", "", "2.b", "3.a", "3.b", "4.a", "4.b"]

    assert f"{log_of(folder)}, line 5 (byte {byte})" in caplog.text
    assert "entry 5 of session 'one' cannot be read" in caplog.text
    assert texts(damaged, before=5) == ["0.a", "0.b", "1.a", "1.b"]
    assert texts(damaged, after=6) == ["3.a", "3.b", "4.a", "4.b"]
    assert texts(damaged, newest_first=True, limit=4) == ["4.b", "4.a", "3.b", "3.a"]
    assert texts(damaged, newest_first=True, before=5) == ["1.b", "1.a", "0.b", "0.a"]
    assert [entry.seq for entry in drive(damaged.fetch(KEY, [1, 4, 7, 10]))] == [1, 4, 7, 10]
    aside = drive(damaged.fetch(KEY, [5, 6]))
    assert [(entry.seq, entry.damaged, entry.erased) for entry in aside] == [(5, True, True), (6, False, False)]
    for touching in ({"after": 4}, {"after": 4, "limit": 2}, {"newest_first": True, "before": 7}):
        assert [entry.id for entry in drive(damaged.read(KEY, **touching)) if entry.damaged] == [aside[0].id]
    assert len(caplog.records) == 2


def test_a_damaged_log_takes_appends_and_cuts(damaged: Store) -> None:
    """A damaged log takes appends and cuts, and its records can be read on either side of the damage."""
    add(damaged, "more")

    assert drive(damaged.head(KEY)).next_seq == 12
    assert texts(damaged, after=10) == ["more"]
    assert [record.kind for record in drive(damaged.records(KEY, before=4))] == ["cut"]
    assert drive(damaged.records(KEY, after=4)) == []
    assert [record.kind for record in drive(damaged.records(KEY))] == ["cut"]


def test_entries_of_a_damaged_log_can_be_erased(damaged: Store, folder: Path) -> None:
    """An erasure passes over damage, and erases a damaged entry like any other, so that none of its bytes stay."""
    erase(damaged, 1)
    drive(damaged.scrub())
    assert texts(damaged) == ["", "0.b", "1.a", "1.b", "", "2.b", "3.a", "3.b", "4.a", "4.b"]
    assert b"2.A" in log_of(folder).read_bytes()

    erase(damaged, 5)
    drive(damaged.scrub())

    assert not any(entry.damaged for entry in drive(damaged.read(KEY)))
    assert b"2.A" not in log_of(folder).read_bytes()
    erase(damaged, 9)
    assert texts(damaged, after=6) == ["3.a", "3.b", "", "4.b"]
    assert drive(damaged.delete(KEY)) is True
    assert texts(damaged) == []


def test_no_erasure_passes_over_a_damaged_compaction_record(store: Store, folder: Path) -> None:
    """An erasure is refused where a damaged record of a compaction may hold the erased text; it changes nothing."""
    add(store, "a", "b")
    compaction = Compaction(summary=Summary(id="s", text="kept", covers=((1, 1),)), current=(0,), covered=((1, 1),))
    drive(store.commit(KEY, Change(kind="compact", reason="asked", compaction=compaction)))
    add(store, "b")
    change(folder, b"kept", b"kepT")
    before = log_of(folder).read_bytes()

    with pytest.raises(StoreCorrupt, match="revision 2"):
        erase(quick(folder), 1)

    assert log_of(folder).read_bytes() == before
    assert not list(folder.rglob("*.new"))


def test_a_damaged_record_costs_no_entry(store: Store, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the damaged line is a record, all entries can still be read."""
    add(store, "a")
    drive(store.commit(KEY, Change(kind="pin", reason="kept", seqs=(1,))))
    add(store, "b")
    change(folder, b"kept", b"kepT")
    store = quick(folder)

    assert texts(store) == ["a", "b"]
    assert texts(store, newest_first=True) == ["b", "a"]
    with pytest.raises(StoreCorrupt, match="record of revision 2 of session 'one'"):
        drive(store.records(KEY))
    assert f"{log_of(folder)}, line 3" in caplog.text


@pytest.mark.parametrize("left", [b"\n", b"text\n", b"a text\n" * 30], ids=["a break", "short", "long"])
def test_a_file_that_is_no_log_is_named_each_time(store: Store, folder: Path, left: bytes) -> None:
    """A file that is no log raises StoreCorrupt with its name and line each time it is read, however short it is."""
    add(store, "a")
    log_of(folder).write_bytes(left)
    reopened = quick(folder)

    for _ in range(3):
        with pytest.raises(StoreCorrupt, match=r"one-.*line 1 \(byte 0\), was changed since it was written"):
            texts(reopened)
    with pytest.raises(StoreCorrupt, match=r"line 1 \(byte 0\)"):
        add(reopened, "x")
    assert log_of(folder).read_bytes() == left


@pytest.mark.parametrize("part", ["head", "steps", "first line"])
def test_damage_refuses_its_own_session_alone(damaged: Store, folder: Path, part: str) -> None:
    """If more than an entry is damaged, that session is refused with file and line; others are read and written."""
    add(damaged, "fine", key=OTHER)
    add(damaged, "last")
    lines = lines_of(folder)
    number = 1 if part == "first line" else len(lines)
    before, after = {
        "head": (b'"values":[[', b'"values":[[1'),
        "steps": (b'"space":"log"', b'"space":"lag"'),
        "first line": (b'"home":"one"', b'"home":"eno"'),
    }[part]
    assert before in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(before, after)
    log_of(folder).write_bytes(b"".join(lines))
    reopened, data = quick(folder), log_of(folder).read_bytes()

    for attempt in (lambda: drive(reopened.head(KEY)), lambda: add(reopened, "x"), lambda: texts(reopened)):
        with pytest.raises(StoreCorrupt, match=rf"one-.*line {number} \(byte {sum(map(len, lines[: number - 1]))}\)"):
            attempt()
    add(reopened, "more", key=OTHER)
    assert texts(reopened, OTHER) == ["fine", "more"]
    assert log_of(folder).read_bytes() == data


@pytest.mark.parametrize("number", [2, 3, 4])
def test_two_lines_that_became_one_are_refused(store: Store, folder: Path, number: int) -> None:
    """Two lines without the line break between them are refused by file and line; neither is passed over."""
    for text in "abcd":
        add(store, text)
    lines = lines_of(folder)
    lines[number - 1] = lines[number - 1][:-1] + b"\x0b"
    log_of(folder).write_bytes(b"".join(lines))

    with pytest.raises(StoreCorrupt, match=rf"one-.*line {number} "):
        texts(quick(folder))


def sample(folder: Path) -> None:
    """Fill a store with every kind of content that it keeps."""
    store = quick(folder, large_bytes=64)
    for number in range(3):
        drive(
            store.append(
                KEY,
                [
                    Entry(content=f"question {number}", metadata={"n": number}),
                    Entry(kind="tool_call", role="assistant", name="look", call_id=f"c{number}", content="{}"),
                    Entry(kind="tool_result", role="tool", call_id=f"c{number}", content="large " * 20 * (number + 1)),
                ],
            )
        )
    drive(store.commit(KEY, Change(kind="cut", reason="high water", view="main", cut=Cut(start=4))))
    erase(store, 2)
    drive(store.count(KEY, "words", {1: 5, 3: 7, 4: 300}))
    fork(store)
    add(store, "after\ud800")
    add(store, "mine", key=OTHER)
    drive(store.put_item("tenant", "facts", "name", b"Ada"))
    drive(store.put_item("tenant", "facts", "raw", bytes(range(128, 140))))
    drive(store.lease("tenant", "turn", "me", 1e9))


def reads(folder: Path) -> dict[str, Callable[[Store], object]]:
    """Return every way to read what `sample` stored."""
    readers: dict[str, Callable[[Store], object]] = {
        "sessions": lambda store: drive(store.sessions("tenant")),
        "items": lambda store: drive(store.list_items("tenant", "facts")),
        "lease": lambda store: drive(store.lease("tenant", "turn", "you", 1)),
    }
    for key in (KEY, OTHER):
        readers |= {
            f"head {key}": lambda store, key=key: drive(store.head(key)),
            f"read {key}": lambda store, key=key: drive(store.read(key)),
            f"back {key}": lambda store, key=key: drive(store.read(key, newest_first=True)),
            f"part {key}": lambda store, key=key: drive(store.read(key, after=2, before=7)),
            f"fetch {key}": lambda store, key=key: drive(store.fetch(key, [1, 9])),
            f"records {key}": lambda store, key=key: drive(store.records(key)),
            f"counts {key}": lambda store, key=key: [e.tokens for e in drive(store.read(key, counter="words"))],
        }
    return readers


def answer(read: Callable[[], object]) -> object:
    """Return what the call returns, or the error that it raises."""
    try:
        return read()
    except (StoreCorrupt, StoreTooNew) as error:
        return error


def fewer_counts(found: object, wanted: object) -> bool:
    """Return whether these counts are those wanted, or a part of them: missing ones are counted again."""
    return isinstance(found, list) and all(
        count in (None, wanted_count) for count, wanted_count in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize(
    "flips", [pytest.param(150, marks=pytest.mark.wide), pytest.param(20_000, marks=pytest.mark.slow)]
)
def test_a_flipped_bit_never_gives_a_wrong_answer(
    tmp_path: Path, dice: random.Random, flips: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After any bit of any file is flipped, each read raises an error with the file's name or answers as before.

    Only a lease may be lost.
    """
    sound = tmp_path / "sound"
    sample(sound)
    readers = reads(sound)
    wanted = {name: read(quick(sound)) for name, read in readers.items()}
    files = [file for file in sorted(sound.rglob("*")) if file.is_file() and file.stat().st_size]
    sizes = [file.stat().st_size for file in files]
    folder, refused = tmp_path / "flipped", set()
    shutil.copytree(sound, folder)
    for _ in range(flips):
        (file,) = dice.choices([file.relative_to(sound) for file in files], sizes)
        original = (sound / file).read_bytes()
        changed = bytearray(original)
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        (folder / file).write_bytes(changed)

        caplog.clear()
        answers = {
            name: answer(lambda read=read: read(quick(folder, large_bytes=64))) for name, read in readers.items()
        }

        for name, one in answers.items():
            if name == "lease" and file.name.startswith("turn-"):  # an unreadable lease can be taken again
                assert one is None or isinstance(one, int)
            elif isinstance(one, StoreCorrupt | StoreTooNew):
                assert str(folder if file.name == "palimpsest.json" else folder / file) in f"{one}{caplog.text}"
                refused.add(file)
            elif isinstance(one, list) and any(isinstance(each, Entry) and each.damaged for each in one):
                refused.add(file)
                assert [each for each in one if not each.damaged] == [
                    each for each in wanted[name] if each.seq not in {other.seq for other in one if other.damaged}
                ]
            elif isinstance(one, list) and any(isinstance(each, SessionInfo) and each.damaged for each in one):
                refused.add(file)
                assert str(folder / file) in caplog.text
                unread = {each.session for each in one if each.damaged}
                assert [each for each in one if not each.damaged] == [
                    each for each in wanted[name] if each.session not in unread
                ]
            else:
                assert one == wanted[name] or ("counts" in name and fewer_counts(one, wanted[name])), name
        (folder / file).write_bytes(original)
    assert len(refused) >= 2  # which files are hit is chance, the largest ones most of all


def test_damaged_items_are_named(store: Store, folder: Path) -> None:
    """Damaged items raise StoreCorrupt with their file, and are not overwritten."""
    drive(store.put_item("tenant", "facts", "k", b"v"))
    (file,) = folder.rglob("facts-*")
    file.write_bytes(file.read_bytes().replace(b'"values":[', b'"values":[ ')[:-1] + b"\n")
    before = file.read_bytes()
    for attempt in (
        lambda: drive(quick(folder).get_item("tenant", "facts", "k")),
        lambda: drive(quick(folder).put_item("tenant", "facts", "k", b"w")),
    ):
        with pytest.raises(StoreCorrupt) as caught:
            attempt()
        assert f"{file}, line 2" in str(caught.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize("line", [0, 1, 2])
def test_damaged_facts_stop_nothing_else(folder: Path, line: int) -> None:
    """Damaged facts stop neither lists of sessions, nor other facts, nor erasures of users and sessions."""
    with Memory.open(f"file://{folder}") as memory:
        memory.session("also", user="ann").add_user_message("the heron stands")
        for scope in ("bad", "good"):
            memory.working(scope).set("a", 1)
            memory.working(scope).set("b", 2)
    (file,) = folder.rglob("working-bad-*")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"steps"', b'"stepS"').replace(b'"home"', b'"hOme"')
    file.write_bytes(b"".join(lines))

    with Memory.open(f"file://{folder}") as memory:
        with pytest.raises(StoreCorrupt, match=f"line {line + 1}"):
            memory.working("bad").get("a")
        assert [info.session for info in memory.sessions(order="latest", user="ann")] == ["also"]
        assert memory.recall("heron").passages
        assert memory.working("good").to_dict() == {"a": 1, "b": 2}
        if line:  # without the line, the scope of the facts is unknown
            assert memory.scopes() == ["bad", "good"]
            assert memory.session("also").fork("branch").entries()
            assert memory.delete_session("also")
            assert memory.forget(user="ann").sessions == ("branch",)
        assert str(file) in str(memory.forget(matches="nothing of it").remains)
        scanned = memory.scan("default")
        assert any("bad" in info.session for info in scanned.refused) or str(file) in str(scanned.remains)
        with pytest.raises(StoreCorrupt, match=f"line {line + 1}"):
            memory.sweep()


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_damaged_lease_can_be_taken_again(folder: Path, line: int) -> None:
    """A damaged lease is given anew, and its next holder has a greater fence."""
    store = quick(folder)
    fence = drive(store.lease("tenant", "l", "me", 60))
    assert drive(store.lease("tenant", "l", "me", 60, fence=fence)) == fence
    add(store, "a")
    (file,) = folder.rglob("l-*")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"fleeting", b"fleetinG").replace(b'"home"', b'"hOme"')
    file.write_bytes(b"".join(lines))
    store = quick(folder)

    assert [one.session for one in drive(store.sessions("tenant"))] == ["one"]
    assert drive(store.sweep("tenant", 0)) == 0
    anew = drive(store.lease("tenant", "l", "you", 60))
    assert fence is not None
    assert anew is not None
    assert anew > fence
    assert drive(store.lease("tenant", "l", "me", 60, fence=fence)) is None
    assert drive(quick(folder).lease("tenant", "l", "you", 60, fence=anew)) == anew
    assert file.read_bytes().count(b"\n") == 3


def test_a_damaged_line_of_counts_is_passed_over(store: Store, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged line of token counts is passed over, and its tokens are counted again."""
    add(store, "a")
    drive(store.count(KEY, "words", {1: 7}))
    add(store, "b")
    change(folder, b'{"tokens/words"', b'{tokens/words"')

    entries = drive(quick(folder).read(KEY, counter="words"))

    assert [(entry.text, entry.tokens) for entry in entries] == [("a", None), ("b", None)]
    assert f"{log_of(folder)}, line 3" in caplog.text


def test_a_damaged_end_of_a_line_of_counts_hides_nothing(store: Store, folder: Path) -> None:
    """If the end of a line of counts is damaged, the acknowledged line after it is not passed over: reads raise."""
    add(store, "a")
    drive(store.count(KEY, "words", {1: 7}))
    add(store, "b")
    log = log_of(folder)
    lines = log.read_bytes().splitlines(keepends=True)
    (counts,) = (line for line in lines if b'"fleeting":true' in line)
    log.write_bytes(log.read_bytes().replace(counts, counts[:-1] + b" "))

    with pytest.raises(StoreCorrupt):
        texts(quick(folder))


def test_a_sweep_passes_over_damage(store: Store, folder: Path) -> None:
    """A sweep erases what has expired in all other sessions before it raises the damage of one."""
    for session in ("a", "b", "c"):
        drive(store.append(SessionKey("tenant", session), [Entry(content="sesame", expires_at=moment(1_000_000))]))
    broken = log_of(folder, SessionKey("tenant", "b"))
    broken.write_bytes(broken.read_bytes().replace(b'"tenant":"tenant"', b'"tenant":"tenanT"'))
    store = quick(folder)

    assert len(drive(store.due("tenant", 2_000_000))) == 2
    with pytest.raises(StoreCorrupt) as caught:
        drive(store.sweep("tenant", 2_000_000))
    assert f"{broken}, line 1" in str(caught.value)
    drive(store.scrub())

    assert [log.name[0] for log in folder.rglob("*.jsonl") if b"sesame" in log.read_bytes()] == ["b"]


@pytest.mark.parametrize("damaged", [b"9" * 20, b"90000000001795979091", b"0000000000179597909\xb1", b"?"])
def test_a_damaged_mark_is_reported_and_written_anew(
    folder: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged mark of the last write is reported and written anew, and no session is lost from lists or searches."""
    with Memory.open(f"file://{folder}") as memory:
        memory.session("one").add_user_message("precious")
        (marks,) = folder.glob("*/marks")
        before = marks.read_bytes()
        marks.write_bytes(damaged)

    with Memory.open(f"file://{folder}") as memory:
        memory.session("one").add_user_message("more")
        assert "precious" in [item.text for item in memory.recall("precious").hits]
        assert [item.session for item in memory.sessions(order="latest")] == ["one"]

    assert len(caplog.records) == 1
    assert f"{marks} is damaged" in caplog.text
    assert before <= marks.read_bytes() <= b"%020d" % (int(before) + 3600)


@pytest.mark.parametrize("left", [None, b"", b"?" * 20, bytes(20)])
def test_sessions_are_found_without_the_last_mark(folder: Path, left: bytes | None) -> None:
    """Lists by use, searches and sweeps find all sessions though the mark of the last write is lost or damaged."""
    with Memory.open(f"file://{folder}") as memory:
        for name in "ab":
            memory.session(name).add_user_message(f"precious {name}")
    (marks,) = folder.glob("*/marks")
    marks.unlink()
    if left is not None:
        marks.write_bytes(left)

    with Memory.open(f"file://{folder}", readonly=True) as memory:
        assert sorted(info.session for info in memory.sessions(order="latest")) == ["a", "b"]
        assert len(memory.recall("precious").hits) == 2
    with Memory.open(f"file://{folder}", clock=lambda: now_us() + 7_200_000_000) as memory:
        assert memory.sweep(untouched_for="1h", dry_run=True) == 2
        memory.session("c").add_user_message("precious, too")
        assert memory.sessions(order="latest")[0].session == "c"
        assert len(memory.recall("precious").hits) == 3


def test_a_log_written_with_a_damaged_mark_is_found(folder: Path) -> None:
    """A session whose mark of its last write is impossibly late is found and listed like others."""
    with patch.object(Marks, "next", lambda *_: 10**20), Memory.open(f"file://{folder}") as memory:
        memory.session("one").add_user_message("precious")
    with Memory.open(f"file://{folder}") as memory:
        memory.session("two").add_user_message("more")
        assert "precious" in [item.text for item in memory.recall("precious").hits]
        assert sorted(item.session for item in memory.sessions(order="latest")) == ["one", "two"]
