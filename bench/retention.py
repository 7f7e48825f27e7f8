"""Measure what of a long conversation is still in reach: sessions that compact themselves, beside truncation.

    PALIMPSEST_DATA=... python bench/retention.py [--budgets 2000 4000 8000] [--every 1] [--long-term ladder]
                                                  [--json] [--gate]

The data are the ten conversations of LoCoMo (Maharana et al., ACL 2024), which are not part of this project: without
`PALIMPSEST_DATA` there is nothing to measure. Each is added to a session of its own, turn by turn (one speaker is the
user, the other the assistant), and a context is asked for after every turn. No model is asked: the summaries are those
that a session without a summarizer makes.

A question is in reach if every turn that answers it is retained: verbatim in the context's messages, or by at least
60 % of its names, numbers and dates in the text of the summary that the context shows. A turn that has none of those is
retained only verbatim. `at the end` are all questions (1,982) after the last turn; `on the way` is the mean over all
turns of the share of those questions whose evidence has been said by then.

    truncation  the newest turns that fill the budget
    sessions    `max_tokens=budget, long_term="ladder"`, or what --long-term says (a name or JSON)

A turn is one message, `Speaker: text [image: caption]`; truncation counts its o200k tokens and 4, a session the cost of
the whole request. Names, numbers and dates are defined here and not by what is measured: words with a digit; words with
a capital that do not begin a sentence; months and days of the week. The two speakers' own names, which every turn has,
do not count.

The same run counts what must never happen: a context or an active set over the budget, a turn that is not found by its
id or, if it is covered, by `expand`, and what `verify()` finds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from palimpsest import Context, Memory, Session
from palimpsest.tokens.counter import encoding

BUDGETS = (2_000, 4_000, 8_000)
TARGETS = {2_000: 0.28, 4_000: 0.35, 8_000: 0.40}
"""By budget, the least share of questions in reach at the end. Each is well above what truncation keeps."""

MESSAGE = 4
KEPT = 0.6
NEVER = ("contexts over the budget", "active sets over the budget", "turns not found by id", "not in expand", "faults")
"""What is counted, and must be 0."""

count = encoding("o200k_base").count


class Turn(NamedTuple):
    """One message of a conversation: id in the data, role and text as a session gets them, its terms, its cost."""

    id: str
    role: str
    text: str
    terms: frozenset[str]
    tokens: int


class Question(NamedTuple):
    """The turns that answer a question, and the index of the last of them: nobody can ask before that."""

    evidence: frozenset[str]
    said: int


class Conversation(NamedTuple):
    """The turns of a conversation and its questions."""

    name: str
    turns: list[Turn]
    questions: list[Question]


# --- the data


def conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of the file."""
    for sample in json.loads(path.read_text(encoding="utf-8")):
        talk = sample["conversation"]
        speakers = {talk["speaker_a"]: "user", talk["speaker_b"]: "assistant"}
        sittings = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
        turns = [_turn(turn, speakers) for number in sittings for turn in talk[f"session_{number}"]]
        places = {turn.id: place for place, turn in enumerate(turns)}
        evidences = (_evidence(question["evidence"]) & places.keys() for question in sample["qa"])
        questions = [Question(evidence, max(map(places.__getitem__, evidence))) for evidence in evidences if evidence]
        yield Conversation(sample["sample_id"], turns, questions)


def _turn(turn: dict[str, str], speakers: dict[str, str]) -> Turn:
    said, speaker = turn["text"], turn["speaker"]
    if turn.get("blip_caption"):
        said += f" [image: {turn['blip_caption']}]"
    text = f"{speaker}: {said}"
    terms = frozenset(terms_of(said) - speakers.keys())
    return Turn(turn["dia_id"], speakers[speaker], text, terms, count(text) + MESSAGE)


def _evidence(given: Sequence[str]) -> frozenset[str]:
    """Return the ids in the strings of one question, however they are written."""
    return frozenset(f"D{int(a)}:{int(b)}" for text in given for a, b in re.findall(r"D:?(\d+):(\d+)", text))


# --- names, numbers and dates


_WORD = re.compile(r"[^\W_]+(?:[.,:/'\u2019-][^\W_]+)*")
_MONTHS = "january february march april june july august september october november december"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_DATES = frozenset(f"{_MONTHS} {_DAYS}".split())


def terms_of(text: str) -> set[str]:
    """Return the names, numbers and dates of a text, word by word."""
    terms = set()
    for match in _WORD.finditer(text):
        word = re.sub(r"['\u2019]s$", "", match.group())
        before = text[: match.start()].rstrip(" \"'\u2018\u2019“”([*")
        begins = not before or before[-1] in ".!?:;\n\u2026-"
        is_name = word[0].isupper() and not begins and not re.match(r"I(?:['\u2019]|$)", word)
        if is_name or any(map(str.isdigit, word)) or word.lower() in _DATES:
            terms.add(word)
    return terms


def mentions(summary: str, terms: frozenset[str]) -> bool:
    """Return whether the summary has enough of the terms, as whole words."""
    if not terms:
        return False
    mentioned = sum(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", summary) is not None for term in terms)
    return mentioned >= KEPT * len(terms)


# --- what is kept


def truncation(turns: Sequence[Turn], budget: int) -> set[str]:
    """Return the ids of the newest turns that fill the budget."""
    start = len(turns)
    while start and (budget := budget - turns[start - 1].tokens) >= 0:
        start -= 1
    return {turn.id for turn in turns[start:]}


class Kept:
    """What a context holds of the turns said so far, judged by its messages alone."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._summaries, self._mentioned = "", set[str]()

    def by(self, context: Context, said: int) -> set[str]:
        """Return the ids of the turns that the context retains, of the first `said`."""
        texts = [message["content"] for message in context.messages]
        first = said
        while texts and first and texts[-1] == self._turns[first - 1].text:
            texts.pop()
            first -= 1
        summaries = "\n".join(map(_inside, texts))
        if summaries != self._summaries:
            self._summaries = summaries
            self._mentioned = {turn.id for turn in self._turns if mentions(summaries, turn.terms)}
        return {turn.id for turn in self._turns[first:said]} | self._mentioned


def _inside(message: str) -> str:
    """Return the text of a summary in the message that shows it, without its fence, whose lines have numbers, too."""
    return message.partition("\n\n")[2].rpartition("\n")[0] if message.startswith("<summary ") else ""


class Share:
    """The shares of questions in reach: at the end, and on the way there."""

    def __init__(self) -> None:
        self.asked = self.held = self.points = 0
        self.shares = 0.0

    def note(self, questions: Sequence[Question], kept: set[str], *, at_end: bool) -> None:
        """Count the questions that are in reach at one point of one conversation."""
        held = sum(question.evidence <= kept for question in questions)
        self.points, self.shares = self.points + 1, self.shares + held / len(questions)
        if at_end:
            self.asked, self.held = self.asked + len(questions), self.held + held

    @property
    def end(self) -> float:
        """The share of all questions, at the end."""
        return self.held / self.asked

    @property
    def way(self) -> float:
        """The mean share over all points."""
        return self.shares / self.points


class Tally:
    """The totals of all conversations under one budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.ours, self.truncated = Share(), Share()
        self.turns = self.compactions = self.calls = self.tokens = 0
        self.seconds = 0.0
        self.never: Counter[str] = Counter()

    def row(self, talks: int) -> dict[str, Any]:
        """Return the figures."""
        return {
            "budget": self.budget,
            "end": {"truncation": self.truncated.end, "sessions": self.ours.end},
            "way": {"truncation": self.truncated.way, "sessions": self.ours.way},
            "compactions": self.compactions,
            "calls": self.calls,
            "summary_tokens": self.tokens / talks,
            "ms_a_turn": self.seconds / self.turns * 1e3,
            "never": {name: self.never[name] for name in NEVER},
        }


def replay(talk: Conversation, memory: Memory, options: dict[str, Any], every: int, tally: Tally) -> None:
    """Replay a conversation in a session, and note after every `every` turns what is in reach."""
    budget, session, last_summary = tally.budget, memory.session(talk.name, max_tokens=tally.budget, **options), ""
    kept = Kept(talk.turns)
    for said, turn in enumerate(talk.turns, 1):
        start = time.perf_counter()
        add = session.add_user_message if turn.role == "user" else session.add_assistant_message
        add(turn.text)
        context = session.context()
        tally.seconds += time.perf_counter() - start
        tally.turns += 1
        tally.never["contexts over the budget"] += context.tokens > budget
        if context.summaries and context.summaries[-1].id != last_summary:
            last_summary = context.summaries[-1].id
            tally.never["active sets over the budget"] += session.stats().active_tokens > budget
        at_end = said == len(talk.turns)
        questions = [question for question in talk.questions if question.said < said]
        if questions and (at_end or said % every == 0):
            tally.ours.note(questions, kept.by(context, said), at_end=at_end)
            tally.truncated.note(questions, truncation(talk.turns[:said], budget), at_end=at_end)
    prove(talk, session, tally)


def prove(talk: Conversation, session: Session, tally: Tally) -> None:
    """Look for every turn by its id, and for covered ones in what the summaries expand to.

    Add up the costs of summaries.
    """
    entries = session.entries()
    for turn, entry in zip(talk.turns, entries, strict=True):
        tally.never["turns not found by id"] += session.entry(entry.id).text != turn.text
    summaries = session.summaries()
    expanded = {entry.seq: entry.text for summary in summaries for entry in session.expand(summary)}
    for first, last in (covered_range for summary in summaries for covered_range in summary.covers):
        for seq in range(first, last + 1):
            tally.never["not in expand"] += expanded.get(seq) != talk.turns[seq - 1].text
    proof, stats = session.verify(), session.stats()
    tally.never["faults"] += len(proof.problems) + (proof.covered != len(expanded)) + (proof.total != len(talk.turns))
    tally.compactions += proof.versions
    tally.calls += stats.spent.calls
    tally.tokens += sum(summary.tokens for summary in summaries)


# --- the table


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the table. With --gate the exit status is 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--every", type=int, default=1, help="look at every so many turns (default 1)")
    parser.add_argument("--long-term", default="ladder", help="a strategy's name, or JSON (default ladder)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gate", action="store_true")
    given = parser.parse_args(arguments)
    if "PALIMPSEST_DATA" not in os.environ:
        print("skipped: PALIMPSEST_DATA does not say where the conversations are")
        return 0
    start = time.perf_counter()
    data = list(conversations(Path(os.environ["PALIMPSEST_DATA"]) / "locomo" / "locomo10.json"))
    long_term = json.loads(given.long_term) if given.long_term.startswith(("{", "[")) else given.long_term
    rows = [measured(data, budget, {"long_term": long_term}, given.every) for budget in given.budgets]
    met = all(map(is_met, rows))
    if given.json:
        print(json.dumps({"rows": rows, "met": met}))
    else:
        questions = sum(len(talk.questions) for talk in data)
        print(f"{len(data)} conversations, {questions} questions, {time.perf_counter() - start:.0f} s\n")
        show(rows)
        print("\ntargets met" if met else "\na target is MISSED")
    return 0 if met or not given.gate else 1


def measured(data: Sequence[Conversation], budget: int, options: dict[str, Any], every: int) -> dict[str, Any]:
    """Replay every conversation under one budget, and return the figures."""
    tally = Tally(budget)
    with (
        tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as folder,
        Memory.open(Path(folder) / "retention.db", synchronous="NORMAL") as memory,
    ):
        for number, talk in enumerate(data, 1):
            replay(talk, memory, options, every, tally)
            progress(f"budget {budget:,}: {number} of {len(data)} conversations")
    progress("")
    return tally.row(len(data))


def progress(text: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def is_met(row: dict[str, Any]) -> bool:
    """Return whether a row meets its targets: at least what truncation keeps, and nothing that must never happen."""
    enough = all(row[when]["sessions"] >= row[when]["truncation"] for when in ("end", "way"))
    target = row["end"]["sessions"] >= TARGETS.get(row["budget"], 0)
    return enough and target and not any(row["never"].values())


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures, a line for each budget."""
    shares = f"{'truncation':>12}{'sessions':>10}"
    print(f"{'':8}{'at the end':^32}{'on the way':^22}{'compac-':>9}{'model':>7}{'summary':>9}{'ms a':>6}")
    print(f"{'budget':>8}{shares}{'target':>10}{shares}{'tions':>9}{'calls':>7}{'tokens':>9}{'turn':>6}")
    for row in rows:
        end, way = (f"{row[when]['truncation']:12.1%}{row[when]['sessions']:10.1%}" for when in ("end", "way"))
        target = f"{TARGETS[row['budget']]:10.1%}" if row["budget"] in TARGETS else " " * 10
        cost = f"{row['compactions']:9,}{row['calls']:7,}{row['summary_tokens']:9,.0f}{row['ms_a_turn']:6.1f}"
        print(f"{row['budget']:8,}{end}{target}{way}{cost}")
    print()
    for name in NEVER:
        print(f"{name:28}{sum(row['never'][name] for row in rows)}")


if __name__ == "__main__":
    sys.exit(main())
