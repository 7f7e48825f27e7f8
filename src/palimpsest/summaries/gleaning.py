"""What the summary without a model gathers from entries, and from earlier summaries of its own kind. Pure.

Everything is kept as items, so that the next summary continues where this one ends: counts are added, the first message
stays the first, and earlier mentions are repeated. `status` distinguishes items of one kind.
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
"""Longest sentence that is quoted, in characters: longer ones would crowd out everything else."""

SOURCES = 8
"""Most places that an item remembers: the first two and the newest. More would not change its weight."""

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
"""A decision, in lower-case text with a blank before the first word."""

_DECISION_HINTS = (
    *("decided", "agreed", "chose", "settled", "opted", "decision", "going to", "will ", "shall "),
    *("'ll ", "\u2019ll ", "let's ", "let\u2019s ", "lets "),
)
"""Each decision contains one of these, and searching for them is fast."""

_STATES_FACT = re.compile(
    r"\W(?:my (?:[\w-]+ ){1,3}(?:is|are|was)|call me"
    r"|i(?:['\u2019]m| am) (?:an?|from|based|allergic|called|named|married|\d+)"
    r"|i (?:prefer|live|work|study|own|moved|grew|speak|use|like|love|enjoy|hate|dislike|avoid|need)"
    r"|i (?:always|never|usually|was born|used to|can['\u2019]?t eat|don['\u2019]t (?:like|eat|want|use))"
    r"|(?:please|you (?:must|should)) (?:always|never|use|avoid|don['\u2019]t)"
    r"|always use|never use|from now on|remember that)\b"
)
"""A fact that a user states about himself, or a wish for the future, in text as above."""

_OUTCOMES = re.compile(r"tool(?:: (?:(\d{1,12}) ok)?(?:, )?(?:(\d{1,12}) failed)?)?")


class Gleaned:
    """What was gathered: counts, and items by their text, in the order in which they were first met."""

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
        """Possible names that may be only the first word of a sentence."""
        self.known: Known = {}
        self.sentences: list[tuple[SummaryItem, tuple[str, ...]]] = []
        """Sentences with the terms that they mention."""

    @property
    def notes(self) -> list[SummaryItem]:
        """Errors, decisions, facts and contexts, newest first."""
        items = [*self.failures.values(), *self.decisions.values(), *self.facts.values(), *self.contexts.values()]
        return sorted(items, key=lambda item: max(item.sources, default=0), reverse=True)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        counts = self.users or self.errors or self.tools or self.earlier
        return not (counts or self.mentioned or self.unsure or self.notes or self.sentences)


def glean(source: SummarySource) -> Gleaned:
    """Gather what earlier summaries without a model hold, and what the entries add."""
    gleaned = Gleaned()
    for summary in source.previous:
        if not summary.withdrawn:
            _carry_over(gleaned, summary)
    spoken_words: set[str] = set()
    mentioned, unsure = _Places(), _Places()
    for entry in source.entries:
        _count(gleaned, entry)
        _read(gleaned, entry, spoken_words, mentioned, unsure)
    mentioned.add_to(gleaned.mentioned, MENTIONED)
    unsure.add_to(gleaned.unsure, UNSURE)
    spoken = {word.rstrip(".,;:!?") for word in spoken_words} if gleaned.unsure else spoken_words
    for name in [name for name in gleaned.unsure if name.lower() in spoken or name in gleaned.mentioned]:
        del gleaned.unsure[name]
    if gleaned.is_empty:
        _quote_last(gleaned, source.entries)
    return gleaned


def outcome(counts: Sequence[int]) -> str:
    """Return successes and failures as words; "" if neither is known."""
    ok, failed = counts
    return ", ".join(part for part in (f"{ok} ok" if ok else "", f"{failed} failed" if failed else "") if part)


# --- from summaries


def _carry_over(gleaned: Gleaned, summary: Summary) -> None:
    """Continue from an earlier summary: its items if it was made without a model, else its text."""
    if summary.method != "heuristic" or not any(item.status for item in summary.items):
        gleaned.earlier.append(summary.text)
        return
    for item in summary.items:
        status = item.status or ""
        if status == USERS and item.text.isdecimal():
            gleaned.users += int(item.text[:12])
        elif status == ERRORS and item.text.isdecimal():
            gleaned.errors += int(item.text[:12])
        elif status == FIRST:
            gleaned.first = gleaned.first or item
        elif status == LAST:
            gleaned.last = item
        elif status == EARLIER:
            gleaned.earlier.append(item.text)
        elif status == CONTEXT:
            gleaned.contexts[_source_of(item.text)] = item
        elif outcomes := _OUTCOMES.fullmatch(status):
            counts = gleaned.tools.setdefault(item.text, [0, 0])
            counts[0] += int(outcomes.group(1) or 0)
            counts[1] += int(outcomes.group(2) or 0)
        else:
            _carry_words(gleaned, item)


def _carry_words(gleaned: Gleaned, item: SummaryItem) -> None:
    """Continue from an item that is not a count."""
    if item.kind == "error":
        _add_item(gleaned.failures, item)
    elif item.kind == "decision":
        _add_item(gleaned.decisions, item)
    elif item.status in (MENTIONED, NAMED):
        _add_item(gleaned.mentioned, item)
    elif item.status == UNSURE:
        _add_item(gleaned.unsure, item)
    elif item.status in (SAID_BY_USER, SAID_BY_ASSISTANT, SAID):
        gleaned.sentences.append((item, tuple(term.text for term in mentions(item.text) if term.sure)))
    elif item.status == TOLD:
        _add_item(gleaned.facts, item)


def _add_item(items: dict[str, SummaryItem], item: SummaryItem) -> None:
    """Add an item, or add its places to the item with the same text."""
    existing = items.get(item.text)
    if existing is None:
        items[item.text] = item
        return
    sources = existing.sources + tuple(seq for seq in item.sources if seq not in existing.sources)
    status = NAMED if NAMED in (existing.status, item.status) else existing.status
    items[item.text] = SummaryItem(
        kind=existing.kind,
        text=existing.text,
        sources=sources if len(sources) <= SOURCES else sources[:2] + sources[2 - SOURCES :],
        status=status,
        pinned=existing.pinned or item.pinned,
    )


# --- from entries


class _Places:
    """Where terms are mentioned: the entries of each term, and which terms a user has named."""

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}
        self.named: set[str] = set()

    def add_to(self, items: dict[str, SummaryItem], status: str) -> None:
        """Add an item for each term, or add the places to the items that exist."""
        for text, places in self.of.items():
            item_status = NAMED if text in self.named else status
            _add_item(items, SummaryItem(kind="fact", text=text, sources=tuple(places), status=item_status))


def _count(gleaned: Gleaned, entry: Entry) -> None:
    """Add what the documented lines report: messages of the user, tools, errors."""
    if entry.is_human:
        gleaned.users += 1
        if line := quoted(entry.text):
            quote = SummaryItem(kind="goal", text=line, sources=(entry.seq,), status=FIRST)
            gleaned.first = gleaned.first or quote
            gleaned.last = SummaryItem(kind="next", text=line, sources=(entry.seq,), status=LAST)
    elif entry.kind in ("tool_call", "tool_result") and entry.name:
        outcomes = gleaned.tools.setdefault(" ".join(entry.name.split()), [0, 0])
        outcomes[0] += entry.status == "success"
        outcomes[1] += entry.status == "error"
    if entry.status == "error":
        gleaned.errors += 1


def _read(gleaned: Gleaned, entry: Entry, words: set[str], mentioned: _Places, unsure: _Places) -> None:
    """Add what the entry says. `words` collects the words that people wrote, with trailing punctuation."""
    text = "" if entry.is_reasoning else entry.text
    if not text:
        return
    if entry.kind == "context":
        _read_context(gleaned, entry)
        return
    if entry.kind == "summary":  # a summary that a program added
        gleaned.earlier.append(text)
        return
    if entry.status == "error" and (line := _first_line(text)):
        failure = f"{' '.join(entry.name.split())}: {line}" if entry.name else line
        _add_item(gleaned.failures, _item("error", failure, entry.seq, "failed"))
    terms = mentions(text, gleaned.known)
    if entry.kind == "message" and entry.role in ("user", "assistant"):
        words.update(text.split())
        _read_sentences(gleaned, entry, text, terms)
    if text.lstrip()[:1] in ("{", "["):
        terms = [term for term in terms if not text.startswith('":', term.start + len(term.text))]
    seq, sure, doubtful = entry.seq, mentioned.of, unsure.of
    for term in terms:
        places_of, name = sure if term.sure else doubtful, term.text
        seqs = places_of.get(name)
        if seqs is None:
            places_of[name] = [seq] if seq else []
        elif seq and (not seqs or seqs[-1] != seq):
            seqs.append(seq)
            if len(seqs) > SOURCES:
                del seqs[2]
    if entry.is_human:
        mentioned.named.update([term.text for term in terms if term.sure])


def _read_context(gleaned: Gleaned, entry: Entry) -> None:
    """Keep a context's source and its newest entry; no hash, since guesses at the text could be checked against one."""
    source = " ".join((entry.name or "context").split())
    gleaned.contexts[source] = _item("artifact", f"{source} (entry {entry.seq})", entry.seq, CONTEXT)


def _source_of(context: str) -> str:
    return context.rpartition(" (entry ")[0] or context


def _read_sentences(gleaned: Gleaned, entry: Entry, text: str, terms: Sequence[Term]) -> None:
    """Add sentences that decide something, state facts about the user, or mention a term."""
    lower = f" {text.lower()}"
    decides = any(map(lower.__contains__, _DECISION_HINTS)) and _DECIDES.search(lower) is not None
    tells = entry.is_human and _STATES_FACT.search(lower) is not None
    if not (terms or decides or tells):
        return
    speaker = SAID_BY_USER if entry.is_human else SAID_BY_ASSISTANT
    next_term = 0
    for first, sentence in _sentences(text):
        terms_inside = []
        last = first + len(sentence)
        while next_term < len(terms) and terms[next_term].start < last:
            if terms[next_term].start >= first and terms[next_term].sure:
                terms_inside.append(terms[next_term].text)
            next_term += 1
        if not (terms_inside or tells or decides) or not _is_quotable(sentence):
            continue
        quote = sentence
        if not quote.isprintable() or "  " in quote or quote[0] == " " or quote[-1] == " ":
            quote = " ".join(quote.split())
        if tells and _STATES_FACT.search(f" {sentence.lower()}"):
            _add_item(gleaned.facts, _item("fact", quote, entry.seq, TOLD))
        elif decides and _DECIDES.search(f" {sentence.lower()}"):
            _add_item(gleaned.decisions, _item("decision", quote, entry.seq, speaker))
        elif terms_inside:
            gleaned.sentences.append((_item("fact", quote, entry.seq, speaker), tuple(terms_inside)))


def _is_quotable(sentence: str) -> bool:
    """Whether a sentence is worth quoting: no question, no line of a list or a table, not too short or too long."""
    if not 8 <= len(sentence) <= SENTENCE or sentence.lstrip()[:1] in _LISTS:
        return False
    return not sentence.rstrip(_CLOSING).endswith(("?", ":"))


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield sentences and lines with their start."""
    first = 0
    for match in _SENTENCES.finditer(text):
        last = match.start() if match.start(1) < 0 else match.start(1)
        if last > first:
            yield first, text[first:last]
        first = match.end()
    if first < len(text):
        yield first, text[first:]


def _quote_last(gleaned: Gleaned, entries: Sequence[Entry]) -> None:
    """Quote the end of the conversation if there is nothing else to write."""
    for entry in reversed(entries):
        if line := quoted(entry.text):
            speaker = SAID_BY_ASSISTANT if entry.kind == "message" and entry.role == "assistant" else SAID
            gleaned.sentences.append((_item("fact", line, entry.seq, speaker), ()))
            return


def _first_line(text: str) -> str:
    return quoted(text.lstrip()[: 20 * QUOTED].partition("\n")[0])


def _item(kind: ItemKind, text: str, seq: int, status: str) -> SummaryItem:
    return SummaryItem(kind=kind, text=text, sources=(seq,) if seq else (), status=status)


def weight(item: SummaryItem) -> float:
    """Return how much a mention matters: by how often, by whom, and how specific it is."""
    often = len(item.sources) or 1
    by_user = 3 if item.status == NAMED else 1
    specific = 0.3 if item.text.isdecimal() or item.text.lower() in COMMON else 1
    return often * by_user * specific
