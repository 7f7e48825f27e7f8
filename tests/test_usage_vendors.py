"""Usage is read in each vendor's form, recorded once, and refused if it is impossible."""

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


def answer(id: str = "msg_1", **usage: int) -> dict[str, Any]:
    """Return an answer of Anthropic as its client dumps it."""
    made = {"id": id, "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}
    return {**made, "content": [{"type": "text", "text": "Yes."}], "usage": {"output_tokens": 7, **usage}}


@pytest.mark.parametrize("vendor", TOLD)
def test_each_vendor_s_figures_come_to_the_same(vendor: str) -> None:
    """Input tokens include cached ones, whether the vendor reports parts or the whole."""
    with Memory.open("memory://") as memory:
        usage = memory.session("s").record_usage(TOLD[vendor])

    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (90, 7, 60)


def test_objects_of_the_clients_are_read_whole_or_their_usage_alone() -> None:
    """A response object and its usage object give the same figures."""
    message = load("anthropic.types").Message.model_validate(answer(**ANTHROPIC))
    reported = load("google.genai.types").GenerateContentResponseUsageMetadata.model_validate(GEMINI_JSON)
    with Memory.open("memory://") as memory:
        for number, told in enumerate([message, message.usage, load("openai.types").CompletionUsage(**CHAT), reported]):
            assert memory.session(str(number)).record_usage(told).input_tokens == 90


def test_an_answer_that_is_added_brings_its_usage_once() -> None:
    """An added answer's usage is recorded once, even if it is added or reported again."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", model="claude-sonnet-4-5")
        session.add_user_message("Is it?")
        context = session.context()
        session.add(answer(**ANTHROPIC), key="turn 1")

        session.add(answer(**ANTHROPIC), key="turn 1")
        again = session.record_usage(answer(**ANTHROPIC), context=context)

        assert again == session.stats().usage
        assert (again.calls, again.total_input, again.counted) == (1, 90, context.counted)
        session.add(answer("msg_2", **ANTHROPIC))
        assert session.stats().usage.calls == 2


def test_a_server_that_gives_all_its_answers_one_id_is_counted_all_the_same() -> None:
    """Some servers that speak OpenAI's protocol number no answers: other figures are those of another call."""
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


def test_figures_that_cannot_be_are_refused() -> None:
    """More from a cache than all of the input, no input for a context of thousands, no numbers: nothing is recorded."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add_user_message("word " * 3000)
        context = session.context()
        refused: list[tuple[Any, str]] = [
            ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}, "cached_tokens: 6"),
            ({"prompt_tokens": 0, "completion_tokens": 3}, "billed for a context of 3"),
            ({"prompt_tokens": -1}, "usage.prompt_tokens: -1"),
            ({"prompt_tokens": "9"}, "usage.prompt_tokens: '9'"),
            ({"x": 1}, "builtins.dict is not accepted|'builtins.dict'"),
            (object(), "a response or its usage of the openai"),
        ]

        for given_, told in refused:
            with pytest.raises(ConfigError, match=told):
                session.record_usage(given_, context=context)
        with pytest.raises(ConfigError, match="nothing, where a response"):
            session.record_usage({"prompt_tokens": 5}, input_tokens=5)
        with pytest.raises(ConfigError, match="input_tokens"):
            session.record_usage()

        assert session.stats().usage.calls == 0


def test_an_answer_with_impossible_figures_is_kept() -> None:
    """An answer with impossible usage is stored, with a warning that its usage is not."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        session.add_user_message("word " * 3000)
        session.context()

        with pytest.warns(PalimpsestWarning, match="usage of what was added is not recorded: input_tokens: 0"):
            session.add(answer(input_tokens=0))

        assert session.entries()[-1].text == "Yes."
        assert session.stats().usage.calls == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    reported=st.lists(st.integers(1, 9000), min_size=1, max_size=4),
    model=st.sampled_from(["gpt-4o", "claude-sonnet-4-5"]),
)
def test_no_report_lets_a_context_pass_that_counts_too_many(reported: list[int], model: str) -> None:
    """Whatever was reported, no context exceeds the budget, counted or scaled."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model=model, max_tokens=2000)
        for figure in reported:
            for _ in range(9):
                session.add_user_message("question " * 40)
                session.add_assistant_message("answer " * 40)
            context = session.context()

            assert max(context.tokens, context.counted) <= 2000
            session.record_usage(input_tokens=figure, context=context)
