"""What stores, the past, branches and exports make of compaction records: no text outlives its source."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from log_rules.compactions import compact, covering, sound, state_of, summaries
from palimpsest import ImportFailed, Memory, Session, StoreUnavailable
from palimpsest.log.change import Change
from palimpsest.log.entry import moment
from palimpsest.log.head import Attempts, Head, SessionKey
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.engine import reading
from palimpsest.testing import FakeClock
from processes import remains
from sqlitestore import of
from writer import quarters, turn

MARKER = "xyzzy"
WRITE = os.write


@pytest.fixture(params=["sqlite", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """The store of a test: an SQLite file, or the address of a folder of files."""
    return tmp_path / "log.db" if request.param == "sqlite" else f"file://{tmp_path}/logs"


@pytest.fixture
def stored(path: Path | str, clock: FakeClock) -> Iterator[Session]:
    """An empty session in that store."""
    with Memory.open(path, clock=clock) as memory:
        yield memory.session("one", counter=quarters)


def store_of(session: Session) -> Store:
    return session._core._scope.memory.store


def key_of(session: Session) -> SessionKey:
    return session._core._scope.key


def summarised(session: Session, text: str, *cover: Span, fold: tuple[Summary, ...] = ()) -> Summary:
    """Cover entries of the session by a summary with this text."""
    store, key = store_of(session), key_of(session)
    return drive(compact(store, key, covering(drive(state_of(store, key)), text, *cover, fold=fold)))


def recorded_texts(session: Session) -> list[str]:
    """Return the texts of the summaries that the session's records hold."""
    return [made.text for made in drive(summaries(store_of(session), key_of(session))).values()]


def state(session: Session) -> Compaction:
    return drive(state_of(store_of(session), key_of(session)))


def is_sound(session: Session) -> bool:
    """Whether the session and its records verify at every revision."""
    return drive(sound(store_of(session), key_of(session))) and session.verify().problems == ()


# --- no byte is left


def test_an_erasure_leaves_no_byte_of_summaries_of_the_entry(stored: Session, path: Path | str) -> None:
    """Every version of a summary of an erased entry is gone from the files, branches included; other summaries stay."""
    for number in range(4):
        stored.add(turn(str(number)))
    first = summarised(stored, f"{MARKER} first", (1, 6))
    branch = stored.fork("branch")
    branch.add_user_message("mine")
    summarised(branch, f"{MARKER} of the branch", (7, 12))
    summarised(stored, f"{MARKER} second " * 3_000, (7, 12), fold=(first,))
    summarised(stored, "plugh stays", (13, 18))
    summarised(branch, "plugh stays in the branch", (13, 18))
    assert remains(path).count(MARKER.encode()) > 3_000

    stored.erase([1, 7])

    left = remains(path)
    assert MARKER.encode() not in left
    assert left.count(b"plugh stays") >= 2
    assert recorded_texts(stored) == ["", "", "plugh stays"]
    assert (state(stored).covered, state(stored).evicted) == (((13, 18),), ((2, 6), (8, 12)))
    assert recorded_texts(branch) == ["", "", "plugh stays in the branch"]
    for session in (stored, branch):
        assert is_sound(session)
        assert MARKER not in str(session.context().messages)
        assert "plugh stays" in str(session.context().messages)


def test_an_erasure_leaves_no_byte_of_a_rewound_summary(stored: Session, path: Path | str) -> None:
    """A summary that was rewound loses its text when a covered entry is erased, although no head refers to it."""
    stored.add(turn("1"))
    revision = stored.stats().revision
    summarised(stored, MARKER, (1, 6))
    stored.rewind(revision)
    assert state(stored) == Compaction()

    stored.erase([1])

    assert MARKER.encode() not in remains(path)
    assert is_sound(stored)


def test_a_sweep_leaves_no_byte_of_summaries_of_expired_entries(
    stored: Session, path: Path | str, clock: FakeClock
) -> None:
    """A sweep removes the text of summaries of expired entries, in every branch."""
    stored.add_user_message("soon gone", expires_at=moment(clock.now + 5_000_000))
    stored.add(turn("1"))
    summarised(stored, MARKER, (1, 2))
    branch = stored.fork("branch")
    summarised(branch, f"{MARKER} too", (3, 7))
    clock.advance(10)

    assert drive(store_of(stored).sweep(key_of(stored).tenant, clock.now)) == 1
    assert drive(store_of(stored).scrub()).remains == ()

    assert recorded_texts(stored) == [""]
    assert recorded_texts(branch) == ["", f"{MARKER} too"]
    assert remains(path).count(MARKER.encode()) == 1
    assert is_sound(stored)
    assert is_sound(branch)


# --- failures


def test_a_failed_erasure_changes_nothing(stored: Session, path: Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a write fails in the middle of an erasure, entries, summaries and head are as before, and it can be
    repeated."""
    stored.add(turn("1"))
    made = summarised(stored, MARKER, (1, 6))
    before = stored.export()

    with monkeypatch.context() as patch, failing_records(path):
        patch.setattr(os, "write", torn)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            stored.erase([1])

    assert stored.export() == before
    assert drive(summaries(store_of(stored), key_of(stored))) == {made.revision: made}
    stored.erase([1])
    assert MARKER.encode() not in remains(path)
    assert is_sound(stored)


@contextmanager
def failing_records(path: Path | str) -> Iterator[None]:
    """Make SQLite refuse to write records, so that an erasure fails after the entry and before its summary."""
    if isinstance(path, str):
        yield
        return
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            f"CREATE TRIGGER failing BEFORE INSERT ON other WHEN NEW.{of('record')} "
            "BEGIN SELECT RAISE(ABORT, 'Input/output error'); END"
        )
        yield
        db.execute("DROP TRIGGER failing")


def torn(fd: int, data: bytes) -> int:
    """Write half of the data, then fail."""
    WRITE(fd, data[: len(data) // 2])
    raise OSError(5, "Input/output error", "a log")


def test_a_failed_erasure_in_files_changes_no_branch(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the line of an erasure cannot be written, every branch is as before, and it can be repeated.

    If the log cannot be rewritten after that, the erasure says what may remain, and the next one removes it.
    """
    path = f"file://{tmp_path}/logs"
    with Memory.open(path, clock=clock) as memory:
        session = memory.session("one", counter=quarters)
        session.add(turn("1"))
        session.add(turn("2"))
        summarised(session, MARKER, (1, 6))
        family = (session, *[session.fork(name) for name in ("second", "third")])

        def failing(_: str, target: str) -> None:
            raise OSError(5, "Input/output error", target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            with pytest.raises(StoreUnavailable):
                session.erase([1])
        assert [recorded_texts(each) for each in family] == [[MARKER]] * 3
        assert all(map(is_sound, family))

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            done = session.erase([1])
        assert "Input/output error" in done.remains[0]
        assert [recorded_texts(each) for each in family] == [[""]] * 3
        assert all(map(is_sound, family))

        assert session.erase([7]).remains == ()
        assert all(map(is_sound, family))
        assert MARKER.encode() not in remains(path)


# --- what it costs


def test_an_erasure_reads_only_records_of_compactions(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure decodes only the records of compactions, however many cuts and pins a session has."""
    with Memory.open(tmp_path / "log.db", clock=clock) as memory:
        session = memory.session("one", max_tokens=200, counter=quarters)
        for number in range(30):
            session.add(turn(str(number)))
            session.context()
        assert any(record.kind == "cut" for record in session.history())
        read: list[Any] = []
        real = reading.record_of
        monkeypatch.setattr(reading, "record_of", lambda row: read.append(row) or real(row))

        erase = Change(kind="erase", reason="r", seqs=(1,))
        drive(memory.store.commit(key_of(session), erase))
        assert read == []
        summarised(session, "short", (7, 12))
        read.clear()
        drive(memory.store.commit(key_of(session), replace(erase, seqs=(13,))))

        assert len(read) == 1


def test_records_of_what_is_not_erased_stay_as_they_are(clock: FakeClock, tmp_path: Path) -> None:
    """In the file store, an erasure copies the summaries of other entries byte for byte."""
    with Memory.open(f"file://{tmp_path}/logs", clock=clock) as memory:
        session = memory.session("one", counter=quarters)
        session.add(turn("1"))
        summarised(session, "kept", (1, 6))
        session.add(turn("2"))
        (log,) = tmp_path.rglob("*.jsonl")
        (kept,) = re.findall(rb'"compaction":\{"summary":\{[^{}]*"text":"kept"[^{}]*\}', log.read_bytes())

        session.erase([7])

        assert log.read_bytes().count(kept) == 1
        assert recorded_texts(session) == ["kept"]


# --- the past


def test_a_rewind_undoes_a_compaction_and_another_redoes_it(session: Session) -> None:
    """A rewind undoes a compaction, with or without later entries, and a rewind forward restores it."""
    session.add(turn("1"))
    plain = session.stats().revision
    summarised(session, "short", (1, 6))
    compacted, then = session.stats().revision, state(session)
    session.add(turn("2"))

    session.rewind(plain)
    assert (state(session), session.verify().active) == (Compaction(), 6)
    session.rewind(compacted)
    assert state(session) == then
    assert session.verify().covered == 6
    session.rewind(plain)
    assert (state(session), session.verify().active) == (Compaction(), 6)
    assert is_sound(session)


def test_a_branch_has_the_state_of_its_time(session: Session) -> None:
    """A branch made between two compactions has the first one and gives the context of its revision."""
    session.add(turn("1"))
    first = summarised(session, "first", (1, 6))
    session.add(turn("2"))
    context = session.context()
    summarised(session, "second", (7, 12), fold=(first,))
    attempts = Attempts(cursors={"buffer": 13, "old": 3}, failures=2)
    drive(store_of(session).commit(key_of(session), Change(kind="attempt", reason="r", attempts=attempts)))

    branch = session.fork("branch", at=context.revision)
    early = session.fork("early", at=1)

    assert branch.context().messages == context.messages
    assert not branch.context().report.new_cut
    assert (state(branch).current, recorded_texts(branch)) == ((first.revision,), ["first"])
    assert (state(early), recorded_texts(early)) == (Compaction(), [])
    heads = [drive(store_of(one).head(key_of(one))) or Head() for one in (branch, early)]
    assert [head.attempts and head.attempts.failures for head in heads] == [2, 2]
    assert [head.attempts and head.attempts.cursors for head in heads] == [
        {"buffer": 13, "old": 3},
        {"buffer": 7, "old": 3},
    ]
    for one in (session, branch, early):
        assert is_sound(one)


@pytest.mark.parametrize("how", ["fork", "rewind"])
def test_a_past_revision_has_no_summary_withdrawn_since(session: Session, how: str) -> None:
    """Going back to a summary that was withdrawn since shows no summary; its remaining entries are archived."""
    session.add(turn("1"))
    summarised(session, MARKER, (1, 5))
    then = session.context()
    session.add(turn("2"))
    session.erase([2])
    assert session.context().report.epoch_reason == "compaction"

    there = session.fork("branch", at=then.revision) if how == "fork" else session
    if how == "rewind":
        session.rewind(then.revision)

    assert (state(there).current, state(there).covered, state(there).evicted) == ((), (), ((1, 1), (3, 5)))
    assert is_sound(there)
    shown = there.context()
    assert [message["content"] for message in shown.messages] == ["answer 1"]
    assert MARKER not in str(shown.messages)


def test_past_contexts_show_the_summaries_of_their_time(session: Session) -> None:
    """Past contexts show the summaries of their revision, apart from those of entries erased since."""
    given = {}
    for number in range(3):
        session.add(turn(str(number)))
        context = session.context()
        given[context.revision] = context.messages
        summarised(session, f"summary {number}", (6 * number + 1, 6 * number + 6))
        context = session.context()
        given[context.revision] = context.messages

    assert sum("summary 0" in str(messages) for messages in given.values()) == 5
    for revision, messages in given.items():
        assert session.context(at=revision).messages == messages
        assert session.context(at=revision).epoch is None
    session.erase([1])
    for revision in given:
        assert "summary 0" not in str(session.context(at=revision).messages)


# --- exports


def without_time(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "exported_at"}


def compacted(memory: Memory) -> Session:
    """Return a session with superseded, current, withdrawn and rewound summaries."""
    session = memory.session("one", counter=quarters)
    for number in range(4):
        session.add(turn(str(number)))
    first = summarised(session, "first", (1, 6))
    summarised(session, 'second "\\" \ud800', (7, 12), fold=(first,))
    session.context()
    summarised(session, "third", (13, 18))
    revision = session.stats().revision
    summarised(session, "taken back", (19, 24))
    session.rewind(revision)
    session.erase([13])
    attempts = Attempts(cursors={"buffer": 9}, paused_until=5)
    drive(store_of(session).commit(key_of(session), Change(kind="attempt", reason="r", attempts=attempts)))
    return session


def test_an_export_with_compactions_comes_back_equal(memory: Memory, clock: FakeClock, tmp_path: Path) -> None:
    """An export that is imported elsewhere is exported the same, apart from the time, with the same contexts."""
    session = compacted(memory)
    data = json.loads(json.dumps(session.export()))
    assert [(one["text"], one["covers"]) for one in data["summaries"]] == [
        ("first", [[1, 6]]),
        ('second "\\" \ud800', [[1, 12]]),
        ("", [[13, 18]]),
        ("taken back", [[19, 24]]),
    ]
    assert data["head"]["compaction"] == data["records"][-1]["revision"]
    session.export_to(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_bytes()) == data
    clock.advance(60)

    with Memory.open("memory://", clock=clock) as other:
        other.import_session(data)
        copy = other.session("one", counter=quarters)

        assert without_time(copy.export()) == without_time(data)
        assert copy.context().messages == session.context().messages
        assert copy.stats() == session.stats()
        assert is_sound(copy)
        other.import_session(data, on_conflict="replace")
        assert (recorded_texts(copy), state(copy)) == (recorded_texts(session), state(session))
        assert is_sound(copy)


def test_a_merge_takes_the_entries_and_leaves_the_compactions(memory: Memory) -> None:
    """A merge into a session with summaries adds the missing entries without their compactions."""
    session = compacted(memory)
    data = session.export()
    session.add(turn("more"))
    before = state(session)

    memory.import_session(data, on_conflict="merge")
    memory.import_session(data, session_id="other", on_conflict="merge")

    assert (state(session), len(session.entries())) == (before, 30)
    assert recorded_texts(memory.session("other")) == recorded_texts(session)
    assert is_sound(session)


def test_an_export_without_compaction_fields_is_imported(memory: Memory) -> None:
    """An export without `compaction`, `attempts` and `summaries` is imported."""
    session = memory.session("one", counter=quarters)
    session.add(turn("1"))
    data = session.export()
    for name in ("compaction", "attempts"):
        del data["head"][name]
    del data["summaries"]

    memory.import_session(data, session_id="two")

    assert memory.session("two", counter=quarters).entries() == session.entries()
    assert is_sound(memory.session("two"))


def doctored(data: dict[str, Any], place: str, value: Any) -> str:
    """Set the value at a place such as `records[2].compaction.covered`."""
    *path, last = place.replace("[", ".[").split(".")
    target: Any = data
    for step in path:
        target = target[int(step[1:-1])] if step.startswith("[") else target[step]
    target[int(last[1:-1]) if last.startswith("[") else last] = value
    return place


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("place", "value", "where", "says"),
    [
        ("head.compaction", 3, "head.compaction", "revision 3 has no record of a compaction"),
        ("head.compaction", "x", "head.compaction", "cannot be read"),
        ("head.attempts", {"failures": "x"}, "head.attempts", "cannot be read"),
        ("records[0].revision", 99, "records[1].revision", "does not come after"),
        ("records[0].compaction.covered", [[1, 25]], "records[0].compaction.covered", "1 to 25 is no range"),
        ("records[0].compaction.evicted", [[0, 1]], "records[0].compaction.evicted", "0 to 1 is no range"),
        ("records[0].compaction.evicted", [[9, 8]], "records[0].compaction.evicted", "9 to 8 is no range"),
        ("records[0].compaction.evicted", [[9, 9], [9, 10]], "records[0].compaction.evicted", "9 to 10 is no range"),
        ("records[0].compaction.summary.covers", [[1, 99]], "records[0].compaction.summary.covers", "no range"),
        ("records[0].compaction.summary.revision", 1, "records[0].compaction.summary.revision", "1 is no compaction"),
        (
            "records[0].compaction.covered",
            [[1, 5]],
            "records[0].compaction.current",
            "do not cover the entries",
        ),
        (
            "records[0].compaction.current",
            [],
            "records[0].compaction.current",
            "do not cover the entries",
        ),
        ("records[0].compaction.current", [1], "records[0].compaction.current", "1 is no compaction"),
        ("records[0].compaction.current", [6], "records[0].compaction.current", "6 is no compaction"),
        ("records[1].compaction.current", [5, 6], "records[1].compaction.current", "cover the same entries"),
        ("records[0].compaction.summary.withdrawn", True, "records[0].compaction.current", "or it was withdrawn"),
        ("records[2].cut.compaction", 2, "records[2].cut.compaction", "revision 2 has no record of a compaction"),
        ("records[2].cut.summaries", [[2, -1, 0]], "records[2].cut.summaries[0]", "2 is no compaction that made"),
        ("head.views.main.summaries", [[7, -1, 0]], "head.views.main.summaries[0]", "7 is no compaction that made"),
    ],
)
def test_an_import_refuses_inconsistent_compactions(
    memory: Memory, place: str, value: Any, where: str, says: str
) -> None:
    """A reference that leads nowhere is refused by its place, and nothing is imported."""
    data = json.loads(json.dumps(compacted(memory).export()))
    assert [record["revision"] for record in data["records"][:3]] == [5, 6, 7]
    doctored(data, place, value)

    with pytest.raises(ImportFailed, match=says) as caught:
        memory.import_session(data, session_id="two")

    assert caught.value.where == f"data.{where}"
    assert [one.session for one in memory.sessions()] == ["one"]


def test_spared_summaries_survive_an_export(memory: Memory) -> None:
    """A summary that was spared while its entries were destroyed is exported and imported, and verifies."""
    session = memory.session("one", counter=quarters)
    session.add(turn("1"))
    session.add(turn("2"))
    summarised(session, "stays", (1, 6))
    seqs = tuple(range(1, 7))
    drive(store_of(session).commit(key_of(session), Change(kind="erase", reason="r", seqs=seqs, spare=True)))

    memory.import_session(session.export(), session_id="copy")

    copy = memory.session("copy", counter=quarters)
    assert recorded_texts(copy) == ["stays"]
    assert "stays" in str(copy.context().messages)
    assert replace(state(copy), summary=None).covered == ()
    assert copy.verify().problems == ()
