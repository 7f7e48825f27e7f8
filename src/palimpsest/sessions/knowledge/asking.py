"""Asking a knowledge base: what searches it is loaded by who asks first, and not by who only has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palimpsest.compaction.knowledge import KnowledgeBase
from palimpsest.sessions.parts import loaded
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.shelves.records import KnowledgeHit, Place

if TYPE_CHECKING:
    from palimpsest.sessions.knowledge.searching import Searcher


async def hits_of(
    scope: MemoryScope, base: KnowledgeBase, query: str, places: Sequence[Place], *, without: str | None = None
) -> list[KnowledgeHit]:
    """Return what answers a query on these shelves, best first, but for summaries of the session `without`."""
    searcher = await loaded(scope.runner, _searcher)
    return await searcher(scope, await scope.keeper(joins=False), base, without).hits(query, places)


def _searcher() -> type[Searcher]:
    from palimpsest.sessions.knowledge.searching import Searcher  # some 15 ms with all that it needs

    return Searcher
