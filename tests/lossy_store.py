"""A store whose server can crash and lose writes that it had acknowledged, while its clients go on.

Redis does so if it writes its file every second, PostgreSQL with `synchronous_commit=off`, and any server that is
restored from a backup. This one is in memory; all memories of a process that open the same address share it.
"""

from __future__ import annotations

import copy
from typing import cast

from palimpsest.runtime.runner import Runner
from palimpsest.stores import STORES
from palimpsest.stores.backend import Place
from palimpsest.stores.memory import MemoryBackend, Stored

_opened: dict[str, LosingBackend] = {}


class LosingBackend(MemoryBackend):
    """A backend that can be set back to its last saved content."""

    remote = True
    kept: object = None

    def save(self) -> None:
        """Save the current content, like a server that writes it to the disk."""
        with self._lock:
            self.kept = copy.deepcopy((self._places, self._mark))

    def crash(self) -> None:
        """Lose everything since the last save."""
        with self._lock:
            places, self._mark = copy.deepcopy(cast("tuple[dict[Place, Stored], int]", self.kept))
            self._places.clear()
            self._places.update(places)

    async def close(self) -> None:
        """Do nothing, since others may use the same backend."""


def losing(url: str) -> LosingBackend:
    """Return the backend of an address."""
    return _opened[url]


def open_losing(url: str, runner: Runner, **_: object) -> LosingBackend:
    """Open the backend of this address, or a new one."""
    if url not in _opened:
        _opened[url] = LosingBackend(runner)
        _opened[url].save()
    return _opened[url]


STORES.register("losing", open_losing)
