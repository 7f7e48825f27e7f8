"""`remember(genai.Client(), session)`: `generate_content` of the `google-genai` client, with memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from palimpsest import AsyncSession, Session
from palimpsest.integrations.asking import (
    NO_LISTS,
    Asked,
    Dialect,
    forms_of,
    one_answer,
    only_new,
    part_of,
    system_of,
    texts_of,
    tokens_of,
    tools_of,
)
from palimpsest.integrations.base import Vendor, remembered
from palimpsest.types import CutOff

C = TypeVar("C")


class _Contents(Dialect):
    """`generate_content` and its stream."""

    format = "gemini"

    def read(self, given: Mapping[str, Any]) -> Asked:
        """Return what a call asks for."""
        config = given.get("config")
        one_answer(config, "candidate_count", "candidateCount", where="config.")
        contents = _contents(given.get("contents"))
        only_new(contents, ("user", "function", "tool"), "contents")
        system = part_of(config, "system_instruction", "systemInstruction")
        tools = tools_of(part_of(config, "tools"), "config.tools")
        answer = tokens_of(config, "max_output_tokens", "maxOutputTokens", where="config.")
        texts = texts_of(system, "config.system_instruction")
        forms = forms_of(
            part_of(config, "response_schema", "responseSchema"),
            part_of(config, "response_json_schema", "responseJsonSchema"),
        )
        return Asked(contents, system_of(texts), tools, given.get("model"), answer, where="contents", forms=forms)

    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """Return the arguments to send. The caller's tools stay as they are."""
        built = {**given, "contents": request["contents"]}
        system = request.get("config", {}).get("system_instruction")
        if system is not None:
            config = given.get("config") or {}
            own = {"system_instruction": system}
            built["config"] = (
                {**{key: value for key, value in config.items() if key != "systemInstruction"}, **own}
                if isinstance(config, Mapping)
                else config.model_copy(update=own)
            )
        return built


def _contents(value: object) -> list[Any]:
    """Return contents in any form that the client takes: texts, parts and contents, alone or in a list.

    Adjacent parts become one content of the user, and so do those of a list inside the list.
    """
    if value is None:
        return []
    contents = list[Any]()
    parts: list[Any] | None = None
    for item in value if _is_list(value) else [value]:
        if _is_list(item):
            contents.append({"role": "user", "parts": list(map(_part, item))})
            parts = None
            continue
        if part_of(item, "parts") is not None or part_of(item, "role") is not None:
            contents.append({"role": "user", **item} if isinstance(item, Mapping) else _with_role(item))
            parts = None
            continue
        if parts is None:
            parts = list[Any]()
            contents.append({"role": "user", "parts": parts})
        parts.append(_part(item))
    return contents


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, NO_LISTS)


def _part(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else _file(value)


def _with_role(content: Any) -> Any:
    return content if part_of(content, "role") else {"role": "user", "parts": content.parts}


def _file(part: Any) -> Any:
    """Return a part that names the file, for a file that was uploaded before; other parts unchanged."""
    uri = part_of(part, "uri")
    if uri is None:
        return part
    kind = part_of(part, "mime_type", "mimeType")
    return {"file_data": {"file_uri": uri, **({"mime_type": kind} if kind else {})}}


_generating = _Contents()

GOOGLE = Vendor(
    name="google-genai",
    probe="generate_content",
    ways={
        "models.generate_content": (_generating, "whole"),
        "models.generate_content_stream": (_generating, "stream"),
        "aio.models.generate_content": (_generating, "whole"),
        "aio.models.generate_content_stream": (_generating, "stream"),
    },
    refused={
        f"{face}{name}": "client.models.generate_content"
        for face in ("", "aio.")
        for name in ("chats", "live", "interactions", "agents")
    },
)


def remember(client: C, session: Session | AsyncSession, *, cut_off: CutOff = "keep") -> C:
    """Return an object that is used like this Google client, and remembers.

    `models.generate_content` and `models.generate_content_stream`, and those of `aio`, take the new contents. These are
    added to the session; the request is built from its log within the budget; the client sends it; and the answer, its
    calls and what it cost are recorded. The client's return value is returned unchanged, and the events of a stream
    pass through as they come. The system instruction and the tools are of that call: sent, not stored. Functions as
    tools are refused, since the client would run them by itself: declare them.

    `client.aio` needs an AsyncSession, and `client.models` a Session. Each call is a `turn()` of the session, unless
    one is open. `cut_off` is as in `session.stream()`. Raises ConfigError if this is no such client, and, when they are
    used, for ways to a model that would go around the log.
    """
    return remembered(client, session, GOOGLE, cut_off)
