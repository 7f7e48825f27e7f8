"""The format `openai`: what its contexts leave out or complete. `test_formats` has the shared rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from palimpsest import Entry, Image, Memory, Opaque, Reasoning, Text
from palimpsest.formats import find_format
from palimpsest.formats.openai_chat_rules import is_function_name
from palimpsest.log.entry import Part
from samples_openai_chat import CALL, EQUAL

FORMAT = find_format("openai")


@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": 5}])
def test_a_text_part_without_text_is_stored_and_not_sent(part: dict[str, Any]) -> None:
    """A text part without text is stored but not sent: the API would refuse the request."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        parts = [{"type": "text", "text": "hello"}]
        session.add([{"role": "user", "content": [part, *parts]}])

        assert session.context(format="openai").messages == [{"role": "user", "content": parts}]
        assert FORMAT.encode(session.entries()) == [{"role": "user", "content": [part, *parts]}]


def test_an_image_without_address_in_a_log_is_not_sent() -> None:
    """An image without address, which `add` refuses but an older log may have, is left out of a context and noted."""
    picture = Opaque(item={"type": "image_url", "image_url": "https://example.com/a.png"})
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="openai")
        session.add_entries([Entry(role="user", content=(Text(text="look"), picture))])

        context = session.context()

        assert context.messages == [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
        assert [one.what for one in context.report.adapted] == ["image_url left out"]


def test_a_message_without_content_is_left_out() -> None:
    """A message without content is left out of a context, since the provider refuses it; the log keeps it."""
    empty = [{"role": "user", "content": []}, {"role": "user", "content": [{"type": "text", "text": ""}]}]
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        strategies.taken_in(session, [*empty, {"role": "user", "content": "hello"}])

        assert session.context().messages == [{"role": "user", "content": "hello"}]
        assert FORMAT.encode(session.entries())[:2] == empty


def test_a_call_without_id_or_name_gets_both() -> None:
    """A call without an id gets its place as id, and one without a name is sent as `unknown`."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(
            [
                {"role": "assistant", "tool_calls": [{**CALL, "id": "", "function": {"name": "", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "", "content": "found"},
            ]
        )

        asked, result = session.context().messages

        assert asked["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"
        assert asked["tool_calls"][0]["function"]["name"] == "unknown"


def test_calls_that_share_an_id_are_renamed_in_a_context() -> None:
    """Calls of one message that share an id get different ids in a context, and so do their results."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(EQUAL["repeated ids"])

        asked, *results = session.context().messages

        ids = [call["id"] for call in asked["tool_calls"]]
        assert len(set(ids)) == 2
        assert {message["tool_call_id"]: message["content"] for message in results} == {ids[0]: "1", ids[1]: "2"}


@pytest.mark.parametrize("beside", [Text(text="a"), Image(source="data:image/png;base64,aGk=")], ids=["text", "image"])
def test_an_empty_thought_is_left_out(beside: Part) -> None:
    """A thought without words is left out of a message: the API takes no empty text."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="openai")
        session.add_user_message("q")
        session.add_assistant_message([Reasoning(text=""), beside])

        parts = session.context().messages[-1]["content"]

    assert all(part["text"] for part in parts)
    assert len(parts) == 1


@given(
    st.text(st.sampled_from("aZ09_-. \n/é²٣ｘß"), max_size=4)
    | st.text(st.sampled_from("a_-"), min_size=62, max_size=66)
)
def test_a_function_s_name_is_what_the_reference_allows(name: str) -> None:
    """OpenAI's reference: "must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64"."""
    assert is_function_name(name) == (re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) is not None)


def test_the_weight_of_a_training_file_is_kept_and_not_sent() -> None:
    """`weight`, which only files for fine-tuning have, stays in the log: a request with it is refused."""
    message = {"role": "assistant", "content": "hi", "weight": 0}
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=100)
        plain = memory.session("plain", max_tokens=100)
        session.add([{"role": "user", "content": "hello"}, message])
        plain.add([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}])

        context = session.context()

        assert session.messages() == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        assert FORMAT.encode(session.entries())[-1] == message
        assert context.messages[-1] == {"role": "assistant", "content": "hi"}
        assert context.tokens == plain.context().tokens
        assert not context.report.adapted
