"""How strategies are configured: objects, names, native keys, Alquimia's and Compozy's blocks, and their options."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest import ConfigError
from palimpsest.compaction import Plan, Snapshot
from palimpsest.compaction.erase import Neuralyzer
from palimpsest.compaction.evict import Lru, SimpleFifo
from palimpsest.compaction.knowledge import KnowledgeBase
from palimpsest.compaction.ladder import Ladder
from palimpsest.compaction.loading import STRATEGIES, load
from palimpsest.compaction.mask import MaskResults
from palimpsest.compaction.style import Style
from palimpsest.compaction.summarize import HybridSummary, Summarize
from palimpsest.compaction.triggers import Triggers
from palimpsest.context import short_term


def one(given: Any) -> Any:
    """Return the single strategy that this configuration loads."""
    (strategy,), _ = load(given)
    return strategy


def refusal(given: Any) -> ConfigError:
    """Return the ConfigError that this configuration raises."""
    with pytest.raises(ConfigError) as refused:
        load(given)
    return refused.value


def test_strategies_are_objects_names_mappings_or_a_list() -> None:
    """Strategies load from objects, names, mappings or a list of these, in order; nothing gives no strategy."""
    own = Summarize(name="mine", triggers=Triggers(message_count=9))

    found, warnings = load([own, "lru", {"strategy": "ladder", "low_water": 0.2, "threshold": 0.7}])

    assert found[0] is own
    assert [type(strategy) for strategy in found] == [Summarize, Lru, Ladder]
    assert found[2].triggers == Triggers(threshold=0.7)
    assert warnings == []
    assert load(None) == ((), [])
    assert load([]) == ((), [])


def test_a_name_alone_has_the_usual_rules() -> None:
    """A name alone has default triggers: flushes at 0.8 of the limits, the ladder at 1.0, the summarizer at 20
    interactions."""
    assert one("fifo") == SimpleFifo(triggers=Triggers(threshold=0.8))
    assert one("ladder").triggers == Triggers(threshold=1.0)
    usual = Triggers(interaction_threshold_qty=20, interaction_threshold_tokens=20_000)
    assert one("cod-summarizer").triggers == one({"strategy": "summarizer", "min_entries": 2}).triggers == usual


@pytest.mark.parametrize("given", ["neuralyzer", {"strategy": "lru", "triggers": {}}, Lru()])
def test_without_a_rule_a_strategy_warns(given: Any) -> None:
    """A strategy without a trigger loads with the warning that it never fires by itself."""
    _, warnings = load(given)

    assert len(warnings) == 1
    assert "can never fire by itself" in warnings[0]


def test_rules_stand_beside_the_options_or_under_triggers() -> None:
    """Triggers stand among the options or under `triggers`, not both; lists from a file become tuples."""
    rules = {"interaction_threshold_qty": 5, "on_tools_success_threshold": ["close_*"]}
    flat = one({"strategy": "summarizer", "interaction_keep": 2, **rules})
    nested = one({"strategy": "summarizer", "interaction_keep": 2, "triggers": rules})

    assert flat == nested == Summarize(interaction_keep=2, triggers=Triggers(**rules))
    assert refusal({"strategy": "lru", "triggers": rules, "max_entries": 5}).where == "long_term.triggers"


def test_a_block_of_alquimias_summarizer_has_its_defaults() -> None:
    """Alquimia's summarizer defaults to 20 interactions, 20,000 tokens and five passes."""
    found = one({"long_term_memory_id": "cod-summarizer", "interaction_threshold_qty": 15, "interaction_keep": 3})

    assert found.triggers == Triggers(interaction_threshold_qty=15, interaction_threshold_tokens=20_000)
    assert (found.cod_max_loops, found.interaction_keep, found.style.cod_max_loops) == (5, 3, 5)
    assert one({"strategy": "summarizer"}).cod_max_loops == 3
    assert one({"long_term_memory_id": "summarizer", "cod_max_loops": 0, "knowledge_base": None}).cod_max_loops == 0


@pytest.mark.parametrize("loops", [11, -1, True, "3"])
def test_passes_are_0_to_10(loops: object) -> None:
    """`cod_max_loops` has to be a whole number from 0 to 10."""
    refused = refusal([{"long_term_memory_id": "summarizer", "cod_max_loops": loops}])

    assert refused.where == "long_term[0].cod_max_loops"


def test_a_block_of_alquimias_neuralyzer() -> None:
    """A neuralyzer must keep fewer interactions than fire it, and warns without a trigger."""
    block = {"long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 30}

    assert one({**block, "interaction_keep": 29}).triggers.enabled == ("interaction_threshold_qty",)
    assert refusal({**block, "interaction_keep": 30}).where == "long_term.interaction_keep"
    assert refusal({**block, "interaction_keep": -1}).where == "long_term.interaction_keep"
    assert one({**block, "interaction_keep": 30, "input_tokens_threshold": 9}).interaction_keep == 30
    assert len(load({"long_term_memory_id": "neuralyzer"})[1]) == 1


@pytest.mark.parametrize(
    ("key", "block", "where"),
    [
        ("knowledge_base", {}, "collection_id"),
        ("knowledge_base", {"collection_id": "{tenant}"}, "collection_id"),
        ("knowledge_base", {"collection_id": "x", "top_k": 0}, "top_k"),
        ("knowledge_base", {"collection_id": "x", "score_threshold": 1.1}, "score_threshold"),
        ("knowledge_base", {"collection_id": "x", "lambda_mult": -0.1}, "lambda_mult"),
        ("knowledge_base", {"collection_id": "x", "search_type": "semantic"}, "search_type"),
        ("knowledge_base", {"collection_id": "x", "search_type": "similarity"}, "search_type"),
        ("knowledge_base", {"collection_id": "x", "search_mode": "message.pop('role')"}, "search_mode"),
        ("knowledge_base", {"collection_id": "x", "topk": 3}, "topk"),
        ("text_splitter", {"chunk_size": 512, "chunk_overlap": 512}, "chunk_overlap"),
        ("text_splitter", {"unit": "words"}, "unit"),
        ("text_splitter", {"separators": "x"}, "separators"),
    ],
)
def test_a_fault_in_a_knowledge_base_is_named_by_its_place(key: str, block: dict[str, Any], where: str) -> None:
    """A fault in a block's knowledge base is named by its place inside the block."""
    refused = refusal({"long_term_memory_id": "summarizer", key: block})

    assert refused.where.startswith(f"long_term.{key}.{where}")


@pytest.mark.parametrize(
    ("mode", "meant"),
    [("alwys", "always"), ("Always", "always"), ("on-demand", "on_demand"), ("nevr", "never"), ("sometimes", None)],
)
def test_an_unknown_search_mode_is_refused_with_the_allowed_ones(mode: str, meant: str | None) -> None:
    """The error for an unknown search mode names the allowed modes and the nearest one; a condition, also of a single
    word, is still accepted."""
    refused = refusal(
        {"long_term_memory_id": "summarizer", "knowledge_base": {"collection_id": "x", "search_mode": mode}}
    )
    assert refused.where == "long_term.knowledge_base.search_mode"
    assert refused.allowed.startswith("always, on_demand, never, or a condition")
    assert refused.nearest == meant
    for condition in ("True", "session.interaction_count > 1"):
        assert KnowledgeBase(collection_id="x", search_mode=condition).search_mode == condition


def test_a_knowledge_base_of_a_block() -> None:
    """A block's knowledge base and its splitter have the documented defaults."""
    found = one(
        {
            "long_term_memory_id": "summarizer",
            "knowledge_base": {"collection_id": "notes", "top_k": 3},
            "text_splitter": {"separators": ["|"]},
        }
    )

    assert found.knowledge_base == KnowledgeBase(collection_id="notes", top_k=3)
    assert (found.knowledge_base.search_mode, found.knowledge_base.write) == ("always", True)
    assert (found.text_splitter.chunk_size, found.text_splitter.chunk_overlap) == (512, 64)
    assert found.text_splitter.separators == ("|",)


def test_a_block_of_compozys() -> None:
    """Compozy's `summarize_threshold` is 0.8 by default; a low threshold lowers low water with it."""
    assert one({"type": "fifo"}) == one({"type": "simple_fifo", "summarize_threshold": 0.8})
    assert one({"type": "lru", "summarize_threshold": 0.4}).low_water == 0.25
    hybrid = one({"type": "hybrid_summary", "summary_tokens": 300, "summarize_oldest_percent": 0.3, "low_water": 0.4})
    own = {"summary_tokens": 300, "summarize_oldest_percent": 0.3, "low_water": 0.4}
    documented = {"interaction_keep": 0, "on_failure": "keep"}
    assert hybrid == HybridSummary(**documented, **own, triggers=Triggers(threshold=0.8))  # type: ignore[arg-type]


def test_strategies_of_one_kind_are_numbered() -> None:
    """Strategies of one kind in a list without names are told apart by a number."""
    rules = Triggers(interaction_threshold_qty=9)
    many = ["summarizer", {"long_term_memory_id": "summarizer"}, Summarize(triggers=rules), "lru", "summarizer"]

    loaded, _ = load(many)

    assert [one.name for one in loaded] == ["summarizer", "summarizer-2", "summarizer-3", "lru", "summarizer-4"]
    taken, _ = load([Summarize(name="summarizer-2", triggers=rules), "summarizer", "summarizer"])
    assert [one.name for one in taken] == ["summarizer-2", "summarizer", "summarizer-3"]


def test_a_native_strategy_keeps_two_interactions() -> None:
    """Native strategies keep the two newest interactions; blocks have the defaults of their documentation."""
    for given in (Summarize(), HybridSummary(summary_tokens=9), Neuralyzer(), Ladder(), one("summarizer")):
        assert given.interaction_keep == 2  # type: ignore[attr-defined]
    assert Summarize(recent_entries=9).interaction_keep == 0
    for name in ("summarizer", "neuralyzer"):
        block = {"long_term_memory_id": name, "interaction_threshold_qty": 3}
        assert one(block).interaction_keep == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("block", "where"),
    [
        ({"type": "magic"}, "type"),
        ({"type": "neuralyzer"}, "type"),
        ({"type": "lru", "summarize_threshold": 0}, "summarize_threshold"),
        ({"type": "lru", "summarize_threshold": 1.5}, "summarize_threshold"),
        ({"type": "lru", "low_water": 0.8}, "low_water"),
        ({"type": "hybrid_summary"}, "summary_tokens"),
        ({"type": "hybrid_summary", "summary_tokens": 0}, "summary_tokens"),
        ({"type": "lru", "summarize_oldest_percent": 2}, "summarize_oldest_percent"),
        ({"type": "lru", "summarise_threshold": 0.5}, "summarise_threshold"),
        ({"type": "lru", "threshold": 0.5}, "threshold"),
        ({"long_term_memory_id": "magic"}, "long_term_memory_id"),
        ({"long_term_memory_id": "neuralyzer", "knowledge_base": None}, "knowledge_base"),
        ({"strategy": "magic"}, "strategy"),
        ({"strategy": 3}, "strategy"),
        ({"strategy": "lru", "triggers": {"max_entrys": 3}}, "triggers.max_entrys"),
        ({"strategy": "lru", "triggers": {"max_entries": "3"}}, "triggers.max_entries"),
        ({"strategy": "lru", "triggers": 3}, "triggers"),
        ({"strategy": "summarizer", "interaction_conditions": ["message.rolle == 'x'"]}, "interaction_conditions[0]"),
        ({"stratgy": "lru"}, "stratgy"),
        ({}, "strategy"),
    ],
)
def test_a_fault_is_named_by_its_place(block: dict[str, Any], where: str) -> None:
    """A fault is named by the list's index and the key, with the nearest valid name where there is one."""
    assert refusal(["lru", block]).where.startswith(f"long_term[1].{where}")


def test_an_unknown_name_lists_those_there_are() -> None:
    """An unknown name is refused with the allowed ones: four for flushes, all for native strategies, and the
    nearest."""
    assert refusal({"type": "magic"}).allowed == "simple_fifo, lru, hybrid_summary, token_aware_lru"
    refused = refusal("neuralizer")
    assert refused.where == "long_term"
    assert refused.nearest == "neuralyzer"
    assert "token_aware_lru" in refused.allowed


def test_a_strategy_of_the_other_kind_is_refused_with_its_right_place() -> None:
    """A strategy for contexts is refused under `long_term`, and one that compacts under `short_term`, with the place
    where it belongs."""
    refused = refusal({"memory_strategy_id": "max_tokens"})
    assert (refused.where, refused.nearest) == ("long_term.memory_strategy_id", None)
    assert "short_term_memory_strategy" in refused.allowed
    with pytest.raises(ConfigError, match=r"short_term\.long_term_memory_id: .*long_term_memory_strategy"):
        short_term.load({"long_term_memory_id": "neuralyzer"}, "short_term")


@pytest.mark.parametrize("given", [3, object(), Lru])
def test_an_invalid_strategy_is_refused(given: object) -> None:
    """Anything but a name, a mapping or a strategy object is refused."""
    assert refusal(given).where == "long_term"


def test_keys_without_effect_are_checked_and_warned_about() -> None:
    """A flush that makes no summaries accepts the keys of one that does, and warns about them."""
    (strategy,), warnings = load({"type": "lru", "summary_tokens": 300, "summarize_oldest_percent": 0.5})

    assert strategy == Lru(triggers=Triggers(threshold=0.8))
    assert len(warnings) == 2


def test_two_strategies_of_one_session_need_two_names() -> None:
    """Two strategies of a session may not have the same given name, since their last runs are stored by name."""
    deep = {"strategy": "lru", "name": "deep"}
    assert refusal([deep, deep]).where == "long_term[1].name"
    assert len(load(["lru", {"strategy": "lru", "name": "deep", "low_water": 0.1}])[0]) == 2


class Nothing:
    """A user's own strategy."""

    name, summarizes, erases, style, triggers = "nothing", False, False, Style(), Triggers(message_count=3)

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(reason="nothing_to_compact")


def test_a_registered_strategy_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered class or function takes options, a registered object takes none; unknown options are refused."""
    monkeypatch.setattr(STRATEGIES, "_registered", {})
    STRATEGIES.register("nothing", Nothing)
    STRATEGIES.register("made", Nothing(7))

    assert one({"strategy": "nothing", "depth": 4}).depth == 4
    assert one("made").depth == 7
    assert refusal({"strategy": "nothing", "deepth": 4}).nearest == "depth"
    assert refusal({"strategy": "made", "depth": 4}).where == "long_term.depth"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("name", 5), ("name", " "), ("style", None), ("triggers", None), ("triggers", {"threshold": 1})],
)
def test_a_user_s_strategy_is_checked_when_it_is_loaded(field: str, wrong: object) -> None:
    """A user's strategy whose name, style or triggers have a wrong type raises a ConfigError that names the
    attribute."""
    mine = Nothing()
    setattr(mine, field, wrong)

    assert refusal(mine).where == f"long_term.{field}"


# --- what options may be


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: SimpleFifo(low_water=0), "low_water"),
        (lambda: SimpleFifo(low_water=1), "low_water"),
        (lambda: Lru(max_tokens=0), "max_tokens"),
        (lambda: Lru(name=" "), "name"),
        (lambda: Lru(triggers={}), "triggers"),
        (lambda: Neuralyzer(interaction_keep=-1), "interaction_keep"),
        (lambda: MaskResults(recent_tokens=-1), "recent_tokens"),
        (lambda: Summarize(interaction_keep=True), "interaction_keep"),
        (lambda: Summarize(min_entries=0), "min_entries"),
        (lambda: Summarize(target_ratio=0), "target_ratio"),
        (lambda: Summarize(target_ratio=1.1), "target_ratio"),
        (lambda: Summarize(cod_max_loops=11), "cod_max_loops"),
        (lambda: Summarize(cod_max_loops=-1), "cod_max_loops"),
        (lambda: Summarize(prompt_template="Sum this up."), "prompt_template"),
        (lambda: Summarize(on_failure="raise"), "on_failure"),
        (lambda: Summarize(summaries="chains"), "summaries"),
        (lambda: Summarize(rebuild_every=-1), "rebuild_every"),
        (lambda: HybridSummary(summary_tokens=0), "summary_tokens"),
        (lambda: HybridSummary(summary_tokens=9, summarize_oldest_percent=0), "summarize_oldest_percent"),
        (lambda: Ladder(summarize="yes"), "summarize"),
    ],
)
def test_a_strategy_checks_its_options_when_it_is_made(make: Any, option: str) -> None:
    """An option out of range is refused by name when the strategy is made."""
    with pytest.raises(ConfigError) as refused:
        make()

    assert refused.value.where == option
