"""Admission: the one step that everything passes before it is stored, counted, sent to a summarizer or told.

It is `privacy.redaction.Redactor` with what that, being pure, cannot do: the numbers of a session's pseudonyms are
kept in its head, and an error that is raised on the way quotes nothing private, either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
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
"""Characters from which on a batch is checked in a thread of its own, where there is an event loop to hold up."""

UNCHECKED = "[withheld: it could not be checked for what is private]"
"""Stands for a text of an error or a log that could not be checked."""


class HeadStore(Protocol):
    """What of a store a session's pseudonyms need: its head, and a way to change it."""

    async def head(self, key: SessionKey) -> Head | None:
        """Return the session's head, or None for a session that does not exist."""
        ...

    async def commit(self, key: SessionKey, change: Change, *, expect_revision: int | None = None) -> Head:
        """Commit one change and return the new head. Raises Conflict."""
        ...


class Admitted(msgspec.Struct, frozen=True):
    """One entry of a batch: what of it is stored (None: nothing), and what this process may use in its place."""

    kept: Entry | None
    own: Entry | None = None


class Gate:
    """What a memory admits. Without a redactor it admits everything as it is."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.redactor = redactor
        self.outside: Callable[..., Awaitable[Any]] | None = None
        """Runs a function beside the event loop; None where there is no loop."""
        self.opening: OneAtATime | None = None
        """Opens the store before the first verb; None where it is open."""

    async def opened(self) -> None:
        """See that the store is open."""
        if self.opening is not None:
            await self.opening()

    async def entries(
        self, store: HeadStore, key: SessionKey, entries: Sequence[Entry], about: About | None = None
    ) -> list[Admitted]:
        """Return what may be stored of entries that are to be added together, in place.

        New pseudonyms are in the session's head when it returns, and so is what it is `about`, where that makes the
        session. Raises PrivacyRefused, for all of them, and WrongUser where it is another's.
        """
        redactor = self.redactor
        if redactor is None:
            return [Admitted(entry) for entry in entries]
        verdicts = await (self._numbered(store, key, entries, about) if redactor.numbers else self._verdicts(entries))
        return [Admitted(verdict.entry, entries[i] if verdict.withheld else None) for i, verdict in enumerate(verdicts)]

    async def _numbered(
        self, store: HeadStore, key: SessionKey, entries: Sequence[Entry], about: About | None
    ) -> Sequence[Verdict]:
        """The verdicts on entries, when their pseudonyms are in the session's head."""
        redactor = self.redactor
        assert redactor is not None, "it is asked"
        while True:
            head = await store.head(key) or Head()
            verdicts = await self._verdicts(entries, redactor.pseudonyms(head.pseudonyms))
            numbers = verdicts[-1].pseudonyms.numbers
            if numbers == head.pseudonyms:
                return verdicts
            known = head.pseudonyms
            while head.pseudonyms == known:  # else somebody was first, and may have given out the same numbers
                change = _numbers(key, head, numbers, about)
                try:
                    await store.commit(key, change, expect_revision=head.revision)
                    return verdicts
                except Conflict:
                    head = await store.head(key) or Head()

    async def _verdicts(self, entries: Sequence[Entry], *known: Pseudonyms) -> Sequence[Verdict]:
        """What the redactor says, in a thread of its own where that may take long and an event loop would wait."""
        assert self.redactor is not None, "it is asked"
        if self.outside is None or sum(map(_length, entries)) < LONG:
            return self.redactor.entries(entries, *known)
        verdicts: Sequence[Verdict] = await self.outside(self.redactor.entries, entries, *known)
        return verdicts

    def session(
        self, entries: Sequence[Entry], records: Sequence[Record], head: Head
    ) -> tuple[list[Entry], list[Record], dict[str, int]]:
        """Return entries, records and pseudonyms of a whole session as they may be kept.

        What is withheld is a tombstone, and no summary tells of it. `head` is as it was given, with the pseudonyms and
        the revision of the compaction. Raises PrivacyRefused.
        """
        if self.redactor is None:
            return list(entries), list(records), head.pseudonyms
        living = [entry for entry in entries if entry.is_there]
        verdicts = self.redactor.entries(living, self.redactor.pseudonyms(head.pseudonyms))
        kept = {old.seq: new.entry or tombstone(old) for old, new in zip(living, verdicts, strict=True)}
        gone = [seq for seq, entry in kept.items() if not entry.is_there]
        if self.withholds("summary"):  # what they stand for is active again
            made = [record.compaction.summary for record in records if record.compaction is not None]
            gone += [seq for one in made if one is not None for low, high in one.covers for seq in range(low, high + 1)]
        redact = {record.revision: self.record(record) for record in records}
        redact |= {record.revision: record for record in forgotten(redact.values(), head, gone)[0]} if gone else {}
        numbers = verdicts[-1].pseudonyms.numbers if verdicts else head.pseudonyms
        return [kept.get(entry.seq, entry) for entry in entries], list(redact.values()), numbers

    def shown(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return stored entries as they may leave this process, in place: they may be older than the policy.

        What is withheld is a tombstone. Nothing new is numbered.
        """
        living = [entry for entry in entries if entry.is_there]
        if self.redactor is None or not living:
            return list(entries)
        verdicts = iter(self.redactor.entries(living, None))
        return [next(verdicts).entry or tombstone(entry) if entry.is_there else entry for entry in entries]

    def record(self, record: Record) -> Record:
        """Return a record without what is private in anything that it tells. Raises PrivacyRefused."""
        if self.redactor is None:
            return record
        return msgspec.structs.replace(cleaned_record(record, self._clean), view=self.text(record.view))

    def head(self, head: Head) -> Head:
        """Return a head without what is private in anything that an export tells of it. Raises PrivacyRefused."""
        if self.redactor is None:
            return head
        views = {self.text(view): cleaned_cut(cut, self._clean) for view, cut in head.views.items()}
        attempts = cleaned_attempts(head.attempts, self._clean)
        reason, about = self.text(head.epoch_reason), self.about(head.about)
        return msgspec.structs.replace(head, views=views, attempts=attempts, epoch_reason=reason, about=about)

    def about(self, about: About | None) -> About | None:
        """Return what is said of a session without what is private, and without a user whose id is. Raises
        PrivacyRefused.
        """
        if self.redactor is None or about is None:
            return about
        user = about.user if about.user is not None and self.text(about.user) == about.user else None
        title = about.title and self.text(about.title)
        return msgspec.structs.replace(about, user=user, title=title, metadata=self.value(about.metadata))

    def said(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what somebody says of a session, whatever of `About` is given, as it may be kept.

        Raises ConfigError for what is not accepted, and for a user whose id has something private in it.
        """
        found = checked_about(given)
        if self.redactor is None:
            return found
        if found.get("user") is not None:
            self.refuse([found["user"]], "user", "; give users ids that say nothing of them")
        if found.get("title") is not None:
            found["title"] = self.text(found["title"])[:TITLE]
        if "metadata" in found:
            found["metadata"] = self.value(found["metadata"])
        return found

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

    def withholds(self, kind: str) -> bool:
        """Whether entries of this kind may not be kept."""
        return self.redactor is not None and self.redactor.withholds(kind)

    def redact(self, text: str) -> str:
        """Return a text of an error or a log without what is private; never raises."""
        try:
            return self.text(text)
        except PrivacyRefused:
            return UNCHECKED

    def refuse(self, texts: Sequence[str], where: str, hint: str = "") -> None:
        """Raise ConfigError where one of the texts, which are stored as they are, holds what is private."""
        for i, text in enumerate(texts):
            if self.redact(text) != text:
                allowed = "one that names nothing private: it is stored"
                raise ConfigError(f"{where}[{i}]", "a text with something private in it", f"{allowed}{hint}")


def _numbers(key: SessionKey, head: Head, numbers: dict[str, int], about: About | None) -> Change:
    """What gives a session its pseudonyms: as an entry would, it makes the session what it is taken for."""
    if about is not None and head.about is None and head.next_seq == 1:
        change = Change(kind="about", reason="about", about=about, said=about.__struct_fields__)
    else:
        if about is not None and about.user not in (None, head.user):
            raise WrongUser(key.session, str(about.user), head.user)
        change = Change(kind="pseudonyms", reason="pseudonyms")
    return msgspec.structs.replace(change, created=head.created, pseudonyms=numbers)


def _length(entry: Entry) -> int:
    """Characters of an entry, about."""
    if isinstance(entry.content, str):
        return len(entry.content)
    return sum(len(part.text) for part in entry.content if isinstance(part, Text | Reasoning))


def gate_of(given: object) -> Gate:
    """Return the admission for what a memory was opened with: None, a preset's name, a mapping, a policy, a redactor.

    Raises ConfigError, as `privacy.policy.load` does.
    """
    if given is None:
        return Gate()
    from palimpsest.privacy.redaction import Redactor  # a dozen modules, only with a policy

    return Gate(Redactor.of(given))


Given: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]

USUAL = frozenset({str, int, float, bool, type(None), dict, list, tuple})
"""What verbs are given most: to tell that one of these is no text of another class takes no call."""


def _plain_texts(args: Sequence[Any], options: Mapping[str, Any]) -> Given:
    """What a verb was given, with plain text for each text of a class of its own, such as numpy's or an enum's.

    For what is stored, or joined with other texts, is text alone.
    """
    return [*map(plain_text, args)], {name: plain_text(one) for name, one in options.items()}


def _as_given(args: Sequence[Any], options: Mapping[str, Any]) -> Given:
    return args, options


VALUES = {"value", "default"}
"""What a verb gives back as it was given, so that such a verb's texts stay what they are."""

UNOPENED = ("close", "connect")
"""What is done with a store that need not be open."""


def guarded(cls: type[T]) -> type[T]:
    """Let no error leave a public verb of this class that quotes what is private. `_gate` is what admits.

    A verb that is awaited opens the store where that is not open yet. A text of a class of its own is given to it as
    plain text.
    """
    for name in dir(cls):
        verb = getattr(cls, name)
        code = getattr(verb, "__code__", None)
        if name.startswith("_") or code is None or isinstance(vars(cls).get(name), staticmethod | classmethod):
            continue
        if code.co_flags & COROUTINE:
            plain = _as_given if VALUES.intersection(code.co_varnames) else _plain_texts
            setattr(cls, name, _discreet(verb, plain, opens=name not in UNOPENED))
        else:
            setattr(cls, name, _discreet_at_once(verb))
    return cls


def _discreet(verb: Callable[..., Any], plain: Callable[..., Given], *, opens: bool) -> Callable[..., Any]:
    @wraps(verb)
    async def discreet_verb(self: Any, *args: Any, **options: Any) -> Any:
        gate = self._gate
        given: Given = args, options
        for one in (*args, *options.values()):
            if one.__class__ not in USUAL:
                given = plain(args, options)
                break
        try:
            if gate.opening is not None and opens:
                await gate.opening()
            if gate.redactor is None:
                return await verb(self, *given[0], **given[1])
            with Hushed(gate.redact):
                return await verb(self, *given[0], **given[1])
        except OSError as fault:
            check_descriptors(fault)
            raise

    return discreet_verb


def _discreet_at_once(verb: Callable[..., T]) -> Callable[..., T]:
    @wraps(verb)
    def discreet_verb(self: Any, *args: Any, **options: Any) -> T:
        given, named = _plain_texts(args, options)
        if self._gate.redactor is None:
            return verb(self, *given, **named)
        with Hushed(self._gate.redact):
            return verb(self, *given, **named)

    return discreet_verb
