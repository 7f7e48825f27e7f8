"""Every verb ends, with its promise kept, beside other writers that never pause."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forgetter_process import WORD
from marked_sessions import PLACES, opened
from palimpsest import Entry, EntryNotFound, Memory, Query, Redactor, Session, SessionNotFound
from palimpsest.log.entry import moment
from palimpsest.log.head import SessionKey
from palimpsest.stores import Store
from palimpsest.stores.encrypted.rotation import rotate_keys
from palimpsest.strategies import Summarize
from processes import PATIENCE, Process
from rival_writer import RivalWriter, adding, cutting
from sealed import BOTH, FIRST, address, below, key_ids
from writer import quarters

SCRIPT = Path(__file__).with_name("forgetter_process.py")
USER = "ann"
SECRET = "zq123secret"


def filled(memory: Memory, name: str = "one") -> Session:
    """Return a session with entries for every verb: of a user, covered ones, an expired one, and an open call."""
    session = memory.session(name, counter=quarters, auto_compact="off")
    talk = []
    for number in range(6):
        talk.append({"role": "user", "name": USER, "content": f"{number} to {WORD} " + "words " * 30})
        talk.append({"role": "assistant", "content": f"{number} about {SECRET} " + "words " * 30})
    for start in (0, 2):
        session.add(talk[start : start + 2 if start == 0 else None])
    session.compact(Summarize(interaction_keep=3))
    session.add_user_message("more")
    session.add_user_message("long over", expires_at=moment(1_000_000_000_000_000))
    session.add_tool_call("look", {}, call_id="c1")
    return session


def texts_of(session: Session) -> list[str]:
    """Return the texts of a session's entries that are no tombstones, rewound ones included."""
    return [entry.text for entry in session.entries(rewound=True) if not entry.erased]


def mentions(session: Session, word: str) -> bool:
    """Whether a word is in an entry, record or summary of the session."""
    texts = [*texts_of(session), str(session.history()), str(session.summaries(history=True))]
    return any(word in each for each in texts)


class Verb(NamedTuple):
    """A verb, and what must hold once it has returned."""

    act: Callable[[Memory, Session], Any]
    holds: Callable[[Memory, Session, Any], bool]


def exists(memory: Memory, name: str) -> bool:
    """Whether the session exists."""
    return any(info.session == name for info in memory.sessions())


def merged(memory: Memory, session: Session) -> Any:
    """Import the session's earlier state and more into it."""
    other = memory.session("other")
    other.add_user_message("new here")
    return memory.import_session(other.export(), session_id="one", on_conflict="merge")


def flushed(memory: Memory, _: Session) -> None:
    """End a turn of a session without an archive."""
    memory.session("one", counter=quarters, persistence="flush", archive=False, auto_compact="off").end_turn()


VERBS = {
    "erase a query": Verb(
        lambda _, session: session.erase(Query(text=WORD)),
        lambda _, session, done: not mentions(session, WORD) and done.entries == 6,
    ),
    "erase by a condition": Verb(
        lambda _, session: session.erase(Query(where=f"contains(message.content, '{WORD}')")),
        lambda _, session, done: not any(WORD in text for text in texts_of(session)) and done.entries == 6,
    ),
    "erase by number": Verb(
        lambda _, session: session.erase([1, 2]), lambda _, session, done: session.entry(1).erased and done.entries == 2
    ),
    "forget what matches": Verb(
        lambda memory, _: memory.forget(matches=WORD),
        lambda _, session, done: not mentions(session, WORD) and done.entries == 6,
    ),
    "forget a user": Verb(
        lambda memory, _: memory.forget(user=USER),
        lambda _, session, done: not mentions(session, WORD) and done.entries,
    ),
    "forget a session": Verb(
        lambda memory, _: memory.forget(session="one"),
        lambda memory, _, done: not exists(memory, "one") and done.sessions == ("one",),
    ),
    "forget a tenant": Verb(
        lambda memory, _: memory.forget(tenant="default"),
        lambda memory, _, done: memory.sessions() == [] and done.sessions == ("one",),
    ),
    "clear": Verb(
        lambda _, session: session.clear(),
        lambda _, session, done: not mentions(session, WORD) and done >= 15 and texts_of(session) == [],
    ),
    "delete": Verb(
        lambda memory, _: memory.delete_session("one"), lambda memory, _, done: done and not exists(memory, "one")
    ),
    "rewind": Verb(
        lambda _, session: session.rewind(session.entry(2)),
        lambda _, session, done: (
            [entry.seq for entry in session.entries()] == [1, 2]
            and session.history()[-1].detail["entries"] == done == session.stats().rewound_entries
        ),
    ),
    "fork": Verb(
        lambda _, session: session.fork("b"), lambda _, session, done: texts_of(done)[:2] == texts_of(session)[:2]
    ),
    "fork at": Verb(
        lambda _, session: session.fork("b", at=session.entry(2)), lambda _, session, done: len(texts_of(done)) == 2
    ),
    "compact": Verb(
        lambda _, session: session.compact(Summarize(interaction_keep=2)), lambda _, session, done: done.done
    ),
    "neuralyze": Verb(
        lambda _, session: session.compact("neuralyzer"),
        lambda _, session, done: done.done and session.entry(1).erased,
    ),
    "restore": Verb(
        lambda _, session: session.restore(), lambda _, session, done: done == 6 and session.summaries() == []
    ),
    "replace": Verb(
        lambda _, session: session.replace([{"role": "user", "content": "anew"}], seen=0),
        lambda _, session, done: done[0].text == "anew" and done[0].text in texts_of(session),
    ),
    "pin": Verb(lambda _, session: session.pin(3), lambda _, session, done: session.stats().pinned == 1),
    "resolve": Verb(
        lambda _, session: session.resolve("c1"), lambda _, session, done: session.stats().open_calls == ()
    ),
    "sweep": Verb(
        lambda memory, _: memory.sweep(), lambda _, session, done: "long over" not in texts_of(session) and done == 1
    ),
    "flush": Verb(flushed, lambda _, session, done: session.entry(1).erased),
    "scan": Verb(
        lambda memory, _: memory.scan({"redact_patterns": [SECRET]}, apply=True),
        lambda _, session, done: not mentions(session, SECRET) and done.remains == (),
    ),
    "import, merging": Verb(merged, lambda _, session, done: "new here" in texts_of(session)),
    "import, replacing": Verb(
        lambda memory, session: memory.import_session(session.export(), on_conflict="replace"),
        lambda _, session, done: len(texts_of(session)) == 15,
    ),
    "export": Verb(lambda _, session: session.export(), lambda _, session, done: len(done["entries"]) >= 15),
    "context": Verb(lambda _, session: session.context(max_tokens=300), lambda _, session, done: done.tokens <= 300),
}


WIDE_PLACES = ("sealed-memory", "sealed-file")
"""Encryption makes no difference here, so one of the three encrypted stores is enough for a usual run."""


@pytest.fixture(
    params=[pytest.param(place, marks=pytest.mark.wide) if place in WIDE_PLACES else place for place in PLACES]
)
def place(request: pytest.FixtureRequest) -> str:
    """Every kind of store, encrypted ones included."""
    return str(request.param)


@pytest.mark.sampled
@pytest.mark.parametrize("name", VERBS)
def test_every_verb_ends_beside_a_writer_before_each_of_its_commits(place: str, name: str, tmp_path: Path) -> None:
    """Each verb returns with its work done, although another writer adds before each of its commits."""
    with opened(place, tmp_path) as memory:
        session, verb = filled(memory), VERBS[name]
        RivalWriter(memory, adding)

        done = verb.act(memory, session)

        assert verb.holds(memory, session, done)
        assert not exists(memory, "one") or session.verify().problems == ()


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_ends_beside_twenty_cuts_in_a_row(name: str, tmp_path: Path) -> None:
    """Each verb returns with its work done, although another writer cuts before twenty of its commits."""
    with opened("memory", tmp_path) as memory:
        session, verb = filled(memory), VERBS[name]
        RivalWriter(memory, cutting, times=20)

        done = verb.act(memory, session)

        assert verb.holds(memory, session, done)
        assert not exists(memory, "one") or session.verify().problems == ()


def test_a_scan_with_pseudonyms_ends_beside_other_writers(place: str, tmp_path: Path) -> None:
    """A scan with pseudonyms ends beside other writers without starting over each time."""
    with opened(place, tmp_path) as memory:
        session = memory.session("one")
        session.add_user_message("to ann@example.com")
        RivalWriter(memory, cutting, times=20)

        memory.scan(Redactor({"recognisers": {"email": "pseudonym"}}, key=b"k" * 32), apply=True)

        assert texts_of(session)[0] == "to [EMAIL_1]"


ERASURES: dict[str, Callable[[Memory, Session], Any]] = {
    "erase": lambda _, session: session.erase(Query(text=WORD)),
    "forget": lambda memory, _: memory.forget(matches=WORD),
    "forget the session": lambda memory, _: memory.forget(session="one"),
    "scan": lambda memory, _: memory.scan({"redact_patterns": [WORD]}, session="one", apply=True),
}


@pytest.mark.parametrize("name", ERASURES)
def test_an_erasure_reaches_a_branch_made_before_its_commit(place: str, name: str, tmp_path: Path) -> None:
    """An erasure also reaches a branch made right before its commit."""
    with opened(place, tmp_path) as memory:
        session = memory.session("one")
        session.add_user_message(f"to {WORD}")
        session.fork("older").add_user_message("its own")
        session.add_user_message(f"again {WORD}")

        async def forking(store: Store, key: SessionKey, number: int) -> None:
            head = await store.head(key)
            assert head is not None
            await store.fork(key, f"{key.session}+{number}", head, expect_epoch=head.epoch)

        RivalWriter(memory, forking, times=4)

        ERASURES[name](memory, session)

        assert len(memory.sessions()) > 2
        assert [info.session for info in memory.sessions() if mentions(memory.session(info.session), WORD)] == []
        assert memory.session("older").entries()[-1].text == "its own"


def test_an_erasure_reaches_a_branchs_branch_made_meanwhile(place: str, tmp_path: Path) -> None:
    """An erasure also reaches the records of a branch's branch made meanwhile."""
    with opened(place, tmp_path) as memory:
        session = memory.session("one")
        session.add_user_message(f"to {WORD}")
        for name in ("a", "b"):
            branch = session.fork(name)
            branch.add_user_message("its own")
            branch.erase([2], reason=f"about {WORD}")

        async def forking(store: Store, key: SessionKey, number: int) -> None:
            other = key._replace(session="b")
            head = await store.head(other)
            assert head is not None
            if key.session == "a":
                await store.fork(other, f"c{number}", head, expect_epoch=head.epoch)

        RivalWriter(memory, forking, times=4)

        session.erase(Query(text=WORD))

        names = [info.session for info in memory.sessions()]
        assert len(names) > 3
        assert [name for name in names if mentions(memory.session(name), WORD)] == []


@pytest.mark.parametrize("after", ["nothing", "another"])
def test_a_fork_of_a_session_deleted_meanwhile_makes_no_branch(place: str, after: str, tmp_path: Path) -> None:
    """A fork of a session deleted meanwhile makes no branch; of a successor it makes a whole one."""
    with opened(place, tmp_path) as memory:
        session = memory.session("one")
        session.add([{"role": "user", "content": "first"}, {"role": "assistant", "content": "second"}])

        async def deleting(store: Store, key: SessionKey, _: int) -> None:
            await store.delete(key)
            if after == "another":
                await store.append(key, [Entry(content="only")])

        RivalWriter(memory, deleting, times=1)

        if after == "nothing":
            with pytest.raises(SessionNotFound):
                session.fork("branch")
            assert memory.sessions() == []
        else:
            assert texts_of(session.fork("branch")) == ["only"]
            assert memory.session("branch").verify().problems == ()


@pytest.mark.parametrize("after", ["nothing", "another"])
def test_pinning_an_entry_of_a_session_deleted_meanwhile_raises(place: str, after: str, tmp_path: Path) -> None:
    """An entry whose session is deleted right before it is pinned is not found, and no other is pinned in its place."""
    with opened(place, tmp_path) as memory:
        session = memory.session("one")
        pinned = session.add_user_message("to be pinned")

        async def deleting(store: Store, key: SessionKey, _: int) -> None:
            await store.delete(key)
            if after == "another":
                await store.append(key, [Entry(content="only")])

        RivalWriter(memory, deleting, times=1)

        with pytest.raises(EntryNotFound):
            session.pin(pinned.id)

        assert [info.entries for info in memory.sessions()] == ([] if after == "nothing" else [1])
        assert session.stats().pinned == 0


@pytest.mark.parametrize("what", ["erase", "neuralyze"])
def test_a_strategy_erases_no_entry_pinned_meanwhile(place: str, what: str, tmp_path: Path) -> None:
    """A strategy does not erase an entry that is pinned meanwhile; erasing it by id still does."""
    with opened(place, tmp_path) as memory:
        session = filled(memory)

        async def pinning(_: Store, __: SessionKey, ___: int) -> None:
            await memory._core.session("one").pin(3)

        RivalWriter(memory, pinning, times=1)

        VERBS[what].act(memory, session) if what == "neuralyze" else session.erase([1, 3])

        assert session.entry(1).erased
        assert session.entry(3).erased == (what == "erase")
        assert session.verify().problems == ()


def test_an_erasure_does_not_touch_a_session_that_replaced_its_target(place: str, tmp_path: Path) -> None:
    """An erasure does not touch the entries of a session that replaced its target meanwhile."""
    with opened(place, tmp_path) as memory:
        session, other = memory.session("one"), memory.session("other")
        session.add_user_message(f"to {WORD}")
        other.add_user_message("somebody else's")
        export = other.export()

        async def replacing(store: Store, key: SessionKey, _: int) -> None:
            await memory._core.import_session(export, session_id=key.session, on_conflict="replace")

        RivalWriter(memory, replacing, times=1)

        assert session.erase(Query(text=WORD)).entries == 0
        assert texts_of(session) == ["somebody else's"]


@pytest.mark.parametrize("verb", ["erase a query", "clear", "rewind", "compact", "neuralyze", "scan"])
def test_no_verb_recreates_a_session_deleted_before_its_commit(place: str, verb: str, tmp_path: Path) -> None:
    """No verb recreates a session that is deleted right before its commit."""
    with opened(place, tmp_path) as memory:
        session = filled(memory)

        async def deleting(store: Store, key: SessionKey, _: int) -> None:
            await store.delete(key)

        RivalWriter(memory, deleting, times=1)

        try:
            VERBS[verb].act(memory, session)
        except EntryNotFound:
            assert verb == "rewind"

        assert memory.sessions() == []


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_key_rotation_ends_beside_a_writer_before_each_of_its_commits(kind: str, tmp_path: Path) -> None:
    """A rotation ends, and everything is under the new key."""
    with Memory.open(address(kind, tmp_path), encryption=FIRST) as memory:
        filled(memory)
    with Memory.open(address(kind, tmp_path), encryption=BOTH) as memory:
        RivalWriter(memory, adding)

        assert rotate_keys(memory).key_id == "new"

    assert key_ids(address(kind, tmp_path), BOTH) == {"new"}


# --- between the reads of an encrypted store

READS: dict[str, Callable[[Session], Any]] = {
    "context": lambda session: session.context(max_tokens=300),
    "entries": lambda session: session.entries(),
    "entry": lambda session: session.entry(3),
    "export": lambda session: session.export(),
    "history": lambda session: session.history(),
    "interactions": lambda session: session.interactions(),
    "stats": lambda session: session.stats(),
    "summaries": lambda session: session.summaries(history=True),
    "verify": lambda session: session.verify(),
}


@pytest.fixture(params=["sqlite", "file"])
def memory_beside_adds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Memory, Session]]:
    """A memory over an encrypted store, and a session to which another memory adds before each read and write."""
    where = address(request.param, tmp_path)
    with Memory.open(where, encryption=FIRST) as memory, Memory.open(where, encryption=FIRST) as other:
        session, other_session = filled(memory), other.session("one")
        store = memory.store

        def adding_first(verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def late(*arguments: Any, **options: Any) -> Any:
                other_session.add_user_message("meanwhile")
                return await verb(*arguments, **options)

            return late

        for verb in ("head", "read", "fetch", "fetch_with_head", "records", "commit", "append", "branches"):
            setattr(store, verb, adding_first(getattr(store, verb)))
        stored = below(store)
        stored.look = adding_first(stored.look)
        yield memory, session


@pytest.mark.parametrize("name", READS)
def test_entries_added_between_two_reads_are_not_taken_for_a_rollback(name: str, memory_beside_adds: Any) -> None:
    """No read of an encrypted store mistakes entries added meanwhile for a head that was put back."""
    assert READS[name](memory_beside_adds[1]) is not None


SPARING_BRANCHES = {"flush"}
"""The verbs that destroy nothing that a branch shares. They do so when they are called again without that branch."""

FEW_READS = {
    "replace", "scan", "clear", "delete", "fork", "fork at", "forget a session", "forget a tenant", "import, merging",
    "import, replacing",
}  # fmt: skip
"""Verbs that read little before they write: they succeed between two writes of others without a fallback."""


@pytest.fixture(
    params=["sqlite", "file", *(pytest.param(f"{kind} sealed", marks=pytest.mark.wide) for kind in ("sqlite", "file"))]
)
def two_memories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Memory, Memory, Any]]:
    """Two memories of one store, and the backend below the first one."""
    kind, _, sealed = request.param.partition(" ")
    options: dict[str, Any] = {"encryption": FIRST} if sealed else {}
    where = address(kind, tmp_path)
    with Memory.open(where, **options) as memory, Memory.open(where, **options) as other:
        yield memory, other, below(memory.store) if sealed else memory.store.backend


WRITES = ("erase a query", "erase by number", "forget what matches", "pin", "compact", "resolve", "scan")


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRITES)
def test_every_verb_ends_beside_adds_between_its_reads(name: str, memory_beside_adds: Any) -> None:
    """Every verb ends although another memory adds between its reads."""
    memory, session = memory_beside_adds

    done = VERBS[name].act(memory, session)

    assert VERBS[name].holds(memory, session, done)


@pytest.mark.parametrize("name", [name for name in VERBS if name not in FEW_READS])
def test_every_verb_ends_beside_adds_before_each_store_write(name: str, two_memories: Any) -> None:
    """Each verb ends although another memory adds before each write of the backend."""
    memory, other, stored = two_memories
    session, other_session = filled(memory), other.session("one")
    write = stored.write

    async def adding_first(batches: Any, *arguments: Any, **options: Any) -> Any:
        other_session.add_user_message("meanwhile")
        return await write(batches, *arguments, **options)

    stored.write = adding_first
    done = VERBS[name].act(memory, session)
    stored.write = write

    assert VERBS[name].holds(memory, session, done)
    assert not exists(memory, "one") or session.verify().problems == ()


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in VERBS if name not in FEW_READS])
def test_every_verb_ends_beside_forks_before_each_store_write(name: str, two_memories: Any) -> None:
    """Each verb ends although another memory adds and forks before each write of the backend; branches stay sound."""
    memory, other, stored = two_memories
    session, other_session = filled(memory), other.session("one")
    write, number = stored.write, 0

    async def adding_first(batches: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal number
        number += 1
        assert number < PATIENCE, "the verb starts again for ever"
        other_session.add_user_message("meanwhile")
        other_session.fork(f"branch {number}")
        return await write(batches, *arguments, **options)

    stored.write = adding_first
    done = VERBS[name].act(memory, session)
    stored.write = write

    for info in memory.sessions():
        assert memory.session(info.session).verify().problems == ()
    if name in SPARING_BRANCHES:
        for branch in range(1, number + 1):
            assert memory.session(f"branch {branch}").entry(1).text
            memory.delete_session(f"branch {branch}")
        done = VERBS[name].act(memory, session)
    assert VERBS[name].holds(memory, session, done)


# --- beside a process


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "encrypted"])
def test_every_verb_ends_beside_a_process_that_never_pauses(kind: str, sealed: bool, tmp_path: Path) -> None:
    """Another process adds to the session as fast as it can, until it is killed when everything is done."""
    place = f"sealed-{kind}" if sealed else kind
    with opened(place, tmp_path) as memory:
        session = filled(memory)
        session.fork("branch")

        with Process("pester", address(kind, tmp_path), int(sealed), script=SCRIPT) as other:
            assert other.hear() == "going"
            assert session.erase(Query(text=WORD)).entries == 6
            assert memory.forget(matches=SECRET).remains == () or kind == "sqlite"
            session.rewind(session.entry(2))
            gone = session.stats().rewound_entries
            assert memory.forget(user=USER).entries == 0
            until = time.monotonic() + PATIENCE
            # Earlier entries are hidden or erased, those of the other process are not.
            while len(session.entries()) < 4:
                assert time.monotonic() < until, "the other adds nothing"
            assert session.clear() >= 2
            other.kill()

        assert gone
        assert not mentions(session, WORD)
        assert not mentions(memory.session("branch"), SECRET)
        assert session.verify().problems == ()


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("sealed", [False, pytest.param(True, marks=pytest.mark.wide)], ids=["plain", "encrypted"])
def test_a_sweep_ends_beside_a_process_that_makes_branches(kind: str, sealed: bool, tmp_path: Path) -> None:
    """A sweep erases all that was due at its start from every branch, although more keeps coming."""
    place = f"sealed-{kind}" if sealed else kind
    with opened(place, tmp_path) as memory:
        session = filled(memory)
        session.add([{"role": "user", "content": WORD}] * 300)
        with Process("branch", address(kind, tmp_path), int(sealed), script=SCRIPT) as other:
            assert other.hear() == "going"
            before = len(session.entries())
            assert memory.sweep() >= 100
            assert session.erase(Query(text=WORD)).entries >= 300
            assert memory.delete_session("branch 1")
            assert session.fork("mine").entries()
            session.rewind(session.entry(2))
            other.kill()

        for name in ("one", "branch 2", "mine"):
            branch = memory.session(name)
            assert not mentions(branch, WORD)
            assert not any(entry.seq <= before and entry.text == "and on" for entry in branch.entries(rewound=True))
            assert branch.verify().problems == ()
