"""`copy_store`: copying what one store holds into another."""

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
from palimpsest.stores.encrypted.rotation import rotate_keys
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
    """Return the marks that decide in which pass two stores are tested.

    SecantusDB is slow: its copies are in `wide` with SQLite only, and otherwise in `slow`.
    """
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
    """Fill two tenants of a store.

    It has branches, large content, counts, fetches, erasures, lifetimes and items.
    """
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
    """Return all that can be seen of a store, so that two stores can be compared."""
    view: dict[str, Any] = {}
    with Memory.open(where, clock=clock, **options) as memory:
        for tenant in ("default", "other"):
            memory_of_tenant = memory.for_tenant(tenant)
            view[tenant, "latest"] = [info.session for info in memory_of_tenant.sessions(order="latest")]
            view[tenant, "ann"] = [info.session for info in memory_of_tenant.sessions(user="ann")]
            view[tenant, "items"] = drive(memory.store.list_items(tenant, "notes"))
            view[tenant, "due"] = (
                memory_of_tenant.sweep(dry_run=True),
                sorted(drive(memory.store.backend.expired(tenant, 2**62))),
            )
            for info in memory_of_tenant.sessions():
                view[tenant, info.session] = info, memory_of_tenant.session(info.session).export()
                assert memory_of_tenant.session(info.session).verify().problems == ()
    return view


@pytest.mark.sampled
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_copy_holds_everything_of_its_source(pair: tuple[str, str], sealed: bool, tmp_path: Path) -> None:
    """A copy holds all entries, records, branches, users, expiries, items and the order of use of its source.

    It is copied back too, and encrypted stores are copied alike.
    """
    clock = FakeClock()
    source, target, copied_back = (
        address(kind, tmp_path, name) for kind, name in zip((*pair, pair[0]), "abc", strict=True)
    )
    keys: dict[str, Any] = {"encryption": KEYS} if sealed else {}
    filled(source, clock, **keys)
    progress: list[tuple[int, int]] = []

    report = copy_store(source, target, progress=lambda *how: progress.append(how))
    copy_store(target, copied_back)

    before, after, returned = (shown(where, clock, **keys) for where in (source, target, copied_back))
    if "mongodb" in pair:  # SecantusDB's clock, which gives marks, tells whole seconds
        for view in (before, after, returned):
            view["default", "latest"] = sorted(view["default", "latest"])
    assert after == returned == before
    assert (report.tenants, report.sessions, report.items, report.already) == (2, 8, 2, 0)
    assert progress[-1][0] == progress[-1][1] == len(progress)
    repeated = copy_store(source, target)
    assert (repeated.already, repeated.rows) == (10, 0)


def test_only_the_named_tenants_are_copied(tmp_path: Path, clock: FakeClock) -> None:
    """With `tenants` only the named tenants are copied."""
    filled(address("sqlite", tmp_path, "a"), clock)

    report = copy_store(address("sqlite", tmp_path, "a"), address("file", tmp_path, "b"), tenants=["other"])

    assert (report.tenants, report.sessions) == (1, 1)
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
def test_knowledge_and_derivers_of_a_tenant_are_copied(
    one: str, other: str, sealed: bool, tmp_path: Path, clock: FakeClock
) -> None:
    """Knowledge bases and the list of derivers are copied, so that an erasure in the copy reaches what was derived."""
    source, target = address(one, tmp_path, "a"), address(other, tmp_path, "b")
    keys: dict[str, Any] = {"encryption": KEYS} if sealed else {}
    with Memory.open(source, clock=clock, **keys) as memory:
        for tenant in ("acme", "other"):
            tenant_memory = memory.for_tenant(tenant)
            summarised(tenant_memory, "first", "Kathmandu", "Quito")
            tenant_memory.knowledge("notes", user="ann").add("visa", f"{tenant} needs a visa for Nepal")
            tenant_memory.derive(Index())
            assert tenant_memory.recall("Kathmandu").passages

    report = copy_store(source, target, tenants=["acme"])
    repeated = copy_store(source, target, tenants=["acme"])

    assert (report.tenants, report.sessions, report.already, repeated.already) == (1, 1, 0, 1 + report.items)
    with Memory.open(target, clock=clock, **keys) as memory:
        tenant_memory, other_memory = memory.for_tenant("acme"), memory.for_tenant("other")
        base = tenant_memory.knowledge("notes", user="ann")
        assert [hit.text for hit in base.search("visa for Nepal", top_k=1)] == ["acme needs a visa for Nepal"]
        assert "Kathmandu" in base.search("Kathmandu", top_k=1)[0].text
        assert {"index", "palimpsest.knowledge"} <= set(tenant_memory.derivers())
        assert tenant_memory.recall("Kathmandu").passages
        assert other_memory.knowledge("notes", user="ann").search("visa for Nepal") == []
        assert other_memory.derivers() == ()
        erasure = tenant_memory.session("first").erase(Query(text="Kathmandu"))
        assert any("'index' is not in this process" in told for told in erasure.remains)
        assert not [hit for hit in base.search("Kathmandu", top_k=50) if "Kathmandu" in hit.text]


def test_each_store_keeps_its_own_search_index(tmp_path: Path, clock: FakeClock) -> None:
    """Each store keeps its own index through copies, and finds what a copy has brought."""
    source, target = address("sqlite", tmp_path, "a"), address("sqlite", tmp_path, "b")
    for name, where in (("s", source), ("t", target)):
        with Memory.open(where, clock=clock) as memory:
            memory.session(name).add_user_message(f"{name} goes to Quito")
            assert len(memory.recall("Quito").passages) == 1

    copy_store(source, target)
    for many in (2, 3):
        with Memory.open(target, clock=clock) as memory:
            assert len(memory.recall("Quito").passages) == many
        with Memory.open(source, clock=clock) as memory:
            memory.session("more").add({"role": "user", "content": "more go to Quito"}, key="same")
            memory.recall("Quito")
        copy_store(source, target)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_copy_can_be_continued(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy interrupted before or after any of its writes is completed by copying again.

    Nothing is lost, doubled or left over.
    """
    clock, dice = FakeClock(), random.Random(seed)
    source, target = address("sqlite", tmp_path, "a"), address(kind, tmp_path, "b")
    filled(source, clock)
    monkeypatch.setattr(copying, "PIECE", 4)
    backend = SQLiteBackend if kind == "sqlite" else FileBackend
    write = backend.write
    writes_left = 0

    class Struck(BaseException):
        pass

    async def struck(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal writes_left
        writes_left -= 1
        if writes_left == 0 and dice.random() < 0.5:
            raise Struck
        done = await write(self, *given, **named)
        if writes_left <= 0:
            raise Struck
        return done

    with monkeypatch.context() as patch:
        patch.setattr(backend, "write", struck)
        for most in (3, 10, 30, 60):
            writes_left = dice.randrange(1, most)
            with pytest.raises(Struck):
                copy_store(source, target)

    copy_store(source, target)
    assert shown(target, clock) == shown(source, clock)


def test_a_different_session_in_the_target_is_replaced_only_on_request(tmp_path: Path, clock: FakeClock) -> None:
    """A session or item that differs in the target raises Conflict, unless `replace` is given.

    `replace` replaces it with the branches of its home.
    """
    source, target = address("file", tmp_path, "a"), address("sqlite", tmp_path, "b")
    filled(source, clock)
    with Memory.open(target, clock=clock) as memory:
        memory.session("s1").add_user_message("mine")
        memory.session("s1").fork("mine")
        memory.session("s9").add_user_message("mine, too")

    with pytest.raises(Conflict, match="session 's1' of tenant 'default'"):
        copy_store(source, target)
    with Memory.open(address("sqlite", tmp_path, "c"), clock=clock) as memory:
        drive(memory.store.put_item("default", "notes", "k", b"another"))
        memory.for_tenant("acme").knowledge("notes").add("a", "one")
    with pytest.raises(Conflict, match="item 'k' of 'notes' of tenant 'default'"):
        copy_store(source, address("sqlite", tmp_path, "c"))
    with Memory.open(target, clock=clock) as memory:
        assert memory.session("mine").entries()[0].text == "mine"
    copy_store(source, target, replace=True)

    copied, wanted = shown(target, clock), shown(source, clock)
    with Memory.open(target, clock=clock) as memory:
        assert [one.session for one in memory.sessions()] == ["branch", *(f"s{i}" for i in range(6)), "s9"]
    assert all(copied[key] == value for key, value in wanted.items() if key[1] not in {"latest", "due"})


def test_a_session_written_during_a_copy_is_copied_as_of_one_moment(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is written to during the copy is copied again; one that never rests raises Conflict."""
    source, target = address("sqlite", tmp_path, "a"), address("file", tmp_path, "b")
    with Memory.open(source, clock=clock) as memory:
        session = memory.session("s")
        session.add_user_message("first")
        writes_left, heads = 0, copying.heads_of

        async def beside(backend: Any, places: Any) -> Any:
            nonlocal writes_left
            if backend.url.startswith("sqlite") and writes_left:
                writes_left -= 1
                session.add_user_message("more")
            return await heads(backend, places)

        monkeypatch.setattr(copying, "heads_of", beside)
        writes_left = 8
        copy_store(source, target)
        wanted = session.export()["entries"]
        with Memory.open(target, clock=clock) as copy:
            assert copy.session("s").export()["entries"] == wanted
        writes_left = 10_000
        with pytest.raises(Conflict, match="written to"):
            copy_store(source, address("file", tmp_path, "c"))


def test_counts_stored_during_a_copy_are_no_damage(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token counts stored during a copy move no head, and the copy of the entries stays valid."""
    source, target = address("sqlite", tmp_path, "a"), address("file", tmp_path, "b")
    with Memory.open(source, clock=clock) as memory:
        session = memory.session("s", model="gpt-4o")
        session.add_user_message("first")
        whole, counted = copying._Copying._whole, []

        async def counting(self: Any, rows: Any) -> Any:
            copied = await whole(self, rows)
            counted.append(session.count())
            return copied

        monkeypatch.setattr(copying._Copying, "_whole", counting)
        copy_store(source, target)
        with Memory.open(target, clock=clock) as copy:
            assert copy.session("s").export()["entries"] == session.export()["entries"]
        assert counted == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_in_a_home_during_a_copy_are_copied(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """Owners, branches, lifetimes and sessions that appear, change or go during a copy are right in the copy."""
    source, target = address(kind, tmp_path, "a"), address("sqlite", tmp_path, "b")
    with Memory.open(source, clock=clock) as memory:
        for name in ("a", "b", "c", "d", "gone"):
            memory.session(name).add_user_message(f"of {name}")
        facts = memory.working("zoo")
        facts.set("k", 1)
        facts.set("later", 1, ttl="1h")
        progress = list[tuple[int, int]]()

        def meanwhile(done: int, total: int) -> None:
            progress.append((done, total))
            if done == 1:
                memory.session("a").describe(user="ann")
                memory.session("b").describe(lifetime="1m")
                memory.session("d").fork("branch").add_user_message("a secret")
                memory.delete_session("gone")
                facts.set("k", 2, ttl="1m")
                facts.set("later", 2, ttl="1m")

        copy_store(source, target, progress=meanwhile)
        wanted = memory.sessions()

    assert progress[-1][0] == progress[-1][1] > 6
    with Memory.open(target, clock=clock) as copy:
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
def test_a_sweep_removes_copied_rows_of_an_unfinished_import(
    kind: str, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that an unfinished import left in the source are copied without an owner, and an old sweep removes them."""
    source, target = address(kind, tmp_path, "a"), address("sqlite", tmp_path, "b")
    with Memory.open(source, clock=clock) as memory:
        session = memory.session("s")
        session.add([{"role": "user", "content": f"a secret {number}"} for number in range(1500)])
        dump = session.export()
        session.clear()
        monkeypatch.setattr(Loading, "_make", None)  # dies behind its first piece
        monkeypatch.setattr(Loading, "remove_laid", suspended)
        with pytest.raises(TypeError):
            memory.import_session(dump, on_conflict="replace")
    monkeypatch.undo()

    copy_store(source, target)

    with Memory.open(target, clock=clock) as copy:
        assert b"a secret" in (tmp_path / "b.db").read_bytes()
        clock.advance(2 * (datetime.now(UTC).timestamp() - clock() / 1e6) + 7200)
        copy.sweep()
        copy.vacuum()
        assert copy.session("s").entries() == []
    assert b"a secret" not in (tmp_path / "b.db").read_bytes()


async def suspended(*given: Any) -> None:
    """Stand in for the cleaning up of a process that has died: do nothing."""


def test_stores_that_cannot_be_copied_are_refused(tmp_path: Path, clock: FakeClock) -> None:
    """`copy_store` refuses a store onto itself, a store in memory, an unknown tenant, and other encryption keys."""
    plain, sealed = address("sqlite", tmp_path, "a"), address("file", tmp_path, "b")
    filled(plain, clock)
    filled(sealed, clock, encryption=KEYS)

    with pytest.raises(ConfigError, match="a store other than the source"):
        copy_store(plain, plain)
    for pair in (("memory://", plain), (plain, ":memory:")):
        with pytest.raises(ConfigError, match="ends with its process"):
            copy_store(*pair)
    with pytest.raises(ConfigError, match=r"tenants: 'othr' is not accepted.*did you mean 'other'"):
        copy_store(plain, address("file", tmp_path, "c"), tenants=["othr"])
    assert not (tmp_path / "c").exists()  # a name that was misspelt makes no store
    for one, other in ((plain, sealed), (sealed, plain)):
        with pytest.raises(ConfigError, match="encrypted as the source"):
            copy_store(one, other)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_copy_beside_a_change_of_keys_is_refused(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """The copy would need a key that is retired by then, so it raises Conflict; copied anew it needs the new one."""
    source, target = address("sqlite", tmp_path, "a"), address(kind, tmp_path, "b")
    filled(source, clock, encryption=KEYS)
    keys = Keys({"two": bytes(range(32, 64)), "one": bytes(range(32))})

    def rotate(done: int, _: int) -> None:
        if done == 1:
            with Memory.open(source, encryption=keys) as memory:
                rotate_keys(memory)

    with pytest.raises(Conflict, match=r"keys were changed.*copy it again"):
        copy_store(source, target, progress=rotate)

    copy_store(source, address(kind, tmp_path, "c"))
    with Memory.open(address(kind, tmp_path, "c"), encryption={"two": bytes(range(32, 64))}) as copy:
        assert copy.sessions()
        assert not any(one.damaged for one in copy.sessions())


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kinds", [*itertools.product(KINDS, KINDS)], ids="-".join)
def test_repeated_copies_keep_the_order_of_use(kinds: tuple[str, str], seed: int, tmp_path: Path) -> None:
    """After repeated copies the sessions of the source keep their order of use in the target.

    This holds if the target was used meanwhile: what moved in the source comes last.
    """
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
def test_a_replacing_copy_that_is_killed_leaves_whole_sessions(
    kind: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacing copy killed before any write leaves each session old, new, or, if too large for one step, absent.

    A branch that shares entries is consistent with it. Copying again completes it.
    """
    clock = FakeClock()
    source, target = address("sqlite", tmp_path, "source"), address(kind, tmp_path, "target")
    with Memory.open(source, clock=clock) as memory:
        first, branch = memory.session("s"), memory.session("b")
        first.add_user_message("hello")
        first.fork("b").add_user_message("aside")
    copy_store(source, target)

    def texts(where: str) -> dict[str, list[str]]:
        with Memory.open(where, clock=clock) as memory:
            assert all(memory.session(one.session).verify().ok for one in memory.sessions())
            return {
                one.session: [entry.text for entry in memory.session(one.session).entries()]
                for one in memory.sessions()
            }

    versions = [texts(target)]
    with Memory.open(source, clock=clock) as memory:
        first, branch = memory.session("s"), memory.session("b")
        first.erase([1])
        for number in range(700 if large else 3):
            first.add([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "yes"}])
        branch.add_user_message("more")
    versions.append(texts(source))
    backend = {"sqlite": SQLiteBackend, "file": FileBackend}[kind]
    write, writes_left = backend.write, 0

    async def killed(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal writes_left
        if self.url.endswith(target.rpartition("/")[2]):
            writes_left -= 1
            if writes_left < 0:
                raise KeyboardInterrupt
        return await write(self, *given, **named)

    monkeypatch.setattr(backend, "write", killed)
    for number in itertools.count():
        writes_left = number
        try:
            copy_store(source, target, replace=True)
            break
        except KeyboardInterrupt:
            writes_left = 1_000_000
            assert texts(target) in (versions if not large else [*versions, {}])
    assert number > (2 if large else 0)
    writes_left = 1_000_000
    assert texts(target) == versions[-1]


def spoil(folder: Path, session: str, before: bytes, after: bytes) -> bytes:
    """Replace these bytes in a session's log file, and return the whole file as it was before."""
    (log,) = folder.rglob(f"{session}-*.jsonl")
    data = log.read_bytes()
    assert before in data
    log.write_bytes(data.replace(before, after, 1))
    return data


@pytest.mark.parametrize("part", ["line", "large content"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_unreadable_session_does_not_stop_the_others(kind: str, part: str, tmp_path: Path, clock: FakeClock) -> None:
    """All other sessions are copied before StoreCorrupt names the unreadable one.

    Copying again after a repair copies the rest.
    """
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
def test_an_unreadable_session_replaces_nothing(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """A session that cannot be read in the source does not remove its older copy from the target."""
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
def test_a_damaged_head_does_not_replace_a_sound_copy(
    kind: str, part: str, what: str, tmp_path: Path, clock: FakeClock
) -> None:
    """A damaged head in the source leaves the older copy in the target; everything else is copied before the error."""
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
        lengths = [len(memory.session(name).entries()) for name in ("a", "b")]
        fact = memory.working("w").get("fact")
    assert (lengths, fact) == (([2, 1], "new") if what == "session" else ([2, 2], "old"))
