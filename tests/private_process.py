"""A process that puts private text into a store with a policy and kills itself at a given point.

`python private_process.py MODE STORE POINT`: POINT is "before" or "after", a verb of the store, and the number of the
call, such as "before append 2". The modes "compact" and "give" also die in the summarizer ("in summarizer 2") and while
writing an export.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palimpsest import Memory
from palimpsest.strategies import CallableSummarizer
from private_messages import entries, export
from watched_memory import PATTERN
from writer import quarters

STRATEGY = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 1, "summary_floor": 10}
MARKER = PATTERN.marker
WORDS = "words that are to be summarised " * 30


def die() -> None:
    """Kill this process, as a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def armed(memory: Memory, point: str) -> Memory:
    """Return the memory after its store was changed to kill the process at this point."""
    when, verb, number = point.split()
    if hasattr(memory.store, verb):
        plain, remaining = getattr(memory.store, verb), int(number)

        async def deadly(*args: Any, **options: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if when == "before" and remaining == 0:
                die()
            result = await plain(*args, **options)
            if when == "after" and remaining == 0:
                die()
            return result

        setattr(memory.store, verb, deadly)
    return memory


def append(memory: Memory, point: str) -> None:
    """Add entries with private text in every field: one by one, in a batch, and in an atomic turn."""
    session = memory.session("s", counter=quarters)
    for _ in range(3):
        session.add_user_message(f"I am {MARKER}", metadata={"x": MARKER})
        session.add_entries(entries(MARKER))
        with session.turn(atomic=True):
            session.add_context(f"# {MARKER}", name=f"of {MARKER}")
            session.add_assistant_message("x" * 100_000 + MARKER)


def compact(memory: Memory, point: str) -> None:
    """Compact with a summarizer that repeats its prompt; erase an entry before the next compaction."""
    remaining = int(point.split()[2]) if point.startswith("in summarizer") else 0

    def summarizer(prompt: str) -> str:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            die()
        return f"They spoke of {MARKER}, {prompt[-200:]}"

    session = memory.session("s", counter=quarters, summarizer=CallableSummarizer(summarizer, checked=False))
    for _ in range(3):
        for number in range(4):
            session.add_user_message(f"{number} {MARKER} {WORDS}")
            session.add_assistant_message(f"{number} {MARKER} {WORDS}")
        session.compact(STRATEGY)
        session.erase([session.entries()[1].id], reason=f"because of {MARKER}")


def take(memory: Memory, point: str) -> None:
    """Import sessions, and a file of messages that takes several batches."""
    memory.import_session(export(MARKER))
    memory.import_session(export(MARKER), on_conflict="replace")
    path = Path(os.environ["INPUTS"]) / "talk.jsonl"
    messages = [{"role": "user", "content": f"{number} {MARKER}"} for number in range(600)]
    path.write_text("".join(f"{json.dumps(message)}\n" for message in messages), encoding="utf-8")
    memory.import_file(path, session_id="talk")


def give(memory: Memory, point: str) -> None:
    """Export to a file, and die at the second write."""
    session = memory.session("s", counter=quarters)
    session.add_entries(entries(MARKER) * 200)
    folder = Path(os.environ["OUTPUTS"])
    remaining = 2

    class Deadly:
        def __init__(self) -> None:
            self.file = (folder / "session.json").open("wb", buffering=0)

        def write(self, data: bytes, /) -> object:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                die()
            return self.file.write(data)

    session.export_to(Deadly())


MODES: dict[str, Callable[[Memory, str], None]] = {"append": append, "compact": compact, "take": take, "give": give}

if __name__ == "__main__":
    mode, where, moment = sys.argv[1:]
    with Memory.open(where, privacy=PATTERN.policy, large_bytes=1_000) as opened:
        MODES[mode](armed(opened, moment), moment)
