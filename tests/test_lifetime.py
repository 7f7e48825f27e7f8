"""Sessions with a lifetime: they are over as soon as it ends, and gone after a sweep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from on_servers import KINDS as ON_SERVERS
from on_servers import SERVERS
from palimpsest import Memory, SessionNotFound
from palimpsest.errors import ConfigError, Conflict
from palimpsest.log.change import Change
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import LAST_KEY
from palimpsest.testing import FakeClock
from stored_counts import rows_kept
from test_session_owners import KINDS, ids, opened, said

SECOND = 1_000_000


@pytest.fixture(params=[*KINDS, *SERVERS])
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store of each kind."""
    if request.param in ON_SERVERS:
        with Memory.open(ON_SERVERS[request.param].address_of("lifetime"), clock=clock) as memory:
            yield memory
        return
    with opened(request.param, tmp_path, clock) as memory:
        yield memory


@pytest.mark.parametrize("memory", [*(kind for kind in KINDS if kind != "driver"), *SERVERS], indirect=True)
def test_working_memory_ends_with_its_session(memory: Memory, clock: FakeClock) -> None:
    """When a session ends, its facts are seen in no way any more; later facts belong to the next session."""
    session = memory.session("s", lifetime="30m", facts="session/s")
    facts = memory.working("session/s")
    facts.set("old", 1)
    memory.working("session/s/plan").set("older", 1)
    session.add_user_message("hello")
    clock.advance(31 * 60)
    assert facts.get("old") is None
    assert memory.working("session/s/plan").keys() == []

    facts.set("name", "Ann")
    memory.sweep()
    session.add_user_message("hello again")
    assert facts.get("name") == "Ann"
    assert "old" not in str(session.context(max_tokens=1000).messages)


def test_a_read_only_memory_sees_no_facts_of_an_ended_session(tmp_path: Path, clock: FakeClock) -> None:
    """A read-only memory does not show the facts of a session that has ended, although it cannot delete them."""
    with Memory.open(tmp_path / "a.db", clock=clock) as memory:
        memory.session("s", lifetime="30m").add_user_message("hello")
        memory.session("s").working.set("old", 1)
    with Memory.open(tmp_path / "a.db", clock=clock, readonly=True) as memory:
        session = memory.session("s", facts="session/s")
        assert session.working.get("old") == 1
        clock.advance(31 * 60)
        assert session.working.get("old") is None
        assert session.working.items() == []
        assert "old" not in str(session.context(max_tokens=1000).messages)


def test_adding_after_half_a_lifetime_restarts_it(memory: Memory, clock: FakeClock) -> None:
    """An add behind half of a session's lifetime starts the lifetime again; an earlier one does not."""
    begin, session = clock(), memory.session("s", lifetime="10s")
    ends = []
    for wait in (0, 3, 3):
        clock.advance(wait)
        session.add_user_message("hello")
        session.context(max_tokens=1000)
        ends.append(((memory.info("s").expires or 0) - begin) // SECOND)
    assert ends == [10, 10, 16]
    created = memory.info("s").created
    clock.advance(9.999)
    assert len(session.entries()) == 3
    clock.advance(0.001)

    key = SessionKey("default", "s")
    late = Change(kind="compaction", reason="late", created=created)
    assert session.entries() == session.context(max_tokens=1000).messages == []
    assert memory.sessions() == memory.sessions(order="latest") == []
    with pytest.raises(SessionNotFound):
        memory.info("s")
    with pytest.raises(Conflict):
        drive(memory.store.commit(key, late, expect_revision=3))
    drive(memory.store.count(key, "c", {1: 7}))
    assert drive(rows_kept(memory.store, key, "c")) == 0
    assert memory.sweep(dry_run=True) == memory.sweep() == 1
    assert memory.sweep() == 0
    assert drive(memory.store.backend.expired("default", LAST_KEY)) == []
    assert drive(memory.store.backend.places("default", "", beneath=True)) == []


def test_a_session_id_is_free_once_its_session_has_ended(memory: Memory, clock: FakeClock) -> None:
    """After a session has ended, an add, import or branch under its id starts a new session."""
    for id in ("a", "b", "c"):
        said(memory, id, user="ann", lifetime="1m", title="old")
    kept = memory.session("keeps").add_user_message("kept")
    lines = memory.session("keeps").export()
    clock.advance(60)

    memory.session("a").add_user_message("new")
    memory.import_session(lines, session_id="b")
    memory.session("keeps").fork("c")

    assert ids(memory.sessions()) == ["a", "b", "c", "keeps"]
    assert ids(memory.sessions(user="ann")) == []
    for id in ("a", "b", "c"):
        info = memory.info(id)
        assert (info.title, info.user, info.expires, info.entries) == (None, None, None, 1)
    assert [entry.text for entry in memory.session("a").entries()] == ["new"]
    assert [entry.text for entry in memory.session("c").entries()] == [kept.text]
    assert memory.sweep() == 0


def test_a_branch_has_its_own_lifetime(memory: Memory, clock: FakeClock) -> None:
    """A branch has the lifetime of its root from its own start; one that ends leaves the other whole."""
    said(memory, "root", lifetime="1m")
    clock.advance(50)
    memory.session("root").fork("branch")
    clock.advance(20)

    assert ids(memory.sessions()) == ["branch"]
    assert memory.sweep() == 1
    assert [entry.text for entry in memory.session("branch").entries()] == ["hello"]
    clock.advance(40)
    assert memory.sessions() == []
    memory.session("branch").add_user_message("new")
    assert [entry.text for entry in memory.session("branch").entries()] == ["new"]
    assert memory.sweep() == 0


def test_a_lifetime_can_be_changed(memory: Memory, clock: FakeClock) -> None:
    """`describe` sets another lifetime from now on, None for none; `clear` and `rewind` keep it."""
    session = memory.session("s")
    session.add_user_message("hello")
    begin = clock()
    for length, ends in (("1h", 3600), (timedelta(minutes=1), 60), (10, 10), ("2d", 172_800), (None, None)):
        info = session.describe(lifetime=length)
        assert info.expires == (None if ends is None else begin + ends * SECOND)
        assert memory.info("s").expires_at == info.expires_at
    session.describe(lifetime="1m")
    revision = memory.info("s").revision
    session.add_user_message("more")
    session.rewind(revision)
    session.clear()
    assert memory.info("s").expires == begin + 60 * SECOND
    clock.advance(60)
    assert memory.sessions() == []


def test_an_export_keeps_the_lifetime(memory: Memory, clock: FakeClock) -> None:
    """An imported session has the exported lifetime, from the import on."""
    said(memory, "s", lifetime="1m")
    lines = memory.session("s").export()
    clock.advance(300)
    memory.import_session(lines, session_id="t")

    assert memory.info("t").expires == clock() + 60 * SECOND


def test_an_invalid_lifetime_is_refused_by_name(memory: Memory) -> None:
    """An invalid lifetime is refused by name, and nothing is stored."""
    for bad in (0, -1, "soon", "5", True):
        with pytest.raises(ConfigError, match="lifetime"):
            memory.session("s", lifetime=bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="lifetime"):
            memory.session("s").describe(lifetime=bad)  # type: ignore[arg-type]
    assert memory.sessions() == []


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12))
def test_listings_show_only_sessions_that_have_not_ended(seed: int, tmp_path: Path, clock: FakeClock) -> None:
    """Listings of two memories show what a plain model says, over random appends, waits, sweeps and descriptions."""
    dice = random.Random(seed)
    kind = dice.choice([kind for kind in KINDS if kind.startswith(("sqlite", "file"))])
    with opened(kind, tmp_path, clock) as one, opened(kind, tmp_path, clock) as other:
        ends: dict[str, tuple[int | None, int | None, int]] = {}  # lifetime, end, number of entries
        for _ in range(60):
            memory, id = dice.choice((one, other)), dice.choice("abc")
            clock.advance(dice.choice((0, 1, 4, 7, 20)))
            now = clock()
            ends = {name: kept for name, kept in ends.items() if kept[1] is None or kept[1] > now}
            match dice.choice(("add", "add", "describe", "sweep", "delete")):
                case "add":
                    given = dice.choice((None, 5, 15))
                    length, end, entries = ends.get(id, (given and given * SECOND, None, 0))
                    memory.session(id, lifetime=given).add_user_message("hello")
                    if length is not None and (end is None or 2 * (end - now) < length):
                        end = now + length
                    ends[id] = length, end, entries + 1
                case "describe" if id in ends:
                    given = dice.choice((None, 3, 30))
                    length, end = given and given * SECOND, ends[id][1]
                    if length is None or end is None or not length <= 2 * (end - now) <= 2 * length:
                        end = length and now + length
                    memory.session(id).describe(lifetime=given)
                    ends[id] = length, end, ends[id][2]
                case "sweep":
                    memory.sweep()
                case "delete":
                    assert memory.delete_session(id) is (ends.pop(id, None) is not None)
            looker = dice.choice((one, other))
            told = {info.session: (info.expires, info.entries) for info in looker.sessions()}
            assert told == {name: kept[1:] for name, kept in ends.items()}
            assert len(looker.session(id).entries()) == ends.get(id, (0, 0, 0))[2]


class Index:
    """Derived data, which records what it is told."""

    name = "index"

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    async def erased(self, tenant: str, session: str, entries: Sequence[str]) -> int:
        """Drop what was derived from these entries."""
        return len(entries)

    async def gone(self, tenant: str, session: str) -> int:
        """Drop what was derived from the session."""
        self.told.append((tenant, session))
        return 1


NEW: dict[str, Callable[[Memory], object]] = {
    "append": lambda memory: memory.session("s").add_user_message("new"),
    "append with a key": lambda memory: memory.session("s").add({"role": "user", "content": "new"}, key="k"),
    "title": lambda memory: memory.session("s").describe(title="new"),
    "import": lambda memory: memory.import_session(memory.session("other").export(), session_id="s"),
    "replace": lambda memory: memory.import_session(
        memory.session("other").export(), session_id="s", on_conflict="replace"
    ),
    "branch": lambda memory: memory.session("other").fork("s"),
    "sweep": lambda memory: memory.sweep(),
    "delete": lambda memory: memory.delete_session("s"),
    "forget": lambda memory: memory.forget(matches="secret"),
    "another tenant's": lambda memory: memory.for_tenant("b").session("s").add_user_message("new"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("how", NEW)
def test_destroying_an_ended_session_tells_derived_data(how: str, memory: Memory, clock: FakeClock) -> None:
    """Whatever verb destroys an ended session first tells the data derived from it."""
    index, of = Index(), memory.for_tenant("b") if how == "another tenant's" else memory
    of.derive(index)
    of.session("s", lifetime="1m").add_user_message("secret")
    memory.session("other").add_user_message("hello")
    clock.advance(60)

    NEW[how](memory)

    assert set(index.told) == {(of.tenant, "s")}
    assert of.sweep() == 0


@pytest.mark.parametrize(
    "how", [{"user": "ann"}, {"matches": "secret"}, {"session": "s"}, {"tenant": "default"}, "scan"]
)
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_forget_and_scan_destroy_ended_sessions(how: Any, kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """`forget` and `scan` leave no byte of a session that has ended, although nobody can find it."""
    with opened(kind, tmp_path, clock) as memory:
        memory.session("s", lifetime="1m", user="ann").add_user_message("a secret of hers")
        memory.session("t").add_user_message("hello")
        clock.advance(60)

        if how == "scan":
            memory.scan("secrets", apply=True)
        else:
            memory.forget(**how)

        assert memory.sweep() == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"a secret" in path.read_bytes()]
