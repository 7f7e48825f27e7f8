"""The stores of entries: `MemoryStore`, the five documented methods, and `EntryStore`, the base of the stores here."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from palimpsest import Memory
from palimpsest.compat.firefly.entries import MemoryEntry, Packed, packed, unpacked
from palimpsest.errors import Closed, ConfigError, Conflict
from palimpsest.log.entry import now_us
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import new_lock

T = TypeVar("T")

LONGEST = 1280
"""The most bytes of a namespace, key or id. An index entry of PostgreSQL holds two of these, and little more."""


@runtime_checkable
class MemoryStore(Protocol):
    """What every store offers, a program's own included: entries, each in a namespace.

    `save` replaces an entry of the same id. `load` returns the entries of a namespace that have not expired, in the
    order in which they were added. `load_by_key` returns the newest entry of a key, or None. `delete` and `clear` do
    nothing if there is nothing to remove.
    """

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        """Store an entry."""
        ...

    def load(self, namespace: str) -> list[MemoryEntry]:
        """Return the entries of a namespace, in the order in which they were added."""
        ...

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        """Return the newest entry of a key, or None."""
        ...

    def delete(self, namespace: str, entry_id: str) -> None:
        """Remove an entry."""
        ...

    def clear(self, namespace: str) -> None:
        """Remove all entries of a namespace."""
        ...


class Conversations(NamedTuple):
    """Where the conversations that belong to a store are kept: arguments of `Memory.open`."""

    where: str | Path
    options: dict[str, Any]


class EntryStore(ABC):
    """A store of this package: the methods of `MemoryStore`, each also as a coroutine, and compare-and-set.

    An id is unique in the whole store: saving it in another namespace raises Conflict. A namespace has at most one
    entry of each key: saving another entry with the key replaces the first. Every change is atomic, between threads and
    between processes. A store may be used from any thread, with or without an event loop.
    """

    url = "memory://"
    """The store's name in errors, without user and password."""

    def __init__(self, *, clock: Callable[[], int] = now_us) -> None:
        self.clock = clock
        self._closed = False
        self._memory: Memory | None = None
        self._opening = new_lock()

    # --- the documented methods

    @abstractmethod
    def save(self, namespace: str, entry: MemoryEntry) -> None:
        """Store an entry. It replaces the entry of its id or of its key in its place, or else comes last.

        Raises Conflict if its id belongs to an entry of another namespace, ConfigError for a value that would not be
        read back as it is, and StoreError. If it raises, nothing has changed.

        Args:
            namespace: text without NUL, at most 1,280 bytes.
            entry: the entry; changing it later does not change what is stored.
        """

    @abstractmethod
    def load(self, namespace: str) -> list[MemoryEntry]:
        """Return the entries of a namespace that have not expired, in the order in which they were added.

        An entry that cannot be read is logged, and left out.

        Args:
            namespace: text without NUL; one that was never used gives an empty list.
        """

    @abstractmethod
    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        """Return the entry of a key, or None if there is none that has not expired.

        Args:
            namespace: text without NUL.
            key: its key.
        """

    @abstractmethod
    def delete(self, namespace: str, entry_id: str) -> None:
        """Remove an entry; an unknown one is no error.

        Args:
            namespace: the namespace of the entry.
            entry_id: its id.
        """

    @abstractmethod
    def clear(self, namespace: str) -> None:
        """Remove all entries of a namespace.

        Args:
            namespace: text without NUL.
        """

    # --- further methods

    @abstractmethod
    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        """Replace the entry of a key if it equals `expected`, in one step, and return whether it did.

        Args:
            namespace: text without NUL.
            key: the key, which must be the key of `entry`, too.
            entry: the new entry; None: the entry of the key is removed.
            expected: the entry as `load_by_key` returned it; None: the key must have no entry that has not expired.
        """

    @abstractmethod
    def cleanup_expired(self) -> int | Awaitable[int]:
        """Remove the expired entries of every namespace, and return how many there were.

        Stores on servers return an awaitable.
        """

    @abstractmethod
    def close(self) -> Awaitable[None] | None:
        """Close the store. Use after that raises Closed; closing again does nothing.

        Stores on servers return an awaitable.
        """

    @abstractmethod
    def close_sync(self) -> None:
        """Close the store from a program without an event loop."""

    async def async_save(self, namespace: str, entry: MemoryEntry) -> None:
        """`save` for programs with an event loop, which is not blocked."""
        await asyncio.to_thread(self.save, namespace, entry)

    async def async_load(self, namespace: str) -> list[MemoryEntry]:
        """`load` for programs with an event loop."""
        return await asyncio.to_thread(self.load, namespace)

    async def async_load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        """`load_by_key` for programs with an event loop."""
        return await asyncio.to_thread(self.load_by_key, namespace, key)

    async def async_delete(self, namespace: str, entry_id: str) -> None:
        """`delete` for programs with an event loop."""
        await asyncio.to_thread(self.delete, namespace, entry_id)

    async def async_clear(self, namespace: str) -> None:
        """`clear` for programs with an event loop."""
        await asyncio.to_thread(self.clear, namespace)

    async def async_compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        """`compare_and_set` for programs with an event loop."""
        return await asyncio.to_thread(self.compare_and_set, namespace, key, entry, expected)

    @abstractmethod
    async def async_cleanup_expired(self) -> int:
        """`cleanup_expired` for programs with an event loop, on every kind of store."""

    async def aclose(self) -> None:
        """Close the store from a program with an event loop, on every kind of store."""
        await asyncio.to_thread(self.close_sync)

    # --- conversations

    @abstractmethod
    def conversations_at(self) -> Conversations:
        """Return where the conversations that belong to these entries are kept: on the same disk or server."""

    def conversations(self) -> Memory:
        """Return the memory of the conversations beside the entries.

        It is always the same, and closed with the store.
        """
        self._check_open()
        with self._opening:
            if self._memory is None:
                where, options = self.conversations_at()
                self._memory = Memory.open(where, clock=self.clock, **options)
            return self._memory

    def _close_conversations(self) -> None:
        with self._opening:
            memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    # --- checks of arguments

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self.url, "make another one")

    def _check(self, namespace: str, **names: str) -> None:
        """Raise Closed if the store is closed, and ConfigError for a name that no store can keep."""
        self._check_open()
        check_name(namespace, "namespace")
        for argument, name in names.items():
            check_name(name, argument, nul=True)

    def _row(self, namespace: str, entry: MemoryEntry) -> Packed:
        """Return the entry in its stored form. Raises ConfigError for one that cannot be stored."""
        row = packed(entry)
        self._check(namespace, entry_id=row.entry_id, key=row.key or "")
        return row

    def _swapped(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> tuple[Packed | None, Packed | None]:
        """Return the arguments of `compare_and_set` in their stored form, checked like those of the other methods."""
        if entry is not None and entry.key != key:
            raise ConfigError("entry", entry.key, f"an entry whose key is {key!r}")
        self._check(namespace, key=key)
        row = None if entry is None else self._row(namespace, entry)
        return row, None if expected is None else packed(expected)


class LocalStore(EntryStore):
    """A store whose methods block: the coroutines run them in a worker thread."""

    @abstractmethod
    def cleanup_expired(self) -> int:
        """Remove the expired entries of every namespace, and return how many there were."""

    def close(self) -> None:
        """Close the store. Use after that raises Closed; closing again does nothing."""
        self._closed = True
        self._close_conversations()

    def close_sync(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def async_cleanup_expired(self) -> int:
        return await asyncio.to_thread(self.cleanup_expired)


# --- names


def check_name(text: object, what: str, *, nul: bool = False) -> str:
    """Return the name of the argument `what` if stores can keep it, else raise ConfigError. NUL is allowed if `nul`."""
    if not isinstance(text, str) or ("\0" in text and not nul):
        raise ConfigError(what, text, "text" if nul else "text without NUL")
    if len(text) > LONGEST // 7 and len(spelled(text).encode()) > LONGEST:
        raise ConfigError(what, f"{text[:40]}…", f"text of at most {LONGEST:,} bytes in UTF-8")
    return str.__str__(text)  # a plain str, also if a subclass was given


MARK = "\ufdd0"
"""A Unicode noncharacter. It begins the escape of a character that not every store can keep."""


def spelled(text: str) -> str:
    """Return a name with NUL, lone surrogates and `MARK` escaped, so that every store can keep it. See `unspelled`."""
    if text.isascii() and "\0" not in text:
        return text
    return "".join(f"{MARK}{ord(c):04x}" if c in ("\0", MARK) or 0xD800 <= ord(c) < 0xE000 else c for c in text)


def unspelled(text: str) -> str:
    """Return the name that `spelled` has escaped."""
    if MARK not in text:
        return text
    first, *parts = text.split(MARK)
    return first + "".join(chr(int(part[:4], 16)) + part[4:] for part in parts)


# --- shared by all stores of this package


def read(url: str, namespace: str, kept: Packed) -> MemoryEntry | None:
    """Return the entry of this stored form; None, and a line in the log, if it cannot be read."""
    try:
        return unpacked(kept)
    except ValueError as fault:
        warn("%s: the entry %r of %r cannot be read, and is left out: %s", url, kept.entry_id, namespace, fault)
        return None


def elsewhere(entry_id: str) -> Conflict:
    """Return the error for an id that belongs to an entry of another namespace."""
    return Conflict(f"entry {entry_id!r}", "an entry in another namespace has this id; nothing was written")
