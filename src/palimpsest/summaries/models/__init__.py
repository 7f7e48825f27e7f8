"""The seam to summarizers: whatever answers a prompt. Models, callables, and what makes both dependable.

A summarizer is made without a memory and then bound to one: `bound(runner, clock)` returns the object that the library
asks. `as_summarizer` binds whatever a session was given, once per memory, so that all its sessions share one circuit
breaker. No provider's library is imported before a model is first asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from palimpsest.errors import ConfigError, shorten
from palimpsest.runtime.registry import Registry
from palimpsest.runtime.runner import Runner
from palimpsest.summaries import Prompt, Reply
from palimpsest.summaries.models.callables import BoundCallable, BoundSource, CallableSummarizer, ObjectSummarizer
from palimpsest.summaries.models.chat_model import COMMON, FORM, BoundModel, check_model, check_provider, model_string
from palimpsest.summaries.models.model_summarizer import ModelSummarizer

SummarizeCallable = Callable[[str], str | Awaitable[str]]
"""The simplest summarizer: it gets the prompt as text and returns the summary, directly or as a coroutine."""

SUMMARIZERS = Registry("summarizer", "palimpsest.summarizers", {})
"""Summarizers by name. Unlike a model string a name has no colon. Its target is whatever a session may be given."""

ALLOWED = (
    'a function from text to text, a model string such as "openai:gpt-4o-mini", a ModelSummarizer, a SourceSummarizer, '
    "the name of a registered summarizer, an object with `name` and `ask`, or None"
)

MOST_KEPT = 64
"""Most summarizers that a memory remembers by what it was given. An older one is bound anew if it comes again."""


class Summarizer(Protocol):
    """What the library asks for a summary.

    `name` identifies it in accounts and events. `window` is how many tokens it reads at once, `max_output` how many it
    answers with at most (None: unknown). `checked` says that its answers are checked against their source.
    """

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int | None: ...

    @property
    def max_output(self) -> int | None: ...

    @property
    def checked(self) -> bool: ...

    async def ask(self, prompt: Prompt) -> Reply:
        """Return its answer. Raises SummarizerFailed, with the cause, if there is none.

        The summarizers that `as_summarizer` returns wait only through their runner: in a synchronous memory they never
        suspend.
        """
        ...


Asked = Summarizer | BoundSource
"""What a memory asks: something that answers prompts, or that writes a summary of a source."""


@runtime_checkable
class Unbound(Protocol):
    """A summarizer that is not bound to a memory yet, such as a ModelSummarizer."""

    def bound(self, runner: Runner, clock: Callable[[], int]) -> Asked:
        """Return the summarizer for one memory. `clock` returns microseconds."""
        ...


def as_summarizer(given: object, runner: Runner, clock: Callable[[], int]) -> Asked | None:
    """Return the summarizer to ask for what a session was given; None for None.

    Raises ConfigError if it is no summarizer, MissingExtra for a model without the extra `llm`.
    """
    if given is None:
        return None
    try:
        key = ("summarizer", given)
        kept = runner.kept.get(key)
    except TypeError:  # not hashable, so it cannot be remembered
        return _bound(given, runner, clock)
    if kept is None:
        kept = runner.kept.setdefault(key, _bound(given, runner, clock))
        _forget_oldest(runner)
    asked: Asked = kept
    return asked


def _forget_oldest(runner: Runner) -> None:
    """Keep only the newest summarizers."""
    keys = [key for key in list(runner.kept) if key[0] == "summarizer"]
    for key in keys[:-MOST_KEPT]:
        runner.kept.pop(key, None)


def _bound(given: object, runner: Runner, clock: Callable[[], int]) -> Asked:
    """Bind what a session was given to a memory. Raises ConfigError if it is no summarizer."""
    if isinstance(given, str):
        given = _named(given)
    if isinstance(given, type):
        raise ConfigError("summarizer", given, ALLOWED)
    if isinstance(given, BoundSource):
        return given
    if isinstance(given, BoundCallable | BoundModel) and hasattr(given, "ask"):
        return given
    if isinstance(given, Unbound):
        given = given.bound(runner, clock)
        if not isinstance(given, BoundSource) and not hasattr(given, "ask"):
            raise ConfigError("summarizer", given, ALLOWED)
        return given
    if hasattr(given, "ask"):
        if not hasattr(given, "name"):
            raise ConfigError("summarizer", given, "an object with `ask` and `name`")
        return ObjectSummarizer(given, runner)
    if callable(given):
        return CallableSummarizer(given).bound(runner, clock)
    raise ConfigError("summarizer", given, ALLOWED)


def doubt_of(name: str) -> str | None:
    """Return what remains doubtful about a text given as summarizer; None if it is certain to be one.

    Raises ConfigError for a text that cannot be one. No provider's library is imported.
    """
    if ":" in name:
        return doubt_of_model(name, None, "summarizer")
    if SUMMARIZERS.knows(name):
        return None
    if not name.isidentifier() or name in COMMON or model_string(name) is not None:
        raise ConfigError("summarizer", name, FORM, nearest=model_string(name))
    return f"{shorten(name)} is not a model string, so the program must register a summarizer of this name"


def doubt_of_model(model: str, base_url: str | None, where: str) -> str | None:
    """Do the same for a model string, or the name of a model at a `base_url`, given in the option `where`."""
    check_model(model, base_url, where)
    if base_url is not None or check_provider(model, where):
        return None
    return f"only Pydantic AI knows whether {shorten(model)} has a provider; it is checked when a session is opened"


def _named(name: str) -> Any:
    """Return what a model string or a registered name stands for."""
    if ":" in name:
        check_model(name, where="summarizer")
        return ModelSummarizer(name)
    try:
        target = SUMMARIZERS.find(name)
    except ConfigError as unknown:
        raise ConfigError("summarizer", name, ALLOWED, nearest=unknown.nearest or model_string(name)) from unknown
    return ModelSummarizer(target) if isinstance(target, str) else target
