"""Measure searches of 100,000 entries in 100 sessions of an SQLite file: time, bytes, cost of the index.

    python bench/search.py [--large N] [--disk FOLDER] [--json] [--gate]

Each search is measured twice, in processor time: from a query to the ordered places of entries, which is what an index
does; and the public method, which goes on to read 20 entries and their neighbours from their logs, counts their tokens,
packs them into 2,000, and notes that they were fetched. Beside it FTS5 is asked for the places of 20 whole entries, in
a contentless table with stems, in the order of its bm25(). These conversations have a small vocabulary, so nearly all
words are common: more so than in real speech.

    in a session    a question about one session of 1,000 entries; all of its words but one were asked for before
    new words       the same with the name of a person or a crop for the first time: how many entries have these
                    is counted on the first request
    selective       a number that few entries have
    phrase          two words in quotes, a rare one and a common one
    commonest       the word that most entries have
    eight words     eight words, of which any may match
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from large import costs
from measure import Figure, Pair, alternate, arguments, disk_use, memory_folder, report, scratch, store
from raw import payload
from workload import CROPS, PEOPLE, Turn, history

from palimpsest import Memory
from palimpsest.recall.questions import question
from palimpsest.recall.search import Hit, search
from palimpsest.runtime.runner import drive
from palimpsest.sessions.recalling.asked import LIMIT
from palimpsest.sessions.recalling.finding import SPARE

SESSION = 1_000
TIMES = 25
TARGETS = {
    "new words": None,
    "in a session": 3.0,
    "selective": 1.0,
    "phrase": 5.0,
    "commonest": 50.0,
    "eight words": 50.0,
}
"""The most milliseconds of processor time from a query to places."""

WITHIN = {"new words", "in a session"}
"""The searches in one session."""

SIZE, APPEND = 1.7, 1.1
"""The most bytes of store and index for a byte of payload; the most that an append with an index costs, without = 1."""


def queries(seed: int = 0) -> dict[str, list[str]]:
    """Return the searches by kind, the same on every run. None is asked twice."""
    rng = random.Random(seed)
    numbers = rng.sample(range(1000, 9999), 2 * TIMES)
    people, words = itertools.cycle(PEOPLE), ("humidity", "sensor", "packets", "door", "bag", "register", "request")
    asking = [f"What did {next(people)} say about {rng.choice(CROPS)} in lot " for _ in range(TIMES)]
    return {
        "new words": [f"{what}{number}?" for what, number in zip(asking, numbers[:TIMES], strict=True)],
        "in a session": [f"{what}{number}?" for what, number in zip(asking, numbers[TIMES:], strict=True)],
        "selective": [str(number) for number in numbers[:TIMES]],
        "phrase": [f'"lot {number}"' for number in numbers[TIMES:]],
        "commonest": ["lot"] * TIMES,
        "eight words": [" ".join((*rng.sample(words, 6), rng.choice(CROPS), next(people))) for _ in numbers[:TIMES]],
    }


# --- what is compared with


class Plain:
    """A contentless FTS5 table over whole entries, with stems."""

    def __init__(self, path: Path, sessions: Sequence[Sequence[Turn]]) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE VIRTUAL TABLE entry USING fts5(text, content='', tokenize='porter unicode61')")
        texts = (message["content"] for turns in sessions for turn in turns for message in turn)
        self._db.executemany("INSERT INTO entry(rowid, text) VALUES(?, ?)", enumerate(texts, 1))
        self._db.commit()

    def search(self, what: str, query: str) -> None:
        """Find the best 20 of all entries, or of those of the first session."""
        match = query if '"' in query else " OR ".join(query.strip("?").split())
        within = f"AND rowid <= {SESSION}" if what in WITHIN else ""
        sql = f"SELECT rowid FROM entry WHERE entry MATCH ? {within} ORDER BY bm25(entry) LIMIT 20"  # noqa: S608 (a number of ours)
        self._db.execute(sql, (match,)).fetchall()


# --- what is measured


def build(path: str) -> dict[str, float]:
    """Return the seconds and mebibytes of the first search, which builds the index."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        memory.session("other").add_user_message("what is loaded once")
        memory.session("other").recall("loaded")
        return costs(lambda: memory.recall("barley"))


def fill(path: Path, sessions: Sequence[Sequence[Turn]]) -> None:
    """Write the sessions."""
    with Memory.open(path, synchronous="NORMAL") as memory:
        for number, turns in enumerate(sessions):
            memory.session(f"s{number}").add([message for turn in turns for message in turn])


def searched(path: Path, plain: Plain) -> dict[str, tuple[Pair, Pair]]:
    """Return the microseconds of each search, plain and ours: from a query to places, and by the public method.

    What the searches share is warm.
    """
    pairs = {}
    with Memory.open(path, synchronous="NORMAL") as memory:
        session = memory.session("s0")
        for what, asked in queries().items():
            verb = session.recall if what in WITHIN else memory.recall
            places, plain_search = _places(memory, what), _search(plain, what)
            for query in asked[:2]:
                plain_search(query)
                places(query)
                verb(query)
            gc.collect()
            pairs[what] = alternate(plain_search, places, asked[2:]), alternate(plain_search, verb, asked[2:])
    return pairs


def _places(memory: Memory, what: str) -> Callable[[str], list[Hit]]:
    """Return a function that finds the places of the entries that answer a query, best first, as `Finder` does."""
    scope = memory._core._scope  # noqa: SLF001 (no public method returns places)
    index, apart = drive(scope.recall()).index, scope.store.apart
    numbers = [drive(index.cursors(["s0"]))["s0"].number] if what in WITHIN else None

    def find(query: str) -> list[Hit]:
        return drive(search(index, question(query, time.time_ns() // 1000), numbers, None, LIMIT + SPARE, apart))

    return find


def _search(plain: Plain, what: str) -> Callable[[str], None]:
    return lambda query: plain.search(what, query)


def appended(folder: Path, turns: Sequence[Turn]) -> Pair:
    """Return the microseconds of a turn without an index and with one."""
    paths = folder / "bare.db", folder / "indexed.db"
    for path in paths:
        store(path, turns[:300])
    with Memory.open(paths[0]) as bare, Memory.open(paths[1]) as indexed:
        indexed.recall("barley")
        return alternate(bare.session("s").add, indexed.session("s").add, turns[300:])


def erased(path: Path) -> Pair:
    """Return the microseconds of processor time to erase one entry, from a store without an index and with one."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    index = Path(f"{path}.recall")
    aside = index.with_suffix(".aside")
    for has_index in (True, False):
        if not has_index:
            index.rename(aside)
        with Memory.open(path, synchronous="NORMAL") as memory:
            session = memory.session("s1")
            for seq in range(10 if has_index else 11, 200, 20):
                begin = time.process_time()
                session.erase([seq])
                seconds[has_index].append(time.process_time() - begin)
    return Pair(median(seconds[False]) * 1e6, median(seconds[True]) * 1e6)


def main() -> int:
    """Measure and print."""
    given = arguments(__doc__ or "", runs=1, large=100_000)
    sessions = [history(SESSION, seed=number) for number in range(max(2, given.large // SESSION))]
    whole = sum(payload(turns) for turns in sessions)
    entries = sum(len(turn) for turns in sessions for turn in turns)
    with scratch(given.disk or memory_folder()) as folder:
        path = folder / "ours" / "ours.db"
        path.parent.mkdir()
        fill(path, sessions)
        bare = disk_use(path.parent)
        done = subprocess.run(
            [sys.executable, __file__, "--build", path], stdout=subprocess.PIPE, text=True, check=True
        )
        built, both = json.loads(done.stdout), disk_use(path.parent)
        found = searched(path, Plain(folder / "plain.db", sessions))
        adding, erasing = appended(folder, history(4 * SESSION)), erased(path)
    figures = []
    for what, (places, verb) in found.items():
        figures.append(Figure(f"{what}, ms", places.ours / 1e3, TARGETS[what], f"FTS5 {places.raw / 1e3:.2f} ms"))
        figures.append(Figure(f"{what}, FTS5 = 1", places.ratio))
        figures.append(Figure(f"{what}, the whole verb, ms", verb.ours / 1e3))
    figures += [
        Figure("a turn with an index, without = 1", adding.ratio, APPEND, f"{adding.ours:,.0f} / {adding.raw:,.0f} us"),
        Figure("bytes for a byte of payload", both / whole, SIZE, f"store {bare / whole:.2f}, {whole / 1e6:,.0f} MB"),
        Figure("building, microseconds an entry", built["seconds"] / entries * 1e6),
        Figure("building, MiB at most", built["peak"], 64),
        Figure("erasing one entry, ms", erasing.ours / 1e3, None, f"without an index {erasing.raw / 1e3:.2f} ms"),
    ]
    return report("Searching", figures, given, f"{entries:,} entries in {len(sessions):,} sessions.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        print(json.dumps(build(sys.argv[2])))
    else:
        sys.exit(main())
