"""Whoever can write to an encrypted store without a key changes nothing that is read without being noticed.

Each change is made below the encryption with the backend's verbs. The last tests name what cannot be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palimpsest import Entry, Memory, Session, WrongKey
from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Change
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import Place, PlaceHead, Row
from palimpsest.stores.encrypted.sealed_rows import is_clear
from sealed import FIRST, KEY, play, session_of
from test_rewriting import WORD, rewritten
from vaults import Content, Slot, Vault, spoilt
from writer import quarters


def told(memory: Memory, name: str) -> dict[str, Any]:
    """Return all that a session shows: entries, records, head, branches and its context."""
    session = memory.session(name, counter=quarters, max_tokens=100_000, auto_compact="off")
    key = SessionKey("default", name)
    return {
        "head": drive(memory.store.head(key)),
        "entries": [msgspec.structs.replace(entry, tokens=None) for entry in session.entries(rewound=True)],
        "records": drive(memory.store.records(key)),
        "branches": drive(memory.store.branches(key)),
        "context": session.context(dry_run=True).messages if name != "two" else None,
        "info": memory.info(name),
    }


EVERY = ("memory", "sqlite", "file")


def everything(vault: Vault) -> dict[str, Any]:
    """Return all that the store shows to a process that has just opened it."""
    with vault.memory(FIRST) as memory:
        items = drive(memory.store.list_items("default", "notes"))
        return {"items": items} | {one.session: told(memory, one.session) for one in memory.sessions()}


def notices(vault: Vault, before: dict[str, Any]) -> bool:
    """Whether reading everything reports a fault; apart from that, what is read must be unchanged."""
    try:
        now = everything(vault)
    except (StoreCorrupt, WrongKey):
        return True
    if any(entry.damaged for name in now.keys() - {"items"} for entry in now[name]["entries"]):
        return True
    assert now == before, "it reads other than it was written, and nobody says so"
    return False


@pytest.fixture(scope="module", params=EVERY)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vault:
    """A store with compactions, cuts, an erasure, a rewriting, a branch, two sessions and an item."""
    vault = Vault.of(request.param, tmp_path_factory.mktemp("built"))
    with vault.memory(FIRST) as memory:
        play(memory)
        session = session_of(memory)
        session.add_user_message(f"{WORD} to be rewritten")
        session.pin(session.add_user_message("pinned").id)
        session.record_usage(input_tokens=100)
        rewritten(memory.store, KEY)
        other: Session = session_of(memory, "two")
        for number in range(8):
            other.add_user_message(f"other {number}")
        other.context(max_tokens=1000)
        other.rewind(3)
    return vault


def sampled(found: list[Any], most: int) -> list[Any]:
    """Return at most so many of the values, spread evenly."""
    return found[:: max(1, -(-len(found) // most))]


def of_each(vault: Vault, most: int) -> int:
    """Return how many of each kind to try: few over files, since the memory backend covers all."""
    return most if vault.address.startswith("vault") else max(3, most // 6)


def by_table(contents: dict[Slot, Content], table: str) -> dict[Slot, Content]:
    """Return the contents of one table, "" for heads, without what the docs say is plain."""
    return {slot: one for slot, one in contents.items() if slot.table == table and not is_clear(slot.place, table)}


@pytest.mark.sampled
@pytest.mark.parametrize("table", ["", "entry", "record", "share"])
def test_every_changed_value_is_noticed(table: str, built: Vault) -> None:
    """Changing, cutting, emptying or doubling a value of heads or rows is noticed."""
    before, there = everything(built), built.contents()
    unnoticed, tried = [], 0
    for slot, content in sampled(list(by_table(there, table).items()), of_each(built, 12)):
        for other in sampled(list(spoilt(content)), of_each(built, 40 if not table else 12)):
            if other != content:
                built.put({slot: other})
                tried += 1
                if not notices(built, before):
                    unnoticed.append((slot, other))
        built.put({slot: content})

    assert tried >= of_each(built, 21)
    assert unnoticed == []
    assert everything(built) == before


@pytest.mark.parametrize("table", ["entry", "record", "share"])
def test_every_dropped_row_is_noticed(table: str, built: Vault) -> None:
    """Removing a row of entries, records or shares is noticed."""
    before, unnoticed = everything(built), []
    for slot, content in sampled(list(by_table(built.contents(), table).items()), of_each(built, 25)):
        built.put({slot: None})
        if not notices(built, before):
            unnoticed.append(slot)
        built.put({slot: content})

    assert unnoticed == []
    assert everything(built) == before


@pytest.mark.sampled
def test_every_exchange_of_values_is_noticed(built: Vault) -> None:
    """Exchanging or doubling heads, entries or records, of one session or two, is noticed."""
    before, unnoticed = everything(built), []
    there = built.contents()
    for table in ("", "entry", "record", "share"):
        for (one, its), (other, others) in pairwise(sampled(list(by_table(there, table).items()), of_each(built, 12))):
            moved = {one: others, other: its}
            if isinstance(its, Row) and isinstance(others, Row):
                moved = {one: others._replace(key=one.key), other: its._replace(key=other.key)}
            for change in (moved, {one: moved[one]}):
                built.put(change)
                if not notices(built, before):
                    unnoticed.append((one, other))
                built.put({one: there[one], other: there[other]})

    assert unnoticed == []
    assert everything(built) == before


def redacted(_: Session, memory: Memory) -> None:
    """Rewrite a text."""
    rewritten(memory.store, KEY)


STEPS: dict[str, Callable[[Session, Memory], object]] = {
    "append": lambda session, _: session.add_user_message("more"),
    "erase": lambda session, _: session.erase([3]),
    "redact": redacted,
    "pin": lambda session, _: session.pin(1),
    "rewind": lambda session, _: session.rewind(2),
    "clear": lambda session, _: session.clear(),
    "replace": lambda session, memory: memory.import_session(session.export(), on_conflict="replace"),
    "delete and begin again": lambda session, memory: (
        memory.delete_session("one"),
        session.add_user_message("anew"),
        session.add_user_message("anew"),
    ),
    "an erasure that takes a summary along": lambda session, _: session.erase([1]),
    "an erasure in a branch": lambda session, memory: session_of(memory, "branch").erase([4]),
    "a fork": lambda session, _: session.fork("another"),
}


@pytest.mark.parametrize("step", STEPS)
def test_every_restored_old_value_is_noticed(step: str, tmp_path: Path) -> None:
    """Putting back an earlier value of a head or a row is noticed.

    Not noticed are entries before the place where a cleared log begins, and rows of a log that is gone: they are never
    read.
    """
    vault = Vault.of("memory", Path())

    def summarizer(_: str) -> str:
        return "A summary.\n\n## Facts\n- something [1]\n"

    with vault.memory(FIRST) as memory:
        session = memory.session("one", counter=quarters, max_tokens=100_000, summarizer=summarizer)
        for number in range(6):
            session.add_user_message(f"{number} {WORD} " + "many words " * 20)
            session.add_assistant_message("answer " * 20)
        session.compact({"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0, "summary_floor": 1})
        assert session.summaries()
        session.context()
        drive(memory.store.commit(KEY, Change(kind="pin", reason="r", seqs=(7,), detail={"why": WORD})))
        session_of(memory, "two").add_user_message("unrelated")
        session.fork("branch").add_user_message("unrelated")
    first = vault.contents()
    with vault.memory(FIRST) as memory:
        STEPS[step](session_of(memory), memory)
        head = drive(memory.store.head(KEY)) or Head()
    before, unnoticed, tried, there = everything(vault), [], 0, vault.contents()
    log = int.from_bytes(b"") if step != "clear" else head.first_seq

    for slot, content in first.items():
        if there.get(slot) == content:
            continue
        vault.put({slot: content})
        tried += 1
        is_unread = slot.table == "entry" and (slot.key & 0xFFFFFFFF) < log
        is_unread = is_unread or (slot not in there and slot.table and step in ("replace", "delete and begin again"))
        if not notices(vault, before) and not is_unread:
            unnoticed.append(slot)
        vault.put({slot: there.get(slot)})

    assert tried >= 1
    assert unnoticed == []
    assert everything(vault) == before


def test_a_head_older_than_one_seen_is_refused() -> None:
    """A process that has seen a later head notices an earlier one, even if nothing else has changed."""
    vault = Vault.of("memory", Path())
    with vault.memory(FIRST) as memory:
        session = session_of(memory)
        session.add_user_message("hello")
        (slot,) = by_table(vault.contents(), "")
        first = vault.contents()[slot]
        session.record_usage(input_tokens=100)
        vault.put({slot: first})

        with pytest.raises(StoreCorrupt, match="the head of session 'one' is an earlier version than before"):
            session.stats()
        with pytest.raises(StoreCorrupt, match="the head of session 'one' is an earlier version than before"):
            session.add_user_message("more")


def test_an_old_cold_value_beside_a_current_head_is_refused() -> None:
    """An earlier cold value beside the current hot one is refused, since both belong together."""
    vault = Vault.of("memory", Path())
    with vault.memory(FIRST) as memory:
        session = session_of(memory)
        session.add_user_message("hello")
        first = vault.contents()
        session.pin(1)
    (slot,) = by_table(first, "")
    was, now = first[slot], vault.contents()[slot]
    assert isinstance(was, PlaceHead)
    assert isinstance(now, PlaceHead)
    vault.put({slot: PlaceHead(now.hot, was.cold)})

    with vault.memory(FIRST) as memory, pytest.raises(StoreCorrupt, match="the head of session 'one'"):
        session_of(memory).stats()


def test_every_dropped_doubled_or_moved_line_of_a_file_is_noticed(tmp_path: Path) -> None:
    """Dropping, doubling or exchanging a line of a log file is noticed."""
    vault = Vault.of("file", tmp_path)
    with vault.memory(FIRST) as memory:
        session = session_of(memory, "one")
        for number in range(5):
            session.add_user_message(f"{number}")
        session.pin(2)
        session.erase([3])
        session.add_user_message("last")
        session.pin(4)
    (path,) = (tmp_path / "logs").rglob("one-*.jsonl")
    good, before, unnoticed = path.read_bytes(), everything(vault), []
    lines = good.splitlines(keepends=True)
    tampered: list[tuple[str, list[bytes]]] = []
    for at in range(1, len(lines)):
        if at < len(lines) - 1:  # without its last line the file equals its own earlier state
            tampered.append((f"without line {at}", lines[:at] + lines[at + 1 :]))
        tampered.append((f"line {at} twice", lines[: at + 1] + lines[at:]))
        if at > 1:
            tampered.append((f"line {at} before", [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]))
    for what, now in tampered:
        path.write_bytes(b"".join(now))
        try:
            notices(vault, before)
        except AssertionError:
            unnoticed.append(what)
    path.write_bytes(good)

    assert len(tampered) > 10
    assert unnoticed == []
    assert everything(vault) == before


# --- what is set aside


def of_another(_: Row, other: Row) -> bytes:
    """Return the stored value of another entry."""
    return other.value


def forgery(one: Row, _: Row) -> bytes:
    """Return the value with some of its bytes replaced."""
    return one.value[:-9] + b"forged" + one.value[-3:]


def in_clear(_: Row, __: Row) -> bytes:
    """Return a plain text that was never encrypted."""
    return b'{"id":"forged","content":"forged"}'


def nothing(_: Row, __: Row) -> bytes:
    """Return an empty value."""
    return b""


def uncounted(session: Session) -> list[Entry]:
    """Return the session's entries without their token counts."""
    return [msgspec.structs.replace(entry, tokens=None) for entry in session.entries()]


def talked(vault: Vault) -> dict[Slot, Content]:
    """Make a session with all kinds of entries, an erased and a rewritten one, and a branch; return its earlier
    contents."""
    with vault.memory(FIRST) as memory:
        session = session_of(memory)
        for number in range(2):
            session.add_user_message(f"question {number} {WORD if number else 'of old'}")
            session.add_context(f"version {number}", name="file")
            session.add_tool_call("look", {}, call_id=f"call {number}")
            session.add_tool_result(None, "found", call_id=f"call {number}")
            session.add_assistant_message(f"answer {number}")
        session.add_user_message("to go")
        first = vault.contents()
        session.erase([11])
        session.fork("branch").add_user_message("another")
        rewritten(memory.store, KEY)
        session.add_tool_call("look", {}, call_id="open")
    return first


@pytest.mark.sampled
@pytest.mark.parametrize("how", [of_another, forgery, in_clear, nothing, None])
def test_a_changed_entry_is_reported_and_repaired(how: Callable[[Row, Row], bytes] | None) -> None:
    """A changed entry is reported, the rest is unchanged, and a repair ends it.

    That includes an erased or rewritten entry of which the earlier value was put back.
    """
    vault = Vault.of("memory", Path())
    first = talked(vault)
    with vault.memory(FIRST) as memory:
        good = {name: uncounted(session_of(memory, name)) for name in ("one", "branch")}
    began = vault.contents()
    entries = by_table(began, "entry")
    ((log, _),) = {(slot.key >> 32, 0) for slot in entries if slot.key & 0xFFFFFFFF == 1}
    rows = {slot.key & 0xFFFFFFFF: (slot, row) for slot, row in entries.items() if slot.key >> 32 == log}
    for seq in range(1, 13) if how is not None else (6, 11):
        slot, row = rows[seq]
        assert isinstance(row, Row)
        neighbour = rows[seq + 1 if seq < 12 else 1][1]
        assert isinstance(neighbour, Row)
        vault.restore(began)
        vault.put({slot: row._replace(value=how(row, neighbour)) if how is not None else first[slot]})

        with vault.memory(FIRST) as memory:
            session = session_of(memory)
            found = uncounted(session)
            assert [entry.seq for entry in found if entry.damaged] == [seq]
            assert [entry for entry in found if entry.seq != seq] == [one for one in good["one"] if one.seq != seq]
            assert "forged" not in repr((found, session.context().messages, session.export()))
            assert WORD not in repr((found, session.context().messages, session.export()))
            assert "to go" not in repr((found, session.export()))
            assert f"entry {seq} is damaged and cannot be read" in session.verify().problems
            session.add_context("version 3", name="file")
            assert session.repair().entries == 1

        with vault.memory(FIRST) as memory:
            for name, entries_then in good.items():
                session = session_of(memory, name)
                shared = {entry.seq: entry for entry in session.entries() if entry.seq <= len(entries_then)}
                gone = [at for at, entry in shared.items() if entry.text != entries_then[at - 1].text]
                assert gone in ([], [seq])
                assert session.verify().problems == ()
                assert session.context().messages


# --- items


def test_an_item_value_in_another_place_is_refused() -> None:
    """An item's value under another key or namespace is refused, and so is an old version once a newer was seen."""
    vault = Vault.of("memory", Path())
    with vault.memory(FIRST) as memory:
        drive(memory.store.put_item("default", "notes", "k", b"first", expires=8888888888888888))
        drive(memory.store.put_item("default", "notes", "l", b"second"))
        drive(memory.store.put_item("default", "other", "k", b"third"))
    there = vault.contents()
    one, two, three = (slot for slot in there if not is_clear(slot.place))
    for slot, other in ((one, two), (one, three), (two, three)):
        vault.put({slot: there[other]})
        with vault.memory(FIRST) as memory, pytest.raises(StoreCorrupt, match="the item"):
            drive(memory.store.list_items("default", slot.place.home))
        vault.put({slot: there[slot]})
    with vault.memory(FIRST) as memory:
        drive(memory.store.put_item("default", "notes", "k", b"later"))
        key = next(slot for slot, now in vault.contents().items() if there[slot] != now)
        vault.put({key: there[key]})
        with pytest.raises(StoreCorrupt, match="the item notes/k is an earlier version than before"):
            drive(memory.store.get_item("default", "notes", "k"))


# --- what cannot be noticed, and what it costs


def test_an_old_copy_of_a_whole_store_is_not_noticed() -> None:
    """An old copy of the whole store, and a session removed as a whole, cannot be noticed."""
    vault = Vault.of("memory", Path())
    with vault.memory(FIRST) as memory:
        session_of(memory).add_user_message("first")
        session_of(memory, "two").add_user_message("first")
    first = vault.contents()
    with vault.memory(FIRST) as memory:
        session_of(memory).add_user_message("second")

    vault.restore(first)
    with vault.memory(FIRST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["first"]
    vault.put({Slot(Place("default", "two", "session", "two")): None})
    with vault.memory(FIRST) as memory:
        assert [one.session for one in memory.sessions()] == ["one"]


def test_a_head_grows_by_a_few_bytes_for_each_contiguous_erasure() -> None:
    """A head grows by a few bytes for each contiguous erasure, however many entries that covers."""
    vault = Vault.of("memory", Path())

    def cold() -> int:
        heads = by_table(vault.contents(), "").values()
        return sum(len(one.cold) for one in heads if isinstance(one, PlaceHead))

    with vault.memory(FIRST) as memory:
        session = session_of(memory)
        session.add([{"role": "user", "content": "x"}] * 2_000)
        session.erase([2_000])
        before = cold()
        session.erase(list(range(1, 1_001)))
        assert cold() - before < 150
        session.erase(list(range(1_001, 2_001, 2)))
        assert cold() - before < 3 * 500
