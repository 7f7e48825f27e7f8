"""What a context reads of its log: rows and calls of the backend, which no machine makes more or fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from backend_reads import watched
from palimpsest import Memory, Session
from palimpsest.compaction import Plan, Snapshot
from palimpsest.compaction.style import Style
from palimpsest.compaction.triggers import Triggers
from palimpsest.context.reading import GAP
from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.sessions.remembered import AHEAD, SHORT
from sqlitestore import connection, scans, traced
from writer import quarters

BUDGETS = [8_000, 64_000]
CHUNK = 256
"""Entries that are read at once."""

GIVEN = {"by": "somebody"}
"""What an entry holds that its giver could change: such a one is not remembered as it was given, but read."""


def turn(number: int, size: int = 400) -> list[dict[str, Any]]:
    """A question, a call, a result that is worth a note when it is old, and an answer."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"what of {number}? " + "so " * (size // 8)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"found {number} " + "and " * (3 * size)},
        {"role": "assistant", "content": f"{number} it is. " + "so " * (size // 8)},
    ]


def grown(memory: Memory, budget: int) -> Session:
    """A session that has been cut, and whose window is about to be full again."""
    session = memory.session("s", max_tokens=budget, counter=quarters)
    number, step, tokens = 0, budget // 4_000, 0
    while session.context().epoch == 0 or tokens < 0.8 * budget:
        session.add([message for n in range(number, number + step) for message in turn(n)])
        number += step
        tokens = session.context().tokens
    return session


@pytest.fixture(params=["memory", "sqlite", "file"])
def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """An empty store of each embedded kind, in a memory that remembers no context."""
    where = {"memory": "memory://", "file": f"file://{tmp_path}/logs"}.get(request.param, tmp_path / "log.db")
    with Memory.open(where, view_bytes=0) as memory:
        yield memory


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_window_is_read_once(forgetful: Memory, budget: int) -> None:
    """However large it is, and though old results in it would be too much if they were whole."""
    session = grown(forgetful, budget)

    with watched(forgetful) as reads:
        report = session.context().report

    there = report.last_seq - report.first_seq + 1
    assert report.masked
    assert there > budget / 200
    assert reads.rows == there
    assert reads.looks == max(-(-there // CHUNK), 1)


class Evicts:
    """A strategy that evicts these spans."""

    name, summarizes, erases, style = "evicts", False, False, Style()
    triggers = Triggers(interaction_threshold_qty=2)

    def __init__(self, where: Sequence[Span]) -> None:
        self._where = tuple(where)

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(evict=self._where)


@pytest.mark.sampled
@pytest.mark.parametrize("gap", [1, GAP, GAP + 1])
def test_small_gaps_are_read_over(forgetful: Memory, gap: int) -> None:
    """Of a log of which much was evicted here and there, what is left is read in few calls, but over no wide gap."""
    evicted = [(low, low + gap - 1) for low in range(3, 300, gap + 2)]
    session = forgetful.session("s", max_tokens=64_000, counter=quarters, long_term=Evicts(evicted))
    for number in range(1, 401, 2):
        said = ("user", number), ("assistant", number + 1)
        session.add([{"role": role, "content": f"number {each}"} for role, each in said])
    session.compact()
    session.context()
    left = [number for number in range(1, 401) if not spans.within(evicted, number)]

    with watched(forgetful) as reads:
        context = session.context()

    assert [one["content"] for one in context.messages] == [f"number {number}" for number in left]
    if gap <= GAP:
        assert reads.looks <= 4
        assert len(left) < reads.rows <= 400
    else:
        assert reads.looks > len(evicted)
        assert reads.rows == len(left)


@pytest.mark.sampled
def test_a_new_cut_reads_nothing_twice(forgetful: Memory) -> None:
    """Of a window that holds no more, what is not shown any longer is read once, too."""
    session = grown(forgetful, 64_000)
    before = session.context().report
    session.add(turn(10_000, 20_000))

    with watched(forgetful) as reads:
        report = session.context().report

    assert report.new_cut
    counted = 4  # of these entries it is seen that they are there, as their counts are stored
    assert reads.rows <= report.last_seq - before.first_seq + 1 + counted


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_next_context_reads_what_is_new(memory: Memory, budget: int) -> None:
    """Of a session whose context was made before, one look reads the entries that have come since, and no other.

    They hold what their giver could change.
    """
    session = grown(memory, budget)
    session.context()
    session.add(turn(10_000), metadata=GIVEN)
    session.count()

    with watched(memory) as reads:
        context = session.context()

    assert not context.report.new_cut
    assert context.messages[-1]["content"].startswith("10000 it is.")
    assert (reads.looks, reads.rows) == (1, 4)


@pytest.mark.parametrize("budget", BUDGETS)
def test_what_was_added_here_is_not_read(memory: Memory, budget: int) -> None:
    """One look tells that nobody else has changed the session: what was added is shown as it was given."""
    session = grown(memory, budget)
    session.context()
    for number in range(3):
        session.add(turn(10_000 + number, 40))

    with watched(memory) as reads:
        context = session.context()

    assert [message["content"][:11] for message in context.messages[-9::4]] == [f"{10_000 + n} it is" for n in range(3)]
    assert (reads.looks, reads.rows) == (1, 0)


def test_of_what_was_added_here_so_much_is_remembered(memory: Memory) -> None:
    """What is beyond that is read: who adds and asks for no context has not all of it in memory."""
    session = small(memory, "s")
    for number in range(AHEAD // 4 + 3):
        session.add(turn(10_000 + number, 4))

    assert rows_of(memory, session) == 12
    assert rows_of(memory, session) == 0


@pytest.mark.parametrize(("messages", "size"), [(1, SHORT + 1), (AHEAD + 1, 1)], ids=["long", "many"])
def test_much_that_was_added_here_is_read(memory: Memory, messages: int, size: int) -> None:
    """To look whether all of it is as it will be read would take as long as to read it."""
    session = memory.session("s", max_tokens=1_000_000, counter=quarters)
    session.add_user_message("first")
    session.context()

    session.add([{"role": "user", "content": "x" * size}] * messages)

    assert rows_of(memory, session) == messages


@pytest.mark.parametrize("given", ["caf\u00e9 \U0001f600", "half of one \ud83d", "</context>", "NUL \0"])
def test_what_was_added_here_is_shown_as_it_is_read(tmp_path: Path, given: str) -> None:
    """Whatever its text is: by the memory that added it, and by one that has to read it."""
    with Memory.open(tmp_path / "log.db") as one, Memory.open(tmp_path / "log.db") as other:
        session = small(one, "s")
        session.add([{"role": "user", "content": given}, {"role": "assistant", "name": "ann", "content": given}])

        shown = session.context()

        assert shown.request() == other.session("s", max_tokens=8_000, counter=quarters).context().request()


def test_what_others_added_is_read(tmp_path: Path) -> None:
    """Before, between and behind what was added here."""
    with Memory.open(tmp_path / "log.db") as one, Memory.open(tmp_path / "log.db") as other:
        session, theirs = small(one, "s"), other.session("s")
        for number, who in enumerate([theirs, session, theirs, session, theirs]):
            who.add([{"role": "user", "content": f"number {number}"}])

        with watched(one) as reads:
            context = session.context()

    assert [message["content"] for message in context.messages[-5:]] == [f"number {n}" for n in range(5)]
    assert reads.rows >= 3


def test_a_context_of_nothing_new_reads_no_entry(memory: Memory) -> None:
    """It looks whether the session is as it was, and that is all; so does another object of the session."""
    session = grown(memory, 8_000)
    before = session.context()

    with watched(memory) as reads:
        after = memory.session("s", max_tokens=8_000, counter=quarters).context()

    assert after.messages == before.messages
    assert (reads.looks, reads.rows) == (1, 0)


def test_what_a_new_cut_shows_is_not_read_again(memory: Memory) -> None:
    """The context behind one that has cut goes on with what that one had read."""
    session = grown(memory, 8_000)
    session.add(turn(10_000, 4_000))
    assert session.context().report.new_cut
    session.add(turn(10_001), metadata=GIVEN)
    session.count()

    with watched(memory) as reads:
        context = session.context()

    assert not context.report.new_cut
    assert (reads.looks, reads.rows) == (1, 4)


def test_another_format_or_budget_reads_nothing_again(memory: Memory) -> None:
    """What was read is remembered apart from how it was shown."""
    session = grown(memory, 8_000)
    session.context()

    with watched(memory) as reads:
        session.context(format="anthropic")
        session.context(max_tokens=2_000)
        session.context(dry_run=True)

    assert reads.rows == 0


def small(memory: Memory, name: str, turns: int = 5) -> Session:
    """A session of a few turns, of which a context was made."""
    session = memory.session(name, max_tokens=8_000, counter=quarters)
    for number in range(turns):
        session.add(turn(number, 40))
    session.context()
    return session


def rows_of(memory: Memory, session: Session) -> int:
    """How many entries the session's next context reads."""
    with watched(memory) as reads:
        session.context()
    return reads.rows


DESTROYING: dict[str, Callable[[Memory, Session], object]] = {
    "erase": lambda memory, other: other.erase(1),
    "clear": lambda memory, other: other.clear(),
    "delete": lambda memory, other: memory.delete_session("other"),
    "forget": lambda memory, other: memory.forget(session="other"),
    "scan": lambda memory, other: memory.scan({"redact_patterns": [("what", "[GONE]")]}, session="other", apply=True),
}


@pytest.mark.parametrize("verb", DESTROYING)
def test_who_destroys_anything_remembers_nothing(memory: Memory, verb: str) -> None:
    """Of no session: a branch, a copy or a summary elsewhere may say what is gone."""
    session, other = small(memory, "s"), small(memory, "other")
    assert rows_of(memory, session) == 0

    DESTROYING[verb](memory, other)

    assert rows_of(memory, session) == 20
    assert rows_of(memory, session) == 0


def test_what_is_remembered_is_bounded() -> None:
    """Of several sessions some stay, within the bytes that are given, the one that was asked for last among them."""
    with Memory.open("memory://", view_bytes=100_000) as memory:
        sessions = [small(memory, f"s{number}") for number in range(20)]

        kept = [session.id for session in sessions[::-1] if rows_of(memory, session) == 0]

    assert 1 < len(kept) < 10
    assert kept[0] == "s19"


def test_one_that_is_too_large_is_not_remembered() -> None:
    """A session whose window is more than all that may be remembered is read each time."""
    with Memory.open("memory://", view_bytes=10_000) as memory:
        session = small(memory, "s")

        assert rows_of(memory, session) == 20
        assert rows_of(memory, session) == 20


EVENTS = {"first": 0, "behind a cut": 40, "next": 40, "nothing new": 0, "cut": 8_000}
"""How large a turn comes before a context of each kind."""


def test_contexts_look_at_no_whole_table(tmp_path: Path) -> None:
    """Every statement finds what it asks for by an index, in a file of several sessions, with a pin and a summary.

    The next context takes four statements that read: the file's generation, the head, entries and counts.
    """
    statements: dict[str, list[str]] = {}
    with Memory.open(tmp_path / "log.db") as memory:
        small(memory, "other", 30)
        session = grown(memory, 8_000)
        session.pin(1)
        session.compact({"strategy": "summarizer", "interaction_keep": 2})
        memory.delete_session("other")  # nothing is remembered then
        for number, (what, size) in enumerate(EVENTS.items()):
            if size:
                session.add(turn(10_000 + number, size), metadata=GIVEN)
                session.count()

            with traced(memory) as statements[what]:
                report = session.context().report

            assert report.new_cut == (what in ("first", "cut"))
        found = {what: scans(memory, some) for what, some in statements.items()}

    counts = {what: sum(one.startswith("SELECT") for one in some) for what, some in statements.items()}
    assert found == {what: [] for what in EVENTS}
    assert (counts["next"], counts["nothing new"]) == (4, 1)


def test_counts_are_stored_by_few_statements(tmp_path: Path) -> None:
    """Whether entries are there whose counts are stored is asked of all of them at once."""
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", counter=quarters)
        for number in range(50):
            session.add(turn(number, 40))

        with traced(memory) as statements:
            session.count()

    assert sum(one.startswith("SELECT") for one in statements) < 20


def test_what_cannot_be_read_is_not_remembered(tmp_path: Path) -> None:
    """An entry that is damaged, or that something is in the way of, is looked at again by the next context."""
    with Memory.open(tmp_path / "log.db", view_bytes=0) as other:
        session = small(other, "s", 2)
        writing = connection(other)
        (sound,) = writing.execute("SELECT value FROM entry ORDER BY pos LIMIT 1").fetchone()
        writing.execute("UPDATE entry SET value = ? WHERE value = ?", (sound[:-1] + b"?", sound))
        with Memory.open(tmp_path / "log.db") as memory:
            damaged = memory.session("s", max_tokens=8_000, counter=quarters)
            before = len(damaged.context().messages)

            writing.execute("UPDATE entry SET value = ? WHERE value = ?", (sound, sound[:-1] + b"?"))

            assert len(damaged.context().messages) == before + 1
            assert told(damaged) == told(session)


def told(session: Session) -> list[Any]:
    """What a session's context gives."""
    return session.context().messages
