"""Fields of Alquimia's blocks that other tests only load: each does something when it stands in a file."""

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
def test_pinned_entries_take_from_the_budget_or_not(load: Any, count_pinned: bool, shown: list[str]) -> None:
    """They are shown either way."""
    with load(short(memory_max_tokens=200, count_pinned=count_pinned)) as resources:
        session = open_in(resources)
        session.add_system_message(words(100, "rules"))
        turns(session, *[100] * 3)
        entries = session.context().entries
        assert questions(entries) == shown
        assert entries[0].text.startswith("rules")


def test_a_cut_is_made_anew_or_kept(load: Any) -> None:
    """By "exact" each context has all that fits; by "low_water" it keeps what it began with, until that is too much."""
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


def test_a_condition_that_cannot_be_evaluated_raises_where_it_is_strict(load: Any) -> None:
    """Else what it is asked of stays."""
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
    """An interaction with a call of a tool that ends so."""
    session.add_user_message("please")
    session.add_tool_call("send_mail", "", call_id="a")
    session.add_tool_result("send_mail", "done", call_id="a", status=status)
    session.add_assistant_message("ok")


@pytest.mark.parametrize(
    ("status", "denied", "fires"), [("error", False, True), ("success", False, False), ("denied", False, False)]
)
def test_a_tool_that_fails_fires(load: Any, status: str, denied: bool, fires: bool) -> None:
    """By its name with a star; one that was denied does where that counts as a failure."""
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


def test_before_turn_looks_at_triggers_when_a_context_is_asked_for(load: Any) -> None:
    """Also at what another has added, who compacts nothing."""
    block = {"long_term_memory_strategy": summarizer(interaction_threshold_qty=3)}
    for before_turn in (False, True):
        with load({**block, "before_turn": before_turn}) as resources:
            turns(open_in(resources, auto_compact="off"), *[60] * 4)
            session = open_in(resources, summarizer=SHORT)
            session.context()
            assert bool(session.summaries()) is before_turn


def test_long_term_run_says_whether_one_strategy_runs_or_all(load: Any) -> None:
    """Where two fire at once the second one runs after the first, on what that has left."""
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


def test_a_prompt_of_ones_own_is_what_a_model_is_asked(load: Any) -> None:
    """With the conversation in its place."""
    block = summarizer(interaction_threshold_qty=3, prompt_template="Answer in rhymes: {content}")
    with load(block) as resources:
        model = Scripted("short")
        turns(open_in(resources, summarizer=model), *[60] * 3)
        assert model.prompts[0].startswith("Answer in rhymes: ")
        assert "q0" in model.prompts[0]


# --- knowledge


def summarised(resources: Resources, key: str, told: str, user: str = "ann") -> Session:
    """A session whose summary says this."""
    made = CallableSummarizer(lambda _: told, checked=False)
    session = resources.session({"id": "memory", "key": key}, user=user, summarizer=made)
    turns(session, 300, 300)
    assert session.summaries()
    return session


def knowing(splitter: dict[str, Any] | None = None, **base: Any) -> dict[str, Any]:
    """A memory whose summaries go into a knowledge base."""
    block = summarizer(interaction_threshold_qty=2, knowledge_base={"collection_id": "notes", **base})
    return {"long_term_memory_strategy": {**block, **({"text_splitter": splitter} if splitter else {})}}


def chunks(load: Any, told: str, **splitter: Any) -> list[Any]:
    """The chunks that a summary becomes, in their order."""
    with load(knowing({"unit": "chars", "chunk_overlap": 0, **splitter})) as resources:
        summarised(resources, "one", told)
        found = resources.memory("memory").knowledge("notes", user="ann").search("kettle", top_k=50)
        return sorted(found, key=lambda hit: hit.part)


SENTENCES = "The kettle leaks. The kettle whistles. The kettle is red."


def test_a_summary_is_split_as_the_file_says(load: Any) -> None:
    """Each field makes other chunks than its default does."""
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
    """What a context of another session of the same user is given."""
    with load(knowing({"type": "none"}, **base)) as resources:
        for number, text in enumerate(told):
            resources.memory("memory").knowledge("notes", embedder=base.get("embedder")).add(f"d{number}", text)
        session = resources.session({"id": "memory", "key": "two"}, user="ann")
        session.add_user_message(question)
        return str(session.context().tail_messages)


def test_a_context_is_given_what_the_file_says(load: Any) -> None:
    """When, how many, how well they have to answer, and how many tokens they may take."""
    told = [f"The kettle number {number} leaks." for number in range(6)]
    ask = "Which kettle leaks?"
    for mode, there in (("always", True), ("on_demand", False), ("never", False), ("session.message_count > 9", False)):
        assert ("leaks" in recalled(load, told, ask, search_mode=mode)) is there, mode
    assert [recalled(load, told, ask, top_k=most).count("leaks.") for most in (1, 3)] == [1, 3]
    assert "leaks." in recalled(load, ["The kettle leaks."], "kettle, teapot, spoon, table", score_threshold=0.1)
    assert "leaks." not in recalled(load, ["The kettle leaks."], "kettle, teapot, spoon, table", score_threshold=0.9)
    assert recalled(load, told, ask, max_tokens=40).count("leaks.") < recalled(load, told, ask).count("leaks.")


def test_a_collection_may_be_that_of_a_user_or_a_session(load: Any) -> None:
    """Its name says whose; with `write` false nothing goes there."""
    for collection, name, write in (
        ("of {user_id}", "of ann", True),
        ("of {session_id}", "of default/memory/one", True),
        ("all", "all", True),
        ("all", "all", False),
    ):
        with load(knowing(collection_id=collection, write=write)) as resources:
            summarised(resources, "one", "The kettle leaks.")
            found = resources.memory("memory").knowledge(name, user="ann").search("kettle")
            assert bool(found) is write, collection


@WORDLLAMA
def test_meaning_and_variety_are_as_the_file_says(load: Any) -> None:
    """By meaning a text is found that has none of the words; with variety one that says the same is put back."""
    dog = ["The dog barked all night.", "Interest rates went up."]
    ask = "Did a hound make noise?"
    given = {how: recalled(load, dog, ask, embedder="wordllama", search_type=how) for how in ("keyword", "similarity")}
    assert "barked" not in given["keyword"]
    assert "barked" in given["similarity"]
    same = ["The dog barked all night.", "The dog barked the whole night.", "A puppy sleeps in its basket."]
    found = dict[tuple[str, float], str]()
    for fetch, variety in ((20, 0.1), (20, 1.0), (2, 0.1)):
        how = {"search_type": "mmr", "top_k": 2, "lambda_mult": variety, "fetch_k": fetch, "embedder": "wordllama"}
        found[str(fetch), variety] = recalled(load, same, "The dog barked at night", **how)
    assert "puppy" in found["20", 0.1]
    assert "puppy" not in found["20", 1.0]
    assert "puppy" not in found["2", 0.1]


def test_at16_a_knowledge_base_that_is_down_is_written_later(load: Any) -> None:
    """The summary is committed, an event tells what became of its chunks, and the next context writes them."""
    works, told = list[bool](), list[dict[str, Any]]()

    def embed(texts: list[str]) -> list[list[float]]:
        if not works:
            raise RuntimeError("the knowledge base is down")
        return [[1.0, 0.5] for _ in texts]

    MODELS.register("down at first", lambda: embed)
    with load(knowing(embedder="down at first")) as resources:
        memory = resources.memory("memory")
        memory.on("knowledge:deferred", lambda _, facts: told.append(facts))
        session = summarised(resources, "one", "The kettle leaks.")
        knowledge = memory.knowledge("notes", user="ann")
        assert (told[0]["collection"], "the knowledge base is down" in told[0]["why"]) == ("notes", True)
        assert knowledge.documents() == []
        works.append(True)
        session.context()
        assert [hit.text for hit in knowledge.search("kettle")] == ["The kettle leaks."]


def test_an_embedder_that_is_none_is_refused_when_it_loads(load: Any) -> None:
    """With the nearest name, before a session is opened."""
    pytest.importorskip("numpy", reason="the extra vectors is not installed")
    (where,) = refused(load, knowing(embedder="wordlama"))
    assert where == "long_term_memory_strategy.knowledge_base.embedder"
    (blank,) = refused(load, knowing(embedder=""))
    assert blank == where
