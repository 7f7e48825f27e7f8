"""What type checkers infer for clients that `remember` wraps. Never run: `mypy --strict` reads it with the tests."""

from __future__ import annotations

from typing import assert_type

from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message
from google.genai import Client
from google.genai.types import GenerateContentResponse
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from palimpsest import AsyncSession, Session
from palimpsest.integrations import anthropic, google, openai


def synchronous(session: Session) -> None:
    """A wrapped client has the client's own type, and so have its results."""
    assert_type(openai.remember(OpenAI(), session), OpenAI)
    assert_type(anthropic.remember(Anthropic(), session), Anthropic)
    assert_type(google.remember(Client(), session), Client)
    asked = openai.remember(OpenAI(), session, cut_off="drop").chat.completions
    assert_type(asked.create(model="gpt-4o", messages=[{"role": "user", "content": "Hello"}]), ChatCompletion)
    contents = google.remember(Client(), session).models.generate_content(model="gemini-2.5-flash", contents="Hello")
    assert_type(contents, GenerateContentResponse)


async def asynchronous(session: AsyncSession) -> None:
    """Use the asynchronous clients alike."""
    assert_type(openai.remember(AsyncOpenAI(), session), AsyncOpenAI)
    messages = anthropic.remember(AsyncAnthropic(), session).messages
    answer = await messages.create(
        model="claude-sonnet-4-6", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
    )
    assert_type(answer, Message)


def refused(session: Session) -> None:
    """Calls that a type checker refuses; if it accepted one, mypy would report its comment as unused."""
    openai.remember(OpenAI(), "session")  # type: ignore[arg-type]
    openai.remember(OpenAI(), session, cut_off="mark")  # type: ignore[arg-type]
    openai.remember(OpenAI(), session).chat.completions.create(messages=[])  # type: ignore[call-overload]
