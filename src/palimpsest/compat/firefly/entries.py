"""`MemoryEntry`, the unit that stores keep, and how one is written so that every store gives it back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self
from uuid import uuid4

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log.checks import is_share
from palimpsest.log.entry import microseconds_of, moment
from palimpsest.log.typed import from_json, to_json


class MemoryScope(StrEnum):
    """How long an entry is meant to live: for a conversation, for a piece of work, or longer than both."""

    CONVERSATION = "conversation"
    WORKING = "working"
    LONG_TERM = "long_term"


class MemoryEntry(msgspec.Struct, kw_only=True):
    """What a store keeps under a namespace. Raises ConfigError, naming the field, for what is not accepted.

    A store keeps the entry as it was when it was saved, and gives out copies.

    Args:
        entry_id: unique in the whole store; made where it is not given.
        scope: how long it is meant to live, `MemoryScope.WORKING` by default.
        key: what it is looked up by in its namespace, where there is at most one entry of each key; None: nothing.
        content: a value of JSON, or bytes, date, datetime, Decimal, UUID, or lists, tuples, sets and mappings of them.
        metadata: what else is said of it, by text.
        created_at: when it was made, with a time zone; now, by default.
        expires_at: from when on nobody sees it, with a time zone; None: never.
        importance: from 0 to 1, 0.5 by default.
    """

    entry_id: str = msgspec.field(default_factory=lambda: uuid4().hex)
    scope: MemoryScope = MemoryScope.WORKING
    key: str | None = None
    content: Any = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created_at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    expires_at: datetime | None = None
    importance: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.scope, str) and not isinstance(self.scope, MemoryScope):
            self.scope = _scope(self.scope)
        check(self)

    @property
    def is_expired(self) -> bool:
        """Whether the time has come from which on no store shows it."""
        return self.expires_at is not None and datetime.now(UTC) >= self.expires_at

    # What a store of a program's own may have been written with: an entry as JSON, and back.

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """Return the fields by name. Types that JSON has not are tagged in it, as `{"$tuple": [1, 2]}`.

        Args:
            mode: "json" for values of JSON only; "python" for the values as they are, copied.
        """
        values = packed(self)
        if mode == "json":
            told: dict[str, Any] = json.loads(dumped(values))
            return told
        whole = unpacked(values)
        return {name: getattr(whole, name) for name in self.__struct_fields__}

    def model_dump_json(self) -> str:
        """Return the entry as JSON text, which `model_validate_json` reads."""
        return dumped(packed(self))

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with some fields changed. Raises ConfigError.

        Args:
            update: new values by the names of fields; None: none.
        """
        return type(self)(**{**self.model_dump(), **(update or {})})

    @classmethod
    def model_validate(cls, given: Any) -> Self:
        """Return the entry of a mapping with its fields. Raises ConfigError.

        Args:
            given: a mapping as `model_dump` gives it in either mode, or an entry. Values are those of JSON where
                `created_at` is a text.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError("a memory entry", type(given).__name__, "a mapping with the fields of MemoryEntry")
        known = {name: given[name] for name in cls.__struct_fields__ if name in given}
        is_json = isinstance(known.get("created_at"), str)
        for name in ("created_at", "expires_at"):
            if isinstance(known.get(name), str):
                known[name] = _time(known[name])
        for name in ("content", "metadata"):
            if is_json and name in known:
                known[name] = restored(known[name])
        try:
            return cls(**known)
        except TypeError as fault:
            raise ConfigError("a memory entry", "a field of another type", str(fault)) from fault

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """Return the entry of a JSON text. Raises ConfigError where it is none.

        Args:
            text: what `model_dump_json` gave.
        """
        try:
            given = json.loads(text)
        except ValueError as fault:
            raise ConfigError("a memory entry", "a text that is no JSON", "what model_dump_json gives") from fault
        return cls.model_validate(given)


def check(entry: MemoryEntry) -> None:
    """Raise ConfigError for a field that no entry may have; values within `content` are looked at when it is saved."""
    if not isinstance(entry.entry_id, str) or not entry.entry_id:
        raise ConfigError("entry_id", entry.entry_id, "text that no other entry has as its id")
    if not isinstance(entry.scope, MemoryScope):
        raise ConfigError("scope", entry.scope, ", ".join(MemoryScope))
    if entry.key is not None and not isinstance(entry.key, str):
        raise ConfigError("key", entry.key, "text, or None")
    if not isinstance(entry.metadata, dict):
        raise ConfigError("metadata", entry.metadata, "a dict")
    if not is_share(entry.importance):
        raise ConfigError("importance", entry.importance, "a number from 0 to 1")
    for name, time in (("created_at", entry.created_at), ("expires_at", entry.expires_at)):
        if (time is not None or name == "created_at") and (not isinstance(time, datetime) or time.tzinfo is None):
            raise ConfigError(name, time, "a datetime with a time zone, such as datetime.now(UTC)")


def _scope(name: str) -> MemoryScope:
    try:
        return MemoryScope(name)
    except ValueError:
        raise ConfigError("scope", name, ", ".join(MemoryScope)) from None


def _time(text: str) -> datetime:
    """The time that a text names; one without a time zone is UTC. Raises ConfigError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError("a time", text, "a time such as 2026-01-31T12:00:00+00:00") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


# --- how entries are written


class Packed(NamedTuple):
    """An entry as stores keep it: `content` and `metadata` are JSON, in ASCII; times are microseconds since 1970."""

    entry_id: str
    scope: str
    key: str | None
    content: str
    metadata: str
    created: int
    expires: int | None
    importance: float

    def is_over(self, now: int) -> bool:
        """Whether nobody sees it any more at this time."""
        return self.expires is not None and self.expires <= now


def packed(entry: MemoryEntry) -> Packed:
    """An entry as stores keep it. Raises ConfigError for what would not come back as it is, naming its key."""
    if not isinstance(entry, MemoryEntry):
        raise ConfigError("entry", type(entry).__name__, "a MemoryEntry")
    check(entry)
    named = "content" if entry.key is None else f"the value of {entry.key!r}"
    return Packed(
        entry.entry_id,
        str(entry.scope),
        entry.key,
        to_json(entry.content, named),
        to_json(entry.metadata, "metadata"),
        microseconds_of(entry.created_at),
        None if entry.expires_at is None else microseconds_of(entry.expires_at),
        float(entry.importance),
    )


def unpacked(kept: Packed) -> MemoryEntry:
    """The entry that was kept so. Raises ValueError where it cannot be read."""
    metadata = {} if kept.metadata == "{}" else from_json(kept.metadata)  # as most is
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no mapping")  # noqa: TRY004 (as for any other text that cannot be read)
    return MemoryEntry(
        entry_id=kept.entry_id,
        scope=_scope(kept.scope),
        key=kept.key,
        content=own_content(from_json(kept.content), kept.entry_id),
        metadata=metadata,
        created_at=moment(kept.created),
        expires_at=None if kept.expires is None else moment(kept.expires),
        importance=kept.importance,
    )


def own_content(content: Any, entry_id: str) -> Any:
    """The content of an entry where its own database has the whole entry in the place of its content, as some have."""
    fields = MemoryEntry.__struct_fields__
    if isinstance(content, dict) and content.get("entry_id") == entry_id and content.keys() == set(fields):
        return content["content"]
    return content


def dumped(kept: Packed) -> str:
    """An entry as one JSON object, with the documented names."""
    told = {
        "entry_id": kept.entry_id,
        "scope": kept.scope,
        "key": kept.key,
        "content": json.loads(kept.content),
        "metadata": json.loads(kept.metadata),
        "created_at": moment(kept.created).isoformat(),
        "expires_at": None if kept.expires is None else moment(kept.expires).isoformat(),
        "importance": kept.importance,
    }
    return json.dumps(told, separators=(", ", ": "))


def parsed(told: Any) -> Packed:
    """What `dumped` wrote, of the object that it stands in. Raises ValueError."""
    try:
        entry_id, key, expires = told["entry_id"], told.get("key"), told.get("expires_at")
        kept = Packed(
            entry_id,
            str(_scope(told.get("scope", MemoryScope.WORKING))),
            key,
            json.dumps(told["content"], separators=(",", ":")),
            json.dumps(told.get("metadata") or {}, separators=(",", ":")),
            microseconds_of(_time(told["created_at"])),
            None if expires is None else microseconds_of(_time(expires)),
            float(told.get("importance", 0.5)),
        )
    except (KeyError, TypeError, AttributeError) as fault:
        raise ValueError(f"a field is missing, or of another type ({fault})") from fault
    if not isinstance(entry_id, str) or not (key is None or isinstance(key, str)):
        raise ValueError("its id or its key is no text")
    return kept


# --- values in stores that know JSON only


def portable(value: Any, where: str) -> Any:
    """The value in types of JSON, tagged where it has others, for stores that keep nothing else. Raises ConfigError."""
    return json.loads(to_json(value, where))


def restored(value: Any) -> Any:
    """The value that `portable` has written so; a value of a program's own stays as it is."""
    try:
        return from_json(json.dumps(value))
    except (TypeError, ValueError):
        return value
