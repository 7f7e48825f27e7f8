"""`WorkingMemory`: values under keys, in a scope, on any store."""

from __future__ import annotations

from _thread import RLock
from _weakref import ref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar

from palimpsest.compat.firefly.entries import MemoryEntry, MemoryScope, portable, restored
from palimpsest.compat.firefly.in_memory import InMemoryStore
from palimpsest.compat.firefly.store import EntryStore, MemoryStore, check_name
from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import is_share
from palimpsest.log.entry import moment, now_us
from palimpsest.log.facts import Fact, rendered
from palimpsest.runtime.logs import warn_caller
from palimpsest.runtime.once import ProcessLock, new_rlock
from palimpsest.tokens.counter import encoding

T = TypeVar("T")

ENCODING = "o200k_base"
"""The encoding that counts tokens if no counter is given."""

FIVE = ("save", "load", "load_by_key", "delete", "clear")


class WorkingMemory:
    """Values under keys: a scratchpad. Scopes are independent of each other, also on one store.

    Every change and every read is atomic. On a store that has only the five methods of `MemoryStore` this holds between
    the threads of one process; such a store causes one warning.
    """

    def __init__(self, *, store: MemoryStore | None = None, scope_id: str = "default") -> None:
        """Raises ConfigError for an object that is not a store, or a text that cannot name a scope.

        Args:
            store: where the values are kept; None: a new `InMemoryStore`.
            scope_id: the name of the scope; its values are in the namespace `working:<scope_id>`.
        """
        scope_id = check_name(scope_id, "scope_id")
        self._store: MemoryStore = InMemoryStore() if store is None else checked(store)
        self._scope_id = scope_id
        self._namespace = check_name(f"working:{scope_id}", "scope_id")
        self._is_entry_store = isinstance(self._store, EntryStore)
        self._clock: Callable[[], int] = self._store.clock if isinstance(self._store, EntryStore) else now_us
        self._lock: Any = nullcontext() if self._is_entry_store else lock_of(self._store)

    @property
    def scope_id(self) -> str:
        """The name of the scope."""
        return self._scope_id

    @property
    def store(self) -> MemoryStore:
        """Where the values are kept."""
        return self._store

    # --- changing

    def set(self, key: str, value: Any, *, importance: float = 0.5, ttl: timedelta | float | str | None = None) -> None:
        """Store a value under a key. An existing one is replaced, and keeps its place in the order.

        Raises ConfigError, naming the key, for a value that would not be read back as it is; then the old one stays.

        Args:
            key: text, of at most 1,280 bytes.
            value: None, a truth value, a number, text, bytes, date, datetime, Decimal, UUID, or lists, tuples, sets and
                mappings of them.
            importance: from 0 to 1, 0.5 by default: the least important values are left out of a prompt first.
            ttl: how long the value lives: a timedelta, seconds, or text such as "30m"; None: for ever.
        """
        check_name(key, "key", nul=True)
        if not is_share(importance):
            raise ConfigError(f"importance of {key!r}", importance, "a number from 0 to 1")
        now = self._clock()
        lifetime = None if ttl is None else values.microseconds("ttl", ttl)
        entry = MemoryEntry(
            entry_id=self._id_of(key),
            scope=MemoryScope.WORKING,
            key=key,
            content=value if self._is_entry_store else portable(value, f"the value of {key!r}"),
            created_at=moment(now),
            expires_at=None if lifetime is None else moment(now + lifetime),
            importance=float(importance),
        )
        with self._lock:
            if not self._is_entry_store:  # another program may have saved this key under an id of its own
                existing = self._store.load_by_key(self._namespace, key)
                entry.entry_id = entry.entry_id if existing is None else existing.entry_id
            self._store.save(self._namespace, entry)

    def delete(self, key: str) -> None:
        """Remove a value; an unknown key is no error.

        Args:
            key: its key.
        """
        with self._lock:
            deleted: set[str] = set()  # a store that does not delete must not keep this loop running
            while (entry := self._store.load_by_key(self._namespace, _name(key))) and entry.entry_id not in deleted:
                self._store.delete(self._namespace, entry.entry_id)
                deleted.add(entry.entry_id)

    def clear(self) -> None:
        """Remove all values of the scope."""
        with self._lock:
            self._store.clear(self._namespace)

    # --- reading

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value under a key, or `default`. The value is a copy: changing it does not change what is stored.

        Args:
            key: its key.
            default: what to return if there is no value.
        """
        entry = self._entry(key)
        return default if entry is None else self._value(entry)

    def has(self, key: str) -> bool:
        """Return whether there is a value under a key. None is a value, too.

        Args:
            key: its key.
        """
        return self._entry(key) is not None

    def keys(self) -> list[str]:
        """Return the keys, in the order in which they were added."""
        return [key for key, _ in self._entries()]

    def items(self) -> list[tuple[str, Any]]:
        """Return the keys with their values, in the order in which the keys were added."""
        return [(key, self._value(entry)) for key, entry in self._entries()]

    def to_dict(self) -> dict[str, Any]:
        """Return the values by key, in the order in which the keys were added."""
        return dict(self.items())

    def to_context_string(self, max_tokens: int | None = None, *, counter: Callable[[str], int] | None = None) -> str:
        """Return the values as a text for a prompt: a heading, then lines of `- key: value`; "" if there are none.

        Keys are in the order in which they were added. Line breaks are escaped, so that no value can look like another
        one. With `max_tokens` the least important values are left out, the oldest of equally important ones first, and
        the text says how many were.

        Args:
            max_tokens: the most tokens of the text; None: no limit.
            counter: a function that counts the tokens of a text; None: an encoding that fits most models.
        """
        values.whole("max_tokens", max_tokens, none=True)
        count: Callable[[str], int] = len
        if max_tokens is not None:
            count = encoding(ENCODING).count if counter is None else counter
        facts = [self._fact(key, entry) for key, entry in self._entries()]
        return rendered(facts, max_tokens, count)

    # --- entries

    def _id_of(self, key: str) -> str:
        """Return the entry id of a key in this scope.

        It is always the same, so that any store keeps one entry of each key.
        """
        identity = f"{len(self._namespace)}:{self._namespace}{key}".encode("utf-8", "surrogatepass")
        return sha256(identity).hexdigest()[:32]

    def _entry(self, key: str) -> MemoryEntry | None:
        if self._is_entry_store:  # a single call of such a store is atomic
            return self._store.load_by_key(self._namespace, _name(key))
        with self._lock:
            entry = self._store.load_by_key(self._namespace, _name(key))
        return None if entry is None or self._is_over(entry) else entry

    def _entries(self) -> Sequence[tuple[str, MemoryEntry]]:
        """Return the newest entry of each key, in the order of the first entry of each key."""
        with self._lock:
            entries = self._store.load(self._namespace)
        newest = {entry.key: entry for entry in entries if entry.key is not None and not self._is_over(entry)}
        return tuple(newest.items())

    def _is_over(self, entry: MemoryEntry) -> bool:
        return not self._is_entry_store and entry.expires_at is not None and entry.is_expired

    def _value(self, entry: MemoryEntry) -> Any:
        return entry.content if self._is_entry_store else restored(entry.content)

    def _fact(self, key: str, entry: MemoryEntry) -> Fact:
        at = entry.created_at
        return Fact(
            key=key,
            value=self._value(entry),
            importance=entry.importance,
            version=1,
            created_at=at,
            updated_at=at,
            since=at,
            expires_at=entry.expires_at,
        )


def _name(key: object) -> str:
    return check_name(key, "key", nul=True)


# --- stores of a program's own


def checked(store: object) -> MemoryStore:
    """Return the store if it has the five methods, else raise ConfigError."""
    if not isinstance(store, MemoryStore):
        raise ConfigError("store", type(store).__name__, f"an object with the methods {', '.join(FIVE)}, or None")
    if not isinstance(store, EntryStore):
        _warn_once(type(store))
    return store


_warned: dict[str, bool] = {}


def _warn_once(kind: type) -> None:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not _warned.setdefault(name, False):
        _warned[name] = True
        warn_caller(
            f"{name} has no compare-and-set: threads of one process can change facts in it safely, several "
            "processes cannot. With the stores of palimpsest.compat.firefly several processes can, too"
        )


_locks: dict[int, tuple[Any, RLock]] = {}
"""The locks by `id(store)`, each with a weak reference to its store, or the store itself."""
_noting = ProcessLock()


def lock_of(store: object) -> RLock:
    """Return the lock for all users of this store in this process, since it may have none of its own.

    There is one lock for each store object. It is reentrant: the store may call back.
    """
    with _noting.own():
        for number in [
            number for number, (holder, _) in _locks.items() if isinstance(holder, ref) and holder() is None
        ]:
            del _locks[number]
        if id(store) not in _locks:
            try:
                holder: Any = ref(store)
            except TypeError:  # without weak references the store is kept alive, so that its id is not used again
                holder = store
            _locks[id(store)] = holder, new_rlock()
        return _locks[id(store)][1]
