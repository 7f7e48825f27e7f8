"""Redaction of stored sessions: what in a stretch of a session is private, and what replaces it. Pure.

`Findings` looks at entries, records and the head, and keeps only what changes. `Redaction` puts that in place, in a
store that can rewrite (`palimpsest.stores.rewriting`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec

from palimpsest.errors import Conflict, PrivacyRefused
from palimpsest.log.change import Record, outdated
from palimpsest.log.entry import Entry, digest
from palimpsest.log.head import About, Attempts, Cut, Head, SessionKey, ShownSummary
from palimpsest.log.summary import Summary
from palimpsest.privacy.cleaning import Finding
from palimpsest.privacy.pseudonyms import Pseudonyms
from palimpsest.privacy.records import cleaned_about, cleaned_attempts, cleaned_cut, cleaned_record
from palimpsest.privacy.redaction import Redactor, Verdict
from palimpsest.privacy.removed import Removed
from palimpsest.privacy.samples import as_text, sample_text, texts_at

REASON = "redaction"
"""The reason of the epoch that begins when texts of a session are redacted."""

REMOVED = "removed"
"""The kind of a finding in a summary that still quotes redacted entries."""

USER = "the id of its user holds something private, and is not changed: `describe(user=…)` gives it another one"
"""Why the id of a session's user is left as it is."""

RESERVED = ":"
"""Ends the name of a pseudonym without a value, which only prevents a number from being given out again."""

_replace = msgspec.structs.replace


class Sample(NamedTuple):
    """A place where something was found: in the entry with this `seq`, or the summary or record with this id.

    `kind` says what was found, `place` in which part. `text` is the text around it as it would read after the
    redaction.
    """

    session: str
    where: int | str
    kind: str
    place: str
    text: str


class Unchecked(NamedTuple):
    """A place of a session that could not be checked, and why. It is left as it is."""

    session: str
    place: str
    why: str


class Findings:
    """What was found in a stretch of one session: old and new values of what changes, and the report on it."""

    def __init__(
        self,
        session: str,
        redactor: Redactor,
        numbers: dict[str, int],
        others: Sequence[dict[str, int]] = (),
        removed: Removed | None = None,
    ) -> None:
        """Begin with nothing found.

        `numbers` are the session's pseudonyms, `others` those of its branches, which may share entries with it. A
        number that a branch has given to another value is not used for them, and new numbers are higher than all of
        theirs. `removed` holds the words that were removed from the session's entries so far.
        """
        self._removed = removed if removed is not None else Removed({}, has_summaries=False)
        self._session, self._redactor = session, redactor
        self._numbers = numbers
        unclear = {name for other in others for name in _clashes(numbers, other)}
        usable = {name: number for name, number in numbers.items() if name not in unclear}
        self._pseudonyms = Pseudonyms({**_highest((numbers, *others)), **usable})
        self.entries: dict[int, tuple[Entry, Entry]] = {}  # by `seq`, before and after
        self.records: dict[int, tuple[Record, Record]] = {}  # by revision, before and after
        self.views: dict[str, tuple[Cut, Cut]] = {}  # by name, before and after
        self.renamed: dict[str, str] = {}  # views by their new names
        self.about: tuple[About, About] | None = None  # before and after
        self.attempts: tuple[Attempts, Attempts] | None = None  # before and after
        self.withheld: list[str] = []  # ids of entries that must go
        self.stubs = 0  # how many entries become stubs
        self.findings: Counter[tuple[str, str]] = Counter()  # by kind and place
        self.samples: dict[tuple[str, str], list[Sample]] = {}  # by kind and place
        self.refused: list[Unchecked] = []

    @property
    def given(self) -> dict[str, int]:
        """The pseudonyms that may occur in what was looked at."""
        return {name: n for name, n in self._pseudonyms.numbers.items() if not name.endswith(RESERVED)}

    @property
    def numbers(self) -> dict[str, int]:
        """All pseudonyms of the session."""
        return {**self._numbers, **self.given}

    @property
    def changes(self) -> int:
        """How many entries, records and views change, and further parts of the head."""
        parts = (self.about is not None) + (self.attempts is not None)
        return len(self.entries) + len(self.records) + len(self.views) + len(self.renamed) + parts

    @property
    def summaries(self) -> int:
        """How many summaries change."""
        return sum(_summary(before) != _summary(after) for before, after in self.records.values())

    # --- looking

    def look_at_entries(self, batch: Sequence[Entry]) -> None:
        """Look at entries in order. A batch must end where a provider's message ends."""
        present = [entry for entry in batch if entry.is_there]
        try:
            self._take_verdicts(present, self._redactor.entries(present, self._pseudonyms))
        except PrivacyRefused:
            for message in _messages(present):  # one by one: a message that cannot be checked does not stop the others
                try:
                    self._take_verdicts(message, self._redactor.afresh().entries(message, self._pseudonyms))
                except PrivacyRefused as fault:
                    first, last = message[0].seq, message[-1].seq
                    self.refuse(f"entry {first}" if first == last else f"entries {first} to {last}", fault)

    def _take_verdicts(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> None:
        for before, verdict in zip(entries, verdicts, strict=True):
            self._pseudonyms = verdict.pseudonyms
            after = verdict.entry
            if after is None:
                self.withheld.append(before.id)
                continue
            if _comparable(after) == _comparable(before):
                after = before
            self._removed.look_at(before, after)
            if after is before:
                continue
            self.entries[before.seq] = before, after
            self.stubs += verdict.withheld
            self._note(before.seq, verdict.findings, partial(texts_at, before, after))

    def look_at_record(self, record: Record) -> None:
        """Look at the texts of a record: its reason and details, the conditions of a cut, the words of a summary."""
        summary = _summary(record)
        where = summary.id if summary is not None else f"record {record.revision}"
        try:
            cleaned = self._without_removed(cleaned_record(record, partial(self.clean, where)), where)
        except PrivacyRefused as fault:
            self.refuse(where if summary is None else f"summary {where}", fault)
            return
        if cleaned != record:
            self.records[record.revision] = record, cleaned

    def _without_removed(self, record: Record, where: str) -> Record:
        """Return the record with a summary that has none of the words that were removed from entries."""
        compaction = record.compaction
        if compaction is None or compaction.summary is None:
            return record
        summary, count = self._removed.out_of(compaction.summary, self._redactor.policy.default_redaction_string)
        if not count:
            return record
        before = compaction.summary.text
        self._note(where, [Finding(REMOVED, "summary", count)], lambda _: (before, summary.text))
        return _replace(record, compaction=_replace(compaction, summary=summary))

    def look_at_head(self, head: Head) -> None:
        """Look at the views and the cuts in use, at what is said of the session, and at names of strategies."""
        if head.about is not None:
            with self._refusing("about"):
                said = cleaned_about(head.about, partial(self.clean, "about"), partial(self.value, "about"))
                self.about = (head.about, said) if said != head.about else None
                if head.about.user is not None and self.clean("about", head.about.user, "user") != head.about.user:
                    self.refused.append(Unchecked(self._session, "about", USER))
        if head.attempts is not None:
            with self._refusing("attempts"):
                attempts = cleaned_attempts(head.attempts, partial(self.clean, "attempts"))
                if attempts is not None and attempts != head.attempts:
                    self.attempts = (head.attempts, attempts)
        for number, (view, cut) in enumerate(head.views.items()):
            with self._refusing(f"view {number}"):
                name = self.clean(f"view {number}", view, "view")
                cleaned = cleaned_cut(cut, partial(self.clean, f"view {name}"))
                if name != view:
                    self.renamed[view] = name
                if cleaned != cut:
                    self.views[view] = cut, cleaned

    def clean(self, where: str, text: str, place: str) -> str:
        """Return a text without what is private, and note what was found."""
        cleaned: str = self.value(where, text, place)
        return cleaned

    def value(self, where: str, value: Any, place: str, *, numbered: bool = True) -> Any:
        """Do the same for a text, plain JSON, or a fact's value. Without `numbered` no pseudonym numbers are used."""
        before = self._pseudonyms if numbered else None
        cleaned, findings, pseudonyms = self._redactor.afresh().checked(value, place, before)
        if numbered:
            self._pseudonyms = pseudonyms
        if cleaned is not value:
            self._note(where, findings, lambda _: (as_text(value), as_text(cleaned)))
        return cleaned

    def _note(self, where: int | str, findings: Sequence[Finding], texts: Callable[[str], tuple[str, str]]) -> None:
        places: dict[str, list[str]] = {}
        for finding in findings:
            self.findings[finding.kind, finding.place] += finding.count
            places.setdefault(finding.place, []).append(finding.kind)
        for place, kinds in places.items():
            kind = ", ".join(kinds)
            shown = sample_text(*texts(place))
            self.samples.setdefault((kind, place), []).append(Sample(self._session, where, kind, place, shown))

    @contextmanager
    def _refusing(self, place: str) -> Iterator[None]:
        try:
            yield
        except PrivacyRefused as fault:
            self.refuse(place, fault)

    def refuse(self, place: str, fault: PrivacyRefused) -> None:
        """Note a place that could not be checked."""
        self.refused.append(Unchecked(self._session, place, f"{fault.rule} could not be applied ({fault.kind})"))


class Redaction:
    """Puts findings in place, as a `Rewrite`, in a session that is still in the epoch in which it was looked at."""

    def __init__(self, key: SessionKey, epoch: int, found: Findings) -> None:
        self._key, self._epoch, self._found = key, epoch, found

    def head(self, head: Head) -> Head:
        """Return the head in a new epoch. Raises Conflict, which undoes the step, if another writer has begun one."""
        if head.epoch != self._epoch:
            raise Conflict(f"session {self._key.session!r}", f"is in epoch {head.epoch}, not {self._epoch}")
        views = dict(head.views)
        views |= {view: after for view, (before, after) in self._found.views.items() if views.get(view) == before}
        found = self._found
        if found.about is not None and found.about[0] == head.about:
            head = _replace(head, about=found.about[1])
        if found.attempts is not None and found.attempts[0] == head.attempts:
            head = _replace(head, attempts=found.attempts[1])
        return self._moved(
            head, found.entries.keys(), {found.renamed.get(view, view): cut for view, cut in views.items()}
        )

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        """Return the head, in a new epoch, of another session that has the entries `seqs`.

        It also gets the pseudonyms of these entries. Raises Conflict if it has given out one for another value.
        """
        given, own = self._found.given, head.pseudonyms
        if _clashes(given, own):
            raise Conflict(f"session {key.session!r}", "has given out pseudonyms meanwhile")
        numbers = {**own, **{name: max(number, own.get(name, 0)) for name, number in given.items()}}
        return _replace(self._moved(head, seqs, head.views), pseudonyms=numbers)

    def entry(self, entry: Entry) -> Entry:
        """Return the entry without what is private, if it is still as it was looked at."""
        before, after = self._found.entries.get(entry.seq, (None, entry))
        return after if before is not None and _comparable(before) == _comparable(entry) else entry

    def record(self, record: Record) -> Record:
        """Return the record without what is private, if it is still as it was looked at."""
        before, after = self._found.records.get(record.revision, (None, record))
        return after if before == record else record

    def _moved(self, head: Head, seqs: Collection[int], views: dict[str, Cut]) -> Head:
        redacted = {seq: self._found.entries[seq][1] for seq in seqs}
        contexts: dict[str, tuple[int, str]] = {}
        for name, (seq, mark) in sorted(head.contexts.items(), key=lambda item: item[1][0]):
            entry = redacted.get(seq)  # if two names become equal, the newer context is the current version
            contexts[name if entry is None else entry.name or name] = seq, mark if entry is None else digest(entry.text)
        return _replace(
            head,
            revision=head.revision + 1,
            epoch=head.epoch + 1,
            epoch_reason=REASON,
            thoughts=head.next_seq,
            usage=outdated(head.usage),
            prompt=None,
            contexts=contexts if redacted else head.contexts,
            views={view: _fitting(cut, redacted, self._found.records) for view, cut in views.items()},
        )


def _clashes(numbers: Mapping[str, int], others: Mapping[str, int]) -> list[str]:
    """Return those names in `numbers` whose number stands for another value in `others`."""
    taken = {(_label(name), number): name for name, number in others.items()}
    return [name for name, number in numbers.items() if taken.get((_label(name), number), name) != name]


def _highest(numbers: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return names without values that reserve the highest number of each kind which any of these has given out."""
    highest: dict[str, int] = {}
    for name, number in (item for others in numbers for item in others.items()):
        reserved = f"{_label(name)}{RESERVED}"
        highest[reserved] = max(highest.get(reserved, 0), number)
    return highest


def _label(name: str) -> str:
    """Return the kind of a pseudonym from its name; see `Pseudonyms`."""
    return name.partition(":")[0]


# --- what depends on redacted texts


def _fitting(cut: Cut, changed: Collection[int], records: Collection[int]) -> Cut:
    """Return the cut without what was computed from texts that have changed: clamps, and token counts of summaries."""
    clamps = tuple(clamp for clamp in cut.clamps if clamp.seq not in changed)
    shown = tuple(
        ShownSummary(summary.revision, summary.characters, summary.tokens) if summary.revision in records else summary
        for summary in cut.summaries
    )
    return cut if (clamps, shown) == (cut.clamps, cut.summaries) else _replace(cut, clamps=clamps, summaries=shown)


def _summary(record: Record) -> Summary | None:
    return record.compaction.summary if record.compaction is not None else None


def _comparable(entry: Entry) -> Entry:
    """Return the entry without the fields that its store keeps beside it (`tokens`, `lone`)."""
    return _replace(entry, tokens=None, lone=False)


def _messages(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield entries grouped by the provider's message that they belong to."""
    start = 0
    for i in range(1, len(entries) + 1):
        if i == len(entries) or not entries[i].continues:
            yield entries[start:i]
            start = i
