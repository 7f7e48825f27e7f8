"""Sessions as wholes: making branches of them, and deleting them."""

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
    NotSweptYet,
    bar_place,
    bar_step,
    check_expected,
    new_pointer,
    note_steps,
    own_place,
    pointer_place,
)
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import ask_records
from palimpsest.stores.engine.sessions import Prepared, Sessions
from palimpsest.stores.engine.trees import (
    Pieces,
    Tree,
    ask_owner,
    ask_tree,
    figure_drops,
    logs_read_by,
    session_drops,
    spans_of,
)
from palimpsest.stores.rules import AsyncLook

RELEASED = b'"released"'
"""Occurs in the JSON of a record that says what a flush has let go of."""


class WholeSessions:
    """Makes branches, and deletes sessions."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large, self._clock = sessions, large, sessions.clock
        self._backend, self._url = sessions.backend, sessions.url
        self.destroying = Destroying(sessions, large)

    # --- branches

    async def branches(self, key: SessionKey) -> list[str]:
        """Return the other sessions that share entries with this one, as `Store.branches` says."""
        known, seen = await self._sessions.look(key, lambda known: [ask_tree(known)])
        if not seen:
            return []
        tree, names = Tree(self._url, known, seen[0]), set[str]()
        for log, first, last in known.pieces(0, known.head.next_seq):
            # Sessions that share entries share all of them up to the point where they parted.
            names |= tree.sharing(log, first, last)
        return sorted(names - {key.session})

    async def sharing(self, key: SessionKey, seqs: Collection[int]) -> dict[str, tuple[int, ...]]:
        """Return which of these entries other sessions share, as `Store.sharing` says."""
        known, seen = await self._sessions.look(key, lambda known: [ask_tree(known)])
        others = Tree(self._url, known, seen[0]).others(known, seqs) if seen else {}
        return {name: read for (name, _), read in sorted(others.items())}

    async def fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None:
        """Make a branch, as `Store.fork` says."""

        def asks(known: Known) -> list[Ask]:
            records, bar = ask_records(known, 0, head.revision + 1), Ask(bar_place(known.place._replace(name=into)))
            return [ask_owner(known), records, bar]

        def expect(current: Head) -> None:
            check_expected(key, current, None, expect_epoch, created)
            if head.next_seq > current.next_seq:  # the branch would refer to entries that do not exist
                raise Conflict(
                    f"session {key.session!r}", "was made anew by another writer, and is shorter now: read it again"
                )

        while True:
            known, seen = await self._sessions.look(key, asks)
            expect(known.head)
            target = await self._sessions.find(SessionKey(key.tenant, into))
            if target.expired is not None:
                raise NotSweptYet(target.key)
            if target.stored is not None:
                raise Conflict(f"session {into!r}", "exists already; give the branch another id")
            branch = await self._prepare_branch(known, target)
            if branch is None:
                continue
            creation_steps = await self._sessions.creation_steps(branch, self._clock())
            branching = Branching(self._url, branch, head, creation_steps, seen[2].head if seen else None, expect)
            if (await self._sessions.attempt(known, seen, asks, branching.prepare))[0] is None:
                return

    async def _prepare_branch(self, known: Known, target: Known) -> Known | None:
        """Return the branch to be made, with the pointer to its home written; None if another writer was first."""
        key, pointer = target.key, target.pointer
        home = known.place.home if known.stored is not None else key.session
        if home != key.session:  # then a pointer in the home of its name has to say where the branch is
            at = self._clock()
            elsewhere = pointer is not None and self._sessions.home_of(key, pointer) != home
            if pointer is not None and elsewhere and not await self._sessions.bar_branch(key, pointer, at):
                return None
            pointer = new_pointer(home)
            # Refused if a session of this name has been made in its own home meanwhile.
            steps = [Step(pointer_place(key), target.pointer, pointer), Step(own_place(key))]
            if await self._sessions.write(steps, at):
                return None
        return Known(key, Place(key.tenant, home, "session", key.session), new_log(), pointer=pointer)

    # --- deletion

    async def end(self, key: SessionKey) -> bool:
        """Delete the session if it has expired; return whether it was deleted."""
        return await self._delete(key, None, only_expired=True)

    async def delete(self, key: SessionKey, expect: int | None) -> bool:
        """Delete the session, as `Store.delete` says."""
        try:
            return await self._delete(key, expect)
        except StoreCorrupt:
            if expect is not None:
                raise
            return await self.destroying.destroy(key) is not None

    async def _delete(self, key: SessionKey, expect: int | None, *, only_expired: bool = False) -> bool:
        """Delete the session; return whether there was one. With `only_expired` delete it only if it has expired."""
        deleted, was_expired = Known(key, own_place(key), 0), False

        async def prepare(known: Known, seen: list[Seen], at: int, look: AsyncLook) -> Prepared | None:
            nonlocal deleted, was_expired
            deleted, was_expired = known, known.head.is_over(at)
            check_expected(key, Head() if was_expired else known.head, expect)
            if known.stored is None or (only_expired and not was_expired):
                return None
            tree, pieces, last = without_session(self._url, known, seen)
            drop = [*session_drops([known.log], pieces), *figure_drops(key.session, logs_read_by(known))]
            steps = [
                Step(known.place, known.stored.hot, destroys=True),
                *note_steps(known, None),
                tree.step(last=last),
                *await self._large.within(look).release_steps(known, spans_of(pieces)),
                Step(known.logs, rows_only=True, drop=drop, destroys=True),
            ]
            return steps, ()

        if await self._sessions.change(key, ask_removal, prepare, even_expired=True) is None:
            return False
        self._sessions.forget(key)
        if deleted.place.home != key.session:
            await self._sessions.write([Step(pointer_place(key), deleted.pointer, destroys=True)], self._clock())
        return only_expired or not was_expired


class Branching(NamedTuple):
    """The last step of making a branch: the branch with its head, and the steps `before` that make room for it.

    `bar` is the bar at the branch's place when that was looked at: a bar set since refuses the branch. `expect` raises
    if the session is no longer the one that the branch was prepared from.
    """

    url: str
    branch: Known
    head: Head
    before: Sequence[Step]
    bar: PlaceHead | None
    expect: Callable[[Head], None]

    async def prepare(self, known: Known, seen: list[Seen], at: int, _: AsyncLook) -> Prepared:
        """Prepare the batch that makes the branch of the session as it is now."""
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
            if tree.owner(known.log) is None:  # its first branch; an earlier session of its name may have left others
                tree.join(known, (), known.head.first_seq)
            tree.join(branch, shares, head.first_seq)
            assert known.stored is not None, "what was looked at is there"
            rows = [_inherited(branch.log, row) for row in seen[1].rows[0]]
            # The head and the tree have to be as they were seen, and so has the bar.
            steps = [Step(known.place, known.stored.hot, known.stored.hot), tree.step()]
            steps.append(Step(bar_place(branch.place)) if bar is None else bar_step(branch.place, bar, at))
            # Figures that an earlier session of the branch's name noted of these entries are not the branch's.
            old_figures = figure_drops(branch.key.session, (log for _, log in shares))
            steps.append(Step(branch.logs, rows_only=True, drop=old_figures, put=[("record", rows)] if rows else []))
        after, step = branch.step(msgspec.structs.replace(head, expires=None).renewed(at), shares)
        return [*steps, step, *note_steps(branch, after), *self.before], [after]


def ask_removal(known: Known) -> list[Ask]:
    """Ask who reads the session's logs, and whether any other session is in the home."""
    tree_ask, limit = ask_tree(known), len(known.shares) + 2
    return [Ask(tree_ask.place, [*tree_ask.rows, Range("share", [(0, LAST_KEY)], limit)])]


def without_session(url: str, known: Known, seen: list[Seen]) -> tuple[Tree, Pieces, bool]:
    """Return the tree without the session, the ranges nobody reads then, and whether the home has no other session."""
    tree = Tree(url, known, seen[0])
    if tree.hot is None:
        return tree, [(known.log, 0, LAST)], True
    alone = tree.is_alone(known)
    tree.leave(known)
    return tree, tree.unread(logs_read_by(known)), alone


def _inherited(log: int, row: Cells) -> Row:
    """Return the row of a record for the log of a branch.

    What the session's flush has let go of is left out of it: the branch still has that.
    """
    key, value, id, _ = row
    if RELEASED in value:
        with suppress(*DAMAGED):  # reported when the record is read
            record = record_of(row)
            if record.compaction is not None:
                kept = msgspec.structs.replace(record.compaction, released=())
                return record_row(log, msgspec.structs.replace(record, compaction=kept))
    return Row(log << 32 | key & LAST, value, str(log) if id else "")
