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

    It holds documents that programs added and summaries of sessions, split into chunks that a search finds. Documents
    of a user are found for that user alone; documents without a user are found for everybody. Made by
    `memory.knowledge` and `session.knowledge`.
    """

    def __init__(self, core: AsyncKnowledge) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def add(
        self, document_id: str, text: str, *, title: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> KnowledgeDocument:
        """Add a document, or replace the one with this id by a new version. Adding the same again changes nothing.

        The text is redacted first, as the memory's policy demands. Raises ConfigError for an argument that is not
        accepted, or a document that the policy withholds, and EmbedderFailed if there is an embedder and it fails: then
        the previous version stays.

        Args:
            document_id: an id in this knowledge base, of its user or of everybody.
            text: the document's text.
            title: the title that hits show; None: the id.
            metadata: more about the document, as JSON values; hits have it.
        """
        return drive(self._core.add(document_id, text, title=title, metadata=metadata))

    def remove(self, document_id: str) -> bool:
        """Destroy a document that was added, with its chunks; return whether there was one.

        Args:
            document_id: the id that it was added with.
        """
        return drive(self._core.remove(document_id))

    def documents(self) -> list[KnowledgeDocument]:
        """Return the documents that a search can find, those made of summaries included, in the order in which they
        were first added."""
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
        """Return the chunks that answer a query, best first; an empty list if none does.

        Arguments that are not given default to the settings of the knowledge base. Raises ConfigError for an argument
        that is not accepted. If the embedder fails, only words are compared and a warning is given; with "similarity",
        which compares meaning alone, EmbedderFailed is raised.

        Args:
            query: the question; of a longer text 5,000 characters at each end count.
            top_k: the most chunks; 4 by default.
            search_type: "keyword", "similarity", "hybrid" (both) or "mmr" (with variety); None: "hybrid" with an
                embedder, else "keyword".
            score_threshold: the least score, from 0 to 1; None: any.
            fetch_k: how many chunks are compared; None: 20, or four times `top_k` if that is more.
            lambda_mult: for "mmr", from 0 (only variety counts) to 1 (only the question counts); 0.5 by default.
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
        """Bring the summaries here up to date with their sessions; return how many sessions had something new.

        Using a session, and a search that meets an outdated summary, do that by themselves. Call this after a process
        ended, or a store or an embedder failed, between a summary and the writing of its chunks.
        """
        return drive(self._core.refresh())
