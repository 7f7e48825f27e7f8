"""Who reads which log of a home: the tree of branches, as it stands in the rows of one place.

A session reads its own log without end, and those of others up to a seq each. Each of these is a row, found by the
number of the log; its key is the number of the reader's own log * 2^32, and which of its rows it is. The head of the
place moves with each change. A home without this place has the session of its name alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Cells, Named, Row, Seen, Step
from palimpsest.stores.engine.forms import LAST, Share, checked, key_of, stamped
from palimpsest.stores.engine.heads import Known


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """A session that reads a log from one seq up to another; whether it is its own."""

    session: str
    log: int
    first: int
    last: int
    own: bool = False


class Tree:
    """Readers of some logs of a home, and the head of the place where that stands."""

    def __init__(self, url: str, known: Known, seen: Seen | None) -> None:
        self._known = known
        self.there = seen.head if seen is not None else None
        self.hot = self.there.hot if self.there is not None else None
        rows = [row for found in seen.rows for row in found] if seen is not None else []
        self._rows = {row[0]: _read(url, known, row) for row in rows}
        self._drop: list[tuple[str, int, int]] = []
        self._put: dict[int, Reader] = {}

    @property
    def _now(self) -> dict[int, Reader]:
        gone = [(low, high) for _, low, high in self._drop]
        left = {key: one for key, one in self._rows.items() if not any(low <= key <= high for low, high in gone)}
        return left | self._put

    def readers(self, log: int, seqs: Sequence[int]) -> dict[tuple[str, int], tuple[int, ...]]:
        """The sessions, each with its own log, that read some of these entries of a log, and which.

        Of a home without a tree there are none but the session itself, which is not among them.
        """
        found: dict[tuple[str, int], tuple[int, ...]] = {}
        for key, one in self._now.items():
            read = tuple(seq for seq in seqs if one.first <= seq <= one.last) if one.log == log else ()
            if read:
                found[one.session, key >> 32] = read
        return found

    def sharing(self, log: int, first: int, last: int) -> set[str]:
        """The sessions that read some of a stretch of a log."""
        return {one.session for one in self._now.values() if one.log == log and one.first <= last and one.last >= first}

    def owner(self, log: int) -> Reader | None:
        """The session whose log it is, if that is there."""
        return next((one for one in self._now.values() if one.log == log and one.own), None)

    def kept(self, log: int) -> int:
        """The last seq of a log that a branch reads; 0 for none."""
        return max((one.last for one in self._now.values() if one.log == log and not one.own), default=0)

    # --- changing

    def join(self, known: Known, shares: Sequence[Share], first: int) -> None:
        """Let a session read its own log, and of others what it shares, from a seq on."""
        parts = [Reader(known.key.session, log, first, last) for last, log in shares]
        own = Reader(known.key.session, known.log, first, LAST, own=True)
        for i, one in enumerate([own, *parts]):
            self._put[known.log << 32 | i] = one

    def leave(self, known: Known) -> None:
        """Let a session read nothing any more."""
        self._drop.append(("share", key_of(known.log, 0), key_of(known.log, LAST)))
        self._put = {key: one for key, one in self._put.items() if key >> 32 != known.log}

    def unread(self, logs: Iterable[int]) -> list[tuple[int, int, int]]:
        """What of these logs nobody reads any more: log, first seq, last seq."""
        found = []
        for log in dict.fromkeys(logs):
            owner = self.owner(log)
            first, last = self.kept(log) + 1, LAST if owner is None else owner.first - 1
            if first <= last:
                found.append((log, first, last))
        return found

    def step(self) -> Step:
        """What makes the tree so; where nothing was changed, what is only so if nobody else has changed it."""
        place = self._known.tree
        if not self._drop and not self._put:
            return Step(place, self.hot, self.hot)
        after = b"%d" % (int(self.hot or b"0") + 1)
        put = [Row(key, stamped(msgspec.json.encode(one), key), str(one.log)) for key, one in self._put.items()]
        return Step(place, self.hot, after, drop=self._drop, put=[("share", put)] if put else [])


def of_tree(known: Known, logs: Iterable[int] = ()) -> Ask:
    """What asks who reads the logs that a session reads, and these."""
    mine = [log for _, log in known.shares]
    return Ask(known.tree, [Named("share", [str(log) for log in dict.fromkeys([*mine, known.log, *logs])])])


def _read(url: str, known: Known, row: Cells) -> Reader:
    try:
        return msgspec.json.decode(checked(row[1], row[0]), type=Reader)
    except (ValueError, msgspec.DecodeError) as cause:
        told = f"the branches of session {known.place.home!r} cannot be read ({cause})"
        raise StoreCorrupt(url, told) from cause
