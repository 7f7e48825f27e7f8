"""A store over LMDB, an embedded store of ordered keys, written only from what `docs/stores.md` says."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lmdb

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import Scrubbed
from palimpsest.stores.keyed import KeyedBackend


class Transaction:
    """A transaction of LMDB, as `KeyedBackend` uses it."""

    def __init__(self, txn: Any) -> None:
        self._txn = txn
        self.get, self.put, self.delete = txn.get, txn.put, txn.delete

    def between(self, low: bytes, high: bytes, last_first: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            is_placed = cursor.set_range(high if last_first else low)
            if last_first and (not is_placed or cursor.key() > high):
                is_placed = cursor.prev() if is_placed else cursor.last()
            for key, value in (cursor.iterprev if last_first else cursor.iternext)() if is_placed else ():
                if not low <= key <= high:
                    return
                yield key, value


class LMDBBackend(KeyedBackend):
    """A backend that keeps everything in one LMDB environment."""

    def __init__(self, path: str, runner: Runner) -> None:
        super().__init__(runner)
        self.url, self._path, self._lock = f"lmdb://{path}", path, threading.RLock()
        self._env = self._opened()

    def _opened(self) -> lmdb.Environment:
        return lmdb.open(self._path, map_size=1 << 32)

    @contextmanager
    def begun(self, *, write: bool = False) -> Iterator[Transaction]:
        try:
            with self._lock, self._env.begin(write=write) as txn:
                yield Transaction(txn)
        except lmdb.Error as cause:
            raise StoreUnavailable(self.url, str(cause)) from cause

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        with self._lock:  # free pages keep erased bytes; a compact copy has no free pages
            os.makedirs(f"{self._path}/copy", exist_ok=True)
            self._env.copy(f"{self._path}/copy", compact=True)
            self._env.close()
            os.replace(f"{self._path}/copy/data.mdb", f"{self._path}/data.mdb")
            self._env = self._opened()
        return Scrubbed()

    async def close(self) -> None:
        self._env.close()
