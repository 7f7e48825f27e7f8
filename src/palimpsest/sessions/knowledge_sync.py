"""`Knowledge`: the synchronous faces of `AsyncKnowledge`."""

# Written by `python tools/make_sync.py`. Not to be edited: edit the asynchronous classes, and run that again.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.compaction.knowledge import SearchType
from palimpsest.runtime.runner import drive
from palimpsest.sessions.knowledge.base import AsyncKnowledge
from palimpsest.sessions.shelves.records import KnowledgeDocument, KnowledgeHit


class Knowledge:
    """A knowledge base: `memory.knowledge("handbook")`, or a session's.

    It has documents that somebody added, and summaries of sessions, as chunks that a search finds. What is of a user is
    found for that user alone; documents without a user are found for all. Made by `memory.knowledge` and
    `session.knowledge`.
    """

    def __init__(self, core: AsyncKnowledge) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def add(
        self, document_id: str, text: str, *, title: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> KnowledgeDocument:
        """Add a document, or put another version in the place of the one of this id. The same again adds nothing.

        What the memory's policy does not let be kept is taken out first. Raises ConfigError for what is not accepted,
        EmbedderFailed where there is one that fails: then the version before holds.

        Args:
            document_id: an id in this knowledge base, of its user or of everybody.
            text: what it says.
            title: what it is called where it is found; None: its id.
            metadata: what else is said of it, as JSON values: hits have it.
        """
        return drive(self._core.add(document_id, text, title=title, metadata=metadata))

    def remove(self, document_id: str) -> bool:
        """Destroy a document that was added, with all that was made of it; return whether there was one.

        Args:
            document_id: the id that it was added with.
        """
        return drive(self._core.remove(document_id))

    def documents(self) -> list[KnowledgeDocument]:
        """Return what can be found here: documents that were added, and those of summaries, in the order in which they
        came first."""
        return drive(self._core.documents())

    def search(
        self,
        query: str,
        *,
        top_k: int | None = None,
        search_type: SearchType | None = None,
        score_threshold: float | None = None,
        fetch_k: int | None = None,
        lambda_mult: float | None = None,
    ) -> list[KnowledgeHit]:
        """Return the chunks that answer a query, best first; without one that does, none.

        What is not given is as the knowledge base says. Raises ConfigError for what is not accepted, and EmbedderFailed
        where meaning alone is compared: else words are, then, and a warning says so.

        Args:
            query: what is looked for; of a longer text 5,000 characters at each end.
            top_k: the most chunks; 4 by default.
            search_type: "keyword", "similarity", "hybrid" (both) or "mmr" (with variety); None: "hybrid" with an
                embedder, else "keyword".
            score_threshold: the least score, from 0 to 1; None: any.
            fetch_k: how many chunks are looked at; None: 20, or four times `top_k` where that is more.
            lambda_mult: what counts for "mmr", from 0, variety alone, to 1, the question alone; 0.5 by default.
        """
        return drive(
            self._core.search(
                query,
                top_k=top_k,
                search_type=search_type,
                score_threshold=score_threshold,
                fetch_k=fetch_k,
                lambda_mult=lambda_mult,
            )
        )

    def refresh(self) -> int:
        """Bring the summaries that are here up to date with their sessions; return of how many something was new.

        That is done by itself where a session is used, and where one is found that is not: it is needed where a process
        ended, or a store or an embedder failed, between a summary and its chunks.
        """
        return drive(self._core.refresh())
