"""Group commit: appends that arrive while another commits are committed together by whoever comes next.

It knows nothing of any backend: `write` is given the appends and makes one transaction of them.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Sequence

from palimpsest.entries import Entry
from palimpsest.errors import PalimpsestError
from palimpsest.log import SessionKey
from palimpsest.runners import Runner
from palimpsest.stores import Appended

GROUP = 128
"""Appends committed together at most, so that nobody waits long for others."""


class Append:
    """One append that waits to be committed, and what became of it."""

    __slots__ = ("check_ids", "claimed", "done", "entries", "error", "expect", "key", "result", "withdrawn")

    def __init__(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> None:
        self.key, self.entries, self.check_ids, self.expect = key, entries, check_ids, expect
        self.result: Appended | None = None
        self.error: BaseException | None = None
        self.done = self.claimed = self.withdrawn = False


class GroupCommit:
    """The queue before one writer. `lock` is the store's; `write` sets the result or error of each append."""

    def __init__(self, lock: LockType, write: Callable[[Sequence[Append]], None]) -> None:
        self._lock, self._write = lock, write
        self._claim = allocate_lock()
        self._waiting: deque[Append] = deque()

    async def run(self, append: Append, runner: Runner) -> Appended:
        """Have the append committed; a caller that is cancelled before that began takes it back."""
        self._waiting.append(append)
        try:
            return await runner.run(self._commit, append)
        except BaseException:
            if not self._withdraw(append):  # another's commit has it: when this returns, it is decided
                await runner.finish(self._settled)
            raise

    def run_now(self, append: Append) -> Appended:
        """Have the append committed, in this thread."""
        self._waiting.append(append)
        return self._commit(append)

    def _withdraw(self, append: Append) -> bool:
        """Take back an append that nobody has begun to write; return whether there is nothing to wait for."""
        with self._claim:
            append.withdrawn = not append.claimed
            return append.withdrawn or append.done

    def _settled(self) -> None:
        """Return when the commit that is under way is over."""
        with self._lock:
            pass

    def _commit(self, append: Append) -> Appended:
        """Commit what waits, unless whoever had the lock before has done it."""
        with self._lock:
            while not append.done:
                self._commit_together(append)
        if append.error is not None:
            raise append.error
        assert append.result is not None, "an append that is done has a result or an error"
        return append.result

    def _commit_together(self, own: Append) -> None:
        waiting = self._waiting
        with self._claim:
            batch = [waiting.popleft() for _ in range(min(len(waiting), GROUP))]
            batch = [append for append in batch if not append.withdrawn]
            for append in batch:
                append.claimed = True
        try:
            self._write(batch)
        except PalimpsestError as error:
            for append in batch:
                append.result, append.error = None, error
        except BaseException:  # Ctrl-C in this thread is not the others' failure: they are written by the next
            with self._claim:
                for append in reversed(batch):
                    append.result, append.error, append.claimed = None, None, False
                    if append is not own:
                        waiting.appendleft(append)
            batch = []
            raise
        finally:
            for append in batch:
                append.done = True
