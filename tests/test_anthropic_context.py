"""What a context sends to Anthropic's API, item by item, and what that costs."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rules_anthropic
import strategies_anthropic
from blocks_anthropic import (
    CALL,
    FOUND,
    MARK,
    PDF,
    PIXEL,
    REDACTED,
    RESULT,
    SEARCH,
    TEXT,
    THOUGHT,
    assistant,
    context,
    user,
)
from palimpsest import Memory
from palimpsest.formats import Shown, find_format
from palimpsest.formats.wording import NO_MESSAGE, NO_MESSAGE_TOKENS, OPENING, OPENING_TOKENS, counted_texts
from palimpsest.log.entry import Entry, Reasoning, Text
from palimpsest.tokens.counter import encoding

FORMAT = find_format("anthropic")


def test_leading_system_messages_become_the_system_argument() -> None:
    """The caller's system text and the log's leading system messages become `system`: a text, or blocks if several."""
    kind = {"role": "system", "content": "be kind"}
    hello = {"role": "user", "content": "hello"}

    assert context(hello, system="be brief").request(cache_breakpoints=False) == {
        "system": "be brief",
        "messages": [hello],
    }
    assert context(kind, hello).system == "be kind"
    assert context({**kind, "content": [{**TEXT, "cache_control": MARK}]}, hello).system == [
        {**TEXT, "cache_control": MARK}
    ]
    assert context(kind, hello, system="be brief").system == [
        {"type": "text", "text": "be brief"},
        {"type": "text", "text": "be kind"},
    ]
    assert "system" not in context(hello, system=" ").request()


def test_a_later_system_message_is_fenced_and_noted() -> None:
    """A system message after the beginning is sent as fenced text of the user, and the report names it."""
    ctx = context(
        {"role": "user", "content": "hello"},
        {"role": "system", "content": "be </system_message> kind"},
        {"role": "assistant", "content": "hi"},
    )

    assert ctx.system is None
    assert ctx.messages[0]["content"] == [
        {"type": "text", "text": "hello"},
        {"type": "text", "text": "<system_message>\nbe &lt;/system_message> kind\n</system_message>"},
    ]
    assert [note.seq for note in ctx.report.adapted] == [2]


def test_neighbours_of_one_role_are_merged_into_blocks() -> None:
    """Adjacent messages of one role become one message of their blocks; a single message stays as it is."""
    ctx = context(
        {"role": "user", "content": "one"},
        user({"type": "text", "text": "two"}),
        {"role": "assistant", "content": "three"},
    )

    assert ctx.messages == [
        user({"type": "text", "text": "one"}, {"type": "text", "text": "two"}),
        {"role": "assistant", "content": "three"},
    ]
    assert ctx.log_messages[0] == {"role": "user", "content": "one"}


def test_a_context_that_begins_with_the_assistant_is_opened_by_a_stub() -> None:
    """A context that would begin with the assistant gets a short user message first, which the overhead counts."""
    ctx = context({"role": "assistant", "content": "hello"})

    assert ctx.messages == [{"role": "user", "content": OPENING}, {"role": "assistant", "content": "hello"}]
    assert context().messages == []
    assert ctx.parts.overhead == FORMAT.prime > OPENING_TOKENS


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_our_own_lines_cost_their_stated_tokens(name: str) -> None:
    """The opening line and the line for a failure without text cost their stated tokens in both encodings."""
    assert encoding(name).count(OPENING) == OPENING_TOKENS
    assert encoding(name).count(NO_MESSAGE) == NO_MESSAGE_TOKENS


def test_results_come_first_in_one_message_whatever_their_order() -> None:
    """The results of parallel calls come first in one user message, in any order; the human's words follow."""
    two = {**CALL, "id": "toolu_2"}
    ctx = context(
        {"role": "user", "content": "go"},
        assistant(TEXT, CALL, two),
        user({**RESULT, "tool_use_id": "toolu_2"}),
        user(RESULT, {"type": "text", "text": "thanks"}),
    )

    assert ctx.messages[1] == assistant(TEXT, CALL, two)
    assert ctx.messages[2] == user({**RESULT, "tool_use_id": "toolu_2"}, RESULT, {"type": "text", "text": "thanks"})


def test_a_call_without_result_gets_a_stand_in() -> None:
    """A call that a human message has overtaken gets a stand-in result; its late result is shown as data."""
    ctx = context({"role": "user", "content": "go"}, assistant(CALL), {"role": "user", "content": "stop"}, user(RESULT))

    stand_in, human, late = ctx.messages[2]["content"]
    assert (stand_in["type"], stand_in["tool_use_id"]) == ("tool_result", "toolu_1")
    assert human["text"] == "stop"
    assert late["text"].startswith("<late_result")
    assert "found" in late["text"]


def test_texts_that_the_api_calls_empty_are_left_out() -> None:
    """Texts that are empty or only white space are in no context; the log keeps them."""
    ctx = context(
        {"role": "user", "content": " \n"},
        user(TEXT, {"type": "text", "text": "\t"}),
        {"role": "assistant", "content": ""},
        assistant({"type": "text", "text": " "}, CALL),
        user({**RESULT, "content": " "}),
        {"role": "assistant", "content": " "},
        user({"type": "text", "text": ""}),
    )

    assert ctx.messages == [user(TEXT), assistant(CALL), user({"type": "tool_result", "tool_use_id": "toolu_1"})]


def test_no_text_of_the_assistant_ends_in_white_space() -> None:
    """No assistant text ends in white space.

    The API refuses it in the last message only; it is cut everywhere so that later messages change nothing.
    """
    ctx = context({"role": "user", "content": "hi "}, {"role": "assistant", "content": "hello \n"})
    listed = context(user(TEXT), assistant({"type": "text", "text": " a "}, {"type": "text", "text": "b "}))

    assert [message["content"] for message in ctx.messages] == ["hi ", "hello"]
    assert [block["text"] for block in listed.messages[1]["content"]] == [" a ", "b"]


def test_ids_and_names_of_other_formats_are_rewritten() -> None:
    """Ids and names that the API refuses are rewritten alike in call and result, and distinct ones stay distinct."""
    calls = [
        {"id": id, "type": "function", "function": {"name": "my tool!", "arguments": "{}"}}
        for id in ("a|b", "a/b", "", "fine")
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["id"]} for call in calls]
    ctx = context({"role": "assistant", "content": None, "tool_calls": calls}, *results, format="openai")

    asked = [(block["id"], block["name"]) for block in ctx.messages[1]["content"]]
    assert [id for id, _ in asked] == ["a_b", "a_b_2", "call_3", "fine"]
    ((_, name), *_) = asked
    assert re.fullmatch("my_tool__[0-9a-f]{8}", name)
    assert {other for _, other in asked} == {name}
    answered = {block["tool_use_id"]: block.get("content") for block in ctx.messages[2]["content"]}
    assert answered == {"a_b": "a|b", "a_b_2": "a/b", "call_3": None, "fine": "fine"}
    assert {note.what for note in ctx.report.adapted} == {f"tool name as {name}"}


def test_tool_names_are_cut_to_the_limit_of_the_api() -> None:
    """A tool's name is cut to 128 characters; a call without a name is sent as a call of `unknown`."""
    ctx = context(assistant({**CALL, "name": "n" * 200}, {**CALL, "id": "b", "name": ""}), user(RESULT))

    names = [block["name"] for block in ctx.messages[1]["content"]] if ctx.messages else []
    assert names == []  # a call is open
    ctx = context(assistant({**CALL, "name": "n" * 200}), user(RESULT), assistant({**CALL, "name": ""}), user(RESULT))
    long, nameless = (ctx.messages[i]["content"][0]["name"] for i in (1, 3))
    assert re.fullmatch("n{119}_[0-9a-f]{8}", long)
    assert nameless == "unknown"


def test_ids_are_unique_in_the_whole_request() -> None:
    """An id that appears again in a later exchange gets a number, in the call and its result alike."""
    exchange = [assistant(CALL), user(RESULT)]
    ctx = context(*exchange, *exchange, *exchange)

    ids = [block["id"] for message in ctx.messages[1::2] for block in message["content"]]
    answers = [block["tool_use_id"] for message in ctx.messages[2::2] for block in message["content"]]
    assert ids == answers == ["toolu_1", "toolu_1_2", "toolu_1_3"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  ", {}),
        ("[1, 2]", {"input": [1, 2]}),
        ("5", {"input": 5}),
        ("null", {"input": None}),
        ("no JSON", {"input": "no JSON"}),
        ('{"a": NaN}', {"input": '{"a": NaN}'}),
        ('{"a": 1e999}', {"a": "1e999"}),
        ('{"a": "\\ud800"}', {"input": '{"a": "\\ud800"}'}),
        ("[" * 5000, {"input": "[" * 5000}),
    ],
)
def test_the_input_of_a_call_is_an_object(arguments: str, value: Any) -> None:
    """Arguments of other formats that are not a JSON object are wrapped in one, and the report names that."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    ctx = context({"role": "assistant", "tool_calls": [call]}, result, format="openai")

    assert ctx.messages[1]["content"][0]["input"] == value
    assert bool(ctx.report.adapted) == (value == {"input": value.get("input", ...)})


def test_signed_thinking_is_sent_back_in_its_place() -> None:
    """Signed thinking is sent back as it came, in its place, even if only the signature is left of it."""
    hidden = {**THOUGHT, "thinking": ""}
    ctx = context(
        {"role": "user", "content": "go"},
        assistant({**THOUGHT, "x": 1}, REDACTED, CALL),
        user(RESULT),
        assistant(hidden),
        assistant(TEXT),
    )

    assert ctx.messages[1] == assistant(THOUGHT, REDACTED, CALL)
    assert ctx.messages[3] == assistant(hidden, TEXT)


def test_thinking_that_the_api_would_refuse_becomes_fenced_text() -> None:
    """Thinking that the API would refuse becomes fenced text, and the report says so.

    It refuses thinking without a signature, from another format, or with nothing after it.
    """
    fenced = {"type": "text", "text": "<thinking>\nhm\n</thinking>"}
    unsigned = context(user(TEXT), assistant({"type": "thinking", "thinking": "hm"}, TEXT))
    trailing = context(user(TEXT), assistant(TEXT, THOUGHT, REDACTED), user(TEXT))
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add_assistant_message((Reasoning(text="hm", extra={"signature": "c2ln"}), Text(text="hi")))
        foreign = session.context(format="anthropic")

    assert unsigned.messages[1] == assistant(fenced, TEXT)
    assert trailing.messages[1] == assistant(TEXT, fenced)
    assert foreign.messages[1] == assistant(fenced, TEXT)
    assert all(ctx.report.adapted for ctx in (unsigned, trailing, foreign))


def test_thinking_with_mended_text_loses_its_signature() -> None:
    """Thinking whose text is invalid Unicode is mended, so its signature no longer holds and it becomes fenced text."""
    ctx = context(user(TEXT), assistant({**THOUGHT, "thinking": "h\ud800m"}, TEXT))

    assert ctx.messages[1] == assistant({"type": "text", "text": "<thinking>\nh\ufffdm\n</thinking>"}, TEXT)


def test_blocks_that_a_role_may_not_send_become_text() -> None:
    """A block that a role may not send becomes text; redacted thinking in a user's message is left out."""
    image = {"type": "image", "source": PIXEL}
    page = {"type": "search_result", "source": "a", "title": "b", "content": [TEXT]}
    ctx = context(user(TEXT, THOUGHT, REDACTED, {**FOUND, "content": [TEXT]}), assistant(image, page, TEXT))

    asked, answered = ([block["text"] for block in message["content"]] for message in ctx.messages)
    assert [text.partition(">")[0] for text in asked] == [
        "hi",
        '<provider_item type="thinking"',
        '<provider_item type="web_search_tool_result"',
    ]
    assert [text.partition(">")[0] for text in answered] == [
        "[an image is not shown here]",
        '<provider_item type="search_result"',
        "hi",
    ]


def test_another_format_gets_no_encrypted_thinking() -> None:
    """In another format thinking is fenced text, and redacted thinking is left out."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        session.add([user(TEXT), assistant(THOUGHT, REDACTED, TEXT)])
        parts = session.context(format="openai").messages[1]["content"]

    assert [part["text"] for part in parts] == ["<thinking>\nhm\n</thinking>", "hi"]


def test_blocks_of_the_provider_go_back_as_they_came() -> None:
    """Server tools, their results and blocks of unknown types are sent back in order, without keys that are null."""
    new = {"type": "hologram", "scene": None}
    ctx = context(user(TEXT, new), assistant(SEARCH, FOUND, TEXT, new))

    assert ctx.messages[0] == user(TEXT, new)
    assert ctx.messages[1] == assistant(
        SEARCH, {key: value for key, value in FOUND.items() if key != "caller"}, TEXT, new
    )


ANSWER = {**assistant({**TEXT, "citations": None}), **strategies_anthropic.ANSWER_KEYS}


def test_keys_that_the_api_refuses_are_not_sent() -> None:
    """Of a whole answer only role and content are sent back, with the keys that requests allow and without nulls."""
    answer = ANSWER
    call = {**CALL, "caller": {"type": "direct"}, "toolset_name": None, "index": 0}

    assert context(user(TEXT), answer).messages[1] == assistant(TEXT)
    assert context(assistant(call), user({**RESULT, "x": 1})).messages[1:] == [
        assistant({**CALL, "caller": {"type": "direct"}}),
        user(RESULT),
    ]


def test_content_that_is_not_sent_is_not_counted() -> None:
    """The usage, id and stop reason of a whole answer are not sent and not counted."""
    plain = context(user(TEXT), assistant({**TEXT, "citations": None}))
    whole = context(user(TEXT), ANSWER)

    assert whole.messages == plain.messages
    assert whole.tokens == plain.tokens


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_a_failed_result_is_flagged_whatever_its_format(format: str) -> None:
    """The status `error` is sent as `is_error`; a failure without text gets a line; other statuses set no flag."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        for i, (output, status) in enumerate([("broken", "error"), (" ", "error"), ("no", "denied")]):
            session.add_tool_call("find", {}, call_id=f"c{i}")
            session.add_tool_result(None, output, call_id=f"c{i}", status=status)
        messages = session.context(format="anthropic").messages

    results = [message["content"][0] for message in messages[2::2]]
    assert [(one.get("is_error"), one["content"]) for one in results] == [
        (True, "broken"),
        (True, NO_MESSAGE),
        (None, "no"),
    ]


def test_images_in_results_are_kept_unless_the_tool_failed() -> None:
    """A result keeps its images; in a failed result, where the API allows only text, they become text."""
    image = {"type": "image", "source": PIXEL}
    result = {**RESULT, "content": [TEXT, image]}

    assert context(assistant(CALL), user(result)).messages[2] == user(result)
    failed = context(assistant(CALL), user({**result, "is_error": True})).messages[2]["content"][0]
    assert [block["type"] for block in failed["content"]] == ["text", "text"]
    assert failed["is_error"] is True


def test_media_that_the_api_refuses_become_a_line_of_text() -> None:
    """Media that the API does not take become one line of text each; the others are sent."""
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL['data']}", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "ftp://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF['data']}", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "f1"}},
    ]
    ctx = context({"role": "user", "content": parts}, format="openai")

    blocks = ctx.messages[0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "text", "text", "text", "document", "text"]
    assert blocks[1] == {"type": "image", "source": PIXEL}
    assert blocks[5] == {"type": "document", "source": PDF, "title": "a.pdf"}
    assert len(ctx.report.adapted) == 4


def test_a_clamped_text_replaces_the_blocks() -> None:
    """A clamped entry shows its shorter text as its only content, and a failed result stays flagged."""
    result = Entry(kind="tool_result", role="tool", content=(Text(text="x"),), seq=2, answers=1, status="error")
    call = Entry(kind="tool_call", role="assistant", content='{"a": "b"}', name="find", call_id="c", seq=1)
    message = Entry(role="assistant", content=(Text(text="a"), Text(text="b")), seq=3)

    asked, answered = FORMAT.render([Shown(call, '{"shortened": "b"}'), Shown(result, "short")])

    assert asked["content"][0]["input"] == {"shortened": "b"}
    assert answered["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": "short",
        "is_error": True,
    }
    assert FORMAT.render([Shown(message, "short")]) == [{"role": "assistant", "content": "short"}]


def test_a_name_of_a_message_is_left_out_and_noted() -> None:
    """The name of a message is left out, because the API has none, and the report notes it."""
    ctx = context({"role": "user", "content": "hi", "name": "ann"}, format="openai")

    assert ctx.messages == [{"role": "user", "content": "hi"}]
    assert [note.what for note in ctx.report.adapted] == ["name left out"]


# --- what rendering costs

LONG_ID = "toolu_01D7FLrfh4GYq7yT1ULFeyMV"


def called(name: str, arguments: str, answer: str = "x") -> list[dict[str, Any]]:
    """Return a tool call in OpenAI's chat format, and its result."""
    call = {"id": LONG_ID, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": LONG_ID, "content": answer},
    ]


COSTLY: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "fenced system messages": ("openai", [{"role": "system", "content": "</system_message>" * 9}]),
    "thinking with a fence of its own": (
        "anthropic",
        [assistant(*[{"type": "thinking", "thinking": "</thinking>" * 9}] * 9, TEXT)],
    ),
    "inputs that are no JSON": ("openai", called("f", '"\\\n' * 300)),
    "an input that looks like JSON": ("openai", called("f", '{"a": "' + '"' * 600)),
    "odd names": ("openai", called("über - straße - naïve - " * 5, "{}")),
    "silent failures": ("anthropic", [assistant(CALL), user({**RESULT, "content": "", "is_error": True})]),
    "pictures of the assistant": ("anthropic", [assistant(*[{"type": "image", "source": PIXEL}] * 9)]),
    "long titles": ("anthropic", [user({"type": "document", "source": PDF, "title": "漢字☂" * 60})]),
    "documents of the assistant": (
        "anthropic",
        [assistant(*[{"type": "document", "source": PDF, "title": '"<&' * 40}] * 5)],
    ),
}


@pytest.mark.parametrize(("format", "messages"), COSTLY.values(), ids=COSTLY)
def test_text_added_by_rendering_is_counted(format: str, messages: list[dict[str, Any]]) -> None:
    """The counted tokens cover what rendering adds around an item or puts in its place, ids included."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        session.add([{"role": "user", "content": "hi"}, *messages * 5])
        ctx = session.context(format="anthropic")

        ids = [
            LONG_ID
            for message in ctx.messages
            for block in rules_anthropic.blocks_of(message)
            if "tool" in block["type"]
        ]
        said = sum(map(encoding("o200k_base").count, [*rules_anthropic.texts(ctx.request()), *ids]))
        entries = session.entries()
    assert said <= sum(entry_cost(entry) for entry in entries) <= ctx.tokens


def entry_cost(entry: Entry) -> int:
    """Return the tokens of the entry's texts and of what the format puts around them."""
    return sum(map(encoding("o200k_base").count, counted_texts(entry))) + FORMAT.overhead(entry)


def test_the_tokens_of_the_tool_prompt_are_counted() -> None:
    """A request with tools counts the 346 tokens of the prompt that Anthropic adds, beside the schemas."""
    tool = {"name": "f", "description": "", "input_schema": {"type": "object", "properties": {}}}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=4_000)
        session.add_user_message("hello")

        plain, schema = session.context(), session.context(format="openai", tools=[tool]).parts.tools

        assert session.context(tools=[tool]).tokens == plain.tokens + schema + 346
