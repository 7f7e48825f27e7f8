"""Selections: which entries of a session are to be erased, and which of its records mention a text. Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Protocol

from palimpsest.context.conditions import Condition, parse
from palimpsest.context.groups import Group, Meter, by_group, by_interaction, fill
from palimpsest.context.short_term import interaction_values
from palimpsest.context.window import message_values
from palimpsest.errors import ConditionFailed, ConfigError
from palimpsest.formats import find_format
from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.privacy.mentions import Mentions, cut_mentions, entry_mentions, finder, record_mentions
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import entries_of
from palimpsest.sessions.reading import LogReader
from palimpsest.stores import Store


class Selection(Protocol):
    """Finds the entries of one session that are to be erased. It may be asked several times.

    `mentions` matches texts that records may not contain any more (None: there are none). `sees_all` says that
    entries appended later may be meant, too, so that the log has to be looked at again.
    """

    mentions: Mentions | None
    sees_all: bool

    async def find(self, store: Store, options: Options, head: Head, seen: Head | None = None) -> list[Entry]:
        """Return the entries that are meant, in order of `seq`. Of tombstones only those that a flush left count.

        `seen` is a head of the same log for which this was asked before: then only entries behind it are returned.
        """
        ...


class SelectedIds:
    """Selects entries by id or `seq`. `find` raises EntryNotFound for one that does not exist."""

    mentions: Mentions | None = None
    sees_all = False

    def __init__(self, ids: Iterable[str | int | Entry]) -> None:
        self._ids = ids if isinstance(ids, range) else list(ids)

    async def find(self, store: Store, options: Options, head: Head, seen: Head | None = None) -> list[Entry]:
        """Return the entries in order of `seq`, without tombstones other than those of a flush."""
        found: dict[int, Entry] = {}
        for id in self._ids:
            entry = await LogReader(store, options).named(id)
            found[entry.seq] = entry
        return [found[seq] for seq in sorted(found) if found[seq].damaged or found[seq].is_there]


class SelectedDamaged:
    """Selects every entry of a session that cannot be read."""

    mentions: Mentions | None = None
    sees_all = True

    async def find(self, store: Store, options: Options, head: Head, seen: Head | None = None) -> list[Entry]:
        """Return the stand-ins of the damaged entries, in order of `seq`."""
        return [entry async for entry in walk(store, options, head, seen) if entry.damaged]


class SelectedAll:
    """Selects every entry of a session."""

    mentions: Mentions | None = None
    sees_all = True

    async def find(self, store: Store, options: Options, head: Head, seen: Head | None = None) -> list[Entry]:
        """Return all entries in order of `seq`, without tombstones other than those of a flush."""
        return [entry async for entry in walk(store, options, head, seen) if entry.damaged or entry.is_there]


class SelectedByQuery:
    """Selects the entries of one session that meet a query."""

    sees_all = True

    def __init__(self, query: Query) -> None:
        self._query = query
        self._user: _User | None = None
        self._unread: dict[int, Entry] = {}
        self.mentions = finder(query.text) if query.text is not None else None

    async def find(self, store: Store, options: Options, head: Head, seen: Head | None = None) -> list[Entry]:
        """Return the entries that meet the query, in order of `seq`, without tombstones other than those of a flush.

        With a condition the whole log is read each time: new entries change the age and the index of older ones.
        Raises ConfigError if the condition cannot be evaluated for an entry.
        """
        seqs = await self._by_condition(store, options, head) if self._query.where is not None else None
        if seqs is not None:
            seen = None
        if seen is None:
            self._unread = {}
            self._user = _User(self._query.user) if self._query.user is not None else None
        user = self._user
        return [
            entry
            async for entry in self._walk(store, options, head, seen)
            if (user is None or user.owns(entry))
            and (seqs is None or entry.seq in seqs)
            and entry.is_there
            and self._in_time(entry)
            and (self.mentions is None or entry_mentions(entry, self.mentions))
        ]

    async def _walk(self, store: Store, options: Options, head: Head, seen: Head | None) -> AsyncIterator[Entry]:
        """Yield entries like `walk`, and remember the damaged ones for `remains`."""
        async for entry in walk(store, options, head, seen):
            if entry.damaged:
                self._unread[entry.seq] = entry
            yield entry

    def remains(self, session: str) -> tuple[str, ...]:
        """Return sentences that say which entries of the session could not be searched, and what to do about them."""
        if not self._unread:
            return ()
        is_single = len(self._unread) == 1
        they, them = ("it was", "it") if is_single else ("they were", "them")
        sentences = [
            f"{_named(self._unread)} of session {session!r} cannot be read, so {they} not searched: restore a "
            f"backup, or take {them} out with `session.repair()`, on the command line `palimpsest repair`"
        ]
        openers = [seq for seq, entry in self._unread.items() if entry.turn == seq]
        if self._user is not None and openers:
            sentences.append(
                f"what followed {_named(openers)} of session {session!r}, whose sender is not known, is kept: if it "
                "belongs to the user, erase it by the numbers of its entries"
            )
        return tuple(sentences)

    def _in_time(self, entry: Entry) -> bool:
        after, before = self._query.after, self._query.before
        return (after is None or entry.created_at >= after) and (before is None or entry.created_at < before)

    async def _by_condition(self, store: Store, options: Options, head: Head) -> set[int]:
        assert self._query.where is not None, "asked only where there is a condition"
        condition = parse(self._query.where, "where")
        living = [entry async for entry in walk(store, options, head) if not entry.erased]
        shown = [entry for entry in living if not spans.within(head.rewound, entry.seq)]
        hidden = [entry for entry in living if spans.within(head.rewound, entry.seq)]
        meter = Meter(options.counter, find_format(options.format), options.model)
        meter.exact = True
        return holding(condition, [_groups(hidden, meter), _groups(shown, meter)], head, meter, options.key.session)


def _named(seqs: Collection[int]) -> str:
    return f"{'entry' if len(seqs) == 1 else 'entries'} {spans.in_words(spans.of(seqs))}"


def walk(store: Store, options: Options, head: Head, seen: Head | None = None) -> AsyncIterator[Entry]:
    """Yield the log up to this head with token counts, read in batches, including rewound entries and tombstones.

    With `seen` only what came behind that head.
    """
    first = max(head.first_seq, seen.next_seq if seen is not None else 1)
    return entries_of(store, options.key, [(first, head.next_seq - 1)], counter=options.counter.name)


class _User:
    """Recognises what a user said, and the interactions that began with that. Ask for each entry, oldest first."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._begun: set[int] = set()

    def owns(self, entry: Entry) -> bool:
        """Return whether the entry is the user's, or part of an interaction that the user began."""
        has_name = entry.role == "user" and entry.name == self._id
        is_own_words = has_name or str((entry.metadata or {}).get("user_id", "")) == self._id
        if is_own_words and entry.is_human:
            self._begun.add(entry.seq)
        return is_own_words or (entry.turn > 0 and entry.turn in self._begun)


class Picked:
    """Selects entries that were found before, by id. Those that do not exist any more are left out."""

    sees_all = False

    def __init__(self, ids: Collection[str], mentions: Mentions | None = None) -> None:
        self._ids, self.mentions = ids, mentions

    async def find(self, store: Store, options: Options, head: Head, seen: Head | None = None) -> list[Entry]:
        """Return the entries in order of `seq`, without tombstones other than those of a flush."""
        entries = await store.fetch(options.key, ids=self._ids) if self._ids else []
        return [entry for entry in entries if entry.is_there]


def _groups(entries: Sequence[Entry], meter: Meter) -> list[Group]:
    """Return the entries as groups, with their cost when shown whole."""
    groups = by_group(entries)
    for group in groups:
        fill(group, 0, {}, meter)
    return groups


def holding(condition: Condition, parts: Sequence[Sequence[Group]], head: Head, meter: Meter, session: str) -> set[int]:
    """Return the `seq` of each entry that meets the condition itself, or whose whole interaction does.

    The condition gets the same values as in short-term strategies, and pinned entries are tested, too. The last of
    `parts` is what the log shows. Entries hidden by rewinds count as older than all of it and have the index -1.
    """
    interactions = [(interaction, part is parts[-1]) for part in parts for interaction in by_interaction(part)]
    facts = {
        "id": session,
        "message_count": head.entries,
        "interaction_count": head.turns,
        "tokens": sum(group.cost for group in parts[-1]),
        "metadata": head.metadata,
    }
    found: set[int] = set()
    for age, (interaction, shown) in enumerate(reversed(interactions)):
        index = head.turns - 1 - age if interaction[0].turn and shown else -1
        values: dict[str, dict[str, object]] = {
            "interaction": interaction_values(interaction, index, age),
            "session": facts,
        }
        members = [entry for group in interaction for entry in group.entries]
        if not condition.per_message:
            found |= {entry.seq for entry in members if _holds(condition, values, members[0])}
            continue
        for i, entry in enumerate(members):
            calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
            values["message"] = message_values(entry, meter, calls, entry.seq - 1, age)
            if _holds(condition, values, entry):
                found.add(entry.seq)
    return found


def _holds(condition: Condition, values: dict[str, dict[str, object]], entry: Entry) -> bool:
    """Return whether the condition is true. Raises ConfigError, which quotes no text, if it cannot be evaluated."""
    kind = ""
    try:
        return condition.holds(values)
    except ConditionFailed as fault:
        kind = type(fault.__cause__).__name__
    raise ConfigError(
        f"where, for entry {entry.seq}",
        f"a condition that fails ({kind})",
        "one that can be evaluated for every entry: ask first whether a value `is not None`",
    )


async def records_mentioning(
    store: Store, options: Options, head: Head, mentions: Mentions, seen: Head | None = None
) -> tuple[int, ...]:
    """Return the revisions of the session's records, and of its views' cuts, that mention a text.

    With `seen` only of those that came after that head.
    """
    after = seen.revision if seen is not None else 0
    records = await store.records(options.key, after=after, before=head.revision + 1)
    found = {record.revision for record in records if record_mentions(record, mentions)}
    found |= {cut.revision for cut in head.views.values() if cut.revision > after and cut_mentions(cut, mentions)}
    return tuple(sorted(found))
