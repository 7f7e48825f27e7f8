"""Branches and the past: forks share entries and then part, rewinds can be undone, past contexts can be rebuilt."""

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
from worlds import STORES, open_world
from writer import turn

law = settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
kinds = pytest.mark.parametrize("kind", STORES)


def shape(entries: list[Entry]) -> list[tuple[Any, ...]]:
    """Return what entries say and how they are linked, with places renumbered from 1."""
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
    """Return the entries without their stored counts, which any context may add."""
    return [replace(entry, tokens=None) for entry in entries]


def given_now(session: Session) -> list[Any] | None:
    """Return the messages of the session's next context without storing anything, or None if nothing fits."""
    try:
        return session.context(dry_run=True).messages
    except BudgetImpossible:
        return None


# --- laws


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(), more=strategies.logs(most=4), data=st.data())
def test_a_log_continues_after_a_rewind_as_without_the_rewound_entries(
    kind: str, folder: Path, log: list[Any], more: list[Any], data: st.DataObject
) -> None:
    """After a rewind, entries, their links and figures equal those of a log without the rewound entries."""
    cut = data.draw(st.integers(0, len(log)), label="operations before the point")
    more = strategies.numbered(more, start=1000)
    with open_world(kind, folder) as world, open_world(kind, folder) as straight:
        world.play(log[:cut])
        revision = world.session.stats().revision
        world.play(log[cut:])
        world.session.rewind(revision)
        straight.play(log[:cut])

        assert shape(world.session.entries()) == shape(straight.session.entries())
        world.play(more)
        straight.play(more)

        assert shape(world.session.entries()) == shape(straight.session.entries())
        mine, theirs = world.session.stats(), straight.session.stats()
        assert len(mine.open_calls) == len(theirs.open_calls)
        for figure in ("total_entries", "interactions", "total_tokens", "active_tokens"):
            assert getattr(mine, figure) == getattr(theirs, figure), figure
        assert len(world.session.interactions()) == len(straight.session.interactions())
        assert given_now(world.session) is None or rules.faults(given_now(world.session) or []) == []


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(), data=st.data())
def test_a_session_can_be_rewound_to_every_revision(
    kind: str, folder: Path, log: list[Any], data: st.DataObject
) -> None:
    """Each revision shows the log as it was at that revision, whatever was rewound or forked in between."""
    with open_world(kind, folder) as world:
        was: dict[int, list[Any]] = {0: []}
        for operation in log:
            if data.draw(st.integers(0, 3), label="rewind") == 0:
                world.session.rewind(data.draw(st.sampled_from(sorted(was)), label="to"))
            else:
                world.play([operation])
            was[world.session.stats().revision] = uncounted(world.session.entries())

        for revision, entries in was.items():
            if revision:
                assert uncounted(world.session.entries(at=revision)) == entries
            if world.session.stats().revision:
                assert uncounted(world.session.fork(f"at {revision}", at=revision).entries()) == entries
        for revision, entries in was.items():
            world.session.rewind(revision)
            assert uncounted(world.session.entries()) == entries
            assert world.session.stats().total_entries == len(entries)


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(most=20), data=st.data(), budget=st.integers(20, 200))
def test_the_context_of_every_revision_can_be_rebuilt(
    kind: str, folder: Path, log: list[Any], data: st.DataObject, budget: int
) -> None:
    """`context(at=revision)` gives the context of that revision again, after cuts, pins, rewinds, and in a branch."""
    with open_world(kind, folder, max_tokens=budget) as world:
        was: dict[int, list[Any]] = {}
        for operation in log:
            what = data.draw(st.sampled_from(["add"] * 5 + ["rewind", "pin"]), label="what")
            entries = world.session.entries()
            if what == "rewind" and was:
                world.session.rewind(data.draw(st.sampled_from(sorted(was))))
            elif what == "pin" and entries:
                world.session.pin(data.draw(st.sampled_from([entry.seq for entry in entries])))
            else:
                world.play([operation])
            try:
                ctx = world.session.context(system="be kind")
            except BudgetImpossible:
                continue
            if ctx.epoch is not None:
                was[ctx.revision] = ctx.messages
        branch = world.session.fork() if log else world.session

        for session in (world.session, branch):
            for revision, messages in was.items():
                assert session.context(system="be kind", at=revision).messages == messages


@pytest.mark.sampled
@kinds
@law
@given(log=strategies.logs(), more=strategies.logs(most=5), budget=st.integers(20, 200), data=st.data())
def test_a_branch_is_a_session_like_any_other(
    kind: str, folder: Path, log: list[Any], more: list[Any], budget: int, data: st.DataObject
) -> None:
    """A branch and its origin go on independently, and each gives valid contexts with a stable prefix."""
    more = strategies.numbered(more, start=1000)
    with open_world(kind, folder, max_tokens=budget) as world:
        world.play(log)
        revision = world.session.stats().revision
        if not revision:
            return
        before = world.session.entries()
        branch = world.session.fork(at=data.draw(st.integers(0, revision), label="at"))
        shared = branch.entries()
        world.play(more)
        theirs = uncounted(world.session.entries())
        last: Any = None
        for operation in more:
            strategies.perform(branch, operation, world.clock.now)
            try:
                ctx = branch.context()
            except BudgetImpossible:
                continue
            assert rules.faults(ctx.messages) == []
            if last is not None and last.epoch == ctx.epoch:
                assert rules.is_prefix(rules.packed(last.log_messages), rules.packed(ctx.log_messages))
            last = ctx

        assert [entry.id for entry in before[: len(shared)]] == [entry.id for entry in shared]
        assert uncounted(world.session.entries()) == theirs
        assert branch.entries()[: len(shared)] == [
            entry for entry in branch.entries() if entry.seq <= (shared[-1].seq if shared else 0)
        ]


# --- forks, by example


def test_a_fork_shares_earlier_entries_and_has_later_ones_alone(session: Session, memory: Memory) -> None:
    """A branch has the earlier entries under the same ids; later entries belong to one of the two alone."""
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
    """`at` is a revision, or an entry or its id: the newest entry of the branch, even inside a batch."""
    session.add_user_message("a")
    batch = session.add(turn("1"))
    session.add_user_message("b")

    assert len(session.fork(at=1).entries()) == 1
    assert len(session.fork(at=0).entries()) == 0
    assert len(session.fork(at=2).entries()) == 7
    assert session.fork(at=batch[2]).entries() == session.entries()[:4]
    assert session.fork(at=batch[2].id).entries() == session.entries()[:4]
    assert session.fork(at=batch[2]).stats().open_calls == ("1-left", "1-right")


def test_a_fork_at_the_beginning_is_an_empty_session(memory: Memory, session: Session) -> None:
    """A branch made at revision 0 is empty but exists: it can be described and forked again."""
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
    """A fork without a name gets a unique name that begins with that of its session."""
    session.add_user_message("a")

    names = {session.fork().id for _ in range(5)}

    assert len(names) == 5
    assert all(name.startswith("one~") for name in names)


def test_a_fork_has_the_options_of_its_session(memory: Memory) -> None:
    """A fork has the budget, model and view of its session."""
    session = memory.session("one", max_tokens=500, model="gpt-4o", view="small")
    session.add_user_message("a")

    options = session.fork().options

    assert (options.limits.max_tokens, options.model_name, options.view) == (500, "gpt-4o", "small")


def test_a_fork_keeps_cuts_and_continues_the_prefix(memory: Memory) -> None:
    """A branch of a session that was cut gives the same context as the session, without a new cut."""
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


def test_an_erasure_reaches_every_branch(session: Session) -> None:
    """Erasing a shared entry in a branch destroys it for all; each branch begins a new epoch with the reason."""
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
    """Clearing or deleting a session takes nothing from its branches."""
    session.add(turn("1"))
    one, two = session.fork("a"), session.fork("b")
    entries = session.entries()

    one.clear()
    memory.delete_session("one")

    assert two.entries() == entries
    assert one.entries() == []
    assert memory.session("one").entries() == []


def test_an_impossible_fork_is_refused(session: Session, memory: Memory) -> None:
    """A fork from an unknown session or time, or to a name that is taken, is refused; the error names the cause."""
    with pytest.raises(SessionNotFound, match="one"):
        session.fork()
    session.add_user_message("a")
    memory.session("taken").add_user_message("b")

    with pytest.raises(Conflict, match="taken"):
        session.fork("taken")
    with pytest.raises(Conflict, match="one"):
        session.fork("one")
    for at in (2, -1, True, 1.5):
        with pytest.raises(ConfigError, match=r"at: .*a revision from 0 to 1, or an Entry"):
            session.fork(at=at)  # type: ignore[arg-type]
    with pytest.raises(EntryNotFound):
        session.fork(at="nobody")
    for name in ("a\nb", "", "x" * 257):
        with pytest.raises(ConfigError, match="session"):
            session.fork(name)
    assert [info.session for info in memory.sessions()] == ["one", "taken"]


def test_no_fork_or_rewind_goes_back_behind_a_clear(session: Session) -> None:
    """No fork and no rewind goes back behind a clear; the error names the earliest revision."""
    session.add_user_message("a")
    session.clear()
    session.add_user_message("b")

    with pytest.raises(ConfigError, match="from 2 on: everything before it was cleared"):
        session.rewind(1)
    assert [entry.text for entry in session.fork(at=3).entries()] == ["b"]


# --- rewinds, by example


def test_a_rewind_hides_entries_and_loses_nothing(session: Session) -> None:
    """After a rewind, contexts, entries and figures are as before; the hidden entries can be read and come back."""
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
    """Rewinding to an entry hides the rest of its batch, too; its calls are open again."""
    batch = session.add(turn("1"))

    assert session.rewind(batch[2]) == 3

    assert session.stats().open_calls == ("1-left", "1-right")
    assert session.context().pending == ("1-left", "1-right")
    session.add_tool_result(None, "again", call_id="1-left")
    session.add_tool_result(None, "again", call_id="1-right")
    assert [m["role"] for m in session.context().messages] == ["user", "assistant", "tool", "tool"]


def test_a_rewound_entry_that_is_erased_counts_once(session: Session) -> None:
    """An entry that was rewound and then erased counts once, as erased."""
    session.add_user_message("a")
    gone = session.add_user_message("b")
    session.rewind(1)

    session.erase([gone.id])

    stats = session.stats()
    assert (stats.total_entries, stats.erased_entries, stats.rewound_entries) == (1, 1, 0)


def test_an_export_holds_rewound_entries(session: Session, memory: Memory) -> None:
    """A session with rewinds is the same after export and import, rewound entries included."""
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
    """`session:forked` and `session:rewound` carry the branch, the revision and the number of entries."""
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


def test_an_asynchronous_session_forks_and_rewinds() -> None:
    """`AsyncSession.fork` returns an asynchronous session, which can be rewound."""
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
    """In SQLite a fork writes a few rows and copies no entry, even for a branch of a branch.

    The rows are two places with their heads, the tree of branches, and which session reads which log.
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
def test_a_session_recreated_after_deletion_is_independent(where: str, tmp_path: Path) -> None:
    """Branches of a deleted session neither take anything from nor hide a new session of the same name."""
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
