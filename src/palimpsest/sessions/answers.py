"""Answers what pure code asks of a session's log (`palimpsest.context.asks`), from a store. Reads only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TypeVar

from palimpsest.context.asks import Ask, Compacted, Done, Long, Newest, Page, Places, Recalled, Steps, advance
from palimpsest.context.layout import Recollection
from palimpsest.errors import PalimpsestError, StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.sessions.remembered import Recall, Stretch, weight_of
from palimpsest.stores import Store
from palimpsest.stores.values import Standing

T = TypeVar("T")

LIGHT = 176 * 1024
"""Bytes of entries, as `weight_of` has it, up to which what is computed of them takes some two milliseconds at most,
mostly half of one: a change of threads, with what it costs all others, takes as long."""


async def answered(
    store: Store, key: SessionKey, counter: str, begin: Callable[[], Steps[T]], recall: Recall | None = None
) -> T:
    """Return what the steps come to that `begin` begins. Entries have what this counter counts of them.

    What `recall` has is not read again, where it still holds; it has what was read, then.

    All is read in one go, where the store's verbs run, and nothing of it twice. What is computed in between holds up no
    event loop: it is done in a thread, but where it is made of few entries and does not say that it takes long. Steps
    that ask for the head are told the one that was seen last: whatever is read tells the one that is there, too, and
    where that is another they begin again.
    """

    async def read() -> T:
        done = await _Answers(store, key, counter, store.seen(key), recall).run(begin())
        while done is None:
            done = await _Answers(store, key, counter, None, recall).run(begin())
        return done.value

    return await store.together(read, reads=True)


def at_hand(
    store: Store, key: SessionKey, counter: str, begin: Callable[[], Steps[T]], recall: Recall
) -> Done[T] | None:
    """What the steps that `begin` begins come to where all that they ask for is remembered, and little; None where not.

    It is computed at once, on whatever thread this is: a change of threads, and back, would take as long.
    """
    before = recall.before
    if before is None or before.weight > LIGHT:
        return None
    told = store.glance(key)
    if told is None or not before.holds(told.mark, counter):
        return None
    return _Answers(store, key, counter, told, recall).at_hand(begin(), told)


class _Answers:
    """Answers steps, once; `told` is how the session was seen last, if it was."""

    def __init__(
        self, store: Store, key: SessionKey, counter: str, told: Standing | None, recall: Recall | None
    ) -> None:
        self._store, self._key, self._counter, self._told, self._recall = store, key, counter, told, recall
        self._before = recall or Recall(None, 0)
        self._sure = told is None
        self._edge: Entry | None = None
        self._asked = self._read = self._shown = self._long = False
        self._weight = 0
        self._stretches: list[Stretch] = []
        self._compacted: dict[int, Compaction] = {}

    async def run(self, steps: Steps[T]) -> Done[T] | None:
        """What the steps come to; None where the session was not as they were told, and so they are to begin again."""
        store = self._store
        answer: object = None
        looked = False
        while True:  # a blocking store is in its own thread here
            here = store.blocking or looked or not (self._long or self._weight > LIGHT)
            try:
                ask = advance(steps, answer) if here else await store.apart(self._onward, steps, answer)
            except PalimpsestError:  # it may be of a session that is another by now
                if self._asked and await self._is_other():
                    return None
                raise
            if isinstance(ask, Done):
                if self._asked and await self._is_other():
                    return None
                if self._recall is not None and self._told is not None:
                    self._recall.read(self._told.mark, self._stretches)
                return ask
            looked = isinstance(ask, Newest)
            if isinstance(ask, Long):
                self._long, answer = True, None
            elif isinstance(ask, Recalled):
                answer = self._recalled()
            elif isinstance(ask, Newest):
                if self._asked and await self._is_other():
                    return None
                answer = (await self._newest()).head
            else:
                answer = await self._answer(ask)
                if answer is None:
                    return None

    def at_hand(self, steps: Steps[T], told: Standing) -> Done[T] | None:
        """What the steps come to by what is at hand, the session being as it was told; None where that will not do."""
        ask = advance(steps, None)
        while not isinstance(ask, Done):
            match ask:
                case Newest():
                    found: tuple[object] | None = (told.head,)
                case Recalled():
                    found = (self._recalled(),)
                case Long():
                    found = None
                case _:
                    found = self._at_hand(ask)
            if found is None:
                return None
            ask = advance(steps, found[0])
        if self._recall is not None:
            self._recall.read(told.mark, self._stretches)
        return ask

    def _onward(self, steps: Steps[T], answer: object) -> Ask | Done[T]:
        """As `advance`, up to what has to be waited for: in a thread, so that all between two waits is one change."""
        ask = advance(steps, answer)
        while (found := self._at_hand(ask)) is not None:
            ask = advance(steps, found[0])
        return ask

    def _at_hand(self, ask: Ask | Done[T]) -> tuple[object] | None:
        """The answer that nothing has to be read for; None where there is none."""
        match ask:
            case Long():
                return (None,)
            case Newest() if self._asked and self._sure and self._read:
                seen = self._store.seen(self._key)
                return (seen.head,) if seen is not None else None
            case Page():
                found, rest = self._known(ask)
                return (found,) if rest is None else None
            case Compacted(revision) if revision in self._compacted:
                return (self._compacted[revision],)
        return None

    def _recalled(self) -> Recollection | None:
        """What was remembered, where it holds for the session as it was told."""
        before = self._recall.before if self._recall is not None else None
        if before is None or self._told is None or not before.holds(self._told.mark, self._counter):
            return None
        head, edge = self._told.head, before.edge if self._store.remote else None
        if edge is not None and (edge.seq, edge.revision) != (head.next_seq - 1, head.revision):
            self._edge = edge
        self._stretches, self._shown = list(before.stretches), before.recollection.view is not None
        self._weight = before.weight
        return before.recollection

    async def _newest(self) -> Standing:
        """How the session is, as far as is known: as this process has seen it since something of it was read."""
        first, self._asked = not self._asked, True
        if first and self._told is not None:
            return self._told
        seen = self._store.seen(self._key) if self._read else None
        now = seen or await self._store.standing(self._key)
        if first:
            self._told = now
        return now

    async def _is_other(self) -> bool:
        """Whether the session turns out to be another than was told, where nothing that was read has said it yet."""
        if self._edge is not None:
            edge = self._edge.seq
            self._sure = await self._paged(Page(edge, edge + 1, 1), 0) is not None
        if not self._sure:
            self._sure = _same(self._told, await self._store.standing(self._key))
            self._read = self._sure
        return not self._sure

    async def _answer(self, ask: Ask) -> object:
        """What is read of the store; None where that shows the session as another than was told."""
        match ask:
            case Page():
                return await self._page(ask)
            case Places(seqs):
                found = await self._store.fetch(self._key, seqs, counter=self._counter)
                self._weight += weight_of(found)
                return found
            case Compacted(revision):
                nothing = Page(0, 1, 1)  # what is read tells how the session is, too
                if revision not in self._compacted and await self._paged(nothing, revision) is None:
                    return None
                return self._compacted[revision]
        raise AssertionError(f"nobody asks {ask}")

    async def _page(self, ask: Page) -> list[Entry] | None:
        """A page, of which is read what was not read before."""
        found: list[Entry] = []
        rest: Page | None = ask
        while rest is not None:
            known, rest = self._known(rest)
            found += known
            if rest is not None:
                piece = self._unknown(rest)
                more = await self._read_page(piece)
                if more is None:
                    return None
                found += more
                rest = _behind(rest, piece, len(more))
        return found

    async def _read_page(self, ask: Page) -> list[Entry] | None:
        """A page as it is stored. With the first comes the newest compaction, which is likely to be asked for then."""
        ahead = self._told is not None and not (self._compacted or self._shown)
        revision = self._told.head.compaction if self._told is not None and ahead else 0
        if revision:
            with suppress(StoreCorrupt):  # a damaged record is told to who asks for it
                return await self._paged(ask, revision)
        return await self._paged(ask, 0)

    async def _paged(self, ask: Page, revision: int) -> list[Entry] | None:
        again = int(self._edge is not None and self._edge.seq == ask.after)
        now, entries, records = await self._store.page(
            self._key,
            after=ask.after - again,
            before=ask.before,
            limit=ask.limit + again,
            newest_first=ask.newest_first,
            counter=self._counter,
            revision=revision,
        )
        if self._recall is not None and self._told is not None and self._told.mark != now.mark:
            self._recall = None  # what was read is not of one session
        if self._asked and not self._sure:
            self._sure = _same(self._told, now)
            if not self._sure:
                return None
        if again and not self._goes_on(entries, ask):
            return None
        self._read = True
        self._compacted[revision] = (records[0].compaction if records else None) or Compaction()
        if ask.before - ask.after > 1:
            self._keep(ask, entries)
        return entries

    def _goes_on(self, entries: list[Entry], ask: Page) -> bool:
        """Whether what was read begins with the last entry that is remembered, which is taken out of it.

        A store that has lost what it had acknowledged may have other entries there by now: then all is read anew.
        """
        at = -1 if ask.newest_first else 0
        if ask.newest_first and len(entries) > ask.limit and entries[at].seq != ask.after:
            entries.pop()  # there are more than were asked for
        elif entries and self._edge is not None and entries[at].id == self._edge.id:
            entries.pop(at)
            self._edge = None
        else:
            self._before.forget()
            return False
        return True

    def _keep(self, ask: Page, answer: Sequence[Entry]) -> None:
        entries = list(answer[::-1] if ask.newest_first else answer)
        whole = len(entries) < ask.limit
        low = ask.after if whole or not ask.newest_first else entries[0].seq - 1
        high = ask.before if whole or ask.newest_first else entries[-1].seq + 1
        if self._recall is not None and any(entry.damaged for entry in entries):
            self._recall = None  # it may be repaired, or turn out to be whole
        weighed = self._recall is not None or not self._store.blocking
        new = Stretch(low, high, entries, weight_of(entries) if weighed else 0)
        self._weight += new.weight
        others = []
        for other in self._stretches:
            if (joined := new.joined(other)) is not None:
                new = joined
            elif other.low < new.low or new.high < other.high:
                others.append(other)
        self._stretches = [*others, new]

    def _known(self, page: Page) -> tuple[list[Entry], Page | None]:
        """What of a page was read before, from its beginning on, and the rest of it, if there is one."""
        at = page.before - 1 if page.newest_first else page.after + 1
        for stretch in self._stretches:
            low, high, entries = stretch.low, stretch.high, stretch.entries
            if low < at < high:
                first = bisect_left(entries, max(page.after, low) + 1, key=_seq)
                found = entries[first : bisect_left(entries, min(page.before, high), key=_seq)]
                found = found[: -page.limit - 1 : -1] if page.newest_first else found[: page.limit]
                return found, _behind(page, Page(low, high, page.limit, page.newest_first), len(found))
        return [], page

    def _unknown(self, page: Page) -> Page:
        """What of a page is to be read: from its beginning on to what was read before."""
        if page.newest_first:
            after = max((one.high - 1 for one in self._stretches if one.high < page.before), default=0)
            return Page(max(after, page.after), page.before, page.limit, newest_first=True)
        before = min((one.low + 1 for one in self._stretches if one.low > page.after), default=page.before)
        return Page(page.after, min(before, page.before), page.limit)


def _behind(page: Page, piece: Page, found: int) -> Page | None:
    """What is left of a page behind a piece of it in which so many entries were found; None: nothing."""
    if found == page.limit:
        return None
    if page.newest_first:
        rest = Page(page.after, piece.after + 1, page.limit - found, newest_first=True)
    else:
        rest = Page(piece.before - 1, page.before, page.limit - found)
    return rest if rest.before - rest.after > 1 else None


_seq = attrgetter("seq")


def _same(told: Standing | None, now: Standing) -> bool:
    """Whether a session is as it was told."""
    return told is not None and told.mark == now.mark and (told.head is now.head or told.head == now.head)
