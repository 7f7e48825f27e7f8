"""A damaged head stops only its own session: others are listed, found, swept and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import read, run
from filestore import lines_of, log_of
from on_servers import KINDS, SERVERS
from palimpsest import Keys, Memory
from palimpsest.errors import StoreCorrupt, WrongKey
from palimpsest.log.entry import moment, now_us
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Ask, Backend, Place, PlaceHead, Step
from palimpsest.stores.engine.forms import checked
from sealed import FIRST, below, bytes_of
from vaults import Slot, Vault

SEALED = ("sealed memory", "sealed sqlite", "sealed file")
WORLDS = ("memory", "sqlite", "file", *SEALED)
PARTS = ("hot", "cold")


class World:
    """A closed store with a damaged session `bad` between two sound ones."""

    def __init__(self, kind: str, folder: Path) -> None:
        *sealed, self.kind = kind.split()
        self.keys, self.folder = FIRST if sealed else None, folder
        self.vault = Vault.of(self.kind, folder)
        with self.opened() as memory:
            for name in ("also", "bad", "good"):
                session = memory.session(name, user="ann" if name == "bad" else None)
                session.add_user_message(f"the heron stands in the water of {name}")
                session.add_assistant_message("it does")
                session.pin(1)

    def opened(self, **options: Any) -> Memory:
        """Open the memory again."""
        return self.vault.memory(self.keys, **options)

    def damage(self, name: str = "bad", part: str = "hot") -> None:
        """Change a value of a session's stored head."""
        contents = self.vault.contents()
        slot = next(slot for slot in contents if not slot.table and slot.place[2:] == ("session", name))
        head = contents[slot]
        assert isinstance(head, PlaceHead)
        hot, cold = (_changed(head.hot), head.cold) if part == "hot" else (head.hot, _changed(head.cold))
        self.vault.put({slot: PlaceHead(hot, cold)})

    def change(self, space: str, name: str, change: Callable[[bytes], bytes], *, home: str = "bad") -> None:
        """Change the stored head, or the row, of one place in a home: in a space that begins so, or in a table."""
        contents = self.vault.contents()
        slot = next(
            slot
            for slot in contents
            if slot.place.home == home
            and (slot.table == name if name else not slot.table and slot.place.space.startswith(space))
        )
        content = contents[slot]
        if isinstance(content, PlaceHead):
            self.vault.put({slot: PlaceHead(change(content.hot), content.cold)})
        else:
            self.vault.put({slot: content._replace(value=change(content.value))})

    def damage_places(self, space: str) -> None:
        """Change the stored heads of all places of a space, which expired long ago."""

        def change(backend: Backend) -> None:
            listed = drive(backend.places("default", space))
            for place, head in ((one.place, one.head) for one in listed):
                step = Step(place, head.hot, _changed(head.hot), head.cold, expires=1)
                assert drive(backend.write([[step]], 0)) == [None]
            assert listed

        self.vault.below(change)

    def drop_places(self, space: str) -> None:
        """Remove all places whose space begins so."""

        def drop(backend: Backend) -> None:
            listed = drive(backend.places("default", space, beneath=True))
            steps = [[Step(one.place, one.head.hot)] for one in listed]
            assert drive(backend.write(steps, 0)) == [None] * len(steps)
            assert steps

        self.vault.below(drop)

    def slots_of(self, home: str) -> list[Slot]:
        """Return what is stored in a home, without places that have no head in a session."""
        return [slot for slot in self.vault.contents() if slot.place.home == home]


def later() -> int:
    """Return a clock that is a minute fast."""
    return now_us() + 60_000_000


def _changed(value: bytes) -> bytes:
    """Return the value with a byte in its middle changed."""
    at = len(value) // 2
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


def _elsewhere_sealed(value: bytes) -> bytes:
    """Return an encrypted value as if it were encrypted with a key that nobody gives."""
    assert value[2:5] == b"old"
    return value[:2] + b"odd" + value[5:]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A store of each kind, plain and encrypted."""
    return World(request.param, tmp_path)


@pytest.mark.parametrize("part", PARTS)
def test_a_listing_marks_a_damaged_session_and_warns_once(
    world: World, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A listing contains a damaged session with a mark, and one warning says what to do."""
    world.damage(part=part)

    with world.opened() as memory:
        for order in ("id", "latest"):
            listed = memory.sessions(order=order)
            assert {one.session: one.damaged for one in listed} == {"also": False, "bad": True, "good": False}
        pages = memory.sessions(limit=1), memory.sessions(limit=1, after="also"), memory.sessions(limit=1, after="bad")
        assert [[one.session for one in page] for page in pages] == [["also"], ["bad"], ["good"]]
        assert [(one.session, one.damaged, one.user) for one in memory.sessions(user="ann")] == [("bad", True, "ann")]
        assert [one.session for one in memory.sessions(title="", prefix="b")] == ["bad"]
        assert memory.sessions(title="heron") == []
        with pytest.raises(StoreCorrupt, match=r"session 'bad'.*delete_session"):
            memory.session("bad").add_user_message("more")

    warnings = [one.getMessage() for one in caplog.records if "'bad'" in one.getMessage()]
    assert len(warnings) == 1
    assert "delete_session" in warnings[0]


def test_other_sessions_are_found_and_swept(world: World) -> None:
    """Other sessions are found and swept; the damaged one, whose age is unknown, is not."""
    world.damage()

    with world.opened(clock=later) as memory:
        found = memory.recall("heron water", neighbours=0).passages
        assert {one.session for one in found} == {"also", "good"}
        assert memory.sweep() == 0
        assert memory.sweep(untouched_for=1, dry_run=True) == 2
        assert memory.sweep(untouched_for=1) == 2
        assert [one.session for one in memory.sessions()] == ["bad"]


def test_damaged_facts_raise_when_read_and_after_a_sweep(world: World) -> None:
    """Damaged facts raise an error when they are read, and in a sweep after everything else is swept."""
    with world.opened() as memory:
        for name in ("bad", "good"):
            memory.working(name).set("k", name, ttl=10)
            memory.working(name).set("stays", name)
        memory.session("also").add_user_message("soon gone", expires_at=moment(now_us() + 10_000_000))
        memory.session("good").describe(user="ann")
    world.damage_places("item/working/bad")

    with world.opened(clock=later) as memory:
        with pytest.raises(StoreCorrupt):
            memory.working("bad").get("k")
        assert [one.session for one in memory.sessions(order="latest", user="ann")] == ["good", "bad"]
        assert set(memory.scopes()) == {"bad", "good"}
        with pytest.raises(StoreCorrupt):
            memory.sweep()
        assert memory.session("also").entries()[-1].erased
        assert memory.working("good").to_dict() == {"stays": "good"}
        assert memory.session("good").fork("branch").entries()
        assert memory.recall("heron").passages
        assert memory.forget(user="ann").sessions == ("bad", "branch", "good")
        assert memory.delete_session("also")


def test_a_damaged_lease_can_be_taken_again(world: World) -> None:
    """A damaged lease can be taken again, and its earlier holder is refused."""
    with world.opened() as memory:
        fence = drive(memory.store.lease("default", "turn:good", "me", 60))
    assert fence
    world.damage_places("lease")

    with world.opened() as memory:
        later_fence = drive(memory.store.lease("default", "turn:good", "other", 60))
        assert later_fence
        assert later_fence > fence
        assert drive(memory.store.lease("default", "turn:good", "me", 60, fence=fence)) is None
        assert memory.sweep() == 0


@pytest.mark.parametrize("verb", ["describe", "delete", "forget", "lifetime"])
def test_a_lost_note_is_made_again_from_its_head(world: World, verb: str) -> None:
    """A lost note about a session's user or end is made again from its head."""
    with world.opened() as memory:
        memory.session("bad").describe(lifetime="1d")
    for space in ("user/", "ends"):
        world.drop_places(space)

    with world.opened() as memory:
        session = memory.session("bad")
        assert memory.sessions(user="ann") == []
        if verb == "describe":
            session.describe(user="bob")
            assert [one.session for one in memory.sessions(user="bob")] == ["bad"]
        elif verb == "lifetime":
            session.describe(lifetime="2d")
            with world.opened(clock=lambda: now_us() + 3 * 86_400_000_000) as late:
                assert late.sweep() == 1
        elif verb == "delete":
            assert memory.delete_session("bad")
        else:
            assert memory.forget(session="bad").sessions == ("bad",)
        assert [one.session for one in memory.sessions()][:1] == ["also"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_forgetting_a_text_reports_an_unsearchable_damaged_session(world: World, dry_run: bool) -> None:
    """Forgetting a text reports a damaged session, which could not be searched, under `remains`."""
    world.damage()

    with world.opened() as memory:
        done = memory.forget(matches="heron", dry_run=dry_run)

        assert done.entries == 2
        assert any("'bad'" in told and "delete_session" in told for told in done.remains)
        assert any(one.session == "bad" for one in memory.sessions())
        memory.delete_session("bad")
        assert not any("'bad'" in told for told in memory.forget(matches="heron").remains)


def test_forgetting_a_user_deletes_their_damaged_sessions(world: World) -> None:
    """Forgetting a user deletes their damaged sessions, known by a note beside the head, and reports those of
    others."""
    world.damage()

    with world.opened() as memory:
        assert any("'bad'" in told for told in memory.forget(user="bob").remains)
        assert memory.forget(user="ann", dry_run=True).sessions == ("bad",)
        done = memory.forget(user="ann")

        assert done.sessions == ("bad",)
        assert not any("'bad'" in told for told in done.remains)
        assert [one.session for one in memory.sessions()] == ["also", "good"]


@pytest.mark.parametrize("by", ["delete", "forget", "tenant"])
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_session_can_be_destroyed(world: World, part: str, by: str) -> None:
    """A damaged session can be deleted or forgotten completely, and its id used again."""
    world.damage(part=part)

    with world.opened() as memory:
        if by == "delete":
            assert memory.delete_session("bad") is True
            assert memory.delete_session("bad") is False
        elif by == "forget":
            assert memory.forget(session="bad", dry_run=True).sessions == ("bad",)
            assert memory.forget(session="bad").sessions == ("bad",)
        else:
            assert memory.forget(tenant="default").sessions == ("also", "bad", "good")
        assert world.slots_of("bad") == []
        again = memory.session("bad", user="ann")
        again.add_user_message("anew")
        again.fork("branch")
        assert [entry.text for entry in again.entries()] == ["anew"]
        assert memory.session("branch").verify().ok
        assert again.verify().ok
        assert [one.damaged for one in memory.sessions(user="ann")] == [False, False]


@pytest.mark.parametrize("world", ["sqlite", "file"], indirect=True)
def test_a_deleted_damaged_session_leaves_no_byte(world: World) -> None:
    """No file has a byte of a deleted damaged session, the search index included."""
    large = "many words " * 10_000
    with world.opened() as memory:
        memory.session("bad").add_user_message(f"xylophone {large}")
        assert memory.recall("xylophone").passages
    world.damage()

    with world.opened() as memory:
        assert b"xylophone" in bytes_of(world.folder)
        memory.delete_session("bad")
        assert b"xylophone" not in bytes_of(world.folder)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["bad", "branch", "leaf"])
@pytest.mark.parametrize("by", ["delete", "forget"])
def test_branches_of_a_deleted_damaged_session_keep_shared_entries(world: World, name: str, by: str) -> None:
    """If a damaged session of a tree is deleted, its branches keep the entries that they share."""
    with world.opened() as memory:
        bad = memory.session("bad")
        bad.fork("branch").add_user_message("only in branch")
        bad.add_user_message("only in bad")
        memory.session("branch").fork("leaf").add_user_message("only in leaf")
        texts = {one: [entry.text for entry in memory.session(one).entries()] for one in ("bad", "branch", "leaf")}
    world.damage(name)

    with world.opened() as memory:
        others = sorted(texts.keys() - {name})
        if by == "delete":
            assert memory.delete_session(name)
        else:
            done = memory.forget(session=name)
            assert done.sessions == (name,)
            assert any(all(repr(other) in told for other in others) for told in done.remains)
        for other in others:
            assert [entry.text for entry in memory.session(other).entries()] == texts[other]
            assert memory.session(other).verify().ok
            memory.session(other).add_user_message("goes on")
        memory.session(name).add_user_message("anew")
        assert [entry.text for entry in memory.session(name).entries()] == ["anew"]
        for one in texts:
            assert memory.delete_session(one)

    assert world.slots_of("bad") == []


def test_deleting_a_damaged_branch_leaves_a_recreated_root_alone(world: World) -> None:
    """A damaged branch takes nothing of a session that has the home's name by now, and has never had a branch."""
    with world.opened() as memory:
        memory.session("bad").fork("branch").add_user_message("more")
        memory.delete_session("bad")
        memory.session("bad").add_user_message("anew")
    world.damage("branch")

    with world.opened() as memory:
        assert memory.delete_session("branch")
        assert [entry.text for entry in memory.session("bad").entries()] == ["anew"]
    world.damage("bad")

    with world.opened() as memory:
        assert memory.delete_session("bad")

    assert world.slots_of("bad") == []


def test_an_erasure_reports_entries_shared_with_a_damaged_branch(world: World) -> None:
    """An erasure cannot reach a damaged branch's shared entries: `remains` says so, and other entries go."""
    with world.opened() as memory:
        memory.session("bad").fork("branch")
    world.damage("branch")

    with world.opened() as memory:
        done = memory.forget(matches="heron")

        assert any("'branch'" in told for told in done.remains)
        for name in ("also", "good"):
            assert "heron" not in memory.session(name).entries()[0].text
        for verb in (lambda: memory.session("bad").erase([1]), lambda: memory.forget(session="bad")):
            with pytest.raises(StoreCorrupt, match=r"'branch'.*delete_session"):
                verb()
        memory.delete_session("branch")
        assert memory.forget(matches="heron").remains == ()
        assert "heron" not in memory.session("bad").entries()[0].text


def test_an_import_over_a_damaged_session_is_refused_with_advice(world: World) -> None:
    """An import in the place of a damaged session is refused with the advice to delete it."""
    with world.opened() as memory:
        lines = memory.session("good").export()
    world.damage()

    with world.opened() as memory:
        with pytest.raises(StoreCorrupt, match="delete_session"):
            memory.import_session(lines, session_id="bad", on_conflict="replace")
        memory.delete_session("bad")
        memory.import_session(lines, session_id="bad", on_conflict="replace")
        assert memory.session("bad").verify().ok


def test_commands_name_a_damaged_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sessions` marks it, `verify` and `doctor` go through the others and name it, `delete` destroys it."""
    if world.kind == "memory":
        pytest.skip("a store in memory is of one process")
    if world.keys:
        monkeypatch.setenv("PALIMPSEST_KEY", "old:" + bytes(range(32)).hex())
    world.damage()
    where = ("--store", world.vault.address)

    assert [one["session"] for one in read("sessions", *where) if one["damaged"]] == ["bad"]
    assert run("sessions", *where).stdout.count("(damaged)") == 1
    verified = run("verify", *where)
    assert verified.exit_code == 1
    assert "good" in verified.stdout
    assert "'bad'" in verified.output
    assert "palimpsest delete" in verified.output
    assert "palimpsest delete" in run("doctor", *where).output
    assert run("delete", "bad", "--dry-run", *where).exit_code == 0
    assert run("delete", "bad", "--yes", *where).exit_code == 0
    assert run("verify", *where).exit_code == 0


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_unreadable_log_file_is_one_damaged_session(tmp_path: Path, number: int) -> None:
    """A file with a line that cannot be read is a damaged session, and goes with the file; a sweep ends in an error."""
    world, folder = World("file", tmp_path), tmp_path / "logs"
    log = _broken(folder, "bad", number)

    with world.opened(clock=later) as memory:
        assert [(one.session, one.damaged) for one in memory.sessions()] == [
            ("also", False),
            ("bad", True),
            ("good", False),
        ]
        for verb in (lambda: memory.sweep(untouched_for=1), lambda: memory.session("bad").entries()):
            with pytest.raises(StoreCorrupt, match=rf"line {number} "):
                verb()
        assert [one.session for one in memory.sessions()] == ["bad"]
        assert any("'bad'" in told for told in memory.forget(matches="heron").remains)
        assert memory.delete_session("bad")
        assert not log.exists()
        memory.session("bad").add_user_message("anew")


def test_an_unreadable_log_file_of_several_sessions_is_left_alone(tmp_path: Path) -> None:
    """In a log file that cannot be read, several sessions cannot be told apart: none is deleted, and the error names
    them."""
    world, folder = World("file", tmp_path), tmp_path / "logs"
    with world.opened() as memory:
        memory.session("bad").fork("branch")
    log = _broken(folder, "bad", 2)
    before = log.read_bytes()

    with world.opened() as memory:
        assert [one.session for one in memory.sessions() if one.damaged] == ["bad", "branch"]
        for name in ("bad", "branch"):
            with pytest.raises(StoreCorrupt, match=r"branch.*backup"):
                memory.delete_session(name)
            done = memory.forget(session=name)
            assert (done.sessions, done.unknown) == ((), "")
            assert "backup" in done.remains[0]
        done = memory.forget(tenant="default")
        assert done.sessions == ("also", "good")
        assert len(done.remains) == 2
    assert log.read_bytes() == before


def _broken(folder: Path, name: str, number: int) -> Path:
    """Change what a line of a session's log says that it does; return the log's path."""
    key = SessionKey("default", name)
    log, lines = log_of(folder, key), lines_of(folder, key)
    before, after = (b'"home"', b'"hone"') if number == 1 else (b'"at":', b'"at": ')
    assert before in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(before, after, 1)
    log.write_bytes(b"".join(lines))
    return log


@pytest.mark.parametrize("keys", [None, FIRST], ids=["plain", "sealed"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_damaged_session_on_a_server_is_deleted_alone(server: str, keys: Keys | None) -> None:
    """On a server, too, a damaged session is listed, reported and destroyed, and its branch keeps what it shares."""
    with Memory.open(KINDS[server].address_of("heads"), encryption=keys) as memory:
        for name in ("bad", "good"):
            memory.session(name, user="ann").add_user_message(f"the heron of {name}")
        memory.session("bad").fork("branch")
        backend = below(memory.store) if keys else memory.store.backend
        place = Place("default", "bad", "session", "bad")
        (seen,) = drive(backend.look([Ask(place)]))
        assert seen.head is not None
        assert drive(backend.write([[Step(place, seen.head.hot, _changed(seen.head.hot))]], now_us())) == [None]

        assert [one.session for one in memory.sessions(user="ann") if one.damaged] == ["bad"]
        assert [one.session for one in memory.sessions(order="latest") if one.damaged] == ["bad"]
        assert any("'bad'" in told for told in memory.forget(matches="of good").remains)
        done = memory.forget(session="bad")
        assert done.sessions == ("bad",)
        assert "'branch'" in done.remains[0]
        memory.session("bad", user="ann").add_user_message("anew")
        assert [entry.text for entry in memory.session("branch").entries()] == ["the heron of bad"]
        assert [entry.text for entry in memory.session("bad").entries()] == ["anew"]


@pytest.mark.parametrize("value", [b"", b"\0", b"{}", b"12345678", b"xyzxyzxyz"])
def test_a_value_without_a_checksum_raises_store_corrupt(value: bytes) -> None:
    """A value without a checksum raises an error that says so."""
    with pytest.raises(ValueError, match="checksum"):
        checked(value, 1)


def test_forgetting_reports_damaged_facts_and_forgets_the_rest(world: World) -> None:
    """Forgetting a text or a tenant reports damaged facts and forgets everything else."""
    with world.opened() as memory:
        for scope in ("also", "bad", "good"):
            memory.working(scope).set("bird", "heron")
    contents = world.vault.contents()
    slot = next(slot for slot in contents if not slot.table and slot.place[1:3] == ("working/bad", "item/working/bad"))
    head = contents[slot]
    assert isinstance(head, PlaceHead)
    world.vault.put({slot: PlaceHead(_changed(head.hot), head.cold)})

    with world.opened() as memory:
        for dry_run in (True, False):
            done = memory.forget(matches="heron", dry_run=dry_run)
            assert done.items == {"working/also": 1, "working/good": 1}
            assert any("bad" in told for told in done.remains)
        assert done.entries == 3
        assert [memory.working(scope).to_dict() for scope in ("also", "good")] == [{}, {}]
        done = memory.forget(tenant=memory.tenant)
        assert sorted(done.sessions) == ["also", "bad", "good"]
        assert memory.sessions() == []

        assert world.slots_of("working/bad") == []


PLACES = [("session", ""), ("log", ""), ("user/", ""), ("log", "entry"), ("log", "record")]
"""What is stored of a session in an encrypted store: heads by their space, and rows by their table."""


@pytest.mark.parametrize("world", SEALED, indirect=True)
@pytest.mark.parametrize("how", [_changed, _elsewhere_sealed])
@pytest.mark.parametrize(("space", "table"), PLACES)
def test_what_cannot_be_decrypted_stops_only_its_own_session(
    world: World, space: str, table: str, how: Callable[[bytes], bytes]
) -> None:
    """Whatever of a session was changed, or is under a key that is not given, its other parts and all others go on."""
    world.change(space, table, how)

    with world.opened() as memory:
        assert [one.session for one in memory.sessions()] == ["also", "bad", "good"]
        assert [one.session for one in memory.sessions(user="ann")] == ["bad"]
        if space != "user/" and (table != "entry" or how is _elsewhere_sealed):
            with pytest.raises(StoreCorrupt if how is _changed else WrongKey, match="'bad'"):
                memory.session("bad").verify()
        assert {passage.session for passage in memory.recall("heron").passages} >= {"also", "good"}
        assert memory.scan("default", apply=True).sessions == 3
        assert memory.sweep() == 0
        done = memory.forget(matches="heron")
        assert not any(entry.text for name in ("also", "good") for entry in memory.session(name).entries()[:1])
        assert any("'bad'" in told for told in done.remains) == (space != "user/")
        assert memory.delete_session("bad")
        assert world.slots_of("bad") == []
        assert [one.session for one in memory.sessions()] == ["also", "good"]


@pytest.mark.parametrize("world", SEALED, indirect=True)
@pytest.mark.parametrize(("space", "table"), PLACES)
def test_a_tenant_is_forgotten_though_the_key_of_some_of_it_is_missing(world: World, space: str, table: str) -> None:
    """Forgetting a tenant destroys what cannot be decrypted, too."""
    world.change(space, table, _elsewhere_sealed)

    with world.opened() as memory:
        assert memory.forget(tenant="default").sessions == ("also", "bad", "good")

    assert [slot for slot in world.vault.contents() if slot.place.tenant == "default"] == []


@pytest.mark.parametrize("world", SEALED, indirect=True)
def test_a_forged_note_gives_nobody_a_session(world: World) -> None:
    """A note of a user, put beside the session of another, names no session of that user, even a damaged one."""
    with world.opened() as memory:
        memory.session("good").describe(user="bob")
    contents = world.vault.contents()
    bob = next(slot for slot in contents if slot.place.home == "good" and slot.place.space.startswith("user/"))
    for name in ("also", "bad"):
        forged = bob.place._replace(home=name, name=name)
        world.vault.put({Slot(forged): contents[bob]})
    world.damage()

    with world.opened() as memory:
        assert [one.session for one in memory.sessions(user="bob")] == ["good"]
        assert memory.forget(user="bob").sessions == ("good",)
        assert [one.session for one in memory.sessions(user="ann")] == ["bad"]


@pytest.mark.parametrize("world", SEALED, indirect=True)
def test_a_key_that_is_missing_is_named(world: World) -> None:
    """A session under a key that is not given raises WrongKey, which names it; with that key it is read again."""
    world.change("session", "", _elsewhere_sealed)

    with world.opened() as memory:
        for use in (memory.session("bad").entries, lambda: memory.session("bad").add_user_message("more")):
            with pytest.raises(WrongKey, match="the head of session 'bad'") as caught:
                use()
            assert caught.value.key_id == "odd"
    world.change("session", "", lambda value: value[:2] + b"old" + value[5:])
    with world.opened() as memory:
        assert memory.session("bad").verify().ok


@pytest.mark.parametrize("world", SEALED, indirect=True)
def test_a_session_whose_heads_are_at_odds_stands_for_itself_alone(world: World) -> None:
    """If one session of a user has an old head that was put back, the user's other sessions are not damaged."""
    with world.opened() as memory:
        memory.session("good").describe(user="ann")
        slot = next(slot for slot in world.vault.contents() if slot.place[1:] == ("bad", "session", "bad"))
        old = world.vault.contents()[slot]
        memory.session("bad").pin(2)
    world.vault.put({slot: old})

    with world.opened() as memory:
        assert {one.session: one.damaged for one in memory.sessions(user="ann")} == {"bad": True, "good": False}


@pytest.mark.parametrize("by", ["matches", "tenant", "user"])
def test_a_damaged_document_keeps_no_others_from_being_forgotten(world: World, by: str) -> None:
    """A damaged document of a knowledge base is reported, or goes with the knowledge base; all others go."""
    with world.opened() as memory:
        for number, shelf in enumerate(("one", "two")):
            for document in ("bad", "good"):
                memory.knowledge(shelf, user="ann").add(document, f"a heron in document {number}")
    contents = world.vault.contents()
    slot = next(slot for slot in contents if slot.place.space == "item/documents" and not slot.table)
    head = contents[slot]
    assert isinstance(head, PlaceHead)
    world.vault.put({slot: PlaceHead(_changed(head.hot), head.cold)})

    with world.opened() as memory:
        done = memory.forget(**{by: {"matches": "heron", "tenant": "default", "user": "ann"}[by]})
        if by == "matches":
            assert any("documents" in told for told in done.remains)
        else:
            assert (done.items, done.remains) == ({"knowledge/one": 2, "knowledge/two": 2}, ())
            left = [slot for slot in world.vault.contents() if "knowledge" in slot.place.tenant]
            assert not any(slot.table == "entry" for slot in left)
        assert memory.knowledge("two", user="ann").search("heron") == []


def test_a_branch_of_a_session_with_a_damaged_record_can_be_made(world: World) -> None:
    """A branch is made in spite of a damaged record, which is damaged in the branch, too."""
    world.change("log", "record", _changed)

    with world.opened() as memory:
        branch = memory.session("bad").fork("branch")
        assert [entry.text for entry in branch.entries()] == [entry.text for entry in memory.session("bad").entries()]
        for session in (branch, memory.session("bad")):
            with pytest.raises(StoreCorrupt, match="the record of revision"):
                session.verify()


def _without_a_number(_: bytes) -> bytes:
    """Return what is no number, as which the head of a tree is stored."""
    return b"?"


@pytest.mark.parametrize(("space", "table"), [("tree", ""), ("tree", "share"), ("log", "record")])
def test_a_damaged_part_of_one_home_keeps_no_others_from_being_forgotten(world: World, space: str, table: str) -> None:
    """Whatever is damaged of a session and its branches, a text, a user and a tenant are forgotten elsewhere."""
    with world.opened() as memory:
        memory.session("bad").fork("branch").add_user_message("more")
        memory.session("also").describe(user="bob")
    world.change(space, table, _changed if table else _without_a_number)

    with world.opened() as memory:
        done = memory.forget(matches="heron")
        assert not any(entry.text for name in ("also", "good") for entry in memory.session(name).entries()[:1])
        assert any("'bad'" in told or "'branch'" in told for told in done.remains)
        assert memory.forget(user="bob").sessions == ("also",)
        done = memory.forget(tenant="default")
        assert "good" in done.sessions
        assert table == "record" or any("'bad'" in told and "'branch'" in told for told in done.remains)
        assert all("other writers" not in told for told in done.remains)
        if table != "record":
            with pytest.raises(StoreCorrupt, match=r"'bad' cannot be told apart from 'branch'"):
                memory.delete_session("bad")
