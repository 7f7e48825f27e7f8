"""Reading one session's log: entries, interactions, statistics. Writes only token counts and notes of accesses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from palimpsest.context.groups import Meter
from palimpsest.errors import ConfigError, Conflict, EntryNotFound, InvalidEntry
from palimpsest.formats import find_format
from palimpsest.formats.wording import counted_texts
from palimpsest.log import spans, values
from palimpsest.log.checks import check, unfit
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Definition, Head, Usage
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Spent
from palimpsest.sessions.accesses import note_accesses
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import BATCH, batches_of, entries_of
from palimpsest.stores import Store, best_effort, compaction_of
from palimpsest.tokens.counter import TokenCounter, failures_of

END = 2**32 - 1
"""Larger than every `seq`."""

TRIES = 20
"""How often something is read again because the session changed while it was read."""

T = TypeVar("T")


def moved(before: Head, now: Head) -> bool:
    """Return whether rows read since `before` may not fit that head, because the session was deleted, cleared,
    replaced, erased from or compacted. Additions alone do not count."""
    same = (before.epoch, before.created, before.first_seq) == (now.epoch, now.created, now.first_seq)
    return not same or now.revision < before.revision


class Interaction(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """A human message and everything until the next one: `entries`, oldest first. `index` is -1 for the preamble.

    `open` is true for the newest interaction of the log while it has no final answer, or has an unanswered call.
    """

    index: int
    entries: tuple[Entry, ...]
    open: bool


class Stats(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A session in numbers. Tokens are counted by the session's counter, with media and the provider's overhead.

    `total_entries` = `active_entries` + `archived_entries` (those that are covered, evicted or expired). Erased and
    rewound entries and summaries do not count. `summaries` is the number of current ones, `spent` what summarizers
    cost. `total_tokens` are those of all retained entries, shown whole, and of the current summaries. `active_tokens`
    are those of the active set as a context shows it, summaries with their fences. Triggers compare this number,
    compactions report it, and a context adds to it what its call brings. `erased_entries`, `rewound_entries`, `cuts`,
    `interactions` and `pinned` are numbers, `open_calls` are ids. `revision` and `epoch` are the newest. `created_at`
    and `updated_at` say when the first and the last entry was written. `usage` is the last reported usage with the sums
    over all calls, with 0 everywhere before the first report. `definition` is the one that contexts are made by, if
    the session is declared.
    """

    total_entries: int
    active_entries: int
    archived_entries: int
    summaries: int
    total_tokens: int
    active_tokens: int
    erased_entries: int
    rewound_entries: int
    cuts: int
    interactions: int
    pinned: int
    open_calls: tuple[str, ...]
    revision: int
    epoch: int
    created_at: datetime | None
    updated_at: datetime | None
    usage: Usage
    spent: Spent
    definition: Definition | None = None


class Active(Protocol):
    """Tells which entries of a session are active, and what they cost, at a head and a time."""

    async def entries(self, head: Head, now: int) -> list[Entry]:
        """Return the active entries, oldest first."""
        ...

    async def costs(self, head: Head, now: int) -> tuple[int, int]:
        """Return the tokens of the active set as a context shows it, and the part of them in current summaries."""
        ...


class LogReader:
    """Reads one session's log from its store."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store, self._options = store, options

    async def head(self) -> Head:
        """Return the session's head, or an empty one for a session that does not exist."""
        return await self._store.head(self._options.key) or Head()

    async def settled(self, read: Callable[[Head], Awaitable[T]]) -> T:
        """Return what `read` returns for the session's head. Read again if the session `moved` meanwhile.

        Raises Conflict if that happens `TRIES` times.
        """
        for _ in range(TRIES):
            head = await self.head()
            result = await read(head)
            if not moved(head, await self.head()):
                return result
        raise Conflict(f"session {self._options.key.session!r}", "changes faster than it can be read: try again later")

    async def named(self, id: object) -> Entry:
        """Return the entry with this id or `seq`, or an `Entry` read again. Raises EntryNotFound; ConfigError for a
        list."""
        if isinstance(id, list | tuple | set | frozenset):
            raise ConfigError("id", id, "one id or number; where a verb takes several, pass them as separate arguments")
        for seqs, ids in _lookups(id):
            entries = await self._store.fetch(self._options.key, seqs, ids, counter=self._options.counter.name)
            if entries:
                return entries[0]
        raise EntryNotFound(self._options.key.session, id.id if isinstance(id, Entry) else id)

    async def entry(self, id: object) -> Entry:
        """Return the entry like `named`, and note the access."""
        entry = await self.named(id)
        if self._store.writable and not self._options.readonly:
            await note_accesses(self._store, self._options.key, [entry.seq])
        return entry

    async def entries(
        self,
        after: int,
        limit: int | None,
        *,
        before: int | None = None,
        last: int | None = None,
        rewound: bool = False,
        at: int | None = None,
    ) -> list[Entry]:
        """Return the log's entries after one `seq` and `before` another, oldest first.

        Of these at most the first `limit`, or the `last` ones. Rewound entries are included only with `rewound`. With
        `at` the log is read as it was at that revision.
        """
        values.whole("after", after, of="a `seq`")
        values.whole("before", before, none=True, of="a `seq`")
        for name, value in (("limit", limit), ("last", last)):
            values.whole(name, value, none=True)
        if limit is not None and last is not None:
            raise ConfigError("last", last, "`limit`, which counts from the front, or `last`, but not both")

        async def read(head: Head) -> list[Entry]:
            if at is not None:
                from palimpsest.sessions.history import History  # loaded only to look at an earlier revision

                head = await History(self._store, self._options.key).view(head, self._options.view, at)
            end = head.next_seq if before is None else min(before, head.next_seq)
            where = spans.visible(() if rewound else head.rewound, max(after, head.first_seq - 1), end)
            if last is not None:
                return await self._newest(where, last)
            entries: list[Entry] = []
            for first, final in where:
                behind = first - 1  # read in pages, so that the stored rows of all are not in memory beside the entries
                while behind < final and (limit is None or len(entries) < limit):
                    size = BATCH if limit is None else min(limit - len(entries), BATCH)
                    page = await self._page(behind, final + 1, size)
                    entries += page
                    if len(page) < size:
                        break
                    behind = page[-1].seq
            return entries

        head = await self.head()
        most = min([head.next_seq - after, *(bound for bound in (limit, last) if bound is not None)])
        if most <= BATCH:  # one page is consistent by itself
            return await read(head)
        return await self._store.together(lambda: self.settled(read), reads=True)

    async def _page(self, after: int, before: int, limit: int, *, newest_first: bool = False) -> list[Entry]:
        key, counter = self._options.key, self._options.counter.name
        return await self._store.read(
            key, after=after, before=before, limit=limit, newest_first=newest_first, counter=counter
        )

    async def _newest(self, where: Sequence[Span], most: int) -> list[Entry]:
        """Return the newest entries in these spans, at most `most`, oldest first."""
        entries: list[Entry] = []
        for first, final in reversed(where):
            before = final + 1
            while before > first and len(entries) < most:
                size = min(most - len(entries), BATCH)
                page = await self._page(first - 1, before, size, newest_first=True)
                entries += page
                if len(page) < size:
                    break
                before = page[-1].seq
        return entries[::-1]

    async def compaction(self, head: Head) -> Compaction:
        """Return what is covered and evicted, and the current summaries."""
        return await compaction_of(self._store, self._options.key, head.compaction)

    async def interactions(self, after: Interaction | None, limit: int | None) -> list[Interaction]:
        """Return the log by interaction, oldest first: those behind the interaction `after`, at most `limit`."""
        if after is not None and not (isinstance(after, Interaction) and after.entries):
            raise ConfigError("after", after, "an Interaction that this verb has returned, or None")
        values.whole("limit", limit, none=True)
        head, interactions, members = await self.head(), list[Interaction](), list[Entry]()
        last, index = (after.entries[-1].seq, after.index) if after is not None else (0, -1)
        where = spans.visible(head.rewound, last, head.next_seq)
        walked = entries_of(self._store, self._options.key, where, counter=self._options.counter.name)
        async with aclosing(walked):
            async for entry in walked:
                if members and entry.is_human:
                    interactions.append(_interaction(members, index))
                    index, members = interactions[-1].index, []
                if limit is not None and len(interactions) >= limit:
                    return interactions
                if members or after is None or entry.is_human:  # else the entry belongs to `after` itself
                    members.append(entry)
        return [*interactions, _interaction(members, index, newest=head)] if members else interactions

    async def count(self, *, stores: bool = True) -> int:
        """Count the tokens of every entry without a stored count, store the counts, and return how many there were.

        Counts of an epoch that has ended are not stored, since texts may have changed. With `stores` it raises
        StoreUnavailable if a writable store does not take the counts.
        """
        counter, key, counted, after, has_more = self._options.counter, self._options.key, 0, 0, True
        while has_more:  # entries that others add meanwhile are counted the next time
            epoch, batch = await self._store.uncounted(key, counter.name, after=after, limit=BATCH)
            if not batch:
                break
            counts = await self._store.apart(_counts, batch, counter)
            if counts and self._store.writable:
                storing = self._store.count(key, counter.name, counts, epoch=epoch)
                await (storing if stores else best_effort(storing))
            counted += len(counts)
            after, has_more = batch[-1].seq, len(batch) == BATCH
            await self._store.apart(batch.clear)  # freed in a thread, as `batches_of` does
        return counted

    async def _retained(self, head: Head) -> int:
        """Return the tokens of all entries that are neither erased nor rewound, shown whole."""
        meter = Meter(self._options.counter, find_format(self._options.format), self._options.model)
        meter.exact = True
        where = spans.visible(head.rewound, 0, head.next_seq)
        batches = batches_of(self._store, self._options.key, where, counter=self._options.counter.name)
        return sum([await self._store.apart(_cost, batch, meter) async for batch in batches])

    async def stats(self, now: int, active: Active) -> Stats:
        """Return the session in numbers. Entries without a token count are counted now."""

        async def read(head: Head) -> Stats:
            return await self._stats(head, len(await active.entries(head, now)), *await active.costs(head, now))

        return await self._store.together(lambda: self.settled(read), reads=True)

    async def _stats(self, head: Head, active: int, active_tokens: int, summary_tokens: int) -> Stats:
        await self.count(stores=False)
        return Stats(
            total_entries=head.entries,
            active_entries=active,
            archived_entries=head.entries - active,
            summaries=len((await self.compaction(head)).current),
            total_tokens=await self._retained(head) + summary_tokens,
            active_tokens=active_tokens,
            erased_entries=head.erased,
            rewound_entries=head.hidden,
            cuts=sum(record.kind == "cut" for record in await self._store.records(self._options.key)),
            interactions=head.turns,
            pinned=len(head.pinned),
            open_calls=head.open_calls,
            revision=head.revision,
            epoch=head.epoch,
            created_at=moment(head.created) if head.created else None,
            updated_at=moment(head.updated) if head.updated else None,
            usage=head.usage or Usage(input_tokens=0),
            spent=head.attempts.spent if head.attempts else Spent(),
            definition=head.definition,
        )


def cost_of(entry: Entry, options: Options) -> int:
    """Return the tokens of an entry shown whole, by these options. Raises InvalidEntry if it could not be added."""
    if not isinstance(entry, Entry):
        raise InvalidEntry("entry", f"a {type(entry).__name__} is no Entry; give an Entry")
    check(entry, "entry")
    return Meter(options.counter, find_format(options.format), options.model).whole(entry)


def _lookups(name: object) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Yield the places or ids to look for, one after the other. A text of digits is tried as a `seq`, then as an id; an
    `Entry` only by its id."""
    seq = int(name) if isinstance(name, str) and name.isdecimal() and len(name) <= len(str(END)) else name
    if isinstance(seq, int) and not isinstance(seq, bool) and seq < END:
        yield (seq,), ()
    id = name.id if isinstance(name, Entry) else name
    if isinstance(id, str) and unfit(id) is None:
        yield (), (id,)


def _counts(entries: Sequence[Entry], counter: TokenCounter) -> dict[int, int]:
    """Return the tokens of each entry by seq, without erased ones and those at which the counter failed."""
    counts = dict[int, int]()
    for entry in entries:
        failures = failures_of(counter)
        tokens = 0 if entry.erased else sum(map(counter.count, counted_texts(entry)))
        if not entry.erased and failures_of(counter) == failures:  # after a failure it is counted again another time
            counts[entry.seq] = tokens
    return counts


def _cost(entries: Sequence[Entry], meter: Meter) -> int:
    """Return the tokens of these entries together."""
    return sum(meter.cost(entry) for entry in entries if not entry.erased)


def _interaction(members: list[Entry], before: int, *, newest: Head | None = None) -> Interaction:
    """Return the interaction of these entries, whose predecessor has the index `before`.

    For the newest interaction `newest` is the log's head: its calls tell which ones still wait for a result.
    """
    first, last = members[0], members[-1]
    if not first.is_human:
        return Interaction(-1, tuple(members), open=False)
    waits = newest is not None and any(call.seq >= first.seq for call in newest.calls)
    answered = newest is None or (last.kind == "message" and last.role == "assistant")
    return Interaction(before + 1, tuple(members), open=waits or not answered)
