"""`ConversationTurn`, which programs see, and `Kept`, the same turn in the log: the entries of one interaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from palimpsest import ConfigError, Entry
from palimpsest.compat.firefly.entries import portable, restored
from palimpsest.compat.firefly.pairs import links
from palimpsest.compat.firefly.raw import Raw, handed_out, kinds_in, read
from palimpsest.compat.firefly.weighing import Scale, pieces
from palimpsest.log import values

MARK = "firefly"
"""The key in the metadata of a turn's first entry under which this package keeps its own facts about the turn."""


class ConversationTurn:
    """One exchange of a conversation. It is a copy: changing it changes nothing that is kept.

    `token_estimate` is counted when it is asked for: the larger of the two texts and everything in the raw messages.

    Args:
        turn_id: its number in its conversation, from 0; no two turns ever have the same.
        user_prompt: what the user said.
        assistant_response: what the model answered.
        raw_messages: the messages of the run, as the program gave them.
        timestamp: when it was added, UTC; now, by default.
        token_estimate: what it costs in tokens, or a function that counts it.
        metadata: what else the program says of it.
    """

    __slots__ = (
        "_estimate",
        "assistant_response",
        "metadata",
        "raw_messages",
        "timestamp",
        "turn_id",
        "user_prompt",
    )

    def __init__(
        self,
        turn_id: int,
        user_prompt: str,
        assistant_response: str,
        raw_messages: Sequence[Any] = (),
        timestamp: datetime | None = None,
        token_estimate: int | Callable[[], int] = 0,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.turn_id, self.user_prompt, self.assistant_response = turn_id, user_prompt, assistant_response
        self.raw_messages = list(raw_messages)
        self.timestamp = datetime.now(UTC) if timestamp is None else timestamp
        self.metadata = {} if metadata is None else dict(metadata)
        self._estimate = token_estimate

    @property
    def token_estimate(self) -> int:
        """What it costs, in tokens."""
        if not isinstance(self._estimate, int):
            self._estimate = self._estimate()
        return self._estimate

    def __repr__(self) -> str:
        return f"<ConversationTurn {self.turn_id}: {self.user_prompt[:40]!r}>"

    def __eq__(self, other: object) -> bool:
        names = ("turn_id", "user_prompt", "assistant_response", "raw_messages", "timestamp", "metadata")
        return isinstance(other, ConversationTurn) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    __hash__ = None  # type: ignore[assignment]


class Kept:
    """A turn of the log, with what this process knows of it.

    `entry` is its first entry, `last` the `seq` of its last one. `declared` is the cost that an import declared; 0:
    none.
    """

    __slots__ = ("_bound", "_cost", "_links", "_metadata", "declared", "entry", "last", "raw", "response", "turn_id")

    def __init__(self, entry: Entry, response: str, raw: Raw, about: Mapping[str, Any], bound: int = -1) -> None:
        self.entry, self.response, self.raw = entry, response, raw
        self.last = entry.seq
        self.turn_id = 0
        self.declared = declared_of(about.get("tokens"))
        self._metadata = about.get("metadata")
        self._bound, self._cost = bound, -1
        self._links: bool | None = None

    @property
    def user(self) -> str:
        """What the user said."""
        return self.entry.text

    @property
    def metadata(self) -> dict[str, Any]:
        """What the program said of the turn, as a copy."""
        return restored(self._metadata) if self._metadata else {}

    @property
    def has_links(self) -> bool:
        """Whether its raw messages have tool calls or results."""
        if self._links is None:
            self._links = self.raw.form not in ("texts", "plain") and any(map(links, self.raw.messages))
        return self._links

    def cost(self, scale: Scale) -> int:
        """Return the cost in tokens: what is counted, or what an import declared, if that is more."""
        if self._cost < 0:
            self._cost = max(scale.cost(self.user, self.response, self._weighed), self.declared)
        return self._cost

    def estimate(self, scale: Scale) -> int:
        """Return the cost that programs are told: what an import declared, else what is counted."""
        return self.declared or self.cost(scale)

    def bound(self, scale: Scale) -> int:
        """Return an upper bound of `cost`, which is cheaper to compute."""
        if self._cost >= 0:
            return self._cost
        if self._bound < 0:
            self._bound = max(scale.bound(self.user, self.response, self._weighed), self.declared)
        return self._bound

    @property
    def _weighed(self) -> Sequence[Any]:
        return () if self.raw.form == "plain" else self.raw.messages

    def turn(self, scale: Scale) -> ConversationTurn:
        """Return the turn as programs see it."""
        entry = self.entry
        return ConversationTurn(
            self.turn_id,
            self.user,
            self.response,
            handed_out(self.raw),
            entry.created_at,
            self.declared or partial(self.cost, scale),
            self.metadata,
        )


def entries_of(
    user: str,
    response: str,
    raw: Raw,
    metadata: Any = None,
    *,
    tagged: bool = False,
    named: bool = False,
    **more: Any,
) -> list[Entry]:
    """Return the two entries of a new turn.

    Args:
        user: what the user said.
        response: what the model answered.
        raw: its raw messages.
        metadata: what else the program says of it.
        tagged: whether `metadata` already are values of JSON, tagged where they stand for other types.
        named: whether both entries have as tags what the turn consists of, so that a privacy policy that withholds any
            of it withholds the turn.
        more: further facts to keep under `MARK`.

    Raises ConfigError for what cannot be kept.
    """
    for name, text in (("user_prompt", user), ("assistant_response", response)):
        if not isinstance(text, str):
            raise ConfigError(name, type(text).__name__, "text")
    about: dict[str, Any] = {}
    if raw.form not in ("texts", "opaque"):
        about["form"] = raw.form
        if raw.stored is not None:
            about["raw"] = raw.stored
    if metadata:
        about["metadata"] = dict(metadata) if tagged else _kept_metadata(metadata)
    about |= more
    types = _types_of(about.get("metadata", {}))
    if named:
        tags = types.get("tags", [])
        types["tags"] = [*([tags] if isinstance(tags, str) else tags), *sorted(kinds_in(raw.stored))]
    first = Entry(role="user", content=user, metadata={**({MARK: about} if about else {}), **types} or None)
    return [first, Entry(role="assistant", content=response, metadata=types or None)]


def _types_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type and tags in a turn's metadata, by which a privacy policy may withhold both of its entries."""
    return {name: metadata[name] for name in ("type", "tags") if isinstance(metadata.get(name), str | list)}


def _kept_metadata(metadata: object) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise ConfigError("metadata", type(metadata).__name__, "a mapping, or None")
    kept: dict[str, Any] = portable(dict(metadata), "metadata")
    return kept


def about_of(entry: Entry) -> Mapping[str, Any]:
    """Return what is kept of a turn under `MARK`; empty if nothing is."""
    about = entry.metadata.get(MARK) if entry.metadata else None
    return about if isinstance(about, dict) else {}


def kept_of(entry: Entry, response: str, raw: Raw | None = None, bound: int | None = None) -> Kept:
    """Return the turn that begins with this entry.

    `raw` are its raw messages (None: they are read from the entry), and `bound` an upper bound of its cost (None:
    unknown).
    """
    about = about_of(entry)
    raw = raw or read(about.get("form", "texts"), about.get("raw"), entry.text, response)
    return Kept(entry, response, raw, about, -1 if bound is None else bound)


def may_be_shown(
    raw: Raw, stored: Sequence[Entry], given: Sequence[Entry], redact: Callable[[str], str] | None
) -> bool:
    """Return whether the raw messages of a turn that was just stored may be handed out as they were given.

    They may not if a privacy policy has changed anything of the `given` entries, or would change a text in messages
    that have no form in JSON, of which nothing was stored.
    """
    if [(entry.content, entry.metadata) for entry in stored] != [(entry.content, entry.metadata) for entry in given]:
        return False
    if redact is None or raw.form != "opaque":
        return True
    texts = (piece for message in raw.messages for piece in pieces(message) if isinstance(piece, str))
    return all(redact(text) == text for text in texts)


def declared_of(value: object) -> int:
    """Return the cost that an export declares for a turn; 0 if it declares none, or one that cannot be."""
    return value if values.is_whole(value, 1, values.MOST) else 0
