"""Copying one store into another."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mongostore
import postgresstore
import redisstore
from palimpsest import Keys, Memory, Query
from palimpsest.errors import ConfigError, Conflict, StoreCorrupt
from palimpsest.runtime.runner import drive
from palimpsest.stores import copying
from palimpsest.stores.backend import Step
from palimpsest.stores.copying import copy_store
from palimpsest.stores.engine.loading import Loading
from palimpsest.stores.file.backend import FileBackend
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.testing import FakeClock
from test_erasing import Index
from test_knowledge import summarised

KEYS = Keys({"one": bytes(range(32))})
KINDS = ("sqlite", "file")
SERVERS = ("postgres", "redis", "mongodb")
ALL = (*KINDS, *SERVERS)


def passes(pair: tuple[str, str]) -> Any:
    """Return the marks of a pair of stores; SecantusDB is slow, so only its pair with SQLite is `wide`."""
    if set(pair) <= {*KINDS}:
        return ()
    return pytest.mark.slow if "mongodb" in pair and "sqlite" not in pair else pytest.mark.wide


PAIRS = [pytest.param(pair, marks=passes(pair), id="-".join(pair)) for pair in itertools.product(ALL, ALL)]


def address(kind: str, folder: Path, name: str) -> str:
    """Return the address of an empty store of this kind."""
    if kind == "postgres":
        return postgresstore.address_of(f"copying_{name}")
    if kind == "redis":
        return redisstore.address_of()
    if kind == "mongodb":
        return mongostore.address_of(f"copying_{name}")
    return f"sqlite:///{folder}/{name}.db" if kind == "sqlite" else f"file://{folder}/{name}"


def filled(where: str, clock: FakeClock, **options: Any) -> None:
    """Fill a store with sessions of two tenants: branches, large content, counts, accesses, erasures, lifetimes,
    items."""
    later = datetime.fromtimestamp(clock() / 1e6, UTC) + timedelta(days=1)
    with Memory.open(where, clock=clock, **options) as memory:
        for number in range(6):
            session = memory.session(
                f"s{number}", user="ann" if number % 2 else None, lifetime="30d" if number < 2 else None
            )
            for turn in range(5):
                clock.advance(1)
                session.add_user_message(f"question {turn}" + "\0 and \u20ac" * turn)
                session.add_tool_call("look", {"at": turn}, call_id=f"c{turn}")
                session.add_tool_result(f"c{turn}", "found " * (20_000 if turn == number else 3))
                session.add_assistant_message("answer", expires_at=later if turn == 3 else None)
            session.context(max_tokens=100_000)
        memory.session("s1").fork("branch")
        clock.advance(1)
        memory.session("branch").add_user_message("only here")
        for name, id in (("s1", 3), ("s1", 3), ("s1", 1), ("branch", 4), ("s5", 2)):
            memory.session(name).entry(id)  # notes when it was, and how often
        clock.advance(1)
        memory.session("s1").erase([2])
        clock.advance(1)
        memory.session("s1").add_user_message("after that")
        clock.advance(1)
        memory.session("s0").add_user_message("the last")
        for tenant in ("default", "other"):
            drive(memory.store.put_item(tenant, "notes", "k", b"value", expires=clock() + 10**10))
        memory.for_tenant("other").session("s0").add_user_message("of another tenant")


def shown(where: str, clock: FakeClock, **options: Any) -> dict[str, Any]:
    """Return all that can be seen of a store."""
    found: dict[str, Any] = {}
    with Memory.open(where, clock=clock, **options) as memory:
        for tenant in ("default", "other"):
            mine = memory.for_tenant(tenant)
            found[tenant, "latest"] = [one.session for one in mine.sessions(order="latest")]
            found[tenant, "ann"] = [one.session for one in mine.sessions(user="ann")]
            found[tenant, "items"] = drive(memory.store.list_items(tenant, "notes"))
            found[tenant, "due"] = mine.sweep(dry_run=True), sorted(drive(memory.store.backend.expired(tenant, 2**62)))
            for one in mine.sessions():
                found[tenant, one.session] = one, mine.session(one.session).export()
                assert mine.session(one.session).verify().problems == ()
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("pair", PAIRS)
def test_all_that_a_store_has_is_in_its_copy(pair: tuple[str, str], sealed: bool, tmp_path: Path) -> None:
    """Entries, records, branches, users, ends, items, the order of use; and back again, and of a sealed one."""
    clock = FakeClock()
    there, here, back = (address(kind, tmp_path, name) for kind, name in zip((*pair, pair[0]), "abc", strict=True))
    keys: dict[str, Any] = {"encryption": KEYS} if sealed else {}
    filled(there, clock, **keys)
    told: list[tuple[int, int]] = []

    done = copy_store(there, here, progress=lambda *how: told.append(how))
    copy_store(here, back)

    before, after, again = (shown(where, clock, **keys) for where in (there, here, back))
    if "mongodb" in pair:  # SecantusDB's clock, which gives marks, tells whole seconds
        for found in (before, after, again):
            found["default", "latest"] = sorted(found["default", "latest"])
    assert after == again == before
    assert (done.tenants, done.sessions, done.items, done.already) == (2, 8, 2, 0)
    assert told[-1][0] == told[-1][1] == len(told)
    twice = copy_store(there, here)
    assert (twice.already, twice.rows) == (10, 0)


def test_a_copy_may_be_limited_to_one_tenant(tmp_path: Path, clock: FakeClock) -> None:
    """With `tenants` nothing of other tenants is copied."""
    filled(address("sqlite", tmp_path, "a"), clock)

    done = copy_store(address("sqlite", tmp_path, "a"), address("file", tmp_path, "b"), tenants=["other"])

    assert (done.tenants, done.sessions) == (1, 1)
    with Memory.open(address("file", tmp_path, "b"), clock=clock) as memory:
        assert memory.sessions() == []
        assert [one.session for one in memory.for_tenant("other").sessions()] == ["s0"]


BESIDE = [
    *itertools.product(["sqlite"], KINDS),
    *(pytest.param(kind, "sqlite", marks=pytest.mark.wide) for kind in SERVERS),
    *(pytest.param("sqlite", kind, marks=pytest.mark.wide) for kind in SERVERS),
]


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:.*has no enabled trigger:palimpsest.errors.PalimpsestWarning")
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize(("one", "other"), BESIDE)
def test_what_is_kept_beside_the_sessions_of_a_tenant_goes_along(
    one: str, other: str, sealed: bool, tmp_path: Path, clock: FakeClock
) -> None:
    """Knowledge bases and the list of derived data are copied, so that erasures in the copy reach them."""
    there, here = address(one, tmp_path, "a"), address(other, tmp_path, "b")
    keys: dict[str, Any] = {"encryption": KEYS} if sealed else {}
    with Memory.open(there, clock=clock, **keys) as memory:
        for tenant in ("acme", "other"):
            mine = memory.for_tenant(tenant)
            summarised(mine, "first", "Kathmandu", "Quito")
            mine.knowledge("notes", user="ann").add("visa", f"{tenant} needs a visa for Nepal")
            mine.derive(Index())
            assert mine.recall("Kathmandu").passages

    done = copy_store(there, here, tenants=["acme"])
    again = copy_store(there, here, tenants=["acme"])

    assert (done.tenants, done.sessions, done.already, again.already) == (1, 1, 0, 1 + done.items)
    with Memory.open(here, clock=clock, **keys) as memory:
        mine, others = memory.for_tenant("acme"), memory.for_tenant("other")
        base = mine.knowledge("notes", user="ann")
        assert [hit.text for hit in base.search("visa for Nepal", top_k=1)] == ["acme needs a visa for Nepal"]
        assert "Kathmandu" in base.search("Kathmandu", top_k=1)[0].text
        assert {"index", "palimpsest.knowledge"} <= set(mine.derivers())
        assert mine.recall("Kathmandu").passages
        assert others.knowledge("notes", user="ann").search("visa for Nepal") == []
        assert others.derivers() == ()
        done_there = mine.session("first").erase(Query(text="Kathmandu"))
        assert any("'index' is not at hand" in told for told in done_there.remains)
        assert not [hit for hit in base.search("Kathmandu", top_k=50) if "Kathmandu" in hit.text]


def test_stores_that_were_searched_are_copied_into_each_other(tmp_path: Path, clock: FakeClock) -> None:
    """Each store keeps its own search index, and copied entries are found there."""
    one, other = address("sqlite", tmp_path, "a"), address("sqlite", tmp_path, "b")
    for name, where in (("s", one), ("t", other)):
        with Memory.open(where, clock=clock) as memory:
            memory.session(name).add_user_message(f"{name} goes to Quito")
            assert len(memory.recall("Quito").passages) == 1

    copy_store(one, other)
    for many in (2, 3):
        with Memory.open(other, clock=clock) as memory:
            assert len(memory.recall("Quito").passages) == many
        with Memory.open(one, clock=clock) as memory:
            memory.session("more").add({"role": "user", "content": "more go to Quito"}, key="same")
            memory.recall("Quito")
        copy_store(one, other)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_was_interrupted_goes_on(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy interrupted at any write can be repeated, and loses, doubles or leaves over nothing."""
    clock, dice = FakeClock(), random.Random(seed)
    there, here = address("sqlite", tmp_path, "a"), address(kind, tmp_path, "b")
    filled(there, clock)
    monkeypatch.setattr(copying, "PIECE", 4)
    backend = SQLiteBackend if kind == "sqlite" else FileBackend
    write = backend.write
    left = 0

    class Struck(BaseException):
        pass

    async def struck(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and dice.random() < 0.5:
            raise Struck
        done = await write(self, *given, **named)
        if left <= 0:
            raise Struck
        return done

    with monkeypatch.context() as patch:
        patch.setattr(backend, "write", struck)
        for most in (3, 10, 30, 60):
            left = dice.randrange(1, most)
            with pytest.raises(Struck):
                copy_store(there, here)

    copy_store(there, here)
    assert shown(here, clock) == shown(there, clock)


def test_what_is_there_and_is_another_is_kept_unless_it_is_to_be_replaced(tmp_path: Path, clock: FakeClock) -> None:
    """A session in the target with the same name but other content is kept, unless `replace` is given."""
    there, here = address("file", tmp_path, "a"), address("sqlite", tmp_path, "b")
    filled(there, clock)
    with Memory.open(here, clock=clock) as memory:
        memory.session("s1").add_user_message("mine")
        memory.session("s1").fork("mine")
        memory.session("s9").add_user_message("mine, too")

    with pytest.raises(Conflict, match="session 's1' of tenant 'default'"):
        copy_store(there, here)
    with Memory.open(address("sqlite", tmp_path, "c"), clock=clock) as memory:
        drive(memory.store.put_item("default", "notes", "k", b"another"))
        memory.for_tenant("acme").knowledge("notes").add("a", "one")
    with pytest.raises(Conflict, match="item 'k' of 'notes' of tenant 'default'"):
        copy_store(there, address("sqlite", tmp_path, "c"))
    with Memory.open(here, clock=clock) as memory:
        assert memory.session("mine").entries()[0].text == "mine"
    copy_store(there, here, replace=True)

    found, wanted = shown(here, clock), shown(there, clock)
    with Memory.open(here, clock=clock) as memory:
        assert [one.session for one in memory.sessions()] == ["branch", *(f"s{i}" for i in range(6)), "s9"]
    assert all(found[key] == value for key, value in wanted.items() if key[1] not in {"latest", "due"})


def test_a_session_that_is_written_to_meanwhile_is_copied_as_it_is_at_one_moment(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that changes during its copy is copied again; one that never rests is reported."""
    there, here = address("sqlite", tmp_path, "a"), address("file", tmp_path, "b")
    with Memory.open(there, clock=clock) as memory:
        session = memory.session("s")
        session.add_user_message("first")
        times, heads = 0, copying.heads_of

        async def beside(backend: Any, places: Any) -> Any:
            nonlocal times
            if backend.url.startswith("sqlite") and times:
                times -= 1
                session.add_user_message("more")
            return await heads(backend, places)

        monkeypatch.setattr(copying, "heads_of", beside)
        times = 8
        copy_store(there, here)
        wanted = session.export()["entries"]
        with Memory.open(here, clock=clock) as copy:
            assert copy.session("s").export()["entries"] == wanted
        times = 10_000
        with pytest.raises(Conflict, match="written to"):
            copy_store(there, address("file", tmp_path, "c"))


def test_counts_that_are_stored_meanwhile_are_no_damage(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts stored during a copy do not make the copy inconsistent."""
    there, here = address("sqlite", tmp_path, "a"), address("file", tmp_path, "b")
    with Memory.open(there, clock=clock) as memory:
        session = memory.session("s", model="gpt-4o")
        session.add_user_message("first")
        whole, counted = copying._Copying._whole, []

        async def counting(self: Any, rows: Any) -> Any:
            found = await whole(self, rows)
            counted.append(session.count())
            return found

        monkeypatch.setattr(copying._Copying, "_whole", counting)
        copy_store(there, here)
        with Memory.open(here, clock=clock) as copy:
            assert copy.session("s").export()["entries"] == session.export()["entries"]
        assert counted == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_and_goes_in_a_home_meanwhile_is_copied_whole(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """Owners, branches, lifetimes and sessions that are made or deleted while others are copied are found later."""
    there, here = address(kind, tmp_path, "a"), address("sqlite", tmp_path, "b")
    with Memory.open(there, clock=clock) as memory:
        for name in ("a", "b", "c", "d", "gone"):
            memory.session(name).add_user_message(f"of {name}")
        facts = memory.working("zoo")
        facts.set("k", 1)
        facts.set("later", 1, ttl="1h")
        told = list[tuple[int, int]]()

        def meanwhile(done: int, total: int) -> None:
            told.append((done, total))
            if done == 1:
                memory.session("a").describe(user="ann")
                memory.session("b").describe(lifetime="1m")
                memory.session("d").fork("branch").add_user_message("a secret")
                memory.delete_session("gone")
                facts.set("k", 2, ttl="1m")
                facts.set("later", 2, ttl="1m")

        copy_store(there, here, progress=meanwhile)
        wanted = memory.sessions()

    assert told[-1][0] == told[-1][1] > 6
    with Memory.open(here, clock=clock) as copy:
        assert copy.sessions() == wanted
        assert [one.session for one in copy.sessions(user="ann")] == ["a"]
        assert copy.session("branch").entries()[-1].text == "a secret"
        copy.session("a").describe(user="bob")
        clock.advance(120)
        assert copy.sweep() == 3  # facts, and a session
        copy.delete_session("d")
        copy.delete_session("branch")
        copy.vacuum()
        assert [one.session for one in copy.sessions()] == ["a", "c"]
    assert b"a secret" not in (tmp_path / "b.db").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_import_has_left_unfinished_goes_from_a_copy_too(
    kind: str, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an unfinished import are copied and swept from the copy once they are old."""
    there, here = address(kind, tmp_path, "a"), address("sqlite", tmp_path, "b")
    with Memory.open(there, clock=clock) as memory:
        session = memory.session("s")
        session.add([{"role": "user", "content": f"a secret {number}"} for number in range(1500)])
        dump = session.export()
        session.clear()
        monkeypatch.setattr(Loading, "_make", None)  # dies behind its first piece
        monkeypatch.setattr(Loading, "taken_away", suspended)
        with pytest.raises(TypeError):
            memory.import_session(dump, on_conflict="replace")
    monkeypatch.undo()

    copy_store(there, here)

    with Memory.open(here, clock=clock) as copy:
        assert b"a secret" in (tmp_path / "b.db").read_bytes()
        clock.advance(2 * (datetime.now(UTC).timestamp() - clock() / 1e6) + 7200)
        copy.sweep()
        copy.vacuum()
        assert copy.session("s").entries() == []
    assert b"a secret" not in (tmp_path / "b.db").read_bytes()


async def suspended(*given: Any) -> None:
    """Do nothing, like a process that has died."""


def test_what_cannot_be_copied_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    """A copy onto itself, from an encrypted to a plain store, or under other keys is refused."""
    plain, sealed = address("sqlite", tmp_path, "a"), address("file", tmp_path, "b")
    filled(plain, clock)
    filled(sealed, clock, encryption=KEYS)

    with pytest.raises(ConfigError, match="another store"):
        copy_store(plain, plain)
    for pair in (("memory://", plain), (plain, ":memory:")):
        with pytest.raises(ConfigError, match="gone with its process"):
            copy_store(*pair)
    with pytest.raises(ConfigError, match=r"tenants: 'othr' is not accepted.*did you mean 'other'"):
        copy_store(plain, address("file", tmp_path, "c"), tenants=["othr"])
    assert not (tmp_path / "c").exists()  # a name that was misspelt makes no store
    for one, other in ((plain, sealed), (sealed, plain)):
        with pytest.raises(ConfigError, match="encrypted as the source"):
            copy_store(one, other)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kinds", [*itertools.product(KINDS, KINDS)], ids="-".join)
def test_the_order_of_use_is_copied_again_and_again(kinds: tuple[str, str], seed: int, tmp_path: Path) -> None:
    """Sessions changed in the source come behind all others in the target's order of use, at each copy."""
    dice, clock = random.Random(seed), FakeClock()
    source, target = (address(kind, tmp_path, name) for kind, name in zip(kinds, ("source", "target"), strict=True))
    for _ in range(5):
        for where in dice.choice([[source], [source, target]]):
            with Memory.open(where, clock=clock) as memory:
                for _ in range(dice.randrange(1, 5)):
                    clock.advance(2)
                    session = memory.session(f"s{dice.randrange(6)}")
                    session.add_user_message("hello")
                    if dice.random() < 0.2:
                        session.fork()
        copy_store(source, target, replace=True)
        orders = []
        for where in (source, target):
            with Memory.open(where, clock=clock) as memory:
                orders.append([one.session for one in memory.sessions(order="latest")])
        assert [one for one in orders[1] if one in orders[0]] == orders[0]
    assert copy_store(source, target).rows == 0


@pytest.mark.sampled
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_replaces_and_is_killed_leaves_no_half_of_anything(
    kind: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed copy leaves each session and its branches as they were or as they are; repeating it completes it.

    A session too large for one step may be missing until then.
    """
    clock = FakeClock()
    source, target = address("sqlite", tmp_path, "source"), address(kind, tmp_path, "target")
    with Memory.open(source, clock=clock) as memory:
        first, branch = memory.session("s"), memory.session("b")
        first.add_user_message("hello")
        first.fork("b").add_user_message("aside")
    copy_store(source, target)

    def there(where: str) -> dict[str, list[str]]:
        with Memory.open(where, clock=clock) as memory:
            assert all(memory.session(one.session).verify().ok for one in memory.sessions())
            return {
                one.session: [entry.text for entry in memory.session(one.session).entries()]
                for one in memory.sessions()
            }

    versions = [there(target)]
    with Memory.open(source, clock=clock) as memory:
        first, branch = memory.session("s"), memory.session("b")
        first.erase([1])
        for number in range(700 if large else 3):
            first.add([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yes"}])
        branch.add_user_message("more")
    versions.append(there(source))
    backend = {"sqlite": SQLiteBackend, "file": FileBackend}[kind]
    write, left = backend.write, 0

    async def killed(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal left
        if self.url.endswith(target.rpartition("/")[2]):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return await write(self, *given, **named)

    monkeypatch.setattr(backend, "write", killed)
    for number in itertools.count():
        left = number
        try:
            copy_store(source, target, replace=True)
            break
        except KeyboardInterrupt:
            left = 1_000_000
            assert there(target) in (versions if not large else [*versions, {}])
    assert number > (2 if large else 0)
    left = 1_000_000
    assert there(target) == versions[-1]


def spoil(folder: Path, session: str, before: bytes, after: bytes) -> bytes:
    """Replace bytes in a session's log and return the previous content."""
    (log,) = folder.rglob(f"{session}-*.jsonl")
    data = log.read_bytes()
    assert before in data
    log.write_bytes(data.replace(before, after, 1))
    return data


@pytest.mark.parametrize("part", ["line", "large content"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_keeps_nothing_else_from_the_copy(
    kind: str, part: str, tmp_path: Path, clock: FakeClock
) -> None:
    """Damage in one session does not stop the copy of others; the error names it, and a later copy adds it."""
    source, target = address("file", tmp_path, "source"), address(kind, tmp_path, "target")
    with Memory.open(source, clock=clock) as memory:
        for name in "abc":
            memory.session(name, lifetime="30d").add_user_message(f"in {name}" + "x" * 40_000)
        memory.session("c").working.set("fact", 1)
    before, after = {"line": (b'"steps":', b'"sleps":'), "large content": (b"in bxx", b"in bxy")}[part]
    sound = spoil(tmp_path / "source", "b", before, after)

    with pytest.raises(StoreCorrupt, match=r"b-[0-9a-f]*\.jsonl"):
        copy_store(source, target)

    with Memory.open(target, clock=clock) as memory:
        assert [one.session for one in memory.sessions()] == ["a", "c"]
        assert [memory.session(name).entries()[0].text[:4] for name in "ac"] == ["in a", "in c"]
        assert memory.session("c").working.get("fact") == 1
        assert len(drive(memory.store.backend.expired("default", 2**62))) == 2
    (log,) = (tmp_path / "source").rglob("b-*.jsonl")
    log.write_bytes(sound)
    copy_store(source, target)
    with Memory.open(target, clock=clock) as memory:
        assert [one.session for one in memory.sessions()] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_takes_nothing_away_in_the_target(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """A session that is too large for one step goes before the new one comes, but not if that cannot be read."""
    source, target = address("file", tmp_path, "source"), address(kind, tmp_path, "target")
    with Memory.open(source, clock=clock) as memory:
        memory.session("s").add_user_message("old")
    copy_store(source, target)
    with Memory.open(source, clock=clock) as memory:
        memory.session("s").add([{"role": "user", "content": f"{number}"} for number in range(1200)])
        memory.session("s").add_user_message("new" + "x" * 40_000)
    spoil(tmp_path / "source", "s", b"newxx", b"newxy")

    with pytest.raises(StoreCorrupt, match=r"s-[0-9a-f]*\.jsonl"):
        copy_store(source, target, replace=True)

    with Memory.open(target, clock=clock) as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["old"]


@pytest.mark.parametrize("what", ["session", "item/working/w"])
@pytest.mark.parametrize("part", ["hot", "cold"])
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(one, marks=pytest.mark.wide) for one in SERVERS)])
def test_a_damaged_head_takes_no_sound_one_s_place(
    kind: str, part: str, what: str, tmp_path: Path, clock: FakeClock
) -> None:
    """A damaged head does not replace a sound copy in the target; everything else is copied."""
    source, target = address(kind, tmp_path, "source"), address("sqlite", tmp_path, "target")
    with Memory.open(source, clock=clock) as memory:
        for text in ("old", "new"):
            for name in ("a", "b"):
                memory.session(name).add_user_message(text)
            memory.working("w").set("fact", text)
            if text == "old":
                copy_store(source, target)
        listed = drive(memory.store.backend.places("default", what))[-1]
        values = {"hot": listed.head.hot, "cold": listed.head.cold}
        values[part] = values[part][:-9] + bytes([values[part][-9] ^ 1]) + values[part][-8:]
        assert drive(memory.store.backend.write([[Step(listed.place, listed.head.hot, **values)]], 0)) == [None]

    name = "'b'" if what == "session" else "'fact'"
    with pytest.raises(StoreCorrupt, match=name):
        copy_store(source, target, replace=True)

    with Memory.open(target, clock=clock) as memory:
        found = [len(memory.session(name).entries()) for name in ("a", "b")]
        fact = memory.working("w").get("fact")
    assert (found, fact) == (([2, 1], "new") if what == "session" else ([2, 2], "old"))
