"""Sessions as wholes: branches, and deletion."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range, Row, Seen, Step
from palimpsest.stores.engine.forms import LAST, new_log
from palimpsest.stores.engine.heads import Known, Sessions, expected
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.owners import noted
from palimpsest.stores.engine.places import Over, bar_of, barred, pointer_to, root, where_of
from palimpsest.stores.engine.reading import of_records
from palimpsest.stores.engine.trees import Pieces, Tree, dropped, of_owner, of_tree, spans_of


class Branching:
    """What makes sessions, and removes them."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large, self._clock, self._url = sessions, large, sessions.clock, sessions.url

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
            rows = [Row(log << 32 | key & LAST, value, str(log) if id else "") for key, value, id, _ in seen[1].rows[0]]
            bar = seen[2].head
            steps = [Step(known.place, known.there.hot, known.there.hot), tree.step()]
            steps.append(Step(barred(place)) if bar is None else bar_of(place, bar, at))
            steps.append(Step(branch.logs, rows_only=True, put=[("record", rows)] if rows else []))
        after, step = branch.step(msgspec.structs.replace(head, expires=None).renewed(at), shares)
        batch = [step, *steps, *noted(branch, after), *await self._sessions.created(branch, at)]
        return await self._sessions.write(batch, at, after) is None

    # --- deletion

    async def end(self, key: SessionKey) -> bool:
        """Delete the session if its time is over; return whether it was."""
        return await self.delete(key, None, only_over=True)

    async def delete(self, key: SessionKey, expect: int | None, *, only_over: bool = False) -> bool:
        while True:
            known, seen = await self._sessions.look(key, of_removal, over=True)
            is_over = known.head.is_over(self._clock())
            expected(key, Head() if is_over else known.head, expect)
            if known.there is None or (only_over and not is_over):
                return False
            tree, pieces, last = removed(self._url, known, seen)
            steps = [Step(known.place, known.there.hot, destroys=True), *noted(known, None)]
            if last and tree.hot is not None:
                steps.append(Step(known.tree, tree.hot, drop=[("*", 0, LAST_KEY)]))
            else:
                steps.append(tree.step())
            steps += (await self._large.taken(known, [], spans_of(pieces)))[1]
            steps.append(Step(known.logs, rows_only=True, drop=dropped(known, pieces), destroys=True))
            if await self._sessions.write(steps, self._clock()) is None:
                self._sessions.forget(key)
                if known.place.home != key.session:
                    await self._sessions.write([Step(where_of(key), known.pointer, destroys=True)], self._clock())
                return only_over or not is_over


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
    return tree, tree.unread(known), alone
