"""The records that the manager returns, with the documented fields. `to_dict` turns them into mappings."""

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
"""The version of exported states that is written, and the newest that is read."""

Cost = Callable[[Entry], int]
"""Returns the tokens that an entry takes in a context."""

Role = Literal["user", "assistant", "system"]
"""The documented roles. Tools' results, contexts and summaries are from the system."""


class MemoryEntry:
    """One entry of a session. Its tokens are counted on demand.

    `native` is the entry as Palimpsest has it, in which a tool's result has the role "tool".
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
        """The kind of the entry: "message", "tool_call", "tool_result" or "context"."""
        return self.native.kind

    @property
    def role(self) -> Role:
        """Who the entry is from: one of the documented roles."""
        return role_of(self.native)

    @property
    def content(self) -> str:
        """The text; of a call the arguments, as JSON text."""
        return self.native.text

    @property
    def timestamp(self) -> datetime:
        """When it was added, UTC."""
        return self.native.created_at

    @property
    def token_count(self) -> int:
        """How many tokens the entry takes in a context, with its label."""
        return self._cost(self.native)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Values of JSON for the program's own use."""
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
        """Return the entry as values of JSON. Fields without a value have no key.

        Args:
            camel: whether keys are spelled as in the documentation of AGTerm, `tokenCount`; False: `token_count`.
        """
        spelled = camel_case if camel else str
        fields = {name: getattr(self, name) for name in _ALWAYS}
        fields |= {name: value for name in _SOMETIMES if (value := getattr(self, name)) is not None}
        fields |= {name: value for name, value in msgspec.to_builtins(self.native).items() if name in NATIVE}
        if not isinstance(self.native.content, str):
            fields["parts"] = msgspec.to_builtins(self.native.content)
        return {spelled(name): shown(value, camel=camel) for name, value in fields.items()}


_ALWAYS = ("id", "type", "role", "content", "timestamp", "token_count", "compressed")
_SOMETIMES = ("summary_id", "metadata", "name", "call_id", "status")
NATIVE = ("importance", "pinned", "expires_at", "native", "pauses")
"""Fields that only native sessions can set. An export has them, so that an import loses nothing."""
ENTRY_FIELDS = (*_ALWAYS, *_SOMETIMES, *NATIVE, "parts")
"""The fields that an exported entry may have."""


def role_of(entry: Entry) -> Role:
    """Return the documented role of an entry."""
    if entry.kind in ("tool_result", "context", "summary") or entry.role == "tool":
        return "system"
    return entry.role


class TimeRange(Record, frozen=True, kw_only=True):
    """When the first and the last entry of a summary were added, UTC."""

    start: datetime
    end: datetime


class MemorySummary(Record, frozen=True, kw_only=True):
    """A summary, which stands for compressed entries. It has the fields of an entry, too, so that lists may hold both.

    `original_entry_ids` are all entries that it stands for, with those of summaries that were rolled up into it.
    `token_count` is the length of its text, `original_token_count` that of these entries, and `compression_ratio` the
    latter divided by the former. `level` counts roll-ups, `method` says how the summary was made.
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
        """The kind that the summary has as an entry."""
        return "summary"

    @property
    def role(self) -> Role:
        """The role that the summary has as an entry."""
        return "system"

    @property
    def timestamp(self) -> datetime:
        """When it was made, UTC."""
        return self.created_at


class MemoryStats(Record, frozen=True, kw_only=True):
    """Six figures of a session. Tokens are counted as compression compares them with its limits.

    `total_entries` is `active_entries` + `compressed_entries`, without summaries and erased entries. `summaries` counts
    those in the context now. `total_tokens` are those of everything that is kept, `active_tokens` those that are
    compared with `max_tokens`.
    """

    total_entries: int
    active_entries: int
    compressed_entries: int
    summaries: int
    total_tokens: int
    active_tokens: int


class CompressionResult(Record, frozen=True, kw_only=True):
    """What a compression did: it covered the entries `entry_ids` by the summary `summary_id`.

    `tokens_saved` is by how many tokens the active set is smaller. `reason` says why nothing was done (None: something
    was), and `why` explains it in words.
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
    """How many entries and summaries a clear deleted."""

    entries: int
    summaries: int


class ContextParts(Record, frozen=True, kw_only=True):
    """A session's part of a larger context, within its budget: its summaries and entries, and their tokens.

    A shortened summary or entry has the shortened text. `tokens` is the sum of `summary_tokens`, `entry_tokens` and the
    headings. `text` is the whole as `get_context_for_llm` returns it.
    """

    summaries: tuple[MemorySummary, ...]
    entries: tuple[MemoryEntry, ...]
    summary_tokens: int
    entry_tokens: int
    tokens: int
    text: str


class SessionState(Record, frozen=True, kw_only=True):
    """The exported state of a session.

    `erased` are the entries that were erased, each as how many entries come before it, and its id.
    """

    session_id: str
    entries: tuple[MemoryEntry, ...]
    summaries: tuple[MemorySummary, ...]
    total_tokens: int
    config: MemoryConfig
    schema_version: int = SCHEMA_VERSION
    erased: tuple[tuple[int, str], ...] = ()
