"""Conversations of the OpenAI Agents SDK in a log, run by its own runner with a scripted model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from openai_server import Play
from palimpsest import AsyncMemory, AsyncSession, BudgetImpossible, ConfigError, InvalidEntry, Memory, StoreUnavailable
from palimpsest.formats import find_format
from palimpsest.integrations.streams import ready
from sdks import load
from streams import StreamServer, answers

agents = load("agents")
scripted = load("agents.testing")
adapter = load("palimpsest.integrations.openai_agents")
types = load("openai.types.responses")

pytestmark = pytest.mark.anyio
KINDS = ["Session", "AsyncSession"]
QUESTION = {"role": "user", "content": "How is Oslo?"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
OTHER = {**CALL, "id": "fc_2", "call_id": "c2", "arguments": '{"city": "Rome"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "clear in Oslo"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}
LONG = "the wind blows over the sea and the land " * 12


@pytest.fixture(autouse=True)
def _no_traces() -> None:
    """Turn off the SDK's tracing, which would use the network."""
    agents.set_tracing_disabled(True)


@asynccontextmanager
async def opened(kind: str, store: str, *, privacy: Any = None, **options: Any) -> AsyncIterator[Any]:
    """Yield the SDK's session over one of ours, and ours."""
    if kind == "Session":
        with Memory.open(store, privacy=privacy) as memory:
            chat: Any = memory.session("trip", **options)
            yield adapter.PalimpsestSession(chat), chat
        return
    async with AsyncMemory.open(store, privacy=privacy) as kept:
        chat = kept.session("trip", **options)
        yield adapter.PalimpsestSession(chat), chat


async def listed(chat: Any) -> list[Any]:
    """Return the entries of a session of either kind."""
    entries = chat.entries()
    result: list[Any] = entries if isinstance(entries, list) else await entries
    return result


def say(id: str, text: str) -> Any:
    """Return a message of the model."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return types.ResponseOutputMessage(id=id, type="message", role="assistant", status="completed", content=[part])


def call(given: dict[str, Any]) -> Any:
    """Return a tool call of the model."""
    return types.ResponseFunctionToolCall(**given)


def think() -> Any:
    """Return a reasoning item of the model."""
    return types.ResponseReasoningItem(**THOUGHT)


@agents.function_tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"clear in {city}"


def guide(*steps: Any, **options: Any) -> tuple[Any, Any]:
    """Return an agent and the scripted model that it asks."""
    model = scripted.ScriptedModel(steps)
    return agents.Agent(name="Guide", instructions="Be brief.", model=model, tools=[weather], **options), model


async def run(agent: Any, question: Any, session: Any, *, streamed: bool = False, **options: Any) -> str:
    """Run an agent and return its answer."""
    if streamed:
        result = agents.Runner.run_streamed(agent, question, session=session, **options)
        async for _ in result.stream_events():
            pass
    else:
        result = await agents.Runner.run(agent, question, session=session, **options)
    return str(result.final_output)


def test_the_session_meets_the_sdks_protocol() -> None:
    """The SDK accepts the adapter as one of its sessions; anything but a session of ours is refused."""
    with Memory.open("memory://") as memory:
        session = adapter.PalimpsestSession(memory.session("trip"))

        assert isinstance(session, agents.Session)
        assert (session.session_id, session.session_settings) == ("trip", None)
        assert repr(session) == "<PalimpsestSession 'trip'>"
        with pytest.raises(ConfigError, match="a session"):
            adapter.PalimpsestSession(memory)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_runs_continue_from_each_other(kind: str, streamed: bool, tmp_path: Path) -> None:
    """Reasoning, parallel calls and results of a run are stored once and sent back as they came."""
    agent, model = guide([think(), call(CALL), call(OTHER)], [say("msg_1", "Clear.")], [say("msg_2", "In Oslo.")])

    async with opened(kind, str(tmp_path / "agent.db"), max_tokens=4_000, reserve=1_000) as (session, chat):
        answers = [await run(agent, one, session, streamed=streamed) for one in ("How is Oslo?", "Where?")]
        entries = await listed(chat)

    assert answers == ["Clear.", "In Oslo."]
    assert [(entry.kind, entry.call_id) for entry in entries] == [
        ("message", None),
        ("message", None),
        ("tool_call", "c1"),
        ("tool_call", "c2"),
        ("tool_result", "c1"),
        ("tool_result", "c2"),
        ("message", None),
        ("message", None),
        ("message", None),
    ]
    first, second = model.calls[1].input, model.calls[2].input
    assert second[: len(first)] == first  # so the provider's cache serves all of it
    assert second[1] == THOUGHT
    assert [item.get("id") for item in second if item.get("type") == "message"] == ["msg_1"]
    assert second[-1] == {"role": "user", "content": "Where?"}


@pytest.mark.parametrize("kind", KINDS)
async def test_agents_hand_over_within_a_conversation(kind: str) -> None:
    """A handoff's call and result are stored, and the other agent continues from there in the next run."""
    other, model = guide([say("msg_1", "Here I am.")], [say("msg_2", "Still me.")], handoff_description="knows Rome")
    hand = {**CALL, "name": "transfer_to_guide", "arguments": "{}"}
    first = agents.Agent(name="First", model=scripted.ScriptedModel([[call(hand)]]), handoffs=[other])

    async with opened(kind, "memory://", max_tokens=4_000) as (session, _):
        await run(first, "Rome, please.", session)
        await run(other, "Thank you.", session)

    assert [item.get("type", item.get("role")) for item in model.calls[1].input] == [
        "user",
        "function_call",
        "function_call_output",
        "message",
        "user",
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_budget_cuts_whole_interactions_and_stays_valid(kind: str) -> None:
    """However long the conversation, what a run begins with fits the budget, is valid, and changes rarely."""
    turns = 24
    steps = [
        step for turn in range(turns) for step in ([call({**CALL, "id": f"fc_{turn}"})], [say(f"msg_{turn}", LONG)])
    ]
    agent, model = guide(*steps)

    async with opened(kind, "memory://", model="gpt-4o", max_tokens=2_000, reserve=500) as (session, chat):
        for turn in range(turns):
            await run(agent, f"Question {turn}: {LONG}", session)
        kept = await session.get_items()
        tokens = chat.context(format="openai-responses").tokens if kind == "Session" else 0
        entries = await listed(chat)

    assert len(entries) == turns * 4
    assert len(kept) < 40
    assert tokens <= 1_500
    begun = [one.input for one in model.calls[::2]]
    assert not any(find_format("openai-responses").validate(items) for items in begun)
    moved = [before for before, after in pairwise(begun) if after[: len(before)] != before]
    assert 0 < len(moved) < turns / 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_run_can_be_repeated(kind: str) -> None:
    """The question of a run that failed is stored once when the run is repeated."""
    agent, model = guide(RuntimeError("no connection"), [say("msg_1", "Clear.")])

    async with opened(kind, "memory://", max_tokens=4_000) as (session, chat):
        with pytest.raises(RuntimeError, match="no connection"):
            await run(agent, "How is Oslo?", session)
        assert await run(agent, "How is Oslo?", session) == "Clear."
        entries = await listed(chat)

    assert [entry.text for entry in entries] == ["How is Oslo?", "Clear."]
    assert model.remaining_steps == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_waiting_for_approval_is_held_back(kind: str) -> None:
    """A call that waits for approval is in no history; once approved, its result stands beside it."""
    ask = agents.function_tool(lambda city: f"clear in {city}", name_override="ask", needs_approval=True)
    model = scripted.ScriptedModel([[call({**CALL, "name": "ask"})], [say("msg_1", "Clear.")], [say("msg_2", "Yes.")]])
    agent = agents.Agent(name="Guide", model=model, tools=[ask])

    async with opened(kind, "memory://", max_tokens=4_000) as (session, chat):
        waiting = await agents.Runner.run(agent, "How is Oslo?", session=session)
        shown, newest = await session.get_items(), await session.get_items(2)
        state = waiting.to_state()
        state.approve(waiting.interruptions[0])
        done = await agents.Runner.run(agent, state, session=session)
        await run(agent, "Sure?", session)
        entries = await listed(chat)

    assert [item.get("type", item.get("role")) for item in shown] == ["user"]
    assert [item.get("type", item.get("role")) for item in newest] == ["user", "function_call"]
    assert done.final_output == "Clear."
    assert [entry.kind for entry in entries] == ["message", "tool_call", "tool_result", *["message"] * 3]
    assert not find_format("openai-responses").validate(model.calls[-1].input)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_erased_call_is_not_among_the_newest_items(kind: str) -> None:
    """An erased call is not among the newest items; the others of its group are."""
    async with opened(kind, "memory://", max_tokens=4_000) as (session, chat):
        await session.add_items([QUESTION, CALL, {**CALL, "id": "fc_2", "call_id": "erased"}])
        await ready(chat.erase([(await listed(chat))[-1].id]))

        newest = [await session.get_items(limit) for limit in (1, 2, 3)]

    assert [[item.get("call_id") for item in items] for items in newest] == [["c1"], *[[None, "c1"]] * 2]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_died_between_call_and_result_leaves_a_valid_history(kind: str) -> None:
    """If a process died between call and result, another run continues with a valid history."""
    agent, model = guide([say("msg_1", "Rain.")], [say("msg_2", "Yes.")])

    async with opened(kind, "memory://", max_tokens=4_000) as (session, _):
        await session.add_items([QUESTION, CALL])
        for question in ("And Bergen?", "Sure?"):
            await run(agent, question, session)

    assert not any(find_format("openai-responses").validate(one.input) for one in model.calls)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_policy_applies_and_images_pass(kind: str) -> None:
    """What the policy finds is neither stored nor sent again; an image is sent back as it came."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
    content = [{"type": "input_text", "text": "My card is 4111 1111 1111 1111."}, picture]
    agent, model = guide([say("msg_1", "A gate.")], [say("msg_2", "A gate.")])

    async with opened(kind, "memory://", privacy="default", max_tokens=4_000) as (session, _):
        await run(agent, [{"role": "user", "content": content}], session)
        await run(agent, "What is it?", session)

    sent = model.calls[1].input[0]["content"]
    assert "1111 1111" in str(model.calls[0].input)
    assert "1111 1111" not in str(model.calls[1].input)
    assert sent[1] == picture


@pytest.mark.parametrize("kind", KINDS)
async def test_a_limit_leaves_out_items_that_need_an_earlier_one(kind: str) -> None:
    """A limit leaves out items that need an item before it, such as a result or what follows reasoning."""
    items = [QUESTION, THOUGHT, CALL, RESULT, {"role": "user", "content": "Thanks."}]

    async with opened(kind, "memory://", max_tokens=4_000) as (session, _):
        await session.add_items(items)
        newest = [await session.get_items(limit) for limit in range(7)]
        session.session_settings = agents.SessionSettings(limit=1)
        assert await session.get_items() == items[-1:]

    assert newest == [[], items[-1:], items[-1:], items[-1:], items[1:], items, items]


@pytest.mark.parametrize("kind", KINDS)
async def test_items_are_taken_back_one_by_one(kind: str) -> None:
    """`pop_item` returns the newest item as it was added, down to the first; a rewind brings it back."""
    items = [QUESTION, THOUGHT, CALL, RESULT]

    async with opened(kind, "memory://", max_tokens=4_000) as (session, chat):
        assert await session.pop_item() is None
        await session.add_items(items)
        await session.add_items(items)  # the same request again
        await session.add_items([])
        assert len(await listed(chat)) == 4
        assert [await session.pop_item() for _ in range(5)] == [*items[::-1], None]
        assert await listed(chat) == []
        back = chat.rewind(1)
        assert (back if isinstance(back, int) else await back) is not None
        assert await session.get_items() == items
        await session.clear_session()
        assert await session.get_items() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_invalid_item_refuses_the_whole_list(kind: str) -> None:
    """One invalid item refuses the whole list; items that do not fit the budget raise BudgetImpossible."""
    async with opened(kind, "memory://", max_tokens=60) as (session, chat):
        for bad in ([QUESTION, {"role": "nobody", "content": "x"}], [QUESTION, 7], [{"type": "function_call"}]):
            with pytest.raises(InvalidEntry, match=r"messages\["):
                await session.add_items(bad)
        assert await listed(chat) == []
        await session.add_items([{"role": "user", "content": LONG}])
        with pytest.raises(BudgetImpossible):
            await session.get_items()


def completed(number: int, text: str) -> Play:
    """Return a chat completion with this text."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    made = {"id": f"c{number}", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice]}
    return answers({**made, "usage": {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}})


async def test_items_without_ids_are_sent_as_they_were_said() -> None:
    """Items with the SDK's placeholder id, as chat completions give, are sent back, each run extending the last."""
    chat_models = load("agents.models.openai_chatcompletions")

    with StreamServer(completed(1, "Clear."), completed(2, "Yes."), completed(3, "Sure.")) as server:
        client = load("openai").AsyncOpenAI(base_url=server.url, api_key="none")
        model = chat_models.OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
        agent = agents.Agent(name="Guide", model=model)
        async with opened("AsyncSession", "memory://", max_tokens=4_000) as (session, _):
            for question in ("How is Oslo?", "Clear?", "Sure?"):
                await run(agent, question, session)
        await client.close()

    sent = [asked.body["messages"] for asked in server.asked]
    assert [message["content"] for message in sent[2]] == ["How is Oslo?", "Clear.", "Clear?", "Yes.", "Sure?"]
    assert sent[2][: len(sent[1])] == sent[1]


def answered(model: str, content: str | None, *calls: tuple[str, dict[str, Any]], thought: str | None = None) -> Play:
    """Return a chat completion with calls of these ids, each with more keys, and with a thought."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought is not None:
        message["reasoning_content"] = thought
    if calls:
        function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
        message["tool_calls"] = [{"id": id, "type": "function", "function": function, **more} for id, more in calls]
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    made = {"id": "c1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    return answers({**made, "usage": {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}})


SIGNED: dict[str, Any] = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


@pytest.mark.parametrize("model", ["gpt-4o", "deepseek-chat", "gemini-3-pro"])
async def test_chat_completions_are_sent_as_with_the_sdks_own_session(model: str) -> None:
    """Text stays in one message with its calls, thoughts and signatures go back to the models that want them.

    Ids of calls may be used again: the SDK's own session would lose these.
    """
    chat_models = load("agents.models.openai_chatcompletions")
    plays = [
        answered(model, "I look.", ("c1", SIGNED), ("c2", {}), thought="Two places."),
        answered(model, "Clear.", thought="Both are clear."),
        answered(model, None, ("c3", SIGNED), thought="One more."),
        answered(model, "Rain."),
        answered(model, "You are welcome."),
    ]

    async def sent(session: Any) -> list[Any]:
        with StreamServer(*plays) as server:
            async with load("openai").AsyncOpenAI(base_url=server.url, api_key="none") as client:
                asks = chat_models.OpenAIChatCompletionsModel(model=model, openai_client=client)
                agent = agents.Agent(name="Guide", model=asks, tools=[weather])
                for question in ("How is it?", "And Bergen?", "Thank you."):
                    await run(agent, question, session)
            return [asked.body["messages"] for asked in server.asked]

    own = agents.SQLiteSession("trip")
    async with opened("AsyncSession", "memory://", max_tokens=4_000) as (session, _):
        bodies = await sent(session)
        assert bodies == await sent(own)
        assert await session.get_items() == await own.get_items()
    own.close()

    told = str(bodies[-1])
    assert ("reasoning_content" in told) == (model == "deepseek-chat")
    assert ("c2ln" in told) == (model == "gemini-3-pro")


async def test_calls_of_chat_completions_whose_ids_repeat_keep_their_results() -> None:
    """Of two answers that name their calls alike, each call goes back with its own result."""
    items = [
        {"role": "user", "content": "How is it?"},
        {"type": "reasoning", "id": "__fake_id__", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {**CALL, "id": "__fake_id__", "provider_data": {"model": "m"}},
        RESULT,
    ]
    async with opened("AsyncSession", "memory://", max_tokens=4_000) as (session, _):
        await session.add_items(items)
        await session.add_items([{**items[0], "content": "And now?"}, *items[1:3], {**RESULT, "output": "rain"}])
        kept = await session.get_items()

    assert kept[:4] == items
    assert [item["output"] for item in kept if item.get("call_id") == kept[-1]["call_id"] and "output" in item] == [
        "rain"
    ]
    assert [item.get("id") for item in kept[4:]] == [None, "__fake_id__", "__fake_id__", None]


BLOCKS = {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}], "model": "claude"}


@pytest.mark.parametrize("signed", [{"encrypted_content": "c2ln"}, {"provider_data": BLOCKS}])
async def test_a_signed_thought_without_an_id_is_text(signed: dict[str, Any]) -> None:
    """A model would take it only unchanged, and behind exactly what it was made behind."""
    thought = {"type": "reasoning", "id": "__fake_id__", "summary": [{"type": "summary_text", "text": "Hm."}], **signed}
    async with opened("AsyncSession", "memory://", max_tokens=4_000) as (session, _):
        await session.add_items([QUESTION, thought, {**CALL, "id": "__fake_id__"}, RESULT])
        kept = await session.get_items()

    assert "Hm." in kept[1]["content"]
    assert "c2ln" not in str(kept)
    assert [item.get("type") for item in kept] == [None, None, "function_call", "function_call_output"]


class Shaken(adapter.PalimpsestSession):
    """A session whose store fails once, before or after it has committed a result."""

    lost: str | None = None

    async def add_items(self, items: list[Any]) -> None:
        """Add items, or fail as `lost` says."""
        if self.lost and items[0].get("type") == "function_call_output":
            lost, self.lost = self.lost, None
            if lost == "after":
                await super().add_items(items)
            raise StoreUnavailable("memory://", "no connection")
        await super().add_items(items)


RETURNED: dict[str, Any] = {
    "text": lambda: "clear in Oslo",
    "texts": lambda: [agents.ToolOutputText(text="clear"), agents.ToolOutputText(text="in Oslo")],
    "image": lambda: agents.ToolOutputImage(image_url="data:image/png;base64,iVBORw0KGgo="),
    "image of an id": lambda: agents.ToolOutputImage(file_id="file-1"),
    "file": lambda: agents.ToolOutputFileContent(file_id="file-1"),
}


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_with_an_unconfirmed_commit_is_stored_once(kind: str, lost: str, returned: str) -> None:
    """After a commit that was not confirmed the SDK finds the result among the newest items.

    It continues without running the tool again.
    """
    ran = list[str]()

    def ask(city: str) -> Any:
        ran.append(city)
        return RETURNED[returned]()

    tool = agents.function_tool(ask, needs_approval=True)
    model = scripted.ScriptedModel([[think(), call({**CALL, "name": "ask"})], [say("msg_1", "Clear.")]])
    agent = agents.Agent(name="Guide", model=model, tools=[tool])

    async with opened(kind, "memory://", max_tokens=4_000) as (_, chat):
        session = Shaken(chat)
        waiting = await agents.Runner.run(agent, "How is Oslo?", session=session)
        state = waiting.to_state()
        state.approve(waiting.interruptions[0])
        session.lost = lost
        with pytest.raises(StoreUnavailable):
            await agents.Runner.run(agent, state, session=session)
        done = await agents.Runner.run(agent, state, session=session)
        entries = await listed(chat)

    assert (done.final_output, ran) == ("Clear.", ["Oslo"])
    assert [entry.kind for entry in entries] == ["message", "message", "tool_call", "tool_result", "message"]


def losing_once(
    chat: Any,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
    fault: BaseException,
    kind: tuple[str, str] = ("type", "function_call_output"),
) -> None:
    """Make one append of a result, or of items of another kind, fail before or after it was made."""
    add, failures = type(chat).add, [lost]

    async def later(done: Any) -> Any:
        await ready(done)
        raise fault

    def lossy(self: Any, items: Any, **options: Any) -> Any:
        if not failures or items[0].get(kind[0]) != kind[1]:
            return add(self, items, **options)
        done = add(self, items, **options) if failures.pop() == "after" else None
        if isinstance(self, AsyncSession):
            return later(done)
        raise fault

    monkeypatch.setattr(type(chat), "add", lossy)


def ask_calls(number: int) -> list[Any]:
    """Return this many parallel calls."""
    return [call({**CALL, "id": f"fc_{i}", "call_id": f"c{i}", "name": "ask"}) for i in range(number)]


STEPS = {"one": [call({**CALL, "name": "ask"})], "beside another": [call(OTHER), *ask_calls(1)], "three": ask_calls(3)}


@pytest.mark.parametrize(
    "fault", [StoreUnavailable("memory://", "no connection", written=None), asyncio.CancelledError()]
)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_redacted_result_with_an_unconfirmed_commit_is_stored_once(
    kind: str, lost: str, step: str, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run continues after an unconfirmed commit, even if the policy redacted the result.

    Each approval is acted on once, whatever other calls were made in parallel.
    """
    ran = list[str]()

    def ask(city: str) -> str:
        ran.append(city)
        return "The card is 4111 1111 1111 1111."

    tool = agents.function_tool(ask, needs_approval=True)
    model = scripted.ScriptedModel([STEPS[step], [say("msg_1", "Clear.")]])
    agent = agents.Agent(name="Guide", model=model, tools=[tool, weather])

    async with opened(kind, "memory://", privacy="default", max_tokens=4_000) as (session, chat):
        done = await agents.Runner.run(agent, "How is Oslo?", session=session)
        while done.interruptions:
            state = done.to_state()
            state.approve(done.interruptions[0])
            with monkeypatch.context() as patched:
                losing_once(chat, patched, lost, fault)
                with pytest.raises(type(fault)):
                    await agents.Runner.run(agent, state, session=session)
            done = await agents.Runner.run(agent, state, session=session)
        entries = await listed(chat)

    calls = [entry for entry in entries if entry.kind == "tool_call"]
    assert done.final_output == "Clear."
    assert len(ran) == sum(entry.name == "ask" for entry in calls)
    assert [entry.kind for entry in entries] == ["message", *kinds_of(calls), "message"]
    assert "1111 1111" not in str(entries)


@pytest.mark.parametrize("limit", range(2, 6))
@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_run_has_items_whose_commit_was_not_confirmed(
    kind: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run gets items whose commit was not confirmed, whatever its limit.

    Only a resumed run compares its own items with those stored.
    """
    fault = StoreUnavailable("memory://", "no connection", written=None)
    agent, model = guide(*([say(f"msg_{number}", f"Answer {number}.")] for number in range(3)))
    async with opened(kind, "memory://", max_tokens=4_000) as (session, chat):
        session.session_settings = agents.SessionSettings(limit=limit)
        await run(agent, "Question 0.", session)
        with monkeypatch.context() as patched:
            losing_once(chat, patched, "after", fault, ("role", "assistant"))
            with pytest.raises(StoreUnavailable):
                await run(agent, "Question 1.", session)
        assert [entry.text for entry in await listed(chat)][-1] == "Answer 1."
        await run(agent, "Question 2.", session)

    assert "Answer 1." in str(model.calls[-1].input)


async def test_a_new_process_pops_a_redacted_result_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new process the SDK refuses a stored text that differs from its own.

    After `pop_item`, as the guide says, the run continues, and nothing runs or is stored twice.
    """
    ran = list[str]()

    def ask(city: str) -> str:
        ran.append(city)
        return "The card is 4111 1111 1111 1111."

    tool = agents.function_tool(ask, needs_approval=True)
    model = scripted.ScriptedModel([STEPS["one"], [say("msg_1", "Clear.")]])
    agent = agents.Agent(name="Guide", model=model, tools=[tool])

    async with opened("AsyncSession", "memory://", privacy="default", max_tokens=4_000) as (session, chat):
        state = (await agents.Runner.run(agent, "How is Oslo?", session=session)).to_state()
        state.approve(state.get_interruptions()[0])
        with monkeypatch.context() as patched:
            losing_once(chat, patched, "after", asyncio.CancelledError())
            with pytest.raises(asyncio.CancelledError):
                await agents.Runner.run(agent, state, session=session)

        restored = await agents.RunState.from_json(agent, state.to_json())
        new = adapter.PalimpsestSession(chat)
        with pytest.raises(agents.UserError, match="reconcile"):
            await agents.Runner.run(agent, restored, session=new)
        taken = await new.pop_item()
        done = await agents.Runner.run(agent, restored, session=new)
        entries = await listed(chat)

    assert (taken or {}).get("type") == "function_call_output"
    assert (done.final_output, ran) == ("Clear.", ["Oslo"])
    assert [entry.kind for entry in entries] == ["message", "tool_call", "tool_result", "message"]


def kinds_of(calls: list[Any]) -> list[str]:
    """Return the kinds of the entries of these parallel calls and their results."""
    return ["tool_call"] * len(calls) + ["tool_result"] * len(calls)


@pytest.mark.parametrize("kind", KINDS)
async def test_fewer_of_the_newest_items_are_the_end_of_more(kind: str) -> None:
    """Fewer newest items are always the end of more: parallel calls and their results come together or not at all."""
    asked = [{**CALL, "id": f"fc_{i}", "call_id": f"c{i}"} for i in range(3)]
    told = [{**RESULT, "call_id": f"c{i}"} for i in range(3)]
    items = [QUESTION, *asked[:2], *told[:2], {"role": "user", "content": "And Rome?"}, THOUGHT, *asked[2:], *told[2:]]

    async with opened(kind, "memory://", max_tokens=4_000) as (session, _):
        for many in range(1, len(items) + 1):
            await session.add_items([items[many - 1]])
            newest = [await session.get_items(limit) for limit in range(many + 1)]
            assert newest[-1] == [
                item for item in items[:many] if item is not THOUGHT or many > items.index(THOUGHT) + 1
            ]
            for fewer, more in pairwise(newest):
                assert fewer == more[len(more) - len(fewer) :]
                calls = [item["call_id"] for item in fewer if item.get("type") == "function_call"]
                assert all(item["call_id"] in calls for item in fewer if item.get("type") == "function_call_output")


async def test_encrypted_items_of_the_sdk_are_refused_with_advice() -> None:
    """Items encrypted by the SDK are refused with the advice to encrypt the memory.

    Nobody could cut, search or check such a log.
    """
    encrypted = load("agents.extensions.memory").EncryptedSession

    async with opened("AsyncSession", "memory://") as (session, chat):
        with pytest.raises(InvalidEntry, match=r"messages\[0\].*EncryptedSession.*encryption=Keys"):
            await encrypted("trip", session, "k" * 32).add_items([QUESTION])
        assert await listed(chat) == []


BESIDE = """
import asyncio, sys
from agents.memory import Session
from palimpsest import Memory
from palimpsest.integrations.openai_agents import PalimpsestSession

async def main():
    with Memory.open(sys.argv[1]) as memory:
        session: Session = PalimpsestSession(memory.session("trip"))
        for number in range(20):
            call = {"type": "function_call", "call_id": f"{sys.argv[2]}{number}", "name": "weather", "arguments": "{}"}
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "clear"}
            await session.add_items([{"role": "user", "content": "How is Oslo?"}, call, result])

asyncio.run(main())
"""


def beside(store: str) -> list[int]:
    """Run two processes that write at once, and return their exit statuses."""
    running = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", BESIDE, store, name]) for name in "ab"]
    return [one.wait(300) for one in running]


@pytest.mark.wide
async def test_two_processes_write_to_one_conversation(tmp_path: Path) -> None:
    """Batches that two processes add do not mix: every call stands beside its result."""
    store = str(tmp_path / "agent.db")
    Memory.open(store).close()
    assert await asyncio.to_thread(beside, store) == [0, 0]

    async with opened("AsyncSession", store) as (session, _):
        items = await session.get_items()

    assert len(items) == 120
    assert [item["call_id"] for item in items[1::3]] == [item["call_id"] for item in items[2::3]]
    assert not find_format("openai-responses").validate(items)


async def test_runs_inside_turns_follow_each_other() -> None:
    """Of two concurrent runs, each inside a turn, the second knows what the first one said."""
    agent, model = guide([call(CALL)], [say("msg_1", "Clear.")], [say("msg_2", "Again.")])

    async with opened("AsyncSession", "memory://", max_tokens=4_000) as (session, chat):

        async def one(question: str) -> str:
            async with chat.turn():
                return await run(agent, question, session)

        assert await asyncio.gather(one("How is Oslo?"), one("And now?")) == ["Clear.", "Again."]

    assert len(model.calls[2].input) == 5
