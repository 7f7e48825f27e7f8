"""A process that does one thing to a long log and prints its peak memory: `python long_log_process.py MODE STORE …`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from palimpsest import Memory, Session

SESSION = "long"
BATCH = 1_000


def words(text: str) -> int:
    """Count words: it needs no vocabulary, whose memory would be measured, too."""
    return len(text.split())


def messages(first: int, count: int) -> list[dict[str, Any]]:
    """Return numbered questions and answers in turn, each of some 300 bytes."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"message {n} " + "word " * 55} for n in range(first, first + count)]


def make(session: Session, count: str) -> None:
    """Add so many entries."""
    for first in range(0, int(count), BATCH):
        session.add(messages(first, min(BATCH, int(count) - first)))


def window(session: Session) -> None:
    """Make a context, add an entry, read old ones."""
    before = session.context()
    assert before.tokens <= 2_000
    session.add_user_message("one more")
    assert session.context().messages[-1]["content"] == "one more"
    assert session.entry(7).text.startswith("message 6 ")
    assert [entry.seq for entry in session.entries(after=500, limit=3)] == [501, 502, 503]


def branch(session: Session) -> None:
    """Fork at the end and half-way back; rewind half-way and forward again."""
    total = session.stats().revision
    assert session.fork("now").context().tokens <= 2_000
    half = session.fork("half", at=total // 2)
    half.add_user_message("another way")
    assert half.entries(limit=2)[1].seq == 2
    assert session.rewind(total // 2) > 0
    session.rewind(total)


def erase(session: Session) -> None:
    """Erase an entry in the middle."""
    session.erase([300])
    assert session.entry(300).erased


def export(session: Session, path: str) -> None:
    """Export the session to a file."""
    assert session.export_to(path) > 0


MODES: dict[str, Callable[..., None]] = {mode.__name__: mode for mode in (make, window, branch, erase, export)}


def peak() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    mode, where, *arguments = sys.argv[1:]
    options: dict[str, Any] = {"synchronous": "NORMAL"} if mode == "make" else {}
    with Memory.open(where, **options) as memory:
        MODES[mode](memory.session(SESSION, max_tokens=2_000, counter=words), *arguments)
    sys.stdout.write(json.dumps({"peak": peak()}) + "\n")
