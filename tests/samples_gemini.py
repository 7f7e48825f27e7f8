"""Contents of Gemini for several tests: some must come back equal, some are refused, some are random but plausible."""

from __future__ import annotations

from typing import Any

from google.genai import types
from hypothesis import strategies as st

import rules_gemini as rules
import strategies_gemini


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def model(*parts: Any) -> dict[str, Any]:
    return {**user(*parts), "role": "model"}


def call(name: str = "find", **body: Any) -> dict[str, Any]:
    return {"function_call": {"name": name, "args": {}, **body}}


def result(name: str = "find", text: str = "found", **body: Any) -> dict[str, Any]:
    return {"function_response": {"name": name, "response": {"result": text}, **body}}


def dumped(**kind: Any) -> dict[str, Any]:
    """Return a part as the client dumps it: with null for every other kind."""
    part: dict[str, Any] = types.Part(**kind).model_dump(mode="json")
    return part


PNG = "//8="


EQUAL: dict[str, list[dict[str, Any]]] = {
    "plain": [user("hi"), model("hello")],
    "several texts": [user("a", "b"), model("", "c")],
    "no role": [{"parts": [{"text": "hi"}]}],
    "null role": [{"role": None, "parts": [{"text": "hi"}]}],
    "no parts": [{"role": "model"}],
    "null parts": [{"role": "model", "parts": None}],
    "empty parts": [{"role": "user", "parts": []}, {"role": "model", "parts": []}, {}],
    "unknown keys": [{**model("hi"), "x": [1, None]}, user({"text": "hi", "y": {"z": 2.5}})],
    "an empty part": [user({}), model({"text": None}, {"thought_signature": "QQ=="})],
    "nulls of a whole dump": [
        {"role": "user", "parts": [dumped(text="hi")]},
        {"role": "model", "parts": [dumped(function_call=types.FunctionCall(name="f", args={"a": None}))]},
        {"role": "user", "parts": [dumped(function_response=types.FunctionResponse(name="f", response={"a": 1}))]},
    ],
    "thoughts": [
        model({"text": "hm", "thought": True}, {"text": "hi", "thoughtSignature": "QQ=="}),
        model({"text": "a", "thought": False}, {"text": "b", "thought": None}),
    ],
    "signed call": [model({**call(), "thought_signature": "QQ=="}), user(result())],
    "calls": [model(call(), call("b", id="c1", args={"x": [1, 2.0, "é", None]})), user(result(), result("b", id="c1"))],
    "JSON's spelling": [
        model({"functionCall": {"id": "c", "name": "f", "args": {"snake_case": 1}}, "thoughtSignature": "QQ=="}),
        user({"functionResponse": {"id": "c", "name": "f", "response": {"output": "x"}, "willContinue": None}}),
        user({"inlineData": {"mimeType": "image/png", "data": PNG, "displayName": "a"}}),
        user({"fileData": {"fileUri": "gs://a/b.mp4", "mimeType": "video/mp4"}, "videoMetadata": {"fps": 1}}),
        user({"file_data": {"fileUri": "gs://a/b.mp4", "mime_type": "video/mp4"}}),
    ],
    "text between calls": [model("a", call(), "b", call("c"), "d"), user(result(), result("c"))],
    "text between results": [model(call(), call()), user("a", result(), "b", result(), "c")],
    "args and ids that are null, absent or empty": [
        model({"function_call": {"name": "f"}}, call("f", args=None), call("f", id=None), call("f", id="")),
        user(result("f"), result("f", id=None), result("f", id=""), {"function_response": {"name": "f"}}),
        model(call("f", id="c")),
        user(result("", id="c")),
        user(result("f", response=None)),
    ],
    "an id on one side": [model(call(id="c1")), user(result())],
    "shapes of results": [
        user(*(result(response=response) for response in ({"result": "a"}, {"output": "a"}, {"error": "a"}))),
        user(*(result(response=response) for response in ({"error": {"code": 1}}, {"error": None}, {}, {"x": 1.5}))),
        user(*(result(response=response) for response in ({"result": 5}, {"result": "a", "error": "b"}))),
    ],
    "results with media": [
        user(
            result(parts=[{"inline_data": {"mime_type": "image/png", "data": PNG}}]),
            result(parts=[{"inlineData": {"mimeType": "image/png", "data": "__8="}}, {"x": 1}], scheduling="SILENT"),
            result(parts=[]),
        )
    ],
    "role function": [{"role": "function", "parts": [result()]}],
    "role tool": [model(call()), {"role": "tool", "parts": [result()]}],
    "code": [
        model(
            {"executable_code": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"tool_call": {"id": "a", "tool_type": "URL_CONTEXT", "args": {}}},
            "so it is",
        )
    ],
    "media": [
        user(
            {"inline_data": {"mime_type": "image/png", "data": PNG}},
            {"inline_data": {"mime_type": "image/png", "data": "__8="}, "media_resolution": None},
            {"inline_data": {"mime_type": "audio/wav", "data": "AAAA"}},
            {"inline_data": {"mime_type": "audio/mpeg", "data": "AAAA"}},
            {"inline_data": {"mime_type": "audio/L16;rate=24000", "data": "-_-_"}},
            {"inline_data": {"mime_type": "application/pdf", "data": "AAAA", "display_name": "a.pdf"}},
            {"inline_data": {"mime_type": "application/pdf", "data": "AAAA", "display_name": None}},
            {"inline_data": {"mime_type": "text/plain; charset=x", "data": "AA"}},
            {"file_data": {"file_uri": "https://example.com/a.png", "mime_type": "image/png"}},
            {"file_data": {"file_uri": "https://example.com/a", "mime_type": "image/png", "display_name": "a"}},
            {"file_data": {"file_uri": "https://generativelanguage.googleapis.com/f/a", "mime_type": "image/png"}},
            {"file_data": {"file_uri": "https://example.com/a.pdf", "display_name": "a.pdf"}},
        )
    ],
    "an image that the model made": [model({"inline_data": {"mime_type": "image/png", "data": PNG}})],
    "odd text": [user("a\x00b \ud800 \u2028 ☂"), model(call("☂", args={"\ud800": "\u2028"}))],
}


MALFORMED: dict[str, tuple[Any, str]] = {
    "text": ("hello", "messages"),
    "a mapping": ({"role": "wizard"}, "messages"),
    "no mapping inside": (["hello"], "messages[0]"),
    "unknown role": ([user("a"), {"role": "assistant", "parts": []}], "messages[1].role"),
    "system text": ([{"role": "system", "parts": []}], "messages[0].role"),
    "a role that is a list": ([{"role": [], "parts": []}], "messages[0].role"),
    "parts that are text": ([{"role": "user", "parts": "hi"}], "messages[0].parts"),
    "a part that is text": ([{"role": "user", "parts": ["hi"]}], "messages[0].parts[0]"),
    "a part of two kinds": ([user({"text": "a", "inline_data": {}})], "messages[0].parts[0]"),
    "a part twice spelled": ([model({"functionCall": {}, "function_call": {}})], "messages[0].parts[0]"),
    "text that is a number": ([user("a", {"text": 5})], "messages[0].parts[1].text"),
    "a flag that is text": ([model({"text": "a", "thought": "yes"})], "messages[0].parts[0].thought"),
    "a signature that is no base64": (
        [model({"text": "a", "thoughtSignature": "not base64!"})],
        "messages[0].parts[0].thoughtSignature",
    ),
    "a call of the user": ([user(call())], "messages[0].parts[0].function_call"),
    "a call of nobody": ([{"parts": [call()]}], "messages[0].parts[0].function_call"),
    "a call without name": ([model({"functionCall": {}})], "messages[0].parts[0].functionCall.name"),
    "a call that is text": ([model({"function_call": "f"})], "messages[0].parts[0].function_call"),
    "an id that is a number": ([model(call(id=5))], "messages[0].parts[0].function_call.id"),
    "args that are text": ([model(call(args="{}"))], "messages[0].parts[0].function_call.args"),
    "a response of the model": ([model(result())], "messages[0].parts[0].function_response"),
    "a response that is text": ([user(result(response="x"))], "messages[0].parts[0].function_response.response"),
    "parts of a response": ([user(result(parts={}))], "messages[0].parts[0].function_response.parts"),
    "a part of a response": ([user(result(parts=[1]))], "messages[0].parts[0].function_response.parts[0]"),
    "text of a function": ([{"role": "function", "parts": [{"text": "x"}]}], "messages[0].parts[0]"),
    "text of a tool": ([{"role": "tool", "parts": [{"text": "x"}]}], "messages[0].parts[0]"),
    "media that is text": ([user({"inlineData": "AAAA"})], "messages[0].parts[0].inlineData"),
    "media without type": ([user({"inline_data": {"data": ""}})], "messages[0].parts[0].inline_data.mime_type"),
    "media without data": (
        [user({"inline_data": {"mime_type": "image/png"}})],
        "messages[0].parts[0].inline_data.data",
    ),
    "media that is no base64": (
        [user({"inline_data": {"mime_type": "image/png", "data": "A-+_"}})],
        "messages[0].parts[0].inline_data.data",
    ),
    "a file without address": ([user({"file_data": {}})], "messages[0].parts[0].file_data.file_uri"),
    "a file of an empty address": (
        [user({"file_data": {"file_uri": ""}})],
        "messages[0].parts[0].file_data.file_uri",
    ),
    "a set": ([{**user("x"), "tags": {1}}], "messages[0].tags"),
    "not a number": ([model(call(args={"x": float("nan")}))], "messages[0].parts[0].function_call.args.x"),
}


def likely() -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values in which the keys and values that the format knows are frequent."""
    words = st.sampled_from(["user", "model", "function", "tool", "image/png", "audio/wav", "AAAA", "find", ""])
    keys = st.sampled_from([*strategies_gemini.NULLS, *map(rules.camel, rules.KINDS), "text", "thought", "id", "x"])
    leaves = words | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
    )
    body = st.fixed_dictionaries(
        {}, optional={"name": words, "id": words | leaves, "args": values, "response": values, "parts": values}
    )
    blob = st.fixed_dictionaries({}, optional={"mime_type": words, "mimeType": words, "data": words, "fileUri": leaves})
    part = st.one_of(
        st.fixed_dictionaries({"text": words | leaves}, optional={"thought": leaves, "thoughtSignature": words}),
        st.dictionaries(st.sampled_from(["function_call", "functionResponse"]), body | values, min_size=1, max_size=1),
        st.dictionaries(st.sampled_from(["inline_data", "fileData"]), blob | values, min_size=1, max_size=1),
        values,
    )
    parts = st.lists(part, max_size=3) | values
    content = st.fixed_dictionaries({}, optional={"role": words | leaves, "parts": parts, "x": values})
    return st.lists(content | values, max_size=3) | values
