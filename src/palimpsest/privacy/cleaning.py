"""Clean one text: run the patterns in order, then the recognisers, until nothing more is found. Pure except for the
clock.

A stand-in, the text that replaces something redacted, is left alone by matches inside it; a match that reaches beyond
it is replaced as a whole. So cleaning a cleaned text changes nothing, and the rounds check that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, SupportsIndex

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.errors.secret import Secret
from palimpsest.privacy import Span
from palimpsest.privacy.patterns import Matcher, Places, allowed_seconds, compiled
from palimpsest.privacy.policy import Rules, Use
from palimpsest.privacy.pseudonyms import MIN_KEY, Numbering, Pseudonyms, label_of
from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.privacy.recognisers.labels import recognisers_of
from palimpsest.privacy.recognisers.prefilter import Prefilter
from palimpsest.privacy.recognisers.scanning import Scan, softened
from palimpsest.privacy.replacing import replaced

MOST_ROUNDS = 8
"""How many rounds a text gets. Two are usual; a pattern that needs more matches what it leaves."""

MOST_KEYS = 4096
"""How many keys of mappings are remembered as clean."""

_PSEUDONYM = re.compile(r"\[([A-Z0-9]+(?:_[A-Z0-9]+)*?)(?:_([1-9][0-9]{0,8}|[1-9][0-9]{19}))?\]")


class Finding(msgspec.Struct, frozen=True):
    """How often something of a `kind` ("email", "redact_patterns[0]") was found at a `place` ("content", "metadata").

    It never has the text that was found.
    """

    kind: str
    place: str
    count: int


class RuleFailed(Exception):
    """A rule could not be applied. Holds nothing of the text."""

    def __init__(self, rule: str, kind: Literal["timeout", "error", "unstable"], why: str) -> None:
        self.rule, self.kind, self.why = rule, kind, why
        super().__init__(why)


class Tally:
    """Counts findings and seconds spent while one entry is cleaned, or the entries of a batch one after the other."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.place = ""
        self.count = 0
        """How many findings the entry has so far."""
        self._found: dict[tuple[str, str], int] = {}
        self._characters = 0
        self._spent: dict[int, float] = {}

    def note(self, kind: str, count: int = 1) -> None:
        """Count something found at the current place."""
        name = (kind, self.place)
        self._found[name] = self._found.get(name, 0) + count
        self.count += count

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings since the last call, and start with the next entry."""
        findings = tuple([Finding(kind, place, count) for (kind, place), count in self._found.items()])
        self._found.clear()
        self.count = 0
        self.forget()
        return findings

    def forget(self) -> None:
        """Start with the next entry."""
        self._spent.clear()
        self._characters = 0

    def begin(self, characters: int) -> None:
        """Count the characters of the next text of the entry."""
        self._characters += characters

    def seconds_left(self, rule: int) -> float:
        """Return how long a pattern may still take for this entry."""
        return allowed_seconds(self._characters) - self._spent.get(rule, 0.0)

    def spend(self, rule: int, seconds: float) -> None:
        """Add to the time that a pattern has taken for this entry."""
        self._spent[rule] = self._spent.get(rule, 0.0) + seconds


class Cleaner:
    """Cleans texts by the rules of one policy. Any thread may use it at any time.

    `clock` returns seconds; `key` is for pseudonyms, at least 16 bytes. With `linear` False RE2 is not used.
    """

    def __init__(self, rules: Rules, key: bytes | None, clock: Callable[[], float], *, linear: bool = True) -> None:
        self.redaction_string = rules.redaction_string
        self.uses = rules.uses
        self._clock = clock
        self._key = Secret(key) if isinstance(key, bytes) else None
        self._patterns: list[tuple[Matcher, str]] = [
            (
                compiled(pattern.pattern, f"redact_patterns[{i}]", linear=linear),
                pattern.redaction_string or rules.redaction_string,
            )
            for i, pattern in enumerate(rules.patterns)
        ]
        numbered = [use for use in rules.uses if use.pseudonym]
        if numbered and (not isinstance(key, bytes) or len(key) < MIN_KEY):
            given = (
                "no key" if key is None else "a key of " + ("few bytes" if isinstance(key, bytes) else "another type")
            )
            allowed = f"at least {MIN_KEY} bytes, of type bytes, for the pseudonyms: Redactor(policy, key=…)"
            raise ConfigError("key", given, allowed)
        strings = {string for _, string in self._patterns} | {rules.redaction_string}
        strings |= {use.redaction_string for use in rules.uses if use.redaction_string is not None}
        self._labels = frozenset(label_of(use.name) for use in numbered)
        self._stand_ins = re.compile("|".join(map(re.escape, sorted(strings, key=len, reverse=True))))
        self._prefilter = Prefilter(rules.uses, linear=linear)
        self.names_secrets = any(use.name == "credential" for use in rules.uses)
        """Whether the value of a key that names a secret is masked wherever it stands."""
        self._only_built_in = all(use.find is None for use in rules.uses)
        self._clean_keys: set[str] = set()

    @property
    def looks_at_numbers(self) -> bool:
        """Whether even a short number may be private."""
        return bool(self._patterns) or not self._only_built_in

    def mask(self, value: str, tally: Tally) -> str:
        """Return the stand-in for a value that is private because of its key."""
        tally.note("credential")
        use = next((use for use in self.uses if use.name == "credential"), None)
        if use is not None and use.pseudonym:
            return tally.numbering.stand_in("credential", value)
        return (use and use.redaction_string) or self.redaction_string

    def numbering(self, pseudonyms: Pseudonyms) -> Numbering:
        """Begin a numbering that goes on from a session's pseudonyms."""
        return Numbering(pseudonyms, self._key)

    def is_stand_in(self, text: str, tally: Tally) -> bool:
        """Return whether the text is nothing but a stand-in."""
        return self._protected(text, tally.numbering) == [(0, len(text))]

    def clean_key(self, key: str, tally: Tally) -> str:
        """Return a key of a mapping, cleaned. Programs use few keys, so clean ones are remembered.

        None is remembered if a recogniser of the user's own is in use, since it may know more by the next time.
        """
        if key in self._clean_keys:
            return key
        cleaned = self.clean(key, tally)
        if cleaned == key and self._only_built_in and len(self._clean_keys) < MOST_KEYS:
            self._clean_keys.add(key)
        return cleaned

    def clean(self, text: str, tally: Tally) -> str:
        """Return the text without what is private. Raises RuleFailed if a rule cannot be applied to it."""
        tally.begin(len(text))
        for _ in range(MOST_ROUNDS):
            cleaned = self._without_matches(text, tally) if self._patterns else text
            cleaned = self._without_recognised(cleaned, tally)
            if cleaned is text or cleaned == text:
                return text
            text = cleaned
        raise RuleFailed(
            "redact_patterns", "unstable", f"after {MOST_ROUNDS} rounds they still match in the redacted text"
        )

    def _without_matches(self, text: str, tally: Tally) -> str:
        """Return the text with the matches of the patterns replaced. Raises RuleFailed."""
        for i, (matcher, string) in enumerate(self._patterns):
            start, seconds, soft = self._clock(), tally.seconds_left(i), softened(text)
            try:
                places = matcher.find(text, seconds)
                if soft is not text:  # a piece of JSON text has escapes, too, which must not hide a match
                    places = _joined([*places, *matcher.find(soft, seconds)])
            except TimeoutError:
                places = None
            if places is None:  # raised outside of the block above, whose traceback would hold the text
                raise RuleFailed(f"redact_patterns[{i}]", "timeout", "it took too long for the given text")
            if not matcher.linear:
                tally.spend(i, self._clock() - start)
            outside = self._outside(text, places, tally.numbering) if places else places
            if outside:
                tally.note(f"redact_patterns[{i}]", len(outside))
                text = replaced(text, [(start, end, string) for start, end in outside])
        return text

    def _without_recognised(self, text: str, tally: Tally) -> str:
        """Return the text with what the recognisers find replaced. Raises RuleFailed."""
        if not self.uses or not text:
            return text
        scan, uses = self._prefilter.candidates(text)
        if scan is None or not uses:
            return text
        spans = [(span, use) for use in uses for span in self._spans_of(use, scan)]
        return self._without(text, spans, tally) if spans else text

    def clean_under(self, key: str, text: str, tally: Tally) -> str:
        """Return the text of a value in JSON, cleaned as if its key stood before it: `phone: 5551234`.

        Raises RuleFailed.
        """
        names = recognisers_of(key)
        uses = [use for use in self.uses if use.find is None and use.name in names] if names else []
        if not uses:
            return text
        tally.begin(len(text))
        label = f"{key}: "
        scan, size = Scan(f"{label}{text}"), len(label)
        found = [(span, use) for use in uses for span in self._spans_of(use, scan) if span.start >= size]
        spans = [(Span(span.start - size, span.end - size, span.kind), use) for span, use in found]
        return self._without(text, spans, tally) if spans else text

    def _without(self, text: str, spans: Sequence[tuple[Span, Use]], tally: Tally) -> str:
        """Return the text with the spans replaced, except those inside of a stand-in."""
        outside = set(self._outside(text, [(span.start, span.end) for span, _ in spans], tally.numbering))
        merged = _merged((span, use) for span, use in spans if (span.start, span.end) in outside)
        for span, _ in merged:
            tally.note(span.kind)
        return replaced(text, [(span.start, span.end, self._stand_in(text, span, use, tally)) for span, use in merged])

    def _spans_of(self, use: Use, scan: Scan) -> list[Span]:
        """Return what a recogniser finds in a text. Raises RuleFailed if the recogniser fails."""
        size = len(scan.text)
        try:
            if use.find is None:
                return list(BUILT_IN[use.name].find(scan))
            given = use.find(scan.text)
            spans = _spans(given, size)
            why = "it did not return a list of spans of the text"
        except Exception as error:  # noqa: BLE001 (whatever a recogniser raises: nothing was checked)
            spans, why = None, f"it raised {type(error).__name__}"
        if spans is None:  # raised outside of the block above, because the user's error may hold the text
            raise RuleFailed(f"recognisers.{use.name}", "error", why)
        return [span for span in spans if span.start < span.end]

    def _stand_in(self, text: str, span: Span, use: Use, tally: Tally) -> str:
        if use.pseudonym:
            return tally.numbering.stand_in(span.kind, text[span.start : span.end])
        return use.redaction_string or self.redaction_string

    def _outside(self, text: str, places: Places, numbering: Numbering) -> Places:
        """Return the places that are not wholly inside a stand-in."""
        stand_ins = self._protected(text, numbering)
        if not stand_ins:
            return places
        outside, i = [], 0
        for start, end in sorted(places):
            while i < len(stand_ins) and stand_ins[i][1] <= start:
                i += 1
            if i == len(stand_ins) or start < stand_ins[i][0] or end > stand_ins[i][1]:
                outside.append((start, end))
        return outside

    def _protected(self, text: str, numbering: Numbering) -> Places:
        """Return where stand-ins are, in order; those that touch count as one."""
        places = [match.span() for match in self._stand_ins.finditer(text)]
        if self._labels:
            places += [match.span() for match in _PSEUDONYM.finditer(text) if self._is_given(match, numbering)]
        return _joined(places, touching=True)

    def _is_given(self, match: re.Match[str], numbering: Numbering) -> bool:
        """Return whether this pseudonym was given out. Text that only looks like one is cleaned like any other."""
        label, number = match.groups()
        return label in self._labels if number is None else numbering.is_given(label, int(number))


def _joined(places: Places, *, touching: bool = False) -> Places:
    """Return the places in order, with overlapping ones merged; with `touching` those that touch, too."""
    joined: Places = []
    for start, end in sorted(places):
        if joined and (start < joined[-1][1] or (touching and start == joined[-1][1])):
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _spans(given: object, size: int) -> list[Span] | None:
    """Return the result of a user's recogniser, checked; None if it is no list of spans of a text of this `size`."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return None
    spans = []
    for item in given:
        if not isinstance(item, tuple | list) or len(item) != 3:  # start, end and kind
            return None
        start, end, kind = item
        if not (isinstance(start, SupportsIndex) and isinstance(end, SupportsIndex) and isinstance(kind, str)):
            return None
        if not 0 <= start.__index__() <= end.__index__() <= size:
            return None
        spans.append(Span(start.__index__(), end.__index__(), kind))
    return spans


def _merged(found: Iterable[tuple[Span, Use]]) -> list[tuple[Span, Use]]:
    """Return the spans in order, with overlapping ones merged.

    The longest decides the kind, of equal ones the first.
    """
    merged: list[tuple[Span, Use]] = []
    longest = 0
    for span, use in sorted(found, key=lambda pair: (pair[0].start, -pair[0].end)):
        size = span.end - span.start
        if not merged or span.start >= merged[-1][0].end:
            merged.append((span, use))
            longest = size
            continue
        last, kept = merged[-1]
        if size > longest:
            longest, kept, kind = size, use, span.kind
        else:
            kind = last.kind
        merged[-1] = (Span(last.start, max(last.end, span.end), kind), kept)
    return merged
