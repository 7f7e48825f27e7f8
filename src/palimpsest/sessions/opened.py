"""What is open behind a memory, and how that is closed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from palimpsest.errors import PalimpsestError
from palimpsest.runtime.events import Observers
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.lease import Lease, end_all
from palimpsest.sessions.remembered import Unstored, stored
from palimpsest.stores import Store

if TYPE_CHECKING:
    from palimpsest.recall.embedders import Embedder
    from palimpsest.recall.opening import Indexes
    from palimpsest.sessions.definitions import Known
    from palimpsest.sessions.derived import Derivations
    from palimpsest.sessions.shelves.keeping import Keeper


class Opened:
    """The store of a memory, and of those of other tenants that share it (None until it is open), and beside it what is
    made from their sessions, and who is told of these."""

    def __init__(self, recall_index: str | None = None) -> None:
        self.store: Store | None = None
        self.recall_index = recall_index  # the file that the search index is kept in; None: where the store says
        self.warned = False
        """Whether it was said that nothing bounds a context."""
        self.embedder: Embedder | None = None
        self.indexes: dict[str, Indexes] = {}
        """What logs are searched with, from when somebody has."""
        self.observers: dict[str, Observers] = {}
        self.derivations: dict[str, Derivations] = {}
        self.keepers: dict[str, Keeper] = {}
        self.definitions: Known | None = None

    def __del__(self) -> None:
        if self.store is not None and self.store.left_open:  # and nobody is left who could close it
            told = f"the memory over {self.store.url} was not closed"
            warnings.warn(told, ResourceWarning, stacklevel=2, source=self)

    async def close(self, runner: Runner, held: Sequence[Lease], counts: Sequence[Unstored]) -> None:
        """Give back leases, and store counts that are still to be stored, as far as that can be done now; then close
        the store, whatever became of these. Nothing is done where none is open."""
        if (store := self.store) is None:
            return
        try:
            await end_all(held)
            for one in self.indexes.values():
                await one.end()
            if counts:
                with suppress(PalimpsestError):  # they can be made again
                    await store.together(partial(stored, store, counts))
        finally:
            await runner.surely(store.close)
