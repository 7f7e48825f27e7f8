"""`FileStore`: entries in readable files, one for each namespace, shared by threads and processes.

BASE/
  <namespace>-<hash>.jsonl     the entries of a namespace, as `palimpsest.compat.firefly.journal` writes them
  ids/<two digits>.jsonl       the namespace of each id, so that no id is in two: lines of [id, namespace]
  conversations/               the conversations that belong to the entries
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import BinaryIO

from palimpsest.compat.firefly.entries import MemoryEntry, Packed
from palimpsest.compat.firefly.in_memory import Shelf
from palimpsest.compat.firefly.journal import Journal, Tail, namespace_in, saved
from palimpsest.compat.firefly.store import Conversations, LocalStore, elsewhere, read
from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.log.values import is_path
from palimpsest.runtime.once import ProcessLock
from palimpsest.stores.file.disk import Files, names, unavailable
from palimpsest.stores.file.folder import safe_name

LOG, IDS, TALKS = ".jsonl", "ids", "conversations"

KEPT = 256
"""How many namespaces have their index kept in memory."""

CROWD = 4096
"""A file of ids with more lines than this is rewritten now and then, without the ids that are gone."""


class FileStore(LocalStore):
    """Entries in files of JSON lines, which a person can read, one for each namespace.

    Every save is atomic and durable, and threads and processes may share the folder. Removed and replaced entries stay
    in the file until it is rewritten: by `clear`, by `cleanup_expired`, and now and then.

    Args:
        base_dir: the folder, which is created with its parents.
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
        record = {"deleted": entry_id, "at": self.clock()}
        with self._faults():
            journal = self._journal(namespace)
            if journal.read(lambda shelf: entry_id in shelf.ids):
                journal.change(lambda shelf: (None, record if entry_id in shelf.ids else None))

    def clear(self, namespace: str) -> None:
        self._check(namespace)
        with self._faults():
            journal = self._journal(namespace)
            if os.path.exists(journal.path) or journal.read(lambda shelf: bool(shelf.rows)):
                journal.clear()

    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        row, was = self._swapped(namespace, key, entry, expected)
        now = self.clock()
        with self._faults():
            journal = self._journal(namespace)
            if row is not None:
                return self._save(journal, row, now, lambda shelf: _of_key(shelf, key, now) == was)
            record = None if was is None else {"deleted": was.entry_id, "at": now}
            return journal.change(lambda shelf: (True, record) if _of_key(shelf, key, now) == was else (False, None))

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
        """Return the journal of a namespace. Those used last are cached."""
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
        """Save an entry if `when` holds for the index, and return whether it was saved. Raises Conflict."""

        def put(shelf: Shelf, *, claimed: bool) -> tuple[bool | None, dict[str, object] | None]:
            if not when(shelf):
                return False, None
            if not claimed and row.entry_id not in shelf.ids:
                return None, None  # the id may belong to another namespace: claim it first
            return True, saved(row, now)

        done = None
        if journal.read(lambda shelf: row.entry_id in shelf.ids):
            done = journal.change(lambda shelf: put(shelf, claimed=False))
        if done is None and not journal.read(when):
            done = False
        if done is None:
            claims = self._claims_of(row.entry_id)
            done = self._files.locked(
                claims.path, "ab+", lambda fd, status: self._claimed(fd, status, claims, journal, row, put)
            )
        return bool(done)

    def _claims_of(self, entry_id: str) -> _Claims:
        """Return the file of ids that this id is in."""
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
        """Claim an id that is new in its namespace, and save its entry.

        The caller holds the lock of the file of ids.
        """
        claims.read(fd)
        owner = claims.namespaces.get(row.entry_id, journal.namespace)
        if owner != journal.namespace and self._has(owner, row.entry_id):
            raise elsewhere(row.entry_id)
        if claims.namespaces.get(row.entry_id) != journal.namespace:
            line = json.dumps([row.entry_id, journal.namespace]).encode() + b"\n"
            self._files.append(fd, claims.path, line, status.st_size, claims.tail.end, lasting=False)
        done = journal.change(lambda shelf: put(shelf, claimed=True))
        claims.read(fd)
        if claims.lines > CROWD and claims.lines > 2 * claims.valid:
            self._files.replace(claims.path, lambda file: claims.write(file, self._has))
        return done

    def _has(self, namespace: str, entry_id: str) -> bool:
        return self._journal(namespace).read(lambda shelf: entry_id in shelf.ids)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Translate errors of the operating system into ours."""
        try:
            yield
        except PalimpsestError:  # some are OSErrors, too
            raise
        except OSError as fault:
            raise unavailable(self.url, fault) from fault


class _Claims:
    """One file of ids, with the namespace that each id belongs to. Used only by the holder of the file's lock.

    A line is only a hint: it is void if the namespace has no entry of that id.
    """

    def __init__(self, path: str) -> None:
        self.path, self.tail = path, Tail(path)
        self.namespaces: dict[str, str] = {}
        self.lines = self.valid = 0

    def read(self, fd: int) -> None:
        """Read the lines that are new since the last look."""
        anew, data = self.tail.news(fd)
        if anew:
            self.namespaces, self.lines = {}, 0
        for line in data.split(b"\n")[:-1]:
            self.lines += 1
            try:
                entry_id, namespace = json.loads(line)
            except (ValueError, TypeError):
                continue  # only a hint is lost: the next save of this id writes it again
            if isinstance(entry_id, str) and isinstance(namespace, str):
                self.namespaces[entry_id] = namespace

    def write(self, file: BinaryIO, has: Callable[[str, str], bool]) -> None:
        """Write the claims that are not void."""
        self.valid = 0
        for entry_id, namespace in sorted(self.namespaces.items(), key=lambda item: item[1]):
            if has(namespace, entry_id):
                self.valid += 1
                file.write(json.dumps([entry_id, namespace]).encode() + b"\n")


def _is_plain(namespace: str) -> bool:
    """Return whether the original program's file `<namespace>.json` can only be that of this namespace."""
    return is_path(namespace) and len(os.fsencode(namespace)) < 250 and not set(namespace) & set("/\\")


def _of_key(shelf: Shelf, key: str, now: int) -> Packed | None:
    place = shelf.keys.get(key)
    row = None if place is None else shelf.rows[place]
    return None if row is None or row.is_over(now) else row
