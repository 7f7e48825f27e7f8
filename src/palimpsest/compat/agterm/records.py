"""What the door hands out: records with the documented fields. `to_dict` gives them as mappings, in either spelling."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from palimpsest import Entry
from palimpsest.compat.agterm.spelling import Record, camel_case, shown

if TYPE_CHECKING:
    from palimpsest.compat.agterm.config import MemoryConfig
    from palimpsest.types import Kind, Status

SCHEMA_VERSION = 1
"""The version of an exported state that this door writes, and the newest that it reads."""

Cost = Callable[[Entry], int]
"""Tokens of an entry in a context."""

Role = Literal["user", "assistant", "system"]
"""Who an entry is from, in three words: results, contexts and summaries are from the system."""


class MemoryEntry:
    """One entry of a session. `native` is the entry as Palimpsest has it, in which a tool's result is of role "tool".

    Tokens are counted when they are asked for.
    """

    __slots__ = ("_cost", "compressed", "native", "summary_id")

    def __init__(self, native: Entry, cost: Cost, compressed: bool = False, summary_id: str | None = None) -> None:
        self.native, self._cost = native, cost
        self.compressed, self.summary_id = compressed, summary_id

    def __repr__(self) -> str:
        return f"<MemoryEntry {self.type} {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryEntry) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The entry's id, unique in its session."""
        return self.native.id

    @property
    def type(self) -> Kind:
        """What it is: "message", "tool_call", "tool_result" or "context"."""
        return self.native.kind

    @property
    def role(self) -> Role:
        """Who it is from, as documented."""
        return role_of(self.native)

    @property
    def content(self) -> str:
        """Its text; of a call the arguments, as JSON text."""
        return self.native.text

    @property
    def timestamp(self) -> datetime:
        """When it was added, UTC."""
        return self.native.created_at

    @property
    def token_count(self) -> int:
        """What it takes in a context, in tokens, with its label."""
        return self._cost(self.native)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """JSON values of the program's own."""
        return self.native.metadata

    @property
    def name(self) -> str | None:
        """The tool's name, or the source of a context."""
        return self.native.name

    @property
    def call_id(self) -> str | None:
        """The id of a tool's call, which its result has, too."""
        return self.native.call_id

    @property
    def status(self) -> Status | None:
        """How a tool's call ended."""
        return self.native.status

    def to_dict(self, *, camel: bool = False) -> dict[str, Any]:
        """Return the entry as JSON values; what is not said has no key.

        Args:
            camel: whether the keys are spelled as the documented ones, `tokenCount`; False: `token_count`.
        """
        spelled = camel_case if camel else str
        said = {name: getattr(self, name) for name in _ALWAYS}
        said |= {name: value for name in _SOMETIMES if (value := getattr(self, name)) is not None}
        said |= {name: value for name, value in msgspec.to_builtins(self.native).items() if name in NATIVE}
        if not isinstance(self.native.content, str):
            said["parts"] = msgspec.to_builtins(self.native.content)
        return {spelled(name): shown(value, camel=camel) for name, value in said.items()}


_ALWAYS = ("id", "type", "role", "content", "timestamp", "token_count", "compressed")
_SOMETIMES = ("summary_id", "metadata", "name", "call_id", "status")
NATIVE = ("importance", "pinned", "expires_at", "native", "pauses")
"""Fields of an entry that only other programs give it: an export has them, so that an import loses nothing."""
ENTRY_FIELDS = (*_ALWAYS, *_SOMETIMES, *NATIVE, "parts")
"""What an exported entry may say."""


def role_of(entry: Entry) -> Role:
    """Who an entry is from, as documented."""
    if entry.kind in ("tool_result", "context", "summary") or entry.role == "tool":
        return "system"
    return entry.role


class TimeRange(Record, frozen=True, kw_only=True):
    """When the first and the last entry of a summary were added, UTC."""

    start: datetime
    end: datetime


class MemorySummary(Record, frozen=True, kw_only=True):
    """What stands for compressed entries. It has the fields of an entry, too, so that either may be listed.

    `original_entry_ids` are all entries that it stands for, those of summaries that were rolled up into it included;
    `token_count` is its text's, `original_token_count` that of these entries, and `compression_ratio` how many of the
    latter there are for one of the former. `level` counts roll-ups, `method` says how it was made.
    """

    id: str
    content: str
    original_entry_ids: tuple[str, ...]
    token_count: int
    original_token_count: int
    compression_ratio: float
    created_at: datetime
    time_range: TimeRange
    level: int = 0
    method: str = "heuristic"

    @property
    def type(self) -> Literal["summary"]:
        """What it is, as an entry."""
        return "summary"

    @property
    def role(self) -> Role:
        """Who it is from, as an entry."""
        return "system"

    @property
    def timestamp(self) -> datetime:
        """When it was made, UTC."""
        return self.created_at


class MemoryStats(Record, frozen=True, kw_only=True):
    """A session in six numbers, tokens on the scale that compression compares.

    `total_entries` = `active_entries` + `compressed_entries`; summaries and erased entries do not count. `summaries`
    are those that stand in the context now. `total_tokens` are those of all that is kept, `active_tokens` those that
    are compared with `max_tokens`.
    """

    total_entries: int
    active_entries: int
    compressed_entries: int
    summaries: int
    total_tokens: int
    active_tokens: int


class CompressionResult(Record, frozen=True, kw_only=True):
    """What a compression did: `entry_ids` are those that it covered, now in the summary `summary_id`.

    `tokens_saved` is by how many tokens the active set is smaller. `reason` says why nothing was done (None: it was),
    `why` tells a reader more.
    """

    summary_id: str | None
    entry_ids: tuple[str, ...]
    tokens_saved: int
    method: str | None
    reason: str | None = None
    why: str = ""

    @property
    def done(self) -> bool:
        """Whether something was compressed."""
        return self.reason is None


class Cleared(Record, frozen=True, kw_only=True):
    """How much a clear destroyed."""

    entries: int
    summaries: int


class ContextParts(Record, frozen=True, kw_only=True):
    """A session's part of a larger context, as it stands within the budget: what is shown, and what it takes.

    A summary or an entry that was shortened has the shortened text. `summary_tokens` and `entry_tokens` with the
    headings are `tokens`; `text` is all of it as `get_context_for_llm` gives it.
    """

    summaries: tuple[MemorySummary, ...]
    entries: tuple[MemoryEntry, ...]
    summary_tokens: int
    entry_tokens: int
    tokens: int
    text: str


class SessionState(Record, frozen=True, kw_only=True):
    """A session on its way out and in. `erased` are ids of entries that were destroyed, each with how many entries come
    before it."""

    session_id: str
    entries: tuple[MemoryEntry, ...]
    summaries: tuple[MemorySummary, ...]
    total_tokens: int
    config: MemoryConfig
    schema_version: int = SCHEMA_VERSION
    erased: tuple[tuple[int, str], ...] = ()
