"""Summaries by a user's function, or by a user's object with `ask`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from palimpsest.errors import ConfigError, SummarizerFailed
from palimpsest.errors.wording import words_of
from palimpsest.log import values
from palimpsest.log.summary import Spent
from palimpsest.runtime.runner import Runner
from palimpsest.summaries import Prompt, Reply, SummarySource
from palimpsest.summaries.models.resilience import Caller, CallLimits, Failure, check_size, limits_of_function
from palimpsest.summaries.replies import flaw_of
from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import default_encoding


class CallableSummarizer:
    """A function from the prompt's text to the summary, or a coroutine function.

    It may also return a mapping or a list (what a provider made of a structured answer) or a Reply, which says what it
    cost. An ordinary function runs in a thread of its own and may block. A thread cannot be stopped, so a function that
    timed out may continue to run in vain. Raises ConfigError naming the option.

    Args:
        function: the function, of one text.
        name: its name in errors; None: the function's own name.
        window: how many tokens it reads at once; None: unknown.
        max_output: how many tokens it answers with at most; None: unknown.
        checked: whether answers are checked against their source; False: any text that is short enough is accepted.
        timeout: seconds after which it is given up.
        retries: how often it is asked again, only after ConnectionError and TimeoutError; 0 by default.
    """

    def __init__(
        self,
        function: Callable[[str], Any],
        *,
        name: str | None = None,
        window: int | None = None,
        max_output: int | None = None,
        checked: bool = True,
        timeout: float = CallLimits().timeout,
        retries: int = 0,
    ) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigError("summarizer", function, "a function or coroutine function from text to text")
        self.limits = limits_of_function(timeout, retries)
        check_size("window", window)
        check_size("max_output", max_output)
        values.switch("checked", checked)
        self.function, self.window, self.max_output, self.checked = function, window, max_output, checked
        self.name = name or _name_of(function)

    def bound(self, runner: Runner, clock: Callable[[], int]) -> BoundCallable:
        """Return the summarizer for one memory, with its `runner` and its `clock` (microseconds)."""
        return BoundCallable(self, runner, clock)


class BoundCallable:
    """A user's function, bound to a memory."""

    def __init__(self, summarizer: CallableSummarizer, runner: Runner, clock: Callable[[], int]) -> None:
        self._summarizer, self._runner = summarizer, runner
        self._caller = Caller(summarizer.name, summarizer.limits, lambda: clock() / 1_000_000, runner.sleep)
        self.name, self.checked = summarizer.name, summarizer.checked
        self.window, self.max_output = summarizer.window, summarizer.max_output

    async def ask(self, prompt: Prompt) -> Reply:
        """Return what the function returned. Raises SummarizerFailed."""

        async def attempt(seconds_left: float) -> Any:
            seconds = min(self._summarizer.limits.timeout, seconds_left)
            returned = await _as_failure(_call_user(self._runner, self._summarizer.function, prompt.text, seconds))
            if not isinstance(returned, str | Mapping | list | Reply):
                raise Failure("answer", f"it returned a {type(returned).__name__}, not text, a mapping or a list")
            if isinstance(returned, Reply) and (flaw := flaw_of(returned)):
                raise Failure("answer", flaw)
            return returned

        returned = await self._caller.call(attempt)
        if isinstance(returned, Reply):
            return returned
        if isinstance(returned, str):
            return Reply(text=returned, spent=await self._runner.run(_estimated_spent, prompt.text, returned))
        return Reply(data=returned, spent=Spent(calls=1))


class SourceSummarizer:
    """A function, or a coroutine function, from what is to be summarised to the summary's text.

    It gets a SummarySource: the entries that leave, oldest first, and the summaries that it takes the place of. Any
    text that is not empty is accepted, however long it is and whatever it leaves out. An ordinary function runs in a
    thread of its own, as with CallableSummarizer. Raises ConfigError naming the option.

    Args:
        function: the function, of one SummarySource.
        name: its name in errors; None: the function's own name.
        timeout: seconds after which it is given up.
        retries: how often it is asked again, only after ConnectionError and TimeoutError; 0 by default.
    """

    def __init__(
        self,
        function: Callable[[SummarySource], Any],
        *,
        name: str | None = None,
        timeout: float = CallLimits().timeout,
        retries: int = 0,
    ) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigError("summarizer", function, "a function or coroutine function from a SummarySource to text")
        self.limits = limits_of_function(timeout, retries)
        self.function, self.name = function, name or _name_of(function)

    def bound(self, runner: Runner, clock: Callable[[], int]) -> BoundSource:
        """Return the summarizer for one memory, with its `runner` and its `clock` (microseconds)."""
        return BoundSource(self, runner, clock)


class BoundSource:
    """A user's function of a source, bound to a memory."""

    def __init__(self, summarizer: SourceSummarizer, runner: Runner, clock: Callable[[], int]) -> None:
        self._summarizer, self._runner, self.name = summarizer, runner, summarizer.name
        self._caller = Caller(summarizer.name, summarizer.limits, lambda: clock() / 1_000_000, runner.sleep)

    async def write(self, source: SummarySource) -> Reply:
        """Return the text that the function wrote. Raises SummarizerFailed."""

        async def attempt(seconds_left: float) -> str:
            seconds = min(self._summarizer.limits.timeout, seconds_left)
            returned = await _as_failure(_call_user(self._runner, self._summarizer.function, source, seconds))
            if not isinstance(returned, str):
                raise Failure("answer", f"it returned a {type(returned).__name__}, not text")
            return returned

        return Reply(text=await self._caller.call(attempt), spent=Spent(calls=1))


class ObjectSummarizer:
    """A summarizer of a user, which keeps its own limits. It is asked on an event loop; its errors are translated."""

    def __init__(self, summarizer: Any, runner: Runner) -> None:
        self._summarizer, self._runner = summarizer, runner
        self.name: str = str(summarizer.name)
        self.window: int | None = getattr(summarizer, "window", None)
        self.max_output: int | None = getattr(summarizer, "max_output", None)
        self.checked: bool = getattr(summarizer, "checked", True)

    async def ask(self, prompt: Prompt) -> Reply:
        """Return its answer. Raises SummarizerFailed."""
        try:
            reply: Reply = await _as_failure(self._call(prompt))
        except Failure as failed:
            raise SummarizerFailed(self.name, failed.kind, failed.why) from failed.__cause__
        except TimeoutError as error:
            raise SummarizerFailed(self.name, "timeout", str(error) or "it gave up") from error
        if flaw := flaw_of(reply):
            raise SummarizerFailed(self.name, "answer", flaw)
        return reply

    async def _call(self, prompt: Prompt) -> Any:
        return await self._runner.wait(self._summarizer.ask(prompt))


async def _call_user(runner: Runner, function: Callable[[Any], Any], argument: object, seconds: float) -> Any:
    """Call a user's function, on the event loop or in a thread."""
    if _is_coroutine_function(function):
        return await runner.wait(function(argument), seconds)
    returned = await runner.outside(function, argument, timeout=seconds)
    return await runner.wait(returned, seconds) if inspect.isawaitable(returned) else returned


async def _as_failure(call: Awaitable[Any]) -> Any:
    """Await a call of user code, and turn what it raises into a Failure."""
    try:
        return await call
    except (Failure, SummarizerFailed, TimeoutError):
        raise
    except Exception as error:  # user code may raise anything; that is a failed call
        may_pass = isinstance(error, ConnectionError)
        raise Failure("raised", words_of(error), passing=may_pass) from error


COUNTED = 250_000
"""Most characters of an answer whose tokens are counted. The tokens of longer ones are extrapolated."""


def _estimated_spent(prompt: str, answer: str) -> Spent:
    counter = encoding(default_encoding)
    beginning = answer[:COUNTED]
    output = counter.count(beginning) * len(answer) // max(len(beginning), 1)
    return Spent(calls=1, input_tokens=counter.count(prompt), output_tokens=output)


def _is_coroutine_function(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).replace("<locals>.", "")
