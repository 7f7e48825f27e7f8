"""Sessions as wholes: how branches are made of them, and how they are removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Place, PlaceHead, Range, Row, Seen, Step
from palimpsest.stores.engine.destroying import Destroying
from palimpsest.stores.engine.forms import DAMAGED, LAST, Share, new_log, record_of, record_row
from palimpsest.stores.engine.known import (
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
from palimpsest.stores.engine.sessions import Made, Sessions, expected
from palimpsest.stores.engine.trees import (
    Pieces,
    Tree,
    dropped,
    figures_of,
    of_owner,
    of_tree,
    read_by,
    spans_of,
)
from palimpsest.stores.rules import Looks

RELEASED = b'"released"'
"""How a record is known that says what a flush has let go of."""


class WholeSessions:
    """Makes branches, and removes sessions."""

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
        def asks(known: Known) -> list[Ask]:
            records, bar = of_records(known, 0, head.revision + 1), Ask(barred(known.place._replace(name=into)))
            return [of_owner(known), records, bar]

        def expect(now: Head) -> None:
            expected(key, now, None, expect_epoch, created)
            if head.next_seq > now.next_seq:  # the branch would name entries that are nowhere
                raise Conflict(
                    f"session {key.session!r}", "is shorter than its branch: it was made anew; read it again"
                )

        while True:
            known, seen = await self._sessions.look(key, asks)
            expect(known.head)
            target = await self._sessions.find(SessionKey(key.tenant, into))
            if target.over is not None:
                raise Over(target.key)
            if target.there is not None:
                raise Conflict(f"session {into!r}", "is there already; give the branch another id")
            branch = await self._begun(known, target)
            if branch is None:
                continue
            before = await self._sessions.created(branch, self._clock())
            branching = Branching(self._url, branch, head, before, seen[2].head if seen else None, expect)
            if (await self._sessions.tried(known, seen, asks, branching.made))[0] is None:
                return

    async def _begun(self, known: Known, target: Known) -> Known | None:
        """The branch that is not made yet, where it is to be; None where somebody was first."""
        key, pointer = target.key, target.pointer
        home = known.place.home if known.there is not None else key.session
        if home != key.session:
            at = self._clock()
            elsewhere = pointer is not None and self._sessions.home_of(key, pointer) != home
            if pointer is not None and elsewhere and not await self._sessions.keeps_from(key, pointer, at):
                return None
            pointer = pointer_to(home)
            if await self._sessions.write([Step(where_of(key), target.pointer, pointer), Step(root(key))], at):
                return None
        return Known(key, Place(key.tenant, home, "session", key.session), new_log(), pointer=pointer)

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
        gone, was_over = Known(key, root(key), 0), False

        async def without(known: Known, seen: list[Seen], at: int, look: Looks) -> Made | None:
            nonlocal gone, was_over
            gone, was_over = known, known.head.is_over(at)
            expected(key, Head() if was_over else known.head, expect)
            if known.there is None or (only_over and not was_over):
                return None
            tree, pieces, last = removed(self._url, known, seen)
            drop = [*dropped([known.log], pieces), *figures_of(key.session, read_by(known))]
            steps = [
                Step(known.place, known.there.hot, destroys=True),
                *noted(known, None),
                tree.step(last=last),
                *await self._large.within(look).let_go(known, spans_of(pieces)),
                Step(known.logs, rows_only=True, drop=drop, destroys=True),
            ]
            return steps, ()

        if await self._sessions.change(key, of_removal, without, over=True) is None:
            return False
        self._sessions.forget(key)
        if gone.place.home != key.session:
            await self._sessions.write([Step(where_of(key), gone.pointer, destroys=True)], self._clock())
        return only_over or not was_over


class Branching(NamedTuple):
    """A branch that is begun: where it is, its head, and the steps `before` that make room for it.

    `bar` is what keeps it from being made, as it was then: whoever has barred it since wins. `expect` raises for a
    session that is not the one that the branch was made of.
    """

    url: str
    branch: Known
    head: Head
    before: Sequence[Step]
    bar: PlaceHead | None
    expect: Callable[[Head], None]

    async def made(self, known: Known, seen: list[Seen], at: int, _: Looks) -> Made:
        """What makes the branch of the session that is there now."""
        url, branch, head, bar = self.url, self.branch, self.head, self.bar
        self.expect(known.head)
        steps, shares = list[Step](), tuple[Share, ...]()
        if seen:
            tree = Tree(url, known, seen[0])
            shares = tuple(
                (min(last, head.next_seq - 1), log)
                for log, first, last in known.pieces(head.first_seq - 1)
                if first < head.next_seq
            )
            if tree.owner(known.log) is None:  # it has never had a branch, be there those of one of its name before it
                tree.join(known, (), known.head.first_seq)
            tree.join(branch, shares, head.first_seq)
            assert known.there is not None, "what was looked at is there"
            rows = [_inherited(branch.log, row) for row in seen[1].rows[0]]
            steps = [Step(known.place, known.there.hot, known.there.hot), tree.step()]
            steps.append(Step(barred(branch.place)) if bar is None else bar_of(branch.place, bar, at))
            old = figures_of(branch.key.session, (log for _, log in shares))
            steps.append(Step(branch.logs, rows_only=True, drop=old, put=[("record", rows)] if rows else []))
        after, step = branch.step(msgspec.structs.replace(head, expires=None).renewed(at), shares)
        return [*steps, step, *noted(branch, after), *self.before], [after]


def of_removal(known: Known) -> list[Ask]:
    """What asks who reads what, and whether anybody else is in the home."""
    tree, more = of_tree(known), len(known.shares) + 2
    return [Ask(tree.place, [*tree.rows, Range("share", [(0, LAST_KEY)], more)])]


def removed(url: str, known: Known, seen: list[Seen]) -> tuple[Tree, Pieces, bool]:
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
