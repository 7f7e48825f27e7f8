"""Hypothesis strategies for items of the Responses API, with all of their fields."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import strategies

Item = dict[str, Any]

_few = st.integers(1, 3)
_call_ids = st.sampled_from(["call_1", "call_2", "call_3", "call_4", "", "c" * 80])
_names = st.sampled_from(["find", "book", "find", "", "my tool", "naïve.find"])
_statuses: st.SearchStrategy[Item] = st.sampled_from(
    [{}, {"status": "completed"}, {"status": "in_progress"}, {"status": None}]
)
_unknown: st.SearchStrategy[Item] = st.one_of(
    st.just({}),
    st.just({}),
    st.sampled_from([{"created_by": "me"}, {"parsed_arguments": None}, {"provider_data": {"model": "m"}}]),
    strategies.json_values.map(lambda value: {"x_unknown": value}),
)


def _id(prefix: str) -> st.SearchStrategy[Item]:
    """An object with an id: mostly a unique one, sometimes one that repeats or is a stand-in; or without an id."""
    fresh = st.integers(0, 10**9).map(lambda number: {"id": f"{prefix}_{number}"})
    return st.one_of(
        fresh, fresh, _few.map(lambda n: {"id": f"{prefix}_{n}"}), st.sampled_from([{}, {"id": "__fake_id__"}])
    )


def _own_id(prefix: str) -> st.SearchStrategy[str]:
    return st.integers(0, 10**9).map(lambda number: f"{prefix}_{number}") | _few.map(lambda n: f"{prefix}_{n}")


# --- messages

_text = strategies.texts(30)
_picture = st.sampled_from(
    [
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "file_id": None},
        {"type": "input_image", "file_id": "file-1", "detail": "auto", "image_url": None},
    ]
)
_file = st.sampled_from(
    [
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "file_data": "data:text/plain;base64,aGk=", "filename": "a.txt"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf", "filename": None},
    ]
)
given_parts: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(
        _text.map(lambda text: {"type": "input_text", "text": text}),
        _picture,
        _file,
        st.just({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        _text.map(lambda text: {"type": "hologram", "scene": text}),
    ),
    min_size=1,
    max_size=3,
)
_result_parts = st.lists(
    st.one_of(_text.map(lambda text: {"type": "input_text", "text": text}), _picture, _file), max_size=3
)
_beside: st.SearchStrategy[Item] = st.sampled_from(
    [
        {"annotations": []},
        {"annotations": [], "logprobs": None},
        {"annotations": [], "logprobs": [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}]},
        {
            "annotations": [
                {"type": "url_citation", "url": "https://a.b", "title": "A", "start_index": 0, "end_index": 1}
            ]
        },
        {},
    ]
)


@st.composite
def given(draw: st.DrawFn) -> Item:
    """A message of any role but the assistant's."""
    role = draw(st.sampled_from(["user", "user", "user", "user", "system", "developer"]))
    content = draw(st.one_of(_text, _text, given_parts)) if role == "user" else draw(_text)
    more = draw(st.sampled_from([{}, {}, {"type": "message"}, {"id": "msg_9", "status": "completed"}]))
    return {"role": role, "content": content, **more, **draw(_unknown)}


@st.composite
def answers(draw: st.DrawFn) -> Item:
    """A message of the model, in the short form or as the API returns it."""
    if draw(st.booleans()):
        content: Any = draw(strategies.texts())
        if draw(st.integers(0, 3)) == 0:
            content = [{"type": "output_text", "text": content}]
        return {"role": "assistant", "content": content, **draw(_unknown)}
    parts: list[Item] = [{"type": "output_text", "text": draw(strategies.texts()), **draw(_beside)}]
    if draw(st.integers(0, 4)) == 0:
        parts.append({"type": "refusal", "refusal": draw(_text)})
    phases: list[Item] = [{}, {"phase": None}, {"phase": "commentary"}, {"phase": "final_answer"}]
    item: Item = {"type": "message", "role": "assistant", "content": parts}
    return {**item, **draw(st.sampled_from(phases)), **draw(_id("msg")), **draw(_statuses), **draw(_unknown)}


# --- reasoning, and items that the server makes


@st.composite
def reasoning(draw: st.DrawFn) -> Item:
    """A reasoning item, with or without summaries, contents and encrypted content."""
    summary = [{"type": "summary_text", "text": text} for text in draw(st.lists(_text, max_size=2))]
    item: Item = {"type": "reasoning", "summary": summary, **draw(_id("rs")), **draw(_statuses)}
    contents = draw(st.lists(_text, max_size=2))
    more: list[Item] = [{}, {"content": None}, {"content": [{"type": "reasoning_text", "text": t} for t in contents]}]
    sealed: list[Item] = [{}, {"encrypted_content": None}, {"encrypted_content": "gAAAAABo" * 4}]
    return {**item, **draw(st.sampled_from(more)), **draw(st.sampled_from(sealed)), **draw(_unknown)}


@st.composite
def hosted(draw: st.DrawFn) -> Item:
    """An item that needs no result: of the server's own tools, a compaction, a reference, or of an unknown type."""
    text = draw(_text)
    search = {"type": "search", "query": text, "queries": None, "sources": None}
    tool = {"name": "find", "input_schema": {"default": None}, "annotations": None, "description": None}
    items: list[Item] = [
        {"type": "web_search_call", "id": draw(_own_id("ws")), "status": "completed", "action": search},
        {
            "type": "file_search_call",
            "id": draw(_own_id("fs")),
            "status": "completed",
            "queries": [text],
            "results": None,
        },
        {"type": "mcp_list_tools", "id": draw(_own_id("mcpl")), "server_label": "s", "tools": [tool], "error": None},
        {
            "type": "mcp_call",
            "id": draw(_own_id("mcp")),
            "name": "f",
            "arguments": "{}",
            "server_label": "s",
            "output": text,
        },
        {"type": "image_generation_call", "id": draw(_own_id("ig")), "status": "completed", "result": "AAAA"},
        {
            "type": "tool_search_call",
            "id": draw(_own_id("tsc")),
            "call_id": None,
            "arguments": {"q": None},
            "execution": "server",
        },
        {"type": "compaction", "id": draw(_own_id("cmp")), "encrypted_content": "gAAAAABo" * 3},
        {"type": "compaction_trigger"},
        {"type": "program_output", "id": draw(_own_id("po")), "call_id": "p", "result": text, "status": "completed"},
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", "name": "f", "parameters": None, "strict": None}],
        },
        {"type": "web_search_call", "x": text},
        {"type": "hologram", "id": draw(_own_id("holo")), "scene": text},
        {"type": "item_reference", "id": draw(_own_id("msg"))},
        {"id": draw(_own_id("msg"))},
        {
            "type": "code_interpreter_call",
            "id": draw(_own_id("ci")),
            "code": None,
            "container_id": "c",
            "outputs": None,
            "status": "completed",
        },
    ]
    item = draw(st.sampled_from(items))
    return (
        item if "action" in item or len(item) < 3 else {**item, **draw(st.sampled_from([{}, {}, {"created_by": "me"}]))}
    )


# --- calls and what answers them


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Item, Item]:
    """A call of any kind and its result."""
    call_id, text = draw(_call_ids), draw(strategies.texts())
    if draw(st.booleans()):
        call: Item = {
            "type": "function_call",
            "call_id": call_id,
            "name": draw(_names),
            "arguments": draw(strategies.texts(30)),
        }
        call |= {
            **draw(_id("fc")),
            **draw(_statuses),
            **draw(_unknown),
            **draw(st.sampled_from([{}, {"namespace": "n"}])),
        }
        output: Any = text if draw(st.integers(0, 3)) else draw(_result_parts)
        result: Item = {"type": "function_call_output", "call_id": call_id, "output": output}
        return call, {
            **result,
            **draw(st.sampled_from([{}, {}, {"id": None, "status": None}, {"status": "completed"}])),
        }
    done = {"status": "completed"}
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}
    outcome = {"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    tool = {"type": "function", "name": "found", "parameters": {"type": "object"}, "strict": None, "description": text}
    named = {"call_id": call_id}
    request = draw(_own_id("mcpr"))
    choices: list[tuple[Item, Item]] = [
        (
            {"type": "custom_tool_call", **named, "name": "paint", "input": text},
            {"type": "custom_tool_call_output", **named, "output": text},
        ),
        (
            {
                "type": "computer_call",
                "id": draw(_own_id("cu")),
                **named,
                **done,
                "action": {"type": "wait"},
                "pending_safety_checks": [],
            },
            {"type": "computer_call_output", **named, "output": shot},
        ),
        (
            {
                "type": "local_shell_call",
                "id": draw(_own_id("lsh")),
                **named,
                **done,
                "action": {"type": "exec", "command": [text], "env": {}},
            },
            {"type": "local_shell_call_output", draw(st.sampled_from(["id", "call_id"])): call_id, "output": text},
        ),
        (
            {"type": "shell_call", **named, "action": {"commands": [text], "timeout_ms": None}, "environment": None},
            {"type": "shell_call_output", **named, "output": [outcome], "max_output_length": None},
        ),
        (
            {"type": "apply_patch_call", **named, **done, "operation": {"type": "delete_file", "path": text}},
            {
                "type": "apply_patch_call_output",
                **named,
                "status": "failed",
                **draw(st.sampled_from([{}, {"output": text}, {"output": None}])),
            },
        ),
        (
            {"type": "mcp_approval_request", "id": request, "name": "f", "arguments": "{}", "server_label": "s"},
            {
                "type": "mcp_approval_response",
                "approval_request_id": request,
                "approve": draw(st.booleans()),
                "reason": text,
            },
        ),
        (
            {"type": "tool_search_call", **named, "arguments": {"q": text}, "execution": "client"},
            {"type": "tool_search_output", **named, "tools": [tool]},
        ),
    ]
    return draw(st.sampled_from(choices))


@st.composite
def exchanges(draw: st.DrawFn) -> list[Item]:
    """Parallel calls with their results in any order; some come late, or not at all."""
    found = [draw(pairs()) for _ in range(draw(_few))]
    calls = [call for call, _ in found]
    results = [result for _, result in draw(st.permutations(found))]
    if draw(st.integers(0, 4)) == 0:
        results.insert(draw(st.integers(0, len(results) - 1)), draw(given()))
    if draw(st.integers(0, 5)) == 0:
        results.pop()
    before = [draw(reasoning()) for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2])))]
    said = [draw(answers())] if draw(st.integers(0, 3)) == 0 else []
    return [*before, *said, *calls, *results]


def batches() -> st.SearchStrategy[list[Item]]:
    """The items of one `add`."""
    thought = st.tuples(reasoning(), answers() | hosted()).map(list)
    step: st.SearchStrategy[list[Item]] = st.one_of(
        st.tuples(given(), answers()).map(list),
        exchanges(),
        exchanges(),
        thought,
        st.one_of(given(), answers(), reasoning(), hosted()).map(lambda item: [item]),
    )
    return st.lists(step, min_size=1, max_size=3).map(lambda steps: [item for one in steps for item in one])
