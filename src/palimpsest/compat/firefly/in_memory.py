"""`InMemoryStore`: entries in the memory of this process, for tests and for data that need not outlive it."""

from __future__ import annotations

from collections.abc import Callable
from weakref import finalize

from palimpsest import Memory
from palimpsest.compat.firefly.entries import MemoryEntry, Packed
from palimpsest.compat.firefly.store import Conversations, LocalStore, elsewhere, read
from palimpsest.log.entry import now_us
from palimpsest.runtime.once import ProcessLock


class Shelf:
    """The entries of one namespace: by place, which gives their order, by key and by id."""

    def __init__(self) -> None:
        self.rows: dict[int, Packed] = {}
        self.ids: dict[str, int] = {}
        self.keys: dict[str, int] = {}
        self._next = 0

    def put(self, row: Packed, now: int) -> None:
        """Store an entry in the place of the one of its id or of its key, unless that has expired; else last."""
        by_id, by_key = self.ids.get(row.entry_id), self.keys.get(row.key) if row.key is not None else None
        place = by_key if by_id is None else by_id
        if place is not None and self.rows[place].is_over(now):
            place = None
        for old in {by_id, by_key} - {None}:
            assert old is not None
            self.take(old, keeps=old == place)
        if place is None:
            place, self._next = self._next, self._next + 1
        self.rows[place], self.ids[row.entry_id] = row, place
        if row.key is not None:
            self.keys[row.key] = place

    def take(self, place: int, *, keeps: bool = False) -> None:
        """Remove the entry at a place. With `keeps` its place stays, for another entry."""
        row = self.rows[place]
        if not keeps:
            del self.rows[place]
        del self.ids[row.entry_id]
        if row.key is not None:
            del self.keys[row.key]


class InMemoryStore(LocalStore):
    """Entries in the memory of this process, which are lost with it. Returned entries are copies.

    Args:
        clock: a function that returns microseconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], int] = now_us) -> None:
        super().__init__(clock=clock)
        self._shelves: dict[str, Shelf] = {}
        self._homes: dict[str, str] = {}
        self._ending: finalize[[], InMemoryStore] | None = None
        self._lock = ProcessLock()

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that have entries."""
        with self._lock.own():
            return list(self._shelves)

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        row = self._row(namespace, entry)
        with self._lock.own():
            self._put(namespace, row)

    def load(self, namespace: str) -> list[MemoryEntry]:
        self._check(namespace)
        now = self.clock()
        with self._lock.own():
            shelf = self._shelves.get(namespace)
            rows = [] if shelf is None else [row for row in shelf.rows.values() if not row.is_over(now)]
        return [entry for row in rows if (entry := read(self.url, namespace, row)) is not None]

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        self._check(namespace, key=key)
        with self._lock.own():
            row = self._keyed(namespace, key)
        return None if row is None else read(self.url, namespace, row)

    def delete(self, namespace: str, entry_id: str) -> None:
        self._check(namespace)
        with self._lock.own():
            shelf = self._shelves.get(namespace)
            place = None if shelf is None else shelf.ids.get(entry_id)
            if place is not None:
                self._take(namespace, place)

    def clear(self, namespace: str) -> None:
        self._check(namespace)
        with self._lock.own():
            shelf = self._shelves.pop(namespace, None)
            for entry_id in () if shelf is None else shelf.ids:
                del self._homes[entry_id]

    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        row, was = self._swapped(namespace, key, entry, expected)
        with self._lock.own():
            if self._keyed(namespace, key) != was:
                return False
            if row is not None:
                self._put(namespace, row)
            elif was is not None:
                self._take(namespace, self._shelves[namespace].keys[key])
            return True

    def cleanup_expired(self) -> int:
        self._check_open()
        now = self.clock()
        with self._lock.own():
            expired = [
                (namespace, place)
                for namespace, shelf in self._shelves.items()
                for place, row in shelf.rows.items()
                if row.is_over(now)
            ]
            for namespace, place in expired:
                self._take(namespace, place)
        return len(expired)

    def conversations(self) -> Memory:
        """Return the memory of the conversations beside the entries. It is lost with the store."""
        memory = super().conversations()
        if self._ending is None:
            self._ending = finalize(self, memory.close)  # many programs never close this store
        return memory

    def conversations_at(self) -> Conversations:
        return Conversations("memory://", {})

    # --- the caller holds the lock

    def _keyed(self, namespace: str, key: str) -> Packed | None:
        shelf = self._shelves.get(namespace)
        if shelf is None or key not in shelf.keys:
            return None
        row = shelf.rows[shelf.keys[key]]
        return None if row.is_over(self.clock()) else row

    def _put(self, namespace: str, row: Packed) -> None:
        if self._homes.get(row.entry_id, namespace) != namespace:
            raise elsewhere(row.entry_id)
        shelf = self._shelves.setdefault(namespace, Shelf())
        replaced = shelf.keys.get(row.key) if row.key is not None else None
        if replaced is not None:
            del self._homes[shelf.rows[replaced].entry_id]
        shelf.put(row, self.clock())
        self._homes[row.entry_id] = namespace

    def _take(self, namespace: str, place: int) -> None:
        shelf = self._shelves[namespace]
        del self._homes[shelf.rows[place].entry_id]
        shelf.take(place)
        if not shelf.rows:
            del self._shelves[namespace]
