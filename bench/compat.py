"""Measure what the compatibility packages add to the calls of the session underneath, on an SQLite file.

    python bench/compat.py [--runs 3] [--json] [--gate]

The same call through the package, and through a session that was opened with the same options, alternately.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from measure import Figure, alternate, arguments, memory_folder, over_runs, report, scratch

from palimpsest import Entry, Memory, Session
from palimpsest.compat.agterm import MemoryManager
from palimpsest.compat.agterm.config import strategy_of
from palimpsest.compat.firefly import ConversationMemory
from palimpsest.strategies import SimpleFifo, Triggers

TIMES = 1_500
READS = 200
MOST = 1.1
BUDGET = 16_000
"""Tokens of a Firefly conversation: it is full after 500 turns of this benchmark."""
LENGTHS = (100, 10_000)
LONGER = 1.25
"""The most that a turn of a long conversation may cost, in units of one of a short one."""


def run(under: Path | None) -> dict[str, float]:
    """Return all figures of one run."""
    with scratch(under) as folder, Memory.open(folder / "a.db") as left, Memory.open(folder / "b.db") as right:
        manager = MemoryManager(store=right)
        config = manager.config
        session = left.session("s", format="text", max_tokens=config.max_tokens, long_term=strategy_of(config, None))
        figures = agterm(session, manager)
    return figures | firefly(under)


def firefly(under: Path | None) -> dict[str, float]:
    """Compare turns, over many that leave, and histories with those of a session that evicts at the same budget.

    Also compares turns and histories of a long conversation with those of a short one.
    """
    with scratch(under) as folder, Memory.open(folder / "a.db") as left, Memory.open(folder / "b.db") as right:
        fifo = SimpleFifo(max_tokens=BUDGET, low_water=0.875, triggers=Triggers(max_active_tokens=BUDGET))
        session = left.session("s", long_term=fifo)
        conversations = ConversationMemory(max_tokens=BUDGET, store=right)

        def native(number: int) -> object:
            user, answer = texts(number)
            first = Entry(role="user", content=user, metadata={"firefly": {"form": "plain"}})
            return session.add_entries([first, Entry(role="assistant", content=answer)])

        def turn(number: int, cid: str = "s") -> object:
            user, answer = texts(number)
            raw = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
            return conversations.add_turn(cid, user, answer, raw)

        added = alternate(native, turn, range(TIMES)).ratio
        history = alternate(
            lambda _: session.context(max_tokens=BUDGET).messages,
            lambda _: conversations.get_message_history("s"),
            range(READS),
        ).ratio
        for length in LENGTHS:
            fill(conversations, str(length), length)
        short, long = map(str, LENGTHS)
        grown = alternate(lambda number: turn(number, short), lambda number: turn(number, long), range(READS)).ratio
        read = alternate(
            lambda _: conversations.get_message_history(short),
            lambda _: conversations.get_message_history(long),
            range(READS),
        ).ratio
    return {"turn": added, "history": history, "long turn": grown, "long history": read}


def texts(number: int) -> tuple[str, str]:
    """Return the two texts of a turn."""
    return f"message {number} about the weather in Paris", f"answer {number}: it is fine, and will be so tomorrow, too"


def fill(conversations: ConversationMemory, cid: str, length: int) -> None:
    """Store a conversation of `length` turns, of which the last 100 are kept."""
    turns = [
        {"turn_id": number, "user_prompt": user, "assistant_response": answer}
        for number in range(length)
        for user, answer in [texts(number)]
    ]
    conversations.import_conversation({"conversation_id": cid, "turns": turns})
    session = conversations.memory.session(cid)
    if length > 100:
        session.compact(SimpleFifo(interaction_keep=100, max_messages=200, low_water=0.99))
    conversations.get_message_history(cid)


def agterm(session: Session, manager: MemoryManager) -> dict[str, float]:
    """Compare adds, over many compressions, and reads through the manager with those of the session."""

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
    figures = [Figure(f"AGTerm: {what}, CPU in the session's own", medians[name], MOST) for name, what in names.items()]
    doors = {"turn": "a turn", "history": "a history"}
    figures += [
        Figure(f"Firefly: {what}, CPU in the session's own", medians[name], MOST) for name, what in doors.items()
    ]
    few, many = (f"{length:,}" for length in LENGTHS)
    figures += [
        Figure(f"Firefly: {what} after {many} turns, in one after {few}", medians[f"long {name}"], LONGER)
        for name, what in doors.items()
    ]
    return report("Doors for programs of another memory", figures, given)


if __name__ == "__main__":
    sys.exit(main())
