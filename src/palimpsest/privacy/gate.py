"""Admission: the step that everything passes before it is stored, counted, sent to a summarizer or shown in an error.

A `Gate` adds to the pure `privacy.redaction.Redactor` what needs a store or other code: a session's pseudonyms are kept
in its head, and an error raised on the way quotes nothing private either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec

from palimpsest.errors import ConfigError, Conflict, PrivacyRefused, WrongUser
from palimpsest.log.change import Change, Record
from palimpsest.log.checks import TITLE, check_descriptors, checked_about
from palimpsest.log.entry import Entry, Reasoning, Text
from palimpsest.log.head import About, Head, SessionKey
from palimpsest.log.summary import Summary
from palimpsest.log.values import plain_text
from palimpsest.log.withdrawal import forgotten, tombstone
from palimpsest.privacy.records import cleaned_attempts, cleaned_cut, cleaned_record, cleaned_summary
from palimpsest.runtime.hushing import COROUTINE, Hushed

if TYPE_CHECKING:
    from palimpsest.privacy.pseudonyms import Pseudonyms
    from palimpsest.privacy.redaction import Redactor, Verdict
    from palimpsest.runtime.threaded import OneAtATime

T = TypeVar("T")

LONG = 64 * 1024
"""A batch of more characters than this is checked in a thread, if an event loop would have to wait otherwise."""

UNCHECKED = "[withheld: it could not be checked for what is private]"
"""Stands in for a text of an error or a log line that could not be checked."""


class HeadStore(Protocol):
    """The part of a store that a session's pseudonyms need: reading its head, and committing a change to it."""

    async def head(self, key: SessionKey) -> Head | None:
        """Return the session's head, or None for a session that does not exist."""
        ...

    async def commit(self, key: SessionKey, change: Change, *, expect_revision: int | None = None) -> Head:
        """Commit one change and return the new head. Raises Conflict."""
        ...


class Admitted(msgspec.Struct, frozen=True):
    """One entry of a batch: what of it is stored (None: nothing), and what this process may use instead of that.

    `redacted` says that private text was found in it, or that it is withheld.
    """

    kept: Entry | None
    own: Entry | None = None
    redacted: bool = False


class Gate:
    """Decides what a memory may store. Without a redactor everything is admitted unchanged."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.redactor = redactor
        self.withholding = redactor.is_given_withheld if redactor is not None and redactor.has_types else None
        """Whether a verb is given something that is withheld, by its name and arguments; None if nothing ever is."""
        self.outside: Callable[..., Awaitable[Any]] | None = None
        """Runs a function in a thread beside the event loop; None if there is no loop."""
        self.opening: OneAtATime | None = None
        """Opens the store before the first verb; None if it is open."""

    async def opened(self) -> None:
        """Open the store if it is not open yet."""
        if self.opening is not None:
            await self.opening()

    async def entries(
        self, store: HeadStore, key: SessionKey, entries: Sequence[Entry], about: About | None = None
    ) -> list[Admitted]:
        """Return what may be stored of entries that are added together, in the same order.

        When this returns, new pseudonyms are in the session's head; if that write makes the session, `about` is in it,
        too. Raises PrivacyRefused, for all of the entries, and WrongUser if the session belongs to another user.
        """
        redactor = self.redactor
        if redactor is None:
            return [Admitted(entry) for entry in entries]
        verdicts = await (
            self._numbered_verdicts(store, key, entries, about) if redactor.numbers else self._verdicts(entries)
        )
        return [
            Admitted(verdict.entry, given if verdict.withheld else None, verdict.withheld or bool(verdict.findings))
            for verdict, given in zip(verdicts, entries, strict=True)
        ]

    def as_withheld(self, entry: Entry) -> Entry:
        """Return the entry as one that is withheld, whatever it says of itself."""
        return entry if self.redactor is None else self.redactor.as_withheld(entry)

    async def _numbered_verdicts(
        self, store: HeadStore, key: SessionKey, entries: Sequence[Entry], about: About | None
    ) -> Sequence[Verdict]:
        """Return the verdicts on entries, once their pseudonyms are in the session's head."""
        redactor = self.redactor
        assert redactor is not None, "called only with a redactor"
        while True:
            head = await store.head(key) or Head()
            verdicts = await self._verdicts(entries, redactor.pseudonyms(head.pseudonyms))
            numbers = verdicts[-1].pseudonyms.numbers
            if numbers == head.pseudonyms:
                return verdicts
            before = head.pseudonyms
            # Once another writer has given out numbers, perhaps the same ones, start again.
            while head.pseudonyms == before:
                change = _numbers(key, head, numbers, about)
                try:
                    await store.commit(key, change, expect_revision=head.revision)
                    return verdicts
                except Conflict:
                    head = await store.head(key) or Head()

    async def _verdicts(self, entries: Sequence[Entry], *pseudonyms: Pseudonyms) -> Sequence[Verdict]:
        """Return the redactor's verdicts, worked out in a thread if that may take long and an event loop would wait."""
        assert self.redactor is not None, "called only with a redactor"
        if self.outside is None or sum(map(_length, entries)) < LONG:
            return self.redactor.entries(entries, *pseudonyms)
        verdicts: Sequence[Verdict] = await self.outside(self.redactor.entries, entries, *pseudonyms)
        return verdicts

    def session(
        self, entries: Sequence[Entry], records: Sequence[Record], head: Head
    ) -> tuple[list[Entry], list[Record], dict[str, int]]:
        """Return entries, records and pseudonyms of a whole session as they may be kept.

        A withheld entry becomes a tombstone, and summaries that cover it go, too. Of `head`, the session's head before
        this, the pseudonyms and the revision of its compaction are used. Raises PrivacyRefused.
        """
        if self.redactor is None:
            return list(entries), list(records), head.pseudonyms
        present = [entry for entry in entries if entry.is_there]
        verdicts = self.redactor.entries(present, self.redactor.pseudonyms(head.pseudonyms))
        kept = {old.seq: new.entry or tombstone(old) for old, new in zip(present, verdicts, strict=True)}
        gone = [seq for seq, entry in kept.items() if not entry.is_there]
        if self.withholds("summary"):  # every summary goes, and the entries that it covers become active again
            summaries = [record.compaction.summary for record in records if record.compaction is not None]
            covered = [span for summary in summaries if summary is not None for span in summary.covers]
            gone += [seq for low, high in covered for seq in range(low, high + 1)]
        cleaned = {record.revision: self.record(record) for record in records}
        cleaned |= {record.revision: record for record in forgotten(cleaned.values(), head, gone)[0]} if gone else {}
        numbers = verdicts[-1].pseudonyms.numbers if verdicts else head.pseudonyms
        return [kept.get(entry.seq, entry) for entry in entries], list(cleaned.values()), numbers

    def shown(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return stored entries as they may leave this process, in the same order: they may be older than the policy.

        A withheld entry becomes a tombstone. No new pseudonym numbers are given out.
        """
        present = [entry for entry in entries if entry.is_there]
        if self.redactor is None or not present:
            return list(entries)
        verdicts = iter(self.redactor.entries(present, None))
        return [next(verdicts).entry or tombstone(entry) if entry.is_there else entry for entry in entries]

    def record(self, record: Record) -> Record:
        """Return a record without what is private in any of its texts. Raises PrivacyRefused."""
        return record if self.redactor is None else cleaned_record(record, self._clean)

    def head(self, head: Head) -> Head:
        """Return a head without what is private in anything that an export shows of it. Raises PrivacyRefused."""
        if self.redactor is None:
            return head
        views = {self.text(view): cleaned_cut(cut, self._clean) for view, cut in head.views.items()}
        attempts = cleaned_attempts(head.attempts, self._clean)
        reason, about = self.text(head.epoch_reason), self.about(head.about)
        return msgspec.structs.replace(head, views=views, attempts=attempts, epoch_reason=reason, about=about)

    def about(self, about: About | None) -> About | None:
        """Return what is said of a session without what is private, and without a user whose id is private.

        Raises PrivacyRefused.
        """
        if self.redactor is None or about is None:
            return about
        user = about.user if about.user is not None and self.text(about.user) == about.user else None
        title = about.title and self.text(about.title)
        return msgspec.structs.replace(about, user=user, title=title, metadata=self.value(about.metadata))

    def admit_about(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a caller says of a session, any fields of `About`, as it may be kept.

        Raises ConfigError for what is not accepted, and for a user id that holds something private.
        """
        fields = checked_about(given)
        if self.redactor is None:
            return fields
        if fields.get("user") is not None:
            self.refuse([fields["user"]], "user", "; give users ids that say nothing about them")
        if fields.get("title") is not None:
            fields["title"] = self.text(fields["title"])[:TITLE]
        if "metadata" in fields:
            fields["metadata"] = self.value(fields["metadata"])
        return fields

    def summary(self, summary: Summary) -> Summary:
        """Return a summary without what is private. Raises PrivacyRefused."""
        return summary if self.redactor is None else cleaned_summary(summary, self._clean)

    def _clean(self, text: str, _: str) -> str:
        return self.text(text)

    def text(self, text: str) -> str:
        """Return a text without what is private. Raises PrivacyRefused."""
        return text if self.redactor is None else self.redactor.text(text)

    def value(self, value: Any) -> Any:
        """Return plain JSON without what is private, at any depth. Raises PrivacyRefused."""
        return value if self.redactor is None else self.redactor.value(value)

    def withholds_entry(self, entry: Entry) -> bool:
        """Return whether an entry may not be kept, because of what it is or says of itself."""
        return self.redactor is not None and self.redactor.is_withheld(entry)

    def withholds(self, kind: str) -> bool:
        """Return whether entries of this kind may not be kept."""
        return self.redactor is not None and self.redactor.withholds(kind)

    def redact(self, text: str) -> str:
        """Return a text of an error or a log without what is private; never raises."""
        try:
            return self.text(text)
        except PrivacyRefused:
            return UNCHECKED

    def refuse(self, texts: Sequence[str], where: str, hint: str = "") -> None:
        """Raise ConfigError if one of these texts, which would be stored as they are, holds something private."""
        for i, text in enumerate(texts):
            if self.redact(text) != text:
                allowed = "a text without anything private, since it is stored as it is"
                raise ConfigError(f"{where}[{i}]", "a text with something private in it", f"{allowed}{hint}")


def _numbers(key: SessionKey, head: Head, numbers: dict[str, int], about: About | None) -> Change:
    """Return the change that puts pseudonyms into a session's head. It sets `about`, too, if it makes the session."""
    if about is not None and head.about is None and head.next_seq == 1:
        change = Change(kind="about", reason="about", about=about, said=about.__struct_fields__)
    else:
        if about is not None and about.user not in (None, head.user):
            raise WrongUser(key.session, str(about.user), head.user)
        change = Change(kind="pseudonyms", reason="pseudonyms")
    return msgspec.structs.replace(change, created=head.created, pseudonyms=numbers)


def _length(entry: Entry) -> int:
    """Return roughly how many characters an entry has."""
    if isinstance(entry.content, str):
        return len(entry.content)
    return sum(len(part.text) for part in entry.content if isinstance(part, Text | Reasoning))


def gate_of(given: object) -> Gate:
    """Return the gate for the option `privacy`: None, a preset's name, a mapping, a policy, or a redactor.

    Raises ConfigError like `privacy.policy.load`.
    """
    if given is None:
        return Gate()
    from palimpsest.privacy.redaction import Redactor  # loads a dozen modules, needed only with a policy

    return Gate(Redactor.of(given))


Given: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]

USUAL = frozenset({str, int, float, bool, type(None), dict, list, tuple})
"""The types that verbs are given most. Values of these need no conversion."""


def _plain_texts(args: Sequence[Any], options: Mapping[str, Any]) -> Given:
    """Return the arguments of a verb with texts of subclasses of `str`, such as numpy's, as plain text."""
    return [*map(plain_text, args)], {name: plain_text(value) for name, value in options.items()}


VALUES = {"value", "default"}
"""Parameters whose values a verb returns as given. Texts given to a verb that has one of these stay what they are."""

UNOPENED = ("close", "connect")
"""Verbs for which the store need not be open."""


def guarded(cls: type[T]) -> type[T]:
    """Class decorator: no public verb of the class raises an error that quotes what is private. `_gate` decides what
    that is.

    An awaited verb also opens the store if it is not open yet. Texts of subclasses of `str` reach the verbs as `str`.
    """
    for name in dir(cls):
        verb = getattr(cls, name)
        code = getattr(verb, "__code__", None)
        if name.startswith("_") or code is None or isinstance(vars(cls).get(name), staticmethod | classmethod):
            continue
        if code.co_flags & COROUTINE:
            plain = (lambda *given: given) if VALUES.intersection(code.co_varnames) else _plain_texts
            setattr(cls, name, _discreet(verb, plain, opens=name not in UNOPENED))
        else:
            setattr(cls, name, _discreet_at_once(verb))
    return cls


def _discreet(verb: Callable[..., Any], plain: Callable[..., Given], *, opens: bool) -> Callable[..., Any]:
    @wraps(verb)
    async def discreet_verb(self: Any, *args: Any, **options: Any) -> Any:
        gate = self._gate
        given: Given = args, options
        for value in (*args, *options.values()):
            if type(value) not in USUAL:
                given = plain(args, options)
                break
        try:
            if gate.opening is not None and opens:
                await gate.opening()
            if gate.redactor is None:
                return await verb(self, *given[0], **given[1])
            with Hushed(gate.redact, gate.withholding and partial(gate.withholding, verb.__name__, *given)):
                return await verb(self, *given[0], **given[1])
        except OSError as fault:
            check_descriptors(fault)
            raise

    return discreet_verb


def _discreet_at_once(verb: Callable[..., T]) -> Callable[..., T]:
    @wraps(verb)
    def discreet_verb(self: Any, *args: Any, **options: Any) -> T:
        given, named = _plain_texts(args, options)
        try:
            if self._gate.redactor is None:
                return verb(self, *given, **named)
            held = self._gate.withholding
            with Hushed(self._gate.redact, held and partial(held, verb.__name__, given, named)):
                return verb(self, *given, **named)
        except OSError as fault:
            check_descriptors(fault)
            raise

    return discreet_verb
