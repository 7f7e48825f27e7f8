"""`FileStore`: entries in readable files, one of each namespace, shared by threads and processes.

BASE/
  <namespace>-<hash>.jsonl     the entries of a namespace, as `palimpsest.compat.firefly.journal` writes them
  ids/<two digits>.jsonl       where ids are, so that none is in two namespaces: [id, namespace] a line
  conversations/               the conversations beside them
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import BinaryIO

from palimpsest.compat.firefly.entries import MemoryEntry, Packed, packed
from palimpsest.compat.firefly.in_memory import Shelf
from palimpsest.compat.firefly.journal import Journal, Tail, namespace_in, saved
from palimpsest.compat.firefly.store import Conversations, LocalStore, elsewhere, keyed, read
from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.log import values
from palimpsest.log.checks import is_path
from palimpsest.log.entry import now_us
from palimpsest.runtime.once import ProcessLock
from palimpsest.stores.file.disk import Files, names, unavailable
from palimpsest.stores.file.folder import safe_name

LOG, IDS, TALKS = ".jsonl", "ids", "conversations"

KEPT = 256
"""Namespaces of which an index is kept."""

CROWD = 4096
"""Lines of a file of ids from which on it is written anew at times, without those that are gone."""


class FileStore(LocalStore):
    """Entries in files of JSON lines, which a person can read, one of each namespace.

    Every save is atomic and durable, and threads and processes may share the folder. What was taken away or replaced is
    in the file until that is written anew: by `clear`, by `cleanup_expired`, and now and then.

    Args:
        base_dir: the folder, which is made with those above it.
        busy_seconds: how long to wait for other writers of a namespace.
        clock: a function that returns microseconds since 1970.
    """

    def __init__(
        self,
        base_dir: str | os.PathLike[str] = ".firefly_memory",
        *,
        busy_seconds: float = 30.0,
        clock: Callable[[], int] = now_us,
    ) -> None:
        super().__init__(clock=clock)
        given = os.fspath(base_dir) if isinstance(base_dir, str | os.PathLike) else None
        if not isinstance(given, str) or not given or not is_path(given):
            raise ConfigError("base_dir", base_dir, "the path of a folder")
        if not values.is_number(busy_seconds) or not busy_seconds >= 0:
            raise ConfigError("busy_seconds", busy_seconds, "a number of seconds, 0 or more")
        self.path = os.path.abspath(os.path.expanduser(given))
        self.url, self._busy_seconds = f"file://{self.path}", busy_seconds
        self._files = Files(self.url, self.path, synced=True, busy_seconds=busy_seconds)
        self._journals: OrderedDict[str, Journal] = OrderedDict()
        self._claims: dict[str, _Claims] = {}
        self._lock = ProcessLock()
        with self._faults():
            self._files.make_folder(f"{self.path}/{IDS}")

    # --- the documented methods

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        row, now = self._row(namespace, entry), self.clock()
        with self._faults():
            self._save(self._journal(namespace), row, now)

    def load(self, namespace: str) -> list[MemoryEntry]:
        self._check(namespace)
        now = self.clock()
        with self._faults():
            rows = self._journal(namespace).read(lambda shelf: list(shelf.rows.values()))
        alive = [row for row in rows if not row.is_over(now)]
        return [entry for row in alive if (entry := read(self.url, namespace, row)) is not None]

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        self._check(namespace, key=key)
        now = self.clock()
        with self._faults():
            row = self._journal(namespace).read(lambda shelf: _of_key(shelf, key, now))
        return None if row is None else read(self.url, namespace, row)

    def delete(self, namespace: str, entry_id: str) -> None:
        self._check(namespace, entry_id=entry_id)
        told = {"deleted": entry_id, "at": self.clock()}
        with self._faults():
            journal = self._journal(namespace)
            if journal.read(lambda shelf: entry_id in shelf.ids):
                journal.change(lambda shelf: (None, told if entry_id in shelf.ids else None))

    def clear(self, namespace: str) -> None:
        self._check(namespace)
        with self._faults():
            journal = self._journal(namespace)
            if os.path.exists(journal.path) or journal.read(lambda shelf: bool(shelf.rows)):
                journal.clear()

    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        keyed(entry, key)
        self._check(namespace, key=key)
        row = None if entry is None else self._row(namespace, entry)
        was = None if expected is None else packed(expected)
        now = self.clock()
        with self._faults():
            journal = self._journal(namespace)
            if row is not None:
                return self._save(journal, row, now, lambda shelf: _of_key(shelf, key, now) == was)
            told = None if was is None else {"deleted": was.entry_id, "at": now}
            return journal.change(lambda shelf: (True, told) if _of_key(shelf, key, now) == was else (False, None))

    def cleanup_expired(self) -> int:
        self._check_open()
        now, count = self.clock(), 0
        with self._faults():
            for name in names(self.path):
                if not name.endswith(LOG):
                    continue
                namespace = namespace_in(f"{self.path}/{name}")
                if namespace is not None and safe_name(namespace) + LOG == name:
                    count += self._journal(namespace).keep(lambda row: not row.is_over(now))
        return count

    def close(self) -> None:
        super().close()
        self._files.closed = True

    def conversations_at(self) -> Conversations:
        return Conversations(f"file://{self.path}/{TALKS}", {"busy_seconds": self._busy_seconds})

    # --- files

    def _journal(self, namespace: str) -> Journal:
        """The file of a namespace, with its index; of those that were used last they are kept."""
        with self._lock.own():
            journal = self._journals.get(namespace)
            if journal is None:
                path = f"{self.path}/{safe_name(namespace)}{LOG}"
                before = f"{self.path}/{namespace}.json" if _is_plain(namespace) else None
                journal = self._journals[namespace] = Journal(self._files, path, namespace, before)
                while len(self._journals) > KEPT:
                    self._journals.popitem(last=False)
            self._journals.move_to_end(namespace)
            return journal

    def _save(self, journal: Journal, row: Packed, now: int, when: Callable[[Shelf], bool] = lambda _: True) -> bool:
        """Save an entry, where the index is as it is to be then; return whether it was. Raises Conflict."""

        def put(shelf: Shelf, *, mine: bool) -> tuple[bool | None, dict[str, object] | None]:
            if not when(shelf):
                return False, None
            if not mine and row.entry_id not in shelf.ids:
                return None, None  # nobody knows yet whether it is another namespace's
            return True, saved(row, now)

        done = None
        if journal.read(lambda shelf: row.entry_id in shelf.ids):
            done = journal.change(lambda shelf: put(shelf, mine=False))
        if done is None and not journal.read(when):
            done = False
        if done is None:
            claims = self._claims_of(row.entry_id)
            done = self._files.locked(
                claims.path, "ab+", lambda fd, status: self._claimed(fd, status, claims, journal, row, put)
            )
        return bool(done)

    def _claims_of(self, entry_id: str) -> _Claims:
        shard = sha256(entry_id.encode("utf-8", "surrogatepass")).hexdigest()[:2]
        with self._lock.own():
            if shard not in self._claims:
                self._claims[shard] = _Claims(f"{self.path}/{IDS}/{shard}{LOG}")
            return self._claims[shard]

    def _claimed(
        self,
        fd: int,
        status: os.stat_result,
        claims: _Claims,
        journal: Journal,
        row: Packed,
        put: Callable[..., tuple[bool | None, dict[str, object] | None]],
    ) -> bool | None:
        """Save an entry whose id is new in its namespace, with the lock of who may say whose an id is."""
        claims.read(fd)
        whose = claims.namespaces.get(row.entry_id, journal.namespace)
        if whose != journal.namespace and self._has(whose, row.entry_id):
            raise elsewhere(row.entry_id)
        if claims.namespaces.get(row.entry_id) != journal.namespace:
            line = json.dumps([row.entry_id, journal.namespace]).encode() + b"\n"
            self._files.append(fd, claims.path, line, status.st_size, claims.tail.end, lasting=False)
        done = journal.change(lambda shelf: put(shelf, mine=True))
        claims.read(fd)
        if claims.lines > CROWD and claims.lines > 2 * claims.least:
            self._files.replace(claims.path, lambda file: claims.write(file, self._has))
        return done

    def _has(self, namespace: str, entry_id: str) -> bool:
        return self._journal(namespace).read(lambda shelf: entry_id in shelf.ids)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turns what the system raises into errors of ours."""
        try:
            yield
        except PalimpsestError:  # some of ours are OSErrors, too
            raise
        except OSError as fault:
            raise unavailable(self.url, fault) from fault


class _Claims:
    """Whose ids are, in one file of them; what it says of an id that its namespace has not means nothing.

    Only who has the lock of the file uses it.
    """

    def __init__(self, path: str) -> None:
        self.path, self.tail = path, Tail(path)
        self.namespaces: dict[str, str] = {}
        self.lines = self.least = 0

    def read(self, fd: int) -> None:
        anew, data = self.tail.news(fd)
        if anew:
            self.namespaces, self.lines = {}, 0
        for line in data.split(b"\n")[:-1]:
            self.lines += 1
            try:
                entry_id, namespace = json.loads(line)
            except (ValueError, TypeError):
                continue  # it is a hint, which the next save of this id gives anew
            if isinstance(entry_id, str) and isinstance(namespace, str):
                self.namespaces[entry_id] = namespace

    def write(self, file: BinaryIO, has: Callable[[str, str], bool]) -> None:
        """Write those that mean something."""
        self.least = 0
        for entry_id, namespace in sorted(self.namespaces.items(), key=lambda one: one[1]):
            if has(namespace, entry_id):
                self.least += 1
                file.write(json.dumps([entry_id, namespace]).encode() + b"\n")


def _is_plain(namespace: str) -> bool:
    """Whether the original program has a file of this namespace's name, which is no other's."""
    return is_path(namespace) and len(os.fsencode(namespace)) < 250 and not set(namespace) & set("/\\")


def _of_key(shelf: Shelf, key: str, now: int) -> Packed | None:
    place = shelf.keys.get(key)
    row = None if place is None else shelf.rows[place]
    return None if row is None or row.is_over(now) else row
