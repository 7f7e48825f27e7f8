"""Declared memories: the documents' own examples, what they load to and do, their keys, stores and environment."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, ConfigError, Memory
from palimpsest.errors import Closed, InvalidResource
from palimpsest.resources import AsyncResources, Resource, Resources
from palimpsest.resources.opening import opened_with
from palimpsest.strategies import CallableSummarizer
from writer import quarters

MINIMAL = """\
resource: memory
id: user_conversation
type: token_based
max_tokens: 4000
persistence:
  type: in_memory
"""


def written(folder: Path, text: str, name: str = "memory.yaml") -> Path:
    """Write a file with this text and return its path."""
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def only(source: Any) -> Resource:
    """Load the source and return its only memory."""
    resources = Resources.load(source)
    (id,) = resources
    return resources[id]


def mistakes(source: Any) -> list[str]:
    """Load a source that must be refused, and return the key of each mistake."""
    with pytest.raises(InvalidResource) as caught:
        Resources.load(source)
    return [mistake.key for mistake in caught.value.mistakes]


def setting(resource: Resource, name: str) -> tuple[Any, str]:
    """Return a resolved value and its origin."""
    (match,) = [one for one in resource.effective() if one.option == name]
    return match.value, match.origin


def strategy(resource: Resource, kind: str = "long_term", index: int = 0) -> dict[str, tuple[Any, str]]:
    """Return the fields of a strategy, each with its value and origin."""
    start = f"{kind}[{index}]."
    return {
        s.option.removeprefix(start): (s.value, s.origin) for s in resource.effective() if s.option.startswith(start)
    }


# --- Alquimia's text

BARE_SHORT = (
    '{ "memory_strategy_id": "max_tokens", "memory_max_tokens": 8000, "conditions": ["message.role != \'tool\'"]}'
)
BARE_SUMMARIZER = """{ "long_term_memory_id": "summarizer", "interaction_threshold_qty": 15,
"interaction_threshold_tokens": 15000, "cod_max_loops": 3, "interaction_keep": 2,
"instructions": "Focus on decisions made and action items.",
"knowledge_base": { "collection_id": "session-memory", "search_mode": "always", "top_k": 3 }}"""
BARE_NEURALYZER = '{ "long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 30, "interaction_keep": 5}'
PROFILE = """{ "profile": { "short_term_memory_strategy":
[ { "memory_strategy_id": "max_tokens", "memory_max_tokens": 8000 } ],
"long_term_memory_strategy": [ { "long_term_memory_id": "summarizer", "interaction_threshold_qty": 20,
"cod_max_loops": 3, "interaction_keep": 2 } ] }}"""


def test_a_bare_short_term_strategy_loads_and_acts(tmp_path: Path) -> None:
    """A bare short-term strategy loads, and its condition drops a tool's result together with its call."""
    resource = only(written(tmp_path, BARE_SHORT, "short.json"))
    fields = strategy(resource, "short_term")

    assert fields["memory_max_tokens"] == (8_000, "given")
    assert fields["conditions"][1] == "given"
    assert fields["gap"] == ("stop", "our default")
    with Resources.load(json.loads(BARE_SHORT)) as resources:
        chat = resources.session({"id": "memory", "key": "a"})
        chat.add_user_message("look it up")
        chat.add_tool_call("find", {}, call_id="c")
        chat.add_tool_result("find", "found", call_id="c")
        chat.add_assistant_message("there")
        assert [message["role"] for message in chat.context().messages] == ["user", "assistant"]


def test_an_omitted_field_has_the_documents_default() -> None:
    """An omitted field has the default of its document: a summarizer fires by tokens, a neuralyzer never fires."""
    summarizer = strategy(only({"long_term_memory_strategy": {"long_term_memory_id": "summarizer"}}))
    assert summarizer["interaction_threshold_qty"] == (20, "document default")
    assert summarizer["interaction_threshold_tokens"] == (20_000, "document default")
    assert summarizer["cod_max_loops"] == (5, "document default")
    assert summarizer["interaction_keep"] == (0, "document default")
    neuralyzer = only({"long_term_memory_id": "neuralyzer"})
    assert strategy(neuralyzer)["interaction_threshold_qty"] == (-1, "document default")
    assert "can never fire" in " ".join(neuralyzer.warnings)


def test_a_bare_summarizer_loads_with_its_knowledge_base(tmp_path: Path) -> None:
    """A bare summarizer with a knowledge base loads without a warning and runs with its instructions."""
    resource = only(written(tmp_path, BARE_SUMMARIZER, "s.json"))
    assert strategy(resource)["cod_max_loops"] == (3, "given")
    assert not resource.warnings

    prompts: list[str] = []

    def model(prompt: str) -> str:
        prompts.append(prompt)
        return "They spoke of many things."

    with Resources.load(json.loads(BARE_SUMMARIZER)) as resources:
        checked = CallableSummarizer(model, checked=False)
        chat = resources.session({"id": "memory", "key": "a"}, summarizer=checked)
        for number in range(15):
            chat.add_user_message(f"question {number} " + "words " * 30)
            chat.add_assistant_message(f"answer {number}")
        assert chat.stats().summaries == 1
    assert "Focus on decisions made and action items." in prompts[0]


def test_a_neuralyzer_leaves_five_of_thirty() -> None:
    """At 30 interactions a neuralyzer erases all but five; at 29 it does nothing."""
    with Resources.load(json.loads(BARE_NEURALYZER)) as resources:
        chat = resources.session({"id": "memory", "key": "a"})
        for number in range(29):
            chat.add_user_message(f"question {number}")
            chat.add_assistant_message(f"answer {number}")
        assert len(chat.entries()) == 58
        chat.add_user_message("question 29")
        chat.add_assistant_message("answer 29")
        assert next(entry.text for entry in chat.entries() if not entry.erased) == "question 25"


def test_strategies_load_alone_in_lists_and_under_a_profile(tmp_path: Path) -> None:
    """Strategies load alone, in lists and under a profile.

    A context with a summary stays within the budget.
    """
    for key, block in (
        ("short_term_memory_strategy", json.loads(BARE_SHORT)),
        ("long_term_memory_strategy", json.loads(BARE_NEURALYZER)),
    ):
        assert only({key: [block]}).options[key.removesuffix("_memory_strategy")] == [block]
    assert only({"profile": {"long_term_memory_strategy": [json.loads(BARE_NEURALYZER)]}}).options["long_term"]

    resource = only(written(tmp_path, PROFILE, "p.json"))
    assert strategy(resource)["interaction_keep"] == (2, "given")
    with Resources.load(json.loads(PROFILE)) as resources:
        chat = resources.session({"id": "memory", "key": "a"}, summarizer=lambda _: "Twenty questions were asked.")
        for number in range(20):
            chat.add_user_message(f"question {number} " + "words " * 30)
            chat.add_assistant_message(f"answer {number}")
        context = chat.context()
        assert [entry.text for entry in context.entries if entry.role == "assistant"] == ["answer 18", "answer 19"]
        assert len(context.summaries) == 1
        assert context.tokens <= 8_000


def test_an_invalid_condition_is_reported_with_its_column(tmp_path: Path) -> None:
    """An invalid condition is reported with its line, its key, its column and what stands there."""
    condition = "message.role == 1 and message.rolle == 1"
    text = f'short_term_memory_strategy:\n  - memory_strategy_id: max_tokens\n    conditions: ["{condition}"]\n'
    with pytest.raises(InvalidResource) as caught:
        Resources.load(written(tmp_path, text))
    (mistake,) = caught.value.mistakes
    assert (mistake.line, mistake.key) == (3, "short_term_memory_strategy[0].conditions[0]")
    assert mistake.within == "column 23, at 'message.rolle'"
    assert "conditions[0], column 23, at 'message.rolle': 'message.role == 1 and" in str(caught.value)


@pytest.mark.parametrize("word", ["INCREMENTAL", "FLUSH", "EPHEMERAL", "Incremental", "flush"])
def test_the_words_of_persistence_load(word: str) -> None:
    """The words of `persistence_strategy` load in any letter case; an ephemeral memory stores nothing."""
    assert only({"persistence_strategy": word}).options["persistence"] == word.lower()
    with Resources.load({"persistence_strategy": word}) as resources:
        chat = resources.session({"id": "memory", "key": "a"})
        chat.add_user_message("hello")
        stored = resources.memory("memory").session(chat.id).entries()
        assert len(stored) == (0 if word.lower() == "ephemeral" else 1)


# --- Compozy's text


def test_a_privacy_policy_redacts_and_withholds(tmp_path: Path) -> None:
    """The document's privacy policy redacts, with the given replacement, and withholds messages of a type."""
    text = MINIMAL + (
        "privacy_policy:\n"
        '  redact_patterns: ["\\\\b\\\\d{3}-\\\\d{2}-\\\\d{4}\\\\b"]  # SSN pattern\n'
        '  non_persistable_message_types: ["payment_info"]\n'
        '  default_redaction_string: "[REDACTED]"\n'
    )
    with Resources.load(written(tmp_path, text)) as resources:
        chat = resources.session({"id": "user_conversation", "key": "a"})
        chat.add_user_message("My SSN is 123-45-6789")
        chat.add_user_message("card 4711", metadata={"type": "payment_info"})
        assert [entry.text for entry in chat.entries()] == ["My SSN is [REDACTED]"]
    with Resources.load(written(tmp_path, text.replace("[REDACTED]", "[SSN]"))) as resources:
        chat = resources.session({"id": "user_conversation", "key": "a"})
        chat.add_user_message("My SSN is 123-45-6789")
        assert chat.entries()[0].text == "My SSN is [SSN]"


def test_an_allocation_bounds_the_summaries(tmp_path: Path) -> None:
    """`token_allocation` bounds the summaries; its shares must sum to 1 and have known names."""
    block = "token_allocation:\n  short_term: 0.6  # 60%\n  long_term: 0.3   # 30%\n  system: 0.1      # 10%\n"
    text = MINIMAL.replace("4000", "1000") + block + "flushing: {type: hybrid_summary, summary_tokens: 400}\n"
    with Resources.load(written(tmp_path, text)) as resources:
        chat = resources.session(
            {"id": "user_conversation", "key": "a"},
            counter=quarters,
            summarizer=CallableSummarizer(lambda _: "What was said. " * 85, checked=False),
        )
        chat.add_system_message("s" * 196)
        for number in range(30):
            chat.add_user_message(f"{number} " + "words " * 40)
            chat.add_assistant_message("yes")
        context = chat.context()
        assert 0 < context.parts.summaries <= 300
        assert context.tokens <= 1_000 + context.parts.overhead

    assert mistakes({**loaded(text), "token_allocation": {"short_term": 0.6, "long_term": 0.3, "system": 0.2}}) == [
        "token_allocation"
    ]
    only(
        {
            **loaded(text),
            "token_allocation": {"short_term": 0.5, "long_term": 0.3, "system": 0.1, "user_defined": {"x": 0.1}},
        }
    )
    assert mistakes({**loaded(text), "type": "buffer", "token_allocation": {"short_term": 1}}) == ["token_allocation"]
    assert mistakes({**loaded(text), "token_allocation": {"short_term": 2, "x": 1}}) == [
        "token_allocation.x",
        "token_allocation.short_term",
    ]


def loaded(text: str) -> dict[str, Any]:
    """Return what a YAML text says."""
    import yaml

    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def test_the_documents_inline_examples_load() -> None:
    """The inline values of the document load: ids, a ratio, limits, versions, and lengths of leases."""
    base = loaded(MINIMAL)
    for id in ("user_conversation", "session_context", "agent_workspace"):
        assert only({**base, "id": id}).id == id
    half = {**base, "max_context_ratio": 0.5, "token_provider": {"provider": "openai", "model": "gpt-4o"}}
    del half["max_tokens"]
    assert only(half).options == {
        "model": "gpt-4o",
        "max_log_tokens": 64_000,
        "long_term": [{"type": "simple_fifo"}],
    }
    assert only({**base, "type": "message_count_based", "max_messages": 100}).options["max_messages"] == 100
    assert only(base).options["max_log_tokens"] == 4_000
    for version in ("1.0.0", "2.1.0-beta"):
        assert only({**base, "version": version}).version == version
    resource = only({**base, "locking": {"append_ttl": "30s", "clear_ttl": "10s", "flush_ttl": "5m"}})
    assert setting(resource, "turn_lease") == ("30s", "given")
    assert setting(only(base), "compaction_lease") == ("5m", "document default")


@pytest.mark.parametrize("flush", ["simple_fifo", "lru", "hybrid_summary", "token_aware_lru", "fifo"])
@pytest.mark.parametrize("kind", ["token_based", "message_count_based", "buffer"])
def test_each_type_works_with_each_flushing_strategy(kind: str, flush: str) -> None:
    """Each type of memory with each flushing strategy keeps every context within its limits and flushes by itself."""
    flushing: dict[str, Any] = {"type": flush}
    if flush == "hybrid_summary":
        flushing["summary_tokens"] = 60
    declared = {**loaded(MINIMAL), "type": kind, "max_tokens": 400, "max_messages": 12, "flushing": flushing}
    with Resources.load(declared) as resources:
        chat = resources.session({"id": "user_conversation", "key": "a"}, counter=quarters)
        for number in range(20):
            chat.add_user_message(f"{number} " + "words " * 10)
            chat.add_assistant_message("yes")
            context = chat.context()
            assert context.parts.log + context.parts.summaries <= 400
            assert len(context.messages) <= 12
        assert chat.stats().active_entries < 40


def test_a_ratio_is_of_the_most_specific_window() -> None:
    """`max_context_ratio` is of `context_window`, else of the model's window, else of the provider's.

    Without a known window it is refused; beside `max_tokens` the smaller limit holds.
    """
    base = {key: value for key, value in loaded(MINIMAL).items() if key != "max_tokens"}

    def limit(**more: Any) -> Any:
        return only({**base, "max_context_ratio": 0.5, **more}).options["max_log_tokens"]

    assert limit(context_window=10_000) == 5_000
    for hundredths in range(1, 101):  # of which binary fractions have some a little less
        assert limit(context_window=200_000, max_context_ratio=hundredths / 100) == hundredths * 2_000
    assert limit(context_window=10_000, token_provider={"provider": "openai", "model": "gpt-4o"}) == 5_000
    assert limit(token_provider={"model": "gpt-4o"}) == 64_000
    assert limit(token_provider={"provider": "mock"}, max_context_ratio=0.01) == 40
    assert limit(token_provider={"provider": "anthropic"}) == 100_000
    assert limit(token_provider={"model": "gpt-4o"}, max_tokens=1_000) == 1_000
    assert mistakes({**base, "max_context_ratio": 0.5}) == ["max_context_ratio"]
    assert mistakes({**base, "max_context_ratio": 0.5, "token_provider": {"model": "nobody-knows"}}) == [
        "max_context_ratio"
    ]


def test_a_providers_api_key_is_not_kept() -> None:
    """An API key in a file is neither resolved nor shown, and warns unless it names a variable."""
    provider = {"provider": "openai", "model": "gpt-4o", "api_key": "sk-verysecretkey1234567890", "fallback": "gpt-4"}
    resource = only({**loaded(MINIMAL), "token_provider": provider})
    assert "verysecret" not in repr(resource)
    assert any("who can read this file can read the key" in text for text in resource.warnings)
    assert not any(
        "who can read this file can read the key" in text
        for text in only({**loaded(MINIMAL), "token_provider": {"api_key": "${KEY}"}}).warnings
    )


# --- keys


@pytest.mark.parametrize("key", ["user:123", "user_2024-01-01@example.com", "a", "a" * 256, "k:metadata"])
def test_valid_keys(key: str) -> None:
    """A valid key has a session of its own, whatever the key's length."""
    with Resources.load(loaded(MINIMAL)) as resources:
        resources.session({"id": "user_conversation", "key": key}).add_user_message("hello")
        assert len(resources.session({"id": "user_conversation", "key": key}).entries()) == 1
        assert len(resources.session({"id": "user_conversation", "key": key}).id) <= 256


@pytest.mark.parametrize("key", ["", "user name", "user/name", "user#x", "__x", "x__", "user:*", "a" * 257, 7, "a\n"])
def test_invalid_keys_are_refused(key: Any) -> None:
    """An invalid key is refused with the rule for keys."""
    with Resources.load(loaded(MINIMAL)) as resources, pytest.raises(ConfigError, match="256"):
        resources.session({"id": "user_conversation", "key": key})


def test_projects_memories_and_keys_have_separate_sessions() -> None:
    """The same key in different projects or memories, and keys that differ in one character, have separate sessions."""
    base = loaded(MINIMAL)
    ids = {
        only({**base, "project": project, "id": id}).session_id(key)
        for project in ("one", "two", {"id": "three"})
        for id in ("a", "b" * 100)
        for key in ("k", "k:metadata", "x" * 255 + "a", "x" * 255 + "b", "X" * 255 + "a")
    }
    assert len(ids) == 30
    assert only({**base, "project": 7}).project == "default"
    assert only({**base, "project": {"id": ""}}).project == "default"
    assert mistakes({**base, "project": "a/b"}) == ["project"]


def test_a_reference_names_a_memory_with_key_and_mode(tmp_path: Path) -> None:
    """A reference is an id, or a mapping with key and mode; without a key the memory's template makes it.

    A read-only reference is never written to.
    """
    declared = {**loaded(MINIMAL), "default_key_template": "session:{{.workflow.input.session_id}}"}
    variables = {"workflow": {"input": {"session_id": "s-1", "user_id": "john_doe"}}}
    with Resources.load(declared) as resources:
        chat = resources.session("user_conversation", variables)
        assert chat.id == "default/user_conversation/session:s-1"
        templated = {"id": "user_conversation", "key": "user:{{.workflow.input.user_id}}"}
        resources.session(templated, variables).add_user_message("hello")
        resources.session(templated, variables).add_assistant_message("hi")
        read = resources.session({"id": "user_conversation", "key": "user:john_doe", "mode": "read-only"})
        assert [entry.text for entry in read.entries()] == ["hello", "hi"]
        assert len(read.context().messages) == 2
        with pytest.raises(Exception, match="read"):
            read.add_user_message("no")
        assert len(read.entries()) == 2

        for reference, told in (
            ("another", "a declared memory"),
            ("user_conversatio", "did you mean 'user_conversation'"),
            ({"id": "user_conversation", "key": "a", "mode": "write-only"}, "read-write, read-only"),
            ({"id": "user_conversation", "key": "a", "more": 1}, "id, key, mode"),
            ({"key": "a"}, "the id of a memory"),
            (7, "the id of a memory"),
        ):
            with pytest.raises(ConfigError, match=told):
                resources.session(reference)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"workflow\.input\.session_id") as caught:
            resources.session("user_conversation", {})
        assert "session:{{.workflow.input.session_id}}" in str(caught.value)
    with Resources.load(loaded(MINIMAL)) as resources, pytest.raises(ConfigError, match="default_key_template"):
        resources.session("user_conversation")


# --- places


def test_two_memories_with_one_store_share_it(tmp_path: Path) -> None:
    """Two memories with one store share it but not their sessions; forgetting a user reaches both."""
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    for id in ("one", "two"):
        written(tmp_path, json.dumps({**loaded(MINIMAL), "id": id, "persistence": place}), f"{id}.json")
    with Resources.load(tmp_path) as resources:
        assert list(resources) == ["one", "two"]
        assert resources.memory("one") is resources.memory("two")
        for id in resources:
            resources.session({"id": id, "key": "k"}, user="ann").add_user_message(f"I am in {id}")
    with Memory.open(tmp_path / "a.db") as memory:
        assert {info.session for info in memory.sessions()} == {"default/one/k", "default/two/k"}
    with Resources.load(tmp_path) as resources:
        assert resources.session({"id": "two", "key": "k"}).entries()[0].text == "I am in two"
        resources.memory("one").forget(user="ann")
        assert resources.session({"id": "two", "key": "k"}).entries() == []


def test_a_ttl_is_the_lifetime_of_a_session(tmp_path: Path) -> None:
    """A session lasts for its `ttl` after the last addition."""
    time = [1_700_000_000_000_000]
    declared = {**loaded(MINIMAL), "persistence": {"type": "in_memory", "ttl": "10s"}}
    with Resources.load(declared, clock=lambda: time[0]) as resources:
        chat = resources.session({"id": "user_conversation", "key": "k"})
        chat.add_user_message("hello")
        time[0] += 6_000_000
        chat.add_user_message("again")
        time[0] += 9_000_000
        assert len(chat.entries()) == 2
        time[0] += 1_000_000
        assert resources.session({"id": "user_conversation", "key": "k"}).entries() == []


def test_an_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The address of a store may come from a variable that is named, or from the backend's own.

    If it is not set, the error names it.
    """
    declared = {**loaded(MINIMAL), "persistence": {"type": "sqlite", "url": "${WHERE}"}}
    with Resources.load(declared) as resources, pytest.raises(ConfigError, match="WHERE"):
        resources.session({"id": "user_conversation", "key": "k"})
    monkeypatch.setenv("WHERE", f"sqlite:///{tmp_path}/b.db")
    with Resources.load(declared) as resources:
        resources.session({"id": "user_conversation", "key": "k"}).add_user_message("hello")
    assert (tmp_path / "b.db").exists()
    redis = {**loaded(MINIMAL), "persistence": {"type": "redis", "ttl": "24h"}}
    with Resources.load(redis) as resources, pytest.raises(ConfigError, match="PALIMPSEST_MEMORY_REDIS_URL"):
        resources.session({"id": "user_conversation", "key": "k"})


@pytest.mark.anyio
async def test_asynchronous_resources_work_alike() -> None:
    """AsyncResources opens its stores with the first verb and closes them at the end."""
    async with AsyncResources.load(loaded(MINIMAL)) as resources:
        chat = resources.session({"id": "user_conversation", "key": "k"})
        await chat.add_user_message("hello")
        assert len(await chat.entries()) == 1
        assert resources.memory("user_conversation") is resources.memory("user_conversation")


USES: tuple[Callable[[Any], object], ...] = (
    lambda resources: resources.session({"id": "user_conversation", "key": "k"}),
    lambda resources: resources.memory("user_conversation"),
    lambda resources: resources.agent([{"id": "user_conversation", "key": "k"}]),
    lambda resources: resources.keyed("user_conversation"),
)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("used", [True, False])
def test_closed_resources_open_no_store_again(tmp_path: Path, use: Callable[[Any], object], *, used: bool) -> None:
    """Closed resources raise Closed for every use, since nobody would close a store that they opened."""
    path = tmp_path / "a.db"
    with Resources.load({**loaded(MINIMAL), "persistence": {"type": "sqlite", "path": str(path)}}) as resources:
        if used:
            resources.memory("user_conversation")
    resources.close()

    with pytest.raises(Closed, match=r"Resources\.load"):
        use(resources)

    assert path.exists() is used


@pytest.mark.anyio
async def test_closed_asynchronous_resources_open_no_store_again() -> None:
    """Closed AsyncResources raise Closed for every use."""
    async with AsyncResources.load(loaded(MINIMAL)) as resources:
        pass

    for use in (*USES, AsyncResources.worker):
        with pytest.raises(Closed):
            use(resources)


def test_a_folder_is_searched_for_declared_memories(tmp_path: Path) -> None:
    """Loading a folder finds memories in all folders beneath it and ignores other files, even unreadable ones."""
    (tmp_path / "deep").mkdir()
    written(tmp_path / "deep", MINIMAL)
    written(tmp_path, "workflow: &x\n  a: *x\n", "workflow.yaml")
    written(tmp_path, "not yaml at all: [", "broken.yml")
    written(tmp_path, "resource: agent\nid: x\n", "agent.yaml")
    written(tmp_path, "# resource: memory\n", "note.md")
    assert list(Resources.load(tmp_path)) == ["user_conversation"]
    written(tmp_path, MINIMAL, "again.yaml")
    with pytest.raises(InvalidResource, match=r"an id that no other memory has: this is also the id of .*again\.yaml"):
        Resources.load(tmp_path)
    assert len(Resources.load(written(tmp_path, MINIMAL.replace("user_conversation", "other"), "x.YAML"))) == 1


def test_equal_definitions_have_one_digest(tmp_path: Path) -> None:
    """Definitions with equal values have one digest, whatever the order of keys and the form of the file."""
    yaml_memory = only(written(tmp_path, MINIMAL))
    json_memory = only(written(tmp_path, json.dumps(dict(reversed(loaded(MINIMAL).items()))), "m.json"))
    assert yaml_memory.digest == json_memory.digest
    assert only({**loaded(MINIMAL), "max_tokens": 4001}).digest != yaml_memory.digest


def test_our_own_keys_stand_beside_the_documented_ones(tmp_path: Path) -> None:
    """A file may hold options of a session, `store`, `privacy`, `circuit_breaker` and `summarizer`."""
    resource = only(
        {
            **{key: value for key, value in loaded(MINIMAL).items() if key != "persistence"},
            "store": f"sqlite:///{tmp_path}/c.db",
            "persistence": None,
            "low_water": 0.5,
            "format": "anthropic",
            "mask": False,
            "privacy": "default",
            "circuit_breaker": {"max_failures": 3},
            "summarizer": {"model": "openai:gpt-4o-mini", "timeout": 20},
        }
    )
    assert setting(resource, "low_water") == (0.5, "given")
    assert resource.place.privacy == {"recognisers": "default"}
    assert resource.place.circuit_breaker == {"max_failures": 3}
    assert mistakes({"privacy": "defaul"}) == ["privacy"]
    assert mistakes({"privacy": {"recogniser": 1}}) == ["privacy.recogniser"]
    assert mistakes({"summarizer": {"modell": "x", "timeout": -1}}) == [
        *("summarizer.modell", "summarizer.timeout", "summarizer.model"),
    ]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("opnai:gpt-4o", "openai:gpt-4o"),
        ("gpt-4o", "openai:gpt-4o"),
        ({"model": "gpt-4o"}, "openai:gpt-4o"),
        ("openai", None),
        ("openai:", None),
        (":gpt-4o", None),
        ("3", None),
    ],
)
def test_an_invalid_summarizer_is_a_mistake_of_its_file(tmp_path: Path, given: Any, meant: str | None) -> None:
    """An invalid summarizer is reported with its line and the model that was probably meant, when the file loads."""
    path = written(tmp_path, MINIMAL.rstrip() + f"\nsummarizer: {json.dumps(given)}\n")
    with pytest.raises(InvalidResource) as caught:
        Resources.load(path)

    (mistake,) = caught.value.mistakes
    assert mistake.key == ("summarizer" if isinstance(given, str) else "summarizer.model")
    assert (mistake.line, mistake.nearest) == (len(path.read_text("utf-8").splitlines()), meant)


@pytest.mark.parametrize("given", ["mine", "newer:model", "openai-chatgpt:model", {"model": "newer:model"}])
def test_a_summarizer_that_may_be_registered_later_warns(given: Any) -> None:
    """A summarizer that a program or Pydantic AI may know warns, since a file cannot tell; nothing is imported."""
    source = {**loaded(MINIMAL), "summarizer": given}
    assert [warning for warning in Resources.load(source).warnings if "summarizer:" in warning]
    for known in ("openai:gpt-4o-mini", {"model": "gpt-oss", "base_url": "http://127.0.0.1:8000/v1"}):
        assert not [one for one in Resources.load({**source, "summarizer": known}).warnings if "summarizer" in one]


def test_resolved_settings_show_no_password() -> None:
    """Resolved settings show an address without its password, and each value with the key that gave it."""
    url = "postgresql://ann:verysecret@db.example/agents"
    resource = only(
        {**loaded(MINIMAL), "persistence": {"type": "postgres", "url": url}, "flushing": {"summarize_threshold": 0.9}}
    )
    assert "verysecret" not in repr(resource.effective())
    assert "verysecret" not in repr(resource)
    for wrong in (
        {"type": "redis", "ttl": "1h", "url": url},
        {"type": "file", "path": url},
        {"type": "sqlite", "url": url},
    ):
        with pytest.raises(InvalidResource) as caught:
            Resources.load({**loaded(MINIMAL), "persistence": wrong})
        assert "verysecret" not in str(caught.value)
    keys = {one.option: one.key for one in resource.effective()}
    assert keys["store"] == "persistence"
    assert keys["max_log_tokens"] == "max_tokens"
    assert keys["long_term[0].threshold"] == "flushing.summarize_threshold"
    assert setting(resource, "id") == ("user_conversation", "given")
    assert setting(resource, "project") == ("default", "our default")


def test_a_declared_memory_can_be_opened_as_a_memory(tmp_path: Path) -> None:
    """`Memory.from_resource` opens one declared memory, whose sessions have its settings unless overridden.

    So have sessions of another tenant and of a fork.
    """
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    path = written(tmp_path, json.dumps({**loaded(MINIMAL), "persistence": place}), "m.json")
    with Memory.from_resource(path) as memory:
        memory.session("a").add_user_message("hello")
        for opened_memory in (memory, memory.for_tenant("other"), memory.fork("agent/x")):
            budget = opened_memory.session("a").context().budget
            assert budget is not None
            assert budget.room == 4_000
        budget = memory.session("a", max_log_tokens=100).context().budget
        assert budget is not None
        assert budget.room == 100
    with Memory.open(tmp_path / "a.db") as memory:
        assert memory.session("a").entries()[0].text == "hello"
    written(tmp_path, json.dumps({**loaded(MINIMAL), "id": "second"}), "n.json")
    with pytest.raises(ConfigError, match="second, user_conversation"):
        Memory.from_resource(tmp_path)
    with pytest.raises(ConfigError, match="second, user_conversation"):
        Memory.from_resource(tmp_path, id="third")
    with Memory.from_resource(tmp_path, id="second", tenant="t") as memory:
        assert memory.tenant == "t"
    with pytest.raises(InvalidResource, match="max_tokens"):
        Memory.from_resource({"max_tokens": -1})


@pytest.mark.anyio
async def test_an_asynchronous_memory_is_opened_from_a_resource() -> None:
    """`AsyncMemory.from_resource` opens a declared memory with the first verb."""
    async with AsyncMemory.from_resource(loaded(MINIMAL)) as memory:
        budget = (await memory.session("a").context()).budget
        assert budget is not None
        assert budget.room == 4_000


def test_a_variable_must_hold_an_address_of_the_declared_backend(tmp_path: Path) -> None:
    """A variable for an address must hold one of the declared backend.

    Otherwise data meant for a server might be lost with the process.
    """
    file = written(tmp_path, MINIMAL.replace("in_memory", "postgres\n  url: ${SOMEWHERE}"), "server.yaml")
    for address in ("memory://", "redis://u:pw@h", "file:logs", "nothing"):
        with pytest.raises(ConfigError, match=r"persistence.url.* an address of postgres") as caught:
            opened_with(Resources.load(file)["user_conversation"], {"SOMEWHERE": address})
        assert "pw" not in str(caught.value)


def environ(**variables: Any) -> dict[str, str]:
    """Return variables of the environment with a memory's prefix."""
    return {f"PALIMPSEST_MEMORY_{name}": str(value) for name, value in variables.items()}


def test_the_environment_configures_a_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Memory.from_env` reads store, limits and resource from the environment; unset variables have no effect."""
    monkeypatch.chdir(tmp_path)
    with Memory.from_env({"PALIMPSEST_MEMORY_BACKEND": " ", "PATH": "/bin"}) as memory:
        assert memory.store.url == "memory://"
        assert memory.session("a", max_messages=5).context().budget.room > 10**9  # type: ignore[union-attr]
    with Memory.from_env(environ(BACKEND="sqlite", MAX_CONVERSATION_TOKENS=500, SUMMARIZE_THRESHOLD=300)) as memory:
        chat = memory.session("a", counter=quarters)
        for number in range(12):
            chat.add_user_message(f"question {number} " + "words " * 20)
            chat.add_assistant_message("yes")
        assert chat.stats().summaries == 1
        assert chat.context().parts.log <= 500
    assert (tmp_path / "palimpsest.db").exists()
    for name, value in environ(BACKEND="file", FILE_DIR=tmp_path / "logs").items():
        monkeypatch.setenv(name, value)
    with Memory.from_env() as memory:
        memory.session("a").add_user_message("hello")
    assert (tmp_path / "logs").is_dir()
    redis = MINIMAL.replace("in_memory", "sqlite\n  url: ${PALIMPSEST_MEMORY_POSTGRES_URL}")
    beside = environ(RESOURCE=written(tmp_path, redis, "beside.yaml"), POSTGRES_URL=f"sqlite:///{tmp_path}/beside.db")
    with Memory.from_env(beside) as memory:
        assert memory.store.url.endswith("beside.db")
    with Memory.from_env(environ(RESOURCE=written(tmp_path, MINIMAL))) as memory:
        assert memory.session("a").context().budget.room == 4_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"BACKEND": "sqlite3"}, "in_memory, file, sqlite, postgres, mongodb, redis"),
        ({"BACKEND": "FILE"}, "in_memory"),
        ({"BACKEND": "postgres"}, "PALIMPSEST_MEMORY_POSTGRES_URL"),
        ({"BACKEND": "redis"}, "PALIMPSEST_MEMORY_REDIS_URL"),
        ({"BACKEN": "file"}, "did you mean 'PALIMPSEST_MEMORY_BACKEND'"),
        ({"SQLITE_PATH": "a.db"}, "a backend, since PALIMPSEST_MEMORY_SQLITE_PATH is set"),
        ({"MAX_CONVERSATION_TOKENS": "many"}, "a whole number"),
        ({"MAX_CONVERSATION_TOKENS": 0}, "a whole number"),
        ({"SUMMARIZE_THRESHOLD": -1}, "a whole number"),
        ({"RESOURCE": "no.yaml", "BACKEND": "file"}, "only this variable, without PALIMPSEST_MEMORY_BACKEND"),
        ({"RESOURCE": "no.yaml"}, "an existing file or folder"),
        ({"BACKEND": "file", "FILE_DIR": "what?"}, "FILE_DIR.* a path without a question mark"),
        ({"BACKEND": "sqlite", "SQLITE_PATH": "a?b.db"}, "SQLITE_PATH.* a path without a question mark"),
        ({"BACKEND": "mongodb", "MONGODB_URL": "mongodb://h/a", "MONGODB_DATABASE": "b"}, "MONGODB_DATABASE"),
        ({"BACKEND": "postgres", "POSTGRES_URL": "memory://"}, "MEMORY_POSTGRES_URL.*an address of postgres"),
        ({"BACKEND": "redis", "REDIS_URL": "sqlite:///a.db"}, "MEMORY_REDIS_URL.*an address of redis"),
        ({"BACKEND": "mongodb", "MONGODB_URL": "redis://u:pw@h"}, "MEMORY_MONGODB_URL: 'redis://…@h' is not"),
    ],
)
def test_an_invalid_variable_is_named(variables: dict[str, Any], told: str) -> None:
    """An invalid variable raises ConfigError that names it."""
    with pytest.raises(ConfigError, match=told):
        Memory.from_env(environ(**variables))


def test_a_short_term_strategy_counts_as_a_budget() -> None:
    """A strategy that bounds a context counts as a bound, so that no warning says that nothing bounds it."""
    with warnings.catch_warnings(), Memory.from_resource(json.loads(BARE_SHORT)) as memory:
        warnings.simplefilter("error")
        memory.session("a").add_user_message("hello")
        context = memory.session("a").context()
        assert (len(context.messages), context.report.warnings) == (1, ())


def test_options_of_a_program_override_declared_ones() -> None:
    """Options that a program passes override declared ones, except that a read-only reference stays read-only."""
    with Resources.load(loaded(MINIMAL)) as resources:
        budget = resources.session({"id": "user_conversation", "key": "a"}, max_log_tokens=100).context().budget
        assert budget is not None
        assert budget.room == 100
        read = resources.session({"id": "user_conversation", "key": "a", "mode": "read-only"}, readonly=False)
        with pytest.raises(Exception, match="read"):
            read.add_user_message("no")


def test_an_empty_key_has_no_effect() -> None:
    """A key with no value has no effect, even if another key sets the same option."""
    provider = {"token_provider": {"model": "gpt-4o"}}
    plainly = only({**loaded(MINIMAL), **provider})
    empty = only({**loaded(MINIMAL), **provider, "model": None, "flushing": None, "summary_share": None})
    assert empty.options["model"] == "gpt-4o"
    assert empty.options["long_term"] == plainly.options["long_term"]
    same = only({**loaded(MINIMAL), **provider, "model": "gpt-4o"})
    assert same.options == plainly.options


ALLOCATED = {"short_term": 0.6, "long_term": 0.3, "system": 0.1}


@pytest.mark.parametrize("within", ["persistence", None])
def test_every_value_of_a_breaker_is_listed_with_its_origin(within: str | None) -> None:
    """`effective` lists every value of a breaker with its origin; missing ones have the document's defaults."""

    def listed(given: object) -> dict[str, tuple[Any, ...]]:
        place = {"type": "in_memory", **({"circuit_breaker": given} if within else {})}
        declared = {**loaded(MINIMAL), "persistence": place, **({} if within else {"circuit_breaker": given})}
        found = (one for one in only(declared).effective() if one.option.startswith("circuit_breaker"))
        return {one.option.partition(".")[2]: (one.value, one.origin, one.key) for one in found}

    key = f"{within}.circuit_breaker" if within else "circuit_breaker"
    assert listed({"timeout": "1s"}) == {
        "": ({"timeout": "1s"}, "given", key),
        "timeout": ("1s", "given", f"{key}.timeout"),
        "max_failures": (5, "document default", ""),
        "reset_timeout": ("30s", "document default", ""),
    }
    assert listed({})["timeout"] == ("5s", "document default", "")
    assert listed({"enabled": False}) == {"": (None, "given", key)}
    assert listed(None) == {"": (None, "our default", "")}


@pytest.mark.parametrize("ttl", ["0", "24h", None])
def test_the_lifetime_of_sessions_is_listed_with_its_origin(ttl: str | None) -> None:
    """`effective` lists the lifetime of sessions with its origin, also if it is declared as unlimited."""
    resource = only({**loaded(MINIMAL), "persistence": {"type": "in_memory", "ttl": ttl}})
    said = ("given", "persistence.ttl") if ttl else ("our default", "")
    (found,) = (one for one in resource.effective() if one.option == "lifetime")
    assert (found.value, found.origin, found.key) == ("24h" if ttl == "24h" else None, *said)


@pytest.mark.parametrize("provider", [None, {"model": "gpt-4o"}])
def test_shares_of_a_known_budget_give_no_warning(provider: dict[str, Any] | None) -> None:
    """A `token_allocation` of a limit in tokens, or of the window of a model, gives no warning."""
    limit = {"max_tokens": 100 if provider is None else None, "max_messages": 5}
    resource = only({**loaded(MINIMAL), **limit, "token_provider": provider, "token_allocation": ALLOCATED})
    assert not any("token_allocation" in text for text in resource.warnings)


@pytest.mark.parametrize(
    ("provider", "counter"),
    [
        ({"model": "new-1", "fallback": "gpt-4"}, "cl100k_base"),
        ({"model": "new-1", "fallback": "cl100k_base"}, "cl100k_base"),
        ({"fallback": "gpt-4"}, "cl100k_base"),
        ({"model": "gpt-4o", "fallback": "gpt-4"}, "o200k_base"),
        ({"model": "new-1", "fallback": "legacy"}, "o200k_base"),
    ],
)
def test_a_fallback_counts_and_bounds_nothing(provider: dict[str, str], counter: str) -> None:
    """A `fallback` counts tokens if the model is unknown or missing, and its window does not bound contexts."""
    with Resources.load({**loaded(MINIMAL), "max_tokens": 50_000, "token_provider": provider}) as found:
        session = found.session({"id": "user_conversation", "key": "k"})
        assert session.options.counter.name == counter
        budget = session.context().budget
        assert budget is not None
        assert budget.room == 50_000


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"archive": False}, "archive: false has an effect only with"),
        ({"archive": False, "persistence_strategy": "INCREMENTAL"}, "archive: false has an effect only with"),
        ({"context_window": 8_000}, "context_window has no effect"),
        ({"type": "buffer", "flushing": {"type": "lru"}}, "flushing.type"),
        ({"flushing": {"type": "lru", "summary_tokens": 5}}, "summary_tokens has no effect"),
        (
            {"token_provider": {"provider": "openai", "endpoint": "https://example.com"}},
            "api_key, api_key_env, endpoint and settings are not used",
        ),
        (
            {"token_provider": {"provider": "openai", "settings": {"region": "eu"}}},
            "endpoint and settings are not used",
        ),
        ({"token_provider": {"provider": "nobody"}}, "nobody: no program has registered a counter of this name"),
        ({"token_provider": {"model": "new-1", "fallback": "legacy"}}, "fallback: legacy has no effect"),
        ({"max_tokens": None, "max_messages": 5, "token_allocation": ALLOCATED}, "token_allocation has no effect"),
        ({"privacy": {"recognisers": {"email": "pseudonym"}}}, "pseudonyms need a key"),
        ({"privacy_policy": {"recognisers": {"email": "pseudonym"}}}, "pseudonyms need a key"),
    ],
)
def test_keys_without_effect_warn(keys: dict[str, Any], told: str) -> None:
    """A declared key without effect warns."""
    assert any(told in text for text in only({**loaded(MINIMAL), **keys}).warnings)
    assert not any("archive" in text for text in only({"archive": False, "persistence_strategy": "flush"}).warnings)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"max_tokens": "4000"}, r"max_tokens: '4000'.*tokens of what the memory gives to a context"),
        ({"flushing": {"type": "lru", "max_tokens": 0}}, r"flushing\.max_tokens: 0 is not accepted"),
        ({"low_water": 1.5}, r": low_water: 1\.5 is not accepted"),
        ({"flushing": {"low_water": 0.9}}, r"flushing\.low_water: 0\.9.*under the threshold, 0\.8"),
        ({"short_term_memory_strategy": {"memory_strategy_id": "max_tokens", "max_tokens": 5}}, "did you mean '"),
    ],
)
def test_an_error_names_the_full_key(declared: dict[str, Any], told: str) -> None:
    """An error names the full key, and what its value bounds, where several keys have one name."""
    with pytest.raises(InvalidResource, match=told):
        Resources.load({**loaded(MINIMAL), **declared})
