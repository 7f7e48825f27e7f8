"""Who else has what is changed of a session: the other sessions of its home that share entries, and the tree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from palimpsest.stores.backend import Ask, Cells, Look, Named, Place, PlaceHead, Refusal, Seen, Step
from palimpsest.stores.engine.heads import Known, Sessions
from palimpsest.stores.engine.trees import Tree, of_tree

Readers = Mapping[tuple[str, int], tuple[int, ...]]
"""Which entries a session has, by its name and the number of its own log."""


class Sharer(NamedTuple):
    """Another session, which of the entries it has, and the rows of its records that carry a compaction."""

    known: Known
    seqs: tuple[int, ...]
    records: Sequence[Cells]


class Sharing:
    """Which sessions share these entries of a session with it, by a tree as it was seen."""

    def __init__(self, sessions: Sessions, known: Known, tree: Seen | None, seqs: Collection[int] = ()) -> None:
        self._sessions, self._known, self._seqs = sessions, known, seqs
        self.tree = Tree(sessions.url, known, tree)
        self.others: list[Sharer] = []
        self.fixed = False
        """Whether it takes more than a look to take in who comes later."""

    async def look(self) -> None:
        """See how the others are now."""
        readers = self.tree.others(self._known, self._seqs)
        if readers:
            self.others = self._met(readers, await self._sessions.backend.look(_asks(self._known, readers)))

    @property
    def heads(self) -> dict[Place, PlaceHead | None]:
        """The heads that this goes by: those of the others, and of the tree."""
        return {**{other.known.place: other.known.there for other in self.others}, self._known.tree: self.tree.there}

    def again(self, steps: Sequence[Step], refusal: Refusal, look: Look | None = None) -> Known | None:
        """The session by the heads that are there, in the places of these steps, of which its own is the first.

        None where something else has become of it than that it was added to, or of what else the steps look at. With
        `look` whoever has come to the tree, is gone from it, or was changed, is looked at instead: so what goes by this
        ends beside those who never pause to make branches.
        """
        now = self._sessions.now(self._known, refusal[0])
        if now.there is None or not only_appended(self._known, now):
            return None
        there = {step.place: head for step, head in zip(steps, refusal, strict=True) if not step.rows_only}
        moved = {step.place for step in steps[1:] if not step.rows_only and _hot(there[step.place]) != step.expect}
        if moved and (look is None or self.fixed or moved - self.heads.keys()):
            return None
        self._known = now
        if look is not None and moved:
            self._renew(there, look)
        return now

    def _renew(self, there: Mapping[Place, PlaceHead | None], look: Look) -> None:
        known = self._known
        (tree,) = look([of_tree(known)])
        self.tree = Tree(self._sessions.url, known, tree)
        readers = self.tree.others(known, self._seqs)
        kept = [one for one in self.others if there.get(one.known.place) == one.known.there and _name(one) in readers]
        here = set(map(_name, kept))
        new = {name: seqs for name, seqs in readers.items() if name not in here}
        self.others = [*kept, *self._met(new, look(_asks(known, new)) if new else ())]

    def _met(self, readers: Readers, seen: Sequence[Seen]) -> list[Sharer]:
        """Those of these sessions that are there, by what was seen of what was asked for."""
        by_log: dict[int, list[Cells]] = {}
        for row in seen[-1].rows[0] if seen else ():
            by_log.setdefault(row[0] >> 32, []).append(row)
        found, known = [], self._known
        for ((name, log), seqs), one in zip(readers.items(), seen, strict=False):
            other = self._sessions.read(known.key._replace(session=name), known.place._replace(name=name), one.head)
            if other.there is not None and other.log == log:
                found.append(Sharer(other, tuple(sorted(seqs)), by_log.get(log, [])))
        return found


def only_appended(known: Known, now: Known) -> bool:
    """Whether nothing has become of a session but appends: what was read of it is as it was."""
    return now.reads_as(known) and now.head.epoch == known.head.epoch and now.stirred == known.stirred


def _asks(known: Known, readers: Iterable[tuple[str, int]]) -> list[Ask]:
    heads = [Ask(known.place._replace(name=name)) for name, _ in readers]
    return [*heads, Ask(known.logs, [Named("record", [str(log) for _, log in readers])], head=False)]


def _name(one: Sharer) -> tuple[str, int]:
    return one.known.key.session, one.known.log


def _hot(head: PlaceHead | None) -> bytes | None:
    return None if head is None else head.hot
