"""When a session compacts by itself, which strategies may do it, and what a turn leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import ConfigError, EntryNotFound, Memory, Session
from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.style import Style
from palimpsest.compaction.triggers import Triggers
from palimpsest.testing import FakeClock
from processes import at_once
from talks import Listener, Scripted, filler, talk, use_tool, words


def summarizing(**options: Any) -> dict[str, Any]:
    triggers = {key: options.pop(key) for key in list(options) if key in Triggers.__struct_fields__}
    return {
        "strategy": "summarizer",
        "interaction_keep": 0,
        "cod_max_loops": 0,
        "summary_floor": 5,
        "on_failure": "keep",
        "triggers": triggers,
        **options,
    }


def texts(session: Session) -> str:
    return "\n".join(str(message.get("content")) for message in session.context().messages)


# --- what nobody listens to


@pytest.mark.parametrize("on_failure", ["heuristic", "keep"])
def test_a_summarizer_that_fails_is_logged_where_nobody_listens(
    memory: Memory, caplog: pytest.LogCaptureFixture, on_failure: str
) -> None:
    """A failing summarizer is logged if nobody listens to its event, and not logged otherwise."""
    strategy = summarizing(interaction_threshold_qty=2, on_failure=on_failure)
    wrong = Scripted(RuntimeError("the key is wrong"))
    event = "summarizer:failed" if on_failure == "heuristic" else "compaction:failed"
    for name in ("unheard", "heard"):
        heard = Listener().to(memory, event) if name == "heard" else None
        caplog.clear()
        session = memory.session(name, counter=words, long_term=strategy, summarizer=wrong)
        for _ in range(2):
            talk(session, 40)

        told = [record.getMessage() for record in caplog.records if event in record.getMessage()]
        if heard is None:
            assert len(told) == 1
            assert "session unheard" in told[0]
            assert "the key is wrong" in told[0]
        else:
            assert told == []
            assert heard.names() == [event]


# --- which strategy, and when


def test_the_first_that_fires_runs_and_all_run_on_request(memory: Memory) -> None:
    """Of two strategies that are due the first runs; with "all" each runs on the result of the one before."""
    both = [
        {"strategy": "mask_results", "interaction_keep": 0, "interaction_threshold_qty": 3},
        summarizing(interaction_threshold_qty=3, interaction_keep=1),
    ]
    for run, events in (("first", []), ("all", ["compressed"])):
        heard = Listener().to(memory, "compressed")
        session = memory.session(run, counter=words, long_term=both, long_term_run=run)
        for _ in range(3):
            session.add_user_message(filler(40))
            session.add_tool_call("look", {}, call_id="c")
            session.add_tool_result("look", filler(100) + " " + "x" * 200, call_id="c")
            session.add_assistant_message("it is done")
        assert heard.names() == events
        assert "old result left out" in texts(session) or run == "all"
        assert session.verify().ok


def test_a_rule_that_failed_is_looked_at_again_with_the_next_entry(memory: Memory) -> None:
    """After a failed compaction, a trigger on tokens fires again at the next entry, not a whole budget later."""
    session = memory.session(
        "s",
        counter=words,
        summarizer=Scripted(RuntimeError("down"), "fine."),
        long_term=summarizing(max_active_tokens=300),
    )
    talk(session, 200, 200)
    assert session.summaries() == []

    talk(session, 20, start=2)

    assert [made.text for made in session.summaries()] == ["fine."]


def test_a_tool_that_fired_in_vain_fires_again(memory: Memory) -> None:
    """A tool's success whose compaction failed counts again at the end of the next interaction, once."""
    asked = Scripted(RuntimeError("down"), "fine.")
    session = memory.session(
        "s", counter=words, summarizer=asked, long_term=summarizing(on_tools_success_threshold=["close_*"])
    )
    talk(session, 100)
    use_tool(session, "close_ticket", "success")
    assert asked.calls == 1
    talk(session, 100, start=1)
    assert asked.calls == 2
    talk(session, 100, start=2)
    assert asked.calls == 2


def test_input_tokens_of_an_outdated_context_fire_nothing(memory: Memory) -> None:
    """Usage for a context from before a compaction is added to the totals but fires no trigger."""
    session = memory.session("s", counter=words, long_term=summarizing(input_tokens_threshold=100))
    talk(session, 60)
    sent = session.context()
    session.compact()
    assert len(session.summaries(history=True)) == 1

    usage = session.record_usage(input_tokens=5000, context=sent)
    talk(session, 60, start=1)

    assert usage.stale
    assert usage.total_input == 5000
    assert len(session.summaries(history=True)) == 1
    session.record_usage(input_tokens=5000, context=session.context())
    talk(session, 60, start=2)
    assert len(session.summaries(history=True)) == 2


def test_without_usage_the_last_context_counts(memory: Memory) -> None:
    """If no usage was ever reported, a trigger on input tokens uses the exact count of the last context."""
    session = memory.session("s", counter=words, long_term=summarizing(input_tokens_threshold=100))
    talk(session, 101)
    assert session.summaries() == []
    assert session.context(max_tokens=None).tokens == 101
    talk(session, 10, start=1)
    assert len(session.summaries()) == 1
    talk(session, 10, start=2)
    assert len(session.summaries(history=True)) == 1


@pytest.mark.parametrize("how", ["the same object", "another object"])
def test_usage_applies_to_its_own_context_only(memory: Memory, how: str) -> None:
    """A report over the threshold fires for its own call; a later context is judged by its own count."""
    heard = Listener().to(memory, "compressed", "compaction:skipped", "compaction:failed")
    rules = summarizing(input_tokens_threshold=100, interaction_keep=50)  # keeps more interactions than there are
    session = memory.session("s", counter=words, long_term=rules)
    session.add_user_message("how are you?")
    session.record_usage(input_tokens=101, context=session.context())
    session.add_assistant_message("fine")
    assert [facts["result"].reason for _, facts in heard.heard] == ["nothing_to_compact"]
    heard.heard.clear()

    for _ in range(3):
        session.add_user_message("and now?")
        session.context()
        if how == "another object":
            session = memory.session("s", counter=words, long_term=rules)
        session.add_assistant_message("fine")

    assert heard.names() == []


@pytest.mark.parametrize("where", ["another object", "another program"])
def test_the_count_of_the_last_context_is_kept_with_the_session(tmp_path: Path, where: str) -> None:
    """The count of the last context is stored with the session, so that every object and process sees it."""
    rules = summarizing(input_tokens_threshold=100)
    with Memory.open(tmp_path / "log.db") as memory, Memory.open(tmp_path / "log.db") as elsewhere:
        giver = memory.session("s", counter=words, long_term=rules)
        talk(giver, 101)
        giver.add_user_message("and now?")
        context = giver.context()
        assert context.tokens == 103
        looker = (memory if where == "another object" else elsewhere).session("s", counter=words, long_term=rules)

        looker.add_assistant_message("fine")

        assert len(looker.summaries()) == 1
        assert giver.context(at=context.revision).messages == context.messages


def test_a_context_that_stores_nothing_leaves_no_count(memory: Memory) -> None:
    """Dry runs, past contexts, other views, read-only sessions and sessions without such a trigger store no count."""
    rules = summarizing(input_tokens_threshold=100)
    session = memory.session("s", counter=words, long_term=rules)
    talk(session, 101)
    before = session.stats().revision

    session.context(dry_run=True)
    session.context(at=1)
    session.context(view="other")
    memory.session("s", counter=words, long_term=rules, readonly=True).context()
    memory.session("s", counter=words, long_term=summarizing(interaction_threshold_qty=50)).context()

    assert session.stats().revision == before
    talk(session, 10, start=1)
    assert session.summaries() == []


def test_idle_seconds_fires_at_the_first_entry_after_the_pause(memory: Memory, clock: FakeClock) -> None:
    """`idle_seconds` fires with the first entry after the pause, even in a session opened again."""
    for name in ("same object", "new object"):
        session = memory.session(name, counter=words, long_term=summarizing(idle_seconds=3600))
        talk(session, 100, 100)
        clock.advance(3599)
        talk(session, 100, start=2)
        assert session.summaries() == []
        clock.advance(3600)
        if name == "new object":
            session = memory.session(name, counter=words, long_term=summarizing(idle_seconds=3600))
        session.add_user_message("I am back")
        assert [made.entries for made in session.summaries()] == [6]
        assert [entry.text for entry in session.active_entries()] == ["I am back"]


def test_before_turn_looks_before_each_context(memory: Memory) -> None:
    """With `before_turn`, triggers are checked before each context, so that additions of other writers count."""
    session = memory.session("s", counter=words, long_term=summarizing(interaction_threshold_qty=3), before_turn=True)
    talk(memory.session("s", counter=words), *[50] * 3)
    assert session.summaries() == []
    assert len(session.context().summaries) == 1


@pytest.mark.parametrize("how", ["one batch", "a turn", "an atomic turn", "one by one"])
def test_an_interaction_completes_however_it_is_added(memory: Memory, how: str) -> None:
    """An interaction is complete with its answer, whether added in a batch, in several appends or in a turn."""
    rules = summarizing(interaction_threshold_qty=2, on_tools_success_threshold=["never"])
    session = memory.session("s", counter=words, long_term=rules)
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": filler(40)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": filler(40)},
        {"role": "assistant", "content": filler(40)},
    ]
    for number in range(2):
        assert session.summaries() == [], number
        if "turn" in how:
            with session.turn(atomic=how == "an atomic turn"):
                for message in messages:
                    session.add(message)
                assert session.summaries() == []
        else:
            for batch in [messages] if how == "one batch" else [[one] for one in messages]:
                session.add(batch)
    assert [made.entries for made in session.summaries()] == [8]


def test_the_end_of_a_turn_returns_its_compactions(memory: Memory) -> None:
    """The entries of an atomic turn are compacted at its end, and `end_turn` returns the results."""
    session = memory.session("s", counter=words, long_term=summarizing(interaction_threshold_qty=2))
    with session.turn(atomic=True):
        talk(session, 50, 50)
        end = session.end_turn()
    assert end.added == 4
    assert [result.done for result in end.compactions] == [True]


def test_entries_of_other_writers_count_at_the_next_append(memory: Memory) -> None:
    """At its next append a session object counts what others have added since it last looked."""
    one = memory.session("s", counter=words, long_term=summarizing(max_entries=10))
    other = memory.session("s", counter=words)
    talk(one, 10, 10)
    talk(other, *[10] * 3, start=2)
    assert one.summaries() == []
    one.add_user_message("now there are eleven")
    assert len(one.summaries()) == 1


@pytest.mark.parametrize("what", ["restore", "erase", "rewind", "clear"])
def test_triggers_see_the_state_after_a_change(memory: Memory, what: str) -> None:
    """After a restore, erasure, rewind or clear, triggers see the entries that are active then."""
    session = memory.session("s", counter=words, long_term=summarizing(max_entries=10))
    talk(session, *[20] * 5)
    session.add_user_message("eleven")
    assert session.verify().covered > 0
    if what == "restore":
        session.restore()
        assert session.verify().covered == 0
        session.add_assistant_message("twelve")
        assert session.verify().covered > 0
        return
    if what == "erase":
        session.erase([1, 2])
    elif what == "rewind":
        session.rewind(4)
    else:
        session.clear()
    heard = Listener().to(memory, "compressed")
    active = len(session.active_entries())
    while active <= 10:
        assert heard.names() == []
        talk(session, 20)
        active += 2
    assert heard.names() == ["compressed"]
    assert session.verify().ok


def test_a_failing_condition_sends_one_event_for_a_session(memory: Memory) -> None:
    """A condition that cannot be evaluated counts its interaction and sends one event for a session."""
    heard = Listener().to(memory, "condition:error")
    rules = summarizing(interaction_threshold_qty=3, interaction_conditions=["message.metadata['n'] > 3"])
    session = memory.session("s", counter=words, long_term=rules)
    talk(session, *[50] * 3)
    assert len(heard.heard) == 1
    assert len(session.summaries()) == 1


def test_background_compactions_do_not_pile_up(memory: Memory) -> None:
    """Appends during a background compaction ask for one more run, after which everything is covered."""
    begun, release = threading.Event(), threading.Event()

    def slow(prompt: str) -> str:
        begun.set()
        release.wait(30)
        return "slowly."

    session = memory.session(
        "s",
        counter=words,
        summarizer=slow,
        auto_compact="background",
        long_term=summarizing(interaction_threshold_qty=2, interaction_keep=1),
    )
    talk(session, 100, 100)
    assert begun.wait(30)
    talk(session, *[100] * 20, start=2)
    assert len(session._core._scope.runner._jobs) <= 1
    release.set()
    memory.close()


def test_appends_do_not_fail_beside_background_compactions(memory: Memory) -> None:
    """Threads that share a session object add without failure while compactions run in the background."""
    session = memory.session(
        "s", counter=words, auto_compact="background", long_term=summarizing(max_entries=6, interaction_keep=1)
    )

    at_once(lambda i: talk(session, *[30] * 12, start=100 * i), 4)

    assert len(session.entries()) == 96


# --- turns and persistence


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("auto", ["inline", "background"])
def test_a_flush_destroys_what_its_turn_has_replaced(tmp_path: Path, atomic: bool, auto: Any) -> None:
    """A flush without archive destroys what its turn's summary replaced, however the turn is held."""
    path = tmp_path / "s.db"
    with Memory.open(path) as memory:
        session = memory.session(
            "s",
            counter=words,
            persistence="flush",
            archive=False,
            auto_compact=auto,
            summarizer=Scripted("kept in short."),
            long_term=summarizing(interaction_threshold_qty=2, interaction_keep=1),
        )
        with session.turn(atomic=atomic):
            session.add_user_message(f"the swordfish {filler(50)}")
            session.add_assistant_message("noted")
            talk(session, 50)
    with Memory.open(path) as memory:
        session = memory.session("s", counter=words)
        assert session.verify().ok
        assert "kept in short." in texts(session)
        assert [entry.erased for entry in session.entries()] == [True, True, False, False]
    assert b"swordfish" not in path.read_bytes()


def test_a_turn_that_fails_flushes_nothing(memory: Memory) -> None:
    """A turn that raises compacts and destroys nothing; its entries stay, unless it was atomic."""
    rules = summarizing(interaction_threshold_qty=2)
    for atomic, there in ((False, 4), (True, 0)):
        session = memory.session(f"{atomic}", counter=words, persistence="flush", archive=False, long_term=rules)

        def fail(session: Session, atomic: bool) -> None:
            with session.turn(atomic=atomic):
                talk(session, 50, 50)
                raise InterruptedError

        with pytest.raises(InterruptedError):
            fail(session, atomic)
        assert len(session.entries()) == there
        assert session.summaries() == []
        with session.turn(atomic=atomic):
            talk(session, 50, start=2)
        assert len(session.entries()) == there + 2


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_an_ephemeral_turn_leaves_nothing(memory: Memory, atomic: bool, fails: bool) -> None:
    """At the end of an ephemeral turn, all it added, compacted and forked is gone, even if it raised."""
    talk(memory.session("s", counter=words), 50)
    guest = memory.session(
        "s", counter=words, persistence="ephemeral", long_term=summarizing(interaction_threshold_qty=2)
    )

    def hold() -> None:
        with guest.turn(atomic=atomic):
            talk(guest, 50, 50, start=1)
            if not atomic:
                assert len(guest.fork("branch").entries()) == 6
                guest.compact({"strategy": "summarizer", "interaction_keep": 0})
            if fails:
                raise InterruptedError

    if fails:
        with pytest.raises(InterruptedError):
            hold()
    else:
        hold()

    assert len(guest.entries()) == 2
    assert guest.summaries() == []
    assert [info.session for info in memory.sessions()] == ["s"]
    with guest.turn():
        talk(guest, 50, start=1)
        assert len(guest.entries()) == 4


# --- a strategy of a user's own


class Mine:
    """A strategy that returns the plan it was given."""

    name, summarizes, erases, style = "mine", True, True, Style()
    triggers = Triggers(interaction_threshold_qty=2)

    def __init__(self, plan: Any) -> None:
        self.answer = plan

    def plan(self, snapshot: Snapshot) -> Plan:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


class Reader(Mine):
    """A strategy that declares that it neither summarizes nor erases."""

    summarizes = erases = False


REFUSED: dict[str, tuple[str, Any]] = {
    "raises": ("plan", ValueError("boom")),
    "nothing": ("plan", None),
    "overlapping": ("cover", Plan(cover=((2, 3), (3, 4)), summary_tokens=5)),
    "descending": ("evict", Plan(evict=((7, 7), (2, 3)))),
    "no pairs": ("cover", Plan(cover="x", summary_tokens=5)),  # type: ignore[arg-type]
    "far beyond the end": ("evict", Plan(evict=((2, 3), (9, 2**62)))),
    "all there ever is": ("erase", Plan(erase=((1, 2**62),))),
    "steps of text": ("steps", Plan(evict=((2, 3),), steps="ab")),  # type: ignore[arg-type]
    "a step without a name": ("steps", Plan(evict=((2, 3),), steps=(Step(None, 1, 2, "why"),))),  # type: ignore[arg-type]
    "no such reason": ("reason", Plan(reason="tired")),  # type: ignore[arg-type]
    "half a group": ("cover", Plan(cover=((5, 5),), summary_tokens=5)),
    "beyond the end": ("cover", Plan(cover=((100, 102),), summary_tokens=5)),
    "the system's": ("evict", Plan(evict=((1, 2),))),
    "pinned": ("evict", Plan(evict=((9, 9),))),
    "the open question": ("cover", Plan(cover=((10, 10),), summary_tokens=5)),
    "twice": ("evict", Plan(cover=((2, 3),), summary_tokens=5, evict=((3, 3),))),
    "no such summary": ("fold", Plan(fold=(7,), summary_tokens=5)),
    "no length": ("summary_tokens", Plan(cover=((2, 3),))),
    "a length of text": ("summary_tokens", Plan(cover=((2, 3),), summary_tokens="9")),  # type: ignore[arg-type]
    "a mask beyond the end": ("mask", Plan(mask=99)),
    "erased and masked": ("erase", Plan(erase=((2, 3),), mask=3)),
}


@pytest.fixture
def mixed(memory: Memory) -> Session:
    """A session with a system message, three interactions, one of them with a tool, a pin, and an open question."""
    session = memory.session("s", counter=words)
    session.add_system_message("be kind")
    talk(session, 100)
    use_tool(session, "look", "success")
    talk(session, 100, start=1)
    session.pin(9)
    session.add_user_message("and now?")
    return session


@pytest.mark.parametrize("fault", REFUSED)
def test_an_invalid_plan_is_refused(mixed: Session, fault: str) -> None:
    """A strategy that raises, or whose plan splits groups, takes pins, overlaps or names unknown entries, is
    refused."""
    field, answer = REFUSED[fault]
    before = {**mixed.export(), "exported_at": ""}

    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=rf"strategy mine: plan.*{field if field != 'plan' else ''}"):
            mixed.compact(Mine(answer), dry_run=dry_run)

    assert {**mixed.export(), "exported_at": ""} == before


@pytest.mark.parametrize("plan", [Plan(cover=((2, 3),), summary_tokens=5), Plan(erase=((2, 3),))])
def test_a_plan_is_held_to_its_strategy_s_declaration(mixed: Session, plan: Plan) -> None:
    """A strategy that declares that it does not summarize or erase may not plan to do so."""
    with pytest.raises(ConfigError, match="strategy mine"):
        mixed.compact(Reader(plan))


def test_a_valid_plan_of_a_user_s_strategy_is_carried_out(mixed: Session) -> None:
    """The groups in a valid plan are covered, evicted, masked, or erased with everything older."""
    done = mixed.compact(Mine(Plan(cover=((2, 3),), summary_tokens=40, evict=((4, 7),))))
    assert (done.covered, done.evicted) == (2, 4)
    erased = mixed.compact(Mine(Plan(erase=((2, 3), (8, 8)))))
    assert (erased.erased, erased.tokens_after) == (7, mixed.stats().active_tokens)
    assert [entry.seq for entry in mixed.active_entries()] == [1, 9, 10]
    assert mixed.summaries() == []
    assert mixed.verify().ok


def test_a_strategy_that_keeps_failing_is_paused(memory: Memory) -> None:
    """If a trigger leads to an invalid plan, no add fails, an event says so, and after three the strategy is paused."""
    heard = Listener().to(memory, "compaction:failed", "compaction:skipped")
    session = memory.session("s", counter=words, long_term=Mine(ValueError("boom")))
    talk(session, *[10] * 8)
    assert [facts["reason"] for _, facts in heard.heard] == ["failed", "failed", "failed", "paused"]
    assert "boom" in heard.facts("compaction:failed")[0]["why"]
    assert len(session.entries()) == 16


@pytest.mark.parametrize("when", ["inline", "background"])
@pytest.mark.parametrize(
    "triggers", [{"interaction_threshold_tokens": 60}, {"max_active_tokens": 60}, {"interaction_threshold_qty": 3}]
)
def test_a_failing_counter_does_not_fail_a_stored_append(when: str, triggers: dict[str, int]) -> None:
    """An append that is stored does not raise because a counter failed: it would be added again. An event says so."""

    def counter(text: str) -> int:
        if "<|endoftext|>" in text:
            raise ValueError("a special token")
        return len(text.split())

    with Memory.open("memory://") as memory:
        heard = Listener().to(memory, "compaction:failed")
        session = memory.session("one", counter=counter, long_term=summarizing(**triggers), auto_compact=when)
        for number in range(8):
            said = "<|endoftext|>" if number > 4 else filler(20)
            session.add_user_message(said)
            session.add_assistant_message(said)
        assert len(session.entries()) == 16
    assert "a special token" in str(heard.facts("compaction:failed"))


# --- bad input


def test_wrong_types_are_named(mixed: Session) -> None:
    """An argument of a wrong type is refused by its name, and nothing changes."""
    before = {**mixed.export(), "exported_at": ""}
    given: Any
    for name, act in {
        "dry_run": lambda: mixed.compact(dry_run="yes"),
        "force": lambda: mixed.compact(force=1),
        "threshold": lambda: mixed.compact(threshold="half"),
        "strategy": lambda: mixed.compact(5),
        "history": lambda: mixed.summaries(history="all"),
        "summary": lambda: mixed.restore(5),
        "ids": lambda: mixed.erase(None),
        "reason": lambda: mixed.erase([1], reason=5),
        "atomic": lambda: mixed.turn(atomic="yes").__enter__(),
        "context": lambda: mixed.record_usage(input_tokens=5, context="sent"),
        "view": lambda: mixed.context(view=5),
    }.items():
        with pytest.raises(ConfigError, match=name):
            act()
    for given in (None, 3.5, True, "nobody", 99, -1):
        with pytest.raises(EntryNotFound):
            mixed.entry(given)
    with pytest.raises(EntryNotFound):
        mixed.expand("nobody")
    assert {**mixed.export(), "exported_at": ""} == before


@pytest.mark.parametrize("how", ["erase", "erase a call", "clear", "delete", "delete and begin anew", "replace"])
def test_an_ephemeral_session_is_whole_whatever_is_destroyed_beside_it(memory: Memory, how: str) -> None:
    """`verify` reports no problem for stored entries that others destroyed, and still reports damaged ones."""
    stored = memory.session("s", counter=words)
    for number in range(4):
        stored.add_user_message(f"question {number} " + "word " * 40)
        stored.add_tool_call("look", {}, call_id=f"c{number}")
        stored.add_tool_result("look", "found", call_id=f"c{number}")
        stored.add_assistant_message(f"answer {number} " + "word " * 40)
    stored.add_tool_call("look", {}, call_id="open")
    stored.rewind(stored.add_user_message("taken back").revision - 1)
    assert stored.compact({"strategy": "summarizer", "interaction_keep": 2, "summary_floor": 5}).done
    export = stored.export()
    guest = memory.session("s", counter=words, persistence="ephemeral")
    guest.add_user_message("for now")
    guest.add_tool_result("look", "late", call_id="open")
    assert guest.verify().ok

    verbs: dict[str, Callable[[], object]] = {
        "erase": lambda: stored.erase([1, 18]),
        "erase a call": lambda: stored.erase([14, 17]),
        "clear": stored.clear,
        "delete": lambda: memory.delete_session("s"),
        "delete and begin anew": lambda: (memory.delete_session("s"), stored.add_user_message("anew")),
        "replace": lambda: memory.import_session(export, on_conflict="replace"),
    }
    verbs[how]()
    assert guest.verify().problems == ()
    guest.add_user_message("more")
    guest.pin(guest.entries()[-1])
    assert guest.verify().problems == ()
    assert guest.context().messages
    guest.end_turn()
    assert guest.verify().problems == ()
