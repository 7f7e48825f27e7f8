"""Programs as users write them with the vendors' clients. Never run: `mypy --strict` and pyright read them."""

from __future__ import annotations

from typing import assert_type

from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, ToolParam
from google import genai
from google.genai.types import GenerateContentResponse
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionFunctionToolParam
from openai.types.responses import Response

from palimpsest import AsyncMemory, AsyncSession, Context, Memory, Session
from palimpsest.types import FormatName


def openai_chat(client: OpenAI, session: Session, tools: list[ChatCompletionFunctionToolParam]) -> None:
    """Messages, whole requests, tools of the vendor's type, and a stream of chat completions."""
    context = session.context(system="be brief", tools=tools)

    said = client.chat.completions.create(model="gpt-4o", messages=context.messages)
    assert_type(said, ChatCompletion)
    session.add(said)
    session.add(client.chat.completions.create(model="gpt-4o", **context.request()))
    assert_type(client.chat.completions.create(model="gpt-4o", messages=session.messages()), ChatCompletion)
    with session.stream() as answer:
        for event in client.chat.completions.create(model="gpt-4o", messages=context.messages, stream=True):
            assert_type(answer.feed(event), str)


def openai_responses(client: OpenAI, session: Session) -> None:
    """Items, and whole requests, of the Responses API."""
    context = session.context(format="openai-responses")

    said = client.responses.create(model="gpt-4o", input=context.messages, instructions=context.system)
    assert_type(said, Response)
    client.responses.create(model="gpt-4o", input=session.messages(format="openai-responses"))
    session.add(said)
    session.add(client.responses.create(model="gpt-4o", **context.request()))


def anthropic(client: Anthropic, session: Session, tools: list[ToolParam]) -> None:
    """Messages, system text, whole requests, and a stream of Anthropic's."""
    context = session.context(system="be brief", format="anthropic", tools=tools)

    said = client.messages.create(model="claude", max_tokens=9, messages=context.messages, system=context.system)
    assert_type(said, Message)
    client.messages.create(model="claude", max_tokens=9, messages=session.messages(format="anthropic"))
    session.add(said)
    session.add(client.messages.create(model="claude", max_tokens=9, **context.request(cache_breakpoints=True)))
    with (
        client.messages.stream(model="claude", max_tokens=9, **context.request()) as events,
        session.stream() as answer,
    ):
        for event in events:
            answer.feed(event)


def gemini(client: genai.Client, session: Session) -> None:
    """Contents, and whole requests, of Gemini's."""
    context = session.context(format="gemini")

    said = client.models.generate_content(model="gemini", contents=context.messages)
    assert_type(said, GenerateContentResponse)
    session.add(said)
    session.add(client.models.generate_content(model="gemini", **context.request()))


def named(openai: OpenAI, claude: Anthropic, context: Context) -> tuple[object, ...]:
    """The result of a whole request is `Any`, unless a variable declares its type: then its attributes are checked."""
    message: Message = claude.messages.create(model="claude", max_tokens=9, **context.request())
    completion: ChatCompletion = openai.chat.completions.create(model="gpt-4o", **context.request())
    response: Response = openai.responses.create(model="gpt-4o", **context.request())
    wrong: tuple[object, ...] = (message.choices,)  # type: ignore[attr-defined]
    wrong = (completion.output,)  # type: ignore[attr-defined]
    wrong = (response.content,)  # type: ignore[attr-defined]
    return message.content, completion.choices, response.output, wrong


async def asynchronous(openai: AsyncOpenAI, claude: AsyncAnthropic, google: genai.Client) -> None:
    """Use the asynchronous clients alike."""
    async with AsyncMemory.open("memory://", tenant="acme") as memory:
        session: AsyncSession = memory.session("ann", model="gpt-4o", format="openai")
        context: Context = await session.context()
        await session.add(await openai.chat.completions.create(model="gpt-4o", messages=context.messages))
        await session.add(await openai.chat.completions.create(model="gpt-4o", **context.request()))
        await session.add(await claude.messages.create(model="claude", max_tokens=9, **context.request()))
        await session.add(await google.aio.models.generate_content(model="gemini", **context.request()))
        async with session.stream() as answer:
            async for event in await openai.chat.completions.create(
                model="gpt-4o", messages=context.messages, stream=True
            ):
                answer.feed(event)


def any_format(name: FormatName) -> Session:
    """A format that is known only at run time."""
    with Memory.open("memory://") as memory:
        return memory.session("s", format=name)
