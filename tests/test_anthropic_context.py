"""What a context says to Anthropic's API, item by item, and what that costs."""

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


def test_leading_system_messages_go_beside_the_messages() -> None:
    """The caller's text and the log's first system messages are the system argument: text, or blocks if several."""
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
    """Amid the conversation a system message is said by the user in a fence, which the report names."""
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
    """Roles alternate: two messages of one role are one message of their blocks; one alone stays as it is."""
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
    """The first message is the user's: a short line where the log has none, covered by what the format counts."""
    ctx = context({"role": "assistant", "content": "hello"})

    assert ctx.messages == [{"role": "user", "content": OPENING}, {"role": "assistant", "content": "hello"}]
    assert context().messages == []
    assert ctx.parts.overhead == FORMAT.prime > OPENING_TOKENS


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_our_own_lines_cost_what_we_say(name: str) -> None:
    """The stub and the line of a silent failure cost their stated tokens in both encodings."""
    assert encoding(name).count(OPENING) == OPENING_TOKENS
    assert encoding(name).count(NO_MESSAGE) == NO_MESSAGE_TOKENS


def test_results_come_first_in_one_message_whatever_their_order() -> None:
    """A message of results follows its calls directly and begins with them; the human's words come behind."""
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
    """A call that a human message has overtaken is answered by a stand-in; its late result is shown as data."""
    ctx = context({"role": "user", "content": "go"}, assistant(CALL), {"role": "user", "content": "stop"}, user(RESULT))

    stand_in, human, late = ctx.messages[2]["content"]
    assert (stand_in["type"], stand_in["tool_use_id"]) == ("tool_result", "toolu_1")
    assert human["text"] == "stop"
    assert late["text"].startswith("<late_result")
    assert "found" in late["text"]


def test_what_the_api_would_find_empty_is_left_out() -> None:
    """Empty texts and texts of white space are in no context, as messages and as blocks; the log keeps them."""
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
    """The API refuses it in the last message; so that later messages change nothing, none ends so."""
    ctx = context({"role": "user", "content": "hi "}, {"role": "assistant", "content": "hello \n"})
    listed = context(user(TEXT), assistant({"type": "text", "text": " a "}, {"type": "text", "text": "b "}))

    assert [message["content"] for message in ctx.messages] == ["hi ", "hello"]
    assert [block["text"] for block in listed.messages[1]["content"]] == [" a ", "b"]


def test_ids_and_names_of_other_formats_are_made_to_fit() -> None:
    """Ids and names that the API refuses are rewritten alike in call and result, and stay apart."""
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


def test_names_are_cut_to_what_the_api_takes() -> None:
    """A tool's name is at most 128 characters; a call that names no tool calls the unknown one."""
    ctx = context(assistant({**CALL, "name": "n" * 200}, {**CALL, "id": "b", "name": ""}), user(RESULT))

    names = [block["name"] for block in ctx.messages[1]["content"]] if ctx.messages else []
    assert names == []  # a call is open
    ctx = context(assistant({**CALL, "name": "n" * 200}), user(RESULT), assistant({**CALL, "name": ""}), user(RESULT))
    long, nameless = (ctx.messages[i]["content"][0]["name"] for i in (1, 3))
    assert re.fullmatch("n{119}_[0-9a-f]{8}", long)
    assert nameless == "unknown"


def test_ids_are_unique_in_the_whole_request() -> None:
    """An id that comes back in a later exchange gets a number there, in its result too."""
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
    """Arguments of other formats that are no JSON object are wrapped in one, which the report names."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    ctx = context({"role": "assistant", "tool_calls": [call]}, result, format="openai")

    assert ctx.messages[1]["content"][0]["input"] == value
    assert bool(ctx.report.adapted) == (value == {"input": value.get("input", ...)})


def test_thinking_goes_back_with_its_signature_before_what_it_belongs_to() -> None:
    """Signed thinking is sent as it came, in its place; a signature alone, without its text, is worth sending, too."""
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
    """Without a signature, from another format, or with nothing behind it, thinking is text; the report says so."""
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


def test_thinking_that_no_longer_is_what_was_signed_is_not_sent_as_such() -> None:
    """Text that is not valid Unicode is mended in a context: thinking with such text loses its signature's worth."""
    ctx = context(user(TEXT), assistant({**THOUGHT, "thinking": "h\ud800m"}, TEXT))

    assert ctx.messages[1] == assistant({"type": "text", "text": "<thinking>\nh\ufffdm\n</thinking>"}, TEXT)


def test_blocks_that_a_role_may_not_send_become_text() -> None:
    """What only the assistant says is text in a user's message, and the other way round; what is encrypted goes."""
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


def test_other_providers_are_told_nothing_that_only_this_one_can_read() -> None:
    """In another format thinking is fenced text, and of what is encrypted nothing is said."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic")
        session.add([user(TEXT), assistant(THOUGHT, REDACTED, TEXT)])
        said = session.context(format="openai").messages[1]["content"]

    assert [part["text"] for part in said] == ["<thinking>\nhm\n</thinking>", "hi"]


def test_blocks_of_the_provider_go_back_as_they_came() -> None:
    """Server tools, their results and blocks of unknown types are sent in their order; empty keys are not."""
    new = {"type": "hologram", "scene": None}
    ctx = context(user(TEXT, new), assistant(SEARCH, FOUND, TEXT, new))

    assert ctx.messages[0] == user(TEXT, new)
    assert ctx.messages[1] == assistant(
        SEARCH, {key: value for key, value in FOUND.items() if key != "caller"}, TEXT, new
    )


ANSWER = {**assistant({**TEXT, "citations": None}), **strategies_anthropic.ANSWER_KEYS}


def test_keys_that_the_api_refuses_are_not_sent() -> None:
    """Of a whole answer only role and blocks go back, with the keys that requests have, and without nulls."""
    answer = ANSWER
    call = {**CALL, "caller": {"type": "direct"}, "toolset_name": None, "index": 0}

    assert context(user(TEXT), answer).messages[1] == assistant(TEXT)
    assert context(assistant(call), user({**RESULT, "x": 1})).messages[1:] == [
        assistant({**CALL, "caller": {"type": "direct"}}),
        user(RESULT),
    ]


def test_what_is_only_kept_is_not_counted() -> None:
    """The account of a whole answer says nothing of its usage, id and stop reason, which are not sent."""
    plain = context(user(TEXT), assistant({**TEXT, "citations": None}))
    whole = context(user(TEXT), ANSWER)

    assert whole.messages == plain.messages
    assert whole.tokens == plain.tokens


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_an_error_is_told_whatever_its_origin(format: str) -> None:
    """The status `error` is sent as a flag; a silent failure says that it is one; other statuses are not flags."""
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
    """A result shows its images; of those of a failure the API takes only what they were, as text."""
    image = {"type": "image", "source": PIXEL}
    result = {**RESULT, "content": [TEXT, image]}

    assert context(assistant(CALL), user(result)).messages[2] == user(result)
    failed = context(assistant(CALL), user({**result, "is_error": True})).messages[2]["content"][0]
    assert [block["type"] for block in failed["content"]] == ["text", "text"]
    assert failed["is_error"] is True


def test_media_that_the_api_does_not_take_are_named() -> None:
    """Images of other kinds or places, sound and other files become one line each; what fits is sent."""
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
    """Where a context shows an entry by another text, that text is all of its content, and a failure stays one."""
    result = Entry(kind="tool_result", role="tool", content=(Text(text="x"),), seq=2, answers=1, status="error")
    call = Entry(kind="tool_call", role="assistant", content='{"a": "b"}', name="find", call_id="c", seq=1)
    said = Entry(role="assistant", content=(Text(text="a"), Text(text="b")), seq=3)

    asked, answered = FORMAT.render([Shown(call, '{"shortened": "b"}'), Shown(result, "short")])

    assert asked["content"][0]["input"] == {"shortened": "b"}
    assert answered["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": "short",
        "is_error": True,
    }
    assert FORMAT.render([Shown(said, "short")]) == [{"role": "assistant", "content": "short"}]


def test_a_name_of_a_message_is_left_out_and_noted() -> None:
    """Messages have no names here."""
    ctx = context({"role": "user", "content": "hi", "name": "ann"}, format="openai")

    assert ctx.messages == [{"role": "user", "content": "hi"}]
    assert [note.what for note in ctx.report.adapted] == ["name left out"]


# --- what rendering costs

LONG_ID = "toolu_01D7FLrfh4GYq7yT1ULFeyMV"


def called(name: str, arguments: str, answer: str = "x") -> list[dict[str, Any]]:
    """A call in the form of chat completions, with its result."""
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
def test_what_rendering_adds_is_counted(format: str, messages: list[dict[str, Any]]) -> None:
    """What stands around or in the place of an item is covered by its account, as are ids, should they be counted."""
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
    """The entry's texts and what the format puts around them."""
    return sum(map(encoding("o200k_base").count, counted_texts(entry))) + FORMAT.overhead(entry)


def test_the_prompt_that_tools_bring_along_is_counted() -> None:
    """A request with tools costs what the provider itself adds to it, beside the schemas."""
    tool = {"name": "f", "description": "", "input_schema": {"type": "object", "properties": {}}}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=4_000)
        session.add_user_message("hello")

        plain, schema = session.context(), session.context(format="openai", tools=[tool]).parts.tools

        assert session.context(tools=[tool]).tokens == plain.tokens + schema + 346
