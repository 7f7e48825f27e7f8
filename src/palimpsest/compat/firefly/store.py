"""What a store is to the door: `MemoryStore`, the five documented methods, and `EntryStore`, which ours have."""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from palimpsest import Memory
from palimpsest.compat.firefly.entries import MemoryEntry, Packed, packed, unpacked
from palimpsest.errors import Closed, ConfigError, Conflict
from palimpsest.log.entry import now_us
from palimpsest.runtime.logs import warn

T = TypeVar("T")

LONGEST = 1280
"""Bytes of a namespace, a key or an id: PostgreSQL's index takes two such, and not much more."""


@runtime_checkable
class MemoryStore(Protocol):
    """What every store has, one of a program's own, too: entries, each in a namespace.

    `save` keeps an entry, in the place of the one of its id. `load` gives those of a namespace that have not expired,
    in the order in which they came; `load_by_key` the newest of a key, or None. `delete` and `clear` of what is not
    there do nothing.
    """

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        """Keep an entry."""
        ...

    def load(self, namespace: str) -> list[MemoryEntry]:
        """Return the entries of a namespace, in the order in which they came."""
        ...

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        """Return the newest entry of a key, or None."""
        ...

    def delete(self, namespace: str, entry_id: str) -> None:
        """Take an entry away."""
        ...

    def clear(self, namespace: str) -> None:
        """Take all entries of a namespace away."""
        ...


class Conversations(NamedTuple):
    """Where the conversations are that belong to a store: what `Memory.open` takes."""

    where: str | Path
    options: dict[str, Any]


class EntryStore(ABC):
    """A store of ours: the methods of `MemoryStore`, each also as a coroutine, and what is needed by several writers.

    An id is an entry's in the whole store: to save it in another namespace raises Conflict. A namespace has at most one
    entry of each key: an entry with the key of another one takes its place. Whatever changes is one step, for threads
    and processes. Stores may be used from any thread, with and without an event loop.
    """

    url = "memory://"
    """What errors call the store: without user and password."""

    def __init__(self, *, clock: Callable[[], int] = now_us) -> None:
        self.clock = clock
        self._closed = False
        self._memory: Memory | None = None
        self._opening = allocate_lock()

    # --- the documented methods

    @abstractmethod
    def save(self, namespace: str, entry: MemoryEntry) -> None:
        """Keep an entry: in the place of the one of its id or of its key, else behind the others.

        Raises Conflict where its id is an entry's of another namespace, ConfigError for a value that would not come
        back as it is, StoreError. Where it raises, what was there before still is.

        Args:
            namespace: text without NUL, at most 1,280 bytes.
            entry: the entry; later changes of it change nothing that is stored.
        """

    @abstractmethod
    def load(self, namespace: str) -> list[MemoryEntry]:
        """Return the entries of a namespace that have not expired, in the order in which they came.

        One that cannot be read is named in the log, and left out.

        Args:
            namespace: text without NUL; one that nobody has used gives an empty list.
        """

    @abstractmethod
    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        """Return the entry of a key that has not expired, or None.

        Args:
            namespace: text without NUL.
            key: its key.
        """

    @abstractmethod
    def delete(self, namespace: str, entry_id: str) -> None:
        """Take an entry away; one that is not there is no error.

        Args:
            namespace: where it is.
            entry_id: its id.
        """

    @abstractmethod
    def clear(self, namespace: str) -> None:
        """Take all entries of a namespace away.

        Args:
            namespace: text without NUL.
        """

    # --- what ours have beside them

    @abstractmethod
    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        """Keep an entry under a key if the one that is there is as expected, in one step; return whether it was.

        Args:
            namespace: text without NUL.
            key: the key, which the entry is to have, too.
            entry: what is to be there then; None: nothing.
            expected: the entry as `load_by_key` gave it; None: there must be none that has not expired.
        """

    @abstractmethod
    def cleanup_expired(self) -> int | Awaitable[int]:
        """Take away what has expired, in every namespace, and return how many entries that were.

        Stores on servers return an awaitable.
        """

    @abstractmethod
    def close(self) -> Awaitable[None] | None:
        """Let go of everything; use after that raises Closed. Closing again does nothing.

        Stores on servers return an awaitable.
        """

    @abstractmethod
    def close_sync(self) -> None:
        """Close from a program without an event loop."""

    async def async_save(self, namespace: str, entry: MemoryEntry) -> None:
        """`save` for programs with an event loop, which goes on meanwhile."""
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
        """`cleanup_expired` for programs with an event loop, of every store."""

    async def aclose(self) -> None:
        """Close, in programs with an event loop, any store."""
        await asyncio.to_thread(self.close_sync)

    # --- conversations

    @abstractmethod
    def conversations_at(self) -> Conversations:
        """Where the conversations are that belong to the entries: beside them, on the same disk or server."""

    def conversations(self) -> Memory:
        """Return the memory that keeps the conversations beside the entries; always the same, closed with the store."""
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

    # --- what every method begins with

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self.url, "make another one")

    def _check(self, namespace: str, **names: str) -> None:
        """Raise Closed, or ConfigError for a name that no store can keep."""
        self._check_open()
        check_name(namespace, "namespace")
        for what, name in names.items():
            check_name(name, what, nul=True)

    def _row(self, namespace: str, entry: MemoryEntry) -> Packed:
        """The entry as it is kept. Raises ConfigError for what cannot be."""
        row = packed(entry)
        self._check(namespace, entry_id=row.entry_id, key=row.key or "")
        return row


class LocalStore(EntryStore):
    """A store whose methods block: the coroutines run them in a worker thread."""

    @abstractmethod
    def cleanup_expired(self) -> int:
        """Take away what has expired, in every namespace, and return how many entries that were."""

    def close(self) -> None:
        """Let go of everything; use after that raises Closed. Closing again does nothing."""
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
    """The name, where stores can keep it. Raises ConfigError."""
    if not isinstance(text, str) or ("\0" in text and not nul):
        raise ConfigError(what, text, "text" if nul else "text without NUL")
    if len(text) > LONGEST // 7 and len(spelled(text).encode()) > LONGEST:
        raise ConfigError(what, f"{text[:40]}…", f"text of at most {LONGEST:,} bytes in UTF-8")
    return str.__str__(text)  # of a text of a class of its own what it says


MARK = "\ufdd0"
"""A character that Unicode gives no meaning, for ever: it begins what stands for one that not every store can keep."""


def spelled(text: str) -> str:
    """A name as every store can keep it: NUL, lone surrogates and the mark are written in digits. See `unspelled`."""
    if text.isascii() and "\0" not in text:
        return text
    return "".join(f"{MARK}{ord(c):04x}" if c in ("\0", MARK) or 0xD800 <= ord(c) < 0xE000 else c for c in text)


def unspelled(text: str) -> str:
    """The name that `spelled` has written so."""
    if MARK not in text:
        return text
    first, *parts = text.split(MARK)
    return first + "".join(chr(int(part[:4], 16)) + part[4:] for part in parts)


# --- what all of ours do alike


def read(url: str, namespace: str, kept: Packed) -> MemoryEntry | None:
    """The entry that was kept so; None, and a line in the log, where it cannot be read."""
    try:
        return unpacked(kept)
    except ValueError as fault:
        warn("%s: the entry %r of %r cannot be read, and is left out: %s", url, kept.entry_id, namespace, fault)
        return None


def elsewhere(entry_id: str) -> Conflict:
    """What is raised for an id of another namespace."""
    return Conflict(f"entry {entry_id!r}", "its id is an entry's in another namespace; nothing was written")


def keyed(entry: MemoryEntry | None, key: str) -> None:
    """Raise ConfigError for an entry that is to be kept under another key than its own."""
    if entry is not None and entry.key != key:
        raise ConfigError("entry", entry.key, f"an entry whose key is {key!r}")
