"""Hypothesis strategies for Gemini's contents: parts of every kind, in both spellings of keys and with nulls."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strategies import TOOL_NAMES, json_values, texts

Content = dict[str, Any]

SIGNATURES = ("c2lnbmVk", "__-_", "++//", "QQ==", "QQ")
NULLS: Content = {"thought_signature": None, "video_metadata": None, "inline_data": None}


def camel(key: str) -> str:
    """Return a key in camel case, as JSON spells it."""
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _spelled(value: Any, as_json: bool) -> Any:
    """Return a part with its keys, and those of its contents, in camel case; values stay unchanged."""
    if not as_json:
        return value
    return {
        camel(key): {camel(inner): one for inner, one in body.items()} if isinstance(body, dict) else body
        for key, body in value.items()
    }


@st.composite
def _dressed(draw: st.DrawFn, part: Content) -> Content:
    """The part, sometimes with a signature, nulls or an unknown key, in one of the two spellings."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        part = {**part, "thought_signature": draw(st.sampled_from(SIGNATURES))}
    elif kind == 1:
        part = {**NULLS, "thought": None, **part}
    elif kind == 2:
        part = {**part, "x_unknown": draw(json_values)}
    return _spelled(part, draw(st.booleans())) if kind < 6 else part


_media: st.SearchStrategy[Content] = st.sampled_from(
    [
        {"inline_data": {"mime_type": "image/png", "data": "__8="}},
        {"inline_data": {"mime_type": "image/png", "data": "//8=", "display_name": "a.png"}},
        {"inline_data": {"mime_type": "audio/mpeg", "data": "AAAA", "display_name": None}},
        {"inline_data": {"mime_type": "audio/wav", "data": "AAAA"}},
        {"inline_data": {"mime_type": "application/pdf", "data": "JVBERg==", "display_name": "a.pdf"}},
        {"inline_data": {"mime_type": "text/plain; charset=utf-8", "data": "AAAA"}},
        {"file_data": {"file_uri": "https://example.com/a.png", "mime_type": "image/png"}},
        {"file_data": {"file_uri": "https://generativelanguage.googleapis.com/v1beta/files/a", "mime_type": None}},
        {"file_data": {"file_uri": "gs://bucket/a.pdf", "mime_type": "application/pdf", "display_name": "b"}},
    ]
)
_code: st.SearchStrategy[Content] = st.sampled_from(
    [
        {"executable_code": {"language": "PYTHON", "code": "print(1)"}},
        {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"tool_call": {"id": "s1", "tool_type": "URL_CONTEXT", "args": {"a": None}}},
        {"hologram": {"scene": 3}},
        {"thought_signature": "c2lnbmVk"},
        {},
    ]
)
_names = st.sampled_from([*TOOL_NAMES, "", "no name!", "9", "ns.tool:a-b"])
_ids = st.sampled_from([None, None, "c1", "c2", ""])
_objects = st.dictionaries(st.text(max_size=4), json_values, max_size=3)


@st.composite
def _said(draw: st.DrawFn, model: bool) -> Content:
    """A part that is neither call nor result."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(_dressed(draw(_media)))
    if kind == 1 and model:
        return draw(_dressed(draw(_code)))
    if kind in (2, 3) and model:
        return draw(_dressed({"text": draw(texts(20)), "thought": True}))
    return draw(_dressed({"text": draw(texts(30))}))


@st.composite
def _call(draw: st.DrawFn, name: str, call_id: str | None) -> Content:
    args = draw(st.none() | _objects) if draw(st.booleans()) else {"text": draw(texts(30))}
    body: Content = {"name": name, "args": args}
    if call_id is not None or draw(st.booleans()):
        body["id"] = call_id
    return draw(_dressed({"function_call": body}))


@st.composite
def _result(draw: st.DrawFn, name: str, call_id: str | None) -> Content:
    said = draw(texts())
    shapes: list[Any] = [{"result": said}, {"result": said}, {"output": said}, {"error": said}, {"error": {"code": 5}}]
    response = draw(st.sampled_from([*shapes, {"result": [said, None]}, {}, None]) | _objects)
    body: Content = {"name": name, "response": response}
    if call_id is not None or draw(st.booleans()):
        body["id"] = call_id
    if draw(st.integers(0, 7)) == 0:
        body["parts"] = draw(st.sampled_from([None, [], [{"inline_data": {"mime_type": "image/png", "data": "AAAA"}}]]))
    return draw(_dressed({"function_response": body}))


@st.composite
def batches(draw: st.DrawFn) -> list[Content]:
    """A few contents: a user's, a model's with parallel calls, their results, a model's answer."""
    contents: list[Content] = []
    if draw(st.booleans()):
        contents.append({"role": "user", "parts": draw(st.lists(_said(model=False), min_size=1, max_size=3))})
    if draw(st.booleans()):
        calls = [(draw(_names), draw(_ids)) for _ in range(draw(st.integers(1, 3)))]
        parts = [draw(_call(*one)) for one in calls]
        if draw(st.booleans()):
            parts.insert(draw(st.integers(0, len(parts))), draw(_said(model=True)))
        contents.append({"role": "model", "parts": parts})
        answers = draw(st.permutations(calls)) if draw(st.integers(0, 2)) == 0 else calls
        results = [draw(_result(*one)) for one in answers]
        if draw(st.integers(0, 5)) == 0:
            results.insert(draw(st.integers(0, len(results))), draw(_said(model=False)))
        if draw(st.integers(0, 9)) == 0:
            results.pop()
        plain = all("functionResponse" in part or "function_response" in part for part in results)
        others = ["function", "tool"] if plain else ["user"]
        role = draw(st.sampled_from(["user", "user", "user", *others, None]))
        contents.append({"role": role, "parts": results})
    if draw(st.booleans()) or not contents:
        content: Content = {"role": "model", "parts": draw(st.lists(_said(model=True), min_size=1, max_size=3))}
        contents.append(draw(st.sampled_from([content, content, content, {**content, "x": 1}, {"role": "model"}])))
    return contents
