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
from worlds import attempt, world

FORMAT = find_format("openai-responses")
law = settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])


def responses_session(memory: Memory, **options: Any) -> Session:
    return memory.session("s", format="openai-responses", **options)


def shown(*added: Any, **call: Any) -> list[dict[str, Any]]:
    """What a context shows of these items, checked by the rules and the vendor's types."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        for batch in added:
            strategies.taken_in(session, batch)
        ctx = session.context(**call)
        check(ctx)
        return ctx.messages


def check(ctx: Context) -> None:
    assert responses.faults(ctx.messages) == []
    assert responses.sdk_faults(ctx.request()) == []


@pytest.mark.parametrize("given", EQUAL.values(), ids=EQUAL)
def test_a_context_of_every_shape_is_valid(given: list[dict[str, Any]]) -> None:
    """Whatever came in, one item at a time or all at once, what goes out breaks no rule and no published type."""
    shown([USER], given, [USER])
    shown([USER], *([item] for item in given), [USER])


@law
@given(batches=st.lists(items.batches(), max_size=6), budget=st.none() | st.integers(20, 400), data=st.data())
def test_contexts_are_valid_and_stable(
    batches: list[list[dict[str, Any]]], budget: int | None, data: st.DataObject
) -> None:
    """After every add, with open calls, late results, cuts and clamps: no rule broken, and prefixes stay."""
    with world("memory", Path(), max_tokens=budget, format="openai-responses") as w:
        seen: list[Context] = []
        for batch in batches:
            strategies.taken_in(w.session, batch)
            if data.draw(st.integers(0, 9), label="erase") == 0:
                w.session.erase([data.draw(st.sampled_from([entry.seq for entry in w.session.entries()]))])
            ctx = attempt(w.session, **data.draw(strategies.requests, label="request"))
            if ctx is not None:
                check(ctx)
                # Fences and stand-in names are our overhead, which a counter of the user's own does not see. A message
                # has as many fences as thoughts that are not shown as such.
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
def test_what_conditions_leave_is_valid(batches: list[list[dict[str, Any]]], conditions: list[str]) -> None:
    """Parts of a group that are left out take no reasoning item's follower away, nor an id that needs one."""
    with world("memory", Path(), format="openai-responses", conditions=conditions) as w:
        for batch in batches:
            strategies.taken_in(w.session, batch)
            ctx = attempt(w.session)
            if ctx is not None:
                check(ctx)


@law
@given(batches=st.lists(items.batches(), max_size=4), request=strategies.requests)
def test_the_account_covers_all_that_is_said(batches: list[list[dict[str, Any]]], request: dict[str, Any]) -> None:
    """By the real encoding, the texts of a request cost no more than the context says."""
    counter = encoding("o200k_base")
    with world("memory", Path(), format="openai-responses", counter=counter) as w:
        for batch in batches:
            strategies.taken_in(w.session, batch)
        ctx = w.session.context(**request)

        assert sum(map(counter.count, responses.texts(ctx.request()))) <= ctx.tokens


@law
@given(log=strategies.logs(), budget=st.none() | st.integers(30, 400), request=strategies.requests)
def test_logs_of_chat_completions_are_shown_validly(
    log: list[Any], budget: int | None, request: dict[str, Any]
) -> None:
    """What came through verbs and as chat completions becomes items that are accepted, human texts among them."""
    with world("memory", Path(), max_tokens=budget) as w:
        w.play(log)
        ctx = attempt(w.session, format="openai-responses", **request)
        if ctx is None:
            return

        check(ctx)
        if budget is None:
            said = rules.plain("\n".join(responses.texts(ctx.request())))
            pending = {entry.seq for group in ctx._window.pending for entry in group.entries}
            for entry in w.session.entries():
                if entry.is_human and entry.seq not in pending and entry.expires_at is None:
                    assert all(rules.plain(text) in said for text in _texts(entry))


@law
@given(log=strategies.logs(), request=strategies.requests)
def test_the_account_covers_logs_of_chat_completions(log: list[Any], request: dict[str, Any]) -> None:
    """Fences around what has no counterpart here are in the account, too."""
    counter = encoding("o200k_base")
    with world("memory", Path(), counter=counter) as w:
        w.play(log)
        ctx = w.session.context(format="openai-responses", **request)

        assert sum(map(counter.count, responses.texts(ctx.request()))) <= ctx.tokens


def _texts(entry: Entry) -> list[str]:
    if isinstance(entry.content, str):
        return [entry.content]
    return [part.text for part in entry.content if isinstance(part, Text)]


# --- reasoning and what followed it


def test_reasoning_goes_out_with_what_followed_it() -> None:
    """Untouched, items of one answer keep their ids and their order, and results follow their calls."""
    second = {**CALL, "id": "fc_2", "call_id": "c9", "status": "completed"}
    given = [USER, THOUGHT, {**CALL, "id": "fc_1"}, second, RESULT, {**RESULT, "call_id": "c9"}, USER]

    assert shown(given) == given


def test_items_of_one_answer_live_and_die_together() -> None:
    """From a reasoning item on, all that the model made until it was given something again is one group."""
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, THOUGHT, SEARCH, {**THOUGHT, "id": "rs_2"}, ANSWER, CALL, RESULT, {**ANSWER, "id": "msg_2"}])

        assert [entry.group for entry in session.entries()] == [1, 2, 2, 2, 2, 2, 2, 8]


def test_reasoning_that_nothing_follows_becomes_text() -> None:
    """A reasoning item whose answer never came is a thought in a fence; one without text is left out."""
    silent = {**THOUGHT, "id": "rs_2", "summary": []}

    assert shown([USER, THOUGHT, USER, silent, USER]) == [
        USER,
        {"role": "assistant", "content": "<thinking>\nWhere may it be?\n</thinking>"},
        USER,
        USER,
    ]


def test_of_two_reasoning_items_in_a_row_only_the_second_is_sent_as_one() -> None:
    """The API wants each followed by what it belongs to; what comes after keeps the id that the second vouches for."""
    said = shown([USER, THOUGHT, {**THOUGHT, "id": "rs_2"}, ANSWER])

    assert [item.get("type", item.get("role")) for item in said] == ["user", "assistant", "reasoning", "message"]
    assert said[-1] == ANSWER


def test_what_is_left_without_its_reasoning_loses_its_id() -> None:
    """An erased reasoning item takes the ids of its followers with it, and makes the server's own items text."""
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


def test_a_clamped_follower_takes_its_reasoning_and_its_id_along() -> None:
    """A shortened answer is no longer the one that the API made: its reasoning is text and its id is gone."""
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
    return Native(format="openai-responses", keep={"type": kind, **keep})


def test_a_masked_result_keeps_its_call_as_it_was() -> None:
    """An old result that is only a note answers the same call, whose item is untouched."""
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


def test_an_item_that_comes_twice_is_named_once() -> None:
    """The later of two items with one id goes without, or under another where its type must have one."""
    said = shown([USER, ANSWER, USER, ANSWER, USER, SEARCH, USER, SEARCH, {"id": "msg_1"}])

    assert said[1:4] == [ANSWER, USER, {"role": "assistant", "content": "Here."}]
    assert [item["id"] for item in said if item.get("type") == "web_search_call"] == ["ws_1", "ws_1_2"]
    assert len(said) == 8


def test_reasoning_that_comes_twice_is_sent_once() -> None:
    """A whole answer that was added again is sent as text the second time, without the ids."""
    said = shown([USER, THOUGHT, ANSWER], [USER, THOUGHT, ANSWER])

    assert said[:3] == [USER, THOUGHT, ANSWER]
    assert said[4:] == [
        {"role": "assistant", "content": "<thinking>\nWhere may it be?\n</thinking>"},
        {"role": "assistant", "content": "Here."},
    ]


def test_calls_are_told_apart_however_their_ids_repeat() -> None:
    """In one group and from group to group each call has an id of its own, which its result repeats."""
    given = [CALL, CALL, RESULT, {**RESULT, "output": "second"}]
    said = shown([USER, *given], [USER, *given], [USER, {**CALL, "call_id": ""}, {**RESULT, "call_id": ""}])

    calls = [item["call_id"] for item in said if item.get("type") == "function_call"]
    results = {item["call_id"]: item["output"] for item in said if item.get("type") == "function_call_output"}
    assert len(set(calls)) == 5
    assert [results[call_id] for call_id in calls] == ["found", "second", "found", "second", "found"]


def test_names_ids_and_arguments_are_made_what_the_api_takes() -> None:
    """Names hold letters, digits, _ and - only; ids have 64 characters at most and begin as their type's do."""
    odd = {**CALL, "call_id": "c" * 80, "name": "naïve tool!", "arguments": "", "id": "item_1", "status": None, "x": 1}
    said = shown([USER, odd, {**RESULT, "call_id": "c" * 80, "name": "naïve tool!"}, {**CALL, "name": ""}, RESULT])

    assert said[1] == {**CALL, "call_id": said[2]["call_id"], "name": said[1]["name"]}
    assert re.fullmatch("na_ve_tool__[0-9a-f]{8}", said[1]["name"])
    assert len(said[1]["call_id"]) <= 64
    assert "name" not in said[2]
    assert said[3]["name"] == "unknown"


def test_pairs_of_every_kind_go_out_as_they_came() -> None:
    """Calls of the shell, of a computer, of a patch and the answer to an approval are what the API gave and wants."""
    for name in ("custom", "shell", "apply patch", "approval", "computer"):
        call, result = (dict(item) for item in EQUAL[name][:2])
        call.pop("environment", None)
        said = shown([USER, call, result])
        assert [item["type"] for item in said[1:]] == [call["type"], result["type"]], name


def test_a_call_whose_result_is_a_note_becomes_a_function_call() -> None:
    """A screenshot that never came cannot be made up: the pair is shown as a function's, with a note for a result."""
    said = shown([USER, COMPUTER, USER])

    assert said[1]["type"] == "function_call"
    assert said[2] == {"type": "function_call_output", "call_id": "c2", "output": "[no result was recorded]"}


def test_a_call_whose_id_is_no_id_of_an_item_becomes_a_function_call() -> None:
    """The result of a local shell names its call where its own id would be, and that holds letters and digits only."""
    call, result = EQUAL["local shell"][:2]
    said = shown([USER, {**call, "call_id": "c 1"}, {**result, "id": "c 1"}])

    assert [item["type"] for item in said[1:]] == ["function_call", "function_call_output"]


def test_an_approval_that_was_refused_says_so() -> None:
    """The status of a result comes from the item's own flag."""
    refused, failed = {**APPROVED, "approve": False}, EQUAL["apply patch"][1]

    assert [entry.status for entry in FORMAT.decode([APPROVED, refused, failed, RESULT], "x")] == [
        None,
        "denied",
        "error",
        None,
    ]


def test_a_program_is_left_to_the_server() -> None:
    """A program's own calls name it while it is there; nothing waits for its output."""
    program = EQUAL["hosted"][8]
    call = {**CALL, "caller": {"type": "program", "caller_id": "p"}}

    assert shown([USER, program, call, RESULT])[1:3] == [program, call]
    assert shown([USER, call, RESULT])[1] == CALL


# --- what others wrote, and the request


def test_messages_of_chat_completions_become_items() -> None:
    """Calls, custom calls, results, developer messages, parts and refusals have their counterparts here."""
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


def test_what_another_provider_alone_can_read_becomes_text_or_nothing() -> None:
    """Another's reasoning is fenced, its files are named, a result's picture stays a picture."""
    others = Native(format="elsewhere")
    thought = (Reasoning(text="hm", extra={"signature": "s"}),)
    found = (
        Image(source="data:image/png;base64,AA=="),
        File(file_id="f", filename="a.pdf"),
        Opaque(item={"type": "x", "y": 1}),
    )
    group = [
        Shown(Entry(seq=1, group=1, role="assistant", content=thought, native=others)),
        Shown(Entry(seq=2, group=1, kind="tool_call", role="assistant", name="see", call_id="c1", content="{}")),
        Shown(Entry(seq=3, group=1, kind="tool_result", role="tool", answers=2, native=others, content=found)),
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


def test_what_says_nothing_is_left_out_of_a_context() -> None:
    """The API refuses empty content, and a request to compact that is not its last item; the log keeps them."""
    empty = [{"role": "user", "content": [{"type": "input_text", "text": ""}]}, {**ANSWER, "content": []}]

    assert shown([*empty, {"type": "compaction_trigger"}, USER]) == [USER]


def test_a_picture_that_the_model_made_is_counted_as_a_picture() -> None:
    """Its bytes are no text: a large one costs what its size costs, not what its base64 would."""
    made = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo" * 50_000}
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add([USER, made])

        ctx = session.context()

        assert ctx.messages[-1] == made
        assert ctx.tokens < 5_000


def test_ids_and_log_probabilities_are_not_billed() -> None:
    """What names an item, or says how likely its words were, is not what a model reads."""
    said = {"type": "output_text", "text": "Here.", "annotations": []}
    likely = {**said, "logprobs": [{"token": "Here", "bytes": [1], "logprob": -0.1, "top_logprobs": []}] * 100}
    with Memory.open("memory://") as memory:
        one, two = memory.session("one"), memory.session("two")
        one.add([{"role": "assistant", "content": [said]}], format="openai-responses")
        two.add([{**ANSWER, "content": [likely]}], format="openai-responses")

        counts = [session.context(format="openai-responses").tokens for session in (one, two)]

        assert counts[0] == counts[1] < 20


def test_the_request_is_what_the_client_takes() -> None:
    """System text is `instructions`, tools of chat completions become this API's, and what is absent is not sent."""
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
    """Pairs, followers of reasoning, ids, names, roles, keys and empty content are judged, each with a source."""
    problems = FORMAT.validate(given)

    assert [problem.message for problem in problems] == places
    assert all(problem.source for problem in problems)


@pytest.mark.parametrize("id", ["", "a b", "x" * 65, "\u00e4", 5])
def test_an_item_of_an_unknown_type_is_sent_without_an_id_that_is_none(id: Any) -> None:
    """The API refuses such an id whatever the type; the log keeps it. A sound one is sent."""
    given = [{"type": "news", "role": "user", "content": "hi", "id": id}, {"type": "news", "id": "n_1", "text": "ho"}]
    with Memory.open("memory://") as memory:
        session = responses_session(memory)
        session.add(given)

        context = session.context()

        assert FORMAT.encode(session.entries()) == given
    assert responses.faults(context.messages) == []
    assert [message.get("id") for message in context.messages] == [None, "n_1"]
