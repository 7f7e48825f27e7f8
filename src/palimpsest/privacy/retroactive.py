"""Redaction after the fact: what of a stretch of a session is private, and what comes in its place. Pure.

`Findings` looks at entries, records and the head and remembers only what changes; `Redaction` puts that in place, in a
store that rewrites (`palimpsest.stores.rewriting`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from palimpsest.errors import Conflict, PrivacyRefused
from palimpsest.log.change import Record, outdated
from palimpsest.log.entry import Entry, digest
from palimpsest.log.head import About, Cut, Head, SessionKey, ShownSummary
from palimpsest.log.summary import Summary
from palimpsest.privacy.cleaning import Finding
from palimpsest.privacy.pseudonyms import Pseudonyms
from palimpsest.privacy.records import cleaned_about, cleaned_cut, cleaned_record
from palimpsest.privacy.redaction import Redactor, Verdict
from palimpsest.privacy.removed import Removed

REASON = "redaction"
"""Why a session's epoch began in which texts of it were redacted after the fact."""

REMOVED = "removed"
"""The kind of what a summary still said of redacted entries."""

SAMPLE = 60
"""Characters of a sample, about."""

RESERVED = ":"
"""Ends the name of a pseudonym that only keeps a number from being given again: there is no value behind it."""

_replace = msgspec.structs.replace


class Sample(NamedTuple):
    """One place where something was found: in the entry of this `seq`, or the summary or record of this id.

    `kind` and `place` say what it is, and where. `text` is what stands around it, with what would come in the place of
    what was found.
    """

    session: str
    where: int | str
    kind: str
    place: str
    text: str


class Unchecked(NamedTuple):
    """What of a session could not be checked, and why. It is as it was."""

    session: str
    place: str
    why: str


class Findings:
    """What was found in a stretch of one session: what is to come in the place of what, and what to tell of it."""

    def __init__(
        self,
        session: str,
        redactor: Redactor,
        numbers: dict[str, int],
        others: Sequence[dict[str, int]] = (),
        removed: Removed | None = None,
    ) -> None:
        """`numbers` are the session's pseudonyms, `others` those of branches, which may have the same entries.

        A number that a branch has given to something else is not used for them, and new ones come behind those of all.
        `removed` are the words that went from the session's entries until now.
        """
        self._removed = removed if removed is not None else Removed({}, has_summaries=False)
        self._session, self._redactor = session, redactor
        self._known = numbers
        unclear = {name for other in others for name in _clashes(numbers, other)}
        usable = {name: number for name, number in numbers.items() if name not in unclear}
        self._pseudonyms = Pseudonyms({**_highest((numbers, *others)), **usable})
        self.entries: dict[int, tuple[Entry, Entry]] = {}
        self.records: dict[int, tuple[Record, Record]] = {}
        self.views: dict[str, tuple[Cut, Cut]] = {}
        self.about: tuple[About, About] | None = None
        self.withheld: list[str] = []
        self.stubs = 0
        self.findings: Counter[tuple[str, str]] = Counter()
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        self.refused: list[Unchecked] = []

    @property
    def given(self) -> dict[str, int]:
        """The pseudonyms that may stand in what was looked at."""
        return {name: n for name, n in self._pseudonyms.numbers.items() if not name.endswith(RESERVED)}

    @property
    def numbers(self) -> dict[str, int]:
        """All pseudonyms of the session."""
        return {**self._known, **self.given}

    @property
    def changes(self) -> int:
        """How many entries, records and views become others, and whether what is said of the session does."""
        return len(self.entries) + len(self.records) + len(self.views) + (self.about is not None)

    @property
    def summaries(self) -> int:
        """How many summaries say something else."""
        return sum(_summary(was) != _summary(now) for was, now in self.records.values())

    # --- looking

    def look_at_entries(self, batch: Sequence[Entry]) -> None:
        """Look at entries in order, which end where a message ends."""
        living = [entry for entry in batch if entry.is_there]
        try:
            self._take(living, self._redactor.entries(living, self._pseudonyms))
        except PrivacyRefused:
            for message in _messages(living):  # the others go on without those that cannot be checked
                try:
                    self._take(message, self._redactor.afresh().entries(message, self._pseudonyms))
                except PrivacyRefused as fault:
                    first, last = message[0].seq, message[-1].seq
                    self.refuse(f"entry {first}" if first == last else f"entries {first} to {last}", fault)

    def _take(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> None:
        for was, verdict in zip(entries, verdicts, strict=True):
            self._pseudonyms = verdict.pseudonyms
            now = verdict.entry
            if now is None:
                self.withheld.append(was.id)
                continue
            if _untold(now) == _untold(was):
                now = was
            self._removed.look_at(was, now)
            if now is was:
                continue
            self.entries[was.seq] = was, now
            self.stubs += verdict.withheld
            self._note(was.seq, verdict.findings, partial(_at, was, now))

    def look_at_record(self, record: Record) -> None:
        """Look at what a record tells: its reason and details, the conditions of a cut, the words of a summary."""
        made = _summary(record)
        where = made.id if made is not None else f"record {record.revision}"
        try:
            now = self._without_removed(cleaned_record(record, partial(self.clean, where)), where)
        except PrivacyRefused as fault:
            self.refuse(where if made is None else f"summary {where}", fault)
            return
        if now != record:
            self.records[record.revision] = record, now

    def _without_removed(self, record: Record, where: str) -> Record:
        """The record; its summary says no word that went from the entries."""
        held = record.compaction
        if held is None or held.summary is None:
            return record
        now, count = self._removed.out_of(held.summary, self._redactor.policy.default_redaction_string)
        if not count:
            return record
        was = held.summary.text
        self._note(where, [Finding(REMOVED, "summary", count)], lambda _: (was, now.text))
        return _replace(record, compaction=_replace(held, summary=now))

    def look_at_head(self, head: Head) -> None:
        """Look at the conditions of the cuts that are in use, and at what is said of the session."""
        if head.about is not None:
            try:
                said = cleaned_about(head.about, partial(self.clean, "about"), partial(self.value, "about"))
            except PrivacyRefused as fault:
                self.refuse("about", fault)
            else:
                self.about = (head.about, said) if said != head.about else None
        for view, cut in head.views.items():
            try:
                now = cleaned_cut(cut, partial(self.clean, f"view {view}"))
            except PrivacyRefused as fault:
                self.refuse(f"view {view}", fault)
                continue
            if now != cut:
                self.views[view] = cut, now

    def clean(self, where: str, text: str, place: str) -> str:
        """Return a text without what is private, and note what that was."""
        cleaned: str = self.value(where, text, place)
        return cleaned

    def value(self, where: str, value: Any, place: str, *, numbered: bool = True) -> Any:
        """The same for a text, plain JSON, or a fact's value. What is not `numbered` has no pseudonyms of its own."""
        known = self._pseudonyms if numbered else None
        now, findings, new = self._redactor.afresh().checked(value, place, known)
        if numbered:
            self._pseudonyms = new
        if now is not value:
            self._note(where, findings, lambda _: (_shown(value), _shown(now)))
        return now

    def _note(self, where: int | str, findings: Sequence[Finding], texts: Callable[[str], tuple[str, str]]) -> None:
        places: dict[str, list[str]] = {}
        for found in findings:
            self.findings[found.kind, found.place] += found.count
            places.setdefault(found.place, []).append(found.kind)
        for place, kinds in places.items():
            kind = ", ".join(kinds)
            shown = _around(*texts(place))
            self.samples.setdefault((kind, place), []).append(Sample(self._session, where, kind, place, shown))

    def refuse(self, place: str, fault: PrivacyRefused) -> None:
        """Note what could not be checked."""
        self.refused.append(Unchecked(self._session, place, f"{fault.rule} could not be applied ({fault.kind})"))


class Redaction:
    """Puts what was found in place, as a `Rewrite`, in a session that is in the epoch in which it was looked at."""

    def __init__(self, key: SessionKey, epoch: int, found: Findings) -> None:
        self._key, self._epoch, self._found = key, epoch, found

    def head(self, head: Head) -> Head:
        """The head in a new epoch. Raises Conflict, and so undoes the step, where somebody else has begun one."""
        if head.epoch != self._epoch:
            raise Conflict(f"session {self._key.session!r}", f"is in epoch {head.epoch}, not {self._epoch}")
        views = dict(head.views)
        views |= {view: now for view, (was, now) in self._found.views.items() if views.get(view) == was}
        if self._found.about is not None and self._found.about[0] == head.about:
            head = _replace(head, about=self._found.about[1])
        return self._moved(head, self._found.entries.keys(), views)

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        """The head of another session, which has the entries `seqs`, in a new epoch.

        It knows the pseudonyms that these have from now on. Raises Conflict where it has given out one of them
        meanwhile, for something else.
        """
        given, own = self._found.given, head.pseudonyms
        if _clashes(given, own):
            raise Conflict(f"session {key.session!r}", "has given out pseudonyms meanwhile")
        numbers = {**own, **{name: max(number, own.get(name, 0)) for name, number in given.items()}}
        return _replace(self._moved(head, seqs, head.views), pseudonyms=numbers)

    def entry(self, entry: Entry) -> Entry:
        """The entry without what is private, where it is as it was looked at."""
        was, now = self._found.entries.get(entry.seq, (None, entry))
        return now if was is not None and _untold(was) == _untold(entry) else entry

    def record(self, record: Record) -> Record:
        """The record without what is private, where it is as it was looked at."""
        was, now = self._found.records.get(record.revision, (None, record))
        return now if was == record else record

    def _moved(self, head: Head, seqs: Collection[int], views: dict[str, Cut]) -> Head:
        named = {seq: self._found.entries[seq][1] for seq in seqs}
        contexts: dict[str, tuple[int, str]] = {}
        for name, (seq, mark) in sorted(head.contexts.items(), key=lambda known: known[1][0]):
            entry = named.get(seq)  # of two names that are alike now, the newer context is the version of today
            contexts[name if entry is None else entry.name or name] = seq, mark if entry is None else digest(entry.text)
        return _replace(
            head,
            revision=head.revision + 1,
            epoch=head.epoch + 1,
            epoch_reason=REASON,
            usage=outdated(head.usage),
            prompt=None,
            contexts=contexts if named else head.contexts,
            views={view: _fitting(cut, named, self._found.records) for view, cut in views.items()},
        )


def _clashes(numbers: Mapping[str, int], others: Mapping[str, int]) -> list[str]:
    """The names among `numbers` whose number stands for something else among `others`."""
    taken = {(_label(name), number): name for name, number in others.items()}
    return [name for name, number in numbers.items() if taken.get((_label(name), number), name) != name]


def _highest(numbers: Sequence[dict[str, int]]) -> dict[str, int]:
    """Stand-ins for all that others have given out: the highest number of each kind."""
    found: dict[str, int] = {}
    for name, number in (one for others in numbers for one in others.items()):
        reserved = f"{_label(name)}{RESERVED}"
        found[reserved] = max(found.get(reserved, 0), number)
    return found


def _label(name: str) -> str:
    """The kind of a pseudonym, by its name: see `Pseudonyms`."""
    return name.partition(":")[0]


# --- what becomes of the parts


def _fitting(cut: Cut, changed: Collection[int], records: Collection[int]) -> Cut:
    """The cut without what was reckoned of texts that are others now: they are clamped, and counted, anew."""
    clamps = tuple(clamp for clamp in cut.clamps if clamp.seq not in changed)
    shown = tuple(
        ShownSummary(one.revision, one.characters, one.tokens) if one.revision in records else one
        for one in cut.summaries
    )
    return cut if (clamps, shown) == (cut.clamps, cut.summaries) else _replace(cut, clamps=clamps, summaries=shown)


def _summary(record: Record) -> Summary | None:
    return record.compaction.summary if record.compaction is not None else None


def _untold(entry: Entry) -> Entry:
    """The entry without what its store keeps beside it."""
    return _replace(entry, tokens=None, lone=False)


def _messages(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Entries by the provider's message that they are of."""
    start = 0
    for i in range(1, len(entries) + 1):
        if i == len(entries) or not entries[i].continues:
            yield entries[start:i]
            start = i


# --- samples


def _at(was: Entry, now: Entry, place: str) -> tuple[str, str]:
    """What an entry said at a place, and what it says now."""
    if place in ("content", "arguments"):
        return _shown(was.content), _shown(now.content)
    return _shown(getattr(was, place)), _shown(getattr(now, place))


def _shown(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _around(was: str, now: str) -> str:
    """What stands now around the first place where two texts differ, cut short: nothing of it is from the first."""
    least = min(len(was), len(now))
    at = next((i for i in range(least) if was[i] != now[i]), least)
    begin = max(at - SAMPLE // 3, 0)
    end = min(begin + SAMPLE, len(now))
    return f"{'…' if begin else ''}{now[begin:end]}{'…' if end < len(now) else ''}"
