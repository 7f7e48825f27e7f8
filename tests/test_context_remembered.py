"""What a memory remembers of the contexts that it gave changes nothing of the next ones."""

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
from losing import losing
from palimpsest import AsyncMemory, AsyncSession, BudgetImpossible, ConfigError, Keys, Memory, Session
from palimpsest.context import layout, reading, window
from palimpsest.context.asks import Steps
from palimpsest.context.layout import Recollection
from palimpsest.context.result import Context
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Cut, SessionKey
from palimpsest.runtime.workers import Workers
from palimpsest.sessions import remembered
from palimpsest.sessions.contexts import builder
from palimpsest.testing import FakeClock
from sqlitestore import Held, connection, database, of
from strategies import TOOLS
from watched import Blocking
from writer import quarters

KINDS = ("sqlite", "loop", "file", "encrypted")
"""Stores of the two memories; `loop`: an SQLite file of which the one that remembers is on an event loop."""

KEYS = Keys({"one": bytes(range(32))})
FORMATS = ("openai", "openai", "openai", "anthropic", "gemini", "openai-responses", "text")
ODD = ("</context>", "\ud800 alone", "", "[old result left out: entry 1]", "naïve ☂ 漢字")


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[Memory, Memory, FakeClock]]:
    """Two memories of one store and one time: one that remembers, and one that does not, as another program has it."""
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
    """The context, or why there is none."""
    try:
        return session.context(**call)
    except BudgetImpossible as fault:
        return str(fault)


def told(context: Context | str, *, stored: bool = True) -> object:
    """All that a context says; with `stored` what it says of what was stored of it, too."""
    if isinstance(context, str):
        return context
    report = context.report
    shown = [context.request(), context.tokens, context.parts, context.pending, context.prefix, context.problems]
    shown += [context.head_messages, context.log_messages, context.summaries, context.system]
    shown += [report.left_out, report.masked, report.clamped, report.repaired, report.pinned, report.anchors]
    shown += [report.adapted, report.entries, report.interactions, report.first_seq, report.last_seq, report.warnings]
    return [*shown, context.epoch, context.revision, report.epoch_reason] if stored else shown


def spoil(value: Any) -> None:
    """Change all that can be changed of what somebody was given."""
    if isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        value["spoilt"] = value["content"] = "SPOILT"
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value.append("SPOILT")


def spoil_context(context: Context | str) -> None:
    """The same for a context."""
    if not isinstance(context, str):
        for given in (context.messages, context.head_messages, context.log_messages, context.system):
            spoil(given)


class Play:
    """A session that much happens to, by chance: from the memory that remembers, or from the other one."""

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
        """The session, opened anew."""
        return memory.session(name, **self.options)

    @property
    def writing(self) -> Session:
        """One of the sessions, by one of the memories."""
        return self.session(self.dice.choice(self.memories), self.dice.choice(self.names))

    def words(self) -> str:
        """A text that is like no other."""
        self.number += 1
        odd = self.dice.choice(ODD) if self.dice.random() < 0.1 else ""
        return f"{self.number} {odd}" + " word" * self.dice.choice([1, 5, 5, 20, 60])

    # --- what happens

    def say(self) -> None:
        """A human message, and an answer to it, or not."""
        session, dice = self.writing, self.dice
        expires = moment(self.clock.now) + timedelta(seconds=dice.randrange(1, 40)) if dice.random() < 0.1 else None
        session.add_user_message(self.words(), pinned=dice.random() < 0.05, expires_at=expires)
        if dice.random() < 0.7:
            session.add_assistant_message(self.words())

    def tools(self) -> None:
        """Calls, and results for some of them, in one step or in several."""
        session, dice = self.writing, self.dice
        calls = [session.add_tool_call("find", {"at": [self.words()]}) for _ in range(dice.randrange(1, 4))]
        for call in calls:
            if dice.random() < 0.85:
                session.add_tool_result("find", self.words() * 4, call_id=call.call_id)

    def parts(self) -> None:
        """Messages with what only their provider knows."""
        image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
        content = [
            {"type": "text", "text": self.words(), "mine": {"deep": [1]}},
            image,
            {"type": "odd", "x": {"y": [2]}},
        ]
        answer = {"role": "assistant", "content": self.words(), "annotations": [{"type": "url", "at": {"x": 1}}]}
        self.writing.add([{"role": "user", "content": content}, answer])

    def background(self) -> None:
        """A named context, again and again."""
        self.writing.add_context(self.words(), name=self.dice.choice("ab"))

    def system(self) -> None:
        """A system message in the log."""
        self.writing.add_system_message(self.words())

    def erase(self) -> None:
        """An entry goes."""
        session = self.writing
        entries = session.entries()
        if entries:
            session.erase(self.dice.choice(entries).seq)

    def pin(self) -> None:
        """An entry is pinned, or let go."""
        session = self.writing
        entries = [entry for entry in session.entries() if not entry.erased]
        if entries:
            verb: Callable[..., object] = self.dice.choice([session.pin, session.unpin])
            verb(self.dice.choice(entries).seq)

    def back(self) -> None:
        """A few steps are taken back."""
        session = self.writing
        entries = session.entries()
        if entries:
            session.rewind(entries[-min(len(entries), self.dice.randrange(1, 4))].id)

    def fork(self) -> None:
        """A branch, which goes on from now on, too."""
        if len(self.names) < 3 and self.writing.entries():
            session = self.session(self.memories[0], "s")
            if session.entries():
                self.names.append(session.fork().id)

    def compact(self) -> None:
        """A summary takes the place of what is old."""
        self.writing.compact()

    def count(self) -> None:
        """All is counted."""
        self.writing.count()

    def later(self) -> None:
        """Time goes by, and what has expired may be swept."""
        self.clock.advance(self.dice.randrange(1, 30))
        if self.dice.random() < 0.3:
            self.dice.choice(self.memories).sweep()

    def redact(self) -> None:
        """Words are redacted after the fact."""
        policy = {"redact_patterns": [(str(self.dice.randrange(1, self.number + 2)), "[GONE]")]}
        self.dice.choice(self.memories).scan(policy, apply=True)

    def anew(self) -> None:
        """Another program opens the session with other options."""
        self.options = self._options()

    def clear(self) -> None:
        """All of it goes."""
        self.writing.clear()

    def usage(self) -> None:
        """The provider reports a call."""
        self.writing.record_usage(input_tokens=self.dice.randrange(10, 500), output_tokens=5)

    def step(self) -> None:
        """One of these."""
        often = [self.say] * 8 + [self.tools] * 4 + [self.parts, self.background, self.count, self.later] * 2
        seldom = [self.erase, self.pin, self.back, self.fork, self.compact, self.redact, self.anew, self.usage]
        rare = [self.clear, self.system] if self.dice.random() < 0.1 else []
        self.dice.choice([*often, *seldom, *rare])()

    # --- what is looked at

    def call(self) -> dict[str, Any]:
        """What a call of `context` says."""
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
        """The memory that remembers says what the other one says, before anything is stored and after it."""
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
    """Play so many steps, and look after most of them."""
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
def test_what_is_remembered_changes_nothing(kind: str, seed: int, tmp_path: Path) -> None:
    """Whatever happens to a session, here or elsewhere, and whatever became of the contexts that were given."""
    played(kind, tmp_path, seed, 40)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_what_a_store_has_lost_is_not_remembered(seed: int, tmp_path: Path) -> None:
    """A server that crashes may lose what it acknowledged, and so may one whose backup is put back. Who lives on shows
    what is there, also where others have said something else since in the places of what is gone."""
    played("losing", tmp_path, 3_000 + seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "losing"])
@pytest.mark.parametrize("seed", range(100, 140))
def test_what_is_remembered_changes_nothing_ever(kind: str, seed: int, tmp_path: Path) -> None:
    """The same, longer and more often."""
    played(kind, tmp_path, seed, 120)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4))
def test_how_much_is_read_at_once_changes_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of many pages are remembered, and read, as those of one are."""
    monkeypatch.setattr(reading, "CHUNK", 3 + seed)
    monkeypatch.setattr(layout, "CHUNK", 3 + seed)

    played("sqlite", tmp_path, 1_000 + seed, 40)


@pytest.mark.wide
def test_a_layout_to_plan_from_is_what_is_read_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut is planned from what was laid out just now, where reading all of it for that would show the same."""
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
    """All that matters of a layout, but the entries that it was made of."""
    groups, shown = [*found.ahead, *found.window.groups], found.window
    items = [[(item.entry.seq, item.form, item.cost, item.text) for item in group.items] for group in groups]
    pending = [[entry.seq for entry in group.entries] for group in shown.pending]
    left_out = [(entry.seq, why) for entry, why in shown.left_out]
    return items, pending, left_out, shown.stale, shown.expires, found.budget, found.cut, found.more, found.tokens


def test_a_cut_lays_out_what_it_shows_and_nothing_else(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned from has been laid out already, when it turned out to be too much."""
    session, own, looked = memory.session("s", max_tokens=2_000, counter="o200k_base"), window.look, list[int]()

    def counted(entries: Sequence[Entry], *more: Any, **options: Any) -> window.Window:
        looked.append(len(entries))
        return own(entries, *more, **options)

    monkeypatch.setattr(window, "look", counted)
    monkeypatch.setattr(layout, "look", counted)
    cuts = 0
    for number in range(120):
        session.add([{"role": "user", "content": f"{number} " * 30}, {"role": "assistant", "content": "yes"}])
        looked.clear()
        context = session.context()
        if context.report.new_cut and number > 40:
            cuts += 1
            assert sum(looked) <= 4 + len(context.entries)  # the end of the window before, and the turn

    assert cuts > 2


def test_what_has_expired_since_is_shown_no_more(memory: Memory, clock: FakeClock) -> None:
    """By the time alone: nothing of the session has changed."""
    session = memory.session("s", counter=quarters)
    session.add_user_message("for a while", expires_at=moment(clock.now) + timedelta(seconds=10))
    session.add_user_message("for good")
    texts = [message["content"] for message in session.context().messages]

    clock.advance(11)

    assert texts == ["for a while", "for good"]
    assert [message["content"] for message in session.context().messages] == ["for good"]


def test_what_is_remembered_does_not_grow_with_the_log(memory: Memory) -> None:
    """A cut lets go of the counts of what it has passed, so that a context costs the same however long it goes on."""
    session, sizes = memory.session("s", max_tokens=500, counter=quarters), list[int]()
    session.add_system_message("always there")

    for number in range(120):
        session.add([{"role": "user", "content": f"{number}" * 20}, {"role": "assistant", "content": "yes"}])
        shown = session.context().report.entries
        kept = session._core._scope.memory.views.of(session._core._scope.key).before
        assert kept is not None
        view = kept.recollection.view
        sizes.append(max(len(kept.recollection.stored), len(view.memo) if view is not None else 0) - shown)

    assert max(sizes) <= 40


@pytest.mark.parametrize(("letter", "width"), [("a", 1), ("é", 1), ("漢", 2), ("🙂", 4)])
def test_a_text_weighs_what_it_takes_in_memory(letter: str, width: int) -> None:
    """So that the bytes that may be remembered are as many texts as go into them, whatever their letters."""
    texts = [letter * 1_000, letter * 51_000]
    short, long = (remembered.weight_of([Entry(content=text)]) for text in texts)

    assert long - short == width * 50_000
    assert short - width * 1_000 < 1.2 * remembered.EACH


def test_more_sessions_than_fit_are_not_all_forgotten() -> None:
    """Where each of them is asked for in turn, the one that was not asked for longest is always the next."""
    views, asked, held = remembered.Views(900), [SessionKey("t", f"s{number}") for number in range(10)], list[bool]()
    own = remembered.Stretch(0, 2, [Entry(seq=1)], 100)

    for number in range(200):
        key = asked[number % len(asked)]
        recall = views.of(key)
        assert recall is not None
        held.append(recall.before is not None)
        views.keep(key, remembered.Remembered("mark", "counter", (own,), Recollection()), recall.era)

    assert 40 < sum(held) < 200


def test_threads_share_what_is_remembered(tmp_path: Path) -> None:
    """Each is given a context that is whole, whatever the others add and change meanwhile."""
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
    """Under an event loop all that it reads and computes is one hop to a thread, and so is one of nothing new."""
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
            if threading.current_thread() is threading.main_thread():  # one that a worker makes stays with it
                hops.append(verb.__name__)
            return verb(*given, **named)

        return called

    asyncio.run(work())

    assert made == [["whole"], ["whole"]]


def test_every_context_is_one_call_of_a_worker(tmp_path: Path) -> None:
    """Under an event loop one that stores what it counted, and one that stores a new cut, are one hop as well."""
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
    """An asynchronous memory in a file of SQLite, with a session of two turns of which a context was given; `other` is
    another memory of that file."""

    def __init__(self, path: Path, keys: Keys | None = None) -> None:
        self.path, self.keys = path, keys

    def play(self, act: Callable[[AsyncSession, Memory], Awaitable[None]]) -> None:
        """Do something with it, and check what is said then against what the other memory says."""

        async def work() -> None:
            async with AsyncMemory.open(self.path, encryption=self.keys) as memory:
                session = memory.session("s", max_tokens=8_000)
                for text in ("one", "two"):
                    await session.add_user_message(text)
                    await session.context()  # the first opens what glances at the file
                with Memory.open(self.path, encryption=self.keys) as other:
                    await act(session, other)
                    there = other.session("s", max_tokens=8_000).context(dry_run=True)
                    assert (await session.context()).messages == there.messages

        asyncio.run(work())

    async def hops(self, session: AsyncSession) -> int:
        """How many times a context goes to a thread."""
        with patch.object(Workers, "put", autospec=True, side_effect=Workers.put) as put:
            await session.context()
        return put.call_count


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
def test_a_context_of_what_is_remembered_is_made_where_it_is_asked_for(tmp_path: Path, keys: Keys | None) -> None:
    """It changes no threads, after a turn and after none: only the session's head is looked at."""
    glancing = Glancing(tmp_path / "log.db", keys)

    async def act(session: AsyncSession, _: Memory) -> None:
        assert await glancing.hops(session) == 0
        await session.add_user_message("three")
        assert await glancing.hops(session) == 0

    glancing.play(act)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("change", ["add", "erase", "clear", "delete"])
def test_what_others_did_is_seen_without_a_thread_and_read_in_one(
    tmp_path: Path, change: str, keys: Keys | None
) -> None:
    """Be it said, erased or gone: the head tells it."""
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


def test_a_context_waits_for_no_write_that_is_under_way(tmp_path: Path) -> None:
    """Not even for one of the same memory, which has the connection that writes: it shows what is committed."""
    glancing = Glancing(tmp_path / "log.db")

    async def act(session: AsyncSession, _: Memory) -> None:
        held = Held(session._scope.memory)
        adding = asyncio.ensure_future(session.add_user_message("three"))
        await asyncio.to_thread(held.inside.wait)
        assert await glancing.hops(session) == 0
        held.let.set()
        await adding

    glancing.play(act)


def test_a_file_that_was_let_go_of_is_glanced_at_again(tmp_path: Path) -> None:
    """As it is where the process forks: the next context is read in a thread, and those after it are not."""
    glancing = Glancing(tmp_path / "log.db")

    async def act(session: AsyncSession, _: Memory) -> None:
        database(session._scope.memory)._links.let_go()
        assert [await glancing.hops(session) for _ in range(3)] == [1, 0, 0]

    glancing.play(act)


def test_counts_are_stored_together(tmp_path: Path) -> None:
    """A context that goes on with what is remembered writes nothing; the memory stores what it counted as it closes."""
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


def test_to_store_counts_no_entry_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were all there when they were read, and the session's mark says that they are still."""
    monkeypatch.setattr(builder, "TOGETHER", 3)
    stored, looks = 0, list[int]()
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("s", max_tokens=4_000, counter=quarters)
        for number in range(8):
            session.add_user_message(f"message {number}", metadata={"by": "somebody"})  # it is read
            seen = list[str]()
            connection(memory).set_trace_callback(seen.append)
            session.context()
            connection(memory).set_trace_callback(None)
            looks.append(sum(statement.startswith("SELECT") and " FROM entry " in statement for statement in seen))
            stored += any(statement.startswith("INSERT INTO other") for statement in seen)

    assert stored == 3
    assert looks[1:] == [1] * 7


@pytest.mark.parametrize("end", ["a context", "closing"])
def test_nothing_is_stored_of_what_others_have_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A count says something of a text: one that is not stored yet goes with its entry, whoever erases that."""
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


def test_counts_of_entries_that_are_gone_are_not_stored(tmp_path: Path) -> None:
    """Where another memory puts other entries in their place meanwhile, those are counted by themselves."""
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
def test_what_may_be_remembered_is_a_number_of_bytes(value: Any) -> None:
    """Anything else is refused as the memory is opened."""
    with pytest.raises(ConfigError, match="view_bytes"):
        Memory.open("memory://", view_bytes=value)
