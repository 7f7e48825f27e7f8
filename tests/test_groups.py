"""Calls stay with their results, and pinned entries with their group, at any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest import BudgetImpossible, Context, InvalidEntry, Memory, Reasoning, Session
from palimpsest.log.head import OPEN_GROUP, OpenCall, SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Dump
from providers import PROVIDERS
from talks import Scripted
from worlds import STORES, open_world
from writer import quarters

BLOCK = {"memory_strategy_id": "max_tokens"}

KEYS = {"k": "11" * 32}
SUMMARIZER = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0}
HYBRID = {"strategy": "hybrid_summary", "summary_tokens": 60}


def opened(kind: str, folder: Path, *, sealed: bool = False) -> Memory:
    """Open an empty store of this kind, encrypted or not."""
    addresses = {"memory": "memory://", "file": f"file://{folder}/logs", "sqlite": f"sqlite:///{folder}/log.db"}
    durability: dict[str, Any] = {} if kind == "memory" else {"synchronous": "NORMAL"}
    return Memory.open(addresses[kind], encryption=KEYS if sealed else None, **durability)


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """An empty store of each kind."""
    with opened(request.param, tmp_path) as memory:
        yield memory


@pytest.fixture(params=[(kind, sealed) for kind in STORES for sealed in (False, True)], ids=str)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """An empty store of each kind, plain and encrypted."""
    kind, sealed = request.param
    with opened(kind, tmp_path, sealed=sealed) as memory:
        yield memory


def asking(*ids: str, said: str | None = None) -> dict[str, Any]:
    """Return a provider's message with these calls."""
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": said, "tool_calls": calls}


def telling(id: str, text: str) -> dict[str, Any]:
    """Return a provider's message with the result of a call."""
    return {"role": "tool", "tool_call_id": id, "content": text}


def turns(number: int) -> list[dict[str, Any]]:
    """Return so many short questions with answers."""
    question, answer = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "so many words here"}
    return [message for _ in range(number) for message in (question, answer)]


def results(ctx: Context) -> list[str]:
    """Return the results of calls that the context shows."""
    return [message["content"] for message in ctx.messages if message["role"] == "tool"]


# --- any number of open calls


@pytest.mark.parametrize(("calls", "characters"), [(300, 0), (150, 400)])
def test_every_call_gets_its_result_however_many_are_open(guarded: Memory, calls: int, characters: int) -> None:
    """Parallel calls, many or with long ids, are held back until all are answered, then shown, each with its result."""
    session = guarded.session("s", counter=strategies.WORDS)
    ids = [f"c{i}" + "x" * characters for i in range(calls)]
    session.add([{"role": "user", "content": "all of them"}, asking(*ids)])
    session.add([telling(id, f"result {i}") for i, id in enumerate(ids[:3])])
    before = session.context()
    session.add_tool_result(None, "result 3", call_id=ids[3])
    session.add([telling(id, f"result {i}") for i, id in enumerate(ids[4:], 4)])

    ctx = session.context()

    assert set(before.pending) == set(ids[3:])
    assert ctx.pending == ()
    assert results(ctx) == [f"result {i}" for i in range(calls)]
    assert session.verify().problems == ()


def test_a_call_too_many_is_refused_and_nothing_is_lost(guarded: Memory) -> None:
    """A session with the greatest number of open calls refuses another and stores nothing of it."""
    session = guarded.session("s", counter=strategies.WORDS)
    ids = [f"c{i}" for i in range(OPEN_GROUP)]
    session.add([{"role": "user", "content": "all of them"}, asking(*ids)])

    with pytest.raises(InvalidEntry, match="4097 calls wait for results, but at most 4096 may at once"):
        session.add_tool_call("f", {}, call_id="more")

    assert len(session.entries()) == OPEN_GROUP + 1
    session.add_tool_result(None, "first", call_id="c0")
    session.add_tool_call("f", {}, call_id="more")
    assert session.verify().problems == ()


@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(
    calls=st.integers(1, 400),
    random=st.randoms(use_true_random=False),
    at_once=st.integers(20, 300),
    length=st.sampled_from([1, 300]),
)
@pytest.mark.parametrize("guard", ["plain", "encrypted"])
def test_results_in_any_order_and_number_find_their_calls(
    guard: str, calls: int, random: Random, at_once: int, length: int
) -> None:
    """However many calls are open, and in whatever order results come, each call gets its own result."""
    with Memory.open("memory://", encryption=KEYS if guard == "encrypted" else None) as memory:
        session = memory.session("s")
        ids = [f"c{i}".ljust(length, "x") for i in range(calls)]
        asked = {entry.call_id: entry.seq for entry in session.add([asking(*ids)]) if entry.kind == "tool_call"}
        random.shuffle(ids)

        for first in range(0, calls, at_once):
            told = session.add([telling(id, "done") for id in ids[first : first + at_once]])
            assert [entry.answers for entry in told] == [asked[id] for id in ids[first : first + at_once]]

        assert session.stats().open_calls == ()
        assert session.verify().problems == ()


def load(memory: Memory, at: int = 0, head: dict[str, Any] | None = None, **links: Any) -> None:
    """Replace the session "s" by one with other links of an entry or another head."""
    key = SessionKey(memory.tenant, "s")
    found, entries = drive(memory.store.head(key)), drive(memory.store.read(key))
    assert found is not None
    if at:
        entries[at - 1] = msgspec.structs.replace(entries[at - 1], **links)
    found = msgspec.structs.replace(found, **(head or {}))
    drive(memory.store.load(key, Dump(head=found, entries=tuple(entries), records=()), replace=True))


@pytest.mark.parametrize(
    ("at", "links", "problem"),
    [
        (3, {"answers": 0}, "entry 3, a result, is linked to no call, though that of entry 1 waits for it"),
        (4, {"answers": 1}, "entry 4 answers entry 1, which is no earlier call, or has a result already"),
        (4, {"answers": 3}, "entry 4 answers entry 3, which is no earlier call, or has a result already"),
        (4, {"group": 4}, "entry 4 answers entry 2, which belongs to another group"),
        (4, {"group": 2}, "entry 4 is of the group of entry 2, but does not follow it"),
    ],
)
def test_verify_names_invalid_links(memory: Memory, at: int, links: dict[str, Any], problem: str) -> None:
    """A result that answers nothing, something else or twice, and a group that is apart, are named."""
    session = memory.session("s")
    session.add([asking("a", "b"), telling("a", "one"), telling("b", "two")])
    assert session.verify().problems == ()

    load(memory, at, **links)

    assert problem in session.verify().problems


def test_verify_names_open_calls_missing_from_the_head(memory: Memory) -> None:
    """`verify` names an open call that the head has forgotten, and one that it wrongly waits for."""
    session = memory.session("s")
    session.add([asking("a", "b"), telling("a", "one")])
    waits = session.stats().open_calls

    load(memory, head={"calls": (OpenCall(1, "a", "f", 1),)})

    assert waits == ("b",)
    assert session.verify().problems == (
        "the head expects a result for entry 1, which needs none",
        "entry 2 needs a result, but the head does not expect one",
    )


def test_verify_accepts_results_of_erased_calls_and_late_results(memory: Memory) -> None:
    """A result of a call that was erased before it came, or that a message has overtaken, breaks nothing."""
    session = memory.session("s")
    asked = session.add([asking("a", "b", "c")])
    session.erase([asked[0].seq])
    session.add([telling("a", "one"), {"role": "user", "content": "well?"}, telling("b", "two")])
    session.erase([asked[1].seq])

    assert session.verify().problems == ()


# --- pinned entries and their groups


@pytest.mark.sampled
@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_pinned_entry_keeps_its_group_however_far_cuts_have_passed_it(memory: Memory, which: int) -> None:
    """The text beside a call, the call or its result: whichever is pinned, every later cut shows all three."""
    session = memory.session("s", counter=strategies.WORDS, max_tokens=1500)
    session.add(turns(150))
    group = [asking("c0", said="let me look"), telling("c0", "the code is 4417")]
    added = session.add([{"role": "user", "content": "q"}, *group, {"role": "assistant", "content": "ok"}])
    session.pin(added[which].seq)
    session.context()
    session.add(turns(300))

    after = session.context()

    assert after.report.new_cut
    assert after.head_messages == [asking("c0", said="let me look"), telling("c0", "the code is 4417")]
    session.compact({"strategy": "summarizer", "interaction_keep": 2})
    assert session.verify().problems == ()
    assert results(session.context()) == ["the code is 4417"]


def test_a_pinned_open_call_is_held_back_although_its_groups_first_call_was_erased(
    memory: Memory,
) -> None:
    """A pinned open call whose group's first call was erased is held back until it is answered."""
    session = memory.session("s", counter=strategies.WORDS)
    session.add([{"role": "user", "content": "both"}, asking("c0", "c1")])
    session.erase([2])
    session.pin(3)

    waiting = session.context()
    session.add_tool_result(None, "4417", call_id="c1")
    answered = session.context()

    assert (waiting.pending, results(waiting)) == (("c1",), [])
    assert rules.unshown_pins(waiting, session.entries()[:3]) == []
    assert (answered.pending, results(answered)) == ((), ["4417"])
    assert rules.unshown_pins(answered, session.entries()) == []
    assert session.verify().problems == ()


def test_a_pinned_group_of_any_size_is_shown_whole(memory: Memory) -> None:
    """A group of more entries than are read at once keeps all of its results."""
    session = memory.session("s", counter=strategies.WORDS, max_tokens=3000)
    ids = [f"c{i}" for i in range(150)]
    told = [telling(id, f"code {id}") for id in ids]
    added = session.add(
        [{"role": "user", "content": "go"}, asking(*ids), *told, {"role": "assistant", "content": "ok"}]
    )
    session.pin(added[3].seq)
    session.add(turns(450))

    ctx = session.context()

    assert results(ctx) == [message["content"] for message in told]
    assert rules.parted(ctx, session.entries()) == []


@pytest.mark.sampled
@pytest.mark.parametrize(("pinned", "erased"), [(5, 3), (2, 3), (5, 4), (2, 6), (4, 6)])
def test_no_cut_after_a_compaction_begins_inside_a_pinned_group(memory: Memory, pinned: int, erased: int) -> None:
    """A pinned group with an erased member is shown without it and not covered."""
    session = memory.session("s", counter=strategies.WORDS, max_tokens=400, summarizer=Scripted("They talked."))
    session.add(turns(3))
    told = [telling(f"c{i}", f"the code is 441{i}") for i in range(3)]
    ask = asking("c0", "c1", "c2", said="let me look")
    added = session.add([{"role": "user", "content": "q"}, ask, *told, {"role": "assistant", "content": "ok"}])
    session.pin(added[pinned].seq)
    session.erase([added[erased].seq])
    session.add(turns(20))

    for strategy in (SUMMARIZER, HYBRID, SUMMARIZER):
        assert session.compact(strategy).done
        ctx = session.context()
        assert rules.parted(ctx, session.entries()) == []
        assert rules.unshown_pins(ctx, session.entries()) == []
        assert session.verify().problems == ()
        session.add(turns(20))


def test_an_open_group_takes_no_room_and_makes_no_cut(memory: Memory) -> None:
    """While many calls wait, contexts stay in their epoch, and no cut begins inside the group that is held back."""
    session = memory.session("s", counter=strategies.WORDS, max_tokens=100)
    session.add([*turns(5), {"role": "user", "content": "check all"}, asking(*(f"c{i}" for i in range(40)))])
    epochs = set()
    for i in range(39):
        session.add_tool_result(None, "as good as it was said to be", call_id=f"c{i}")
        ctx = session.context()
        assert rules.parted(ctx, session.entries()) == []
        epochs.add(ctx.epoch)

    assert len(epochs) == 1
    assert len(ctx.messages) == 11


# --- pins and conditions


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "condition", ["message.role != 'assistant'", "interaction.age < 1", "message.kind == 'message'"]
)
@pytest.mark.parametrize("short_term", [False, True])
def test_no_condition_drops_a_pinned_result(memory: Memory, short_term: bool, condition: str, at_once: bool) -> None:
    """A pinned result is shown with its call, whatever conditions say, and from the next context on where it was left
    out before; unpinned it is judged again at the next cut."""
    options: dict[str, Any] = {"max_tokens": 60, "conditions": [condition]}
    if short_term:
        options = {"short_term": [{**BLOCK, "memory_max_tokens": 60, "conditions": [condition]}]}
    session = memory.session("s", counter=strategies.WORDS, **options)
    added = session.add([{"role": "user", "content": "q"}, asking("c"), telling("c", "4417"), *turns(2)])
    session.add_user_message("now")
    before = [] if at_once else results(session.context())
    session.pin(added[2].seq)

    ctx = session.context()

    assert before in ([], ["4417"])  # an age is judged at cuts
    assert results(ctx) == ["4417"]
    assert session.context().messages == ctx.messages
    session.add(turns(30))
    assert results(session.context()) == ["4417"]
    session.unpin(added[2].seq)
    session.add(turns(30))
    assert results(session.context()) == []


@pytest.mark.parametrize("seen", [True, False])
def test_a_pinned_result_of_an_erased_call_shows_the_rest_of_its_group(memory: Memory, seen: bool) -> None:
    """Pinning a result whose call was erased shows the rest of its group, whatever conditions say."""
    session = memory.session("s", counter=strategies.WORDS, conditions=["not message.has_tool_calls"])
    session.add([{"role": "user", "content": "both"}, asking("c0", "c1"), telling("c0", "4417"), telling("c1", "4418")])
    session.erase([3])
    before = results(session.context()) if seen else []
    session.pin(5)

    ctx = session.context()

    assert before == []
    assert results(ctx) == ["4417"]
    assert session.context().epoch == ctx.epoch
    session.unpin(5)
    session.add(turns(1))
    assert results(session.context(max_tokens=6)) == []


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("answered", [1, 2])
def test_pinning_a_thought_of_an_open_group_brings_dropped_calls_back(
    memory: Memory, seen: bool, answered: int
) -> None:
    """A condition leaves out calls of a group that is still open; then a thought of it is pinned, which waited."""
    session = memory.session("s", counter=strategies.WORDS, conditions=["not message.has_tool_calls"])
    session.add_assistant_message([Reasoning(text="hm")])
    session.add([asking("c0", "c1"), *[telling(f"c{n}", "4417") for n in range(answered)]])
    if seen:
        session.context()
    session.pin(1)

    ctx = session.context()

    assert rules.unshown_pins(ctx, session.entries()) == []
    assert len(results(ctx)) == (2 if answered == 2 else 0)
    assert len(ctx._window.pending) == (answered == 1)


@pytest.mark.parametrize("cut", ["low_water", "exact"])
def test_a_cut_after_a_compaction_begins_behind_rewound_entries(memory: Memory, cut: str) -> None:
    """A group that goes on behind entries that were taken back is evicted whole: nothing of it is behind the start."""
    session = memory.session(
        "s", counter=strategies.WORDS, short_term=[{**BLOCK, "memory_max_tokens": 5_000, "cut": cut}]
    )
    session.add_assistant_message([Reasoning(text="hm")])
    revision = session.stats().revision
    session.add(turns(5))
    session.rewind(revision)
    session.add_assistant_message([Reasoning(text="yes")])
    session.add(turns(30))
    session.compact({"strategy": "simple_fifo"})

    ctx = session.context()

    assert rules.parted(ctx, session.entries()) == []


# --- whatever happens


def happen(session: Session, what: str, number: int) -> None:
    """Do something to one entry of the session, or to all of it."""
    alive = [entry.seq for entry in session.entries() if not entry.erased]
    if what == "compact":
        session.compact((SUMMARIZER, HYBRID, {"strategy": "simple_fifo"}, {"strategy": "mask_results"})[number % 4])
    elif what == "rewind":
        session.rewind(session.stats().revision * (number % 8) // 7)
    elif what != "nothing" and alive:
        seq = alive[number % len(alive)]
        {"pin": session.pin, "unpin": session.unpin}.get(what, lambda seq: session.erase([seq]))(seq)


parts = st.lists(
    st.tuples(
        strategies.logs(4),
        st.sampled_from([0, 0, 2, 20, 140]),
        st.sampled_from(["nothing", "pin", "pin", "pin", "unpin", "erase", "compact", "rewind"]),
        st.integers(0, 10_000),
    ),
    min_size=2,
    max_size=7,
)
conditions = st.sampled_from(
    [
        (),
        (),
        ("message.role != 'assistant'",),
        ("message.kind != 'tool_result' or message.content_length < 40",),
        ("interaction.age < 3",),
        ("not message.has_tool_calls", "interaction.age < 20"),
    ]
)


def check_world(kind: str, folder: Path, parts: Sequence[Any], budget: int | None, options: dict[str, Any]) -> None:
    """Do the steps and judge the context after each."""
    with open_world(kind, folder, max_tokens=budget, summarizer=Scripted("They talked."), **options) as world:
        start = 0
        for log, fill, what, number in parts:
            world.play(strategies.numbered(log, start))
            start += len(log)
            world.session.add(turns(fill))
            for event in ("nothing", what):
                happen(world.session, event, number)
                try:
                    ctx = world.session.context()
                except BudgetImpossible:
                    continue
                entries = world.session.entries()
                assert rules.faults(ctx.messages) == []
                assert rules.parted(ctx, entries) == []
                assert rules.unshown_pins(ctx, entries) == []
            proof = world.session.verify()
            assert proof.ok, proof.problems


@pytest.mark.sampled
@settings(deadline=None, max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(parts=parts, budget=st.none() | st.integers(30, 700), conditions=conditions)
@pytest.mark.parametrize("kind", STORES)
def test_no_cut_splits_a_group_or_leaves_out_a_pin(
    kind: str, folder: Path, parts: list[Any], budget: int | None, conditions: tuple[str, ...]
) -> None:
    """Cuts begin between groups, recorded results are not denied, and pins are shown with their group."""
    check_world(kind, folder, parts, budget, {"conditions": conditions} if conditions else {})


@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(parts=parts, budget=st.integers(30, 700), conditions=conditions)
def test_no_exact_walk_splits_a_group_or_leaves_out_a_pin(
    folder: Path, parts: list[Any], budget: int, conditions: tuple[str, ...]
) -> None:
    """A short-term strategy that selects entries anew at each call keeps groups whole and shows pins, too."""
    block = {**BLOCK, "memory_max_tokens": budget, "conditions": conditions}
    check_world("memory", folder, parts, None, {"short_term": [block]})


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses"])
def test_a_call_whose_result_was_erased_gets_a_stand_in(memory: Memory, format: str) -> None:
    """The call's group is shown with a stand-in for the result, and stays the same as the log grows."""
    session = memory.session("erased", counter=quarters, format=format, max_tokens=1_000)
    session.add_user_message("look it up")
    calls = [session.add_tool_call("find", {"at": number}) for number in range(2)]
    results = [session.add_tool_result("find", f"found {call.seq}", call_id=call.call_id) for call in calls]

    session.erase(results[1])

    context = session.context()
    assert context.pending == session.stats().open_calls == ()
    assert [entry.seq for entry in context.entries] == [1, 2, 3, 4]
    assert PROVIDERS[format].faults(context.messages) == []
    session.add_assistant_message("it is there")
    later = session.context()
    assert later.epoch == context.epoch
    assert later.log_messages[: len(context.log_messages)] == context.log_messages
