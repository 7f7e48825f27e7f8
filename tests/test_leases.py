"""How long an unrenewed lease lasts: an option of the memory, and what it means for holders and those who wait."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from on_servers import KINDS as ON_SERVERS
from on_servers import SERVERS
from palimpsest import AsyncMemory, ConfigError, Conflict, LockTimeout, Memory, Session
from palimpsest.runtime.threads import apart, outcome
from palimpsest.sessions.compacting.result import CompactionResult
from palimpsest.summaries.models.callables import CallableSummarizer
from palimpsest.testing import FakeClock
from writer import quarters, turn

STRATEGY = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0}


@pytest.fixture(params=["sqlite", "file", *SERVERS])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that two memories open."""
    if request.param in ON_SERVERS:
        return ON_SERVERS[request.param].address_of("leases")
    return {"sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/logs"}[request.param]


def enter(memory: Memory) -> None:
    """Hold a turn for a moment; raise LockTimeout if somebody else holds it."""
    with memory.session("s").turn(wait=0):
        pass


@pytest.mark.parametrize("length", [10, "10s", timedelta(seconds=10)])
def test_an_unrenewed_turn_ends_with_its_lease(where: str, clock: FakeClock, length: Any) -> None:
    """A turn that nobody renews keeps others out exactly for its lease; its late holder's adds are refused."""
    with Memory.open(where, clock=clock, turn_lease=length) as stuck, Memory.open(where, clock=clock) as other:
        session = stuck.session("s")
        with session.turn():
            session.add_user_message("first")
            clock.advance(9)
            with pytest.raises(LockTimeout):
                enter(other)
            clock.advance(2)
            enter(other)
            with pytest.raises(Conflict, match="taken over by another"):
                session.add_user_message("late")
        assert [entry.text for entry in other.session("s").entries()] == ["first"]


def test_the_default_leases_are_as_documented() -> None:
    """By default a turn's lease lasts thirty seconds and a compaction's five minutes, in both classes."""
    for one in (Memory, AsyncMemory):
        given = inspect.signature(one.open).parameters
        assert (given["turn_lease"].default, given["compaction_lease"].default) == (30, 300)


@pytest.mark.parametrize("name", ["turn_lease", "compaction_lease"])
@pytest.mark.parametrize("length", [0, -1, "soon", "", None, True, float("inf")])
def test_an_invalid_lease_is_refused_by_name(name: str, length: Any) -> None:
    """A lease that is no length of time is refused, by its name, before anything is opened."""
    with pytest.raises(ConfigError, match=name):
        Memory.open("memory://", **{name: length})
    with pytest.raises(ConfigError, match=name):
        AsyncMemory.open("memory://", **{name: length})


def test_the_memory_of_another_tenant_has_the_same_leases(clock: FakeClock) -> None:
    """A memory for another tenant has the same leases and renews them together."""
    with Memory.open("memory://", clock=clock, turn_lease=3) as memory:
        session = memory.for_tenant("other").session("s")
        with session.turn():
            clock.advance(4)
            outcome(apart(enter, memory.for_tenant("other")), 60)
            with pytest.raises(Conflict, match="taken over by another"):
                session.add_user_message("late")


# --- what a sweep does to them


def test_a_sweep_does_not_end_a_late_turn_at_once(where: str, clock: FakeClock) -> None:
    """A sweep removes a lease only long after it ended, so that a late holder can go on if nobody came."""
    with Memory.open(where, clock=clock) as stuck, Memory.open(where, clock=clock) as other:
        session = stuck.session("s")
        with session.turn():
            session.add_user_message("first")
            clock.advance(31)
            other.sweep()
            session.add_assistant_message("late, and nobody minds")
        with session.turn():
            clock.advance(31)
            other.sweep()
            enter(other)
            other.sweep()
            with pytest.raises(Conflict, match="taken over by another"):
                session.add_user_message("late")


@pytest.mark.parametrize("look", [1, 2])
def test_a_sweep_leaves_a_lease_taken_since_its_listing(
    where: str, look: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep leaves a lease that had ended when it was listed and has been taken since."""
    with Memory.open(where, clock=clock) as memory, Memory.open(where, clock=clock) as other, ExitStack() as holds:
        with memory.session("s").turn():
            clock.advance(7 * 86_400)
            backend = memory._core._scope.opened.backend
            due, looks = backend.expired, count(1)

            async def expired(*which: Any, **page: Any) -> Any:
                found = await due(*which, **page)
                if found and next(looks) == look:
                    holds.enter_context(other.session("s").turn())
                    other.session("s").add_user_message("mine")
                return found

            monkeypatch.setattr(backend, "expired", expired)
            memory.sweep()
        assert [entry.text for entry in other.session("s").entries()] == ["mine"]
        clock.advance(29)
        with pytest.raises(LockTimeout):
            taken(memory.session("s"))


# --- clocks that are set, or differ


class Stopwatch:
    """Stands in for `time.monotonic`, which setting the clock does not change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for place in ("sessions.lease", "stores.engine.items"):
            monkeypatch.setattr(f"palimpsest.{place}.monotonic", lambda: self.now)


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    return Stopwatch(monkeypatch)


def test_setting_the_clock_back_does_not_revive_a_lost_turn(where: str, clock: FakeClock, stopwatch: Stopwatch) -> None:
    """A holder that stood still for its lease adds nothing in another's turn, although the clock was set back."""
    with Memory.open(where, clock=clock) as stuck, Memory.open(where, clock=clock) as other:
        session = stuck.session("s")
        with session.turn():
            session.add_user_message("first")
            clock.advance(31)
            stopwatch.now += 31
            with other.session("s").turn():
                clock.advance(-20)
                with pytest.raises(Conflict, match="taken over by another"):
                    session.add_user_message("late")
                other.session("s").add_user_message("second")
        assert [entry.text for entry in other.session("s").entries()] == ["first", "second"]


def test_a_turn_found_lost_by_a_renewal_adds_nothing(where: str, clock: FakeClock) -> None:
    """After a renewal has found another's turn, nothing is added, even if the clock says that the lease lasts."""
    ahead = FakeClock(clock.now + 60_000_000)
    with Memory.open(where, clock=clock) as behind, Memory.open(where, clock=ahead) as other:
        session = behind.session("s")
        with session.turn(), other.session("s").turn():
            behind._core._scope.renewals.renew()
            with pytest.raises(Conflict, match="taken over by another"):
                session.add_user_message("late")
        assert other.session("s").entries() == []


def test_setting_the_clock_back_delays_nobody_longer_than_a_lease(
    where: str, clock: FakeClock, stopwatch: Stopwatch
) -> None:
    """Those who wait measure a killed process's lease themselves, so setting the clock back does not prolong it."""
    with Memory.open(where, clock=clock, turn_lease=10) as killed, Memory.open(where, clock=clock) as other:
        session = killed.session("s")
        with session.turn():
            session.add_user_message("first")
            clock.advance(-3_600)
            for _ in range(2):
                with pytest.raises(LockTimeout):
                    enter(other)
                stopwatch.now += 9
            killed._core._scope.renewals.renew()  # the holder lives, so waiting memories measure anew
            for _ in range(2):
                with pytest.raises(LockTimeout):
                    enter(other)
                stopwatch.now += 9
            enter(other)
            with pytest.raises(Conflict, match="taken over by another"):
                session.add_user_message("late")


def taken(session: Session) -> ExitStack:
    """Begin a turn unless somebody else has one."""
    with ExitStack() as begun:
        begun.enter_context(session.turn(wait=0))
        return begun.pop_all()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(40))
def test_no_two_turns_mix_however_the_clock_is_set(
    seed: int, tmp_path: Path, clock: FakeClock, stopwatch: Stopwatch
) -> None:
    """However often the clock is set and holders stand still, only the turn that began last can add.

    Nobody waits longer than a lease for a holder that does nothing.
    """
    dice = random.Random(seed)
    jumps = [20, 3_600] if seed % 2 else [-20, -3_600]
    with ExitStack() as opened:
        where = f"sqlite:///{tmp_path}/a.db?synchronous=NORMAL"
        sessions = [opened.enter_context(Memory.open(where, clock=clock)).session("s") for _ in range(3)]
        ending = opened.enter_context(ExitStack())
        turns: dict[int, ExitStack] = {}
        last = None
        for _ in range(80):
            one = dice.randrange(3)
            match dice.choice(["take", "add", "end", "wait", "set"]):
                case "take" if one not in turns:
                    with suppress(LockTimeout):
                        turns[one], last = ending.enter_context(taken(sessions[one])), one
                case "add" if one in turns:
                    try:
                        sessions[one].add_user_message(str(one))
                    except Conflict:
                        assert last != one
                    else:
                        assert last == one
                case "end" if one in turns:
                    turns.pop(one).close()
                case "wait":
                    seconds = dice.choice([1, 20, 31])
                    clock.advance(seconds)
                    stopwatch.now += seconds
                case "set":
                    clock.advance(dice.choice(jumps))
        waits = next((session for one, session in enumerate(sessions) if one not in turns), None)
        if waits is not None:
            with suppress(LockTimeout):
                taken(waits).close()
            stopwatch.now += 30
            taken(waits).close()


# --- compactions that pay


class Slow:
    """A summarizer that signals when it is asked and answers when it is released."""

    def __init__(self, text: str) -> None:
        self.begun, self.release, self.asked, self.text = threading.Event(), threading.Event(), 0, text

    def __call__(self, prompt: str) -> str:
        self.asked += 1
        text = self.text
        self.begun.set()
        assert self.release.wait(60)
        return text

    def compact(self, memory: Memory) -> CompactionResult:
        """Compact the session with this summarizer."""
        summarizer = CallableSummarizer(self, checked=False)
        return memory.session("s", counter=quarters, summarizer=summarizer).compact(STRATEGY)


def filled(memory: Memory) -> None:
    for number in range(6):
        memory.session("s").add(turn(str(number)))


def test_a_compaction_is_renewed_while_its_summarizer_thinks(where: str, clock: FakeClock) -> None:
    """A compaction's lease is renewed during a long summary; a second compaction is "pending" and pays nothing."""
    slow, second = Slow("one"), Slow("two")
    second.release.set()
    with Memory.open(where, clock=clock, compaction_lease="10s") as memory, Memory.open(where, clock=clock) as other:
        filled(memory)
        running = apart(slow.compact, memory)
        assert slow.begun.wait(60)
        for _ in range(4):
            clock.advance(8)
            memory._core._scope.compactions.renew()
            assert second.compact(other).reason == "pending"
        slow.release.set()

        assert outcome(running, 60).reason is None
        assert second.asked == 0
        assert [made.text for made in other.session("s").summaries()] == ["one"]


def test_a_compaction_with_an_expired_lease_does_not_replace_anothers(where: str, clock: FakeClock) -> None:
    """If a compaction's lease ran out and another compaction was made, the late summary is not stored."""
    slow, second = Slow("late"), Slow("in time")
    second.release.set()
    with Memory.open(where, clock=clock, compaction_lease="10s") as memory, Memory.open(where, clock=clock) as other:
        filled(memory)
        running = apart(slow.compact, memory)
        assert slow.begun.wait(60)
        clock.advance(11)
        assert second.compact(other).reason is None
        slow.release.set()

        assert outcome(running, 60).reason == "nothing_to_compact"
        assert [made.text for made in memory.session("s").summaries()] == ["in time"]
        assert memory.session("s").verify().ok


CLEARED: dict[str, Callable[[Memory], object]] = {
    "erased": lambda memory: memory.session("s").erase([1]),
    "cleared": lambda memory: memory.session("s").clear(),
    "deleted": lambda memory: memory.delete_session("s"),
}


@pytest.mark.parametrize("how", CLEARED)
def test_destroying_entries_waits_for_no_compaction(where: str, how: str) -> None:
    """Clearing or erasing needs no lease; a running compaction finds it done, and its summary is not stored."""
    slow = Slow("of what was said")
    with Memory.open(where) as memory, Memory.open(where) as other:
        filled(memory)
        running = apart(slow.compact, memory)
        assert slow.begun.wait(60)
        CLEARED[how](other)
        asked, slow.text = slow.asked, "of what is left"
        slow.release.set()

        outcome(running, 60)
        made = memory.session("s").summaries()
        assert [one.text for one in made] == (["of what is left"] if how == "erased" and slow.asked > asked else [])
