"""Models that speak OpenAI's protocol, at OpenAI or any address. Imported only for these: it needs OpenAI's library."""

from __future__ import annotations

from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider


def openai_model(name: str, api_key: str | None) -> Model:
    """Return OpenAI's model of this name, used through chat completions."""
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name, provider=OpenAIProvider(api_key=api_key), profile=profile)


def model_at(base_url: str, api_key: str | None, kind: str, name: str) -> Model:
    """Return a model at any address that speaks OpenAI's protocol. No key from the environment is sent there."""
    provider = OpenAICompatibleProvider("openai-compatible", base_url=base_url, api_key=api_key)
    if kind == "openai-responses":
        return OpenAIResponsesModel(name, provider=provider)
    # A stream that breaks off must not count as an answer. All such servers know `max_tokens`.
    profile = OpenAIModelProfile(
        openai_chat_streaming_requires_finish_reason=True, openai_chat_supports_max_completion_tokens=False
    )
    return OpenAIChatModel(name, provider=provider, profile=profile)
