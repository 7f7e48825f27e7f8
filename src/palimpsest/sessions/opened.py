"""The open store of one or more memories, with what they share beside it, and how it is closed."""

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
    from palimpsest.sessions.definitions import KnownDefinitions
    from palimpsest.sessions.derived import Derivations
    from palimpsest.sessions.shelves.keeping import Keeper


class Opened:
    """The store that the memories of one or more tenants share (None until it is open), with their search indexes,
    derivations, knowledge bases and observers by tenant."""

    def __init__(self, recall_index: str | None = None) -> None:
        self.store: Store | None = None
        self.recall_index = recall_index  # the file of the search index; None: the store decides
        self.warned = False
        """Whether the warning that nothing bounds a context was given."""
        self.embedder: Embedder | None = None
        self.indexes: dict[str, Indexes] = {}
        """The search indexes, under the key "", from the first search on."""
        self.observers: dict[str, Observers] = {}
        self.derivations: dict[str, Derivations] = {}
        self.keepers: dict[str, Keeper] = {}
        self.definitions: KnownDefinitions | None = None

    def __del__(self) -> None:
        if self.store is not None and self.store.left_open:  # nothing refers to it any more that could close it
            message = f"the memory over {self.store.url} was not closed: call `close`, or open it in a `with` block"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    async def close(self, runner: Runner, held: Sequence[Lease], counts: Sequence[Unstored]) -> None:
        """Give back leases, store the token counts that are not stored yet, and close the store.

        The store is closed even if the other steps fail. Does nothing if no store is open.
        """
        if (store := self.store) is None:
            return
        try:
            await end_all(held)
            for indexes in self.indexes.values():
                await indexes.end()
            if counts:
                with suppress(PalimpsestError):  # the counts can be made again
                    await store.together(partial(stored, store, counts))
        finally:
            await runner.surely(store.close)
