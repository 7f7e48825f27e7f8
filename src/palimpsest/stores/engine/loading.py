"""Sessions that come in from elsewhere.

What comes in is a log of a number that nobody reads yet. More entries than go into one step are put piece by piece, so
that no store has to take all of them at once, and other writers go on in between. Then one step makes the session.
Until then a place says that the log is being laid: who dies meanwhile leaves it, and it goes when it has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.withdrawal import buried
from palimpsest.stores.backend import Cells, Place, PlaceHead, Refusal, Seen, Step
from palimpsest.stores.engine.forms import LAST, entry_row, new_log, record_row
from palimpsest.stores.engine.known import LAID, PATIENCE, Known, noted
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.sessions import Made, Sessions
from palimpsest.stores.engine.trees import dropped, dropping, figures_of, read_by, spans_of
from palimpsest.stores.engine.whole_sessions import of_removal, removed
from palimpsest.stores.rules import Looks, expect_of, heads_at
from palimpsest.stores.values import Dump

PIECE, BYTES = 1000, 2**22
"""Rows, and bytes of rows, that are put in one step."""


class Loading:
    """Loads sessions, and takes away what nobody has finished loading."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large, self._clock = sessions, large, sessions.clock
        self._backend, self._url = sessions.backend, sessions.url

    async def load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        known = await self._sessions.find(key)
        _head(known, dump, replace)
        new = msgspec.structs.replace(known, log=new_log(), head=Head())
        laid, last = 0, list[Cells]()
        try:
            for piece in in_pieces(entry_row(new.log, buried(one)) for one in dump.entries):
                if last:
                    laid += 1  # whoever is interrupted does not know whether it was
                    await self._lay(new, laid - 1, last)
                last = piece
            await self._make(new, dump, replace, last, laid)
        except BaseException:
            if laid:
                await self._backend.surely(lambda: self.taken_away(_laid_at(new)))
            raise

    async def _lay(self, new: Known, number: int, piece: Sequence[Cells]) -> None:
        """Put the next piece of a log that nobody reads yet."""
        while True:
            put, more = await self._large.split(new, piece)
            at = self._clock()
            laid = Step(_laid_at(new), _count(number), _count(number + 1), expires=at + PATIENCE)
            refusal = await self._sessions.write([laid, Step(new.logs, rows_only=True, put=put), *more], at)
            if refusal is None:
                return
            _still_laid(new.key, refusal[0], number)

    async def _make(self, new: Known, dump: Dump, replace: bool, last: Sequence[Cells], laid: int) -> None:
        """Make the session in one step, of what was laid and the last piece."""

        async def made(known: Known, seen: list[Seen], at: int, look: Looks) -> Made:
            if known.place != new.place and laid:
                raise Conflict(f"session {new.key.session!r}", "was made anew elsewhere meanwhile: load it again")
            head = msgspec.structs.replace(_head(known, dump, replace), expires=None).renewed(at)
            after, step = msgspec.structs.replace(known, log=new.log, head=Head()).step(head, ())
            steps, drop, gone = [step], list[tuple[str, int, int]](), list[tuple[int, int]]()
            if laid:
                steps.append(Step(_laid_at(new), _count(laid)))
            if seen:
                tree, unread, _ = removed(self._url, known, seen)
                if tree.hot is not None:
                    tree.join(after, (), head.first_seq)
                steps.append(tree.step())
                drop, gone = dropped([known.log], unread), spans_of(unread)
                drop += figures_of(known.key.session, read_by(known))
            put, more = await self._large.within(look).split(known, last, gone)
            if dump.records:
                put.append(("record", [record_row(new.log, record) for record in dump.records]))
            steps += [Step(known.logs, rows_only=True, drop=drop, put=put, destroys=bool(drop)), *more]
            steps += noted(known, after)
            return [*steps, *await self._sessions.created(known, at)], [after]

        def refused(there: Refusal) -> None:
            if laid:
                _still_laid(new.key, there[1], laid)

        await self._sessions.change(new.key, of_removal, made, refused)

    # --- what nobody has finished

    async def taken_away(self, place: Place) -> None:
        """Take away a log that was being laid, unless it has become a session's."""
        owner = Place(place.tenant, place.home, "session", place.home)
        new = Known(SessionKey(place.tenant, place.home), owner, int(place.name))
        unread = [(new.log, 0, LAST)]
        while True:
            (head,) = await heads_at(self._backend, [place])
            if head is None:
                return
            more = await self._large.let_go(new, spans_of(unread))
            gone = Step(new.logs, rows_only=True, drop=dropping(unread), destroys=True)
            if await self._sessions.write([Step(place, head.hot), gone, *more], self._clock()) is None:
                return

    async def clear(self, tenant: str) -> None:
        """Take away all logs of a tenant that are being laid: who lays them is told."""
        while page := await self._backend.places(tenant, LAID):
            for one in page:
                await self.taken_away(one.place)


def _laid_at(new: Known) -> Place:
    """Where it says that a log is being laid."""
    return new.place._replace(space=LAID, name=str(new.log))


def _count(pieces: int) -> bytes | None:
    return b"%d" % pieces if pieces else None


def _still_laid(key: SessionKey, there: PlaceHead | None, laid: int) -> None:
    """Raise Conflict unless so many pieces are laid."""
    if expect_of(there) != _count(laid):
        told = "took so long to come that what was there of it was taken away: load it again"
        raise Conflict(f"session {key.session!r}", told)


def _head(known: Known, dump: Dump, replace: bool) -> Head:
    """The head of an import, where a session may be in its place: what was seen of that one is seen as outdated.

    Raises Conflict where it may not be replaced.
    """
    before, after = known.head, dump.head
    if known.there is None:
        return after
    if not replace:
        told = "is there already; import with on_conflict='replace' or 'merge'"
        raise Conflict(f"session {known.key.session!r}", told)
    return msgspec.structs.replace(
        after,
        revision=max(after.revision, before.revision + 1),
        epoch=max(after.epoch, before.epoch + 1),
        epoch_reason="import",
    )


def in_pieces(rows: Iterable[Cells]) -> Iterator[list[Cells]]:
    """Rows in pieces that go into one step each, made when they are put."""
    piece, size = list[Cells](), 0
    for row in rows:
        if piece and (len(piece) >= PIECE or size + len(row[1]) > BYTES):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += len(row[1])
    if piece:
        yield piece
