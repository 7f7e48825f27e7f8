"""Compacted sessions and their past: branches, rewinds, erasure, exports, other views, reopening."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import BudgetImpossible, ConfigError, Conflict, Entry, EntryNotFound, Memory, Reasoning, Session
from palimpsest.compaction import Plan, Snapshot
from palimpsest.compaction.style import Style
from palimpsest.compaction.triggers import Triggers
from palimpsest.log.entry import moment
from palimpsest.strategies import Neuralyzer
from palimpsest.testing import FakeClock
from talks import Listener, Scripted, filler, talk, words

KEEP = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 5}


@pytest.fixture
def chat(memory: Memory) -> Session:
    """A system message and six interactions of 100 tokens, the first five of which are covered by a summary."""
    session = memory.session("chat", counter=words)
    session.add_system_message("be kind")
    talk(session, *[100] * 6)
    assert session.compact(KEEP).covered == 10
    return session


def shown(session: Session, **call: Any) -> str:
    return "\n".join(str(message["content"]) for message in session.context(**call).messages)


def seqs(session: Session) -> list[int]:
    return [entry.seq for entry in session.active_entries()]


def whole(session: Session) -> None:
    """Assert that a session verifies and that each current summary expands to the entries it covers."""
    proof = session.verify()
    assert proof.ok, proof.problems
    found = [entry.seq for made in session.summaries() for entry in session.expand(made)]
    assert len(found) == len(set(found))
    assert proof.covered == sum(not entry.erased for made in session.summaries() for entry in session.expand(made))


# --- branches


def test_a_branch_has_the_compactions_of_its_time(chat: Session) -> None:
    """A branch from before a compaction does not have it; one from after has its summary and context."""
    revision = chat.stats().revision
    before, after = chat.fork(at=revision - 1), chat.fork(at=revision)

    assert before.summaries() == []
    assert seqs(before) == list(range(1, 14))
    assert after.summaries() == chat.summaries()
    assert after.context().messages == chat.context().messages
    whole(before)
    whole(after)


def test_a_compaction_in_a_branch_leaves_the_parent_alone(chat: Session) -> None:
    """What a branch compacts, restores or evicts does not affect its parent, nor the other way round."""
    branch = chat.fork("branch")
    context, entries = chat.context().messages, chat.entries()

    talk(branch, 100, 100, start=6)
    assert branch.compact(KEEP).done
    branch.compact("simple_fifo")
    assert chat.context().messages == context
    assert chat.entries() == entries
    assert len(chat.summaries(history=True)) == 1

    newest = branch.summaries()
    chat.restore()
    assert branch.summaries() == newest
    assert chat.verify().covered == 0
    whole(chat)
    whole(branch)


def test_an_erasure_reaches_the_summaries_of_every_branch(chat: Session) -> None:
    """Erasing a covered entry takes its words from the summaries of all branches, and each is made again at once."""
    secret = chat.add_user_message("the password is swordfish")
    chat.add_assistant_message("noted")
    chat.compact({**KEEP, "interaction_keep": 0})
    branch, other = chat.fork("branch"), chat.fork("other", at=chat.stats().revision - 1)
    other.compact({**KEEP, "interaction_keep": 0})

    done = branch.erase([secret.id])

    assert (done.branches, done.withdrawn, done.rebuilt) == (("chat", "other"), 3, 3)
    for session in (chat, branch, other):
        assert len(session.summaries()) == 1
        assert not any("swordfish" in made.text for made in session.summaries(history=True))
        assert "swordfish" not in shown(session)
        assert "swordfish" not in json.dumps(session.export())
        whole(session)


def test_accesses_survive_reopening_and_part_in_a_fork(tmp_path: Path) -> None:
    """Accesses survive reopening; a branch starts with its parent's and continues on its own."""
    options: dict[str, Any] = {"counter": words, "max_messages": 4, "long_term": "lru", "auto_compact": "off"}
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", **options)
        said = [session.add_assistant_message(f"m{i}") for i in range(1, 5)]
        for i in (0, 1, 0, 1, 0, 2):  # most recently fetched, newest first: m3, m1, m2
            session.entry(said[i].id)
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", **options)
        branch = session.fork("branch")
        branch.entry(said[3].id)
        session.compact("lru")
        branch.compact("lru")
        assert [entry.text for entry in session.active_entries()] == ["m1", "m3"]
        assert [entry.text for entry in branch.active_entries()] == ["m3", "m4"]


def test_a_later_entry_counts_as_accessed_after_a_fetched_one(memory: Memory) -> None:
    """An entry appended later counts as accessed later than one that was fetched often before."""
    session = memory.session("s", counter=words, max_messages=4, long_term="lru", auto_compact="off")
    first = session.add_assistant_message("m1")
    for _ in range(10):
        session.entry(first.id)
    for text in ("m2", "m3", "m4"):
        session.add_assistant_message(text)
    session.compact("lru")
    assert [entry.text for entry in session.active_entries()] == ["m3", "m4"]


def test_reading_writes_nothing(tmp_path: Path) -> None:
    """Fetches and plans of a read-only session, and every dry run, change no byte of the store."""
    with Memory.open(tmp_path / "log.db") as memory:
        talk(memory.session("s"), *[60] * 6)

    def held() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    before = held()
    with Memory.open(tmp_path / "log.db") as memory:
        reader = memory.session("s", max_messages=4, long_term="lru", readonly=True)
        reader.entry(3)
        assert reader.compact(dry_run=True).evicted > 0
        assert reader.context().tokens > 0
        writer = memory.session("s", max_messages=4, long_term="lru", auto_compact="off")
        assert writer.compact({"strategy": "summarizer", "interaction_keep": 0}, dry_run=True).covered == 12
        assert writer.compact(dry_run=True, threshold=0.5).evicted > 0
    assert held() == before


# --- back and forth


def test_a_rewind_undoes_and_redoes_a_compaction(chat: Session) -> None:
    """A rewind to before a compaction makes all entries active; one to after it gives the contexts of then."""
    compacted = chat.context()
    talk(chat, 100, start=6)
    later = chat.context()
    chat.compact({"strategy": "simple_fifo", "max_messages": 4})
    revision = chat.stats().revision

    chat.rewind(13)
    assert chat.summaries() == []
    assert seqs(chat) == list(range(1, 14))
    whole(chat)
    chat.rewind(later.revision)
    assert chat.context().messages == later.messages
    assert seqs(chat) == [1, 12, 13, 14, 15]
    whole(chat)
    chat.rewind(compacted.revision)
    assert chat.context().messages == compacted.messages
    chat.rewind(revision)
    assert chat.verify().evicted > 0
    whole(chat)


def test_a_rewind_into_covered_entries_reactivates_them(chat: Session) -> None:
    """After a rewind to a covered entry, that and the earlier entries are active and the later ones rewound."""
    chat.rewind(chat.entries()[6])
    assert seqs(chat) == list(range(1, 8))
    assert chat.verify().rewound == 6
    talk(chat, 100, 100, start=6)
    assert chat.compact(KEEP).summary.covers == ((2, 7), (14, 15))
    whole(chat)


def test_every_context_of_a_long_history_can_be_rebuilt(memory: Memory, clock: FakeClock) -> None:
    """`context(at=…)` rebuilds the context of each revision, over compactions, masks, evictions, restores, pins and
    cuts."""
    session = memory.session("s", counter=words, max_tokens=700)
    given: dict[int, Any] = {}

    def note() -> None:
        ctx = session.context()
        given[ctx.revision] = ctx.messages

    for i in range(6):
        talk(session, 100, 100, start=2 * i)
        note()
        call = session.add_tool_call("look", {"i": i})
        session.add_tool_result("look", filler(40) + "x" * 200, call_id=call.call_id)
        session.add_assistant_message("seen")
        note()
        steps: list[Callable[[], object]] = [
            lambda: session.compact(KEEP),
            lambda: session.compact({"strategy": "mask_results", "interaction_keep": 0}),
            lambda: session.pin(3),
            session.restore,
            lambda: session.compact("simple_fifo"),
            lambda: session.compact({**KEEP, "summaries": "chain"}),
        ]
        steps[i]()
        note()
        clock.advance(60)
    assert len(given) >= 15
    for revision, messages in given.items():
        assert session.context(at=revision).messages == messages, revision
    whole(session)


# --- erasing, and what comes of it


@pytest.mark.parametrize("which", ["covered", "evicted", "pinned", "kept"])
def test_erasing_leaves_a_session_whole(memory: Memory, which: str) -> None:
    """An entry in any state can be erased: no context or summary has its words, and the rest is as it was."""
    session = memory.session("s", counter=words, max_messages=20)
    said = [session.add_user_message(f"swordfish{i} {filler(20)}") for i in range(1)]
    session.add_assistant_message("ok")
    talk(session, *[50] * 5)
    if which == "pinned":
        session.pin(said[0].id)
    if which == "evicted":
        session.compact({"strategy": "simple_fifo", "low_water": 0.3})
        assert session.verify().evicted
    elif which != "kept":
        session.compact(KEEP)
    assert which != "pinned" or "swordfish0" in session.context().messages[0]["content"]

    assert session.erase([said[0].id]).entries == 1

    assert "swordfish0" not in shown(session)
    assert not any("swordfish0" in made.text for made in session.summaries(history=True))
    whole(session)
    assert session.verify().erased == 1
    if which == "covered":
        assert len(session.summaries()) == 1
        assert session.restore() == 9
        whole(session)


def test_a_pinned_entry_of_a_lost_summary_is_not_covered_again(chat: Session) -> None:
    """An entry pinned while it was covered stays out of the summary that an erasure makes again."""
    chat.pin(5)
    chat.erase([2])
    (made,) = chat.summaries()
    assert 5 not in {entry.seq for entry in chat.expand(made)}
    assert chat.context().messages[1]["content"].startswith("a1 ")
    whole(chat)


def test_erasing_all_that_is_covered_withdraws_the_summary(chat: Session) -> None:
    """A summary of which every entry was erased is withdrawn: it has no text and cannot be restored."""
    made = chat.summaries()[0]
    chat.erase([entry.id for entry in chat.expand()])
    assert chat.summaries() == []
    assert [(one.withdrawn, one.text) for one in chat.summaries(history=True)] == [(True, "")]
    assert all(entry.erased for entry in chat.expand(made.id))
    with pytest.raises(ConfigError, match="current"):
        chat.restore(made)
    whole(chat)


def test_sweeping_a_covered_entry_replaces_the_summary(memory: Memory, clock: FakeClock) -> None:
    """Sweeping an expired entry that is covered removes its summary and makes another of the rest."""
    session = memory.session("s", counter=words)
    session.add_user_message("swordfish for an hour " + filler(30), expires_at=moment(clock.now) + timedelta(hours=1))
    session.add_assistant_message("ok")
    talk(session, *[60] * 4)
    session.compact(KEEP)
    clock.advance(7200)
    assert memory.sweep() == 1

    assert not any("swordfish" in made.text for made in session.summaries(history=True))
    (made,) = session.summaries()
    assert made.text
    assert made.method == "heuristic"
    assert len(session.expand()) == 7
    whole(session)


def test_an_entry_expired_before_its_group_is_covered_leaves_no_gap(memory: Memory, clock: FakeClock) -> None:
    """A summary covers the members of a group that have not expired; `verify` counts the others as expired."""
    session = memory.session("s", counter=words)
    session.add_user_message("question " + filler(30))
    session.add_entries(
        [
            Entry(role="assistant", content=(Reasoning(text="thinking of it " + filler(30)),)),
            Entry(role="assistant", content="for an hour", expires_at=moment(clock.now) + timedelta(hours=1)),
        ]
    )
    assert session.entry(2).group == session.entry(3).group
    talk(session, *[60] * 4)
    clock.advance(7200)

    assert session.compact(KEEP).done

    assert session.verify().problems == ()
    assert session.verify().expired == 1
    memory.sweep()
    whole(session)


def test_a_summary_made_again_leaves_out_expired_entries(memory: Memory, clock: FakeClock) -> None:
    """A summary that an erasure makes again leaves out what has expired since, and `verify` finds no gap."""
    session = memory.session("s", counter=words)
    session.add_user_message("the first " + filler(30))
    session.add_user_message("question " + filler(30))
    session.add_entries(
        [
            Entry(role="assistant", content=(Reasoning(text="thinking of it " + filler(30)),)),
            Entry(role="assistant", content="for an hour", expires_at=moment(clock.now) + timedelta(hours=1)),
        ]
    )
    talk(session, *[60] * 4)
    assert session.compact(KEEP).done
    clock.advance(7200)

    assert session.erase([1]).rebuilt == 1

    assert session.verify().problems == ()
    assert [entry.seq for entry in session.expand()][:2] == [2, 3]
    whole(session)


def test_a_neuralyzer_erases_covered_entries_and_their_summaries(chat: Session) -> None:
    """A neuralyzer also erases covered entries, and counts them in its figures, dry or real, and in its event."""
    heard = Listener().to(chat._core._scope.observers, "erased")
    forget = {"strategy": "neuralyzer", "interaction_keep": 1}
    planned = chat.compact(forget, dry_run=True)

    done = chat.compact(forget)

    assert (planned.erased, planned.tokens_after) == (done.erased, done.tokens_after)
    assert done.erased == 10
    assert done.tokens_after == chat.stats().active_tokens == 102
    assert heard.facts("erased")[0]["seqs"] == tuple(range(2, 12))
    assert chat.summaries() == []
    assert chat.verify().erased == 10
    whole(chat)


def test_a_neuralyzer_erases_summaries_of_flushed_entries(memory: Memory) -> None:
    """A neuralyzer erases the summary that is all that is left of entries that a flush destroyed."""
    block = {**KEEP, "interaction_threshold_qty": 2}
    session = memory.session(
        "s", counter=words, persistence="flush", archive=False, long_term=block, summarizer=Scripted("swordfish it was")
    )
    with session.turn():
        talk(session, 50, 50)
    assert "swordfish" in shown(session)

    done = session.compact({"strategy": "neuralyzer", "interaction_keep": 1})

    assert done.done
    assert "swordfish" not in shown(session)
    assert "swordfish" not in json.dumps(session.export())
    assert session.compact({"strategy": "neuralyzer", "interaction_keep": 1}).reason == "nothing_to_compact"
    whole(session)


def test_a_neuralyzer_leaves_a_branchs_own_summaries(memory: Memory) -> None:
    """A branch loses the shared entries, but not the summary of its own entries, which have the same seqs."""
    session = memory.session("s", counter=words)
    talk(session, 40)
    branch = session.fork("branch")
    talk(session, *[40] * 4, start=1)
    talk(branch, *[40] * 4, start=1)
    branch.hide(1, 2)
    kept = branch.compact(KEEP).summary
    assert kept is not None
    assert kept.covers == ((3, 8),)

    assert session.compact({"strategy": "neuralyzer", "interaction_keep": 1}).erased == 8

    assert [made.text for made in branch.summaries()] == [kept.text]
    assert branch.verify().erased == 2
    whole(branch)


@pytest.mark.parametrize("what", ["delete", "clear", "replace"])
@pytest.mark.parametrize("answer", ["too late.", RuntimeError("down")])
def test_a_compaction_does_not_revive_a_session_that_ended_meanwhile(
    memory: Memory, clock: FakeClock, what: str, answer: Any
) -> None:
    """A session deleted, cleared or replaced while its summarizer ran stays so."""
    talk(memory.session("other", counter=words), 30)
    export = {**memory.session("other").export(), "session_id": "s"}

    def late(prompt: str) -> str:
        clock.advance(1)
        if what == "delete":
            memory.delete_session("s")
        elif what == "clear":
            memory.session("s").clear()
        else:
            memory.import_session(export, on_conflict="replace")
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    session = memory.session("s", counter=words, summarizer=late)
    talk(session, *[100] * 3)

    done = session.compact({**KEEP, "interaction_keep": 0, "on_failure": "keep"})

    assert done.reason is not None
    assert session.summaries(history=True) == []
    assert len(session.entries()) == (2 if what == "replace" else 0)
    assert ("s" in [info.session for info in memory.sessions()]) is (what != "delete")
    whole(session)


def test_a_recreated_session_gets_no_summary_of_the_old_one(memory: Memory, clock: FakeClock) -> None:
    """A session of the same id that was created while a summarizer ran does not get the old session's summary."""
    asked = []

    def late(prompt: str) -> str:
        if not asked:
            memory.delete_session("s")
            clock.advance(1)
            talk(memory.session("s", counter=words), 5, 5, 5)
        asked.append(prompt)
        return "of it."

    session = memory.session("s", counter=words, summarizer=late)
    talk(session, *[100] * 3)

    done = session.compact({**KEEP, "interaction_keep": 0})

    assert done.reason or (done.summary is not None and done.summary.source_tokens == 15)
    whole(session)


class Pinning:
    """A neuralyzer during whose first plan somebody pins an entry."""

    name, summarizes, erases, style, triggers = "pinning", False, True, Style(), Triggers()

    def __init__(self, session: Session) -> None:
        self.session, self.planned = session, 0

    def plan(self, snapshot: Snapshot) -> Plan:
        plan = Neuralyzer(interaction_keep=0).plan(snapshot)
        if not self.planned:
            self.session.pin(1)
        self.planned += 1
        return plan


def test_an_entry_pinned_after_the_plan_is_not_erased(memory: Memory) -> None:
    """An entry that is pinned between a neuralyzer's plan and its commit is not erased."""
    session = memory.session("s", counter=words)
    talk(session, *[50] * 3)
    strategy = Pinning(session)

    done = session.compact(strategy)

    assert done.erased == 5
    assert session.context().messages[0]["content"].startswith("q0")
    whole(session)


# --- pins, open calls, late results


def test_pinning_an_entry_brings_it_back_into_the_context(memory: Memory) -> None:
    """A covered, evicted or cut entry that is pinned is in the next context, until it is unpinned.

    It counts as active, unless a summary covers it: then it stays covered although it is shown.
    """
    for how in ("covered", "evicted", "cut"):
        session = memory.session(how, counter=words, max_tokens=500)
        for i in range(8):
            talk(session, 100, start=i)
            if how == "cut":
                session.context()
        if how == "covered":
            session.compact(KEEP)
        elif how == "evicted":
            session.compact("simple_fifo")
        before = session.context()
        assert "q1 " not in "".join(message["content"] for message in before.messages[-4:])

        session.pin(3)
        ctx = session.context()

        assert ctx.messages[0]["content"].startswith("q1 ")
        assert ctx.epoch != before.epoch
        assert ctx.tokens <= 500
        assert (3 in seqs(session)) is (how != "covered")
        assert session.context().epoch == ctx.epoch
        session.unpin(3)
        talk(session, *[100] * 5, start=8)
        assert not session.context().messages[0]["content"].startswith("q1 ")
        whole(session)


def test_an_expired_pin_costs_no_cut_after_the_first(memory: Memory, clock: FakeClock) -> None:
    """A pinned entry that expires causes one cut; later contexts continue from each other."""
    session = memory.session("s", counter=words, max_tokens=500)
    session.add_user_message("for an hour", pinned=True, expires_at=moment(clock.now) + timedelta(hours=1))
    session.add_assistant_message("ok")
    for i in range(8):
        talk(session, 100, start=i)
        session.context()
    session.compact(KEEP)
    assert "for an hour" in shown(session)
    clock.advance(7200)
    gone = session.context()
    assert "for an hour" not in shown(session)
    talk(session, 10, start=9)
    assert session.context().epoch == gone.epoch


def test_a_pin_inside_what_is_covered_stays_in_the_log_order(memory: Memory) -> None:
    """System and pinned entries inside a covered span stand before the summary in log order, and are active."""
    session = memory.session("s", counter=words)
    session.add_system_message("first rule")
    talk(session, 100)
    session.add_system_message("second rule")
    talk(session, 100, start=1)
    session.pin(6)
    talk(session, 100, start=2)

    session.compact(KEEP)

    contents = [message["content"] for message in session.context().messages]
    assert [content.split(" ")[0] for content in contents] == ["first", "second", "a1", "<summary", "q2", "a2"]
    assert seqs(session) == [1, 4, 6, 7, 8]
    whole(session)


def test_open_calls_stay_and_late_results_of_covered_calls_are_data(memory: Memory) -> None:
    """A group that waits for results is not covered; a late result for a covered call is plain data."""
    session = memory.session("s", counter=words)
    session.add_user_message("look twice")
    one, two = (session.add_tool_call("look", {"n": n}, call_id=f"c{n}") for n in (1, 2))
    session.add_tool_result("look", "first", call_id=one.call_id)
    talk(session, *[100] * 4)
    done = session.compact({**KEEP, "interaction_keep": 0})
    assert done.done
    assert {2, 3, 4}.isdisjoint(entry.seq for entry in session.expand())

    session.add_tool_result("look", "second, late", call_id=two.call_id)
    session.add_assistant_message("now I know")
    whole(session)
    assert session.compact({**KEEP, "interaction_keep": 0}).done
    assert session.context().messages
    whole(session)


def test_an_open_interaction_of_many_calls_is_covered_but_for_its_question(memory: Memory) -> None:
    """With a window of entries, old groups of a long open interaction are covered; its question stays."""
    session = memory.session("s", counter=words, max_tokens=600)
    question = session.add_user_message("do all of it")
    for i in range(60):
        calls = [session.add_tool_call("work", {"i": i, "k": k}, call_id=f"c{i}.{k}") for k in range(2)]
        for call in reversed(calls):
            session.add_tool_result("work", filler(15), call_id=call.call_id)
        if i % 20 == 19:
            assert session.compact({**KEEP, "interaction_keep": 0, "recent_entries": 8, "min_entries": 5}).done
            assert session.context().tokens <= 600
            assert question.seq in seqs(session)
            whole(session)
    assert session.restore() > 200
    whole(session)


# --- restoring


def test_a_summary_of_another_session_is_not_restored(memory: Memory) -> None:
    """A summary object of another session is unknown here, even if its revision exists."""
    one, other = memory.session("one", counter=words), memory.session("other", counter=words)
    for session, keep in ((one, 1), (other, 3)):
        talk(session, *[100] * 5)
        session.compact({**KEEP, "interaction_keep": keep})
    made = other.summaries()[0]

    for act in (one.restore, one.expand):
        with pytest.raises(EntryNotFound, match=made.id):
            act(made)
    whole(one)


def test_restoring_one_summary_leaves_the_others(memory: Memory) -> None:
    """Restoring one summary of a chain brings back its own entries and leaves the other summaries."""
    session = memory.session("s", counter=words)
    for i in range(3):
        talk(session, 100, 100, start=2 * i)
        session.compact({**KEEP, "summaries": "chain", "interaction_keep": 0})
    first, second, third = session.summaries()

    assert session.restore(second.id) == 4
    assert session.summaries() == [first, third]
    assert seqs(session) == [5, 6, 7, 8]
    whole(session)
    assert session.compact({**KEEP, "interaction_keep": 0}).done
    assert len(session.summaries()) == 1
    assert len(session.expand()) == 12
    whole(session)


# --- exports and other processes


@pytest.mark.parametrize("mode", ["error", "replace", "merge"])
def test_an_export_of_a_compacted_session_comes_back(memory: Memory, chat: Session, mode: Any) -> None:
    """An export is imported in every mode with the same contexts, summaries and proofs."""
    chat.context()
    chat.pin(4)
    data = json.loads(json.dumps(chat.export()))

    copy = memory.session(memory.import_session(data, session_id="copy", on_conflict=mode), counter=words)
    assert copy.context().messages == chat.context().messages
    assert copy.summaries() == chat.summaries()
    whole(copy)
    assert copy.restore() == 10
    whole(copy)

    talk(copy, 100, start=6)
    copy.compact(KEEP)
    if mode == "error":
        with pytest.raises(Conflict):
            memory.import_session(data, session_id="copy", on_conflict=mode)
        assert copy.summaries()[0].entries == 11
    else:
        memory.import_session(data, session_id="copy", on_conflict=mode)
        assert len(copy.entries()) == (13 if mode == "replace" else 15)
        assert copy.summaries()[0].entries == (10 if mode == "replace" else 11)
    assert copy.context().messages
    whole(copy)


def test_an_export_with_compactions_is_stable(memory: Memory, chat: Session) -> None:
    """Exporting an imported export gives the same data, apart from the time of the export."""
    chat.context()
    talk(chat, 100, start=6)
    chat.compact({**KEEP, "summaries": "chain"})
    first = chat.export()
    memory.import_session(first, session_id="copy")
    second = memory.session("copy").export()
    for one in (first, second):
        one.update(exported_at="", session_id="")
    assert first == second


def test_history_tells_compactions(chat: Session) -> None:
    """Every compaction and restore is one record of the history, with its reason and figures."""
    chat.context()
    chat.restore()
    chat.compact({"strategy": "simple_fifo", "max_messages": 4})
    told = [(record.kind, record.reason) for record in chat.history() if record.kind != "add"]
    assert told == [("compact", "compaction"), ("cut", "compaction"), ("compact", "restore"), ("compact", "compaction")]
    (first, *_) = [record for record in chat.history() if record.kind == "compact"]
    assert first.detail["covered"] == 10
    assert first.detail["tokens_after"] < first.detail["tokens_before"]


def test_the_command_line_shows_compactions(here: Path) -> None:
    """The commands `history` and `diff` show a compaction, in words and as JSON."""
    with Memory.open(here / "chats.db") as memory:
        session = memory.session("chat", counter=words)
        talk(session, *[100] * 4)
        session.context()
        session.compact(KEEP)
        session.context()
        session.restore()
    done = run("history", "chat")
    assert done.exit_code == 0, done.output
    assert "compact" in done.output
    assert run("history", "chat", "--json").exit_code == 0
    diff = run("diff", "chat", "8", "9")
    assert diff.exit_code == 0, diff.output


def test_clearing_a_compacted_session_leaves_nothing(tmp_path: Path) -> None:
    """After `clear`, no summary and no byte of one is left in the store, and the session can go on."""
    path = tmp_path / "log.db"
    with Memory.open(path) as memory:
        session = memory.session("s", counter=words, summarizer=Scripted("swordfish was caught."))
        talk(session, *[100] * 4)
        session.compact(KEEP)
        session.context()
        session.clear()
        assert session.summaries(history=True) == []
        assert session.context().messages == []
        talk(session, *[100] * 3, start=4)
        assert session.compact({**KEEP, "summary_floor": 6}).done
        whole(session)
        memory.delete_session("s")
        assert session.summaries(history=True) == []
    assert b"swordfish" not in path.read_bytes()


def test_a_summary_is_left_out_before_a_context_is_refused(chat: Session, memory: Memory) -> None:
    """If what must be sent needs the room, the summary is left out first; only then is the context refused."""
    chat.add_user_message(filler(300))
    tight = memory.session("chat", counter=words, max_tokens=305)
    ctx = tight.context()
    assert ctx.summaries == []
    assert ctx.tokens <= 305
    with pytest.raises(BudgetImpossible):
        memory.session("chat", counter=words, max_tokens=290).context()


def test_a_pin_that_says_nothing_costs_one_cut(memory: Memory) -> None:
    """A pinned entry without content is in no context and does not cause a cut at each call."""
    session = memory.session("s", counter=words, max_tokens=300)
    session.add_entries([Entry(content="", pinned=True)])
    for i in range(6):
        talk(session, 100, start=i)
        session.context()
    assert session.context().epoch == session.context().epoch
    session.compact(KEEP)
    assert session.context().epoch == session.context().epoch
    session.pin(2)
    assert session.context().epoch == session.context().epoch
    assert session.context().report.pinned == (2,)


def test_a_group_that_a_cut_has_passed_is_not_split_by_a_pin(memory: Memory) -> None:
    """If a member of an evicted group is pinned, no member of the group is covered."""
    session = memory.session("s", counter=words, max_tokens=200)
    session.add_user_message("look")
    call = session.add_tool_call("look", {"n": 1})
    session.add_tool_result("look", filler(30), call_id=call.call_id)
    session.add_assistant_message("seen")
    for i in range(6):
        talk(session, 60, start=i)
        session.context()
    session.pin(call.id)

    assert session.compact(KEEP).done

    assert {2, 3}.isdisjoint(entry.seq for entry in session.expand())
    assert [message["role"] for message in session.context().messages[:2]] == ["assistant", "tool"]
    whole(session)
