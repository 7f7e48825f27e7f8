"""A model by its string: it answers conversations, whole or piece by piece, within limits, at a known price.

`providers` talks to the providers. It is imported when a model is first asked.
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
"""Providers known without importing Pydantic AI, which takes a second. It is asked about any other."""


def check_model(model: object, base_url: str | None = None, where: str = "model") -> str:
    """Return the provider in a model string, or the model at a `base_url`.

    Raises ConfigError, naming the option `where`, for anything else. Nothing is imported, so a provider that is not in
    `COMMON` may not exist.
    """
    provider, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if not provider or (not name if base_url is None else colon and not name):
        raise ConfigError(where, model, FORM, nearest=model_string(model) if isinstance(model, str) else None)
    return provider


def check_base_url(address: object, where: str = "base_url") -> None:
    """Raise ConfigError, naming the option `where`, unless this is the address of a server, or None."""
    if address is not None and not _is_address(address):
        raise ConfigError(where, address, "the address of a server, such as http://127.0.0.1:8000/v1")


def check_provider(model: str, where: str) -> bool:
    """Whether the provider of a model string is in `COMMON`.

    Raises ConfigError for a likely misspelling of one of those. Whether any other provider exists is known only when
    Pydantic AI uses it.
    """
    if model.partition(":")[0] in COMMON:
        return True
    near = _nearest_model(model, cutoff=0.8)
    if near is not None and not model.startswith(near.partition(":")[0]):  # a longer name may be a newer provider's
        raise ConfigError(where, model, FORM, nearest=near)
    return False


def _nearest_model(model: str, cutoff: float = 0.6) -> str | None:
    """Return the model string with the provider that a misspelt one probably means."""
    provider, _, name = model.partition(":")
    near = nearest(provider, COMMON, cutoff=cutoff)
    return f"{near}:{name}" if near else None


def model_string(name: str) -> str | None:
    """Return the model string that a model's plain name means, if it is known."""
    model = find_model(name)
    return f"{model.provider}:{model.name}" if model is not None else None


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered, and what it cost. `cached_tokens` is the part of the input from the provider's cache.

    `reported` says that the figures are the provider's, not counted here. `finish` says why the model stopped: stop,
    length, content_filter or tool_call.
    """

    text: str
    spent: Spent
    cached_tokens: int = 0
    reported: bool = True
    finish: str | None = None


class ChatModel:
    """A model by its string; needs the extra `llm`.

    `model` is `"PROVIDER:MODEL"`. `openai:` speaks chat completions, `openai-responses:` OpenAI's Responses API; other
    providers need their own extra of pydantic-ai-slim. With `base_url` (`http://127.0.0.1:8000/v1`) it is the plain
    name of a model of any server that speaks OpenAI's protocol. The key is `api_key`, else that of the provider's
    environment variable, which is never sent to a `base_url`.

    `timeout` is the seconds for one attempt; of a stream, for each piece. `retries` follow failures that may pass:
    status 408, 409, 429 and 5xx, a lost connection, a timeout. `allowance` is the seconds for all attempts and pauses
    together. `stream` reads answers as streams, for slow models. `window` is how many tokens the model reads at once if
    the table of models does not say; `max_output` how many it answers with at most, reasoning included, and a summary
    never asks for more. `settings` are further settings of Pydantic AI, such as `{"temperature": 0.2}`.

    Raises ConfigError naming the option, MissingExtra if the extra is not installed. Making one imports nothing.
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
        """Check the model string and return its provider."""
        provider = check_model(model, self.base_url)
        if find_spec("pydantic_ai") is None:
            raise MissingExtra(f"the model {model!r}", "llm")
        if self.base_url is None and provider not in COMMON:
            from palimpsest.summaries.models import providers  # needs the extra, takes seconds

            if not providers.knows(provider):
                raise ConfigError("model", model, FORM, nearest=_nearest_model(str(model)))
        return provider

    def bound(self, runner: Runner, clock: Callable[[], int]) -> BoundModel:
        """Return the model for one memory: with the runner of its calls, and the clock of its breaker."""
        return BoundModel(self, runner, clock)

    def build(self) -> providers.Connected:
        """Import the provider's library and set the model up, which takes up to two seconds the first time."""
        try:
            from palimpsest.summaries.models import providers  # needs the extra, takes seconds
        except ImportError as error:  # a version that the extra does not allow
            raise Failure("refused", f"pydantic_ai cannot be used: {error}") from error
        model = self.name
        if self.base_url is not None and self.provider not in ("openai", "openai-chat", "openai-responses"):
            model = f"openai:{model}"  # a plain name may contain a colon
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
        """Ask the `model` that `build` made, on an event loop.

        The answer to `messages` has at most `max_tokens`; `on_text` is called with each piece, and `seconds` may pass
        between two pieces. `redact` cleans what a failure quotes.
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
        """How many tokens it answers with at most: the model's limit, or the one in `settings`; None: unknown."""
        wanted = self.settings.get("max_tokens")
        bounds = [bound for bound in (self._max_output, wanted) if isinstance(bound, int) and bound > 0]
        return min(bounds, default=None)

    def spent(self, messages: Sequence[Mapping[str, Any]], answer: providers.ProviderAnswer) -> Spent:
        """Return what an `answer` to `messages` cost: tokens as reported, else as counted, and dollars."""
        input_tokens, output_tokens = answer.input_tokens, answer.output_tokens
        if not answer.reported:
            input_tokens = self._count(str(message.get("content") or "") for message in messages)
            output_tokens = self._count([answer.text])
        cost = self._cost(input_tokens, output_tokens, answer)
        return Spent(calls=1, input_tokens=input_tokens, output_tokens=output_tokens, cost=cost)

    def _count(self, texts: Any) -> int:
        counter = encoding(self._known.encoding if self._known else default_encoding)
        return sum(counter.count(text) for text in texts)

    def _cost(self, input_tokens: int, output_tokens: int, answer: providers.ProviderAnswer) -> float:
        """Return the price in dollars, or 0 if it is not known."""
        model = self._known
        if model is None or model.input_price is None or model.output_price is None:
            return 0.0
        cached = min(answer.cached_tokens, input_tokens)
        cached_price = model.input_price if model.cached_input_price is None else model.cached_input_price
        return (
            (input_tokens - cached) * model.input_price + cached * cached_price + output_tokens * model.output_price
        ) / 1_000_000


class BoundModel:
    """A model, bound to a memory. Threads and tasks may share it."""

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
        """How many tokens it reads at once (None: unknown)."""
        return self._model.window

    @property
    def max_output(self) -> int | None:
        """How many tokens it answers with at most (None: unknown)."""
        return self._model.max_output

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> ModelAnswer:
        """Return the model's answer to messages of chat completions (a context's `request()["messages"]`).

        `on_text` gets the text piece by piece as it comes, on the runner's event loop; after the first piece nothing is
        asked again. Raises SummarizerFailed.
        """
        runner, model = self._runner, self._model
        try:
            connected = await runner.outside(model.build)
        except Failure as failed:
            raise SummarizerFailed(self.name, failed.kind, failed.why) from failed.__cause__
        sink = PieceSink(on_text) if on_text is not None or model.stream else None

        async def attempt(seconds_left: float) -> providers.ProviderAnswer:
            seconds = min(model.limits.timeout, seconds_left)
            pending = model.ask(connected, messages, max_tokens, sink, seconds, runner.redact)
            return await runner.wait(pending, seconds if sink is None else seconds_left)

        try:
            answer = await self._caller.call(attempt, may_repeat=lambda: sink is None or not sink.told)
        finally:
            if sink is not None:
                sink.close()
        spent = await runner.run(model.spent, messages, answer)
        return ModelAnswer(
            text=answer.text,
            spent=spent,
            cached_tokens=answer.cached_tokens,
            reported=answer.reported,
            finish=answer.finish,
        )


class PieceSink:
    """Passes pieces of text on until it is closed. `told` says that there were some."""

    def __init__(self, on_text: Callable[[str], object] | None) -> None:
        self._on_text = on_text
        self.told = False

    def __call__(self, piece: str) -> None:
        if self._on_text is not None:
            self.told = True
            self._on_text(piece)

    def close(self) -> None:
        """Drop all further pieces."""
        self._on_text = None


def _check(base_url: object, api_key: object, stream: object, settings: object) -> None:
    """Check the options of a connection. No error shows the key."""
    check_base_url(base_url)
    if api_key is not None and not (isinstance(api_key, str) and api_key):
        raise ConfigError("api_key", type(api_key), "a text that is not empty, or None")  # never the key itself
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key):
        description = f"a text of {len(api_key)} characters"
        raise ConfigError(
            "api_key",
            description,
            "a key without line ends, spaces around it, or other characters that a header cannot have",
        )
    values.switch("stream", stream)
    if not isinstance(settings, Mapping):
        raise ConfigError("settings", settings, "a mapping of settings")


def _is_address(given: object) -> bool:
    """Whether this is the address of a server, with a valid port."""
    if not isinstance(given, str) or not given.startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(given)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False
