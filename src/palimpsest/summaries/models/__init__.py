"""The seam to summarizers: whatever answers a prompt. Models, callables, and what makes both dependable.

A summarizer is made without a memory and bound to one: `bound(runner, clock)` returns what the library asks. Whatever
a session is given goes through `as_summarizer`, which binds each once for a memory, so that all its sessions share one
breaker. Nothing of a provider is imported before a model is asked for the first time.
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
"""The simplest summarizer: it gets the prompt as text and returns the summary, at once or as a coroutine."""

SUMMARIZERS = Registry("summarizer", "palimpsest.summarizers", {})
"""Summarizers by name. A name has no colon, which model strings have; its target is whatever a session may be given."""

ALLOWED = (
    'a function from text to text, a model string such as "openai:gpt-4o-mini", a ModelSummarizer, a SourceSummarizer, '
    "the name of a registered summarizer, an object with `name` and `ask`, or None"
)

MOST_KEPT = 64
"""Summarizers that a memory remembers by what it was given; the oldest is bound anew when it comes again."""


class Summarizer(Protocol):
    """What the library asks for a summary.

    `name` is how accounts and events call it; `window` how many tokens it reads at once, and `max_output` how many it
    answers with at most (None: unknown). `checked` says that its answers are held against what they are about.
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
        """Return its answer. Raises SummarizerFailed, with the cause, where there is none to be had.

        What `as_summarizer` returns waits only by its runner: in a synchronous memory it never suspends.
        """
        ...


Asked = Summarizer | BoundSource
"""What a memory asks: whatever answers prompts, or writes of what it is shown."""


@runtime_checkable
class Unbound(Protocol):
    """A summarizer that is not a memory's yet, such as a ModelSummarizer."""

    def bound(self, runner: Runner, clock: Callable[[], int]) -> Asked:
        """Return the summarizer as one memory asks it. `clock` returns microseconds."""
        ...


def as_summarizer(given: object, runner: Runner, clock: Callable[[], int]) -> Asked | None:
    """Return what is asked for summaries for what a session was given; None for None.

    Raises ConfigError for what is no summarizer, MissingExtra for a model without the extra `llm`.
    """
    if given is None:
        return None
    try:
        key = ("summarizer", given)
        kept = runner.kept.get(key)
    except TypeError:  # it cannot be hashed: known by itself alone
        return _bound(given, runner, clock)
    if kept is None:
        kept = runner.kept.setdefault(key, _bound(given, runner, clock))
        _forget(runner)
    found: Asked = kept
    return found


def _forget(runner: Runner) -> None:
    ours = [key for key in list(runner.kept) if key[0] == "summarizer"]
    for key in ours[:-MOST_KEPT]:
        runner.kept.pop(key, None)


def _bound(given: object, runner: Runner, clock: Callable[[], int]) -> Asked:
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
            raise ConfigError("summarizer", given, "an object with `ask` that has a `name`, too")
        return ObjectSummarizer(given, runner)
    if callable(given):
        return CallableSummarizer(given).bound(runner, clock)
    raise ConfigError("summarizer", given, ALLOWED)


def doubt_of(name: str) -> str | None:
    """Return what has to be said of a text that may stand for a summarizer, or may not; None: it does.

    Raises ConfigError for a text that can stand for none. Nothing of a provider is imported.
    """
    if ":" in name:
        return doubt_of_model(name, None, "summarizer")
    if SUMMARIZERS.knows(name):
        return None
    if not name.isidentifier() or name in COMMON or model_string(name) is not None:
        raise ConfigError("summarizer", name, FORM, nearest=model_string(name))
    return f"{shorten(name)} is no model string; a program has to register a summarizer of this name"


def doubt_of_model(model: str, base_url: str | None, where: str) -> str | None:
    """Return the same of a model string, or of the name of a model at a `base_url`, which the option `where` holds."""
    check_model(model, base_url, where)
    if base_url is not None or check_provider(model, where):
        return None
    return f"whether {shorten(model)} has a provider, Pydantic AI says when a session is opened"


def _named(name: str) -> Any:
    """What a model string or a registered name stands for."""
    if ":" in name:
        check_model(name, where="summarizer")
        return ModelSummarizer(name)
    try:
        target = SUMMARIZERS.find(name)
    except ConfigError as unknown:
        raise ConfigError("summarizer", name, ALLOWED, nearest=unknown.nearest or model_string(name)) from unknown
    return ModelSummarizer(target) if isinstance(target, str) else target
