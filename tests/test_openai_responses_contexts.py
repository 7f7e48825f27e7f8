"""Contexts in the format `openai-responses`: what the API accepts, whatever the log went through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import rules_openai_responses as responses
import strategies
import strategies_openai_responses as items
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.formats import Adapted, Shown, find_format
from palimpsest.log.entry import Entry, File, Image, Native, Opaque, Reasoning, Text
from palimpsest.sessions.sync import Session
from palimpsest.tokens.counter import encoding
from samples_openai_responses import (
    ANSWER,
    APPROVE,
    APPROVED,
    CALL,
    COMPUTER,
    EQUAL,
    RESULT,
    SEARCH,
    SHOT,
    THOUGHT,
    USER,
)
from worlds import attempt, open_world

FORMAT = find_format("openai-responses")
law = settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])


def responses_session(memory: Memory, **options: Any) -> Session:
    """Return a session whose format is `openai-responses`."""
    return memory.session("s", format="openai-responses", **options)


def shown(*added: Any, **call: Any) -> list[dict[str, Any]]:
    """Return the context's messages for these batches of items, checked by the rules and the vendor's types."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        for batch in added:
            strategies.taken_in(session, batch)
        ctx = session.context(**call)
        check(ctx)
        return ctx.messages


def check(ctx: Context) -> None:
    """Assert that a context is valid by the rules and by the vendor's types."""
    assert responses.faults(ctx.messages) == []
    assert responses.sdk_faults(ctx.request()) == []


@pytest.mark.parametrize("given", EQUAL.values(), ids=EQUAL)
def test_a_context_of_every_shape_is_valid(given: list[dict[str, Any]]) -> None:
    """A context of any item is valid, whether items were added one at a time or all at once."""
    shown([USER], given, [USER])
    shown([USER], *([item] for item in given), [USER])


@law
@given(batches=st.lists(items.batches(), max_size=6), budget=st.none() | st.integers(20, 400), data=st.data())
def test_contexts_are_valid_and_stable(
    batches: list[list[dict[str, Any]]], budget: int | None, data: st.DataObject
) -> None:
    """After every add, with open calls, late results, cuts and clamps, contexts are valid and extend the last one."""
    with open_world("memory", Path(), max_tokens=budget, format="openai-responses") as world:
        seen: list[Context] = []
        for batch in batches:
            strategies.taken_in(world.session, batch)
            if data.draw(st.integers(0, 9), label="erase") == 0:
                world.session.erase([data.draw(st.sampled_from([entry.seq for entry in world.session.entries()]))])
            ctx = attempt(world.session, **data.draw(strategies.requests, label="request"))
            if ctx is not None:
                check(ctx)
                # Fences and stand-in names are our overhead, which a counter of the user's own does not see. A message
                # has a fence for each thought that is shown as text.
                texts = responses.texts(ctx.request())
                fences = sum(text.count("thinking>") for text in texts)
                said = sum(map(strategies.WORDS.count, texts))
                assert said <= ctx.tokens + 4 * len(ctx.messages) + fences
                seen.append(ctx)
        for i, earlier in enumerate(seen):
            for later in seen[i + 1 :]:
                if earlier.epoch is not None and earlier.epoch == later.epoch:
                    before, after = responses.blocks(earlier.messages), responses.blocks(later.messages)
                    assert rules.is_prefix(before, after)


@law
@given(
    batches=st.lists(items.batches(), max_size=5),
    conditions=st.sampled_from(
        [["message.kind != 'tool_call'"], ["message.tokens > 2"], ["message.kind != 'message' or message.tokens < 4"]]
    ),
)
def test_contexts_under_conditions_are_valid(batches: list[list[dict[str, Any]]], conditions: list[str]) -> None:
    """Conditions that leave out parts of a group leave no reasoning without follower and no id without reasoning."""
    with open_world("memory", Path(), format="openai-responses", conditions=conditions) as world:
        for batch in batches:
            strategies.taken_in(world.session, batch)
            ctx = attempt(world.session)
            if ctx is not None:
                check(ctx)


@law
@given(batches=st.lists(items.batches(), max_size=4), request=strategies.requests)
def test_the_count_covers_every_text_of_a_request(batches: list[list[dict[str, Any]]], request: dict[str, Any]) -> None:
    """By the real encoding the texts of a request cost no more than the context claims."""
    counter = encoding("o200k_base")
    with open_world("memory", Path(), format="openai-responses", counter=counter) as world:
        for batch in batches:
            strategies.taken_in(world.session, batch)
        ctx = world.session.context(**request)

        assert sum(map(counter.count, responses.texts(ctx.request()))) <= ctx.tokens


@law
@given(log=strategies.logs(), budget=st.none() | st.integers(30, 400), request=strategies.requests)
def test_logs_of_chat_completions_give_valid_contexts(
    log: list[Any], budget: int | None, request: dict[str, Any]
) -> None:
    """A log of chat completions and verbs gives valid contexts, in which every human text is."""
    with open_world("memory", Path(), max_tokens=budget) as world:
        world.play(log)
        ctx = attempt(world.session, format="openai-responses", **request)
        if ctx is None:
            return

        check(ctx)
        if budget is None:
            said = rules.plain("\n".join(responses.texts(ctx.request())))
            pending = {entry.seq for group in ctx._window.pending for entry in group.entries}
            for entry in world.session.entries():
                if entry.is_human and entry.seq not in pending and entry.expires_at is None:
                    assert all(rules.plain(text) in said for text in _texts(entry))


@law
@given(log=strategies.logs(), request=strategies.requests)
def test_the_count_covers_logs_of_chat_completions(log: list[Any], request: dict[str, Any]) -> None:
    """The count covers the fences around items that have no counterpart in this format."""
    counter = encoding("o200k_base")
    with open_world("memory", Path(), counter=counter) as world:
        world.play(log)
        ctx = world.session.context(format="openai-responses", **request)

        assert sum(map(counter.count, responses.texts(ctx.request()))) <= ctx.tokens


def _texts(entry: Entry) -> list[str]:
    """Return the texts of an entry."""
    if isinstance(entry.content, str):
        return [entry.content]
    return [part.text for part in entry.content if isinstance(part, Text)]


# --- reasoning and what followed it


def test_reasoning_is_sent_with_what_followed_it() -> None:
    """Items of one answer are sent with their ids in their order, and results follow their calls."""
    second = {**CALL, "id": "fc_2", "call_id": "c9", "status": "completed"}
    given = [USER, THOUGHT, {**CALL, "id": "fc_1"}, second, RESULT, {**RESULT, "call_id": "c9"}, USER]

    assert shown(given) == given


def test_items_of_one_answer_are_one_group() -> None:
    """From a reasoning item on, all that the model made until its next input is one group."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, THOUGHT, SEARCH, {**THOUGHT, "id": "rs_2"}, ANSWER, CALL, RESULT, {**ANSWER, "id": "msg_2"}])

        assert [entry.group for entry in session.entries()] == [1, 2, 2, 2, 2, 2, 2, 8]


def test_reasoning_that_nothing_follows_becomes_text() -> None:
    """A reasoning item whose answer never came becomes fenced text, or is left out if it has no text."""
    silent = {**THOUGHT, "id": "rs_2", "summary": []}

    assert shown([USER, THOUGHT, USER, silent, USER]) == [
        USER,
        {"role": "assistant", "content": "<thinking>\nWhere may it be?\n</thinking>"},
        USER,
        USER,
    ]


def test_of_two_adjacent_reasoning_items_only_the_second_is_sent() -> None:
    """Of two adjacent reasoning items the first becomes text, since the API wants a follower after each.

    What follows keeps the id that belongs to the second.
    """
    sent = shown([USER, THOUGHT, {**THOUGHT, "id": "rs_2"}, ANSWER])

    assert [item.get("type", item.get("role")) for item in sent] == ["user", "assistant", "reasoning", "message"]
    assert sent[-1] == ANSWER


def test_items_without_their_reasoning_lose_their_ids() -> None:
    """If a reasoning item is erased, its followers lose their ids, and the server's own items become text."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, THOUGHT, {**CALL, "id": "fc_1"}, COMPUTER, ANSWER, SEARCH, RESULT, SHOT])
        session.erase([2])

        ctx = session.context()

        check(ctx)
        assert [item.get("type", item.get("role")) for item in ctx.messages] == [
            "user",
            "function_call",
            "function_call",
            "message",
            "assistant",
            "function_call_output",
            "function_call_output",
        ]
        assert not any("id" in item for item in ctx.messages)
        assert Adapted(4, "computer_call as function_call") in ctx.report.adapted


def test_a_clamped_follower_loses_reasoning_and_id() -> None:
    """A shortened answer loses its id, and its reasoning becomes text: it is no longer what the API made."""
    entries = [
        Shown(
            Entry(
                seq=1,
                group=1,
                role="assistant",
                content=(Reasoning(text="hm", extra={"id": "rs_1"}),),
                native=native("reasoning"),
            )
        ),
        Shown(
            Entry(seq=2, group=1, role="assistant", content="long", native=native("message", id="msg_1")), text="lo…"
        ),
    ]

    assert FORMAT.render(entries) == [
        {"role": "assistant", "content": "<thinking>\nhm\n</thinking>"},
        {"role": "assistant", "content": "lo…", "type": "message"},
    ]


def native(kind: str, **keep: Any) -> Native:
    """Return the native item of an entry of this format."""
    return Native(format="openai-responses", keep={"type": kind, **keep})


def test_a_masked_result_keeps_its_call_as_it_was() -> None:
    """A result replaced by a note answers its call, whose item stays unchanged."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory, max_tokens=2_000)
        call = {**CALL, "id": "fc_1", "status": "completed"}
        session.add([USER, THOUGHT, call, {**RESULT, "output": "word " * 1_500, "id": "fco_1"}])
        for _ in range(5):
            session.add([USER, {"role": "assistant", "content": "word " * 100}])
            ctx = session.context()

        check(ctx)
        place = ctx.messages.index(call)
        assert ctx.messages[place - 1] == THOUGHT
        assert ctx.messages[place + 1] == {**RESULT, "output": "[old result left out: entry 4]"}


# --- ids, names, pairs


def test_a_repeated_id_is_sent_once() -> None:
    """The later of two items with one id is sent without it, or with another id if its type needs one."""
    sent = shown([USER, ANSWER, USER, ANSWER, USER, SEARCH, USER, SEARCH, {"id": "msg_1"}])

    assert sent[1:4] == [ANSWER, USER, {"role": "assistant", "content": "Here."}]
    assert [item["id"] for item in sent if item.get("type") == "web_search_call"] == ["ws_1", "ws_1_2"]
    assert len(sent) == 8


def test_repeated_reasoning_is_sent_once() -> None:
    """A whole answer that was added again is sent as text the second time, without ids."""
    sent = shown([USER, THOUGHT, ANSWER], [USER, THOUGHT, ANSWER])

    assert sent[:3] == [USER, THOUGHT, ANSWER]
    assert sent[4:] == [
        {"role": "assistant", "content": "<thinking>\nWhere may it be?\n</thinking>"},
        {"role": "assistant", "content": "Here."},
    ]


def test_calls_with_repeated_ids_get_different_ids() -> None:
    """Each call in a context has an id of its own, which its result repeats, however ids repeat in the log."""
    given = [CALL, CALL, RESULT, {**RESULT, "output": "second"}]
    sent = shown([USER, *given], [USER, *given], [USER, {**CALL, "call_id": ""}, {**RESULT, "call_id": ""}])

    calls = [item["call_id"] for item in sent if item.get("type") == "function_call"]
    results = {item["call_id"]: item["output"] for item in sent if item.get("type") == "function_call_output"}
    assert len(set(calls)) == 5
    assert [results[call_id] for call_id in calls] == ["found", "second", "found", "second", "found"]


def test_names_ids_and_arguments_are_made_valid() -> None:
    """Names and ids with characters or lengths that the API refuses are rewritten, and other keys left out."""
    odd = {**CALL, "call_id": "c" * 80, "name": "naïve tool!", "arguments": "", "id": "item_1", "status": None, "x": 1}
    sent = shown([USER, odd, {**RESULT, "call_id": "c" * 80, "name": "naïve tool!"}, {**CALL, "name": ""}, RESULT])

    assert sent[1] == {**CALL, "call_id": sent[2]["call_id"], "name": sent[1]["name"]}
    assert re.fullmatch("na_ve_tool__[0-9a-f]{8}", sent[1]["name"])
    assert len(sent[1]["call_id"]) <= 64
    assert "name" not in sent[2]
    assert sent[3]["name"] == "unknown"


def test_pairs_of_every_kind_are_sent_as_they_came() -> None:
    """Shell, computer, patch and approval calls and their answers are sent as they came."""
    for name in ("custom", "shell", "apply patch", "approval", "computer"):
        call, result = (dict(item) for item in EQUAL[name][:2])
        call.pop("environment", None)
        sent = shown([USER, call, result])
        assert [item["type"] for item in sent[1:]] == [call["type"], result["type"]], name


def test_a_call_whose_result_is_a_note_becomes_a_function_call() -> None:
    """A call whose result is only a note, such as one that needs a screenshot, becomes a function call."""
    sent = shown([USER, COMPUTER, USER])

    assert sent[1]["type"] == "function_call"
    assert sent[2] == {"type": "function_call_output", "call_id": "c2", "output": "[no result was recorded]"}


def test_a_call_with_an_unusable_id_becomes_a_function_call() -> None:
    """A local shell call whose id cannot be the id of an item becomes a function call.

    Its result names the call in its own id.
    """
    call, result = EQUAL["local shell"][:2]
    sent = shown([USER, {**call, "call_id": "c 1"}, {**result, "id": "c 1"}])

    assert [item["type"] for item in sent[1:]] == ["function_call", "function_call_output"]


def test_the_flag_of_an_item_becomes_a_status() -> None:
    """The status of a result is read from the item: a refused approval is `denied`, a failed patch `error`."""
    refused, failed = {**APPROVED, "approve": False}, EQUAL["apply patch"][1]

    assert [entry.status for entry in FORMAT.decode([APPROVED, refused, failed, RESULT], "x")] == [
        None,
        "denied",
        "error",
        None,
    ]


def test_a_call_by_a_program_names_it_only_if_it_is_sent() -> None:
    """A call made by a program names it as caller while the program is in the context.

    No result is expected of the program.
    """
    program = EQUAL["hosted"][8]
    call = {**CALL, "caller": {"type": "program", "caller_id": "p"}}

    assert shown([USER, program, call, RESULT])[1:3] == [program, call]
    assert shown([USER, call, RESULT])[1] == CALL


# --- what others wrote, and the request


def test_messages_of_chat_completions_become_items() -> None:
    """Calls, custom calls, results, developer messages, parts and refusals of chat completions become items."""
    picture = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    chat: list[dict[str, Any]] = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "look"}, picture], "name": "ann"},
        {
            "role": "assistant",
            "content": "wait",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}},
                {"id": "c2", "type": "custom", "custom": {"name": "paint", "input": "a house"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "painted"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
    ]
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        session.add(chat)
        ctx = session.context(format="openai-responses")
        check(ctx)

        assert ctx.messages == [
            {"role": "developer", "content": "be kind"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": "https://a/b.png", "detail": "auto"},
                ],
            },
            {"role": "assistant", "content": "wait"},
            CALL,
            {"type": "custom_tool_call", "call_id": "c2", "name": "paint", "input": "a house"},
            RESULT,
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "painted"},
            {"role": "assistant", "content": "no"},
            {"role": "user", "content": [{"type": "input_text", "text": "[sound is not shown here: wav]"}]},
        ]
        assert [(one.seq, one.what) for one in ctx.report.adapted] == [
            (2, "name left out"),
            (8, "refusal as text"),
            (9, "audio as text"),
        ]


def test_items_that_only_another_provider_reads_become_text() -> None:
    """Reasoning of another provider is fenced, its files are named, and a result's image stays an image."""
    others = Native(format="elsewhere")
    thought = (Reasoning(text="hm", extra={"signature": "s"}),)
    parts = (
        Image(source="data:image/png;base64,AA=="),
        File(file_id="f", filename="a.pdf"),
        Opaque(item={"type": "x", "y": 1}),
    )
    group = [
        Shown(Entry(seq=1, group=1, role="assistant", content=thought, native=others)),
        Shown(Entry(seq=2, group=1, kind="tool_call", role="assistant", name="see", call_id="c1", content="{}")),
        Shown(Entry(seq=3, group=1, kind="tool_result", role="tool", answers=2, native=others, content=parts)),
    ]
    adapted: list[Adapted] = []

    assert FORMAT.render(group, adapted) == [
        {"role": "assistant", "content": "<thinking>\nhm\n</thinking>"},
        {"type": "function_call", "call_id": "c1", "name": "see", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
                {"type": "input_text", "text": "[a document is not shown here: a.pdf]"},
                {"type": "input_text", "text": '<provider_item type="x">\n{"type":"x","y":1}\n</provider_item>'},
            ],
        },
    ]
    assert [(one.seq, one.what) for one in adapted] == [(1, "reasoning as text"), (3, "file as text"), (3, "x as text")]
    assert FORMAT.encode([shown.entry for shown in group])[1] == {**CALL, "name": "see"}


def test_items_without_content_are_left_out() -> None:
    """Empty content, and a compaction trigger that is not last, are left out of a context; the log keeps them."""
    empty = [{"role": "user", "content": [{"type": "input_text", "text": ""}]}, {**ANSWER, "content": []}]

    assert shown([*empty, {"type": "compaction_trigger"}, USER]) == [USER]


def test_a_generated_image_is_counted_as_an_image() -> None:
    """An image that the model generated costs what an image of its size costs, not its base64."""
    generated = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo" * 50_000}
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, generated])

        ctx = session.context()

        assert ctx.messages[-1] == generated
        assert ctx.tokens < 5_000


def test_ids_and_log_probabilities_are_not_counted() -> None:
    """Ids and log probabilities of an item are not counted, since no model reads them."""
    part = {"type": "output_text", "text": "Here.", "annotations": []}
    likely = {**part, "logprobs": [{"token": "Here", "bytes": [1], "logprob": -0.1, "top_logprobs": []}] * 100}
    with Memory.open("memory://") as memory:
        first, second = memory.session("one"), memory.session("two")
        first.add([{"role": "assistant", "content": [part]}], format="openai-responses")
        second.add([{**ANSWER, "content": [likely]}], format="openai-responses")

        counts = [session.context(format="openai-responses").tokens for session in (first, second)]

        assert counts[0] == counts[1] < 20


def test_a_request_has_the_shape_of_the_client() -> None:
    """The system text is `instructions`, tools get this API's shape, and absent parts are not sent."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER])
        bare, full = session.context(), session.context(system="be kind", tools=strategies.TOOLS)

        assert bare.request() == {"input": [USER]}
        assert full.request(cache_breakpoints=True) == full.request()
        assert (full.system, full.request()["instructions"]) == ("be kind", "be kind")
        assert [tool["name"] for tool in full.request()["tools"]] == ["find", "book"]
        check(full)


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ([CALL], [0]),
        ([RESULT], [0]),
        ([CALL, RESULT, CALL, RESULT], [2]),
        ([{**CALL, "call_id": ""}], [0]),
        ([{**CALL, "name": "a b"}, RESULT], [0]),
        ([THOUGHT], [0]),
        ([THOUGHT, USER], [0]),
        ([THOUGHT, {**THOUGHT, "id": "rs_2"}, ANSWER], [0]),
        ([ANSWER, ANSWER], [1]),
        ([{**ANSWER, "id": "item_1"}], [0]),
        ([{"role": "wizard", "content": "x"}], [0]),
        ([{"role": "user", "content": ""}], [0]),
        ([{"role": "user", "content": [{"type": "input_text", "text": ""}]}], [0]),
        ([{"role": "user", "content": [{"type": "output_text", "text": "x"}]}], [0]),
        ([{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}], [0]),
        ([{**USER, "x": 1}], [0]),
        ([{**CALL, "parsed_arguments": None}, RESULT], [0]),
        ([{"type": "web_search_call", "id": "ws_1"}], [0, 0]),
        ([COMPUTER, {**RESULT, "call_id": "c2"}], [0, 1]),
        (["text"], [0]),
        ([USER, THOUGHT, ANSWER, CALL, RESULT, COMPUTER, SHOT, APPROVE, APPROVED, SEARCH, {"type": "hologram"}], []),
    ],
)
def test_validate_names_the_item_that_breaks_a_rule(given: list[Any], places: list[int]) -> None:
    """`validate` judges pairs, followers of reasoning, ids, names, roles, keys and empty content.

    Each problem has a source.
    """
    problems = FORMAT.validate(given)

    assert [problem.message for problem in problems] == places
    assert all(problem.source for problem in problems)


@pytest.mark.parametrize("id", ["", "a b", "x" * 65, "\u00e4", 5])
def test_an_unknown_item_is_sent_without_an_invalid_id(id: Any) -> None:
    """An item of an unknown type is sent without an invalid id and with a valid one; the log keeps both."""
    given = [{"type": "news", "role": "user", "content": "hi", "id": id}, {"type": "news", "id": "n_1", "text": "ho"}]
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add(given)

        context = session.context()

        assert FORMAT.encode(session.entries()) == given
    assert responses.faults(context.messages) == []
    assert [message.get("id") for message in context.messages] == [None, "n_1"]
