"""Indexing beside erasing brings nothing back, even if a reader pauses between reading and writing."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from indexer import SCRIPT
from palimpsest import Memory
from palimpsest.recall.follower import BLOCKED
from palimpsest.recall.index import Update
from palimpsest.recall.opening import Recall
from palimpsest.runtime.runner import drive
from palimpsest.testing import FakeClock
from processes import Process
from recall_helpers import finds, index_bytes, marks, place_of, traces

KINDS = ("sqlite", "file")
EACH = pytest.mark.parametrize("kind", KINDS)


def recall_of(memory: Memory) -> Recall:
    """Return the object with which a memory searches."""
    return drive(memory._core._scope.recall())


def paused(memory: Memory, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Run a function once, after a memory's follower has read a page and before it writes it."""
    index, done = recall_of(memory).index, list[bool]()
    update = index.update

    async def later(session: str, what: Update) -> bool:
        if not done:
            done.append(True)
            meanwhile()
        return await update(session, what)

    monkeypatch.setattr(index, "update", later)


ERASURES: dict[str, Callable[[Memory, str], object]] = {
    "erase": lambda m, word: m.session("one").erase([2]),
    "forget": lambda m, word: m.forget(matches=word),
    "clear": lambda m, word: m.session("one").clear(),
    "delete": lambda m, word: m.delete_session("one"),
    "forget session": lambda m, word: m.forget(session="one"),
    "forget tenant": lambda m, word: m.forget(tenant="default"),
    "replace": lambda m, word: m.import_session(
        {**m.session("beside").export(), "session": "one"}, session_id="one", on_conflict="replace"
    ),
}


@pytest.mark.sampled
@EACH
@pytest.mark.parametrize("how", ERASURES)
def test_a_page_read_before_an_erasure_does_not_bring_its_text_back(
    tmp_path: Path, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was read before an erasure and is written after it does not bring the text back."""
    words = marks(how, 3)
    with Memory.open(place_of(kind, tmp_path)) as memory, Memory.open(place_of(kind, tmp_path)) as other:
        memory.session("beside").add_user_message("beside it")
        assert finds(other, "beside")
        for word in words:
            memory.session("one").add_user_message(f"said {word}")
        paused(other, monkeypatch, lambda: ERASURES[how](memory, words[1]))

        assert not finds(other, words[1])

        assert traces([words[1]], index_bytes(kind, tmp_path)) == []
        assert not finds(memory, words[1])
        assert finds(other, words[0]) is (how in ("erase", "forget"))
        assert finds(other, "beside") is (how != "forget tenant")


@EACH
def test_an_index_built_during_an_erasure_has_no_erased_byte(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that another memory builds during an erasure has no byte of the erased entry."""
    words = marks("first", 2)
    with Memory.open(place_of(kind, tmp_path)) as memory, Memory.open(place_of(kind, tmp_path)) as other:
        for word in words:
            memory.session("one").add_user_message(f"said {word}")
        commit = memory.store.commit

        async def late(*args: Any, **options: Any) -> Any:
            assert finds(other, words[0])
            return await commit(*args, **options)

        monkeypatch.setattr(memory.store, "commit", late)
        done = memory.session("one").erase([1])
        monkeypatch.undo()

        assert traces(words, index_bytes(kind, tmp_path)) == words[1:]
        assert done.remains == ()
        assert [finds(other, word) for word in words] == [False, True]


@pytest.mark.parametrize("how", ["erase", "delete", "forget"])
def test_a_late_eraser_whose_blocks_were_undone_leaves_no_byte(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """An eraser that stood still so long that others undid its blocks still leaves no byte in the index."""
    words = marks(how, 2)
    place = place_of("sqlite", tmp_path)
    with Memory.open(place, clock=clock) as memory, Memory.open(place, clock=clock) as other:
        for word in words:
            memory.session("one").add_user_message(f"said {word}")
        assert finds(other, words[1])
        verb = "delete" if how == "delete" else "commit"
        step = getattr(memory.store, verb)

        async def late(*args: Any, **options: Any) -> Any:
            assert not finds(other, words[1])
            clock.advance(BLOCKED / 1e6 + 1)
            assert finds(other, words[1])
            return await step(*args, **options)

        monkeypatch.setattr(memory.store, verb, late)
        ERASURES[how](memory, words[1])
        monkeypatch.undo()

        assert not finds(memory, words[1])
        assert not finds(other, words[1])
        assert traces([words[1]], index_bytes("sqlite", tmp_path)) == []
        assert finds(other, words[0]) is (how != "delete")


def test_entries_are_found_again_after_a_failed_erasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an erasure failed, its entries are found at once, even if a whole session was to be deleted."""
    words = marks("failed", 2)
    with Memory.open(place_of("sqlite", tmp_path)) as memory:
        for word in words:
            memory.session("one").add_user_message(f"said {word}")
        assert finds(memory, words[0])

        async def fails(*_: Any, **__: Any) -> Any:
            raise OSError("not today")

        for verb, erasure in (
            ("commit", lambda: memory.session("one").erase([1])),
            ("delete", lambda: memory.delete_session("one")),
        ):
            monkeypatch.setattr(memory.store, verb, fails)
            with pytest.raises(OSError, match="not today"):
                erasure()
            monkeypatch.undo()
            assert all(finds(memory, word) for word in words)


def test_an_index_emptied_while_another_memory_fills_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is emptied while another memory fills it is complete afterwards."""
    words = marks("rebuilt", 6)
    with Memory.open(place_of("sqlite", tmp_path)) as memory, Memory.open(place_of("sqlite", tmp_path)) as other:
        for number, word in enumerate(words):
            memory.session(f"s{number}").add_user_message(f"said {word}")
        index = recall_of(other).index
        setting, emptied = index.set_mark, list[bool]()

        async def late(mark: int, generation: int) -> None:
            if not emptied:
                emptied.append(True)
                await recall_of(memory).index.empty()
            await setting(mark, generation)

        monkeypatch.setattr(index, "set_mark", late)
        assert finds(other, words[0])
        monkeypatch.undo()

        assert all(finds(other, word) for word in words)


def test_a_search_ends_beside_a_writer_that_never_stops(tmp_path: Path) -> None:
    """A search indexes what was there when it began, and ends although another process keeps adding."""
    place = place_of("sqlite", tmp_path)
    with Memory.open(place) as memory, Process("add", place, script=SCRIPT) as adding:
        assert adding.hear() == "ready"
        for number in range(5):
            memory.session("mine").add_user_message(f"pelican {number}")
            assert len(memory.recall("pelican", sessions="mine").hits) == number + 1
            assert memory.recall("albatross")
        adding.kill()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=pytest.mark.wide)])
def test_an_indexer_paused_during_an_erasure_brings_nothing_back(tmp_path: Path, kind: str) -> None:
    """If another process pauses its indexing during an erasure, the erased text does not come back."""
    words, place = marks("process", 4), place_of(kind, tmp_path)
    with Memory.open(place) as memory:
        for word in words:
            memory.session("one").add_user_message(f"said {word}")
        with Process("pause", place, *words, script=SCRIPT) as indexing:
            assert indexing.hear() == "read"
            memory.session("one").erase([1])
            memory.forget(matches=words[2])
            indexing.tell()
            assert indexing.end() == [[False, True, False, True]]
        assert traces(words, index_bytes(kind, tmp_path)) == [words[1], words[3]]
        assert [finds(memory, word) for word in words] == [False, True, False, True]


@pytest.mark.wide
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_many_processes_index_add_and_erase_consistently(tmp_path: Path, kind: str, seed: int) -> None:
    """While processes index, add and erase at full speed, erased entries are never found and all others are."""
    place = place_of(kind, tmp_path)
    with Memory.open(place) as memory:
        memory.session("one").add_user_message("begun")
    with ExitStack() as stack:
        modes = [("search", seed), ("search", seed + 100), ("erase", seed)]
        running = [stack.enter_context(Process(mode, place, number, script=SCRIPT)) for mode, number in modes]
        for one in running:
            assert one.hear() == "ready"
        for one in running:
            one.tell()
        (gone, kept) = running[2].end()[-1]
        for one in running[:2]:
            one.tell()
            assert one.end()[-1] == "never found what was gone"
    assert traces(gone, index_bytes(kind, tmp_path)) == []
    with Memory.open(place) as memory:
        assert [word for word in gone if finds(memory, word)] == []
        assert [word for word in kept if not finds(memory, word)] == []


# --- random interleavings


class World:
    """A store with two followers of one index and an eraser, whose steps are taken one at a time in any order."""

    def __init__(self, place: str, seed: int) -> None:
        self.dice, self.clock = random.Random(seed), FakeClock()
        self.memory = Memory.open(place, clock=self.clock, synchronous="NORMAL")
        self.others = [Memory.open(place, clock=self.clock, synchronous="NORMAL") for _ in range(2)]
        self.words = iter(marks(seed, 500))
        self.there: dict[str, tuple[str, str]] = {}
        """Words that are in the log, each with its session and the id of its entry."""
        self.gone = set[str]()
        self.deep = 0

    def close(self) -> None:
        for one in (self.memory, *self.others):
            one.close()

    def add(self) -> None:
        word, session = next(self.words), f"s{self.dice.randrange(3)}"
        entry = self.memory.session(session).add_user_message(f"said {word}")
        self.there[word] = session, entry.id

    def erase(self) -> None:
        if not self.there:
            return
        word = self.dice.choice(sorted(self.there))
        session, id = self.there[word]
        doomed = {word}
        match self.dice.randrange(4):
            case 0 | 1:
                self.memory.session(session).erase([id])
            case 2:
                self.memory.forget(matches=word)
            case _:
                doomed = {each for each, (name, _) in self.there.items() if name == session}
                self.memory.delete_session(session)
                # entries added meanwhile were deleted, too, or are in a new session
                left = {entry.id for entry in self.memory.session(session).entries()}
                doomed = {
                    each
                    for each in doomed | {w for w, (n, _) in self.there.items() if n == session}
                    if self.there[each][1] not in left
                }
        for each in doomed:
            del self.there[each]
            self.gone.add(each)

    def step(self) -> None:
        """Do something random, perhaps in the middle of another step."""
        self.deep += 1
        try:
            self.dice.choice(
                [self.add, self.add, self.follow, self.follow, self.erase if self.deep < 2 else self.add]
            )()
        finally:
            self.deep -= 1

    def follow(self) -> None:
        other = self.dice.choice(self.others)
        drive(recall_of(other).follower.catch_up())

    def check(self) -> None:
        """Check that nobody finds an erased entry."""
        for one in (self.memory, *self.others):
            found = one.recall("said", limit=1000, max_tokens=None, neighbours=0)
            said = {passage.text.split()[1] for passage in found.hits}
            assert said == set(self.there), said ^ set(self.there)


def wrapped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then do something else before a step of a follower, of the index or of a commit."""

    def between(owner: Any, verb: str) -> None:
        step = getattr(owner, verb)

        async def later(*args: Any, **options: Any) -> Any:
            if world.deep < 3 and world.dice.random() < 0.3:
                world.deep += 1
                try:
                    world.dice.choice([world.add, world.follow])()
                finally:
                    world.deep -= 1
            return await step(*args, **options)

        monkeypatch.setattr(owner, verb, later)

    for one in (world.memory, *world.others):
        index = recall_of(one).index
        for verb in ("update", "block", "unblock", "end", "set_mark", "generation", "cursors"):
            between(index, verb)
        for verb in ("commit", "delete"):
            between(one.store, verb)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))])
def test_the_index_equals_the_log_after_any_interleaving(
    tmp_path: Path, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any interleaving of two followers, adds and erasures, the index has exactly what the log has."""
    world = World(place_of(kind, tmp_path), seed)
    try:
        world.add()
        wrapped(world, monkeypatch)
        for number in range(40):
            world.step()
            if number % 10 == 9:
                with monkeypatch.context() as still:
                    still.setattr(world, "deep", 9)
                    world.check()
        monkeypatch.undo()
        world.check()
        size = drive(recall_of(world.memory).index.size())
        assert size.entries == sum(info.entries for info in world.memory.sessions())
        assert traces(world.gone, index_bytes(kind, tmp_path)) == []
    finally:
        world.close()
