"""Forgetting in knowledge bases: those of a user or the tenant, or the documents that meet a query.

Documents made from summaries are removed together with these anyway. Here they are searched for the text once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from palimpsest.privacy.mentions import finder
from palimpsest.sessions.erased import Erased
from palimpsest.sessions.erasing.damaged import or_remains, out_of_reach
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.shelves.records import Record, tenant_of
from palimpsest.sessions.shelves.shelf import Shelf, shelves

Elsewhere = Callable[[str, Query], Awaitable[Erased]]
"""Forgets what meets a query in the sessions under a tenant's name, in which a shelf keeps its documents."""


async def forget_knowledge(
    scope: MemoryScope, user: str | None, query: Query | None, elsewhere: Elsewhere, *, dry_run: bool
) -> Erased:
    """Forget a user's knowledge bases; without a user, what meets the query in all; with neither, all of the tenant."""
    if user is not None or query is None:
        return await _forget_shelves(scope, user, dry_run=dry_run)
    done = Erased()
    for shelf in await shelves(scope):
        done += await elsewhere(shelf.tenant, query)
        done += await or_remains(_forget_documents(shelf, query, dry_run=dry_run))
        done += Erased(remains=() if dry_run else await shelf.scope.scrub(scope.store))
    return done


async def _forget_shelves(scope: MemoryScope, user: str | None, *, dry_run: bool) -> Erased:
    """Destroy the knowledge bases of a user, or without a user those of the whole tenant."""
    counts, remains = dict[str, int](), tuple[str, ...]()
    for shelf in await shelves(scope):
        if user is None or shelf.place.user == user:
            name = f"knowledge/{shelf.place.collection}"
            counts[name] = counts.get(name, 0) + await shelf.count()
            if not dry_run:
                await shelf.empty()
                remains += await shelf.scope.scrub(scope.store)
            remains += (await out_of_reach(scope.sharing(shelf.tenant), None)).remains
    if user is None and not dry_run:
        await scope.store.clear_items(tenant_of(scope.tenant))
    return Erased(items={name: number for name, number in counts.items() if number}, remains=remains)


async def _forget_documents(shelf: Shelf, query: Query, *, dry_run: bool) -> Erased:
    """Destroy the documents whose id, title or metadata contain the text of a query that consists of a text alone."""
    if query.text is None or query.given != ("text",):
        return Erased()
    mentions, count = finder(query.text), 0
    for record in await shelf.records():
        if mentions(_description(record)):
            count += 1
            if not dry_run:
                await shelf.remove(record.kind, record.id)
    return Erased(items={f"knowledge/{shelf.place.collection}": count} if count else {})


def _description(record: Record) -> str:
    """Return the id, title and metadata of a document as one text."""
    return "\n".join([record.id, record.title or "", msgspec.json.encode(record.metadata).decode()])
