"""Who reads which log of a home: the tree of branches, as it stands in the rows of one place; and changes in all of it.

A session reads its own log without end, and those of others up to a seq each. Each of these is a row, found by the
number of the log; one's own by an id of its own. The head of the place moves with each change: it says which keys are
free. A home without this place has the session of its name alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from palimpsest.log import spans
from palimpsest.log.codec import decoded, ready
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Named, Row, Seen, Step
from palimpsest.stores.engine.forms import (
    LAST,
    Share,
    checked,
    figure_tables,
    key_of,
    new_log,
    of_entries,
    read_as,
    stamped,
)
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.rules import Looks, expect_of

Readers = Mapping[tuple[str, int], tuple[int, ...]]
"""Which entries sessions have, by their names and the numbers of their own logs."""

Pieces = list[tuple[int, int, int]]
"""Stretches of logs: the log's number, the first seq, the last."""


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """A session, whose own log is `own`, that reads a log from one seq up to another."""

    session: str
    own: int
    log: int
    first: int
    last: int


ready(Reader)


class Tree:
    """Readers of some logs of a home, and the head of the place where that stands."""

    def __init__(self, url: str, known: Known, seen: Seen | None) -> None:
        self._known = known
        self.there = seen.head if seen is not None else None
        self.hot = expect_of(self.there)
        rows = [row for found in seen.rows for row in found] if seen is not None else []
        what = f"the branches of session {known.place.home!r}"
        self._rows = read_as(url, what, lambda: {row[0]: decoded(checked(row[1], row[0]), Reader) for row in rows})
        self._gone: list[int] = []
        self._new: list[Reader] = []

    @property
    def _now(self) -> list[Reader]:
        return [*self._rows.values(), *self._new]

    def readers(self, log: int, seqs: Sequence[int]) -> Readers:
        """The sessions, each with its own log, that read some of these entries of a log, and which, in order.

        Of a home without a tree there are none but the session itself, which is not among them.
        """
        found, meant = dict[tuple[str, int], tuple[int, ...]](), tuple(sorted(seqs))
        for one in self._now:
            read = meant[bisect_left(meant, one.first) : bisect_right(meant, one.last)] if one.log == log else ()
            if read:
                found[one.session, one.own] = read
        return found

    def others(self, known: Known, seqs: Collection[int]) -> Readers:
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
        self._without(lambda one: one.own == known.log)

    def left_by(self, name: str) -> tuple[set[int], set[int]]:
        """Let the session of a name read nothing any more; its own logs, as far as that is known, and all it read."""
        gone = self._without(lambda one: one.session == name)
        return {one.own for one in gone}, {one.log for one in gone}

    def _without(self, meant: Callable[[Reader], bool]) -> list[Reader]:
        gone = {key: one for key, one in self._rows.items() if meant(one)}
        self._gone += gone
        self._rows = {key: one for key, one in self._rows.items() if key not in gone}
        return list(gone.values())

    def sharing_any(self, logs: Collection[int]) -> set[str]:
        """The sessions that read some of these logs."""
        return {one.session for one in self._now if one.log in logs}

    @property
    def logs(self) -> set[int]:
        """The logs that somebody reads."""
        return {one.log for one in self._now}

    @property
    def sessions(self) -> set[str]:
        """The sessions that read anything."""
        return {one.session for one in self._now}

    def unread(self, logs: Iterable[int]) -> Pieces:
        """What of these logs nobody reads any more."""
        found = []
        for log in dict.fromkeys(logs):
            read = spans.union((one.first, one.last) for one in self._now if one.log == log)
            found += [(log, first, last) for first, last in spans.minus([(0, LAST)], read)]
        return found

    def step(self, *, last: bool = False) -> Step:
        """What makes the tree so; where nothing was changed, what is only so if nobody else has changed it.

        With the `last` session of the home the place goes, too.
        """
        place = self._known.tree
        if last and self.hot is not None:
            return Step(place, self.hot, drop=[("*", 0, LAST_KEY)])
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
    return Ask(known.tree, [named(read_by(known))])


def of_owner(known: Known) -> Ask:
    """What asks whether a session is known to read its own log, and nothing of the others that may read it."""
    return Ask(known.tree, [Named("share", [own_id(known.log)])])


def named(logs: Iterable[int]) -> Named:
    """The rows of whoever reads these logs."""
    return Named("share", [id for log in dict.fromkeys(logs) for id in (str(log), own_id(log))])


def own_id(log: int) -> str:
    """What the row of the session is found by whose own log this is: one who looks for that reads no others."""
    return f"own/{log}"


def spans_of(pieces: Pieces) -> list[tuple[int, int]]:
    """The spans of keys of stretches of logs."""
    return [(key_of(log, low), key_of(log, high)) for log, low, high in pieces if low <= high]


def read_by(known: Known) -> list[int]:
    """The logs that a session reads."""
    return [known.log, *(log for _, log in known.shares)]


def dropping(pieces: Pieces) -> list[tuple[str, int, int]]:
    """What drops the entries of stretches of logs, with all that belongs to them."""
    return of_entries(*spans_of(pieces))


def figures_of(session: str, logs: Iterable[int]) -> list[tuple[str, int, int]]:
    """What drops the figures that a session has noted of entries of logs: who shares them has figures of its own."""
    tables = figure_tables(session)
    return [(table, key_of(log, 0), key_of(log, LAST)) for log in logs for table in tables]


def dropped(own: Iterable[int], pieces: Pieces) -> list[tuple[str, int, int]]:
    """What drops the records of a session, whose `own` logs these are, and stretches of logs."""
    return [*(("record", key_of(log, 0), key_of(log, LAST)) for log in own), *dropping(pieces)]


# --- who shares what


class Sharer(NamedTuple):
    """Another session, which of the entries it has, and the rows of its records that carry a compaction."""

    known: Known
    seqs: tuple[int, ...]
    records: Sequence[Cells]


async def sharers(sessions: Sessions, known: Known, tree: Tree, seqs: Collection[int], look: Looks) -> list[Sharer]:
    """The other sessions that have some of these entries of a session, as they are now."""
    readers = tree.others(known, seqs)
    seen = await look(_asks(known, readers)) if readers else []
    by_log: dict[int, list[Cells]] = {}
    for row in seen[-1].rows[0] if seen else ():
        by_log.setdefault(row[0] >> 32, []).append(row)
    found = []
    for ((name, log), its), one in zip(readers.items(), seen, strict=False):
        other = sessions.read(known.key._replace(session=name), known.place._replace(name=name), one.head)
        if other.there is not None and other.log == log:
            found.append(Sharer(other, tuple(sorted(its)), by_log.get(log, [])))
    return found


def _asks(known: Known, readers: Iterable[tuple[str, int]]) -> list[Ask]:
    heads = [Ask(known.place._replace(name=name)) for name, _ in readers]
    return [*heads, known.ask(Named("record", [str(log) for _, log in readers]))]
