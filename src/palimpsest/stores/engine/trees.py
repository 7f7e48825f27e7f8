"""Who reads which log of a home: the tree of branches, as it stands in the rows of one place.

A session reads its own log without end, and those of others up to a seq each. Each of these is a row, found by the
number of the log; one's own by an id of its own. The head of the place moves with each change: it says which keys are
free. A home without this place has the session of its name alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans
from palimpsest.stores.backend import Ask, Cells, Named, Row, Seen, Step
from palimpsest.stores.engine.forms import LAST, Share, checked, new_log, stamped
from palimpsest.stores.engine.heads import Known


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """A session, whose own log is `own`, that reads a log from one seq up to another."""

    session: str
    own: int
    log: int
    first: int
    last: int


class Tree:
    """Readers of some logs of a home, and the head of the place where that stands."""

    def __init__(self, url: str, known: Known, seen: Seen | None) -> None:
        self._known = known
        self.there = seen.head if seen is not None else None
        self.hot = self.there.hot if self.there is not None else None
        rows = [row for found in seen.rows for row in found] if seen is not None else []
        self._rows = {row[0]: _read(url, known, row) for row in rows}
        self._gone: list[int] = []
        self._new: list[Reader] = []

    @property
    def _now(self) -> list[Reader]:
        return [*self._rows.values(), *self._new]

    def readers(self, log: int, seqs: Sequence[int]) -> dict[tuple[str, int], tuple[int, ...]]:
        """The sessions, each with its own log, that read some of these entries of a log, and which, in order.

        Of a home without a tree there are none but the session itself, which is not among them.
        """
        found, meant = dict[tuple[str, int], tuple[int, ...]](), tuple(sorted(seqs))
        for one in self._now:
            read = meant[bisect_left(meant, one.first) : bisect_right(meant, one.last)] if one.log == log else ()
            if read:
                found[one.session, one.own] = read
        return found

    def others(self, known: Known, seqs: Collection[int]) -> dict[tuple[str, int], tuple[int, ...]]:
        """The sessions beside this one that have some of its entries, each with its own log, and which."""
        found = dict[tuple[str, int], tuple[int, ...]]()
        for log, some in known.by_log(seqs).items():
            for reader, read in self.readers(log, some).items():
                found[reader] = (*found.get(reader, ()), *read)
        found.pop((known.key.session, known.log), None)
        return found

    def sharing(self, log: int, first: int, last: int) -> set[str]:
        """The sessions that read some of a stretch of a log."""
        return {one.session for one in self._now if one.log == log and one.first <= last and one.last >= first}

    def is_alone(self, known: Known) -> bool:
        """Whether all that is known to read anything is this session."""
        return all(one.own == known.log for one in self._now)

    def owner(self, log: int) -> Reader | None:
        """The session whose log it is, if that is there."""
        return next((one for one in self._now if one.log == log == one.own), None)

    # --- changing

    def join(self, known: Known, shares: Sequence[Share], first: int) -> None:
        """Let a session read its own log, and of others what it shares, from a seq on."""
        name, own = known.key.session, known.log
        self._new += [Reader(name, own, log, first, last) for last, log in (*shares, (LAST, own))]

    def leave(self, known: Known) -> None:
        """Let a session read nothing any more."""
        gone = [key for key, one in self._rows.items() if one.own == known.log]
        self._gone += gone
        self._rows = {key: one for key, one in self._rows.items() if key not in gone}

    def unread(self, logs: Iterable[int]) -> list[tuple[int, int, int]]:
        """What of these logs nobody reads any more: log, first seq, last seq."""
        found = []
        for log in dict.fromkeys(logs):
            read = spans.union((one.first, one.last) for one in self._now if one.log == log)
            found += [(log, first, last) for first, last in spans.minus([(0, LAST)], read)]
        return found

    def step(self) -> Step:
        """What makes the tree so; where nothing was changed, what is only so if nobody else has changed it."""
        place = self._known.tree
        if not self._gone and not self._new:
            return Step(place, self.hot, self.hot)
        free = int(self.hot) if self.hot is not None else new_log() << 16  # no key comes again, of whatever tree
        put = [
            Row(key, stamped(msgspec.json.encode(one), key), own_id(one.log) if one.log == one.own else str(one.log))
            for key, one in enumerate(self._new, free)
        ]
        drop = [("share", key, key) for key in self._gone]
        after = b"%d" % (free + max(1, len(put)))
        return Step(place, self.hot, after, drop=drop, put=[("share", put)] if put else [])


def of_tree(known: Known) -> Ask:
    """What asks who reads the logs that a session reads."""
    mine = [log for _, log in known.shares]
    return Ask(known.tree, [named([*mine, known.log])])


def of_owner(known: Known) -> Ask:
    """What asks whether a session is known to read its own log, and nothing of the others that may read it."""
    return Ask(known.tree, [Named("share", [own_id(known.log)])])


def named(logs: Iterable[int]) -> Named:
    """The rows of whoever reads these logs."""
    return Named("share", [id for log in dict.fromkeys(logs) for id in (str(log), own_id(log))])


def own_id(log: int) -> str:
    """What the row of the session is found by whose own log this is: one who looks for that reads no others."""
    return f"own/{log}"


def _read(url: str, known: Known, row: Cells) -> Reader:
    try:
        return msgspec.json.decode(checked(row[1], row[0]), type=Reader)
    except (ValueError, msgspec.DecodeError) as cause:
        told = f"the branches of session {known.place.home!r} cannot be read ({cause})"
        raise StoreCorrupt(url, told) from cause
