"""Search by meaning, with an embedder that knows a few words, over real stores and the public interface."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import postgresstore
from palimpsest import AsyncMemory, ConfigError, Keys, Memory
from palimpsest.recall import embedding, opening
from palimpsest.recall.fusion import NEAREST
from palimpsest.runtime.runner import drive
from palimpsest.sessions.recalling.asked import LIMIT
from recall_helpers import companion, place_of
from test_recall_faults import delete

np = pytest.importorskip("numpy", reason="the extra vectors is not installed")

MEANINGS = {"car": 0, "vehicle": 0, "soup": 1, "meal": 1, "rain": 2, "weather": 2}
PLACES = ["sqlite", "file", "memory", "postgres"]
LASTING = ["sqlite", "file", "postgres"]


class Meanings:
    """An embedder that gives words of the same meaning the same vector, and keeps the texts it was given."""

    def __init__(self, name: str = "meanings", width: int = 4) -> None:
        self.name, self._width, self.given = name, width, list[str]()
        self.meanwhile: Callable[[], object] | None = None

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.given += texts
        if self.meanwhile is not None and any("keep" in text for text in texts):
            step, self.meanwhile = self.meanwhile, None
            step()
        return [self._of(text) for text in texts]

    def _of(self, text: str) -> list[float]:
        row = [0.0] * (self._width - 1) + [0.05]
        for word, at in MEANINGS.items():
            row[at] += word in text
        return row


class Place:
    """A store's address, and access to the tables of its vectors."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self._folder = kind, folder
        addresses: dict[str, Callable[[], str]] = {
            "memory": lambda: "memory://",
            "postgres": lambda: postgresstore.address_of("embedding"),
        }
        self.address = addresses.get(kind, lambda: place_of(kind, folder))()

    def open(self, embedder: object = None, **options: Any) -> Memory:
        return Memory.open(self.address, embedder=embedder, **options)

    def vectors(self) -> list[Any]:
        """Return the keys of all stored vectors."""
        if self.kind == "postgres":
            schema = postgresstore.schema_of("embedding")
            return [key for (key,) in postgresstore.asked(self.address, f"SELECT key FROM {schema}.vector")]
        with closing(sqlite3.connect(companion(self.kind, self._folder))) as db:
            names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'vector_[0-9]*'")
            return [key for (name,) in names.fetchall() for (key,) in db.execute(f"SELECT key FROM {name}")]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


EVERY = pytest.mark.parametrize("place", PLACES, indirect=True)
EACH = pytest.mark.parametrize("place", LASTING, indirect=True)


def found(memory: Any, query: str, **options: Any) -> list[str]:
    return [hit.text for hit in memory.recall(query, max_tokens=None, neighbours=0, **options).hits]


def settled(memory: Any) -> bool:
    """Wait for work beside searches; return whether none is left."""
    return drive(memory._core._scope.runner.settle(30))


def talked(memory: Memory) -> None:
    memory.session("s").add_user_message("keep: the car broke down")
    memory.session("t").add_user_message("keep: soup for lunch")


@pytest.mark.sampled
@EVERY
def test_entries_without_matching_words_are_found_by_meaning(place: Place) -> None:
    """An entry without the question's words is found by meaning alone, nearest first."""
    with place.open() as memory:
        talked(memory)
        assert found(memory, "vehicle") == []
        if place.kind == "memory":
            return
    with place.open(Meanings()) as memory:
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
        assert found(memory, "meal")[0] == "keep: soup for lunch"
        assert found(memory.session("t"), "vehicle") == ["keep: soup for lunch"]


@EVERY
def test_speaker_names_are_removed_from_embedded_questions(place: Place) -> None:
    """Names of speakers are removed from an embedded question and count as words; other names remain."""
    given = Meanings()
    with place.open(given) as memory:
        chat = memory.session("s")
        chat.add_user_message("keep: the car broke down", name="Ann")
        chat.add_user_message("keep: soup for Ford", name="Bob")
        assert found(memory, "Which vehicle has Ann, and Ford?")[0] == "keep: the car broke down"
    assert given.given[-1] == "Which vehicle has , and Ford?"


@EACH
@pytest.mark.parametrize("said", [(), ("keep: the car broke down", "keep: a vehicle of ours")])
def test_a_changed_embedder_dimension_makes_all_vectors_again(place: Place, said: tuple[str, ...]) -> None:
    """If an embedder of the same name changes its dimension, all vectors are made again."""
    with place.open(Meanings(width=4)) as memory:
        talked(memory)
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
    later = Meanings(width=7)
    with place.open(later) as memory:
        for number, text in enumerate(said):
            memory.session(f"new {number}").add_user_message(text)
        assert found(memory, "vehicle", limit=3)[0] in ("keep: the car broke down", *said)
        assert found(memory, "meal")[0] == "keep: soup for lunch"
        assert len(later.given) < 12
        given = len(later.given)
        assert found(memory, "weather")
        assert len(later.given) == given + 1, "what has a vector is not embedded again"


@pytest.mark.parametrize("by_another", [False, True])
@pytest.mark.parametrize("place", ["sqlite", pytest.param("file", marks=pytest.mark.wide)], indirect=True)
def test_an_open_memory_finds_by_meaning_in_an_index_made_anew(place: Place, by_another: bool, tmp_path: Path) -> None:
    """A memory goes on to find by meaning when its index was deleted, also if another memory has made it anew, where
    the sessions have other numbers."""
    with place.open(Meanings()) as memory, place.open(Meanings()) as other:
        memory.session("t").add_user_message("keep: soup for lunch")
        assert found(memory, "meal") == ["keep: soup for lunch"]
        memory.session("s").add_user_message("keep: the car broke down")
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
        memory.session("t").add_assistant_message("When is that?")
        delete(companion(place.kind, tmp_path))
        if by_another:
            assert found(other, "vehicle")[0] == "keep: the car broke down"
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
        assert found(memory, "meal")[0] == "keep: soup for lunch"
        memory.session("u").add_user_message("keep: a vehicle, or a car")
        assert "keep: a vehicle, or a car" in found(memory, "car")[:2]


@pytest.mark.parametrize("damage", ["value = x'00'", "value = 'text'"])
def test_damaged_vectors_are_made_again(tmp_path: Path, damage: str) -> None:
    """Damaged vectors are made again."""
    place = Place("sqlite", tmp_path)
    with place.open(Meanings()) as memory:
        talked(memory)
        assert found(memory, "vehicle")
    with closing(sqlite3.connect(companion("sqlite", tmp_path))) as db, db:
        db.execute(f"UPDATE vector_1 SET {damage}")
    with place.open(Meanings()) as memory:
        found(memory, "vehicle")  # this search notices the damage
        assert found(memory, "vehicle")[0] == "keep: the car broke down"


@EVERY
def test_a_filter_that_leaves_only_the_least_similar_entry_finds_it(place: Place) -> None:
    """If a filter leaves only the least similar entry, that is found."""
    with place.open(Meanings()) as memory:
        memory.session("s").add_user_message("keep: the car broke down")
        memory.session("t").add_assistant_message("keep: soup for lunch")
        assert found(memory, "vehicle", roles="assistant") == ["keep: soup for lunch"]


@EVERY
def test_filtered_search_finds_entries_behind_many_nearer_ones(place: Place) -> None:
    """An entry that a filter leaves is found, even if more nearer ones are filtered out than a search looks at."""
    with place.open(Meanings()) as memory:
        memory.session("t").add_user_message("keep: soup in the car")
        said = [{"role": "assistant", "content": f"keep: the car {number}"} for number in range(2 * NEAREST)]
        memory.session("s").add(said)
        assert found(memory, "vehicle", roles="user") == ["keep: soup in the car"]


@EVERY
def test_filtered_search_returns_the_nearest_matching_entries(place: Place) -> None:
    """A filter returns the nearest of its entries, even if words alone would fill the answer."""
    with place.open(Meanings()) as memory:
        memory.session("t").add_user_message("keep: soup in the car")
        memory.session("t").add_user_message("keep: soup")
        said = [{"role": "assistant", "content": f"keep: the car {number}"} for number in range(11 * NEAREST)]
        memory.session("s").add(said)
        things = [{"role": "user", "content": f"a thing or {number}"} for number in range(3 * LIMIT)]
        memory.session("u").add(things)
        memory.rebuild_index()
        assert found(memory, "vehicle", roles="user")[0] == "keep: soup in the car"
        assert "keep: soup in the car" in found(memory, "vehicle thing", roles="user")


def test_hits_are_ordered_by_words_alone_if_the_embedder_fails() -> None:
    """If the embedder fails, order and scores are those of a search without an embedder."""

    def fails(texts: list[str]) -> list[list[float]]:
        raise OSError("no vectors today")

    scores = []
    for embedder in (None, fails):
        with Memory.open("memory://", embedder=embedder) as memory:
            chat = memory.session("s")
            chat.add_user_message("The boat is in the harbour.", name="Ann")
            chat.add_user_message("A boat, or a ship, is too dear.", name="Bob")
            hits = memory.recall("What did Ann say of a boat?", max_tokens=None).hits
            scores.append([(hit.seq, hit.score) for hit in hits])
    assert scores[0] == scores[1]
    assert len(scores[0]) == 2


@EACH
def test_stored_vectors_are_reused_after_reopening(place: Place) -> None:
    """Stored vectors are used after reopening; another model makes all of them again."""
    first, second, other = Meanings(), Meanings(), Meanings("another", 5)
    with place.open(first) as memory:
        talked(memory)
        assert found(memory, "vehicle")
        before = sorted(place.vectors())
    with place.open(second) as memory:
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
    assert second.given == ["vehicle"]
    with place.open(other) as memory:
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
    assert sorted(other.given) == ["keep: soup for lunch", "keep: the car broke down", "vehicle"]
    assert sorted(place.vectors()) == before
    assert len(before) == 2


@EVERY
def test_a_backlog_is_embedded_in_the_background(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search embeds a few entries itself; the others get vectors in the background."""
    monkeypatch.setattr(embedding, "AT_ONCE", 8)
    monkeypatch.setattr(embedding, "TOGETHER", 4)
    given = Meanings()
    with place.open(given) as memory:
        session = memory.session("s")
        session.add([{"role": "user", "content": f"keep {number} of rain"} for number in range(40)])
        found(memory, "weather")
        assert settled(memory)
        assert len({text for text in given.given if "keep" in text}) == 40
        done = len(given.given)
        assert len(found(memory, "weather", limit=50)) == 40
        assert given.given[done:] == ["weather"]


GONE: dict[str, Callable[[Memory], object]] = {
    "erase": lambda m: m.session("s").erase([1]),
    "clear": lambda m: m.session("s").clear(),
    "delete": lambda m: m.delete_session("s"),
    "forget": lambda m: m.forget(matches="broke"),
    "forget session": lambda m: m.forget(session="s"),
}


@pytest.mark.sampled
@EACH
@pytest.mark.parametrize("how", ["erase", "clear", "delete", "forget", "forget session"])
@pytest.mark.parametrize("with_embedder", [True, False])
def test_an_erasure_removes_the_vectors_of_erased_entries(place: Place, how: str, with_embedder: bool) -> None:
    """An erasure removes the vectors of erased entries in the same step, with an embedder or without."""
    with place.open(Meanings()) as memory:
        talked(memory)
        assert found(memory, "vehicle")
        assert len(place.vectors()) == 2
        if with_embedder:
            GONE[how](memory)
            assert len(place.vectors()) == 1
    if not with_embedder:
        with place.open() as memory:
            GONE[how](memory)
            assert len(place.vectors()) == 1
    with place.open(Meanings()) as memory:
        assert found(memory, "vehicle") == ["keep: soup for lunch"]
    assert len(place.vectors()) == 1


@pytest.mark.sampled
@EACH
@pytest.mark.parametrize("how", ["erase", "clear", "delete", "forget", "forget session"])
def test_an_entry_erased_during_embedding_gets_no_vector(place: Place, how: str) -> None:
    """An entry that is erased while its text is with the embedder gets no vector."""
    given = Meanings()
    with place.open(given) as memory, place.open() as other:
        memory.session("s").add_user_message("keep: the car broke down")
        given.meanwhile = lambda: GONE[how](other)
        assert found(memory, "vehicle") == []
        assert settled(memory)
        assert found(memory, "vehicle") == []
        assert place.vectors() == []


def test_deleting_a_damaged_session_removes_its_vectors(tmp_path: Path) -> None:
    """Deleting a damaged session removes all that the index has of it, although its words cannot be read."""
    place = Place("sqlite", tmp_path)
    with place.open(Meanings()) as memory:
        talked(memory)
        memory.session("s").add_user_message("keep: rain")
        assert found(memory, "vehicle")
        assert len(place.vectors()) == 3
    with closing(sqlite3.connect(tmp_path / "log.db")) as db, db:
        db.execute("DELETE FROM entry WHERE rowid = (SELECT min(rowid) FROM entry)")

    with place.open() as memory:
        assert memory.delete_session("s")

    assert len(place.vectors()) == 1


@EACH
def test_a_redacted_entry_gets_a_vector_of_its_new_text(place: Place) -> None:
    """A redacted entry has a vector of its new text, and the old vector is gone."""
    given = Meanings()
    with place.open(given) as memory:
        talked(memory)
        assert found(memory, "vehicle")
        memory.scan({"redact_patterns": ["the car broke"]}, apply=True)
        assert len(place.vectors()) == 1
        assert not any("car" in text for text in found(memory, "vehicle"))
        assert given.given[-2:] != ["keep: the car broke down", "vehicle"]


@EACH
def test_rebuilding_an_index_makes_its_vectors_again(place: Place) -> None:
    """Rebuilding an index makes its vectors again; without an embedder they come with the next search."""
    with place.open(Meanings()) as memory:
        talked(memory)
        assert found(memory, "vehicle")
        before, told = place.vectors(), list[tuple[int, int]]()
        memory.rebuild_index(progress=lambda done, total: told.append((done, total)))
        assert len(place.vectors()) == len(before) == 2
        assert told == [(1, 2), (2, 2)] * 2, "words, then vectors"
        with place.open() as plain:
            plain.rebuild_index()
        assert place.vectors() == []
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
        assert len(place.vectors()) == 2


@EVERY
def test_entries_added_after_a_rewind_get_vectors(place: Place) -> None:
    """An entry added after a rewind gets a vector, although the index has as many entries as before."""
    with place.open(Meanings()) as memory:
        session = memory.session("s")
        session.add_user_message("keep: hello")
        session.add_user_message("keep: the car broke down")
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
        session.rewind(1)
        session.add_user_message("keep: nothing but rain")
        for one in (session, memory):
            assert found(one, "weather")[0] == "keep: nothing but rain"
            assert "keep: the car broke down" not in found(one, "vehicle")


def fails(texts: list[str]) -> Any:
    raise ConnectionError("down")


def lies(texts: list[str]) -> Any:
    return [[1.0]] * (len(texts) + 1)


@EVERY
@pytest.mark.parametrize("embedder", [fails, lies])
def test_a_failing_embedder_warns_once_and_words_are_still_found(
    place: Place, embedder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """If an embedder fails, words are still found, and one warning says so without quoting anything."""
    with place.open(embedder) as memory:
        talked(memory)
        memory.rebuild_index()
        assert found(memory, "car") == ["keep: the car broke down"]
        assert found(memory, "soup") == ["keep: soup for lunch"]
    told = [one.getMessage() for one in caplog.records if "compare only words, not meanings" in one.getMessage()]
    assert len(told) == 1
    assert not any(word in caplog.text for word in ("soup", "broke"))


def _quotes(texts: list[str]) -> Any:
    raise ValueError(f"no vector for jane@example.com, who asked about {len(texts)} texts")


@pytest.mark.parametrize("persistence", ["incremental", "ephemeral"])
def test_logged_embedder_errors_pass_the_privacy_policy(persistence: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A logged error of an embedder passes the privacy policy, since it may quote what it was given."""
    with Memory.open("memory://", privacy="default", embedder=_quotes) as memory:
        session = memory.session("s", persistence=persistence)
        session.add_user_message("soup for lunch")
        assert session.recall("soup")

    assert "no vector for [REDACTED], who asked" in caplog.text
    assert "jane" not in caplog.text


@EVERY
def test_no_tenant_finds_another_tenants_entries_by_meaning(place: Place) -> None:
    """No tenant finds another tenant's entries by meaning."""
    with place.open(Meanings()) as memory:
        talked(memory)
        beside = memory.for_tenant("beside")
        beside.session("s").add_user_message("keep: a car of beside")
        assert found(beside, "vehicle") == ["keep: a car of beside"]
        assert "keep: a car of beside" not in found(memory, "vehicle")


def test_an_encrypted_store_keeps_no_vectors_on_disk(tmp_path: Path) -> None:
    """An encrypted store has no index file beside it, so no vector is on disk."""
    place = Place("sqlite", tmp_path)
    with place.open(Meanings(), encryption=Keys({"k": b"\x01" * 32})) as memory:
        talked(memory)
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
    assert not companion("sqlite", tmp_path).exists()


@EACH
def test_a_read_only_memory_finds_by_meaning_and_writes_nothing(place: Place) -> None:
    """A read-only memory finds by meaning and leaves nothing behind."""
    with place.open() as memory:
        talked(memory)
    with place.open(Meanings(), readonly=True) as memory:
        assert found(memory, "vehicle")[0] == "keep: the car broke down"


def test_an_index_without_fts5_keeps_and_drops_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that is used without FTS5 also keeps vectors and drops erased ones."""
    monkeypatch.setattr(opening, "has_fts5", lambda: False)
    with Memory.open("memory://", embedder=Meanings()) as memory:
        talked(memory)
        assert found(memory, "vehicle")[0] == "keep: the car broke down"
        memory.session("s").erase([1])
        assert found(memory, "vehicle") == ["keep: soup for lunch"]


@EVERY
@pytest.mark.parametrize("awaits", [True, False])
def test_an_asynchronous_memory_finds_by_meaning(place: Place, awaits: bool) -> None:
    """An asynchronous memory finds by meaning, with a function or a coroutine function as its embedder."""
    given = Meanings()

    async def embed(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return given(texts)

    async def main() -> None:
        async with AsyncMemory.open(place.address, embedder=embed if awaits else given) as memory:
            await memory.session("s").add_user_message("keep: the car broke down")
            hits = (await memory.recall("vehicle", max_tokens=None)).hits
            assert [hit.text for hit in hits] == ["keep: the car broke down"]

    asyncio.run(main())


def test_a_coroutine_function_serves_a_synchronous_memory() -> None:
    """A synchronous memory runs an embedder that is a coroutine function on a loop of its own."""
    given = Meanings()

    async def embed(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return given(texts)

    with Memory.open("memory://", embedder=embed) as memory:
        talked(memory)
        assert found(memory, "vehicle")[0] == "keep: the car broke down"


def test_a_search_with_a_hanging_embedder_finds_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an embedder's timeout, a search finds by words alone."""
    hung = Event()
    with Memory.open("memory://", embedder=lambda texts: hung.wait(60)) as memory:
        embedder: Any = memory._core._scope._shared.embedder
        monkeypatch.setattr(embedder, "_timeout", 0.1)
        talked(memory)
        assert found(memory, "car") == ["keep: the car broke down"]
        hung.set()


@EVERY
def test_an_entry_shared_by_branches_is_found_once(place: Place) -> None:
    """An entry that branches share is found once, by meaning as by words."""
    with place.open(Meanings()) as memory:
        talked(memory)
        fork = memory.session("s").fork("s2")
        fork.add_user_message("keep: another car")
        texts = found(memory, "vehicle")
        assert sorted(texts[:2]) == ["keep: another car", "keep: the car broke down"]
        assert texts.count("keep: the car broke down") == 1


def test_an_ephemeral_session_finds_its_unsaved_entries_by_meaning() -> None:
    """An ephemeral session finds its unsaved entries by meaning."""
    with Memory.open("memory://", embedder=Meanings()) as memory:
        session = memory.session("s", persistence="ephemeral")
        session.add_user_message("keep: the car broke down")
        assert found(session, "vehicle") == ["keep: the car broke down"]


def test_an_ephemeral_session_finds_only_entries_of_its_current_turn() -> None:
    """What a turn added to an ephemeral session is gone after it; a search then finds the words of the next turn."""
    with Memory.open("memory://", embedder=Meanings()) as memory:
        session = memory.session("s", persistence="ephemeral", max_tokens=500, tail_share=0.2)
        with session.turn():
            session.add([{"role": "user", "content": text} for text in ("a car", "a soup", "the rain")])
            assert session.recall("vehicle").hits[0].text == "a car"
        with session.turn():
            session.add([{"role": "user", "content": text} for text in ("the rain", "a soup", "a car")])

            assert session.recall("vehicle").hits[0].text == "a car"
            assert session.recall("weather").hits[0].text == "the rain"


@pytest.mark.parametrize("embedder", [0, 1.5, b"wordllama", [], {}, True])
def test_an_invalid_embedder_is_refused_at_opening(embedder: object) -> None:
    """An invalid embedder is refused when the memory is opened."""
    with pytest.raises(ConfigError, match="embedder"):
        Memory.open("memory://", embedder=embedder)
