"""A conversation as one process knows it: its kept turns, its summary, and by what revision of the log."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Any

from palimpsest import Conflict, Entry, Session, SessionNotFound
from palimpsest.compat.firefly.history import Background
from palimpsest.compat.firefly.raw import Raw
from palimpsest.compat.firefly.turns import MARK, Kept, about_of, kept_of
from palimpsest.compat.firefly.weighing import Scale
from palimpsest.runtime.logs import log_failure
from palimpsest.types import SessionInfo, Summary

TRIES = 20
"""How often a conversation that others change meanwhile is read anew."""

FAILURES, PAUSE, LONGEST_PAUSE = 3, 60.0, 3600.0
"""After so many failures in a row no summary is asked for: for so many seconds, then twice as long, at most so long."""


class Conversation:
    """What is known of one conversation. Whoever uses it holds `lock`, but never while somebody summarises."""

    session: Session
    """Its session, which is opened right after this was made."""

    def __init__(self, scale: Scale) -> None:
        self.scale, self.lock = scale, RLock()
        self.turns: list[Kept] = []
        self.summaries: Sequence[Summary] = ()
        self._leaving: dict[int, Kept] = {}
        self._leavers = 0
        self._estimated = 0
        self._known: tuple[int, int, int] | None = None
        self._last = 0
        self._next = 0
        self._background: Background | None = None
        self._failures, self._paused_until = 0, 0.0

    # --- knowing what is stored

    def refresh(self) -> None:
        """Know what is stored now: what was appended is read, or all that is kept where anything else has changed."""
        for _ in range(TRIES):
            try:
                info = self.session.info()
            except SessionNotFound:
                self.forget()
                return
            seen = (info.created, info.epoch, info.revision)
            if seen == self._known:
                return
            if self._known is not None and seen[:2] == self._known[:2] and info.revision > self._known[2]:
                self._take(self.session.entries(after=self._last))
                newest = self.turns[-1].entry.revision if self.turns else 0
                self._known = (*seen[:2], max(info.revision, newest))
                return
            if self._read(info):
                return
        raise Conflict(
            f"conversation {self.session.id!r}", "is changed faster than it can be read: try again, or later"
        )

    def forget(self) -> None:
        """Know nothing: there is no such conversation."""
        self.turns, self.summaries, self._background, self._known = [], (), None, None
        self._last = self._next = self._estimated = 0

    def _stale(self) -> None:
        """Have everything read again at the next look."""
        if self._known is not None:
            self._known = (0, -1, 0)

    def _read(self, info: SessionInfo) -> bool:
        """Read all that is kept; False where it has changed meanwhile."""
        entries, summaries = self.session.active_entries(), self.session.summaries()
        log: Sequence[Entry] = entries
        if entries and entries[-1].seq - entries[0].seq >= len(entries):  # something within is erased or hidden
            log = self.session.entries(after=entries[0].seq - 1)
        try:
            now = self.session.info()
        except SessionNotFound:
            return False
        if (now.created, now.epoch) != (info.created, info.epoch):
            return False
        before = self.turns
        known = {turn.entry.id: turn for turn in (*before, *self._leaving.values())}
        old_numbers = sum(_begins(entry) and entry.revision <= info.revision for entry in log)
        offset = info.metadata.get(MARK, {}).get("offset", 0) if isinstance(info.metadata.get(MARK), dict) else 0
        first = info.interactions - old_numbers + (offset if isinstance(offset, int) else 0)
        numbers = {entry.seq: first + i for i, entry in enumerate(filter(_begins, log))}
        self.turns, self.summaries, self._estimated = [], summaries, 0
        self._next = first
        self._last = log[-1].seq if log else self._last
        try:
            self._take(entries, known, numbers)
        except BaseException:  # or what no store has of them would be lost
            self.turns, self._known = before, None
            raise
        self._next = first + len(numbers)
        newest = max((entry.revision for entry in log), default=0)
        self._known = (info.created, info.epoch, max(info.revision, newest))
        return True

    def _take(
        self, entries: Sequence[Entry], known: dict[str, Kept] | None = None, numbers: dict[int, int] | None = None
    ) -> None:
        """Take entries that follow what is known."""
        for members in _by_turn(entries):
            first = members[0]
            if _begins(first):
                number = self._next if numbers is None else numbers[first.seq]
                if not first.erased:
                    self._append(_turn_of(members, known or {}), number)
                self._next = max(self._next, number + 1)
            elif first.turn and self.turns and self.turns[-1].entry.seq == first.turn:
                turn = self.turns[-1]  # somebody has added to it who does not come through this door
                turn.response, turn.last = _response(members) or turn.response, members[-1].seq
            self._last = max(self._last, members[-1].seq)

    def _append(self, turn: Kept, number: int) -> None:
        said = about_of(turn.entry).get("id")
        turn.turn_id = said if isinstance(said, int) else number
        self._estimated += turn.bound(self.scale)  # may ask an estimator, which may fail
        self.turns.append(turn)

    # --- adding

    def added(self, entries: Sequence[Entry], raw: Raw, given: Entry, bound: int) -> Kept:
        """Take note of a turn that was just appended, and return it.

        `given` is its first entry as it was given, and `bound` what that costs at most.
        """
        first = entries[0]
        told = first.metadata is given.metadata or first.metadata == given.metadata
        changed = not told or (raw.form == "opaque" and first.content != given.content)
        turn = kept_of(first, entries[1].text, None if changed else raw, None if changed else bound)
        turn.last = entries[1].seq
        created, epoch, revision = self._known or (0, -1, 0)
        if first.seq == 1 and self._known is None:
            self._known, self._last, self._next = (first.at, 0, first.revision), turn.last, 1
            self._append(turn, 0)
            return turn
        if first.revision == revision + 1 and first.seq == self._last + 1 and epoch >= 0:
            self._known, self._last, number = (created, epoch, first.revision), turn.last, self._next
            self._next += 1
            self._append(turn, number)
            return turn
        return self._found(turn)

    def _found(self, turn: Kept) -> Kept:
        """A turn that was just appended, where something else has changed. It is stored, so whoever added it is
        answered, though what is stored cannot be read now: then that is read anew by the next who asks."""
        turns, following = self.turns, self._next
        try:
            self.refresh()
        except Exception as fault:  # noqa: BLE001 (the boundary: the turn is stored)
            log_failure(None, fault, "what is stored of a conversation could not be read after a turn was added")
            others = [one for one in turns if one.entry.id != turn.entry.id]
            turn.turn_id, self.turns, self._known = following, [*others, turn], None
            return turn
        for i, one in enumerate(self.turns):
            if one.entry.id == turn.entry.id:
                turn.turn_id = one.turn_id
                self.turns[i] = turn
        return turn

    # --- what is there

    def exceeds(self, limit: int) -> bool:
        """Whether the kept turns cost more; counted where a bound on it does not tell."""
        if self._estimated > limit:
            self._estimated = sum([turn.cost(self.scale) for turn in self.turns])
        return self._estimated > limit

    def newest(self, limit: int) -> list[Kept]:
        """The newest kept turns that cost no more than that together, at least one."""
        if not self.exceeds(limit):
            return list(self.turns)
        left, found = limit, list[Kept]()
        for turn in reversed(self.turns):
            left -= turn.cost(self.scale)
            if left < 0 and found:
                break
            found.append(turn)
        return found[::-1]

    @property
    def summary(self) -> str | None:
        """The text of the summary of what is not kept."""
        return "\n\n".join(one.text for one in self.summaries) or None

    def background(self) -> Background | None:
        """The summary as a history shows it."""
        text = self.summary
        if text is None:
            return None
        if self._background is None or self._background.text != text:
            self._background = Background(text, self.summaries[-1].created_at, self.scale)
        return self._background

    @property
    def has_objects(self) -> bool:
        """Whether something of it is in this process alone."""
        return any(turn.raw.form == "opaque" for turn in self.turns)

    # --- turns that leave

    @property
    def paused(self) -> bool:
        """Whether no summary is asked for now."""
        return self._failures >= FAILURES and _now() < self._paused_until

    def begin_leaving(self) -> dict[int, Kept]:
        """Return the kept turns, by `seq`, and remember them until all that is begun has ended."""
        with self.lock:
            kept = {turn.entry.seq: turn for turn in self.turns}
            self._leaving = {**self._leaving, **kept}
            self._leavers += 1
            return kept

    def end_leaving(self, *, failed: bool, done: bool) -> None:
        """Take note of what came of it."""
        with self.lock:
            self._leavers -= 1
            self._stale()
            if not self._leavers:
                self._leaving = {}
            if failed:
                self._failures += 1
                length = min(PAUSE * 2 ** min(max(self._failures - FAILURES, 0), 10), LONGEST_PAUSE)
                self._paused_until = _now() + length
            elif done:
                self._failures = 0

    def known_of(self, entries: Sequence[Entry], limit: int) -> list[Kept]:
        """The turns that these entries are: those that leave, and of those that have left before without a summary the
        newest that cost no more than the limit."""
        known = {turn.entry.id: turn for turn in self._leaving.values()}
        found: list[Kept] = []
        before = 0
        for members in reversed([members for members in _by_turn(entries) if _begins(members[0])]):
            turn, old = _turn_of(members, known), known.get(members[0].id)
            if old is not None:
                turn.turn_id = old.turn_id
            else:
                before += turn.cost(self.scale)
                if before > limit:
                    break
            found.append(turn)
        self._number([turn for turn in found if turn.entry.id not in known])
        return found[::-1]

    def _number(self, turns: Sequence[Kept]) -> None:
        """Give turns that have left before, newest first, the numbers that they had."""
        first = min(self._leaving.values(), key=lambda turn: turn.entry.seq, default=None)
        if not turns or first is None:
            return
        log = self.session.entries(after=turns[-1].entry.seq - 1, before=first.entry.seq)
        places = [entry.seq for entry in log if _begins(entry)][::-1]
        for turn in turns:
            said = about_of(turn.entry).get("id")
            turn.turn_id = said if isinstance(said, int) else first.turn_id - 1 - places.index(turn.entry.seq)

    def state(self) -> tuple[int, str | None]:
        """The number of the first kept turn, and the summary of those before it, as of now."""
        with self.lock:
            self._stale()
            self.refresh()
            return self.turns[0].turn_id if self.turns else self._next, self.summary


_now: Callable[[], float] = monotonic


def _by_turn(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries by the interaction that they are of."""
    return [list(members) for _, members in groupby(entries, attrgetter("turn"))]


def _begins(entry: Entry) -> bool:
    """Whether a turn begins with the entry; one that was erased is known by its place."""
    return entry.turn == entry.seq


def _turn_of(members: Sequence[Entry], known: dict[str, Kept]) -> Kept:
    first, response = members[0], _response(members) or ""
    old = known.get(first.id)
    same = old is not None and old.entry.content == first.content and old.response == response
    turn = kept_of(first, response, old.raw if old is not None and same and _same_raw(old, first) else None)
    turn.last = members[-1].seq
    return turn


def _same_raw(old: Kept, now: Entry) -> bool:
    """Whether what is stored of the raw messages is what it was: then the objects themselves may be handed out."""
    before: Any = about_of(old.entry)
    after = about_of(now)
    return bool(before.get("raw") == after.get("raw") and before.get("form") == after.get("form"))


def _response(members: Sequence[Entry]) -> str | None:
    said = [entry.text for entry in members if entry.kind == "message" and entry.role == "assistant"]
    return said[-1] if said else None
