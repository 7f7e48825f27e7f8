"""What a door for programs of another memory adds to the calls of a session underneath it, over an SQLite file.

    python bench/compat.py [--runs 3] [--json] [--gate]

What is compared: the same call through the door and of a session that was opened with the same options, in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from measure import Figure, alternate, arguments, memory_folder, over_runs, report, scratch

from palimpsest import Memory, Session
from palimpsest.compat.agterm import MemoryManager
from palimpsest.compat.agterm.config import strategy_of

TIMES = 1_500
READS = 200
MOST = 1.1


def run(under: Path | None) -> dict[str, float]:
    """All figures, once."""
    with scratch(under) as folder, Memory.open(folder / "a.db") as left, Memory.open(folder / "b.db") as right:
        manager = MemoryManager(store=right)
        config = manager.config
        session = left.session("s", format="text", max_tokens=config.max_tokens, long_term=strategy_of(config, None))
        return agterm(session, manager)


def agterm(session: Session, manager: MemoryManager) -> dict[str, float]:
    """Adds, over many compressions, and reads through the door, in those of the session."""

    def ratio(native: Callable[[str], object], door: Callable[[str], object], times: int) -> float:
        return alternate(native, door, [f"message {i} about the weather in Paris" for i in range(times)]).ratio

    return {
        "add": ratio(session.add_user_message, lambda text: manager.add_user_message("s", text), TIMES),
        "text": ratio(lambda _: session.context().text, lambda _: manager.get_context_for_llm("s"), READS),
        "active": ratio(lambda _: session.active_entries(), lambda _: manager.get_active_entries("s"), READS),
        "stats": ratio(lambda _: session.stats(), lambda _: manager.get_stats("s"), READS),
    }


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "")
    medians = over_runs(given.runs, lambda: run(memory_folder() or given.disk))
    names = {"add": "an add", "text": "the text for a model", "active": "active entries", "stats": "stats"}
    figures = [Figure(f"AGTerm: {told}, CPU in the session's own", medians[name], MOST) for name, told in names.items()]
    return report("Doors for programs of another memory", figures, given)


if __name__ == "__main__":
    sys.exit(main())
