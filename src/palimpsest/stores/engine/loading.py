"""Loading sessions that come in from elsewhere.

The entries of an import form a new log that nobody reads yet. More entries than fit into one step are put piece by
piece ("laid"), so that no store has to take all of them at once, and other writers get their turn in between. Then one
step makes the session. Until then a place records that the log is being laid; if the process dies, that place expires,
and the log is swept with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.withdrawal import buried
from palimpsest.stores.backend import Cells, Place, PlaceHead, Refusal, Seen, Step
from palimpsest.stores.engine.forms import LAST, entry_row, new_log, record_row
from palimpsest.stores.engine.known import LAID, PATIENCE, Known, note_steps
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.sessions import Prepared, Sessions
from palimpsest.stores.engine.trees import figure_drops, log_drops, logs_read_by, session_drops, spans_of
from palimpsest.stores.engine.whole_sessions import ask_removal, without_session
from palimpsest.stores.rules import AsyncLook, expect_of, heads_at
from palimpsest.stores.values import Dump

PIECE, BYTES = 1000, 2**22
"""Rows, and bytes of rows, that are put in one step at most."""


class Loading:
    """Loads sessions, and removes what was laid for a load that never finished."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large, self._clock = sessions, large, sessions.clock
        self._backend, self._url = sessions.backend, sessions.url

    async def load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        """Write a whole session, as `Store.load` says."""
        known = await self._sessions.find(key)
        _imported_head(known, dump, replace)
        incoming = msgspec.structs.replace(known, log=new_log(), head=Head())
        laid, pending = 0, list[Cells]()
        try:
            for piece in in_pieces(entry_row(incoming.log, buried(one)) for one in dump.entries):
                if pending:
                    laid += 1  # before it is laid: if that is interrupted, nobody knows whether it was
                    await self._lay(incoming, laid - 1, pending)
                pending = piece
            await self._make(incoming, dump, replace, pending, laid)
        except BaseException:
            if laid:
                await self._backend.surely(lambda: self.remove_laid(_laid_at(incoming)))
            raise

    async def _lay(self, incoming: Known, number: int, piece: Sequence[Cells]) -> None:
        """Put the next piece of a log that nobody reads yet."""
        while True:
            puts, large_steps = await self._large.split(incoming, piece)
            at = self._clock()
            record = Step(_laid_at(incoming), _pieces_laid(number), _pieces_laid(number + 1), expires=at + PATIENCE)
            refusal = await self._sessions.write(
                [record, Step(incoming.logs, rows_only=True, put=puts), *large_steps], at
            )
            if refusal is None:
                return
            _check_still_laid(incoming.key, refusal[0], number)

    async def _make(self, incoming: Known, dump: Dump, replace: bool, last_piece: Sequence[Cells], laid: int) -> None:
        """Make the session in one step, from the pieces that were laid and from the last one."""

        async def prepare(known: Known, seen: list[Seen], at: int, look: AsyncLook) -> Prepared:
            if known.place != incoming.place and laid:
                raise Conflict(f"session {incoming.key.session!r}", "was made anew by another writer: load it again")
            head = msgspec.structs.replace(_imported_head(known, dump, replace), expires=None).renewed(at)
            after, step = msgspec.structs.replace(known, log=incoming.log, head=Head()).step(head, ())
            steps, drop, unread_spans = [step], list[tuple[str, int, int]](), list[tuple[int, int]]()
            if laid:
                steps.append(Step(_laid_at(incoming), _pieces_laid(laid)))
            if seen:
                tree, unread, _ = without_session(self._url, known, seen)
                if tree.hot is not None:
                    tree.join(after, (), head.first_seq)
                steps.append(tree.step())
                drop, unread_spans = session_drops([known.log], unread), spans_of(unread)
                drop += figure_drops(known.key.session, logs_read_by(known))
            puts, large_steps = await self._large.within(look).split(known, last_piece, unread_spans)
            if dump.records:
                puts.append(("record", [record_row(incoming.log, record) for record in dump.records]))
            steps += [Step(known.logs, rows_only=True, drop=drop, put=puts, destroys=bool(drop)), *large_steps]
            steps += note_steps(known, after)
            return [*steps, *await self._sessions.creation_steps(known, at)], [after]

        def refused(heads: Refusal) -> None:
            if laid:
                _check_still_laid(incoming.key, heads[1], laid)

        await self._sessions.change(incoming.key, ask_removal, prepare, refused)

    # --- what nobody has finished

    async def remove_laid(self, place: Place) -> None:
        """Remove a log that was being laid, unless a session has been made of it."""
        owner = Place(place.tenant, place.home, "session", place.home)
        incoming = Known(SessionKey(place.tenant, place.home), owner, int(place.name))
        unread = [(incoming.log, 0, LAST)]
        while True:
            (head,) = await heads_at(self._backend, [place])
            if head is None:
                return
            large_steps = await self._large.release_steps(incoming, spans_of(unread))
            drop = Step(incoming.logs, rows_only=True, drop=log_drops(unread), destroys=True)
            if await self._sessions.write([Step(place, head.hot), drop, *large_steps], self._clock()) is None:
                return

    async def clear(self, tenant: str) -> None:
        """Remove all logs of a tenant that are being laid; loads under way are told by a Conflict."""
        while page := await self._backend.places(tenant, LAID):
            for one in page:
                await self.remove_laid(one.place)


def _laid_at(incoming: Known) -> Place:
    """Return the place that records that a log is being laid."""
    return incoming.place._replace(space=LAID, name=str(incoming.log))


def _pieces_laid(pieces: int) -> bytes | None:
    """Return the value that says how many pieces are laid; None for none."""
    return b"%d" % pieces if pieces else None


def _check_still_laid(key: SessionKey, stored: PlaceHead | None, laid: int) -> None:
    """Raise Conflict unless exactly this many pieces are laid."""
    if expect_of(stored) != _pieces_laid(laid):
        problem = "took so long to load that a sweep removed the loaded part: load it again"
        raise Conflict(f"session {key.session!r}", problem)


def _imported_head(known: Known, dump: Dump, replace: bool) -> Head:
    """Return the head of an imported session, with revision and epoch beyond those of a session that it replaces.

    So what was seen of the replaced session counts as outdated. Raises Conflict if it may not be replaced.
    """
    before, after = known.head, dump.head
    if known.stored is None:
        return after
    if not replace:
        problem = "exists already; import with on_conflict='replace' or 'merge'"
        raise Conflict(f"session {known.key.session!r}", problem)
    return msgspec.structs.replace(
        after,
        revision=max(after.revision, before.revision + 1),
        epoch=max(after.epoch, before.epoch + 1),
        epoch_reason="import",
    )


def in_pieces(rows: Iterable[Cells]) -> Iterator[list[Cells]]:
    """Yield these rows in pieces that go into one step each. Rows are made only when their piece is."""
    piece, size = list[Cells](), 0
    for row in rows:
        if piece and (len(piece) >= PIECE or size + len(row[1]) > BYTES):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += len(row[1])
    if piece:
        yield piece
