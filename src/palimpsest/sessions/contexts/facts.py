"""The facts of one scope, as contexts of a session show them."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.context.tail import Facts
from palimpsest.sessions.kept_facts import read_fact
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.scopes import WORKING, is_over
from palimpsest.stores import Item


class ScopedFacts:
    """Reads the facts of a scope. While its items are the same, so is what was made of them for the last context."""

    def __init__(self, scope: SessionScope, name: str) -> None:
        self._scope, self._name = scope, name
        self._read: tuple[Sequence[Item], Facts] | None = None

    async def read(self) -> Facts:
        """Return the facts as they are. Raises StoreCorrupt, naming it, for one that cannot be read."""
        store = self._scope.store
        if await is_over(store, self._scope.tenant, self._name):
            return Facts(self._name, [])
        items = await store.list_items(self._scope.tenant, WORKING + self._name)
        if self._read is None or self._read[0] != items:
            self._read = items, Facts(self._name, [read_fact(store, self._name, item) for item in items])
        return self._read[1]
