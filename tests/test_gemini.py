"""The format `gemini`: every context is one that Google's API and client accept.

`test_formats` has the shared rules.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules_gemini as rules
import strategies
import strategies_gemini
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import BudgetImpossible, InvalidEntry
from palimpsest.formats import find_format
from palimpsest.formats.gemini import UNSIGNED, UNSIGNED_TOKENS
from palimpsest.formats.wording import FENCE_TOKENS, OPENING, OPENING_TOKENS, said_by_system
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Reasoning, Text
from palimpsest.tokens.counter import encoding
from rules import plain
from samples_gemini import call, model, result, user
from worlds import open_world

FORMAT = find_format("gemini")
law = settings(deadline=None, max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])


def stored(contents: list[dict[str, Any]], **options: Any) -> list[Entry]:
    """Return the entries of these contents as a session gives them back."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini", **options)
        strategies.taken_in(session, contents, "gemini")
        return list(session.entries())


def shown(contents: Sequence[dict[str, Any]], form: str = "gemini", **request: Any) -> Context:
    """Return the context of a session of these messages, given in the format `form`."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini", counter=strategies.WORDS)
        strategies.taken_in(session, list(contents), form)
        return session.context(**request)


def judged(ctx: Context) -> list[str]:
    """Return all faults of a context, by our rules of the API and by Google's client."""
    return [*rules.faults(ctx.messages), *rules.sdk_faults(ctx.request())]


def test_bytes_are_refused_with_advice() -> None:
    """A dump with bytes is refused with the advice to dump for JSON, which is accepted."""
    signed = types.Part(function_call=types.FunctionCall(name="f"), thought_signature=b"\xff\xfe")
    image = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\xff"))
    content = types.Content(role="model", parts=[signed, image])

    for parts, where in (([signed], "[0].thought_signature"), ([image], "[0].inline_data.data")):
        dump = types.Content(role="model", parts=parts).model_dump(exclude_none=True)
        with pytest.raises(InvalidEntry, match=r"model_dump\(mode='json'\)") as refusal:
            FORMAT.decode([dump], "messages")
        assert refusal.value.where == f"messages[0].parts{where}"

    for by_alias in (False, True):
        dump = content.model_dump(mode="json", by_alias=by_alias)
        assert FORMAT.encode(FORMAT.decode([dump], "messages")) == [dump]


def test_a_response_with_the_role_tool_is_sent_as_the_users() -> None:
    """A function response with the role `tool`, as Google's guide writes it, is sent as the user's."""
    response = types.Part.from_function_response(name="find", response={"result": "12"})
    answer = types.Content(role="tool", parts=[response])

    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini", max_tokens=4_000)
        session.add([user("Which gate?"), model(call("find")), answer])
        ctx = session.context()

    assert [content["role"] for content in ctx.messages] == ["user", "model", "user"]
    assert ctx.messages[2]["parts"][0]["function_response"]["response"] == {"result": "12"}
    assert judged(ctx) == []


class Stable:
    """Checks that, within an epoch, each context of a session only adds blocks to the one before."""

    def __init__(self) -> None:
        self.seen: dict[int, list[bytes]] = {}

    def holds(self, ctx: Context) -> bool:
        blocks = rules.blocks(ctx.messages)
        if ctx.epoch is None:
            return True
        before = self.seen.get(ctx.epoch, [])
        self.seen[ctx.epoch] = blocks
        return blocks[: len(before)] == before


@law
@given(given_batches=st.lists(strategies_gemini.batches(), max_size=6), budget=st.none() | st.integers(5, 200))
def test_contexts_of_contents_are_valid_stable_and_fit(
    given_batches: list[list[dict[str, Any]]], budget: int | None
) -> None:
    """After every batch of contents the context is valid, extends the last one, and fits the budget."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini", max_tokens=budget, counter=strategies.WORDS)
        stable = Stable()
        for batch in given_batches:
            strategies.taken_in(session, batch)
            try:
                ctx = session.context(system="be kind")
            except BudgetImpossible:
                continue
            assert judged(ctx) == []
            assert stable.holds(ctx)
            assert budget is None or ctx.tokens <= budget


@law
@given(
    log=strategies.logs(),
    budget=st.none() | st.integers(20, 300),
    tools=st.sampled_from([(), ({"google_search": {}},)]),
)
def test_a_log_of_another_provider_gives_valid_contexts(
    log: list[Any], budget: int | None, tools: tuple[dict[str, Any], ...]
) -> None:
    """A log in another format gives contexts that are valid, extend the last one, and fit the budget."""
    with open_world("memory", Path(), max_tokens=budget) as world:
        stable = Stable()
        for operation in log:
            session = world.play([operation])
            try:
                ctx = session.context(format="gemini", tools=tools)
            except BudgetImpossible:
                continue
            assert judged(ctx) == []
            assert stable.holds(ctx)
            assert budget is None or ctx.tokens <= budget
            if budget is None:
                said = plain("\n".join(rules.texts(ctx.request())))
                human = [entry for entry in session.entries() if entry.is_human and entry.text.startswith("human")]
                assert all(plain(line) in said for entry in human for line in entry.text.split("\n"))


@settings(law, max_examples=examples(40))
@given(
    log=strategies.logs(),
    given_batches=st.lists(strategies_gemini.batches(), max_size=3),
    budget=st.none() | st.integers(60, 2500),
)
def test_the_budget_covers_every_text_by_the_real_encoding(
    log: list[Any], given_batches: list[list[dict[str, Any]]], budget: int | None
) -> None:
    """Counted by o200k_base, all texts of a request cost at most `ctx.tokens`."""
    with open_world("memory", Path(), max_tokens=budget, counter=None) as world:
        session = world.play(log)
        for batch in given_batches:
            strategies.taken_in(session, batch, "gemini")
        try:
            ctx = session.context(format="gemini", system="be kind")
        except BudgetImpossible:
            return

        said = sum(map(encoding("o200k_base").count, rules.texts(ctx.request())))

        assert said <= ctx.tokens
        assert budget is None or ctx.tokens <= budget


MANY: dict[str, Any] = {
    "system": lambda session, i: session.add_system_message("<system_message>" * 3),
    "items": lambda session, i: session.add([user({"hologram": {"a": 1}})]),
    "thoughts": lambda session, i: session.add_assistant_message((Reasoning(text="1"), Text(text="2"))),
    "calls": lambda session, i: (
        session.add_tool_call("find", {"a": i}, call_id=f"c{i}"),
        session.add_tool_result(None, "1", call_id=f"c{i}"),
    ),
    "calls to be repaired": lambda session, i: (
        session.add_tool_call("x1 y2 " * 9, '"\n"' * 9, call_id=f"c{i}"),
        session.add_tool_result(None, "1", call_id=f"c{i}"),
    ),
    "calls without result": lambda session, i: (
        session.add_tool_call("find", {}, call_id=f"c{i}"),
        session.add_user_message("1"),
    ),
    "calls of Gemini": lambda session, i: session.add([model(call(args={"a": i})), user(result(text="1"))]),
}


@pytest.mark.parametrize("add", MANY.values(), ids=MANY)
def test_repeated_additions_are_counted(add: Any) -> None:
    """What the format adds per item, such as names, keys and fences, is counted, however many items there are."""
    count = encoding("o200k_base").count
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add_user_message("hi")
        for i in range(40):
            add(session, i)

        ctx = session.context()

        parts = [part for content in ctx.messages for part in content["parts"]]
        bodies = [part for part in parts if "text" not in part]
        written = [json.dumps(body, ensure_ascii=False, separators=(",", ":")) for body in bodies]
        assert sum(map(count, written)) + sum(count(part["text"]) for part in parts if "text" in part) <= ctx.tokens
        assert sum(map(count, rules.texts(ctx.request()))) <= ctx.tokens
        assert judged(ctx) == []


# --- each rule by example


def test_neighbours_of_one_role_are_one_content() -> None:
    """Adjacent entries of one role become the parts of one content."""
    ctx = shown([user("a"), user("b"), model("c"), model("d"), user("e")])

    assert ctx.messages == [user("a", "b"), model("c", "d"), user("e")]


def test_a_context_that_begins_with_the_model_is_opened_by_the_user() -> None:
    """A context that would begin with the model gets a short content of the user first."""
    assert shown([model("hello"), user("hi")]).messages == [user(OPENING), model("hello"), user("hi")]


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_our_own_texts_cost_their_stated_tokens(name: str) -> None:
    """Texts that are added without being counted cost no more than their stated tokens."""
    count = encoding(name).count

    assert count(OPENING) == OPENING_TOKENS
    assert count(UNSIGNED) in (UNSIGNED_TOKENS, UNSIGNED_TOKENS + 1)
    assert count(said_by_system("")) <= FENCE_TOKENS


def test_results_answer_in_the_order_of_their_calls() -> None:
    """Results of parallel calls come in the order of the calls, with their names and ids, before other parts."""
    contents = [
        user("go"),
        model(
            "wait", {**call("a", id="1"), "thought_signature": "QQ=="}, call("b", id="2"), call("a", id="3"), call("c")
        ),
        user(
            "meanwhile",
            *(result("c", "C"), result("b", "B", id="2"), result("a", "A2", id="3"), result("a", "A1", id="1")),
        ),
    ]

    ctx = shown(contents)

    assert ctx.messages[1] == contents[1]
    assert ctx.messages[2] == user(
        *(result("a", "A1", id="1"), result("b", "B", id="2"), result("a", "A2", id="3"), result("c", "C")),
        "meanwhile",
    )
    assert judged(ctx) == []


def test_signatures_stay_with_their_parts() -> None:
    """Thoughts and signatures are sent back unchanged with their parts, and none is added."""
    contents = [
        user("go"),
        model({"text": "hm", "thought": True}, {**call("a"), "thought_signature": "QQ=="}, call("b")),
        user(result("a"), result("b")),
        model({"text": "done", "thoughtSignature": "Qg=="}),
    ]

    ctx = shown(contents)

    assert ctx.messages == contents
    assert ctx.report.adapted == ()


@pytest.mark.parametrize("thought", [{}, {"thought": True}])
def test_a_signature_on_an_empty_text_is_sent(thought: dict[str, bool]) -> None:
    """A signature on an empty text, with which a stream may end, is sent back as it came."""
    signed = {"text": "", **thought, "thoughtSignature": "QQ=="}
    asked = model({**call(), "thought_signature": "Qg=="}, signed)
    contents = [user("hi"), model("hello", signed), user("again"), asked, user(result())]

    ctx = shown(contents)

    assert ctx.messages == contents
    assert judged(ctx) == []


def test_the_first_call_of_a_step_without_signature_is_marked() -> None:
    """The first call of a step gets a stand-in signature if it has none: Gemini 3 refuses it otherwise.

    Older Gemini models sign none, and a signed call may be erased.
    """
    signed = {**call("b"), "thought_signature": "QQ=="}
    contents = [
        *(user("go"), model(call("a"), call("b")), user(result("a"), result("b"))),
        *(user("on"), model(signed, call("c"), call("d")), user(result("b"), result("c"), result("d"))),
    ]
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add(contents)
        session.erase([entry.id for entry in session.entries() if entry.native and entry.native.call])

        ctx = session.context()

    assert ctx.messages == [
        *(user("go"), model({**call("a"), "thought_signature": UNSIGNED}, call("b"))),
        *(user(result("a"), result("b"), "on"), model({**call("c"), "thought_signature": UNSIGNED}, call("d"))),
        user(result("c"), result("d")),
    ]
    assert judged(ctx) == []


def test_the_stand_in_signature_is_counted() -> None:
    """The stand-in signature is counted; a signature by Gemini costs none of that."""
    unsigned, signed = FORMAT.decode([model(call("a"), {**call("a"), "thought_signature": "QQ=="})])

    assert FORMAT.overhead(unsigned) == FORMAT.overhead(signed) + UNSIGNED_TOKENS


def test_the_first_call_of_another_model_is_marked() -> None:
    """Of calls by another model, only the first of a group gets the documented stand-in signature."""
    tool_call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n":1}'}}
    calls = [tool_call, {**tool_call, "id": "c2"}]
    chat = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "wait", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ]

    ctx = shown(chat, "openai")

    assert ctx.messages == [
        user("go"),
        model("wait", {**call(id="c1", args={"n": 1}), "thought_signature": UNSIGNED}, call(id="c2", args={"n": 1})),
        user(result(text="one", id="c1"), result(text="two", id="c2")),
    ]
    sent = types.Content.model_validate(ctx.messages[1]).parts or []
    assert sent[1].thought_signature == b"skip_thought_signature_validator"


def test_a_clamped_call_loses_its_signature() -> None:
    """A call with shortened arguments loses its signature, which was made for the original ones."""
    big = {**call(id="c1", args={"text": "word " * 400}), "thought_signature": "QQ=="}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini", max_tokens=60, counter=strategies.WORDS)
        session.add([user("go"), model(big), user(result(id="c1"))])

        ctx = session.context()

    asked = ctx.messages[1]["parts"][0]
    assert ctx.report.clamped == (2,)
    assert asked["function_call"]["args"].keys() == {"shortened"}
    assert asked["thought_signature"] == UNSIGNED
    assert judged(ctx) == []


def test_arguments_that_are_no_object_are_wrapped() -> None:
    """Arguments that are not a JSON object are wrapped in one, and the report says so."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        for i, arguments in enumerate(['{"a":1}', "[1]", "{broken", "", '{"n": NaN}', "1e999", '"\\ud800"']):
            session.add_user_message("go")
            session.add_tool_call("find", arguments, call_id=f"c{i}")
            session.add_tool_result(None, "ok", call_id=f"c{i}")

        ctx = session.context()

    args = [
        part["function_call"]["args"]
        for content in ctx.messages
        for part in content["parts"]
        if "function_call" in part
    ]
    assert args == [
        {"a": 1},
        {"arguments": [1]},
        {"arguments": "{broken"},
        {},
        {"arguments": '{"n": NaN}'},
        {"arguments": "1e999"},
        {"arguments": "\ufffd"},
    ]
    assert [note.what for note in ctx.report.adapted].count("arguments wrapped in an object") == 5
    assert judged(ctx) == []


@pytest.mark.parametrize(
    ("name", "shown_as"),
    [
        ("find", "find"),
        ("a.b:c-d", "a.b:c-d"),
        ("", "unknown"),
        ("9x", "_9x_"),
        ("é a", "___a_"),
        ("x" * 80, "x" * 55 + "_"),
    ],
)
def test_names_that_gemini_refuses_are_rewritten(name: str, shown_as: str) -> None:
    """A name that Gemini refuses is rewritten alike in call and result, and the report says so."""
    ctx = shown([user("go"), model(call(name)), user(result(name))])

    called = ctx.messages[1]["parts"][0]["function_call"]["name"]
    assert re.fullmatch(re.escape(shown_as) + ("[0-9a-f]{8}" if shown_as.endswith("_") else ""), called)
    assert ctx.messages[2]["parts"][0]["function_response"]["name"] == called
    assert bool(ctx.report.adapted) == (name != called)


def test_repeated_ids_of_one_group_are_renamed() -> None:
    """Calls of one group with the same id get different ids, and so do their results."""
    ctx = shown(
        [user("go"), model(call(id="c"), call(id="c")), user(result(id="c", text="1"), result(id="c", text="2"))]
    )

    ids = [part["function_call"]["id"] for part in ctx.messages[1]["parts"]]
    assert len(set(ids)) == 2
    assert [part["function_response"]["id"] for part in ctx.messages[2]["parts"]] == ids


def test_a_call_without_result_gets_a_stand_in() -> None:
    """A call that a message has overtaken gets a stand-in result; its late result is shown as data."""
    ctx = shown([user("go"), model(call()), user("are you there?"), user(result(text="late"))])

    answer, question, late = ctx.messages[2]["parts"]
    assert answer == result(text="[no result was recorded]")
    assert question == {"text": "are you there?"}
    assert "late_result" in late["text"]
    assert ctx.report.repaired


def test_the_key_of_a_result_says_whether_it_failed() -> None:
    """A failed result is sent under `error`, others under `result`; results in Gemini's own shape keep it."""
    gemini_results = [
        result(response=response) for response in ({"output": "a"}, {"error": {"code": 5}}, {"rows": [1]})
    ]
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add([user("go"), model(*(call() for _ in gemini_results)), user(*gemini_results)])
        session.add_user_message("again")
        for status in ("error", "success"):
            session.add_tool_call("find", {}, call_id=status)
        for status in ("error", "success"):
            session.add_tool_result(None, "so", call_id=status, status=status)
        entries = session.entries()

        ctx = session.context()

    assert [entry.status for entry in entries if entry.kind == "tool_result"][:3] == [None, "error", None]
    assert [entry.text for entry in entries if entry.kind == "tool_result"][:3] == ["a", '{"code":5}', '{"rows":[1]}']
    assert ctx.messages[2]["parts"][:3] == gemini_results
    said = [part["function_response"]["response"] for part in ctx.messages[4]["parts"]]
    assert said == [{"error": "so"}, {"result": "so"}]


def test_a_failed_result_stays_failed_beside_metadata_and_statuses() -> None:
    """A result that Gemini flagged as failed stays so, unless the caller gives it another status."""
    failed = user(result(response={"error": "a"}, id="1"), result(response={"error": "b"}, id="2"))
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        added = session.add([model(call(id="1"), call(id="2")), failed], metadata={"x": 1}, statuses={"2": "denied"})

    assert [entry.status for entry in added] == [None, None, "error", "denied"]


def test_a_masked_result_is_sent_under_result() -> None:
    """The note that replaces an old result is sent under `result`, whatever the result's shape was."""
    rows = result(response={"rows": ["word"] * 500})
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini", max_tokens=400, counter=encoding("o200k_base"))
        session.add([user("go"), model(call()), user(rows), model("there"), user("and now?"), model("so")])

        ctx = session.context()

    assert ctx.report.masked == (3,)
    assert ctx.messages[2]["parts"][0] == result(text="[old result left out: entry 3]")


def test_leading_system_messages_are_system_text() -> None:
    """Leading system messages follow the caller's text in `system_instruction`; later ones are fenced user text."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add_system_message("first")
        before = session.context(system="be kind")
        session.add_user_message("hi")
        session.add_system_message("then")
        session.add_assistant_message("so")

        ctx = session.context(system="be kind")

    assert before.request() == {"contents": [], "config": {"system_instruction": "be kind\n\nfirst"}}
    assert ctx.request()["config"] == {"system_instruction": "be kind\n\nfirst"}
    assert ctx.messages == [user("hi", said_by_system("then")), model("so")]
    assert [(note.seq, note.what) for note in ctx.report.adapted] == [(3, "system message said by the user")]


def test_a_request_has_the_shape_of_the_client() -> None:
    """A request has `contents`, and a `config` only if it has something to say; there are no cache marks."""
    tool = {"function_declarations": [{"name": "find", "description": "Find it."}]}
    ctx = shown([user("hi")], tools=[tool])

    assert shown([user("hi")]).request() == {"contents": [user("hi")]}
    assert ctx.request() == {"contents": [user("hi")], "config": {"tools": [tool]}}
    assert ctx.request(cache_breakpoints=True) == ctx.request()
    assert rules.sdk_faults(ctx.request()) == []


def test_empty_parts_are_left_out() -> None:
    """Empty parts, empty texts and unknown keys are not sent; the log keeps them."""
    contents = [user("", "a", {}), model({"text": ""}, {"text": "b", "x": 1}, {"hologram": {"scene": 3}})]

    ctx = shown(contents)

    assert ctx.messages[0] == user("a")
    assert ctx.messages[1]["parts"][0] == {"text": "b"}
    assert '"scene":3' in ctx.messages[1]["parts"][1]["text"]
    assert FORMAT.encode(stored(contents)) == contents


def test_parts_are_decoded_by_their_kind() -> None:
    """Media, documents and thoughts are decoded as the parts that every format knows, in standard base64."""
    data = base64.urlsafe_b64encode(b"\xff\xfe\xfd").decode()
    (entry,) = FORMAT.decode(
        [
            model(
                {"text": "hm", "thought": True},
                {"inline_data": {"mime_type": "image/png", "data": data}},
                {"inline_data": {"mime_type": "audio/mpeg", "data": "AAAA"}},
                {"inline_data": {"mime_type": "application/pdf", "data": "AAAA", "display_name": "a.pdf"}},
                {"file_data": {"file_uri": "gs://a/b", "mime_type": "image/png"}},
                {"executable_code": {"code": "1"}},
                "so",
            )
        ],
        "messages",
    )

    assert [type(part) for part in entry.content] == [Reasoning, Image, Audio, File, File, Opaque, Text]
    _, image, sound, document, far, _, _ = entry.content
    assert isinstance(image, Image)
    assert image.source == "data:image/png;base64,//79"
    assert isinstance(sound, Audio)
    assert (sound.format, sound.data) == ("mp3", "AAAA")
    assert isinstance(document, File)
    assert (document.data, document.filename) == ("data:application/pdf;base64,AAAA", "a.pdf")
    assert isinstance(far, File)
    assert far.file_id == "gs://a/b"


def test_parts_of_another_provider_become_the_nearest_kind() -> None:
    """Images, sound and documents of another format are sent as such; what Gemini lacks becomes text."""
    url, file = "https://example.com/a.png", "data:application/pdf;base64,AAAA"
    chat = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,//8="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": file, "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "hologram", "scene": 3},
    ]

    ctx = shown([{"role": "user", "content": chat}], "openai")

    parts = ctx.messages[0]["parts"]
    assert parts[0] == {"file_data": {"file_uri": url, "mime_type": "image/png"}}
    assert parts[1] == {"inline_data": {"mime_type": "image/png", "data": "//8="}}
    assert parts[2] == {"text": "[an image is not shown here]"}
    assert parts[3] == {"inline_data": {"mime_type": "audio/wav", "data": "AAAA"}}
    assert parts[4] == {"inline_data": {"mime_type": "application/pdf", "data": "AAAA"}}
    assert "file-1" in parts[5]["text"]
    assert '"scene":3' in parts[6]["text"]
    assert [note.what for note in ctx.report.adapted] == ["image as text", "file as text", "hologram as text"]
    assert judged(ctx) == []


BROKEN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "the model first": ([model("a")], "the first content must have the role user"),
    "two of one role": ([user("a"), user("b")], "must alternate"),
    "another role": ([{"role": "function", "parts": [{"text": "a"}]}], "unknown role"),
    "no parts": ([{"role": "user", "parts": []}], "needs parts"),
    "an empty part": ([user({})], "exactly one kind of data"),
    "an empty text": ([user("")], "must not be empty"),
    "no answer": ([user("a"), model(call())], "calls without a function_response"),
    "one answer of two": ([user("a"), model(call(), call()), user(result())], "responses in the next content"),
    "an answer to nothing": ([user(result())], "responses in the next content"),
    "other name": ([user("a"), model(call()), user(result("b"))], "does not answer"),
    "other id": ([user("a"), model(call(id="1")), user(result())], "does not answer"),
    "text first": ([user("a"), model(call()), user("b", result())], "before all other parts"),
    "a name with a space": ([user("a"), model(call("a b")), user(result("a b"))], "not a valid function name"),
    "no object": ([user("a"), model(call(args=None)), user(result())], "args must be an object"),
    "a call of the user": ([user(call())], "role is not model"),
}


@pytest.mark.parametrize(("contents", "rule"), BROKEN.values(), ids=BROKEN)
def test_every_broken_rule_is_named(contents: list[dict[str, Any]], rule: str) -> None:
    """`validate` and the independent rules each find every broken rule."""
    assert any(rule in str(problem) for problem in FORMAT.validate(contents))
    assert rules.faults(contents) != []


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini", "text"])
@pytest.mark.parametrize(
    "part", [{"thought": True}, {"text": None}, {"text": None, "thought": None, "inline_data": None}]
)
def test_an_empty_part_is_shown_in_no_format(format: str, part: dict[str, Any]) -> None:
    """A part that holds nothing but nulls is shown to no model, and comes back in an export."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add_user_message("hi")
        answer = {"role": "model", "parts": [{"text": "Yes."}, part]}
        session.add(answer)

        assert "provider_item" not in str(session.context(format=format).request())
        assert "Yes." in str(session.context(format=format).request())
        assert find_format("gemini").encode(session.entries())[1] == answer


def test_every_field_of_a_part_is_sent_back() -> None:
    """A part with all fields that the client declares for its kind goes back as it was given."""
    video = {
        "file_data": {"file_uri": "https://example.com/a.mp4", "mime_type": "video/mp4"},
        "video_metadata": {"start_offset": "1s", "end_offset": "2s", "fps": 1.0, "content_layers": ["AUDIO"]},
        "media_resolution": {"level": "MEDIA_RESOLUTION_LOW", "num_tokens": 3},
    }
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="gemini")
        session.add({"role": "user", "parts": [{"text": "Look."}, video]})

        assert session.context().messages == [{"role": "user", "parts": [{"text": "Look."}, video]}]
    assert {*types.VideoMetadata.model_fields} == {*video["video_metadata"]}
    assert {*types.PartMediaResolution.model_fields} == {*video["media_resolution"]}
