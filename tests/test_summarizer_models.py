"""Summaries by a model string, end to end over a local server: answers, streams, faults, keys and costs."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from openai_server import OpenAIServer, Play, breaks_off, cuts, ends_early, fails, says, sends, stalls
from palimpsest import AsyncMemory, Memory
from palimpsest.errors import ConfigError, MissingExtra, SummarizerFailed
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Runner
from palimpsest.summaries import Prompt, Reply
from palimpsest.summaries.models import as_summarizer
from palimpsest.summaries.models.chat_model import ChatModel
from palimpsest.summaries.models.model_summarizer import ModelSummarizer
from palimpsest.testing.clock import FakeClock
from run_coroutines import WORLDS, Complete, inline, threaded

PROMPT = Prompt(text="The conversation. Sum it up.", stable=17, max_tokens=50)
KEY = "sk-very-secret-0123456789"
PATIENCE = 300.0


@pytest.fixture(params=WORLDS)
def complete(request: pytest.FixtureRequest) -> Complete:
    """Return what runs a coroutine in a synchronous, or in an asynchronous, world."""
    run: Complete = request.param
    return run


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Return whether answers are read as streams."""
    read: bool = request.param
    return read


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove keys, addresses and proxies from the environment."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def ask(given: ModelSummarizer | str, *, times: int = 1, sleeps: list[float] | None = None) -> Any:
    """Return work that asks a model `times` in a row.

    Pauses between attempts are noted in `sleeps` instead of slept.
    """

    async def sleep(seconds: float) -> None:
        if sleeps is not None:
            sleeps.append(seconds)

    async def work(runner: Runner) -> Reply:
        runner.sleep = sleep  # type: ignore[method-assign]
        summarizer = as_summarizer(given, runner, now_us)
        assert summarizer is not None
        for _ in range(times - 1):
            with pytest.raises(SummarizerFailed):
                await summarizer.ask(PROMPT)
        return await summarizer.ask(PROMPT)

    return work


def at(server: OpenAIServer, name: str = "gpt-4o-mini", **options: Any) -> ModelSummarizer:
    """Return a summarizer that asks this server."""
    return ModelSummarizer(name, base_url=server.url, **options)


# --- answers


def test_a_model_summarises(complete: Complete, stream: bool) -> None:
    """The prompt is sent as the user's only message with its bound, and text, tokens and their price are returned."""
    with OpenAIServer(says("A short summary.", input_tokens=1000, output_tokens=100, cached_tokens=400)) as server:
        reply = complete(ask(at(server, stream=stream)))

    request = server.asked[0]
    assert reply.text == "A short summary."
    assert (reply.spent.calls, reply.spent.input_tokens, reply.spent.output_tokens) == (1, 1000, 100)
    assert reply.spent.cost == pytest.approx((600 * 0.15 + 400 * 0.075 + 100 * 0.60) / 1_000_000)
    assert request.body["messages"] == [{"role": "user", "content": PROMPT.text}]
    assert (request.body["model"], request.body["max_tokens"]) == ("gpt-4o-mini", 50)
    assert request.body.get("stream", False) is stream


def test_unreported_usage_is_counted(complete: Complete, stream: bool) -> None:
    """Without usage in the answer, tokens are counted here; a model without a known price costs 0."""
    with OpenAIServer(says("A short summary.", usage=False)) as server:
        reply = complete(ask(at(server, "my-model", stream=stream)))

    assert (reply.spent.input_tokens, reply.spent.output_tokens, reply.spent.cost) == (7, 4, 0.0)


@pytest.mark.parametrize("tokens", [10**30, 2**63])
def test_impossible_usage_is_counted_instead(complete: Complete, tokens: int) -> None:
    """An answer with figures that a log cannot store is accepted, and its tokens are counted here."""
    with OpenAIServer(says("A short summary.", input_tokens=tokens)) as server:
        reply = complete(ask(at(server)))

    assert reply.text == "A short summary."
    assert reply.spent.flaw() is None
    assert reply.spent.input_tokens < 100


def test_an_empty_text_is_an_answer(complete: Complete) -> None:
    """An empty text is returned as an answer."""
    with OpenAIServer(says("")) as server:
        assert complete(ask(at(server))).text == ""


def test_a_name_may_have_a_colon_or_a_provider() -> None:
    """With a base URL a plain name is sent as it is, colons included, and `openai:` before it is dropped."""
    with OpenAIServer() as server:
        for name in ("qwen2:7b", "openai:qwen2:7b", "openai-chat:org/model"):
            inline(ask(at(server, name)))

    assert [request.body["model"] for request in server.asked] == ["qwen2:7b", "qwen2:7b", "org/model"]


def test_a_model_string_uses_the_environment(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    """`openai:` speaks chat completions with the key, and at the address, of OpenAI's environment variables."""
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)

        assert complete(ask("openai:gpt-4o-mini")).text == "An answer."

    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[0].body["max_completion_tokens"] == 50


def test_a_reasoning_model_gets_room_for_its_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reasoning model's bound on tokens is that of the answer and room for its thoughts."""
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        inline(ask("openai:gpt-5-mini"))

    assert server.asked[0].body["max_completion_tokens"] == 8_050


def test_settings_go_to_the_model() -> None:
    """Further settings of Pydantic AI are sent to the model, and replace those of the prompt."""
    with OpenAIServer() as server:
        inline(ask(at(server, settings={"temperature": 0.2, "max_tokens": 7})))

    assert (server.asked[0].body["temperature"], server.asked[0].body["max_tokens"]) == (0.2, 7)


def test_the_window_is_known_or_given() -> None:
    """A model's window comes from the table of models or the option `window`, and is None otherwise."""
    assert ModelSummarizer("openai:gpt-4o-mini").window == 128_000
    assert ModelSummarizer("my-model", base_url="http://localhost/v1", window=32_000).window == 32_000
    assert ModelSummarizer("my-model", base_url="http://localhost/v1").window is None


def test_the_longest_answer_is_known_or_given() -> None:
    """The longest answer comes from the table of models, the option or the settings, and is None otherwise."""
    own = {"base_url": "http://localhost/v1"}
    assert ModelSummarizer("openai:gpt-4o-mini").max_output == 16_384
    assert ModelSummarizer("openai:gpt-4o-mini", settings={"max_tokens": 900}).max_output == 900
    assert ModelSummarizer("my-model", **own, max_output=4_000).max_output == 4_000  # type: ignore[arg-type]
    assert ModelSummarizer("my-model", **own).max_output is None  # type: ignore[arg-type]
    for wrong in (0, -1, True, "4000"):
        with pytest.raises(ConfigError, match="max_output"):
            ModelSummarizer("my-model", **own, max_output=wrong)  # type: ignore[arg-type]


def test_thoughts_and_answer_stay_within_the_longest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reasoning model is asked for no more than `max_output`, thoughts included."""
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        inline(ask(ModelSummarizer("openai:gpt-5-mini", max_output=1_000)))

    assert server.asked[0].body["max_completion_tokens"] == 1_000


def test_no_summarizer_asks_for_more_than_the_model_gives() -> None:
    """Neither a summarizer block at its threshold of 20,000 tokens nor the ladder asks for too long an answer.

    gpt-4o-mini answers with 16,384 tokens at most, and is asked for no more than that.
    """
    block, messages = (
        {"long_term_memory_id": "summarizer"},
        [*TURN[:1], {"role": "assistant", "content": "words " * 6_700}],
    )
    answer = json.dumps({"items": [{"kind": "fact", "text": SHORT}]})
    with OpenAIServer(*[says(answer)] * 40) as server, Memory.open("memory://") as memory:
        memory.session("block", summarizer=at(server), long_term=block).add(messages * 3)
        ladder = memory.session("ladder", model="gpt-4o-mini", summarizer=at(server), auto_compact="off")
        ladder.add(messages * 20)
        result = ladder.compact("ladder")

        assert result.done
        assert memory.session("block").summaries()
    assert max(exchange.body["max_tokens"] for exchange in server.asked) == 16_384


def test_two_memories_share_one_object() -> None:
    """A summarizer that was used under one event loop works under another."""
    with OpenAIServer() as server:
        model = at(server)

        assert [world(ask(model)).text for world in (inline, threaded, inline)] == ["An answer."] * 3


# --- faults

FAULTS: list[tuple[Play, bool, str, str]] = [
    (fails(400), True, "refused", "status 400: not today"),
    (fails(401), True, "refused", "status 401"),
    (fails(403), True, "refused", "status 403"),
    (fails(404), True, "refused", "status 404"),
    (fails(422), True, "refused", "status 422"),
    (fails(429, "you have no money", "insufficient_quota"), True, "refused", "no money"),
    (says("", finish="length"), True, "answer", "all 50 tokens"),
    (says("", finish="content_filter"), True, "refused", "filter"),
    (sends("<html>busy</html>"), True, "answer", ""),
    (sends("busy", "text/plain"), True, "answer", ""),
    (sends('{"choices": []}'), True, "answer", ""),
    (sends('{"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'), True, "answer", ""),
    (fails(408), False, "timeout", "status 408"),
    (fails(409), False, "unavailable", "status 409"),
    (fails(429), False, "rate_limited", "status 429"),
    (fails(500), False, "unavailable", "status 500"),
    (fails(503), False, "unavailable", "status 503"),
    (fails(529), False, "unavailable", "status 529"),
    (cuts(), False, "unavailable", "connection"),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("play", "final", "kind", "why"), FAULTS)
def test_a_passing_fault_is_tried_again(play: Play, final: bool, kind: str, why: str, stream: bool) -> None:
    """A refusal or a useless answer ends the call at once; a fault that may pass is tried again."""
    with OpenAIServer(play, play) as server:
        with pytest.raises(SummarizerFailed) as failed:
            inline(ask(at(server, stream=stream, retries=0)))
        assert (failed.value.kind, failed.value.summarizer) == (kind, "gpt-4o-mini")
        assert why in failed.value.why

        if final:
            with pytest.raises(SummarizerFailed):
                threaded(ask(at(server, stream=stream, retries=1)))
        else:
            assert threaded(ask(at(server, stream=stream, retries=1))).text == "An answer."
        assert len(server.asked) == (2 if final else 3)


@pytest.mark.parametrize("play", [breaks_off("A short"), ends_early("A short")])
def test_a_stream_that_breaks_off_is_no_answer(complete: Complete, play: Play) -> None:
    """A stream that breaks off is no answer, whether the connection was cut or the last words are missing."""
    with OpenAIServer(play, says("A short summary.")) as server:
        assert complete(ask(at(server, stream=True))).text == "A short summary."

    assert len(server.asked) == 2


def test_a_slow_answer_is_given_up(complete: Complete) -> None:
    """After the timeout a call is cancelled, so that the server sees the client leave, and tried again."""
    with OpenAIServer(stalls(), says("In time.")) as server:
        assert complete(ask(at(server, timeout=1.0))).text == "In time."
        assert server.hung_up.wait(PATIENCE)


def test_a_stream_is_given_up_when_it_stalls(complete: Complete) -> None:
    """A stream may take longer than the timeout while its pieces come; one that stalls is cancelled."""
    with OpenAIServer(stalls("A short")) as server:
        with pytest.raises(SummarizerFailed, match=r"no answer within 0\.5 s") as failed:
            complete(ask(at(server, stream=True, timeout=0.5, retries=0)))
        assert failed.value.kind == "timeout"
        assert server.hung_up.wait(PATIENCE)


def test_retry_after_is_honoured(complete: Complete) -> None:
    """A pause asked for by `Retry-After`, in seconds or as a date, is kept; one that is too long ends the call."""
    pauses: list[float] = []
    date = formatdate(time.time() + 20, usegmt=True)
    with OpenAIServer(fails(429, Retry_After="7"), fails(503, Retry_After=date), says("At last.")) as server:
        assert complete(ask(at(server), sleeps=pauses)).text == "At last."
    assert pauses[0] == 7.0
    assert 15 < pauses[1] <= 20

    with OpenAIServer(fails(429, Retry_After="3600")) as server:
        with pytest.raises(SummarizerFailed, match="asks to wait 3600 s, but 30 s are allowed") as failed:
            complete(ask(at(server)))
        assert failed.value.kind == "rate_limited"
        assert len(server.asked) == 1


def test_the_sdk_retries_nothing_itself() -> None:
    """The SDK's own retries are off: there are as many requests as attempts."""
    with OpenAIServer(*[fails(503)] * 9) as server:
        with pytest.raises(SummarizerFailed, match="attempt 3 of 3"):
            inline(ask(at(server)))

        assert len(server.asked) == 3


def test_a_failing_model_is_paused(complete: Complete) -> None:
    """After five calls in a row without an answer, the sixth does not reach the server."""
    with OpenAIServer(*[fails(500)] * 9) as server:
        with pytest.raises(SummarizerFailed) as failed:
            complete(ask(at(server, retries=0), times=6))

        assert failed.value.kind == "paused"
        assert len(server.asked) == 5


def test_cancelling_the_caller_ends_the_request() -> None:
    """Cancelling the task that waits for an answer ends its request."""
    with OpenAIServer(stalls()) as server:

        async def work(runner: Runner) -> None:
            task = asyncio.ensure_future(ask(at(server))(runner))
            assert await asyncio.to_thread(server.arrived.acquire, timeout=PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        threaded(work)
        assert server.hung_up.wait(PATIENCE)


# --- keys and extras


def test_a_key_is_never_shown(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A key is neither in the object, nor in an error with its causes, nor in logs, though the server sends it back."""
    with (
        OpenAIServer(fails(401, f"wrong key: {KEY}"), fails(500, "x" * 295 + KEY)) as server,
        caplog.at_level(logging.DEBUG),
    ):
        model = at(server, api_key=KEY, stream=stream, retries=0)
        for _ in range(2):
            with pytest.raises(SummarizerFailed) as failed:
                inline(ask(model))
            logging.getLogger("palimpsest").error("it failed", exc_info=failed.value)

    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "wrong key: ***" in caplog.text
    for text in (repr(model), str(failed.value), repr(failed.value), caplog.text):
        assert KEY[:12] not in text


@pytest.mark.parametrize("sent", [KEY, f"{KEY}\n", f"Bearer {KEY}", f"{KEY}\té"])
def test_a_secret_of_a_header_is_never_shown(stream: bool, sent: str, caplog: pytest.LogCaptureFixture) -> None:
    """A secret in a header of the settings is neither in errors nor in logs, also if no header may have its value."""
    with OpenAIServer(fails(401, f"wrong key: {sent}")) as server, caplog.at_level(logging.INFO):
        model = at(server, settings={"extra_headers": {"x-api-key": sent}}, stream=stream, retries=0)
        with pytest.raises(SummarizerFailed) as failed:
            inline(ask(model))
        logging.getLogger("palimpsest").error("it failed", exc_info=failed.value)

    for text in (str(failed.value), repr(failed.value), caplog.text):
        assert KEY[:12] not in text


def test_a_key_with_a_line_break_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A key with a line break, which the client refuses and quotes, is neither in errors nor in logs."""
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with OpenAIServer() as server, caplog.at_level(logging.INFO):
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with pytest.raises(SummarizerFailed) as failed:
            inline(ask(ModelSummarizer("openai:gpt-4o-mini", retries=0)))
        logging.getLogger("palimpsest").error("it failed", exc_info=failed.value)

    for text in (str(failed.value), repr(failed.value), caplog.text):
        assert KEY[:12] not in text


def test_a_key_of_the_environment_goes_to_its_provider_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a base URL, no key is sent but the one that was given with it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        inline(ask(at(server)))

    assert KEY not in server.asked[0].headers["authorization"]


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "openai-responses:gpt-4o-mini", "anthropic:claude-unheard-of"])
def test_a_missing_key_is_refused(complete: Complete, model: str) -> None:
    """Without a key the call fails, and its error names the variable to set."""
    with pytest.raises(SummarizerFailed, match="API_KEY") as failed:
        complete(ask(model))

    assert failed.value.kind == "refused"
    assert "pydantic" not in failed.value.why.lower()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a model string is refused, with the command that installs the extra."""
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)

    with pytest.raises(MissingExtra, match=r"pip install 'palimpsest-memory\[llm\]'"):
        ModelSummarizer("openai:gpt-4o-mini")


def test_a_provider_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider whose own library is missing fails when it is asked, and says what to install."""
    with pytest.raises(SummarizerFailed, match=r"pip install .*\[mistral\]") as failed:
        inline(ask("mistral:mistral-small-latest"))

    assert failed.value.kind == "refused"


# --- in a memory

LONG = "The blue train leaves platform seven at nine o'clock sharp. " * 12
SHORT = "The blue train leaves platform seven at nine."
TURN = [{"role": "user", "content": f"When? {LONG}"}, {"role": "assistant", "content": LONG}]


def test_a_session_is_compacted_by_a_model() -> None:
    """A session's `summarizer` makes its summaries; one that fails changes nothing and says why."""
    with OpenAIServer(fails(400), *[says(SHORT)] * 9) as server, Memory.open("memory://") as memory:
        session = memory.session("s", summarizer=at(server))
        session.add(TURN * 4)

        failed = session.compact({"strategy": "summarizer", "on_failure": "keep"})
        assert (failed.reason, "status 400" in failed.why) == ("failed", True)
        assert session.summaries() == []
        result = session.compact("summarizer")

        assert result.done
        assert [summary.model for summary in session.summaries()] == ["gpt-4o-mini"]
        assert result.spent.cost > 0


def test_a_session_of_an_asynchronous_memory_is_compacted_by_a_model() -> None:
    """A session of an asynchronous memory is compacted by a model in the background, and closing waits for it."""

    async def work(server: OpenAIServer, where: Path) -> None:
        async with AsyncMemory.open(where) as memory:
            options: Any = {"max_tokens": 1000, "long_term": "ladder", "auto_compact": "background"}
            await memory.session("s", summarizer=at(server), **options).add(TURN * 4)

    with OpenAIServer(*[says(SHORT)] * 20) as server, TemporaryDirectory() as folder:
        asyncio.run(work(server, Path(folder, "log.db")))
        with Memory.open(Path(folder, "log.db")) as memory:
            assert [summary.model for summary in memory.session("s").summaries()] == ["gpt-4o-mini"]


# --- conversations


def chat(server: OpenAIServer, messages: list[dict[str, Any]], told: list[str], **options: Any) -> Any:
    """Return work that has a model at this server answer a conversation.

    The pieces of its answer are noted in `told`.
    """

    async def work(runner: Runner) -> Any:
        runner.sleep = no_pause  # type: ignore[method-assign]
        model = ChatModel("gpt-4o-mini", base_url=server.url, **options).bound(runner, FakeClock())
        return await model.answer(messages, on_text=told.append, max_tokens=99)

    return work


async def no_pause(_: float) -> None:
    """Take the place of sleeping, so that tests do not wait."""


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is order 7?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order":7}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "On its way."},
    {"role": "assistant", "content": "It is on its way."},
    {"role": "user", "content": [{"type": "text", "text": "And this?"}, {"type": "input_audio", "input_audio": {}}]},
]


def test_a_conversation_is_answered_piece_by_piece(complete: Complete) -> None:
    """Messages reach the model as they are; the answer comes in pieces, and whole with its figures."""
    pieces: list[str] = []
    with OpenAIServer(says("It has arrived by now.", cached_tokens=8)) as server:
        answer = complete(chat(server, MESSAGES, pieces))

    sent = server.asked[0].body
    assert (answer.text, "".join(pieces)) == ("It has arrived by now.", "It has arrived by now.")
    assert len(pieces) > 1
    assert (answer.spent.input_tokens, answer.cached_tokens, answer.finish) == (20, 8, "stop")
    assert [message["role"] for message in sent["messages"]] == [message["role"] for message in MESSAGES]
    assert sent["messages"][:2] == MESSAGES[:2]
    assert sent["messages"][2]["tool_calls"] == MESSAGES[2]["tool_calls"]
    assert sent["messages"][3]["content"] == "On its way."
    assert [part["text"] for part in sent["messages"][5]["content"]] == ["And this?", "[input_audio is not shown here]"]
    assert sent["max_tokens"] == 99
    assert "tools" not in sent


def test_a_begun_answer_is_not_asked_for_again(complete: Complete) -> None:
    """A stream that breaks off after its first words ends the call, so that nobody is shown two beginnings."""
    pieces: list[str] = []
    with OpenAIServer(fails(503), breaks_off("It has")) as server:
        with pytest.raises(SummarizerFailed) as failed:
            complete(chat(server, MESSAGES, pieces))

        assert failed.value.kind == "unavailable"
        assert "".join(pieces) == "It has"
        assert len(server.asked) == 2


def test_no_piece_comes_after_a_timeout() -> None:
    """After a timeout no further piece of the answer is passed on."""
    pieces: list[str] = []
    with OpenAIServer(stalls("It has")) as server:
        with pytest.raises(SummarizerFailed):
            inline(chat(server, MESSAGES, pieces, timeout=0.5))
        assert server.hung_up.wait(PATIENCE)

    assert "".join(pieces) == "It has"


def test_anthropic_gets_cache_marks_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anthropic gets a mark for its cache in prompts, and the tools that a conversation has called."""
    with OpenAIServer() as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        with pytest.raises(SummarizerFailed, match="there is no /v1/messages"):
            inline(ask("anthropic:claude-unheard-of"))
        with pytest.raises(SummarizerFailed, match="there is no /v1/messages"):
            inline(lambda runner: ChatModel("anthropic:claude-unheard-of").bound(runner, now_us).answer(MESSAGES))

    prompt, conversation = server.asked[0].body, server.asked[1].body
    first, second = prompt["messages"][0]["content"]
    assert (first["text"], first["cache_control"]["type"]) == (PROMPT.text[:17], "ephemeral")
    assert (second["text"], "cache_control" in second) == (PROMPT.text[17:], False)
    assert ([tool["name"] for tool in conversation["tools"]], conversation["tool_choice"]) == (
        ["look_up"],
        {"type": "none"},
    )
    assert conversation["system"] == "Be brief."


def test_openai_responses_speaks_the_responses_api() -> None:
    """`openai-responses:` speaks OpenAI's responses API, at any address."""
    with OpenAIServer() as server, pytest.raises(SummarizerFailed, match="there is no /v1/responses"):
        inline(ask(at(server, "openai-responses:my-model")))

    assert server.asked[0].body["model"] == "my-model"


def test_an_error_message_is_redacted_before_it_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """A provider's message about a failure is redacted whole, so that cutting it leaves no part of a number."""
    heard_facts: list[str] = []
    for place in (270, 276, 282):
        with (
            OpenAIServer(*[fails(400, "x" * place + " 4111 1111 1111 1111")] * 2) as server,
            Memory.open("memory://", privacy="default") as memory,
        ):
            for event in ("compressed", "compaction:failed"):
                memory.on(event, lambda _, facts: heard_facts.append(repr(facts)))
            session = memory.session("s", summarizer=at(server))
            for number in range(8):
                session.add_user_message(f"question {number} " * 40)
                session.add_assistant_message(f"answer {number} " * 40)
            style = {"strategy": "summarizer", "cod_max_loops": 0}
            replaced = session.compact({**style, "interaction_keep": 2, "on_failure": "heuristic"})
            unchanged = session.compact({**style, "interaction_keep": 1, "on_failure": "keep"})

        assert (replaced.done, unchanged.done, len(server.asked)) == (True, False, 2)
        shown = f"{replaced!r} {unchanged!r} {heard_facts} {caplog.text}"
        assert shown.count("status 400") >= 2
        assert "x 4" not in shown
