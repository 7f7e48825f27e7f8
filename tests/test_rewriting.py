"""Stores that rewrite: no byte of replaced text stays, and nothing that others write meanwhile is lost."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import on_servers
from log_rules.rewriting import Saying
from palimpsest import AsyncMemory, Entry, Keys, Memory
from palimpsest.log.change import Change
from palimpsest.log.entry import digest, now_us
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Dump, Store
from palimpsest.stores.backend import Backend
from palimpsest.stores.encrypted.rotation import rotate
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.opening import unlocked
from palimpsest.types import Record
from processes import Process, together
from sealed import (
    BOTH,
    FIRST,
    KEY,
    KINDS,
    LAST,
    RING,
    address,
    below,
    bytes_of,
    key_ids,
    relaxed,
    rows_of,
    session_of,
    stored,
)
from vaults import key_ids_below
from writer import ENTRIES_A_TURN, turn

SCRIPT = Path(__file__).with_name("sealed_process.py")
WORD, STUB = "sesame1f", "[REDACTED]"
ALL = range(1, 100)


class Redacting(Saying):
    """A rewrite that removes a word from entries, records, items and texts in the head."""

    def __init__(self) -> None:
        super().__init__(WORD, STUB)

    def head(self, head: Head) -> Head:
        contexts = {name.replace(WORD, STUB): (seq, digest("")) for name, (seq, _) in head.contexts.items()}
        return super().head(replace(head, contexts=contexts))

    def entry(self, entry: Entry) -> Entry:
        entry = super().entry(entry)
        return entry if WORD not in (entry.name or "") else replace(entry, name=STUB)

    def record(self, record: Record) -> Record:
        reason = record.reason.replace(WORD, STUB)
        return super().record(record if reason == record.reason else replace(record, reason=reason))


def rewritten(store: Store, key: SessionKey) -> int:
    """Rewrite the session; return how many entries and records were rewritten."""
    return drive(store.rewrite(key, Redacting(), [entry.seq for entry in drive(store.read(key))]))


def as_in_a_file(kind: str, value: bytes) -> bytes:
    """Return a stored piece as it stands in a file."""
    return base64.b64encode(value)[24:84] if kind == "file" else value[14:74]


@pytest.mark.sampled
@pytest.mark.parametrize("keys", [None, FIRST], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", KINDS)
def test_replaced_text_is_in_no_byte(kind: str, keys: Keys | None, tmp_path: Path) -> None:
    """Small and large texts, names, reasons, details and items: neither they nor their ciphertexts are in a file."""
    with Memory.open(address(kind, tmp_path), encryption=keys) as memory:
        session = session_of(memory)
        session.add_context(f"{WORD} in a file", name=f"{WORD}.txt")
        for number in range(400):
            session.add_user_message(f"{number} says {WORD} \n\U0001f511 " * (1 + number % 40))
        session.add([{"role": "user", "content": f"{WORD} large " * 9_000}])
        session.erase([session.add_user_message("x").id], reason=WORD)
        store = memory.store
        drive(store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,), detail={"why": WORD})))
        drive(store.put_item("default", "notes", "k", WORD.encode()))
        secrets = [WORD.encode()]
        if keys is not None:
            items = [one.head.cold for one in drive(below(store).places("default", "item/notes"))]
            secrets = [as_in_a_file(kind, value) for value in (*stored(store)[:-1], *items)]
            assert len(secrets) == 403
        before = bytes_of(tmp_path)
        assert [secret for secret in secrets if secret not in before] == []

        assert rewritten(store, KEY) == 404
        drive(store.clear_items("default"))
        assert drive(store.scrub()).remains == ()

        while_open = bytes_of(tmp_path)
        assert [secret for secret in secrets if secret in while_open] == []
        assert not any(WORD in repr(entry) for entry in drive(store.read(KEY)))
        assert WORD not in repr([drive(store.head(KEY)), drive(store.records(KEY))])
        assert drive(store.get_item("default", "notes", "k")) is None
        assert rewritten(store, KEY) == 0
    after = bytes_of(tmp_path)
    assert [secret for secret in secrets if secret in after] == []


@pytest.mark.parametrize("kind", KINDS)
def test_large_content_stays_while_an_entry_holds_it(kind: str, tmp_path: Path) -> None:
    """A content is gone with the last entry that held it, of whatever session, and not before."""
    large = f"{WORD} large " * 9_000
    with Memory.open(address(kind, tmp_path)) as memory:
        for name in ("one", "two"):
            session_of(memory, name).add_user_message(large)
        rewritten(memory.store, KEY)
        assert WORD.encode() in bytes_of(tmp_path)
        assert session_of(memory, "two").entries()[0].text == large

        rewritten(memory.store, KEY._replace(session="two"))
        drive(memory.store.scrub())
        assert WORD.encode() not in bytes_of(tmp_path)


def test_a_rewrite_gets_plain_rows_and_encrypts_its_results(tmp_path: Path) -> None:
    """A rewrite gets heads, entries and records decrypted, and its results are encrypted with the current key."""
    seen: list[object] = []

    class Looking(Redacting):
        def head(self, head: Head) -> Head:
            seen.append((sorted(head.contexts), [call.name for call in head.calls], head.forked_from))
            return super().head(head)

    with Memory.open(tmp_path / "a.db", encryption=RING) as memory:
        session = session_of(memory)
        session.add_context("text", name="notes.txt")
        session.add_user_message(WORD)
        session.add_tool_call("look", {}, call_id="1")
        session.fork("branch").add_user_message(WORD)
    with Memory.open(tmp_path / "a.db", encryption=BOTH) as memory:
        store = memory.store
        assert drive(store.rewrite(KEY._replace(session="branch"), Looking(), ALL)) == 2
        under = [key_of(row.value) for row in rows_of(store)]
        session_of(memory, "branch").add_tool_result("look", "found")

        assert [entry.text for entry in session_of(memory, "branch").entries()][1::2] == [STUB, STUB]
        assert session_of(memory).entries()[1].text == STUB  # they share that row
        assert under == ["old", "new", "old", "new"]
        assert session_of(memory, "branch").entries()[-1].answers == 3
    assert seen == [(["notes.txt"], ["look"], ("one", 3))]


def test_a_named_context_is_recognised_by_the_rewritten_head(tmp_path: Path) -> None:
    """A named context is recognised by the digest in the rewritten head, in this process and the next."""

    class Renaming(Redacting):
        def head(self, head: Head) -> Head:
            ((seq, _),) = head.contexts.values()
            return replace(head, revision=head.revision + 1, contexts={"new.txt": (seq, digest(STUB))})

        def entry(self, entry: Entry) -> Entry:
            return replace(entry, content=STUB, name="new.txt")

    with Memory.open(tmp_path / "a.db", encryption=FIRST) as memory:
        session_of(memory).add_context(WORD, name="old.txt")
        drive(memory.store.rewrite(KEY, Renaming(), ALL))
        session_of(memory).add_context(STUB, name="new.txt")
        assert len(session_of(memory).entries()) == 1
    with Memory.open(tmp_path / "a.db", encryption=FIRST) as memory:
        session_of(memory).add_context(STUB, name="new.txt")
        assert len(session_of(memory).entries()) == 1
        session_of(memory).add_context("other", name="new.txt")
        assert len(session_of(memory).entries()) == 2


def opened_over(below: Backend, keys: Keys = FIRST) -> Store:
    """Return an encrypted store over this backend."""
    return drive(unlocked(Store(below), keys, now_us))


# --- while others go on


class Interrupted(MemoryBackend):
    """A backend that runs something between the look at a session and the step that rewrites it."""

    def __init__(self) -> None:
        super().__init__(Inline())
        self.meanwhile: list = []

    async def write(self, batches, at, *, lasting=True, again=None):
        if self.meanwhile and any(step.destroys for batch in batches for step in batch):
            await self.meanwhile.pop()()
        return await super().write(batches, at, lasting=lasting)


def test_an_overtaken_rewrite_starts_over() -> None:
    """A commit between the look and the step is in the head that is rewritten, and in what the session says."""
    below = Interrupted()
    store, other = opened_over(below), opened_over(below)
    drive(store.append(KEY, [Entry(content=WORD)]))
    below.meanwhile.append(lambda: other.append(KEY, [Entry(kind="context", name="c", content=WORD)]))

    drive(store.rewrite(KEY, Saying(WORD, STUB), ALL))

    assert [entry.text for entry in drive(store.read(KEY))] == [STUB, STUB]
    head = drive(store.head(KEY))
    assert (head.revision, list(head.contexts), head.next_seq) == (3, ["c"], 3)


@pytest.mark.parametrize("seqs", [(1, 2), (2,)])
def test_a_branch_replaced_during_a_rewrite_is_decrypted_as_its_own(seqs: Sequence[int]) -> None:
    """A session that replaces a branch during a rewrite is decrypted as its own, without a report of damage."""
    below = Interrupted()
    store, other = opened_over(below), opened_over(below)
    drive(store.append(KEY, [Entry(content=WORD), Entry(content=WORD)]))
    head, branch = drive(store.head(KEY)), KEY._replace(session="branch")
    drive(store.fork(KEY, "branch", replace(head, forked_from=("one", 1)), expect_epoch=0))
    dump = Dump(head=head, entries=tuple(drive(store.read(KEY))), records=())
    below.meanwhile.append(lambda: other.load(branch, dump, replace=True))

    assert drive(store.rewrite(branch, Saying(WORD, STUB), seqs)) == len(seqs)
    assert [entry.text for entry in drive(store.read(branch))] == [STUB if seq in seqs else WORD for seq in (1, 2)]


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize("kind", [*KINDS, *on_servers.SERVERS])
def test_writers_lose_nothing_beside_rewrites_and_rotations(kind: str, tmp_path: Path) -> None:
    """Two processes write all the time, one is rewritten under their hands, then keys change: nothing is lost."""
    where = on_servers.KINDS[kind].address_of("rotation") if kind in on_servers.KINDS else address(kind, tmp_path)
    with Memory.open(where, encryption=FIRST, **relaxed(where)) as memory:
        for number in range(20):
            session_of(memory, "shared").add(turn(f"before.{number}"))
            session_of(memory, "shared").add_user_message(WORD)
    shared = KEY._replace(session="shared")
    writers = [Process("write", where, name, 2, script=SCRIPT) for name in ("one", "two")]
    with writers[0], writers[1], Memory.open(where, encryption=RING, **relaxed(where)) as memory:
        for writer in writers:
            assert writer.hear() == "ready"
            writer.tell()
        acknowledged = [writer.hear() for writer in writers]
        assert rewritten(memory.store, shared) == 20
        for number in range(5):
            session_of(memory, "shared").add_user_message(WORD)
            acknowledged += [writer.hear() for writer in writers]
            assert rewritten(memory.store, shared) == 1, number
        together([Process("rotate", where, script=SCRIPT)])
        session_of(memory, "shared").add_user_message(WORD)
        assert rewritten(memory.store, shared) == 1
        for writer in writers:
            writer.tell("stop")
        acknowledged += [said for writer in writers for said in writer.end()]

    assert key_ids(where, LAST) == {"new"}
    labels = [label for session, label in acknowledged if session == "shared"]
    with Memory.open(where, encryption=LAST) as memory:
        entries = session_of(memory, "shared").entries()
    assert sum(entry.text == STUB for entry in entries) == 26
    turns = [*labels, *(f"before.{number}" for number in range(20))]
    assert [entry.seq for entry in entries] == list(range(1, len(turns) * ENTRIES_A_TURN + 27))
    for begins in ("question", "left", "right", "answer"):
        said = [entry.text.split(" ")[1] for entry in entries if entry.text.startswith(f"{begins} ")]
        assert sorted(said) == sorted(turns)


def test_a_successor_with_the_same_revision_is_written_under_the_new_key() -> None:
    """A writer that has seen an earlier session of the name looks at the mark again, and takes the new key."""
    below = MemoryBackend(Inline())
    stale, other = opened_over(below, RING), opened_over(below, BOTH)
    drive(stale.append(KEY, [Entry(content="a")]))
    drive(rotate(other))
    drive(other.delete(KEY))
    drive(other.append(KEY, [Entry(content="b")]))

    drive(stale.append(KEY, [Entry(content="c")]))

    assert [key_of(value) for value in stored(stale)] == ["new", "new"]


def test_async_memory_rewrites_and_rotates_while_tasks_add(tmp_path: Path) -> None:
    """In an `AsyncMemory` rewrites and rotations are awaited while tasks keep adding."""

    async def work() -> list[str]:
        async with AsyncMemory.open(tmp_path / "a.db", encryption=BOTH) as memory:
            session, store = memory.session(KEY.session), memory.store
            adding = [session.add_user_message(WORD) for _ in range(20)]
            done, *_ = await asyncio.gather(rotate(store), store.rewrite(KEY, Saying(WORD, STUB), ALL), *adding)
            assert done.key_id == "new"
            await store.rewrite(KEY, Saying(WORD, STUB), ALL)
            return [entry.text for entry in await session.entries()]

    with Memory.open(tmp_path / "a.db", encryption=FIRST) as memory:
        session_of(memory).add_user_message(WORD)
    assert asyncio.run(work()) == [STUB] * 21
    assert key_ids(f"sqlite:///{tmp_path}/a.db", LAST) == {"new"}


def test_a_rewrite_overtaken_by_a_rotation_uses_the_new_key() -> None:
    """A rewrite that a rotation overtakes is encrypted again under the new key."""
    below = Interrupted()
    store, other = opened_over(below, RING), opened_over(below, BOTH)
    drive(store.append(KEY, [Entry(content=WORD), Entry(content="b")]))
    drive(store.put_item("t", "n", "k", WORD.encode()))

    below.meanwhile.append(lambda: rotate(other))
    drive(store.rewrite(KEY, Saying(WORD, STUB), ALL))

    assert key_ids_below(below) == {"new"}
    assert [entry.text for entry in drive(store.read(KEY))] == [STUB, "b"]
