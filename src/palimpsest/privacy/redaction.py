"""`Redactor`: what of an entry may be kept. It refuses rather than let anything pass that it could not check.

A failure (a pattern that takes too long, a recogniser that raises) is tried twice more; then nothing is kept. After ten
such refusals in a row everything is refused at once; after five seconds one try decides whether that goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import msgspec

from palimpsest.errors import ConfigError, PrivacyRefused
from palimpsest.formats import known_format
from palimpsest.log.entry import Entry
from palimpsest.privacy.cleaning import Cleaner, Finding, RuleFailed, Tally
from palimpsest.privacy.policy import Policy, load, rules_of
from palimpsest.privacy.pseudonyms import Numbering, Pseudonyms
from palimpsest.privacy.surfaces import SIGNED, Washer, without_sealed_reasoning
from palimpsest.runtime.breaker import Breaker, Paused

T = TypeVar("T")

ATTEMPTS = 3
MOST_FAILURES, PAUSE_SECONDS = 10, 5.0

_NO_PSEUDONYMS = Pseudonyms()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What of an entry may be kept.

    `entry` is it without what is private. Of an entry that is `withheld` it is None, or, for a tool's result, a stub
    that keeps its call answered. `findings` say what was found and where, never the text. `pseudonyms` are those that
    went in with what is new.
    """

    entry: Entry | None
    withheld: bool = False
    findings: tuple[Finding, ...] = ()
    pseudonyms: Pseudonyms = _NO_PSEUDONYMS


class Redactor:
    """Applies one policy. Any thread may use it at any time; pure but for the count of its failures.

    Args:
        policy: a `Policy`, a mapping with its fields, or a preset's name, "default" or "secrets"; None: nothing is
            redacted.
        key: what pseudonyms are made with: 16 bytes at least, the same for as long as their numbers are to mean the
            same. None where
            the policy asks for no pseudonyms.
        clock: a function that returns seconds.
        linear: whether patterns run in RE2 where it is installed; True by default.
    """

    def __init__(
        self,
        policy: Policy | Mapping[str, Any] | str | None,
        *,
        key: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
        linear: bool = True,
    ) -> None:
        self.policy = load(policy)
        self._rules = rules_of(self.policy)
        self.numbers = any(use.pseudonym for use in self._rules.uses)
        """Whether it gives out pseudonyms, so that a session has to remember their numbers."""
        self._cleaner = Cleaner(self._rules, key, clock, linear=linear)
        self._clock = clock
        self._breaker = Breaker(MOST_FAILURES, PAUSE_SECONDS, clock)

    @classmethod
    def of(cls, given: object) -> Redactor:
        """Return what applies a policy, as it is `given`: an object, a mapping, a preset's name; or a redactor, as it
        is.

        Raises ConfigError for anything else, and as `privacy.policy.load` does.
        """
        if isinstance(given, Redactor):
            return given
        if not isinstance(given, Policy | Mapping | str):
            allowed = "a Policy, a mapping with its fields, a Redactor, or a preset's name such as 'default'"
            raise ConfigError("privacy", type(given).__name__, allowed)
        return cls(given)

    @staticmethod
    def pseudonyms(numbers: dict[str, int]) -> Pseudonyms:
        """Return the pseudonyms of a session, whose `numbers` its head has."""
        return Pseudonyms(numbers)

    def entry(self, entry: Entry, pseudonyms: Pseudonyms = _NO_PSEUDONYMS) -> Verdict:
        """Return the verdict on one `entry`; `pseudonyms` are its session's. Raises PrivacyRefused where it could not
        be checked.
        """
        return self.entries([entry], pseudonyms)[0]

    def entries(self, entries: Sequence[Entry], pseudonyms: Pseudonyms | None = _NO_PSEUDONYMS) -> tuple[Verdict, ...]:
        """Return the verdicts on `entries` that are added together, in place; the last has all pseudonyms.

        Without `pseudonyms` (None) nothing is numbered, as in `text`. What belongs to one message of a provider is
        decided together: signed reasoning goes with other signed reasoning in which something was found, and what
        continued an entry that is withheld begins the message. Raises PrivacyRefused where one of them could not be
        checked.
        """
        return self._guarded(lambda: self._verdicts(entries, pseudonyms))

    def text(self, text: str, pseudonyms: Pseudonyms | None = None) -> str:
        """Return a `text` without what is private: a summary, a fact, a line of a log.

        Values that have a number in `pseudonyms` get it and new ones one behind those; without `pseudonyms` all of a
        kind look alike (`[EMAIL]`). Raises PrivacyRefused.
        """
        return self._guarded(lambda: self._washer(pseudonyms).text(text))

    def checked(
        self, value: Any, place: str, pseudonyms: Pseudonyms | None
    ) -> tuple[Any, tuple[Finding, ...], Pseudonyms]:
        """Return a `value` as the verb `value` does, what was found in it, at this `place`, and all `pseudonyms`."""

        def work() -> tuple[Any, tuple[Finding, ...], Pseudonyms]:
            tally = Tally(self._numbering(pseudonyms))
            tally.place = place
            now = Washer(self._cleaner, tally).value(value, masks=True)
            return now, tally.findings(), tally.numbering.pseudonyms

        return self._guarded(work)

    def afresh(self) -> Redactor:
        """Return one of the same policy and key that has not failed yet."""
        other = copy(self)
        other._breaker = Breaker(MOST_FAILURES, PAUSE_SECONDS, self._clock)  # noqa: SLF001 (it is of this class)
        return other

    def value(self, value: Any) -> Any:
        """Return a `value` of plain JSON, or of what a fact may be, without what is private, at any depth, as metadata
        are cleaned. Raises PrivacyRefused.
        """
        return self._guarded(lambda: self._washer(None).value(value, masks=True))

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `fields` of a log line or an event without what is private, at any depth.

        Whatever the policy says, the value of a key that names a secret ("api key", "token", "password" …) is masked.
        Raises PrivacyRefused.
        """
        found: dict[str, Any] = self._guarded(lambda: self._washer(None).value(dict(fields), masks=True))
        return found

    def withholds(self, kind: str) -> bool:
        """Whether entries of this `kind` may not be kept, whatever else they are."""
        return kind.casefold() in self._rules.types

    def is_withheld(self, entry: Entry) -> bool:
        """Whether `entry` is of a type that may not be kept, by its role, kind, `metadata.type` or a tag."""
        types = self._rules.types
        if not types:
            return False
        metadata = entry.metadata or {}
        tags = metadata.get("tags")
        names = [entry.role, entry.kind, metadata.get("type"), *(tags if isinstance(tags, list) else [tags])]
        return any(isinstance(name, str) and name.casefold() in types for name in names)

    def _verdicts(self, entries: Sequence[Entry], pseudonyms: Pseudonyms | None) -> tuple[Verdict, ...]:
        tally = Tally(self._numbering(pseudonyms))
        washer = Washer(self._cleaner, tally)
        verdicts: list[Verdict] = []
        types, redacts, touched = self._rules.types, self._rules.redacts, False
        for entry in entries:
            withheld = bool(types) and self.is_withheld(entry)
            kept = self._stub(entry) if withheld else washer.entry(entry) if redacts else entry
            if kept is entry and not tally.count:  # as nearly all are
                tally.forget()
                verdicts.append(Verdict(entry=entry, pseudonyms=tally.numbering.pseudonyms))
                continue
            touched = True
            found = tally.findings()
            verdicts.append(
                Verdict(entry=kept, withheld=withheld, findings=found, pseudonyms=tally.numbering.pseudonyms)
            )
        return _together(entries, verdicts) if touched else tuple(verdicts)

    def _stub(self, entry: Entry) -> Entry | None:
        if entry.kind != "tool_result":
            return None
        string = self._rules.redaction_string
        return msgspec.structs.replace(entry, content=string, metadata=None, native=None, tokens=None)

    def _washer(self, pseudonyms: Pseudonyms | None) -> Washer:
        return Washer(self._cleaner, Tally(self._numbering(pseudonyms)))

    def _numbering(self, pseudonyms: Pseudonyms | None) -> Numbering:
        return Numbering(_NO_PSEUDONYMS, None) if pseudonyms is None else self._cleaner.numbering(pseudonyms)

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            probe = self._breaker.admit()
        except Paused as paused:
            again = f"in {paused.seconds:.1f} s" if paused.seconds else "when a first try has gone through"
            why = f"it failed {MOST_FAILURES} times in a row; it is tried again {again}"
            raise PrivacyRefused("privacy_policy", "paused", why) from None
        failed: RuleFailed | None = None
        try:
            for _ in range(ATTEMPTS):
                try:
                    result = work()
                except RuleFailed as fault:
                    failed = fault
                else:
                    failed = None
                    return result
        finally:
            self._breaker.report(failed is None, probe=probe)
        assert failed is not None, "else the result was returned"
        raise PrivacyRefused(failed.rule, failed.kind, failed.why)  # without its cause, whose frames hold the text


def _together(entries: Sequence[Entry], verdicts: list[Verdict]) -> tuple[Verdict, ...]:
    """Settle what entries of one message decide for each other. An entry that `continues` is of the one before."""
    done: list[Verdict] = []
    for i, (entry, verdict) in enumerate(zip(entries, verdicts, strict=True)):
        if not entry.continues or i == 0:
            message = _message_at(entries, i)
            sealed = any(found.kind == SIGNED for one in verdicts[message] for found in one.findings)
            begun = entry.continues
        kept = verdict.entry
        if kept is not None:
            if sealed and _signs_together(kept):
                kept = without_sealed_reasoning(kept)
            if kept.continues and not begun:
                kept = msgspec.structs.replace(kept, continues=False)
            begun = True
        done.append(verdict if kept is verdict.entry else msgspec.structs.replace(verdict, entry=kept))
    return tuple(done)


def _signs_together(entry: Entry) -> bool:
    """Whether the entry's provider takes all signed reasoning of a message or none."""
    format = known_format(entry.native.format) if entry.native is not None else None
    return format is not None and format.signs_together


def _message_at(entries: Sequence[Entry], start: int) -> slice:
    """Where the message is that begins at `start`."""
    end = start + 1
    while end < len(entries) and entries[end].continues:
        end += 1
    return slice(start, end)
