"""Usage of each vendor is read in its own form, recorded once, and refused if it is impossible."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import ConfigError, Memory, PalimpsestWarning
from sdks import load

CHAT = {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97, "prompt_tokens_details": {"cached_tokens": 60}}
RESPONSES = {"input_tokens": 90, "output_tokens": 7, "total_tokens": 97, "input_tokens_details": {"cached_tokens": 60}}
ANTHROPIC = {"input_tokens": 20, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10, "output_tokens": 7}
GEMINI = {
    "prompt_token_count": 90,
    "cached_content_token_count": 60,
    "candidates_token_count": 4,
    "thoughts_token_count": 3,
    "total_token_count": 97,
}
GEMINI_JSON = {"promptTokenCount": 90, "cachedContentTokenCount": 60, "candidatesTokenCount": 7}
TOLD = {"chat": CHAT, "responses": RESPONSES, "anthropic": ANTHROPIC, "gemini": GEMINI, "gemini json": GEMINI_JSON}


def answer(id: str = "msg_1", **usage: Any) -> dict[str, Any]:
    """Return an answer of Anthropic, as its client dumps it."""
    head = {"id": id, "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}
    return {**head, "content": [{"type": "text", "text": "Yes."}], "usage": {"output_tokens": 7, **usage}}


@pytest.mark.parametrize("vendor", TOLD)
def test_usage_of_each_vendor_is_read_whole(vendor: str) -> None:
    """The input is read whole, with cached tokens, whether a vendor reports parts or sums."""
    with Memory.open("memory://") as memory:
        usage = memory.session("s").record_usage(TOLD[vendor])

    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (90, 7, 60)


def test_a_response_or_its_usage_alone_is_read() -> None:
    """A response object of a client and the usage that it holds are read alike."""
    message = load("anthropic.types").Message.model_validate(answer(**ANTHROPIC))
    reported = load("google.genai.types").GenerateContentResponseUsageMetadata.model_validate(GEMINI_JSON)
    with Memory.open("memory://") as memory:
        for number, told in enumerate([message, message.usage, load("openai.types").CompletionUsage(**CHAT), reported]):
            assert memory.session(str(number)).record_usage(told).input_tokens == 90


def test_the_usage_of_an_added_answer_is_recorded_once() -> None:
    """An added answer's usage is recorded with it, and not again if it is added or reported again."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", model="claude-sonnet-4-5")
        session.add_user_message("Is it?")
        context = session.context()
        session.add(answer(**ANTHROPIC), key="turn 1")

        session.add(answer(**ANTHROPIC), key="turn 1")
        repeated = session.record_usage(answer(**ANTHROPIC), context=context)

        assert repeated == session.stats().usage
        assert (repeated.calls, repeated.total_input, repeated.counted) == (1, 90, context.counted)
        session.add(answer("msg_2", **ANTHROPIC))
        assert session.stats().usage.calls == 2


def test_answers_with_one_id_and_other_figures_are_counted_separately() -> None:
    """If a server gives all its answers one id, other figures are those of another call."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=1000)
        for number in range(3):
            session.add_user_message(f"Is it {number}?")
            message = {"role": "assistant", "content": "It is."}
            usage = {"prompt_tokens": 10 + 9 * number, "completion_tokens": 3, "total_tokens": 13 + 9 * number}
            told = {"id": "chatcmpl-0", "object": "chat.completion", "choices": [{"message": message}], "usage": usage}
            session.add(told)
            session.record_usage(told)

        used = session.stats().usage
        assert (used.calls, used.total_input, used.total_output) == (3, 57, 9)


def test_impossible_usage_is_refused() -> None:
    """Impossible figures raise ConfigError, and nothing is recorded."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add_user_message("word " * 3000)
        context = session.context()
        refused: list[tuple[Any, str]] = [
            ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}, "cached_tokens: 6"),
            ({"prompt_tokens": 0, "completion_tokens": 3}, "the provider's own figure: the context has about 3"),
            ({"prompt_tokens": -1}, "usage.prompt_tokens: -1"),
            ({"prompt_tokens": "9"}, "usage.prompt_tokens: '9'"),
            ({"x": 1}, "builtins.dict is not accepted|'builtins.dict'"),
            (object(), "a response or its usage of the openai"),
        ]

        for given_, told in refused:
            with pytest.raises(ConfigError, match=told):
                session.record_usage(given_, context=context)
        for name in ("input_tokens", "output_tokens", "cached_tokens"):
            with pytest.raises(ConfigError, match=rf"^{name}: 5 .*no numbers of tokens beside a response"):
                session.record_usage({"prompt_tokens": 5}, **{name: 5})
        with pytest.raises(ConfigError, match="input_tokens"):
            session.record_usage()

        assert session.stats().usage.calls == 0


def test_an_answer_with_impossible_usage_is_stored_with_a_warning() -> None:
    """An answer with impossible figures is stored, and a warning says why its usage is not recorded."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        session.add_user_message("word " * 3000)
        session.context()

        with pytest.warns(PalimpsestWarning, match="usage of the added response is not recorded: input_tokens: 0"):
            session.add(answer(input_tokens=0))

        assert session.entries()[-1].text == "Yes."
        assert session.stats().usage.calls == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    reported=st.lists(st.integers(1, 9000), min_size=1, max_size=4),
    model=st.sampled_from(["gpt-4o", "claude-sonnet-4-5"]),
)
def test_no_reported_usage_lets_a_context_exceed_its_budget(reported: list[int], model: str) -> None:
    """Contexts never exceed the budget, as counted or as scaled, whatever was reported."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model=model, max_tokens=2000)
        for figure in reported:
            for _ in range(9):
                session.add_user_message("question " * 40)
                session.add_assistant_message("answer " * 40)
            context = session.context()

            assert max(context.tokens, context.counted) <= 2000
            session.record_usage(input_tokens=figure, context=context)


SEARCHED = {
    "anthropic": answer(input_tokens=60_000, server_tool_use={"web_search_requests": 2, "web_fetch_requests": 0}),
    "anthropic's passes": answer(input_tokens=60_000, iterations=[{"type": "message"}, {"type": "message"}]),
    "anthropic's results": {
        **answer(input_tokens=60_000),
        "content": [
            {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []},
            {"type": "text", "text": "Yes."},
        ],
    },
    "responses": {
        "object": "response",
        "output": [{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}],
        "usage": {**RESPONSES, "input_tokens": 60_000},
    },
    "gemini": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "Yes."}]}}],
        "usage_metadata": {**GEMINI, "tool_use_prompt_token_count": 60_000},
    },
}


@pytest.mark.parametrize("vendor", SEARCHED)
def test_input_read_by_provider_tools_does_not_shrink_the_budget(vendor: str) -> None:
    """Input that the provider itself has added to a call is billed, but teaches nothing of how it counts."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model="claude-sonnet-4-5", max_tokens=4_000)
        session.add_user_message("Is it? " * 200)
        before = session.context()

        session.add(SEARCHED[vendor])

        usage = session.stats().usage
        assert usage is not None
        assert usage.input_tokens > 50_000
        assert usage.counted == 0
        for _ in range(4):
            session.add([{"role": "user", "content": "word " * 900}, {"role": "assistant", "content": "Yes."}])
        after = session.context()
        assert after.report.new_cut
        assert after.budget is not None
        assert before.budget is not None
        assert after.budget.factor == before.budget.factor


def test_calls_of_the_programs_own_tools_still_scale_the_budget() -> None:
    """A call of the program's own tools leaves what was reported comparable with what was counted."""
    call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="openai-responses", model="claude-sonnet-4-5")
        session.add_user_message("Is it?")
        context = session.context()
        session.add({"object": "response", "output": [call], "usage": RESPONSES})

        usage = session.stats().usage
        assert usage is not None
        assert usage.counted == context.counted
