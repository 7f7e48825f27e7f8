"""The format `gemini`, for Google's Gen AI contents: decode, encode, render, join. Pure.

A content becomes one or more entries, tied together by `continues`: each function call and response is an entry of its
own, and the parts between them are a message. Responses come before the user's other parts, so that they follow their
calls directly; `places` keeps where the other parts stood. The shapes are those of the Gemini API reference, "Content".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.formats import GEMINI, Adapted, Format, Joined, Message, Problem, Shown
from palimpsest.formats.common import (
    NAMELESS,
    background,
    fitting,
    is_own,
    mappings,
    own_native,
    renamed_tokens,
    replaced_by_text,
    said_beside,
    said_beside_overhead,
    stand_in_tokens,
    unused,
)
from palimpsest.formats.gemini_contents import (
    decode_content,
    encode_call,
    encode_content,
    encode_result,
    response_of,
    role_of,
    sendable_object,
    to_json,
)
from palimpsest.formats.gemini_parts import DATA, PART_KEYS, encode_part, find, is_signed, sendable, shown_part
from palimpsest.formats.gemini_rules import CALLABLE, NAME_LENGTH, broken_rules
from palimpsest.formats.wording import FENCE_TOKENS, OPENING, OPENING_TOKENS, said_by_system
from palimpsest.log.entry import Entry, File, Opaque, Part, Role, Text

PER_CONTENT = 4
"""Tokens around a content. Google publishes no figure, so this is the one of OpenAI's chat messages."""

PER_PART = 3
"""Tokens between the parts of one content; own figure, on the large side."""

PER_CALL, PER_RESULT = 16, 12
"""Tokens of the JSON keys and braces of a call, and of a result, beside their names and texts; own count."""

UNSIGNED = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""The signature sent with a first call that has none: `skip_thought_signature_validator` in base64.

Models from Gemini 3 on refuse the first function call of a step without a signature. For calls of another or an older
model Google documents two values that are not checked, of which this is one (Gemini API guide and Vertex AI guide,
"Thought signatures"). The field holds bytes, so it is sent as base64, which both services take."""

UNSIGNED_TOKENS = 33
"""What `UNSIGNED` costs as text in o200k_base (a test counts it)."""

_NOT_CALLABLE = r"^(?=[^A-Za-z_])|[^A-Za-z0-9_.:-]"
"""Characters that a function's name must not contain, and the position before a bad first character."""

_ROLES: dict[str, Role] = {"user": "user", "model": "assistant"}
_SIMPLE = {"role", "parts"}
_TEXT = {"text"}


class Gemini(Format):
    """The format `gemini`: contents of Google's Gen AI API, as its Python client and its JSON write them."""

    name, content = GEMINI, "parts"
    signs_calls = True
    prime = OPENING_TOKENS + PER_CONTENT
    words = frozenset(
        {
            "args",
            "functionCall",
            "functionResponse",
            "function_call",
            "function_response",
            "inlineData",
            "inline_data",
            "mimeType",
            "mime_type",
            "model",
            "parts",
            "response",
            "thought",
            "thoughtSignature",
            "thought_signature",
        }
    )

    # --- in

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return the contents as entries. Raises InvalidEntry naming the place of what is malformed."""
        entries: list[Entry] = []
        for i, content in enumerate(mappings(messages, where, "content")):
            role, parts = content.get("role"), content.get("parts")
            if type(parts) is list and len(parts) == 1 and content.keys() == _SIMPLE:
                part = parts[0]
                plain = type(part) is dict and part.keys() == _TEXT and type(part["text"]) is str
                if plain and (role == "user" or role == "model"):
                    entries.append(Entry(role=_ROLES[role], content=part["text"]))
                    continue
            entries.extend(decode_content(content, f"{where}[{i}]"))
        return entries

    # --- out

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as contents, as they came in; nothing is repaired."""
        contents: list[Message] = []
        run: list[Entry] = []
        for entry in entries:
            if run and not (entry.continues and role_of(entry) == role_of(run[0])):
                contents.append(encode_content(run))
                run = []
            run.append(entry)
        if run:
            contents.append(encode_content(run))
        return contents

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group as contents that the API accepts.

        Calls become one content of the model. The user's content after it holds their results, in the same order, and
        then background data. A system message becomes a content of role `system`, which `join` places.
        """
        if len(group) == 1:
            shown, entry = group[0], group[0].entry
            plain = entry.kind == "message" and type(entry.content) is str and entry.native is None and not entry.name
            if plain and entry.role != "system":
                text = entry.content if shown.text is None else shown.text
                return [{"role": role_of(entry), "parts": [{"text": text}]}] if text else []
        calling = [shown for shown in group if not shown.data and shown.entry.kind in ("message", "tool_call")]
        if not any(shown.entry.kind == "tool_call" for shown in calling):
            pieces = ((role_of(shown.entry, shown.data), _said(shown, adapted)) for shown in group)
            return [{"role": role, "parts": parts} for role, parts in pieces if parts]
        calls = _Calls([shown.entry for shown in calling if shown.entry.kind == "tool_call"])
        asking: list[Message] = []
        for shown in calling:
            asking.extend([calls.call(shown, adapted)] if shown.entry.kind == "tool_call" else _said(shown, adapted))
        results = [shown for shown in group if shown.entry.kind == "tool_result" and not shown.data]
        answering = [calls.result(shown, adapted) for shown in sorted(results, key=calls.place)]
        answering += [part for shown in group if shown.data for part in _said(shown, adapted)]
        return [{"role": "model", "parts": asking}, {"role": "user", "parts": answering}]

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the contents with neighbours of one role merged, beginning with a user's.

        Leading system messages are added to the caller's system text. Later ones are said by the user, in a fence.
        """
        texts = [system] if system else []
        contents: list[Message] = []
        for message in messages:
            role, parts = message["role"], message["parts"]
            if role == "system":
                text = "\n".join(part["text"] for part in parts)
                if not contents:
                    texts.append(text)
                    continue
                role, parts = "user", [{"text": said_by_system(text)}]
            if not contents and role == "model":
                contents.append({"role": "user", "parts": [{"text": OPENING}]})
            if contents and contents[-1]["role"] == role:
                contents[-1]["parts"].extend(parts)
            else:
                contents.append({"role": role, "parts": list(parts)})
        return Joined(contents, "\n\n".join(texts) or None)

    def overhead(self, entry: Entry) -> int:
        """Return the tokens that the API, or rendering, adds to this entry beside its texts."""
        kind, content = entry.kind, entry.content
        if kind == "message" and type(content) is str and entry.native is None and entry.role != "system":
            return PER_CONTENT
        tokens = PER_CONTENT + said_beside_overhead(entry, GEMINI)
        if kind == "tool_call":
            tokens = _call_overhead(entry)
        elif kind == "tool_result":
            tokens += PER_RESULT + min(len(entry.name or NAMELESS), NAME_LENGTH)
        elif kind == "message" and entry.role == "system":
            tokens += FENCE_TOKENS
        if type(content) is not str:
            tokens += PER_PART * len(content) + sum(map(stand_in_tokens, content))
        return tokens

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments for `client.models.generate_content`, without the model."""
        config: Message = {}
        if joined.system:
            config["system_instruction"] = joined.system
        if tools:
            config["tools"] = list(tools)
        return {"contents": joined.messages, "config": config} if config else {"contents": joined.messages}

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the API that the contents break, each with its source."""
        return broken_rules(messages)


# --- showing one entry


def _note(adapted: list[Adapted] | None, seq: int, what: str) -> None:
    if adapted is not None:
        adapted.append(Adapted(seq, what))


def _said(shown: Shown, adapted: list[Adapted] | None) -> list[Message]:
    """Return the parts of a message or of background data; an empty list if it says nothing."""
    entry, text = shown.entry, shown.text
    if entry.kind == "message":
        if entry.name:
            _note(adapted, entry.seq, "the name left out")
        if entry.role == "system" and entry.turn:
            _note(adapted, entry.seq, "system message said by the user")
        if text is None:
            parts = (Text(text=entry.content),) if isinstance(entry.content, str) else entry.content
            items = [item for part in parts if (item := _shown_part(entry, part, adapted)) is not None]
            return items + [{"text": beside} for beside in said_beside(entry, GEMINI)]
        return [{"text": text}] if text else []
    text, media = background(shown, lambda part: _medium(entry, part), adapted)
    return [*([{"text": text}] if text else []), *media]


def _medium(entry: Entry, part: Part) -> Message | None:
    """Return a medium of background data as the API takes it from a user, or None.

    A file that is given only by its id is sent only if it is an entry of this format: other ids are not Google's.
    """
    if isinstance(part, Opaque):
        return None
    by_own_id = isinstance(part, File) and part.data is None and is_own(entry, GEMINI)
    item = encode_part(part, own=True) if by_own_id else shown_part(part)
    return sendable(item) if item is not None else None


def _shown_part(entry: Entry, part: Part, adapted: list[Adapted] | None) -> Message | None:
    """Return a part of a message as the API takes it, or as text; None if it says nothing."""
    if entry.role == "system":
        shown = None
    elif is_own(entry, GEMINI):
        item = encode_part(part, own=True)
        shown = sendable(item) if item is not None else None
        if item is not None and any(value is not None and key not in PART_KEYS for key, value in item.items()):
            _note(adapted, entry.seq, "unknown keys left out")
        if shown is None and not isinstance(part, Opaque):
            return None
    else:
        shown = shown_part(part) if entry.role == "user" or isinstance(part, Text) else None
    if shown is not None:
        return shown
    text = replaced_by_text(entry, part, adapted)
    return {"text": text} if text else None


class _Calls:
    """The calls of one group, with the names and ids that their results have to repeat."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.places = {entry.seq: place for place, entry in enumerate(entries)}
        self.names = {entry.seq: _callable(entry.name) for entry in entries}
        self.ids: dict[int, str] = {}
        for entry in entries:
            if entry.call_id:
                self.ids[entry.seq] = unused(entry.call_id, entry.seq, self.ids.values())

    def place(self, shown: Shown) -> int:
        """Return the index, among the group's calls, of the call that a result answers."""
        return self.places[shown.entry.answers]

    def call(self, shown: Shown, adapted: list[Adapted] | None) -> Message:
        """Return a call as a part. It keeps its signature unless its arguments are replaced."""
        entry = shown.entry
        if self.names[entry.seq] != entry.name:
            _note(adapted, entry.seq, "the function's name rewritten")
        part: Message | None = None
        if own_native(entry, GEMINI) is not None and shown.text is None:
            part = sendable(encode_call(entry))
        if part is None:
            args, wrapped = sendable_object(entry.text if shown.text is None else shown.text)
            if wrapped:
                _note(adapted, entry.seq, "arguments wrapped in an object")
            part = {"function_call": {"args": args}}
        body = self._named(part, "function_call", entry.seq)
        body.setdefault("args", {})
        if self.places[entry.seq] == 0 and not is_signed(part):
            part["thought_signature"] = UNSIGNED
        return part

    def result(self, shown: Shown, adapted: list[Adapted] | None) -> Message:
        """Return a result as a part, with the name and id of its call."""
        entry, text = shown.entry, shown.text
        part: Message | None = None
        if text is None and own_native(entry, GEMINI) is not None:
            part = sendable(encode_result(entry))
        if part is None:
            text = _text(entry, adapted) if text is None else text
            part = {"function_response": {"response": response_of(text, entry.status)}}
        body = self._named(part, "function_response", entry.answers)
        body.setdefault("response", response_of("", entry.status))
        return part

    def _named(self, part: Message, kind: str, seq: int) -> Message:
        """Set the name and id of the call in the part, and return the part's body."""
        body: Message = part[find(part, DATA, kind) or kind]
        body["name"] = self.names[seq]
        if seq in self.ids:
            body["id"] = self.ids[seq]
        else:
            body.pop("id", None)
        return body


def _text(entry: Entry, adapted: list[Adapted] | None) -> str:
    """Return all content of another provider's result as text."""
    if isinstance(entry.content, str):
        return entry.content
    return "\n".join(filter(None, (replaced_by_text(entry, part, adapted) for part in entry.content)))


def _callable(name: str | None) -> str:
    """Return the function's name, or if the API does not accept it, the nearest name that it does."""
    return fitting(name or NAMELESS, _NOT_CALLABLE, NAME_LENGTH)


def _call_overhead(entry: Entry) -> int:
    """Return the most tokens of a call beside its name and arguments, with room for changes of these."""
    tokens, text = PER_CONTENT + PER_CALL, entry.text
    native = own_native(entry, GEMINI)
    if native is None or not is_signed(native.call or {}):
        tokens += UNSIGNED_TOKENS
    if native is None and not text.startswith("{"):
        tokens += len(to_json(text)) - len(text)  # wrapped and escaped as JSON: at most a token per added character
    if not CALLABLE.fullmatch(entry.name or ""):
        tokens += renamed_tokens(entry.name, NAME_LENGTH)
    return tokens
