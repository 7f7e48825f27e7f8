"""Models of providers, through Pydantic AI: built from a model string, asked, and their failures in our words.

Imported when a model is asked for the first time; with `conversation` the only module that imports pydantic_ai.
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
"""Tokens that a model which reasons may spend on that, beside its answer: providers bound both together. Own choice."""

_OPENAI = ("openai", "openai-chat")
_REFUSES_UNKNOWN_TOOLS = ("anthropic", "bedrock")
_STATUS_KINDS: dict[int, Kind] = {408: "timeout", 409: "unavailable", 429: "rate_limited"}


class ProviderAnswer(NamedTuple):
    """What a model said, why it stopped, and what its provider reports, in tokens."""

    text: str
    finish: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int

    @property
    def reported(self) -> bool:
        """Whether its provider said anything of tokens that can be."""
        told = self.input_tokens, self.output_tokens
        return any(told) and all(0 <= number <= MOST_SPENT for number in told)


class Connected:
    """A model that is set up, with the key that it was given, which is not shown."""

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
        """Return the model's answer. With `on_text` it comes as a stream, of which no piece takes longer than `stall`.

        Every call has a connection of its own, so that nothing of it outlives the call or is bound to one event loop.
        Raises Failure; TimeoutError where a stream stalls.
        """
        model = self._model
        wanted = ModelSettings(max_retries=0, timeout=stall)
        if max_tokens is not None:
            room = max_tokens + (REASONING_TOKENS if model.profile.get("supports_thinking") else 0)
            wanted["max_tokens"] = room if max_output is None else min(room, max_output)
        parameters = ModelRequestParameters()
        if provider in _REFUSES_UNKNOWN_TOOLS and (tools := called_tools(messages)):
            parameters = ModelRequestParameters(function_tools=tools)
            wanted["tool_choice"] = "none"
        merged = cast("ModelSettings", {**wanted, **settings})
        try:
            given = conversation(messages)
            async with model:
                if on_text is None:
                    response = await model_request(
                        model, given, model_settings=merged, model_request_parameters=parameters
                    )
                else:
                    stream = model_request_stream(
                        model, given, model_settings=merged, model_request_parameters=parameters
                    )
                    response = await _read(stream, stall, on_text)
        except (Failure, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 (the boundary to the SDKs: it is a failed call)
            failed = _failure(error, stall)
        else:
            return _answer(response, merged.get("max_tokens"))
        secrets = self._secrets(settings)
        cause = failed.__cause__
        raise _as_told(failed, secrets, redact) from (cause if _is_safe(cause, secrets) else None)

    def _secrets(self, settings: Mapping[str, Any]) -> list[str]:
        """What no failure may tell, as it is and as an error may show it, the longest first."""
        known = getattr(getattr(self._model, "client", None), "api_key", None)
        given = [key for key in (self._api_key, known) if isinstance(key, str)] + secrets_of(settings)
        told = {form for key in given for form in (key, key.strip(), repr(key)[1:-1], *key.split()[-1:])}
        return sorted(told - {""}, key=len, reverse=True)


def knows(provider: str) -> bool:
    """Whether there is a provider of this name. One whose library is not installed counts."""
    try:
        infer_provider_class(provider)
    except ImportError:
        return True
    except ValueError:
        return False
    return True


def build(model: str, base_url: str | None, api_key: str | None) -> Connected:
    """Return the model that a model string names. Raises Failure, which says what to do, where it cannot be had."""
    provider, _, name = model.partition(":")
    try:
        if base_url is None and provider not in _OPENAI:
            return Connected(infer_model(model, _provider_factory(api_key)), api_key)
        from palimpsest.summaries.models import openai_protocol  # the library of this provider may be missing

        if base_url is None:
            return Connected(openai_protocol.openai_model(name, api_key), api_key)
        return Connected(openai_protocol.model_at(base_url, api_key, provider, name or provider), api_key)
    except exceptions.UserError as error:  # no key, for one; what follows is a hint for users of Pydantic AI
        why = error.message.partition(" To try Pydantic AI")[0]
        raise Failure("refused", why) from error
    except ImportError as error:
        raise Failure("refused", str(error)) from error
    except Exception as error:  # of an SDK: one has an error of its own for addresses
        raise Failure("refused", f"{model} cannot be set up: {error}") from error


def _provider_factory(api_key: str | None) -> Callable[[str], Provider[Any]]:
    def make(name: str) -> Provider[Any]:
        kind: Any = infer_provider_class(name)
        made: Provider[Any] = kind() if api_key is None else kind(api_key=api_key)
        return made

    return make


async def _read(opening: Any, stall: float, on_text: Callable[[str], object]) -> ModelResponse:
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
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    if not text and response.finish_reason == "content_filter":
        raise Failure("refused", "the provider's filter withheld the answer")
    if not text and response.finish_reason == "length":
        raise Failure("answer", f"all {max_tokens} tokens that it may say were spent before the answer began")
    usage: RequestUsage = response.usage
    return ProviderAnswer(
        text, response.finish_reason, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens
    )


# --- failures


def _failure(error: Exception, seconds: float) -> Failure:
    made = _classified(error, seconds)
    made.__cause__ = error
    return made


def _classified(error: Exception, seconds: float) -> Failure:
    if isinstance(error, exceptions.ModelTimeoutError | exceptions.ModelRequestTimeout):
        return Failure("timeout", f"no answer within {seconds:g} s", passing=True)
    if isinstance(error, exceptions.ModelHTTPError):
        return _of_status(error)
    if isinstance(error, exceptions.ModelConnectionError):
        return Failure("unavailable", f"the connection failed: {_flat(error.message)}", passing=True)
    unusable = isinstance(error, exceptions.UnexpectedModelBehavior | LookupError)  # without choices, for one
    if unusable or isinstance(error.__cause__, ValueError):
        return Failure("answer", _flat(f"its answer cannot be used: {error}"))
    if isinstance(error, exceptions.ModelAPIError) or _is_transport(error):
        return Failure("unavailable", f"the connection broke off: {_flat(str(error))}", passing=True)
    return Failure("raised", _flat(words_of(error)))


def _of_status(error: exceptions.ModelHTTPError) -> Failure:
    status = error.status_code
    why = f"status {status}: {_flat(_words(error.body)) or 'no reason given'}"
    if isinstance(error, exceptions.ModelQuotaExceededError):  # also a 429, but no waiting helps
        return Failure("refused", why)
    kind: Kind = _STATUS_KINDS.get(status, "unavailable" if status >= 500 else "refused")
    return Failure(kind, why, passing=kind != "refused", retry_after=error.retry_after)


def _is_transport(error: BaseException) -> bool:
    """Whether an HTTP library lost the connection, in the middle of a stream for one."""
    return any(kind.__name__ in ("TransportError", "APIConnectionError") for kind in type(error).__mro__)


def _words(body: object) -> str:
    """What a provider said of the reason, wherever it is in the body."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        return str(inner.get("message", inner)) if isinstance(inner, Mapping) else str(inner)
    return str(body or "")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _as_told(failed: Failure, secrets: Sequence[str], redact: Redact | None) -> Failure:
    """The failure as a reader may see it: without keys and what is private, and not longer than anybody reads."""
    why = failed.why
    for secret in secrets:
        why = why.replace(secret, "***")
    why = redact(why) if redact is not None else why  # as long as it is whole: half a number is not known for one
    return Failure(failed.kind, briefly(why), passing=failed.passing, retry_after=failed.retry_after)


def _is_safe(cause: BaseException | None, secrets: Sequence[str]) -> bool:
    """Whether nothing that a traceback prints of the cause holds a key."""
    return not any(secret in f"{error} {error!r}" for error in _chain(cause) for secret in secrets)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
