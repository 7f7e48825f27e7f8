"""Compaction in every format, with every counter, and under an event loop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest import AsyncMemory, Context, Memory, Session
from palimpsest.formats import find_format
from palimpsest.testing import FakeClock
from palimpsest.tokens.counter import encoding
from providers import FORMATS, PROVIDERS
from talks import Scripted, as_it_is, filler, talk, words
from worlds import attempt

law = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "simple_fifo"},
    {"strategy": "token_aware_lru"},
    {"strategy": "hybrid_summary", "interaction_keep": 0, "summary_tokens": 60},
    {"strategy": "summarizer", "interaction_keep": 0},
    {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0},
    {"strategy": "summarizer", "recent_entries": 3, "min_entries": 2},
    {"strategy": "summarizer", "summaries": "chain", "interaction_keep": 1},
    {"strategy": "neuralyzer", "interaction_keep": 2},
    {"strategy": "mask_results", "interaction_keep": 0},
    {"strategy": "ladder", "interaction_keep": 1},
)
SUMMARY = "They looked at trains. They chose the night train to Vienna! It leaves at 22:10.\n- open: the seats\n" * 8


# --- what happens to a session between two contexts


def _any_entry(session: Session, number: int) -> int | None:
    alive = [entry.seq for entry in session.entries() if not entry.erased]
    return alive[number % len(alive)] if alive else None


def _restore(session: Session, number: int) -> Session:
    made = session.summaries()
    if made:
        session.restore(made[number % len(made)])
    return session


def _erase(session: Session, number: int) -> Session:
    seq = _any_entry(session, number)
    if seq is not None:
        session.erase([seq])
    return session


def _pin(session: Session, number: int) -> Session:
    seq = _any_entry(session, number)
    if seq is not None:
        session.pin(seq)
    return session


def _unpin(session: Session, number: int) -> Session:
    seq = _any_entry(session, number)
    if seq is not None:
        session.unpin(seq)
    return session


def _rewind(session: Session, number: int) -> Session:
    session.rewind(session.stats().revision * (number % 8) // 7)
    return session


def _fork(session: Session, number: int) -> Session:
    revision = session.stats().revision
    return session.fork(at=revision - number % 3) if revision > 3 else session


def _compact(session: Session, number: int) -> Session:
    session.compact(STRATEGIES[number % len(STRATEGIES)])
    return session


HAPPENINGS: tuple[Callable[[Session, int], Session], ...] = (
    *(_compact,) * 6,
    _restore,
    _erase,
    _pin,
    _unpin,
    _rewind,
    _fork,
)
happenings = st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 10_000)), max_size=2)


def check(ctx: Context, format: str, budget: int | None) -> None:
    """Assert that a context is valid for all judges, counts all that it says, and fits its budget."""
    provider, request = PROVIDERS[format], ctx.request()
    assert provider.faults(ctx.messages) == []
    assert provider.sdk_faults(request) == []
    said = sum(len(text.split()) for text in provider.texts(request))
    fmt = find_format(format)
    shown = [item.entry for group in (*ctx._ahead, *ctx._window.groups) for item in group.items]
    assert said <= ctx.tokens + fmt.prime + sum(map(fmt.overhead, shown))
    assert budget is None or ctx.tokens <= budget


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@law
@given(
    parts=st.lists(st.tuples(strategies.logs(4), happenings), min_size=1, max_size=5),
    budget=st.none() | st.integers(15, 300),
    answer=st.sampled_from([None, None, SUMMARY, RuntimeError("down"), ""]),
    system=st.sampled_from([None, "be kind and true"]),
)
def test_the_promises_hold_whatever_is_compacted(
    format: str, parts: list[Any], budget: int | None, answer: Any, system: str | None
) -> None:
    """Between any compactions, restores, erasures, pins, rewinds and forks, contexts are valid, fit, and only grow."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session(
            "s",
            max_tokens=budget,
            counter=strategies.WORDS,
            format=format,
            summarizer=None if answer is None else Scripted(answer),
        )
        before: Context | None = None
        for log, happening in parts:
            for operation in log:
                if isinstance(operation, strategies.Batch):
                    strategies.taken_in(session, operation.messages, "openai")
                else:
                    strategies.perform(session, operation, clock.now)
                before = _goes_on(session, format, budget, system, before)
            for happen, number in happening:
                name = session.id
                session = happen(session, number)
                if session.id != name:
                    before = None
                proof = session.verify()
                assert proof.ok, proof.problems
                before = _goes_on(session, format, budget, system, before)


def _goes_on(
    session: Session, format: str, budget: int | None, system: str | None, before: Context | None
) -> Context | None:
    """Check the next context against the one before it, and return it."""
    ctx = attempt(session, system=system)
    if ctx is None:
        return before
    check(ctx, format, budget)
    assert rules.parted(ctx, session.entries()) == []
    again = session.context(system=system)
    assert (again.epoch, again.messages) == (ctx.epoch, ctx.messages)
    if ctx.revision:
        assert session.context(at=ctx.revision, system=system).messages == ctx.messages
    if before is not None and before.epoch == ctx.epoch:
        assert rules.is_prefix(rules.packed(before.log_messages), rules.packed(ctx.log_messages))
        assert rules.packed(before.head_messages) == rules.packed(ctx.head_messages)
        if before.log_messages and before.system == ctx.system:
            provider = PROVIDERS[format]
            assert rules.is_prefix(provider.blocks(before.messages), provider.blocks(ctx.messages))
    return ctx


# --- exact, whoever counts


def billed(ctx: Context) -> int:
    """Return what OpenAI bills for a context's messages by its published rule, counted from the texts."""
    count = encoding("o200k_base").count
    return 3 + sum(3 + sum(count(str(value)) for value in message.values()) for message in ctx.messages)


@pytest.fixture
def vienna(memory: Memory) -> Session:
    """A compacted session of gpt-4o, with a summary of many short sentences."""
    said = " ".join(f"On day {i} they chose Vienna and hotel H-{i}." for i in range(30))
    session = memory.session("s", model="gpt-4o", max_tokens=1500, summarizer=Scripted(said))
    talk(session, *[120] * 10)
    done = session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 350})
    assert done.done
    talk(session, *[120] * 4, start=10)
    return session


def test_a_context_with_a_summary_costs_exactly_what_is_billed(vienna: Session) -> None:
    """A context's tokens, summary and fence included, are those of its request, whole or cut short."""
    whole = vienna.context()
    assert whole.tokens == billed(whole)
    assert len(whole.summaries) == 1

    for i in range(9):
        talk(vienna, 120, start=20 + i)
        ctx = vienna.context()
        assert ctx.tokens == billed(ctx) <= 1500
    assert "the rest is left out" in ctx.messages[0]["content"]


def test_a_long_summary_ends_at_a_sentence_within_its_share(vienna: Session) -> None:
    """In a small budget a summary is cut behind a sentence, with a marker, and takes at most a quarter."""
    small = vienna.context(max_tokens=700)

    content = small.messages[0]["content"]
    text = vienna.summaries()[0].text
    shown = content.split("\n\n", 1)[1].split("\n[the rest is left out: summary ")[0]
    assert text.startswith(shown)
    assert shown.endswith(".")
    assert len(shown) < len(text)
    assert small.tokens == billed(small) <= 700
    assert 0 < small.parts.summaries <= 700 // 4
    assert vienna.context().messages[0]["content"].count("chose Vienna") == 30


def test_two_views_show_what_fits_each(memory: Memory, vienna: Session) -> None:
    """A view with a small budget shows a shortened summary, and the session's own view the whole one; both are
    stable."""
    side = memory.session("s", model="gpt-4o", max_tokens=700, view="side")

    for session, limit in ((vienna, 1500), (side, 700), (vienna, 1500), (side, 700)):
        ctx = session.context()
        assert ctx.tokens == billed(ctx) <= limit
    assert vienna.context().messages[0]["content"].count("chose Vienna") == 30
    assert 0 < side.context().messages[0]["content"].count("chose Vienna") < 30


def test_a_side_view_does_not_compact_the_session(memory: Memory) -> None:
    """A view or a call with a small budget evicts only for itself and does not compact the session."""
    strategy = {"strategy": "summarizer", "interaction_keep": 1, "triggers": {"interaction_threshold_qty": 50}}
    session = memory.session("s", counter=words, max_tokens=5000, long_term=strategy)
    talk(session, *[100] * 10)

    assert session.context(view="side", max_tokens=200).tokens <= 200
    assert session.context(max_tokens=200).tokens <= 200

    assert session.summaries() == []
    assert session.context().tokens == 1000
    decision = session.compact("simple_fifo", threshold=0.5).decision
    assert decision is not None
    assert decision.threshold == 2500


def test_another_counter_counts_anew(memory: Memory, vienna: Session) -> None:
    """A session that is opened with another counter fits its budget by that counter, and by the first one
    afterwards."""
    for i in range(9):
        talk(vienna, 120, start=20 + i)
    before = vienna.context()
    for _ in range(2):
        by_words = memory.session("s", counter=words, max_tokens=600).context()
        assert by_words.tokens == sum(words(message["content"]) for message in by_words.messages) <= 600
        again = memory.session("s", model="gpt-4o", max_tokens=1500).context()
        assert again.tokens == billed(again) <= 1500
    assert before.tokens == billed(before)


def test_messages_are_limited_with_summaries_among_them(memory: Memory) -> None:
    """`max_messages` counts a chain of summaries, too, and leaves most of the room to interactions."""
    session = memory.session("s", counter=words, max_messages=8)
    for i in range(6):
        talk(session, 200, 200, start=2 * i)
        session.compact({"strategy": "summarizer", "summaries": "chain", "interaction_keep": 1})
        talk(session, 200, start=2 * i + 1)
        ctx = session.context()
        assert len(ctx.messages) <= 8
        assert f"q{2 * i + 1}" in ctx.messages[-2]["content"]
    assert len(session.summaries()) > 3


@pytest.mark.parametrize(("limit", "messages"), [(-1, 0), (60, 2), (200, 3)])
def test_an_exact_walk_has_room_for_interactions_first(memory: Memory, limit: int, messages: int) -> None:
    """A `max_tokens` block deducts summaries from its budget; a budget of 0 shows no summary either."""
    block = {"memory_strategy_id": "max_tokens", "memory_max_tokens": limit}
    session = memory.session("s", counter=words, short_term=block, summarizer=Scripted(filler(150, "long.")))
    talk(session, *[400] * 4)
    session.compact({"strategy": "summarizer", "cod_max_loops": 0})
    talk(session, 50)

    ctx = session.context()

    assert len(ctx.messages) == messages
    assert ctx.tokens <= max(limit, 0)


def test_stored_counts_make_a_compacted_session_do_without_the_vocabulary(tmp_path: Path) -> None:
    """A new process makes a context with a summary without loading the tokenizer."""
    with Memory.open(tmp_path / "s.db") as memory:
        chat = memory.session("s", max_tokens=2_000)
        talk(chat, *[120] * 30)
        chat.compact({"strategy": "summarizer", "interaction_keep": 3})
        assert len(chat.context().summaries) == 1
        chat.count()
        talk(chat, 120)
        chat.count()
    program = """
import sys
from palimpsest import Memory
with Memory.open(f"sqlite:///{sys.argv[1]}") as memory:
    context = memory.session("s", max_tokens=2_000).context()
    print(len(context.summaries), context.tokens, "tiktoken" in sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "s.db")]
    done = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)

    assert done.stdout.split()[::2] == ["1", "False"]


def test_a_summary_holds_only_what_providers_take(memory: Memory) -> None:
    """A lone surrogate of an entry, which no provider takes, is replaced in its summary."""
    session = memory.session("s", counter=words)
    session.add_user_message("half of a \ud800 smiley " + filler(200))
    session.add_assistant_message("ok")

    session.compact({"strategy": "summarizer", "interaction_keep": 0})

    (made,) = session.summaries()
    made.text.encode()
    assert "half of a \ufffd smiley" in made.text


# --- under an event loop


@pytest.fixture(params=["sqlite", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a durable store."""
    return f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else f"file://{tmp_path}/logs"


EVERY = {
    "strategy": "summarizer",
    "interaction_keep": 1,
    "cod_max_loops": 0,
    "summary_floor": 5,
    "triggers": {"interaction_threshold_qty": 4},
}


async def turns(session: Any, *numbers: int) -> None:
    for number in numbers:
        await session.add_user_message(f"q{number} {filler(40)}")
        await session.add_assistant_message(f"a{number} {filler(40)}")


@pytest.mark.anyio
@pytest.mark.parametrize("auto", ["inline", "background", "off"])
async def test_the_verbs_are_the_same_under_a_loop(place: str, auto: Any) -> None:
    """Under an event loop compactions run inline, in the background or by hand, and can be restored."""
    async with AsyncMemory.open(place) as memory:
        chat = memory.session("s", counter=words, long_term=EVERY, auto_compact=auto, summarizer=Scripted("all fine."))
        await turns(chat, 0, 1, 2, 3)
        await memory.runner.settle()
        if auto == "off":
            assert await chat.summaries() == []
            assert (await chat.compact()).done
        (made,) = await chat.summaries()
        assert (made.text, made.entries) == ("all fine.", 6)
        assert len(await chat.expand(made)) == 6
        assert (await chat.context()).summaries == [made]
        assert (await chat.verify()).ok
        assert await chat.restore(made) == 6
        assert (await chat.verify()).active == 8


@pytest.mark.anyio
async def test_many_tasks_add_while_compactions_run(place: str) -> None:
    """When tasks of two memories add and compact at once, each entry is there once and in one state."""
    async with AsyncMemory.open(place) as one, AsyncMemory.open(place) as other:
        summarizer = Scripted("short.")

        async def work(memory: AsyncMemory, first: int, auto: Any) -> None:
            chat = memory.session("s", counter=words, long_term=EVERY, auto_compact=auto, summarizer=summarizer)
            for number in range(first, first + 6):
                await chat.add([{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "a " * 30}])
                assert (await chat.verify()).ok

        jobs = [work((one, other)[i % 2], 10 * i, ("inline", "background")[i // 2 % 2]) for i in range(4)]
        await asyncio.gather(*jobs)
        await one.runner.settle()
        await other.runner.settle()

        chat = one.session("s", counter=words)
        proof = await chat.verify()
        assert proof.ok, proof.problems
        assert (proof.total, proof.evicted) == (48, 0)
        assert proof.covered > 0
        assert len(await chat.expand()) == proof.covered
        said = {entry.text for entry in await chat.entries() if entry.is_human}
        assert said == {f"q{10 * i + n}" for i in range(4) for n in range(6)}


@pytest.mark.anyio
async def test_a_cancelled_task_has_appended_and_leaves_no_lease(place: str) -> None:
    """A task that is cancelled during an inline compaction has its entry stored and leaves no lease."""
    begun, never = asyncio.Event(), asyncio.Event()

    async def hanging(prompt: str) -> str:
        begun.set()
        await never.wait()
        return "never"

    async with AsyncMemory.open(place) as memory:
        chat = memory.session("s", counter=words, long_term=EVERY, summarizer=as_it_is(hanging))
        task = asyncio.create_task(turns(chat, 0, 1, 2, 3))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert len(await chat.entries()) == 8
        assert await chat.summaries() == []
        assert (await chat.verify()).ok
        other = memory.session("s", counter=words, summarizer=Scripted("at once."))
        assert (await other.compact({"strategy": "summarizer", "cod_max_loops": 0})).done


@pytest.mark.anyio
async def test_a_blocking_summarizer_does_not_block_the_loop(place: str) -> None:
    """While a blocking summarizer runs, the event loop goes on, and other sessions are read and written."""
    begun, release = threading.Event(), threading.Event()

    def blocking(prompt: str) -> str:
        begun.set()
        release.wait(30)
        return "at last."

    async with AsyncMemory.open(place) as memory:
        chat = memory.session("s", counter=words, long_term=EVERY, summarizer=as_it_is(blocking))
        task = asyncio.create_task(turns(chat, 0, 1, 2, 3))
        await asyncio.to_thread(begun.wait, 30)
        other = memory.session("other", counter=words)
        await turns(other, 0)
        assert len((await other.context()).messages) == 2
        assert len((await chat.context()).messages) == 8
        assert not task.done()
        release.set()
        await task
        assert (await chat.summaries())[0].text == "at last."


@pytest.mark.anyio
async def test_closing_waits_for_what_runs_in_the_background(place: str) -> None:
    """`close` waits until a background compaction that has begun is done."""
    begun = asyncio.Event()

    async def slow(prompt: str) -> str:
        begun.set()
        for _ in range(50):
            await asyncio.sleep(0)
        return "done in time."

    async with AsyncMemory.open(place) as memory:
        chat = memory.session(
            "s",
            counter=words,
            long_term=EVERY,
            auto_compact="background",
            summarizer=as_it_is(slow),
        )
        await turns(chat, 0, 1, 2, 3)
        await begun.wait()
    async with AsyncMemory.open(place) as memory:
        assert [made.text for made in await memory.session("s").summaries()] == ["done in time."]


@pytest.mark.anyio
async def test_a_summarizer_may_use_the_session_that_it_summarises(place: str) -> None:
    """A summarizer may read and add to its session; a compaction that it asks for returns "pending"."""
    async with AsyncMemory.open(place) as memory:
        reasons: list[Any] = []

        async def curious(prompt: str) -> str:
            chat = memory.session("s", counter=words, summarizer=as_it_is(curious))
            await chat.add_user_message("from inside")
            reasons.append((await chat.compact("summarizer")).reason)
            return f"{len((await chat.context()).messages)} messages."

        chat = memory.session("s", counter=words, summarizer=as_it_is(curious))
        await turns(chat, 0, 1, 2)

        done = await chat.compact({"strategy": "summarizer", "interaction_keep": 0, "cod_max_loops": 0})

        assert done.summary is not None
        assert (done.summary.text, reasons) == ("7 messages.", ["pending"])
        assert [entry.text for entry in await chat.active_entries()] == ["from inside"]


def test_an_interrupt_during_a_summary_leaves_all_as_it_was(memory: Memory) -> None:
    """Ctrl-C during a summary is raised at once; the entries are stored, and the next compaction works."""
    main, never = threading.get_ident(), threading.Event()

    def interrupting(prompt: str) -> str:
        signal.pthread_kill(main, signal.SIGINT)
        never.wait(30)
        return "too late."

    chat = memory.session("s", counter=words, long_term=EVERY, summarizer=as_it_is(interrupting))
    talk(chat, *[80] * 3)
    with pytest.raises(KeyboardInterrupt):
        talk(chat, 80, start=3)
    never.set()

    assert len(chat.entries()) == 8
    assert chat.verify().active == 8
    assert memory.session("s", counter=words, summarizer=Scripted("fine.")).compact(EVERY).done
