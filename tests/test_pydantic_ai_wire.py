"""What agents of Pydantic AI send to providers: with a session, the same as with the history that they hold themselves.

A server on the loopback interface answers as a provider does. The same runs are made twice: once with the
`message_history` of the run before, once with the session.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from openai_server import Play
from palimpsest import AsyncMemory
from sdks import load
from streams import StreamServer, answers, plays

pai = load("pydantic_ai")
native_tool = load("pydantic_ai.capabilities").NativeTool
native_tools = load("pydantic_ai.native_tools")
pydantic = load("pydantic")
adapter = load("palimpsest.integrations.pydantic_ai")

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"
SIGNED = {"text": "", "thoughtSignature": "c2ln"}
Whole = dict[str, Any]


# --- answers of providers


def claude(*blocks: Whole) -> Whole:
    """A message of Anthropic's; the server streams it."""
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6", "stop_reason": stop}
    return {**about, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 9}, "content": [*blocks]}


def gpt(*items: Whole) -> Whole:
    """A response of OpenAI's Responses API. Its items have ids of their own."""
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "status": "completed"}
    usage = {
        "input_tokens": 9,
        "output_tokens": 9,
        "total_tokens": 18,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    about |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}
    return {**about, "output": [{"id": f"id_{next(_numbers)}", **item} for item in items]}


def completion(content: str | None = None, **more: Any) -> Whole:
    """A chat completion."""
    message = {"role": "assistant", "content": content, **more}
    choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in more else "stop", "message": message}
    about = {"id": "c1", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice]}
    return {**about, "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}}


def gemini(*parts: Whole) -> Whole:
    """An answer of Google's."""
    content = {"role": "model", "parts": [*parts]}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}


_numbers = count()


def streamed(message: Whole) -> Play:
    """Stream a message of Anthropic's."""
    events = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
    for i, block in enumerate(message["content"]):
        begun, deltas = _in_pieces(block)
        events.append({"type": "content_block_start", "index": i, "content_block": begun})
        events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": i})
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 9}})
    return plays([*events, {"type": "message_stop"}])


def _in_pieces(block: Whole) -> tuple[Whole, list[Whole]]:
    """A block as it begins, and its deltas."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] in ("tool_use", "server_tool_use"):
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    if block["type"] == "thinking":
        told = {"type": "thinking_delta", "thinking": block["thinking"]}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [told, signed]
    return block, []


def played(whole: Whole) -> Play:
    """Answer as the provider would whose answer this is."""
    return streamed(whole) if whole.get("type") == "message" else answers(whole)


# --- agents


TOOLS = ("table", "again", "picture", "rich", "nothing", "empty", "none", "number", "encoded", "unknown")


def agent(model: Any, **options: Any) -> Any:
    """An agent that asks this model, with a tool for each kind of result."""
    made = pai.Agent(model, instructions="Be brief.", **options)
    picture = pai.BinaryContent(data=PNG, media_type="image/png")
    tried = list[int]()

    def again() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise pai.ModelRetry("Try again.")
        return "fine"

    def table(city: str = "Oslo") -> dict[str, Any]:
        return {"sky": ["clear", 1.0], "city": city}

    returned: dict[str, Any] = {
        "picture": [picture, "see"],
        "rich": pai.ToolReturn({"a": 1}, content=["look", picture], metadata={"z": 1}),
        "nothing": None,
        "empty": "",
        "none": [],
        "number": 3.0,
        "encoded": '{"b": 1,  "a":2}',
    }
    made.tool_plain(table)
    made.tool_plain(again)
    for name, value in returned.items():
        made.tool_plain(lambda value=value: value, name=name)
    return made


@asynccontextmanager
async def asking(server: StreamServer, provider: str) -> AsyncIterator[Any]:
    """A model of this provider that asks the server."""
    if provider == "gemini":
        google = load("google.genai").Client(api_key="none", http_options={"base_url": server.root})
        own = load("pydantic_ai.providers.google").GoogleProvider(client=google)
        yield load("pydantic_ai.models.google").GoogleModel("gemini-2.5-pro", provider=own)
        await google.aio.aclose()
        google.close()
        return
    vendor, name = ("anthropic", "AsyncAnthropic") if provider == "claude" else ("openai", "AsyncOpenAI")
    package = load(vendor)
    http = package.DefaultAsyncHttpxClient(verify=False)  # certificates take longer than all the rest
    url = server.root if provider == "claude" else server.url
    models = load(f"pydantic_ai.models.{vendor}")
    async with getattr(package, name)(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
        if provider == "claude":
            own = load("pydantic_ai.providers.anthropic").AnthropicProvider(anthropic_client=client)
            yield models.AnthropicModel("claude-sonnet-4-6", provider=own)
        else:
            own = load("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
            kind = models.OpenAIResponsesModel if provider == "gpt" else models.OpenAIChatModel
            yield kind("gpt-5", provider=own)


async def sent(
    provider: str, wholes: Sequence[Whole], prompts: Sequence[Any], *, remembers: bool, **options: Any
) -> list[Any]:
    """What the provider was sent by runs that continue from each other, with the framework's random ids numbered."""
    with StreamServer(*map(played, wholes)) as server:
        async with asking(server, provider) as model, AsyncMemory.open("memory://") as memory:
            made, history = agent(model, **options), None
            chat = memory.session("trip", max_tokens=20_000)
            for prompt in prompts:
                how = {"capabilities": [adapter.SessionHistory(chat)]} if remembers else {"message_history": history}
                history = (await made.run(prompt, **how)).all_messages()
        return [_numbered(asked.body) for asked in server.asked]


def _numbered(body: Any) -> Any:
    ids = dict[str, str]()
    return json.loads(
        re.sub(r"pyd_ai_\w+", lambda found: ids.setdefault(found.group(), f"id {len(ids)}"), json.dumps(body))
    )


async def check(
    provider: str, *wholes: Whole, prompts: Sequence[Any] = ("How is Oslo?", "Thanks."), **given: Any
) -> None:
    """Assert that the provider is sent the same with a session as without one."""
    without = await sent(provider, wholes, prompts, remembers=False, **given)
    assert len(without) == len(wholes)
    assert await sent(provider, wholes, prompts, remembers=True, **given) == without


def said(text: str, **more: Any) -> Whole:
    """A message of OpenAI's model."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part], **more}


def calls(provider: str, name: str, call_id: str = "c1", **arguments: Any) -> Whole:
    """A call of a tool, in the provider's shape."""
    encoded = json.dumps(arguments)
    if provider == "claude":
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
    if provider == "gpt":
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": encoded, "status": "completed"}
    if provider == "gemini":
        return {"functionCall": {"name": name, "args": arguments}, "thoughtSignature": "c2ln"}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": encoded}}


ASKS: dict[str, Callable[[Whole], Whole]] = {
    "claude": claude,
    "gpt": gpt,
    "gemini": gemini,
    "chat": lambda call: completion(tool_calls=[call]),
}
"""How an answer with one call looks, for each provider."""


def fine(provider: str) -> Whole:
    """An answer that ends a run."""
    ends = {"gpt": gpt(said("Fine.")), "gemini": gemini({"text": "Fine."}), "chat": completion("Fine.")}
    return ends.get(provider) or claude({"type": "text", "text": "Fine."})


@pytest.mark.parametrize("provider", ASKS)
async def test_what_tools_return_goes_back_as_it_was_sent(provider: str) -> None:
    """Objects, numbers, nothing, texts, pictures, retries, and what is told of a tool that does not exist."""
    wholes = [
        whole
        for i, tool in enumerate(TOOLS)
        for whole in (ASKS[provider](calls(provider, tool, f"c{i}")), fine(provider))
    ]
    await check(provider, *wholes, fine(provider), prompts=[*TOOLS, "Thanks."])


TEXT = {"type": "text", "text": "and"}
HM = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REASONS = {"type": "reasoning", "summary": [], "encrypted_content": "c2Vj"}
SEARCHES = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "oslo"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}

BETWEEN = {
    "text of Claude's": claude(calls("claude", "table"), TEXT, calls("claude", "table", "c2", city="Rome")),
    "text of Claude's behind a call": claude(calls("claude", "table"), TEXT),
    "thinking of Claude's": claude(HM, calls("claude", "table"), HM, calls("claude", "table", "c2")),
    "a search of Claude's": claude(calls("claude", "table"), SEARCHES, FOUND, calls("claude", "table", "c2")),
    "text of GPT's": gpt(calls("gpt", "table"), said("and"), calls("gpt", "table", "c2")),
    "thinking of GPT's": gpt(REASONS, calls("gpt", "table"), REASONS, calls("gpt", "table", "c2")),
    "text of Gemini's": gemini(calls("gemini", "table"), {"text": "and"}, calls("gemini", "table", city="Rome")),
}
"""Answers in which something stands between calls or behind them, by what that is."""


@pytest.mark.parametrize("between", BETWEEN)
async def test_results_find_their_calls_whatever_stands_between_the_calls(between: str) -> None:
    """Calls of one response are answered together, also if the model has said or thought something between them."""
    provider = next(name for name, whose in WHOSE.items() if whose in between)
    options = {"capabilities": [native_tool(native_tools.WebSearchTool())]} if "search" in between else {}
    await check(provider, BETWEEN[between], fine(provider), fine(provider), **options)


WHOSE = {"claude": "Claude's", "gpt": "GPT's", "gemini": "Gemini's"}


@pytest.mark.parametrize("parts", [({"text": "hm", "thought": True}, {"text": "So."}), ({"text": "So."}, SIGNED)])
async def test_thoughts_and_signatures_of_gemini_go_back(parts: tuple[Whole, ...]) -> None:
    """Thoughts that nobody signed are thoughts again, and a signature that came without text goes back, too."""
    await check("gemini", gemini(*parts), fine("gemini"))


class Output(pydantic.BaseModel):
    """What a run is to come to."""

    x: int


@pytest.mark.parametrize("provider", ["chat", "gpt"])
@pytest.mark.parametrize("kind", [pai.NativeOutput, pai.PromptedOutput])
async def test_what_was_wrong_with_an_output_goes_back_as_it_was_told(kind: Any, provider: str) -> None:
    """The model reads the same words about its first output in the next run."""
    outputs = ['{"x": "no"}', '{"x": 1}', '{"x": 2}']
    wholes = [gpt(said(text)) if provider == "gpt" else completion(text) for text in outputs]
    await check(provider, *wholes, output_type=kind(Output))


@pytest.mark.parametrize("behind", [(), ("ok?",), (pai.BinaryContent(data=PNG, media_type="image/png"),)])
async def test_marks_for_the_providers_cache_stay(behind: tuple[Any, ...]) -> None:
    """A mark that a prompt set is set in each later run, so the provider's cache serves what is before it."""
    first = ["A long document.", pai.CachePoint(ttl="1h"), *behind]
    await check("claude", fine("claude"), fine("claude"), prompts=[first, "Thanks."])
