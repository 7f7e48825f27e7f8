"""Group commit: who waits is written by whoever has the lock, and one caller's failure is not another's."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Sequence

import pytest

from palimpsest import Conflict
from palimpsest.log import Head, SessionKey
from palimpsest.stores import Appended
from palimpsest.stores.group_commit import GROUP, Append, GroupCommit

KEY = SessionKey("t", "s")


class Writer:
    """Writes nothing, remembers what it was given, and fails first as it was told."""

    def __init__(self, *failures: BaseException) -> None:
        self.batches: list[list[Append]] = []
        self._failures = list(failures)

    def __call__(self, batch: Sequence[Append]) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.batches.append(list(batch))
        for append in batch:
            append.result = Appended(Head(), (), len(append.entries))


def waiting(commits: GroupCommit, count: int) -> list[Append]:
    """Appends that have been handed in and not been committed yet."""
    appends = [Append(KEY, (), check_ids=False, expect=None) for _ in range(count)]
    for append in appends:
        commits._waiting.append(append)
    return appends


def test_what_waits_is_written_together_up_to_a_limit() -> None:
    """One commit takes all that wait, in their order, but never more than the limit."""
    writer = Writer()
    commits = GroupCommit(allocate_lock(), writer)
    before = waiting(commits, GROUP + 3)

    commits.run_now(Append(KEY, (), check_ids=False, expect=None))

    assert [len(batch) for batch in writer.batches] == [GROUP, 4]
    assert [append for batch in writer.batches for append in batch][: GROUP + 3] == before


def test_a_failed_commit_fails_all_that_were_in_it() -> None:
    """Where the transaction fails nothing of it was stored, and everybody in it is told so."""
    fault = Conflict("store", "no")
    commits = GroupCommit(allocate_lock(), Writer(fault))
    (other,) = waiting(commits, 1)

    with pytest.raises(Conflict):
        commits.run_now(Append(KEY, (), check_ids=False, expect=None))

    assert (other.done, other.error) == (True, fault)


def test_an_interrupt_is_nobody_elses_failure() -> None:
    """Ctrl-C in the thread that commits ends its own append; the others wait on and are written by the next."""
    writer = Writer(KeyboardInterrupt())
    commits = GroupCommit(allocate_lock(), writer)
    others = waiting(commits, 2)

    with pytest.raises(KeyboardInterrupt):
        commits.run_now(Append(KEY, (), check_ids=False, expect=None))
    assert not any(other.done for other in others)
    commits.run_now(Append(KEY, (), check_ids=False, expect=None))

    assert writer.batches[0][:2] == others
    assert len(writer.batches[0]) == 3
