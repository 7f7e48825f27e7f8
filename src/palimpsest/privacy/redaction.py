"""`Redactor`: what of an entry may be kept. It refuses an entry rather than let anything pass that it could not check.

After a failure (a pattern that takes too long, a recogniser that raises) it tries twice more; then nothing is kept.
After ten such refusals in a row everything is refused at once; after five seconds one try decides whether that goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import msgspec

from palimpsest.errors import ConfigError, PrivacyRefused
from palimpsest.formats import known_format
from palimpsest.log.entry import Entry, Opaque
from palimpsest.privacy.cleaning import Cleaner, Finding, RuleFailed, Tally
from palimpsest.privacy.policy import Policy, load, rules_of
from palimpsest.privacy.pseudonyms import Numbering, Pseudonyms
from palimpsest.privacy.sealed import SIGNED, without_sealed_reasoning
from palimpsest.privacy.surfaces import Washer
from palimpsest.runtime.breaker import Breaker, Paused

T = TypeVar("T")

ATTEMPTS = 3
MOST_FAILURES, PAUSE_SECONDS = 10, 5.0

DEEPEST = 6
"""How deep the arguments of a verb are looked into for what says that it is withheld."""

_ANY = ("message", "context", "tool_call", "tool_result", "user", "assistant", "system", "tool")
ADDS: Mapping[str, Sequence[str]] = {
    "add_user_message": ("message", "user"),
    "add_assistant_message": ("message", "assistant"),
    "add_system_message": ("message", "system"),
    "add_context": ("context", "user"),
    "add_tool_call": ("tool_call", "assistant"),
    "add_tool_result": ("tool_result", "tool"),
    "resolve": ("tool_result", "tool"),
    **dict.fromkeys(("add", "add_entries", "replace", "import_session", "import_file"), _ANY),
}
"""By the name of a verb, kinds and roles of what it adds, or may add."""

_NO_PSEUDONYMS = Pseudonyms()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What of an entry may be kept.

    `entry` is the entry without what is private. If the entry is `withheld`, it is None, or for a tool result a stub
    that keeps its call answered. `findings` say what was found and where, never the text. `pseudonyms` are those given
    in, with the new ones.
    """

    entry: Entry | None
    withheld: bool = False
    findings: tuple[Finding, ...] = ()
    pseudonyms: Pseudonyms = _NO_PSEUDONYMS


class Redactor:
    """Applies one policy. Any thread may use it at any time; pure except for its count of failures.

    Args:
        policy: a `Policy`, a mapping with its fields, or a preset's name, "default" or "secrets"; None: nothing is
            redacted.
        key: the key from which pseudonyms are made: at least 16 bytes, and always the same one as long as their numbers
            are to mean the same. None if the policy asks for no pseudonyms.
        clock: a function that returns seconds.
        linear: whether patterns run in RE2 if it is installed; True by default.
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
        """Whether it gives out pseudonyms, whose numbers a session must then remember."""
        self._cleaner = Cleaner(self._rules, key, clock, linear=linear)
        self._clock = clock
        self._breaker = Breaker(MOST_FAILURES, PAUSE_SECONDS, clock)

    @classmethod
    def of(cls, given: object) -> Redactor:
        """Return the redactor for a policy `given` as an object, a mapping or a preset's name; a redactor is returned
        as it is.

        Raises ConfigError for anything else, and like `privacy.policy.load`.
        """
        if isinstance(given, Redactor):
            return given
        if not isinstance(given, Policy | Mapping | str):
            allowed = "a Policy, a mapping with its fields, a Redactor, or a preset's name such as 'default'"
            raise ConfigError("privacy", type(given).__name__, allowed)
        return cls(given)

    @staticmethod
    def pseudonyms(numbers: dict[str, int]) -> Pseudonyms:
        """Return the pseudonyms of a session, from the `numbers` in its head."""
        return Pseudonyms(numbers)

    def entry(self, entry: Entry, pseudonyms: Pseudonyms = _NO_PSEUDONYMS) -> Verdict:
        """Return the verdict on one `entry`, with its session's `pseudonyms`.

        Raises PrivacyRefused if it could not be checked.
        """
        return self.entries([entry], pseudonyms)[0]

    def entries(self, entries: Sequence[Entry], pseudonyms: Pseudonyms | None = _NO_PSEUDONYMS) -> tuple[Verdict, ...]:
        """Return the verdicts on `entries` that are added together, in the same order; the last one has all pseudonyms.

        Without `pseudonyms` (None) nothing is numbered, as in `text`. Entries of one provider's message are decided
        together: if something was found in signed reasoning, all signed reasoning of the message goes; and an entry
        that continued a withheld one begins the message. Raises PrivacyRefused if any entry could not be checked.
        """
        return self._guarded(lambda: self._verdicts(entries, pseudonyms))

    def text(self, text: str, pseudonyms: Pseudonyms | None = None) -> str:
        """Return a `text` without what is private: a summary, a fact, a line of a log.

        With `pseudonyms`, values that have a number get that, and new values get higher ones. Without them all values
        of a kind look alike (`[EMAIL]`). Raises PrivacyRefused.
        """
        return self._guarded(lambda: self._washer(pseudonyms).text(text))

    def checked(
        self, value: Any, place: str, pseudonyms: Pseudonyms | None
    ) -> tuple[Any, tuple[Finding, ...], Pseudonyms]:
        """Return a `value` cleaned as by `value`, what was found in it (at this `place`), and all `pseudonyms`."""

        def work() -> tuple[Any, tuple[Finding, ...], Pseudonyms]:
            tally = Tally(self._numbering(pseudonyms))
            tally.place = place
            cleaned = Washer(self._cleaner, tally).value(value, masks=True)
            return cleaned, tally.findings(), tally.numbering.pseudonyms

        return self._guarded(work)

    def afresh(self) -> Redactor:
        """Return a redactor with the same policy and key, and no failures counted."""
        other = copy(self)
        other._breaker = Breaker(MOST_FAILURES, PAUSE_SECONDS, self._clock)  # noqa: SLF001 (it is of this class)
        return other

    def value(self, value: Any) -> Any:
        """Return a `value` of plain JSON, or of a fact, without what is private at any depth, cleaned like metadata.

        Raises PrivacyRefused.
        """
        return self._guarded(lambda: self._washer(None).value(value, masks=True))

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `fields` of a log line or an event without what is private at any depth.

        Whatever the policy says, the value of a key that names a secret ("api key", "token", "password" …) is masked.
        Raises PrivacyRefused.
        """
        cleaned: dict[str, Any] = self._guarded(lambda: self._washer(None, strict=True).value(dict(fields), masks=True))
        return cleaned

    def withholds(self, kind: str) -> bool:
        """Return whether entries of this `kind` may not be kept, whatever else they are."""
        return kind.casefold() in self._rules.types

    def is_withheld(self, entry: Entry) -> bool:
        """Return whether `entry` is of a type that may not be kept.

        Its role, kind, `metadata.type` and tags say that, and so do type, tags and metadata of the mapping that it came
        as.
        """
        if not self._rules.types:
            return False
        return self._is_named([entry.role, entry.kind, *_types_of(entry.metadata)]) or self._is_marked(entry)

    @property
    def has_types(self) -> bool:
        """Whether there are types that may not be kept."""
        return bool(self._rules.types)

    def is_given_withheld(self, verb: str, args: Sequence[object], options: Mapping[str, object]) -> bool:
        """Return whether a `verb` of this name may be given, by `args` or `options`, what is of such a type."""
        try:
            return self._is_named(ADDS.get(verb, ())) or self._says([*args, *options.values()], DEEPEST)
        except Exception:  # noqa: BLE001 (a user's object may raise anything)
            return True

    def _says(self, value: Any, depth: int) -> bool:
        """Return whether a value, or one in it, says that it is of such a type."""
        if isinstance(value, Entry):
            return self.is_withheld(value)
        if not isinstance(value, Mapping | list | tuple):
            value = getattr(value, "__dict__", ())
        if depth == 0 or not value:
            return False
        if not isinstance(value, Mapping):
            return any(self._says(inner, depth - 1) for inner in value)
        names = [*_types_of(value), *_types_of(value.get("metadata")), value.get("role"), value.get("kind")]
        return self._is_named(names) or self._says(list(value.values()), depth - 1)

    def as_withheld(self, entry: Entry) -> Entry:
        """Return `entry` as one of a type that may not be kept, or unchanged if there is no such type."""
        if not self._rules.types or self.is_withheld(entry):
            return entry
        return msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), "type": min(self._rules.types)})

    def _is_marked(self, entry: Entry) -> bool:
        """Return whether the mapping that `entry` came as says that it is of such a type."""
        keep = entry.native.keep if entry.native is not None else None
        said: list[Mapping[str, Any]] = []
        if keep is not None:
            said = [
                keep,
                *(one for one in keep.values() if isinstance(one, Mapping)),
            ]  # as some formats have the message
        if not isinstance(entry.content, str):  # a format keeps an item of a type that it does not know as it is
            said += [part.item for part in entry.content if isinstance(part, Opaque) and isinstance(part.item, Mapping)]
        return bool(said) and self._is_named(
            [name for one in said for name in (*_types_of(one), *_types_of(one.get("metadata")))]
        )

    def _is_named(self, names: Sequence[object]) -> bool:
        """Return whether one of `names` is a type that may not be kept."""
        return any(isinstance(name, str) and name.casefold() in self._rules.types for name in names)

    def _verdicts(self, entries: Sequence[Entry], pseudonyms: Pseudonyms | None) -> tuple[Verdict, ...]:
        """Return the verdicts on entries that are added together. Raises RuleFailed."""
        tally = Tally(self._numbering(pseudonyms))
        washer = Washer(self._cleaner, tally)
        verdicts: list[Verdict] = []
        types, redacts, touched, marked = self._rules.types, self._rules.redacts, False, False
        for entry in entries:
            marked = bool(types) and (self._is_marked(entry) or (marked and entry.continues))
            withheld = bool(types) and (marked or self.is_withheld(entry))
            kept = self._stub(entry) if withheld else washer.entry(entry) if redacts else entry
            if kept is entry and not tally.count:  # true of nearly all entries
                tally.forget()
                verdicts.append(Verdict(entry=entry, pseudonyms=tally.numbering.pseudonyms))
                continue
            touched = True
            findings = tally.findings()
            verdicts.append(
                Verdict(entry=kept, withheld=withheld, findings=findings, pseudonyms=tally.numbering.pseudonyms)
            )
        return _together(entries, verdicts) if touched else tuple(verdicts)

    def _stub(self, entry: Entry) -> Entry | None:
        if entry.kind != "tool_result":
            return None
        string = self._rules.redaction_string
        return msgspec.structs.replace(entry, content=string, metadata=None, native=None, tokens=None)

    def _washer(self, pseudonyms: Pseudonyms | None, *, strict: bool = False) -> Washer:
        return Washer(self._cleaner, Tally(self._numbering(pseudonyms)), strict=strict)

    def _numbering(self, pseudonyms: Pseudonyms | None) -> Numbering:
        return Numbering(_NO_PSEUDONYMS, None) if pseudonyms is None else self._cleaner.numbering(pseudonyms)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, tried up to `ATTEMPTS` times. Raises PrivacyRefused if it fails, or is paused."""
        try:
            probe = self._breaker.admit()
        except Paused as paused:
            again = (
                f"in {paused.seconds:.1f} s"
                if paused.seconds
                else "as soon as another call that tries it has succeeded"
            )
            why = f"it failed {MOST_FAILURES} times in a row, and is tried again {again}"
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
        assert failed is not None, "otherwise the result was returned"
        raise PrivacyRefused(failed.rule, failed.kind, failed.why)  # without a cause, whose frames would hold the text


def _types_of(metadata: object) -> list[object]:
    """Return the types and tags that metadata, or a message, have."""
    if not isinstance(metadata, Mapping):
        return []
    tags = metadata.get("tags")
    return [metadata.get("type"), *(tags if isinstance(tags, list) else [tags])]


def _together(entries: Sequence[Entry], verdicts: list[Verdict]) -> tuple[Verdict, ...]:
    """Settle what entries of one message decide for each other.

    An entry that `continues` belongs to the one before it.
    """
    settled: list[Verdict] = []
    for i, (entry, verdict) in enumerate(zip(entries, verdicts, strict=True)):
        if not entry.continues or i == 0:
            message = _message_at(entries, i)
            sealed = any(finding.kind == SIGNED for other in verdicts[message] for finding in other.findings)
            begun = entry.continues
        kept = verdict.entry
        if kept is not None:
            if sealed and _signs_together(kept):
                kept = without_sealed_reasoning(kept)
            if kept.continues and not begun:
                kept = msgspec.structs.replace(kept, continues=False)
            begun = True
        settled.append(verdict if kept is verdict.entry else msgspec.structs.replace(verdict, entry=kept))
    return tuple(settled)


def _signs_together(entry: Entry) -> bool:
    """Return whether the entry's provider accepts only all or none of the signed reasoning of a message."""
    format = known_format(entry.native.format) if entry.native is not None else None
    return format is not None and format.signs_together


def _message_at(entries: Sequence[Entry], start: int) -> slice:
    """Return the slice of the message that begins at `start`."""
    end = start + 1
    while end < len(entries) and entries[end].continues:
        end += 1
    return slice(start, end)
