"""Group commit: whoever has the turn writes what others wait for, and a failure is its caller's alone."""

from __future__ import annotations

import asyncio
import json
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest

import interrupts
from palimpsest import Conflict, StoreUnavailable
from palimpsest.errors import PalimpsestError, StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Inline, Runner, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores import Store
from palimpsest.stores.backend import Again, Batch, Refusal
from palimpsest.stores.engine.appends import Append
from palimpsest.stores.engine.queues import GROUP, Queues
from palimpsest.stores.memory import MemoryBackend

KEY, OTHER = SessionKey("t", "s"), SessionKey("t", "other")

Failure = Callable[[Sequence[str]], BaseException | None]


class Writer(MemoryBackend):
    """Gathers appends like a store whose writes wait for a disk, and records which texts it wrote together.

    It fails as told, before writing anything or right after.
    """

    gathers = True

    def __init__(self, *before: Failure, after: Sequence[BaseException] = (), runner: Runner | None = None) -> None:
        super().__init__(runner or Inline())
        self.commits: list[list[str]] = []
        self._before, self._after = list(before), list(after)

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        fault = self._before.pop(0)(written(batches)) if self._before else None
        if fault is not None:
            raise fault
        done = await super().write(batches, at, lasting=lasting)
        self.commits.append(written([batch for batch, refusal in zip(batches, done, strict=True) if refusal is None]))
        if self._after:
            raise self._after.pop(0)
        return done


def written(batches: Sequence[Batch]) -> list[str]:
    """Return the texts of the entries in the batches."""
    steps = [step for batch in batches for step in batch]
    rows = [row for step in steps for table, rows in step.put for row in rows if table == "entry"]
    return [json.loads(row[1][:-8])["content"] for row in rows]


_numbers = count()


def new(key: SessionKey = KEY) -> Append:
    """Return an append of an entry with a unique text."""
    return Append(key, [Entry(content=f"text {next(_numbers)}")], check_ids=False)


def text_of(append: Append) -> str:
    return append.entries[0].text


def texts(appends: Sequence[Append]) -> list[str]:
    return [text_of(append) for append in appends]


def queue_before(writer: Writer) -> Queues:
    return Store(writer)._appends


def stored(writer: Writer, key: SessionKey = KEY) -> list[str]:
    """Return the texts of a session as somebody else finds them."""
    return [entry.text for entry in drive(Store(writer).read(key))]


def waiting(commits: Queues, count: int, key: SessionKey = KEY) -> list[Append]:
    """Queue appends without writing them."""
    appends = [new(key) for _ in range(count)]
    commits._queue.waiting.extend(appends)
    return appends


def lead(commits: Queues, append: Append) -> object:
    """Let a waiting append take its turn."""
    return drive(commits._written(commits._queue, append))


def interrupted(_: Sequence[str]) -> BaseException:
    return KeyboardInterrupt()


def refused(_: Sequence[str]) -> BaseException:
    return StoreUnavailable("a store", "no")


def test_waiting_appends_are_written_together_up_to_a_limit() -> None:
    """One write takes all waiting appends in order, up to a limit."""
    writer = Writer()
    commits = queue_before(writer)
    before = waiting(commits, GROUP + 3)
    own = new()

    drive(commits.run(own))

    assert [len(batch) for batch in writer.commits] == [GROUP, 4]
    assert [text for batch in writer.commits for text in batch] == texts([*before, own]) == stored(writer)
    assert not commits._queue.waiting


def test_appends_of_several_sessions_are_written_together() -> None:
    """One write takes appends of several sessions, each in its own order."""
    writer = Writer()
    commits = queue_before(writer)
    mine, others = waiting(commits, 2), waiting(commits, 2, OTHER)
    own = new()

    drive(commits.run(own))

    assert [sorted(batch) for batch in writer.commits] == [sorted(texts([*mine, *others, own]))]
    assert stored(writer) == texts([*mine, own])
    assert stored(writer, OTHER) == texts(others)


def test_an_append_that_cannot_be_stored_fails_alone() -> None:
    """An append that is refused fails alone; the others are written without it."""
    writer = Writer()
    commits = queue_before(writer)
    (good,) = waiting(commits, 1)
    bad = Append(KEY, [Entry(id="one", content="a"), Entry(id="one", content="b")], check_ids=True)
    commits._queue.waiting.append(bad)
    (other,) = waiting(commits, 1)
    own = new()

    drive(commits.run(own))

    assert isinstance(bad.error, Conflict)
    assert bad.done
    assert [(append.error, append.done) for append in (good, other)] == [(None, True)] * 2
    assert writer.commits == [texts([good, other, own])]


def test_the_leader_of_a_failed_group_retries_its_own_append_alone() -> None:
    """If a group fails for an unknown reason, its leader writes its own append; the next writes the others."""
    writer = Writer(refused)
    commits = queue_before(writer)
    (other,) = waiting(commits, 1)
    own = new()

    drive(commits.run(own))
    assert writer.commits == [texts([own])]
    assert not other.done
    lead(commits, other)

    assert writer.commits == [texts([own]), texts([other])]


def test_a_failed_append_raises_and_leaves_the_queue() -> None:
    """An append whose own write fails raises, and nobody writes it later."""
    writer = Writer(refused, lambda batch: StoreUnavailable("a store", "again"))
    commits = queue_before(writer)
    (other,) = waiting(commits, 1)

    with pytest.raises(StoreUnavailable, match="again"):
        drive(commits.run(new()))
    lead(commits, other)

    assert writer.commits == [texts([other])]


def test_appends_that_waited_for_other_processes_fail_together() -> None:
    """Where others were in the way for too long, all that had come before fail: each has waited once, not in a row."""
    attempts = list[list[str]]()
    late = list[Append]()

    def busy(batch: Sequence[str]) -> BaseException:
        attempts.append(list(batch))
        if not late:
            late.extend(waiting(commits, 1, OTHER))
        return StoreUnavailable("a store", "locked", busy=True)

    writer = Writer(*[busy] * (2 * GROUP))
    commits = queue_before(writer)
    own = new()
    others = [*waiting(commits, GROUP), *waiting(commits, 3, OTHER)]

    with pytest.raises(StoreUnavailable, match="locked"):
        drive(commits.run(own))

    assert len(attempts) == 1
    for append in others:
        with pytest.raises(StoreUnavailable, match="locked") as raised:
            lead(commits, append)
        assert raised.value.busy
        assert raised.value.written is False
    assert len(attempts) == 1
    assert not late[0].done  # it came during the wait, so it has not waited as long
    writer._before.clear()
    lead(commits, late[0])
    assert stored(writer, OTHER) == texts(late)
    assert stored(writer) == []


class Handed:
    """A queue's turn that somebody waiting takes as soon as it is given back."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._lock, self._then = allocate_lock(), [then]

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
        if self._then:
            self._then.pop()()


@pytest.mark.parametrize("failures", [[refused, refused], [interrupted]], ids=["refused", "interrupted"])
def test_a_failed_append_leaves_the_queue_before_the_next_turn(failures: list[Failure]) -> None:
    """A failed append has left the queue before another thread gets the turn."""
    writer = Writer(*failures)
    commits, own = queue_before(writer), new()
    (other,) = waiting(commits, 1)
    commits._queue.turn = Handed(lambda: lead(commits, other))  # type: ignore[assignment]

    with pytest.raises((StoreUnavailable, KeyboardInterrupt)):
        drive(commits.run(own))

    assert writer.commits == [texts([other])]
    assert not own.done


@pytest.mark.parametrize("fault", [StoreUnavailable("a store", "no", written=None), StoreCorrupt("a store", "damaged")])
def test_a_session_written_before_another_failed_is_not_written_again(fault: PalimpsestError) -> None:
    """If one session of a group fails after another was written, the written one is not written again."""
    writer = Writer(after=[fault])
    commits, own = queue_before(writer), new()
    (other,) = waiting(commits, 1, OTHER)

    drive(commits.run(own))

    assert stored(writer) == texts([own])
    lead(commits, other)
    assert stored(writer, OTHER) == texts([other])


def test_an_interrupt_in_the_writing_thread_fails_no_other_append() -> None:
    """Ctrl-C in the thread that writes takes its own append back; the others are written by the next, once."""
    writer = Writer(interrupted)
    commits = queue_before(writer)
    others = waiting(commits, 2)

    with pytest.raises(KeyboardInterrupt):
        drive(commits.run(new()))
    assert not any(other.done for other in others)
    last = new()
    drive(commits.run(last))

    assert [sorted(batch) for batch in writer.commits] == [sorted(texts([*others, last]))]


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), StoreUnavailable("a store", "who knows", written=None)])
def test_an_append_with_a_lost_answer_is_not_written_again(raised: BaseException) -> None:
    """An append whose answer was lost is found by the next writer and not written again."""
    writer = Writer(after=[raised])
    commits = queue_before(writer)
    others, own, last = waiting(commits, 2), new(), new()

    if isinstance(raised, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            drive(commits.run(own))
    else:
        drive(commits.run(own))
    drive(commits.run(last))

    assert all(other.done and other.result is not None for other in others)
    assert [entry.text for other in others if other.result for entry in other.result.entries] == texts(others)
    assert writer.commits == [texts([*others, own]), texts([last])]


def test_an_append_interrupted_before_it_is_claimed_is_never_written() -> None:
    """Interrupted while another thread has the turn, an append that is not claimed yet is never written."""

    class Interrupting(Inline):
        async def whole(self, *_: object, **__: object) -> object:  # type: ignore[override]
            raise KeyboardInterrupt

    writer = Writer(runner=Interrupting())
    writer.inline = False
    commits = queue_before(writer)
    own = new()

    with pytest.raises(KeyboardInterrupt):
        drive(commits.run(own))
    (last,) = waiting(commits, 1)
    lead(commits, last)

    assert own.withdrawn
    assert writer.commits == [texts([last])]


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_an_interrupted_append_is_not_written_after_its_caller_returned(asynchronous: bool, known: bool) -> None:
    """When its caller is interrupted, an append is written by then or never."""

    def begun() -> tuple[Queues, Writer, list[str]]:
        writer = Writer()
        writer.inline = not asynchronous
        commits = queue_before(writer)
        if known:
            drive(commits.run(new()))
        return commits, writer, stored(writer)

    first = begun()[0]
    for at in range(interrupts.points(lambda: drive(first.run(new())))):
        commits, writer, before = begun()
        own, other = new(), new()

        interrupts.interrupted(partial(lambda commits, own: drive(commits.run(own)), commits, own), at)

        then = stored(writer)
        drive(commits.run(other))
        assert stored(writer) == [*then, text_of(other)], f"interrupted at {at}"
        assert then in (before, [*before, text_of(own)])
        assert not commits._queue.waiting


def test_appends_of_interrupted_callers_do_not_stop_the_next_one() -> None:
    """Appends of interrupted callers are never written and do not stop the next one."""
    writer = Writer(*[interrupted] * (GROUP + 5))
    commits = queue_before(writer)
    for _ in range(GROUP + 5):
        with pytest.raises(KeyboardInterrupt):
            drive(commits.run(new()))
    own = new()

    drive(commits.run(own))

    assert writer.commits == [texts([own])]
    assert not commits._queue.waiting


def test_a_task_cancelled_during_a_write_returns_when_the_outcome_is_known() -> None:
    """A cancelled task returns when it is decided whether its append was written, and it was or never will be."""

    async def main() -> None:
        runner, loop = Threaded(), asyncio.get_running_loop()
        gate, begun = allocate_lock(), asyncio.Event()

        def stop(_: Sequence[str]) -> None:
            loop.call_soon_threadsafe(begun.set)
            gate.acquire()

        writer = Writer(stop, runner=runner)
        commits = queue_before(writer)
        gate.acquire()
        both = new(), new()
        tasks = [asyncio.create_task(commits.run(append)) for append in both]
        await begun.wait()

        for task in tasks:
            task.cancel()
        gate.release()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await runner.close()

        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        assert all(append.done != append.withdrawn for append in both)
        assert [text for batch in writer.commits for text in batch] == texts([one for one in both if one.done])

    asyncio.run(main())
