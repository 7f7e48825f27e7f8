"""Messages of Pydantic AI: to JSON and back, from texts, and a request to a model.

This is the only module of the package that imports Pydantic AI, which takes a second.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import Model


def dumped(messages: list[Any]) -> list[Any]:
    """Return the messages as values of JSON. Raises ValueError for objects that are no messages."""
    values: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json", warnings="error")
    return values


def loaded(stored: list[Any]) -> list[Any]:
    """Return the messages that `dumped` wrote. Raises ValueError if they cannot be read."""
    return list(ModelMessagesTypeAdapter.validate_python(stored))


def spoken(user: str | None, response: str | None, at: datetime) -> list[Any]:
    """Return messages of texts that were said at this time, always the same ones; None: that side says nothing."""
    messages: list[Any] = []
    if user is not None:
        messages.append(ModelRequest(parts=[UserPromptPart(content=user, timestamp=at)]))
    if response is not None:
        messages.append(ModelResponse(parts=[TextPart(content=response)], timestamp=at))
    return messages


async def asked(model: Model | str, prompt: str) -> str:
    """Return a model's answer to a prompt. Raises whatever its provider raises."""
    answer = await model_request(model, [ModelRequest.user_text_prompt(prompt)])
    return "".join(part.content for part in answer.parts if isinstance(part, TextPart)).strip()
