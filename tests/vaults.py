"""Stores whose backend a test opens without keys, to see and change what is stored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import astuple, replace

from palimpsest import Memory
from palimpsest.runtime.runner import Inline, Runner, drive
from palimpsest.stores import MARK, STORES
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Cells, Place, PlaceHead, Range, Row, Step
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.file.backend import FileBackend
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.sqlite.backend import SQLiteBackend

SECRETS = ("entry", "record", "share")
"""The tables whose rows are encrypted."""

ALL = ("held", "large", "uses", *SECRETS)


class Slot(NamedTuple):
    """The place of a stored value: a row of a table, or the head of a place, whose table is "" and whose key is 0."""

    place: Place
    table: str = ""
    key: int = 0


Content = PlaceHead | Row


class Kept(MemoryBackend):
    """A memory backend that keeps its content when it is closed."""

    async def close(self) -> None:
        """Keep everything."""


class Vault:
    """A store that `memory` can open several times, and whose stored bytes a test reads and changes without keys."""

    def __init__(self, opened: Callable[[], Backend], address: str = "") -> None:
        self._opened = opened
        self.address = address or f"vault://{next(_numbers)}"
        _vaults[self.address] = self

    @classmethod
    def of(cls, kind: str, folder: Path) -> Vault:
        """Return an empty vault of this kind, in this folder if it needs one."""
        if kind == "memory":
            kept = Kept(Inline())
            return cls(lambda: kept)
        options = DiskOptions(synchronous="NORMAL")
        if kind == "sqlite":
            where = f"sqlite:///{folder}/a.db"
            return cls(lambda: SQLiteBackend(where, f"{folder}/a.db", Inline(), options), where)
        where = f"file://{folder}/logs"
        return cls(lambda: FileBackend(where, f"{folder}/logs", Inline(), options), where)

    def backend(self, runner: Runner) -> Backend:
        """Open the backend without keys."""
        backend = self._opened()
        backend.runner = runner  # type: ignore[attr-defined]
        return backend

    def memory(self, keys: Encryption | None, **options: Any) -> Memory:
        """Open a memory with keys."""
        if not self.address.startswith("vault:"):
            options = {"synchronous": "NORMAL", **options}
        return Memory.open(self.address, encryption=keys, **options)

    # --- without keys

    def contents(self) -> dict[Slot, Content]:
        """Return all heads and rows by their slots, as they are stored."""
        contents: dict[Slot, Content] = self.below(_contents)
        return contents

    def put(self, changes: dict[Slot, Content | None]) -> None:
        """Store these values in their slots; None removes one."""
        self.below(lambda backend: _put(backend, changes))

    def restore(self, contents: dict[Slot, Content]) -> None:
        """Restore earlier contents."""
        current = self.contents()
        changed = {slot: content for slot, content in contents.items() if current.get(slot) != content}
        self.put({**dict.fromkeys(current.keys() - contents.keys()), **changed})

    def below(self, function: Callable[[Backend], Any]) -> Any:
        """Call a function with the backend, opened without keys, and return its result."""
        backend = self._opened()
        try:
            return function(backend)
        finally:
            drive(backend.close())


_numbers = itertools.count()
_vaults: dict[str, Vault] = {}


def open_vault(url: str, runner: Runner, **options: Any) -> Backend:
    """Open a vault in memory by its address."""
    return _vaults[url].backend(runner)


STORES.register("vault", open_vault)


def key_ids_below(backend: Backend) -> set[str]:
    """Return the ids of all keys with which values in a backend are encrypted."""
    contents = _contents(backend).values()
    values = [value for content in contents for value in values_of(content) if isinstance(value, bytes)]
    return {id for value in values if (id := key_of(value))}


def values_of(content: Content) -> tuple[object, ...]:
    return astuple(content) if isinstance(content, PlaceHead) else tuple(content)


def _contents(backend: Backend) -> dict[Slot, Content]:
    contents: dict[Slot, Content] = {}
    for tenant in drive(backend.tenants()):
        if tenant == MARK[0]:
            continue
        homes = set()
        for listed in drive(backend.places(tenant, "", beneath=True)):
            if listed.place.space != "lease":
                contents[Slot(listed.place)] = listed.head
                contents |= _rows(backend, listed.place)
                homes.add(listed.place.home)
        for home in sorted(homes):
            contents |= _rows(backend, Place(tenant, home, "log", ""))
    return contents


def _rows(backend: Backend, place: Place) -> dict[Slot, Content]:
    (seen,) = drive(backend.look([Ask(place, [Range(table, [(0, LAST_KEY)]) for table in ALL], head=False)]))
    return {Slot(place, table, row[0]): Row(*row) for table, rows in zip(ALL, seen.rows, strict=True) for row in rows}


def _put(backend: Backend, changes: dict[Slot, Content | None]) -> None:
    for slot, content in changes.items():
        if slot.table:
            put: list[tuple[str, list[Cells]]] = [(slot.table, [content])] if isinstance(content, Row) else []
            drop = [] if put else [(slot.table, slot.key, slot.key)]
            step = Step(slot.place, rows_only=True, drop=drop, put=put)
        else:
            (seen,) = drive(backend.look([Ask(slot.place)]))
            expect = seen.head.hot if seen.head is not None else None
            hot, cold = (content.hot, content.cold) if isinstance(content, PlaceHead) else (None, None)
            step = Step(slot.place, expect, hot, cold)
        assert drive(backend.write([[step]], 0)) == [None]


def spoilt(content: Content) -> Iterator[Content]:
    """Yield damaged variants of a content: with a byte changed, cut short, emptied, or doubled."""
    if isinstance(content, PlaceHead):
        yield from (replace(content, hot=damaged) for damaged in _damaged(content.hot))
        yield from (replace(content, cold=damaged) for damaged in _damaged(content.cold))
    else:
        yield from (content._replace(value=damaged) for damaged in _damaged(content.value))
        yield content._replace(id=content.id + "x")
        yield content._replace(expires=(content.expires or 0) + 1)


def _damaged(value: bytes) -> Iterator[bytes]:
    if not value:
        yield b"\x00"
        return
    for at in {0, 1, 2, 5, 6, 12, 13, 20, len(value) // 2, len(value) - 17, len(value) - 1}:
        if 0 <= at < len(value):
            yield value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :]
    yield from (value[:-1], value + b"\x00", b"", value * 2, b"in clear")
