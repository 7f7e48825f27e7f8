"""From messages in a provider's shape to entries: with their own metadata, and the place of what is wrong. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Format, find_format
from palimpsest.formats.common import canonical, is_blank, noted, parted
from palimpsest.formats.received.values import Run
from palimpsest.log.entry import Entry, Status

MARK = "cut_off"
"""A key of an entry's metadata: True if the answer was cut off."""


def of_messages(shape: Format, messages: Any, blank: bool) -> list[Entry]:
    """Decode messages of one format. Raises InvalidEntry for malformed ones, and unless `blank` for empty messages of
    the user or the system."""
    messages = canonical(messages, shape)
    entries = shape.decode(messages, "messages")
    for i, entry in enumerate(() if blank else entries):
        content, role = entry.content, entry.role
        if type(content) is str and "!" <= content[:1] <= "~":
            continue  # the usual case: the text begins with a visible ASCII character
        if entry.kind != "message" or not (role == "user" or role == "system") or not is_blank(content):
            continue
        native = entry.native
        without_content = native is not None and "content" in native.absent  # its other fields say something
        if not (without_content or entry.continues or (i + 1 < len(entries) and entries[i + 1].continues)):
            raise InvalidEntry(_place_of(shape, messages, i), BLANK)
    return entries


def _place_of(shape: Format, messages: Sequence[Any], index: int) -> str:
    """Return where in `messages` the content of the entry with this index is."""
    key = f".{shape.content}" if shape.content else ""
    return f"messages[{_message_of(shape, messages, index)}]{key}"


def _message_of(shape: Format, messages: Sequence[Any], index: int) -> int:
    """Return the index of the message from which the entry with this index was decoded. Messages may become several
    entries, so this searches for the shortest beginning of the list that gives enough of them."""

    def entries(count: int) -> int:
        return len(shape.decode(messages[:count], "messages"))

    return bisect_right(range(1, len(messages) + 1), index, key=entries)


def message_at(runs: Sequence[Run], index: int) -> int:
    """Return the index, among all given messages, of the one from which the entry with this index was decoded."""
    for run in runs:
        shape = find_format(run.format)
        messages = canonical(run.messages, shape)
        count = len(shape.decode(messages, "messages"))
        if index < count:
            return run.places[_message_of(shape, messages, index)]
        index -= count
    raise AssertionError("an entry comes from something that was given")


BLANK = (
    "the message says nothing: give text, or parts such as an image, or add no message at all (only add_entries and "
    "imports accept an empty one)"
)


def of_run(run: Run, blank: bool) -> list[Entry]:
    """Decode a run of messages. An InvalidEntry names the place among all given messages, not within the run.

    A mapping `metadata` of a message is that of its entries: no provider takes it.
    """
    try:
        shape = find_format(run.format)
        given = canonical(run.messages, shape)
        if any("metadata" in message for message in given):
            pairs = [parted(message) for message in given]
            decoded = iter(of_messages(shape, [message for message, _ in pairs], blank))
            entries = [
                entry
                for i, (message, metadata) in enumerate(pairs)
                for entry in noted(
                    islice(decoded, len(shape.decode([message], "messages"))), metadata, f"messages[{i}]"
                )
            ]
        else:
            entries = of_messages(shape, given, blank)
        return [_marked(entry) for entry in entries] if run.cut_off else entries
    except InvalidEntry as fault:
        index, bracket, rest = fault.where.removeprefix("messages[").partition("]")
        if not bracket or not index.isdecimal():
            raise
        raise InvalidEntry(f"messages[{run.places[int(index)]}]{rest}", fault.reason) from fault


def annotated(entry: Entry, statuses: Mapping[str, Status], metadata: dict[str, Any] | None) -> Entry:
    """Return the entry with this metadata besides its own, and a result with the status of its call id."""
    status = statuses.get(entry.call_id or "", entry.status) if entry.kind == "tool_result" else None
    own = entry.metadata
    if own is not None:
        metadata = {**metadata, **own} if isinstance(metadata, dict) else own if metadata is None else metadata
    return msgspec.structs.replace(entry, status=status, metadata=metadata)


def _marked(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), MARK: True})
