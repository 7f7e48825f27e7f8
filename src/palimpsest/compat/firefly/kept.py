"""One conversation as this process has cached it: its kept turns, its summaries, and the revision that they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Any

from palimpsest import Conflict, Entry, Session, SessionNotFound
from palimpsest.compat.firefly.history import Background
from palimpsest.compat.firefly.raw import Raw
from palimpsest.compat.firefly.turns import MARK, Kept, about_of, kept_of, may_be_shown
from palimpsest.compat.firefly.weighing import Scale
from palimpsest.runtime.logs import log_failure
from palimpsest.runtime.once import new_rlock
from palimpsest.types import SessionInfo, Summary

TRIES = 20
"""How often `refresh` reads a conversation that other writers keep changing before it raises Conflict."""

FAILURES, PAUSE, LONGEST_PAUSE = 3, 60.0, 3600.0
"""After `FAILURES` failed summaries in a row none is asked for during `PAUSE` seconds. Each further failure doubles the
pause, up to `LONGEST_PAUSE` seconds."""


class Conversation:
    """The cached state of one conversation.

    A caller holds `lock` while it uses the state, but never while a summarizer runs.
    """

    session: Session
    """The session that stores the conversation. `Keeper` sets it right after construction."""

    def __init__(self, scale: Scale) -> None:
        self.scale, self.lock = scale, new_rlock()
        self.turns: list[Kept] = []
        self.summaries: Sequence[Summary] = ()
        self._leaving: dict[int, Kept] = {}  # turns by `seq` as they were when running compactions began
        self._compactions = 0  # how many run now; the last one to end empties `_leaving`
        self._estimated = 0  # an upper bound of the tokens of `turns`
        self._version: tuple[int, int, int] | None = None  # created, epoch and revision of what is cached
        self._last_seq = 0
        self._next_number = 0
        self._background: Background | None = None
        self._failures, self._paused_until = 0, 0.0

    # --- knowing what is stored

    def refresh(self) -> None:
        """Bring the cache up to date with the store.

        Only the new entries are read if the log was merely appended to; else everything that is kept is read again.
        Raises Conflict if the conversation changes faster than it can be read.
        """
        for _ in range(TRIES):
            try:
                info = self.session.info()
            except SessionNotFound:
                self.forget()
                return
            version = (info.created, info.epoch, info.revision)
            if version == self._version:
                return
            if self._version is not None and version[:2] == self._version[:2] and info.revision > self._version[2]:
                self._take(self.session.entries(after=self._last_seq))
                newest = self.turns[-1].entry.revision if self.turns else 0
                self._version = (*version[:2], max(info.revision, newest))
                return
            if self._read(info):
                return
        raise Conflict(f"conversation {self.session.id!r}", "changes faster than it can be read; try again later")

    def forget(self) -> None:
        """Empty the cache: the conversation does not exist (any more)."""
        self.turns, self.summaries, self._background, self._version = [], (), None, None
        self._last_seq = self._next_number = self._estimated = 0

    def _stale(self) -> None:
        """Make the next `refresh` read everything again."""
        if self._version is not None:
            self._version = (0, -1, 0)

    def _read(self, info: SessionInfo) -> bool:
        """Read everything that is kept. Return False, for another try, if the session changed meanwhile."""
        entries, summaries = self.session.active_entries(), self.session.summaries()
        log: Sequence[Entry] = entries
        if entries and entries[-1].seq - entries[0].seq >= len(entries):
            # An entry in between is erased or hidden. Turn numbers count those, too.
            log = self.session.entries(after=entries[0].seq - 1)
        try:
            info_after = self.session.info()
        except SessionNotFound:
            return False
        if (info_after.created, info_after.epoch) != (info.created, info.epoch):
            return False
        previous_turns = self.turns
        cached = {turn.entry.id: turn for turn in (*previous_turns, *self._leaving.values())}
        counted_turns = sum(_begins(entry) and entry.revision <= info.revision for entry in log)
        offset = info.metadata.get(MARK, {}).get("offset", 0) if isinstance(info.metadata.get(MARK), dict) else 0
        first = info.interactions - counted_turns + (offset if isinstance(offset, int) else 0)
        numbers = {entry.seq: first + i for i, entry in enumerate(filter(_begins, log))}
        self.turns, self.summaries, self._estimated = [], summaries, 0
        self._next_number = first
        self._last_seq = log[-1].seq if log else self._last_seq
        try:
            self._take(entries, cached, numbers)
        except BaseException:  # keep the cached turns: raw messages that only this process has would be lost
            self.turns, self._version = previous_turns, None
            raise
        self._next_number = first + len(numbers)
        newest = max((entry.revision for entry in log), default=0)
        self._version = (info.created, info.epoch, max(info.revision, newest))
        return True

    def _take(
        self, entries: Sequence[Entry], cached: dict[str, Kept] | None = None, numbers: dict[int, int] | None = None
    ) -> None:
        """Cache the turns of `entries`, which follow everything cached so far.

        `cached` are turns, by the id of their first entry, whose raw messages may be reused. `numbers` are turn
        numbers, by the `seq` of the first entry; without them turns are numbered on from the last one.
        """
        for members in _by_turn(entries):
            first = members[0]
            if _begins(first):
                number = self._next_number if numbers is None else numbers[first.seq]
                if not first.erased:
                    self._append(_turn_of(members, cached or {}), number)
                self._next_number = max(self._next_number, number + 1)
            elif first.turn and self.turns and self.turns[-1].entry.seq == first.turn:
                turn = self.turns[-1]  # another program added to this turn through the native session
                turn.response, turn.last = _response(members) or turn.response, members[-1].seq
            self._last_seq = max(self._last_seq, members[-1].seq)

    def _append(self, turn: Kept, number: int) -> None:
        stored_number = about_of(turn.entry).get("id")
        turn.turn_id = stored_number if isinstance(stored_number, int) else number
        self._estimated += turn.bound(self.scale)  # may call the program's estimator, which may raise
        self.turns.append(turn)

    # --- adding

    def unstored(self, entries: Sequence[Entry], raw: Raw, bound: int) -> Kept:
        """Return a turn that is not in the log, with the number that the next turn will get."""
        self.refresh()
        turn = kept_of(entries[0], entries[1].text, raw, bound)
        turn.turn_id = self._next_number
        return turn

    def added(self, entries: Sequence[Entry], raw: Raw, given: Sequence[Entry], bound: int) -> Kept:
        """Cache a turn that was just appended to the log, and return it.

        Args:
            entries: the turn's entries as they were stored.
            raw: its raw messages.
            given: its entries as they were before a privacy policy may have changed them.
            bound: an upper bound of the cost of what was given.
        """
        first, may_stay = entries[0], may_be_shown(raw, entries, given, self.session.redact)
        turn = kept_of(first, entries[1].text, raw if may_stay else None, bound if may_stay else None)
        turn.last = entries[1].seq
        created, epoch, revision = self._version or (0, -1, 0)
        if first.seq == 1 and self._version is None:
            self._version, self._last_seq, self._next_number = (first.at, 0, first.revision), turn.last, 1
            self._append(turn, 0)
            return turn
        if first.revision == revision + 1 and first.seq == self._last_seq + 1 and epoch >= 0:
            self._version, self._last_seq, number = (created, epoch, first.revision), turn.last, self._next_number
            self._next_number += 1
            self._append(turn, number)
            return turn
        return self._added_out_of_step(turn)

    def _added_out_of_step(self, turn: Kept) -> Kept:
        """Cache a turn that was just appended, after other writers changed the log too, and return it.

        If the log cannot be read now, that is only logged, since the turn is stored. The next `refresh` reads
        everything again.
        """
        turns, next_number = self.turns, self._next_number
        try:
            self.refresh()
        except Exception as fault:  # noqa: BLE001 (the boundary: the turn is stored)
            log_failure(
                self.session.redact, fault, "a stored conversation could not be read after a turn was added to it"
            )
            others = [known for known in turns if known.entry.id != turn.entry.id]
            turn.turn_id, self.turns, self._version = next_number, [*others, turn], None
            return turn
        for i, known in enumerate(self.turns):
            if known.entry.id == turn.entry.id:
                turn.turn_id = known.turn_id
                self.turns[i] = turn
        return turn

    # --- what is cached

    def exceeds(self, limit: int) -> bool:
        """Return whether the kept turns cost more than `limit` tokens.

        They are counted only if their upper bound does not tell.
        """
        if self._estimated > limit:
            self._estimated = sum([turn.cost(self.scale) for turn in self.turns])
        return self._estimated > limit

    def newest(self, limit: int) -> list[Kept]:
        """Return the newest turns that together cost at most `limit` tokens, oldest first: always at least one."""
        if not self.exceeds(limit):
            return list(self.turns)
        remaining, newest = limit, list[Kept]()
        for turn in reversed(self.turns):
            remaining -= turn.cost(self.scale)
            if remaining < 0 and newest:
                break
            newest.append(turn)
        return newest[::-1]

    @property
    def summary(self) -> str | None:
        """The summary of the turns that left; None if there is none."""
        return "\n\n".join(summary.text for summary in self.summaries) or None

    def background(self) -> Background | None:
        """Return the summary as a history shows it; None if there is none."""
        text = self.summary
        if text is None:
            return None
        if self._background is None or self._background.text != text:
            self._background = Background(text, self.summaries[-1].created_at, self.scale)
        return self._background

    @property
    def has_objects(self) -> bool:
        """Whether some raw messages exist only in this process, since they have no form in JSON."""
        return any(turn.raw.form == "opaque" for turn in self.turns)

    # --- turns that leave

    @property
    def paused(self) -> bool:
        """Whether no summary is asked for now, because the last ones failed."""
        return self._failures >= FAILURES and _now() < self._paused_until

    def begin_leaving(self) -> dict[int, Kept]:
        """Return the kept turns by `seq`, and hold them until every compaction that has begun calls `end_leaving`."""
        with self.lock:
            kept = {turn.entry.seq: turn for turn in self.turns}
            self._leaving = {**self._leaving, **kept}
            self._compactions += 1
            return kept

    def end_leaving(self, *, failed: bool, done: bool) -> None:
        """Note that a compaction has ended, and whether its summary failed or turns left."""
        with self.lock:
            self._compactions -= 1
            self._stale()
            if not self._compactions:
                self._leaving = {}
            if failed:
                self._failures += 1
                seconds = min(PAUSE * 2 ** min(max(self._failures - FAILURES, 0), 10), LONGEST_PAUSE)
                self._paused_until = _now() + seconds
            elif done:
                self._failures = 0

    def turns_of(self, entries: Sequence[Entry], limit: int) -> list[Kept]:
        """Return the turns that `entries` form, oldest first, for a summarizer.

        These are all turns that leave now. Of the turns that left earlier without a summary, they are the newest that
        cost no more than `limit` tokens together.
        """
        leaving = {turn.entry.id: turn for turn in self._leaving.values()}
        chosen: list[Kept] = []
        earlier_cost = 0
        for members in reversed([members for members in _by_turn(entries) if _begins(members[0])]):
            turn, cached = _turn_of(members, leaving), leaving.get(members[0].id)
            if cached is not None:
                turn.turn_id = cached.turn_id
            else:
                earlier_cost += turn.cost(self.scale)
                if earlier_cost > limit:
                    break
            chosen.append(turn)
        self._number([turn for turn in chosen if turn.entry.id not in leaving])
        return chosen[::-1]

    def _number(self, turns: Sequence[Kept]) -> None:
        """Give `turns`, which left earlier and come newest first, their numbers back."""
        first_leaving = min(self._leaving.values(), key=lambda turn: turn.entry.seq, default=None)
        if not turns or first_leaving is None:
            return
        log = self.session.entries(after=turns[-1].entry.seq - 1, before=first_leaving.entry.seq)
        begin_seqs = [entry.seq for entry in log if _begins(entry)][::-1]
        for turn in turns:
            stored_number = about_of(turn.entry).get("id")
            turn.turn_id = (
                stored_number
                if isinstance(stored_number, int)
                else first_leaving.turn_id - 1 - begin_seqs.index(turn.entry.seq)
            )

    def state(self) -> tuple[int, str | None]:
        """Return the number of the first kept turn and the summary of the turns before it, as stored now."""
        with self.lock:
            self._stale()
            self.refresh()
            return self.turns[0].turn_id if self.turns else self._next_number, self.summary


_now: Callable[[], float] = monotonic


def _by_turn(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Group the entries by the interaction that they belong to."""
    return [list(members) for _, members in groupby(entries, attrgetter("turn"))]


def _begins(entry: Entry) -> bool:
    """Return whether the entry is the first of a turn. This holds for erased ones, too."""
    return entry.turn == entry.seq


def _turn_of(members: Sequence[Entry], cached: dict[str, Kept]) -> Kept:
    """Return the turn of these entries. It keeps the cached raw messages if what is stored has not changed."""
    first, response = members[0], _response(members) or ""
    old = cached.get(first.id)
    unchanged = old is not None and old.entry.content == first.content and old.response == response
    turn = kept_of(first, response, old.raw if old is not None and unchanged and _same_raw(old, first) else None)
    turn.last = members[-1].seq
    return turn


def _same_raw(old: Kept, stored: Entry) -> bool:
    """Return whether the stored raw messages are unchanged, so that the cached objects may be handed out again."""
    before: Any = about_of(old.entry)
    after = about_of(stored)
    return bool(before.get("raw") == after.get("raw") and before.get("form") == after.get("form"))


def _response(members: Sequence[Entry]) -> str | None:
    """Return the last assistant message among the entries; None if there is none."""
    texts = [entry.text for entry in members if entry.kind == "message" and entry.role == "assistant"]
    return texts[-1] if texts else None
