"""Measure what compaction costs: watching an append, compacting a long session, showing a summary, asking a summarizer.

    python bench/compaction.py [--runs 3] [--turns 500] [--large 10000] [--json] [--gate]

Each is measured beside the same without it, alternately, in processor time on tmpfs: appends of a session whose ladder
watches and never fires, beside one without a ladder, and the first append of a process; turns with their contexts,
summarised without a model, beside turns that are only cut; `compact()` of a long session; a context with a summary,
beside the same window without one. Looks, rows and calls are counted, and the same on every machine. Calls are compared
with those of a design that makes its summary again on each turn once the window is full.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from measure import SESSION, Figure, alternate, arguments, memory_folder, over_runs, report, scratch, store
from workload import Turn, history, some

from palimpsest import Memory
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.sync import Session
from palimpsest.strategies import Ladder, Summarize, Triggers
from palimpsest.tokens.counter import encoding

BUDGET = 8_000
NEVER = 100_000_000
"""A budget that no number of turns here reaches."""

SHOWN = 6
"""Turns in the window that is shown with and without a summary."""

LENGTHS = (500, 2_000)
"""The tokens of that summary: a usual one, and the largest, which is a quarter of the budget."""

ENTRIES = 1_000
FIRST = f"""
import sys, time
from palimpsest import Memory
with Memory.open("sqlite:///" + sys.argv[1]) as memory:
    session = memory.session({SESSION!r}, max_tokens={BUDGET}, long_term=sys.argv[2] or None)
    start = time.process_time()
    session.add_user_message("What is new?")
    print(time.process_time() - start)
"""
count = encoding("o200k_base").count

SAID = "What was agreed before, in the words of a model, which are as many as it was asked for. " * 12


@contextmanager
def looking() -> Iterator[list[SnapshotReader]]:
    """Note every survey of a session in the block: each reads the whole active set."""
    load, surveys = SnapshotReader.load, list[SnapshotReader]()

    def surveying(snapshots: SnapshotReader, *given: Any, **more: Any) -> Any:
        surveys.append(snapshots)
        return load(snapshots, *given, **more)

    SnapshotReader.load = surveying  # type: ignore[assignment,method-assign]
    try:
        yield surveys
    finally:
        SnapshotReader.load = load  # type: ignore[method-assign]


def talk(count: int) -> list[Turn]:
    """Return turns so short that a thousand messages of them have less than 8,000 tokens."""
    answers = ("Yes.", "No.", "Later.", "Done.")
    return [
        [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": answers[i % 4]}] for i in range(count)
    ]


# --- appends


def appends(folder: Path, turns: Sequence[Turn], budget: int) -> dict[str, float]:
    """Append the same turns to a session that a ladder watches and to one without.

    Returns the times, and how often the ladder looks at the active set.
    """
    count("a word")  # loads the vocabulary, whose cost `first` measures
    with (
        scratch(folder) as own,
        Memory.open(own / "plain.db") as one,
        Memory.open(own / "watched.db") as other,
        looking() as looks,
    ):
        plain = one.session(SESSION, max_tokens=budget)
        watched = other.session(SESSION, max_tokens=budget, long_term="ladder")
        times = side_by_side(plain.add, watched.add, turns)
        assert watched.summaries(history=True) == [], "it never fires"
    return {**times, "looks": len(looks)}


def side_by_side(
    plain: Callable[[Turn], object], ours: Callable[[Turn], object], turns: Sequence[Turn]
) -> dict[str, float]:
    """Give each turn to both sides alternately.

    Returns the ratio of the medians, and that of the sums, in which rare costs count.
    """
    spent = {plain: list[float](), ours: list[float]()}
    for i, turn in enumerate(turns):
        for side in (plain, ours) if i % 2 else (ours, plain):
            start = time.process_time()
            side(turn)
            spent[side].append(time.process_time() - start)
    our_us, plain_us = (median(spent[side]) * 1e6 for side in (ours, plain))
    return {
        "median": our_us / plain_us,
        "sum": sum(spent[ours]) / sum(spent[plain]),
        "us": our_us,
        "plain us": plain_us,
    }


def first(folder: Path, strategy: str) -> float:
    """Return the milliseconds of the first append of a fresh process, to a session whose counts are stored."""
    with scratch(folder) as own:
        store(own / "first.db", some(5, seed=3), counted=True)
        command = [sys.executable, "-W", "ignore", "-c", FIRST, str(own / "first.db"), strategy]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(done.stdout) * 1e3


def conversing(folder: Path, turns: Sequence[Turn]) -> dict[str, float]:
    """Add turns, with a context after each, to a session that summarises without a model and to one that cuts."""
    with (
        scratch(folder) as own,
        Memory.open(own / "plain.db") as one,
        Memory.open(own / "ladder.db") as other,
        looking() as looks,
    ):
        plain = one.session(SESSION, max_tokens=BUDGET)
        ladder = other.session(SESSION, max_tokens=BUDGET, long_term="ladder")
        times = side_by_side(lambda turn: converse(plain, turn), lambda turn: converse(ladder, turn), turns)
        proof, cuts = ladder.verify(), plain.stats().cuts
        assert proof.ok
    return {**times, "compactions": proof.versions, "cuts": cuts, "looks": len(looks)}


def converse(session: Session, turn: Turn) -> Turn:
    """Add a turn and ask for what a model would be given next."""
    session.add(turn)
    session.context()
    return turn


# --- compacting and showing


def compacting(path: Path, turns: Sequence[Turn]) -> dict[str, float]:
    """Compact a session with stored counts once, beside a context of it."""
    store(path, turns, counted=True)
    with Memory.open(path, synchronous="NORMAL") as memory:
        session = memory.session(SESSION, max_tokens=BUDGET)
        session.context()
        start = time.process_time()
        for _ in range(10):
            session.context()
        context = (time.process_time() - start) / 10
        entries = len(session.entries())
        start = time.process_time()
        done = session.compact(Summarize(interaction_keep=1))
        spent = time.process_time() - start
        assert done.covered > 0.9 * entries, done
        assert session.verify().ok
    return {"ms": spent * 1e3, "entries": entries, "us": spent * 1e6 / entries, "contexts": spent / context / entries}


def showing(folder: Path, length: int, calls: int) -> dict[str, float]:
    """Time the same window with a summary of `length` tokens before it, and without."""
    window = some(SHOWN, seed=501)
    with scratch(folder) as own, Memory.open(own / "with.db") as one, Memory.open(own / "without.db") as other:
        session, plain = (memory.session(SESSION, max_tokens=BUDGET) for memory in (one, other))
        earlier = history(200)
        session.add([message for turn in earlier for message in turn])
        session.compact(Summarize(interaction_keep=1, max_summary_tokens=length))
        plain.add(earlier[-1])
        for turn in window:
            session.add(turn)
            plain.add(turn)
        for chat in (session, plain):
            chat.count()
        assert session.context().log_messages == plain.context().log_messages, "the windows are the same"
        assert len(session.context().summaries) == 1
        pair = alternate(lambda _: plain.context(), lambda _: session.context(), range(calls))
    return {"ratio": pair.ratio, "us": pair.ours, "plain us": pair.raw}


# --- calls


def calls(turns: Sequence[Turn]) -> dict[str, float]:
    """Count a summarizer's calls for a conversation, and those of a design that asks whenever the window is full."""
    prompts: list[str] = []

    def summarizer(prompt: str) -> str:
        """Return sentences of the source without numbers.

        For a text without anything of the source, or with numbers of the previous one, the summarizer would be asked
        again.
        """
        prompts.append(prompt)
        source = prompt.rpartition("</source-")[0]
        return " ".join(re.findall(r"(?<=\. )[A-Z][^.\d]+\.", source))[-len(SAID) :].partition(". ")[2]

    with Memory.open("memory://") as memory:
        once = Ladder(cod_max_loops=0, triggers=Triggers(threshold=1.0))
        session = memory.session(SESSION, max_tokens=BUDGET, long_term=once, summarizer=summarizer)
        entries = sum(len(converse(session, turn)) for turn in turns)
        assert session.verify().ok
        assert session.stats().spent.calls == len(prompts)
    other_calls, window = 0, list[int]()
    for turn in turns:
        window.append(tokens_of(turn))
        if count(SAID) + sum(window) > BUDGET:
            other_calls += 1
            while count(SAID) + sum(window) > BUDGET:
                window.pop(0)
    return {"calls": len(prompts) / entries * ENTRIES, "others": other_calls / entries * ENTRIES}


def tokens_of(turn: Turn) -> int:
    """Return the cost of the messages of a turn: that of their texts, and 4 each."""
    texts = [message["content"] or "" for message in turn]
    for message in turn:
        texts += [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return sum(map(count, texts)) + 4 * len(turn)


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", turns=500, large=10_000)
    parts = {"short": f"{2 * given.turns:,} short messages", "long": f"{given.turns:,} turns of tools and prose"}
    with scratch(memory_folder() or given.disk) as folder:
        names = iter(range(1000))

        def run() -> dict[str, float]:
            found = {
                "short": appends(folder, talk(given.turns), BUDGET),
                "long": appends(folder, some(given.turns, seed=7), NEVER),
                "first": {"plain": first(folder, ""), "watched": first(folder, "ladder")},
                "turn": conversing(folder, some(given.turns, seed=8)),
                "compact": compacting(folder / f"{next(names)}.db", history(given.large)),
                **{f"show {length}": showing(folder, length, 200) for length in LENGTHS},
            }
            return {f"{part} {name}": value for part, values in found.items() for name, value in values.items()}

        m = over_runs(given.runs, run)
    n = calls(history(ENTRIES))

    def times(part: str) -> str:
        return f"{m[f'{part} us']:,.0f} / {m[f'{part} plain us']:,.0f} us"

    figures = []
    for part, what in parts.items():
        figures += [
            Figure(f"watched appends, {what}", m[f"{part} median"], 1.3, times(part)),
            Figure("  all of them together", m[f"{part} sum"], None, "what is seldom included"),
            Figure("  looks at the active set", m[f"{part} looks"], 4, "counted"),
        ]
    kinds = f"{m['turn compactions']:.0f} compactions / {m['turn cuts']:.0f} cuts"
    others = f"{n['others']:.0f} where each full turn asks"
    figures += [
        Figure("first append of a process", m["first watched"], None, f"ms; {m['first plain']:.1f} ms if not watched"),
        Figure(f"turn and context, {given.turns:,} times", m["turn median"], None, times("turn")),
        Figure("  all of them together", m["turn sum"], None, kinds),
        Figure("  looks at the active set", m["turn looks"], None, "counted"),
        Figure(f"compacting {m['compact entries']:,.0f} entries at once", m["compact ms"], None, "ms"),
        Figure("  for each of them", m["compact us"], None, f"us, {m['compact contexts']:.1f} times a context"),
        *(
            Figure(
                f"context with a summary of {length:,} tokens", m[f"show {length} ratio"], None, times(f"show {length}")
            )
            for length in LENGTHS
        ),
        Figure(f"calls of a summarizer, {ENTRIES:,} entries", n["calls"], n["others"] / 4, others),
    ]
    return report("Compaction", figures, given, "CPU time, in that of the same without compaction.")


if __name__ == "__main__":
    sys.exit(main())
