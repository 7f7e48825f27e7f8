"""A model by its string: it answers conversations, whole or piece by piece, within limits, at a known price.

What speaks to providers is in `providers`, which is imported with the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from palimpsest.errors import ConfigError, MissingExtra, SummarizerFailed, nearest
from palimpsest.log import values
from palimpsest.log.summary import Spent
from palimpsest.runtime.logs import Redact
from palimpsest.runtime.runner import Runner
from palimpsest.summaries.models.resilience import Caller, CallLimits, Failure, check_size
from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import default_encoding, find_model

if TYPE_CHECKING:
    from palimpsest.summaries.models import providers

FORM = '"PROVIDER:MODEL", such as "openai:gpt-4o-mini", or any name of a model together with base_url'

COMMON = frozenset(
    {
        *("anthropic", "azure", "bedrock", "cohere", "deepseek", "google", "groq", "mistral", "ollama"),
        *("openai", "openai-chat", "openai-responses", "openrouter", "together", "xai"),
    }
)
"""Providers known without a look into Pydantic AI, whose import takes a second. It is asked about any other."""


def check_model(model: object, base_url: str | None = None, where: str = "model") -> str:
    """Return the provider that a model string names, or the model at a `base_url`. Raises ConfigError, naming the
    option `where`, for what is no such string. Nothing is imported, so a provider that is not `COMMON` may be none."""
    provider, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if not provider or (not name if base_url is None else colon and not name):
        raise ConfigError(where, model, FORM, nearest=model_string(model) if isinstance(model, str) else None)
    return provider


def check_base_url(address: object, where: str = "base_url") -> None:
    """Raise ConfigError, naming the option `where`, for what is no address of a server, nor None."""
    if address is not None and not _is_address(address):
        raise ConfigError(where, address, "the address of a server, such as http://127.0.0.1:8000/v1")


def check_provider(model: str, where: str) -> bool:
    """Whether the provider of a model string is one of those that are `COMMON`. Raises ConfigError for a name that is
    so close to one of theirs that it is misspelt; whether any other is a provider, Pydantic AI says, when it is used.
    """
    if model.partition(":")[0] in COMMON:
        return True
    near = _meant(model, cutoff=0.8)
    if near is not None and not model.startswith(near.partition(":")[0]):  # a longer name may be a newer provider's
        raise ConfigError(where, model, FORM, nearest=near)
    return False


def _meant(model: str, cutoff: float = 0.6) -> str | None:
    """The model string with the provider that was meant by a misspelt one."""
    provider, _, name = model.partition(":")
    near = nearest(provider, COMMON, cutoff=cutoff)
    return f"{near}:{name}" if near else None


def model_string(name: str) -> str | None:
    """The string that was meant by a model's plain name."""
    known = find_model(name)
    return f"{known.provider}:{known.name}" if known is not None else None


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model said, and what it cost. `cached_tokens` are those of the input that came from a provider's cache.

    `reported` says that the figures are the provider's, not counted here. `finish` says why it stopped: stop, length,
    content_filter or tool_call.
    """

    text: str
    spent: Spent
    cached_tokens: int = 0
    reported: bool = True
    finish: str | None = None


class ChatModel:
    """A model by its string, over the extra `llm`.

    `model` is `"PROVIDER:MODEL"`. `openai:` speaks chat completions, `openai-responses:` OpenAI's Responses API;
    other providers need their own extra of pydantic-ai-slim. With `base_url` (`http://127.0.0.1:8000/v1`) it is a
    model of any server that speaks OpenAI's protocol, by its plain name. The key is `api_key`, else that of the
    provider's environment variable, which never goes to a `base_url`.

    `timeout` are the seconds for one attempt; of a stream, for each piece of it. `retries` follow what may pass:
    status 408, 409, 429 and 5xx, a lost connection, a timeout. `allowance` are the seconds for all attempts and pauses
    together. `stream` reads answers as streams, for models that are slow. `window` is how many tokens the model reads
    at once, where the table of models does not say, `max_output` how many it answers with at most, its thoughts
    included; a summary asks for no more. `settings` are further ones of Pydantic AI, such as `{"temperature": 0.2}`.

    Raises ConfigError naming the option, MissingExtra where the extra is not installed. Making one imports nothing.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = CallLimits().timeout,
        retries: int = CallLimits().retries,
        allowance: float = CallLimits().allowance,
        stream: bool = False,
        window: int | None = None,
        max_output: int | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.limits = CallLimits(timeout=timeout, retries=retries, allowance=allowance)
        self.limits.check()
        _check(base_url, api_key, stream, settings)
        check_size("window", window)
        check_size("max_output", max_output)
        self.name, self.stream, self.settings = model, stream, dict(settings)
        self.base_url, self._api_key = base_url, api_key
        self._known = find_model(model) if isinstance(model, str) else None
        self.window = window or (self._known.window if self._known else None)
        self._max_output = max_output or (self._known.max_output if self._known else None)
        self.provider = self._provider(model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _provider(self, model: object) -> str:
        """Check the model string and return what is before its colon."""
        provider = check_model(model, self.base_url)
        if find_spec("pydantic_ai") is None:
            raise MissingExtra(f"the model {model!r}", "llm")
        if self.base_url is None and provider not in COMMON:
            from palimpsest.summaries.models import providers  # needs the extra, takes seconds

            if not providers.knows(provider):
                raise ConfigError("model", model, FORM, nearest=_meant(str(model)))
        return provider

    def bound(self, runner: Runner, clock: Callable[[], int]) -> BoundModel:
        """Return the model as one memory asks it: where its calls run, and with the clock of its breaker."""
        return BoundModel(self, runner, clock)

    def build(self) -> providers.Connected:
        """Import what speaks to the provider and set the model up: up to two seconds, the first time."""
        try:
            from palimpsest.summaries.models import providers  # needs the extra, takes seconds
        except ImportError as error:  # another version than the extra asks for
            raise Failure("refused", f"pydantic_ai cannot be used: {error}") from error
        model = self.name
        if self.base_url is not None and self.provider not in ("openai", "openai-chat", "openai-responses"):
            model = f"openai:{model}"  # a plain name, which may have a colon of its own
        return providers.build(model, self.base_url, self._api_key)

    async def ask(
        self,
        model: providers.Connected,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int | None,
        on_text: Callable[[str], object] | None,
        seconds: float,
        redact: Redact | None,
    ) -> providers.ProviderAnswer:
        """Ask the `model` that `build` made, under an event loop; `seconds` may pass between two pieces of an answer.

        The answer to `messages` has at most `max_tokens`; `on_text` is called with each piece. `redact` cleans what a
        failure quotes.
        """
        return await model.ask(
            messages,
            provider=self.provider,
            max_tokens=max_tokens,
            max_output=self._max_output,
            settings=self.settings,
            stall=seconds,
            on_text=on_text,
            redact=redact,
        )

    @property
    def max_output(self) -> int | None:
        """How many tokens it answers with at most: the model's limit, or what `settings` ask for; None: unknown."""
        wanted = self.settings.get("max_tokens")
        bounds = [bound for bound in (self._max_output, wanted) if isinstance(bound, int) and bound > 0]
        return min(bounds, default=None)

    def spent(self, messages: Sequence[Mapping[str, Any]], answer: providers.ProviderAnswer) -> Spent:
        """Return what an `answer` to `messages` cost: tokens as reported, else as counted, and dollars."""
        taken, given = answer.input_tokens, answer.output_tokens
        if not answer.reported:
            taken, given = self._count(str(m.get("content") or "") for m in messages), self._count([answer.text])
        return Spent(calls=1, input_tokens=taken, output_tokens=given, cost=self._cost(taken, given, answer))

    def _count(self, texts: Any) -> int:
        counter = encoding(self._known.encoding if self._known else default_encoding)
        return sum(counter.count(text) for text in texts)

    def _cost(self, taken: int, given: int, answer: providers.ProviderAnswer) -> float:
        known = self._known
        if known is None or known.input_price is None or known.output_price is None:
            return 0.0
        cached = min(answer.cached_tokens, taken)
        cached_price = known.input_price if known.cached_input_price is None else known.cached_input_price
        return ((taken - cached) * known.input_price + cached * cached_price + given * known.output_price) / 1_000_000


class BoundModel:
    """A model as one memory asks it. Safe to share between threads and between tasks."""

    checked = True

    def __init__(self, model: ChatModel, runner: Runner, clock: Callable[[], int]) -> None:
        self._model, self._runner = model, runner
        self._caller = Caller(model.name, model.limits, lambda: clock() / 1_000_000, runner.sleep)

    @property
    def name(self) -> str:
        """The model string."""
        return self._model.name

    @property
    def window(self) -> int | None:
        """How many tokens it reads at once; None where nobody knows."""
        return self._model.window

    @property
    def max_output(self) -> int | None:
        """How many tokens it answers with at most; None where nobody knows."""
        return self._model.max_output

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> ModelAnswer:
        """Return the model's answer to messages of chat completions (a context's `request()["messages"]`).

        `on_text` gets the text piece by piece as it comes, under the runner's event loop; nothing is asked again once
        it had some. Raises SummarizerFailed.
        """
        runner, model = self._runner, self._model
        try:
            built = await runner.outside(model.build)
        except Failure as failed:
            raise SummarizerFailed(self.name, failed.kind, failed.why) from failed.__cause__
        sink = PieceSink(on_text) if on_text is not None or model.stream else None

        async def attempt(left: float) -> providers.ProviderAnswer:
            seconds = min(model.limits.timeout, left)
            asked = model.ask(built, messages, max_tokens, sink, seconds, runner.redact)
            return await runner.wait(asked, seconds if sink is None else left)

        try:
            given = await self._caller.call(attempt, may_repeat=lambda: sink is None or not sink.told)
        finally:
            if sink is not None:
                sink.close()
        spent = await runner.run(model.spent, messages, given)
        return ModelAnswer(
            text=given.text,
            spent=spent,
            cached_tokens=given.cached_tokens,
            reported=given.reported,
            finish=given.finish,
        )


class PieceSink:
    """Hands pieces of text on, until whoever wanted them has gone. `told` says that there were some."""

    def __init__(self, on_text: Callable[[str], object] | None) -> None:
        self._on_text = on_text
        self.told = False

    def __call__(self, piece: str) -> None:
        if self._on_text is not None:
            self.told = True
            self._on_text(piece)

    def close(self) -> None:
        """Drop what still comes."""
        self._on_text = None


def _check(base_url: object, api_key: object, stream: object, settings: object) -> None:
    check_base_url(base_url)
    if api_key is not None and not (isinstance(api_key, str) and api_key):
        raise ConfigError("api_key", type(api_key), "text that is not empty, or None")  # never the key itself
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key):
        found = f"a text of {len(api_key)} characters"
        raise ConfigError("api_key", found, "a key without line ends, spaces around it, and signs that no header has")
    values.switch("stream", stream)
    if not isinstance(settings, Mapping):
        raise ConfigError("settings", settings, "a mapping of settings")


def _is_address(given: object) -> bool:
    """Whether it is the address of a server, whose port there can be."""
    if not isinstance(given, str) or not given.startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(given)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port, or no address of version 6
        return False
