"""Measure what privacy costs: processor time to redact ordinary text without anything private, and to append it.

    python bench/privacy.py [--runs 5] [--turns 300] [--disk FOLDER] [--json] [--gate]

The texts are those of the invented conversations (`workload.py`): prose as people and models write it, and JSON as
tools return it, cut to 1 KB. JSON full of numbers is from `replies.py`. A turn is all the entries of one `Session.add`,
calls and arguments included. Much of the cost is fixed, so small texts cost more for each kilobyte, and large ones
less.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from measure import SESSION, Figure, Pair, alternate, arguments, memory_folder, over_runs, report, scratch
from replies import dense, orders
from workload import some

from palimpsest import Memory
from palimpsest.formats import find_format
from palimpsest.log.entry import Entry
from palimpsest.privacy.redaction import Redactor

PATTERNS = (r"\b\d{3}-\d{2}-\d{4}\b", r"(?i)(?:password|pwd)\s*[:=]\s*\S+", r"\bACME-[0-9]{6}\b")
KILOBYTE = 1024
WARM = 20


def each(work: Callable[[Sequence[object]], object], pieces: Sequence[Sequence[object]]) -> float:
    """Return the median time of the work on one item of a piece, in microseconds."""
    work(pieces[0])
    timings = []
    for piece in pieces:
        start = time.process_time_ns()
        work(piece)
        timings.append((time.process_time_ns() - start) / 1000 / len(piece))
    return median(timings)


def samples(pieces: list[str], count: int = 400) -> list[str]:
    """Return texts of one kilobyte each."""
    joined = "\n".join(pieces)
    rng = random.Random(5)
    starts = [rng.randrange(len(joined) - KILOBYTE) for _ in range(count)]
    return [joined[start : start + KILOBYTE] for start in starts]


def appended(folder: Path, turns: Sequence[Sequence[dict[str, Any]]], *, wall: bool, linear: bool = True) -> Pair:
    """Append the same turns with the default recognisers and without, alternately."""
    redactor = Redactor({"recognisers": "default"}, linear=linear)
    with scratch(folder) as own, ExitStack() as stack:
        plain = stack.enter_context(Memory.open(own / "plain.db")).session(SESSION)
        private = stack.enter_context(Memory.open(own / "private.db", privacy=redactor)).session(SESSION)
        for session in (plain, private):
            for turn in turns[:WARM]:
                session.add(turn)
        return alternate(plain.add, private.add, turns[WARM:], time.perf_counter if wall else time.process_time)


def run(fast: Path, disk: Path, count: int) -> dict[str, float]:
    """Measure once."""
    turns = some(300, seed=3)
    messages = [message for turn in turns for message in turn]
    prose = samples([message["content"] for message in messages if message["role"] != "tool" and message["content"]])
    rows = samples(
        [message["content"] for message in messages if message["role"] == "tool" and message["content"].startswith("{")]
    )
    batches = [find_format("openai").decode(turn, "turn") for turn in turns]
    size = sum(len(entry.text) for batch in batches for entry in batch) / KILOBYTE
    nothing, default = Redactor(None), Redactor({"recognisers": "default"})
    patterns = Redactor({"redact_patterns": PATTERNS})
    fallback = Redactor({"redact_patterns": PATTERNS}, linear=False)

    def text(redactor: Redactor, texts: list[str]) -> float:
        def work(piece: Sequence[object]) -> None:
            for item in piece:
                redactor.text(str(item))

        return each(work, [texts[i : i + 20] for i in range(0, len(texts), 20)])

    def whole(redactor: Redactor) -> float:
        started = time.process_time_ns()
        for batch in batches:
            redactor.entries(batch)
        return (time.process_time_ns() - started) / 1000

    turn_of_default = whole(default)
    new_turns = some(WARM + count, seed=4)
    kilobytes = [
        [{"role": "user", "content": text}]
        for text in samples([message["content"] for message in messages if message["role"] == "user"], WARM + count)
    ]
    return {
        "append": appended(fast, new_turns, wall=False).ratio,
        "append_kilobyte": appended(fast, kilobytes, wall=False).ratio,
        "append_orders": appended(fast, orders(WARM + count), wall=False).ratio,
        "append_orders_fallback": appended(fast, orders(WARM + count), wall=False, linear=False).ratio,
        "append_dense": appended(fast, dense(WARM + count), wall=False).ratio,
        "append_fallback": appended(fast, kilobytes, wall=False, linear=False).ratio,
        "append_disk": appended(disk, new_turns, wall=True).ratio,
        "prose": text(default, prose),
        "rows": text(default, rows),
        "patterns": text(patterns, prose),
        "fallback": text(fallback, prose),
        "nothing": text(nothing, prose),
        "turn": turn_of_default / len(batches),
        "turn_kilobyte": turn_of_default / size,
        "entry": each(
            lambda piece: default.entries([e for e in piece if isinstance(e, Entry)]), [[Entry(content="ok")]] * 200
        ),
    }


def main() -> int:
    """Measure, and return the exit status."""
    given = arguments((__doc__ or "").strip(), runs=5, turns=300)
    with scratch(memory_folder() or given.disk) as fast, scratch(given.disk) as disk:
        found = over_runs(given.runs, lambda: run(fast, disk, given.turns))
    figures = [
        Figure("append of a turn, with / without, processor time", found["append"], 1.5),
        Figure("append of a message of 1 KB, with / without, processor time", found["append_kilobyte"], 1.5),
        Figure("append of a turn with an API's reply of 3 to 7 KB, with / without", found["append_orders"], 1.5),
        Figure("append of a turn with JSON half of which are numbers, with / without", found["append_dense"], 1.5),
        Figure("append of a message of 1 KB without RE2", found["append_fallback"]),
        Figure("append of a turn with an API's reply without RE2", found["append_orders_fallback"]),
        Figure("append of a turn to a disk, with / without, wall time", found["append_disk"]),
        Figure("default recognisers, prose, us a KB", found["prose"], 25),
        Figure("default recognisers, JSON, us a KB", found["rows"], 25),
        Figure("whole turns, us a KB", found["turn_kilobyte"], None, f"{found['turn']:.0f} us a turn"),
        Figure("an entry of two characters, us", found["entry"]),
        Figure("three patterns, RE2, us a KB", found["patterns"]),
        Figure("three patterns, regex with a timeout, us a KB", found["fallback"]),
        Figure("an empty policy, us a KB", found["nothing"]),
    ]
    return report("privacy: redacting what is not private", figures, given)


if __name__ == "__main__":
    sys.exit(main())
