"""Providers' models through Pydantic AI: built from a model string, asked, and their failures translated.

Imported when a model is first asked. Only this module, `conversation` and `openai_protocol` import pydantic_ai.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, cast

from pydantic_ai import exceptions
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from palimpsest.errors.secret import secrets_of
from palimpsest.errors.wording import briefly, words_of
from palimpsest.log.summary import MOST_SPENT
from palimpsest.runtime.logs import Redact
from palimpsest.summaries.models.conversation import Message, called_tools, conversation
from palimpsest.summaries.models.resilience import Failure, Kind

REASONING_TOKENS = 8_000
"""Tokens that a reasoning model may spend on reasoning beside its answer, since providers bound both together. Own
figure."""

_OPENAI = ("openai", "openai-chat")
_REFUSES_UNKNOWN_TOOLS = ("anthropic", "bedrock")
_STATUS_KINDS: dict[int, Kind] = {408: "timeout", 409: "unavailable", 429: "rate_limited"}


class ProviderAnswer(NamedTuple):
    """What a model answered, why it stopped, and the usage that its provider reports, in tokens."""

    text: str
    finish: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int

    @property
    def reported(self) -> bool:
        """Whether the provider reported a plausible usage."""
        figures = self.input_tokens, self.output_tokens
        return any(figures) and all(0 <= number <= MOST_SPENT for number in figures)


class Connected:
    """A model that is set up, with the key that it was given. The key is never shown."""

    def __init__(self, model: Model, api_key: str | None) -> None:
        self._model, self._api_key = model, api_key

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        provider: str,
        max_tokens: int | None,
        max_output: int | None,
        settings: Mapping[str, Any],
        stall: float,
        on_text: Callable[[str], object] | None,
        redact: Redact | None = None,
    ) -> ProviderAnswer:
        """Return the model's answer. With `on_text` it is streamed, and no piece may take longer than `stall` seconds.

        Every call has a connection of its own, so that nothing outlives the call or is bound to one event loop. Raises
        Failure, and TimeoutError if a stream stalls.
        """
        model = self._model
        own_settings = ModelSettings(max_retries=0, timeout=stall)
        if max_tokens is not None:
            token_limit = max_tokens + (REASONING_TOKENS if model.profile.get("supports_thinking") else 0)
            own_settings["max_tokens"] = token_limit if max_output is None else min(token_limit, max_output)
        parameters = ModelRequestParameters()
        if provider in _REFUSES_UNKNOWN_TOOLS and (tools := called_tools(messages)):
            parameters = ModelRequestParameters(function_tools=tools)
            own_settings["tool_choice"] = "none"
        merged = cast("ModelSettings", {**own_settings, **settings})
        try:
            converted = conversation(messages)
            async with model:
                if on_text is None:
                    response = await model_request(
                        model, converted, model_settings=merged, model_request_parameters=parameters
                    )
                else:
                    stream = model_request_stream(
                        model, converted, model_settings=merged, model_request_parameters=parameters
                    )
                    response = await _read(stream, stall, on_text)
        except (Failure, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 (an SDK may raise anything; that is a failed call)
            failed = _failure(error, stall)
        else:
            return _answer(response, merged.get("max_tokens"))
        secrets = self._secrets(settings)
        cause = failed.__cause__
        raise _safe_failure(failed, secrets, redact) from (cause if _is_safe(cause, secrets) else None)

    def _secrets(self, settings: Mapping[str, Any]) -> list[str]:
        """Return what no failure may reveal, in every form that an error may show, the longest first."""
        client_key = getattr(getattr(self._model, "client", None), "api_key", None)
        secrets = [key for key in (self._api_key, client_key) if isinstance(key, str)] + secrets_of(settings)
        forms = {form for key in secrets for form in (key, key.strip(), repr(key)[1:-1], *key.split()[-1:])}
        return sorted(forms - {""}, key=len, reverse=True)


def knows(provider: str) -> bool:
    """Whether there is a provider of this name, even if its library is not installed."""
    try:
        infer_provider_class(provider)
    except ImportError:
        return True
    except ValueError:
        return False
    return True


def build(model: str, base_url: str | None, api_key: str | None) -> Connected:
    """Return the model that a model string names. Raises Failure, which says what to do, if that is not possible."""
    provider, _, name = model.partition(":")
    try:
        if base_url is None and provider not in _OPENAI:
            return Connected(infer_model(model, _provider_factory(api_key)), api_key)
        from palimpsest.summaries.models import openai_protocol  # OpenAI's library may be missing

        if base_url is None:
            return Connected(openai_protocol.openai_model(name, api_key), api_key)
        return Connected(openai_protocol.model_at(base_url, api_key, provider, name or provider), api_key)
    except exceptions.UserError as error:  # such as a missing key; the rest of the message is for users of Pydantic AI
        why = error.message.partition(" To try Pydantic AI")[0]
        raise Failure("refused", why) from error
    except ImportError as error:
        raise Failure("refused", str(error)) from error
    except Exception as error:  # an SDK may raise errors of its own, such as for addresses
        raise Failure("refused", f"{model} cannot be set up: {error}") from error


def _provider_factory(api_key: str | None) -> Callable[[str], Provider[Any]]:
    def make(name: str) -> Provider[Any]:
        kind: Any = infer_provider_class(name)
        provider: Provider[Any] = kind() if api_key is None else kind(api_key=api_key)
        return provider

    return make


async def _read(opening: Any, stall: float, on_text: Callable[[str], object]) -> ModelResponse:
    """Read a stream to its end, and pass each piece of text on. Raises TimeoutError if a piece takes too long."""
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(stall):
            stream = await stack.enter_async_context(opening)
        events = aiter(stream)
        while True:
            async with asyncio.timeout(stall):
                event = await anext(events, None)
            if event is None:
                response: ModelResponse = stream.get()
                return response
            if piece := _piece(event):
                on_text(piece)


def _piece(event: object) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def _answer(response: ModelResponse, max_tokens: int | None) -> ProviderAnswer:
    """Return the text and usage of a response. Raises Failure if a filter or the length limit left no text."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    if not text and response.finish_reason == "content_filter":
        raise Failure("refused", "the provider's filter withheld the answer")
    if not text and response.finish_reason == "length":
        raise Failure("answer", f"the limit of {max_tokens} tokens was used up before the answer began")
    usage: RequestUsage = response.usage
    return ProviderAnswer(
        text, response.finish_reason, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens
    )


# --- failures


def _failure(error: Exception, seconds: float) -> Failure:
    failure = _classified(error, seconds)
    failure.__cause__ = error
    return failure


def _classified(error: Exception, seconds: float) -> Failure:
    """Return an SDK's error as a failure."""
    if isinstance(error, exceptions.ModelTimeoutError | exceptions.ModelRequestTimeout):
        return Failure("timeout", f"no answer within {seconds:g} s", passing=True)
    if isinstance(error, exceptions.ModelHTTPError):
        return _status_failure(error)
    if isinstance(error, exceptions.ModelConnectionError):
        return Failure("unavailable", f"the connection failed: {_one_line(error.message)}", passing=True)
    unusable = isinstance(error, exceptions.UnexpectedModelBehavior | LookupError)  # such as an answer without choices
    if unusable or isinstance(error.__cause__, ValueError):
        return Failure("answer", _one_line(f"its answer cannot be used: {error}"))
    if isinstance(error, exceptions.ModelAPIError) or _is_transport(error):
        return Failure("unavailable", f"the connection broke off: {_one_line(str(error))}", passing=True)
    return Failure("raised", _one_line(words_of(error)))


def _status_failure(error: exceptions.ModelHTTPError) -> Failure:
    """Return an HTTP status as a failure."""
    status = error.status_code
    why = f"status {status}: {_one_line(_reason_in(error.body)) or 'no reason given'}"
    if isinstance(error, exceptions.ModelQuotaExceededError):  # also status 429, but waiting does not help
        return Failure("refused", why)
    kind: Kind = _STATUS_KINDS.get(status, "unavailable" if status >= 500 else "refused")
    return Failure(kind, why, passing=kind != "refused", retry_after=error.retry_after)


def _is_transport(error: BaseException) -> bool:
    """Whether an HTTP library lost the connection, for example in the middle of a stream."""
    return any(kind.__name__ in ("TransportError", "APIConnectionError") for kind in type(error).__mro__)


def _reason_in(body: object) -> str:
    """Return the provider's words on the reason, wherever they are in the body."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        return str(inner.get("message", inner)) if isinstance(inner, Mapping) else str(inner)
    return str(body or "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _safe_failure(failed: Failure, secrets: Sequence[str], redact: Redact | None) -> Failure:
    """Return the failure as a reader may see it: shortened, without keys and private data."""
    why = failed.why
    for secret in secrets:
        why = why.replace(secret, "***")
    why = redact(why) if redact is not None else why  # before shortening: half a number would not be recognised
    return Failure(failed.kind, briefly(why), passing=failed.passing, retry_after=failed.retry_after)


def _is_safe(cause: BaseException | None, secrets: Sequence[str]) -> bool:
    """Whether nothing that a traceback prints of the cause contains a key."""
    return not any(secret in f"{error} {error!r}" for error in _chain(cause) for secret in secrets)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
