"""An exception from a signal handler at any moment leaves no lock, file or half change behind.

`interrupts.py` says which moments those are. The quick tests take some of them at random, the slow ones all of them,
or `MOST` of a verb that has more.
"""

from __future__ import annotations

import json
import random
import shutil
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interrupts
from interrupts import VERBS, Site, alarms, interrupted, left_sound, moments, states_of, try_at
from palimpsest import Keys
from palimpsest.runtime.runner import Runner
from palimpsest.runtime.threads import apart, outcome
from palimpsest.stores import STORES
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.overlay import OverBackend
from processes import Process

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # An error raised by a handler inside a finalizer ends only the finalizer and is reported as unraisable.
    pytest.mark.filterwarnings("ignore:Exception ignored (in|while):pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:the memory over .* was not closed:ResourceWarning"),
]

SOME, MOST = 2, 2_000
"""Moments of a verb that are tried, in a quick test and in a slow one."""

FRESH = 200
"""Moments after which a new store is begun, because one with many sessions is slow to list."""

KEYS = {"encryption": Keys({"one": bytes(range(32))})}
ON_DISK = {"busy_seconds": interrupts.BUSY, "synchronous": "NORMAL", "large_bytes": 64}
STORES_TRIED: dict[str, tuple[str, dict[str, Any]]] = {
    "memory": ("memory://", {}),
    "overlay": ("overlay:", {}),
    "file": ("file://{}", ON_DISK),
    "sqlite": ("sqlite:///{}/log.db", ON_DISK),
    "encrypted memory": ("memory://", KEYS),
    "encrypted file": ("file://{}", ON_DISK | KEYS),
    "encrypted sqlite": ("sqlite:///{}/log.db", ON_DISK | KEYS),
}
"""Addresses and options, by the kind of store."""

NOT_THERE = {("overlay", "open")}
"""Verbs that a store has not: an overlay is opened by its session alone."""

BOTH = [(kind, verb) for kind in STORES_TRIED for verb in VERBS if (kind, verb) not in NOT_THERE]


@pytest.fixture(autouse=True)
def overlays() -> None:
    """Register an address of an overlay over an empty store."""

    def opened(url: str, runner: Runner) -> OverBackend:
        return OverBackend(MemoryBackend(runner))

    STORES.register("overlay", opened)


Sites = Callable[[], Site]


@pytest.fixture
def sites(kind: str, tmp_path: Path) -> Iterator[Sites]:
    """Return a new, empty store of this kind, closing the previous one."""
    address, options = STORES_TRIED[kind]
    made: list[Site] = []

    def fresh() -> Site:
        for old in made:
            old.close()
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        made[:] = [Site(address.format(tmp_path / "logs"), options)]
        return made[0]

    yield fresh
    for site in made:
        site.close()


def tried(sites: Sites, name: str, dice: random.Random, most: int) -> None:
    """Interrupt a verb at so many of its moments."""
    verb, site = VERBS[name], sites()
    states, there = states_of(site, verb), moments(site, verb)
    for number, at in enumerate(sorted(dice.sample(range(there), min(most, there)))):
        if number % FRESH == FRESH - 1:
            site = sites()
        try_at(site, verb, at, states)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "verb"), BOTH)
def test_an_interrupted_verb_is_done_or_not_done(sites: Sites, kind: str, verb: str, dice: random.Random) -> None:
    """Interrupted at some moment, a verb was done or was not, and everybody goes on at once."""
    tried(sites, verb, dice, SOME)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "verb"), BOTH)
def test_every_verb_can_be_interrupted_at_every_moment(sites: Sites, kind: str, verb: str, dice: random.Random) -> None:
    """A verb can be interrupted at each of its moments."""
    tried(sites, verb, dice, MOST)


def test_a_wait_for_a_thread_raises_what_the_handler_raised() -> None:
    """Never an error of the lock that was waited for in its stead: at whichever moment of starting and waiting."""
    at, lock = 0, allocate_lock()

    def act() -> None:
        outcome(apart(lambda: lock.acquire(timeout=0.01)), 60)

    while interrupted(act, at):
        at += 1

    assert at > 10


@pytest.mark.slow
def test_other_processes_write_right_after_an_interruption(tmp_path: Path, dice: random.Random) -> None:
    """After each interruption another process can write to the session and finds it sound."""
    address, options = STORES_TRIED["file"]
    where = address.format(tmp_path / "logs")
    site = Site(where, options)
    there = {name: moments(site, verb) for name, verb in VERBS.items()}

    with Process("answer", where, json.dumps(options), script=Path(interrupts.__file__)) as other:
        assert other.hear() == "ready"
        for name, verb in VERBS.items():
            session = next(site.names)
            verb.begin(site, session)

            interrupted(lambda verb=verb, session=session: verb.act(site, session), dice.randrange(there[name]))

            other.tell(json.dumps(session))
            assert other.hear() == []
    site.close()


# --- real signals


def struck(site: Site, dice: random.Random, strikes: int) -> int:
    """Add to a session under signals at random moments; check that nothing is lost or doubled."""
    name, acknowledged, refused, number = next(site.names), set[str](), set[str](), 0
    with alarms() as alarm:
        while len(refused) < strikes:
            number += 1
            text = f"text {number} "
            try:
                alarm(10 ** dice.uniform(-4.5, -2))
                site.session(name).add([{"role": "user", "content": text + "x" * 100}], key=text)
                alarm(0)
                acknowledged.add(text)
            except interrupts.Interruption:
                refused.add(text)
    texts = [entry.text.rstrip("x") for entry in site.beside.session(name).entries()]
    assert len(texts) == len(set(texts))
    assert acknowledged <= set(texts) <= acknowledged | refused
    left_sound(site, name)
    return number


@pytest.mark.parametrize("kind", STORES_TRIED)
def test_signals_lose_and_double_nothing(sites: Sites, kind: str, dice: random.Random) -> None:
    """Under real signals, acknowledged entries are there once and the others at most once."""
    assert struck(sites(), dice, 10) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES_TRIED)
def test_thousands_of_signals_lose_and_double_nothing(sites: Sites, kind: str, dice: random.Random) -> None:
    """Under thousands of signals, acknowledged entries are there once and the others at most once."""
    assert struck(sites(), dice, 3_000) >= 3_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES_TRIED)
def test_signals_in_every_verb_leave_a_sound_store(sites: Sites, kind: str, dice: random.Random) -> None:
    """Real signals at random moments of every verb leave a store in which everybody goes on at once."""
    site = sites()
    known = [verb for name, verb in VERBS.items() if (kind, name) not in NOT_THERE]
    with alarms() as alarm:
        for number in range(3_000):
            if number % FRESH == FRESH - 1:
                site = sites()
            verb, name = dice.choice(known), next(site.names)
            verb.begin(site, name)

            try:
                alarm(10 ** dice.uniform(-4.5, -1.5))
                verb.act(site, name)
                alarm(0)
            except interrupts.Interruption:
                pass

            left_sound(site, name)
