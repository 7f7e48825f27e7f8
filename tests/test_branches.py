"""Branches and the past: forks share and part, rewinds take back and give back, contexts of then come out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import rules
import strategies
from laws import examples
from palimpsest import AsyncMemory, ConfigError, Conflict, EntryNotFound, Memory, Session, SessionNotFound
from palimpsest.errors import BudgetImpossible
from palimpsest.log.entry import Entry, moment
from palimpsest.testing import FakeClock
from sqlitestore import connection
from worlds import STORES, world
from writer import turn

law = settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
kinds = pytest.mark.parametrize("kind", STORES)


def shape(entries: list[Entry]) -> list[tuple[Any, ...]]:
    """What entries say and how they hang together, their places counted anew from 1."""
    places = {entry.seq: i for i, entry in enumerate(entries, 1)} | {0: 0}
    return [
        (
            entry.kind,
            entry.role,
            entry.content,
            places[entry.turn],
            places[entry.group],
            places[entry.answers],
            entry.late,
        )
        for entry in entries
    ]


def uncounted(entries: list[Entry]) -> list[Entry]:
    """The entries without their stored counts, which any context may add."""
    return [replace(entry, tokens=None) for entry in entries]


def given_now(session: Session) -> list[Any] | None:
    """The messages of the session's next context, nothing stored; None where nothing fits."""
    try:
        return session.context(dry_run=True).messages
    except BudgetImpossible:
        return None


# --- laws


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(), more=strategies.logs(most=4), data=st.data())
def test_after_a_rewind_the_log_goes_on_as_if_nothing_had_been(
    kind: str, folder: Path, log: list[Any], more: list[Any], data: st.DataObject
) -> None:
    """What is there and how what follows hangs together is the same as in a log that never went the other way."""
    cut = data.draw(st.integers(0, len(log)), label="operations before the point")
    more = strategies.numbered(more, start=1000)
    with world(kind, folder) as w, world(kind, folder) as straight:
        w.play(log[:cut])
        revision = w.session.stats().revision
        w.play(log[cut:])
        w.session.rewind(revision)
        straight.play(log[:cut])

        assert shape(w.session.entries()) == shape(straight.session.entries())
        w.play(more)
        straight.play(more)

        assert shape(w.session.entries()) == shape(straight.session.entries())
        mine, theirs = w.session.stats(), straight.session.stats()
        assert len(mine.open_calls) == len(theirs.open_calls)
        for figure in ("total_entries", "interactions", "total_tokens", "active_tokens"):
            assert getattr(mine, figure) == getattr(theirs, figure), figure
        assert len(w.session.interactions()) == len(straight.session.interactions())
        assert given_now(w.session) is None or rules.faults(given_now(w.session) or []) == []


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(), data=st.data())
def test_every_time_can_be_gone_back_to_and_forth(kind: str, folder: Path, log: list[Any], data: st.DataObject) -> None:
    """Whatever was rewound or forked in between, each revision shows the log as it was at that revision."""
    with world(kind, folder) as w:
        was: dict[int, list[Any]] = {0: []}
        for operation in log:
            if data.draw(st.integers(0, 3), label="rewind") == 0:
                w.session.rewind(data.draw(st.sampled_from(sorted(was)), label="to"))
            else:
                w.play([operation])
            was[w.session.stats().revision] = uncounted(w.session.entries())

        for revision, entries in was.items():
            if revision:
                assert uncounted(w.session.entries(at=revision)) == entries
            if w.session.stats().revision:
                assert uncounted(w.session.fork(f"at {revision}", at=revision).entries()) == entries
        for revision, entries in was.items():
            w.session.rewind(revision)
            assert uncounted(w.session.entries()) == entries
            assert w.session.stats().total_entries == len(entries)


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(most=20), data=st.data(), budget=st.integers(20, 200))
def test_contexts_of_then_come_out_as_they_were(
    kind: str, folder: Path, log: list[Any], data: st.DataObject, budget: int
) -> None:
    """What was given at a revision is given for it again, after cuts, pins, rewinds, and in a branch."""
    with world(kind, folder, max_tokens=budget) as w:
        was: dict[int, list[Any]] = {}
        for operation in log:
            what = data.draw(st.sampled_from(["add"] * 5 + ["rewind", "pin"]), label="what")
            entries = w.session.entries()
            if what == "rewind" and was:
                w.session.rewind(data.draw(st.sampled_from(sorted(was))))
            elif what == "pin" and entries:
                w.session.pin(data.draw(st.sampled_from([entry.seq for entry in entries])))
            else:
                w.play([operation])
            try:
                ctx = w.session.context(system="be kind")
            except BudgetImpossible:
                continue
            if ctx.epoch is not None:
                was[ctx.revision] = ctx.messages
        branch = w.session.fork() if log else w.session

        for session in (w.session, branch):
            for revision, messages in was.items():
                assert session.context(system="be kind", at=revision).messages == messages


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(), more=strategies.logs(most=5), budget=st.integers(20, 200), data=st.data())
def test_a_branch_is_a_session_like_any_other(
    kind: str, folder: Path, log: list[Any], more: list[Any], budget: int, data: st.DataObject
) -> None:
    """A branch and what it came from go on independently, and each gives valid contexts whose prefix is stable."""
    more = strategies.numbered(more, start=1000)
    with world(kind, folder, max_tokens=budget) as w:
        w.play(log)
        revision = w.session.stats().revision
        if not revision:
            return
        before = w.session.entries()
        branch = w.session.fork(at=data.draw(st.integers(0, revision), label="at"))
        shared = branch.entries()
        w.play(more)
        theirs = uncounted(w.session.entries())
        last: Any = None
        for operation in more:
            strategies.perform(branch, operation, w.clock.now)
            try:
                ctx = branch.context()
            except BudgetImpossible:
                continue
            assert rules.faults(ctx.messages) == []
            if last is not None and last.epoch == ctx.epoch:
                assert rules.is_prefix(rules.packed(last.log_messages), rules.packed(ctx.log_messages))
            last = ctx

        assert [entry.id for entry in before[: len(shared)]] == [entry.id for entry in shared]
        assert uncounted(w.session.entries()) == theirs
        assert branch.entries()[: len(shared)] == [
            entry for entry in branch.entries() if entry.seq <= (shared[-1].seq if shared else 0)
        ]


# --- forks, by example


def test_a_fork_shares_what_was_and_parts_from_there(session: Session, memory: Memory) -> None:
    """A branch has the same entries under the same ids; afterwards each has its own."""
    first, *_ = session.add(turn("1"))
    branch = session.fork("other")
    mine = branch.add_user_message("only here")
    session.add_user_message("only there")

    assert branch.id == "other"
    assert branch.entry(first.id) == session.entry(first.id)
    assert [entry.text for entry in branch.entries()][-1] == "only here"
    assert [entry.text for entry in session.entries()][-1] == "only there"
    with pytest.raises(EntryNotFound):
        session.entry(mine.id)
    assert {info.session for info in memory.sessions()} == {"one", "other"}


def test_a_fork_is_made_at_a_revision_or_behind_an_entry(session: Session) -> None:
    """A number is a revision; an entry, or its id, is the newest that the branch has, even inside one batch."""
    session.add_user_message("a")
    batch = session.add(turn("1"))
    session.add_user_message("b")

    assert len(session.fork(at=1).entries()) == 1
    assert len(session.fork(at=0).entries()) == 0
    assert len(session.fork(at=2).entries()) == 7
    assert session.fork(at=batch[2]).entries() == session.entries()[:4]
    assert session.fork(at=batch[2].id).entries() == session.entries()[:4]
    assert session.fork(at=batch[2]).stats().open_calls == ("1-left", "1-right")


def test_a_branch_from_the_beginning_is_a_session_like_others(memory: Memory, session: Session) -> None:
    """Nothing has happened to it yet, and it is there all the same: it is told of, and branched off again."""
    session.add_user_message("a")

    empty = session.fork("empty", at=0)

    assert empty.describe().session == "empty"
    assert empty.fork("again").entries() == []
    assert empty.fork("once more", at=0).info().forked_from == ("empty", 0)
    with pytest.raises(SessionNotFound):
        memory.session("nobody").fork()
    with pytest.raises(SessionNotFound):
        memory.session("nobody").describe()


def test_a_fork_without_a_name_gets_one(session: Session) -> None:
    """Each has a name of its own that begins with that of its session."""
    session.add_user_message("a")

    names = {session.fork().id for _ in range(5)}

    assert len(names) == 5
    assert all(name.startswith("one~") for name in names)


def test_a_fork_has_the_options_of_its_session(memory: Memory) -> None:
    """Budget, model and view are those of the session that it came from."""
    session = memory.session("one", max_tokens=500, model="gpt-4o", view="small")
    session.add_user_message("a")

    options = session.fork().options

    assert (options.limits.max_tokens, options.model_name, options.view) == (500, "gpt-4o", "small")


def test_a_fork_keeps_cuts_and_continues_the_prefix(memory: Memory) -> None:
    """A branch of a session that was cut gives the same context as the session itself, without a new cut."""
    session = memory.session("one", max_tokens=300)
    for number in range(30):
        session.add(turn(str(number)))
        session.context()

    branch = session.fork()

    assert branch.context().messages == session.context().messages
    assert not branch.context().report.new_cut
    assert [r.kind for r in branch.history() if r.kind == "cut"] == [
        r.kind for r in session.history() if r.kind == "cut"
    ]


def test_what_is_erased_is_gone_from_every_branch(session: Session) -> None:
    """Erasing in a branch destroys what it shares for all; each branch begins an epoch and says why."""
    secret = session.add_user_message("my secret")
    session.add_assistant_message("noted")
    branch = session.fork()
    grandchild = branch.fork()
    before = session.context()

    branch.erase([secret.id])

    for each in (session, branch, grandchild):
        assert each.entry(secret.id).erased
        assert "secret" not in str(each.context().messages)
        assert each.history()[-1].kind == "erase"
        assert each.stats().erased_entries == 1
    after = session.context()
    assert after.epoch != before.epoch
    assert after.report.epoch_reason == "erasure"


def test_clearing_and_deleting_leave_the_branches(session: Session, memory: Memory) -> None:
    """A session that goes takes nothing from those that branched off it."""
    session.add(turn("1"))
    one, two = session.fork("a"), session.fork("b")
    entries = session.entries()

    one.clear()
    memory.delete_session("one")

    assert two.entries() == entries
    assert one.entries() == []
    assert memory.session("one").entries() == []


def test_a_fork_is_refused_where_it_cannot_be(session: Session, memory: Memory) -> None:
    """A name that is taken, a session that is not there, a time that never was: each is said by name."""
    with pytest.raises(SessionNotFound, match="one"):
        session.fork()
    session.add_user_message("a")
    memory.session("taken").add_user_message("b")

    with pytest.raises(Conflict, match="taken"):
        session.fork("taken")
    with pytest.raises(Conflict, match="one"):
        session.fork("one")
    for at in (2, -1, True, 1.5):
        with pytest.raises(ConfigError, match=r"at: .*a revision from 0 to 1, or an entry"):
            session.fork(at=at)  # type: ignore[arg-type]
    with pytest.raises(EntryNotFound):
        session.fork(at="nobody")
    for name in ("a\nb", "", "x" * 257):
        with pytest.raises(ConfigError, match="session"):
            session.fork(name)
    assert [info.session for info in memory.sessions()] == ["one", "taken"]


def test_a_time_before_a_clear_is_gone(session: Session) -> None:
    """What was cleared is destroyed: no fork and no rewind goes back there, and the error says since when one may."""
    session.add_user_message("a")
    session.clear()
    session.add_user_message("b")

    with pytest.raises(ConfigError, match="from 2 on: what was before was cleared"):
        session.rewind(1)
    assert [entry.text for entry in session.fork(at=3).entries()] == ["b"]


# --- rewinds, by example


def test_a_rewind_takes_back_and_loses_nothing(session: Session) -> None:
    """Contexts, entries and figures are those of before; the entries themselves can still be had, and come back."""
    session.add(turn("1"))
    revision = session.stats().revision
    context = session.context().messages
    gone = session.add(turn("2"))

    assert session.rewind(revision) == 6

    assert session.context().messages == context
    assert session.context().report.epoch_reason == "rewind"
    assert len(session.entries()) == 6
    assert len(session.entries(rewound=True)) == 12
    assert session.entry(gone[0].id) == gone[0]
    stats = session.stats()
    assert (stats.total_entries, stats.rewound_entries, stats.interactions) == (6, 6, 1)
    assert session.rewind(revision) == 0
    with pytest.raises(EntryNotFound, match=f"no active entry with the `seq` {gone[0].seq}; `active_entries") as caught:
        session.pin(gone[0].id)
    assert caught.value.entry == gone[0].seq
    session.rewind(revision + 1)
    assert len(session.entries()) == 12


def test_a_rewind_goes_behind_an_entry(session: Session) -> None:
    """An entry as the point takes back the rest of its own batch, too; its open calls can be answered again."""
    batch = session.add(turn("1"))

    assert session.rewind(batch[2]) == 3

    assert session.stats().open_calls == ("1-left", "1-right")
    assert session.context().pending == ("1-left", "1-right")
    session.add_tool_result(None, "again", call_id="1-left")
    session.add_tool_result(None, "again", call_id="1-right")
    assert [m["role"] for m in session.context().messages] == ["user", "assistant", "tool", "tool"]


def test_erasing_what_was_rewound_keeps_the_figures(session: Session) -> None:
    """An entry that was taken back and then erased counts once, as erased."""
    session.add_user_message("a")
    gone = session.add_user_message("b")
    session.rewind(1)

    session.erase([gone.id])

    stats = session.stats()
    assert (stats.total_entries, stats.erased_entries, stats.rewound_entries) == (1, 1, 0)


def test_an_export_holds_what_was_rewound(session: Session, memory: Memory) -> None:
    """Exported and imported, a session with rewinds is as it was, and goes on as it would have."""
    session.add(turn("1"))
    session.add(turn("2")[:3])
    session.rewind(1)
    session.add(turn("3")[:3])

    memory.import_session(session.export(), session_id="copy")
    copy = memory.session("copy", counter=session.options.counter)

    assert copy.entries(rewound=True) == session.entries(rewound=True)
    assert copy.entries() == session.entries()
    assert copy.stats().open_calls == session.stats().open_calls
    assert copy.entries(at=2) == session.entries(at=2)
    exported = copy.export() | {"exported_at": "", "session_id": ""}
    assert exported == session.export() | {"exported_at": "", "session_id": ""}


def test_an_event_tells_of_forks_and_rewinds(session: Session, memory: Memory) -> None:
    """`session:forked` and `session:rewound` carry the branch, the revision and how many entries."""
    told: list[Any] = []
    memory.on("session:forked", lambda id, facts: told.append((id, facts)))
    memory.on("session:rewound", lambda id, facts: told.append((id, facts)))
    session.add(turn("1"))
    session.add_user_message("b")

    session.fork("branch", at=1)
    session.rewind(1)

    assert told == [
        ("one", {"branch": "branch", "revision": 1, "entries": 6}),
        ("one", {"revision": 1, "entries": 1}),
    ]


def test_the_asynchronous_session_has_them_too() -> None:
    """`AsyncSession.fork` gives an asynchronous session; rewinding it works alike."""
    import asyncio

    async def main() -> None:
        async with AsyncMemory.open("memory://") as memory:
            session = memory.session("one")
            await session.add(turn("1"))
            branch = await session.fork()
            await branch.rewind(0)
            assert await branch.entries() == []
            assert len(await session.entries()) == 6
            assert [record.kind for record in await branch.history()] == ["add", "rewind"]

    asyncio.run(main())


def test_a_fork_costs_the_same_however_long_the_log_is(tmp_path: Path) -> None:
    """In SQLite a branch is a few rows and no copy of any entry, even a branch of a branch.

    Those are two places with their heads, which are made and set, one for its whole tree, and who reads which log.
    """
    rows = {}
    for size in (10, 2_000):
        with Memory.open(tmp_path / f"{size}.db") as memory:
            session = memory.session("s")
            session.add([{"role": "user", "content": "x" * 100}] * size)
            database = connection(memory)
            before, pages = database.total_changes, database.execute("PRAGMA page_count").fetchone()[0]
            branch = session.fork().fork()
            rows[size] = database.total_changes - before
            assert len(branch.entries()) == size
            assert database.execute("PRAGMA page_count").fetchone()[0] - pages <= 2

    assert rows[10] == rows[2_000] <= 20


@pytest.mark.parametrize("where", ["memory://", "sqlite:///{}/log.db", "file://{}/logs"])
def test_a_session_that_comes_after_one_of_its_name_is_its_own(where: str, tmp_path: Path) -> None:
    """Branches that are left of a session that was deleted take nothing from the next of its name, nor hide it."""
    clock = FakeClock()
    with Memory.open(where.format(tmp_path), clock=clock) as memory:
        memory.session("one").add_user_message("before")
        memory.session("one").fork("left")
        memory.delete_session("one")
        session = memory.session("one")
        session.add_user_message("stays")
        session.add_user_message("soon gone", expires_at=moment(clock.now + 1_000_000))

        clock.advance(2)
        assert memory.sweep() == 1
        session.fork("next").erase([1])
        assert session.entry(1).erased
        session.add_user_message("stays, too")
        memory.delete_session("next")

        assert [entry.text for entry in session.entries()] == ["", "", "stays, too"]
        assert [entry.text for entry in memory.session("left").entries()] == ["before"]
        assert session.verify().ok
