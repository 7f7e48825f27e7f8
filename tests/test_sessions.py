"""What a session promises, over every store: adding, reading, counting, usage, expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rules
from palimpsest import ConfigError, Entry, EntryNotFound, InvalidEntry, Memory, Session, SessionNotFound, Text
from palimpsest.testing import FakeClock
from palimpsest.types import Interaction
from providers import FORMATS, PROVIDERS
from writer import quarters, turn


def texts(entries: list) -> list[str]:
    return [entry.text for entry in entries]


# --- adding


@pytest.mark.parametrize(
    ("verb", "kind", "role"),
    [
        ("add_user_message", "message", "user"),
        ("add_assistant_message", "message", "assistant"),
        ("add_system_message", "message", "system"),
    ],
)
def test_a_message_is_stored_with_its_role(session: Session, verb: str, kind: str, role: str) -> None:
    """Each message verb stores its text under a role and returns the entry that `entry` returns later."""
    added = getattr(session, verb)("hello", name="ann", metadata={"tags": ["x"]})

    assert (added.kind, added.role, added.text, added.name) == (kind, role, "hello", "ann")
    assert added.metadata == {"tags": ["x"]}
    assert added.seq == 1
    assert session.entry(added.id) == added


def test_a_message_may_be_a_list_of_parts(session: Session) -> None:
    """Content is text or parts; the text of parts is their texts, one a line."""
    added = session.add_user_message([Text(text="one"), Text(text="two")])

    assert added.content == (Text(text="one"), Text(text="two"))
    assert session.entry(1).text == "one\ntwo"


def test_an_entry_keeps_the_time_of_writing(session: Session, clock: FakeClock) -> None:
    """`created_at` is the time of the memory's clock when the entry was added, in UTC."""
    added = session.add_user_message("hello")

    assert added.created_at == datetime.fromtimestamp(clock() / 1e6, UTC)
    assert added.created_at.tzinfo is UTC


def test_stored_entries_share_no_objects_with_the_caller(session: Session) -> None:
    """Changing an object that was passed to `add`, or one that a verb returned, changes no stored entry."""
    metadata = {"tags": ["x"]}
    added = session.add_user_message("hello", metadata=metadata)
    metadata["tags"].append("given")
    added.metadata["tags"].append("returned")
    session.entry(1).metadata["tags"].append("read")

    assert session.entry(1).metadata == {"tags": ["x"]}


def test_a_result_answers_the_call_of_its_id(session: Session) -> None:
    """A result with an id answers the open call of that id, in any order, and takes the tool's name from it."""
    first = session.add_tool_call("look", {"at": 1}, call_id="a")
    second = session.add_tool_call("look", '{"at": 2}', call_id="b")

    late, early = session.add_tool_result(None, "two", call_id="b"), session.add_tool_result(None, "one", call_id="a")

    assert (late.answers, early.answers) == (second.seq, first.seq)
    assert early.name == "look"
    assert {entry.group for entry in session.entries()} == {first.seq}


def test_a_result_without_an_id_answers_the_oldest_open_call_of_its_tool(session: Session) -> None:
    """A result that names only its tool answers the oldest call of that tool that has no result yet."""
    session.add_tool_call("find", {})
    first, second = session.add_tool_call("look", 1), session.add_tool_call("look", 2)

    answers = [session.add_tool_result("look", "x").answers for _ in range(2)]

    assert answers == [first.seq, second.seq]


def test_a_call_gets_an_id_of_its_own(session: Session) -> None:
    """A call that is added without `call_id` gets a unique id."""
    ids = {session.add_tool_call("look", {}).call_id for _ in range(20)}

    assert len(ids) == 20
    assert all(ids)


@pytest.mark.parametrize(("given", "stored"), [("plain", "plain"), ({"a": [1, None]}, '{"a": [1, null]}'), (7, "7")])
def test_output_is_text_or_json(session: Session, given: Any, stored: str) -> None:
    """A result's output is stored unchanged if it is text, otherwise as JSON text."""
    assert session.add_tool_result("look", given).text == stored


@pytest.mark.parametrize("status", ["success", "error", "unknown", "pending", "denied"])
def test_a_status_is_a_field(session: Session, status: Any) -> None:
    """A result keeps the status that it was given; the default is unknown, whatever the output says."""
    assert session.add_tool_result("look", "x", status=status).status == status
    assert session.entry(1).status == status
    assert session.add_tool_result("look", "error!").status == "unknown"


def test_statuses_of_a_batch_go_to_the_results_they_name(session: Session) -> None:
    """`add(statuses=…)` sets the status of results by call id; `metadata` applies to every entry of the batch."""
    added = session.add(turn("1"), statuses={"1-left": "error"}, metadata={"run": 1})

    assert {e.call_id: e.status for e in added if e.kind == "tool_result"} == {"1-left": "error", "1-right": None}
    assert all(entry.metadata == {"run": 1} for entry in added)


def test_a_message_may_be_added_without_a_list(session: Session) -> None:
    """`add` takes one message as well as a list; an empty list adds nothing."""
    assert texts(list(session.add({"role": "user", "content": "alone"}))) == ["alone"]
    assert session.add([]) == ()
    assert session.stats().revision == 1


def test_a_key_makes_an_add_idempotent(session: Session) -> None:
    """Adding the same batch under the same key again adds nothing and returns the entries of the first time."""
    first = session.add(turn("1"), key="run 1")
    session.add_user_message("between")

    again = session.add(turn("1"), key="run 1")

    assert [entry.id for entry in again] == [entry.id for entry in first]
    assert len(session.entries()) == 7


def test_without_a_key_the_same_text_is_added_again(session: Session) -> None:
    """Without a key, equal texts are two entries: content is never taken for identity."""
    one, two = session.add_user_message("ok"), session.add_user_message("ok")

    assert one.id != two.id
    assert texts(session.entries()) == ["ok", "ok"]


def test_the_same_context_again_adds_nothing(session: Session) -> None:
    """A context equal in name and text to the newest of its name is not stored again; a returning older text is."""
    first = session.add_context("one", name="notes.md")

    assert session.add_context("one", name="notes.md") == first
    assert session.add_context("one", name="other.md").seq == 2
    second = session.add_context("two", name="notes.md")
    third = session.add_context("one", name="notes.md")
    assert [first.seq, second.seq, third.seq] == [1, 3, 4]


def test_a_new_text_supersedes_the_context_of_its_name(session: Session) -> None:
    """Contexts and active entries show only the newest text of a named context; the log keeps all of them."""
    session.add_user_message("read it")
    session.add_context("old text", name="notes.md")
    session.context()
    session.add_context("new text", name="notes.md")

    shown = str(session.context().messages)

    assert "new text" in shown
    assert "old text" not in shown
    assert texts(session.active_entries()) == ["read it", "new text"]
    assert texts(session.entries()) == ["read it", "old text", "new text"]


@pytest.mark.parametrize("given", ["entry", "id"])
def test_an_open_call_can_be_resolved(session: Session, given: str) -> None:
    """`resolve` adds a result for an open call, named by entry or id, whose process died; the group is shown then."""
    session.add_user_message("look")
    call = session.add_tool_call("look", {}, call_id="lost")
    assert session.context().pending == ("lost",)
    assert session.stats().open_calls == ("lost",)

    closing = session.resolve(call if given == "entry" else "lost", status="error")

    assert (closing.kind, closing.status, closing.answers) == ("tool_result", "error", 2)
    assert session.context().pending == ()
    assert session.stats().open_calls == ()
    with pytest.raises(EntryNotFound, match="open call 'lost'"):
        session.resolve(call if given == "entry" else "lost")


@pytest.mark.parametrize("where", ["log", "turn"])
@pytest.mark.parametrize("given", ["entry", "id", "entry without an id"])
def test_a_call_is_resolved_in_an_atomic_turn(session: Session, given: str, where: str) -> None:
    """Inside an atomic turn, `resolve` closes a call of the log or of the turn, and refuses a second result."""
    said = {"role": "model", "parts": [{"function_call": {"name": "look", "args": {}}}]}

    def called() -> Entry:
        return session.add(said)[0] if "without" in given else session.add_tool_call("look", {}, call_id="lost")

    before = called() if where == "log" else None
    with session.turn(atomic=True):
        call = before or called()
        session.resolve("lost" if given == "id" else call)
        with pytest.raises(EntryNotFound, match="open call"):
            session.resolve("lost" if given == "id" else call)

    assert [(entry.kind, entry.answers) for entry in session.entries()] == [("tool_call", 0), ("tool_result", 1)]
    assert session.verify().problems == ()


def test_resolve_closes_exactly_the_call_of_the_given_entry(session: Session) -> None:
    """Given an entry, `resolve` closes that call, even if an older call shares its id or the provider gave none."""
    session.add({"role": "model", "parts": [{"function_call": {"name": "look", "args": {}}}]})
    _, newer = (session.add_tool_call("look", {}, call_id="same") for _ in range(2))

    assert session.resolve(newer).answers == newer.seq
    with pytest.raises(EntryNotFound, match="open call 'same'"):
        session.resolve(newer)
    assert session.resolve(session.entries()[0]).answers == 1
    assert session.resolve("same").answers == 2


def test_resolve_takes_the_names_under_which_open_calls_are_listed(session: Session) -> None:
    """`resolve` takes every name under which `stats`, `context` and `end_turn` list open calls: the id, or the place of
    a call without one. An id that reads like a place goes first."""
    session.add({"role": "model", "parts": [{"function_call": {"name": name, "args": {}}} for name in ("look", "go")]})
    session.add_tool_call("look", {}, call_id="1")
    listed = session.stats().open_calls
    assert listed == session.context().pending == session.end_turn().open_calls == ("1", "2", "1")

    assert [session.resolve(name).answers for name in listed] == [3, 2, 1]

    assert session.stats().open_calls == ()
    with pytest.raises(EntryNotFound, match="open call '2'"):
        session.resolve("2")


# --- reading


def test_entries_are_the_log_in_order(session: Session) -> None:
    """`entries` returns the log, oldest first; `after` skips entries up to a seq, and `limit` bounds the number."""
    for number in range(1, 8):
        session.add_user_message(str(number))

    assert texts(session.entries()) == list("1234567")
    assert texts(session.entries(after=2, limit=3)) == ["3", "4", "5"]
    assert session.entries(after=7) == []
    assert session.entries(limit=0) == []


def test_an_entry_is_found_by_id_seq_and_its_number_as_text(session: Session) -> None:
    """`entry` takes an id, a seq, or a seq as text, as notes in a context give it."""
    session.add_user_message("one")
    two = session.add_user_message("two")

    assert session.entry(two.id) == session.entry(2) == session.entry("2") == two


def test_an_unknown_session_reads_as_empty(memory: Memory, session: Session) -> None:
    """A session that nobody has written to is empty; reading it raises nothing and creates nothing."""
    assert session.entries() == []
    assert session.active_entries() == []
    assert session.interactions() == []
    assert session.history() == []
    assert session.context().messages == []
    stats = session.stats()
    assert (stats.total_entries, stats.total_tokens, stats.revision, stats.created_at) == (0, 0, 0, None)
    assert memory.sessions() == []


def test_interactions_are_a_human_message_and_what_follows(session: Session) -> None:
    """An interaction is a human message and all that follows; only the newest without a final answer is open.

    The entries before the first human message have the index -1 and are never open.
    """
    session.add_system_message("be brief")
    session.add(turn("0"))
    session.add_user_message("first of two")
    session.add_user_message("second of two")

    found = session.interactions()

    assert [(each.index, len(each.entries), each.open) for each in found] == [
        (-1, 1, False),
        (0, 6, False),
        (1, 1, False),
        (2, 1, True),
    ]
    session.add_assistant_message("done")
    assert [each.open for each in session.interactions()] == [False] * 4


@pytest.mark.sampled
def test_interactions_are_read_page_by_page(session: Session) -> None:
    """Pages of any size give the same interactions, with the same numbers, as one list.

    This holds after rewinds and erasures. Entries added to the last returned interaction come in no further page; later
    interactions do.
    """
    session.add_system_message("be brief")
    for number in range(9):
        session.add(turn(str(number)))
    session.rewind(session.interactions()[4].entries[-1].id)
    for number in range(9, 13):
        session.add(turn(str(number)))
    session.erase([session.interactions()[2].entries[0].seq])
    whole = session.interactions()
    assert [each.index for each in whole] == [*range(-1, 8)]

    for limit in (1, 2, 3, 8, 9, 10):
        pages = [session.interactions(limit=limit)]
        while page := session.interactions(after=pages[-1][-1], limit=limit):
            pages.append(page)
        assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert [each for page in pages for each in page] == whole
    assert session.interactions(limit=0) == []

    session.add_assistant_message("one more thing")
    session.add_user_message("and then")
    assert [each.index for each in session.interactions(after=whole[-1])] == [8]


@pytest.mark.parametrize(
    "options",
    [
        {"after": 3},
        {"after": "x"},
        {"after": Interaction(3, (), open=False)},
        {"limit": -1},
        {"limit": True},
        {"limit": 1.5},
    ],
)
def test_a_page_of_interactions_begins_after_a_returned_interaction(session: Session, options: dict[str, Any]) -> None:
    """`after` has to be an interaction that was returned: a number could be an index or a `seq`, so it is refused."""
    with pytest.raises(ConfigError, match=str(*options)):
        session.interactions(**options)


def test_an_interaction_with_an_unanswered_call_is_open(session: Session) -> None:
    """A model's answer ends an interaction only if every call in it has a result."""
    session.add_user_message("look")
    session.add_tool_call("look", {}, call_id="a")
    session.add_assistant_message("I looked")

    assert session.interactions()[0].open
    session.add_tool_result(None, "late", call_id="a")
    session.add_assistant_message("now I know")
    assert not session.interactions()[0].open


def test_active_entries_are_what_the_newest_cut_keeps(memory: Memory) -> None:
    """After a cut the active entries are those that its context shows; the log still has all."""
    session = memory.session("one", max_tokens=200, counter=quarters)
    for number in range(20):
        session.add(turn(str(number)))
    context = session.context()

    active = session.active_entries()

    assert context.report.left_out
    assert [entry.seq for entry in active] == list(range(active[0].seq, 121))
    assert active[0].seq == context.report.first_seq
    assert len(session.entries()) == 120


@pytest.mark.sampled
def test_the_figures_of_stats_add_up(memory: Memory) -> None:
    """Active and archived entries add up to the total after cuts and erasures, and so do their tokens."""
    session = memory.session("one", max_tokens=200, counter=quarters)
    for number in range(20):
        session.add(turn(str(number)))
        session.context()
    session.erase([1, 2, 120])
    session.pin(119)

    stats = session.stats()

    active = session.active_entries()
    assert (stats.total_entries, stats.erased_entries, stats.summaries) == (117, 3, 0)
    assert stats.active_entries == len(active) > 0
    assert stats.archived_entries > 0
    assert stats.total_entries == stats.active_entries + stats.archived_entries
    assert stats.active_tokens == sum(entry.tokens for entry in active)
    assert stats.total_tokens == sum(entry.tokens for entry in session.entries() if not entry.erased)
    assert (stats.interactions, stats.pinned) == (20, 1)


def test_the_cost_of_an_entry_is_on_the_scale_of_stats(session: Session) -> None:
    """The costs of single entries add up to the cost of the session, whether they were counted before or not."""
    session.add(turn("1"))
    session.add_context("what is in it", name="notes.md")
    uncounted = [session.cost(entry) for entry in session.entries()]

    stats = session.stats()

    assert sum(uncounted) == stats.total_tokens == stats.active_tokens
    assert [session.cost(entry) for entry in session.entries()] == uncounted


WRONG: list[Any] = ["text", None, [Entry()], {"content": 5}, {"tokens": "x"}, {"role": "x"}]


@pytest.mark.parametrize("given", [*WRONG[:3], *(Entry(**fields) for fields in WRONG[3:])])
def test_only_an_entry_has_a_cost(session: Session, given: Any) -> None:
    """`cost` refuses what `add_entries` would refuse, and names the faulty field."""
    with pytest.raises(InvalidEntry, match="entry"):
        session.cost(given)


def test_a_context_names_its_entries(memory: Memory) -> None:
    """`Context.entries` holds the entries that are shown, pinned ones first.

    Entries that were left out, and stand-ins for results that never came, are not among them.
    """
    session = memory.session("one", max_tokens=200, counter=quarters)
    pinned = session.add_user_message("always", pinned=True)
    for number in range(20):
        session.add(turn(str(number)))
    session.add_tool_call("look", {})
    session.add_user_message("and now?")

    context = session.context()

    found = context.entries
    assert found[0].id == pinned.id
    assert [entry.seq for entry in found] == sorted(entry.seq for entry in found)
    assert len(found) == context.report.entries < len(session.entries())
    assert found[-1].id == session.entries(last=1)[0].id


def test_counting_counts_each_entry_once(memory: Memory) -> None:
    """`count` returns how many entries had no count yet; no later verb counts them again."""
    asked: list[str] = []

    def counter(text: str) -> int:
        asked.append(text)
        return 1

    session = memory.session("one", counter=counter)
    session.add(turn("1"))

    assert session.count() == 6
    assert session.count() == 0
    before = len(asked)
    assert session.stats().total_tokens >= 6
    assert len(asked) == before


def test_history_tells_what_every_revision_did(session: Session, clock: FakeClock) -> None:
    """`history` returns additions, pins and erasures in order, with revision, time and reason, whole or in a range."""
    session.add(turn("1"))
    session.pin(1)
    clock.advance(5)
    session.erase([2], reason="asked for")

    records = session.history()

    assert [(record.kind, record.revision, record.seqs) for record in records] == [
        ("add", 1, (1, 2, 3, 4, 5, 6)),
        ("pin", 2, (1,)),
        ("erase", 3, (2,)),
    ]
    assert records[2].reason == "asked for"
    assert records[2].at - records[1].at == 5_000_000
    assert session.history(after=1) == records[1:]
    assert session.history(before=3) == records[:2]
    assert session.history(after=3) == session.history(before=1) == []


# --- usage


def test_usage_is_kept_and_summed(session: Session) -> None:
    """`record_usage` keeps the figures of the last call and the totals of all calls."""
    session.add_user_message("hello")
    session.record_usage(input_tokens=100, output_tokens=20, cached_tokens=80)
    usage = session.record_usage(input_tokens=50, output_tokens=5)

    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (50, 5, 0)
    assert (usage.calls, usage.total_input, usage.total_output, usage.total_cached) == (2, 150, 25, 80)
    assert session.stats().usage == usage


@pytest.mark.sampled
def test_reported_usage_scales_the_budget_at_the_next_cut(memory: Memory) -> None:
    """For a model without a public tokenizer, the ratio learned from usage applies from the next cut on, not before."""
    session = memory.session("one", model="claude-sonnet-4-5", max_tokens=2000)
    session.add(turn("0"))
    sent = session.context()
    assert sent.budget.factor == pytest.approx(1.15)

    session.record_usage(input_tokens=sent.counted * 2)
    assert session.context().budget.factor == pytest.approx(1.15)
    while session.stats().epoch == 0:
        session.add(turn("more") * 4)
        given = session.context()

    assert given.budget.factor == pytest.approx(2.0)
    assert given.tokens <= 2000
    assert given.tokens == pytest.approx(given.counted * 2, abs=1)


@pytest.mark.sampled
def test_reported_usage_never_scales_an_exact_counter(memory: Memory) -> None:
    """For a model whose tokenizer is public, reported usage changes no budget."""
    session = memory.session("one", model="gpt-4o", max_tokens=1000)
    session.add(turn("0"))
    session.record_usage(input_tokens=session.context().counted * 3)
    while session.stats().epoch == 0:
        session.add(turn("more") * 4)
        given = session.context()

    assert given.budget.factor == 1.0


# --- expiry


def test_an_expired_entry_is_in_no_context(session: Session, clock: FakeClock) -> None:
    """From the second of its expiry on, an entry is in no context and is not active; the log keeps it."""
    session.add_user_message("stays")
    session.add_assistant_message("goes", expires_at=datetime.fromtimestamp(clock() / 1e6, UTC) + timedelta(seconds=60))

    clock.advance(59)
    assert "goes" in str(session.context().messages)
    clock.advance(1)

    assert "goes" not in str(session.context().messages)
    assert texts(session.active_entries()) == ["stays"]
    assert texts(session.entries()) == ["stays", "goes"]


def test_sweeping_destroys_expired_entries(memory: Memory, session: Session, clock: FakeClock) -> None:
    """`sweep` turns the expired entries of every session into tombstones and returns their number."""
    soon = datetime.fromtimestamp(clock() / 1e6, UTC) + timedelta(seconds=60)
    session.add_user_message("stays", expires_at=soon + timedelta(days=1))
    session.add_assistant_message("goes", expires_at=soon)
    memory.session("two").add_user_message("goes, too", expires_at=soon)

    assert memory.sweep() == 0
    clock.advance(60)
    assert memory.sweep() == 2
    assert memory.sweep() == 0

    assert [(entry.text, entry.erased) for entry in session.entries()] == [("stays", False), ("", True)]
    assert session.history()[-1].reason == "expiry"
    assert session.stats().erased_entries == 1


def test_a_list_that_grows_under_one_key_adds_what_is_new(session: Session) -> None:
    """Under one key, a batch that has grown adds only its new end; its beginning alone adds nothing."""
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    more = {"role": "user", "content": "three"}

    for batch in (said, said, [*said, more], said[:1]):
        session.add(batch, key="run-7")

    assert [entry.text for entry in session.entries()] == ["one", "two", "three"]


def test_info_tells_of_one_session(memory: Memory, session: Session) -> None:
    """`info` returns a session as a listing shows it, and raises SessionNotFound for an unknown one."""
    session.add_user_message("one")

    assert memory.info("one") == memory.sessions()[0]
    assert memory.info("one").updated_at == session.stats().updated_at
    with pytest.raises(SessionNotFound, match="'two'"):
        memory.info("two")


def test_stats_of_a_read_only_store_count_what_was_never_counted(tmp_path: Path) -> None:
    """`stats` of a read-only store counts entries that were never counted, although it cannot store the counts."""
    with Memory.open(tmp_path / "log.db") as memory:
        memory.session("one", counter=quarters).add_user_message("some words to count")
    with Memory.open(tmp_path / "log.db", readonly=True) as memory:
        stats = memory.session("one", counter=quarters).stats()

    assert stats.total_tokens == stats.active_tokens == quarters("some words to count")


def test_an_empty_call_id_counts_as_none(memory: Memory) -> None:
    """An empty `call_id` counts as none: a call gets an id, and a result answers the open call of its tool."""
    session = memory.session("s")
    call = session.add_tool_call("find", {}, call_id="")

    result = session.add_tool_result("find", "B 12", call_id="")

    assert (result.answers, result.call_id) == (call.seq, call.call_id)
    with pytest.raises(InvalidEntry, match="call_id"):
        session.add_tool_result(None, "B 12", call_id="")


@pytest.mark.parametrize("before", ["nothing", "user", "system", "context", "exchange", "late"])
def test_a_message_whose_beginning_was_not_copied_stands_by_itself(session: Session, before: str) -> None:
    """Entries from the middle of another session's message are a message of their own, valid in every format."""
    calls = [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}]
    call = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    answer = {"role": "tool", "tool_call_id": "c", "content": "found"}
    session.add([{"role": "user", "content": "one"}, call, answer])
    copied = session.entries(last=2)
    session.clear()
    adds = {
        "user": lambda: session.add_user_message("two"),
        "system": lambda: session.add_system_message("two"),
        "context": lambda: session.add_context("two", name="a.py"),
        "exchange": lambda: session.add([call, {"role": "tool", "tool_call_id": "c", "content": "two"}]),
        "late": lambda: session.add([call, {"role": "user", "content": "two"}, {**answer, "content": "late"}]),
    }
    if before in adds:
        adds[before]()
    shown = {format: session.context(format=format).log_messages for format in FORMATS}

    stored = session.add_entries(copied, key="copy")

    assert session.add_entries(copied, key="copy") == stored
    assert stored[1].answers == stored[0].seq
    assert not stored[1].late
    assert {entry.group for entry in stored} == {stored[0].seq}
    for format in FORMATS:
        context = session.context(format=format)
        assert PROVIDERS[format].faults(context.messages) == []
        assert str(context.messages).count("found") == 1
        assert rules.is_prefix(rules.packed(shown[format]), rules.packed(context.log_messages))
    assert session.verify().problems == ()


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("openai", {"role": "user", "content": "hello"}),
        ("anthropic", {"role": "user", "content": [{"type": "text", "text": "hello"}]}),
        ("gemini", {"role": "user", "parts": [{"text": "hello"}]}),
        ("openai-responses", {"role": "user", "content": "hello"}),
    ],
)
def test_metadata_of_a_message_is_that_of_its_entries(memory: Memory, format: Any, said: dict[str, Any]) -> None:
    """It is stored like metadata that is given beside the messages, which it goes before, and no provider gets it."""
    session = memory.session("s", format=format)
    noted = {**said, "metadata": {"user_id": "ann", "via": "mail"}}

    (first,) = session.add(noted, metadata={"via": "web", "run": 1})
    second, third = session.add([{**said, "metadata": None}, noted], key="k")

    assert first.metadata == {"user_id": "ann", "via": "mail", "run": 1}
    assert (second.metadata, third.metadata) == (None, {"user_id": "ann", "via": "mail"})
    assert session.add([{**said, "metadata": None}, noted], key="k") == (second, third)
    assert "metadata" not in str([*session.context().messages, *session.messages(format=format)])
    assert memory.forget(user="ann").entries == 2
    with pytest.raises(InvalidEntry, match=r"messages\[1\].metadata.at"):
        session.add([said, {**said, "metadata": {"at": object()}}])


def test_metadata_of_a_message_with_calls_is_that_of_all_its_entries(session: Session) -> None:
    """The text and each call have it; the messages around them do not."""
    calls = [{"id": id, "type": "function", "function": {"name": "find", "arguments": "{}"}} for id in "ab"]
    results = [{"role": "tool", "tool_call_id": id, "content": "found"} for id in "ab"]
    answer = {"role": "assistant", "content": "I look.", "tool_calls": calls, "metadata": {"step": 1}}

    stored = session.add([{"role": "human", "content": "hello"}, answer, *results])

    assert [entry.metadata for entry in stored] == [None, *[{"step": 1}] * 3, None, None]
    assert {entry.group for entry in stored[1:]} == {2}
