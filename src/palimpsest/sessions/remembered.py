"""What a memory remembers of the contexts that its sessions gave, so that the next ones cost what is new.

It is decrypted text, as it is in the contexts themselves. It is bounded, and it is let go of when anything is destroyed
here. What others destroy is told by the mark of the session, which every context looks at before it shows anything.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from sys import getsizeof
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from palimpsest.formats.wording import counted_texts
from palimpsest.log.entry import Entry, pack
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Store, best_effort
from palimpsest.tokens.counter import Encoding, TokenCounter

if TYPE_CHECKING:
    from palimpsest.context.layout import Recollection
    from palimpsest.context.result import Context

VIEW_BYTES = 64 * 1024 * 1024
"""About how many bytes all that is remembered takes, where nobody says."""

EACH = 1024
"""Bytes that an entry takes beside its text, with how it is shown and sent."""


AHEAD, SHORT = 64, 100_000
"""Entries that are remembered at most of those that were appended since a context, and characters of one of them: what
is beyond that is read. To look at it all would hold up an event loop."""


QUICK = 16_384
"""Characters that are counted at most between two turns of an event loop: of prose that takes a third of a millisecond,
of what takes longest five. What many sessions add at once is counted in threads, by their contexts."""


class Stretch(msgspec.Struct, frozen=True):
    """Entries that were read: all between two places, both exclusive, in order; and about how many bytes they take."""

    low: int
    high: int
    entries: list[Entry]
    weight: int

    def joined(self, other: Stretch) -> Stretch | None:
        """This one with another that begins where it ends, or ends where it begins; None for any other."""
        first, last = (self, other) if self.low < other.low else (other, self)
        if first.high != last.low + 1:
            return None
        return Stretch(first.low, last.high, first.entries + last.entries, first.weight + last.weight)

    def since(self, seq: int) -> Stretch:
        """What of it stands at a place or behind it."""
        if self.low >= seq - 1:
            return self
        kept = self.entries[bisect_left(self.entries, seq, key=_seq) :]
        return Stretch(max(seq, self.low + 1) - 1, max(self.high, seq), kept, weight_of(kept))


_seq, _high = attrgetter("seq"), attrgetter("high")


def _is_fixed(entry: Entry) -> bool:
    """Whether an entry is read as it was given, and nothing of it is an object that its giver may change."""
    content, native = entry.content, entry.native
    if entry.metadata is not None or entry.expires_at is not None or entry.tokens is not None:
        return False
    if native is not None and (native.keep is not None or native.call is not None):
        return False
    return type(content) is str and len(content) <= SHORT and _is_unicode(content)


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates, which are marked where they are stored."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def weight_of(entries: Sequence[Entry]) -> int:
    """About how many bytes entries take in memory, with how they are shown and sent."""
    texts = [getsizeof(e.content) if type(e.content) is str and e.native is None else 2 * len(pack(e)) for e in entries]
    return EACH * len(entries) + sum(texts)


def _texts(entry: Entry) -> Sequence[str]:
    """What will be counted of an entry that is about to be appended: a result is taken for the answer to its call."""
    content = entry.content
    return (content,) if entry.kind == "tool_result" and type(content) is str else counted_texts(entry)


def _note(entries: Sequence[Entry], counts: Mapping[str, int], memo: dict[int, int]) -> None:
    """Note by `seq` what entries cost whose texts have all been counted."""
    for entry in entries:
        texts = counted_texts(entry)
        if counts.keys() >= {*texts}:
            memo[entry.seq] = sum([counts[text] for text in texts])


class Remembered(msgspec.Struct, frozen=True):
    """What is remembered of one session: what was read of it while it had this mark, and how that was shown.

    Nothing of it is ever changed: several threads may go on with it.
    """

    mark: object
    counter: str
    stretches: tuple[Stretch, ...]
    recollection: Recollection
    unstored: Mapping[int, int] = {}
    """Counts by `seq` that are still to be stored, by this counter."""
    ahead: int = 0
    """How many of the entries were appended since, and not read."""

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return sum(stretch.weight for stretch in self.stretches)

    @property
    def edge(self) -> Entry | None:
        """The last entry of it: whoever has lost what it had acknowledged may have another one there."""
        newest = max((one for one in self.stretches if one.entries), key=_high, default=None)
        return newest.entries[-1] if newest is not None else None

    def holds(self, mark: object, counter: str) -> bool:
        """Whether all of it is as it was, in a session of this mark, by this counter."""
        return mark is not None and self.mark == mark and self.counter == counter


Unstored: TypeAlias = tuple[SessionKey, Remembered]


async def stored(store: Store, counts: Sequence[Unstored]) -> None:
    """Store the counts of sessions that are as they were when these were made, until the store takes none."""
    for key, kept in counts:
        edge = kept.edge
        if edge is None:
            continue
        after, before, counter = edge.seq - 1, edge.seq + 1, kept.counter
        now, found, _ = await store.page(
            key, after=after, before=before, limit=1, newest_first=False, counter=counter, revision=0
        )
        if now.mark != kept.mark or [entry.id for entry in found] != [edge.id]:
            continue  # what stands at these places may be other entries
        storing = store.count(key, kept.counter, kept.unstored, kept.mark, epoch=now.head.epoch)
        if await best_effort(storing) is not None:
            break


class Recall:
    """What one context has of what is remembered: `before`; and what it has read, by its end."""

    def __init__(self, before: Remembered | None, era: int) -> None:
        self.before, self.era = before, era
        self.mark: object = None
        self.stretches: Sequence[Stretch] = ()
        self.unstored: Mapping[int, int] = before.unstored if before is not None else {}

    def forget(self) -> None:
        """Take nothing of it for what is there."""
        self.before, self.unstored = None, {}

    def read(self, mark: object, stretches: Sequence[Stretch]) -> None:
        """Note what was read, and of what."""
        self.mark, self.stretches = mark, stretches


class Views:
    """What is remembered of a memory's sessions, of each what its last context was made of: about `most` bytes, rather
    of what was asked for last. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most, self._weight, self._era, self._uncounted = most, 0, 0, 0
        self._kept: OrderedDict[SessionKey, Remembered] = OrderedDict()
        self._lock = allocate_lock()

    def of(self, key: SessionKey) -> Recall | None:
        """What a context of this session begins with; None where nothing is to be remembered."""
        return Recall(self._kept.get(key), self._era) if self._most else None

    def keep(self, key: SessionKey, new: Remembered, era: int) -> None:
        """Remember this of a session, and no longer what was remembered of it, unless something was destroyed since."""
        with self._lock:
            self._drop(key)
            if new.weight <= self._most and era == self._era:
                self._kept[key] = new
                self._weigh(new.weight)

    def counted(
        self, key: SessionKey, entries: Sequence[Entry], counter: TokenCounter, runner: Runner
    ) -> Mapping[str, int]:
        """Count what is about to be appended to a session that is remembered, while the store is waited for.

        Return the counts by text: they are there when the store has answered, or none are, for only a counter of ours
        is quick, and only little text.
        """
        counts: dict[str, int] = {}
        kept = self._kept.get(key) if runner.suspends else None
        if kept is None or not isinstance(counter, Encoding) or not counter.loaded or counter.name != kept.counter:
            return counts
        texts = [text for entry in entries for text in _texts(entry)]
        size = sum(map(len, texts))
        if self._uncounted + size > QUICK:
            return counts

        def count() -> None:
            with self._lock:
                self._uncounted -= size
            counts.update(zip(texts, map(counter.count, texts), strict=True))

        with self._lock:  # event loops of several threads may share this
            self._uncounted += size
        runner.meanwhile(count)
        return counts

    def appended(self, store: Store, key: SessionKey, entries: Sequence[Entry], counts: Mapping[str, int]) -> None:
        """Remember what was appended to a session right behind what is remembered of it: what anybody has seen there
        since has its place. An entry that its giver could change, or that is not read as it was given, is left to be
        read."""
        if key not in self._kept or len(entries) > AHEAD or not all(map(_is_fixed, entries)):
            return
        first, count, weight = entries[0].seq, len(entries), weight_of(entries)
        new = Stretch(first - 1, first + count, list(entries), weight)
        seen = store.seen(key)
        with self._lock:
            old = self._kept.get(key)
            if old is None or seen is None or old.mark != seen.mark or old.ahead + count > AHEAD:
                return
            if any(one.high == first for one in old.stretches):
                stretches = tuple(one.joined(new) or one for one in old.stretches)
                self._kept[key] = msgspec.structs.replace(old, stretches=stretches, ahead=old.ahead + count)
                self._weigh(weight)
                if counts and old.recollection.view is not None:
                    _note(entries, counts, old.recollection.view.memo)

    def unstored(self) -> list[Unstored]:
        """What is remembered with counts that are still to be stored."""
        with self._lock:
            return [(key, kept) for key, kept in self._kept.items() if kept.unstored]

    def clear(self) -> None:
        """Remember nothing, not even of contexts that are being made."""
        with self._lock:
            self._kept.clear()
            self._weight, self._era = 0, self._era + 1

    def _weigh(self, more: int) -> None:
        """Let go of others, if this is too much, by chance of the half that were asked for longest ago.

        What sessions ask for in turn would all be gone, each before its turn, if it were always the first of them.
        """
        self._weight += more
        while self._weight > self._most:
            number = int.from_bytes(os.urandom(4)) % ((len(self._kept) + 1) // 2)
            self._drop(next(islice(self._kept, number, None)))

    def _drop(self, key: SessionKey) -> None:
        old = self._kept.pop(key, None)
        self._weight -= old.weight if old is not None else 0


class Sent(msgspec.Struct, frozen=True):
    """The figures of a context, of one that is not to be kept."""

    counted: int
    revision: int
    margin: float

    @classmethod
    def of(cls, context: Context) -> Sent:
        """The figures of this context."""
        return cls(context.counted, context.revision, context.margin)
