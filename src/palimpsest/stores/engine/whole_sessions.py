"""Sessions as wholes: how they are made, as branches and by what comes in from elsewhere, and removed.

What comes in is a log of a number that nobody reads yet. More entries than go into one step are put piece by piece, so
that no store has to take all of them at once, and other writers go on in between. Then one step makes the session.
Until then a place says that the log is being laid: who dies meanwhile leaves it, and it goes when it has expired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.withdrawal import buried
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Place, PlaceHead, Range, Row, Seen, Step
from palimpsest.stores.engine.destroying import Destroying
from palimpsest.stores.engine.forms import DAMAGED, LAST, entry_row, new_log, record_of, record_row
from palimpsest.stores.engine.known import (
    LAID,
    PATIENCE,
    Known,
    Over,
    bar_of,
    barred,
    noted,
    pointer_to,
    root,
    where_of,
)
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import of_records
from palimpsest.stores.engine.sessions import Sessions, expected
from palimpsest.stores.engine.trees import (
    Pieces,
    Tree,
    dropped,
    dropping,
    figures_of,
    of_owner,
    of_tree,
    read_by,
    spans_of,
)
from palimpsest.stores.rules import expect_of, heads_at
from palimpsest.stores.values import Dump

RELEASED = b'"released"'
"""How a record is known that says what a flush has let go of."""

PIECE, BYTES = 1000, 2**22
"""Rows, and bytes of rows, that are put in one step."""


class WholeSessions:
    """Makes sessions, and removes them."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large, self._clock = sessions, large, sessions.clock
        self._backend, self._url = sessions.backend, sessions.url
        self.destroying = Destroying(sessions, large)

    # --- branches

    async def branches(self, key: SessionKey) -> list[str]:
        known, seen = await self._sessions.look(key, lambda known: [of_tree(known)])
        if not seen:
            return []
        tree, names = Tree(self._url, known, seen[0]), set[str]()
        for log, first, last in known.pieces(0, known.head.next_seq):
            # Whoever reads the first entry that is shared reads all up to where the two parted.
            names |= tree.sharing(log, first, last)
        return sorted(names - {key.session})

    async def sharing(self, key: SessionKey, seqs: Collection[int]) -> dict[str, tuple[int, ...]]:
        known, seen = await self._sessions.look(key, lambda known: [of_tree(known)])
        others = Tree(self._url, known, seen[0]).others(known, seqs) if seen else {}
        return {name: read for (name, _), read in sorted(others.items())}

    async def fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None:
        while True:
            known, seen = await self._sessions.look(
                key,
                lambda known: [
                    of_owner(known),
                    of_records(known, 0, head.revision + 1),
                    Ask(barred(known.place._replace(name=into))),
                ],
            )
            expected(key, known.head, None, expect_epoch, created)
            if head.next_seq > known.head.next_seq:  # the branch would name entries that are nowhere
                raise Conflict(
                    f"session {key.session!r}", "is shorter than its branch: it was made anew; read it again"
                )
            target = await self._sessions.find(SessionKey(key.tenant, into))
            if target.over is not None:
                raise Over(target.key)
            if target.there is not None:
                raise Conflict(f"session {into!r}", "is there already; give the branch another id")
            if await self._forked(known, seen, target, head):
                return

    async def _forked(self, known: Known, seen: list[Seen], target: Known, head: Head) -> bool:
        """Make the branch where it is to be, unless somebody was first."""
        key, pointer, at = target.key, target.pointer, self._clock()
        home = known.place.home if known.there is not None else key.session
        if home != key.session:
            elsewhere = pointer is not None and self._sessions.home_of(key, pointer) != home
            if pointer is not None and elsewhere and not await self._sessions.keeps_from(key, pointer, at):
                return False
            pointer = pointer_to(home)
            if await self._sessions.write([Step(where_of(key), target.pointer, pointer), Step(root(key))], at):
                return False
        place = Place(key.tenant, home, "session", key.session)
        branch = Known(key, place, new_log(), pointer=pointer)
        steps: list[Step] = []
        shares: tuple[tuple[int, int], ...] = ()
        if seen:
            tree = Tree(self._url, known, seen[0])
            shares = tuple(
                (min(last, head.next_seq - 1), log)
                for log, first, last in known.pieces(head.first_seq - 1)
                if first < head.next_seq
            )
            if tree.owner(known.log) is None:  # it has never had a branch, be there those of one of its name before it
                tree.join(known, (), known.head.first_seq)
            tree.join(branch, shares, head.first_seq)
            assert known.there is not None, "what was looked at is there"
            log = branch.log
            rows = [_inherited(log, row) for row in seen[1].rows[0]]
            bar = seen[2].head
            steps = [Step(known.place, known.there.hot, known.there.hot), tree.step()]
            steps.append(Step(barred(place)) if bar is None else bar_of(place, bar, at))
            old = figures_of(key.session, (log for _, log in shares))
            steps.append(Step(branch.logs, rows_only=True, drop=old, put=[("record", rows)] if rows else []))
        after, step = branch.step(msgspec.structs.replace(head, expires=None).renewed(at), shares)
        batch = [step, *steps, *noted(branch, after), *await self._sessions.created(branch, at)]
        return await self._sessions.write(batch, at, after) is None

    # --- deletion

    async def end(self, key: SessionKey) -> bool:
        """Delete the session if its time is over; return whether it was."""
        return await self._deleted(key, None, only_over=True)

    async def delete(self, key: SessionKey, expect: int | None) -> bool:
        """As `Store.delete` says."""
        try:
            return await self._deleted(key, expect)
        except StoreCorrupt:
            if expect is not None:
                raise
            return await self.destroying.destroy(key) is not None

    async def _deleted(self, key: SessionKey, expect: int | None, *, only_over: bool = False) -> bool:
        while True:
            known, seen = await self._sessions.look(key, _of_removal, over=True)
            is_over = known.head.is_over(self._clock())
            expected(key, Head() if is_over else known.head, expect)
            if known.there is None or (only_over and not is_over):
                return False
            tree, pieces, last = _removed(self._url, known, seen)
            steps = [Step(known.place, known.there.hot, destroys=True), *noted(known, None), tree.step(last=last)]
            steps += await self._large.let_go(known, spans_of(pieces))
            drop = [*dropped([known.log], pieces), *figures_of(key.session, read_by(known))]
            steps.append(Step(known.logs, rows_only=True, drop=drop, destroys=True))
            if await self._sessions.write(steps, self._clock()) is None:
                self._sessions.forget(key)
                if known.place.home != key.session:
                    await self._sessions.write([Step(where_of(key), known.pointer, destroys=True)], self._clock())
                return only_over or not is_over

    # --- what comes in

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
            while not await self._made(new, dump, replace, last, laid):
                pass
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

    async def _made(self, new: Known, dump: Dump, replace: bool, last: Sequence[Cells], laid: int) -> bool:
        """Make the session in one step, of what was laid and the last piece; whether nobody was in the way."""
        known, seen = await self._sessions.look(new.key, _of_removal)
        if known.place != new.place and laid:
            raise Conflict(f"session {new.key.session!r}", "was made anew elsewhere meanwhile: load it again")
        at = self._clock()
        head = msgspec.structs.replace(_head(known, dump, replace), expires=None).renewed(at)
        new = msgspec.structs.replace(known, log=new.log, head=Head())
        after, step = new.step(head, ())
        steps, drop, gone = [step], list[tuple[str, int, int]](), list[tuple[int, int]]()
        if laid:
            steps.append(Step(_laid_at(new), _count(laid)))
        if seen:
            tree, unread, _ = _removed(self._url, known, seen)
            if tree.hot is not None:
                tree.join(new, (), head.first_seq)
            steps.append(tree.step())
            drop, gone = dropped([known.log], unread), spans_of(unread)
            drop += figures_of(known.key.session, read_by(known))
        put, more = await self._large.split(known, last, gone)
        if dump.records:
            put.append(("record", [record_row(new.log, record) for record in dump.records]))
        steps += [Step(known.logs, rows_only=True, drop=drop, put=put, destroys=bool(drop)), *more]
        steps += noted(known, after)
        refusal = await self._sessions.write([*steps, *await self._sessions.created(known, at)], at, after)
        if refusal is not None and laid:
            _still_laid(new.key, refusal[1], laid)
        return refusal is None

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


def _of_removal(known: Known) -> list[Ask]:
    """What asks who reads what, and whether anybody else is in the home."""
    tree, more = of_tree(known), len(known.shares) + 2
    return [Ask(tree.place, [*tree.rows, Range("share", [(0, LAST_KEY)], more)])]


def _removed(url: str, known: Known, seen: list[Seen]) -> tuple[Tree, Pieces, bool]:
    """The tree without a session, what of logs nobody reads then, and whether the home has nobody else."""
    tree = Tree(url, known, seen[0])
    if tree.hot is None:
        return tree, [(known.log, 0, LAST)], True
    alone = tree.is_alone(known)
    tree.leave(known)
    return tree, tree.unread(read_by(known)), alone


def _inherited(log: int, row: Cells) -> Row:
    """The row of a record in the log of a branch: what the session has let go of, the branch has not."""
    key, value, id, _ = row
    if RELEASED in value:
        with suppress(*DAMAGED):  # whoever reads it is told
            record = record_of(row)
            if record.compaction is not None:
                kept = msgspec.structs.replace(record.compaction, released=())
                return record_row(log, msgspec.structs.replace(record, compaction=kept))
    return Row(log << 32 | key & LAST, value, str(log) if id else "")


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
