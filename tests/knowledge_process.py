"""A process that tests start, watch and kill: `python knowledge_process.py MODE STORE [ARGUMENT ...]`.

summarise STORE          compacts a session with a knowledge base; before its chunks prints "committed" and waits
add STORE NAME MANY      adds so many documents, and prints the id of each that is acknowledged
erase STORE MARKER       forgets entries with this text, in a memory without a knowledge base
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
    """Return a summarizer with a knowledge base and small chunks."""
    return Summarize(
        interaction_keep=1,
        knowledge_base=KnowledgeBase(**{"collection_id": "notes", **base}),
        text_splitter=TextSplitter(chunk_size=200, chunk_overlap=20, unit="chars"),
    )


def talk(session: Any, *words: str) -> None:
    """Add an interaction for each word, and a last one, which stays when the others are summarised."""
    for word in (*words, "farewell"):
        session.add_user_message(f"Please remember {word} for me, whatever else happens. " + "Idle talk goes on. " * 20)
        session.add_assistant_message(f"I shall remember {word}. " + "More idle talk. " * 20)


def say(value: object) -> None:
    """Print a line of JSON at once."""
    print(json.dumps(value), flush=True)  # noqa: T201


def hold(_: str, __: dict[str, Any]) -> None:
    """Handle the event of a committed summary: print "committed" and wait for a line."""
    say("committed")
    sys.stdin.readline()


def main() -> None:
    """Run the mode that the command line names."""
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
