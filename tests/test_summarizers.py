"""What may answer prompts: functions and objects of users, with their limits, retries and breaker."""

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
from run_coroutines import WORLDS, Complete, inline

PROMPT = Prompt(text="Sum this up.", stable=4, max_tokens=50)


@pytest.fixture(params=WORLDS)
def complete(request: pytest.FixtureRequest) -> Complete:
    """Return what runs a coroutine in a synchronous, or in an asynchronous, world."""
    run: Complete = request.param
    return run


def asked(given: object, prompt: Prompt = PROMPT) -> Callable[[Runner], Any]:
    """Return work that asks a summarizer once."""

    async def ask(runner: Runner) -> Reply:
        summarizer = as_summarizer(given, runner, FakeClock())
        assert summarizer is not None
        return await summarizer.ask(prompt)

    return ask


async def answer(text: str) -> str:
    """Answer as a coroutine function."""
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
    """A function, a coroutine function, and a function that returns a coroutine are given the prompt's text."""
    reply = complete(asked(given))

    assert reply.text == "summary of Sum this up."
    assert (reply.spent.calls, reply.spent.input_tokens, reply.spent.output_tokens) == (1, 4, 6)


def test_structured_answers_are_kept(complete: Complete) -> None:
    """A mapping or a list becomes the answer's data, and a Reply is taken whole, with its costs."""
    whole = Reply(text="done", spent=Spent(calls=2, cost=0.5))

    assert complete(asked(lambda _: {"summary": "done"})).data == {"summary": "done"}
    assert complete(asked(lambda _: ["done"])).data == ["done"]
    assert complete(asked(lambda _: whole)) is whole


def test_other_answers_are_refused(complete: Complete) -> None:
    """A function that returns anything else fails, and the error says what it returned."""
    with pytest.raises(SummarizerFailed, match="returned a NoneType") as failed:
        complete(asked(lambda _: None))

    assert failed.value.kind == "answer"


@pytest.mark.parametrize("error", [ValueError("no luck"), StopIteration()])
def test_an_error_of_a_callable_is_the_cause(complete: Complete, error: Exception) -> None:
    """An error of a user's function is one failed call, which is not tried again; the error names both."""
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
    """After its timeout neither a function that blocks nor a coroutine that never ends is waited for."""
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
    """While a function blocks, the runner's blocking functions and, with a loop, its tasks go on."""
    blocking = Blocking()

    async def work(runner: Runner) -> Reply:
        runner.background(lambda: runner.run(blocking.go.set))
        return await asked(blocking)(runner)

    assert complete(work).text == "Sum this up."


def test_retries_of_a_callable(complete: Complete) -> None:
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
    """A user's own summarizer, which returns or raises what it is given."""

    name = "mine"

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    async def ask(self, prompt: Prompt) -> Any:
        await asyncio.sleep(0)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_an_object_with_ask_is_asked(complete: Complete) -> None:
    """An object with `ask` gets the whole prompt, and its errors name it."""
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
"""Replies whose text or figures cannot be stored."""


class OwnBound(Own):
    """A user's own summarizer that is already bound, so that a memory asks it as it is."""

    window = max_output = None
    checked = True

    def bound(self, runner: Runner, clock: Callable[[], int]) -> OwnBound:
        return self

    async def ask(self, prompt: Prompt) -> Any:
        return self.outcome


@pytest.mark.parametrize("reply", ODD)
def test_an_impossible_reply_is_refused(complete: Complete, reply: Reply) -> None:
    """A Reply whose text is no text, or whose figures no log can store, is no answer."""
    for given in (Own(reply), lambda _: reply):
        with pytest.raises(SummarizerFailed, match="Reply") as failed:
            complete(asked(given))
        assert failed.value.kind == "answer"


def compacted(session: Session) -> CompactionResult:
    """Compact a conversation about orders, and return the result."""
    for number in range(12):
        session.add({"role": "user", "content": f"Where is order {number}? It was to be in Berlin on Monday."})
        session.add({"role": "assistant", "content": f"Order {number} is on its way, and is there on Tuesday."})
    return session.compact("summarizer")


@pytest.mark.parametrize("own", [Own, OwnBound])
@pytest.mark.parametrize("reply", [*ODD, "done", None])
def test_no_answer_makes_a_session_unreadable(own: Callable[[Any], Any], reply: Any) -> None:
    """Whatever is answered, the session is compacted by the heuristic, can be read, and can be exported."""
    with Memory.open("memory://") as memory, Memory.open("memory://") as other:
        session = memory.session("chat", max_tokens=4000, summarizer=own(reply))
        result = compacted(session)

        assert result.summary is not None
        assert result.summary.method == "heuristic"
        other.import_session(session.export())
        assert other.session("chat").summaries() == session.summaries()


class Unspeakable(Exception):
    """An error whose message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def _raising(error: Exception) -> Callable[[str], str]:
    """Return a summarizer that raises this error."""

    def summarise(text: str) -> str:
        raise error

    return summarise


@pytest.mark.parametrize(
    "error", [Unspeakable(), ValueError("z" * 100_000), ValueError("z" * 540 + " ann@example.org")]
)
@pytest.mark.parametrize("own", [Own, _raising])
def test_an_error_takes_one_line_of_the_log(own: Callable[[Any], Any], error: Exception) -> None:
    """A summary is made whatever a summarizer raises; the log says why in brief, and nothing private."""
    with Memory.open("memory://", privacy="default") as memory:
        session = memory.session("chat", max_tokens=4000, summarizer=own(error))
        result = compacted(session)

    assert result.summary is not None
    assert result.summary.method == "heuristic"
    assert type(error).__name__ in result.summary.fallback
    assert len(result.summary.fallback) <= 600
    assert "ann@" not in result.summary.fallback


def test_costs_are_plain_numbers() -> None:
    """A cost of a subclass of float is added up as a plain float."""

    class Dollars(float):
        pass

    total = Spent() + Spent(calls=1, cost=Dollars(0.5))

    assert (total, type(total.cost)) == (Spent(calls=1, cost=0.5), float)


# --- what a session may be given


def test_none_gives_no_summarizer() -> None:
    """Without a summarizer `as_summarizer` returns None."""
    assert as_summarizer(None, Inline(), FakeClock()) is None


def test_a_summarizer_is_bound_once_for_a_memory() -> None:
    """The same function, string or object gives the same summarizer, so that all sessions share its breaker."""
    runner, other = Inline(), Inline()
    model = ModelSummarizer("openai:gpt-4o-mini")

    for given in (answer, "openai:gpt-4o-mini", model):
        bound = as_summarizer(given, runner, FakeClock())

        assert as_summarizer(given, runner, FakeClock()) is bound
        assert as_summarizer(bound, runner, FakeClock()) is bound
        assert as_summarizer(given, other, FakeClock()) is not bound


def test_a_memory_keeps_a_bounded_number_of_summarizers() -> None:
    """Functions that are new for every session do not pile up."""
    runner = Inline()

    for number in range(200):
        as_summarizer(lambda text, n=number: f"{text}{n}", runner, FakeClock())

    assert len(runner.kept) <= 64


def test_an_object_that_cannot_be_hashed_serves(complete: Complete) -> None:
    """A callable that cannot be hashed is bound like any other."""

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, text: str) -> str:
            return text

    assert complete(asked(Unhashable())).text == PROMPT.text


@pytest.mark.parametrize("given", [7, "", "gpt-4o-mini", "openai:", ":gpt", ModelSummarizer, object(), b"openai:x"])
def test_an_invalid_summarizer_is_refused(given: object) -> None:
    """What is no summarizer raises ConfigError, which names the option and says what is accepted."""
    with pytest.raises(ConfigError, match=r"(summarizer|model): .*openai:gpt-4o-mini"):
        as_summarizer(given, Inline(), FakeClock())


def test_a_plain_model_name_is_answered_with_a_hint() -> None:
    """A model's name without its provider, or with a misspelt one, raises an error with the right string."""
    with pytest.raises(ConfigError, match="did you mean 'openai:gpt-4o-mini'"):
        as_summarizer("gpt-4o-mini", Inline(), FakeClock())
    with pytest.raises(ConfigError, match="did you mean 'anthropic:claude-x'"):
        as_summarizer("antropic:claude-x", Inline(), FakeClock())


def test_a_chat_model_is_no_summarizer() -> None:
    """A ChatModel alone is refused as a summarizer."""
    with pytest.raises(ConfigError, match="summarizer"):
        as_summarizer(ChatModel("openai:gpt-4o-mini"), Inline(), FakeClock())


def test_a_registered_name_is_a_summarizer(complete: Complete) -> None:
    """A registered name is the function, or the model string, that it was registered with."""
    SUMMARIZERS.register("shout", str.upper)
    SUMMARIZERS.register("small", "openai:gpt-4o-mini")

    assert complete(asked("shout")).text == "SUM THIS UP."
    small = as_summarizer("small", Inline(), FakeClock())
    assert small is not None
    assert (small.name, small.window) == ("openai:gpt-4o-mini", 128_000)


def test_an_installed_package_offers_summarizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group `palimpsest.summarizers` is found by its name."""
    (tmp_path / "offered_summaries.py").write_text("def brief(text):\n    return 'brief'\n")
    metadata = tmp_path / "offered_summaries-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-summaries\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[palimpsest.summarizers]\nbrief = offered_summaries:brief\n")
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
    """An option that is out of range raises ConfigError with its name when a summarizer is made."""
    with pytest.raises(ConfigError, match=f"^{next(iter(option))}: "):
        ModelSummarizer("openai:gpt-4o-mini", **option)


# --- limits, retries, the breaker


async def no_sleep(_: float) -> None:
    """Take the place of sleeping, so that tests do not wait."""


class Lab:
    """A caller whose clock stands still: it moves by what is slept, and by what an attempt takes."""

    def __init__(self, chance: float = 1.0, **limits: Any) -> None:
        self.now, self.chance = 1_000.0, chance
        self.slept: list[float] = []
        self.caller = Caller("lab", CallLimits(**limits), lambda: self.now, self.sleep, lambda: self.chance)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def call(self, *outcomes: Any, takes: float = 0.0) -> tuple[Any, int]:
        """Call with attempts of these outcomes; return the last outcome and the number of attempts."""
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
    """Return a failure that may pass."""
    return Failure("unavailable", "status 503", passing=True, retry_after=retry_after)


@pytest.mark.parametrize("kind", [CallableSummarizer, SourceSummarizer])
def test_a_function_may_take_all_of_its_timeout(kind: Any) -> None:
    """An attempt of a function is given its whole timeout, even beyond the allowance of other calls."""
    timeouts: list[float] = []

    async def attempt(seconds: float) -> str:
        timeouts.append(seconds)
        return "done"

    limits = kind(len, timeout=600).limits
    assert drive(Caller("f", limits, lambda: 0.0, no_sleep).call(attempt)) == "done"
    assert timeouts == [600]
    assert kind(len).limits == CallLimits(retries=0)


def test_passing_failures_are_tried_again() -> None:
    """A failure that may pass is tried twice more by default, after pauses that double."""
    lab = Lab()

    assert lab.call(passing(), TimeoutError(), "done") == ("done", 3)
    assert lab.slept == [0.5, 1.0]
    failed, attempts = Lab(chance=0.5, retries=9).call(*[passing()] * 10)
    assert (failed.kind, attempts) == ("unavailable", 10)
    assert failed.why == "status 503 (attempt 10 of 10)"
    assert failed.__cause__ is None


def test_pauses_are_a_random_share_and_bounded() -> None:
    """A pause is a random share of its bound, which doubles up to half a minute."""
    lab = Lab(chance=0.25, retries=9, allowance=10_000)

    lab.call(*[passing()] * 10)

    assert lab.slept == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 7.5, 7.5, 7.5]


def test_a_refusal_is_not_tried_again() -> None:
    """A refusal ends the call at once, with its reason."""
    failed, attempts = Lab().call(Failure("refused", "status 401: bad key"), "never")

    assert (failed.kind, failed.why, attempts) == ("refused", "status 401: bad key", 1)


def test_a_requested_pause_is_honoured_up_to_a_bound() -> None:
    """`Retry-After` is the least pause; one beyond the bound ends the call at once, and the error says so."""
    lab = Lab()

    assert lab.call(passing(7.0), "done") == ("done", 2)
    assert lab.slept == [7.0]
    failed, attempts = lab.call(passing(31.0), "never")
    assert (failed.why, attempts) == ("status 503; it asks to wait 31 s, but 30 s are allowed", 1)


def test_a_call_has_an_allowance() -> None:
    """Attempts and pauses of a call together take no longer than its allowance, however many retries are left."""
    failed, attempts = Lab(retries=50, allowance=60).call(*[passing()] * 51, takes=25)

    assert attempts == 3
    assert "60 s allowed for a call are used up" in failed.why


def test_the_breaker_opens_after_five_failures() -> None:
    """After five failures the breaker refuses calls; after its pause one attempt that succeeds closes it."""
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
    """A probe that fails after the pause opens the breaker for another one."""
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


def test_one_probe_goes_at_a_time() -> None:
    """While one call probes, others are refused; a probe whose caller goes away leaves no trace."""
    lab = Lab(retries=0)
    for _ in range(5):
        lab.call(passing())
    lab.now += 30
    refused_kinds: list[Any] = []

    async def probe(_: float) -> str:
        refused_kinds.append(lab.call("not asked")[0].kind)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(lab.caller.call(probe))
    assert refused_kinds == ["paused"]
    assert lab.call("back") == ("back", 1)
