"""Messages of Pydantic AI: to JSON and back, of texts, and a question to a model. The one module that imports it."""

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
    """The messages as values of JSON. Raises ValueError for what is none."""
    found: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json", warnings="error")
    return found


def loaded(stored: list[Any]) -> list[Any]:
    """The messages that `dumped` wrote. Raises ValueError."""
    return list(ModelMessagesTypeAdapter.validate_python(stored))


def spoken(user: str | None, response: str | None, at: datetime) -> list[Any]:
    """Messages of texts that were said then, always the same; None is a side that says nothing."""
    found: list[Any] = []
    if user is not None:
        found.append(ModelRequest(parts=[UserPromptPart(content=user, timestamp=at)]))
    if response is not None:
        found.append(ModelResponse(parts=[TextPart(content=response)], timestamp=at))
    return found


async def asked(model: Model | str, prompt: str) -> str:
    """What a model answers to a prompt. Whatever its provider raises is raised."""
    answer = await model_request(model, [ModelRequest.user_text_prompt(prompt)])
    return "".join(part.content for part in answer.parts if isinstance(part, TextPart)).strip()
