"""Which of the engine's places are sealed, where they are stored, and how rows are checked against the heads that vouch
for them.

A place in a space of `VOUCHED` has a head that notes which of its rows were written anew and, for tables of `LISTED`,
which rows exist. For the engine a log has no head: that head is made here, and hidden from the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Named, Place, PlaceHead, Range, Row, Seen, Step
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.notes import NOTHING
from palimpsest.stores.encrypted.sealed_bytes import Floor, KeyMissing, SealedHead, Unsealed, Values, token
from palimpsest.stores.engine.forms import FIGURE, TOKENS, Spoilt
from palimpsest.stores.engine.items import ITEMS, LEASES, ORDER
from palimpsest.stores.engine.known import OWNED

LOG, SESSION = "log", "session"
VOUCHED = (LOG, "tree")
LISTED = ("record", "share")
CLEAR = (TOKENS, FIGURE)
"""Prefixes of the tables that are not sealed. Leases and the counters of namespaces (`ORDER`) are not, either."""

KEPT = 4096
"""Heads that are remembered at once."""


class AsStored(str):
    """A space that says whose a session is, or the name of an item, as stored: a keyed token, which stays as it is."""

    __slots__ = ()


class Looking(NamedTuple):
    """A look, translated for the backend below.

    `places` are the stored places of `asks`. `below` are the asks to send down: those of `asks` in their order, then
    heads of logs. `floors` are the heads already known for each of `below`: an answer may not be older.
    """

    asks: Sequence[Ask]
    places: Sequence[Place]
    below: Sequence[Ask]
    floors: Sequence[SealedHead | None]


class Rows:
    """The addresses and the rows of a sealed store."""

    def __init__(self, url: str, values: Values, markings: Markings) -> None:
        self.values, self._url = values, url
        self._token = lru_cache(4096)(partial(token, markings.secret))  # a change of keys keeps this secret
        self._opener = lru_cache(64)(lambda place, table: lru_cache(4096)(values.opener(place, table)))

    # --- addresses

    def at(self, place: Place) -> Place:
        """Return where a place is stored. The name of an item, and the user in a space, become keyed tokens."""
        if not hides(place):
            return place._replace(space=self.space(place.tenant, place.space)) if place.space[:5] == OWNED else place
        name = place.name
        return place._replace(name=str(name) if isinstance(name, AsStored) else self._token("name", *place))

    def space(self, tenant: str, space: str) -> str:
        """Return the space under which places of `space` are stored. Only a space that names a user is another."""
        if not space.startswith(OWNED) or space == OWNED or isinstance(space, AsStored):
            return str(space)
        return OWNED + self._token("user", tenant, space)

    def id_token(self, place: Place, table: str, id: str) -> str:
        """Return the keyed token under which the store below finds rows of this id; "" for none."""
        return self._token("id", *place[:3], table, id) if id else ""

    def describe(self, place: Place, head: SealedHead | None = None) -> str:
        """Describe a stored place for messages; an item by the name in its `head`, if that is given."""
        if hides(place):
            return f"the item {place.home}/{head.name if head is not None else place.name}"
        if place.space.startswith(OWNED):
            return f"the note about the owner of session {place.name!r}"
        if place.space == LOG:
            return f"the note about the logs of session {place.home!r}"
        return f"the head of {place.space} {place.name or place.home!r}"

    def translate(self, asks: Sequence[Ask], known: Mapping[Place, SealedHead]) -> Looking:
        """Translate asks for the backend below, and ask for the heads that vouch for the answers as well."""
        places = [self.at(ask.place) for ask in asks]
        below, vouching = list[Ask](), dict[Place, bool]()  # each vouching place, and whether `below` asks for its head
        for ask, place in zip(asks, places, strict=True):
            with_head = ask.head
            if place.space == SESSION and with_head:
                vouching.setdefault(Place(*place[:2], LOG, ""), False)
            elif ask.rows and place.space in VOUCHED and not vouching.get(place):
                with_head = vouching[place] = True
            below.append(Ask(place, [self._asked(place, rows) for rows in ask.rows], with_head))
        below += [Ask(place) for place, is_asked in vouching.items() if not is_asked]
        return Looking(asks, places, below, [known.get(ask.place) for ask in below])

    def _asked(self, place: Place, rows: Range | Named) -> Range | Named:
        """Translate an ask for rows of a stored place."""
        if isinstance(rows, Range) or is_clear(place, rows.table):
            return rows
        if place.space != LOG and place.space in VOUCHED:  # a missing row is noticed only when all are read
            return Range(rows.table, [(0, LAST_KEY)])
        return Named(rows.table, [self.id_token(place, rows.table, id) for id in rows.ids])

    def sealed(self, place: Place, table: str, row: Cells, token: bytes, key_id: str) -> Row:
        """Return a row as it is stored."""
        return self.values.row(place, table, row, token, key_id, self.id_token(place, table, row[2]))

    # --- rows that were read

    def open(
        self, place: Place, asked: Range | Named, rows: Sequence[Cells], head: SealedHead | None
    ) -> Sequence[Cells]:
        """Open the rows that the store below gave for `asked`, of a stored place that has this head.

        A row of a log that is not authentic, or is an old one, comes as `Spoilt`: reading its value fails.
        Raises StoreCorrupt when listed rows are missing, or a row of the tree is not authentic; WrongKey.
        """
        table = asked.table
        if is_clear(place, table):
            return rows
        vouched = place.space in VOUCHED
        notes = head.notes if head is not None and vouched else NOTHING
        in_tree, listed = vouched and place.space != LOG, vouched and table in LISTED
        if listed and (in_tree or isinstance(asked, Range)):
            sent = self._asked(place, asked)
            expected = notes.keys(table, sent.spans) if isinstance(sent, Range) else []
            if isinstance(asked, Range):
                expected = (expected[::-1] if asked.newest_first else expected)[: asked.limit]
            if [row[0] for row in rows] != expected:
                reason = f"the {table}s of session {place.home!r} are not the committed ones"
                raise StoreCorrupt(self._url, f"{reason}: some are missing, or an earlier state was put back")
        open_row = self._opener(place, table) if in_tree else self.values.opener(place, table)
        is_noted, opened = table in notes.tables, list[Cells]()
        for row in rows:
            noted = notes.token(table, row[0]) if is_noted else None
            try:
                plain, row_token = open_row(row)
                _check(row_token, noted if listed else noted or b"")
            except Unsealed as fault:
                if fault.key_id or in_tree:
                    raise fault.as_error(self._url, describe_row(place, table, row[0])) from None
                opened.append((row[0], Spoilt.of(b"", f"it {fault.why}"), "", row[3]))
                continue
            if row[3] != plain[3] or ((row[2] or plain[2]) and row[2] != self.id_token(place, table, plain[2])):
                reason = "its lookup key or its time of expiry was changed"
                plain = plain[0], Spoilt.of(plain[1], reason), plain[2], plain[3]
            opened.append(plain)
        if in_tree and isinstance(asked, Named):
            return [row for row in opened if row[2] in asked.ids]
        return opened


class Heads:
    """Opens heads, and remembers the newest one seen of each stored place: an older one is refused from then on."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows = url, rows
        self.by_place: dict[Place, SealedHead] = {}
        self.missing = 0
        """How many heads were returned as unread because their key is not given."""

    def open_all(self, looking: Looking, seen: Sequence[Seen]) -> dict[Place, SealedHead | None]:
        """Open the heads among what the store below gave for `looking`, each by its stored place.

        Raises StoreCorrupt when the heads of a session and its log disagree, WrongKey for a missing key. A look for
        heads alone gives what cannot be trusted or opened as unread instead, so that it does not stop the others.
        """
        heads, alone = dict[Place, SealedHead | None](), not any(ask.rows for ask in looking.asks)
        for ask, answer, floor in zip(looking.below, seen, looking.floors, strict=True):
            if ask.head:
                is_needed = ask.place.space == LOG and ask.place in looking.places  # its rows are about to be written
                heads[ask.place] = self.open_or_unread(ask.place, answer.head, floor, alone=alone and not is_needed)
        for place, head, log in at_odds(list(heads.items())):
            unread, stale = log and log.spoilt, f"{self._rows.describe(place)} and the notes about its rows"
            fault = StoreCorrupt(self._url, f"{stale} are from different times: one of them was put back")
            fault = unread.error if unread is not None else fault
            if not alone:
                raise fault
            heads[place] = SealedHead.unread(head.stored, fault, unread.sealed if unread is not None else None)
        return heads

    def open(self, place: Place, stored: PlaceHead | None, floor: SealedHead | None) -> SealedHead | None:
        """Open the head of a stored place, and remember it; None if there is none.

        `floor` is the head that was known before this one was asked for. Raises StoreCorrupt when this one is older or
        cannot be read, and WrongKey.
        """
        if stored is None:
            self.by_place.pop(place, None)
            return None
        if is_clear(place):
            return SealedHead(stored, stored)
        if isinstance(stored.hot, Spoilt):
            raise StoreCorrupt(self._url, stored.hot.why)
        head = self.by_place.get(place)
        if head is None or head.stored != stored:
            try:
                head = self._rows.values.opened(place, stored, head)
            except Unsealed as fault:
                raise fault.as_error(self._url, self._rows.describe(place, head)) from None
        if floor is not None and head.is_before(floor):
            reason = "is an earlier version than before, lost or put back; if you know why, open the memory anew"
            raise StoreCorrupt(self._url, f"{self._rows.describe(place, head)} {reason}")
        self.remember(place, head)
        return head

    def open_or_unread(
        self, place: Place, stored: PlaceHead | None, floor: SealedHead | None, *, alone: bool
    ) -> SealedHead | None:
        """Open a head like `open`, but return `SealedHead.unread` for one that cannot be opened instead of raising.

        So one damaged head does not stop a listing of the others. Only when heads are looked at `alone`: rows of the
        same look could not be checked against a head that cannot be opened, so StoreCorrupt is raised then.
        """
        try:
            return self.open(place, stored, floor)
        except StoreCorrupt as fault:
            if not alone or stored is None:
                raise
            self.missing += isinstance(fault, KeyMissing)
            head = SealedHead.unread(stored, fault)
            if head.spoilt is not None and place.space != SESSION:  # of a session the engine says what can be done
                head.spoilt.fault = fault
            return head

    def remember(self, place: Place, head: SealedHead) -> None:
        """Remember the head of a stored place, unless a later one is remembered already."""
        latest = self.by_place.get(place)
        if latest is not None and head.is_before(latest):
            return
        if len(self.by_place) >= KEPT:
            self.by_place.clear()
        self.by_place[place] = head


def _check(row_token: bytes, noted: bytes | None) -> None:
    """Raise Unsealed unless a row has the token that its head notes for it."""
    if row_token != noted:
        raise Unsealed("is an earlier version of itself: somebody put it back")


def hides(place: Place) -> bool:
    """Return whether the stored name of a place is a token."""
    return place.space.startswith(ITEMS)


def named(place: Place, head: SealedHead) -> Place:
    """Return the place as the engine knows it."""
    if place.space.startswith(OWNED):
        return place._replace(space=AsStored(place.space))
    if hides(place):
        return place._replace(name=AsStored(place.name) if head.spoilt is not None else head.name)
    return place


def is_clear(place: Place, table: str = "") -> bool:
    """Return whether a place, or a table of it, is stored unsealed."""
    return place.space in (LEASES, ORDER) or table.startswith(CLEAR)


def at_odds(
    heads: Sequence[tuple[Place, SealedHead | None]],
) -> list[tuple[Place, SealedHead, SealedHead | None]]:
    """Return the sessions whose heads cannot be relied on, each with its head and that of its log.

    The head of the log cannot be opened, or the two do not know the same of each other: then somebody has put an
    earlier one of them back. Only sessions are looked at whose log's head was looked for, too.
    """
    logs, doubtful = {place[:2]: log for place, log in heads if place.space == LOG}, []
    for place, head in heads:
        if head is None or head.spoilt is not None or place.space != SESSION or place[:2] not in logs:
            continue  # reading the value of one that could not be opened raises the error
        log = logs[place[:2]]
        moves = log.floors.get(place.name, 0) if log is not None else 0
        known = Floor(log.life, moves) if log is not None and moves else Floor()
        if (log is not None and log.spoilt is not None) or head.floor != known:
            doubtful.append((place, head, log))
    return doubtful


def is_noted(step: Step) -> bool:
    """Return whether a step changes what a head notes of its rows."""
    return step.place.space in VOUCHED and bool(
        step.destroys
        or any(not table.startswith(CLEAR) for table, _, _ in step.drop)
        or any(rows and table in LISTED for table, rows in step.put)
    )


def describe_row(place: Place, table: str, key: int) -> str:
    """Describe a row for messages."""
    what = {"entry": f"entry {key & 0xFFFFFFFF}", "record": f"the record of revision {key & 0xFFFFFFFF}"}
    return f"{what.get(table, f'{table} {key}')} of session {place.home!r}"
