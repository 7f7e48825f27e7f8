"""Empty messages of users and the system are refused; those of models and of whole logs may be empty."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from palimpsest import AsyncMemory, Entry, Image, InvalidEntry, Memory, Session, Text

BLANK: list[Any] = ["", " \n\t", "\u00a0\u2003", [], [Text(text="")], [Text(text=" "), Text(text="\n")]]
SAYS = {"role": "user", "content": "Hello"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.fixture
def session(memory: Memory) -> Session:
    return memory.session("s")


def refused(session: Session, messages: Any, place: str, **options: Any) -> None:
    """Check that messages are refused at this place with the advice what to give, and that nothing is stored."""
    before = session.entries()

    with pytest.raises(InvalidEntry, match="says nothing: give text, or parts such as an image") as caught:
        session.add(messages, **options)

    assert caught.value.where == place
    assert session.entries() == before


@pytest.mark.parametrize("content", BLANK, ids=repr)
@pytest.mark.parametrize("verb", ["add_user_message", "add_system_message"])
def test_every_verb_refuses_an_empty_message(session: Session, verb: str, content: Any) -> None:
    """A human or system message of nothing but white space is refused."""
    with pytest.raises(InvalidEntry, match="says nothing: give text, or parts such as an image") as caught:
        getattr(session, verb)(content)

    assert caught.value.where == "message.content"
    assert session.entries() == []


@pytest.mark.parametrize("content", ["", " ", [], [{"type": "text", "text": ""}]], ids=repr)
@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_an_empty_message_is_refused_with_its_place(session: Session, role: str, content: Any) -> None:
    """An empty message is refused with its place, and nothing of its list is stored."""
    said = {"role": role, "content": content}
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in (1, 2)]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": "done"} for i in (1, 2)]

    refused(session, said, "messages[0].content")
    refused(session, [SAYS, said, SAYS], "messages[1].content", key="one")
    refused(
        session,
        [SAYS, {"role": "assistant", "content": "Wait", "tool_calls": calls}, *results, said],
        "messages[4].content",
    )


@pytest.mark.parametrize(
    ("format", "said", "place"),
    [
        ("anthropic", {"role": "user", "content": ""}, ".content"),
        ("anthropic", {"role": "user", "content": []}, ".content"),
        ("anthropic", {"role": "system", "content": [{"type": "text", "text": " "}]}, ".content"),
        ("openai-responses", {"role": "developer", "content": ""}, ".content"),
        ("openai-responses", {"type": "message", "role": "user", "content": []}, ".content"),
        ("openai-responses", {"role": "user", "content": [{"type": "input_text", "text": ""}]}, ".content"),
        ("gemini", {"role": "user", "parts": []}, ".parts"),
        ("gemini", {"role": "user"}, ".parts"),
        ("gemini", {"role": "user", "parts": [{"text": " "}]}, ".parts"),
        ("text", " \n ", ""),
    ],
)
def test_the_place_of_an_empty_message_has_the_formats_keys(
    session: Session, format: Any, said: Any, place: str
) -> None:
    """In each vendor's format the place has the format's own keys."""
    refused(session, [said], f"messages[0]{place}", format=format)


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("format", ["openai", "anthropic", "openai-responses"])
def test_a_message_whose_content_is_none_is_refused(session: Session, format: Any, role: str) -> None:
    """A message with the content None is refused in every format."""
    if (format, role) == ("anthropic", "developer"):
        role = "user"  # it knows no developer

    with pytest.raises(InvalidEntry, match=r"messages\[0\]\.content: .*text"):
        session.add({"role": role, "content": None}, format=format)

    assert session.entries() == []


def test_the_place_among_responses_counts_the_items_given(session: Session) -> None:
    """Among responses, which become several messages or none, the place counts the items given."""
    response = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    result = {"type": "function_call_output", "call_id": "c1", "output": ""}

    refused(session, [SAYS, response, result, {"role": "user", "content": ""}], "messages[3].content")


def test_an_empty_message_in_a_long_list_is_refused(session: Session) -> None:
    """An empty message in a long list is refused, even when the list is checked in a thread."""
    messages = [*[SAYS] * 2_000, {"role": "user", "content": " "}, SAYS]

    async def play() -> None:
        async with AsyncMemory.open("memory://") as memory:
            with pytest.raises(InvalidEntry) as caught:
                await memory.session("s").add(messages)
            assert caught.value.where == "messages[2000].content"

    asyncio.run(play())
    refused(session, messages, "messages[2000].content")


def test_an_empty_text_beside_other_content_is_accepted(session: Session) -> None:
    """A text may be empty beside a picture or a tool's result, since the message as a whole is not empty."""
    empty = {"type": "text", "text": ""}
    session.add_user_message([Text(text=""), Image(source="https://example.com/a.png")])
    session.add({"role": "user", "content": [empty, PICTURE]})
    called = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": ""}
    session.add(
        [{"role": "assistant", "content": [called]}, {"role": "user", "content": [empty, result, empty]}],
        format="anthropic",
    )
    session.add({"role": "system", "output_config": {"effort": "low"}}, format="anthropic")

    assert len(session.entries()) == 7


def test_messages_of_models_and_tools_may_be_empty(session: Session) -> None:
    """Empty texts of models and tools are stored as they are."""
    session.add_user_message("Go")
    session.add_assistant_message("")
    session.add_tool_call("find", {}, call_id="c1")
    session.add_tool_result("find", "", call_id="c1")
    session.add({"role": "assistant", "content": " "})
    session.add({"role": "model", "parts": []}, format="gemini")

    assert [entry.text for entry in session.entries()] == ["Go", "", "{}", "", " ", ""]


def test_entries_imports_and_replace_accept_empty_messages(memory: Memory, session: Session) -> None:
    """Entries, imports and `replace` accept empty messages, since nobody says them now."""
    session.add_entries([Entry(role="system", content=""), Entry(content=()), Entry(content="Hello")])
    memory.import_session(session.export(), session_id="t")
    session.replace([{"role": "user", "content": " "}, SAYS])

    assert [entry.text for entry in memory.session("t").entries()] == ["", "", "Hello"]
    assert [entry.text for entry in session.entries()] == ["", "", "Hello", " ", "Hello"]
    assert session.context(format="anthropic").messages == [{"role": "user", "content": "Hello"}]
