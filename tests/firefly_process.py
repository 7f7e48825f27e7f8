"""A process that uses the compatibility layer for Firefly: `python firefly_process.py MODE KIND PLACE [NAME]`.

MODE is "remember", "tell" (prints as JSON what `remember` has stored), "add" or "crowd". KIND is one of the stores in
`firefly_stores`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import firefly_stores
from palimpsest.compat.firefly import ConversationTurn, MemoryManager
from palimpsest.compat.firefly.store import EntryStore

TURNS = 25
"""Turns that a process adds in the modes "add" and "crowd"; in "crowd" a summary replaces old turns."""


class Words:
    """An estimator of tokens that counts words."""

    def estimate(self, text: str) -> int:
        """Return the number of words in a text."""
        return len(text.split())


def digest(turns: list[ConversationTurn]) -> str:
    """Return a summary with the prompt of each turn."""
    return "; ".join(turn.user_prompt for turn in turns)


def opened(kind: str, place: Path) -> EntryStore:
    """Open the store of a kind at a place."""
    return {**firefly_stores.LOCAL, **firefly_stores.SERVED}[kind](place)


def managed(store: Any, **options: Any) -> MemoryManager:
    """Return a manager with small budgets, which counts words and summarises by `digest`."""
    given = {"max_conversation_tokens": 60, "summarize_threshold": 40, "summarizer": digest, **options}
    return MemoryManager(store=store, estimator=Words(), **given)


def remember(manager: MemoryManager) -> None:
    """Add ten turns, some of which are summarised, and set a fact."""
    for i in range(10):
        raw = [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}", "refusal": None}]
        manager.add_turn("talk", f"q{i}", "word " * 9, raw, metadata={"number": i, "pair": (i, i)})
    manager.set_fact("city", "Oslo")


def told(manager: MemoryManager) -> dict[str, Any]:
    """Return what the manager knows of the turns and the fact that `remember` stored."""
    turns = manager.conversation.get_turns("talk")
    return {
        "ids": [turn.turn_id for turn in turns],
        "raw": [turn.raw_messages for turn in turns],
        "metadata": [turn.metadata["number"] for turn in turns],
        "pairs": all(turn.metadata["pair"] == (turn.turn_id, turn.turn_id) for turn in turns),
        "summary": manager.conversation.get_summary("talk"),
        "tokens": manager.conversation.get_total_tokens("talk"),
        "history": manager.get_message_history("talk"),
        "fact": manager.get_fact("city"),
        "next": manager.conversation.conversation_ids,
    }


def main(mode: str, kind: str, place: str, name: str = "") -> None:
    """Run one of the modes."""
    store = opened(kind, Path(place))
    try:
        if mode == "remember":
            remember(managed(store))
        elif mode == "tell":
            sys.stdout.write(json.dumps(told(managed(store))))
        else:
            own = {"summarizer": None} if mode == "add" else {}
            manager = managed(store, max_conversation_tokens=100_000, **own)
            for i in range(TURNS):
                manager.add_turn("shared", f"{name} {i}", f"{name} answer {i}")
    finally:
        store.close_sync()


if __name__ == "__main__":
    main(*sys.argv[1:])
