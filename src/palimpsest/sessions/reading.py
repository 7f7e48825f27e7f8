"""What a session can tell of its log: what is active, its interactions, its figures. Reads, and stores counts."""

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
from palimpsest.log import spans
from palimpsest.log.checks import check, check_whole, unfit
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Definition, Head, Usage
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Spent
from palimpsest.sessions.accesses import accessed
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import BATCH, batches_of, entries_of
from palimpsest.stores import Store, best_effort, compaction_of
from palimpsest.tokens.counter import TokenCounter, failures_of

END = 2**32 - 1
"""Over every `seq`."""

TRIES = 20
"""How often something is read anew because the session became another one meanwhile."""

T = TypeVar("T")


def moved(before: Head, now: Head) -> bool:
    """Whether what is read of a session may not fit its head of before: it was deleted, cleared, replaced, erased from
    or compacted since. Additions alone do not count."""
    same = (before.epoch, before.created, before.first_seq) == (now.epoch, now.created, now.first_seq)
    return not same or now.revision < before.revision


class Interaction(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """A human message and everything until the next one: `entries`, oldest first. `index` is -1 for the preamble.

    `open` is the newest of the log, while it has no final answer, or an unanswered call.
    """

    index: int
    entries: tuple[Entry, ...]
    open: bool


class Stats(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A session in numbers; tokens by the session's counter, with what the provider adds to messages, and media.

    `total_entries` = `active_entries` + `archived_entries` (those that are covered, evicted or expired); erased and
    rewound ones and summaries do not count. `summaries` are the current ones, `spent` is what summarizers cost.
    `total_tokens` are those of all that is retained, whole, and of the current summaries. `active_tokens` are those of
    the active set as a context shows it, summaries with their fences: what triggers compare, what a compaction tells,
    and what a context counts beside what its call brings. `erased_entries` and `rewound_entries`, `cuts`,
    `interactions` and `pinned` entries are counts, `open_calls` ids. `revision` and `epoch` are the newest,
    `created_at` and `updated_at` when the first and the last entry was written; `usage` is what was reported last, with
    the sums of all calls: 0 in each before anything is reported.
    `definition` is the one that contexts are made by, where the session is declared.
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
    """What knows which entries of a session are active, and what they cost, at a head and a time."""

    async def entries(self, head: Head, now: int) -> list[Entry]:
        """The active entries, oldest first."""
        ...

    async def costs(self, head: Head, now: int) -> tuple[int, int]:
        """What a context makes of the active set costs, and what of that the current summaries do."""
        ...


class LogReader:
    """Reads one session's log from its store."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store, self._options = store, options

    async def head(self) -> Head:
        """The session's head; an empty one for a session that does not exist."""
        return await self._store.head(self._options.key) or Head()

    async def settled(self, read: Callable[[Head], Awaitable[T]]) -> T:
        """Return what `read` makes of the session and its head; read anew where the session moves meanwhile.

        Raises Conflict where others change it faster than it can be read, again and again.
        """
        for _ in range(TRIES):
            head = await self.head()
            found = await read(head)
            if not moved(head, await self.head()):
                return found
        raise Conflict(
            f"session {self._options.key.session!r}", "is changed faster than it can be read: try again, or later"
        )

    async def named(self, id: object) -> Entry:
        """The entry of this id, of this `seq`, or read again. Raises EntryNotFound; ConfigError for a list."""
        if isinstance(id, list | tuple | set | frozenset):
            raise ConfigError("id", id, "one id, or one number; where a verb takes several, they are given one by one")
        for seqs, ids in _ways(id):
            found = await self._store.fetch(self._options.key, seqs, ids, counter=self._options.counter.name)
            if found:
                return found[0]
        raise EntryNotFound(self._options.key.session, id.id if isinstance(id, Entry) else id)

    async def entry(self, id: object) -> Entry:
        """The entry that is named so, which counts as an access. Raises EntryNotFound."""
        found = await self.named(id)
        if self._store.writable and not self._options.readonly:
            await accessed(self._store, self._options.key, [found.seq])
        return found

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
        """The log's entries after a `seq` and `before` another, oldest first: at most the first `limit`, or the `last`.

        Those taken back come only with `rewound`. With `at` it is the log as it was at that revision.
        """
        check_whole(after, "after", of="a `seq`")
        check_whole(before, "before", or_none=True, of="a `seq`")
        for name, value in (("limit", limit), ("last", last)):
            check_whole(value, name, or_none=True)
        if limit is not None and last is not None:
            raise ConfigError("last", last, "either `limit`, which counts from the front, or `last`")

        async def read(head: Head) -> list[Entry]:
            if at is not None:
                from palimpsest.sessions.history import History  # only for who looks back

                head = await History(self._store, self._options.key).view(head, self._options.view, at)
            end = head.next_seq if before is None else min(before, head.next_seq)
            where = spans.visible(() if rewound else head.rewound, max(after, head.first_seq - 1), end)
            if last is not None:
                return await self._newest(where, last)
            found: list[Entry] = []
            for first, final in where:
                behind = first - 1  # by pages: what is stored of all of them need not be there beside them
                while behind < final and (limit is None or len(found) < limit):
                    left = BATCH if limit is None else min(limit - len(found), BATCH)
                    page = await self._page(behind, final + 1, left)
                    found += page
                    if len(page) < left:
                        break
                    behind = page[-1].seq
            return found

        head = await self.head()
        most = min([head.next_seq - after, *(one for one in (limit, last) if one is not None)])
        if most <= BATCH:  # a page: as of one moment
            return await read(head)
        return await self._store.together(lambda: self.settled(read), reads=True)

    async def _page(self, after: int, before: int, limit: int, *, newest_first: bool = False) -> list[Entry]:
        key, counter = self._options.key, self._options.counter.name
        return await self._store.read(
            key, after=after, before=before, limit=limit, newest_first=newest_first, counter=counter
        )

    async def _newest(self, where: Sequence[Span], most: int) -> list[Entry]:
        """The newest entries that lie in these spans, at most so many, oldest first."""
        found: list[Entry] = []
        for first, final in reversed(where):
            ahead = final + 1
            while ahead > first and len(found) < most:
                left = min(most - len(found), BATCH)
                page = await self._page(first - 1, ahead, left, newest_first=True)
                found += page
                if len(page) < left:
                    break
                ahead = page[-1].seq
        return found[::-1]

    async def compaction(self, head: Head) -> Compaction:
        """What is covered and evicted, and what stands for it."""
        return await compaction_of(self._store, self._options.key, head.compaction)

    async def interactions(self, after: Interaction | None, limit: int | None) -> list[Interaction]:
        """The log by interaction, oldest first: all, or at most `limit` of those after one that was returned before."""
        if after is not None and not (isinstance(after, Interaction) and after.entries):
            raise ConfigError("after", after, "an interaction, as this verb returns them, or None")
        check_whole(limit, "limit", or_none=True)
        head, found, members = await self.head(), list[Interaction](), list[Entry]()
        last, index = (after.entries[-1].seq, after.index) if after is not None else (0, -1)
        where = spans.visible(head.rewound, last, head.next_seq)
        walked = entries_of(self._store, self._options.key, where, counter=self._options.counter.name)
        async with aclosing(walked):
            async for entry in walked:
                if members and entry.is_human:
                    found.append(_interaction(members, index))
                    index, members = found[-1].index, []
                if limit is not None and len(found) >= limit:
                    return found
                if members or after is None or entry.is_human:  # else it is of the one before
                    members.append(entry)
        return [*found, _interaction(members, index, newest=head)] if members else found

    async def count(self, *, stores: bool = True) -> int:
        """Count every entry without a stored count, store that, and return how many there were.

        Those of an epoch that is over are not stored: texts may be others by now. With `stores` it raises
        StoreUnavailable, where the store could have kept the counts and did not.
        """
        counter, key, counted, after, more = self._options.counter, self._options.key, 0, 0, True
        while more:  # what others add meanwhile comes the next time
            epoch, batch = await self._store.uncounted(key, counter.name, after=after, limit=BATCH)
            if not batch:
                break
            counts = await self._store.apart(_counts, batch, counter)
            if counts and self._store.writable:
                storing = self._store.count(key, counter.name, counts, epoch=epoch)
                await (storing if stores else best_effort(storing))
            counted += len(counts)
            after, more = batch[-1].seq, len(batch) == BATCH
            await self._store.apart(batch.clear)  # as `batches_of` does
        return counted

    async def _retained(self, head: Head) -> int:
        """What all entries cost that are neither erased nor rewound, shown whole."""
        meter = Meter(self._options.counter, find_format(self._options.format), self._options.model)
        meter.exact = True
        where = spans.visible(head.rewound, 0, head.next_seq)
        batches = batches_of(self._store, self._options.key, where, counter=self._options.counter.name)
        return sum([await self._store.apart(_cost, batch, meter) async for batch in batches])

    async def stats(self, now: int, active: Active) -> Stats:
        """The session in numbers; what has not been counted yet is counted now."""

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
    """What an entry costs by these options, shown whole. Raises InvalidEntry for what is no entry that can be added."""
    if not isinstance(entry, Entry):
        raise InvalidEntry("entry", f"{type(entry).__name__}, where an Entry is expected")
    check(entry, "entry")
    return Meter(options.counter, find_format(options.format), options.model).whole(entry)


def _ways(name: object) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Yield the places and ids that are looked for, one after the other: of a text of digits the place, then the id. An
    entry has an id, whatever that looks like."""
    seq = int(name) if isinstance(name, str) and name.isdecimal() and len(name) <= len(str(END)) else name
    if isinstance(seq, int) and not isinstance(seq, bool) and seq < END:
        yield (seq,), ()
    id = name.id if isinstance(name, Entry) else name
    if isinstance(id, str) and unfit(id) is None:
        yield (), (id,)


def _counts(entries: Sequence[Entry], counter: TokenCounter) -> dict[int, int]:
    """How many tokens each has, by seq."""
    found = dict[int, int]()
    for one in entries:
        before = failures_of(counter)
        tokens = 0 if one.erased else sum(map(counter.count, counted_texts(one)))
        if not one.erased and failures_of(counter) == before:  # else it is counted again
            found[one.seq] = tokens
    return found


def _cost(entries: Sequence[Entry], meter: Meter) -> int:
    """What they cost together."""
    return sum(meter.cost(entry) for entry in entries if not entry.erased)


def _interaction(members: list[Entry], before: int, *, newest: Head | None = None) -> Interaction:
    """The interaction of these entries; `before` is the index of the one before it. After the `newest` a log has this
    head, by which calls wait that no replacement has left out."""
    first, last = members[0], members[-1]
    if not first.is_human:
        return Interaction(-1, tuple(members), open=False)
    waits = newest is not None and any(call.seq >= first.seq for call in newest.calls)
    answered = newest is None or (last.kind == "message" and last.role == "assistant")
    return Interaction(before + 1, tuple(members), open=waits or not answered)
