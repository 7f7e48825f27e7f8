"""Logs of which a line cannot be read: nothing is, but their sessions are named, and where there is but one, it goes.

A step names its session in the line that it stands in, so names are read of lines that are not as they were written,
too. Where a name is damaged itself, whoever destroys the session asks what else points to its home.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.stores.backend import Batch, Place, PlaceHead
from palimpsest.stores.engine.forms import Spoilt
from palimpsest.stores.file.folder import log_of

RESTORE = "put the file back from a backup, or take the line out and see what `palimpsest doctor` says"

_SESSION = re.compile(rb'"space":"session","name":("(?:[^"\\]|\\.)*")(,"gone":true)?')
_read_text = msgspec.json.Decoder(str).decode


class Refused:
    """Why a log is refused, and which sessions are in it. `home` is "" where that cannot be read."""

    def __init__(self, root: str, path: str, home: str, why: str, sessions: Iterable[str]) -> None:
        self._root, self._path, self._home, self.why = root, path, home, why
        self.sessions = set(sessions)

    def note(self, raw: bytes) -> None:
        """Note which sessions a line writes, and which it takes away."""
        steps = raw.partition(b',"frame":"')[0]  # behind that stands what people wrote
        for name, gone in _SESSION.findall(steps):
            with contextlib.suppress(ValueError, msgspec.DecodeError):
                (self.sessions.discard if gone else self.sessions.add)(_read_text(name))

    def places(self, tenant: str) -> list[Place]:
        """Its sessions, where it says which home it is of; nothing for another."""
        named = (one for one in self.sessions if log_of(self._root, tenant, one) == self._path)
        home = self._home or next(named, "")
        return [Place(tenant, home, "session", one) for one in sorted(self.sessions)] if home else []

    def head(self, place: Place) -> PlaceHead:
        """What stands for the head of a session of it."""
        return PlaceHead(Spoilt.of(b"", f"the head of session {place.name!r} cannot be read: {self.why}"))

    def goes(self, batches: Sequence[Batch]) -> bool:
        """Whether batches destroy the only session of it."""
        steps = [step for batch in batches for step in batch]
        gone = {step.place.name for step in steps if isinstance(step.expect, Spoilt) and step.hot is None}
        return bool(gone) and gone == self.sessions
