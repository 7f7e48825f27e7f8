"""What stores share about records: their JSON, and what an erasure does to summaries of what it erases. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from palimpsest.log import spans
from palimpsest.log.change import Change, Record
from palimpsest.log.head import Head
from palimpsest.log.withdrawal import forgotten

T = TypeVar("T")

HELD = b'"compaction":{'
"""Stands in the JSON of every record that carries a compaction, so that others need not be read."""

_encode = msgspec.json.Encoder().encode


def erasing(change: Change, records: Iterable[Record], head: Head) -> tuple[Change, list[Record]]:
    """Return an erasure with the state of compaction after it, and the records that it changes, as they are then.

    `records` are, oldest first, those of the session that carry a compaction or are to be silent; others may be among
    them.
    """
    gone = [*change.seqs, *spans.members(change.also)]
    changed, state = forgotten(records, head, gone, spare=change.spare, silence=change.silence)
    return (change if state is None else msgspec.structs.replace(change, compaction=state)), changed


# --- JSON, also of text that has no UTF-8


def encoded(value: object) -> bytes:
    """The JSON of a value; text with lone surrogates with JSON's escapes for them."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        import json  # only for text that is not valid Unicode

        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def decoded(body: bytes, kind: type[T]) -> T:
    """The value that `encoded` wrote. Raises ValueError where it is another."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        import json

        return msgspec.convert(json.loads(body), kind)
