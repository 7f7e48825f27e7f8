"""An embedder is only given redacted text: of questions, documents and older entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from palimpsest import Memory

SECRET = "walrus@example.org"


class Listening:
    """An embedder that keeps what it is given."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.heard += texts
        return [[1.0, float(len(text)), 2.0] for text in texts]


@pytest.fixture
def listening() -> Listening:
    return Listening()


def test_questions_are_redacted_before_they_are_embedded(listening: Listening) -> None:
    """A question is redacted before it is embedded, in sessions, memories, knowledge bases and contexts."""
    with Memory.open("memory://", privacy="default", embedder=listening) as memory:
        session = memory.session("s", max_tokens=2_000, tail_share=0.3)
        session.add_user_message("The cats are grey.")
        base = memory.knowledge("handbook")
        base.add("cats", f"Ask {SECRET} about cats.")

        session.recall(f"cats of {SECRET}")
        memory.recall(f"cats by {SECRET}")
        base.search(f"cats with {SECRET}")
        session.context(recall=f"cats for {SECRET}")

    assert {f"cats {how} [REDACTED]" for how in ("of", "by", "with", "for")} <= set(listening.heard)
    assert [text for text in listening.heard if "walrus" in text] == []


def test_entries_older_than_the_policy_are_embedded_redacted(listening: Listening, tmp_path: Path) -> None:
    """Entries older than the policy are embedded redacted, while their stored words are still found."""
    where = f"sqlite:///{tmp_path}/log.db"
    with Memory.open(where) as before:
        before.session("s").add_user_message(f"Write to {SECRET} about the cats.")

    with Memory.open(where, privacy="default", embedder=listening) as memory:
        found = memory.session("s").recall("walrus")

    assert [one.text for one in found.passages] == ["Write to [REDACTED] about the cats."]
    assert "Write to [REDACTED] about the cats." in listening.heard
    assert [text for text in listening.heard if "walrus@" in text] == []
