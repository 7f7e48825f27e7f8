"""The log's items: entries, their parts, their fields by purpose, and their stored form. Pure.

An entry is immutable, and its text never changes. Whether it is evicted, covered or masked follows from the records in
`palimpsest.log.change`. The links at the end of `Entry` are written once, when it is appended.
"""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from palimpsest.log.codec import encode, escaped, unescaped
from palimpsest.log.lazy_imports import sha256

Kind = Literal["message", "tool_call", "tool_result", "context", "summary"]
"""What an entry is."""
Role = Literal["user", "assistant", "system", "tool"]
"""Who an entry is from."""
Status = Literal["success", "error", "unknown", "pending", "denied"]
"""How a tool's call ended; "unknown" if that was not given."""

KINDS: tuple[Kind, ...] = ("message", "tool_call", "tool_result", "context", "summary")
ROLES: tuple[Role, ...] = ("user", "assistant", "system", "tool")
STATUSES: tuple[Status, ...] = ("success", "error", "unknown", "pending", "denied")


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    extra: dict[str, Any] | None = None
    """Keys of the provider's part that Palimpsest does not know. They come back when the part is encoded."""


class Text(_Part, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, tag="text"):
    """A piece of text: `text`."""

    text: str


class Image(_Part, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, tag="image"):
    """An image: `source` is an https or `data:` address, no path; `detail` is low, high or auto (the default)."""

    source: str
    detail: str | None = None


class Audio(_Part, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, tag="audio"):
    """Sound: `data` in base64, `format` wav or mp3."""

    data: str
    format: str


class File(_Part, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, tag="file"):
    """A document: either `file_id` at the provider, or `data` (a `data:` address) with its `filename`."""

    file_id: str | None = None
    data: str | None = None
    filename: str | None = None


class Reasoning(_Part, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, tag="reasoning"):
    """What a model thought before it answered: `text`. It stays with the entry that follows."""

    text: str


class Opaque(_Part, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True, tag="opaque"):
    """A part of a type that Palimpsest does not know, kept whole as `item`."""

    item: dict[str, Any]


Part = Text | Image | Audio | File | Reasoning | Opaque


class Native(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """What has to be kept of a provider's own item so that it comes back equal.

    `keep` holds keys of the provider's message that the entry has no field for. `absent` names keys that encoding would
    write but the item did not have. `call` is a tool call whose shape cannot be rebuilt from the entry's fields.
    """

    format: str
    keep: dict[str, Any] | None = None
    absent: tuple[str, ...] = ()
    call: dict[str, Any] | None = None


class Entry(
    msgspec.Struct,
    repr_omit_defaults=True,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"revision": "rev", "continues": "cont"},
):
    """One item of the log.

    `id` and `seq` identify it; `kind` and `role` say what it is and who it is from, `name` which speaker or tool that
    is. `call_id` is the provider's id of a call, `status` how the call ended. `content` is text or a tuple of parts;
    for a tool call it is the arguments, as JSON text. `at` is the time of writing in microseconds since 1970 (UTC),
    `created_at` the same as a datetime. `tokens` is the stored count of the rendered text, or None if it has not been
    counted yet. `importance` is from 0 to 1. A `pinned` entry is in every context; an entry past its `expires_at` is in
    none. `metadata` holds a program's own values, `native` what else a provider's item had.

    An entry with `erased` set is a tombstone: its place is kept, its content is gone. With `flushed` set, too, it was
    destroyed by a flush while summaries tell of it, and the speaker is kept so that an erasure can find it. With
    `damaged` set, too, it cannot be read where it is stored, and only its place is known. `lone` says that the text
    holds lone surrogates, which no provider accepts: a context shows U+FFFD instead.

    Links, fixed when the entry is appended: `turn` is the `seq` of the human message of its interaction (0 in the
    preamble), `group` the `seq` of the first entry of its group, and `answers` the `seq` of the call that a result
    answers (0: none). `late` says that a result came after its call's group was closed. `continues` says that the entry
    belongs to the same provider message as the one before. `pauses` says that its message ends while the provider still
    runs a tool of its own, so that the model's next message continues it. `revision` is the session's revision made by
    its append.
    """

    id: str = ""
    seq: int = 0
    kind: Kind = "message"
    role: Role = "user"
    content: str | tuple[Part, ...] = ""
    name: str | None = None
    call_id: str | None = None
    status: Status | None = None
    tokens: int | None = None
    importance: float | None = None
    pinned: bool = False
    expires_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    native: Native | None = None
    erased: bool = False
    lone: bool = False
    damaged: bool = False
    flushed: bool = False
    at: int = 0
    turn: int = 0
    group: int = 0
    answers: int = 0
    late: bool = False
    continues: bool = False
    pauses: bool = False
    revision: int = 0

    @property
    def created_at(self) -> datetime:
        """When the entry was written, UTC."""
        return moment(self.at)

    def expired(self, now: float) -> bool:
        """Whether its `expires_at` is reached at `now` (microseconds since 1970)."""
        return self.expires_at is not None and is_past(self.expires_at, now)

    @property
    def is_there(self) -> bool:
        """Whether an erasure can still take something: the content, or what a flush has left."""
        return not self.erased or self.flushed

    @property
    def text(self) -> str:
        """The entry's text: its content, or its text parts joined by line breaks."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text | Reasoning))

    @property
    def is_human(self) -> bool:
        """Whether this is a message of the human. It starts an interaction."""
        return self.kind == "message" and self.role == "user"

    @property
    def is_reasoning(self) -> bool:
        """Whether this holds only reasoning, which stays with the entry that follows."""
        parts = self.content
        return isinstance(parts, tuple) and bool(parts) and all(isinstance(part, Reasoning) for part in parts)


# --- the fields by purpose: what one of them means elsewhere follows from where it stands here

LINKS = ("seq", "turn", "group", "answers", "late", "continues", "revision")
"""Fields that are an entry's place in the log and its links to other entries. Appending assigns them."""

BESIDE = ("importance", "pinned", "expires_at", "metadata")
"""Fields that only a program sets: no provider's message has them."""

KEPT = (*LINKS, "id", "kind", "role", "at", "pauses", "importance", "pinned", "expires_at")
"""Fields that an erasure keeps. All others are emptied, also those that are new."""

_STORED = ("at", "tokens", "lone")
"""Fields that storing sets, beside the links."""

_NEW = Entry()


def defaults(*fields: str) -> dict[str, Any]:
    """Return the default of each of these fields."""
    return {name: getattr(_NEW, name) for name in fields}


_decode = msgspec.json.Decoder(Entry).decode
_replace = msgspec.structs.replace


def pack(entry: Entry) -> bytes:
    """Return the stored form: JSON without the token count, which stores keep beside it.

    Lone surrogates, which have no UTF-8, are stored as JSON escapes.
    """
    if entry.tokens is not None or entry.damaged:
        entry = _replace(entry, tokens=None, damaged=False)
    try:
        return encode(entry)
    except UnicodeEncodeError:
        return escaped(_replace(entry, lone=True))


def unpack(body: bytes, tokens: int | None = None) -> Entry:
    """Return the entry that `pack` stored, with its token count. Raises ValueError if `body` is damaged."""
    try:
        entry = _decode(body)
    except msgspec.DecodeError:
        entry = unescaped(body, Entry)
    if tokens is not None:
        _set(entry, "tokens", tokens)  # cheaper than a copy, and safe: nobody else has seen the new entry
    return entry


_set = msgspec.structs.force_setattr


def set_aside(id: str, seq: int, body: bytes, before: Sequence[Entry], behind: Sequence[Entry]) -> Entry:
    """Return a tombstone to stand for a damaged entry until it is removed.

    Links are inferred from the neighbours, nearest first: the interaction and the group that continue `behind` it, and
    the call that one of them answers. The readable rest of the stored form gives the kind and the answered call, if
    plausible.
    """
    nearest = (*before[:1], *behind[:1], Entry())[0]
    turn = behind[0].turn if behind and behind[0].turn <= seq else (before[0].turn if before else 0)
    group = behind[0].group if behind and 0 < behind[0].group <= seq else seq
    kind, answers = _read_damaged(body, seq)
    if any(entry.answers == seq for entry in behind):
        kind, answers = "tool_call", 0
    call = next((entry for entry in before if answers and entry.seq == answers), None)
    if call is not None and before[0].group == call.group:
        group = call.group  # it may be the last entry of that group
    roles: dict[Kind, Role] = {"tool_call": "assistant", "tool_result": "tool", "context": "user"}
    return Entry(
        id=id,
        seq=seq,
        kind=kind,
        role=roles.get(kind, "user" if turn == seq else "assistant"),
        erased=True,
        damaged=True,
        at=nearest.at,
        turn=turn,
        group=group,
        answers=answers,
        late=call is not None and group != call.group,
        revision=nearest.revision,
    )


_DAMAGED_KINDS: dict[bytes, Kind] = {b"tool_call": "tool_call", b"tool_result": "tool_result", b"context": "context"}


def _read_damaged(body: bytes, seq: int) -> tuple[Kind, int]:
    """Return the kind of a damaged entry and what it answers, as far as its stored form can be read."""
    kind_match = re.search(rb'"kind":"(tool_call|tool_result|context)"', body)
    answers_match = re.search(rb'"answers":(\d{1,10})[,}]', body)
    kind = _DAMAGED_KINDS[kind_match[1]] if kind_match else "message"
    answers = int(answers_match[1]) if answers_match and kind == "tool_result" else 0
    return kind, answers if answers < seq else 0


def same(entry: Entry, other: Entry) -> bool:
    """Whether two entries with one id say the same; `at`, `tokens` and the links are ignored."""
    return _comparable(entry) == _comparable(other)


def _comparable(entry: Entry) -> Entry:
    if entry.kind == "tool_result":  # linking fills these in from the call
        return _replace(entry, **_UNSAID, name=None, call_id=None)
    return _replace(entry, **_UNSAID)


_UNSAID = defaults(*LINKS, *_STORED)


# --- times


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LAST_MOMENT = 253_402_300_799_999_999
"""The last time with a date, in microseconds since 1970: the end of the year 9999."""


def moment(microseconds: int) -> datetime:
    """Return a time in microseconds since 1970 as a datetime in UTC."""
    return EPOCH + timedelta(microseconds=microseconds)


def microseconds_of(moment: datetime) -> int:
    """Return a datetime with a time zone as microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def is_past(moment: datetime | None, now: float) -> bool:
    """Whether a time is given and reached at `now` (microseconds since 1970)."""
    return moment is not None and microseconds_of(moment) <= now


def now_us() -> int:
    """The time in microseconds since 1970, UTC: the default clock."""
    return time.time_ns() // 1000


def digest(text: str) -> str:
    """Return a short fingerprint of a text (64 bits of SHA-256), to tell whether a named context has changed."""
    return sha256(text.encode("utf-8", "surrogatepass")).hex()[:16]
