"""A session as it is known: where it is, its log, its head, what it shares; and the places that say something of it.

In the home of its name a place says where a session is that is elsewhere, and in another home one keeps a branch from
being made there. For a session that has a user there is a place in its home, in a space that the user's id is part of,
and for one that does not last for ever one that expires when it does. These two are made, moved and dropped in the step
that does so to the head: so they never differ from it, and nobody reads all sessions of a tenant to find those of one
user, or those that are over.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from palimpsest.errors import Conflict, WrongUser
from palimpsest.log.codec import encode
from palimpsest.log.head import About, Head, SessionKey
from palimpsest.stores.backend import Ask, Named, Place, PlaceHead, Range, Step
from palimpsest.stores.engine.forms import LAST, Share, cold_of, hot_of, new_log, same_cold
from palimpsest.stores.rules import expect_of
from palimpsest.stores.values import Standing

KNOWN = 4096
"""Sessions remembered at once, so that an append need not read what this process wrote last."""

BARRED = "barred"
"""The space of places that keep a branch from being made, whose session has been made in its own home instead."""

LAID = "laid"
"""The space of places that say which logs are being laid, by their numbers."""

FAR = chr(0x10FFFF) * 1_100
"""Sorts behind every home."""

PATIENCE = 3_600_000_000
"""Microseconds for which what was begun, and that nobody has finished, is left alone."""

OWNED = "user/"
"""How the spaces begin that say which sessions are a user's."""

ENDS = "ends"
"""The space that says when sessions are over."""

_replace = msgspec.structs.replace


def before_all(text: str) -> str:
    """A text that sorts before this one and all that begin so, with little between."""
    last = ord(text[-1])
    return f"{text[:-1]}{chr(0xD7FF if last == 0xE000 else last - 1)}{FAR}" if last else text[:-1]


class Known(msgspec.Struct, frozen=True, gc=False):
    """A session as it was last seen: its place, its log, its head, and what it shares of other logs.

    `there` is its head as it is stored. It is None where there is no such session: then `log` is a new number, for
    whoever makes it, and `place` is in the home of its own name. `pointer` is the stored value, if there is one, that
    says in which other home it is, or was. `stirred` is as in `Hot`, `era` the one of `Sessions`. A session that has
    expired and was not destroyed yet is taken for one that is not there, with what is stored of it in `over`: that goes
    before another is made.
    """

    key: SessionKey
    place: Place
    log: int
    head: Head = Head()
    there: PlaceHead | None = None
    shares: tuple[Share, ...] = ()
    stirred: int = 0
    pointer: bytes | None = None
    over: Known | None = None
    era: int = 0

    @property
    def standing(self) -> Standing:
        """How it is, as whoever reads it is told."""
        mark = self.place, self.log, self.shares, self.stirred, self.era
        return Standing(self.head, None if self.there is None else mark)

    @property
    def logs(self) -> Place:
        """Where its entries and records are."""
        return _beside(self.place, "log")

    @property
    def tree(self) -> Place:
        """Where it stands who reads which log of its home."""
        return _beside(self.place, "tree")

    @property
    def large(self) -> Place:
        """Where the large contents of its home are."""
        return _beside(self.place, "large")

    def ask(self, *wanted: Range | Named) -> Ask:
        """What asks for rows of its logs, which have no head but its own."""
        return Ask(self.logs, wanted, head=False)

    def pieces(self, after: int = 0, before: int | None = None) -> list[tuple[int, int, int]]:
        """Where its entries with `after` < seq < `before` are, in order: log, first seq, last seq.

        What it has cleared is not its own, though branches may read it. What is its own log's has no end.
        """
        first, last = max(after + 1, self.head.first_seq), LAST if before is None else min(before - 1, LAST)
        found: list[tuple[int, int, int]] = []
        for end, log in (*self.shares, (LAST, self.log)):
            if first <= end and first <= last:
                found.append((log, first, min(end, last)))
            first = max(first, end + 1)
        return found

    def spans(self, after: int = 0, before: int | None = None) -> list[tuple[int, int]]:
        """The spans of keys of these entries. They need not ascend, for logs have their numbers by chance."""
        return [(log << 32 | low, log << 32 | high) for log, low, high in self.pieces(after, before)]

    def log_of(self, seq: int) -> int:
        """The log that has the session's entry at `seq`."""
        return next((log for last, log in self.shares if seq <= last), self.log)

    def by_log(self, seqs: Iterable[int]) -> dict[int, list[int]]:
        """The seqs by the log that has them."""
        found: dict[int, list[int]] = {}
        for seq in seqs:
            found.setdefault(self.log_of(seq), []).append(seq)
        return found

    def keys(self, seqs: Iterable[int]) -> list[int]:
        """The keys of its entries at these places. There may be more by now than its head, as it was seen, says."""
        first = self.head.first_seq
        return [self.log_of(seq) << 32 | seq for seq in seqs if first <= seq <= LAST]

    def reads_as(self, other: Known) -> bool:
        """Whether its entries are where those of the other are."""
        return (
            (self.log, self.era) == (other.log, other.era)
            and self.shares == other.shares
            and self.head.first_seq == other.head.first_seq
            and self.place == other.place
        )

    def grown(self, after: Head) -> tuple[Known, Step]:
        """As `step`, of what was appended to: few things are cold that can be others then."""
        before, head = self.there, self.head
        if (
            before is None
            or after.pinned is not head.pinned
            or after.contexts is not head.contexts
            or after.about is not head.about
            or after.expires != head.expires
            or after.created != head.created
        ):
            return self.step(after)
        hot = hot_of(self.log, self.stirred, after)
        return _replace(self, head=after, there=PlaceHead(hot, before.cold)), Step(self.place, before.hot, hot)

    def step(self, after: Head, shares: tuple[Share, ...] | None = None) -> tuple[Known, Step]:
        """The session with another head, and shares, and the step that makes it so."""
        before, stirred, cold = self.there, self.stirred, None
        kept = self.shares if shares is None else shares
        if before is None or kept is not self.shares or not same_cold(after, self.head):
            cold = cold_of(after, kept)
            if before is None or cold != before.cold:
                stirred += 1
        hot = hot_of(self.log, stirred, after)
        there = PlaceHead(hot, cold if cold is not None else before.cold if before is not None else b"")
        known = _replace(self, head=after, there=there, shares=kept, stirred=stirred)
        return known, Step(self.place, before.hot if before is not None else None, hot, cold)


@lru_cache(KNOWN)
def _beside(place: Place, space: str) -> Place:
    """A place of the same home that a home has one of."""
    return Place(place.tenant, place.home, space, "")


# --- where sessions are


class Over(Conflict):
    """A session is to be made where one is stored still whose time is over: `key`. That has to be ended first."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        super().__init__(f"session {key.session!r}", "is over, and has not been destroyed yet: sweep")


def root(key: SessionKey) -> Place:
    """Where a session is that is in its own home."""
    return Place(key.tenant, key.session, "session", key.session)


def barred(place: Place) -> Place:
    """Where it says that a branch is not to be made at a place."""
    return place._replace(space=BARRED)


def bar_of(place: Place, there: PlaceHead | None, at: int) -> Step:
    """What keeps everybody from making a branch at a place who saw it before."""
    return Step(barred(place), expect_of(there), encode(new_log()), expires=at + PATIENCE)


def where_of(key: SessionKey) -> Place:
    """Where it says in which home a session is that is not in its own."""
    return Place(key.tenant, key.session, "where", key.session)


def pointer_to(home: str) -> bytes:
    """What says that a session is in this home. It is like no other, so that none is taken for an earlier one."""
    return encode((home, new_log()))


# --- what is noted beside their heads


def met(key: SessionKey, head: Head, about: About | None) -> Head:
    """The head of a session that somebody adds to who takes it for this one.

    One that nothing was added to yet, and of which nothing was said, becomes so. Raises WrongUser where it is another
    user's, or nobody's.
    """
    if about is None:
        return head
    if head.about is None and head.next_seq == 1:
        return msgspec.structs.replace(head, about=about)
    if about.user is not None and head.user != about.user:
        raise WrongUser(key.session, about.user, head.user)
    return head


def noted(before: Known, after: Known | None) -> list[Step]:
    """What has to become of the notes of a session, where they become others (None: none)."""
    was, now = _notes(before if before.there is not None else None), _notes(after)
    gone = [Step(place, hot, destroys=True) for place, (hot, _) in was.items() if place not in now]
    new = [(place, was.get(place), note) for place, note in now.items() if was.get(place) != note]
    return [*gone, *(Step(place, old and old[0], hot, expires=expires) for place, old, (hot, expires) in new)]


def _notes(known: Known | None) -> dict[Place, tuple[bytes, int | None]]:
    """Where something is noted, what stands there, and when it expires: it names the session's log, which no later one
    of its name has."""
    found: dict[Place, tuple[bytes, int | None]] = {}
    if known is not None and known.head.user is not None:
        found[known.place._replace(space=OWNED + known.head.user)] = encode(known.log), None
    if known is not None and known.head.expires is not None:
        ends = known.head.expires
        found[known.place._replace(space=ENDS)] = encode((known.log, ends)), ends
    return found
