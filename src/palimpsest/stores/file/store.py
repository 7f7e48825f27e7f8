"""The engine over files."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Runner, drive
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.engine.store import Engine
from palimpsest.stores.file.backend import FileBackend
from palimpsest.stores.file.folder import log_of
from palimpsest.stores.shielded import shielded

T = TypeVar("T")


class FileStore(Engine):
    """The engine over a folder of logs."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        self._files = FileBackend(url, path, runner, options, self.check_open)
        super().__init__(self._files, options.clock, options.large_bytes)

    def check_open(self) -> None:
        """Raise Closed for who waits for a lock in a store that was closed meanwhile."""
        if hasattr(self, "_closed"):
            self.check()

    async def undisturbed(self, key: SessionKey, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def go_first() -> T:
            done: T = shielded(self._undisturbed, key, start)
            return done

        return await self._run(go_first)

    def _undisturbed(self, key: SessionKey, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        path = log_of(self._files.path, key.tenant, key.session)
        with self._files.holding(write=True) as disk:
            disk.make_folder(os.path.dirname(path))
            with disk.first(path):
                return drive(start())
