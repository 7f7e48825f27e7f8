"""Entries as messages of Pydantic AI, in the form of its dumps: the reverse of `transfer.sources.pydantic_ai`. Pure.

What a message of Pydantic AI had besides text is in the metadata of the entries. It is restored where entries are shown
unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, groupby
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from palimpsest.formats import Adapted, Joined, Message, Problem, Shown
from palimpsest.formats.anthropic_rules import binds_thinking
from palimpsest.formats.common import split_address, unused
from palimpsest.formats.openai_chat import OpenAIChat
from palimpsest.formats.wording import shown_text, stand_in
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Part, Reasoning, Status, Text
from palimpsest.transfer.sources.pydantic_ai import (
    AT,
    BARE,
    CACHE_POINT,
    CHARACTERS,
    DATA,
    HOSTED_CALL,
    HOSTED_RETURN,
    NAME,
    characters,
    read_message,
)

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

_OF_MODEL = ("model_name", "provider_name", "provider_details", "provider_response_id", "finish_reason")
_OF_PART = ("id", "provider_name", "provider_details", "signature", "tool_kind", "citations")
_OF_MEDIUM = ("vendor_metadata", "media_type", "identifier", "force_download")
_BINDING = ("anthropic", "bedrock")
"""Providers of models that take signed thinking only where it was made."""

_LOADED = ("capability-load-delta", "tool-availability-delta")
"""Parts of requests that say what the framework has made available. The model does not see them."""

_OUTCOMES: dict[Status, str] = {"error": "failed", "denied": "denied", "unknown": "interrupted"}
_SOUNDS = {"wav": "audio/wav", "mp3": "audio/mpeg"}


class PydanticAI(OpenAIChat):
    """The format `pydantic-ai`: messages as `ModelMessagesTypeAdapter` dumps them.

    Tokens are counted as in chat completions.
    """

    name = NAME
    bills_kept = False

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return dumps of messages as entries. Raises InvalidEntry naming what is malformed."""
        return [entry for message in messages for entry in read_message(message)[0]]

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as dumps of messages, with the entries of a group together; nothing is repaired."""
        groups = groupby(entries, lambda entry: entry.group or id(entry))
        shown = [[Shown(entry, data=entry.kind in ("context", "summary")) for entry in group] for _, group in groups]
        return [message for group in shown for message in self.render(group)]

    def unbound(self, entry: Entry, model: Model | None) -> Entry:
        """Return the message without signed thinking of Claude, if the model takes that only where it was made."""
        if isinstance(entry.content, str) or not binds_thinking(model):
            return entry
        fields = _extra_fields(entry)
        stays = [not _is_bound(part, own) for part, own in zip(entry.content, fields, strict=True)]
        if all(stays):
            return entry
        kept = {**_kept(entry), "parts": list(compress(fields, stays))}
        parts, metadata = tuple(compress(entry.content, stays)), {**(entry.metadata or {}), NAME: kept}
        return msgspec.structs.replace(entry, content=parts, metadata=metadata, tokens=None)

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group: the model's responses with their calls, then a request with results and what is only
        data."""
        spoken = [shown for shown in group if not shown.data and _is_model(shown.entry)]
        ids = _call_ids(spoken)
        messages = list(_responses(spoken, ids))
        parts = [_request_part(shown, ids) for shown in group if shown.data or not _is_model(shown.entry)]
        shown_parts = [part for part in parts if part["content"] or part["part_kind"] == "tool-return"]
        shown_parts += [part for shown in group for part in _loaded_with(shown.entry)]
        if shown_parts:
            messages.append({"kind": "request", "parts": shown_parts})
        return messages

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the messages, with the caller's system text apart, since an agent has instructions of its own."""
        return Joined(messages, system or None)

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the dumps as `message_history`."""
        return {"message_history": joined.messages}

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return no problems: groups are complete, and Pydantic AI repairs what its providers would refuse."""
        return []


def _is_model(entry: Entry) -> bool:
    return entry.kind == "tool_call" or (entry.kind == "message" and entry.role == "assistant")


def _call_ids(spoken: Sequence[Shown]) -> dict[int, str]:
    """Return the ids of a group's calls, by `seq`: as they came, or made from the `seq` if empty or already used."""
    ids = dict[int, str]()
    for shown in spoken:
        entry = shown.entry
        if entry.kind == "tool_call":
            ids[entry.seq] = unused(entry.call_id or f"call_{entry.seq}", entry.seq, ids.values(), 256)
    return ids


# --- responses of the model


def _responses(spoken: Sequence[Shown], ids: Mapping[int, str]) -> Iterator[Message]:
    """Yield the responses. If anything in one is not as it came, nothing in it refers to what its provider keeps."""
    runs = list[list[Shown]]()
    for shown in spoken:
        if runs and (shown.entry.continues or shown.entry.kind == "tool_call"):
            runs[-1].append(shown)
        else:
            runs.append([shown])
    for run in runs:
        whole = all(shown.text is None and _is_as_it_came(shown.entry) for shown in run) and _is_paired(run)
        parts = [part for shown in run for part in _response_parts(shown, ids, whole=whole)]
        if parts:
            first = run[0].entry
            own = _chosen(_kept(first), _OF_MODEL) if whole else {}
            yield {"kind": "response", "parts": parts, "timestamp": first.created_at.isoformat(), **own}


def _is_as_it_came(entry: Entry) -> bool:
    """Return whether no thought in the entry has been changed, nor anything of tools that its provider ran."""
    if isinstance(entry.content, str):
        return True
    lengths = map(_length, entry.content)
    return all(
        length is None or fields.get(CHARACTERS) == length
        for length, fields in zip(lengths, _extra_fields(entry), strict=True)
    )


def _is_bound(part: Part, fields: Mapping[str, Any]) -> bool:
    return isinstance(part, Reasoning) and "signature" in fields and fields.get("provider_name") in _BINDING


def _length(part: Part) -> int | None:
    """Return the length of a part that goes back to its provider unchanged or not at all; None for any other part."""
    if isinstance(part, Reasoning):
        return len(part.text)
    return characters(part.item) if _is_hosted(part) else None


def _is_hosted(part: Part) -> TypeGuard[Opaque]:
    return isinstance(part, Opaque) and part.item.get("type") in (HOSTED_CALL, HOSTED_RETURN)


def _is_paired(run: Sequence[Shown]) -> bool:
    """Return whether each call of a tool run by the provider has its result, and the reverse: neither is accepted
    alone."""
    parts = [part for shown in run if not isinstance(shown.entry.content, str) for part in shown.entry.content]
    ids: dict[str, list[str]] = {HOSTED_CALL: [], HOSTED_RETURN: []}
    for part in filter(_is_hosted, parts):
        ids[part.item["type"]].append(str(part.item.get("tool_call_id")))
    return sorted(ids[HOSTED_CALL]) == sorted(ids[HOSTED_RETURN])


def _response_parts(shown: Shown, ids: Mapping[int, str], *, whole: bool) -> Iterator[Message]:
    """Yield the parts of a response for one entry. With `whole` they refer to what the provider keeps."""
    entry = shown.entry
    if entry.kind == "tool_call":
        args = shown.text if shown.text is not None else entry.text
        own = _chosen(_kept(entry), _OF_PART) if whole else {}
        yield {
            "part_kind": "tool-call",
            "tool_name": entry.name or "",
            "args": args,
            "tool_call_id": ids[entry.seq],
            **own,
        }
    elif shown.text is not None or isinstance(entry.content, str):
        text = entry.text if shown.text is None else shown.text
        own = _chosen(_extra_fields(entry)[0], _OF_PART) if whole else {}
        yield from [{"part_kind": "text", "content": text, **own}] if text else []
    else:
        for part, fields in zip(entry.content, _extra_fields(entry), strict=True):
            if whole and _is_hosted(part):
                yield _with_kind(part, "part_kind")
            elif whole and isinstance(part, Reasoning) and CHARACTERS in fields:
                yield {"part_kind": "thinking", "content": part.text, **_chosen(fields, _OF_PART)}
            else:
                yield from _spoken(part, _chosen(fields, _OF_PART) if whole else {})
    if whole and entry.kind == "message":
        signed = (_chosen(fields, _OF_PART) for fields in _fields_alone(entry))
        yield from ({"part_kind": "text", "content": "", **own} for own in signed if "provider_details" in own)


def _spoken(part: Part, own: Message) -> Iterator[Message]:
    """Yield a part of what the model said.

    Thoughts that Pydantic AI has not brought, and media that the model made, are shown as text.
    """
    medium = _medium(part)
    if isinstance(part, Reasoning) and own:
        yield {"part_kind": "thinking", "content": part.text, **own}
    elif medium is not None and medium["kind"] == "binary":
        yield {"part_kind": "file", "content": medium, **own}
    elif text := stand_in(part):
        yield {"part_kind": "text", "content": text, **(own if isinstance(part, Text) else {})}


# --- requests to the model


def _request_part(shown: Shown, ids: Mapping[int, str]) -> Message:
    """Return a part of a request: a result, a system prompt, or a user's prompt or what is shown as one."""
    entry = shown.entry
    at = {"timestamp": entry.created_at.isoformat()}
    if shown.data:
        text = shown_text(entry) if shown.text is None else shown.text
        return {"part_kind": "user-prompt", "content": text, **at}
    own = _kept(entry) if shown.text is None else {}
    if entry.role == "system":
        return {"part_kind": "system-prompt", "content": entry.text if shown.text is None else shown.text, **at}
    content = _contents(entry) if shown.text is None else shown.text
    if isinstance(content, str) and DATA in own:
        content = _value_of(own[DATA] if isinstance(own[DATA], str) else content, content)
    if entry.kind != "tool_result":
        feedback = _chosen(own, ("part_kind", "retry")) if own.get("part_kind") == "retry-feedback" else {}
        return {"part_kind": "user-prompt", "content": content, **at, **feedback}
    outcome = {"outcome": _OUTCOMES[entry.status]} if entry.status in _OUTCOMES else {}
    return {
        "part_kind": "tool-return",
        "tool_name": entry.name or "",
        "content": content,
        "tool_call_id": ids.get(entry.answers, entry.call_id or f"call_{entry.answers}"),
        **at,
        **outcome,
        **_chosen(own, ("outcome", "retry") if isinstance(content, str) else ("outcome", "retry", "tool_kind")),
    }


def _loaded_with(entry: Entry) -> list[Message]:
    """Return the parts that came beside this entry of a request and say what is available since."""
    parts = () if _is_model(entry) else _kept(entry).get("parts", ())
    return [part for part in parts if isinstance(part, dict) and part.get("part_kind") in _LOADED]


def _value_of(encoded: str, text: str) -> Any:
    """Return the value that is encoded as JSON, or else the text: a policy may have changed it."""
    try:
        return json.loads(encoded)
    except (ValueError, RecursionError):
        return text


def _contents(entry: Entry) -> Any:
    """Return the content of a prompt or a result: text, a list of texts, media and marks for the provider's cache, or
    the one medium that a tool returned."""
    marks = [
        (fields.get(AT), fields) for fields in _fields_alone(entry, "content") if fields.get("kind") == CACHE_POINT
    ]
    if isinstance(entry.content, str) and not marks:
        return entry.content
    contents = list[Any]()
    parts = (Text(text=entry.content),) if isinstance(entry.content, str) else entry.content
    for i, (part, fields) in enumerate(zip(parts, _extra_fields(entry, "content"), strict=True), 1):
        medium = _medium(part)
        if isinstance(part, File) and part.file_id is not None and "provider_name" in fields:
            medium = {"kind": "uploaded-file", "file_id": part.file_id, "provider_name": fields["provider_name"]}
        elif isinstance(part, Opaque) and entry.native is not None and entry.native.format == NAME:
            medium = _with_kind(part, "kind")
        elif medium is not None:
            medium |= _chosen(fields, _OF_MEDIUM)
        content = medium or stand_in(part)
        contents += [content] if content else []
        if contents:  # Pydantic AI refuses a mark before all else
            contents += [{key: mark[key] for key in mark if key != AT} for at, mark in marks if at == i]
    return contents[0] if len(contents) == 1 and _kept(entry).get(BARE) else contents


def _with_kind(part: Opaque, key: str) -> Message:
    """Return the object of Pydantic AI that is stored as an opaque part, with its kind under this key."""
    return {key: part.item["type"], **{name: value for name, value in part.item.items() if name != "type"}}


def _medium(part: Part) -> Message | None:
    """Return an image, a sound or a document as Pydantic AI has it; None for all else, and for files only the provider
    has."""
    if isinstance(part, Audio):
        return {"kind": "binary", "data": part.data, "media_type": _SOUNDS.get(part.format, f"audio/{part.format}")}
    address = part.source if isinstance(part, Image) else part.data if isinstance(part, File) else None
    if address is None:
        return None
    about = {"vendor_metadata": {"detail": part.detail}} if isinstance(part, Image) and part.detail else {}
    inline = split_address(address)
    if inline is not None:
        return {"kind": "binary", "data": inline[1], "media_type": inline[0], **about}
    kind = "image-url" if isinstance(part, Image) else "document-url"
    # Without the key `media_type` it would be no medium in a result.
    return {"kind": kind, "url": address, "media_type": None, **about}


# --- what the metadata keep


def _kept(entry: Entry) -> Mapping[str, Any]:
    kept = (entry.metadata or {}).get(NAME)
    return kept if isinstance(kept, dict) else {}


def _extra_fields(entry: Entry, key: str = "parts") -> list[Message]:
    """Return for each part the fields of Pydantic AI that parts of entries do not have."""
    count = 1 if isinstance(entry.content, str) else len(entry.content)
    kept = [fields for fields in _kept(entry).get(key, ()) if isinstance(fields, dict)]
    return kept[:count] if len(kept) >= count else [{} for _ in range(count)]


def _fields_alone(entry: Entry, key: str = "parts") -> list[Message]:
    """Return the fields that stand behind those of the entry's parts: of parts without text, and of marks."""
    kept = [fields for fields in _kept(entry).get(key, ()) if isinstance(fields, dict)]
    return kept[1 if isinstance(entry.content, str) else len(entry.content) :]


def _chosen(kept: Mapping[str, Any], keys: Sequence[str]) -> Message:
    return {key: kept[key] for key in keys if key in kept}
