"""Count what the built-in recognisers find and miss, on a labelled corpus that is generated on every run. No times.

    python bench/recognisers.py            the table
    python bench/recognisers.py --misses   and every sample that was missed, and every false alarm

The corpus is that of the tests (`tests/privacy_corpus.py`): invented values with right and wrong checksums, in
sentences, and text that only looks similar. It says which forms are found, not how often they occur. "hard" are samples
that rules are not expected to find. Names of people, postal addresses, dates of birth, health or belief have no form at
all: no rule finds them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.privacy.recognisers.scanning import Scan
from privacy_corpus import Sample, corpus, scores


def find(kind: str, text: str) -> list[tuple[int, int]]:
    """Return where the recogniser finds something, called as a redactor calls it."""
    scan = Scan(text)
    recogniser = BUILT_IN[kind]
    if not recogniser.may_find(scan):
        return []
    return [(span.start, span.end) for span in recogniser.find(scan)]


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--each", type=int, default=400, help="samples of each kind")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--misses", action="store_true", help="print what was missed or found for nothing")
    given = options.parse_args()
    samples = corpus(given.seed, given.each)
    print(f"{len(samples)} samples, seed {given.seed}\n")
    print("| recogniser | found | missed | recall | hard, found | false alarms | precision |")
    print("|---|---|---|---|---|---|---|")
    for kind, score in scores(samples, find):
        recall = score.found / (score.found + score.missed)
        precision = score.found / max(score.found + score.false_alarms, 1)
        hard = f"{score.hard_found} of {score.hard}" if score.hard else ""
        cells = (kind, score.found, score.missed, f"{recall:.1%}", hard, score.false_alarms, f"{precision:.1%}")
        print(f"| {' | '.join(map(str, cells))} |")
    if given.misses:
        for sample in samples:
            show(sample)


def show(sample: Sample) -> None:
    """Print what is wrong with the sample, if anything is."""
    for start, end, kind in sample.spans:
        if not sample.hard and not any(first <= start and end <= last for first, last in find(kind, sample.text)):
            print(f"missed {kind}: {sample.text[start:end]!r} in {sample.text[:100]!r}")
    for kind in BUILT_IN:
        for first, last in find(kind, sample.text):
            if not any(first < end and start < last for start, end, _ in sample.spans):
                print(f"false {kind}: {sample.text[first:last]!r} in {sample.text[:100]!r}")


if __name__ == "__main__":
    main()
