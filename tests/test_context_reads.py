"""How many rows a context reads of its log, and with how many calls of the backend, which no machine changes."""

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
"""The number of entries that one look reads at most."""

GIVEN = {"by": "somebody"}
"""Metadata that the caller could still change: such an entry is read from the store, not kept as it was given."""


def turn(number: int, size: int = 400) -> list[dict[str, Any]]:
    """Return a question, a call, a result that is masked when it is old, and an answer."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"what of {number}? " + "so " * (size // 8)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"found {number} " + "and " * (3 * size)},
        {"role": "assistant", "content": f"{number} it is. " + "so " * (size // 8)},
    ]


def grown(memory: Memory, budget: int) -> Session:
    """Return a session that has been cut and whose window is nearly full again."""
    session = memory.session("s", max_tokens=budget, counter=quarters)
    number, step, tokens = 0, budget // 4_000, 0
    while session.context().epoch == 0 or tokens < 0.8 * budget:
        session.add([message for n in range(number, number + step) for message in turn(n)])
        number += step
        tokens = session.context().tokens
    return session


@pytest.fixture(params=["memory", "sqlite", "file"])
def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """An empty embedded store in a memory that caches no context."""
    where = {"memory": "memory://", "file": f"file://{tmp_path}/logs"}.get(request.param, tmp_path / "log.db")
    with Memory.open(where, view_bytes=0) as memory:
        yield memory


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_window_is_read_once(forgetful: Memory, budget: int) -> None:
    """A context reads its window once, however large it is and however much of it is masked."""
    session = grown(forgetful, budget)

    with watched(forgetful) as reads:
        report = session.context().report

    size = report.last_seq - report.first_seq + 1
    assert report.masked
    assert size > budget / 200
    assert reads.rows == size
    assert reads.looks == max(-(-size // CHUNK), 1)


class Evicts:
    """A strategy that evicts the given spans."""

    name, summarizes, erases, style = "evicts", False, False, Style()
    triggers = Triggers(interaction_threshold_qty=2)

    def __init__(self, where: Sequence[Span]) -> None:
        self._where = tuple(where)

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(evict=self._where)


@pytest.mark.sampled
@pytest.mark.parametrize("gap", [1, GAP, GAP + 1])
def test_small_evicted_gaps_are_read_with_their_surroundings(forgetful: Memory, gap: int) -> None:
    """Small evicted gaps are read with their surroundings, so that few calls suffice; wide gaps are not read."""
    evicted = [(low, low + gap - 1) for low in range(3, 300, gap + 2)]
    session = forgetful.session("s", max_tokens=64_000, counter=quarters, long_term=Evicts(evicted))
    for number in range(1, 401, 2):
        said = ("user", number), ("assistant", number + 1)
        session.add([{"role": role, "content": f"number {each}"} for role, each in said])
    session.compact()
    session.context()
    remaining = [number for number in range(1, 401) if not spans.within(evicted, number)]

    with watched(forgetful) as reads:
        context = session.context()

    assert [one["content"] for one in context.messages] == [f"number {number}" for number in remaining]
    if gap <= GAP:
        assert reads.looks <= 4
        assert len(remaining) < reads.rows <= 400
    else:
        assert reads.looks > len(evicted)
        assert reads.rows == len(remaining)


@pytest.mark.sampled
def test_a_new_cut_reads_nothing_twice(forgetful: Memory) -> None:
    """A new cut reads each entry once, including those that the window no longer holds."""
    session = grown(forgetful, 64_000)
    before = session.context().report
    session.add(turn(10_000, 20_000))

    with watched(forgetful) as reads:
        report = session.context().report

    assert report.new_cut
    counted = 4  # entries whose existence is checked when their counts are stored
    assert reads.rows <= report.last_seq - before.first_seq + 1 + counted


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_next_context_reads_what_is_new(memory: Memory, budget: int) -> None:
    """The next context of a session reads only the new entries, with one look.

    Their metadata could be changed by the caller, so that they have to be read.
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
def test_entries_added_by_this_memory_are_not_read(memory: Memory, budget: int) -> None:
    """Entries that this memory added are shown as they were given, after one look for changes by others."""
    session = grown(memory, budget)
    session.context()
    for number in range(3):
        session.add(turn(10_000 + number, 40))

    with watched(memory) as reads:
        context = session.context()

    assert [message["content"][:11] for message in context.messages[-9::4]] == [f"{10_000 + n} it is" for n in range(3)]
    assert (reads.looks, reads.rows) == (1, 0)


def test_entries_added_ahead_of_a_context_are_remembered_to_a_limit(memory: Memory) -> None:
    """Without a context in between, added entries are kept in memory up to a limit; those beyond it are read."""
    session = small(memory, "s")
    for number in range(AHEAD // 4 + 3):
        session.add(turn(10_000 + number, 4))

    assert rows_of(memory, session) == 12
    assert rows_of(memory, session) == 0


@pytest.mark.parametrize(("messages", "size"), [(1, SHORT + 1), (AHEAD + 1, 1)], ids=["long", "many"])
def test_long_or_many_added_entries_are_read(memory: Memory, messages: int, size: int) -> None:
    """Long or many added entries are read, because checking that they read back unchanged would take as long."""
    session = memory.session("s", max_tokens=1_000_000, counter=quarters)
    session.add_user_message("first")
    session.context()

    session.add([{"role": "user", "content": "x" * size}] * messages)

    assert rows_of(memory, session) == messages


@pytest.mark.parametrize("given", ["caf\u00e9 \U0001f600", "half of one \ud83d", "</context>", "NUL \0"])
def test_added_entries_are_shown_as_they_would_be_read(tmp_path: Path, given: str) -> None:
    """An added entry is shown the same by the memory that added it and by one that reads it, whatever its text."""
    with Memory.open(tmp_path / "log.db") as one, Memory.open(tmp_path / "log.db") as other:
        session = small(one, "s")
        session.add([{"role": "user", "content": given}, {"role": "assistant", "name": "ann", "content": given}])

        shown = session.context()

        assert shown.request() == other.session("s", max_tokens=8_000, counter=quarters).context().request()


def test_entries_of_other_writers_are_read(tmp_path: Path) -> None:
    """Entries that others added before, between and behind this memory's own are read."""
    with Memory.open(tmp_path / "log.db") as one, Memory.open(tmp_path / "log.db") as other:
        session, theirs = small(one, "s"), other.session("s")
        for number, who in enumerate([theirs, session, theirs, session, theirs]):
            who.add([{"role": "user", "content": f"number {number}"}])

        with watched(one) as reads:
            context = session.context()

    assert [message["content"] for message in context.messages[-5:]] == [f"number {n}" for n in range(5)]
    assert reads.rows >= 3


def test_a_context_of_nothing_new_reads_no_entry(memory: Memory) -> None:
    """A context without new entries only looks at the session's head, even through another session object."""
    session = grown(memory, 8_000)
    before = session.context()

    with watched(memory) as reads:
        after = memory.session("s", max_tokens=8_000, counter=quarters).context()

    assert after.messages == before.messages
    assert (reads.looks, reads.rows) == (1, 0)


def test_the_context_after_a_cut_reads_only_new_entries(memory: Memory) -> None:
    """The context after a cut uses what the cut has read and reads only new entries."""
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
    """A context in another format or with another budget reads nothing, since entries are cached in no format."""
    session = grown(memory, 8_000)
    session.context()

    with watched(memory) as reads:
        session.context(format="anthropic")
        session.context(max_tokens=2_000)
        session.context(dry_run=True)

    assert reads.rows == 0


def small(memory: Memory, name: str, turns: int = 5) -> Session:
    """Return a session of a few turns of which a context was made."""
    session = memory.session(name, max_tokens=8_000, counter=quarters)
    for number in range(turns):
        session.add(turn(number, 40))
    session.context()
    return session


def rows_of(memory: Memory, session: Session) -> int:
    """Return how many entries the session's next context reads."""
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
def test_destroying_anything_drops_the_whole_cache(memory: Memory, verb: str) -> None:
    """Destroying anything drops the cache of all sessions: a branch, copy or summary elsewhere may hold the text."""
    session, other = small(memory, "s"), small(memory, "other")
    assert rows_of(memory, session) == 0

    DESTROYING[verb](memory, other)

    assert rows_of(memory, session) == 20
    assert rows_of(memory, session) == 0


def test_the_cache_is_bounded_in_bytes() -> None:
    """Within `view_bytes` some of several sessions stay cached, among them the one used last."""
    with Memory.open("memory://", view_bytes=100_000) as memory:
        sessions = [small(memory, f"s{number}") for number in range(20)]

        kept = [session.id for session in sessions[::-1] if rows_of(memory, session) == 0]

    assert 1 < len(kept) < 10
    assert kept[0] == "s19"


def test_a_session_larger_than_the_cache_is_read_each_time() -> None:
    """A session whose window exceeds the whole cache is read each time."""
    with Memory.open("memory://", view_bytes=10_000) as memory:
        session = small(memory, "s")

        assert rows_of(memory, session) == 20
        assert rows_of(memory, session) == 20


EVENTS = {"first": 0, "behind a cut": 40, "next": 40, "nothing new": 0, "cut": 8_000}
"""The size of the turn that precedes a context of each kind."""


def test_contexts_scan_no_table(tmp_path: Path) -> None:
    """Every statement of a context uses an index, in a file of several sessions, with a pin and a summary.

    The next context takes four reading statements: the file's generation, the head, entries and counts.
    """
    statements: dict[str, list[str]] = {}
    with Memory.open(tmp_path / "log.db") as memory:
        small(memory, "other", 30)
        session = grown(memory, 8_000)
        session.pin(1)
        session.compact({"strategy": "summarizer", "interaction_keep": 2})
        memory.delete_session("other")  # this empties the cache
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
    """Before counts are stored, one statement checks for all entries together that they exist."""
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", counter=quarters)
        for number in range(50):
            session.add(turn(number, 40))

        with traced(memory) as statements:
            session.count()

    assert sum(one.startswith("SELECT") for one in statements) < 20


def test_an_unreadable_entry_is_not_cached(tmp_path: Path) -> None:
    """An entry that is damaged or unreadable is read again by the next context."""
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
            assert messages_of(damaged) == messages_of(session)


def messages_of(session: Session) -> list[Any]:
    """Return the messages of the session's next context."""
    return session.context().messages
