"""Knowledge bases: documents and summaries that searches find and contexts are given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from knowledge_process import OPTIONS, strategy, talk
from palimpsest import ConfigError, Entry, Memory, Session
from palimpsest.errors import EmbedderFailed, InvalidResource
from palimpsest.log.head import SessionKey
from palimpsest.resources import Resources
from palimpsest.runtime.runner import drive
from palimpsest.sessions.shelves.shelf import shelves
from palimpsest.strategies import CallableSummarizer, KnowledgeBase, Neuralyzer, Summarize, Triggers
from test_resources import BARE_SUMMARIZER
from writer import quarters

pytestmark = pytest.mark.filterwarnings("ignore:.*has no enabled trigger:palimpsest.errors.PalimpsestWarning")

REFUNDS = "Refunds are paid within fourteen days. Gift cards are never refunded."


def vectors(texts: list[str]) -> list[list[float]]:
    """An embedder: returns how much each text is about animals, the sea or money, judged by a few words."""
    about = (("dog", "puppy", "hound", "kennel"), ("boat", "ship", "harbour"), ("tax", "invoice", "bill"))
    return [[0.05 + sum(word in text.lower() for word in words) for words in about] for text in texts]


def opened(memory: Memory, name: str, user: str | None = "ann", **base: Any) -> Session:
    """Open a session whose summaries are written to the collection `notes`."""
    return memory.session(name, long_term=strategy(**base), **{**OPTIONS, "user": user})


def summarised(memory: Memory, name: str, *words: str, **base: Any) -> Session:
    """Return a session that talked about these words and was then summarized."""
    session = opened(memory, name, **base)
    talk(session, *words)
    assert session.compact().done
    return session


def given(session: Session) -> str:
    """Return the tail of the session's next context as JSON."""
    return json.dumps(session.context().tail_messages)


# --- documents


def test_a_document_is_found_by_its_words(memory: Memory) -> None:
    """A search finds a document by its words, with its title, metadata and a score from 0 to 1."""
    base = memory.knowledge("handbook", counter=quarters)
    base.add("refunds", REFUNDS, title="Refund rules", metadata={"lang": "en"})

    (hit,) = base.search("When are refunds paid?")

    assert (hit.document, hit.title, hit.metadata, hit.text) == ("refunds", "Refund rules", {"lang": "en"}, REFUNDS)
    assert (hit.part, hit.of, hit.session, hit.collection) == (1, 1, None, "handbook")
    assert 0 < hit.score <= 1
    assert base.search("quantum chromodynamics") == []
    assert memory.knowledge("another", counter=quarters).search("refunds") == []


@pytest.mark.parametrize("text", ["When are refunds paid? {}", "{} When are refunds paid?"])
def test_a_question_at_either_end_of_a_long_text_is_searched(memory: Memory, text: str) -> None:
    """A question at the beginning or the end of a long text is searched, even if the text must be shortened."""
    base = memory.knowledge("handbook")
    base.add("refunds", "Refunds are paid within fourteen days.")
    base.add("opening", "The shop opens at nine.")

    hits = base.search(text.format("and so on " * 2_000), top_k=1)

    assert [hit.document for hit in hits] == ["refunds"]


def test_adding_the_same_document_again_changes_nothing(memory: Memory) -> None:
    """Adding a document again changes nothing; a new version replaces the old one; `remove` deletes it."""
    base = memory.knowledge("handbook", counter=quarters)
    first = base.add("refunds", REFUNDS)

    assert base.add("refunds", REFUNDS) == first
    assert base.documents() == [first]
    base.add("refunds", "Refunds are paid within thirty days.")
    assert [hit.text for hit in base.search("refunds gift cards")] == ["Refunds are paid within thirty days."]
    assert base.remove("refunds")
    assert not base.remove("refunds")
    assert base.search("refunds") == base.documents() == []


@pytest.mark.parametrize("removes", [True, False])
def test_all_leftover_versions_of_a_document_are_deleted(memory: Memory, removes: bool) -> None:
    """Removing or replacing a document deletes every version that killed processes have left."""
    base = memory.knowledge("handbook", counter=quarters)
    base.add("refunds", REFUNDS)
    base.add("refunds and more", REFUNDS)
    scope = memory._core._scope
    (shelf,) = drive(shelves(scope))
    record = drive(shelf.record("document", "refunds"))
    assert record is not None
    for number in range(40):
        left = SessionKey(shelf.tenant, f"{record.key}{number:02}")
        drive(scope.store.append(left, [Entry(content="left by a killed process")]))
    if removes:
        assert base.remove("refunds")
    else:
        base.add("refunds", "Refunds are paid within thirty days.")

    sessions = [info.session for info in drive(scope.store.sessions(shelf.tenant))]
    assert len(sessions) == (1 if removes else 2)
    assert not any(session.startswith(f"{record.key}0") for session in sessions)


def test_documents_are_not_conversations(memory: Memory) -> None:
    """Documents are in no listing of sessions and no recall, and other tenants and users do not find them."""
    memory.knowledge("handbook", counter=quarters).add("refunds", REFUNDS)
    memory.knowledge("handbook", user="ann", counter=quarters).add("own", "Refunds of Ann are special.")

    assert memory.sessions() == []
    assert not memory.recall("refunds")
    assert memory.for_tenant("other").knowledge("handbook", counter=quarters).search("refunds") == []
    documents = {
        user: {hit.document for hit in memory.knowledge("handbook", user=user, counter=quarters).search("refunds")}
        for user in ("ann", "bob", None)
    }
    assert documents == {"ann": {"refunds", "own"}, "bob": {"refunds"}, None: {"refunds"}}


@pytest.mark.parametrize(
    ("id", "text", "more"),
    [
        ("", "x", {}),
        ("a\nb", "x", {}),
        ("a", " ", {}),
        ("a", 3, {}),
        ("a", "\ud800", {}),
        ("a", "x", {"metadata": {"x": object()}}),
        ("a", "x", {"metadata": ["x"]}),
        ("a", "x", {"metadata": {"x": [float("nan")]}}),
        ("a", "x", {"metadata": {"x": date(2030, 1, 1)}}),
        ("a", "x", {"metadata": {1: "x"}}),
        ("a", "x", {"metadata": {"x": "\ud800"}}),
        ("a", "x", {"title": ""}),
        ("a", "x", {"title": "half a \ud83d"}),
    ],
)
def test_an_invalid_document_is_refused(id: Any, text: Any, more: dict[str, Any]) -> None:
    """An invalid id, text, title or metadata raises ConfigError, and nothing is stored."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("handbook", counter=quarters)

        with pytest.raises(ConfigError):
            base.add(id, text, **more)

        assert base.documents() == []


def test_a_policy_redacts_documents() -> None:
    """The policy redacts text, title and metadata of a document, and refuses an id that holds something private."""
    with Memory.open("memory://", privacy="default") as memory:
        base = memory.knowledge("handbook", counter=quarters)
        base.add("a", "Write to ann@example.com about refunds.", metadata={"by": "ann@example.com"})

        (hit,) = base.search("refunds")

        assert "ann@example.com" not in repr((hit, base.documents()))
        with pytest.raises(ConfigError, match="document_id"):
            base.add("ann@example.com", "x")


@pytest.mark.parametrize(
    ("withheld", "metadata"),
    [("health", {"type": "Health"}), ("health", {"tags": ["x", "health"]}), ("context", None), ("user", {"page": 1})],
)
def test_a_document_that_the_policy_withholds_is_refused(withheld: str, metadata: dict[str, Any] | None) -> None:
    """Neither the store nor an embedder gets anything of it, and the error does not quote it."""
    asked = list[str]()

    def embedder(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    with Memory.open("memory://", privacy={"non_persistable_message_types": [withheld]}) as memory:
        base = memory.knowledge("handbook", counter=quarters, embedder=embedder)
        with pytest.raises(ConfigError, match="withholds") as caught:
            base.add("a", "Takes warfarin.", metadata=metadata)

        assert "warfarin" not in str(caught.value)
        assert asked == []
        assert base.documents() == []


def test_other_documents_are_taken_beside_a_policy_that_withholds() -> None:
    """A policy that withholds documents of one type accepts the others."""
    with Memory.open("memory://", privacy={"non_persistable_message_types": ["health"]}) as memory:
        base = memory.knowledge("handbook", counter=quarters)
        base.add("a", "Refunds are paid.", metadata={"type": "rule"})

        assert [hit.document for hit in base.search("refunds")] == ["a"]


@pytest.mark.parametrize("query", ['"', "a AND OR NOT", "NEAR(", "'; DROP TABLE x; --", ".*(", "*", "col:x", "{}"])
def test_a_query_has_no_syntax(memory: Memory, query: str) -> None:
    """A query is only words: operators and special characters mean nothing."""
    base = memory.knowledge("handbook", counter=quarters)
    base.add("refunds", REFUNDS)

    assert base.search(query) == []
    assert base.search(f"{query} refunds")


# --- by meaning, and with variety


@pytest.fixture
def animals() -> Iterator[Any]:
    """Yield a knowledge base with an embedder and four documents."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("pets", embedder=vectors, counter=quarters)
        base.add("kennel", "A kennel is where a hound sleeps.")
        base.add("kennel again", "A kennel is where a hound sleeps well.")
        base.add("puppy", "Feed a puppy, and the bill comes later.")
        base.add("harbour", "Every ship waits in the harbour.")
        yield base


def test_similarity_compares_meanings(animals: Any) -> None:
    """A similarity search finds documents that share no word with the question, above the threshold."""
    hits = animals.search("dog", search_type="similarity", top_k=2)

    assert [hit.document for hit in hits] == ["kennel", "kennel again"]
    assert all(hit.score > 0.9 for hit in hits)
    assert animals.search("dog", search_type="keyword") == []
    assert animals.search("dog")
    near = animals.search("dog", search_type="similarity", score_threshold=0.9)
    assert {hit.document for hit in near} == {"kennel", "kennel again"}


def test_mmr_prefers_hits_that_differ(animals: Any) -> None:
    """`mmr` ranks a hit that repeats an earlier one behind others, unless `lambda_mult` is 1."""
    varied = animals.search("dog", search_type="mmr", top_k=2, lambda_mult=0.3)
    alike = animals.search("dog", search_type="mmr", top_k=2, lambda_mult=1.0)

    assert varied[0].document == "kennel"
    assert varied[1].document != "kennel again"
    assert [hit.document for hit in alike] == ["kennel", "kennel again"]


def test_without_an_embedder_words_are_compared() -> None:
    """Without an embedder similarity is refused with advice, and `mmr` varies hits by the words they share."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("pets", counter=quarters)
        base.add("a", "The hound sleeps in the kennel by the door.")
        base.add("b", "The hound sleeps in the kennel by the gate.")
        base.add("c", "A hound runs far over fields and hills each morning.")

        with pytest.raises(ConfigError, match="give an embedder"):
            base.search("hound", search_type="similarity")
        assert "c" in [hit.document for hit in base.search("hound", search_type="mmr", top_k=2, lambda_mult=0.1)]


def test_vectors_of_another_embedder_are_not_compared() -> None:
    """Vectors of another embedder are not compared; adding the document again embeds it anew."""

    def others(texts: list[str]) -> list[list[float]]:
        return [vector[::-1] for vector in vectors(texts)]

    with Memory.open("memory://") as memory:
        memory.knowledge("pets", embedder=vectors, counter=quarters).add("ship", "A ship has a dog.")
        base = memory.knowledge("pets", embedder=others, counter=quarters)

        assert base.search("dog", search_type="similarity") == []
        (hit,) = base.search("dog")
        assert hit.score == pytest.approx(base.search("dog", search_type="keyword")[0].score / 2)
        base.add("ship", "A ship has a dog.")
        assert [vector.document for vector in base.search("dog", search_type="similarity")] == ["ship"]


def test_a_failing_embedder_leaves_keyword_search(caplog: pytest.LogCaptureFixture) -> None:
    """If the embedder fails, a search compares words only; similarity and adding raise EmbedderFailed."""
    works = True

    def embed(texts: list[str]) -> list[list[float]]:
        if not works:
            raise RuntimeError("away")
        return vectors(texts)

    with Memory.open("memory://") as memory:
        base = memory.knowledge("pets", embedder=embed, counter=quarters)
        base.add("a", "A hound sleeps.")
        works = False

        assert [hit.document for hit in base.search("hound")] == ["a"]
        assert "compares only words" in caplog.text
        with pytest.raises(EmbedderFailed):
            base.search("hound", search_type="similarity")
        with pytest.raises(EmbedderFailed):
            base.add("a", "A hound runs.")
        assert [hit.text for hit in base.search("hound")] == ["A hound sleeps."]


@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 0},
        {"search_type": "semantic"},
        {"score_threshold": 2},
        {"fetch_k": 0},
        {"lambda_mult": -1},
        {"query": ""},
        {"query": 3},
    ],
)
def test_invalid_search_options_are_refused(asked: dict[str, Any]) -> None:
    """An invalid search option raises ConfigError that names it."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("x", counter=quarters)

        with pytest.raises(ConfigError, match=next(iter(asked))):
            base.search(**{"query": "x", **asked})


# --- summaries


def test_a_summary_is_found_from_other_sessions(memory: Memory) -> None:
    """A summary is given to the user's other sessions, fenced, after the newest entry.

    The session that it covers has it in its context already.
    """
    first = summarised(memory, "first", "Kilimanjaro")
    second = opened(memory, "second")
    second.add_user_message("What was that about Kilimanjaro?")

    assert "summary of session first" in given(second)
    assert '<context source=\\"knowledge\\">' in given(second)
    first.add_user_message("And Kilimanjaro again?")
    assert given(first) == "[]"
    assert "Kilimanjaro" in json.dumps(first.context().messages)


@pytest.mark.parametrize("base", [{}, {"embedder": vectors}, {"embedder": vectors, "search_type": "similarity"}])
def test_a_sessions_own_summary_takes_no_room_from_others(memory: Memory, base: dict[str, Any]) -> None:
    """However many chunks of a session's own summary answer, its contexts get those of other sessions that do."""
    summarised(memory, "first", "the boat", **base)
    own = summarised(memory, "second", *(f"the boat in harbour {number}" for number in range(40)), **base)
    assert len(own.knowledge().search("boat harbour", top_k=100)) > 20

    own.add_user_message("What of the boat in the harbour?")
    assert "summary of session first" in given(own)


def test_leftover_versions_take_no_room_from_current_ones(memory: Memory) -> None:
    """Versions that killed processes have left do not keep the chunks of current ones from being found."""
    base = memory.knowledge("handbook", counter=quarters)
    base.add("refunds", f"{REFUNDS} This holds for all that we sell.")
    scope = memory._core._scope
    (shelf,) = drive(shelves(scope))
    record = drive(shelf.record("document", "refunds"))
    assert record is not None
    left = SessionKey(shelf.tenant, f"{record.key}.left")
    drive(scope.store.append(left, [Entry(content=f"{REFUNDS} {number}") for number in range(100)]))

    assert [hit.document for hit in base.search("refunds gift cards")] == ["refunds"]


def test_another_users_summaries_never_match(memory: Memory) -> None:
    """Summaries of another user are never found, and those of sessions without a user only by such sessions."""
    summarised(memory, "first", "Kilimanjaro")
    anon = opened(memory, "anon", user=None)
    talk(anon, "Matterhorn")
    anon.compact()

    for user in ("bob", None):
        other = opened(memory, f"of {user}", user=user)
        other.add_user_message("Kilimanjaro? Matterhorn?")
        assert "Kilimanjaro for me" not in given(other)
        assert ("session anon" in given(other)) is (user is None)
    assert [one.id for one in memory.knowledge("notes", user="bob", counter=quarters).documents()] == []


def test_a_collection_per_session_or_user(memory: Memory) -> None:
    """`{session_id}` and `{user_id}` in a collection's name are replaced.

    Without a user the summary is not written, and `knowledge:deferred` is emitted.
    """
    deferred: list[dict[str, Any]] = []
    memory.on("knowledge:deferred", lambda _, facts: deferred.append(facts))
    summarised(memory, "one", "Kilimanjaro", collection_id="of {session_id} {user_id}")

    assert [one.id for one in memory.knowledge("of one ann", user="ann", counter=quarters).documents()] == ["one"]
    anon = opened(memory, "anon", user=None, collection_id="of {user_id}")
    talk(anon, "x")
    assert anon.compact().done
    assert "a session with a user" in deferred[-1]["why"]


def test_at16_at_most_top_k_hits_are_given(memory: Memory) -> None:
    """A context is given at most `top_k` hits, and only those that fit `max_tokens`."""
    base = memory.knowledge("notes", counter=quarters)
    for number in range(8):
        base.add(f"note {number}", f"Note {number} is about mountains.")
    limited = opened(memory, "three", top_k=3)
    limited.add_user_message("Tell me about mountains")

    assert given(limited).count("part 1 of 1") == 3
    narrow = opened(memory, "tight", top_k=3, max_tokens=20)
    narrow.add_user_message("Tell me about mountains")
    assert given(narrow).count("part 1 of 1") == 1


def test_at16_one_version_is_written_once(memory: Memory) -> None:
    """Contexts, `refresh` and other session objects write nothing again for a version that is written."""
    session = summarised(memory, "first", "Kilimanjaro", "Kathmandu")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    (before,) = base.documents()
    hits = base.search("Kilimanjaro Kathmandu", top_k=50)

    session.context()
    assert base.refresh() == 0
    opened(memory, "first").context()

    assert base.documents() == [before]
    assert base.search("Kilimanjaro Kathmandu", top_k=50) == hits


def test_a_newer_version_replaces_the_older(memory: Memory) -> None:
    """A search finds chunks of the current summary only."""
    session = summarised(memory, "first", "Kilimanjaro")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    before = {hit.id for hit in base.search("remember", top_k=50)}

    talk(session, "Kathmandu")
    assert session.compact().done

    after = base.search("remember", top_k=50)
    assert before.isdisjoint({hit.id for hit in after})
    assert any("Kathmandu" in hit.text for hit in after)
    assert len(base.documents()) == 1


def test_a_rewound_summary_is_not_found(memory: Memory) -> None:
    """A summary that a rewind took back is not found from the next search on."""
    session = summarised(memory, "first", "Kilimanjaro")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    assert base.search("Kilimanjaro")

    session.rewind(to=1)

    assert base.search("Kilimanjaro") == base.documents() == []


def test_a_restored_summary_is_not_found(memory: Memory) -> None:
    """A summary withdrawn by `restore` is not found any more."""
    session = summarised(memory, "first", "Kilimanjaro")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    assert base.search("Kilimanjaro")

    assert session.restore() > 0

    assert base.search("Kilimanjaro") == base.documents() == []
    assert "Kilimanjaro" not in given(opened(memory, "second"))


def test_at16_a_summary_is_committed_if_its_chunks_cannot_be_written() -> None:
    """If chunks cannot be written the summary is still committed, and an event says why.

    A later context writes them.
    """
    works, deferred = False, list[dict[str, Any]]()

    def embed(texts: list[str]) -> list[list[float]]:
        if not works:
            raise RuntimeError("the knowledge base is down")
        return vectors(texts)

    with Memory.open("memory://") as memory:
        memory.on("knowledge:deferred", lambda _, facts: deferred.append(facts))
        session = summarised(memory, "first", "dog Kilimanjaro", embedder=embed)

        assert session.stats().summaries == 1
        assert deferred[0]["collection"] == "notes"
        assert "the knowledge base is down" in deferred[0]["why"]
        base = memory.knowledge("notes", user="ann", counter=quarters)
        assert base.search("Kilimanjaro") == []
        works = True
        assert base.refresh() == 1  # by words, for it has no embedder
        session.context()
        assert base.search("Kilimanjaro")


def test_search_mode_decides_when_contexts_get_hits(memory: Memory) -> None:
    """`search_mode` gives hits to contexts always, never, on demand, or if a condition holds."""
    memory.knowledge("notes", counter=quarters).add("a", "Kilimanjaro is a mountain.")
    modes = {
        "always": True,
        "never": False,
        "on_demand": False,
        "contains(message.content, 'mountain')": True,
        "session.interaction_count > 5": False,
        "interaction.message_count == 1": True,
        "message.metadata.x > 3": True,  # it cannot be evaluated: the search is made, with a report
    }
    for number, (mode, gives) in enumerate(modes.items()):
        session = opened(memory, f"s{number}", search_mode=mode)
        session.add_user_message("Which mountain? Kilimanjaro?")

        assert ("is a mountain" in given(session)) is gives, mode
        assert [hit.document for hit in session.knowledge().search("Kilimanjaro")] == ["a"]


def test_a_session_returns_its_knowledge_base(memory: Memory) -> None:
    """`session.knowledge()` returns the base of its collection, and refuses one that the session does not have."""
    strategies = [
        Summarize(name=name, interaction_keep=1, knowledge_base=KnowledgeBase(collection_id=name)) for name in "ab"
    ]
    session = memory.session("s", long_term=strategies, counter=quarters)
    session.knowledge("a").add("x", "Kilimanjaro")

    assert session.knowledge("b").search("Kilimanjaro") == []
    assert session.knowledge("a").search("Kilimanjaro")
    for asked in (None, "c"):
        with pytest.raises(ConfigError, match="collection"):
            session.knowledge(asked)
    with pytest.raises(ConfigError, match="give a strategy a knowledge_base"):
        memory.session("plain").knowledge()


def test_hits_never_cause_a_cut() -> None:
    """Hits have a share of the budget of their own and never cause a cut; without a share none are searched."""
    with Memory.open("memory://") as memory:
        memory.knowledge("notes", counter=quarters).add("a", "Kilimanjaro " * 400)
        session = opened(memory, "s")
        session.add_user_message("Kilimanjaro?")
        context = session.context()

        assert context.tail_messages == []
        assert context.tokens <= 4_000
        without_share = memory.session("t", long_term=strategy(), tail_share=0.0, **OPTIONS)
        without_share.add_user_message("Kilimanjaro?")
        assert without_share.context().tail_messages == []


def test_an_ephemeral_session_writes_no_knowledge() -> None:
    """An ephemeral session refuses a knowledge base that writes, and searches one that does not."""
    with Memory.open("memory://") as memory:
        memory.knowledge("notes", counter=quarters).add("a", "Kilimanjaro is a mountain.")

        with pytest.raises(ConfigError, match="ephemeral"):
            memory.session("s", long_term=strategy(), persistence="ephemeral")
        session = memory.session("s", long_term=strategy(write=False), persistence="ephemeral", **OPTIONS)
        session.add_user_message("Kilimanjaro?")
        assert "is a mountain" in given(session)
        assert memory.sessions() == []


# --- declared


def test_e4_a_bare_summarizer_runs_end_to_end() -> None:
    """The documented block of a bare summarizer works: another session of the memory is given its summary."""
    with Resources.load(json.loads(BARE_SUMMARIZER)) as resources:
        checked = CallableSummarizer(lambda _: "They decided to climb Kilimanjaro in May.", checked=False)
        chat = resources.session({"id": "memory", "key": "a"}, summarizer=checked)
        for number in range(15):
            chat.add_user_message(f"question {number} " + "words " * 30)
            chat.add_assistant_message(f"answer {number}")
        assert chat.stats().summaries == 1
        assert chat.options.knowledge[0][0].top_k == 3

        other = resources.session({"id": "memory", "key": "b"}, max_tokens=8_000)
        other.add_user_message("When do we climb Kilimanjaro?")
        assert "in May" in given(other)


def test_e8_a_memory_from_a_resource_writes_and_finds_chunks() -> None:
    """A memory opened from a resource with a knowledge base and splitter writes and finds chunks."""
    block = {
        **json.loads(BARE_SUMMARIZER),
        "instructions": "Focus on decisions made and action items.",
        "text_splitter": {"chunk_size": 20, "chunk_overlap": 4, "unit": "chars"},
    }
    source = {"profile": {"long_term_memory_strategy": [block]}}
    with Memory.from_resource(source) as memory:
        session = memory.session(
            "a", summarizer=CallableSummarizer(lambda _: "Kilimanjaro in May. " * 5, checked=False)
        )
        for number in range(15):
            session.add_user_message(f"question {number} " + "words " * 30)
            session.add_assistant_message(f"answer {number}")

        (document,) = session.knowledge().documents()
        assert document.chunks > 1
        assert all(len(hit.text) <= 20 for hit in session.knowledge().search("Kilimanjaro"))


def test_a_declared_memory_that_is_ephemeral_writes_no_knowledge() -> None:
    """A declared ephemeral memory with a knowledge base that writes is refused when it loads."""
    block = json.loads(BARE_SUMMARIZER)
    source = {"long_term_memory_strategy": [block], "persistence_strategy": "EPHEMERAL"}

    with pytest.raises(InvalidResource, match="EPHEMERAL") as refused:
        Resources.load(source)
    assert "knowledge_base.write" in str(refused.value)
    block["knowledge_base"]["write"] = False
    Resources.load(source).close()


def test_at11_a_neuralyzer_leaves_nothing_in_a_knowledge_base(memory: Memory) -> None:
    """What a neuralyzer erases also goes from the chunks of its summary."""
    strategies = [
        strategy(),
        Neuralyzer(interaction_keep=1, triggers=Triggers(interaction_threshold_qty=30)),
    ]
    session = memory.session("s", **{**OPTIONS, "long_term": strategies})
    talk(session, "Kilimanjaro", "Kathmandu")
    assert session.compact(strategies[0]).done
    base = memory.knowledge("notes", user="ann", counter=quarters)
    assert base.search("Kilimanjaro")

    assert session.compact(strategies[1]).done

    assert base.search("Kilimanjaro") == base.documents() == []
