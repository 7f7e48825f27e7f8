"""Asking a knowledge base. The modules that search are loaded by the first search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palimpsest.compaction.knowledge import KnowledgeBase
from palimpsest.sessions.lazy_parts import loaded
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.shelves.records import KnowledgeHit, Place

if TYPE_CHECKING:
    from palimpsest.sessions.knowledge.searching import Searcher


async def hits_of(
    scope: MemoryScope, base: KnowledgeBase, query: str, places: Sequence[Place], *, without: str | None = None
) -> list[KnowledgeHit]:
    """Return the chunks on these shelves that answer a query, best first, except summaries of the session `without`."""
    searcher = await loaded(scope.runner, _searcher)
    return await searcher(scope, await scope.keeper(joins=False), base, without).hits(query, places)


def _searcher() -> type[Searcher]:
    from palimpsest.sessions.knowledge.searching import Searcher  # the import takes some 15 ms

    return Searcher
