"""Every verb of a store ends, even if another writer overtakes each of its writes.

Over stores whose writers wait for each other, a refused write is made again inside its transaction. A transaction may
also be rolled back or begun anew: then no verb may report what was never committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from overtaken import (
    KEY,
    KINDS,
    LEFT,
    VERBS,
    Meddling,
    Overtaken,
    adding,
    both,
    enlarging,
    filled,
    forking,
    opened,
)
from palimpsest import Entry, StoreUnavailable
from palimpsest.log.change import Change
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Again, Ask, Batch, Refusal, Seen
from palimpsest.stores.engine.appends import Append, Appends
from palimpsest.stores.rules import ask_again

Verb = Callable[[Store], Awaitable[None]]

TRIES = 3
"""Writes that a verb may need: the one that is overtaken, its replacement, and one more."""


@pytest.fixture(autouse=True)
def close_files() -> Iterator[None]:
    """Close the backends that the test has opened."""
    yield
    while LEFT:
        drive(LEFT.pop().close())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meddling", [adding, forking, enlarging, both])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_although_its_writes_are_overtaken(
    verb: Verb, meddling: Meddling, kind: str, tmp_path: Path
) -> None:
    """A verb ends although another writer adds, forks or stores something large before each of its writes."""
    below = Overtaken(tmp_path)
    filled(below, kind)
    store, other = opened(below, kind), opened(below, kind)
    below.before = lambda number: meddling(other, number)

    drive(verb(store))  # type: ignore[arg-type]

    assert below.writes <= TRIES


class Retried(Overtaken):
    """Rolls back each transaction once after its body and begins it anew, as servers do after a conflict."""

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        database: Any = self._database
        written = database._write_once

        def twice(body: Callable[[Any], Any], relaxed: bool) -> Any:
            def cut(bound: Any) -> Any:
                bound.connection.execute("SAVEPOINT anew")
                body(bound)
                bound.connection.execute("ROLLBACK TO anew")
                database._known.forget()
                bound.begin()
                return body(bound)

            return written(body if self._inside or self.before is None else cut, relaxed)

        database._write_once = twice
        try:
            return await super().write(batches, at, lasting=lasting, again=again)
        finally:
            database._write_once = written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_transaction_begun_anew_starts_from_the_first_batch(verb: Verb, kind: str, tmp_path: Path) -> None:
    """A transaction that is begun anew asks about its original batch, not about what replaced that the first time."""
    below = Retried(tmp_path)
    filled(below, kind)
    store, other = opened(below, kind), opened(below, kind)

    async def once(number: int) -> None:
        if number == 1:
            await both(other, number)

    below.before = once

    drive(verb(store))  # type: ignore[arg-type]


class Awaited(Overtaken):
    """Answers a refused write as a driver does, with an awaited look, and runs `behind` after the first such look."""

    remote = True
    behind: Callable[[], Awaitable[object]] | None = None

    async def pause(self, seconds: float) -> None:
        """Do not wait."""

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        done = await super().write(batches, at, lasting=lasting)
        for number, refusal in enumerate(done):
            if refusal is not None and again is not None:
                other = await ask_again(again, number, batches[number], refusal, self._seen)
                if other is not None:
                    (done[number],) = await super().write([other], at, lasting=lasting)
        return done

    async def _seen(self, asks: Sequence[Ask]) -> list[Seen]:
        seen = await self.look(asks)
        if self.behind is not None:
            behind, self.behind = self.behind, None
            await behind()
        return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_replaced_write_does_not_mistake_newer_heads_for_damage(verb: Verb, kind: str, tmp_path: Path) -> None:
    """If another task learns newer heads between the look and the replacing write, no store is reported as out of date.

    Nothing is deleted for that either.
    """
    below = Awaited(tmp_path)
    filled(below, kind)
    store, other = opened(below, kind), opened(below, kind)

    async def later() -> None:
        await forking(other, 7)
        for session in ("branch 0", "one"):
            await store.read(KEY._replace(session=session))
        await store.branches(KEY)

    async def once(number: int) -> None:
        if number == 1:
            below.behind = later
            await adding(other, number)

    below.before = once

    drive(verb(store))  # type: ignore[arg-type]


class Full(Overtaken):
    """After `fill`, each transaction of the verb fails after its body because no space is left."""

    full = False

    def fill(self) -> None:
        """Let all further transactions fail."""
        database: Any = self._database
        self.full, database._looked = True, float("-inf")

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        database: Any = self._database
        looked = database._check_same_file

        def no_space(*_: object) -> None:
            if self.full and not self._inside:
                raise StoreUnavailable(self.url, "no space left", written=False)
            looked()

        database._check_same_file, database._looked = no_space, float("-inf")
        try:
            return await super().write(batches, at, lasting=lasting, again=again)
        finally:
            database._check_same_file = looked


def appends_of(store: Store) -> Appends:
    """Return the object that writes groups of appends to a store."""
    queues: Any = store._appends
    found: Appends = queues._appends
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_rolled_back_append_is_reported_to_nobody(kind: str, tmp_path: Path) -> None:
    """If a transaction with two appends fails after the second was made again, neither append is reported as done."""
    below = Full(tmp_path)
    filled(below, kind)
    store, other = opened(below, kind), opened(below, kind)
    branch = KEY._replace(session="branch 0")
    drive(
        store.commit(branch, Change(kind="erase", reason="r", seqs=(1,)))
    )  # from now on the store has a note about its logs
    drive(store.delete(KEY))

    async def once(number: int) -> None:
        if number == 1:
            await other.append(branch, [Entry(content="meanwhile")])
            below.fill()

    below.before = once
    group = [Append(KEY, [Entry(content="anew")], False), Append(branch, [Entry(id="x", content="mine")], True)]
    with pytest.raises(StoreUnavailable, match="no space left"):
        drive(appends_of(store).write(group))
    below.before, below.full = None, False

    assert not any(one.done for one in group)
    assert [entry.text for entry in drive(store.read(branch))][-1] == "meanwhile"
    drive(store.append(branch, [Entry(content="later")]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True])
def test_retries_of_one_batch_in_one_group_share_their_entries(fails: bool, kind: str, tmp_path: Path) -> None:
    """Two retries of a batch in one group are stored once, and neither is told so before the transaction commits."""
    below = Full(tmp_path)
    filled(below, kind)
    store, other = opened(below, kind), opened(below, kind)

    async def once(number: int) -> None:
        if number == 1:
            await other.append(KEY, [Entry(content="meanwhile")])
            if fails:
                below.fill()

    below.before = once
    group = [Append(KEY, [Entry(id="k", content="mine")], True) for _ in range(2)]
    group.append(Append(KEY, [Entry(id="k", content="another")], True))
    if fails:
        with pytest.raises(StoreUnavailable, match="no space left"):
            drive(appends_of(store).write(group))
        assert not any(one.done for one in group)
        below.before, below.full = None, False
        for one in group:
            one.base = None
    drive(appends_of(store).write(group))

    seqs = {entry.id: entry.seq for entry in drive(store.read(KEY))}
    assert [one.done for one in group] == [True] * 3
    assert [[entry.seq for entry in one.result.entries] for one in group[:2] if one.result] == [[seqs["k"]]] * 2
    assert "k" in str(group[2].error)
