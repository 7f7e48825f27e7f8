"""Knowledge bases: documents and summaries that searches find and contexts show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from knowledge_process import OPTIONS, strategy, talk
from palimpsest import ConfigError, Memory, Session
from palimpsest.errors import EmbedderFailed, InvalidResource
from palimpsest.resources import Resources
from palimpsest.strategies import CallableSummarizer, KnowledgeBase, Neuralyzer, Summarize, Triggers
from test_resources import BARE_SUMMARIZER
from writer import quarters

pytestmark = pytest.mark.filterwarnings("ignore:.*has no enabled trigger:palimpsest.errors.PalimpsestWarning")

REFUNDS = "Refunds are paid within fourteen days. Gift cards are never refunded."


def vectors(texts: list[str]) -> list[list[float]]:
    """Return vectors of texts by topic: animals, the sea, money, by a few words each."""
    about = (("dog", "puppy", "hound", "kennel"), ("boat", "ship", "harbour"), ("tax", "invoice", "bill"))
    return [[0.05 + sum(word in text.lower() for word in words) for words in about] for text in texts]


def opened(memory: Memory, name: str, user: str | None = "ann", **base: Any) -> Session:
    """Return a session whose summaries go to the collection notes."""
    return memory.session(name, long_term=strategy(**base), **{**OPTIONS, "user": user})


def summarised(memory: Memory, name: str, *words: str, **base: Any) -> Session:
    """Return a session that talked of these words and was summarized."""
    session = opened(memory, name, **base)
    talk(session, *words)
    assert session.compact().done
    return session


def given(session: Session) -> str:
    """Return the tail of a session's next context."""
    return json.dumps(session.context().tail_messages)


# --- documents


def test_a_document_is_found_by_its_words(memory: Memory) -> None:
    """A document is found by its words with its title, metadata and a score from 0 to 1."""
    base = memory.knowledge("handbook", counter=quarters)
    base.add("refunds", REFUNDS, title="Refund rules", metadata={"lang": "en"})

    (hit,) = base.search("When are refunds paid?")

    assert (hit.document, hit.title, hit.metadata, hit.text) == ("refunds", "Refund rules", {"lang": "en"}, REFUNDS)
    assert (hit.part, hit.of, hit.session, hit.collection) == (1, 1, None, "handbook")
    assert 0 < hit.score <= 1
    assert base.search("quantum chromodynamics") == []
    assert memory.knowledge("another", counter=quarters).search("refunds") == []


@pytest.mark.parametrize("text", ["When are refunds paid? {}", "{} When are refunds paid?"])
def test_a_question_at_either_end_of_a_long_text_is_asked(memory: Memory, text: str) -> None:
    """A question at either end of a long pasted text is searched for."""
    base = memory.knowledge("handbook")
    base.add("refunds", "Refunds are paid within fourteen days.")
    base.add("opening", "The shop opens at nine.")

    found = base.search(text.format("and so on " * 2_000), top_k=1)

    assert [hit.document for hit in found] == ["refunds"]


def test_the_same_document_again_adds_nothing(memory: Memory) -> None:
    """Adding an equal document changes nothing; another version replaces it; removing deletes it."""
    base = memory.knowledge("handbook", counter=quarters)
    first = base.add("refunds", REFUNDS)

    assert base.add("refunds", REFUNDS) == first
    assert base.documents() == [first]
    base.add("refunds", "Refunds are paid within thirty days.")
    assert [hit.text for hit in base.search("refunds gift cards")] == ["Refunds are paid within thirty days."]
    assert base.remove("refunds")
    assert not base.remove("refunds")
    assert base.search("refunds") == base.documents() == []


def test_documents_are_no_conversations(memory: Memory) -> None:
    """Documents are in no listing or recall, and are not found by other tenants or users."""
    memory.knowledge("handbook", counter=quarters).add("refunds", REFUNDS)
    memory.knowledge("handbook", user="ann", counter=quarters).add("own", "Refunds of Ann are special.")

    assert memory.sessions() == []
    assert not memory.recall("refunds")
    assert memory.for_tenant("other").knowledge("handbook", counter=quarters).search("refunds") == []
    found = {
        user: {hit.document for hit in memory.knowledge("handbook", user=user, counter=quarters).search("refunds")}
        for user in ("ann", "bob", None)
    }
    assert found == {"ann": {"refunds", "own"}, "bob": {"refunds"}, None: {"refunds"}}


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
def test_what_is_no_document_is_refused(id: Any, text: Any, more: dict[str, Any]) -> None:
    """An invalid document is refused, and nothing is stored."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("handbook", counter=quarters)

        with pytest.raises(ConfigError):
            base.add(id, text, **more)

        assert base.documents() == []


def test_what_may_not_be_kept_is_not_kept() -> None:
    """A privacy policy redacts text, title and metadata of a document and refuses a private id."""
    with Memory.open("memory://", privacy="default") as memory:
        base = memory.knowledge("handbook", counter=quarters)
        base.add("a", "Write to ann@example.com about refunds.", metadata={"by": "ann@example.com"})

        (hit,) = base.search("refunds")

        assert "ann@example.com" not in repr((hit, base.documents()))
        with pytest.raises(ConfigError, match="document_id"):
            base.add("ann@example.com", "x")


@pytest.mark.parametrize("query", ['"', "a AND OR NOT", "NEAR(", "'; DROP TABLE x; --", ".*(", "*", "col:x", "{}"])
def test_a_query_is_no_language(memory: Memory, query: str) -> None:
    """A query is plain words, whatever characters it has."""
    base = memory.knowledge("handbook", counter=quarters)
    base.add("refunds", REFUNDS)

    assert base.search(query) == []
    assert base.search(f"{query} refunds")


# --- by meaning, and with variety


@pytest.fixture
def animals() -> Iterator[Any]:
    """A knowledge base with an embedder."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("pets", embedder=vectors, counter=quarters)
        base.add("kennel", "A kennel is where a hound sleeps.")
        base.add("kennel again", "A kennel is where a hound sleeps well.")
        base.add("puppy", "Feed a puppy, and the bill comes later.")
        base.add("harbour", "Every ship waits in the harbour.")
        yield base


def test_similarity_compares_meanings(animals: Any) -> None:
    """A similarity search finds documents without the question's words, above the score threshold."""
    hits = animals.search("dog", search_type="similarity", top_k=2)

    assert [hit.document for hit in hits] == ["kennel", "kennel again"]
    assert all(hit.score > 0.9 for hit in hits)
    assert animals.search("dog", search_type="keyword") == []
    assert animals.search("dog")
    near = animals.search("dog", search_type="similarity", score_threshold=0.9)
    assert {hit.document for hit in near} == {"kennel", "kennel again"}


def test_variety_takes_what_says_something_else(animals: Any) -> None:
    """The second of two that say the same comes after what does not, unless the question alone counts."""
    varied = animals.search("dog", search_type="mmr", top_k=2, lambda_mult=0.3)
    alike = animals.search("dog", search_type="mmr", top_k=2, lambda_mult=1.0)

    assert varied[0].document == "kennel"
    assert varied[1].document != "kennel again"
    assert [hit.document for hit in alike] == ["kennel", "kennel again"]


def test_without_an_embedder_words_are_compared() -> None:
    """Similarity is refused, and the error says what to give; mmr varies by the words that chunks share."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("pets", counter=quarters)
        base.add("a", "The hound sleeps in the kennel by the door.")
        base.add("b", "The hound sleeps in the kennel by the gate.")
        base.add("c", "A hound runs far over fields and hills each morning.")

        with pytest.raises(ConfigError, match="give an embedder"):
            base.search("hound", search_type="similarity")
        assert "c" in [hit.document for hit in base.search("hound", search_type="mmr", top_k=2, lambda_mult=0.1)]


def test_vectors_of_another_embedder_tell_nothing() -> None:
    """Vectors of another embedder are not compared; words still are, until the document is added again."""

    def others(texts: list[str]) -> list[list[float]]:
        return [one[::-1] for one in vectors(texts)]

    with Memory.open("memory://") as memory:
        memory.knowledge("pets", embedder=vectors, counter=quarters).add("ship", "A ship has a dog.")
        base = memory.knowledge("pets", embedder=others, counter=quarters)

        assert base.search("dog", search_type="similarity") == []
        (hit,) = base.search("dog")
        assert hit.score == pytest.approx(base.search("dog", search_type="keyword")[0].score / 2)
        base.add("ship", "A ship has a dog.")
        assert [one.document for one in base.search("dog", search_type="similarity")] == ["ship"]


def test_an_embedder_that_fails_leaves_words(caplog: pytest.LogCaptureFixture) -> None:
    """If the embedder fails, words are still searched; similarity alone and adding raise an error."""
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
        assert "only words are compared" in caplog.text
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
def test_how_nothing_can_be_searched_is_refused(asked: dict[str, Any]) -> None:
    """An invalid option of a search is refused by name."""
    with Memory.open("memory://") as memory:
        base = memory.knowledge("x", counter=quarters)

        with pytest.raises(ConfigError, match=next(iter(asked))):
            base.search(**{"query": "x", **asked})


# --- summaries


def test_a_summary_is_found_from_other_sessions(memory: Memory) -> None:
    """A user's other sessions show a summary behind the newest entry, fenced; its own session does not repeat it."""
    first = summarised(memory, "first", "Kilimanjaro")
    second = opened(memory, "second")
    second.add_user_message("What was that about Kilimanjaro?")

    assert "summary of session first" in given(second)
    assert '<context source=\\"knowledge\\">' in given(second)
    first.add_user_message("And Kilimanjaro again?")
    assert given(first) == "[]"
    assert "Kilimanjaro" in json.dumps(first.context().messages)


def test_another_users_summaries_never_match(memory: Memory) -> None:
    """Summaries of another user, or of nobody, are never found."""
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


def test_a_collection_of_each_session_or_user(memory: Memory) -> None:
    """`{session_id}` and `{user_id}` name a collection each; without a user, an event says that nothing was written."""
    told: list[dict[str, Any]] = []
    memory.on("knowledge:deferred", lambda _, facts: told.append(facts))
    summarised(memory, "one", "Kilimanjaro", collection_id="of {session_id} {user_id}")

    assert [one.id for one in memory.knowledge("of one ann", user="ann", counter=quarters).documents()] == ["one"]
    anon = opened(memory, "anon", user=None, collection_id="of {user_id}")
    talk(anon, "x")
    assert anon.compact().done
    assert "a session with a user" in told[-1]["why"]


def test_at16_at_most_top_k_hits_are_given(memory: Memory) -> None:
    """At most `top_k` hits are shown, and with `max_tokens` only those with room."""
    base = memory.knowledge("notes", counter=quarters)
    for number in range(8):
        base.add(f"note {number}", f"Note {number} is about mountains.")
    three = opened(memory, "three", top_k=3)
    three.add_user_message("Tell me about mountains")

    assert given(three).count("part 1 of 1") == 3
    tight = opened(memory, "tight", top_k=3, max_tokens=20)
    tight.add_user_message("Tell me about mountains")
    assert given(tight).count("part 1 of 1") == 1


def test_at16_one_version_twice_leaves_one_set_of_chunks(memory: Memory) -> None:
    """Contexts, refreshes and other session objects add no second set of chunks."""
    session = summarised(memory, "first", "Kilimanjaro", "Kathmandu")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    (before,) = base.documents()
    hits = base.search("Kilimanjaro Kathmandu", top_k=50)

    session.context()
    assert base.refresh() == 0
    opened(memory, "first").context()

    assert base.documents() == [before]
    assert base.search("Kilimanjaro Kathmandu", top_k=50) == hits


def test_a_newer_version_takes_the_place_of_the_older_one(memory: Memory) -> None:
    """A newer summary replaces all chunks of the older one."""
    session = summarised(memory, "first", "Kilimanjaro")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    before = {hit.id for hit in base.search("remember", top_k=50)}

    talk(session, "Kathmandu")
    assert session.compact().done

    after = base.search("remember", top_k=50)
    assert before.isdisjoint({hit.id for hit in after})
    assert any("Kathmandu" in hit.text for hit in after)
    assert len(base.documents()) == 1


def test_a_summary_that_is_taken_back_is_not_found(memory: Memory) -> None:
    """A summary that a rewind undid is not found by the next search."""
    session = summarised(memory, "first", "Kilimanjaro")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    assert base.search("Kilimanjaro")

    session.rewind(to=1)

    assert base.search("Kilimanjaro") == base.documents() == []


def test_a_summary_that_is_withdrawn_takes_its_chunks_along(memory: Memory) -> None:
    """`restore` removes the chunks of the withdrawn summary."""
    session = summarised(memory, "first", "Kilimanjaro")
    base = memory.knowledge("notes", user="ann", counter=quarters)
    assert base.search("Kilimanjaro")

    assert session.restore() > 0

    assert base.search("Kilimanjaro") == base.documents() == []
    assert "Kilimanjaro" not in given(opened(memory, "second"))


def test_at16_a_summary_stays_where_its_chunks_cannot_be_written() -> None:
    """If chunks cannot be written, the summary is committed, an event says so, and the next context writes them."""
    works, told = False, list[dict[str, Any]]()

    def embed(texts: list[str]) -> list[list[float]]:
        if not works:
            raise RuntimeError("the knowledge base is down")
        return vectors(texts)

    with Memory.open("memory://") as memory:
        memory.on("knowledge:deferred", lambda _, facts: told.append(facts))
        session = summarised(memory, "first", "dog Kilimanjaro", embedder=embed)

        assert session.stats().summaries == 1
        assert told[0]["collection"] == "notes"
        assert "the knowledge base is down" in told[0]["why"]
        base = memory.knowledge("notes", user="ann", counter=quarters)
        assert base.search("Kilimanjaro") == []
        works = True
        assert base.refresh() == 1  # by words, for it has no embedder
        session.context()
        assert base.search("Kilimanjaro")


def test_when_contexts_are_given_something(memory: Memory) -> None:
    """Contexts are given hits always, never, on demand, or where a condition holds."""
    memory.knowledge("notes", counter=quarters).add("a", "Kilimanjaro is a mountain.")
    modes = {
        "always": True,
        "never": False,
        "on_demand": False,
        "contains(message.content, 'mountain')": True,
        "session.interaction_count > 5": False,
        "interaction.message_count == 1": True,
        "message.metadata.x > 3": True,  # no answer: it is looked for, and told
    }
    for number, (mode, gives) in enumerate(modes.items()):
        session = opened(memory, f"s{number}", search_mode=mode)
        session.add_user_message("Which mountain? Kilimanjaro?")

        assert ("is a mountain" in given(session)) is gives, mode
        assert [hit.document for hit in session.knowledge().search("Kilimanjaro")] == ["a"]


def test_a_session_is_asked_for_its_knowledge_base(memory: Memory) -> None:
    """`session.knowledge` needs the collection's name if there are several, and refuses an unknown one."""
    both = [Summarize(name=name, interaction_keep=1, knowledge_base=KnowledgeBase(collection_id=name)) for name in "ab"]
    session = memory.session("s", long_term=both, counter=quarters)
    session.knowledge("a").add("x", "Kilimanjaro")

    assert session.knowledge("b").search("Kilimanjaro") == []
    assert session.knowledge("a").search("Kilimanjaro")
    for asked in (None, "c"):
        with pytest.raises(ConfigError, match="collection"):
            session.knowledge(asked)
    with pytest.raises(ConfigError, match="give a strategy a knowledge_base"):
        memory.session("plain").knowledge()


def test_what_is_given_never_makes_a_cut() -> None:
    """Hits have a share of their own in a context and never cause a cut; without a share nothing is searched."""
    with Memory.open("memory://") as memory:
        memory.knowledge("notes", counter=quarters).add("a", "Kilimanjaro " * 400)
        session = opened(memory, "s")
        session.add_user_message("Kilimanjaro?")
        context = session.context()

        assert context.tail_messages == []
        assert context.tokens <= 4_000
        none = memory.session("t", long_term=strategy(), tail_share=0.0, **OPTIONS)
        none.add_user_message("Kilimanjaro?")
        assert none.context().tail_messages == []


def test_nothing_of_an_ephemeral_session_is_written() -> None:
    """A knowledge base that writes is refused for an ephemeral session; one that only reads is searched."""
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
    """The documented block, as printed: top_k is 3, and another session of the memory is given its summary."""
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


def test_e8_a_memory_from_a_resource() -> None:
    """The block in a profile, with a splitter, opened as a memory: its sessions have the knowledge base."""
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
    """A declared ephemeral memory with a writing knowledge base is refused at load, by its place."""
    block = json.loads(BARE_SUMMARIZER)
    source = {"long_term_memory_strategy": [block], "persistence_strategy": "EPHEMERAL"}

    with pytest.raises(InvalidResource, match="EPHEMERAL") as refused:
        Resources.load(source)
    assert "knowledge_base.write" in str(refused.value)
    block["knowledge_base"]["write"] = False
    Resources.load(source).close()


def test_at11_a_neuralyzer_leaves_nothing_in_a_knowledge_base(memory: Memory) -> None:
    """Entries that a neuralyzer erases are gone from chunks of their summaries, too."""
    both = [
        strategy(),
        Neuralyzer(interaction_keep=1, triggers=Triggers(interaction_threshold_qty=30)),
    ]
    session = memory.session("s", **{**OPTIONS, "long_term": both})
    talk(session, "Kilimanjaro", "Kathmandu")
    assert session.compact(both[0]).done
    base = memory.knowledge("notes", user="ann", counter=quarters)
    assert base.search("Kilimanjaro")

    assert session.compact(both[1]).done

    assert base.search("Kilimanjaro") == base.documents() == []
