"""Logs of which a line cannot be read: nothing is, but their sessions are named, and where there is but one, it goes.

A step names its session in the line that it stands in, so names are read of lines that are not as they were written,
too. Where a name is damaged itself, whoever destroys the session asks what else points to its home.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Sequence

import msgspec

from palimpsest.stores.backend import Batch, Listed, Place, PlaceHead
from palimpsest.stores.engine.forms import Spoilt
from palimpsest.stores.engine.items import ITEMS, LEASES, ORDER
from palimpsest.stores.file.folder import log_of

RESTORE = "put the file back from a backup, or take the line out and see what `palimpsest doctor` says"

_SPACE = re.compile(rb'"space":"([^"]*)"')
_SESSION = re.compile(rb'"space":"session","name":("(?:[^"\\]|\\.)*")(,"gone":true)?')
_read_text = msgspec.json.Decoder(str).decode


class Refused:
    """Why a log is refused, and which sessions are in it. `home` is "" where that cannot be read.

    `there` are the places with heads, by space and name, that were known of before.
    """

    def __init__(self, root: str, path: str, home: str, why: str, there: Collection[tuple[str, str]]) -> None:
        self._root, self._path, self._home, self.why = root, path, home, why
        self.sessions = {name for space, name in there if space == "session"}
        self._spaces = {space.encode() for space, _ in there}

    def note(self, raw: bytes) -> None:
        """Note in which spaces a line writes, which sessions, and which it takes away."""
        steps = raw.partition(b',"frame":"')[0]  # behind that stands what people wrote
        self._spaces.update(_SPACE.findall(steps))
        for name, gone in _SESSION.findall(steps):
            with contextlib.suppress(ValueError, msgspec.DecodeError):
                (self.sessions.discard if gone else self.sessions.add)(_read_text(name))

    @property
    def is_lease(self) -> bool:
        """Whether there was nothing but a lease: who was at work is no more than that."""
        return self._spaces == {LEASES.encode()}

    def listed(self, tenant: str, meant: Callable[[str], bool]) -> list[Listed] | None:
        """What is listed of these spaces; None where it cannot be said what is in it."""
        if sessions := self.places(tenant):
            return [Listed(place, self.head(place)) for place in sessions if meant("session")]
        spaces = [space.decode("utf-8", "replace") for space in self._spaces]
        items = [space for space in spaces if space.startswith(ITEMS)]
        if not self.is_lease and not (items and {*spaces} <= {*items, ORDER}):
            return None
        if not meant(ORDER) and not any(map(meant, spaces)):
            return []
        if self.is_lease or not self._home or any(map(meant, items)):
            return None
        there = Place(tenant, self._home, ORDER, "")
        return [Listed(there, self.head(there))]

    def places(self, tenant: str) -> list[Place]:
        """Its sessions, where it says which home it is of; nothing for another."""
        named = (one for one in self.sessions if log_of(self._root, tenant, one) == self._path)
        home = self._home or next(named, "")
        return [Place(tenant, home, "session", one) for one in sorted(self.sessions)] if home else []

    def head(self, place: Place) -> PlaceHead:
        """What stands for the head of a place of it."""
        what = f"session {place.name!r}" if place.space == "session" else repr(place.home)
        return PlaceHead(Spoilt.of(b"", f"the head of {what} cannot be read: {self.why}"))

    def goes(self, batches: Sequence[Batch]) -> bool:
        """Whether batches destroy the only session of it."""
        steps = [step for batch in batches for step in batch]
        gone = {step.place.name for step in steps if isinstance(step.expect, Spoilt) and step.hot is None}
        return bool(gone) and gone == self.sessions
