"""Hypothesis strategies for the answers of three vendors' clients, and validators of requests.

An answer is drawn as JSON, from the fields of the client's own types, and then parsed by these types, as the client
parses a response.
"""

from __future__ import annotations

import base64
import types as python_types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from hypothesis import strategies as st

from sdks import load

DEEPEST = 6
"""The depth of nested objects from which on optional fields are left out."""

ALWAYS = ("parameters", "strict")
"""Fields that the API always returns although the types of answers make them optional. Requests must have them."""

_words = st.sampled_from(["", "a", "two words", "\u00e9t\u00e9", "<context>", "line\nline", " "]) | st.text(max_size=5)
_leaves: dict[Any, st.SearchStrategy[Any]] = {
    str: _words,
    int: st.integers(0, 5000),
    float: st.floats(0, 1, width=32).map(lambda number: round(number, 3)),
    bool: st.booleans(),
    type(None): st.none(),
    bytes: st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode()),
    datetime: st.just("2026-01-02T03:04:05Z"),
}
_scalars = st.none() | st.booleans() | st.integers(-9, 9) | _words
_json = _scalars | st.lists(_scalars, max_size=2)
_objects = st.dictionaries(st.text("abc", max_size=2), _json, max_size=2)


def wire(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values of a type: objects with all required fields and some of the optional ones."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _leaves:
        return _leaves[kind]
    if origin is Annotated:
        return wire(args[0], depth)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, python_types.UnionType):
        return st.one_of([wire(one, depth) for one in args])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.text("abc", max_size=2), wire(args[1], depth + 1), max_size=2)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return st.lists(wire(args[0], depth + 1), max_size=2) if depth < DEEPEST else st.just([])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from([one.value for one in kind])
    if hasattr(kind, "model_fields"):
        return _model(kind, depth)
    return _objects if kind is dict else _json  # `object`, `Any` and type parameters


@cache
def _model(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    def made() -> st.SearchStrategy[Any]:
        required, optional = {}, {}
        for name, field in kind.model_fields.items():
            key = field.alias if name.endswith("_") and field.alias else name
            if field.is_required() or key in ALWAYS:
                required[key] = wire(field.annotation, depth + 1)
            elif depth < DEEPEST:
                optional[key] = wire(field.annotation, depth + 1)
        return st.fixed_dictionaries(required, optional=optional)

    return st.deferred(made)


class Vendor(NamedTuple):
    """A strategy for one vendor's answers, and a function that returns the faults of the next request's messages."""

    format: str
    answers: st.SearchStrategy[Any]
    faults: Callable[[Sequence[dict[str, Any]]], list[str]]


# --- validators: by the types of requests, refusing keys that they do not declare


def _strict(kind: Any) -> Callable[[Any], list[str]]:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    adapter = TypeAdapter(list[kind], config=ConfigDict(extra="forbid"))

    def faults(values: Any) -> list[str]:
        try:
            drain(adapter.validate_python(values))
        except ValidationError as fault:
            return [f"{error['loc']}: {error['msg']}" for error in fault.errors()[:4]]
        return []

    return faults


def drain(value: Any) -> None:
    """Iterate over every value: pydantic validates the elements of an iterable only then."""
    if isinstance(value, dict):
        value = list(value.values())
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        for inner in value:
            drain(inner)


@cache
def chat() -> Vendor:
    """OpenAI's chat completions."""
    published, usage = load("openai.types.chat"), load("openai.types").CompletionUsage
    always = {"content": None, "refusal": None}
    choice = wire(published.chat_completion.Choice).map(
        lambda made: {**made, "index": 0, "message": {**always, **made["message"]}}
    )
    made = st.fixed_dictionaries(
        {
            "id": _words,
            "object": st.just("chat.completion"),
            "created": st.just(1),
            "model": _words,
            "choices": choice.map(lambda one: [one]),
            "usage": st.none() | wire(usage),
        },
        optional={"service_tier": st.just("default"), "system_fingerprint": _words},
    )
    judge = _strict(published.ChatCompletionMessageParam)
    return Vendor("openai", made.map(published.ChatCompletion.model_validate), judge)


@cache
def responses() -> Vendor:
    """OpenAI's responses."""
    published = load("openai.types.responses")
    made = st.fixed_dictionaries(
        {
            "id": _words,
            "object": st.just("response"),
            "created_at": st.just(1.0),
            "model": st.just("m"),
            "parallel_tool_calls": st.just(True),
            "tool_choice": st.just("auto"),
            "tools": st.just([]),
            "output": st.lists(wire(published.ResponseOutputItem), max_size=3),
            "usage": st.none() | wire(published.ResponseUsage),
        },
        optional={"instructions": _words, "status": st.sampled_from(["completed", "incomplete"])},
    )
    judge = _strict(published.ResponseInputItemParam)
    return Vendor("openai-responses", made.map(published.Response.model_validate), judge)


@cache
def anthropic() -> Vendor:
    """Anthropic's messages; of a message its blocks are judged, which its type takes as answers, too."""
    published = load("anthropic.types")
    return _anthropic(published.Message, published.ContentBlockParam, published.WebSearchToolRequestErrorParam)


@cache
def anthropic_beta() -> Vendor:
    """Anthropic's messages with everything in beta: compactions, MCP servers, fallback models."""
    published = load("anthropic.types.beta")
    failure = published.BetaWebSearchToolRequestErrorParam
    return _anthropic(published.BetaMessage, published.BetaContentBlockParam, failure)


def _anthropic(answer: Any, block_kind: Any, failure: Any) -> Vendor:
    judge, judge_failures = _strict(block_kind), _strict(failure)

    def faults(messages: Sequence[dict[str, Any]]) -> list[str]:
        found = [f"the keys {sorted(one)}" for one in messages if one.keys() != {"role", "content"}]
        blocks = [block for one in messages if isinstance(one["content"], list) for block in one["content"]]
        failed = [block["content"] for block in blocks if _has_failed(block)]
        whole = [{**block, "content": []} if _has_failed(block) else block for block in blocks]
        return [*found, *judge(whole), *judge_failures(failed)]

    return Vendor("anthropic", wire(answer).map(answer.model_validate), faults)


def _has_failed(block: dict[str, Any]) -> bool:
    """Whether a search has failed: its content is an object, which the types would validate as an iterable of keys."""
    return block["type"] == "web_search_tool_result" and isinstance(block["content"], dict)


@cache
def gemini() -> Vendor:
    """Google's Gen AI. Its types are the same for requests and answers, and refuse undeclared keys."""
    published = load("google.genai.types")
    response = published.GenerateContentResponse

    def faults(contents: Sequence[dict[str, Any]]) -> list[str]:
        return list(_refusals(published.Content, contents))

    made = st.builds(
        lambda parts, rest, why, usage: response.model_validate(
            {
                "candidates": [{**rest, "content": {"role": "model", "parts": parts}, "finish_reason": why}],
                "usage_metadata": usage,
            }
        ),
        st.lists(_parts(published), max_size=3),
        st.fixed_dictionaries({}, optional={"index": st.just(0), "avg_logprobs": _leaves[float]}),
        wire(published.FinishReason),
        wire(published.GenerateContentResponseUsageMetadata),
    )
    return Vendor("gemini", made, faults)


def _parts(published: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for parts of one kind each, as the API returns them; the type allows several kinds at once."""
    fields = published.Part.model_fields
    beside = {"thought": st.booleans(), "thought_signature": _leaves[bytes]}
    made = []
    for kind, needed in _PARTS.items():
        body = wire(_given(fields[kind].annotation))
        if needed:
            body = st.builds(lambda one, must: {**one, **must}, body, st.fixed_dictionaries(needed))
        made.append(st.fixed_dictionaries({kind: body}, optional=beside))
    return st.one_of(made)


_PARTS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "text": {},
    "inline_data": {"data": _leaves[bytes], "mime_type": st.sampled_from(["image/png", "audio/wav", "text/plain"])},
    "file_data": {"file_uri": st.just("https://example.com/a.png")},
    "function_call": {"name": _words},
    "executable_code": {},
    "code_execution_result": {},
    "tool_call": {},
    "tool_response": {},
}
"""The kinds of parts, each with the fields that the API always returns although the type makes them optional."""


def _given(annotation: Any) -> Any:
    return next(one for one in get_args(annotation) if one is not type(None))


def _refusals(model: Any, values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        try:
            model.model_validate(value)
        except ValueError as fault:
            yield str(fault)


VENDORS: dict[str, Callable[[], Vendor]] = {
    "openai": chat,
    "openai-responses": responses,
    "anthropic": anthropic,
    "anthropic-beta": anthropic_beta,
    "gemini": gemini,
}
