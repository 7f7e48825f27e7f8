"""Clauses of the documents' acceptance cases that `test_resources_cases` lacks, each by a file that is loaded."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from commands import read, run
from failing_backends import flaky
from palimpsest import ConfigError, StoreUnavailable
from palimpsest.errors import PalimpsestError
from palimpsest.resources import Resources
from palimpsest.strategies import CallableSummarizer
from palimpsest.testing import FakeClock
from summaries import steps
from talks import Scripted
from test_resources_cases import compozy, load, open_in, refused, short, summarizer, turns, words

__all__ = ["load"]  # the fixture

KEPT = CallableSummarizer(lambda _: "short", checked=False)


# --- Alquimia's


def test_at3_the_note_names_the_shortened_entry(load: Any) -> None:
    """A clamped entry's note has its id; a context that exceeds the budget on purpose says `over_budget`."""
    for oversize in ("clamp", "keep_newest"):
        with load(short(memory_max_tokens=500, oversize=oversize)) as resources:
            session = open_in(resources)
            session.add_user_message(words(198, "question"))
            session.add_tool_call("look", "", call_id="a")
            result = session.add_tool_result("look", words(700, "result"), call_id="a")
            session.add_assistant_message("ok")
            context = session.context()
            assert (result.id in str(context.messages)) is (oversize == "clamp")
            assert ("over_budget" in context.problems) is (oversize == "keep_newest")


def test_at6_input_tokens_are_those_of_the_last_call(load: Any) -> None:
    """`input_tokens_threshold` compares the last call's input; a figure from before a compaction does not count."""
    block = summarizer(interaction_threshold_qty=0, input_tokens_threshold=5000, interaction_keep=1)
    with load(block) as resources:
        session = open_in(resources, summarizer=KEPT)
        counts = list[int]()
        for number, used in enumerate((5000, 5001, None)):
            session.add_user_message(words(100, f"q{number}"))
            context = session.context()
            if used is not None:
                session.record_usage({"prompt_tokens": used, "completion_tokens": 1}, context=context)
            session.add_assistant_message("ok")
            counts.append(len(session.summaries(history=True)))
    assert counts == [0, 1, 1]


def test_at11_erased_text_is_found_by_no_search(load: Any) -> None:
    """What a neuralyzer erased is found by no recall."""
    block = {"long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 5, "interaction_keep": 2}
    with load({"long_term_memory_strategy": block}) as resources:
        session = open_in(resources)
        session.add_user_message("swordfish it is")
        session.add_assistant_message("ok")
        assert session.recall("swordfish").hits
        turns(session, *[4] * 4)
        assert not session.recall("swordfish").hits


NAME, ORDER, CALL = "Ann Lee lives in Oslo", "order ORD-1234 came broken", "order of 7 May 2023"


@pytest.mark.parametrize(
    ("loops", "answers", "calls"),
    [
        (3, [steps(NAME), steps(NAME, ORDER, missing=[ORDER]), steps(NAME, ORDER, CALL, missing=[CALL])], 3),
        (3, [steps(NAME), steps(NAME, missing=[])], 2),
        (0, ["They talked about ORD-1234."], 1),
        (3, [steps(NAME, ORDER), steps(NAME, CALL, missing=[CALL]), steps(NAME, CALL, missing=[CALL])], 3),
        (3, [steps(NAME), "{ no json", "{ no json"], 3),
    ],
)
def test_at13_and_at14_passes_of_a_summary(load: Any, loops: int, answers: list[str], calls: int) -> None:
    """The model is asked again until nothing is missing, at most `cod_max_loops` times.

    If a pass loses an identifier, or the answer is no JSON twice, the earlier pass is stored.
    """
    block = summarizer(interaction_threshold_qty=100, cod_max_loops=loops)
    with load(block) as resources:
        model = Scripted(*answers)
        session = open_in(resources, summarizer=model)
        session.add_user_message("Hello, I am Ann Lee and I live in Oslo. My order ORD-1234 of 7 May 2023 came broken.")
        session.add_assistant_message("Sorry for that. I have found it. Shall I refund it to your Visa card?")
        session.add_user_message("Yes, and please call me at 8:56 pm. The kettle leaks at the handle.")
        session.add_assistant_message("Done: the refund is on its way. Anything else?")
        result = session.compact()
    assert result.summary is not None
    assert model.calls == calls
    if loops:
        assert NAME in result.summary.text
    if "ORD-1234" in answers[0]:
        assert "ORD-1234" in result.summary.text


def test_at15_identifiers_survive_many_compactions(load: Any) -> None:
    """Without a model forty identifiers survive six compactions, and pinned text stays as it is."""
    with load(summarizer(interaction_threshold_qty=100)) as resources:
        session = open_in(resources)
        session.add_user_message("My customer number is CUST-4711.", pinned=True)
        session.add_assistant_message("Noted.")
        ids = [f"ORD-{1000 + number}" for number in range(40)]
        for start in range(0, 40, 7):
            for one in ids[start : start + 7]:
                session.add_user_message(f"My order is {one}. " + words(40))
                session.add_assistant_message("I see. " + words(20))
            assert session.compact().done
        (summary,) = session.summaries()
        assert [one for one in ids if one not in summary.text] == []
        assert "CUST-4711" in str(session.context().messages)


def test_at16_a_declared_knowledge_base_acts(load: Any, tmp_path: Path) -> None:
    """A declared knowledge base gives at most `top_k` hits and stores chunks once; a bad splitter is refused."""
    base = {"collection_id": "sessions", "search_mode": "always", "search_type": "keyword", "top_k": 3}
    splitter = {"type": "sentence", "chunk_size": 20, "chunk_overlap": 0}
    block = summarizer(interaction_threshold_qty=2, knowledge_base=base, text_splitter=splitter)
    source = {"long_term_memory_strategy": block, "store": f"sqlite:///{tmp_path / 'k.db'}"}
    summary = " ".join(
        f"The kettle number {number} of Ann leaks at its handle and has to go back." for number in range(9)
    )
    with load(source) as resources:
        first = resources.session(
            {"id": "memory", "key": "one"}, user="ann", summarizer=CallableSummarizer(lambda _: summary, checked=False)
        )
        turns(first, 200, 200)
        assert first.summaries()
        second = resources.session({"id": "memory", "key": "two"}, user="ann")
        second.add_user_message("Which kettle leaks?")
        shown = str(second.context().messages)
        assert 1 <= shown.count("leaks at its handle") <= 3
        knowledge = resources.memory("memory").knowledge("sessions", user="ann")
        hits = len(knowledge.search("kettle leaks handle", top_k=50))
        first.compact()
        assert len(knowledge.search("kettle leaks handle", top_k=50)) == hits
    wrong = summarizer(text_splitter={"chunk_size": 512, "chunk_overlap": 512})
    assert refused(load, wrong) == ["text_splitter.chunk_overlap"]


# --- Compozy's


def test_bt3_the_longest_and_the_empty_key(load: Any, tmp_path: Path) -> None:
    """A key of 256 characters is accepted by library and command, and an empty one refused."""
    path = tmp_path / "memory.json"
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    path.write_text(json.dumps(compozy(max_tokens=100, persistence=place)), "utf-8")
    assert run("memory", "append", "memory", "a" * 256, "x", "--config", str(path)).exit_code == 0
    assert run("memory", "append", "memory", "", "x", "--config", str(path)).exit_code == 2
    with Resources.load(path) as resources:
        assert resources.keyed("memory").read("a" * 256).total == 1
        with pytest.raises(ConfigError):
            resources.keyed("memory").append("", "x")


def test_bt4_and_bt5_a_template_finds_what_a_command_wrote(tmp_path: Path) -> None:
    """What a command wrote under a key is found by a template that makes that key.

    It is not found in another project, another memory, or under `key:metadata`.
    """
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    key = "user:{{.workflow.input.user_id}}"
    source = compozy(max_tokens=1000, persistence=place, default_key_template=key)
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(source), "utf-8")
    for text in ("hello", "again"):
        assert run("memory", "append", "memory", "user:john_doe", text, "--config", str(path)).exit_code == 0
    with Resources.load(path) as resources:
        session = resources.session("memory", {"workflow": {"input": {"user_id": "john_doe"}}})
        assert [entry.text for entry in session.entries()] == ["hello", "again"]
        with pytest.raises(ConfigError, match="user_id"):
            resources.session("memory", {})
        assert resources.keyed("memory").read("user:john_doe:metadata").total == 0
    assert read("memory", "stats", "memory", "user:john_doe", "--config", str(path))["message_count"] == 2
    for other in ({"project": "other"}, {"id": "second"}):
        with Resources.load({**source, **other}) as resources:
            (id,) = resources
            assert resources.keyed(id).read("user:john_doe").total == 0


@pytest.mark.parametrize(
    ("keys", "sizes", "fires"),
    [
        ({"max_tokens": 1000}, [700], False),
        ({"max_tokens": 1000}, [400, 399], False),
        ({"max_tokens": 1000}, [400, 400], True),
        ({"max_context_ratio": 0.01, "token_provider": {"provider": "mock"}}, [15, 16], False),
        ({"max_context_ratio": 0.01, "token_provider": {"provider": "mock"}}, [16, 16], True),
    ],
)
def test_bt6_at_exactly_the_threshold(load: Any, keys: dict[str, Any], sizes: list[int], fires: bool) -> None:
    """A memory is flushed at exactly its threshold and not below: 799 of 1,000 tokens do not flush, 800 do."""
    with load(compozy(flushing={"type": "simple_fifo", "summarize_threshold": 0.8}, **keys)) as resources:
        session = open_in(resources)
        for number, size in enumerate(sizes):
            session.add_assistant_message(words(size, f"m{number}"))
        assert (session.stats().archived_entries > 0) is fires


def test_bt7_a_message_over_low_water_stays(load: Any) -> None:
    """A newest message that alone exceeds low water stays active, and no further flush is tried."""
    with load(compozy(max_tokens=1000, flushing={"type": "simple_fifo"})) as resources:
        session, flushed = open_in(resources), list[Any]()
        resources.memory("memory").on("evicted", lambda _, facts: flushed.append(facts))
        session.add_assistant_message(words(300, "first"))
        session.add_assistant_message(words(600, "second"))
        assert [entry.text.split()[0] for entry in session.active_entries()] == ["second"]
        assert len(flushed) == 1
        assert session.compact().reason == "nothing_to_compact"


def test_bt11_invalid_options_of_a_flush_are_refused(load: Any, tmp_path: Path) -> None:
    """An unknown strategy or an invalid option of `flush` is refused by library and command."""
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(compozy(max_tokens=100, persistence=place)), "utf-8")
    with Resources.load(path) as resources:
        keyed = resources.keyed("memory")
        keyed.append("a", "x")
        with pytest.raises(ConfigError, match="simple_fifo, lru, hybrid_summary, token_aware_lru"):
            keyed.flush("a", strategy="magic")
        for wrong in ({"max_keys": -1}, {"max_keys": 10_001}, {"threshold": 0}, {"threshold": 1.1}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                keyed.flush("a", **wrong)  # type: ignore[arg-type]
    for option in (("--max-keys", "-1"), ("--max-keys", "10001"), ("--threshold", "0"), ("--threshold", "1.1")):
        assert run("memory", "flush", "memory", "a", *option, "--config", str(path)).exit_code == 2


def test_bt12_a_public_tokenizer_counts(load: Any) -> None:
    """A public tokenizer, named by its encoding, counts as it does elsewhere."""
    with load(compozy(max_tokens=1000)) as resources:
        counter = open_in(resources, "cl100k_base").options.counter
        assert [counter.count(text) for text in ("Hello world", "This is a test.")] == [2, 5]


def test_bt16_a_late_summary_brings_nothing_back(load: Any) -> None:
    """A summary that ends after its session has expired makes no new session."""
    clock = FakeClock()
    flushing = {"type": "hybrid_summary", "summary_tokens": 60, "cod_max_loops": 0}
    source = compozy(max_tokens=10_000, flushing=flushing, auto_compact="off")
    with load(source | {"persistence": {"type": "in_memory", "ttl": "10s"}}, clock=clock) as resources:

        def late(_: str) -> str:
            clock.advance(11)
            return "short"

        session = open_in(resources, summarizer=CallableSummarizer(late, checked=False))
        turns(session, *[60] * 4)
        with contextlib.suppress(PalimpsestError):  # whatever it says of it
            session.compact()
        assert resources.memory("memory").sessions() == []
        assert session.entries() == []


def test_bt18_a_breaker_opens_and_recovers(load: Any) -> None:
    """After five failures in a row calls fail without asking the store; after 30 seconds it is asked again."""
    clock, backend = FakeClock(), flaky("flakydeclared")
    breaker = {"max_failures": 5, "reset_timeout": "30s"}
    source = compozy(max_tokens=100, persistence=None, store="flakydeclared://", circuit_breaker=breaker)
    with load(source, clock=clock) as resources:
        session = open_in(resources)
        session.add_user_message("hello")
        backend.away, backend.asked = True, 0
        for _ in range(7):
            with pytest.raises(StoreUnavailable):
                session.entries()
        assert backend.asked == 5
        clock.advance(30)
        backend.away = False
        assert len(session.entries()) == 1


# --- the concepts' text, as it is printed

CONCEPTS = {
    "E7": """{ "short_term_memory_strategy": [ { "memory_strategy_id": "max_tokens", "memory_max_tokens": 8000 } ]}""",
    "E8": """{ "long_term_memory_strategy": [ { "long_term_memory_id": "summarizer", "interaction_threshold_qty": 20,
"interaction_threshold_tokens": 20000, "cod_max_loops": 5, "interaction_keep": 3, "instructions":
"Focus on action items and decisions made.", "knowledge_base": { "collection_id": "session-summaries",
"search_mode": "always" } } ]}""",
    "E9": """{ "long_term_memory_strategy": [ { "long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 30,
"interaction_keep": 5 } ]}""",
}


def written(folder: Path, name: str) -> Path:
    """Write one of the documents' texts to a file and return its path."""
    path = folder / f"{name}.json"
    path.write_text(CONCEPTS[name], "utf-8")
    return path


def test_e7_a_list_of_short_term_strategies_bounds_a_context(tmp_path: Path) -> None:
    """A list with a short-term strategy bounds contexts to whole interactions, the newest."""
    with Resources.load(written(tmp_path, "E7")) as resources:
        session = open_in(resources)
        turns(session, *[3_000] * 4)
        assert session.context().tokens <= 8_000
        assert [entry.text.split()[0] for entry in session.context().entries if entry.is_human] == ["q2", "q3"]


def test_e8_instructions_are_in_the_prompt(tmp_path: Path) -> None:
    """`instructions` are in the summarizer's prompt, and the summary is written to its collection."""
    with Resources.load(written(tmp_path, "E8")) as resources:
        model = Scripted("They settled on seven items.")
        reference = {"id": "memory", "key": "a"}
        session = resources.session(reference, user="ann", summarizer=model)
        turns(session, *[60] * 20)
        assert "Focus on action items and decisions made." in model.prompts[0]
        assert session.verify().covered == 34
        assert resources.memory("memory").knowledge("session-summaries", user="ann").search("seven items")


def test_e9_a_neuralyzer_in_a_list_erases(tmp_path: Path) -> None:
    """A neuralyzer in a list does nothing at 29 interactions and erases all but five at 30."""
    with Resources.load(written(tmp_path, "E9")) as resources:
        session = open_in(resources)
        turns(session, *[4] * 29)
        assert not any(entry.erased for entry in session.entries())
        turns(session, 4, start=29)
        assert [entry.text.split()[0] for entry in session.active_entries() if entry.is_human] == [
            f"q{number}" for number in range(25, 30)
        ]
