"""What the file store makes of damaged files: no wrong answer, and the rest can be read."""

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
    """Where the store of a test lives."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """An empty store in that folder, quick because it does not wait for the disk."""
    store = quick(folder)
    yield store
    drive(store.close())


@pytest.fixture
def damaged(store: Store, folder: Path) -> Store:
    """A log of five commits of two entries, a cut after the second, with the third (entry 5) damaged."""
    for number in range(5):
        add(store, f"{number}.a", f"{number}.b")
        if number == 1:
            drive(store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=Cut())))
    change(folder, b"2.a", b"2.A")
    return quick(folder)


def change(folder: Path, before: bytes, after: bytes) -> int:
    """Let these bytes of the log be others, and return the number of the line in which they are."""
    log = log_of(folder)
    data = log.read_bytes()
    assert before in data
    log.write_bytes(data.replace(before, after))
    return data[: data.index(before)].count(b"\n") + 1


@pytest.mark.parametrize("other", [b"2.A", b'2"a', b"\0\xff{", b"2.a and more", b""])
def test_damage_is_named_and_the_rest_can_be_read(
    damaged: Store, folder: Path, caplog: pytest.LogCaptureFixture, other: bytes
) -> None:
    """A damaged entry is set aside alone, whatever is in its place; it is named, once, and so are file and line."""
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
    """Damage further up keeps nobody from going on; records are read on either side of it."""
    add(damaged, "more")

    assert drive(damaged.head(KEY)).next_seq == 12
    assert texts(damaged, after=10) == ["more"]
    assert [record.kind for record in drive(damaged.records(KEY, before=4))] == ["cut"]
    assert drive(damaged.records(KEY, after=4)) == []
    assert [record.kind for record in drive(damaged.records(KEY))] == ["cut"]


def test_a_damaged_log_can_be_erased_in(damaged: Store, folder: Path) -> None:
    """An erasure passes the damage; what was damaged is taken out like an entry, and nothing of it stays."""
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


def test_nothing_is_erased_before_a_damaged_record(store: Store, folder: Path) -> None:
    """A damaged record of a compaction may tell of what is to be erased: that is refused, and changes nothing."""
    add(store, "a", "b")
    made = Compaction(summary=Summary(id="s", text="kept", covers=((1, 1),)), current=(0,), covered=((1, 1),))
    drive(store.commit(KEY, Change(kind="compact", reason="asked", compaction=made)))
    add(store, "b")
    change(folder, b"kept", b"kepT")
    before = log_of(folder).read_bytes()

    with pytest.raises(StoreCorrupt, match="revision 2"):
        erase(quick(folder), 1)

    assert log_of(folder).read_bytes() == before
    assert not list(folder.rglob("*.new"))


def test_a_damaged_record_takes_no_entry_with_it(store: Store, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the damaged line is a record, all entries can still be read."""
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
    """However short it is, who looks again is told the same: what is damaged, and where."""
    add(store, "a")
    log_of(folder).write_bytes(left)
    again = quick(folder)

    for _ in range(3):
        with pytest.raises(StoreCorrupt, match=r"one-.*line 1 \(byte 0\), is not as it was written"):
            texts(again)
    with pytest.raises(StoreCorrupt, match=r"line 1 \(byte 0\)"):
        add(again, "x")
    assert log_of(folder).read_bytes() == left


@pytest.mark.parametrize("part", ["head", "steps", "first line"])
def test_other_sessions_do_not_suffer(damaged: Store, folder: Path, part: str) -> None:
    """Where more than an entry is damaged the session is refused by file and line; others are read and written."""
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
    again, data = quick(folder), log_of(folder).read_bytes()

    for attempt in (lambda: drive(again.head(KEY)), lambda: add(again, "x"), lambda: texts(again)):
        with pytest.raises(StoreCorrupt, match=rf"one-.*line {number} \(byte {sum(map(len, lines[: number - 1]))}\)"):
            attempt()
    add(again, "more", key=OTHER)
    assert texts(again, OTHER) == ["fine", "more"]
    assert log_of(folder).read_bytes() == data


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_break_between_two_lines_that_was_changed_loses_neither(store: Store, folder: Path, number: int) -> None:
    """Two lines that became one are refused by file and line: what the second one says is not passed over."""
    for text in "abcd":
        add(store, text)
    lines = lines_of(folder)
    lines[number - 1] = lines[number - 1][:-1] + b"\x0b"
    log_of(folder).write_bytes(b"".join(lines))

    with pytest.raises(StoreCorrupt, match=rf"one-.*line {number} "):
        texts(quick(folder))


def sample(folder: Path) -> None:
    """A store with some of everything."""
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
    """Every way to read what `sample` made."""
    found: dict[str, Callable[[Store], object]] = {
        "sessions": lambda store: drive(store.sessions("tenant")),
        "items": lambda store: drive(store.list_items("tenant", "facts")),
        "lease": lambda store: drive(store.lease("tenant", "turn", "you", 1)),
    }
    for key in (KEY, OTHER):
        found |= {
            f"head {key}": lambda store, key=key: drive(store.head(key)),
            f"read {key}": lambda store, key=key: drive(store.read(key)),
            f"back {key}": lambda store, key=key: drive(store.read(key, newest_first=True)),
            f"part {key}": lambda store, key=key: drive(store.read(key, after=2, before=7)),
            f"fetch {key}": lambda store, key=key: drive(store.fetch(key, [1, 9])),
            f"records {key}": lambda store, key=key: drive(store.records(key)),
            f"counts {key}": lambda store, key=key: [e.tokens for e in drive(store.read(key, counter="words"))],
        }
    return found


def answer(read: Callable[[], object]) -> object:
    """What the call returns, or the error that it raises."""
    try:
        return read()
    except (StoreCorrupt, StoreTooNew) as error:
        return error


def fewer_counts(found: object, wanted: object) -> bool:
    """Whether these are the counts wanted, or some of them: what is not there is counted again."""
    return isinstance(found, list) and all(one in (None, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "flips", [pytest.param(150, marks=pytest.mark.wide), pytest.param(20_000, marks=pytest.mark.slow)]
)
def test_a_flipped_bit_never_gives_a_wrong_answer(
    tmp_path: Path, dice: random.Random, flips: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A bit flipped in any file is told by the name of the file, or every answer is as it was. A lease may be lost."""
    sound = tmp_path / "sound"
    sample(sound)
    asked = reads(sound)
    wanted = {name: read(quick(sound)) for name, read in asked.items()}
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
        found = {name: answer(lambda read=read: read(quick(folder, large_bytes=64))) for name, read in asked.items()}

        for name, one in found.items():
            if name == "lease" and file.name.startswith("turn-"):  # one that cannot be read begins anew
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


def test_damaged_side_data_is_named(store: Store, folder: Path) -> None:
    """Items that are not as they were written raise StoreCorrupt with their file; nothing is overwritten."""
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
def test_a_damaged_log_of_facts_keeps_nobody_from_the_rest(folder: Path, line: int) -> None:
    """What lists sessions, or the facts of others, does not meet it, and what names a user or a session goes on."""
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
        assert [one.session for one in memory.sessions(order="latest", user="ann")] == ["also"]
        assert memory.recall("heron").passages
        assert memory.working("good").to_dict() == {"a": 1, "b": 2}
        if line:  # else it is not said whose they are
            assert memory.scopes() == ["bad", "good"]
            assert memory.session("also").fork("branch").entries()
            assert memory.delete_session("also")
            assert memory.forget(user="ann").sessions == ("branch",)
        assert str(file) in str(memory.forget(matches="nothing of it").remains)
        scanned = memory.scan("default")
        assert any("bad" in one.session for one in scanned.refused) or str(file) in str(scanned.remains)
        with pytest.raises(StoreCorrupt, match=f"line {line + 1}"):
            memory.sweep()


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_damaged_log_of_a_lease_begins_anew(folder: Path, line: int) -> None:
    """Who was at work is no more than that: nobody is kept from anything, and the next holder has a greater fence."""
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


def test_a_damaged_line_that_may_be_lost_is_passed_over(
    store: Store, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts are made again: a line of them that cannot be read takes nothing along that was acknowledged."""
    add(store, "a")
    drive(store.count(KEY, "words", {1: 7}))
    add(store, "b")
    change(folder, b'{"tokens/words"', b'{tokens/words"')

    found = drive(quick(folder).read(KEY, counter="words"))

    assert [(entry.text, entry.tokens) for entry in found] == [("a", None), ("b", None)]
    assert f"{log_of(folder)}, line 3" in caplog.text


def test_a_break_behind_a_line_that_may_be_lost_takes_nothing_along(store: Store, folder: Path) -> None:
    """Where the end of a line of counts is damaged, what was acknowledged behind it is not passed over."""
    add(store, "a")
    drive(store.count(KEY, "words", {1: 7}))
    add(store, "b")
    log = log_of(folder)
    lines = log.read_bytes().splitlines(keepends=True)
    (counts,) = (line for line in lines if b'"fleeting":true' in line)
    log.write_bytes(log.read_bytes().replace(counts, counts[:-1] + b" "))

    with pytest.raises(StoreCorrupt):
        texts(quick(folder))


def test_a_sweep_passes_by_what_is_damaged(store: Store, folder: Path) -> None:
    """Damage in one session is raised after all others were swept: what has expired does not stay for it."""
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
def test_a_damaged_mark_is_told_and_made_anew(folder: Path, damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """When something was written last is read as not known, and nothing is lost: what is written next is found."""
    with Memory.open(f"file://{folder}") as memory:
        memory.session("one").add_user_message("precious")
        (marks,) = folder.glob("*/marks")
        before = marks.read_bytes()
        marks.write_bytes(damaged)

    with Memory.open(f"file://{folder}") as memory:
        memory.session("one").add_user_message("more")
        assert "precious" in [one.text for one in memory.recall("precious").hits]
        assert [one.session for one in memory.sessions(order="latest")] == ["one"]

    assert len(caplog.records) == 1
    assert f"{marks} is damaged" in caplog.text
    assert before <= marks.read_bytes() <= b"%020d" % (int(before) + 3600)


@pytest.mark.parametrize("left", [None, b"", b"?" * 20, bytes(20)])
def test_sessions_are_found_where_the_last_mark_is_lost(folder: Path, left: bytes | None) -> None:
    """Lists by use, searches and sweeps have them before anything is written, whoever has left out or damaged it."""
    with Memory.open(f"file://{folder}") as memory:
        for name in "ab":
            memory.session(name).add_user_message(f"precious {name}")
    (marks,) = folder.glob("*/marks")
    marks.unlink()
    if left is not None:
        marks.write_bytes(left)

    with Memory.open(f"file://{folder}", readonly=True) as memory:
        assert sorted(one.session for one in memory.sessions(order="latest")) == ["a", "b"]
        assert len(memory.recall("precious").hits) == 2
    with Memory.open(f"file://{folder}", clock=lambda: now_us() + 7_200_000_000) as memory:
        assert memory.sweep(untouched_for="1h", dry_run=True) == 2
        memory.session("c").add_user_message("precious, too")
        assert memory.sessions(order="latest")[0].session == "c"
        assert len(memory.recall("precious").hits) == 3


def test_a_log_that_was_written_with_a_damaged_mark_is_read(folder: Path) -> None:
    """Its session is found and listed as others are, however late it says that it was written."""
    with patch.object(Marks, "next", lambda *_: 10**20), Memory.open(f"file://{folder}") as memory:
        memory.session("one").add_user_message("precious")
    with Memory.open(f"file://{folder}") as memory:
        memory.session("two").add_user_message("more")
        assert "precious" in [one.text for one in memory.recall("precious").hits]
        assert sorted(one.session for one in memory.sessions(order="latest")) == ["one", "two"]
