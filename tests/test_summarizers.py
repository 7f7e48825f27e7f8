"""What answers prompts: where users' functions run, limits, retries, the breaker, and what a session may be given."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.errors import ConfigError, SummarizerFailed
from palimpsest.log.summary import Spent
from palimpsest.runtime.runner import Inline, Runner, drive
from palimpsest.summaries import Prompt, Reply
from palimpsest.summaries.models import SUMMARIZERS, as_summarizer
from palimpsest.summaries.models.callables import CallableSummarizer, SourceSummarizer
from palimpsest.summaries.models.chat_model import ChatModel
from palimpsest.summaries.models.model_summarizer import ModelSummarizer
from palimpsest.summaries.models.resilience import Caller, CallLimits, Failure
from palimpsest.testing.clock import FakeClock
from palimpsest.types import CompactionResult
from runs import WORLDS, Complete, inline

PROMPT = Prompt(text="Sum this up.", stable=4, max_tokens=50)


@pytest.fixture(params=WORLDS)
def complete(request: pytest.FixtureRequest) -> Complete:
    """Runs a coroutine in a synchronous and in an asynchronous world."""
    run: Complete = request.param
    return run


def asked(given: object, prompt: Prompt = PROMPT) -> Callable[[Runner], Any]:
    """What asks a summarizer once."""

    async def ask(runner: Runner) -> Reply:
        summarizer = as_summarizer(given, runner, FakeClock())
        assert summarizer is not None
        return await summarizer.ask(prompt)

    return ask


async def answer(text: str) -> str:
    """A coroutine function as summarizer."""
    await asyncio.sleep(0)
    return f"summary of {text}"


class Blocking:
    """A callable object that blocks until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, text: str) -> str:
        assert self.go.wait(30)
        return text


# --- callables


@pytest.mark.parametrize("given", [lambda text: f"summary of {text}", answer, lambda text: answer(str(text))])
def test_any_callable_summarises(complete: Complete, given: Any) -> None:
    """A function, a coroutine function, and a function that returns a coroutine get the prompt's text."""
    reply = complete(asked(given))

    assert reply.text == "summary of Sum this up."
    assert (reply.spent.calls, reply.spent.input_tokens, reply.spent.output_tokens) == (1, 4, 6)


def test_a_structured_answer_is_kept_as_it_is(complete: Complete) -> None:
    """A mapping or a list is the answer's data; a Reply is taken whole, with what it says of costs."""
    whole = Reply(text="done", spent=Spent(calls=2, cost=0.5))

    assert complete(asked(lambda _: {"summary": "done"})).data == {"summary": "done"}
    assert complete(asked(lambda _: ["done"])).data == ["done"]
    assert complete(asked(lambda _: whole)) is whole


def test_what_is_no_answer_is_refused(complete: Complete) -> None:
    """A function that returns something else fails, and the error says what it returned."""
    with pytest.raises(SummarizerFailed, match="returned a NoneType") as failed:
        complete(asked(lambda _: None))

    assert failed.value.kind == "answer"


@pytest.mark.parametrize("error", [ValueError("no luck"), StopIteration()])
def test_what_a_callable_raises_is_the_cause(complete: Complete, error: Exception) -> None:
    """An error of a user's function is one failed call, not tried again; the error names it."""
    calls: list[str] = []

    def broken(text: str) -> str:
        calls.append(text)
        raise error

    with pytest.raises(SummarizerFailed) as failed:
        complete(asked(broken))

    assert (failed.value.kind, len(calls)) == ("raised", 1)
    assert "broken" in failed.value.summarizer
    assert type(error).__name__ in failed.value.why
    assert failed.value.__cause__ is not None


def test_a_hanging_callable_is_given_up(complete: Complete) -> None:
    """After its timeout nobody waits for a function that blocks, nor for a coroutine that never ends."""
    blocking = Blocking()
    cancelled = threading.Event()

    async def endless(_: str) -> str:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    for hanging in (blocking, endless):
        with pytest.raises(SummarizerFailed, match=r"no answer within 0\.05 s") as failed:
            complete(asked(CallableSummarizer(hanging, timeout=0.05)))
        assert failed.value.kind == "timeout"
    assert cancelled.wait(30)
    blocking.go.set()


def test_a_blocking_callable_stops_neither_the_loop_nor_the_store(complete: Complete) -> None:
    """While a function blocks, the runner's blocking functions and, with a loop, its tasks run: they let it go."""
    blocking = Blocking()

    async def work(runner: Runner) -> Reply:
        runner.background(lambda: runner.run(blocking.go.set))
        return await asked(blocking)(runner)

    assert complete(work).text == "Sum this up."


def test_retries_of_a_callable_are_asked_for(complete: Complete) -> None:
    """With `retries` a function is called again after a lost connection, and after nothing else."""
    outcomes = iter([ConnectionError("gone"), "done", ValueError("never"), "not reached"])

    def shaky(_: str) -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def work(runner: Runner) -> str:
        runner.sleep = no_sleep  # type: ignore[method-assign]
        summarizer = CallableSummarizer(shaky, retries=1).bound(runner, FakeClock())
        first = await summarizer.ask(PROMPT)
        with pytest.raises(SummarizerFailed, match="never"):
            await summarizer.ask(PROMPT)
        return first.text

    assert complete(work) == "done"


class Own:
    """A user's own summarizer."""

    name = "mine"

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    async def ask(self, prompt: Prompt) -> Any:
        await asyncio.sleep(0)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_an_object_with_ask_is_asked_as_it_is(complete: Complete) -> None:
    """It gets the whole prompt where a loop is, its window may be unknown, and its errors name it."""
    reply = Reply(text="done")
    failing = SummarizerFailed("mine", "rate_limited", "later")

    assert complete(asked(Own(reply))) is reply
    for outcome, kind in ((ValueError("no"), "raised"), (failing, "rate_limited"), (TimeoutError(), "timeout")):
        with pytest.raises(SummarizerFailed) as failed:
            complete(asked(Own(outcome)))
        assert (failed.value.summarizer, failed.value.kind) == ("mine", kind)
    with pytest.raises(SummarizerFailed, match="returned a str, not a Reply"):
        complete(asked(Own("text")))


ODD: list[Any] = [
    Reply(text=5),  # type: ignore[arg-type]
    Reply(text=None),  # type: ignore[arg-type]
    Reply(text=b"done"),  # type: ignore[arg-type]
    Reply(text="done", spent=None),  # type: ignore[arg-type]
    Reply(text="done", spent=Spent(cost=math.nan)),
    Reply(text="done", spent=Spent(cost=math.inf)),
    Reply(text="done", spent=Spent(cost=-1.0)),
    Reply(text="done", spent=Spent(cost="1")),  # type: ignore[arg-type]
    Reply(text="done", spent=Spent(input_tokens=-1)),
    Reply(text="done", spent=Spent(input_tokens=2**64)),
    Reply(text="done", spent=Spent(output_tokens=1.5)),  # type: ignore[arg-type]
    Reply(text="done", spent=Spent(output_tokens="7")),  # type: ignore[arg-type]
    Reply(text="done", spent=Spent(calls=True)),
]
"""Replies that say of themselves what no account can hold."""


class OwnBound(Own):
    """A user's own summarizer that a memory asks as it is."""

    window = max_output = None
    checked = True

    def bound(self, runner: Runner, clock: Callable[[], int]) -> OwnBound:
        return self

    async def ask(self, prompt: Prompt) -> Any:
        return self.outcome


@pytest.mark.parametrize("reply", ODD)
def test_a_reply_that_nobody_can_keep_is_no_answer(complete: Complete, reply: Reply) -> None:
    """Whoever gives a text that is none, or figures that no log keeps, has not answered."""
    for given in (Own(reply), lambda _: reply):
        with pytest.raises(SummarizerFailed, match="Reply") as failed:
            complete(asked(given))
        assert failed.value.kind == "answer"


def compacted(session: Session) -> CompactionResult:
    """What becomes of a conversation about orders."""
    for number in range(12):
        session.add({"role": "user", "content": f"Where is order {number}? It was to be in Berlin on Monday."})
        session.add({"role": "assistant", "content": f"Order {number} is on its way, and is there on Tuesday."})
    return session.compact("summarizer")


@pytest.mark.parametrize("own", [Own, OwnBound])
@pytest.mark.parametrize("reply", [*ODD, "done", None])
def test_no_answer_makes_a_session_unreadable(own: Callable[[Any], Any], reply: Any) -> None:
    """Whatever is answered: the session is compacted by the heuristic, is read on, and goes to another memory."""
    with Memory.open("memory://") as memory, Memory.open("memory://") as other:
        session = memory.session("chat", max_tokens=4000, summarizer=own(reply))
        done = compacted(session)

        assert done.summary is not None
        assert done.summary.method == "heuristic"
        other.import_session(session.export())
        assert other.session("chat").summaries() == session.summaries()


class Unspeakable(Exception):
    """An error that has no message to be had."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def _raising(error: Exception) -> Callable[[str], str]:
    def summarise(text: str) -> str:
        raise error

    return summarise


@pytest.mark.parametrize(
    "error", [Unspeakable(), ValueError("z" * 100_000), ValueError("z" * 540 + " ann@example.org")]
)
@pytest.mark.parametrize("own", [Own, _raising])
def test_an_error_costs_the_log_no_more_than_a_line(own: Callable[[Any], Any], error: Exception) -> None:
    """A summary is made whatever a summarizer raises; the log says why in brief, and nothing private."""
    with Memory.open("memory://", privacy="default") as memory:
        session = memory.session("chat", max_tokens=4000, summarizer=own(error))
        done = compacted(session)

    assert done.summary is not None
    assert done.summary.method == "heuristic"
    assert type(error).__name__ in done.summary.fallback
    assert len(done.summary.fallback) <= 600
    assert "ann@" not in done.summary.fallback


def test_what_is_spent_is_plain_numbers() -> None:
    """A cost of a class of somebody's numbers is added up as a number that a store can write."""

    class Dollars(float):
        pass

    added = Spent() + Spent(calls=1, cost=Dollars(0.5))

    assert (added, type(added.cost)) == (Spent(calls=1, cost=0.5), float)


# --- what a session may be given


def test_nothing_is_no_summarizer() -> None:
    """None stays None: what a session does without one is its own matter."""
    assert as_summarizer(None, Inline(), FakeClock()) is None


def test_each_is_bound_once_for_a_memory() -> None:
    """The same function, string or object gives the same summarizer, so that all sessions share its breaker."""
    runner, other = Inline(), Inline()
    model = ModelSummarizer("openai:gpt-4o-mini")

    for given in (answer, "openai:gpt-4o-mini", model):
        bound = as_summarizer(given, runner, FakeClock())

        assert as_summarizer(given, runner, FakeClock()) is bound
        assert as_summarizer(bound, runner, FakeClock()) is bound
        assert as_summarizer(given, other, FakeClock()) is not bound


def test_a_memory_remembers_no_more_than_some() -> None:
    """Functions that are new for every session do not pile up."""
    runner = Inline()

    for number in range(200):
        as_summarizer(lambda text, n=number: f"{text}{n}", runner, FakeClock())

    assert len(runner.kept) <= 64


def test_an_object_that_cannot_be_hashed_serves(complete: Complete) -> None:
    """What no dictionary can hold is bound all the same."""

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, text: str) -> str:
            return text

    assert complete(asked(Unhashable())).text == PROMPT.text


@pytest.mark.parametrize("given", [7, "", "gpt-4o-mini", "openai:", ":gpt", ModelSummarizer, object(), b"openai:x"])
def test_what_is_no_summarizer_is_refused(given: object) -> None:
    """The error names the option and says what is accepted."""
    with pytest.raises(ConfigError, match=r"(summarizer|model): .*openai:gpt-4o-mini"):
        as_summarizer(given, Inline(), FakeClock())


def test_a_plain_model_name_gets_a_hint() -> None:
    """A model's name without its provider is answered with the string that was meant, as is a misspelt provider."""
    with pytest.raises(ConfigError, match="did you mean 'openai:gpt-4o-mini'"):
        as_summarizer("gpt-4o-mini", Inline(), FakeClock())
    with pytest.raises(ConfigError, match="did you mean 'anthropic:claude-x'"):
        as_summarizer("antropic:claude-x", Inline(), FakeClock())


def test_a_chat_model_alone_is_no_summarizer() -> None:
    """What cannot be asked for a summary is refused when the session is opened."""
    with pytest.raises(ConfigError, match="summarizer"):
        as_summarizer(ChatModel("openai:gpt-4o-mini"), Inline(), FakeClock())


def test_a_registered_name_is_a_summarizer(complete: Complete) -> None:
    """A program may give a summarizer a name; a registered string is a model's."""
    SUMMARIZERS.register("shout", str.upper)
    SUMMARIZERS.register("small", "openai:gpt-4o-mini")

    assert complete(asked("shout")).text == "SUM THIS UP."
    small = as_summarizer("small", Inline(), FakeClock())
    assert small is not None
    assert (small.name, small.window) == ("openai:gpt-4o-mini", 128_000)


def test_an_installed_package_offers_summarizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group `palimpsest.summarizers` is found by its name."""
    (tmp_path / "offered_summaries.py").write_text("def brief(text):\n    return 'brief'\n")
    described = tmp_path / "offered_summaries-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-summaries\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[palimpsest.summarizers]\nbrief = offered_summaries:brief\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert inline(asked("brief")).text == "brief"


@pytest.mark.parametrize(
    "option",
    [
        *({"timeout": 0}, {"timeout": True}, {"timeout": float("inf")}, {"allowance": -1}),
        *({"retries": -1}, {"retries": 1.5}, {"window": 0}, {"stream": "yes"}),
        *({"base_url": "127.0.0.1:80"}, {"api_key": ""}, {"settings": 3}),
        *({"base_url": "http://"}, {"base_url": "http://[::1/v1"}, {"base_url": "http://127.0.0.1:99999/v1"}),
        *({"api_key": "sk-1\n"}, {"api_key": " sk-1"}, {"api_key": "sk-é"}, {"api_key": "sk\0"}),
    ],
)
def test_an_option_out_of_range_is_refused(option: dict[str, Any]) -> None:
    """Limits are checked when a summarizer is made, and the error names the option."""
    with pytest.raises(ConfigError, match=f"^{next(iter(option))}: "):
        ModelSummarizer("openai:gpt-4o-mini", **option)


# --- limits, retries, the breaker


async def no_sleep(_: float) -> None:
    """Sleeping costs a test nothing."""


class Lab:
    """A caller whose time stands still: it moves by what is slept, and by what an attempt takes."""

    def __init__(self, chance: float = 1.0, **limits: Any) -> None:
        self.now, self.chance = 1_000.0, chance
        self.slept: list[float] = []
        self.caller = Caller("lab", CallLimits(**limits), lambda: self.now, self.sleep, lambda: self.chance)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def call(self, *outcomes: Any, takes: float = 0.0) -> tuple[Any, int]:
        """Call with attempts of these outcomes; return the last one and how many attempts there were."""
        given: Iterator[Any] = iter(outcomes)
        attempts = 0

        async def attempt(_: float) -> Any:
            nonlocal attempts
            attempts += 1
            self.now += takes
            outcome = next(given)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        try:
            return drive(self.caller.call(attempt)), attempts
        except SummarizerFailed as failed:
            return failed, attempts


def passing(retry_after: float | None = None) -> Failure:
    """A failure that may pass."""
    return Failure("unavailable", "status 503", passing=True, retry_after=retry_after)


@pytest.mark.parametrize("kind", [CallableSummarizer, SourceSummarizer])
def test_a_function_may_take_all_of_its_timeout(kind: Any) -> None:
    """However long that is, an attempt is given it, and not what other calls are allowed."""
    left: list[float] = []

    async def attempt(seconds: float) -> str:
        left.append(seconds)
        return "done"

    limits = kind(len, timeout=600).limits
    assert drive(Caller("f", limits, lambda: 0.0, no_sleep).call(attempt)) == "done"
    assert left == [600]
    assert kind(len).limits == CallLimits(retries=0)


def test_what_may_pass_is_tried_again() -> None:
    """Two retries by default; the pauses before them double, up to a random share of each."""
    lab = Lab()

    assert lab.call(passing(), TimeoutError(), "done") == ("done", 3)
    assert lab.slept == [0.5, 1.0]
    failed, attempts = Lab(chance=0.5, retries=9).call(*[passing()] * 10)
    assert (failed.kind, attempts) == ("unavailable", 10)
    assert failed.why == "status 503 (attempt 10 of 10)"
    assert failed.__cause__ is None


def test_pauses_are_a_random_share_and_bounded() -> None:
    """Full jitter: chance takes any share of the pause, none of which is longer than half a minute."""
    lab = Lab(chance=0.25, retries=9, allowance=10_000)

    lab.call(*[passing()] * 10)

    assert lab.slept == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 7.5, 7.5, 7.5]


def test_what_cannot_pass_is_not_tried_again() -> None:
    """A refusal ends the call at once, with its reason."""
    failed, attempts = Lab().call(Failure("refused", "status 401: bad key"), "never")

    assert (failed.kind, failed.why, attempts) == ("refused", "status 401: bad key", 1)


def test_a_wish_to_wait_is_honoured_up_to_a_bound() -> None:
    """`Retry-After` is the least pause; one beyond the bound ends the call at once and is told."""
    lab = Lab()

    assert lab.call(passing(7.0), "done") == ("done", 2)
    assert lab.slept == [7.0]
    failed, attempts = lab.call(passing(31.0), "never")
    assert (failed.why, attempts) == ("status 503; it asks to wait 31 s, and 30 s are allowed", 1)


def test_a_call_has_an_allowance() -> None:
    """Attempts and pauses together take no longer than that, however many retries are left."""
    failed, attempts = Lab(retries=50, allowance=60).call(*[passing()] * 51, takes=25)

    assert attempts == 3
    assert "60 s allowed for a call are used up" in failed.why


def test_after_five_failures_nobody_is_asked() -> None:
    """The breaker opens, says so without an attempt, and lets one through after its pause, whose success closes it."""
    lab = Lab(retries=0)
    for _ in range(5):
        assert lab.call(passing())[1] == 1

    paused, attempts = lab.call("not asked")
    assert (paused.kind, attempts) == ("paused", 0)
    assert "in 30 s at the earliest" in paused.why
    lab.now += 30
    assert lab.call("back") == ("back", 1)
    assert lab.call(passing(), "never")[1] == 1
    assert lab.call("still closed") == ("still closed", 1)


def test_a_failed_probe_opens_the_breaker_again() -> None:
    """Who fails after the pause is left alone for another one."""
    lab = Lab(retries=0)
    for _ in range(5):
        lab.call(passing())
    lab.now += 30

    assert lab.call(passing())[1] == 1
    assert lab.call("not asked")[0].kind == "paused"
    lab.now += 29
    assert lab.call("not asked")[0].kind == "paused"
    lab.now += 1
    assert lab.call("back") == ("back", 1)


def test_only_one_probe_goes_at_a_time() -> None:
    """While one call finds out, others are not let through; one whose caller goes away leaves no trace."""
    lab = Lab(retries=0)
    for _ in range(5):
        lab.call(passing())
    lab.now += 30
    second: list[Any] = []

    async def probe(_: float) -> str:
        second.append(lab.call("not asked")[0].kind)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(lab.caller.call(probe))
    assert second == ["paused"]
    assert lab.call("back") == ("back", 1)
