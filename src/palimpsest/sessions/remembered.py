"""A memory's cache of what its last contexts were made of, so that the next ones read and count only what is new.

It holds decrypted text, as the contexts themselves do. Its size is bounded, and it is emptied when this process
destroys anything. What other processes destroy changes the mark of the session, which every context compares before it
uses the cache.
"""

from __future__ import annotations

import os
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
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Store, best_effort
from palimpsest.tokens.counter import Encoding, TokenCounter

if TYPE_CHECKING:
    from palimpsest.context.layout import CachedContext
    from palimpsest.context.result import Context

VIEW_BYTES = 64 * 1024 * 1024
"""The default size of the cache, in bytes, approximately."""

EACH = 1024
"""Bytes that an entry takes in addition to its text, including its rendered forms."""


AHEAD, SHORT = 64, 100_000
"""How many entries that were appended since a context are cached at most, and how many characters one of them may have.
All others are read by the next context: looking through more on an append would block an event loop."""


QUICK = 16_384
"""How many characters are counted at most between two turns of an event loop. Prose of that length takes a third of a
millisecond, the slowest text five. If many sessions add at once, their contexts count the rest in threads."""


class Stretch(msgspec.Struct, frozen=True):
    """All entries between two seqs (`low` and `high`, both exclusive), in order, and about how many bytes they take."""

    low: int
    high: int
    entries: list[Entry]
    weight: int

    def joined(self, other: Stretch) -> Stretch | None:
        """Return the union with an adjacent stretch; None if the other one is not adjacent."""
        first, last = (self, other) if self.low < other.low else (other, self)
        if first.high != last.low + 1:
            return None
        return Stretch(first.low, last.high, first.entries + last.entries, first.weight + last.weight)

    def since(self, seq: int) -> Stretch:
        """Return the part of the stretch from this seq on."""
        if self.low >= seq - 1:
            return self
        kept = self.entries[bisect_left(self.entries, seq, key=_seq) :]
        return Stretch(max(seq, self.low + 1) - 1, max(self.high, seq), kept, weight_of(kept))


_seq, _high = attrgetter("seq"), attrgetter("high")


def _is_fixed(entry: Entry) -> bool:
    """Whether an entry will be read back exactly as it was given, and holds no object that the caller may change."""
    content, native = entry.content, entry.native
    if entry.metadata is not None or entry.expires_at is not None or entry.tokens is not None:
        return False
    if native is not None and (native.keep is not None or native.call is not None):
        return False
    return type(content) is str and len(content) <= SHORT and _is_unicode(content)


def _is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which are stored in another form."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def weight_of(entries: Sequence[Entry]) -> int:
    """Return about how many bytes entries take in memory, including their rendered forms."""
    texts = [getsizeof(e.content) if type(e.content) is str and e.native is None else 2 * len(pack(e)) for e in entries]
    return EACH * len(entries) + sum(texts)


def _texts(entry: Entry) -> Sequence[str]:
    """Return the texts of a new entry whose tokens will be counted. A result is assumed to answer a call."""
    content = entry.content
    return (content,) if entry.kind == "tool_result" and type(content) is str else counted_texts(entry)


def _note(entries: Sequence[Entry], counts: Mapping[str, int], memo: dict[int, int]) -> None:
    """Store in `memo`, by `seq`, the tokens of entries whose texts have all been counted."""
    for entry in entries:
        texts = counted_texts(entry)
        if counts.keys() >= {*texts}:
            memo[entry.seq] = sum([counts[text] for text in texts])


class Remembered(msgspec.Struct, frozen=True):
    """What is remembered of one session: the entries read while it had this `mark`, and how they were rendered.

    It is never changed, so several threads may use it.
    """

    mark: object
    counter: str
    stretches: tuple[Stretch, ...]
    cached: CachedContext
    unstored: Mapping[int, int] = {}
    """Counts of tokens by `seq`, by this counter, that are not stored yet."""
    ahead: int = 0
    """How many of the entries were appended by this process since, and not read."""

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return sum(stretch.weight for stretch in self.stretches)

    @property
    def edge(self) -> Entry | None:
        """The last remembered entry. A store that has lost acknowledged writes may have another entry in its place."""
        newest = max((stretch for stretch in self.stretches if stretch.entries), key=_high, default=None)
        return newest.entries[-1] if newest is not None else None

    def holds(self, mark: object, counter: str) -> bool:
        """Whether all of it is still true of a session with this mark, and counted by this counter."""
        return mark is not None and self.mark == mark and self.counter == counter


Unstored: TypeAlias = tuple[SessionKey, Remembered]


async def stored(store: Store, counts: Sequence[Unstored]) -> None:
    """Store counts that were only remembered, of sessions that are unchanged. Stops when the store refuses to write."""
    for key, unstored in counts:
        edge = unstored.edge
        if edge is None:
            continue
        after, before, counter = edge.seq - 1, edge.seq + 1, unstored.counter
        standing, entries, _ = await store.page(
            key, after=after, before=before, limit=1, newest_first=False, counter=counter, revision=0
        )
        if standing.mark != unstored.mark or [entry.id for entry in entries] != [edge.id]:
            continue  # other entries may have these seqs by now
        storing = store.count(key, unstored.counter, unstored.unstored, unstored.mark, epoch=standing.head.epoch)
        if await best_effort(storing) is not None:
            break


class CacheUse:
    """What one context takes from the cache (`before`), and after it was computed, what it has read."""

    def __init__(self, before: Remembered | None, era: int) -> None:
        self.before, self.era = before, era
        self.mark: object = None
        self.stretches: Sequence[Stretch] = ()
        self.unstored: Mapping[int, int] = before.unstored if before is not None else {}

    def forget(self) -> None:
        """Use nothing of what was remembered."""
        self.before, self.unstored = None, {}

    def read(self, mark: object, stretches: Sequence[Stretch]) -> None:
        """Note what was read, and the session's mark at that time."""
        self.mark, self.stretches = mark, stretches


class Views:
    """The cache of a memory: for each session what its last context was made of, about `most` bytes in all.

    Sessions used recently are preferred. Threads may share it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._weight, self._uncounted = most, 0, 0
        self._era = 0  # how often the cache was cleared
        self._kept: OrderedDict[SessionKey, Remembered] = OrderedDict()
        self._lock = new_lock()

    def __contains__(self, key: SessionKey) -> bool:
        """Whether anything of this session is remembered."""
        return key in self._kept

    def of(self, key: SessionKey) -> CacheUse | None:
        """Return what a context of this session starts from; None if the cache is switched off."""
        return CacheUse(self._kept.get(key), self._era) if self._most else None

    def keep(self, key: SessionKey, new: Remembered, era: int) -> None:
        """Remember this of a session instead of what was remembered before.

        Nothing is remembered if the cache was cleared after `era`, because something was destroyed while it was read.
        """
        with self._lock:
            self._drop(key)
            if new.weight <= self._most and era == self._era:
                self._kept[key] = new
                self._weigh(new.weight)

    def counted(
        self, key: SessionKey, entries: Sequence[Entry], counter: TokenCounter, runner: Runner
    ) -> Mapping[str, int]:
        """Start counting entries that are about to be appended to a remembered session, while the store writes them.

        Returns a mapping of counts by text. It is filled by the time the store has answered, or stays empty: only short
        texts are counted, and only by a built-in encoding, since a counter of the user may be slow.
        """
        counts: dict[str, int] = {}
        remembered = self._kept.get(key) if runner.suspends else None
        if (
            remembered is None
            or not isinstance(counter, Encoding)
            or not counter.loaded
            or counter.name != remembered.counter
        ):
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
        """Remember entries that were appended to a session directly after the remembered ones.

        Nothing is remembered if the session's mark has changed, or if an entry could be changed by the caller or will
        be read back differently; the next context then reads the entries.
        """
        if key not in self._kept or len(entries) > AHEAD or not all(map(_is_fixed, entries)):
            return
        first, count, weight = entries[0].seq, len(entries), weight_of(entries)
        appended = Stretch(first - 1, first + count, list(entries), weight)
        last_seen = store.seen(key)
        with self._lock:
            remembered = self._kept.get(key)
            if (
                remembered is None
                or last_seen is None
                or remembered.mark != last_seen.mark
                or remembered.ahead + count > AHEAD
            ):
                return
            if any(stretch.high == first for stretch in remembered.stretches):
                stretches = tuple(stretch.joined(appended) or stretch for stretch in remembered.stretches)
                self._kept[key] = msgspec.structs.replace(
                    remembered, stretches=stretches, ahead=remembered.ahead + count
                )
                self._weigh(weight)
                if counts and remembered.cached.view is not None:
                    _note(entries, counts, remembered.cached.view.memo)

    def unstored(self) -> list[Unstored]:
        """Return the sessions with counts that are not stored yet."""
        with self._lock:
            return [(key, kept) for key, kept in self._kept.items() if kept.unstored]

    def clear(self) -> None:
        """Empty the cache; contexts that are being computed now will not be remembered, either."""
        with self._lock:
            self._kept.clear()
            self._weight, self._era = 0, self._era + 1

    def _weigh(self, added: int) -> None:
        """Add to the total weight, and while that is too much, drop a random session of the older half.

        Dropping the oldest one would be the worst choice for sessions that are used in turn: each would be dropped just
        before its next use.
        """
        self._weight += added
        while self._weight > self._most:
            number = int.from_bytes(os.urandom(4)) % ((len(self._kept) + 1) // 2)
            self._drop(next(islice(self._kept, number, None)))

    def _drop(self, key: SessionKey) -> None:
        old = self._kept.pop(key, None)
        self._weight -= old.weight if old is not None else 0


class Sent(msgspec.Struct, frozen=True):
    """The numbers of a context that itself must not be kept in memory, because it shows withheld text."""

    counted: int
    revision: int
    margin: float

    @classmethod
    def of(cls, context: Context) -> Sent:
        """Return the numbers of this context."""
        return cls(context.counted, context.revision, context.margin)
