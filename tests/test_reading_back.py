"""Reading a log from its end, and as a provider's messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from laws import examples
from palimpsest import Memory, Session
from palimpsest.errors import ConfigError
from palimpsest.testing import FakeClock
from providers import FORMATS, PROVIDERS
from worlds import STORES, open_world

law = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))


def seqs(entries: Any) -> list[int]:
    """Return the entries' seqs."""
    return [entry.seq for entry in entries]


@pytest.mark.parametrize("kind", STORES)
def test_the_newest_entries_are_read_page_by_page(kind: str, tmp_path: Path) -> None:
    """Pages from the end give the same log as pages from the front, without rewound entries."""
    with open_world(kind, tmp_path) as there:
        session = there.session
        for number in range(8):
            entry = session.add_user_message(f"{number}")
        session.rewind(5)
        for number in range(8, 23):
            entry = session.add_user_message(f"{number}")
        whole = seqs(session.entries())

        for size in (1, 4, 100):
            found: list[int] = []
            page = session.entries(last=size)
            while page:
                assert seqs(page) == whole[len(whole) - len(found) - len(page) : len(whole) - len(found)]
                found = seqs(page) + found
                page = session.entries(before=page[0].seq, last=size)
            assert found == whole
        assert seqs(session.entries(after=3, before=10)) == [seq for seq in whole if 3 < seq < 10]
        assert seqs(session.entries(after=whole[-3], last=10)) == whole[-2:]
        assert session.entries(last=0) == []
        assert seqs(session.entries(last=3, rewound=True, before=9)) == [6, 7, 8]
        assert seqs(session.entries(last=2, at=3)) == [2, 3]
        assert entry.seq == whole[-1]


def test_a_long_log_is_read_from_its_end(memory: Memory) -> None:
    """A log of more entries than are read at once comes back whole and in order."""
    session = memory.session("long")
    session.add([{"role": "user", "content": f"{number}"} for number in range(1300)])

    assert seqs(session.entries(last=1200)) == list(range(101, 1301))
    assert seqs(session.entries(last=1200, before=700)) == list(range(1, 700))


def test_counting_from_both_ends_is_refused(session: Session) -> None:
    """`limit` together with `last`, and invalid numbers, are refused."""
    for options in ({"limit": 1, "last": 1}, {"last": -1}, {"before": "x"}, {"last": True}):
        with pytest.raises(ConfigError):
            session.entries(**options)
    for wrong in ({"after": -1}, {"before": 1.5}, {"format": "nobody's"}):
        with pytest.raises(ConfigError):
            session.messages(**wrong)


def test_messages_returns_the_whole_log(session: Session) -> None:
    """`messages` returns the whole log without a budget, compacted and hidden entries included, in whole groups."""
    for number in range(6):
        session.add_user_message(f"question {number}")
        session.add_assistant_message(f"answer {number}")
    session.add_tool_call("find", {}, call_id="c1")
    session.add_tool_result("find", "seven", call_id="c1")
    whole = session.context().messages
    session.hide(1, 2)
    session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 1})
    revision = session.info().revision

    assert session.messages() == whole
    assert [message["content"] for message in session.messages(after=2, before=5)] == ["question 1", "answer 1"]
    assert session.messages(after=13) == whole[-2:]
    assert session.messages(before=14)[-2:] == whole[-2:]
    assert session.messages(after=99) == []
    assert session.messages(format="text") != []
    assert session.info().revision == revision


def test_messages_of_an_empty_session_is_empty(memory: Memory) -> None:
    """A session without entries has no messages."""
    assert memory.session("new").messages() == []


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@law
@given(log=strategies.logs(), after=st.integers(0, 20), length=st.none() | st.integers(1, 20))
def test_messages_of_any_range_is_valid(format: str, log: list[Any], after: int, length: int | None) -> None:
    """`messages` of any range of any log is valid in every format and writes nothing."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("s", counter=strategies.WORDS)
        for operation in log:
            strategies.perform(session, operation, clock.now)
        before = session.history()

        whole = session.messages(format=format)
        part = session.messages(format=format, after=after, before=None if length is None else after + length)

        assert PROVIDERS[format].faults(whole) == []
        assert PROVIDERS[format].faults(part) == []
        assert session.history() == before
