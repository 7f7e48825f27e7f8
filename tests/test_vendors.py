"""Objects of vendors' clients are added as they are, and the next request is valid for the vendor."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from laws import examples
from palimpsest import InvalidEntry, Memory
from palimpsest.formats import find_format
from sdks import load
from vendors import VENDORS

law = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:the usage of the added response:palimpsest.PalimpsestWarning")
@pytest.mark.parametrize("vendor", VENDORS)
@law
@given(data=st.data())
def test_the_request_after_an_answer_is_valid(vendor: str, data: Any) -> None:
    """After a response of any vendor, or a dump of it, was added, the vendor's own types accept the next request."""
    format_case = VENDORS[vendor]()
    answer = data.draw(format_case.answers)
    answer = data.draw(st.sampled_from([answer, answer.model_dump(), answer.model_dump(mode="json")]))
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format_case.format)
        session.add_user_message("Hello")

        session.add(answer)
        session.add_user_message("And then?")

        assert format_case.faults(session.context().messages) == []


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:the usage of the added response:palimpsest.PalimpsestWarning")
@pytest.mark.parametrize("vendor", VENDORS)
@law
@given(data=st.data())
def test_an_answer_its_dump_and_its_pieces_give_the_same_request(vendor: str, data: Any) -> None:
    """An answer as an object, a dump or its pieces gives the same next request."""
    format_case = VENDORS[vendor]()
    answer = data.draw(format_case.answers)
    # Without `by_alias`, a field such as `async_` is dumped under its Python name.
    dump_options = {"exclude_unset": True, "by_alias": vendor == "openai-responses"}
    forms = [answer, answer.model_dump(**dump_options), [answer.model_dump(mode="json", **dump_options)]]
    forms += [pieces] if (pieces := PIECES[vendor](answer)) else []
    if vendor in ("openai", "gemini"):  # the others refuse items that are dumped with nulls
        forms += [answer.model_dump(), answer.model_dump(mode="json")]

    assert len({json.dumps(sent(format_case.format, form), sort_keys=True) for form in forms}) == 1


def test_fields_of_answers_are_kept_and_not_sent_back() -> None:
    """The log holds all of a chat completion, and the next request none of the fields that only answers have."""
    call = {"id": "c1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Yes.", "refusal": None, "annotations": [], "audio": None}
    message |= {"function_call": None, "tool_calls": [call], "reasoning_content": "Hm.", "parsed": {"a": 1}}
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add({"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "id": "r1", "model": "m"})
        session.add({"role": "tool", "tool_call_id": "c1", "content": "done"})

        stored = find_format("openai").encode(session.entries())[0]
        message_sent = session.context().messages[0]

    assert stored == {**message, "response": {"id": "r1", "model": "m", "finish_reason": "stop"}}
    bare = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert message_sent == {"role": "assistant", "content": "Yes.", "tool_calls": [bare]}


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("content", ["done", [{"type": "text", "text": "done"}]], ids=["text", "parts"])
@pytest.mark.parametrize(
    "message",
    [{"role": "tool", "tool_call_id": "c1"}, {"role": "function", "name": "f"}, {"role": "developer"}],
    ids=["tool", "function", "developer"],
)
def test_roles_of_chat_completions_are_read_in_any_session(format: str, content: Any, message: dict[str, Any]) -> None:
    """Results and developer messages of chat completions are read in a session of any format."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        (entry,) = session.add({**message, "content": content})

        assert entry.text == "done"
        assert entry.kind == ("message" if message["role"] == "developer" else "tool_result")
        assert session.context(format="openai").messages

        with pytest.raises(InvalidEntry):  # as a message of the named format
            session.add({**message, "content": "done"}, format="anthropic")


def test_pieces_in_a_row_are_one_message() -> None:
    """Blocks, calls and parts given in a row, among messages and objects, make one message."""
    anthropic = load("anthropic.types")
    blocks = [
        anthropic.TextBlock(type="text", text="I look."),
        anthropic.ToolUseBlock(type="tool_use", id="t1", name="find", input={"a": 1}),
        {"type": "tool_result", "tool_use_id": "t1", "content": "found"},
    ]
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        session.add([{"role": "user", "content": "Find a."}, *blocks, {"role": "assistant", "content": blocks[:1]}])

        messages = session.context().messages

    assert [(message["role"], len(message["content"])) for message in messages[1:]] == [
        ("assistant", 2),
        ("user", 1),
        ("assistant", 1),
    ]
    assert messages[1]["content"][1] == {"type": "tool_use", "id": "t1", "name": "find", "input": {"a": 1}}


def test_parts_in_a_row_have_one_role() -> None:
    """Parts of Gemini in a row are one content, of the model or of the user by what only that role has."""
    types = load("google.genai.types")
    call = types.Part(function_call=types.FunctionCall(name="find", args={"a": 1}), thought_signature=b"signed")
    results = [types.Part.from_function_response(name="find", response={"result": "x"}), types.Part(text="Look at it.")]
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add([types.UserContent("Find a."), types.Part(text="I look."), call, *results])

        contents = [(content["role"], [*map(list, content["parts"])]) for content in session.context().messages]

    call_keys = ["function_call", "thought_signature"]
    assert contents == [
        ("user", [["text"]]),
        ("model", [["text"], call_keys]),
        ("user", [["function_response"], ["text"]]),
    ]


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
def test_a_message_of_chat_completions_is_read_in_any_session(format: str) -> None:
    """Text as a string, or as a list of parts, is read the same in every format's session."""
    text = {"type": "text", "text": "I fly to Oslo."}
    own = {"type": "input_image", "image_url": "https://example.com/a.png"}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        for content in ("I fly to Oslo.", [text], [text, own] if format == "openai-responses" else [text]):
            session.add({"role": "user", "content": content})

        context = session.context()
        problems = find_format(format).validate(context.messages)

    assert [entry.text for entry in context.entries] == ["I fly to Oslo."] * 3
    assert str(context.messages).count("I fly to Oslo.") == 3
    assert "'type': 'text'" not in str(context.messages) or format in ("openai", "anthropic")
    assert problems == []


def test_a_parsed_object_is_kept_and_not_sent_back() -> None:
    """An answer that was parsed into an object of the program is stored with it; only its text is sent back."""
    chat = load("openai.types.chat")

    class Gate(BaseModel):
        number: int

    message = chat.ParsedChatCompletionMessage[Gate](role="assistant", content='{"number": 12}', parsed=Gate(number=12))
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(message)

        assert find_format("openai").encode(session.entries())[0]["parsed"] == {"number": 12}
        assert session.context().messages == [{"role": "assistant", "content": '{"number": 12}'}]


def test_no_client_is_imported_to_read_its_dumps() -> None:
    """A program without the clients can add their dumps, as mappings of any class."""
    program = """if True:
        import sys
        from collections import OrderedDict
        from types import MappingProxyType
        from palimpsest import Memory

        message = MappingProxyType({"role": "assistant", "content": "Yes.", "refusal": None})
        answer = OrderedDict(choices=[{"index": 0, "finish_reason": "stop", "message": message}])
        with Memory.open("memory://") as memory:
            memory.session("s").add([answer, message])
            print(memory.session("s").context().messages[1])
        print({"openai", "anthropic", "google.genai", "pydantic"} & set(sys.modules))
    """
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, encoding="utf-8")

    assert finished.stdout.splitlines() == ["{'role': 'assistant', 'content': 'Yes.'}", "set()"]


def test_an_unknown_object_is_refused_by_its_type() -> None:
    """An object of no known shape is refused with its type, its place and what to give instead."""
    published = load("openai.types")
    usage = published.CompletionUsage(completion_tokens=1, prompt_tokens=1, total_tokens=2)
    strange: list[tuple[Any, str]] = [
        (object(), "object is not a kind of message that is known here; give a message, a choice, a response"),
        (usage, "openai.types.completion_usage.CompletionUsage is what a call used: give it to record_usage"),
        (iter([]), "list_iterator is a stream, or a piece of one: feed its events"),
        ({"type": "text", "text": "hm"}, "does not say whose it is; give the whole message around it"),
        ({"text": "hm"}, "does not say whose it is"),
        ({"choices": [{}, {}]}, "holds 2 answers; add only the one that the conversation continues with"),
        ({"candidates": [], "prompt_feedback": {"block_reason": "SAFETY"}}, "holds no answer (SAFETY)"),
    ]
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        for given, told in strange:
            with pytest.raises(InvalidEntry, match=re.escape(told)) as refusal:
                session.add([{"role": "user", "content": "Hello"}, given])
            assert refusal.value.where.startswith("messages[1]")

        assert session.entries() == []


def test_messages_of_frameworks_are_refused_with_advice() -> None:
    """Objects and dumps of LangChain and Pydantic AI are refused with how to convert them, in any format."""
    lc, pydantic_ai = load("langchain_core.messages"), load("pydantic_ai.messages")
    question = lc.HumanMessage("Which gate?")
    request = pydantic_ai.ModelRequest(parts=[pydantic_ai.UserPromptPart("Which gate?")])
    response = pydantic_ai.ModelResponse(parts=[pydantic_ai.TextPart("B 12.")])
    dump = pydantic_ai.ModelMessagesTypeAdapter.dump_python
    langchain: list[Any] = [
        question,
        question.model_dump(),
        *lc.messages_to_dict([question]),
        lc.AIMessage("B 12.").model_dump(),
    ]
    pydantic: list[Any] = [request, response, *dump([request, response], mode="json"), *dump([request])]
    for messages, told in ((langchain, "convert_to_openai_messages"), (pydantic, "source='pydantic-ai'")):
        for message in messages:
            for format in ("openai", "openai-responses", "anthropic", "gemini"):
                with Memory.open("memory://") as memory:
                    session = memory.session("s", format=format)
                    with pytest.raises(InvalidEntry, match=re.escape(told)) as refusal:
                        session.add([{"role": "user", "content": "Hello"}, message])
                    assert refusal.value.where == "messages[1]"
                    assert session.entries() == []


PIECES: dict[str, Callable[[Any], Any]] = {
    "openai": lambda answer: answer.choices[0],
    "openai-responses": lambda answer: answer.output,
    "anthropic": lambda answer: answer.content,
    "anthropic-beta": lambda answer: answer.content,
    "gemini": lambda answer: answer.candidates[0].content,
}


def sent(format: str, answer: Any) -> list[dict[str, Any]]:
    """Return what the model is sent next after this answer was added."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        session.add_user_message("Hello")
        session.add(answer)
        session.add_user_message("And then?")
        return session.context().messages
