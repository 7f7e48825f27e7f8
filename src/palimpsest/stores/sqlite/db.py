"""An SQLite file as its users see it: transactions, and who waits for whom.

Connections with a lock of each. All writing, and reading while nobody writes, is done by one; who reads while somebody
writes has another, so that no reader waits for a writer; an event loop, which may wait for nobody, looks at heads by a
third. Nobody holds one while waiting for another process. What is done in a transaction is in `tables`.

Signals. Python runs their handlers between the steps of the main thread's code, and a handler may raise. So locks and
transactions are held by `with` on the objects of C themselves, which leaves no step between taking and holding, with no
function of ours in between; and what is held is left by no `return`. Rows are fetched in one call: a cursor that an
exception's frames keep alive would hold on to a past state of the file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from _thread import LockType, allocate_lock  # `threading` costs a cold start a millisecond
from _weakref import ref  # and so does `weakref`
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from palimpsest.errors import Closed, PalimpsestError
from palimpsest.runtime.once import ProcessLock
from palimpsest.stores import forking
from palimpsest.stores.backend import Ask, Place, PlaceHead
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.sqlite.connections import (
    FAULTS,
    PAUSE,
    Identity,
    Link,
    Links,
    SameFile,
    Translated,
    connected,
    is_busy,
)
from palimpsest.stores.sqlite.numbers import Remembered
from palimpsest.stores.sqlite.tables import Tables

T = TypeVar("T")

NOWHERE = Place("", "", "", "")
"""A place that has no head."""

LOOK = 0.005
"""Seconds for which the path is believed to name the file still: a look at it costs a tenth of an append."""

_turning = ProcessLock()
_turns: dict[tuple[int, int, int], ref[LockType]] = {}


def _turn_of(identity: Identity) -> LockType:
    """The turn at a file that all connections of this process to it share, by device and inode."""
    with _turning.own():
        for mine in [mine for mine, turn in _turns.items() if turn() is None]:
            del _turns[mine]
        mine = (os.getpid(), *identity)  # a fork may have come while another thread had it
        turn = _turns[mine]() if mine in _turns else None
        if turn is None:
            turn = allocate_lock()
            _turns[mine] = ref(turn)
    return turn


class Database:
    """One file. `turn` is the lock of whoever writes, of all in this process who have the file open: they wait for each
    other by a lock, and come sooner and more evenly to their turn than by trying. Nobody who is `leaving` waits.
    """

    def __init__(self, url: str, path: str, options: DiskOptions) -> None:
        self.path, self.writable, self.busy_seconds = os.path.abspath(path), not options.readonly, options.busy_seconds
        self.turn = allocate_lock()
        self.leaving = self._closed = False
        self._url, self.durable = url, options.synchronous == "FULL"
        self._known, self._translated, self._same = Remembered(), Translated(url), SameFile(url, self.path)
        self._looked, self._glances = 0.0, False
        self._links = Links(self.path, self._open, lambda tables: tables.connection.close())
        self._writer, self._reader = self._links.writer, self._links.reader
        forking.watch(self._links)

    def _open(self) -> Tables:
        forking.refuse(self.path)
        connection = connected(self._url, self.path, writable=self.writable)
        try:
            self._be_the_same()
            if self.writable:
                connection.execute(f"PRAGMA synchronous={'FULL' if self.durable else 'NORMAL'}")
                connection.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, however SQLite was built
            return Tables(connection, self._known)
        except BaseException:
            connection.close()
            raise

    # --- transactions

    def read(self, body: Callable[[Tables], T]) -> T:
        """Return what `body` returns, which sees one state of the file."""
        if self._glances and self._links.glancer.bound is None:
            self._glanced(NOWHERE)
        return self._tried(partial(self._read, body), self.busy_seconds)

    def glance(self, place: Place) -> PlaceHead | None:
        """The head of a place, for who may wait for nobody: the glancer is nobody's for longer than that takes.

        None where somebody is in the way, or there is none, and before a reader has opened it for whoever glances.
        """
        self._glances = True
        return self._glanced(place) if self._links.glancer.bound is not None else None

    def _glanced(self, place: Place) -> PlaceHead | None:
        with suppress(*FAULTS, PalimpsestError), self._links.glancer.lock:  # who reads is told
            if not self._closed:
                return self._links.glancer.use().look([Ask(place)])[0].head
        return None

    def _read(self, body: Callable[[Tables], T]) -> T:
        link = self._links.to_read()
        with link.lock:
            if self._closed:  # by another thread, while this one waited
                raise Closed(self._url)
            bound = link.bound or link.use()
            with bound.connection:
                bound.connection.execute("BEGIN")
                result = body(bound)
        return result

    def write(self, body: Callable[[Tables], T], relaxed: bool) -> T:
        """Return what `body` returns when that is committed; whatever is raised before takes all of it back.

        Another process may be in the way: `body` may be called again. What is `relaxed` does not wait for the disk.
        """
        since = time.monotonic()
        try:
            return self._in_turn(body, relaxed)
        except FAULTS as fault:
            self._pause(fault, since + self.busy_seconds)
        return self._tried(partial(self._in_turn, body, relaxed), self.busy_seconds, since)

    def _in_turn(self, body: Callable[[Tables], T], relaxed: bool) -> T:
        with self.turn:
            result = self._written(body, relaxed)
        return result

    def hastily(self, body: Callable[[Tables], T], patience: float) -> T:
        """Write what may be lost: it does not wait for the disk, and for other processes only so many seconds."""
        return self._tried(partial(self._written, body, True), patience)

    def _written(self, body: Callable[[Tables], T], relaxed: bool) -> T:
        writer = self._writer
        with writer.lock:
            if self._closed:  # by another thread, while this one waited
                raise Closed(self._url)
            bound = writer.bound or writer.use()
            connection = bound.connection
            if (relaxed and self.durable) is not writer.relaxed:
                writer.relaxed = True  # until it is certain that it is not
                connection.execute(f"PRAGMA synchronous={'NORMAL' if relaxed else 'FULL'}")
                writer.relaxed = relaxed
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = body(bound)
                    if writer.journal is None or time.monotonic() > self._looked + LOOK:
                        self._be_the_same(writer)
                    connection.execute("COMMIT")  # prepared once, which `commit` is not
                except BaseException:
                    self._known.forget()
                    raise
        return result

    def prepare(self, body: Callable[[sqlite3.Connection], object]) -> None:
        """Call `body`, which begins transactions of its own and may be called again, until nobody is in its way."""
        self._tried(partial(self._prepared, body), self.busy_seconds)

    def _prepared(self, body: Callable[[sqlite3.Connection], object]) -> None:
        with self._writer.lock:
            body(self._writer.use().connection)

    def _tried(self, act: Callable[[], T], patience: float, since: float | None = None) -> T:
        """Return what `act` returns, which others may be in the way of: for so many seconds, since a moment or now.

        Nothing is held while waiting. What else is in the way is raised as what it means.
        """
        until = (time.monotonic() if since is None else since) + patience
        while True:
            try:
                return act()
            except FAULTS as fault:
                self._pause(fault, until)

    def _pause(self, fault: Exception, until: float) -> None:
        """Wait a moment where others are in the way, and there is time left; else raise what the fault means."""
        if not is_busy(fault) or time.monotonic() >= until:
            with self._translated:
                raise fault
        if self.leaving:
            raise Closed(self._url) from None
        time.sleep(PAUSE)

    def alone(self, body: Callable[[sqlite3.Connection], T], patience: float = 0) -> T:
        """Call `body` with the writing connection, in no transaction; a statement of it waits so many seconds."""
        with self._translated, self._writer.lock:
            if self._closed:  # by another thread, while this one waited
                raise Closed(self._url)
            result = _patient(self._writer.use().connection, body, patience)
        return result

    def _be_the_same(self, writer: Link[Tables] | None = None) -> None:
        """Raise StoreUnavailable where what is written would be lost: `SameFile` says when."""
        now, first = time.monotonic(), self._same.seen is None
        self._same.check(writer)
        if first and self._same.seen is not None:
            self.turn = _turn_of(self._same.seen)
        self._looked = now

    # --- the end

    def close(self, last: Callable[[sqlite3.Connection], object], patience: float) -> None:
        """Close both connections, when nobody uses them; before that, do what is `last`, where one is open."""
        self.leaving = self._closed = True
        with self._translated:
            for link in (self._links.glancer, self._reader):
                with link.lock:
                    link.close()
            with self._writer.lock:
                try:
                    if self._writer.bound is not None:
                        _patient(self._writer.bound.connection, last, patience)
                finally:
                    self._writer.close()


def _patient(connection: sqlite3.Connection, body: Callable[[sqlite3.Connection], T], patience: float) -> T:
    """Call `body`, whose statements wait so many seconds for others."""
    try:
        connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}")
        return body(connection)
    finally:
        connection.execute("PRAGMA busy_timeout=0")
