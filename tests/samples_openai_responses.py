"""Items of the Responses API for several tests: one of each type, and lists that must come back equal."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import rules_openai_responses as responses

USER: dict[str, Any] = {"role": "user", "content": "where is it?"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "found"}
THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Where may it be?"}],
    "encrypted_content": "gAAAAAB",
}
ANSWER: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Here.", "annotations": []}],
}
SEARCH: dict[str, Any] = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "it", "queries": None, "sources": None},
}
COMPUTER: dict[str, Any] = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c2",
    "action": {"type": "click", "button": "left", "x": 1, "y": 2.0},
    "pending_safety_checks": [],
    "status": "completed",
}
SHOT: dict[str, Any] = {
    "type": "computer_call_output",
    "call_id": "c2",
    "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="},
}
APPROVE: dict[str, Any] = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "name": "f",
    "arguments": "{}",
    "server_label": "s",
}
APPROVED: dict[str, Any] = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}

EQUAL: dict[str, list[dict[str, Any]]] = {
    "plain": [USER, {"role": "assistant", "content": "here"}, {"role": "system", "content": "be kind"}],
    "empty content": [{"role": "user", "content": ""}, {"role": "user", "content": []}],
    "developer": [{"role": "developer", "content": "be kind"}, {"role": "developer", "content": [], "type": "message"}],
    "message keys": [
        {**USER, "type": "message", "status": "completed", "id": "msg_7", "phase": None, "x": {"y": [1.5]}}
    ],
    "a null type": [{**USER, "type": None}],
    "answer": [ANSWER, {**ANSWER, "phase": "commentary", "id": None, "status": None}],
    "answer with null keys": [
        {**ANSWER, "content": [{"type": "output_text", "text": "x", "annotations": None, "logprobs": None}]}
    ],
    "answer without annotations": [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}],
    "answer with log probabilities": [
        {**ANSWER, "content": [{"type": "output_text", "text": "x", "logprobs": [{"token": "x"}], "parsed": {"a": 1}}]}
    ],
    "answer of input parts": [
        {"role": "assistant", "content": [{"type": "input_text", "text": "x", "annotations": [1]}]}
    ],
    "refusal": [{**ANSWER, "content": [{"type": "refusal", "refusal": "no"}, {"type": "refusal", "refusal": 5}]}],
    "user parts": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "high"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": None, "file_id": None},
                {"type": "input_image", "file_id": "file-1", "image_url": None},
                {"type": "input_file", "file_id": "file-1"},
                {"type": "input_file", "file_data": "data:,", "filename": "a.pdf", "file_url": None},
                {"type": "input_file", "file_url": "https://example.com/a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                {"type": "hologram", "scene": {"depth": 3}},
            ],
        }
    ],
    "parts of unexpected shape": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": 5},
                {"type": "output_text", "text": "x"},
                {"type": "refusal", "refusal": "x", "text": "y"},
                {"type": "input_image", "file_id": "f", "filename": "x"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav", "id": None}},
                {"type": "type"},
            ],
        }
    ],
    "call": [
        CALL,
        {**CALL, "id": "fc_1", "status": "completed", "namespace": "n", "parsed_arguments": None, "async_": None},
    ],
    "call with a body": [{**CALL, "content": [1], "output": 2, "": 3}],
    "arguments that are no JSON": [{**CALL, "arguments": "{", "name": ""}],
    "result": [RESULT, {**RESULT, "id": None, "status": "completed", "name": "find"}],
    "result of parts": [
        {
            **RESULT,
            "output": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "https://a/b.png"},
                {"type": "input_file", "file_data": "data:,", "filename": None},
                {"type": "hologram"},
            ],
        },
        {**RESULT, "output": []},
    ],
    "results that name no call": [
        CALL,
        {"type": "function_call_output", "name": "find", "output": "x"},
        {"type": "function_call_output", "call_id": None, "output": "y"},
    ],
    "repeated and empty ids": [CALL, CALL, RESULT, RESULT, {**CALL, "call_id": ""}, {**RESULT, "call_id": ""}],
    "reasoning": [THOUGHT, ANSWER, {**THOUGHT, "status": None, "content": None, "encrypted_content": None}],
    "reasoning without text": [{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "reasoning"}],
    "reasoning with its text": [
        {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}, {"type": "reasoning_text", "text": "ah"}]},
        {**THOUGHT, "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {**THOUGHT, "content": []},
    ],
    "reasoning of unexpected shape": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": 5}, {"text": "x"}, "y"], "content": "z"},
        {"type": "reasoning", "summary": None, "id": 5, "encrypted_content": 5, "x": 1},
    ],
    "custom": [
        {"type": "custom_tool_call", "call_id": "c", "name": "paint", "input": "a house", "id": "ctc_1"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "x"}],
            "status": "completed",
        },
    ],
    "computer": [COMPUTER, SHOT, {**COMPUTER, "call_id": "c3"}, {**SHOT, "call_id": "c3", "output": {"file_id": "f"}}],
    "computer by file": [
        {**SHOT, "output": {"type": "computer_screenshot", "file_id": "f"}, "acknowledged_safety_checks": None}
    ],
    "local shell": [
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "c",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "c", "output": "x"},
        {"type": "local_shell_call_output", "id": "lsho_1", "call_id": "c", "output": "x", "status": None},
        {"type": "local_shell_call_output", "call_id": "c", "output": "x"},
    ],
    "shell": [
        {
            "type": "shell_call",
            "call_id": "c",
            "action": {"commands": ["ls", "\u2028 ☂ \ud800"], "timeout_ms": None},
            "environment": None,
        },
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "timeout"}}],
        },
        {"type": "shell_call_output", "call_id": "c"},
    ],
    "apply patch": [
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "status": "completed",
            "operation": {"type": "delete_file", "path": "a"},
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "done"},
    ],
    "approval": [
        APPROVE,
        APPROVED,
        {**APPROVE, "id": "mcpr_2"},
        {**APPROVED, "approve": False, "reason": "no", "id": None},
    ],
    "tool search": [
        {"type": "tool_search_call", "call_id": "c", "arguments": {"q": 1}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c", "tools": []},
        {"type": "tool_search_call", "call_id": None, "arguments": {"q": 1}, "execution": "server"},
        {"type": "tool_search_output", "call_id": None, "tools": []},
    ],
    "hosted": [
        SEARCH,
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": None},
        {"type": "code_interpreter_call", "id": "ci_1", "code": None, "outputs": None, "status": "completed"},
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "result": "AA==",
            "status": "completed",
            "output_format": "webp",
        },
        {"type": "image_generation_call", "id": "ig_2", "result": "a;base64,b", "output_format": "x;y"},
        {"type": "image_generation_call", "id": "ig_3", "result": None},
        {"type": "mcp_call", "id": "mcp_1", "name": "f", "arguments": "{}", "error": None},
        {"type": "mcp_list_tools", "id": "mcpl_1", "tools": []},
        {"type": "program", "id": "p_1", "call_id": "p", "code": "f()", "fingerprint": "x"},
        {"type": "program_output", "id": "po_1", "call_id": "p", "result": "1", "status": "completed"},
        {"type": "compaction", "encrypted_content": "gAAA", "id": None},
        {"type": "compaction_trigger"},
        {"type": "additional_tools", "role": "developer", "tools": []},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ],
    "references": [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}, {"id": "msg_1", "type": None}],
    "unknown types": [{"type": "hologram", "scene": {"depth": 3}, "id": []}, {"type": "hologram", **USER}],
    "odd text": [{"role": "user", "content": "a\x00b \ud800 \u2028 ☂"}],
}

MALFORMED: dict[str, tuple[Any, str]] = {
    "text": ("hello", "messages"),
    "a mapping": ({"role": "user"}, "messages"),
    "no mapping inside": (["hello"], "messages[0]"),
    **{
        f"a part of a known kind: {part}": (
            [{"role": "user", "content": [{"type": "input_text", "text": "look"}, part]}],
            f"messages[0].content[1].{where}",
        )
        for part, where in (
            ({"type": "input_image"}, "image_url"),
            ({"type": "input_image", "file_id": None, "image_url": None}, "image_url"),
            ({"type": "input_image", "image_url": {"url": "http://x/a.png"}}, "image_url"),
            ({"type": "input_image", "image_url": ""}, "image_url"),
            ({"type": "input_file"}, "file_id"),
            ({"type": "input_file", "file_id": 3}, "file_id"),
            ({"type": "input_audio"}, "input_audio"),
            ({"type": "input_audio", "input_audio": {"data": "AA=="}}, "input_audio"),
        )
    },
    "nothing to go by": ([{"content": "hi"}], "messages[0].role"),
    "a type that is a list": ([{"type": []}], "messages[0].type"),
    "unknown role": ([USER, {"role": "tool", "content": "b"}], "messages[1].role"),
    "a role that is a list": ([{"role": [], "content": "b"}], "messages[0].role"),
    "a message without role": ([{"type": "message", "content": "b"}], "messages[0].role"),
    "no content": ([{"role": "assistant"}], "messages[0].content"),
    "content is null": ([{"role": "assistant", "content": None}], "messages[0].content"),
    "a part that is text": ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
    "a part without type": ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0]"),
    "a call without id": ([{**CALL, "call_id": None}], "messages[0].call_id"),
    "a call without name": ([{**CALL, "name": 5}], "messages[0].name"),
    "arguments that are a mapping": ([{**CALL, "arguments": {}}], "messages[0].arguments"),
    "an approval without id": ([{**APPROVE, "id": None}], "messages[0].id"),
    "a result without call": ([{"type": "custom_tool_call_output", "output": "x"}], "messages[0].call_id"),
    "an answer to no approval": ([{**APPROVED, "approval_request_id": 1}], "messages[0].approval_request_id"),
    "a local result without id": ([{"type": "local_shell_call_output", "output": "x"}], "messages[0].id"),
    "a result whose call is a number": ([{**RESULT, "call_id": 5}], "messages[0].call_id"),
    "a result without output": ([{"type": "function_call_output", "call_id": "c"}], "messages[0].output"),
    "a result of numbers": ([{**RESULT, "output": [5]}], "messages[0].output[0]"),
    "a screenshot that is text": ([{**SHOT, "output": "x"}], "messages[0].output"),
    "not a number": ([{**USER, "score": float("nan")}], "messages[0].score"),
    "a set": ([{"type": "hologram", "tags": {1}}], "messages[0].tags"),
    "a key that is a number": ([{**USER, 5: 1}], "messages[0]"),
}


KEYS = [
    "type",
    "role",
    "content",
    "id",
    "status",
    "phase",
    "call_id",
    "name",
    "arguments",
    "input",
    "output",
    "action",
    "operation",
    "tools",
    "summary",
    "text",
    "refusal",
    "encrypted_content",
    "image_url",
    "file_id",
    "file_data",
    "detail",
    "execution",
    "approve",
    "approval_request_id",
    "caller",
    "annotations",
    "x",
]


TYPES = ["message", "reasoning", "item_reference", "web_search_call", "program", *responses.OUTPUTS]


TYPES += [*responses.OUTPUTS.values(), "compaction_trigger", "image_generation_call", "hologram"]


PARTS = ["input_text", "output_text", "refusal", "input_image", "input_file", "input_audio", "summary_text", "x"]


def likely() -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values in which the keys and values that the format knows are frequent."""
    words = st.sampled_from(
        ["user", "assistant", "system", "developer", "tool", "c1", "msg_1", "completed", "server", ""]
    )
    leaves = words | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=6,
    )
    part = st.fixed_dictionaries(
        {"type": st.sampled_from(PARTS)},
        optional={
            "text": words | leaves,
            "refusal": words,
            "image_url": words,
            "file_id": words,
            "annotations": values,
        },
    )
    content = words | values | st.lists(part, max_size=3)
    given: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(KEYS, words | values)
    given |= {"content": content, "output": content, "summary": content, "type": st.sampled_from(TYPES) | leaves}
    item = st.fixed_dictionaries(
        {"type": st.sampled_from(TYPES)}, optional={k: v for k, v in given.items() if k != "type"}
    )
    message = st.fixed_dictionaries(
        {"role": words, "content": content}, optional={"id": words, "type": leaves, "x": values}
    )
    return st.lists(item | message | values, max_size=3) | values
