"""Group commit: appends that arrive while another commits are committed together by whoever comes next.

It knows nothing of any backend: `write` makes one transaction of the appends that it is given when that has begun.

Whoever has the `turn` leads: it writes what waits, its own and others', until its own is settled. An append stays in
the queue until it is settled, so that one whose leader was interrupted is written by the next. Settled are all appends
of a commit at once, by a list that they share and that the commit itself fills: there is no moment at which something
is committed and does not count as that.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from palimpsest.errors import PalimpsestError
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Appended

GROUP = 128
"""Appends committed together at most, so that nobody waits long for others."""


CALM = 16
"""After so many commits of one append each nobody is expected to wait, and the queue is gone past: where many write,
one that goes past it would take the turn from those who have been waiting to go together."""


class Append:
    """One append that waits to be committed, and what became of it. `since` is when it began to wait."""

    __slots__ = ("check_ids", "claimed", "entries", "error", "expect", "key", "result", "settled", "since", "withdrawn")

    def __init__(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> None:
        self.key, self.entries, self.check_ids, self.expect = key, entries, check_ids, expect
        self.result: Appended | None = None
        self.error: BaseException | None = None
        self.settled: list[bool] = []
        self.claimed = self.withdrawn = False
        self.since = time.monotonic()

    def outcome(self) -> Appended:
        """What became of it, now that it is settled: its result, or its error is raised."""
        if self.error is not None:
            raise self.error
        assert self.result is not None, "an append that is settled has a result or an error"
        return self.result


class AppendRefused(Exception):
    """An append cannot be written, for a reason of its own: its transaction is taken back, and made without it."""

    def __init__(self, append: Append, why: BaseException) -> None:
        self.append, self.why = append, why


class Write(Protocol):
    """Writes appends in one transaction, waiting for other processes from `since` on.

    When that has begun it calls `claim` for them, and sets `result` or `error` of each; `settle`, a function of C, is
    called by the commit itself. Where something of an append cannot be stored, and part of it may have been, it raises
    Refused; whatever else it raises is nobody's in particular. It may call `claim` again, for another try.
    """

    def __call__(self, claim: Callable[[], Sequence[Append]], settle: Callable[[], object], since: float) -> object: ...


class GroupCommit:
    """The queue before one writer. `turn` is the store's lock of whoever writes."""

    def __init__(self, turn: LockType, write: Write) -> None:
        self._turn, self._write = turn, write
        self._queue = allocate_lock()
        self._waiting: deque[Append] = deque()
        self._singles = 0

    async def run(self, append: Append, runner: Runner) -> Appended:
        """Have the append committed; a caller that is cancelled or interrupted before that began takes it back."""
        try:
            with self._queue:
                self._waiting.append(append)
            return await runner.run(self._commit, append)
        except BaseException:
            if not self._withdraw(append):  # another's commit has it: when this returns, it is decided
                await runner.finish(self._decide, append)
            raise

    def run_now(self, append: Append) -> Appended:
        """Have the append committed, in this thread."""
        if self._singles >= CALM and not (self._turn.locked() or self._waiting):
            with self._turn:
                self._commit_alone(append)
            return append.outcome()
        try:
            with self._queue:
                self._waiting.append(append)
            return self._commit(append)
        except BaseException:
            if not self._withdraw(append):
                self._decide(append)
            raise

    def _withdraw(self, append: Append) -> bool:
        """Take back an append that nobody has begun to write; return whether it is decided what becomes of it."""
        with self._queue:
            append.withdrawn = not append.claimed
            return append.withdrawn or bool(append.settled)

    def _decide(self, append: Append) -> None:
        """Take the append back unless the commit that is under way settles it."""
        with self._turn, self._queue:
            append.withdrawn = not append.settled

    def _commit(self, append: Append) -> Appended:
        """Commit what waits, unless whoever had the turn before has done it."""
        with self._turn:
            together = True
            while not append.settled:
                together = self._lead(append, together=together)
            self._drop()  # or what it holds would stay in memory
        return append.outcome()

    def _commit_alone(self, append: Append) -> None:
        """Commit an append that nobody else knows of: so there is nobody to write it for whom this interrupts."""

        def claim() -> Sequence[Append]:
            append.result = append.error = None
            return (append,)

        try:
            self._write(claim, partial(append.settled.append, True), append.since)
        except AppendRefused as refused:
            append.error = refused.why

    def _lead(self, own: Append, *, together: bool) -> bool:
        """Write what waits, or one's own append alone; return whether to go on together."""
        settled: list[bool] = []
        claimed: list[Append] = []

        def claim() -> Sequence[Append]:
            claimed[:] = self._claim(settled, None if together else own)
            return claimed

        try:
            self._write(claim, partial(settled.append, True), own.since)
        except AppendRefused as refused:
            refused.append.error = refused.why
            refused.append.settled = [True]
        except PalimpsestError:
            if len(claimed) <= 1:
                raise
            return False  # perhaps another's doing: each tries alone
        return True

    def _claim(self, settled: list[bool], only: Append | None) -> Sequence[Append]:
        """Take what is to be written now; `settled` will tell that it was."""
        self._drop()
        with self._queue:
            first = [only] if only else islice(self._waiting, GROUP)
            batch = [append for append in first if not append.settled and not append.withdrawn]
            for append in batch:
                append.settled, append.claimed = settled, True
                append.result = append.error = None
        self._singles = self._singles + 1 if len(batch) == 1 else 0
        return batch

    def _drop(self) -> None:
        """Drop what is over from the head of the queue. Needs the turn."""
        waiting = self._waiting
        while waiting and (waiting[0].settled or waiting[0].withdrawn):
            waiting.popleft()
