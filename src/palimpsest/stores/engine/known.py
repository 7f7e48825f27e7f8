"""A session as this process last saw it, and the places that hold notes about sessions.

A session that lives in another home than that of its own name has a pointer in the home of its name. A bar in the other
home keeps a branch from being made there. A session that has a user has a note in its home, in a space that is named
after the user; a session that expires has a note that expires at the same time. These two notes are written, moved and
dropped in the same step as the head, so they never differ from it. They let a user's sessions, or the expired ones, be
listed without reading every session of the tenant.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from palimpsest.errors import Conflict, WrongUser
from palimpsest.log.codec import encode
from palimpsest.log.head import About, Head, SessionKey
from palimpsest.stores.backend import Ask, Batch, Named, Place, PlaceHead, Range, Refusal, Step
from palimpsest.stores.engine.forms import LAST, Share, cold_of, hot_of, new_log, same_cold
from palimpsest.stores.rules import expect_of
from palimpsest.stores.values import Standing

KNOWN = 4096
"""Sessions kept in the cache, so that an append need not read what this process wrote last."""

BARRED = "barred"
"""The space of bars. A bar keeps a branch from being made in another home, once a session of its name was made in the
home of that name."""

LAID = "laid"
"""The space of places that say, by their numbers, which logs are being laid."""

FAR = chr(0x10FFFF) * 1_100
"""Sorts behind every home."""

PATIENCE = 3_600_000_000
"""Microseconds for which work that somebody has begun and not finished is taken to be still under way."""

OWNED = "user/"
"""The prefix of the spaces that list a user's sessions."""

ENDS = "ends"
"""The space that says when sessions expire."""

_replace = msgspec.structs.replace


def before_all(text: str) -> str:
    """Return a text that sorts before this one and before every text it is a prefix of, with little in between."""
    last = ord(text[-1])
    return f"{text[:-1]}{chr(0xD7FF if last == 0xE000 else last - 1)}{FAR}" if last else text[:-1]


class Known(msgspec.Struct, frozen=True, gc=False):
    """A session as it was last seen: its place, its log, its head, and which parts of other logs it shares.

    `stored` is the head as it is stored. It is None if there is no such session: then `log` is an unused number for a
    session to be made, and `place` is in the home of its own name. `pointer` is the stored pointer, if any, to another
    home that the session is in or was in. `cold_version` is as in `Hot`, `era` as in `Sessions`. A session that has
    expired and was not swept yet counts as one that does not exist; `expired` holds what is stored of it, which must be
    removed before another is made.
    """

    key: SessionKey
    place: Place
    log: int
    head: Head = Head()
    stored: PlaceHead | None = None
    shares: tuple[Share, ...] = ()
    cold_version: int = 0
    pointer: bytes | None = None
    expired: Known | None = None
    era: int = 0

    @property
    def standing(self) -> Standing:
        """The session's head, with a mark that stays the same as long as only appends change the session."""
        mark = self.place, self.log, self.shares, self.cold_version, self.era
        return Standing(self.head, None if self.stored is None else mark)

    @property
    def logs(self) -> Place:
        """The place of its entries and records."""
        return _beside(self.place, "log")

    @property
    def tree(self) -> Place:
        """The place that says which session reads which log of its home."""
        return _beside(self.place, "tree")

    @property
    def large(self) -> Place:
        """The place of the large contents of its home."""
        return _beside(self.place, "large")

    def ask(self, *wanted: Range | Named) -> Ask:
        """Ask for rows of its logs. The place of the logs has no head: the session's own head vouches for them."""
        return Ask(self.logs, wanted, head=False)

    def pieces(self, after: int = 0, before: int | None = None) -> list[tuple[int, int, int]]:
        """Return where its entries with `after` < seq < `before` are, in order: (log, first seq, last seq).

        Entries before `first_seq` were cleared and are left out, though branches may still read them. The piece in its
        own log has no end.
        """
        first, last = max(after + 1, self.head.first_seq), LAST if before is None else min(before - 1, LAST)
        pieces: list[tuple[int, int, int]] = []
        for end, log in (*self.shares, (LAST, self.log)):
            if first <= end and first <= last:
                pieces.append((log, first, min(end, last)))
            first = max(first, end + 1)
        return pieces

    def spans(self, after: int = 0, before: int | None = None) -> list[tuple[int, int]]:
        """Return the spans of keys of these entries. They need not ascend, as logs have random numbers."""
        return [(log << 32 | low, log << 32 | high) for log, low, high in self.pieces(after, before)]

    def log_of(self, seq: int) -> int:
        """Return the log that holds the session's entry at `seq`."""
        return next((log for last, log in self.shares if seq <= last), self.log)

    def by_log(self, seqs: Iterable[int]) -> dict[int, list[int]]:
        """Group these seqs by the log that holds them."""
        grouped: dict[int, list[int]] = {}
        for seq in seqs:
            grouped.setdefault(self.log_of(seq), []).append(seq)
        return grouped

    def keys(self, seqs: Iterable[int]) -> list[int]:
        """Return the keys of its entries at these seqs.

        Seqs from `next_seq` on are kept, as others may have appended since the head was seen.
        """
        first = self.head.first_seq
        return [self.log_of(seq) << 32 | seq for seq in seqs if first <= seq <= LAST]

    def reads_as(self, other: Known) -> bool:
        """Return whether its entries are where those of `other` are."""
        return (
            (self.log, self.era) == (other.log, other.era)
            and self.shares == other.shares
            and self.head.first_seq == other.head.first_seq
            and self.place == other.place
        )

    def append_step(self, after: Head) -> tuple[Known, Step]:
        """Like `step`, after an append: only compares the few cold fields that an append can change."""
        before, head = self.stored, self.head
        if (
            before is None
            or after.pinned is not head.pinned
            or after.contexts is not head.contexts
            or after.erased != head.erased
            or after.about is not head.about
            or after.expires != head.expires
            or after.created != head.created
        ):
            return self.step(after)
        hot = hot_of(self.log, self.cold_version, after)
        return _replace(self, head=after, stored=PlaceHead(hot, before.cold)), Step(self.place, before.hot, hot)

    def barrier(self) -> list[Step]:
        """Return steps that change nothing but what every append over this session, as it is known, compares.

        That is its head, or, for a session that does not exist, the pointer; a left over pointer stays as it is.
        """
        if self.stored is not None:
            return [self.append_step(_replace(self.head, revision=self.head.revision + 1))[1]]
        pointer = self.pointer or new_pointer(self.place.home)
        return [Step(self.place), Step(pointer_place(self.key), self.pointer, pointer)]

    def step(self, after: Head, shares: tuple[Share, ...] | None = None) -> tuple[Known, Step]:
        """Return the session with another head, and other shares if given, and the step that writes them."""
        before, cold_version, cold = self.stored, self.cold_version, None
        new_shares = self.shares if shares is None else shares
        if before is None or new_shares is not self.shares or not same_cold(after, self.head):
            cold = cold_of(after, new_shares)
            if before is None or cold != before.cold:
                cold_version += 1
        hot = hot_of(self.log, cold_version, after)
        new_stored = PlaceHead(hot, cold if cold is not None else before.cold if before is not None else b"")
        known = _replace(self, head=after, stored=new_stored, shares=new_shares, cold_version=cold_version)
        return known, Step(self.place, before.hot if before is not None else None, hot, cold)


@lru_cache(KNOWN)
def _beside(place: Place, space: str) -> Place:
    """Return the place of this space in the same home, of which a home has only one."""
    return Place(place.tenant, place.home, space, "")


# --- where sessions are


class NotSweptYet(Conflict):
    """A session is to be made while an expired one of the same name is still stored: that must be ended first."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        super().__init__(f"session {key.session!r}", "has expired and is not destroyed yet: `sweep` the memory first")


def own_place(key: SessionKey) -> Place:
    """Return the place of a session that is in the home of its own name."""
    return Place(key.tenant, key.session, "session", key.session)


def bar_place(place: Place) -> Place:
    """Return the place of the bar that keeps a branch from being made at `place`."""
    return place._replace(space=BARRED)


def bar_step(place: Place, stored: PlaceHead | None, at: int) -> Step:
    """Return the step that sets or renews the bar, so that a branch prepared before this step is refused at `place`."""
    return Step(bar_place(place), expect_of(stored), encode(new_log()), expires=at + PATIENCE)


def pointer_place(key: SessionKey) -> Place:
    """Return the place of the pointer to the other home of a session."""
    return Place(key.tenant, key.session, "where", key.session)


def new_pointer(home: str) -> bytes:
    """Return a pointer to this home. It is unique, so it is never mistaken for an earlier one."""
    return encode((home, new_log()))


# --- what is noted beside their heads


def with_about(key: SessionKey, head: Head, about: About | None) -> Head:
    """Return the head of a session as an append with `about` finds it.

    A session that has no entries and no `about` yet takes this one. Raises WrongUser if the session is another user's,
    or nobody's.
    """
    if about is None:
        return head
    if head.about is None and head.next_seq == 1:
        return msgspec.structs.replace(head, about=about)
    if about.user is not None and head.user != about.user:
        raise WrongUser(key.session, about.user, head.user)
    return head


def note_steps(before: Known, after: Known | None) -> list[Step]:
    """Return the steps that bring a session's notes from `before` to `after` (None: no session any more)."""
    old_notes, new_notes = _notes(before if before.stored is not None else None), _notes(after)
    dropping = [Step(place, hot, destroys=True) for place, (hot, _) in old_notes.items() if place not in new_notes]
    changed = [(place, old_notes.get(place), note) for place, note in new_notes.items() if old_notes.get(place) != note]
    return [*dropping, *(Step(place, old and old[0], hot, expires=expires) for place, old, (hot, expires) in changed)]


def _notes(known: Known | None) -> dict[Place, tuple[bytes, int | None]]:
    """Return the notes of a session by place: their value and when they expire.

    The value names the session's log, which no later session of the same name has.
    """
    notes: dict[Place, tuple[bytes, int | None]] = {}
    if known is not None and known.head.user is not None:
        notes[known.place._replace(space=OWNED + known.head.user)] = encode(known.log), None
    if known is not None and known.head.expires is not None:
        ends = known.head.expires
        notes[known.place._replace(space=ENDS)] = encode((known.log, ends)), ends
    return notes


def accept_notes(batch: Batch, heads: Refusal) -> Batch | None:
    """Return the batch with its notes expected as they are stored, if nothing but notes refuses it; else None.

    The session's head is the authority. A note that is missing or left over, as from another program's copy, must not
    keep anybody from changing the session.
    """
    pairs = [(step, expect_of(head)) for step, head in zip(batch, heads, strict=True)]
    places = [step.place for step, stored_hot in pairs if not step.rows_only and step.expect != stored_hot]
    if not places or not all(place.space == ENDS or place.space.startswith(OWNED) for place in places):
        return None
    return [step if step.rows_only else _replace(step, expect=stored_hot) for step, stored_hot in pairs]


# --- what a caller expects


def check_expected(
    key: SessionKey, head: Head, revision: int | None, epoch: int | None = None, created: int = 0
) -> None:
    """Raise Conflict unless the head is at this revision and epoch, of the session that began at `created`.

    None, and 0 for `created`, stand for any.
    """
    if created and head.created != created:
        raise Conflict(f"session {key.session!r}", "was deleted or replaced by another writer: read it again")
    if revision is not None and head.revision != revision:
        raise Conflict(f"session {key.session!r}", f"is at revision {head.revision}, not {revision}: read it again")
    if epoch is not None and head.epoch != epoch:
        raise Conflict(f"session {key.session!r}", f"is in epoch {head.epoch}, not {epoch}: read it again")
