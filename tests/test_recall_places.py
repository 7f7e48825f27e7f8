"""Where a search index is kept and for which store, and that a search finds the same over every store."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import mongostore
import postgresstore
import redisstore
from palimpsest import AsyncMemory, ConfigError, Keys, Memory
from palimpsest.recall.sqlite import index as fts
from recall_helpers import index_bytes, marks, place_of, texts, traces
from writer import quarters

SERVERS = {"mongodb": mongostore.address_of, "redis": redisstore.address_of}


@pytest.fixture(params=["memory", "sqlite", *SERVERS])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store whose index may be in a file that the option names."""
    if request.param == "memory":
        return "memory://"
    return SERVERS[request.param]("places") if request.param in SERVERS else f"sqlite:///{tmp_path}/log.db"


def said(memory: Memory, session: str, *words: str) -> None:
    """Add an entry of each word to a session."""
    for word in words:
        memory.session(session, counter=quarters).add_user_message(f"this is about {word}")


def finds(memory: Memory, word: str) -> bool:
    """Whether an entry with this word is found."""
    return any(word in text for text in texts(memory, word))


# --- a file that is given


@pytest.mark.sampled
def test_an_index_in_a_given_file_is_used_by_the_next_process(tmp_path: Path, address: str) -> None:
    """An index in a given file is used by the next process, which also finds what others added since."""
    path = tmp_path / "index"
    with Memory.open(address, recall_index=path) as memory:
        said(memory, "one", "cormorants")
        assert finds(memory, "cormorants")
        if address == "memory://":
            return
    before = path.read_bytes()[:16]
    assert before == b"SQLite format 3\x00"

    with Memory.open(address) as other:
        said(other, "two", "pelicans")
    with Memory.open(address, recall_index=str(path)) as again:
        assert finds(again, "cormorants")
        assert finds(again, "pelicans")
        assert [name for name in again.derivers() if name.startswith("palimpsest.recall:")]


def test_opening_an_index_twice_keeps_its_locks(tmp_path: Path) -> None:
    """Opening an index file twice keeps its locks, so that a visitor does not remove its journal."""
    address, path = f"sqlite:///{tmp_path}/log.db", tmp_path / "index"
    with Memory.open(address, recall_index=path) as memory:
        said(memory, "one", "cormorants")
        assert finds(memory, "cormorants")
        with Memory.open(address, recall_index=path) as other:
            assert other.sessions()
            visit = (
                "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT 1 FROM meta'); db.close()"
            )
            assert subprocess.run([sys.executable, "-c", visit, path], check=False).returncode == 0
            assert path.with_name("index-wal").exists()


def test_a_given_index_file_of_another_store_is_emptied(tmp_path: Path, address: str) -> None:
    """If the given file holds another store's index, that is emptied: its words are neither found nor in the file."""
    path = tmp_path / "index"
    (word, own) = marks("another", 2)
    with Memory.open(f"sqlite:///{tmp_path}/other.db", recall_index=path) as other:
        said(other, "one", word)
        assert finds(other, word)

    with Memory.open(address, recall_index=path) as memory:
        said(memory, "one", own)
        assert finds(memory, own)
        assert not finds(memory, word)
        memory.vacuum()
    assert not traces([word], path.read_bytes())

    with Memory.open(f"sqlite:///{tmp_path}/other.db", recall_index=path) as other:
        assert finds(other, word)


@pytest.mark.parametrize("how", ["erase", "forget"])
def test_an_erasure_without_the_index_file_leaves_a_note(tmp_path: Path, how: str) -> None:
    """An erasure on a machine without the index file reports what remains; the next to open the file removes it."""
    path, address = tmp_path / "index", redisstore.address_of("places")
    gone, kept = marks("elsewhere", 2)
    with Memory.open(address, recall_index=path) as memory:
        said(memory, "one", gone)
        said(memory, "two", kept)
        assert finds(memory, gone)

    with Memory.open(address) as elsewhere:
        session = elsewhere.session("one")
        done = (
            session.erase([one.id for one in session.entries()]) if how == "erase" else elsewhere.forget(session="one")
        )
        assert any("palimpsest.recall:" in told for told in done.remains), done

    with Memory.open(address, recall_index=path) as memory:
        assert finds(memory, kept)
        assert not finds(memory, gone)
        memory.vacuum()
    assert not traces([gone], path.read_bytes())


def test_an_erasure_reaches_a_given_index_file_before_any_search(tmp_path: Path) -> None:
    """An erasure reaches a given index file even if this process has not searched yet."""
    path, address = tmp_path / "index", redisstore.address_of("places")
    (gone,) = marks("first", 1)
    with Memory.open(address, recall_index=path) as memory:
        said(memory, "one", gone)
        assert finds(memory, gone)

    with Memory.open(address, recall_index=path) as memory:
        session = memory.session("one")
        done = session.erase([one.id for one in session.entries()])
        assert not any("palimpsest.recall" in told for told in done.remains), done
    assert not traces([gone], path.read_bytes())


def test_recall_index_is_refused_for_an_encrypted_store(tmp_path: Path) -> None:
    """`recall_index` is refused for an encrypted store, since an index holds words in plain text."""
    keys = Keys({"k": b"\x01" * 32})
    (word,) = marks("sealed", 1)
    with pytest.raises(ConfigError, match="recall_index"):
        Memory.open(f"sqlite:///{tmp_path}/log.db", encryption=keys, recall_index=tmp_path / "index")

    with Memory.open(f"sqlite:///{tmp_path}/log.db", encryption=keys) as memory:
        said(memory, "one", word)
        assert finds(memory, word)
    assert not traces([word], index_bytes("sqlite", tmp_path))
    assert not [file.name for file in tmp_path.iterdir() if "recall" in file.name or file.name == "index"]


@pytest.mark.parametrize("given", ["", " ", 5, b"index", "a\x00b"])
def test_a_recall_index_that_is_no_path_is_refused(given: Any) -> None:
    """A `recall_index` that is no path is refused by the option's name."""
    with pytest.raises(ConfigError, match="recall_index"):
        AsyncMemory.open("memory://", recall_index=given)


def test_a_recall_index_that_names_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """A `recall_index` that names another kind of file, even a store, is refused, and the file stays as it is."""
    text, database, store = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "log.db"
    text.write_text("not to be lost")
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE precious(a)")
    Memory.open(store).close()

    for path in (text, database, store, tmp_path):
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(ConfigError, match="recall_index"):
            Memory.open(store, recall_index=path)
        assert (path.read_bytes() if path.is_file() else None) == before


# --- a store that was replaced


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("opened_since", [True, False])
def test_a_search_after_a_restored_backup_finds_exactly_its_entries(
    tmp_path: Path, kind: str, opened_since: bool
) -> None:
    """After a backup is restored, exactly its entries and later ones are found, although the index had seen others.

    This also holds if the store grew beyond the backup before anybody searched, if the index was opened since the copy.
    """
    store, backup = tmp_path / ("log.db" if kind == "sqlite" else "logs"), tmp_path / "backup"
    address = place_of(kind, tmp_path)
    with Memory.open(address) as memory:
        said(memory, "one", "pelicans")
        assert finds(memory, "pelicans")
        if not opened_since:
            copied(store, backup)
            said(memory, "one", *(f"gone{n}" for n in range(4)))
            assert finds(memory, "gone3")
    if opened_since:
        copied(store, backup)
        with Memory.open(address) as memory:
            said(memory, "one", *(f"gone{n}" for n in range(4)))
            said(memory, "three", "terns")
            assert finds(memory, "gone3")

    copied(backup, store)

    with Memory.open(address) as memory:
        said(memory, "one", *(f"anew{n}" for n in range(4 if opened_since else 2)))
        for n in range(9 if opened_since else 0):
            said(memory, f"later {n}", "petrels")
    with Memory.open(address) as memory:
        assert finds(memory, "anew0")
        assert finds(memory, "anew1")
        assert finds(memory, "pelicans")
        assert not finds(memory, "gone3")
        assert not finds(memory, "terns")


def copied(one: Path, other: Path) -> None:
    """Copy a store, replacing one that may be there."""
    for old in other.parent.glob(f"{other.name}-*"):
        old.unlink()
    if one.is_dir():
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(one, other)
        return
    with closing(sqlite3.connect(one)) as source, closing(sqlite3.connect(f"{other}.new")) as target:
        source.backup(target)
    Path(f"{other}.new").rename(other)


# --- without FTS5


def test_the_index_is_in_memory_without_fts5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FTS5 the index is in memory and finds the same; one warning says so."""
    address = f"sqlite:///{tmp_path}/log.db"
    monkeypatch.setattr("palimpsest.recall.opening.has_fts5", lambda: False)
    assert fts.has_fts5()
    with Memory.open(address) as memory:
        said(memory, "one", "cormorants", "pelicans")
        assert finds(memory, "pelicans")
        session = memory.session("one")
        session.erase([session.entries()[1].id])
        assert not finds(memory, "pelicans")
        assert finds(memory, "cormorants")
    assert not (tmp_path / "log.db.recall").exists()


# --- the same over every store


STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/log.db",
    "file": lambda folder: f"file://{folder}/logs",
    "memory": lambda _: "memory://",
    "encrypted": lambda folder: f"sqlite:///{folder}/sealed.db",
    "postgres": lambda _: postgresstore.address_of("everywhere"),
    "redis": lambda _: redisstore.address_of("everywhere"),
    "mongodb": lambda _: mongostore.address_of("everywhere"),  # SecantusDB, which speaks its protocol
}

SUBJECTS = [
    "harbour",
    "lighthouse",
    "invoice",
    "deployment",
    "garden",
    "violin",
    "passport",
    "thermostat",
    "bicycle",
    "recipe",
]
VERBS = ["repaired", "ordered", "moved", "painted", "lost", "measured", "returned", "described", "compared", "cleaned"]
THINGS = [
    "on monday",
    "near the station",
    "with Anna",
    "for the third time",
    "before the storm",
    "in v2.3",
    "at 10am",
    "by mistake",
]


def corpus(memory: Memory) -> None:
    """Add the same conversations to a store."""
    dice = random.Random(20)
    for session in range(8):
        talk = memory.session(f"talk {session}", counter=quarters)
        for _ in range(30):
            said = f"{dice.choice(SUBJECTS)} was {dice.choice(VERBS)} {dice.choice(THINGS)}"
            match dice.randrange(4):
                case 0:
                    talk.add_assistant_message(" ".join([f"The {said}."] * dice.randint(1, 40)))
                case 1:
                    talk.add_user_message(f"Is it so that the {said}?", name=dice.choice(["Anna", "Bob"]))
                case _:
                    talk.add_user_message(f"I think the {said}, {dice.choice(SUBJECTS)}_{dice.choice(VERBS)}")


QUESTIONS = [
    "who repaired the lighthouse before the storm?",
    "garden_painted",
    "Anna violin",
    'the "passport was returned"',
    "v2.3 deployment",
    "bicycle thermostat recipe",
    "what was lost by mistake",
]


@pytest.mark.wide
def test_every_store_gives_the_same_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store gives the same first ten answers, with the same scores, in the same order."""
    found = dict[str, list[Any]]()
    for name, address in STORES.items():
        keys: Any = {"encryption": Keys({"k": b"\x01" * 32})} if name == "encrypted" else {}
        with Memory.open(address(tmp_path), clock=_ticking(), **keys) as memory:
            corpus(memory)
            found[name] = [
                [
                    (one.session, one.seq, round(one.score, 6))
                    for one in memory.recall(question, max_tokens=None).hits[:10]
                ]
                for question in QUESTIONS
            ]
    monkeypatch.setattr("palimpsest.recall.opening.has_fts5", lambda: False)
    with Memory.open("memory://", clock=_ticking()) as memory:
        corpus(memory)
        found["plain"] = [
            [(one.session, one.seq, round(one.score, 6)) for one in memory.recall(question, max_tokens=None).hits[:10]]
            for question in QUESTIONS
        ]

    assert all(len(hits) == 10 for hits in found["sqlite"])
    assert {name: hits == found["sqlite"] for name, hits in found.items()} == dict.fromkeys(found, True)


def _ticking() -> Callable[[], int]:
    """Return a clock that ticks the same for each store."""
    now = 1_700_000_000_000_000

    def clock() -> int:
        nonlocal now
        now += 1_000_000
        return now

    return clock


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_store_opened_through_a_link_uses_the_same_index(tmp_path: Path, kind: str) -> None:
    """A store opened through a link uses the index beside the store itself, so that erasures reach it."""
    (tmp_path / "there").mkdir()
    (word,) = marks("linked", 1)
    with Memory.open(place_of(kind, tmp_path / "there")) as memory:
        said(memory, "one", word)
        assert finds(memory, word)
        name = memory.store.backend.url.rpartition("/")[2]
    link = tmp_path / "a-link"
    link.symlink_to(tmp_path / "there" / name)
    with Memory.open(f"file://{link}" if kind == "file" else link) as linked:
        assert finds(linked, word)
        session = linked.session("one")
        done = session.erase([one.id for one in session.entries()])
        assert (done.derived, done.remains) == ({"palimpsest.recall": 1}, ())
    assert not traces([word], index_bytes(kind, tmp_path / "there"))
    assert not [one.name for one in tmp_path.iterdir() if one.name.endswith(".recall")]
