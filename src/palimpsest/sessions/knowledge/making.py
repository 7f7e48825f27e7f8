"""Makes the `AsyncKnowledge` of a memory or of a session."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from palimpsest.compaction.knowledge import KnowledgeBase, TextSplitter, check_collection, loaded
from palimpsest.errors import ConfigError
from palimpsest.log.ids import check_id
from palimpsest.sessions.knowledge import knowledge_of
from palimpsest.sessions.knowledge.asking import hits_of
from palimpsest.sessions.knowledge.base import Asking, AsyncKnowledge
from palimpsest.sessions.scope import MemoryScope, SessionScope

if TYPE_CHECKING:
    from palimpsest.tokens.counter import TokenCounter


def of_memory(
    scope: MemoryScope,
    collection: str,
    user: str | None,
    embedder: object,
    text_splitter: TextSplitter | Mapping[str, Any] | None,
    counter: TokenCounter,
) -> AsyncKnowledge:
    """Return a knowledge base of a memory. Implements `AsyncMemory.knowledge`."""
    check_collection(collection, "collection")
    if "{" in collection:
        raise ConfigError("collection", collection, "a name without braces: only sessions fill placeholders in")
    if user is not None:
        check_id(user, "user")
    splitter = loaded("text_splitter", text_splitter, "text_splitter") or TextSplitter()

    async def whose() -> str | None:
        return user

    base = KnowledgeBase(collection_id=collection, embedder=embedder)
    search = partial(hits_of, scope)
    return AsyncKnowledge(scope, Asking(base=base, splitter=splitter, counter=counter, whose=whose, search=search))


def of_session(scope: SessionScope, collection: str | None) -> AsyncKnowledge:
    """Return a knowledge base of a session. Implements `AsyncSession.knowledge`."""
    own = knowledge_of(scope)
    base, splitter = own.chosen(collection)
    asking = Asking(
        base=base,
        splitter=splitter,
        counter=scope.options.counter,
        whose=own.user,
        search=partial(hits_of, scope.memory),
        session=scope.key.session,
        keep=own.keep,
    )
    return AsyncKnowledge(scope.memory, asking)
