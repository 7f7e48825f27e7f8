"""A process of its own that tests start, watch and kill: `python knowledge_process.py MODE STORE [ARGUMENT ...]`.

summarise STORE          compacts a session with a knowledge base; says "committed" and waits before its chunks
add STORE NAME MANY      adds so many documents, says the id of each that is acknowledged
erase STORE MARKER       forgets what says this; it has no knowledge base of its own
"""

from __future__ import annotations

import json
import sys
from typing import Any

from palimpsest import Memory
from palimpsest.strategies import KnowledgeBase, Summarize, TextSplitter
from writer import quarters

OPTIONS: dict[str, Any] = {"counter": quarters, "max_tokens": 4_000, "auto_compact": "off", "user": "ann"}


def strategy(**base: Any) -> Summarize:
    """A summarizer with a knowledge base, whose chunks are small."""
    return Summarize(
        interaction_keep=1,
        knowledge_base=KnowledgeBase(**{"collection_id": "notes", **base}),
        text_splitter=TextSplitter(chunk_size=200, chunk_overlap=20, unit="chars"),
    )


def talk(session: Any, *words: str) -> None:
    """Interactions that name these, of which the last stays when the others are summarised."""
    for word in (*words, "farewell"):
        session.add_user_message(f"Please remember {word} for me, whatever else happens. " + "Idle talk goes on. " * 20)
        session.add_assistant_message(f"I shall remember {word}. " + "More idle talk. " * 20)


def say(value: object) -> None:
    """Tell the parent."""
    print(json.dumps(value), flush=True)  # noqa: T201


def hold(_: str, __: dict[str, Any]) -> None:
    """Tell that a summary was committed, and wait."""
    say("committed")
    sys.stdin.readline()


def main() -> None:
    """Do what is asked."""
    mode, store, *arguments = sys.argv[1:]
    with Memory.open(store) as memory:
        if mode == "summarise":
            memory.on("compressed", hold)
            session = memory.session("killed", long_term=strategy(), **OPTIONS)
            talk(session, "Kilimanjaro", "Kathmandu")
            session.compact()
        elif mode == "add":
            name, many = arguments
            base = memory.knowledge("handbook", counter=quarters)
            for number in range(int(many)):
                base.add(f"{name} {number}", f"Document {number} of {name} is about subject{number}.")
                say(f"{name} {number}")
        elif mode == "erase":
            say(memory.forget(matches=arguments[0]).entries)


if __name__ == "__main__":
    main()
