"""A store whose server crashes, and has lost by then what it had acknowledged, while those who use it live on.

So does Redis where it writes its file every second, or PostgreSQL with `synchronous_commit=off`; so does somebody who
puts a backup of a server back. It is the store in memory, of which all who open one address have the same.
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
    """What is in it can be kept, and be put back."""

    remote = True
    kept: object = None

    def save(self) -> None:
        """Keep what there is now, as what is on the disk."""
        with self._lock:
            self.kept = copy.deepcopy((self._places, self._mark))

    def crash(self) -> None:
        """Lose what came after that."""
        with self._lock:
            there, self._mark = copy.deepcopy(cast("tuple[dict[Place, Stored], int]", self.kept))
            self._places.clear()
            self._places.update(there)

    async def close(self) -> None:
        """Somebody else may have it, too."""


def losing(url: str) -> LosingBackend:
    """The store of an address."""
    return _opened[url]


def open_losing(url: str, runner: Runner, **_: object) -> LosingBackend:
    """Open the one of this address, or a new one."""
    if url not in _opened:
        _opened[url] = LosingBackend(runner)
        _opened[url].save()
    return _opened[url]


STORES.register("losing", open_losing)
