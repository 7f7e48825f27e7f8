"""The engine over backends: which calls the verbs make, drivers that suspend or fail, and where branches live."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers import driven
from log_rules import LogConformance, StoreFactory
from palimpsest import AsyncMemory, Memory
from palimpsest.errors import StoreUnavailable
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import STORES, Dump, Store
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range, Seen
from palimpsest.stores.memory import MemoryBackend
from palimpsest.testing import BackendFactory, FakeClock, StoreConformance
from sealed import FIRST
from writer import quarters, turn

T = TypeVar("T")
KEY = SessionKey("tenant", "one")


class TestDrivenBackend(StoreConformance):
    """A backend behind a suspending driver keeps the contract of backends."""

    @pytest.fixture
    def backend(self) -> BackendFactory:
        return driven

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)

    def beside(self, jobs: Any) -> None:
        async def together() -> None:
            await asyncio.gather(*(job() for job in jobs))

        asyncio.run(together())


class TestEngineOverADriver(LogConformance):
    """The engine over a suspending driver keeps the contract of stores."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        return lambda clock: Store(driven(), clock)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)


@given(
    batches=st.lists(
        st.lists(
            st.builds(
                Entry,
                kind=st.sampled_from(["message", "tool_call", "tool_result", "context"]),
                role=st.sampled_from(["user", "assistant", "system"]),
                name=st.sampled_from(["a", "b"]),
                call_id=st.sampled_from(["c", "d"]),
                **{flag: st.booleans() for flag in ("pinned", "erased", "continues", "pauses")},
            ),
            min_size=1,
            max_size=3,
        ),
        max_size=6,
    )
)
def test_who_reads_a_session_anew_finds_it_as_its_writer_left_it(batches: list[list[Entry]]) -> None:
    """Whatever entries are appended, the head that the writer has in mind is the one that is stored."""
    backend, clock = MemoryBackend(Inline()), FakeClock()
    writer = Store(backend, clock)
    for batch in batches:
        appended = drive(writer.append(KEY, batch))

        assert drive(Store(backend, clock).head(KEY)) == drive(writer.head(KEY)) == appended.head


def said(text: str) -> list[Entry]:
    return [Entry(content=text), Entry(kind="message", role="assistant", content=f"{text}?")]


def test_tasks_that_append_at_once_are_written_together() -> None:
    """Appends that arrive while another append is being written go into one write after it."""
    backend = driven()

    async def work() -> None:
        store = Store(backend)
        await store.append(KEY, said("first"))
        backend.calls.clear()
        await asyncio.gather(*(store.append(KEY, said(str(number))) for number in range(20)))

        assert backend.calls == ["write", "write"]
        assert [entry.seq for entry in await store.read(KEY)] == list(range(1, 43))

    asyncio.run(work())


@pytest.mark.parametrize("seed", range(20))
def test_a_failed_append_is_not_stored_unless_the_outcome_is_unknown(seed: int) -> None:
    """If the driver's writes fail, an append that returned is stored once, and one whose error says unwritten is not.

    An append is never stored twice or in part.
    """
    dice = random.Random(seed)
    stores = [Store(driven(dice)) for _ in range(1)]
    backend: Any = stores[0].backend
    stores.append(Store(backend))
    acknowledged, refused = set[str](), set[str]()

    async def add(writer: int) -> None:
        for number in range(15):
            text = f"{writer}.{number}"
            try:
                await stores[writer % 2].append(KEY, said(text))
                acknowledged.add(text)
            except StoreUnavailable as fault:
                if fault.written is False:
                    refused.add(text)

    async def work() -> list[str]:
        await asyncio.gather(*(add(writer) for writer in range(4)))
        return [entry.text for entry in await stores[0].read(KEY)]

    texts = asyncio.run(work())
    first, second = texts[::2], texts[1::2]
    assert second == [f"{text}?" for text in first]
    assert len(first) == len(set(first))
    assert acknowledged <= set(first)
    assert not refused & set(first)


CALLS: dict[str, tuple[Any, list[str]]] = {
    "append": (lambda store: store.append(KEY, said("b")), ["write"]),
    "head": (lambda store: store.head(KEY), ["look"]),
    "read": (lambda store: store.read(KEY, counter="words"), ["look"]),
    "fetch": (lambda store: store.fetch(KEY, [1]), ["look"]),
    "records": (lambda store: store.records(KEY), ["look"]),
    "count": (lambda store: store.count(KEY, "words", {1: 1}), ["look", "write"]),
    "pin": (lambda store: store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,))), ["write"]),
    "erase": (lambda store: store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,))), ["look", "write"]),
    "clear": (lambda store: store.commit(KEY, Change(kind="clear", reason="r")), ["look", "write"]),
    "branches": (lambda store: store.branches(KEY), ["look"]),
    "sharing": (lambda store: store.sharing(KEY, [1]), ["look"]),
    "get_item": (lambda store: store.get_item("tenant", "n", "k"), ["look"]),
    "put_item": (lambda store: store.put_item("tenant", "n", "k", b"v"), ["look", "write"]),
    "list_items": (lambda store: store.list_items("tenant", "n"), ["places"]),
    "lease": (lambda store: store.lease("tenant", "n", "me", 30), ["write"]),
    "sessions": (lambda store: store.sessions("tenant"), ["places"]),
    "delete": (lambda store: store.delete(KEY), ["look", "write"]),
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_verb_makes_no_unneeded_call_of_the_backend(verb: str) -> None:
    """A store that knows the session's head makes the fewest calls for each verb: an append is one write."""
    backend, (ask, wanted) = driven(), CALLS[verb]

    async def work() -> None:
        store = Store(backend)
        await store.append(KEY, said("a"))
        backend.calls.clear()
        await ask(store)

    asyncio.run(work())

    assert backend.calls == wanted


def test_an_erasure_in_branches_is_one_write() -> None:
    """An entry is erased from all branches that share it in one write, after two looks."""
    backend = driven()

    async def work() -> None:
        store = Store(backend)
        await store.append(KEY, said("a"))
        for number in range(5):
            head = await store.head(KEY)
            assert head is not None
            await store.fork(KEY, f"branch {number}", head, expect_epoch=head.epoch)
        backend.calls.clear()
        await store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))
        assert backend.calls == ["look", "look", "write"]
        for number in range(5):
            entries = await store.read(KEY._replace(session=f"branch {number}"))
            assert [entry.erased for entry in entries] == [True, False]

    asyncio.run(work())


def test_deleting_the_last_branch_of_a_tree_removes_all_its_places() -> None:
    """When the last session of a tree of branches is deleted, none of its places is left, nor the list of branches."""
    backend = driven()
    backend.large_bytes = 64

    async def work() -> None:
        store = Store(backend)
        await store.append(KEY, said("long " * 100))
        head = await store.head(KEY)
        assert head is not None
        await store.fork(KEY, "two", head, expect_epoch=head.epoch)
        two = KEY._replace(session="two")
        await store.fork(two, "three", head, expect_epoch=head.epoch)
        await store.append(two, said("more " * 100))
        await store.count(two, "words", {1: 1, 3: 3})
        for name in ("one", "two", "three"):
            assert await store.delete(KEY._replace(session=name))

    asyncio.run(work())

    assert backend.below._places == {}


def test_deleting_a_branch_removes_its_part_of_a_cleared_log() -> None:
    """Entries before a clear that only one branch reads are deleted with that branch, though others read later ones."""
    backend = driven()
    two, three = KEY._replace(session="two"), KEY._replace(session="three")

    async def branched(store: Store, into: str) -> None:
        head = await store.head(KEY)
        assert head is not None
        await store.fork(KEY, into, head, expect_epoch=head.epoch)

    async def work() -> None:
        store = Store(backend)
        await store.append(KEY, said("secret"))
        await branched(store, two.session)
        await store.commit(KEY, Change(kind="clear", reason="r"))
        await store.append(KEY, said("later"))
        await branched(store, three.session)
        assert [entry.text for entry in await store.read(two)] == ["secret", "secret?"]

        await store.delete(two)

        assert [entry.text for entry in await store.read(three)] == ["later", "later?"]
        (seen,) = await backend.look([Ask(Place("tenant", "one", "log", ""), [Range("entry", [(0, LAST_KEY)])])])
        assert len(seen.rows[0]) == 2

    asyncio.run(work())


def test_an_import_leaves_a_branch_made_meanwhile_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing a session by an import leaves a branch whole that is made at the same time."""
    backend = driven()
    two = KEY._replace(session="two")

    async def work() -> None:
        one, other = Store(backend), Store(backend)
        await one.append(KEY, said("a"))
        head = await one.head(KEY)
        assert head is not None
        dump = Dump(head=head, entries=tuple(await one.read(KEY)), records=())
        forks = [other.fork(KEY, "two", head, expect_epoch=head.epoch)]
        write = backend.write

        async def late(*given: Any, **named: Any) -> Any:
            if forks:
                await forks.pop()
            return await write(*given, **named)

        monkeypatch.setattr(backend, "write", late)

        await one.load(KEY, dump, replace=True)

        assert [entry.text for entry in await other.read(two)] == ["a", "a?"]

    asyncio.run(work())


def test_a_name_of_a_deleted_branch_is_free_again() -> None:
    """After a branch is deleted, a new session may have its name, even in a store that remembers the branch's place."""

    async def work() -> None:
        one, other = (Store(backend) for backend in [driven()] * 2)
        two = KEY._replace(session="two")
        await one.append(KEY, said("a"))
        head = await one.head(KEY)
        assert head is not None
        await one.fork(KEY, "two", head, expect_epoch=head.epoch)
        assert len(await other.read(two)) == 2
        await other.delete(two)
        await one.append(two, said("new"))
        assert [entry.text for entry in await other.read(two)] == ["new", "new?"]
        assert [entry.text for entry in await one.read(two)] == ["new", "new?"]
        assert [info.session for info in await other.sessions("tenant")] == ["one", "two"]

    asyncio.run(work())


@pytest.mark.parametrize("seed", range(20))
def test_a_remembered_lease_never_lets_two_holders_in(seed: int) -> None:
    """A lease has one holder until it ends, and each new holder gets a greater fence, whatever stores remember of it.

    A lease that has ended can still be renewed by its last holder until somebody else takes it.
    """
    dice, clock, backend = random.Random(seed), FakeClock(), driven()
    stores = [Store(backend, clock) for _ in range(3)]
    holder, fence, until, greatest = None, 0, 0, 0

    async def work() -> None:
        nonlocal holder, fence, until, greatest
        for _ in range(60):
            one = dice.randrange(3)
            how = dice.choice(["take", "take", "renew", "give back", "wait"])
            if how == "wait":
                clock.advance(dice.choice([1, 11]))
                continue
            is_his = holder == one and (until > clock() or how == "renew")
            free = holder is None or until <= clock()
            given = (fence if is_his else greatest) if how == "renew" else None
            seconds = 0 if how == "give back" else 10
            got = await dice.choice(stores).lease("tenant", "l", str(one), seconds, fence=given)
            if not (is_his or (free and (how == "take" or (how == "give back" and holder == one)))):
                assert got is None
                continue
            assert got is not None
            assert got == fence if is_his else got > greatest
            fence, greatest = got, max(got, greatest)
            holder, until = (one, clock() + seconds * 1_000_000) if seconds else (None, 0)

    asyncio.run(work())


# --- sessions over it

STORES.register("driven", lambda _, runner: driven())


async def lived_through(memory: Any, on: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Do a little of everything to a session and return what it shows; `on` awaits what a verb returned."""
    session = memory.session("one", max_tokens=300, counter=quarters)
    for number in range(12):
        await on(session.add(turn(str(number))))
        await on(session.context())
    await on(session.pin(3))
    await on(session.erase([1, 2]))
    branch = await on(session.fork("two"))
    await on(branch.add_user_message("in the branch"))
    await on(branch.rewind(10))
    await on(memory.import_session(await on(session.export()), session_id="three"))
    told = [(await on(each.context())).messages for each in (session, branch, memory.session("three"))]
    told += [(await on(each.verify())).problems for each in (session, branch)]
    await on(memory.delete_session("one"))
    return [*told, [info.session for info in await on(memory.sessions())], len(await on(branch.entries()))]


async def awaited(verb: Any) -> Any:
    return await verb if inspect.isawaitable(verb) else verb


@pytest.mark.parametrize("options", [{}, {"encryption": FIRST}], ids=["plain", "keys"])
def test_sessions_over_a_driver_equal_those_in_memory(options: dict[str, Any]) -> None:
    """Sessions over a driver show the same as in memory, both on a caller's event loop and on the memory's own."""

    async def under_a_loop() -> list[Any]:
        async with AsyncMemory.open("driven://", clock=FakeClock(), **options) as memory:
            return await lived_through(memory, awaited)

    told = []
    for where in ("memory://", "driven://"):
        with Memory.open(where, clock=FakeClock(), **options) as memory:
            told.append(drive(lived_through(memory, awaited)))

    assert told[0][3:] == [(), (), ["three", "two"], told[0][-1]]
    assert told[1] == told[0]
    assert asyncio.run(under_a_loop()) == told[0]


@pytest.mark.parametrize("how", ["erased", "cleared", "put anew"])
def test_content_removed_between_two_looks_is_not_reported_as_damage(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Content that goes between the look at its entry and the look at it is read as it is then, not as damaged."""
    meanwhile: list[Callable[[], object]] = []

    class Between(MemoryBackend):
        async def look(self, asks: Sequence[Ask]) -> list[Seen]:
            if meanwhile and any(ask.place.space == "large" for ask in asks):
                meanwhile.pop()()
            return await super().look(asks)

    below = Between(Inline())
    below.large_bytes = 50
    store, other = Store(below), Store(below)
    drive(store.append(KEY, [Entry(content="x" * 100), Entry(content="y" * 100)]))
    dump = Dump(head=drive(store.head(KEY)) or Head(), entries=tuple(drive(store.read(KEY))), records=())
    others = {
        "erased": lambda: drive(other.commit(KEY, Change(kind="erase", reason="test", seqs=(1,)))),
        "cleared": lambda: drive(other.commit(KEY, Change(kind="clear", reason="test"))),
        "put anew": lambda: drive(other.load(KEY, dump, replace=True)),
    }
    meanwhile.append(others[how])

    first = drive(store.read(KEY))[0]

    there = how == "put anew"
    assert (first.text, first.erased, first.damaged) == ("x" * 100 * there, not there, False)
    assert caplog.records == []
