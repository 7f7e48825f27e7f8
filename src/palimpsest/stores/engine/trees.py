"""The tree of branches of a home: which session reads which log. Also changes that reach several of its sessions.

A session reads its own log without end, and others' logs each up to some seq. Each of these is one row, indexed by the
number of the log; a session's row for its own log is indexed by an id of its own. The head of the tree's place changes
with each change of the tree, and says which row keys are free. A home without this place has only the session that it
is named after.
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
    entry_drops,
    figure_tables,
    key_of,
    new_log,
    read_as,
    stamped,
)
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.rules import AsyncLook, expect_of

Readers = Mapping[tuple[str, int], tuple[int, ...]]
"""Which entries sessions have: seqs by the session's name and the number of its own log."""

Pieces = list[tuple[int, int, int]]
"""Ranges of logs: (log, first seq, last seq)."""


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """A session, whose own log is `own`, reads the log `log` from seq `first` to seq `last`."""

    session: str
    own: int
    log: int
    first: int
    last: int


ready(Reader)


class Tree:
    """The readers of some logs of a home, as changed so far, and the head of the place where they are stored."""

    def __init__(self, url: str, known: Known, seen: Seen | None) -> None:
        self._known = known
        self.hot = expect_of(seen.head if seen is not None else None)
        rows = [row for found_rows in seen.rows for row in found_rows] if seen is not None else []
        what = f"the branches of session {known.place.home!r}"
        self._rows = read_as(url, what, lambda: {row[0]: decoded(checked(row[1], row[0]), Reader) for row in rows})
        self._next_key = read_as(url, what, lambda: None if self.hot is None else int(self.hot))
        self._gone: list[int] = []
        self._new: list[Reader] = []

    @property
    def _current(self) -> list[Reader]:
        return [*self._rows.values(), *self._new]

    def readers(self, log: int, seqs: Sequence[int]) -> Readers:
        """Return the sessions that read any of these entries of a log, with the seqs that each reads, ascending.

        Empty for a home without a tree: there only the session itself reads its log.
        """
        readers, ordered = dict[tuple[str, int], tuple[int, ...]](), tuple(sorted(seqs))
        for reader in self._current:
            low, high = bisect_left(ordered, reader.first), bisect_right(ordered, reader.last)
            if reader.log == log and (read := ordered[low:high]):
                readers[reader.session, reader.own] = read
        return readers

    def others(self, known: Known, seqs: Collection[int]) -> Readers:
        """Return the other sessions that have some of this session's entries, and which."""
        others = dict[tuple[str, int], tuple[int, ...]]()
        for log, log_seqs in known.by_log(seqs).items():
            for reader, read in self.readers(log, log_seqs).items():
                others[reader] = (*others.get(reader, ()), *read)
        others.pop((known.key.session, known.log), None)
        return others

    def sharing(self, log: int, first: int, last: int) -> set[str]:
        """Return the sessions that read any of a range of a log."""
        return {one.session for one in self._current if one.log == log and one.first <= last and one.last >= first}

    def is_alone(self, known: Known) -> bool:
        """Return whether no other session is known to read anything."""
        return all(one.own == known.log for one in self._current)

    def owner(self, log: int) -> Reader | None:
        """Return the reader whose own log this is, if the tree has it."""
        return next((one for one in self._current if one.log == log == one.own), None)

    # --- changing

    def join(self, known: Known, shares: Sequence[Share], first: int) -> None:
        """Add a session's rows: it reads its own log and its shares of other logs, from seq `first` on."""
        name, own = known.key.session, known.log
        self._new += [Reader(name, own, log, first, last) for last, log in (*shares, (LAST, own))]

    def leave(self, known: Known) -> None:
        """Remove all rows of a session."""
        self._without(lambda one: one.own == known.log)

    def left_by(self, name: str) -> tuple[set[int], set[int]]:
        """Remove all rows of sessions of this name; return their own logs, as far as known, and all logs they read."""
        removed = self._without(lambda one: one.session == name)
        return {one.own for one in removed}, {one.log for one in removed}

    def _without(self, matches: Callable[[Reader], bool]) -> list[Reader]:
        """Remove the stored rows that `matches` accepts, and return them."""
        removed = {key: one for key, one in self._rows.items() if matches(one)}
        self._gone += removed
        self._rows = {key: one for key, one in self._rows.items() if key not in removed}
        return list(removed.values())

    def sharing_any(self, logs: Collection[int]) -> set[str]:
        """Return the sessions that read any of these logs."""
        return {one.session for one in self._current if one.log in logs}

    @property
    def logs(self) -> set[int]:
        """The logs that any session reads."""
        return {one.log for one in self._current}

    @property
    def sessions(self) -> set[str]:
        """The sessions that read anything."""
        return {one.session for one in self._current}

    def unread(self, logs: Iterable[int]) -> Pieces:
        """Return the ranges of these logs that no session reads any more."""
        unread = []
        for log in dict.fromkeys(logs):
            read = spans.union((one.first, one.last) for one in self._current if one.log == log)
            unread += [(log, first, last) for first, last in spans.minus([(0, LAST)], read)]
        return unread

    def step(self, *, last: bool = False) -> Step:
        """Return the step that stores the changes. Without changes it checks that the tree is as it was read.

        With `last`, the session that leaves is the only one in the home, and the whole place is dropped.
        """
        place = self._known.tree
        if last and self.hot is not None:
            return Step(place, self.hot, drop=[("*", 0, LAST_KEY)])
        if not self._gone and not self._new:
            return Step(place, self.hot, self.hot)
        next_key = new_log() << 16 if self._next_key is None else self._next_key  # a key is never used by two trees
        rows = [
            Row(key, stamped(msgspec.json.encode(one), key), own_id(one.log) if one.log == one.own else str(one.log))
            for key, one in enumerate(self._new, next_key)
        ]
        drop = [("share", key, key) for key in self._gone]
        hot = b"%d" % (next_key + max(1, len(rows)))
        return Step(place, self.hot, hot, drop=drop, put=[("share", rows)] if rows else [])


def ask_tree(known: Known) -> Ask:
    """Ask which sessions read the logs that this session reads."""
    return Ask(known.tree, [readers_of(logs_read_by(known))])


def ask_owner(known: Known) -> Ask:
    """Ask only for the session's row of its own log, not for the other readers of that log."""
    return Ask(known.tree, [Named("share", [own_id(known.log)])])


def readers_of(logs: Iterable[int]) -> Named:
    """Ask for the rows of all readers of these logs."""
    return Named("share", [id for log in dict.fromkeys(logs) for id in (str(log), own_id(log))])


def own_id(log: int) -> str:
    """Return the id under which a session's row for its own log is found without reading the log's other readers."""
    return f"own/{log}"


def spans_of(pieces: Pieces) -> list[tuple[int, int]]:
    """Return the spans of keys of ranges of logs."""
    return [(key_of(log, low), key_of(log, high)) for log, low, high in pieces if low <= high]


def logs_read_by(known: Known) -> list[int]:
    """Return the logs that a session reads, its own first."""
    return [known.log, *(log for _, log in known.shares)]


def log_drops(pieces: Pieces) -> list[tuple[str, int, int]]:
    """Return what drops the entries of ranges of logs, and everything that is kept beside them."""
    return entry_drops(*spans_of(pieces))


def figure_drops(session: str, logs: Iterable[int]) -> list[tuple[str, int, int]]:
    """Return what drops the figures that a session has noted of entries of these logs.

    Other sessions that share the entries have figures of their own.
    """
    tables = figure_tables(session)
    return [(table, key_of(log, 0), key_of(log, LAST)) for log in logs for table in tables]


def session_drops(own: Iterable[int], pieces: Pieces) -> list[tuple[str, int, int]]:
    """Return what drops the records of a session, whose own logs these are, and the entries of ranges of logs."""
    return [*(("record", key_of(log, 0), key_of(log, LAST)) for log in own), *log_drops(pieces)]


# --- who shares what


class Sharer(NamedTuple):
    """Another session that has some of the entries, which ones, and the rows of its records that carry a compaction."""

    known: Known
    seqs: tuple[int, ...]
    records: Sequence[Cells]


async def sharers(sessions: Sessions, known: Known, tree: Tree, seqs: Collection[int], look: AsyncLook) -> list[Sharer]:
    """Return the other sessions that have some of these entries of a session, as they are now."""
    readers = tree.others(known, seqs)
    seen = await look(_asks(known, readers)) if readers else []
    by_log: dict[int, list[Cells]] = {}
    for row in seen[-1].rows[0] if seen else ():
        by_log.setdefault(row[0] >> 32, []).append(row)
    sharing = []
    for ((name, log), shared), head_seen in zip(readers.items(), seen, strict=False):
        other = sessions.read(known.key._replace(session=name), known.place._replace(name=name), head_seen.head)
        if other.stored is not None and other.log == log:
            sharing.append(Sharer(other, tuple(sorted(shared)), by_log.get(log, [])))
    return sharing


def _asks(known: Known, readers: Iterable[tuple[str, int]]) -> list[Ask]:
    """Ask for the heads of these sessions, and for their records that carry a compaction."""
    heads = [Ask(known.place._replace(name=name)) for name, _ in readers]
    return [*heads, known.ask(Named("record", [str(log) for _, log in readers]))]
