"""Reading the facts of working memory that contexts show."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.context.tail import Facts
from palimpsest.sessions.fact_scopes import WORKING, is_over
from palimpsest.sessions.kept_facts import read_fact
from palimpsest.sessions.scope import SessionScope
from palimpsest.stores import Item


class ScopedFacts:
    """Reads the facts of one scope. As long as the stored items do not change, it returns the same object."""

    def __init__(self, scope: SessionScope, name: str) -> None:
        self._scope, self._name = scope, name
        self._read: tuple[Sequence[Item], Facts] | None = None

    async def read(self) -> Facts:
        """Return the present facts. Raises StoreCorrupt, which names it, if a fact cannot be read."""
        store = self._scope.store
        if await is_over(store, self._scope.tenant, self._name):
            return Facts(self._name, [])
        items = await store.list_items(self._scope.tenant, WORKING + self._name)
        if self._read is None or self._read[0] != items:
            self._read = items, Facts(self._name, [read_fact(store, self._name, item) for item in items])
        return self._read[1]
