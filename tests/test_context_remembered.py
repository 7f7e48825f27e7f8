"""What a memory caches of its contexts never changes a later context."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from laws import examples
from lossy_store import losing
from palimpsest import AsyncMemory, AsyncSession, BudgetImpossible, ConfigError, Keys, Memory, Session
from palimpsest.context import layout, reading, window
from palimpsest.context.asks import Steps
from palimpsest.context.layout import CachedContext
from palimpsest.context.result import Context
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Cut, SessionKey
from palimpsest.runtime.workers import Workers
from palimpsest.sessions import remembered
from palimpsest.sessions.contexts import builder
from palimpsest.testing import FakeClock
from sqlitestore import Held, connection, database, of
from strategies import TOOLS
from watched_memory import Blocking
from writer import quarters

KINDS = ("sqlite", "loop", "file", "encrypted")
"""The stores of the two memories; with "loop", the caching memory uses an SQLite file on an event loop."""

KEYS = Keys({"one": bytes(range(32))})
FORMATS = ("openai", "openai", "openai", "anthropic", "gemini", "openai-responses", "text")
ODD = ("</context>", "\ud800 alone", "", "[old result left out: entry 1]", "naïve ☂ 漢字")


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[Memory, Memory, FakeClock]]:
    """Open two memories of one store with one clock: one that caches, and one that does not, like another program."""
    where = {"file": f"file://{folder}/logs", "losing": f"losing://{folder}"}.get(kind, folder / "log.db")
    clock, keys = FakeClock(), KEYS if kind == "encrypted" else None
    options: dict[str, Any] = {"clock": clock, "encryption": keys, "synchronous": "NORMAL"}
    with ExitStack() as stack:
        if kind == "loop":
            one: Any = Blocking(AsyncMemory.open(where, **options))
            stack.callback(one.close)
        else:
            one = stack.enter_context(Memory.open(where, **options))
        yield one, stack.enter_context(Memory.open(where, view_bytes=0, **options)), clock


def given(session: Session, **call: Any) -> Context | str:
    """Return the context, or the text of the error if none is possible."""
    try:
        return session.context(**call)
    except BudgetImpossible as fault:
        return str(fault)


def told(context: Context | str, *, stored: bool = True) -> object:
    """Return everything that a context shows; with `stored`, also its epoch and revision, which depend on commits."""
    if isinstance(context, str):
        return context
    report = context.report
    shown = [context.request(), context.tokens, context.parts, context.pending, context.prefix, context.problems]
    shown += [context.head_messages, context.log_messages, context.summaries, context.system]
    shown += [report.left_out, report.masked, report.clamped, report.repaired, report.pinned, report.anchors]
    shown += [report.adapted, report.entries, report.interactions, report.first_seq, report.last_seq, report.warnings]
    return [*shown, context.epoch, context.revision, report.epoch_reason] if stored else shown


def spoil(value: Any) -> None:
    """Change, in place, everything in a returned value that can be changed."""
    if isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        value["spoilt"] = value["content"] = "SPOILT"
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value.append("SPOILT")


def spoil_context(context: Context | str) -> None:
    """Change everything in a returned context that can be changed."""
    if not isinstance(context, str):
        for given in (context.messages, context.head_messages, context.log_messages, context.system):
            spoil(given)


class Play:
    """A session to which random things happen, through the caching memory or through the other one."""

    def __init__(
        self, dice: random.Random, one: Memory, other: Memory, clock: FakeClock, own_counter: float = 0.7
    ) -> None:
        self.dice, self.memories, self.clock, self.own_counter = dice, (one, other), clock, own_counter
        self.names, self.number = ["s"], 0
        self.options = self._options()

    def _options(self) -> dict[str, Any]:
        dice = self.dice
        options: dict[str, Any] = {"max_tokens": dice.choice([60, 150, 400, 1_000]), "mask": dice.random() < 0.8}
        if dice.random() < self.own_counter:
            options["counter"] = quarters
        if dice.random() < 0.3:
            options["conditions"] = ["message.content_length < 150"]
        if dice.random() < 0.2:
            options["max_messages"] = dice.randrange(4, 20)
        if dice.random() < 0.2:
            options["view"] = "other"
        return options

    def session(self, memory: Memory, name: str) -> Session:
        """Return a new session object."""
        return memory.session(name, **self.options)

    @property
    def writing(self) -> Session:
        """A random one of the sessions, through a random one of the memories."""
        return self.session(self.dice.choice(self.memories), self.dice.choice(self.names))

    def words(self) -> str:
        """Return a text that no other text equals."""
        self.number += 1
        odd = self.dice.choice(ODD) if self.dice.random() < 0.1 else ""
        return f"{self.number} {odd}" + " word" * self.dice.choice([1, 5, 5, 20, 60])

    # --- random steps

    def say(self) -> None:
        """Add a human message, and perhaps an answer."""
        session, dice = self.writing, self.dice
        expires = moment(self.clock.now) + timedelta(seconds=dice.randrange(1, 40)) if dice.random() < 0.1 else None
        session.add_user_message(self.words(), pinned=dice.random() < 0.05, expires_at=expires)
        if dice.random() < 0.7:
            session.add_assistant_message(self.words())

    def tools(self) -> None:
        """Add calls, and results for some of them."""
        session, dice = self.writing, self.dice
        calls = [session.add_tool_call("find", {"at": [self.words()]}) for _ in range(dice.randrange(1, 4))]
        for call in calls:
            if dice.random() < 0.85:
                session.add_tool_result("find", self.words() * 4, call_id=call.call_id)

    def parts(self) -> None:
        """Add messages with fields that only their provider knows."""
        image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
        content = [
            {"type": "text", "text": self.words(), "mine": {"deep": [1]}},
            image,
            {"type": "odd", "x": {"y": [2]}},
        ]
        answer = {"role": "assistant", "content": self.words(), "annotations": [{"type": "url", "at": {"x": 1}}]}
        self.writing.add([{"role": "user", "content": content}, answer])

    def background(self) -> None:
        """Add a version of a named context."""
        self.writing.add_context(self.words(), name=self.dice.choice("ab"))

    def system(self) -> None:
        """Add a system message to the log."""
        self.writing.add_system_message(self.words())

    def erase(self) -> None:
        """Erase an entry."""
        session = self.writing
        entries = session.entries()
        if entries:
            session.erase(self.dice.choice(entries).seq)

    def pin(self) -> None:
        """Pin or unpin an entry."""
        session = self.writing
        entries = [entry for entry in session.entries() if not entry.erased]
        if entries:
            verb: Callable[..., object] = self.dice.choice([session.pin, session.unpin])
            verb(self.dice.choice(entries).seq)

    def back(self) -> None:
        """Rewind a few entries."""
        session = self.writing
        entries = session.entries()
        if entries:
            session.rewind(entries[-min(len(entries), self.dice.randrange(1, 4))].id)

    def fork(self) -> None:
        """Make a branch, to which later steps may happen, too."""
        if len(self.names) < 3 and self.writing.entries():
            session = self.session(self.memories[0], "s")
            if session.entries():
                self.names.append(session.fork().id)

    def compact(self) -> None:
        """Compact the session."""
        self.writing.compact()

    def count(self) -> None:
        """Count all entries."""
        self.writing.count()

    def later(self) -> None:
        """Let time pass and perhaps sweep expired entries."""
        self.clock.advance(self.dice.randrange(1, 30))
        if self.dice.random() < 0.3:
            self.dice.choice(self.memories).sweep()

    def redact(self) -> None:
        """Redact words that are already stored."""
        policy = {"redact_patterns": [(str(self.dice.randrange(1, self.number + 2)), "[GONE]")]}
        self.dice.choice(self.memories).scan(policy, apply=True)

    def anew(self) -> None:
        """Choose other options for the session, as another program would."""
        self.options = self._options()

    def clear(self) -> None:
        """Clear a session."""
        self.writing.clear()

    def usage(self) -> None:
        """Record the usage of a call."""
        self.writing.record_usage(input_tokens=self.dice.randrange(10, 500), output_tokens=5)

    def step(self) -> None:
        """Do one random step."""
        often = [self.say] * 8 + [self.tools] * 4 + [self.parts, self.background, self.count, self.later] * 2
        seldom = [self.erase, self.pin, self.back, self.fork, self.compact, self.redact, self.anew, self.usage]
        rare = [self.clear, self.system] if self.dice.random() < 0.1 else []
        self.dice.choice([*often, *seldom, *rare])()

    # --- checks

    def call(self) -> dict[str, Any]:
        """Return random arguments for `context`."""
        call: dict[str, Any] = {}
        if self.dice.random() < 0.3:
            call["system"] = "be kind to people"
        if self.dice.random() < 0.2:
            call["tools"] = TOOLS
        if self.dice.random() < 0.3:
            call["format"] = self.dice.choice(FORMATS)
        if self.dice.random() < 0.1:
            call["max_tokens"] = self.dice.choice([50, 120, 300])
        return call

    def look(self) -> None:
        """Check that both memories give the same context, before it is stored and after it."""
        for name in self.names:
            call = self.call()
            one, other = (self.session(memory, name) for memory in self.memories)

            before = told(given(other, dry_run=True, **call), stored=False)
            context = given(one, **call)
            here = told(context, stored=False)
            assert here == before
            again = told(given(other, **call))
            assert told(context) == again
            spoil_context(context)
            assert told(given(one, **call)) == again


def played(kind: str, folder: Path, seed: int, steps: int) -> None:
    """Do so many random steps and check the contexts after most of them."""
    dice = random.Random(seed)
    folder.mkdir(exist_ok=True)
    with opened(kind, folder) as (one, other, clock):
        play = Play(dice, one, other, clock, 0.1 if kind == "loop" else 0.7)
        for _ in range(steps):
            if kind == "losing" and dice.random() < 0.2:
                (losing(f"losing://{folder}").save if dice.random() < 0.5 else losing(f"losing://{folder}").crash)()
            play.step()
            if dice.random() < 0.7:
                play.look()


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_caching_never_changes_a_context(kind: str, seed: int, tmp_path: Path) -> None:
    """A cached context equals an uncached one, whatever happens to the session and to contexts that were returned."""
    played(kind, tmp_path, seed, 40)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_a_cache_does_not_outlive_what_the_store_has_lost(seed: int, tmp_path: Path) -> None:
    """After a server loses acknowledged writes, contexts show what is stored, even if others have written since.

    A server may lose writes in a crash or when a backup is restored.
    """
    played("losing", tmp_path, 3_000 + seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "losing"])
@pytest.mark.parametrize("seed", range(100, 140))
def test_caching_never_changes_a_context_in_long_plays(kind: str, seed: int, tmp_path: Path) -> None:
    """A cached context equals an uncached one also over longer and more random histories."""
    played(kind, tmp_path, seed, 120)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4))
def test_the_size_of_reads_never_changes_a_context(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that are read and cached in many pages give the same contexts as those of one page."""
    monkeypatch.setattr(reading, "CHUNK", 3 + seed)
    monkeypatch.setattr(layout, "CHUNK", 3 + seed)

    played("sqlite", tmp_path, 1_000 + seed, 40)


@pytest.mark.wide
def test_a_cut_is_planned_from_the_layout_at_hand_only_if_reading_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut is planned from the layout just made only where reading everything for it would give the same layout."""
    own, kept = layout.LayoutReader.to_plan, list[bool]()

    def both(self: layout.LayoutReader, given: layout.Layout, cut: Cut) -> Steps[layout.Layout]:
        found = yield from own(self, given, cut)
        assert laid_out(found) == laid_out((yield from self.view(given.head, cut, planning=True)))
        kept.append(found.entries is given.entries)
        return found

    monkeypatch.setattr(layout.LayoutReader, "to_plan", both)
    for seed in range(examples(18)):
        played("sqlite", tmp_path / f"{seed}", 2_000 + seed, 60)

    assert 0 < sum(kept) < len(kept)


def laid_out(found: layout.Layout) -> object:
    """Return everything of a layout that matters, without the entries that it was made of."""
    groups, shown = [*found.ahead, *found.window.groups], found.window
    items = [[(item.entry.seq, item.form, item.cost, item.text) for item in group.items] for group in groups]
    pending = [[entry.seq for entry in group.entries] for group in shown.pending]
    left_out = [(entry.seq, why) for entry, why in shown.left_out]
    return items, pending, left_out, shown.stale, shown.expires, found.budget, found.cut, found.more, found.tokens


def test_a_cut_lays_out_only_what_it_shows(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut lays out the new window only, because it is planned from the layout that turned out too large."""
    session, own, looked = memory.session("s", max_tokens=2_000, counter="o200k_base"), window.show_entries, list[int]()

    def counted(entries: Sequence[Entry], *more: Any, **options: Any) -> window.Window:
        looked.append(len(entries))
        return own(entries, *more, **options)

    monkeypatch.setattr(window, "show_entries", counted)
    monkeypatch.setattr(layout, "show_entries", counted)
    cuts = 0
    for number in range(120):
        session.add([{"role": "user", "content": f"{number} " * 30}, {"role": "assistant", "content": "yes"}])
        looked.clear()
        context = session.context()
        if context.report.new_cut and number > 40:
            cuts += 1
            assert sum(looked) <= 4 + len(context.entries)  # the last entries of the previous window, and the new turn

    assert cuts > 2


def test_an_entry_expires_from_the_cache_by_time_alone(memory: Memory, clock: FakeClock) -> None:
    """A cached entry is no longer shown once it has expired, although nothing of the session has changed."""
    session = memory.session("s", counter=quarters)
    session.add_user_message("for a while", expires_at=moment(clock.now) + timedelta(seconds=10))
    session.add_user_message("for good")
    texts = [message["content"] for message in session.context().messages]

    clock.advance(11)

    assert texts == ["for a while", "for good"]
    assert [message["content"] for message in session.context().messages] == ["for good"]


def test_the_cache_does_not_grow_with_the_log(memory: Memory) -> None:
    """A cut drops the cached counts of entries behind the window, so that a context costs the same for ever."""
    session, sizes = memory.session("s", max_tokens=500, counter=quarters), list[int]()
    session.add_system_message("always there")

    for number in range(120):
        session.add([{"role": "user", "content": f"{number}" * 20}, {"role": "assistant", "content": "yes"}])
        shown = session.context().report.entries
        kept = session._core._scope.memory.views.of(session._core._scope.key).before
        assert kept is not None
        view = kept.cached.view
        sizes.append(max(len(kept.cached.stored), len(view.memo) if view is not None else 0) - shown)

    assert max(sizes) <= 40


@pytest.mark.parametrize(("letter", "width"), [("a", 1), ("é", 1), ("漢", 2), ("🙂", 4)])
def test_the_cache_weighs_texts_by_their_bytes_in_memory(letter: str, width: int) -> None:
    """The cache weighs a text by the bytes that it takes in memory, whatever its letters."""
    texts = [letter * 1_000, letter * 51_000]
    short, long = (remembered.weight_of([Entry(content=text)]) for text in texts)

    assert long - short == width * 50_000
    assert short - width * 1_000 < 1.2 * remembered.EACH


def test_round_robin_over_more_sessions_than_fit_still_hits_the_cache() -> None:
    """If more sessions than fit are used in turn, some are still found in the cache; not each drops the next."""
    views, asked, held = remembered.Views(900), [SessionKey("t", f"s{number}") for number in range(10)], list[bool]()
    own = remembered.Stretch(0, 2, [Entry(seq=1)], 100)

    for number in range(200):
        key = asked[number % len(asked)]
        recall = views.of(key)
        assert recall is not None
        held.append(recall.before is not None)
        views.keep(key, remembered.Remembered("mark", "counter", (own,), CachedContext()), recall.era)

    assert 40 < sum(held) < 200


def test_threads_share_the_cache(tmp_path: Path) -> None:
    """Each thread gets a whole context, whatever other threads add or change in theirs at the same time."""
    faults: list[str] = []
    with Memory.open(tmp_path / "log.db", synchronous="NORMAL") as memory:
        session = memory.session("s", max_tokens=500, counter=quarters)

        def work(name: int) -> None:
            for number in range(25):
                session.add([{"role": "user", "content": f"{name}-{number}"}, {"role": "assistant", "content": "yes"}])
                context = session.context()
                texts = [message["content"] for message in context.messages]
                if f"{name}-{number}" not in texts or "SPOILT" in texts or context.tokens > 500:
                    faults.append(f"{name}-{number}: {texts}")
                spoil_context(context)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        context = session.context()

    with Memory.open(tmp_path / "log.db", view_bytes=0) as other:
        assert told(other.session("s", max_tokens=500, counter=quarters).context()) == told(context)
    assert faults == []


def test_the_next_context_is_one_call_of_a_worker(tmp_path: Path) -> None:
    """On an event loop, a context reads and computes in a single hop to a thread, with new entries or without."""
    hops: list[str] = []
    made: list[list[str]] = []

    async def work() -> None:
        async with AsyncMemory.open(tmp_path / "log.db") as memory:
            session = memory.session("s", max_tokens=1_000, counter=quarters)
            await session.add_user_message("one")
            await session.context()
            await session.add_user_message("two")
            await session.count()
            runner: Any = memory.runner
            for verb in ("run", "read", "whole", "finish"):
                setattr(runner, verb, counted(getattr(runner, verb)))
            for _ in range(2):
                hops.clear()
                await session.context()
                made.append(list(hops))

    def counted(verb: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread():  # a call made inside a worker is no further hop
                hops.append(verb.__name__)
            return verb(*given, **named)

        return called

    asyncio.run(work())

    assert made == [["whole"], ["whole"]]


def test_every_context_is_one_call_of_a_worker(tmp_path: Path) -> None:
    """On an event loop, a context that stores counts or a new cut is a single hop as well."""
    hops: list[int] = []
    epochs: set[int | None] = set()

    async def work() -> None:
        async with AsyncMemory.open(tmp_path / "log.db") as memory:
            session = memory.session("s", max_tokens=300, counter=quarters)
            for _ in range(20):
                await session.add_user_message("a word or two " * 10)
                with patch.object(Workers, "put", autospec=True, side_effect=Workers.put) as put:
                    epochs.add((await session.context()).epoch)
                hops.append(put.call_count)

    asyncio.run(work())

    assert len(epochs) > 2
    assert set(hops) == {1}


KEYS = Keys({"k": bytes(range(32))})


class Glancing:
    """An asynchronous memory over an SQLite file with a session of two turns, of which a context was made.

    `other` is another memory of that file.
    """

    def __init__(self, path: Path, keys: Keys | None = None) -> None:
        self.path, self.keys = path, keys

    def play(self, act: Callable[[AsyncSession, Memory], Awaitable[None]]) -> None:
        """Run `act`, then check that both memories give the same context."""

        async def work() -> None:
            async with AsyncMemory.open(self.path, encryption=self.keys) as memory:
                session = memory.session("s", max_tokens=8_000)
                for text in ("one", "two"):
                    await session.add_user_message(text)
                    await session.context()  # the first context opens the connection that glances at the file
                with Memory.open(self.path, encryption=self.keys) as other:
                    await act(session, other)
                    there = other.session("s", max_tokens=8_000).context(dry_run=True)
                    assert (await session.context()).messages == there.messages

        asyncio.run(work())

    async def hops(self, session: AsyncSession) -> int:
        """Make a context and return how often it goes to a thread."""
        with patch.object(Workers, "put", autospec=True, side_effect=Workers.put) as put:
            await session.context()
        return put.call_count


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
def test_a_cached_context_is_made_on_the_event_loop(tmp_path: Path, keys: Keys | None) -> None:
    """A cached context changes no threads, after a turn or without one: it only glances at the session's head."""
    glancing = Glancing(tmp_path / "log.db", keys)

    async def act(session: AsyncSession, _: Memory) -> None:
        assert await glancing.hops(session) == 0
        await session.add_user_message("three")
        assert await glancing.hops(session) == 0

    glancing.play(act)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("change", ["add", "erase", "clear", "delete"])
def test_changes_of_others_are_seen_on_the_loop_and_read_in_a_thread(
    tmp_path: Path, change: str, keys: Keys | None
) -> None:
    """The glance at the head shows that another memory changed the session; one hop to a thread reads the change."""
    glancing = Glancing(tmp_path / "log.db", keys)

    async def act(session: AsyncSession, other: Memory) -> None:
        there = other.session("s")
        if change == "add":
            there.add_user_message("from elsewhere")
        elif change == "erase":
            there.erase(1)
        elif change == "clear":
            there.clear()
        else:
            other.delete_session("s")
        assert await glancing.hops(session) == 1

    glancing.play(act)


def test_a_context_does_not_wait_for_a_running_write(tmp_path: Path) -> None:
    """A context does not wait for a running write, not even of the same memory: it shows what is committed."""
    glancing = Glancing(tmp_path / "log.db")

    async def act(session: AsyncSession, _: Memory) -> None:
        held = Held(session._scope.memory)
        adding = asyncio.ensure_future(session.add_user_message("three"))
        await asyncio.to_thread(held.inside.wait)
        assert await glancing.hops(session) == 0
        held.let.set()
        await adding

    glancing.play(act)


def test_glances_resume_after_the_connections_were_dropped(tmp_path: Path) -> None:
    """After connections are dropped, as at a fork, the next context reads in a thread; later ones glance again."""
    glancing = Glancing(tmp_path / "log.db")

    async def act(session: AsyncSession, _: Memory) -> None:
        database(session._scope.memory)._links.let_go()
        assert [await glancing.hops(session) for _ in range(3)] == [1, 0, 0]

    glancing.play(act)


def test_counts_are_stored_together(tmp_path: Path) -> None:
    """A context that goes on from the cache writes nothing; the memory stores new counts when it closes."""
    asked: list[str] = []

    def counter(text: str) -> int:
        asked.append(text)
        return len(text) // 4

    with Memory.open(tmp_path / "log.db") as memory, closing(sqlite3.connect(tmp_path / "log.db")) as file:
        session = memory.session("s", max_tokens=4_000, counter=counter)
        versions = []
        for number in range(5):
            session.add_user_message(f"message {number}")
            before = file.execute("PRAGMA data_version").fetchone()
            session.context()
            versions.append(before == file.execute("PRAGMA data_version").fetchone())

    asked.clear()
    with Memory.open(tmp_path / "log.db") as memory:
        context = memory.session("s", max_tokens=4_000, counter=counter).context()

    assert versions == [False, True, True, True, True]
    assert len(context.messages) == 5
    assert asked == []


def test_storing_counts_looks_up_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storing counts needs no look at the entries: they existed when they were read, and the head has not changed."""
    monkeypatch.setattr(builder, "TOGETHER", 3)
    stored, looks = 0, list[int]()
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", max_tokens=4_000, counter=quarters)
        for number in range(8):
            session.add_user_message(
                f"message {number}", metadata={"by": "somebody"}
            )  # metadata makes the entry be read
            seen = list[str]()
            connection(memory).set_trace_callback(seen.append)
            session.context()
            connection(memory).set_trace_callback(None)
            looks.append(sum(statement.startswith("SELECT") and " FROM entry " in statement for statement in seen))
            stored += any(statement.startswith("INSERT INTO other") for statement in seen)

    assert stored == 3
    assert looks[1:] == [1] * 7


@pytest.mark.parametrize("end", ["a context", "closing"])
def test_no_count_of_an_erased_entry_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """A count tells something about a text, so one that is not stored yet is dropped if others erase its entry."""
    with Memory.open(tmp_path / "log.db") as memory, closing(sqlite3.connect(tmp_path / "log.db")) as file:
        session = memory.session("s", max_tokens=4_000, counter=quarters)
        for number in range(6):
            session.add_user_message(f"message {number}")
            session.context()
        with Memory.open(tmp_path / "log.db") as other:
            other.session("s").erase([3])
        if end == "a context":
            monkeypatch.setattr(builder, "TOGETHER", 1)
            session.add_user_message("one more")
            session.context()
        else:
            memory.close()
        places = [pos & 0xFFFFFFFF for (pos,) in file.execute(f"SELECT pos FROM other WHERE {of('tokens/*')}")]

    assert 3 not in places
    assert (7 in places) is (end == "a context")


def test_no_count_is_stored_for_an_entry_in_another_s_place(tmp_path: Path) -> None:
    """If another memory replaces entries, counts of the old entries are not stored for the new ones."""
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", max_tokens=4_000, counter=quarters)
        for number in range(3):
            session.add_user_message(f"message {number} " * 20)
            session.context()
        with Memory.open(tmp_path / "log.db") as other:
            other.delete_session("s")
            new = other.session("s", max_tokens=4_000, counter=quarters)
            for _ in range(3):
                new.add_user_message("hi")

    with Memory.open(tmp_path / "log.db") as memory:
        context = memory.session("s", max_tokens=4_000, counter=quarters).context()
        tokens = context.tokens

    with Memory.open("memory://") as memory:
        fresh = memory.session("s", max_tokens=4_000, counter=quarters)
        for _ in range(3):
            fresh.add_user_message("hi")
        assert tokens == fresh.context().tokens


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_view_bytes_is_checked(value: Any) -> None:
    """`view_bytes` has to be a whole number of at least 0; anything else is refused when the memory is opened."""
    with pytest.raises(ConfigError, match="view_bytes"):
        Memory.open("memory://", view_bytes=value)
