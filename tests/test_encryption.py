"""Encryption at rest: stores keep their contract, and no byte of what is stored is private."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from log_rules import LogConformance, StoreFactory
from palimpsest import AsyncMemory, Conflict, Entry, Memory
from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Change, Record
from palimpsest.log.head import Head
from palimpsest.runtime.runner import drive
from palimpsest.stores import Dump
from palimpsest.stores.backend import Row
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.encrypted.sealed_rows import is_clear
from palimpsest.stores.engine.forms import entry_row, record_row
from palimpsest.testing import FakeClock
from processes import Process, integrity, whole_turns
from sealed import (
    BOTH,
    FIRST,
    KEY,
    KINDS,
    MARKER,
    RING,
    address,
    bytes_of,
    opened,
    play,
    session_of,
    stored,
)
from vaults import Content, Slot, Vault
from writer import ENTRIES_A_TURN, turn

SCRIPT = Path(__file__).with_name("sealed_process.py")
EVERY = ("memory", *KINDS)
Changes = dict[Slot, Content | None]


def entry_rows(vault: Vault) -> list[tuple[Slot, Row]]:
    """Return the stored rows of entries, in the order of sessions and places."""
    return sorted((slot, row) for slot, row in vault.contents().items() if slot.table == "entry")


class TestEncryptedMemoryStore(LogConformance):
    """The contract holds over `memory://`."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        return lambda clock: opened("memory://", BOTH, clock)


class TestEncryptedSQLiteStore(LogConformance):
    """The contract holds over SQLite."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: opened(address("sqlite", tmp_path), BOTH, clock)


class TestEncryptedFileStore(LogConformance):
    """The contract holds over a folder of files."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: opened(address("file", tmp_path), BOTH, clock)


# --- nothing private in clear


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_in_any_byte_of_the_store(kind: str, tmp_path: Path) -> None:
    """No text of any field is in a file of an encrypted store, open or closed."""
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    for folder, keys in ((plain, None), (sealed, FIRST)):
        folder.mkdir()
        with Memory.open(address(kind, folder), encryption=keys) as memory:
            words = play(memory)
            while_open = bytes_of(folder)
        if keys is None:
            assert [word for word in words if word.encode() not in while_open] == []
        else:
            assert MARKER.encode() not in while_open + bytes_of(folder)


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_an_encrypted_store_gives_the_same_contexts_as_a_plain_one(kind: str, tmp_path: Path, clock: FakeClock) -> None:
    """The same calls give the same contexts and histories, encrypted or not."""
    told = []
    for name, keys in (("plain", None), ("sealed", FIRST)):
        (tmp_path / name).mkdir()
        with Memory.open(address(kind, tmp_path / name), encryption=keys, clock=clock) as memory:
            play(memory)
            session = session_of(memory)
            history = [(step.revision, step.kind, step.reason, step.detail) for step in session.history()]
            entries = [(e.seq, e.text, e.name, e.call_id, e.metadata, e.native, e.answers) for e in session.entries()]
            messages = re.sub(r'id=\\?"[0-9a-f-]{36}', "", json.dumps(session.context().messages))
            told.append((messages, history, entries, [made.text for made in session.summaries()]))

    assert told[0] == told[1]


def test_equal_texts_have_different_ciphertexts() -> None:
    """Equal texts have different ciphertexts, large content included."""
    with Memory.open("memory://", encryption=FIRST) as memory:
        for name in ("one", "two"):
            for text in ("short", "short", "long " * 20_000, "long " * 20_000):
                session_of(memory, name).add_user_message(text)
        there = [value for name in ("one", "two") for value in stored(memory.store, name)]

    assert len(set(there)) == len(there) == 8
    assert {key_of(value) for value in there} == {"old"}


def test_results_find_their_calls_by_encrypted_names(tmp_path: Path) -> None:
    """Results find their calls by id or tool name as without encryption, although the store sees neither."""
    found = []
    for keys in (None, FIRST):
        with Memory.open("memory://", encryption=keys) as memory:
            session = session_of(memory)
            for name, call_id in (("f", "1"), ("g", "1"), ("f", "2"), ("f", "1")):
                session.add_tool_call(name, {}, call_id=call_id)
            for result in (
                Entry(call_id="1"),
                Entry(name="f"),
                Entry(call_id="2"),
                Entry(name="g"),
                Entry(call_id="9"),
            ):
                session.add_entries([replace(result, kind="tool_result", role="tool", content="x")])
            found.append([(entry.name, entry.call_id, entry.answers, entry.late) for entry in session.entries()])

    assert found[0] == found[1]
    assert [answers for *_, answers, _ in found[0]][4:] == [1, 3, 0, 2, 0]


def test_an_unchanged_named_context_is_not_added_again(tmp_path: Path) -> None:
    """An unchanged named context is not added again, in this process or the next, although the store cannot compare
    it."""
    where = address("sqlite", tmp_path)
    for _ in range(2):
        with Memory.open(where, encryption=FIRST) as memory:
            for _ in range(2):
                session_of(memory).add_context("the same", name="notes.txt")
    with Memory.open(where, encryption=FIRST) as memory:
        session_of(memory).add_context("another", name="notes.txt")

        assert [entry.text for entry in session_of(memory).entries()] == ["the same", "another"]


def test_a_keyed_batch_is_recognised_whatever_key_encrypts_it(tmp_path: Path) -> None:
    """A batch under the same key adds nothing, whatever key encrypts it; other messages raise Conflict."""
    where = address("sqlite", tmp_path)
    message = {"role": "user", "content": "hello"}
    for keys in (FIRST, BOTH):
        with Memory.open(where, encryption=keys) as memory:
            session_of(memory).add([message], key="k")
            with pytest.raises(Conflict):
                session_of(memory).add([message | {"content": "other"}], key="k")

            assert len(session_of(memory).entries()) == 1


def test_pseudonyms_are_encrypted(tmp_path: Path) -> None:
    """The mapping of pseudonyms is in no byte of the store and is read again, in branches, too."""
    numbers = {f"EMAIL:{MARKER}": 1, "EMAIL:other": 2}
    where = address("sqlite", tmp_path)
    with Memory.open(where, encryption=FIRST) as memory:
        session = session_of(memory)
        session.add_user_message("hello")
        for count in (1, 2):
            given = dict(list(numbers.items())[:count])
            drive(memory.store.commit(KEY, Change(kind="pseudonyms", reason="pseudonyms", pseudonyms=given)))
        session.fork("branch")
        session.add_user_message("more")
        assert MARKER.encode() not in bytes_of(tmp_path)

    with Memory.open(where, encryption=FIRST) as memory:
        for name in ("one", "branch"):
            assert drive(memory.store.head(KEY._replace(session=name))).pseudonyms == numbers


def test_a_tombstone_is_stored_without_content() -> None:
    """An entry imported as erased is stored and read without its content."""
    grave = Entry(id="e", seq=1, content="secret", erased=True, revision=1, metadata={"k": "secret"})
    with Memory.open("memory://", encryption=FIRST) as memory:
        head = Head(revision=1, next_seq=2, erased=1)
        drive(memory.store.load(KEY, Dump(head=head, entries=(grave,), records=())))

        assert b"secret" not in b"".join(stored(memory.store))
        assert [entry.text for entry in drive(memory.store.read(KEY))] == [""]


# --- what was changed is found


@pytest.mark.parametrize("kind", EVERY)
def test_a_flipped_bit_is_found_and_named(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped bit in a ciphertext is reported with entry and session; the rest stays readable."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        for text in ("one", "two", "three"):
            session_of(memory).add_user_message(text)

    slot, row = entry_rows(vault)[1]
    vault.put({slot: row._replace(value=row.value[:40] + bytes((row.value[40] ^ 1,)) + row.value[41:])})
    with vault.memory(FIRST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["one", "", "three"]
        assert session_of(memory).entry(2).damaged
        assert "entry 2 of session 'one' cannot be read (it cannot be decrypted with the key 'old'" in caplog.text


Found = list[tuple[Slot, Row]]


def swapped(rows: Found) -> Changes:
    """Return the changes that exchange the first two rows."""
    (one, its), (other, others) = rows[:2]
    return {one: others._replace(key=one.key), other: its._replace(key=other.key)}


def crossed(rows: Found) -> Changes:
    """Return the change that puts a row of the second session in the place of one of the first."""
    return {rows[0][0]: rows[-1][1]._replace(key=rows[0][0].key)}


def readable(rows: Found) -> Changes:
    """Return the change that replaces the first message by a plain one of another role, with a valid checksum."""
    (slot, row), *_ = rows
    return {slot: row._replace(value=entry_row(0, Entry(id="x", seq=1, role="system", content="said by somebody"))[1])}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("change", [swapped, crossed, readable])
def test_moved_or_plain_rows_are_never_read_as_content(
    change: Callable[[Found], Changes], kind: str, tmp_path: Path
) -> None:
    """Rows that change places or sessions, or that were never encrypted, are reported as damage."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        for name in ("one", "two"):
            session_of(memory, name).add_assistant_message("first")
            session_of(memory, name).add_assistant_message("again")

    vault.put(change(entry_rows(vault)))
    with vault.memory(FIRST) as memory:
        session = session_of(memory)
        found = session.entries()
        assert (found[0].damaged, found[0].text) == (True, "")
        assert "entry 1 is damaged and cannot be read" in session.verify().problems
        assert "first" not in repr(session.context().messages)


def outcome(records: Callable[[], object]) -> str:
    """Return the text of the StoreCorrupt that reading the records raises, or "" if it raises none."""
    try:
        records()
    except StoreCorrupt as fault:
        return str(fault)
    return ""


def records_of(memory: Memory, name: str) -> list[Record]:
    """Return a session's records."""
    return drive(memory.store.records(KEY._replace(session=name)))


def blackened(record: Record) -> Record:
    """Mark the record's summary as withdrawn although it has a text."""
    made = replace(record.compaction.summary, withdrawn=True, text="said by somebody")
    return replace(record, compaction=replace(record.compaction, summary=made))


def detailed(record: Record) -> Record:
    """Replace the record's details."""
    return replace(record, detail={"session": "said by somebody"})


def annotated(record: Record) -> Record:
    """Add a detail to the record."""
    return replace(record, detail={**record.detail, "note": "said by somebody"})


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("change", [blackened, detailed, annotated])
def test_a_plain_record_is_never_read(change: Callable[[Record], Record], kind: str, tmp_path: Path) -> None:
    """A plain record with a valid checksum in the place of an encrypted one is refused."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        play(memory)
        records = drive(memory.store.records(KEY))
    meant = next(record for record in records if record.compaction and record.compaction.summary)
    there = {slot: row for slot, row in vault.contents().items() if slot.table == "record" and isinstance(row, Row)}
    slot = next(slot for slot in there if slot.key & 0xFFFFFFFF == meant.revision)
    vault.put({slot: there[slot]._replace(value=record_row(0, change(meant)).value)})

    with vault.memory(FIRST) as memory:
        told = [outcome(lambda name=name: records_of(memory, name)) for name in ("one", "branch")]
    assert f"the record of revision {meant.revision} of session" in "".join(told)


@pytest.mark.parametrize("kind", EVERY)
def test_an_item_value_under_another_key_is_refused(kind: str, tmp_path: Path) -> None:
    """An item's value under another key is refused."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        for key in ("mine", "theirs"):
            drive(memory.store.put_item("default", "notes", key, key.encode()))
    there = {slot: one for slot, one in vault.contents().items() if not is_clear(slot.place)}
    slot, (_, other) = next(iter(there)), there.values()
    vault.put({slot: other})

    with (
        vault.memory(FIRST) as memory,
        pytest.raises(StoreCorrupt, match=r"the item notes/.* cannot be decrypted"),
    ):
        drive(memory.store.list_items("default", "notes"))


# --- who uses it


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_of_a_branch_reads_all_earlier_entries(kind: str, tmp_path: Path) -> None:
    """A branch of a branch reads all entries before it in a new process, even after their sessions were deleted."""
    where = address(kind, tmp_path)
    with Memory.open(where, encryption=FIRST) as memory:
        session = session_of(memory)
        session.add_user_message("a")
        second = session.fork("second")
        session.add_user_message("not there")
        second.add_user_message("b")
        second.fork("third").add_user_message("c")
        memory.delete_session("one")
        memory.delete_session("second")
        session_of(memory, "second").add_user_message("another")

    with Memory.open(where, encryption=FIRST) as memory:
        assert [entry.text for entry in session_of(memory, "third").entries()] == ["a", "b", "c"]
        assert memory.info("third").forked_from[0] == "second"
        assert [entry.text for entry in session_of(memory, "second").entries()] == ["another"]


def test_a_forked_child_gets_forked_process(tmp_path: Path) -> None:
    """A forked child gets ForkedProcess and waits for no lock of its parent."""
    code = (
        "import os, sys\n"
        "from palimpsest import Memory; from palimpsest.errors import ForkedProcess\n"
        "memory = Memory.open(sys.argv[1], encryption={'k': bytes(32)})\n"
        "session = memory.session('one'); session.add_user_message('a')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try: session.add_user_message('b')\n"
        "    except ForkedProcess: os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "session.add_user_message('c'); print(len(session.entries()))"
    )
    where = address("sqlite", tmp_path)
    ran = subprocess.run([sys.executable, "-c", code, where], capture_output=True, text=True, check=True)

    assert ran.stdout == "2\n"


def test_threads_and_tasks_lose_nothing(tmp_path: Path) -> None:
    """Adding to one session from threads and tasks at once loses and mixes nothing."""
    with (
        Memory.open(tmp_path / "a.db", encryption=FIRST, synchronous="NORMAL") as memory,
        ThreadPoolExecutor(6) as pool,
    ):
        list(pool.map(lambda n: session_of(memory).add(turn(f"thread.{n}")), range(24)))

    async def tasks() -> None:
        async with AsyncMemory.open(tmp_path / "a.db", encryption=FIRST, synchronous="NORMAL") as memory:
            session = memory.session(KEY.session)
            await asyncio.gather(*(session.add(turn(f"task.{n}")) for n in range(24)))
            assert len(await session.entries()) == 48 * ENTRIES_A_TURN

    asyncio.run(tasks())
    with Memory.open(tmp_path / "a.db", encryption=FIRST) as memory:
        found = whole_turns(session_of(memory).entries(), ENTRIES_A_TURN)
    assert len(found) == 48
    assert set(found.values()) == {1}


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_batches_survive_kills(kind: str, kills: int, tmp_path: Path, dice: random.Random) -> None:
    """Acknowledged batches of a writer that is killed again and again are there, whole and once."""
    where = address(kind, tmp_path)
    Memory.open(where, encryption=FIRST).close()
    for kill in range(kills):
        with Process("write", where, f"w{kill}", 2, script=SCRIPT) as writer:
            assert writer.hear() == "ready"
            writer.tell()
            acknowledged = [writer.hear() for _ in range(dice.randrange(1, 25))] + writer.kill()

        with Memory.open(where, encryption=RING) as memory:
            for name in {session for session, _ in acknowledged}:
                found = whole_turns(session_of(memory, name).entries(), ENTRIES_A_TURN)
                assert {label for session, label in acknowledged if session == name} <= set(found)
                assert set(found.values()) <= {1}
                assert session_of(memory, name).verify().problems == ()
            items = {item.key for item in drive(memory.store.list_items("default", "notes"))}
            assert {label for _, label in acknowledged} <= items
        assert integrity(where if kind == "file" else tmp_path / "a.db") == "ok"


def test_cryptography_is_loaded_only_where_it_is_used() -> None:
    """A plain store opens without the library cryptography; an encrypted one names the missing extra."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from palimpsest import Keys, Memory; from palimpsest.errors import MissingExtra\n"
        "Memory.open('memory://').close()\n"
        "try: Memory.open('memory://', encryption={'k': Keys.new()})\n"
        "except MissingExtra as fault: print(fault)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "pip install 'palimpsest-memory[encryption]'" in ran.stdout
