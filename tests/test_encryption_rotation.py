"""Key rotation: everything comes under the new key while others read and write, whatever interrupts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commands import run, write_lines
from on_servers import KINDS as ON_SERVERS
from on_servers import SERVERS
from palimpsest import AsyncMemory, ConfigError, Conflict, Keys, Memory, WrongKey
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import MARK, Put
from palimpsest.stores.encrypted.resealing import STRETCH
from palimpsest.stores.encrypted.rotation import rotate, rotate_keys
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.items import Items
from palimpsest.stores.opening import open_store
from palimpsest.testing import FakeClock
from processes import Process, integrity, together, whole_turns
from sealed import (
    BOTH,
    FIRST,
    KEY,
    KINDS,
    LAST,
    NEW,
    OLD,
    OTHER,
    RING,
    address,
    below,
    bytes_of,
    everything,
    key_ids,
    play,
    relaxed,
    session_of,
    stored,
)
from stored_counts import summed
from vaults import Vault, values_of
from writer import ENTRIES_A_TURN, quarters, turn

SCRIPT = Path(__file__).with_name("sealed_process.py")


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a test's store."""
    return address(request.param, tmp_path)


def still(exports: dict[str, Any]) -> dict[str, Any]:
    """Return an export without what a rotation changes: the revision of heads and the time."""
    found = json.loads(json.dumps(exports, default=str))
    for name, export in found.items():
        if name != "items":
            export["head"].pop("revision")
            export.pop("exported_at", None)
    return found


def changed(where: str) -> list[Any]:
    """Rotate the keys in a process and return what it printed."""
    (said,) = together([Process("rotate", where, script=SCRIPT)])
    return said


# --- what it does


def test_everything_is_under_the_new_key_after_a_rotation(where: str, tmp_path: Path, clock: FakeClock) -> None:
    """After a rotation the new key alone reads every tenant's sessions, branches, records, summaries and items."""
    before = {}
    for tenant in ("default", "other"):
        with Memory.open(where, encryption=FIRST, tenant=tenant, clock=clock) as memory:
            play(memory)
            before[tenant] = still(everything(memory))

    with Memory.open(where, encryption=BOTH, clock=clock) as memory:
        done = rotate_keys(memory)

    assert (done.key_id, done.sessions) == ("new", 4)
    assert key_ids(where, LAST) == {"new"}
    for tenant, exports in before.items():
        with Memory.open(where, encryption=LAST, tenant=tenant, clock=clock) as memory:
            assert still(everything(memory)) == exports
    with pytest.raises(WrongKey) as caught:
        Memory.open(where, encryption=FIRST)
    assert caught.value.key_id == "new"


def test_a_rotation_keeps_counts_versions_and_sharing(where: str, tmp_path: Path) -> None:
    """A rotation keeps counts, versions, order and expiry of items, and the sharing between branches."""
    with Memory.open(where, encryption=FIRST) as memory:
        session = session_of(memory)
        session.add([{"role": "user", "content": "secret " * 10_000}, {"role": "assistant", "content": "b"}])
        session.count()
        session.fork("branch")
        for key, value in (("z", b"1"), ("a", b"1"), ("z", b"2")):
            drive(memory.store.put_item("default", "notes", key, value, expires=9_000_000_000_000_000))
        before = drive(memory.store.list_items("default", "notes"))
        tally = drive(summed(memory.store, KEY, "custom:quarters"))

    with Memory.open(where, encryption=BOTH) as memory:
        assert rotate_keys(memory).items == 2

    with Memory.open(where, encryption=LAST) as memory:
        assert drive(memory.store.list_items("default", "notes")) == before
        assert [(item.key, item.version) for item in before] == [("z", 2), ("a", 1)]
        assert drive(summed(memory.store, KEY, "custom:quarters")) == tally
        assert tally[0] == 2
        session_of(memory).erase([1])
        assert [entry.erased for entry in session_of(memory, "branch").entries()] == [True, False]
        assert drive(memory.store.put_item("default", "notes", "z", b"3", expect=2)).version == 3


def test_open_calls_and_named_contexts_are_found_after_a_rotation(where: str) -> None:
    """After a rotation, open calls and named contexts are still found, by old and new session objects."""
    with Memory.open(where, encryption=RING) as memory:
        session = session_of(memory)
        session.add_context("text", name="notes.txt")
        session.add_tool_call("f", {}, call_id="1")
        session.add_tool_call("g", {}, call_id="2")
        with Memory.open(where, encryption=BOTH) as other:
            rotate_keys(other)

        session.add_tool_result(None, "x", call_id="2")
        session_of(memory).add_tool_result("f", "y")
        session.add_context("text", name="notes.txt")

        assert [(entry.name, entry.answers) for entry in session.entries()][3:] == [("g", 3), ("f", 2)]
        assert {key_of(value) for value in stored(memory.store)} == {"new"}


def test_a_second_rotation_changes_nothing(where: str) -> None:
    """A second rotation to the same key changes nothing; a rotation back works."""
    with Memory.open(where, encryption=FIRST) as memory:
        session_of(memory).add_user_message("hello")
    with Memory.open(where, encryption=BOTH) as memory:
        assert rotate_keys(memory).texts == 1
        revision = memory.info("one").revision
        assert (rotate_keys(memory).texts, memory.info("one").revision) == (0, revision)
    with Memory.open(where, encryption=RING) as memory:
        assert rotate_keys(memory).key_id == "old"
    with Memory.open(where, encryption=FIRST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["hello"]


def test_items_are_found_after_a_rotation_there_and_back(where: str) -> None:
    """Items are found after any rotations, since the mark keeps the secret of their names."""
    with Memory.open(where, encryption=FIRST) as memory:
        drive(memory.store.put_item("default", "notes", "k", b"v"))
    for keys in (BOTH, RING, BOTH, RING):
        with Memory.open(where, encryption=keys) as memory:
            rotate_keys(memory)
        with Memory.open(where, encryption={keys.current: keys.secret(keys.current)}) as memory:
            assert drive(memory.store.get_item("default", "notes", "k")).value == b"v"


def test_a_mark_without_keys_is_damage(where: str) -> None:
    """A mark that lists no key is reported as damage."""
    Memory.open(where, encryption=FIRST).close()
    store = open_store(where, Inline())
    mark = json.loads(drive(store.get_item(*MARK)).value)
    drive(store.put_item(*MARK, json.dumps(mark | {"keys": {}}).encode()))
    drive(store.close())

    with pytest.raises(StoreCorrupt, match="names no key"):
        Memory.open(where, encryption=FIRST)


@pytest.mark.parametrize(("version", "fault"), [(2, StoreCorrupt), (4, StoreTooNew)])
def test_a_mark_of_another_version_is_refused(where: str, version: int, fault: type[Exception]) -> None:
    """A mark of an unknown version is refused by its version and not touched."""
    Memory.open(where, encryption=FIRST).close()
    store = open_store(where, Inline())
    mark = json.loads(drive(store.get_item(*MARK)).value) | {"version": version}
    item = drive(store.put_item(*MARK, json.dumps(mark).encode()))

    with pytest.raises(fault, match=f"version {version}"):
        Memory.open(where, encryption=FIRST)

    assert drive(store.get_item(*MARK)) == item
    drive(store.close())


def test_a_rotation_encrypts_the_names_of_calls_again(where: str) -> None:
    """A rotation also re-encrypts the names by which results refer to calls."""
    with Memory.open(where, encryption=FIRST) as memory:
        session_of(memory).add_tool_call("look", {}, call_id="1")
    with Memory.open(where, encryption=BOTH) as memory:
        session_of(memory).add_tool_result(None, "found", call_id="1")
        rotate_keys(memory)
    assert key_ids(where, LAST) == {"new"}


def test_the_later_of_two_rotations_at_once_wins(where: str) -> None:
    """Of two simultaneous rotations the later wins; the other raises Conflict, and all is under one key."""
    with Memory.open(where, encryption=FIRST) as memory:
        for number in range(3):
            session_of(memory, f"s{number}").add_user_message("hello")
    with Memory.open(where, encryption=BOTH) as one, Memory.open(where, encryption=RING) as two:

        def back(done: int, _: int) -> None:
            if done == 1:
                assert rotate_keys(two).key_id == "old"

        with pytest.raises(Conflict, match="to the key 'old'"):
            rotate_keys(one, progress=back)
    assert key_ids(where, FIRST) == {"old"}


def test_no_ciphertext_of_the_old_key_is_left_in_the_file(where: str, tmp_path: Path) -> None:
    """After a rotation no ciphertext of the old key is in the file."""
    with Memory.open(where, encryption=FIRST) as memory:
        for number in range(300):
            session_of(memory).add_user_message(f"{number} " * (1 + number % 50))
        before = [value[14:74] for value in stored(memory.store)]
    with Memory.open(where, encryption=BOTH) as memory:
        assert rotate_keys(memory).remains == ()

    after = bytes_of(tmp_path)
    assert len(before) == 300
    assert [text for text in before if text in after] == []


def test_rotating_a_plain_store_is_refused() -> None:
    """Rotating a plain store raises ConfigError."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="an encrypted store"):
        rotate_keys(memory)


def test_progress_of_a_rotation_counts_sessions(where: str) -> None:
    """`progress` is called after each session with the sessions done and their total."""
    with Memory.open(where, encryption=FIRST) as memory:
        for number in range(3):
            session_of(memory, str(number)).add_user_message("hello")
    told = []
    with Memory.open(where, encryption=BOTH) as memory:
        rotate_keys(memory, progress=lambda done, total: told.append((done, total)))

    assert told == [(1, 3), (2, 3), (3, 3)]


# --- damage and interruption


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_damaged_entry_is_reported_and_keeps_its_key(kind: str, tmp_path: Path) -> None:
    """A damaged entry is reported after everything else is rotated, and the old key stays needed."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        for name in ("bad", "good"):
            session_of(memory, name).add_user_message("hello")

    slot, row = next(one for one in vault.contents().items() if one[0].table and one[0].place.home == "bad")
    vault.put({slot: row._replace(value=row.value[:40] + b"AAAA" + row.value[40:])})
    with vault.memory(BOTH) as memory:
        with pytest.raises(StoreCorrupt, match="entry 1 of session 'bad'"):
            rotate_keys(memory)
        assert [key_of(value) for value in stored(memory.store, "good")] == ["new"]
    with pytest.raises(WrongKey):
        vault.memory(LAST)


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_damaged_head_keeps_its_key(kind: str, tmp_path: Path) -> None:
    """A rotation ends in spite of a damaged head, with everything else under the new key."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        for name in ("bad", "good"):
            session_of(memory, name).add_user_message("hello")

    heads = {slot: row for slot, row in vault.contents().items() if not slot.table and slot.place.space == "session"}
    slot, row = next(one for one in heads.items() if one[0].place.home == "bad")
    vault.put({slot: msgspec.structs.replace(row, hot=row.hot[:40] + b"AAAA" + row.hot[40:])})
    told = list[tuple[int, int]]()

    def progress(*done: int) -> None:
        told.append(done)  # type: ignore[arg-type]
        assert len(told) < 10

    with vault.memory(BOTH) as memory:
        with pytest.raises(StoreCorrupt, match="bad"):
            rotate_keys(memory, progress=progress)
        assert [key_of(value) for value in stored(memory.store, "good")] == ["new"]
    assert len(told) == 2


@pytest.mark.parametrize("space", ["session", "item/", "log", "tree"])
@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_damaged_head_keeps_nothing_else_of_its_home_back(kind: str, space: str, tmp_path: Path) -> None:
    """All that can be read beside a damaged head, in branches and among items, is under the new key afterwards."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        session_of(memory).add_user_message("hello")
        session_of(memory).erase([1])
        session_of(memory).fork("branch").add_user_message("more")
        for key in "abcd":
            drive(memory.store.put_item("default", "notes", key, b"v"))
    slot, head = next(
        one for one in vault.contents().items() if not one[0].table and one[0].place.space[:5] == space[:5]
    )
    vault.put({slot: msgspec.structs.replace(head, hot=head.hot[:-1] + bytes([head.hot[-1] ^ 1]))})

    with vault.memory(BOTH) as memory, pytest.raises(StoreCorrupt):
        rotate_keys(memory)

    others = [value for one, content in vault.contents().items() for value in values_of(content) if one != slot]
    assert {key_of(value) for value in others if isinstance(value, bytes)} - {None} == {"new"}


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_content_under_a_missing_key_is_reported_at_the_end(kind: str, tmp_path: Path) -> None:
    """If a session of an old backup needs a missing key, everything else is rotated; with that key, it is, too."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        for name in ("bad", "good"):
            session_of(memory, name).add_user_message("hello")
    old = {slot: row for slot, row in vault.contents().items() if slot.place.home == "bad"}
    with vault.memory(BOTH) as memory:
        rotate_keys(memory)
    vault.put(old)

    with vault.memory(Keys({"third": OTHER, "new": NEW})) as memory:
        with pytest.raises(WrongKey, match="All other data is done") as caught:
            rotate_keys(memory)
        assert caught.value.key_id == "old"
        assert [key_of(value) for value in stored(memory.store, "good")] == ["third"]
    with vault.memory(Keys({"third": OTHER, "new": NEW, "old": OLD})) as memory:
        assert rotate_keys(memory).texts == 1
        assert [entry.text for entry in session_of(memory, "bad").entries()] == ["hello"]


@pytest.mark.sampled
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_killed_rotation_is_completed_by_repeating_it(where: str, tmp_path: Path, after: int) -> None:
    """A killed rotation leaves everything readable with both keys, and a second run completes it."""
    with Memory.open(where, encryption=FIRST, synchronous="NORMAL") as memory:
        for number in range(8):
            for piece in range(4):
                session_of(memory, f"s{number}").add(turn(f"{number}.{piece}"))
        before = still(everything(memory))

    with Process("rotate", where, script=SCRIPT) as process:
        assert process.hear() == "ready"
        process.tell()
        for _ in range(after):
            process.hear()
        process.kill()
    with Memory.open(where, encryption=RING) as memory:
        assert still(everything(memory)) == before

    *_, (_, texts, _) = changed(where)
    assert texts <= 8 * 4 * ENTRIES_A_TURN
    assert key_ids(where, LAST) == {"new"}
    with Memory.open(where, encryption=LAST) as memory:
        assert still(everything(memory)) == before


# --- while others go on


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize("kind", [*KINDS, *SERVERS])
def test_writers_lose_nothing_during_a_rotation(kind: str, tmp_path: Path) -> None:
    """Processes may write during a rotation: nothing is lost, and everything ends under the new key."""
    where = ON_SERVERS[kind].address_of("sealed") if kind in ON_SERVERS else address(kind, tmp_path)
    with Memory.open(where, encryption=FIRST, **relaxed(where)) as memory:
        for number in range(30):
            session_of(memory, "shared").add(turn(f"before.{number}"))
    writers = [Process("write", where, name, 2, script=SCRIPT) for name in ("one", "two")]
    with writers[0], writers[1]:
        for writer in writers:
            assert writer.hear() == "ready"
            writer.tell()
        acknowledged = [writer.hear() for writer in writers for _ in range(4)]

        *_, (_, texts, _) = changed(where)

        acknowledged += [writer.hear() for writer in writers for _ in range(4)]
        for writer in writers:
            writer.tell("stop")
        acknowledged += [said for writer in writers for said in writer.end()]

    assert texts >= 30 * ENTRIES_A_TURN
    assert key_ids(where, LAST) == {"new"}
    wanted: dict[str, list[str]] = {"shared": [f"before.{number}" for number in range(30)]}
    for session, label in acknowledged:
        wanted.setdefault(session, []).append(label)
    with Memory.open(where, encryption=LAST) as memory:
        for session, labels in wanted.items():
            found = whole_turns(session_of(memory, session).entries(), ENTRIES_A_TURN)
            assert sorted(found.elements()) == sorted(labels)
        items = {item.key: item.value for item in drive(memory.store.list_items("default", "notes"))}
    assert items == {label: label.encode() for _, label in acknowledged}
    assert kind not in KINDS or integrity(where if where.startswith("file") else tmp_path / "a.db") == "ok"


@pytest.mark.parametrize("there", [True, False], ids=["known", "new"])
def test_a_write_overtaken_by_a_rotation_is_under_the_new_key(where: str, there: bool) -> None:
    """A write that a rotation overtakes is stored under the new key."""
    waiting: list[Callable[[], object]] = []

    def clock() -> int:
        if waiting:
            waiting.pop()()
        return now_us()

    def change() -> None:
        with Memory.open(where, encryption=BOTH, synchronous="NORMAL") as other:
            rotate_keys(other)

    with Memory.open(where, encryption=RING, clock=clock, synchronous="NORMAL") as memory:
        session_of(memory, "other").add_user_message("before")
        if there:
            session_of(memory).add_user_message("before")
        waiting.append(change)
        session_of(memory).add_user_message("late")
        assert not waiting

    assert key_ids(where, LAST) == {"new"}
    with Memory.open(where, encryption=LAST) as memory:
        assert [entry.text for entry in session_of(memory).entries()][-1] == "late"


@pytest.mark.parametrize("there", [True, False], ids=["known", "new"])
def test_a_waiting_write_is_sealed_again_after_another_thread_learns_of_a_rotation(where: str, there: bool) -> None:
    """A batch that waits while another thread learns of the rotation is sealed again under the new key."""
    with Memory.open(where, encryption=RING, synchronous="NORMAL") as memory:
        session_of(memory, "other").add_user_message("before")
        if there:
            session_of(memory).add_user_message("before")
        backend: Any = memory.store.backend
        write, waiting = backend.below.write, [True]

        def overtaken(*batches: Any, **how: Any) -> Any:
            if waiting.pop() if waiting else False:
                with Memory.open(where, encryption=BOTH, synchronous="NORMAL") as other:
                    rotate_keys(other)
                    session_of(other, "one").add_user_message("between")
                drive(memory.store.put_item("default", "notes", "k", b"of another thread"))
                assert backend.markings.writing == "new"
            return write(*batches, **how)

        backend.below.write = overtaken
        session_of(memory).add_user_message("late")
        assert not waiting

    assert key_ids(where, LAST) == {"new"}
    with Memory.open(where, encryption=LAST) as memory:
        assert [entry.text for entry in session_of(memory).entries()][-2:] == ["between", "late"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_session_does_not_keep_other_tasks_waiting(kind: str, tmp_path: Path) -> None:
    """While the keys of a long session change, other tasks of the same memory use the store between two stretches."""
    where, stretches = address(kind, tmp_path), 20

    async def play() -> int:
        async with AsyncMemory.open(where, encryption=FIRST, **relaxed(where)) as memory:
            texts = [{"role": "user", "content": f"{number}"} for number in range(STRETCH * stretches)]
            await memory.session("long", counter=quarters).add(texts)
        async with AsyncMemory.open(where, encryption=BOTH, **relaxed(where)) as memory:
            rotating, added = asyncio.create_task(rotate(memory.store)), 0
            while not rotating.done():
                await memory.session("other", counter=quarters).add_user_message("meanwhile")
                added += 1
            assert (await rotating).texts >= STRETCH * stretches
            return added

    assert asyncio.run(play()) >= stretches


def test_a_process_with_the_old_key_alone_takes_nothing_for_damaged(where: str) -> None:
    """A process that is open while all comes under a key that it was not given is refused everything, by WrongKey."""
    with Memory.open(where, encryption=FIRST) as memory:
        for name in ("one", "two"):
            session_of(memory, name).describe(user="ann")
            session_of(memory, name).add_user_message("the heron")
        drive(memory.store.put_item("default", "notes", "k", b"v"))
        with Memory.open(where, encryption=BOTH) as other:
            rotate_keys(other)

        for verb in (
            memory.sessions,
            lambda: memory.sessions(user="ann", order="latest"),
            lambda: memory.recall("heron"),
            lambda: memory.scan("default"),
            lambda: memory.sweep(untouched_for=1),
            lambda: memory.forget(matches="heron"),
            lambda: memory.forget(user="ann"),
            lambda: memory.forget(tenant="default"),
            lambda: memory.delete_session("one"),
            lambda: drive(memory.store.list_items("default", "notes")),
        ):
            with pytest.raises(WrongKey, match="'new'") as caught:
                verb()
            assert not isinstance(caught.value, StoreCorrupt)
    with Memory.open(where, encryption=LAST) as memory:
        assert [one.damaged for one in memory.sessions(user="ann")] == [False, False]


def test_a_program_with_the_old_key_alone_cannot_write(where: str) -> None:
    """Once a rotation has begun, a program with only the old key can write nothing, and its reads name the key."""
    with Memory.open(where, encryption=FIRST) as late:
        session_of(late).add_user_message("hello")
        with Memory.open(where, encryption=BOTH) as memory:
            rotate_keys(memory)

        with pytest.raises(WrongKey) as caught:
            session_of(late).add_user_message("no")
        assert caught.value.key_id == "new"
        with pytest.raises(WrongKey):
            session_of(late).entries()
    with Memory.open(where, encryption=LAST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["hello"]


# --- the command


@pytest.fixture
def sealed_chat(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An imported chat, encrypted with a key from the environment."""
    monkeypatch.setenv("PALIMPSEST_KEY", f"old:{OLD.hex()}")
    write_lines(here / "chat.jsonl", [{"role": "user", "content": "hello"}])
    assert run("import", "chat.jsonl", "--session", "chat").exit_code == 0


SAID = {"key": "new", "sessions": 1, "texts": 1, "items": 0, "remains": []}


def test_the_rotate_keys_command_rotates(here: Path, sealed_chat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command `rotate-keys` uses both keys of PALIMPSEST_KEY; afterwards the new one is enough."""
    monkeypatch.setenv("PALIMPSEST_KEY", f"new:{NEW.hex()},old:{OLD.hex()}")

    done = run("rotate-keys", "--json")

    assert (done.exit_code, json.loads(done.stdout)) == (0, SAID)
    monkeypatch.setenv("PALIMPSEST_KEY", f"new:{NEW.hex()}")
    assert "hello" in run("show", "chat").stdout
    assert run("rotate-keys").stdout == "Everything is under the key 'new' already.\n"
    assert run("doctor").exit_code == 0


def test_the_command_line_reports_missing_and_invalid_keys(
    here: Path, sealed_chat: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing key is an unreadable store, an invalid key is bad usage, and no key is shown."""
    monkeypatch.delenv("PALIMPSEST_KEY")
    refused = run("show", "chat")
    assert (refused.exit_code, "'old'" in refused.stderr) == (5, True)

    monkeypatch.setenv("PALIMPSEST_KEY", "old:mysecretmysecret")
    refused = run("show", "chat")
    assert refused.exit_code == 2
    assert "mysecret" not in refused.output
    monkeypatch.setenv("PALIMPSEST_KEY", "")  # a secret that is empty by mistake must not lead to plain writing
    assert run("import", "chat.jsonl", "--store", "sqlite:///empty.db").exit_code == 2
    assert not (here / "empty.db").exists()

    monkeypatch.setenv("PALIMPSEST_KEY", f"old:{OLD.hex()}")
    assert run("import", "chat.jsonl", "--store", "sqlite:///other.db").exit_code == 0
    monkeypatch.delenv("PALIMPSEST_KEY")
    assert run("import", "chat.jsonl", "--store", "sqlite:///plain.db").exit_code == 0
    assert run("rotate-keys", "--store", "sqlite:///plain.db").exit_code == 2


def test_an_equal_mark_written_by_others_does_not_stop_a_rotation(where: str) -> None:
    """A mark that others rewrote with an equal value does not stop a rotation."""
    with Memory.open(where, encryption=FIRST) as memory:
        play(memory)
    with Memory.open(where, encryption=BOTH) as memory:
        items = Items(below(memory.store), Crowds(below(memory.store)), now_us)
        mark = drive(items.get(*MARK))
        assert mark is not None
        again = drive(items.put(*MARK[:2], [Put(MARK[2], mark.value, expect=mark.version)]))[0]

        rotate_keys(memory)

        after = drive(items.get(*MARK))
        assert after is not None
        assert after.version > again.version > mark.version
    assert key_ids(where, BOTH) == {"new"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_add_after_a_rotation_returns_the_stored_ids(kind: str, tmp_path: Path) -> None:
    """An add by a process that has not yet learned of a rotation returns the ids that are stored."""
    where = address(kind, tmp_path)
    with Memory.open(where, encryption=RING) as memory, Memory.open(where, encryption=RING) as other:
        session, beside = memory.session("s"), other.session("t")
        first = [session.add_user_message("one"), *beside.add(turn("two"))]
        changed(where)
        told = [session.add_user_message("three"), *beside.add(turn("four"))]
        stored = [entry.id for name in "st" for entry in memory.session(name).entries()]
    assert sorted(stored) == sorted(entry.id for entry in [*first, *told])
