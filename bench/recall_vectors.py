"""Measure what an embedder adds to recall, and what it costs: the measures of `recall.py`, with vectors beside words.

    PALIMPSEST_DATA=... python bench/recall_vectors.py [--model NAME ...] [--only NAME] [--weight W ...] [--gate]

Vectors are made as an index makes them: for each part, through an embedder into SQLite, and from there into memory.
Both orders are joined by `palimpsest.recall.fusion`. `ms` is a search without embedding the question; that is reported
separately, with the time to load a model and to embed a part, and the memory that it takes. One thread, unless
OPENBLAS_NUM_THREADS says otherwise. Weights were chosen like the constants of `recall.py`. What each step adds, and
what else was tried, is in `docs/decisions/0073`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, TypeVar

from recall import CATEGORIES, LIMIT, MEASURES, Scores, Search, corpora, measure, show
from recall_corpora import Asked, Talk

from palimpsest.recall.embedders import MODELS, embedder
from palimpsest.recall.fusion import BY_WORDS, NEAREST, WEIGHT, Meaning
from palimpsest.recall.parts import parts_of
from palimpsest.recall.postings import Postings, key_of
from palimpsest.recall.questions import question
from palimpsest.recall.ranking import Facts, Ranking, named_by
from palimpsest.recall.search import unnamed
from palimpsest.recall.sqlite.vectors import FileVectors, SqliteVectors
from palimpsest.recall.vectors import Vectors
from palimpsest.runtime.runner import Inline, drive

T = TypeVar("T")

TARGETS = (("R@10", 0.82), ("NDCG@10", 0.62), ("1,000 tokens", 0.88))
MULTI_HOP = 0.50
"""Lower bounds with all-MiniLM-L6-v2, on LoCoMo. With --gate the run fails below these."""


class Model:
    """A model that embeds each text once, and reports what that costs."""

    def __init__(self, name: str) -> None:
        self.called, self._model = name, MODELS.find(name)()
        self.name = self._model.name
        self._vectors: dict[str, Any] = {}
        before, start = _peak(), time.perf_counter()
        self._model(["a first text loads it"])
        self.seconds, self.megabytes = time.perf_counter() - start, _peak() - before
        self.texts, self.spent, self._cpu = 0, 0.0, 0.0

    def __call__(self, texts: list[str]) -> list[Any]:
        """Return the vectors of texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            start, cpu = time.perf_counter(), time.thread_time()
            self._vectors.update(zip(new, self._model(new), strict=True))
            self.spent += time.perf_counter() - start
            self._cpu += time.thread_time() - cpu
            self.texts += len(new)
        return [self._vectors[text] for text in texts]

    def told(self) -> str:
        """Return a line about the costs."""
        start = time.perf_counter()
        for number in range(50):
            self._model([f"What did Caroline say about her trip number {number}?"])
        query = (time.perf_counter() - start) / 50 * 1e3
        each = f"{self.spent / self.texts * 1e3:.2f} ms ({self._cpu / self.texts * 1e3:.2f} ms CPU) a part"
        return (
            f"{self.name}: loaded in {self.seconds:.2f} s, {self.megabytes:.0f} MB more at its peak; {each}, "
            f"{query:.2f} ms a question"
        )


def _peak() -> float:
    return getrusage(RUSAGE_SELF).ru_maxrss / 1024


def joined(talk: Talk, model: Model, weight: float) -> Search:
    """Return a search by words and vectors, in one order."""
    index, facts, texts = Postings(), dict[int, Facts](), dict[int, str]()
    for entry in talk.entries:
        for number, part in enumerate(parts_of(entry)):
            key = key_of(0, entry.seq, number)
            index.put(key, part.terms)
            texts[key] = entry.text[part.start : part.end]
        facts[entry.seq] = Facts(at=entry.at, kind=entry.kind, role=entry.role, chars=len(entry.text), name=entry.name)
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    async def do(body: Callable[[SqliteVectors], T], *, writes: bool) -> T:  # noqa: ARG001 (nothing else uses the connection)
        return body(SqliteVectors(db))

    vectors = Vectors(FileVectors(do), embedder(model, Inline()))
    drive(vectors.put(texts, 0))

    def search(asked: Asked) -> list[int]:
        wanted = question(asked.text, asked.now)
        ranking = Ranking(wanted, index.matches(wanted.terms), candidates=BY_WORDS)
        names = wanted.words & named_by(facts[seq] for seq in ranking.wanted if seq in facts)
        nearest = drive(vectors.search(unnamed(asked.text, names), [0], limit=NEAREST))
        return [hit.seq for hit in Meaning(nearest).joined(ranking, facts, weight=weight, limit=LIMIT)]

    return search


def rows(name: str, talks: Sequence[Talk], model: Model, weights: Sequence[float]) -> list[tuple[str, str, Scores]]:
    """Return the lines of the table for these conversations."""
    table = []
    for weight in weights:
        groups = measure(talks, lambda talk, weight=weight: joined(talk, model, weight))  # type: ignore[misc]
        method = f"{model.called}, {weight:g}"
        table.append((name, method, groups[""]))
        kinds = [group for group in sorted(groups) if group in CATEGORIES]
        table += [(f"{name}, {group} {CATEGORIES[group]}", method, groups[group]) for group in kinds]
    return table


def missed(table: Sequence[tuple[str, str, Scores]]) -> list[str]:
    """Return what is below its target."""
    ours = {what: value for what, method, value in table if method == f"minilm, {WEIGHT:g}"}
    asked = [("LoCoMo", measured, target) for measured, target in TARGETS]
    faults = []
    for what, measured, target in [*asked, (f"LoCoMo, 1 {CATEGORIES['1']}", "R@10", MULTI_HOP)]:
        value = ours[what].means[MEASURES.index(measured)] if what in ours else 1.0
        if value < target:
            faults.append(f"{what}: {measured} {value:.1%} of {target:.0%}")
    return faults


def main() -> int:
    """Print the table. With --gate the exit status is 1 if a target is missed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--model", nargs="+", default=["wordllama", "minilm"])
    options.add_argument("--weight", nargs="+", type=float, default=[WEIGHT])
    options.add_argument("--only", help="only conversations whose name begins with this")
    options.add_argument("--gate", action="store_true")
    given = options.parse_args()
    data = os.environ.get("PALIMPSEST_DATA")
    if data is None:
        print("PALIMPSEST_DATA is not set: LoCoMo and tau-bench are skipped", file=sys.stderr)
    table: list[tuple[str, str, Scores]] = []
    for name in given.model:
        model = Model(name)
        for what, talks in corpora(Path(data) if data else None):
            if what.startswith(given.only or ""):
                table += rows(what, talks, model, given.weight)
        print(model.told(), file=sys.stderr)
    show(table)
    faults = missed(table)
    for fault in faults:
        print(f"MISSED {fault}", file=sys.stderr)
    return 1 if given.gate and faults else 0


if __name__ == "__main__":
    sys.exit(main())
