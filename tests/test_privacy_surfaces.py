"""Every field of an entry is redacted; the entry is otherwise unchanged and still accepted by its provider."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from laws import examples
from palimpsest import Memory
from palimpsest.formats import FORMATS, find_format
from palimpsest.formats.anthropic import Anthropic
from palimpsest.log.entry import Audio, Entry, File, Image, Native, Opaque, Reasoning, Text, pack
from palimpsest.privacy.redaction import Redactor
from privacy_corpus import corpus
from redactors import CLEAN, MARKER, RED, TEXT, kept, marks

# --- surfaces

SIGNED = {"signature": "c2lnbmVk"}


def test_texts_and_every_kind_of_part_are_redacted() -> None:
    """Texts, reasoning, items, addresses, file names and extra fields of parts are redacted."""
    parts = (
        Text(text=TEXT, extra={"annotations": [{"title": TEXT}]}),
        Reasoning(text=TEXT),
        Opaque(item={"type": "news", "deep": [{"text": TEXT}]}),
        Image(source=f"https://example.com/{MARKER}.png"),
        File(data=f"plain {MARKER}", filename=f"{MARKER}.pdf"),
    )

    verdict = marks().entry(Entry(content=parts))

    assert kept(verdict).content == (
        Text(text=CLEAN, extra={"annotations": [{"title": CLEAN}]}),
        Reasoning(text=CLEAN),
        Opaque(item={"type": "news", "deep": [{"text": CLEAN}]}),
        Image(source=f"https://example.com/{RED}.png"),
        File(data=f"plain {RED}", filename=f"{RED}.pdf"),
    )
    assert [(one.kind, one.place, one.count) for one in verdict.findings] == [("redact_patterns[0]", "content", 7)]


def test_names_metadata_and_native_fields_are_redacted() -> None:
    """Name, metadata and the provider's kept fields are redacted, keys included; other fields stay."""
    entry = Entry(
        id="e1",
        kind="context",
        name=f"{MARKER}.py",
        metadata={MARKER: {"note": [TEXT, 1, None, True]}, "tags": ["a"]},
        native=Native(format="openai", keep={"audio": {"transcript": TEXT}}, absent=("content",)),
        importance=0.5,
        tokens=7,
    )

    found = kept(marks().entry(entry))

    assert found == msgspec.structs.replace(
        entry,
        name=f"{RED}.py",
        metadata={RED: {"note": [CLEAN, 1, None, True]}, "tags": ["a"]},
        native=Native(format="openai", keep={"audio": {"transcript": CLEAN}}, absent=("content",)),
        tokens=None,
    )


def test_an_entry_without_findings_is_returned_itself() -> None:
    """An entry without findings is returned itself, with its count."""
    entry = Entry(
        content=(Text(text="hello"),), tokens=3, metadata={"a": ["b"]}, native=Native(format="x", keep={"a": 1})
    )

    verdict = marks(recognisers="default").entry(entry)

    assert verdict.entry is entry
    assert verdict.findings == ()


def test_media_ids_types_and_tool_names_are_left_alone() -> None:
    """Base64 data, ids, types and tool names are not redacted."""
    blob = "MARKER1" * 20
    call = {
        "id": "call_MARKER1",
        "type": "function",
        "function": {"name": "MARKER2", "arguments": '{"a": "b"}'},
        "x": 1,
    }
    entries = [
        Entry(content=(Image(source=f"data:image/png;base64,{blob}"), Audio(data=blob, format="wav"))),
        Entry(content=(File(data=f"data:application/pdf;base64,{blob}"),)),
        Entry(content=(Opaque(item={"type": "MARKER9", "source": {"data": blob}}),)),
        Entry(
            kind="tool_call",
            role="assistant",
            content='{"a": "b"}',
            name="MARKER2",
            call_id="call_MARKER1",
            native=Native(format="openai", call=call),
        ),
    ]

    assert [verdict.entry for verdict in marks().entries(entries)] == entries


def test_a_data_address_without_base64_is_redacted_as_text() -> None:
    """A `data:` address without base64 is redacted as text."""
    found = kept(marks().entry(Entry(content=(Image(source=f"data:text/plain,{MARKER}"),))))

    assert found.content == (Image(source=f"data:text/plain,{RED}"),)


# --- JSON

ARGUMENTS = [
    (f'{{"q": "{MARKER}"}}', {"q": RED}),
    ('{"q": "\\u004dARKER42", "n": [1, 2.5, null]}', {"q": RED, "n": [1, 2.5, None]}),
    (f'{{"{MARKER}": 1, "MARKER7": 2}}', {RED: 1, f"{RED} 2": 2}),
    (f'{{"q": "{MARKER}", "q": "later"}}', {"q": "later"}),
    (f'"{MARKER}"', RED),
]


@pytest.mark.parametrize(("given", "expected"), ARGUMENTS)
def test_redacted_arguments_stay_valid_json(given: str, expected: Any) -> None:
    """Arguments are redacted in keys and values and stay valid JSON; escapes and repeated keys hide nothing."""
    content = kept(marks().entry(Entry(kind="tool_call", role="assistant", content=given))).content

    assert isinstance(content, str)
    assert json.loads(content) == expected
    assert "MARKER" not in content


@pytest.mark.parametrize("text", [f"{{not json {MARKER}", f'{{"a": NaN, "b": "{MARKER}"}}', "[" * 5_000 + MARKER])
def test_arguments_that_are_no_json_are_redacted_as_text(text: str) -> None:
    """Arguments that are no JSON are redacted as text."""
    content = kept(marks().entry(Entry(kind="tool_call", role="assistant", content=text))).content

    assert content == text.replace(MARKER, RED)


def test_private_numbers_in_json_are_redacted() -> None:
    """A private number in JSON is redacted, quoted or not; other numbers stay numbers."""
    redactor = Redactor({"recognisers": "default", "redact_patterns": [r"\b7777\b"]})
    entry = Entry(kind="tool_call", role="assistant", content='{"card": 4111111111111111, "n": 7, "pin": 7777}')

    assert kept(redactor.entry(entry)).content == f'{{"card": "{RED}", "n": 7, "pin": "{RED}"}}'


LABELLED: dict[str, Any] = {
    "phone": "2025550143",
    "contact": {"homePhone": 2025550144, "mobile": ["5550145", 5550146]},
    "fax_number": 5550147.0,
    "ssn": "123456789",
    "socialSecurityNumber": 123456780,
    "headers": {"Cookie": "sid=abc123"},
    "PIN": 4711,
}
"""Values that only their keys give away."""


@pytest.mark.parametrize("surface", ["call", "metadata", "keep", "result", "nested"])
def test_a_key_says_what_its_value_is_wherever_json_is(surface: str) -> None:
    """A key such as "phone" is a label like the word in a text: in arguments, metadata, provider items and results."""
    written = json.dumps(LABELLED)
    entry = {
        "call": Entry(kind="tool_call", role="assistant", content=written),
        "metadata": Entry(metadata=LABELLED),
        "keep": Entry(role="assistant", native=Native(format="openai", keep={"input": LABELLED})),
        "result": Entry(kind="tool_result", role="tool", content=written),
        "nested": Entry(kind="tool_result", role="tool", content=json.dumps({"text": written})),
    }[surface]

    found = pack(kept(Redactor("default").entry(entry))).decode()

    values = ("2025550143", "2025550144", "5550145", "5550147", "123456789", "123456780", "abc123", "4711")
    assert [value for value in values if value in found] == []


def test_a_key_does_not_make_its_value_private_that_has_another_form() -> None:
    """A label alone makes nothing private: its value must have the form, and the policy must look for it."""
    harmless = {"phone": "none", "call": "2026-11-30", "ssn": 12, "cookie": True, "cell": [1, None], "PIN": "x"}
    redactor = Redactor("default")

    assert kept(redactor.entry(Entry(metadata=harmless))).metadata == harmless
    assert kept(Redactor({"recognisers": "email"}).entry(Entry(metadata=LABELLED))).metadata == LABELLED


@pytest.mark.parametrize("wide", [False, True])
def test_a_json_result_with_private_numbers_stays_json(wide: bool) -> None:
    """A number of a JSON result becomes a JSON text where it is redacted, whole; a number in a text does not."""
    given = {"card": 4111111111111111, "at": [-7777, 4111111111111111.0, 5], "said": "1, 7777, 4111111111111111 ]"}
    redactor = Redactor({"recognisers": "default", "redact_patterns": [r"\b7777\b"]})
    text = json.dumps(given, indent=2 if wide else None)

    found = kept(redactor.entry(Entry(kind="tool_result", role="tool", content=text))).text

    assert json.loads(found) == {"card": RED, "at": [RED, RED, 5], "said": f"1, {RED}, {RED} ]"}
    assert redactor.text(found) == found


def test_a_number_outside_of_json_is_redacted_without_quotes() -> None:
    """In a text that only looks like JSON, nothing is put into quotes."""
    assert Redactor("default").text("[see 4111111111111111]") == f"[see {RED}]"


def test_json_results_are_checked_unescaped() -> None:
    """A JSON result is also checked unescaped."""
    entry = Entry(kind="tool_result", role="tool", content='{"mail": "bob\\u0040example.com"}')

    assert kept(Redactor({"recognisers": "email"}).entry(entry)).content == f'{{"mail": "{RED}"}}'


@pytest.mark.parametrize("cut", [0, 1])
def test_an_escape_before_a_value_in_json_does_not_hide_it(cut: int) -> None:
    r"""In JSON, whole or torn, an escape such as `\n` before a value does not hide it."""
    redactor = Redactor({"redact_patterns": [r"\b\d{3}-\d{2}-\d{4}\b"], "recognisers": "email"})
    text = '{"said": "to\\n123-45-6789\\nor\\tbob@example.com\\n"}'[: -cut or None]

    found = kept(redactor.entry(Entry(kind="tool_result", role="tool", content=text))).content

    assert found == '{"said": "to\\n[REDACTED]\\nor\\t[REDACTED]\\n"}'[: -cut or None]


def test_native_calls_are_redacted_and_lose_their_signature() -> None:
    """A native call is redacted like its entry and loses the signature that no longer fits."""
    arguments = json.dumps({"to": TEXT})
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "send", "arguments": arguments},
        "thought_signature": "eA",
    }
    entry = Entry(
        kind="tool_call",
        role="assistant",
        content=arguments,
        name="send",
        call_id="c1",
        native=Native(format="openai", call=call),
    )

    found = kept(marks().entry(entry))

    assert found.content == json.dumps({"to": CLEAN})
    assert found.native is not None
    assert found.native.call == {
        "id": "c1",
        "type": "function",
        "function": {"name": "send", "arguments": json.dumps({"to": CLEAN})},
    }


# --- keys that name a secret


def test_metadata_under_a_key_that_names_a_secret_is_masked() -> None:
    """Metadata under a key that names a secret is masked at any depth; counts of tokens stay."""
    metadata = {
        "apiKey": "x",
        "db": {"password": 12},
        "credential": {"a": ["b", None]},
        "token_count": 5,
        "tokens": "9",
    }

    found = kept(marks().entry(Entry(content="hi", metadata=metadata)))

    masked = {"apiKey": RED, "db": {"password": RED}, "credential": {"a": [RED, None]}, "token_count": 5, "tokens": "9"}
    assert found.metadata == masked
    assert kept(marks().entry(found)) == found


def test_a_pass_key_names_a_password_only_with_a_text_value() -> None:
    """A key "pass" names a password only if its value is a text, since test reports use it for counts."""
    metadata = {"auth": {"user": "me", "pass": "hunter2x"}, "PGPASSWORD": "abc", "tests": {"pass": 12, "all": ["x"]}}
    masked = {"auth": {"user": "me", "pass": RED}, "PGPASSWORD": RED, "tests": {"pass": 12, "all": ["x"]}}

    assert kept(marks().entry(Entry(content="x", metadata=metadata))).metadata == masked
    assert Redactor({}).fields({"pass": ["test_a"]}) == {"pass": ["test_a"]}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "password": {"type": ["string", "null"], "minLength": 8, "format": "password"},
        "token": {"anyOf": [{"type": "string", "maxLength": 99}, {"type": "null"}]},
        "secret": {"$ref": "#/$defs/Secret"},
        "api_key": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "credential": {"type": "object", "properties": {"part": {"type": "integer"}}, "required": ["part"]},
    },
    "required": ["user", "password"],
}
"""The arguments of a tool, as a server of tools lists them."""


@pytest.mark.parametrize("surface", ["item", "metadata", "call"])
def test_a_schema_of_a_secret_stays_a_schema(surface: str) -> None:
    """The schema of an argument whose name is that of a secret stays as it is: it says what is allowed, not what is."""
    item = {"type": "mcp_list_tools", "tools": [{"name": "log_in", "input_schema": SCHEMA}]}
    entry = {
        "item": Entry(content=(Opaque(item=item),)),
        "metadata": Entry(metadata={"tool": SCHEMA}),
        "call": Entry(kind="tool_call", role="assistant", content=json.dumps(SCHEMA)),
    }[surface]

    assert kept(Redactor("default").entry(entry)) == entry


def test_what_a_schema_says_of_a_secret_is_redacted() -> None:
    """Values in a schema are redacted behind the name of a secret, and so is what only looks like a schema."""
    secrets = {
        "password": {"type": "string", "default": "hunter2", "enum": ["hunter2"], "value": "hunter2"},
        "token": {"type": "hunter2", "format": "hunter2", "$ref": "hunter2", "anyOf": ["hunter2"]},
        "secret": {
            "type": "object",
            "required": ["hunter2"],
            "properties": {"a": {"const": "hunter2"}, "b": "hunter2"},
        },
        "pwd": {"type": "string", "minLength": "hunter2", "x": 1234},
    }

    found = kept(Redactor("default").entry(Entry(metadata={"of": secrets})))

    assert "hunter2" not in pack(found).decode()
    assert "1234" not in pack(found).decode()


def test_arguments_under_secret_keys_are_masked_with_the_credentials_recogniser() -> None:
    """With the recogniser of credentials, arguments under such keys are masked; without it they stay."""
    entry = Entry(kind="tool_call", role="assistant", content='{"password": "a b", "user": "ann"}')

    assert (
        kept(Redactor({"recognisers": "credential"}).entry(entry)).content == f'{{"password": "{RED}", "user": "ann"}}'
    )
    assert marks().entry(entry).entry is entry


def test_tokens_that_are_no_credentials_stay_except_in_logs() -> None:
    """The place in a list, the number of tokens and a model's marks stay; a log line has no "token" at all."""
    given = {"nextPageToken": "CAUQAA", "token_count": "12345", "eos_token": "</s>", "tokenType": "Bearer"}
    redactor = Redactor("default")
    call = Entry(kind="tool_call", role="assistant", content=json.dumps(given), metadata=given)

    assert kept(redactor.entry(call)) == call
    assert kept(redactor.entry(Entry(kind="tool_result", role="tool", content=json.dumps(given)))).text == json.dumps(
        given
    )
    assert redactor.fields(given) == dict.fromkeys(given, RED)


def test_log_fields_are_masked_under_any_policy() -> None:
    """Fields of log lines and events are masked by key under any policy, and redacted by the policy."""
    fields = {"Authorization": "Bearer x", "token": "abc", "tokens": 7, "said": [TEXT], "n": 1}

    assert marks().fields(fields) == {"Authorization": RED, "token": RED, "tokens": 7, "said": [CLEAN], "n": 1}
    assert Redactor(None).fields({"secret": "x", "said": TEXT}) == {"secret": RED, "said": TEXT}


# --- what providers have signed


def test_a_finding_in_signed_reasoning_drops_all_signed_blocks_of_the_message() -> None:
    """If a signed thinking block must be redacted, all signed blocks of the message go; Anthropic takes all or none."""
    blocks = [
        {"type": "thinking", "thinking": "first", **SIGNED},
        {"type": "thinking", "thinking": TEXT, **SIGNED},
        {"type": "text", "text": "said"},
        {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "x"}},
        {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
    ]
    entries = find_format("anthropic").decode([{"role": "assistant", "content": blocks}], "messages")

    verdicts = marks().entries(entries)

    first, call, last = (kept(verdict) for verdict in verdicts)
    assert first.content == (Text(text="said"),)
    assert call == entries[1]
    assert last.content == (Reasoning(text=""),)
    assert ("signed_reasoning", "content", 1) in [(one.kind, one.place, one.count) for one in verdicts[0].findings]


@pytest.mark.parametrize("together", [True, False])
def test_a_registered_format_decides_whether_signed_reasoning_is_dropped_together(together: bool) -> None:
    """A registered format decides whether signed reasoning is dropped together or block by block."""
    name = f"signs together {together}"
    FORMATS.register(name, type("Mine", (Anthropic,), {"name": name, "signs_together": together}))
    call = {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "x"}}
    first, other = ({"type": "thinking", "thinking": text, **SIGNED} for text in ("first", TEXT))
    blocks = [first, call, other]
    decoded = find_format("anthropic").decode([{"role": "assistant", "content": blocks}], "messages")
    entries = [replace(entry, native=Native(format=name)) for entry in decoded]

    found = [kept(verdict) for verdict in marks().entries(entries)]

    assert [entry.text for entry in found if entry.is_reasoning] == ["" if together else "first", ""]


def test_a_dropped_encrypted_reasoning_item_leaves_an_empty_one() -> None:
    """A dropped reasoning item leaves an empty one, so that later items are sent without ids that depend on it."""
    items = [
        {"role": "user", "content": "hello"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "encrypted_content": "abc",
            "summary": [{"type": "summary_text", "text": "fine"}, {"type": "summary_text", "text": TEXT}],
        },
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
    ]
    entries = find_format("openai-responses").decode(items, "items")

    found = [kept(verdict) for verdict in marks().entries(entries)]

    assert found[1].content == (Reasoning(text=""),)
    assert found[1].native == Native(format="openai-responses", keep={"type": "reasoning"})
    assert found[2].continues
    assert b"abc" not in pack(found[1])


def test_unsigned_reasoning_is_redacted_like_text() -> None:
    """Unsigned reasoning is redacted like text."""
    found = kept(marks().entry(Entry(role="assistant", content=(Reasoning(text=TEXT),))))

    assert found.content == (Reasoning(text=CLEAN),)


def test_redacted_signed_text_loses_its_signature() -> None:
    """A redacted text loses the signature that no longer fits."""
    part = {"text": TEXT, "thought_signature": "c2ln"}
    (entry,) = find_format("gemini").decode([{"role": "model", "parts": [part]}], "contents")

    assert kept(marks().entry(entry)).content == (Text(text=CLEAN),)


def context_of(format: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the context of a log to which redacted messages were added; raises if it is invalid."""
    with Memory.open("memory://", privacy=marks()) as memory:
        session = memory.session("s", format=format, max_tokens=8_000)
        session.add(messages)
        return list(session.context().messages)


def test_items_behind_a_dropped_reasoning_item_are_sent_without_ids() -> None:
    """Items behind a dropped reasoning item are sent without ids, those behind other reasoning with ids."""
    sent = context_of(
        "openai-responses",
        [
            {"role": "user", "content": "hi"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "encrypted_content": "a",
                "summary": [{"type": "summary_text", "text": TEXT}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": TEXT},
            {"type": "reasoning", "id": "rs_2", "encrypted_content": "b", "summary": []},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "done"}],
            },
        ],
    )

    assert [item.get("id") for item in sent] == [None, None, None, "rs_2", "msg_1"]
    assert "MARKER" not in json.dumps(sent)


def test_an_encrypted_compaction_with_a_finding_is_dropped() -> None:
    """An encrypted compaction item with a finding is dropped, since only the provider could change it."""
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": MARKER}

    sent = context_of("openai-responses", [{"role": "user", "content": "hi"}, compaction])

    assert sent == [{"role": "user", "content": "hi"}]


def test_anthropic_gets_a_redacted_message_without_its_thoughts() -> None:
    """Anthropic is sent the message without its thoughts but with its call, and another message's signed thought."""
    sent = context_of(
        "anthropic",
        [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": TEXT, **SIGNED},
                    {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": MARKER}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": TEXT}]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "ok", **SIGNED}, {"type": "text", "text": "done"}],
            },
        ],
    )

    assert sent[1]["content"] == [{"type": "tool_use", "id": "t1", "name": "find", "input": {"q": RED}}]
    assert [block["type"] for block in sent[3]["content"]] == ["thinking", "text"]
    assert "MARKER" not in json.dumps(sent)


def test_gemini_gets_a_redacted_call_with_the_marker_for_unsigned_calls() -> None:
    """A redacted call is sent to Gemini with the marker for calls without a signature."""
    call = {"function_call": {"name": "find", "args": {"q": MARKER}}, "thought_signature": "c2ln"}

    sent = context_of(
        "gemini",
        [
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [{"text": TEXT, "thought": True, "thought_signature": "c2ln"}, call]},
            {"role": "user", "parts": [{"function_response": {"name": "find", "response": {"result": TEXT}}}]},
        ],
    )

    (part,) = sent[1]["parts"]
    assert part["function_call"]["args"] == {"q": RED}
    assert part["thought_signature"] not in ("", "c2ln")
    assert "MARKER" not in json.dumps(sent)


# --- nothing private in any byte


@pytest.mark.parametrize("surface", ["content", "part", "arguments", "result", "metadata", "keep", "item", "name"])
def test_no_byte_of_a_stored_entry_holds_a_corpus_value(surface: str) -> None:
    """No byte of a stored entry holds a value of the corpus, on whatever surface it was."""
    redactor = Redactor({"recognisers": "default"})
    for sample in corpus(seed=3, each=6):
        if sample.hard or not sample.spans:
            continue
        start, end, kind = sample.spans[0]
        secret = sample.text[start:end]

        found = pack(kept(redactor.entry(_on(surface, sample.text)))).decode()

        assert secret not in found, (kind, sample.text)
        assert json.dumps(secret)[1:-1] not in found


def _on(surface: str, text: str) -> Entry:
    if surface == "arguments":
        return Entry(kind="tool_call", role="assistant", content=json.dumps({"a": [{"b": text}]}))
    if surface == "result":
        return Entry(kind="tool_result", role="tool", content=json.dumps({"rows": [text]}, ensure_ascii=False))
    if surface in ("part", "item"):
        return Entry(content=(Text(text=text),) if surface == "part" else (Opaque(item={"type": "x", "t": [text]}),))
    if surface == "metadata":
        return Entry(metadata={"note": {"deep": [text]}})
    if surface == "keep":
        return Entry(role="assistant", native=Native(format="openai", keep={"refusal": text}))
    return Entry(name=text) if surface == "name" else Entry(content=text)


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.text(max_size=5), st.just(TEXT)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=4), st.just(MARKER)), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(_JSON, st.booleans())
def test_redacted_json_stays_json_and_keeps_other_values(value: Any, ascii_only: bool) -> None:
    """Arguments, metadata and native payloads of any shape stay JSON, with only private values replaced."""
    text = json.dumps(value, ensure_ascii=ascii_only)
    native = Native(format="x", keep={"k": value})
    entry = Entry(kind="tool_call", role="assistant", content=text, metadata={"m": value}, native=native)

    found = kept(marks().entry(entry))

    assert "MARKER" not in pack(found).decode()
    assert isinstance(found.content, str)
    expected = json.loads(text.replace(MARKER, RED))
    assert json.loads(found.content) == expected
    assert found.metadata == {"m": expected}


# --- what only looks like media, or hides in escapes


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (f"data:text/plain,{MARKER}", f"data:text/plain,{RED}"),
        (f"data:image/png;name={MARKER};base64,QUJD", f"data:image/png;name={RED};base64,QUJD"),
        (f"data:image/png;base64,no base64: {MARKER}", f"data:image/png;base64,no base64: {RED}"),
        ("data:image/png;base64,QUJD", "data:image/png;base64,QUJD"),
    ],
)
def test_only_base64_data_is_left_unchecked(given: str, left: str) -> None:
    """Only base64 data is left unchecked; the header of a `data:` address is redacted."""
    parts = (Image(source=given), File(data=given), Opaque(item={"url": given}))

    image, file, item = kept(marks().entry(Entry(content=parts))).content

    assert (image, file, item) == (Image(source=left), File(data=left), Opaque(item={"url": left}))


def test_one_word_fields_are_redacted_too() -> None:
    """Fields for a word, such as detail, format or file id, are redacted as well."""
    parts = (
        Image(source="x", detail=TEXT),
        Audio(data=TEXT, format=TEXT),
        File(file_id=f"https://example.com/{MARKER}"),
        File(file_id=f"file-{MARKER}"),
        Opaque(item={"type": TEXT}),
    )
    entry = Entry(content=parts, native=Native(format=TEXT, absent=(TEXT,)))

    found = kept(marks().entry(entry))

    assert found.content == (
        Image(source="x", detail=CLEAN),
        Audio(data=CLEAN, format=CLEAN),
        File(file_id=f"https://example.com/{RED}"),
        File(file_id=f"file-{MARKER}"),  # an id that the provider gave
        Opaque(item={"type": CLEAN}),
    )
    assert found.native == Native(format=CLEAN, absent=(CLEAN,))


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("shape", ['{{"a": "{}"}}', '{{"a": "{}', '\ufeff{{"a": "{}"}}', "as in {} here"])
def test_escapes_hide_no_value_in_json(shape: str, depth: int) -> None:
    """Escapes hide nothing in whole, cut-off or quoted JSON, nor in JSON inside strings of JSON."""
    text = shape.format("".join(f"\\u{ord(one):04x}" for one in MARKER))
    for _ in range(depth):
        text = json.dumps({"in": text})

    for entry in (Entry(content=text), Entry(kind="tool_call", name="f", call_id="c", content=text)):
        cleaned = kept(marks().entry(entry)).text
        assert "REDACTED" in cleaned
        assert "\\u004d" not in cleaned
        assert kept(marks().entry(Entry(content=cleaned))).text == cleaned


def test_texts_without_findings_keep_their_escapes() -> None:
    """A text without findings keeps its escapes."""
    text = 'as in "caf\\u00e9" and \\ud83d\\ude00'

    assert kept(marks().entry(Entry(content=text))).text == text


SLASHES = "https:\\/\\/bob:hunter22@db\\/x"
CARD = "4111111111111111"


@pytest.mark.parametrize("text", [f'{{"at": "{SLASHES}"}}', f'as in {{"at": "{SLASHES}"}}', SLASHES])
def test_escaped_slashes_hide_no_password(text: str) -> None:
    """Escaped slashes of JSON do not hide a password."""
    cleaned = Redactor({"recognisers": "default"}).entry(Entry(kind="tool_result", role="tool", content=text))

    assert "hunter22" not in kept(cleaned).text


@pytest.mark.parametrize("written", [f"{CARD}.0", "4.111111111111111e15"])
def test_a_card_number_stored_as_a_float_is_redacted(written: str) -> None:
    """A card number stored as a float is redacted; other floats stay."""
    redactor = Redactor({"recognisers": "default"})
    made = kept(redactor.entry(Entry(content="x", metadata={"card": float(written), "other": 1234567.0, "part": 0.5})))
    called = kept(redactor.entry(Entry(kind="tool_call", name="f", call_id="c", content=f'{{"card": {written}}}')))

    assert made.metadata == {"card": RED, "other": 1234567.0, "part": 0.5}
    assert called.text == f'{{"card": "{RED}"}}'
    assert kept(redactor.entry(Entry(content=f"7,{CARD}.0\n"))).text.startswith("7,[")


def test_a_secret_in_a_media_field_is_found() -> None:
    """A short key in a field for media is found; real media are not checked."""
    key, media = "sk-proj-" + "aB3_x9-Zq" * 12, "aB3_x9-Zq" * 100
    parts = (File(data=key), Image(source=key), Audio(data=key, format="wav"), Opaque(item={"type": "x", "data": key}))
    redactor = Redactor({"recognisers": "default"})

    assert key not in repr(kept(redactor.entry(Entry(content=parts))))
    assert kept(redactor.entry(Entry(content=(File(data=media),)))).content == (File(data=media),)
