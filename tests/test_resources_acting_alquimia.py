"""Fields of Alquimia's blocks act when they stand in a file: contexts, triggers, knowledge."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from palimpsest import Session
from palimpsest.errors import ConditionFailed
from palimpsest.recall.embedders import MODELS
from palimpsest.resources import Resources
from palimpsest.strategies import CallableSummarizer
from talks import Scripted
from test_resources_cases import SHORT, load, open_in, questions, refused, short, summarizer, turns, words

__all__ = ["load"]  # the fixture

WORDLLAMA = pytest.mark.skipif(find_spec("wordllama") is None, reason="the extra vectors is not installed")


# --- what a context shows


@pytest.mark.parametrize(("count_pinned", "shown"), [(True, ["q2"]), (False, ["q1", "q2"])])
def test_count_pinned_decides_whether_pins_take_from_the_budget(
    load: Any, count_pinned: bool, shown: list[str]
) -> None:
    """Pinned entries are always shown; with `count_pinned` they take from the budget."""
    with load(short(memory_max_tokens=200, count_pinned=count_pinned)) as resources:
        session = open_in(resources)
        session.add_system_message(words(100, "rules"))
        turns(session, *[100] * 3)
        entries = session.context().entries
        assert questions(entries) == shown
        assert entries[0].text.startswith("rules")


def test_cut_decides_whether_a_context_is_refilled(load: Any) -> None:
    """With cut `exact` each context has all that fits; with `low_water` it keeps its start until it is too large."""
    shown = dict[str, list[str]]()
    for cut in ("exact", "low_water"):
        with load(short(memory_max_tokens=100, cut=cut)) as resources:
            session = open_in(resources)
            turns(session, *[20] * 6)
            session.context()
            turns(session, 20, start=6)
            shown[cut] = questions(session.context().entries)
    assert shown["exact"] == [f"q{number}" for number in range(2, 7)]
    assert len(shown["low_water"]) < 5
    assert shown["low_water"][-1] == "q6"


def test_strict_decides_whether_a_failing_condition_raises(load: Any) -> None:
    """A condition that cannot be evaluated raises if `strict`, and otherwise keeps the entry."""
    for strict in (False, True):
        with load(short(conditions=["message.metadata.x < 3"], strict=strict)) as resources:
            session = open_in(resources)
            turns(session, 5)
            if strict:
                with pytest.raises(ConditionFailed):
                    session.context()
            else:
                assert questions(session.context().entries) == ["q0"]


# --- when the log is compacted


def calls(session: Session, status: Any) -> None:
    """Add an interaction with a call of a tool that ends with this status."""
    session.add_user_message("please")
    session.add_tool_call("send_mail", "", call_id="a")
    session.add_tool_result("send_mail", "done", call_id="a", status=status)
    session.add_assistant_message("ok")


@pytest.mark.parametrize(
    ("status", "denied", "fires"), [("error", False, True), ("success", False, False), ("denied", False, False)]
)
def test_a_failed_tool_triggers(load: Any, status: str, denied: bool, fires: bool) -> None:
    """A failed tool triggers by a pattern of its name; a denied one only with `denied_is_error`."""
    for denied_is_error in (False, True):
        block = summarizer(
            interaction_threshold_qty=0,
            on_tools_error_threshold=["send_*"],
            denied_is_error=denied_is_error,
            interaction_keep=0,
        )
        with load(block) as resources:
            session = open_in(resources, summarizer=SHORT)
            turns(session, 60)
            calls(session, status)
            assert bool(session.summaries()) is (fires or (status == "denied" and denied_is_error))


def test_before_turn_checks_triggers_for_a_context(load: Any) -> None:
    """With `before_turn`, asking for a context checks the triggers.

    So are entries covered that another session object added without compacting.
    """
    block = {"long_term_memory_strategy": summarizer(interaction_threshold_qty=3)}
    for before_turn in (False, True):
        with load({**block, "before_turn": before_turn}) as resources:
            turns(open_in(resources, auto_compact="off"), *[60] * 4)
            session = open_in(resources, summarizer=SHORT)
            session.context()
            assert bool(session.summaries()) is before_turn


def test_long_term_run_decides_whether_one_or_all_strategies_run(load: Any) -> None:
    """With `long_term_run: all` a second strategy runs on what the first left; with `first` only one runs."""
    blocks = [
        summarizer(interaction_threshold_qty=4, interaction_keep=2),
        {"long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 2, "interaction_keep": 1},
    ]
    for run, erases in (("first", False), ("all", True)):
        with load({"long_term_memory_strategy": blocks, "long_term_run": run}) as resources:
            session = open_in(resources, summarizer=SHORT, auto_compact="off")
            turns(session, *[60] * 4)
            open_in(resources, summarizer=SHORT).end_turn()
            assert any(entry.erased for entry in session.entries()) is erases, run


def test_a_custom_prompt_template_is_used(load: Any) -> None:
    """A custom `prompt_template` is what the model is asked, with the conversation in its place."""
    block = summarizer(interaction_threshold_qty=3, prompt_template="Answer in rhymes: {content}")
    with load(block) as resources:
        model = Scripted("short")
        turns(open_in(resources, summarizer=model), *[60] * 3)
        assert model.prompts[0].startswith("Answer in rhymes: ")
        assert "q0" in model.prompts[0]


# --- knowledge


def summarised(resources: Resources, key: str, told: str, user: str = "ann") -> Session:
    """Return a session of this user that was summarized with this text."""
    summarizer_ = CallableSummarizer(lambda _: told, checked=False)
    session = resources.session({"id": "memory", "key": key}, user=user, summarizer=summarizer_)
    turns(session, 300, 300)
    assert session.summaries()
    return session


def knowing(splitter: dict[str, Any] | None = None, **base: Any) -> dict[str, Any]:
    """Return the declaration of a memory whose summaries are written to a knowledge base."""
    block = summarizer(interaction_threshold_qty=2, knowledge_base={"collection_id": "notes", **base})
    return {"long_term_memory_strategy": {**block, **({"text_splitter": splitter} if splitter else {})}}


def chunks(load: Any, told: str, **splitter: Any) -> list[Any]:
    """Return the chunks that a summary is split into, in order."""
    with load(knowing({"unit": "chars", "chunk_overlap": 0, **splitter})) as resources:
        summarised(resources, "one", told)
        hits = resources.memory("memory").knowledge("notes", user="ann").search("kettle", top_k=50)
        return sorted(hits, key=lambda hit: hit.part)


SENTENCES = "The kettle leaks. The kettle whistles. The kettle is red."


def test_each_field_of_a_text_splitter_acts(load: Any) -> None:
    """Each field of `text_splitter` makes other chunks than its default."""
    assert [hit.text for hit in chunks(load, SENTENCES, chunk_size=20, type="none")] == [SENTENCES]
    assert len(chunks(load, SENTENCES, chunk_size=25, type="sentence")) == 3
    assert len(chunks(load, SENTENCES, chunk_size=45, type="sentence")) == 2
    assert len(chunks(load, SENTENCES, chunk_size=25, unit="tokens")) == 1
    overlapping = chunks(load, SENTENCES, chunk_size=45, chunk_overlap=22, type="sentence")
    assert "whistles" in overlapping[0].text
    assert "whistles" in overlapping[1].text
    marked = "kettle one#kettle two#kettle three"
    assert [hit.text for hit in chunks(load, marked, chunk_size=14, separators=["#"])] == [
        "kettle one#",
        "kettle two#",
        "kettle three",
    ]
    bare = chunks(load, marked, chunk_size=14, separators=["#"], keep_separator=False)
    assert [hit.text for hit in bare] == ["kettle one", "kettle two", "kettle three"]
    ending = "The kettle leaks at the handle. A kettle."
    assert len(chunks(load, ending, chunk_size=32, type="sentence")[-1].text) < 15
    assert len(chunks(load, ending, chunk_size=32, min_chunk=20, type="sentence")[-1].text) >= 20
    for add, there in ((True, True), (False, False)):
        hits = chunks(load, SENTENCES, chunk_size=25, type="sentence", add_start_index=add)
        assert ("start_index" in (hits[1].metadata or {})) is there


def recalled(load: Any, told: list[str], question: str, **base: Any) -> str:
    """Return what a context of a session is given from documents with these texts."""
    with load(knowing({"type": "none"}, **base)) as resources:
        for number, text in enumerate(told):
            resources.memory("memory").knowledge("notes", embedder=base.get("embedder")).add(f"d{number}", text)
        session = resources.session({"id": "memory", "key": "two"}, user="ann")
        session.add_user_message(question)
        return str(session.context().tail_messages)


def test_each_field_of_a_search_acts(load: Any) -> None:
    """The fields of `knowledge_base` decide when contexts get hits, how many, how good, and how many tokens."""
    texts = [f"The kettle number {number} leaks." for number in range(6)]
    ask = "Which kettle leaks?"
    for mode, given in (("always", True), ("on_demand", False), ("never", False), ("session.message_count > 9", False)):
        assert ("leaks" in recalled(load, texts, ask, search_mode=mode)) is given, mode
    assert [recalled(load, texts, ask, top_k=most).count("leaks.") for most in (1, 3)] == [1, 3]
    assert "leaks." in recalled(load, ["The kettle leaks."], "kettle, teapot, spoon, table", score_threshold=0.1)
    assert "leaks." not in recalled(load, ["The kettle leaks."], "kettle, teapot, spoon, table", score_threshold=0.9)
    assert recalled(load, texts, ask, max_tokens=40).count("leaks.") < recalled(load, texts, ask).count("leaks.")


def test_a_collection_may_be_per_user_or_session(load: Any) -> None:
    """A collection may be named after the user or the session; with `write: false` nothing is written to it."""
    for collection, name, write in (
        ("of {user_id}", "of ann", True),
        ("of {session_id}", "of default/memory/one", True),
        ("all", "all", True),
        ("all", "all", False),
    ):
        with load(knowing(collection_id=collection, write=write)) as resources:
            summarised(resources, "one", "The kettle leaks.")
            hits = resources.memory("memory").knowledge(name, user="ann").search("kettle")
            assert bool(hits) is write, collection


@WORDLLAMA
def test_search_types_find_by_meaning_and_variety(load: Any) -> None:
    """`similarity` finds a text without common words; `mmr` ranks a text that repeats another lower."""
    dog = ["The dog barked all night.", "Interest rates went up."]
    ask = "Did a hound make noise?"
    contexts = {
        how: recalled(load, dog, ask, embedder="wordllama", search_type=how) for how in ("keyword", "similarity")
    }
    assert "barked" not in contexts["keyword"]
    assert "barked" in contexts["similarity"]
    same = ["The dog barked all night.", "The dog barked the whole night.", "A puppy sleeps in its basket."]
    shown = dict[tuple[str, float], str]()
    for fetch, variety in ((20, 0.1), (20, 1.0), (2, 0.1)):
        how = {"search_type": "mmr", "top_k": 2, "lambda_mult": variety, "fetch_k": fetch, "embedder": "wordllama"}
        shown[str(fetch), variety] = recalled(load, same, "The dog barked at night", **how)
    assert "puppy" in shown["20", 0.1]
    assert "puppy" not in shown["20", 1.0]
    assert "puppy" not in shown["2", 0.1]


def test_at16_chunks_are_written_later_if_the_embedder_fails(load: Any) -> None:
    """If chunks cannot be written the summary is committed, an event says why, and the next context writes them."""
    works, deferred = list[bool](), list[dict[str, Any]]()

    def embed(texts: list[str]) -> list[list[float]]:
        if not works:
            raise RuntimeError("the knowledge base is down")
        return [[1.0, 0.5] for _ in texts]

    MODELS.register("down at first", lambda: embed)
    with load(knowing(embedder="down at first")) as resources:
        memory = resources.memory("memory")
        memory.on("knowledge:deferred", lambda _, facts: deferred.append(facts))
        session = summarised(resources, "one", "The kettle leaks.")
        knowledge = memory.knowledge("notes", user="ann")
        assert (deferred[0]["collection"], "the knowledge base is down" in deferred[0]["why"]) == ("notes", True)
        assert knowledge.documents() == []
        works.append(True)
        session.context()
        assert [hit.text for hit in knowledge.search("kettle")] == ["The kettle leaks."]


def test_an_unknown_embedder_is_refused_when_it_loads(load: Any) -> None:
    """An unknown embedder is refused when the file loads, with the nearest name."""
    pytest.importorskip("numpy", reason="the extra vectors is not installed")
    (where,) = refused(load, knowing(embedder="wordlama"))
    assert where == "long_term_memory_strategy.knowledge_base.embedder"
    (blank,) = refused(load, knowing(embedder=""))
    assert blank == where
