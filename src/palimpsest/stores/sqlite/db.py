"""`Database`, an SQLite file as its users see it: transactions, and who waits for whom.

There are three connections, each with a lock. One does all writing, and reading while nobody writes. Another is for
reads during a write, so that no reader waits for a writer. The third looks at heads for an event loop, which may wait
for nobody. No lock is held while waiting for another process. What happens inside a transaction is in `tables`.

Signals: Python runs their handlers between the bytecodes of the main thread, and a handler may raise. So locks (see
`palimpsest.runtime.once`) and transactions are held by `with` on the objects themselves, without a function in between:
then no handler runs between taking and holding one. No `return` leaves such a block. Rows are fetched in one call: a
cursor that the frames of an exception keep alive would hold on to an old state of the file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from _thread import LockType  # `threading` costs a cold start a millisecond
from _weakref import ref  # and so does `weakref`
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from palimpsest.errors import Closed, PalimpsestError
from palimpsest.runtime.once import ProcessLock, new_lock
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
"""A place that never has a head: looking at it only opens a connection."""

LOOK = 0.005
"""Seconds for which a check that the path still names the file holds: each costs a tenth of an append."""

_turning = ProcessLock()
_turns: dict[tuple[int, int, int], ref[LockType]] = {}


def _turn_of(identity: Identity) -> LockType:
    """Return the lock that all writers of this process to a file share, by device and inode."""
    with _turning.own():
        for key in [key for key, turn in _turns.items() if turn() is None]:
            del _turns[key]
        key = (os.getpid(), *identity)  # a fork may have copied the lock while another thread held it
        turn = _turns[key]() if key in _turns else None
        if turn is None:
            turn = new_lock()
            _turns[key] = ref(turn)
    return turn


class Database:
    """One file, with its connections.

    `turn` is the lock of whoever writes, shared by all in this process who have the file open: waiting for a lock gives
    them their turn sooner and more evenly than trying SQLite's. Once `leaving` is set, nobody waits any more.
    """

    def __init__(self, url: str, path: str, options: DiskOptions) -> None:
        self.path, self.writable, self.busy_seconds = os.path.abspath(path), not options.readonly, options.busy_seconds
        self.turn = new_lock()
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
            self._check_same_file()
            if self.writable:
                connection.execute(f"PRAGMA synchronous={'FULL' if self.durable else 'NORMAL'}")
                connection.execute("PRAGMA secure_delete=ON")  # overwrite erased data, whatever the default is
            return Tables(connection, self._known)
        except BaseException:
            connection.close()
            raise

    # --- transactions

    def read(self, body: Callable[[Tables], T]) -> T:
        """Call `body` in a reading transaction, where it sees one state of the file, and return its result."""
        if self._glances and self._links.glancer.bound is None:
            self._glanced(NOWHERE)
        return self._retry(partial(self._read, body), self.busy_seconds)

    def glance(self, place: Place) -> PlaceHead | None:
        """Return the head of a place without waiting for anybody.

        None if there is no head, if the look fails, or if the glancing connection is not open yet: opening may take
        long, so the next `read` does it. Nobody holds the lock of that connection for longer than one such look.
        """
        self._glances = True
        return self._glanced(place) if self._links.glancer.bound is not None else None

    def _glanced(self, place: Place) -> PlaceHead | None:
        with suppress(*FAULTS, PalimpsestError), self._links.glancer.lock:  # a read will raise what is wrong
            if not self._closed:
                return self._links.glancer.use().look([Ask(place)])[0].head
        return None

    def _read(self, body: Callable[[Tables], T]) -> T:
        """Run one reading transaction, with whichever connection `Links.to_read` gives."""
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
        """Call `body` in a writing transaction, and return its result once that is committed.

        Whatever is raised rolls it back. Where another process is in the way, `body` is called again. A `relaxed`
        commit does not wait for the disk.
        """
        since = time.monotonic()
        try:
            return self._in_turn(body, relaxed)
        except FAULTS as fault:
            self._pause(fault, since + self.busy_seconds)
        return self._retry(partial(self._in_turn, body, relaxed), self.busy_seconds, since)

    def _in_turn(self, body: Callable[[Tables], T], relaxed: bool) -> T:
        with self.turn:
            result = self._write_once(body, relaxed)
        return result

    def hastily(self, body: Callable[[Tables], T], patience: float) -> T:
        """Write what may be lost: without waiting for the disk, and at most `patience` seconds for other processes."""
        return self._retry(partial(self._write_once, body, True), patience)

    def _write_once(self, body: Callable[[Tables], T], relaxed: bool) -> T:
        """Run one writing transaction with the writing connection."""
        writer = self._writer
        with writer.lock:
            if self._closed:  # by another thread, while this one waited
                raise Closed(self._url)
            bound = writer.bound or writer.use()
            connection = bound.connection
            if (relaxed and self.durable) is not writer.relaxed:
                writer.relaxed = True  # until the statement has run: if it fails, the next lasting write repeats it
                connection.execute(f"PRAGMA synchronous={'NORMAL' if relaxed else 'FULL'}")
                writer.relaxed = relaxed
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = body(bound)
                    if writer.journal is None or time.monotonic() > self._looked + LOOK:
                        self._check_same_file(writer)
                    connection.execute("COMMIT")  # a cached statement, which `commit()` is not
                except BaseException:
                    self._known.forget()
                    raise
        return result

    def prepare(self, body: Callable[[sqlite3.Connection], object]) -> None:
        """Call `body`, which begins its own transactions, again and again until nobody is in its way."""
        self._retry(partial(self._prepare, body), self.busy_seconds)

    def _prepare(self, body: Callable[[sqlite3.Connection], object]) -> None:
        with self._writer.lock:
            body(self._writer.use().connection)

    def _retry(self, act: Callable[[], T], patience: float, since: float | None = None) -> T:
        """Call `act` until no other process is in its way, for `patience` seconds from `since` (None: from now).

        No lock is held between two tries. Any other fault is raised, translated.
        """
        until = (time.monotonic() if since is None else since) + patience
        while True:
            try:
                return act()
            except FAULTS as fault:
                self._pause(fault, until)

    def _pause(self, fault: Exception, until: float) -> None:
        """Sleep for a moment if others are in the way and time remains; else raise the fault, translated."""
        if not is_busy(fault) or time.monotonic() >= until:
            with self._translated:
                raise fault
        if self.leaving:
            raise Closed(self._url) from None
        time.sleep(PAUSE)

    def outside_transaction(self, body: Callable[[sqlite3.Connection], T], patience: float = 0) -> T:
        """Call `body` with the writing connection, outside a transaction.

        Each of its statements waits at most `patience` seconds for other connections.
        """
        with self._translated, self._writer.lock:
            if self._closed:  # by another thread, while this one waited
                raise Closed(self._url)
            result = _patient(self._writer.use().connection, body, patience)
        return result

    def _check_same_file(self, writer: Link[Tables] | None = None) -> None:
        """Raise StoreUnavailable if what is written would be lost: `SameFile` explains when."""
        now, first = time.monotonic(), self._same.seen is None
        self._same.check(writer)
        if first and self._same.seen is not None:
            self.turn = _turn_of(self._same.seen)
        self._looked = now

    # --- closing

    def close(self, last: Callable[[sqlite3.Connection], object], patience: float) -> None:
        """Close all connections once nobody uses them. Before that call `last` with the writing one, if it is open."""
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
    """Call `body`, whose statements wait at most `patience` seconds for other connections."""
    try:
        connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}")
        return body(connection)
    finally:
        connection.execute("PRAGMA busy_timeout=0")
