"""Entries as messages of Pydantic AI, in the form of its dumps: the way back from `transfer.sources.pydantic_ai`. Pure.

What a message of its own had beside text is in the metadata of the entries, and comes back where they are shown whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeGuard

from palimpsest.formats import Adapted, Joined, Message, Problem, Shown
from palimpsest.formats.common import split_address, unused
from palimpsest.formats.openai_chat import OpenAIChat
from palimpsest.formats.wording import shown_text, stand_in
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Part, Reasoning, Status, Text
from palimpsest.transfer.sources.pydantic_ai import (
    BARE,
    CHARACTERS,
    HOSTED_CALL,
    HOSTED_RETURN,
    NAME,
    characters,
    read_message,
)

_OF_MODEL = ("model_name", "provider_name", "provider_details", "provider_response_id", "finish_reason")
_OF_PART = ("id", "provider_name", "provider_details", "signature", "tool_kind", "citations")
_OF_MEDIUM = ("vendor_metadata", "media_type", "identifier", "force_download")
_OUTCOMES: dict[Status, str] = {"error": "failed", "denied": "denied", "unknown": "interrupted"}
_SOUNDS = {"wav": "audio/wav", "mp3": "audio/mpeg"}


class PydanticAI(OpenAIChat):
    """The format `pydantic-ai`: messages as `ModelMessagesTypeAdapter` dumps them, counted as chat completions are."""

    name = NAME
    bills_kept = False

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return dumps of messages as entries. Raises InvalidEntry naming what is malformed."""
        return [entry for message in messages for entry in read_message(message)[0]]

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as dumps of messages, those of one group together; nothing is repaired."""
        groups = groupby(entries, lambda entry: entry.group or id(entry))
        shown = [[Shown(entry, data=entry.kind in ("context", "summary")) for entry in group] for _, group in groups]
        return [message for group in shown for message in self.render(group)]

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group: the model's responses with their calls, then results and what is only data in a request."""
        spoken = [shown for shown in group if not shown.data and _is_model(shown.entry)]
        ids = _call_ids(spoken)
        messages = list(_responses(spoken, ids))
        parts = [_asked(shown, ids) for shown in group if shown.data or not _is_model(shown.entry)]
        if told := [part for part in parts if part["content"] or part["part_kind"] == "tool-return"]:
            messages.append({"kind": "request", "parts": told})
        return messages

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the messages, and the caller's text beside them: an agent has instructions of its own."""
        return Joined(messages, system or None)

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the dumps as `message_history`."""
        return {"message_history": joined.messages}

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Nothing: groups come whole, and Pydantic AI repairs what its providers would refuse."""
        return []


def _is_model(entry: Entry) -> bool:
    return entry.kind == "tool_call" or (entry.kind == "message" and entry.role == "assistant")


def _call_ids(spoken: Sequence[Shown]) -> dict[int, str]:
    """The ids of a group's calls, by `seq`: as they came, or by place where they are empty or taken."""
    ids = dict[int, str]()
    for shown in spoken:
        entry = shown.entry
        if entry.kind == "tool_call":
            ids[entry.seq] = unused(entry.call_id or f"call_{entry.seq}", entry.seq, ids.values(), 256)
    return ids


# --- what the model said


def _responses(spoken: Sequence[Shown], ids: Mapping[int, str]) -> Iterator[Message]:
    """The responses. Nothing in one refers to what its provider keeps if anything of it is not as it came."""
    runs = list[list[Shown]]()
    for shown in spoken:
        if runs and (shown.entry.continues or shown.entry.kind == "tool_call"):
            runs[-1].append(shown)
        else:
            runs.append([shown])
    for run in runs:
        whole = all(shown.text is None and _is_as_it_came(shown.entry) for shown in run) and _is_paired(run)
        parts = [part for shown in run for part in _said(shown, ids, whole=whole)]
        if parts:
            first = run[0].entry
            own = _chosen(_kept(first), _OF_MODEL) if whole else {}
            yield {"kind": "response", "parts": parts, "timestamp": first.created_at.isoformat(), **own}


def _is_as_it_came(entry: Entry) -> bool:
    """Whether no thought in it has been changed since, and nothing of the tools that its provider ran."""
    if isinstance(entry.content, str):
        return True
    lengths = map(_length, entry.content)
    return all(
        length is None or more.get(CHARACTERS) == length for length, more in zip(lengths, _beside(entry), strict=True)
    )


def _length(part: Part) -> int | None:
    """How long a part is that goes back as it came, or not at all; None for any other."""
    if isinstance(part, Reasoning):
        return len(part.text)
    return characters(part.item) if _is_hosted(part) else None


def _is_hosted(part: Part) -> TypeGuard[Opaque]:
    return isinstance(part, Opaque) and part.item.get("type") in (HOSTED_CALL, HOSTED_RETURN)


def _is_paired(run: Sequence[Shown]) -> bool:
    """Whether each call of a tool that the provider ran is there with what it gave: it takes neither alone."""
    parts = [part for shown in run if not isinstance(shown.entry.content, str) for part in shown.entry.content]
    ids: dict[str, list[str]] = {HOSTED_CALL: [], HOSTED_RETURN: []}
    for part in filter(_is_hosted, parts):
        ids[part.item["type"]].append(str(part.item.get("tool_call_id")))
    return sorted(ids[HOSTED_CALL]) == sorted(ids[HOSTED_RETURN])


def _said(shown: Shown, ids: Mapping[int, str], *, whole: bool) -> Iterator[Message]:
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
        own = _chosen(_beside(entry)[0], _OF_PART) if whole else {}
        yield from [{"part_kind": "text", "content": text, **own}] if text else []
    else:
        for part, more in zip(entry.content, _beside(entry), strict=True):
            if whole and _is_hosted(part):
                yield _with_kind(part, "part_kind")
            else:
                yield from _spoken(part, _chosen(more, _OF_PART) if whole else {})


def _spoken(part: Part, own: Message) -> Iterator[Message]:
    """A part of what the model said. Of thoughts without a signature, and of what it made, the text is shown."""
    medium = _medium(part)
    if isinstance(part, Reasoning) and own:
        yield {"part_kind": "thinking", "content": part.text, **own}
    elif medium is not None and medium["kind"] == "binary":
        yield {"part_kind": "file", "content": medium, **own}
    elif text := stand_in(part):
        yield {"part_kind": "text", "content": text, **(own if isinstance(part, Text) else {})}


# --- what it was told


def _asked(shown: Shown, ids: Mapping[int, str]) -> Message:
    """A part of a request: a result, a system prompt, or what the user said and what is shown as that."""
    entry = shown.entry
    at = {"timestamp": entry.created_at.isoformat()}
    if shown.data:
        text = shown_text(entry) if shown.text is None else shown.text
        return {"part_kind": "user-prompt", "content": text, **at}
    own = _kept(entry) if shown.text is None else {}
    if entry.role == "system":
        return {"part_kind": "system-prompt", "content": entry.text if shown.text is None else shown.text, **at}
    content = _contents(entry) if shown.text is None else shown.text
    if entry.kind != "tool_result":
        feedback = _chosen(own, ("part_kind", "retry")) if own.get("part_kind") == "retry-feedback" else {}
        return {"part_kind": "user-prompt", "content": content, **at, **feedback}
    if own.get("outcome") == "retried" and isinstance(content, str):
        content = _list_in(content)
    outcome = {"outcome": _OUTCOMES[entry.status]} if entry.status in _OUTCOMES else {}
    return {
        "part_kind": "tool-return",
        "tool_name": entry.name or "",
        "content": content,
        "tool_call_id": ids.get(entry.answers, entry.call_id or f"call_{entry.answers}"),
        **at,
        **outcome,
        **_chosen(own, ("outcome", "retry")),
    }


def _list_in(text: str) -> Any:
    """The list that a text is in JSON, or the text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, list) else text


def _contents(entry: Entry) -> Any:
    """The content of a prompt or a result: text, or texts and media in a list, or the one medium that a tool gave."""
    if isinstance(entry.content, str):
        return entry.content
    found = list[Any]()
    for part, more in zip(entry.content, _beside(entry, "content"), strict=True):
        medium = _medium(part)
        if isinstance(part, File) and part.file_id is not None and "provider_name" in more:
            medium = {"kind": "uploaded-file", "file_id": part.file_id, "provider_name": more["provider_name"]}
        elif isinstance(part, Opaque) and entry.native is not None and entry.native.format == NAME:
            medium = _with_kind(part, "kind")
        elif medium is not None:
            medium |= _chosen(more, _OF_MEDIUM)
        content = medium or stand_in(part)
        found += [content] if content else []
    return found[0] if len(found) == 1 and _kept(entry).get(BARE) else found


def _with_kind(part: Opaque, key: str) -> Message:
    """The object of Pydantic AI that an opaque part is, with its kind under this key."""
    return {key: part.item["type"], **{name: value for name, value in part.item.items() if name != "type"}}


def _medium(part: Part) -> Message | None:
    """An image, a sound or a document as Pydantic AI has it; None for what is none, or is at its provider alone."""
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
    return {"kind": kind, "url": address, "media_type": None, **about}  # in a result it is no medium without this key


# --- what was kept beside


def _kept(entry: Entry) -> Mapping[str, Any]:
    kept = (entry.metadata or {}).get(NAME)
    return kept if isinstance(kept, dict) else {}


def _beside(entry: Entry, key: str = "parts") -> list[Message]:
    """For each part what it has no field for."""
    count = 1 if isinstance(entry.content, str) else len(entry.content)
    kept = [one for one in _kept(entry).get(key, ()) if isinstance(one, dict)]
    return kept[:count] if len(kept) >= count else [{} for _ in range(count)]


def _chosen(kept: Mapping[str, Any], keys: Sequence[str]) -> Message:
    return {key: kept[key] for key in keys if key in kept}
