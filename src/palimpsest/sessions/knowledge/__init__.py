"""Knowledge bases of memories and sessions: documents, summaries and searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.sessions.knowledge.linking import SessionKnowledge
    from palimpsest.sessions.scope import SessionScope


def knowledge_of(scope: SessionScope) -> SessionKnowledge:
    """Return the knowledge bases of a session."""
    from palimpsest.sessions.knowledge.linking import SessionKnowledge  # loaded only if a session has one

    return SessionKnowledge(scope)
