"""What the summary without a model finds in entries, and in summaries of its own kind that it takes the place of. Pure.

Everything is kept as items, so that the next summary goes on where this one ends: counts are added, the first message
stays the first, and what was mentioned before is mentioned once more. `status` tells the items of one kind apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from palimpsest.log.entry import Entry
from palimpsest.log.summary import ItemKind, Summary, SummaryItem
from palimpsest.summaries import SummarySource
from palimpsest.summaries.identifiers import COMMON
from palimpsest.summaries.mentions import Known, Term, mentions
from palimpsest.summaries.quotations import QUOTED, quoted

SENTENCE = 240
"""Characters. Longer sentences are not quoted: they would crowd out everything else."""

SOURCES = 8
"""Places that an item remembers: the first two and the newest; more say no more about its weight."""

USERS, ERRORS, FIRST, LAST, TOOL, CONTEXT, EARLIER = (
    "user messages",
    "errors",
    "first message",
    "last message",
    "tool",
    "context",
    "earlier summary",
)
MENTIONED, NAMED, UNSURE, TOLD = "mentioned", "named by the user", "perhaps a name", "told by the user"
SAID_BY_USER, SAID_BY_ASSISTANT, SAID = "said by the user", "said by the assistant", "said"

_SENTENCES = re.compile(r"[.!?\n](?:(?<=\n)\n*|(\s+))")
_CLOSING = "\"')]”*_"
_LISTS = tuple("-*#|>+`{}<")
_DECIDES = re.compile(
    r"\W(?:we(?:['\u2019]ve| have)? (?:decided|agreed|chose|settled)"
    r"|i(?:['\u2019]ve| have)? (?:decided|chosen|chose)"
    r"|(?:we|i)(?:['\u2019]ll| will| shall) (?:use|go with|take|switch|book|buy|start|stop)"
    r"|let['\u2019]?s (?:use|go with|take|make|start|stop|switch|try|meet|book|call|set)"
    r"|(?:decided|agreed|opted) (?:to|on|for|that|against)|the decision (?:is|was)"
    r"|going to (?:use|go with)|will use)\b"
)
"""A decision, in a text in lower case; a blank stands before the first word."""

_DECIDING = (
    *("decided", "agreed", "chose", "settled", "opted", "decision", "going to", "will ", "shall "),
    *("'ll ", "\u2019ll ", "let's ", "let\u2019s ", "lets "),
)
"""One of these is in each decision, and to look for them is quick."""

_TELLS = re.compile(
    r"\W(?:my (?:[\w-]+ ){1,3}(?:is|are|was)|call me"
    r"|i(?:['\u2019]m| am) (?:an?|from|based|allergic|called|named|married|\d+)"
    r"|i (?:prefer|live|work|study|own|moved|grew|speak|use|like|love|enjoy|hate|dislike|avoid|need)"
    r"|i (?:always|never|usually|was born|used to|can['\u2019]?t eat|don['\u2019]t (?:like|eat|want|use))"
    r"|(?:please|you (?:must|should)) (?:always|never|use|avoid|don['\u2019]t)"
    r"|always use|never use|from now on|remember that)\b"
)
"""What a user tells of himself or wants kept to, likewise."""

_OUTCOMES = re.compile(r"tool(?:: (?:(\d{1,12}) ok)?(?:, )?(?:(\d{1,12}) failed)?)?")


class Gleaned:
    """What was found: counts, and items by their words, in the order in which they were first met."""

    def __init__(self) -> None:
        self.users = self.errors = 0
        self.first: SummaryItem | None = None
        self.last: SummaryItem | None = None
        self.tools: dict[str, list[int]] = {}
        """Successes and failures of each tool."""
        self.earlier: list[str] = []
        """Texts of summaries of another kind."""
        self.contexts: dict[str, SummaryItem] = {}
        self.failures: dict[str, SummaryItem] = {}
        self.decisions: dict[str, SummaryItem] = {}
        self.facts: dict[str, SummaryItem] = {}
        self.mentioned: dict[str, SummaryItem] = {}
        self.unsure: dict[str, SummaryItem] = {}
        """What may be a name or only the first word of a sentence."""
        self.known: Known = {}
        self.sentences: list[tuple[SummaryItem, tuple[str, ...]]] = []
        """Sentences that mention something, with what they mention."""

    @property
    def notes(self) -> list[SummaryItem]:
        """What was found of errors, decisions, facts and contexts, newest first."""
        found = [*self.failures.values(), *self.decisions.values(), *self.facts.values(), *self.contexts.values()]
        return sorted(found, key=lambda item: max(item.sources, default=0), reverse=True)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could be said."""
        counts = self.users or self.errors or self.tools or self.earlier
        return not (counts or self.mentioned or self.unsure or self.notes or self.sentences)


def glean(source: SummarySource) -> Gleaned:
    """Return what previous summaries without a model knew, and what the entries add."""
    found = Gleaned()
    for summary in source.previous:
        if not summary.withdrawn:
            _carry_over(found, summary)
    said: set[str] = set()
    mentioned, unsure = _Places(), _Places()
    for entry in source.entries:
        _count(found, entry)
        _read(found, entry, said, mentioned, unsure)
    mentioned.told(found.mentioned, MENTIONED)
    unsure.told(found.unsure, UNSURE)
    lower = {word.rstrip(".,;:!?") for word in said} if found.unsure else said
    for name in [name for name in found.unsure if name.lower() in lower or name in found.mentioned]:
        del found.unsure[name]
    if found.is_empty:
        _quote_last(found, source.entries)
    return found


def outcome(counts: Sequence[int]) -> str:
    """Return successes and failures in words; nothing where neither is known."""
    ok, failed = counts
    return ", ".join(part for part in (f"{ok} ok" if ok else "", f"{failed} failed" if failed else "") if part)


# --- from summaries


def _carry_over(found: Gleaned, summary: Summary) -> None:
    if summary.method != "heuristic" or not any(item.status for item in summary.items):
        found.earlier.append(summary.text)
        return
    for item in summary.items:
        status = item.status or ""
        if status == USERS and item.text.isdecimal():
            found.users += int(item.text[:12])
        elif status == ERRORS and item.text.isdecimal():
            found.errors += int(item.text[:12])
        elif status == FIRST:
            found.first = found.first or item
        elif status == LAST:
            found.last = item
        elif status == EARLIER:
            found.earlier.append(item.text)
        elif status == CONTEXT:
            found.contexts[_source_of(item.text)] = item
        elif outcomes := _OUTCOMES.fullmatch(status):
            counts = found.tools.setdefault(item.text, [0, 0])
            counts[0] += int(outcomes.group(1) or 0)
            counts[1] += int(outcomes.group(2) or 0)
        else:
            _carry_words(found, item)


def _carry_words(found: Gleaned, item: SummaryItem) -> None:
    if item.kind == "error":
        _note(found.failures, item)
    elif item.kind == "decision":
        _note(found.decisions, item)
    elif item.status in (MENTIONED, NAMED):
        _note(found.mentioned, item)
    elif item.status == UNSURE:
        _note(found.unsure, item)
    elif item.status in (SAID_BY_USER, SAID_BY_ASSISTANT, SAID):
        found.sentences.append((item, tuple(term.text for term in mentions(item.text) if term.sure)))
    elif item.status == TOLD:
        _note(found.facts, item)


def _note(known: dict[str, SummaryItem], item: SummaryItem) -> None:
    """Add an item; one that is known gains the places."""
    before = known.get(item.text)
    if before is None:
        known[item.text] = item
        return
    sources = before.sources + tuple(seq for seq in item.sources if seq not in before.sources)
    status = NAMED if NAMED in (before.status, item.status) else before.status
    known[item.text] = SummaryItem(
        kind=before.kind,
        text=before.text,
        sources=sources if len(sources) <= SOURCES else sources[:2] + sources[2 - SOURCES :],
        status=status,
        pinned=before.pinned or item.pinned,
    )


# --- from entries


class _Places:
    """Where terms are mentioned: the entries of each, and which of them a user named."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}
        self.named: set[str] = set()

    def told(self, known: dict[str, SummaryItem], status: str) -> None:
        """Add an item for each; those that are known gain the places."""
        for text, places in self.of.items():
            one = NAMED if text in self.named else status
            _note(known, SummaryItem(kind="fact", text=text, sources=tuple(places), status=one))


def _count(found: Gleaned, entry: Entry) -> None:
    """Take in what the documented lines tell: messages of the user, tools, errors."""
    if entry.is_human:
        found.users += 1
        if line := quoted(entry.text):
            quote = SummaryItem(kind="goal", text=line, sources=(entry.seq,), status=FIRST)
            found.first = found.first or quote
            found.last = SummaryItem(kind="next", text=line, sources=(entry.seq,), status=LAST)
    elif entry.kind in ("tool_call", "tool_result") and entry.name:
        outcomes = found.tools.setdefault(" ".join(entry.name.split()), [0, 0])
        outcomes[0] += entry.status == "success"
        outcomes[1] += entry.status == "error"
    if entry.status == "error":
        found.errors += 1


def _read(found: Gleaned, entry: Entry, words: set[str], mentioned: _Places, unsure: _Places) -> None:
    """Take in what the entry says; `words` gains those that people said, with the signs behind them."""
    text = "" if entry.is_reasoning else entry.text
    if not text:
        return
    if entry.kind == "context":
        _read_context(found, entry)
        return
    if entry.kind == "summary":  # of the user's own
        found.earlier.append(text)
        return
    if entry.status == "error" and (line := _first_line(text)):
        failure = f"{' '.join(entry.name.split())}: {line}" if entry.name else line
        _note(found.failures, _item("error", failure, entry.seq, "failed"))
    terms = mentions(text, found.known)
    if entry.kind == "message" and entry.role in ("user", "assistant"):
        words.update(text.split())
        _read_sentences(found, entry, text, terms)
    if text.lstrip()[:1] in ("{", "["):
        terms = [term for term in terms if not text.startswith('":', term.start + len(term.text))]
    seq, sure, doubtful = entry.seq, mentioned.of, unsure.of
    for term in terms:
        known, name = sure if term.sure else doubtful, term.text
        places = known.get(name)
        if places is None:
            known[name] = [seq] if seq else []
        elif seq and (not places or places[-1] != seq):
            places.append(seq)
            if len(places) > SOURCES:
                del places[2]
    if entry.is_human:
        mentioned.named.update([term.text for term in terms if term.sure])


def _read_context(found: Gleaned, entry: Entry) -> None:
    """Of a context its source remains, and its newest version's entry: by a hash its text could be tried out."""
    source = " ".join((entry.name or "context").split())
    found.contexts[source] = _item("artifact", f"{source} (entry {entry.seq})", entry.seq, CONTEXT)


def _source_of(context: str) -> str:
    return context.rpartition(" (entry ")[0] or context


def _read_sentences(found: Gleaned, entry: Entry, text: str, terms: Sequence[Term]) -> None:
    """Take in what decides something, what the user tells of himself, and what mentions something."""
    lower = f" {text.lower()}"
    decides = any(map(lower.__contains__, _DECIDING)) and _DECIDES.search(lower) is not None
    tells = entry.is_human and _TELLS.search(lower) is not None
    if not (terms or decides or tells):
        return
    said = SAID_BY_USER if entry.is_human else SAID_BY_ASSISTANT
    at = 0
    for first, sentence in _sentences(text):
        inside = []
        last = first + len(sentence)
        while at < len(terms) and terms[at].start < last:
            if terms[at].start >= first and terms[at].sure:
                inside.append(terms[at].text)
            at += 1
        if not (inside or tells or decides) or not _is_telling(sentence):
            continue
        words = sentence
        if not words.isprintable() or "  " in words or words[0] == " " or words[-1] == " ":
            words = " ".join(words.split())
        if tells and _TELLS.search(f" {sentence.lower()}"):
            _note(found.facts, _item("fact", words, entry.seq, TOLD))
        elif decides and _DECIDES.search(f" {sentence.lower()}"):
            _note(found.decisions, _item("decision", words, entry.seq, said))
        elif inside:
            found.sentences.append((_item("fact", words, entry.seq, said), tuple(inside)))


def _is_telling(sentence: str) -> bool:
    """Whether a sentence is worth a quote: no question, no line of a list or a table, neither a scrap nor a flood."""
    if not 8 <= len(sentence) <= SENTENCE or sentence.lstrip()[:1] in _LISTS:
        return False
    return not sentence.rstrip(_CLOSING).endswith(("?", ":"))


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield sentences and lines with their places."""
    first = 0
    for match in _SENTENCES.finditer(text):
        last = match.start() if match.start(1) < 0 else match.start(1)
        if last > first:
            yield first, text[first:last]
        first = match.end()
    if first < len(text):
        yield first, text[first:]


def _quote_last(found: Gleaned, entries: Sequence[Entry]) -> None:
    """Take in the end of what was said, where there is nothing else to tell."""
    for entry in reversed(entries):
        if line := quoted(entry.text):
            said = SAID_BY_ASSISTANT if entry.kind == "message" and entry.role == "assistant" else SAID
            found.sentences.append((_item("fact", line, entry.seq, said), ()))
            return


def _first_line(text: str) -> str:
    return quoted(text.lstrip()[: 20 * QUOTED].partition("\n")[0])


def _item(kind: ItemKind, text: str, seq: int, status: str) -> SummaryItem:
    return SummaryItem(kind=kind, text=text, sources=(seq,) if seq else (), status=status)


def weight(item: SummaryItem) -> float:
    """How much a mention matters: how often, by whom, and how telling it is."""
    often = len(item.sources) or 1
    by = 3 if item.status == NAMED else 1
    telling = 0.3 if item.text.isdecimal() or item.text.lower() in COMMON else 1
    return often * by * telling
