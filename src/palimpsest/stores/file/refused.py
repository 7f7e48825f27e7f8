"""`Refused`: a log with a line that cannot be read. None of its content is read, but the sessions in it are named.

Each step names its session in its own line, so names are read from damaged lines, too. A log with a single session can
be destroyed. If the name itself is damaged, whoever destroys the session looks for what else points to its home.
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
    """Why a log is refused, and which sessions are in it.

    `home` is "" if it cannot be read. `heads` are the places with heads, by space and name, from before the damage.
    """

    def __init__(self, root: str, path: str, home: str, why: str, heads: Collection[tuple[str, str]]) -> None:
        self._root, self._path, self._home, self.why = root, path, home, why
        self.sessions = {name for space, name in heads if space == "session"}
        self._spaces = {space.encode() for space, _ in heads}

    def note(self, raw: bytes) -> None:
        """Note the spaces that a line writes to, and the sessions that it writes or drops."""
        steps = raw.partition(b',"frame":"')[0]  # content follows, in which anything may stand
        self._spaces.update(_SPACE.findall(steps))
        for name, gone in _SESSION.findall(steps):
            with contextlib.suppress(ValueError, msgspec.DecodeError):
                (self.sessions.discard if gone else self.sessions.add)(_read_text(name))

    @property
    def is_lease(self) -> bool:
        """Whether the log has nothing but a lease, which may be lost: it only names a writer at work."""
        return self._spaces == {LEASES.encode()}

    def listed(self, tenant: str, meant: Callable[[str], bool]) -> list[Listed] | None:
        """Return places in spaces that are `meant`, with heads that cannot be read; None if the log does not tell."""
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
        counter = Place(tenant, self._home, ORDER, "")
        return [Listed(counter, self.head(counter))]

    def places(self, tenant: str) -> list[Place]:
        """Return the places of its sessions; none if it cannot be said that the log is this tenant's."""
        roots = (name for name in self.sessions if log_of(self._root, tenant, name) == self._path)
        home = self._home or next(roots, "")
        return [Place(tenant, home, "session", name) for name in sorted(self.sessions)] if home else []

    def head(self, place: Place) -> PlaceHead:
        """Return a head that stands for one in this log: reading it fails, dropping it works."""
        what = f"session {place.name!r}" if place.space == "session" else repr(place.home)
        return PlaceHead(Spoilt.of(b"", f"the head of {what} cannot be read: {self.why}"))

    def goes(self, batches: Sequence[Batch]) -> bool:
        """Return whether batches destroy all sessions in the log."""
        steps = [step for batch in batches for step in batch]
        dropped = {step.place.name for step in steps if isinstance(step.expect, Spoilt) and step.hot is None}
        return bool(dropped) and dropped == self.sessions
