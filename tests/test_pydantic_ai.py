"""Agents of Pydantic AI that remember, run by Pydantic AI itself with models that answer from a script."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from openai_server import Play
from palimpsest import AsyncMemory, BudgetImpossible, ConfigError, Memory
from palimpsest.errors import Closed
from palimpsest.formats import Shown
from palimpsest.integrations.pydantic_messages import PydanticAI
from sdks import load
from streams import StreamServer, answers

pai = load("pydantic_ai")
messages = load("pydantic_ai.messages")
functions = load("pydantic_ai.models.function")
capabilities = load("pydantic_ai.capabilities")
adapter = load("palimpsest.integrations.pydantic_ai")

pytestmark = pytest.mark.anyio

KINDS = ["Session", "AsyncSession"]
WAYS = ["run", "run_stream", "iter"]
LONG = "the wind blows over the sea and the land " * 12
DONE = [messages.TextPart("Clear.")]
CARD, HALF_A_CARD = "4111 1111 1111 1111", "1111 1111"  # with a space, so no id and no time has it by chance
PICTURE = messages.BinaryContent(data=b"\x89PNG\r\n\x1a\n\xfb\xff", media_type="image/png")


@asynccontextmanager
async def opened(kind: str, store: str = "memory://", *, privacy: Any = None, **options: Any) -> AsyncIterator[Any]:
    """Open a session of this kind."""
    if kind == "Session":
        with Memory.open(store, privacy=privacy) as memory:
            yield memory.session("trip", **options)
        return
    async with AsyncMemory.open(store, privacy=privacy) as kept:
        yield kept.session("trip", **options)


async def log_of(chat: Any) -> list[Any]:
    """Return the entries of the log."""
    entries = chat.entries()
    found: list[Any] = entries if isinstance(entries, list) else await entries
    return found


def scripted_agent(respond: Callable[[list[Any]], Any], **options: Any) -> tuple[Any, list[list[Any]]]:
    """Return an agent whose model answers by the function, and a list of the histories that the model is given."""
    histories = list[list[Any]]()

    def asked(history: list[Any], _: Any) -> Any:
        histories.append(list(history))
        return respond(history)

    async def streamed(history: list[Any], _: Any) -> AsyncIterator[Any]:
        histories.append(list(history))
        for i, part in enumerate(respond(history).parts):
            if isinstance(part, messages.TextPart):
                yield part.content
            else:
                yield {
                    i: functions.DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
                }

    agent = pai.Agent(functions.FunctionModel(asked, stream_function=streamed), **options)

    @agent.tool_plain
    def weather(city: str) -> dict[str, Any]:
        """Tell the weather."""
        if city == "Nowhere":
            raise OSError("the tool is broken")
        return {"city": city, "sky": ["clear"]}

    return agent, histories


def is_user_prompt(history: list[Any]) -> bool:
    """Whether the newest message of a history is the user's prompt, not a tool's result."""
    return any(isinstance(part, messages.UserPromptPart) for part in history[-1].parts)


def weather_calls(*cities: str) -> Any:
    """Return a response with a parallel call of the tool `weather` for each city."""
    calls = [messages.ToolCallPart("weather", {"city": city}, f"call_{city}") for city in cities]
    return messages.ModelResponse(calls)


def call_then_answer(history: list[Any]) -> Any:
    """Answer a prompt with two calls, and their results with a text."""
    return (
        weather_calls("Oslo", "Rome")
        if is_user_prompt(history)
        else messages.ModelResponse([messages.TextPart("Clear.")])
    )


async def run(agent: Any, way: str, question: Any, chat: Any, **options: Any) -> Any:
    """Run an agent in one of its ways, and return its result."""
    arguments = {"capabilities": [adapter.SessionHistory(chat)], **options}
    if way == "run":
        return await agent.run(question, **arguments)
    if way == "run_stream":
        async with agent.run_stream(question, **arguments) as result:
            async for _ in result.stream_text():
                pass
        return result
    async with agent.iter(question, **arguments) as running:
        async for _ in running:
            pass
    return running.result


def part_kinds(history: list[Any]) -> list[list[str]]:
    """Return the kinds of the parts of each message."""
    return [[part.part_kind for part in message.parts] for message in history]


def parts_read(history: list[Any]) -> list[Any]:
    """Return the parts of messages as a model reads them, without times."""
    read = list[Any]()
    for message in history:
        for part in message.parts:
            if isinstance(part, messages.ToolCallPart):
                read.append((part.part_kind, part.tool_name, part.args_as_dict(), part.tool_call_id))
            elif isinstance(part, messages.ToolReturnPart):
                read.append((part.part_kind, part.tool_name, part.model_response_str(), part.tool_call_id))
            else:
                read.append((part.part_kind, part.content, getattr(part, "signature", None), getattr(part, "id", None)))
    return read


def test_a_memory_in_the_place_of_a_session_is_refused_with_advice() -> None:
    """`SessionHistory` of a memory raises ConfigError that says it needs a session."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="a session"):
        adapter.SessionHistory(memory)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_each_run_continues_from_the_one_before(kind: str, way: str, tmp_path: Path) -> None:
    """Parallel calls and results are in the log once, and the next run's first request begins as the last one ended."""
    agent, histories = scripted_agent(call_then_answer, instructions="Be brief.", system_prompt="You know the weather.")

    async with opened(kind, str(tmp_path / "agent.db"), max_tokens=4_000, reserve=1_000) as chat:
        for question in ("How is Oslo?", "And now?"):
            result = await run(agent, way, question, chat)
            assert part_kinds(result.new_messages())[-1] == ["text"]
            assert len(result.new_messages()) == 4
        entries = await log_of(chat)

    each = ["message", "tool_call", "tool_call", "tool_result", "tool_result", "message"]
    assert [entry.kind for entry in entries] == ["message", *each, *each]
    assert entries[4].text == '{"city":"Oslo","sky":["clear"]}'
    assert parts_read(histories[2])[: len(parts_read(histories[1]))] == parts_read(histories[1])
    assert parts_read(histories[2])[len(parts_read(histories[1])) :] == [
        ("text", "Clear.", None, None),
        ("user-prompt", "And now?", None, None),
    ]


@pytest.fixture
def loop() -> Iterator[None]:
    """Give this thread an event loop, since Pydantic AI would make one and leave it open."""
    new_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(new_loop)
    yield
    asyncio.set_event_loop(None)
    new_loop.close()


@pytest.mark.usefixtures("loop")
def test_run_sync_remembers() -> None:
    """`run_sync` remembers, and so does an agent that has the capability itself."""
    with Memory.open("memory://") as memory:
        chat = memory.session("trip", max_tokens=4_000)
        agent, histories = scripted_agent(call_then_answer, capabilities=[adapter.SessionHistory(chat)])

        for question in ("How is Oslo?", "And now?"):
            assert agent.run_sync(question).output == "Clear."

        assert part_kinds(histories[2]) == [
            ["user-prompt"],
            ["tool-call", "tool-call"],
            ["tool-return", "tool-return"],
            ["text"],
            ["user-prompt"],
        ]


@pytest.mark.parametrize("kind", KINDS)
async def test_signed_thoughts_and_media_come_back_as_the_provider_sent_them(kind: str) -> None:
    """Thoughts, ids and signatures go back as they came, and so do pictures, documents and what a tool returned."""
    thought = messages.ThinkingPart("Two roads.", id="rs_1", signature="c2lnbmVk", provider_name="openai")
    text = messages.TextPart("I look.", id="msg_1", provider_name="openai")
    call = messages.ToolCallPart("weather", '{"city": "Oslo"}', "c1", id="fc_1", provider_name="openai")
    agent, histories = scripted_agent(
        lambda history: (
            messages.ModelResponse([thought, text, call]) if is_user_prompt(history) else call_then_answer(history)
        )
    )
    question = [
        "Look:",
        PICTURE,
        messages.ImageUrl("https://example.org/i.png"),
        messages.DocumentUrl("https://example.org/d.pdf"),
        messages.BinaryContent(data=b"%PDF", media_type="application/pdf"),
        messages.BinaryContent(data=b"RIFF", media_type="audio/wav"),
        messages.UploadedFile("file-1", provider_name="openai"),
    ]

    async with opened(kind, max_tokens=9_000) as chat:
        await run(agent, "run", question, chat)
        await run(agent, "run", "Thanks.", chat)

    first, second = histories[2][:2]
    assert first.parts[0].content == [
        messages.BinaryContent.narrow_type(one) if hasattr(one, "data") else one for one in question
    ]
    assert list(second.parts) == [thought, text, call]


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "openai"])
async def test_claudes_thinking_from_before_a_cut_is_not_sent(provider: str) -> None:
    """After a cut, thinking of Claude from before it is not sent: newer models refuse it. Others' is sent."""
    said = messages.TextPart("word " * 200)
    agent, histories = scripted_agent(
        lambda history: messages.ModelResponse(
            [messages.ThinkingPart(f"Thought {len(history)}.", signature="c2ln", provider_name=provider), said]
        )
    )

    async with opened("AsyncSession", max_tokens=1_500) as chat:
        for _ in range(9):
            await run(agent, "run", "And?", chat)

    thoughts = [
        [part for message in history for part in message.parts if isinstance(part, messages.ThinkingPart)]
        for history in histories
    ]
    responses = [[message for message in history if message.kind == "response"] for history in histories]
    assert len(responses[-1]) < 8, "there was a cut"
    lost = [len(answers) - len(kept) for answers, kept in zip(responses, thoughts, strict=True)]
    assert any(lost) == (provider != "openai")
    assert 0 in lost[1:]


LINK = "https://example.org/i"
MEDIA = {
    "picture": messages.BinaryImage(data=PICTURE.data, media_type="image/png"),
    "detailed": messages.BinaryImage(data=PICTURE.data, media_type="image/png", vendor_metadata={"detail": "high"}),
    "image": messages.ImageUrl(f"{LINK}.png", vendor_metadata={"detail": "low"}),
    "image of a type": messages.ImageUrl(LINK, media_type="image/png", vendor_metadata={"media_resolution": "low"}),
    "download": messages.ImageUrl(f"{LINK}.png", force_download=True),
    "document": messages.DocumentUrl(f"{LINK}.pdf"),
    "sound": messages.BinaryContent(data=b"RIFF", media_type="audio/wav"),
}
DOWNLOADED = [name for name in MEDIA if name != "download"]
"""What a tool may return: Pydantic AI does not keep `force_download` in a history."""


@pytest.mark.parametrize("name", MEDIA)
async def test_media_in_a_prompt_keep_their_type_detail_and_address(name: str) -> None:
    """A medium in a prompt goes back to the provider with the same type, detail and address."""
    agent, histories = scripted_agent(call_then_answer)

    async with opened("AsyncSession", max_tokens=9_000) as chat:
        await run(agent, "run", ["Look:", MEDIA[name]], chat)
        await run(agent, "run", "Thanks.", chat)

    (_, back) = histories[2][0].parts[0].content
    assert back == MEDIA[name]
    assert back.media_type == MEDIA[name].media_type


@pytest.mark.parametrize("in_a_list", [False, True])
@pytest.mark.parametrize("name", DOWNLOADED)
async def test_media_returned_by_a_tool_come_back_equal(name: str, in_a_list: bool) -> None:
    """A medium that a tool returned, alone or in a list, comes back as it was and does not become text."""
    returned = [MEDIA[name], "see"] if in_a_list else MEDIA[name]
    call = messages.ModelResponse([messages.ToolCallPart("look", {}, "c1")])
    agent, histories = scripted_agent(lambda _: call if len(histories) == 1 else messages.ModelResponse(DONE))
    agent.tool_plain(lambda: returned, name="look")

    async with opened("AsyncSession", max_tokens=9_000) as chat:
        await run(agent, "run", "Look.", chat)
        await run(agent, "run", "Thanks.", chat)
        (result,) = [entry for entry in await log_of(chat) if entry.kind == "tool_result"]

    first, back = histories[1][2].parts[0], histories[2][2].parts[0]
    assert back.content == returned
    assert (back.files, back.model_response_str()) == (first.files, first.model_response_str())
    assert result.text == ("see" if in_a_list else "")


def web_search_parts(query: str = "oslo", found: str = "clear") -> list[Any]:
    """Return the parts of a response whose provider has searched the web itself."""
    return [
        messages.ThinkingPart("", id="rs_1", signature="c2lnbmVk", provider_name="openai"),
        messages.NativeToolCallPart("web_search", {"query": query}, "ws_1", id="ws_1", provider_name="openai"),
        messages.NativeToolReturnPart(
            "web_search", {"status": "completed", "sky": found, "more": []}, "ws_1", provider_name="openai"
        ),
        messages.TextPart("I see.", id="msg_1", provider_name="openai"),
    ]


@pytest.mark.parametrize("gave", [None, "", "rain", {"status": "completed", "more": []}])
@pytest.mark.parametrize("kind", KINDS)
async def test_provider_run_calls_and_results_come_back_as_parts_of_one_response(kind: str, gave: Any) -> None:
    """Calls that the provider ran itself, their results and the thought before them come back in one response."""
    said = web_search_parts()
    said[2] = dataclasses.replace(said[2], content=gave)
    agent, histories = scripted_agent(lambda _: messages.ModelResponse(said))

    async with opened(kind, max_tokens=9_000) as chat:
        await run(agent, "run", "How is Oslo?", chat)
        await run(agent, "run", "Thanks.", chat)
        entries = await log_of(chat)

    assert [entry.kind for entry in entries] == ["message"] * 4
    assert list(histories[1][1].parts) == said


@pytest.mark.parametrize("private", [{"query": "ann@example.org"}, {"found": "ann@example.org"}])
async def test_redacted_provider_run_calls_become_text(private: dict[str, str]) -> None:
    """A provider-run call that a policy changed is sent as text without its id, which stands for the original."""
    agent, histories = scripted_agent(lambda _: messages.ModelResponse(web_search_parts(**private)))

    async with opened("AsyncSession", privacy="default", max_tokens=9_000) as chat:
        await run(agent, "run", "How is Oslo?", chat)
        await run(agent, "run", "Thanks.", chat)

        assert "ann@" not in str(await log_of(chat))
    assert "ann@" not in str(histories[1][:-1])
    assert {part.part_kind for part in histories[1][1].parts} == {"text"}
    assert {part.id for part in histories[1][1].parts} == {None}


async def test_a_provider_run_call_without_a_result_becomes_text() -> None:
    """No provider accepts a provider-run call without its result, so the response is sent as text."""
    agent, histories = scripted_agent(
        lambda _: messages.ModelResponse([*web_search_parts()[:2], *web_search_parts()[3:]])
    )

    async with opened("AsyncSession", max_tokens=9_000) as chat:
        await run(agent, "run", "How is Oslo?", chat)
        await run(agent, "run", "Thanks.", chat)

    assert part_kinds(histories[1])[1] == ["text", "text"]


@pytest.mark.parametrize("kind", KINDS)
async def test_redacted_thoughts_lose_their_signature(kind: str) -> None:
    """A policy's findings are not stored, and a redacted thought loses its signature and the ids that depend on it."""
    thought = messages.ThinkingPart(f"Card {CARD}.", id="rs_1", signature="c2lnbmVk", provider_name="openai")
    agent, histories = scripted_agent(
        lambda _: messages.ModelResponse([thought, messages.TextPart("I see.", id="msg_1")])
    )

    async with opened(kind, privacy="default", max_tokens=4_000) as chat:
        for question in (f"My card is {CARD}.", "Thanks."):
            await run(agent, "run", question, chat)
        entries = await log_of(chat)

    assert not any(word in str(entries) for word in (HALF_A_CARD, "c2lnbmVk"))
    assert HALF_A_CARD not in str(histories[1][:-1])
    assert part_kinds(histories[1])[1] == ["text", "text"]
    assert {part.id for part in histories[1][1].parts} == {None}


async def test_thoughts_redacted_by_a_scan_are_sent_unsigned() -> None:
    """A thought that was changed in the log, as a scan does, is sent without its signature."""
    thought = messages.ThinkingPart("Ann has a plan.", signature="c2lnbmVk", provider_name="anthropic")
    agent, histories = scripted_agent(lambda _: messages.ModelResponse([thought, messages.TextPart("I see.")]))

    async with opened("AsyncSession", max_tokens=4_000) as chat:
        await run(agent, "run", "Hello.", chat)
        (_, said) = await log_of(chat)
        changed = {**said.metadata["pydantic-ai"]["parts"][0], "characters": 3}
        assert changed["signature"] == "c2lnbmVk"
        await run(agent, "run", "Again.", chat)

    parts = [changed, *said.metadata["pydantic-ai"]["parts"][1:]]
    altered = replace(said, metadata={"pydantic-ai": {**said.metadata["pydantic-ai"], "parts": parts}})
    assert histories[1][1].parts[0].signature == "c2lnbmVk"
    assert "c2lnbmVk" not in str(PydanticAI().render([Shown(altered)]))


def _in_capitals(history: list[Any]) -> list[Any]:
    """Return the history with prompts in capitals, and with tool results rebuilt without their time."""

    def changed(part: Any) -> Any:
        if part.part_kind == "user-prompt":
            return dataclasses.replace(part, content=part.content.upper())
        if part.part_kind == "tool-return":
            return messages.ToolReturnPart(part.tool_name, "short", part.tool_call_id)
        return part

    return [dataclasses.replace(message, parts=[*map(changed, message.parts)]) for message in history]


PROCESSORS = {
    "none": list,
    "copies": copy.deepcopy,
    "newest": lambda history: history[-2:],
    "in capitals": _in_capitals,
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", PROCESSORS)
async def test_a_history_processor_doubles_no_messages(name: str, first: bool) -> None:
    """Whether a processor copies, changes or drops messages, each message is stored once and unchanged.

    The ids of calls may repeat.
    """
    agent, _ = scripted_agent(
        lambda history: (
            weather_calls("Oslo")
            if is_user_prompt(history) or len(results_since_prompt(history)) < 2
            else messages.ModelResponse(DONE)
        )
    )

    def results_since_prompt(history: list[Any]) -> list[Any]:
        since = next(i for i in reversed(range(len(newest_parts))) if newest_parts[i] == "user-prompt")
        return [kind for kind in newest_parts[since:] if kind == "tool-return"]

    newest_parts = list[str]()

    def noting_processor(history: list[Any]) -> list[Any]:
        newest_parts.append(history[-1].parts[0].part_kind)
        return PROCESSORS[name](history)

    async with opened("AsyncSession", max_tokens=4_000) as chat:
        for question in ("How is Oslo?", "And now?"):
            both = [capabilities.ProcessHistory(noting_processor), adapter.SessionHistory(chat)]
            await agent.run(question, capabilities=both if first else both[::-1])
        entries = await log_of(chat)

    once = ["message", "tool_call", "tool_result", "tool_call", "tool_result", "message"]
    assert [entry.kind for entry in entries] == once * 2
    assert [entry.text.lower() for entry in entries if entry.role == "user"] == ["how is oslo?", "and now?"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_history_within_a_budget_holds_whole_interactions(kind: str) -> None:
    """However long a conversation is, a run's first history fits, holds whole interactions, and rarely changes."""
    agent, histories = scripted_agent(
        lambda history: (
            weather_calls("Oslo") if is_user_prompt(history) else messages.ModelResponse([messages.TextPart(LONG)])
        )
    )
    turns = 24

    async with opened(kind, model="gpt-4o", max_tokens=2_000, reserve=500) as chat:
        for turn in range(turns):
            await run(agent, "run", f"Question {turn}: {LONG}", chat)
        entries = await log_of(chat)

    assert len(entries) == turns * 4
    begun = [parts_read(one) for one in histories[::2]]
    assert max(map(len, begun)) < 60
    for one in begun:
        asked = [part[3] for part in one if part[0] == "tool-call"]
        assert asked == [part[3] for part in one if part[0] == "tool-return"]
    moved = [1 for before, after in pairwise(begun) if after[: len(before)] != before]
    assert 0 < len(moved) < turns / 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_run_can_be_repeated(kind: str, way: str) -> None:
    """A prompt that the model never answered is not stored, so repeating the run stores it once."""
    failing = [ConnectionError("no connection")]

    def respond(history: list[Any]) -> Any:
        if failing:
            raise failing.pop()
        return messages.ModelResponse([messages.TextPart("Clear.")])

    agent, histories = scripted_agent(respond)
    async with opened(kind, max_tokens=4_000) as chat:
        with pytest.raises(ConnectionError):
            await run(agent, way, "How is Oslo?", chat)
        assert await log_of(chat) == []
        await run(agent, way, "How is Oslo?", chat)

        assert [entry.text for entry in await log_of(chat)] == ["How is Oslo?", "Clear."]
    assert len(histories[-1]) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_conversation_continues_after_a_tool_that_raised(kind: str, way: str) -> None:
    """The unanswered call is stored but in no history, and the next questions are answered."""
    agent, histories = scripted_agent(
        lambda history: weather_calls("Nowhere") if len(histories) < 2 else call_then_answer(history)
    )

    async with opened(kind, max_tokens=4_000) as chat:
        with pytest.raises(OSError, match="broken"):
            await run(agent, way, "How is it there?", chat)
        assert [entry.kind for entry in await log_of(chat)] == ["message", "tool_call"]
        for question in ("And in Oslo?", "Sure?"):
            await run(agent, way, question, chat)

        assert [entry.kind for entry in await log_of(chat)].count("tool_result") == 4
    for history in histories:
        asked = [part[3] for part in parts_read(history) if part[0] == "tool-call"]
        told = [part[3] for part in parts_read(history) if part[0] == "tool-return"]
        assert sorted(asked) == sorted(told)


OUTPUT = messages.ToolCallPart("final_result", {"response": 7}, "c0")
OTHER = messages.ToolCallPart("weather", {"city": "Oslo"}, "c1")
ENDS: dict[str, tuple[Any, list[Any]]] = {
    "an output": (int, [OUTPUT]),
    "an output beside a call": (int, [OTHER, OUTPUT]),
    "two outputs": (int, [OUTPUT, dataclasses.replace(OUTPUT, tool_call_id="c2")]),
    "text before a call": (str, [messages.TextPart("So."), OTHER]),
}
"""The type of an output, and the parts of the response that a run ends with. Text before calls ends only a stream."""


@pytest.mark.parametrize("strategy", ["early", "graceful", "exhaustive"])
@pytest.mark.parametrize(
    ("end", "way"), [(end, way) for end in ENDS for way in WAYS if way == "run_stream" or "text" not in end]
)
async def test_what_a_run_ends_with_is_in_the_log_whole(end: str, way: str, strategy: str) -> None:
    """Each call beside a final result has a result of its own, so the next run is shown all of it.

    With `run_stream` the framework adds these results to a history that only its caller sees.
    """
    kind, parts = ENDS[end]
    options = {"output_type": kind, "end_strategy": strategy}
    agent, histories = scripted_agent(lambda _: messages.ModelResponse(parts), **options)

    async def once(chat: Any) -> list[Any]:
        how = {"capabilities": [adapter.SessionHistory(chat)]}
        if way != "run_stream":
            return [*(await run(agent, way, "How is Oslo?", chat)).all_messages()]
        async with agent.run_stream("How is Oslo?", **how) as result:
            await result.get_output()
        return [*result.all_messages()]

    async with opened("AsyncSession", max_tokens=4_000) as chat:
        whole = await once(chat)
        entries = await log_of(chat)
        await once(chat)

    calls = [part.tool_call_id for part in parts if isinstance(part, messages.ToolCallPart)]
    assert sorted(entry.call_id for entry in entries if entry.kind == "tool_result") == sorted(calls)
    shown, told = (
        sorted((one for one in parts_read(history) if one[1] != "final_result"), key=str)
        for history in (histories[1], whole)
    )
    assert shown == sorted([*told, ("user-prompt", "How is Oslo?", None, None)], key=str)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_interrupted_run_keeps_its_partial_answer(kind: str) -> None:
    """Leaving `iter` keeps the calls made so far; leaving a stream keeps the text that came."""
    agent, _ = scripted_agent(call_then_answer)

    async with opened(kind, max_tokens=4_000) as chat:
        async with agent.iter("How is Oslo?", capabilities=[adapter.SessionHistory(chat)]) as running:
            async for node in running:
                if pai.Agent.is_call_tools_node(node):
                    break
        broken = [entry.kind for entry in await log_of(chat)]
        async with agent.run_stream("Once more?", capabilities=[adapter.SessionHistory(chat)]) as result:
            async for _ in result.stream_text():
                break

        kept = await log_of(chat)
    assert broken == ["message", "tool_call", "tool_call"]
    assert [entry.kind for entry in kept[3:]] == [
        "message",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "message",
    ]
    assert (kept[3].text, kept[-1].text) == ("Once more?", "Clear.")


async def test_a_cancelled_run_keeps_its_calls_and_partial_answer() -> None:
    """A run cancelled inside a tool keeps the open call; leaving a stream in the middle keeps the text so far."""
    begun = asyncio.Event()

    async def asked(history: list[Any], _: Any) -> Any:
        return messages.ModelResponse([messages.ToolCallPart("wait", {}, "c1")])

    async def streamed(history: list[Any], _: Any) -> AsyncIterator[Any]:
        yield "Hel"
        yield "lo"

    agent = pai.Agent(functions.FunctionModel(asked, stream_function=streamed))

    @agent.tool_plain
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with opened("AsyncSession", max_tokens=4_000) as chat:
        running = asyncio.create_task(agent.run("Go.", capabilities=[adapter.SessionHistory(chat)]))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        cancelled = [(entry.kind, entry.text) for entry in await log_of(chat)]
        async with agent.run_stream("Hello.", capabilities=[adapter.SessionHistory(chat)]) as result:
            async for _ in result.stream_text(debounce_by=None):
                break
        left = [(entry.kind, entry.text) for entry in await log_of(chat)][2:]

    assert cancelled == [("message", "Go."), ("tool_call", "{}")]
    assert left == [("message", "Hello."), ("message", "Hel")]


async def test_a_run_cancelled_repeatedly_keeps_its_partial_answer(tmp_path: Path) -> None:
    """A cancel scope of anyio cancels at every `await`; the text is stored even if the store is busy at that moment."""
    heard = asyncio.Event()

    async def streamed(history: list[Any], _: Any) -> AsyncIterator[Any]:
        yield "Hel"
        yield "lo"
        heard.set()
        await asyncio.Event().wait()

    agent = pai.Agent(functions.FunctionModel(stream_function=streamed))

    async with AsyncMemory.open(tmp_path / "log.db") as memory:
        for number in range(5):
            chat = memory.session(f"s{number}", max_tokens=4_000)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, agent, "run_stream", "Go.", chat)
                await heard.wait()
                busy = asyncio.create_task(memory.runner.run(time.sleep, 0.05))
                await asyncio.sleep(0)
                tasks.cancel_scope.cancel()
            await busy
            heard.clear()

            assert [(entry.text, entry.role) for entry in await log_of(chat)] == [
                ("Go.", "user"),
                ("Hello", "assistant"),
            ]


@pytest.mark.parametrize("kind", KINDS)
async def test_deferred_calls_are_answered_by_the_next_run(kind: str) -> None:
    """A run without a prompt, given the deferred results, continues behind the deferred calls."""
    agent, histories = scripted_agent(
        lambda history: (
            messages.ModelResponse([messages.ToolCallPart("ask", {}, "c1")])
            if is_user_prompt(history)
            else call_then_answer(history)
        ),
        output_type=[str, pai.DeferredToolRequests],
    )
    agent.tool_plain(requires_approval=True)(ask)

    async with opened(kind, max_tokens=4_000) as chat:
        waiting = await run(agent, "run", "May I?", chat)
        approved = waiting.output.build_results(approve_all=True)
        done = await run(agent, "run", None, chat, deferred_tool_results=approved)
        entries = await log_of(chat)

    assert done.output == "Clear."
    assert [entry.kind for entry in entries] == ["message", "tool_call", "tool_result", "message"]
    assert part_kinds(histories[1]) == [["user-prompt"], ["tool-call"], ["tool-return"]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_deferred_results_may_come_with_a_prompt(kind: str, way: str) -> None:
    """The results answer the deferred calls, and the prompt follows them, for the model and in the log."""
    agent, histories = scripted_agent(
        lambda history: messages.ModelResponse(
            [messages.ToolCallPart("ask", {}, "c1")] if len(histories) == 1 else DONE
        ),
        output_type=[str, pai.DeferredToolRequests],
    )
    agent.tool_plain(requires_approval=True)(ask)

    async with opened(kind, max_tokens=4_000) as chat:
        waiting = await run(agent, "run", "May I?", chat)
        approved = waiting.output.build_results(approve_all=True)
        await run(agent, way, "And hurry.", chat, deferred_tool_results=approved)
        entries = await log_of(chat)

    assert part_kinds(histories[1]) == [["user-prompt"], ["tool-call"], ["tool-return", "user-prompt"]]
    assert [entry.text for entry in entries] == ["May I?", "{}", "granted", "And hurry.", "Clear."]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [("ask", "ask"), ("ask", "tell"), ("tell", "ask")])
async def test_deferred_calls_of_one_response_stay_together(kind: str, names: tuple[str, str]) -> None:
    """A run without a prompt is given the deferred calls as one response, with the results that the log has."""
    calls = [messages.ToolCallPart(name, {}, f"c{number}") for number, name in enumerate(names)]
    agent, histories = scripted_agent(
        lambda history: (
            messages.ModelResponse([messages.TextPart("I do it."), *calls])
            if is_user_prompt(history)
            else call_then_answer(history)
        ),
        output_type=[str, pai.DeferredToolRequests],
    )
    agent.tool_plain(requires_approval=True)(ask)
    agent.tool_plain(lambda: "told", name="tell")

    async with opened(kind, max_tokens=4_000) as chat:
        waiting = await run(agent, "run", "May I?", chat)
        approved = waiting.output.build_results(approve_all=True)
        done = await run(agent, "run", None, chat, deferred_tool_results=approved)
        entries = await log_of(chat)

    assert done.output == "Clear."
    assert sorted(one.call_id for one in entries if one.kind == "tool_result") == ["c0", "c1"]
    assert part_kinds(histories[1]) == [
        ["user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
    ]


async def test_an_erased_deferred_call_is_not_waited_for() -> None:
    """The next run's history has the other calls of the group without the erased one."""
    calls = [messages.ToolCallPart("ask", {}, f"c{number}") for number in range(2)]
    agent, histories = scripted_agent(
        lambda history: messages.ModelResponse(calls) if is_user_prompt(history) else call_then_answer(history),
        output_type=[str, pai.DeferredToolRequests],
    )
    agent.tool_plain(requires_approval=True)(ask)

    async with opened("AsyncSession", max_tokens=4_000) as chat:
        await run(agent, "run", "May I?", chat)
        await chat.erase([(await log_of(chat))[-1].id])
        approved = pai.DeferredToolResults(approvals={"c0": True})
        await run(agent, "run", None, chat, deferred_tool_results=approved)

    assert part_kinds(histories[1]) == [["user-prompt"], ["tool-call"], ["tool-return"]]


def ask() -> str:
    """Ask for permission."""
    return "granted"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_without_a_prompt_continues_after_a_process_died(kind: str) -> None:
    """A run without a prompt asks the model with the results in the log and adds only its answer."""
    agent, histories = scripted_agent(call_then_answer)

    async with opened(kind, max_tokens=4_000) as chat:
        added = chat.add(
            [
                {"role": "user", "content": "How is Oslo?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "clear"},
            ]
        )
        if not isinstance(added, tuple):
            await added
        await run(agent, "run", None, chat)

        assert [entry.text for entry in await log_of(chat)] == ["How is Oslo?", "{}", "clear", "Clear."]
    assert part_kinds(histories[0]) == [["user-prompt"], ["tool-call"], ["tool-return"]]


@pytest.mark.parametrize("kind", KINDS)
async def test_invalid_tool_arguments_and_their_retry_stay_in_the_history(kind: str) -> None:
    """A call with wrong arguments and the error that answered it are in the next run's history as they were sent."""
    wrong = messages.ModelResponse([messages.ToolCallPart("weather", {"town": 1}, "c1")])
    agent, histories = scripted_agent(lambda history: wrong if len(histories) == 1 else call_then_answer(history))

    async with opened(kind, max_tokens=4_000) as chat:
        await run(agent, "run", "How is Oslo?", chat)
        await run(agent, "run", "Thanks.", chat)
        statuses = [entry.status for entry in await log_of(chat) if entry.kind == "tool_result"]

    assert statuses[0] == "error"
    assert parts_read(histories[2])[: len(parts_read(histories[1]))] == parts_read(histories[1])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_given_message_history_replaces_the_context_and_is_not_added(kind: str) -> None:
    """A given `message_history` is used instead of the context and not stored; the run's new messages are."""
    agent, histories = scripted_agent(call_then_answer)
    own = [
        messages.ModelRequest([messages.UserPromptPart("Before.")]),
        messages.ModelResponse([messages.TextPart("Yes.")]),
    ]

    async with opened(kind, max_tokens=4_000) as chat:
        await run(agent, "run", "How is Oslo?", chat)
        await run(agent, "run", "And now?", chat, message_history=own)

        assert [entry.text for entry in await log_of(chat) if entry.role == "user"] == ["How is Oslo?", "And now?"]
    assert parts_read(histories[2])[:2] == parts_read(own)


@pytest.mark.parametrize("id", [None, "mine"])
async def test_the_session_of_a_run_takes_the_place_of_the_agents_own(id: str | None) -> None:
    """Neither is the agent's own conversation shown in that run, nor does the run stand in it."""
    named = {} if id is None else {"id": id}

    async with AsyncMemory.open("memory://") as memory:
        own, other = memory.session("own"), memory.session("other")
        agent, histories = scripted_agent(
            lambda _: messages.ModelResponse(DONE), capabilities=[adapter.SessionHistory(own, **named)]
        )
        await agent.run("How is Oslo?")
        await agent.run("And Rome?", capabilities=[adapter.SessionHistory(other, **named)])

        said = [[entry.text for entry in await log_of(chat)] for chat in (own, other)]
    assert said == [["How is Oslo?", "Clear."], ["And Rome?", "Clear."]]
    assert len(histories[1]) == 1


FOUND = {"queries": ["clouds"]}
LOADS = {"code": ("load", {}), "the model": ("load_capability", {"id": "weather"}), "a search": ("search_tools", FOUND)}
"""How tools become available in the middle of a run: who does it, and the call that does."""


@pytest.mark.parametrize("who", LOADS)
async def test_tools_that_were_made_available_stay_so(who: str) -> None:
    """As with the framework's own history, the next run may call them without loading or searching again."""

    def clouds() -> str:
        """Tell the clouds."""
        return "none"

    name, given = LOADS[who]
    steps = iter([(name, given), ("clouds", {}), None, ("clouds", {}), None])

    def respond(_: list[Any]) -> Any:
        step = next(steps)
        return messages.ModelResponse([messages.ToolCallPart(*step)] if step else DONE)

    deferred = capabilities.Capability(tools=[clouds], id="weather", description="Weather.", defer_loading=True)
    options = {"tools": [pai.Tool(clouds, defer_loading=True)]} if who == "a search" else {"capabilities": [deferred]}
    agent, _ = scripted_agent(respond, **options)

    def load(ctx: Any) -> str:
        ctx.load_capability("weather")
        return "loaded"

    load.__annotations__["ctx"] = pai.RunContext
    agent.tool(load)

    async with opened("AsyncSession", max_tokens=4_000) as chat:
        for question in ("How is Oslo?", "And now?"):
            await run(agent, "run", question, chat)
        results = [entry.text for entry in await log_of(chat) if entry.name == "clouds" and entry.kind == "tool_result"]

    assert results == ["none", "none"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_context_that_cannot_fit_raises_before_the_model_is_asked(kind: str) -> None:
    """BudgetImpossible is raised before the model is asked."""
    agent, histories = scripted_agent(call_then_answer)

    async with opened(kind, max_tokens=60) as chat:
        await run(agent, "run", LONG, chat)
        before = len(histories)
        with pytest.raises(BudgetImpossible):
            await run(agent, "run", "Thanks.", chat)
        assert len(histories) == before


async def test_a_run_over_a_closed_memory_asks_no_model() -> None:
    """Closed is raised before the model is asked, since nothing could be stored."""
    agent, histories = scripted_agent(call_then_answer)
    with Memory.open("memory://") as memory:
        chat = memory.session("trip")

    with pytest.raises(Closed):
        await run(agent, "run", "How is Oslo?", chat)

    assert histories == []


def completion(number: int, content: str | None, **more: Any) -> Play:
    """Return an answer of chat completions."""
    finish = "tool_calls" if more else "stop"
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **more}}
    body = {"id": f"c{number}", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice]}
    return answers({**body, "usage": {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}})


async def test_each_runs_first_request_extends_the_last_one() -> None:
    """Over the wire, a run's first request is the last one of the run before, then its answer and the new prompt."""
    models, providers = load("pydantic_ai.models.openai"), load("pydantic_ai.providers.openai")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    plays = [completion(1, None, tool_calls=[call]), completion(2, "Clear."), completion(3, "Yes.")]

    with StreamServer(*plays) as server:
        client = load("openai").AsyncOpenAI(base_url=server.url, api_key="none")
        provider = providers.OpenAIProvider(openai_client=client)
        agent, _ = scripted_agent(call_then_answer, instructions="Be brief.")
        async with opened("AsyncSession", max_tokens=4_000) as chat:
            for question in ("How is Oslo?", "Sure?"):
                await run(agent, "run", question, chat, model=models.OpenAIChatModel("gpt-4o", provider=provider))
        await client.close()
        second, third = (asked.body["messages"] for asked in server.asked[1:])

    assert json.dumps(third[: len(second)]) == json.dumps(second)
    assert [message["content"] for message in third[len(second) :]] == ["Clear.", "Sure?"]


BESIDE = """
import sys
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from palimpsest import Memory
from palimpsest.integrations.pydantic_ai import SessionHistory

def respond(history, info):
    is_asked = any(isinstance(part, UserPromptPart) for part in history[-1].parts)
    return ModelResponse([ToolCallPart("weather", {"city": "Oslo"}) if is_asked else TextPart("Clear.")])

agent = Agent(FunctionModel(respond))

@agent.tool_plain
def weather(city: str) -> str:
    return "clear"

with Memory.open(sys.argv[1]) as memory:
    chat = memory.session("trip")
    for number in range(5):
        with chat.turn():
            agent.run_sync(f"{sys.argv[2]}{number}", capabilities=[SessionHistory(chat)])
"""


def run_two_processes(store: str) -> list[int]:
    """Run two processes at once; return the exit status of each."""
    running = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", BESIDE, store, name]) for name in "ab"]
    return [one.wait(300) for one in running]


@pytest.mark.wide
async def test_runs_of_two_processes_in_turns_follow_each_other(tmp_path: Path) -> None:
    """With a turn around each run, the runs of two processes follow each other whole."""
    store = str(tmp_path / "agent.db")
    Memory.open(store).close()
    assert await asyncio.to_thread(run_two_processes, store) == [0, 0]

    async with opened("AsyncSession", store) as chat:
        entries = await log_of(chat)

    assert [entry.kind for entry in entries] == ["message", "tool_call", "tool_result", "message"] * 10
    assert sorted(entry.text for entry in entries[::4]) == [f"{name}{number}" for name in "ab" for number in range(5)]
