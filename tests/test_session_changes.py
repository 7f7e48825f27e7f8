"""What a session and a memory promise, over every store: pins, erasing, clearing, events, tenants, views."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from palimpsest import ConfigError, Entry, EntryNotFound, Memory, Session
from palimpsest.compaction import Plan, Snapshot
from palimpsest.compaction.style import Style
from palimpsest.compaction.triggers import Triggers
from palimpsest.testing import FakeClock
from processes import remains
from worlds import cut_session
from writer import quarters, turn


def texts(entries: list) -> list[str]:
    return [entry.text for entry in entries]


# --- pins


def test_a_pinned_entry_survives_every_cut(memory: Memory) -> None:
    """A pinned entry is in every context once: in its place until a cut passes it, in front of the log afterwards."""
    session = memory.session("one", max_tokens=200, counter=quarters)
    session.add_user_message("remember me", pinned=True)
    session.add_assistant_message("I will")
    session.add(turn("soon"))
    session.pin(3)

    for number in range(20):
        session.add(turn(str(number)))
        given = session.context()
        assert [message["content"] for message in given.messages[:2]].count("remember me") == 1
        assert "question soon" in str(given.messages)

    assert "I will" not in str(given.messages)
    assert given.report.pinned == (1, 3)


def test_unpinning_acts_from_the_next_cut_on(memory: Memory) -> None:
    """After `unpin` the entry is still shown until the next cut, which may leave it out."""
    session = cut_session(memory)
    session.pin(1)
    while "question 0" not in str(session.context().messages):
        session.add(turn("more"))
    session.unpin(1)
    epoch = session.stats().epoch

    assert "question 0" in str(session.context().messages)
    while session.stats().epoch == epoch:
        session.add(turn("more"))
        session.context()
    assert "question 0" not in str(session.context().messages)


def test_pins_are_by_id_or_seq_and_all_or_none(session: Session) -> None:
    """`pin` takes ids and seqs; if one is unknown, none is pinned; pinning twice changes nothing."""
    first, *_ = session.add(turn("1"))

    session.pin(first.id, 6)
    session.pin(6)
    assert session.stats().pinned == 2
    with pytest.raises(EntryNotFound):
        session.pin(2, 99)
    assert session.stats().pinned == 2
    session.unpin(1, 6)
    assert session.stats().pinned == 0


def test_an_erased_entry_cannot_be_pinned(session: Session) -> None:
    """`pin` refuses an erased entry and pins nothing then; `unpin` accepts one."""
    first, *_ = session.add(turn("1"))
    session.erase(first)

    with pytest.raises(ConfigError, match="erased"):
        session.pin(2, first)
    session.unpin(first)
    assert session.stats().pinned == 0


def test_a_group_is_pinned_whatever_became_of_its_pinned_entry(memory: Memory) -> None:
    """A strategy sees a group as pinned while a pin keeps it from the archive, even if the pinned entry has expired."""
    seen: list[Snapshot] = []

    class Watching:
        name, summarizes, erases, style, triggers = "watching", False, False, Style(), Triggers(message_count=99)

        def plan(self, snapshot: Snapshot) -> Plan:
            seen.append(snapshot)
            return Plan(reason="nothing_to_compact")

    session = memory.session("one", long_term=Watching())
    past = datetime(2001, 1, 1, tzinfo=UTC)
    asked = Entry(kind="tool_call", role="assistant", name="f", call_id="c", pinned=True, expires_at=past)
    session.add_entries([Entry(content="hi"), asked, Entry(kind="tool_result", role="tool", content="x", call_id="c")])
    session.compact()

    (interaction,) = seen[-1].interactions
    assert [(group.seq, group.pinned) for group in interaction.groups] == [(1, False), (2, True)]


# --- erasing


def test_an_erased_entry_leaves_a_tombstone(session: Session) -> None:
    """An erased entry keeps its id, place, kind and time, and nothing of its content, name or metadata."""
    before = session.add_user_message("secret", name="ann", metadata={"a": 1}, pinned=True)

    assert session.erase([before.id]).entries == 1

    after = session.entry(before.id)
    assert (after.id, after.seq, after.kind, after.at, after.erased) == (before.id, 1, "message", before.at, True)
    assert (after.text, after.name, after.metadata) == ("", None, None)
    assert session.stats().pinned == 0
    assert session.active_entries() == []


def test_erasing_is_counted_once(session: Session) -> None:
    """`erase` returns how many entries it erased; those named twice or erased before do not count."""
    session.add(turn("1"))

    assert session.erase([1, 1, session.entry(1).id]).entries == 1
    assert not session.erase([1])
    assert not session.erase([])
    assert session.erase("2").entries == 1


def test_erasing_is_all_or_nothing(session: Session) -> None:
    """If one of the entries does not exist, `erase` erases none."""
    session.add(turn("1"))

    with pytest.raises(EntryNotFound):
        session.erase([1, 99])

    assert session.stats().erased_entries == 0


def test_an_erased_entry_is_in_no_context_and_starts_an_epoch(session: Session) -> None:
    """After an erasure the next context is valid, does not show the entry, and has a new epoch."""
    session.add(turn("1"))
    session.add(turn("2"))
    before = session.context()

    session.erase([3])  # the right one of two parallel calls

    after = session.context()
    assert after.epoch == before.epoch + 1
    assert "1-right" in str(before.messages)
    assert "1-right" not in str(after.messages)
    assert "1-left" in str(after.messages)
    assert "question 2" in str(after.messages)


@pytest.mark.parametrize("verb", ["erase", "clear", "delete_session", "sweep"])
def test_destroyed_text_is_in_no_byte_of_the_file(tmp_path: Path, verb: str, clock: FakeClock) -> None:
    """After `erase`, `clear`, `delete_session` or `sweep`, no byte of the database or its journal holds the content."""
    path = tmp_path / "log.db"
    with Memory.open(path, clock=clock) as memory:
        session = memory.session("one", counter=quarters)
        session.add_user_message("kept words")
        expiry = session.entry(1).created_at.replace(year=2100)
        said = session.add_user_message(
            "sesame " * 3000, name="sesame", metadata={"sesame": "sesame"}, expires_at=expiry
        )
        call = session.add_tool_call("sesame", {"sesame": 1}, call_id="sesame")
        result = session.add_tool_result("sesame", "sesame")
        session.stats()
        session.context()
        assert b"sesame" in remains(path)

        if verb == "erase":
            session.erase([said.id, call.id, result.id])
        elif verb == "clear":
            session.clear()
        elif verb == "delete_session":
            memory.delete_session("one")
        else:
            session.erase([call.id, result.id])
            clock.advance(80 * 366 * 86400)
            memory.sweep()

        assert b"sesame" not in remains(path)
    assert b"sesame" not in remains(path)
    assert (b"kept words" in remains(path)) is (verb in ("erase", "sweep"))


def test_erased_text_leaves_the_export(session: Session) -> None:
    """An export holds a tombstone for an erased entry, and none of its text."""
    session.add_user_message("sesame")
    session.add_assistant_message("fine")
    session.erase([1])

    data = session.export()

    assert "sesame" not in json.dumps(data)
    assert [each["seq"] for each in data["tombstones"]] == [1]
    assert [each["content"] for each in data["entries"]] == ["fine"]


def test_only_erasing_destroys_text(memory: Memory) -> None:
    """Cuts, compaction, flushing, branches, rewinds, merges, scans and sweeps keep the text of every entry."""
    session = memory.session("one", max_tokens=200, counter=quarters, persistence="flush")
    for number in range(20):
        session.add(turn(str(number)))
        session.context()
    said = {each["id"]: each["content"] for each in session.export()["entries"]}
    assert len(said) == 120

    for strategy in (
        *("mask_results", "superseded_contexts", "simple_fifo", "lru", "token_aware_lru"),
        *({"strategy": "hybrid_summary", "summary_tokens": 50}, "summarizer", "ladder"),
    ):
        session.add(turn(str(strategy)))
        session.compact(strategy)
    session.end_turn()
    session.fork("two")
    session.rewind(to=session.entry(60).revision)
    memory.import_session(memory.session("two").export(), session_id="one", on_conflict="merge")
    memory.scan("default")
    memory.forget(user="nobody")
    memory.sweep()

    held = {each["id"]: each["content"] for each in session.export()["entries"]}
    assert said.items() <= held.items()
    assert session.stats().erased_entries == 0


# --- clearing


def test_a_cleared_session_is_empty_and_usable(session: Session) -> None:
    """`clear` destroys all entries and returns their number; the seqs of new entries continue."""
    session.add(turn("1"))
    session.pin(1)
    session.erase([2])
    epoch = session.stats().epoch

    assert session.clear() == 5

    assert session.entries() == []
    assert session.context().messages == []
    stats = session.stats()
    assert (stats.total_entries, stats.erased_entries, stats.total_tokens, stats.interactions) == (0, 0, 0, 0)
    assert (stats.pinned, stats.epoch) == (0, epoch + 1)
    assert session.add_user_message("new").seq == 7
    assert len(session.context().messages) == 1
    assert [record.kind for record in session.history()] == ["clear", "add"]


def test_clearing_an_empty_session_does_nothing(memory: Memory, session: Session) -> None:
    """Clearing an empty or unknown session returns 0, sends no event and creates no session."""
    told = []
    memory.on("session:cleared", lambda name, facts: told.append(name))

    assert session.clear() == 0
    assert memory.sessions() == []
    session.add_user_message("hello")
    session.clear()
    revision = session.stats().revision
    assert session.clear() == 0
    assert session.stats().revision == revision
    assert told == ["one"]


# --- events


@pytest.mark.parametrize("memory", ["memory", "sqlite", "file", "driver"], indirect=True)  # its handler reads
def test_events_come_after_the_store_has_the_change(memory: Memory) -> None:
    """Each event comes once, with the session and its facts, when the store already has the change."""
    heard: list[tuple[str, str]] = []
    session = memory.session("one", max_tokens=200, counter=quarters)

    def listen(event: str) -> None:
        def handler(name: str, facts: dict) -> None:
            heard.append((event, name))
            assert facts
            if event == "entry:added":
                assert memory.session(name).entry(facts["entry"].id) == facts["entry"]
            elif event == "erased":
                assert facts["seqs"] == (1,)
                assert session.entry(1).erased
            elif event == "cut":
                assert facts["epoch"] == session.stats().epoch

        memory.on(event, handler)

    for event in ("entry:added", "cut", "evicted", "erased", "session:cleared", "session:imported", "usage:recorded"):
        listen(event)
    session.add(turn("1"))
    session.record_usage(input_tokens=5)
    session.erase([1])
    assert heard == [("entry:added", "one")] * 6 + [("usage:recorded", "one"), ("erased", "one")]
    heard.clear()
    while session.stats().epoch == 1:
        session.add(turn("more"))
        session.context()
    assert {event for event, _ in heard} == {"entry:added", "cut", "evicted"}
    heard.clear()
    memory.import_session(session.export(), session_id="two")
    session.clear()
    assert heard == [("session:imported", "two"), ("session:cleared", "one")]


def test_the_end_of_a_turn_sends_its_figures(memory: Memory, session: Session) -> None:
    """`turn:ended` comes once a turn, with what `end_turn` returns: entries added, open calls, compactions."""
    heard = []
    memory.on("turn:ended", lambda name, facts: heard.append(facts))

    with session.turn():
        session.add_user_message("look")
        session.add_tool_call("look", {}, call_id="open")

    assert heard == [{"added": 2, "open_calls": ("open",), "compactions": ()}]


def test_no_event_comes_for_an_add_that_added_nothing(memory: Memory, session: Session) -> None:
    """Repeating a key or a context adds nothing and sends no `entry:added`."""
    session.add(turn("1"), key="key")
    session.add_context("text", name="notes.md")
    heard = []
    memory.on("entry:added", lambda name, facts: heard.append(name))

    session.add(turn("1"), key="key")
    session.add_context("text", name="notes.md")

    assert heard == []


def test_a_handler_can_be_removed(memory: Memory, session: Session) -> None:
    """The function that `on` returns removes that handler and no other; calling it twice is allowed."""
    heard: list[str] = []
    stop = memory.on("entry:added", lambda name, facts: heard.append("first"))
    memory.on("entry:added", lambda name, facts: heard.append("second"))
    session.add_user_message("one")

    stop()
    stop()
    session.add_user_message("two")

    assert heard == ["first", "second", "second"]


def test_a_handler_registered_twice_is_removed_once(memory: Memory, session: Session) -> None:
    """Each call of `on` returns a function that ends only its own registration, even when it is called twice."""
    heard: list[str] = []

    def hear(name: str, facts: object) -> None:
        heard.append(name)

    stop = memory.on("entry:added", hear)
    memory.on("entry:added", hear)

    stop()
    stop()
    session.add_user_message("one")

    assert len(heard) == 1


def test_a_handler_that_raises_is_logged_and_breaks_nothing(
    memory: Memory, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """If a handler raises, the add succeeds, other handlers are called, and the log names event and session."""
    heard = []
    memory.on("entry:added", lambda name, facts: 1 // 0)
    memory.on("entry:added", lambda name, facts: heard.append(name))

    with caplog.at_level(logging.ERROR, logger="palimpsest"):
        session.add_user_message("private words")

    assert texts(session.entries()) == ["private words"]
    assert heard == ["one"]
    assert "entry:added" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "private words" not in caplog.text


# --- tenants, listings, views


def test_tenants_never_see_each_other(tmp_path: Path) -> None:
    """Of two tenants with the same session id in one file, neither sees, changes or deletes anything of the other."""
    path = tmp_path / "log.db"
    with Memory.open(path, tenant="a") as one, Memory.open(path, tenant="b") as two:
        mine = one.session("same").add_user_message("mine")
        one.session("same").add({"role": "user", "content": "keyed"}, key="key")

        assert two.sessions() == []
        assert two.session("same").entries() == []
        with pytest.raises(EntryNotFound):
            two.session("same").entry(mine.id)
        assert two.delete_session("same") is False
        assert two.session("same").clear() == 0
        two.session("same").add({"role": "user", "content": "other"}, key="key")

        assert texts(one.session("same").entries()) == ["mine", "keyed"]
        assert texts(two.session("same").entries()) == ["other"]


@pytest.mark.parametrize("pair", [("a/b", "a_b"), ("a", "A"), ("é", "e\u0301"), ("a'b", 'a"b'), ("%", "*")])
def test_ids_that_differ_never_share_storage(memory: Memory, pair: tuple[str, str]) -> None:
    """Session ids are compared character by character, whatever characters they hold."""
    for name in pair:
        memory.session(name).add_user_message(name)

    assert [texts(memory.session(name).entries()) for name in pair] == [[name] for name in pair]
    assert [info.session for info in memory.sessions()] == sorted(pair)


def test_sessions_are_listed_in_pages(memory: Memory, clock: FakeClock) -> None:
    """`sessions` lists sessions by id, those after `after` and at most `limit`, with figures and times."""
    for name in ("c", "a", "b"):
        memory.session(name).add(turn("1"))
        clock.advance(1)
    memory.session("a").erase([1])

    first, second = memory.sessions(limit=2)

    assert (first.session, second.session) == ("a", "b")
    assert (first.entries, first.revision, first.epoch) == (5, 2, 1)
    assert first.created < first.updated == clock()
    assert [info.session for info in memory.sessions(after="a")] == ["b", "c"]
    assert memory.sessions(after="c") == []


def test_a_deleted_session_is_gone(memory: Memory) -> None:
    """`delete_session` returns whether there was a session; a new session of that id begins empty."""
    session = cut_session(memory)

    assert memory.delete_session("one") is True
    assert memory.delete_session("one") is False
    assert memory.sessions() == []
    assert session.entries() == []
    assert session.history() == []
    assert session.add_user_message("new").seq == 1
    assert session.stats().total_tokens == quarters("new")


def test_views_have_budgets_and_cuts_of_their_own(memory: Memory) -> None:
    """Two views of one log are cut independently: a small one never moves the window of a large one."""
    large = memory.session("one", max_tokens=2000, counter=quarters)
    small = memory.session("one", max_tokens=100, counter=quarters, view="small")
    before: list = []
    for number in range(20):
        large.add(turn(str(number)))
        assert small.context().tokens <= 100
        given = large.context()
        assert given.messages[: len(before)] == before
        before = given.messages

    cuts = [record.view for record in large.history() if record.kind == "cut"]
    assert set(cuts) == {"small"}
    assert len(large.active_entries()) == 120
    assert len(small.active_entries()) < 30
    assert large.context(view="small", max_tokens=100).messages == small.context().messages
