"""Knowledge bases under erasure and killed processes: erasures reach every byte, and no acknowledged write is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knowledge_process import OPTIONS, strategy, talk
from palimpsest import Memory, Query
from palimpsest.strategies import SourceSummarizer
from palimpsest.testing import FakeClock
from processes import Process
from test_erasure_bytes import KINDS, every_byte, options, where
from test_knowledge import opened, summarised, vectors
from writer import quarters

pytestmark = pytest.mark.filterwarnings("ignore:.*has no enabled trigger:palimpsest.errors.PalimpsestWarning")

SCRIPT = Path(__file__).with_name("knowledge_process.py")
MARKER = "zq9xkv7wpt"


def found(memory: Memory, query: str, user: str | None = "ann") -> list[str]:
    """Return the texts that a search of the collection `notes` finds."""
    return [hit.text for hit in memory.knowledge("notes", user=user, counter=quarters).search(query, top_k=50)]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["erase", "delete", "forget", "clear"])
def test_erased_text_is_in_no_byte_of_the_store(tmp_path: Path, kind: str, how: str) -> None:
    """Whatever destroys an entry, its text goes from the chunks of its summary and from every byte.

    What remains is still found.
    """
    place = where(kind, tmp_path)
    with Memory.open(place, **options(kind)) as memory:
        session = summarised(memory, "first", MARKER, "Kathmandu")
        assert found(memory, MARKER)

        if how == "erase":
            session.erase(Query(text=MARKER))
        elif how == "forget":
            memory.forget(matches=MARKER)
        elif how == "clear":
            session.clear()
        else:
            memory.delete_session("first")

        assert found(memory, MARKER) == []
        assert bool(found(memory, "Kathmandu")) is (how in ("erase", "forget"))
    assert MARKER.encode() not in every_byte(place)
    assert ("sealed" in kind) or how not in ("erase", "forget") or b"Kathmandu" in every_byte(place)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_policy_redacts_the_chunks_of_a_summary(tmp_path: Path, kind: str) -> None:
    """A scan redacts private text in a summary and its chunks, to the byte, even if no entry has it."""
    place, summarizer = where(kind, tmp_path), SourceSummarizer(lambda _: f"They wrote to jane@{MARKER}.com.")
    with Memory.open(place, **options(kind)) as memory:
        session = memory.session("first", long_term=strategy(), **{**OPTIONS, "user": "ann", "summarizer": summarizer})
        talk(session, "Kathmandu")
        assert session.compact().done
        assert found(memory, MARKER)

        report = memory.scan("default", apply=True)

        assert (report.entries, report.summaries, report.remains) == (0, 1, ())
        assert MARKER.encode() not in every_byte(place)
        assert found(memory, "wrote") == ["They wrote to [REDACTED]."]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_vacuum_removes_what_an_erasure_left_in_a_large_index(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an erasure left in a large index is reported, and a vacuum removes it, also in another process."""
    monkeypatch.setattr("palimpsest.recall.sqlite.index.SMALL", 1)
    place = where(kind, tmp_path)
    with Memory.open(place, **options(kind)) as memory:
        session = summarised(memory, "first", MARKER, "Kathmandu")
        assert found(memory, MARKER)
        assert any("vacuum" in one for one in session.erase(Query(text=MARKER)).remains)
    with Memory.open(place, **options(kind)) as memory:
        assert memory.vacuum().remains == ()
    assert MARKER.encode() not in every_byte(place)


@pytest.mark.parametrize("searches", [True, False], ids=["who searches", "who never does"])
def test_a_vacuum_reaches_the_index_of_every_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searches: bool
) -> None:
    """A vacuum removes what any tenant has erased from the index file that tenants share."""
    monkeypatch.setattr("palimpsest.recall.sqlite.index.SMALL", 1)
    place = where("sqlite", tmp_path)
    with Memory.open(place) as memory:
        other = memory.for_tenant("other")
        other.session("s").add_user_message(f"{MARKER} is here")
        other.session("s").add_user_message("and so is this")
        assert other.recall(MARKER)
        memory.session("s").add_user_message("this is mine")
        assert not searches or memory.recall("mine")
        assert any("vacuum" in one for one in other.session("s").erase([1]).remains)

        assert memory.vacuum().remains == ()

    assert MARKER.encode() not in every_byte(place)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_document_is_in_no_byte(tmp_path: Path, kind: str) -> None:
    """A removed document is in no byte of the store, and a replaced version in none after a vacuum."""
    place = where(kind, tmp_path)
    with Memory.open(place, **options(kind)) as memory:
        base = memory.knowledge("notes", counter=quarters)
        base.add("a", f"{MARKER} is here", title=f"{MARKER}a", metadata={"said": f"{MARKER}b"})
        base.add("b", "zq9old9version is here")
        assert (MARKER.encode() in every_byte(place)) is ("sealed" not in kind)
        base.add("b", "another version")

        base.remove("a")

        assert MARKER.encode() not in every_byte(place)
        memory.vacuum()
        assert b"zq9old9version" not in every_byte(place)
        assert found(memory, "version", None) == ["another version"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_erasure_leaves_no_byte_of_earlier_versions_of_a_document(tmp_path: Path, kind: str) -> None:
    """An erasure leaves no byte of text, title and metadata of the versions that others have replaced."""
    place = where(kind, tmp_path)
    with Memory.open(place, **options(kind)) as memory:
        handbook = memory.knowledge("notes")
        handbook.add("one", f"a text with {MARKER}", title=f"the {MARKER}", metadata={"of": MARKER})
        handbook.add("one", "another text", title="another")

        assert memory.forget(matches=MARKER).remains == ()

        assert MARKER.encode() not in every_byte(place)
        assert [document.title for document in handbook.documents()] == ["another"]


def test_forgetting_a_user_removes_their_knowledge(memory: Memory) -> None:
    """Forgetting a user removes their documents and summaries and nobody else's; a dry run counts them."""
    summarised(memory, "first", "Kilimanjaro")
    memory.knowledge("notes", user="ann", counter=quarters).add("own", "Ann climbs Kilimanjaro.")
    memory.knowledge("notes", user="bob", counter=quarters).add("his", "Bob climbs Kilimanjaro.")
    memory.knowledge("notes", counter=quarters).add("all", "Kilimanjaro is a mountain.")

    preview = memory.forget(user="ann", dry_run=True)
    assert len(found(memory, "Kilimanjaro")) >= 3
    report = memory.forget(user="ann")

    assert preview.items == {"knowledge/notes": 2}  # the user's document, and the summary of a session that is deleted
    assert report.items == {"knowledge/notes": 1}
    assert found(memory, "Kilimanjaro") == ["Kilimanjaro is a mountain."]
    assert len(found(memory, "Kilimanjaro", "bob")) == 2


def test_a_document_added_after_an_erasure_is_found_by_the_next(memory: Memory) -> None:
    """A document added after an erasure is erased by the next one, also if the same object added it."""
    base = memory.knowledge("notes", user="ann", counter=quarters)
    for name in ("Kilimanjaro", "Elbrus"):
        base.add(name, f"Ann climbs {name}.")
        assert memory.forget(user="ann").items == {"knowledge/notes": 1}
        assert found(memory, name) == []
    base.add("own", "Ann climbs Denali.")
    memory.forget(matches="Denali")
    assert found(memory, "Denali") == []


@pytest.mark.parametrize("collection", ["notes", "notes {user_id}"])
def test_summaries_of_a_session_follow_its_owner(memory: Memory, collection: str) -> None:
    """When a session gets a new user, its summaries are found by that user and no longer by the old one."""

    def seen(user: str, query: str) -> list[str]:
        base = memory.knowledge(collection.replace("{user_id}", user), user=user, counter=quarters)
        return [hit.text for hit in base.search(query)]

    session = summarised(memory, "first", "Kilimanjaro", collection_id=collection)
    assert seen("ann", "Kilimanjaro")
    session.describe(user="bob")
    assert seen("ann", "Kilimanjaro") == []

    session = opened(memory, "first", user="bob", collection_id=collection)
    talk(session, "Elbrus")
    assert session.compact().done
    assert seen("bob", "Elbrus")
    assert seen("ann", "Elbrus") == seen("ann", "Kilimanjaro") == []


def test_documents_with_the_same_text_are_each_found(memory: Memory) -> None:
    """Two documents with the same text are both found."""
    base = memory.knowledge("notes", counter=quarters)
    base.add("a", "Kilimanjaro is a mountain.")
    base.add("b", "Kilimanjaro is a mountain.")

    assert sorted(hit.document for hit in base.search("Kilimanjaro")) == ["a", "b"]


def test_forgetting_a_text_removes_it_from_documents(memory: Memory) -> None:
    """Forgetting a text removes the chunks that hold it and documents whose metadata holds it, and no others."""
    base = memory.knowledge(
        "notes", counter=quarters, text_splitter={"chunk_size": 40, "chunk_overlap": 0, "unit": "chars"}
    )
    base.add("a", f"The first line is about {MARKER}.\n\nThe second line is about Kathmandu.")
    base.add("b", "The third line.", metadata={"by": MARKER})

    memory.forget(matches=MARKER)

    assert found(memory, MARKER, None) == []
    assert [hit.strip() for hit in found(memory, "line", None)] == ["The second line is about Kathmandu."]
    base.add("a", f"The first line is about {MARKER}.\n\nThe second line is about Kathmandu.")
    assert found(memory, MARKER, None)


def test_forgetting_a_tenant_removes_all_its_knowledge(memory: Memory) -> None:
    """Forgetting a tenant removes all its knowledge and leaves another tenant's."""
    summarised(memory, "first", "Kilimanjaro")
    memory.knowledge("notes", counter=quarters).add("all", "Kilimanjaro is a mountain.")
    other = memory.for_tenant("other")
    other.knowledge("notes", counter=quarters).add("all", "Kilimanjaro is a mountain.")

    memory.forget(tenant=memory.tenant)

    assert found(memory, "Kilimanjaro") == found(memory, "Kilimanjaro", None) == []
    assert found(other, "Kilimanjaro", None)


def test_an_expired_session_leaves_no_chunks(tmp_path: Path) -> None:
    """Chunks of an expired session are not found, and a sweep removes their bytes."""
    clock, place = FakeClock(), tmp_path / "log.db"
    with Memory.open(place, clock=clock) as memory:
        session = memory.session("first", long_term=strategy(), lifetime="1d", **OPTIONS)
        talk(session, MARKER)
        session.compact()
        assert found(memory, MARKER)

        clock.advance(2 * 86_400)

        assert found(memory, MARKER) == []
        memory.sweep()
        assert MARKER.encode() not in every_byte(place)


def test_text_erased_while_it_is_embedded_is_not_found(tmp_path: Path) -> None:
    """Chunks of a text that another process erases while it is embedded are not kept."""
    place = tmp_path / "log.db"
    erased = False

    def embed(texts: list[str]) -> list[list[float]]:
        nonlocal erased
        if not erased:
            erased = True
            with Process("erase", place, MARKER, script=SCRIPT) as other:
                assert other.hear()
        return vectors(texts)

    with Memory.open(place) as memory:
        session = summarised(memory, "first", MARKER, "Kathmandu", embedder=embed)

        assert erased
        assert found(memory, MARKER) == []
        assert found(memory, "Kathmandu")
        assert session.stats().summaries == 1
    assert MARKER.encode() not in every_byte(place)


def test_a_summary_whose_writer_was_killed_is_refreshed(tmp_path: Path) -> None:
    """If a process dies between committing a summary and writing its chunks, `refresh` writes them."""
    place = tmp_path / "log.db"
    with Process("summarise", place, script=SCRIPT) as process:
        assert process.hear() == "committed"
        process.kill()

    with Memory.open(place) as memory:
        base = memory.knowledge("notes", user="ann", counter=quarters)
        assert base.documents() == []
        assert base.refresh() == 1
        assert found(memory, "Kilimanjaro")
        (document,) = base.documents()
        opened(memory, "killed").context()
        assert base.documents() == [document]


def test_the_next_context_writes_missing_chunks(tmp_path: Path) -> None:
    """If a process dies before writing chunks, the next context of the session writes them."""
    place = tmp_path / "log.db"
    with Process("summarise", place, script=SCRIPT) as process:
        assert process.hear() == "committed"
        process.kill()

    with Memory.open(place) as memory:
        opened(memory, "killed").context()

        assert found(memory, "Kilimanjaro")


def test_two_processes_add_and_a_third_erases(tmp_path: Path) -> None:
    """Documents that two processes add are all found, and a third process's erasure reaches them.

    The third has not opened the knowledge base.
    """
    place = tmp_path / "log.db"
    with Memory.open(place) as memory:
        summarised(memory, "first", MARKER)
        with (
            Process("add", place, "one", 10, script=SCRIPT) as first,
            Process("add", place, "two", 10, script=SCRIPT) as second,
        ):
            acknowledged = [name for process in (first, second) for name in iter(process.hear, None)]
        assert len(acknowledged) == 20
        base = memory.knowledge("handbook", counter=quarters)
        assert {document.id for document in base.documents()} == set(acknowledged)
        assert {hit.document for hit in base.search("subject7")[:2]} == {"one 7", "two 7"}

        with Process("erase", place, MARKER, script=SCRIPT) as other:
            assert other.hear()

        assert found(memory, MARKER) == []
    assert MARKER.encode() not in every_byte(place)


@pytest.mark.parametrize("kills", [6])
def test_documents_survive_kills_whole(tmp_path: Path, kills: int, dice: Any) -> None:
    """However often the adding process is killed, acknowledged documents are found and none is partial."""
    place, acknowledged = tmp_path / "log.db", set[str]()
    for number in range(kills):
        with Process("add", place, f"n{number}", 50, script=SCRIPT) as process:
            acknowledged |= {str(process.hear()) for _ in range(dice.randrange(1, 8))}
            acknowledged |= {str(one) for one in process.kill()}
    with Memory.open(place) as memory:
        base = memory.knowledge("handbook", counter=quarters)
        documents = {document.id for document in base.documents()}
        hits = {hit.document for hit in base.search("document subject", top_k=1000)}

        assert acknowledged <= documents
        assert hits <= documents


def test_a_memory_that_only_reads_searches(tmp_path: Path) -> None:
    """A read-only memory searches its knowledge and uses it in contexts without changing the store."""
    place = tmp_path / "log.db"
    with Memory.open(place) as memory:
        summarised(memory, "first", "Kilimanjaro")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".db-shm"}
    with Memory.open(place, readonly=True) as memory:
        assert found(memory, "Kilimanjaro")
        assert json.dumps(opened(memory, "first", write=True).context().messages)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".db-shm"}
    assert {name: after.get(name) for name in before if name == "log.db"} == {"log.db": before["log.db"]}
