"""Importing provider messages from files: every format, in every shape, recognized by what the messages hold."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from commands import CHAT
from exports_chatgpt import archive, simple
from palimpsest import ConfigError, ImportFailed, Memory
from palimpsest.formats import find_format
from sdks import load


def taken(memory: Memory, value: Any, **options: Any) -> Any:
    """Import a value as JSON, or bytes as they are, into the session `talk`."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return memory.import_file(io.BytesIO(body), **{"session_id": "talk", **options})


def anthropic_messages() -> list[dict[str, Any]]:
    """Return a conversation as Anthropic's own library dumps it."""
    types = load("anthropic.types")
    usage = types.Usage(input_tokens=1, output_tokens=1)
    blocks = [
        types.TextBlock(type="text", text="One moment."),
        types.ToolUseBlock(type="tool_use", id="t1", name="look", input={"at": 1}),
    ]
    response = types.Message(
        id="m1", type="message", role="assistant", model="claude", content=blocks, stop_reason="tool_use", usage=usage
    )
    return [
        {"role": "user", "content": "What is there?"},
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in response.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "bread"}]},
        {"role": "assistant", "content": "Bread."},
    ]


def openai_messages() -> list[dict[str, Any]]:
    """Return a conversation as OpenAI's own library dumps it."""
    types = load("openai.types.chat")
    function = {"name": "look", "arguments": '{"at": 1}'}
    answer = types.ChatCompletionMessage(
        role="assistant", content=None, tool_calls=[{"id": "c1", "type": "function", "function": function}]
    )
    return [
        {"role": "user", "content": "What is there?"},
        answer.model_dump(),
        {"role": "tool", "tool_call_id": "c1", "content": "bread"},
        types.ChatCompletionMessage(role="assistant", content="Bread.").model_dump(exclude_none=True),
    ]


def responses_items() -> list[dict[str, Any]]:
    """Return a conversation of the Responses API as OpenAI's own library dumps it."""
    types = load("openai.types.responses")
    text = {"type": "output_text", "text": "Bread.", "annotations": []}
    return [
        {"role": "user", "content": "What is there?"},
        types.ResponseFunctionToolCall(
            type="function_call", call_id="c1", name="look", arguments='{"at": 1}'
        ).model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": "c1", "output": "bread"},
        types.ResponseOutputMessage(
            id="m1", type="message", role="assistant", status="completed", content=[text]
        ).model_dump(exclude_none=True),
    ]


def gemini_contents() -> list[dict[str, Any]]:
    """Return a conversation as Google's own library dumps it."""
    types = load("google.genai.types")
    contents = [
        types.Content(role="user", parts=[types.Part(text="What is there?")]),
        types.Content(role="model", parts=[types.Part.from_function_call(name="look", args={"at": 1})]),
        types.Content(
            role="user", parts=[types.Part.from_function_response(name="look", response={"result": "bread"})]
        ),
        types.Content(role="model", parts=[types.Part(text="Bread.")]),
    ]
    return [content.model_dump(mode="json", exclude_none=True) for content in contents]


FORMATS = {
    "anthropic": anthropic_messages,
    "openai": openai_messages,
    "openai-responses": responses_items,
    "gemini": gemini_contents,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", ["list", "lines", "object", "list of lists"])
def test_every_format_is_recognized_and_comes_back_equal(memory: Memory, name: str, shape: str) -> None:
    """Messages that the vendors' libraries wrote are recognized in every shape and encoded equal."""
    messages = FORMATS[name]()
    bodies = {
        "list": json.dumps(messages),
        "lines": "\n".join(map(json.dumps, messages)),
        "object": json.dumps({"messages": messages}, indent=2),
        "list of lists": json.dumps([messages]),
    }

    report = taken(memory, bodies[shape].encode())

    assert (report.source, report.format, report.refused) == ("messages", name, ())
    entries = memory.session("talk").entries()
    assert find_format(name).encode(entries) == messages
    (call,) = [entry for entry in entries if entry.kind == "tool_call"]
    assert [entry.answers for entry in entries if entry.kind == "tool_result"] == [call.seq]
    assert memory.session("talk", max_tokens=4000).context(format="openai").messages


def test_ambiguous_messages_are_taken_for_openai(memory: Memory) -> None:
    """Messages that fit any format are imported as `openai`, and the report says so."""
    report = taken(memory, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])

    assert report.format == "openai"


def test_two_formats_in_one_file_are_refused_with_the_evidence(memory: Memory) -> None:
    """A file that mixes two formats is refused with what speaks for each; `format` decides."""
    mixed = [*openai_messages(), *anthropic_messages()]

    with pytest.raises(ImportFailed) as failed:
        taken(memory, mixed)

    assert "anthropic because of content of type tool_use in message 6" in failed.value.reason
    assert "openai because of `tool_calls` in message 2" in failed.value.reason
    assert memory.sessions() == []
    assert taken(memory, mixed, format="openai").format == "openai"


def in_shape(shape: str, messages: list[dict[str, Any]], plain: int) -> bytes:
    """Return messages as a file of this shape. As `objects`, each two of the first `plain` ones are a conversation."""
    if shape == "lines":
        return "\n".join(map(json.dumps, messages)).encode()
    if shape == "objects":
        parts = [messages[i : i + 2] for i in range(0, plain, 2)] + [messages[plain:]]
        return "\n".join(json.dumps({"messages": part}) for part in parts).encode()
    return json.dumps(messages if shape == "list" else {"messages": messages}).encode()


PLAIN = [{"role": role, "content": f"{role} {i}"} for i in range(60) for role in ("user", "assistant")]
"""More messages without a sign of any format than are looked at in advance."""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", ["list", "lines", "object", "objects"])
def test_a_format_that_shows_late_is_recognized(memory: Memory, name: str, shape: str) -> None:
    """Messages are read in the format that the file shows anywhere: its calls are calls, and its contexts are valid."""
    messages = FORMATS[name]()

    report = taken(memory, in_shape(shape, [*PLAIN, *messages], len(PLAIN)))

    assert (report.format, report.refused) == (name, ())
    entries = memory.session("talk").entries()
    assert find_format(name).encode(entries[len(PLAIN) :]) == messages
    (call,) = [entry for entry in entries if entry.kind == "tool_call"]
    assert [entry.answers for entry in entries if entry.kind == "tool_result"] == [call.seq]
    for format in FORMATS:
        context = memory.session("talk", max_tokens=9000).context(format=format)
        assert not find_format(format).validate(context.messages)


@pytest.mark.parametrize("shape", ["list", "lines", "object", "objects"])
def test_a_second_format_that_shows_late_ends_the_import(memory: Memory, shape: str) -> None:
    """Nothing behind the first sign of another format is imported, so that naming the format adds it in order."""
    body = in_shape(shape, [*openai_messages(), *PLAIN, *anthropic_messages()], 4 + len(PLAIN))
    plain = 4 + len(PLAIN)

    with pytest.raises(ImportFailed, match="more than one format"):
        taken(memory, body, strict=True)
    assert memory.sessions() == []

    report = taken(memory, body)

    (refused,) = report.refused
    assert "anthropic because of content of type tool_use" in refused.reason
    assert "openai because of `tool_calls` in message" in refused.reason
    assert "From here on nothing of the file is imported" in refused.reason
    assert len(memory.session("talk").entries()) == plain + 1

    again = taken(memory, body, format="openai")

    assert again.refused == ()
    assert memory.session("talk").entries()[-1].text == "Bread."
    assert (again.sessions["talk"].added, again.sessions["talk"].already_there) == (3, plain + 1)


@pytest.mark.parametrize(
    ("message", "format", "where"),
    [
        ({"role": "assistant", "text": "lost"}, None, "content"),
        ({"role": "assistant", "blocks": [{"block_type": "text", "text": "lost"}]}, "openai", "content"),
        ({"role": "model", "text": "lost"}, None, "parts"),
        ({"role": "user", "content": "lost"}, "gemini", "parts"),
    ],
)
def test_what_a_model_would_not_be_shown_is_refused(
    memory: Memory, message: dict[str, Any], format: str | None, where: str
) -> None:
    """A message whose words are under a key that its format does not have is refused, not imported as an empty one."""
    report = taken(memory, [message], format=format)

    (refused,) = report.refused
    assert refused.reason.startswith(f"{where}: is missing; no model would be shown what is under the key ")
    assert memory.sessions() == []


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("text", [{"value": "lost", "annotations": []}, ["lost"]])
def test_a_text_that_is_not_text_is_refused(memory: Memory, role: str, text: Any) -> None:
    """Text that is not where chat completions have it, as in threads of assistants, is refused, not imported unseen."""
    report = taken(memory, [{"role": role, "content": [{"type": "text", "text": text}]}])

    (refused,) = report.refused
    assert refused.reason.startswith("content[0].text: ")
    assert refused.reason.endswith(" is not text; no model would be shown it")
    assert memory.sessions() == []


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ({"role": "model", "parts": [{"text": "hi"}]}, [{"role": "user", "content": "said"}]),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, [{"role": "developer"}]),
        ({"type": "item_reference", "id": "1"}, [{"role": "user", "content": [{"type": "text", "text": "said"}]}]),
    ],
    ids=["gemini", "anthropic", "openai-responses"],
)
def test_a_message_that_the_format_lacks_is_read_as_add_reads_it(
    memory: Memory, first: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    """Beside messages of a recognized format, one that this format does not have is read as one of chat completions."""
    others = [{"content": "said", **other} for other in others]

    report = taken(memory, [first, *others])

    assert (report.format != "openai", report.refused) == (True, ())
    added = memory.session("added", format=report.format).add([first, *others])
    entries = memory.session("talk").entries()
    assert [(entry.kind, entry.role, entry.content, entry.native) for entry in entries] == [
        (entry.kind, entry.role, entry.content, entry.native) for entry in added
    ]
    context = memory.session("talk", max_tokens=900).context(format=report.format)
    assert "said" in json.dumps(context.request())
    assert not find_format(report.format).validate(context.messages)


@pytest.mark.parametrize(
    ("message", "format"),
    [
        ({"type": "message", "role": "user", "content": "hi"}, "openai-responses"),
        ({"role": "assistant", "content": [{"type": "text", "text": "hi", "citations": None}]}, "anthropic"),
        ({"role": "assistant", "content": [{"type": "compaction", "content": "hi"}]}, "anthropic"),
        (
            {"role": "assistant", "content": [{"type": "bash_code_execution_tool_result", "tool_use_id": "1"}]},
            "anthropic",
        ),
    ],
)
def test_imports_recognize_what_add_recognizes(memory: Memory, message: dict[str, Any], format: str) -> None:
    """A message that only one provider has is read in its format by `add` and by an import."""
    assert taken(memory, [message]).format == format
    (added,) = memory.session("added").add(message)
    (entry,) = memory.session("talk").entries()
    assert (entry.content, entry.native) == (added.content, added.native)


@pytest.mark.parametrize(
    ("request_", "format", "texts"),
    [
        ({"system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}, "anthropic", ["Be brief.", "hi"]),
        (
            {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}], "messages": []},
            "anthropic",
            ["Be\nbrief."],
        ),
        ({"instructions": "Be brief.", "input": "hi", "model": "gpt"}, "openai", ["Be brief.", "hi"]),
        (
            {"instructions": "Be brief.", "input": responses_items()[:1]},
            "openai-responses",
            ["Be brief.", "What is there?"],
        ),
        (
            {"system_instruction": {"parts": [{"text": "Be brief."}]}, "contents": gemini_contents()[:1]},
            "gemini",
            ["Be brief.", "What is there?"],
        ),
        (
            {"contents": gemini_contents()[:1], "config": {"system_instruction": "Be brief."}},
            "gemini",
            ["Be brief.", "What is there?"],
        ),
        (
            {"contents": gemini_contents()[:1], "config": {"systemInstruction": {"parts": [{"text": "Be brief."}]}}},
            "gemini",
            ["Be brief.", "What is there?"],
        ),
    ],
    ids=["anthropic", "blocks", "responses text", "responses", "gemini", "gemini's client", "gemini, dumped"],
)
def test_the_system_prompt_of_a_request_is_imported(
    memory: Memory, request_: Any, format: str, texts: list[str]
) -> None:
    """A request's system prompt becomes a system message before its messages, in each provider's shape."""
    for _ in range(2):
        report = taken(memory, request_)

    entries = memory.session("talk").entries()
    assert report.format == format
    assert entries[0].role == "system"
    assert [entry.text for entry in entries] == texts
    assert report.sessions["talk"].added == 0


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "openai-responses"])
def test_an_export_for_a_provider_imports_with_its_system_prompt(memory: Memory, format: str) -> None:
    """An export in a provider's format has the system prompt where its client wants it, and imports whole."""
    with Memory.open("memory://") as other:
        session = other.session("talk", format=format)
        session.add_system_message("Be brief.")
        session.add_user_message("hi")
        written = io.BytesIO()
        session.export_to(written, format=format)

    report = memory.import_file(io.BytesIO(written.getvalue()), session_id="talk")

    assert [(entry.role, entry.text) for entry in memory.session("talk").entries()] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]
    assert report.left_out == {}


def test_settings_beside_the_system_prompt_are_counted(memory: Memory) -> None:
    """Other settings in the `config` of a Gemini request are counted as left out."""
    config = {"system_instruction": "Be brief.", "temperature": 0.5, "tools": []}

    report = taken(memory, {"contents": gemini_contents()[:1], "config": config, "model": "m"})

    assert report.left_out == {"settings beside the messages, such as model and tools": 2}


def test_objects_name_their_sessions_and_settings_are_counted(memory: Memory) -> None:
    """`session_id` or `id` names the session and `title` its title; other keys are counted as left out."""
    one = {"session_id": "first", "title": "One", "messages": CHAT, "model": "gpt-4o", "tools": []}
    lines = b"\n".join(json.dumps(value).encode() for value in (one, {"id": "second", "messages": CHAT[:1]}))

    report = memory.import_file(io.BytesIO(lines))

    assert {name: (one.added, one.title) for name, one in report.sessions.items()} == {
        "first": (4, "One"),
        "second": (1, None),
    }
    assert report.left_out == {"settings beside the messages, such as model and tools": 2}


def test_exports_may_stand_among_messages(memory: Memory) -> None:
    """A line may hold an export of ours; a file of exports alone has the source `palimpsest`."""
    memory.session("exported").add(CHAT)
    export = memory.session("exported").export()
    lines = b"\n".join(json.dumps(value).encode() for value in (CHAT[0], export))
    with Memory.open("memory://") as other:
        mixed = other.import_file(io.BytesIO(lines), session_id="mixed")
        alone = other.import_file(io.BytesIO(json.dumps([export]).encode()))

        assert (mixed.source, alone.source) == ("messages", "palimpsest")
        assert (mixed.sessions["mixed"].added, alone.sessions["exported"].added) == (5, 4)
        assert other.session("exported").export()["entries"] == export["entries"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig"])
@pytest.mark.parametrize("shape", ["lines", "list"])
def test_a_file_is_decoded_as_its_first_bytes_say(memory: Memory, encoding: str, shape: str) -> None:
    """A file is decoded as its first bytes say, as lines or as one list.

    Windows shells write UTF-16 by default.
    """
    history = [{"role": "user", "content": f"Grüße {number} \N{GRINNING FACE}"} for number in range(3_000)]
    texts = [json.dumps(one, ensure_ascii=False) for one in history]
    body = "".join(f"{text}\n" for text in texts) if shape == "lines" else f"[{', '.join(texts)}]"

    report = memory.import_file(io.BytesIO(body.encode(encoding)), session_id="talk")

    assert report.refused == ()
    assert [entry.text for entry in memory.session("talk").entries()] == [one["content"] for one in history]


def test_lines_in_another_encoding_than_the_file_are_faults(memory: Memory) -> None:
    """A line in another encoding than the file is a fault: no encoding is guessed per line."""
    first, second = (json.dumps(one) for one in CHAT[:2])

    report = memory.import_file(io.BytesIO(f"{first}\n".encode() + second.encode("utf-16-be")), session_id="talk")

    assert [entry.text for entry in memory.session("talk").entries()] == [CHAT[0]["content"]]
    assert [one.place for one in report.refused] == ["2"]


def test_an_archive_may_hold_another_encoding(memory: Memory) -> None:
    """A file in an archive is decoded as it would be beside it."""
    body = json.dumps([simple("a").done()]).encode("utf-16")

    assert memory.import_file(io.BytesIO(archive(body))).sessions["a"].added == 4


def test_a_file_that_breaks_its_encoding_is_reported(memory: Memory) -> None:
    """What comes before bytes that break the file's encoding is imported, and the report names the encoding."""
    body = "".join(json.dumps(one) + "\n" for one in CHAT).encode("utf-16") + b"\x00\xd8\x41"

    report = memory.import_file(io.BytesIO(body), session_id="talk")

    assert len(memory.session("talk").entries()) == 4
    assert "is not valid UTF-16" in report.refused[0].reason


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b'{"a": 1, "b": 2}', "an object with 'a', 'b'"),
        (b"[1, 2]", "begins with 1"),
        (b"[[]]", "an empty list"),
        (b"hello there", "not valid JSON: Expecting value"),
        (b"", "is empty"),
        (b"[", "the file ends before the end of its list"),
        (b"\x89PNG\r\n\x1a\n rest", "not valid UTF-8"),
    ],
    ids=["object", "numbers", "lists", "text", "nothing", "cut", "binary"],
)
def test_an_unknown_file_is_refused_with_what_was_seen(memory: Memory, body: bytes, seen: str) -> None:
    """An unknown file is refused with what it begins with and the sources that can be named; nothing is stored."""
    with pytest.raises(ImportFailed) as failed:
        memory.import_file(io.BytesIO(body), session_id="talk")

    assert seen in str(failed.value)
    assert memory.sessions() == []


def test_a_file_of_two_sources_is_refused(memory: Memory) -> None:
    """A file that could be of two sources is refused, naming both."""
    with pytest.raises(ImportFailed, match=r"more than one source \(chatgpt: .*; messages: "):
        taken(memory, [{"mapping": {}, "title": "x"}, CHAT])


@pytest.mark.parametrize(
    "options",
    [{"source": "chatgtp"}, {"format": "opnai"}, {"session_id": "a\x07"}, {"session_id": ""}, {"key": ""}],
    ids=lambda options: next(iter(options)),
)
def test_invalid_options_are_refused_before_reading(memory: Memory, options: dict[str, Any]) -> None:
    """An invalid source, format, session id or key raises ConfigError before anything is read."""
    with pytest.raises(ConfigError):
        taken(memory, CHAT, **options)


def test_an_empty_list_imports_nothing(memory: Memory) -> None:
    """Importing an empty list is no failure."""
    report = taken(memory, [])

    assert (report.sessions, report.refused) == ({}, ())


def test_metadata_of_a_message_in_a_file_is_that_of_its_entries(memory: Memory) -> None:
    """As with `add`: contexts do not show it, and forgetting a user finds the user's id in it."""
    said = {"role": "user", "content": "What is there?", "metadata": {"user_id": "ann", "via": "mail"}}

    taken(memory, [said, {"role": "assistant", "content": "Bread.", "metadata": None}])

    session = memory.session("talk")
    assert [entry.metadata for entry in session.entries()] == [{"user_id": "ann", "via": "mail"}, None]
    assert "metadata" not in str(session.context().messages)
    assert memory.forget(user="ann").entries == 2
