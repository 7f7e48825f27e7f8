"""Logs of which a line cannot be read: nothing is, but their sessions are named, and where there is but one, it goes.

A step names its session in the line that it stands in, so names are read of lines that are not as they were written,
too. Where a name is damaged itself, whoever destroys the session asks what else points to its home.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from palimpsest.stores.backend import Batch, Place, PlaceHead
from palimpsest.stores.engine.forms import Spoilt
from palimpsest.stores.file.folder import log_of

if TYPE_CHECKING:
    from palimpsest.stores.file.home import Home

RESTORE = "put the file back from a backup, or take the line out and see what `palimpsest doctor` says"

_SESSION = re.compile(rb'"space":"session","name":("(?:[^"\\]|\\.)*")(,"gone":true)?')
_read_text = msgspec.json.Decoder(str).decode


def note_sessions(raw: bytes, names: set[str]) -> None:
    """Note which sessions a line writes, and which it takes away."""
    steps = raw.partition(b',"frame":"')[0]  # behind that stands what people wrote
    for name, gone in _SESSION.findall(steps):
        with contextlib.suppress(ValueError, msgspec.DecodeError):
            (names.discard if gone else names.add)(_read_text(name))


def sessions_in(home: Home, tenant: str) -> list[Place]:
    """The sessions of a log that is refused, where it says which home it is of; nothing for another."""
    if not home.refused:
        return []
    at = home.home or next((one for one in home.sessions if log_of(home.root, tenant, one) == home.path), "")
    return [Place(tenant, at, "session", one) for one in sorted(home.sessions)] if at else []


def head_in(home: Home, place: Place) -> PlaceHead:
    """What stands for the head of a session of such a log."""
    return PlaceHead(Spoilt.of(b"", f"the head of session {place.name!r} cannot be read: {home.refused}"))


def takes_all(home: Home, batches: Sequence[Batch]) -> bool:
    """Whether batches destroy the only session of such a log."""
    gone = {step.place.name for batch in batches for step in batch if isinstance(step.expect, Spoilt) and not step.hot}
    return bool(gone) and gone == home.sessions
