"""Group commit: who waits is written by whoever has the turn, and one caller's failure is not another's."""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from functools import partial

import pytest

import interrupts
from palimpsest import Conflict, InvalidEntry
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.runtime.threads import unbroken
from palimpsest.stores import Appended
from palimpsest.stores.group_commit import GROUP, Append, AppendRefused, GroupCommit

KEY = SessionKey("t", "s")

Failure = Callable[[Sequence[Append]], BaseException | None]


class Writer:
    """Stores nothing, remembers what it committed, and fails as it is told, before its commit or right after it."""

    def __init__(self, *before: Failure, after: Sequence[BaseException] = ()) -> None:
        self.commits: list[list[Append]] = []
        self._before, self._after = list(before), list(after)

    def __call__(self, claim: Callable[[], Sequence[Append]], settle: Callable[[], object], since: float) -> None:
        batch = list(claim())
        fault = self._before.pop(0)(batch) if self._before else None
        if fault is not None:
            raise fault
        for append in batch:
            append.result = Appended(Head(), (), len(append.entries))
        unbroken(partial(self.commits.append, batch), settle)
        if self._after:
            raise self._after.pop(0)


def new() -> Append:
    return Append(KEY, (), check_ids=False, expect=None)


def waiting(commits: GroupCommit, count: int) -> list[Append]:
    """Appends that have been handed in and not been committed yet."""
    appends = [new() for _ in range(count)]
    commits._waiting.extend(appends)
    return appends


def interrupted(_: Sequence[Append]) -> BaseException:
    return KeyboardInterrupt()


def test_what_waits_is_written_together_up_to_a_limit() -> None:
    """One commit takes all that wait, in their order, but never more than the limit."""
    writer = Writer()
    commits = GroupCommit(allocate_lock(), writer)
    before = waiting(commits, GROUP + 3)

    commits.run_now(new())

    assert [len(batch) for batch in writer.commits] == [GROUP, 4]
    assert [append for batch in writer.commits for append in batch][: GROUP + 3] == before
    assert not commits._waiting


def test_what_cannot_be_stored_fails_alone() -> None:
    """An append that is refused is told so; those that were in its transaction are written without it."""
    fault = InvalidEntry("here", "no")
    writer = Writer(lambda batch: AppendRefused(batch[1], fault))
    commits = GroupCommit(allocate_lock(), writer)
    good, bad, other = waiting(commits, 3)

    commits.run_now(new())

    assert (bad.error, bad.settled) == (fault, [True])
    assert [(append.error, append.settled) for append in (good, other)] == [(None, [True])] * 2
    assert [len(batch) for batch in writer.commits] == [3]


def test_a_transaction_that_fails_is_tried_with_ones_own_append_alone() -> None:
    """Where a group fails and nobody knows by whom, its leader writes its own; the others are written by the next."""
    writer = Writer(lambda batch: Conflict("store", "no"))
    commits = GroupCommit(allocate_lock(), writer)
    (other,) = waiting(commits, 1)
    own = new()

    commits.run_now(own)
    assert writer.commits == [[own]]
    assert not other.settled
    commits._commit(other)

    assert writer.commits == [[own], [other]]


def test_who_fails_alone_is_told_and_leaves_the_queue() -> None:
    """An append whose own transaction fails raises what that raised, and nobody writes it later."""
    writer = Writer(lambda batch: Conflict("store", "no"), lambda batch: Conflict("store", "again"))
    commits = GroupCommit(allocate_lock(), writer)
    (other,) = waiting(commits, 1)

    with pytest.raises(Conflict, match="again"):
        commits.run_now(new())
    commits._commit(other)

    assert writer.commits == [[other]]


def test_an_interrupt_is_nobody_elses_failure() -> None:
    """Ctrl-C in the thread that commits takes its own append back; the others are written by the next, once."""
    writer = Writer(interrupted)
    commits = GroupCommit(allocate_lock(), writer)
    others = waiting(commits, 2)

    with pytest.raises(KeyboardInterrupt):
        commits.run_now(new())
    assert not any(other.settled for other in others)
    last = new()
    commits.run_now(last)

    assert writer.commits == [[*others, last]]


def test_what_was_committed_counts_although_an_interrupt_came_right_after() -> None:
    """Once a commit has returned its appends are settled: whatever is raised then, nobody writes them again."""
    writer = Writer(after=[KeyboardInterrupt()])
    commits = GroupCommit(allocate_lock(), writer)
    others = waiting(commits, 2)

    with pytest.raises(KeyboardInterrupt):
        commits.run_now(new())
    commits.run_now(new())

    assert all(other.settled for other in others)
    assert [len(batch) for batch in writer.commits] == [3, 1]


def test_an_interrupt_before_anybody_has_begun_takes_the_append_back() -> None:
    """Interrupted while another thread has the turn, an append that is not claimed yet is never written."""
    turn = allocate_lock()
    writer = Writer()
    commits = GroupCommit(turn, writer)
    own = new()

    class Interrupting(Inline):
        async def run(self, function: Callable[..., object], *arguments: object) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(commits.run(own, Interrupting()))
    commits.run_now(new())

    assert own.withdrawn
    assert all(own not in batch for batch in writer.commits)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_decided_when_a_caller_is_interrupted_stays_so(asynchronous: bool) -> None:
    """At whatever moment the caller is interrupted, its append is written by then, or never."""

    def hand_in(commits: GroupCommit, append: Append) -> object:
        return drive(commits.run(append, Inline())) if asynchronous else commits.run_now(append)

    def commits_and_writer() -> tuple[GroupCommit, Writer]:
        writer = Writer()
        return GroupCommit(allocate_lock(), writer), writer

    first = commits_and_writer()[0]
    for at in range(interrupts.points(lambda: hand_in(first, new()))):
        commits, writer = commits_and_writer()
        own, other = new(), new()

        interrupts.interrupted(partial(hand_in, commits, own), at)

        then = [*writer.commits]
        hand_in(commits, other)
        assert writer.commits == [*then, [other]], f"interrupted at {at}"
        assert then in ([], [[own]])
        assert not commits._waiting


def test_many_that_were_taken_back_are_in_nobodys_way() -> None:
    """However many interrupted callers have left an append behind, the next one is written, and theirs are not."""
    writer = Writer(*[interrupted] * (GROUP + 5))
    commits = GroupCommit(allocate_lock(), writer)
    for _ in range(GROUP + 5):
        with pytest.raises(KeyboardInterrupt):
            commits.run_now(new())
    own = new()

    commits.run_now(own)

    assert writer.commits == [[own]]
    assert not commits._waiting


def test_who_is_cancelled_while_a_commit_is_under_way_hears_its_outcome() -> None:
    """A cancelled task returns when it is decided whether its append was written, and it was or never will be."""

    async def main() -> None:
        runner, loop = Threaded(), asyncio.get_running_loop()
        gate, begun = allocate_lock(), asyncio.Event()

        def stop(_: Sequence[Append]) -> None:
            loop.call_soon_threadsafe(begun.set)
            gate.acquire()

        writer = Writer(stop)
        commits = GroupCommit(allocate_lock(), writer)
        gate.acquire()
        both = new(), new()
        tasks = [asyncio.create_task(commits.run(append, runner)) for append in both]
        await begun.wait()

        for task in tasks:
            task.cancel()
        gate.release()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await runner.close()

        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        assert all(bool(append.settled) != append.withdrawn for append in both)
        assert [append for batch in writer.commits for append in batch] == [one for one in both if one.settled]

    asyncio.run(main())
