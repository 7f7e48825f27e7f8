"""What of the engine's places is sealed, where it is kept, and how rows are held against the heads that vouch for them.

A place of `VOUCHED` spaces has a head that notes which of its rows were written anew, and of `LISTED` tables which rows
there are. For the engine a log has no head: that one is made here, and the engine does not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Named, Place, PlaceHead, Range, Row, Step
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.notes import NOTHING
from palimpsest.stores.encrypted.sealed_bytes import SealedHead, Unread, Unsealed, Values, token
from palimpsest.stores.engine.forms import FIGURE, TOKENS, Spoilt
from palimpsest.stores.engine.items import ITEMS, LEASES, ORDER
from palimpsest.stores.engine.known import OWNED

LOG, SESSION = "log", "session"
VOUCHED = (LOG, "tree")
LISTED = ("record", "share")
CLEAR = (TOKENS, FIGURE)
"""How tables begin that are in clear. So are leases, and the counters of namespaces."""


KEPT = 4096
"""Heads that are remembered at once."""


class Owned(str):
    """The space of what says whose a session is, as it is kept: it does not name the user, and is found by that."""

    __slots__ = ()


class Rows:
    """The addresses and the rows of a sealed store."""

    def __init__(self, url: str, values: Values, markings: Markings) -> None:
        self.values, self._url = values, url
        self._token = lru_cache(4096)(partial(token, markings.secret))  # which no change of keys changes
        self._opener = lru_cache(64)(lambda place, table: lru_cache(4096)(values.opener(place, table)))

    # --- addresses

    def at(self, place: Place) -> Place:
        """Where a place is kept: names of items are tokens, and so are users."""
        if not hides(place):
            return place._replace(space=self.space(place.tenant, place.space)) if place.space[:5] == OWNED else place
        return place._replace(name=self._token("name", *place))

    def space(self, tenant: str, space: str) -> str:
        """Where places of a space are kept: one that says whose a session is does not name the user."""
        if not space.startswith(OWNED) or space == OWNED or isinstance(space, Owned):
            return str(space)
        return OWNED + self._token("user", tenant, space)

    def found_by(self, place: Place, table: str, id: str) -> str:
        """What rows of this id are found by where they are kept."""
        return self._token("id", *place[:3], table, id) if id else ""

    def what(self, place: Place, known: SealedHead | None = None) -> str:
        """What a place is, for messages."""
        if hides(place):
            return f"the item {place.home}/{known.name if known is not None else place.name}"
        if place.space.startswith(OWNED):
            return f"the note whose session {place.name!r} is"
        if place.space == LOG:
            return f"what is noted of the logs of session {place.home!r}"
        return f"the head of {place.space} {place.name or place.home!r}"

    def asked(self, ask: Ask, place: Place, head: bool) -> Ask:
        """What is asked of a place where it is kept."""
        return Ask(place, [self._asked(place, one) for one in ask.rows], head)

    def _asked(self, place: Place, one: Range | Named) -> Range | Named:
        if isinstance(one, Range) or is_clear(place, one.table):
            return one
        if place.space != LOG and place.space in VOUCHED:  # that none is missing is known of all of them together
            return Range(one.table, [(0, LAST_KEY)])
        return Named(one.table, [self.found_by(place, one.table, id) for id in one.ids])

    def sealed(self, place: Place, table: str, row: Cells, token: bytes, key_id: str) -> Row:
        """A row as it is stored."""
        return self.values.row(place, table, row, token, key_id, self.found_by(place, table, row[2]))

    # --- what is read

    def opened(
        self, place: Place, asked: Range | Named, rows: Sequence[Cells], known: SealedHead | None
    ) -> Sequence[Cells]:
        """The rows that were asked for, of a place with the head `known`. Raises StoreCorrupt, WrongKey.

        One that is not authentic comes without its value: who reads it tells.
        """
        table = asked.table
        if is_clear(place, table):
            return rows
        vouched = place.space in VOUCHED
        notes = known.notes if known is not None and vouched else NOTHING
        own, listed = vouched and place.space != LOG, vouched and table in LISTED
        if listed and (own or isinstance(asked, Range)):
            all_of = self._asked(place, asked)
            wanted = notes.keys(table, all_of.spans) if isinstance(all_of, Range) else []
            if isinstance(asked, Range):
                wanted = (wanted[::-1] if asked.newest_first else wanted)[: asked.limit]
            if [row[0] for row in rows] != wanted:
                told = f"the {table}s of session {place.home!r} are not those that were committed"
                raise StoreCorrupt(self._url, f"{told}: some are missing, or of an earlier time")
        opened = self._opener(place, table) if own else self.values.opener(place, table)
        is_noted, found = table in notes.tables, list[Cells]()
        for row in rows:
            token = notes.token(table, row[0]) if is_noted else None
            try:
                there, mark = opened(row)
                _check(mark, token if listed else token or b"")
            except Unsealed as fault:
                if fault.key_id or own:
                    raise fault.told(self._url, what_row(place, table, row[0])) from None
                found.append((row[0], Spoilt.of(b"", f"it {fault.why}"), "", row[3]))
                continue
            if row[3] != there[3] or ((row[2] or there[2]) and row[2] != self.found_by(place, table, there[2])):
                told = "what it is found by, or when it expires, was changed"
                there = there[0], Spoilt.of(there[1], told), there[2], there[3]
            found.append(there)
        if own and isinstance(asked, Named):
            return [row for row in found if row[2] in asked.ids]
        return found


class Heads:
    """Opens heads, and remembers them by where they are kept: none older than one that was seen is taken for newest."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows = url, rows
        self.all: dict[Place, SealedHead] = {}

    def opened(self, place: Place, stored: PlaceHead | None, floor: SealedHead | None) -> SealedHead | None:
        """The head of a place as it is stored, which is no earlier one than `floor`. Raises StoreCorrupt, WrongKey."""
        if stored is None:
            self.all.pop(place, None)
            return None
        if is_clear(place):
            return SealedHead(stored, stored)
        if isinstance(stored.hot, Spoilt):
            raise StoreCorrupt(self._url, stored.hot.why)
        known = self.all.get(place)
        if known is None or known.stored != stored:
            try:
                known = self._rows.values.opened(place, stored, known)
            except Unsealed as fault:
                raise fault.told(self._url, self._rows.what(place, known)) from None
        if floor is not None and known.is_before(floor):
            told = "is of an earlier time: a later one was there before; if you know why, open the memory anew"
            raise StoreCorrupt(self._url, f"{self._rows.what(place, known)} {told}")
        self.remember(place, known)
        return known

    def seen(
        self, place: Place, stored: PlaceHead | None, floor: SealedHead | None, *, alone: bool
    ) -> SealedHead | None:
        """As `opened`. A session's that cannot be opened is not, so that it keeps nobody from others, where it is
        looked at `alone`: beside it rows would be taken for those that it vouches for."""
        try:
            return self.opened(place, stored, floor)
        except StoreCorrupt as fault:
            if not alone or place.space != SESSION or stored is None:
                raise
            return SealedHead.unread(stored, fault.reason)

    def remember(self, place: Place, known: SealedHead) -> None:
        """Let this be the newest head that was seen of a place, unless a later one was."""
        before = self.all.get(place)
        if before is not None and known.is_before(before):
            return
        if len(self.all) >= KEPT:
            self.all.clear()
        self.all[place] = known


def _check(mark: bytes, token: bytes | None) -> None:
    """Raise Unsealed unless a row has the token that is noted of it."""
    if mark != token:
        raise Unsealed("is of an earlier time: it was changed since")


def hides(place: Place) -> bool:
    """Whether the name of a place is a token where it is kept."""
    return place.space.startswith(ITEMS)


def is_clear(place: Place, table: str = "") -> bool:
    """Whether what a place has, or rows of a table, are not sealed."""
    return place.space in (LEASES, ORDER) or table.startswith(CLEAR)


def agrees(heads: Sequence[tuple[Place, SealedHead | None]]) -> bool:
    """Whether heads of sessions, and what is noted of logs, know the same of each other, where both are there."""
    logs = {place[:2]: log for place, log in heads if place.space == LOG}
    for place, one in heads:
        if isinstance(one and one.plain.hot, Unread):
            continue  # whoever reads it is told
        if one is not None and place.space == SESSION and place[:2] in logs:
            log = logs[place[:2]]
            moves = log.floors.get(place.name, 0) if log is not None else 0
            if one.floor != (log.life if log is not None and moves else b"", moves):
                return False
    return True


def is_noted(step: Step) -> bool:
    """Whether a step changes what a head notes of rows."""
    return step.place.space in VOUCHED and bool(
        step.destroys
        or any(not table.startswith(CLEAR) for table, _, _ in step.drop)
        or any(rows and table in LISTED for table, rows in step.put)
    )


def what_row(place: Place, table: str, key: int) -> str:
    """What a row is, for messages."""
    what = {"entry": f"entry {key & 0xFFFFFFFF}", "record": f"the record of revision {key & 0xFFFFFFFF}"}
    return f"{what.get(table, f'{table} {key}')} of session {place.home!r}"
