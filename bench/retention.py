"""What of a long conversation is still in reach at its end: a summary made without a model, beside truncation.

    PALIMPSEST_DATA=... python bench/retention.py [--budgets 2000 4000 8000] [--json] [--gate]

The data are the ten conversations of LoCoMo (Maharana et al., ACL 2024), which are not part of this project: without
`PALIMPSEST_DATA` there is nothing to measure. A question is answerable when every turn that answers it is retained:
verbatim in the window, or by at least 60 % of its names, numbers and dates in the summary. A turn that has none of
those is retained only verbatim. Shares are over all questions that have such turns (1,982).

A turn is one message, `Speaker: text [image: caption]`; it costs its o200k tokens and 4.

    truncation  the newest turns that fill the budget
    summary     a window that is cut to its low water when it has grown to its high water, and a summary of at most a
                quarter of the budget, into which each cut folds what it takes out

Names, numbers and dates are defined here and not by what is measured: words with a digit; words with a capital that do
not begin a sentence; months and days of the week. The two speakers' own names, which every turn has, do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from palimpsest.entries import Entry
from palimpsest.summarizing import Recipe, Source
from palimpsest.summarizing.heuristic import heuristic
from palimpsest.summary import Summary
from palimpsest.tokens import encoding

BUDGETS = (2_000, 4_000, 8_000)
TARGETS = {2_000: 0.28, 4_000: 0.35, 8_000: 0.40}
"""Shares of questions, each well above what truncation keeps."""

LOW_WATER, HIGH_WATER, SUMMARY_SHARE, MESSAGE = 0.36, 0.75, 0.25, 4
KEPT = 0.6

count = encoding("o200k_base").count


class Turn(NamedTuple):
    """One message of a conversation: its id in the data, its text as a session gets it, what it mentions, its cost."""

    id: str
    text: str
    terms: frozenset[str]
    tokens: int


class Conversation(NamedTuple):
    """The turns of a conversation, and for each of its questions the ids of the turns that answer it."""

    name: str
    turns: list[Turn]
    questions: list[frozenset[str]]


# --- the data


def conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of the file."""
    for sample in json.loads(path.read_text(encoding="utf-8")):
        talk = sample["conversation"]
        speakers = {talk["speaker_a"], talk["speaker_b"]}
        sittings = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
        turns = [_turn(turn, speakers) for number in sittings for turn in talk[f"session_{number}"]]
        known = {turn.id for turn in turns}
        questions = (_evidence(question["evidence"]) & known for question in sample["qa"])
        yield Conversation(sample["sample_id"], turns, [evidence for evidence in questions if evidence])


def _turn(turn: dict[str, str], speakers: set[str]) -> Turn:
    said = turn["text"]
    if turn.get("blip_caption"):
        said += f" [image: {turn['blip_caption']}]"
    text = f"{turn['speaker']}: {said}"
    return Turn(turn["dia_id"], text, frozenset(terms_of(said) - speakers), count(text) + MESSAGE)


def _evidence(given: Sequence[str]) -> frozenset[str]:
    """The ids in the strings of one question, however they are written."""
    return frozenset(f"D{int(a)}:{int(b)}" for text in given for a, b in re.findall(r"D:?(\d+):(\d+)", text))


# --- names, numbers and dates


_WORD = re.compile(r"[^\W_]+(?:[.,:/'\u2019-][^\W_]+)*")
_MONTHS = "january february march april june july august september october november december"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_DATES = frozenset(f"{_MONTHS} {_DAYS}".split())


def terms_of(text: str) -> set[str]:
    """Return the names, numbers and dates of a text, word by word."""
    found = set()
    for match in _WORD.finditer(text):
        word = re.sub(r"['\u2019]s$", "", match.group())
        before = text[: match.start()].rstrip(" \"'\u2018\u2019“”([*")
        begins = not before or before[-1] in ".!?:;\n\u2026-"
        is_name = word[0].isupper() and not begins and not re.match(r"I(?:['\u2019]|$)", word)
        if is_name or any(map(str.isdigit, word)) or word.lower() in _DATES:
            found.add(word)
    return found


def mentions(summary: str, terms: frozenset[str]) -> bool:
    """Whether enough of the terms stand in the summary, as words of their own."""
    if not terms:
        return False
    held = sum(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", summary) is not None for term in terms)
    return held >= KEPT * len(terms)


# --- what is kept


def truncation(turns: Sequence[Turn], budget: int) -> set[str]:
    """Return the ids of the newest turns that fill the budget."""
    return {turn.id for turn in turns[_newest(turns, budget) :]}


def _newest(turns: Sequence[Turn], room: float) -> int:
    start = len(turns)
    while start and (room := room - turns[start - 1].tokens) >= 0:
        start -= 1
    return start


def summarised(turns: Sequence[Turn], budget: int) -> tuple[set[str], str]:
    """Return the ids of the turns that are retained at the end, and the summary."""
    start, used = 0, 0
    summary: Summary | None = None
    for end, turn in enumerate(turns, 1):
        used += turn.tokens
        if used > HIGH_WATER * budget:
            cut = start + _newest(turns[start:end], LOW_WATER * budget)
            summary = folded(turns, start, cut, summary, budget)
            start, used = cut, sum(turn.tokens for turn in turns[cut:end])
    text = summary.text if summary is not None else ""
    return {turn.id for i, turn in enumerate(turns) if i >= start or mentions(text, turn.terms)}, text


def folded(turns: Sequence[Turn], start: int, cut: int, previous: Summary | None, budget: int) -> Summary:
    """Return the summary that takes in the turns from `start` to `cut`, too."""
    entries = [
        Entry(seq=i + 1, role="assistant" if i % 2 else "user", content=turns[i].text) for i in range(start, cut)
    ]
    new = sum(turn.tokens for turn in turns[start:cut])
    everything = new + (previous.source_tokens if previous else 0)
    most = int(SUMMARY_SHARE * budget)
    target = min(max(120, math.ceil(0.3 * everything)), most)
    recipe = Recipe(target=target, most=most, source_tokens=new + (previous.tokens if previous else 0))
    draft = heuristic(Source(entries=entries, previous=(previous,) if previous else ()), recipe, count)
    tokens = count(draft.text)
    assert tokens <= most, f"{tokens} tokens where {most} are allowed"
    covers = ((1, cut),)
    return Summary(
        id="",
        text=draft.text,
        covers=covers,
        items=draft.items,
        tokens=tokens,
        source_tokens=everything,
        method="heuristic",
    )


# --- the table


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the table; with --gate exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gate", action="store_true")
    given = parser.parse_args(arguments)
    if "PALIMPSEST_DATA" not in os.environ:
        print("skipped: PALIMPSEST_DATA does not say where the conversations are")
        return 0
    began = time.perf_counter()
    data = list(conversations(Path(os.environ["PALIMPSEST_DATA"]) / "locomo" / "locomo10.json"))
    rows = [measured(data, budget) for budget in given.budgets]
    met = all(row["summary"] >= TARGETS.get(int(row["budget"]), 0) for row in rows)
    if given.json:
        print(json.dumps({"rows": rows, "met": met}))
        return 0 if met or not given.gate else 1
    questions = sum(len(talk.questions) for talk in data)
    print(f"{len(data)} conversations, {questions} questions, {time.perf_counter() - began:.0f} s")
    print(f"{'budget':>8}{'truncation':>12}{'summary':>9}{'target':>9}{'summary tokens':>16}")
    for row in rows:
        target = TARGETS.get(int(row["budget"]))
        shares = f"{row['truncation']:12.1%}{row['summary']:9.1%}{'' if target is None else format(target, '.1%'):>9}"
        print(f"{row['budget']:8,}{shares}{row['tokens']:16,.0f}")
    print("targets met" if met else "a target is MISSED")
    return 0 if met or not given.gate else 1


def measured(data: Sequence[Conversation], budget: int) -> dict[str, float]:
    """Return the shares of questions whose every turn is retained, and how long the summaries are."""
    truncated = ours = total = tokens = 0
    for talk in data:
        newest = truncation(talk.turns, budget)
        kept, summary = summarised(talk.turns, budget)
        total += len(talk.questions)
        truncated += sum(evidence <= newest for evidence in talk.questions)
        ours += sum(evidence <= kept for evidence in talk.questions)
        tokens += count(summary)
    row = {"truncation": truncated / total, "summary": ours / total, "tokens": tokens / len(data)}
    return {"budget": budget, **row}


if __name__ == "__main__":
    sys.exit(main())
