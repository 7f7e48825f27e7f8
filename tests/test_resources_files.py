"""Files of declared memories: every mistake is reported with its line, whatever somebody writes in them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest import ConfigError, Memory
from palimpsest.errors import InvalidResource, MissingExtra
from palimpsest.resources import AsyncResources, Resources
from palimpsest.resources.keys import Template
from test_resources import MINIMAL, PROFILE, loaded, written

WRONG = """\
resource: memory
id: "support chat"
type: token_based
version: "1"
max_tokens: 0
flushing_strategy: {type: lru}
persistence:
  type: redes
  ttl: banana
locking:
  append_ttl: 15x
max_context_ratio: 1.5
privacy_policy:
  redact_patterns:
    - "[0-9]{4}"
    - "(a+)+"
    - "[invalid("
default_key_template: "user:{{.id | shout}}"
"""


def test_all_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    """All mistakes of a file are reported in the order of lines, each with memory, key, and what is allowed."""
    path = written(tmp_path, WRONG)
    with pytest.raises(InvalidResource) as caught:
        Resources.load(path)
    mistakes = caught.value.mistakes

    assert [(mistake.line, mistake.key) for mistake in mistakes] == [
        (2, "id"),
        (4, "version"),
        (5, "max_tokens"),
        (6, "flushing_strategy"),
        (8, "persistence.type"),
        (9, "persistence.ttl"),
        (11, "locking.append_ttl"),
        (12, "max_context_ratio"),
        (16, "privacy_policy.redact_patterns[1]"),
        (17, "privacy_policy.redact_patterns[2]"),
        (18, "default_key_template"),
    ]
    assert {mistake.file for mistake in mistakes} == {str(path)}
    assert {mistake.memory for mistake in mistakes} == {"support chat"}
    assert mistakes[3].nearest == "flushing"
    assert mistakes[4].nearest == "redis"
    message = str(caught.value)
    assert message.startswith("11 mistakes in declared memories:\n")
    assert f"{path}:8:3: memory 'support chat': persistence.type: 'redes' is not accepted" in message
    assert isinstance(caught.value, ConfigError)


IN_MEMORY = {"persistence": {"type": "in_memory"}}
ALQUIMIA = "long_term_memory_strategy"


@pytest.mark.parametrize(
    ("declared", "keys"),
    [
        (
            {"persistence": {"type": "sqlight", "ttl": "soon", "circuit_breaker": {"timeout": "x"}}},
            ["persistence.type", "persistence.ttl", "persistence.circuit_breaker.timeout"],
        ),
        (
            {**IN_MEMORY, "flushing": {"type": "token_awre_lru", "summarize_threshold": 2, "low": 1}},
            ["flushing.type", "flushing.summarize_threshold", "flushing.low"],
        ),
        (
            {**IN_MEMORY, "flushing": {"type": "magic", "summarize_threshold": 2}},
            ["flushing.type", "flushing.summarize_threshold"],
        ),
        (
            {**IN_MEMORY, "flushing": {"type": "hybrid_summary", "summary_tokens": "x", "summarize_threshold": 2}},
            ["flushing.summary_tokens", "flushing.summarize_threshold"],
        ),
        (
            {
                **IN_MEMORY,
                ALQUIMIA: [{"long_term_memory_id": "sumarizer", "interaction_keep": -1, "cod_max_loops": 11}],
            },
            [f"{ALQUIMIA}[0].{key}" for key in ("long_term_memory_id", "interaction_keep", "cod_max_loops")],
        ),
        (
            {
                **IN_MEMORY,
                ALQUIMIA: {
                    "long_term_memory_id": "summarizer",
                    "knowledge_base": {"collection_id": "", "top_k": 0, "search_mode": "1+"},
                    "text_splitter": {"chunk_size": -1},
                },
            },
            [
                *(f"{ALQUIMIA}.knowledge_base.{key}" for key in ("collection_id", "top_k", "search_mode")),
                f"{ALQUIMIA}.text_splitter.chunk_size",
            ],
        ),
        (
            {**IN_MEMORY, "conditions": ["message.rolle == 'user'", "message.age < 3", "1 +"]},
            ["conditions[0]", "conditions[2]"],
        ),
        (
            {**IN_MEMORY, ALQUIMIA: {"strategy": "laddr", "low_water": 3}},
            [f"{ALQUIMIA}.strategy", f"{ALQUIMIA}.low_water"],
        ),
    ],
    ids=["store", "flush", "unknown flush", "length", "strategy", "knowledge base", "conditions", "own strategy"],
)
def test_a_wrong_kind_hides_no_other_mistake(declared: dict[str, object], keys: list[str]) -> None:
    """What is wrong with the kind of a thing, or with a key that it needs, hides nothing else that is wrong with it."""
    with pytest.raises(InvalidResource) as caught:
        Resources.load({"resource": "memory", "id": "chat", "type": "token_based", "max_tokens": 400, **declared})

    assert sorted(mistake.key for mistake in caught.value.mistakes) == sorted(keys)


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_repeated_keys_hide_no_other_mistake(tmp_path: Path, name: str) -> None:
    """A repeated key is reported with both lines beside all other mistakes; its first value is the one that is read."""
    text = """{
      "resource": "memory",
      "id": "chat", "persistence": {"type": "in_memory"},
      "type": "token_base",
      "max_tokens": 400,
      "max_tokens": {"a": [{"b": 1}], "a": 2},
      "flushing": {"type": "simple_fif", "type": "lru"},
      "id": "other",
      "max_messages": -1
    }"""
    with pytest.raises(InvalidResource) as caught:
        Resources.load(written(tmp_path, text, name))

    assert [(one.line, one.key) for one in caught.value.mistakes] == [
        (4, "type"),
        (6, "max_tokens"),
        (6, "max_tokens.a"),
        (7, "flushing.type"),
        (7, "flushing.type"),
        (8, "id"),
        (9, "max_messages"),
    ]
    assert caught.value.mistakes[1].allowed == "each key only once: this one is also in line 5"
    assert {one.memory for one in caught.value.mistakes} == {"chat"}


def test_yaml_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package for YAML, a YAML file raises MissingExtra with the command to install it."""
    path = tmp_path / "one.yaml"
    path.write_text("resource: memory\n")
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(MissingExtra, match=r"YAML needs the extra 'config': pip install 'palimpsest-memory\[config\]'"):
        Resources.load(path)


def test_repeated_keys_are_reported_beside_a_syntax_error(tmp_path: Path) -> None:
    """A file that ends too early is reported together with its repeated keys."""
    with pytest.raises(InvalidResource) as caught:
        Resources.load(written(tmp_path, "id: a\nid: b\ntype: [\n"))

    assert [(one.line, one.key) for one in caught.value.mistakes] == [(2, "id"), (4, "")]


SHORT, LONG = "short_term_memory_strategy", "long_term_memory_strategy"
BREAKER = "persistence.circuit_breaker"
NEURALYZER = {"long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 30}
SUMMARIZER = {"long_term_memory_id": "summarizer"}
OVERLAP = {"chunk_size": 512, "chunk_overlap": 512}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"resource": "agent"}, "resource"),
        ({"id": None}, "id"),
        ({"id": "health"}, "id"),
        ({"type": "lru"}, "type"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "4000"}, "max_tokens"),
        ({"type": "message_count_based"}, "max_messages"),
        ({"persistence": None}, "persistence"),
        ({"persistence": {"type": "redis"}}, "persistence.ttl"),
        ({"persistence": {"type": "in_memory", "ttl": "banana"}}, "persistence.ttl"),
        ({"persistence": {"type": "in_memory", "ttl": "-1h"}}, "persistence.ttl"),
        ({"persistence": {"type": "postgres", "url": "mysql://x"}}, "persistence.url"),
        ({"persistence": {"type": "postgres", "url": "redis://x"}}, "persistence.url"),
        ({"persistence": {"type": "in_memory", "path": "x"}}, "persistence.path"),
        ({"persistence": {"type": "file", "path": ""}}, "persistence.path"),
        ({"persistence": {"type": "file", "path": "what?"}}, "persistence.path"),
        ({"persistence": {"type": "in_memory", "circuit_breaker": {"max_failures": 0}}}, f"{BREAKER}.max_failures"),
        ({"locking": {"append_ttl": "0"}}, "locking.append_ttl"),
        ({"locking": {"flush": "5m"}}, "locking.flush"),
        ({"max_context_ratio": 0, "context_window": 10}, "max_context_ratio"),
        ({"limits": {"max_message_content": 2**53 + 1}}, "limits.max_message_content"),
        ({"summarizer": {"model": "openai:gpt-4o", "base_url": "localhost:8000"}}, "summarizer.base_url"),
        ({"version": 1}, "version"),
        ({"flushing": {"type": "magic"}}, "flushing.type"),
        ({"flushing": {"type": "hybrid_summary"}}, "flushing.summary_tokens"),
        ({"flushing": {"summarize_threshold": 1.5}}, "flushing.summarize_threshold"),
        ({"flushing": "lru"}, "flushing"),
        ({"profile": {SHORT: [{"memory_strategy_id": "max_token"}]}}, f"profile.{SHORT}[0].memory_strategy_id"),
        ({SHORT: [{"memory_strategy_id": "max_tokens", "memory_max_tokens": -2}]}, f"{SHORT}[0].memory_max_tokens"),
        ({LONG: [{**NEURALYZER, "interaction_keep": 30}]}, f"{LONG}[0].interaction_keep"),
        ({LONG: [{**SUMMARIZER, "text_splitter": OVERLAP}]}, f"{LONG}[0].text_splitter.chunk_overlap"),
        ({"persistence_strategy": "SOMETIMES"}, "persistence_strategy"),
        ({"encryption": {"keys": "2026:abc"}}, "encryption"),
        ({"store": "sqlite:///a.db"}, "store"),
        ({"store": 7, "persistence": None}, "store"),
        ({"privacy": "default", "privacy_policy": {}}, "privacy"),
        ({"max_log_tokens": -1}, "max_log_tokens"),
        ({"project": "a b"}, "project"),
        ({"project": {"id": "a", "idd": "b"}}, "project.idd"),
        ({"profile": {"id": "a"}}, "profile.id"),
        ({"profile": {"profile": {"bogus": 1}}}, "profile.profile"),
        ({"lifetime": True}, "lifetime"),
        ({"lifetime": "1d", "persistence": {"type": "in_memory", "ttl": "2d"}}, "lifetime"),
        ({"conditions": ["message.age < 3"], SHORT: [{"memory_strategy_id": "max_tokens"}]}, "conditions"),
        ({"store": "${DB}", "persistence": None, "type": None}, "store"),
        ({"persistence": {"type": "sqlite", "path": "${DB}"}}, "persistence.path"),
        ({"lifetime": []}, "lifetime"),
        ({"model": "gpt-4", "token_provider": {"model": "gpt-4o"}}, "model"),
        ({"summary_share": 0.2, "token_allocation": {"long_term": 0.3, "short_term": 0.7}}, "summary_share"),
        ({"tag_shares": {"x": 0.2}, "token_allocation": {"short_term": 0.9, "user_defined": {"x": 0.1}}}, "tag_shares"),
        ({"circuit_breaker": True, "persistence": {"type": "in_memory", "circuit_breaker": True}}, "circuit_breaker"),
        ({"persistence": {"type": "sqlite", "url": "sqlite:///${HOME}/a.db"}}, "persistence.url"),
        ({LONG: [NEURALYZER] * 65}, LONG),
        ({SHORT: [{"memory_strategy_id": "max_tokens", "conditions": 0}]}, f"{SHORT}[0].conditions"),
        ({LONG: [{**NEURALYZER, "on_tools_success_threshold": {"x": 1}}]}, f"{LONG}[0].on_tools_success_threshold"),
        ({"version": "\u0661.\u0662.\u0663"}, "version"),
        ({"facts_in": "middle"}, "facts_in"),
        ({"description": 7}, "description"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_log_tokens": 2**53 + 1}, "max_log_tokens"),
        ({"max_messages": 2**53 + 1}, "max_messages"),
        ({"max_context_ratio": 0.5, "context_window": 10**30}, "context_window"),
        ({"token_allocation": {"user_defined": {"": 1}}}, "token_allocation.user_defined"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_by_its_key(change: dict[str, Any], key: str) -> None:
    """Each mistake is reported by its key, and no other."""
    declared = {name: value for name, value in {**loaded(MINIMAL), **change}.items() if value is not None}
    with pytest.raises(InvalidResource) as caught:
        Resources.load(declared)
    assert [mistake.key for mistake in caught.value.mistakes] == [key]


@pytest.mark.parametrize(
    "change",
    [
        {"persistence": {"type": "in_memory"}},
        {"persistence": {"type": "in_memory", "ttl": "0"}},
        {"persistence": {"type": "in_memory", "ttl": "1d"}},
        {"locking": {"append_ttl": "45s"}},
        {"locking": {"append_ttl": "30 seconds"}},
        {"version": "2.1.0-beta"},
        {"max_tokens": None, "max_messages": 5},
        {"description": "what users say"},
    ],
)
def test_valid_values_load(change: dict[str, Any]) -> None:
    """Each of these values is valid."""
    declared = {name: value for name, value in {**loaded(MINIMAL), **change}.items() if value is not None}
    assert list(Resources.load(declared)) == ["user_conversation"]


NO_ADDRESSES = (
    *("memory://x", "sqlite://x.db", "sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?busy_seconds=x"),
    *("file:", "file://x", "redis://", "redis://h:99999999", "redis://h/name", "redis://h?unknown=y"),
    *("rediss://h?cluster=maybe", "redis://h?pool_size=x", "postgresql://h:x/", "postgresql://h?schema_name=Big"),
    *("mongodb://", "mongodb+srv://", "mongodb://h:x", "mongodb://h/a/b", "mongodb://h,/x"),
)


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_an_invalid_address_is_a_mistake_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """An address that no store accepts is reported when the file loads, whether its driver is installed or not."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        Memory.open(address)
    for driver in ("redis", "redis.asyncio", "asyncpg", "pymongo"):
        monkeypatch.setitem(sys.modules, driver, None)
    kind = address.partition(":")[0]
    backends = {"memory": "in_memory", "postgresql": "postgres", "rediss": "redis", "mongodb+srv": "mongodb"}
    place = {"type": backends.get(kind, kind), "ttl": "1h", "url": address}
    for declared in ({"id": "a", "store": address}, {**loaded(MINIMAL), "persistence": place}):
        with pytest.raises(InvalidResource):
            Resources.load(declared)


@pytest.mark.parametrize(("backend", "path"), [("sqlite", ":memory:"), ("file", "//server/folder")])
def test_an_invalid_path_is_a_mistake_of_its_file(backend: str, path: str) -> None:
    """A path that no store accepts is reported with its key when the file loads."""
    with pytest.raises(InvalidResource) as caught:
        Resources.load({**loaded(MINIMAL), "persistence": {"type": backend, "path": path}})
    assert [mistake.key for mistake in caught.value.mistakes] == ["persistence.path"]


NESTED = "a: " + "[" * 5_000
BOMB = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [{', '.join(['*a'] * 9)}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "anchors and aliases are not supported"),
        ("a: *unknown\n", "anchors and aliases are not supported"),
        ("base: {x: 1}\n<<: {y: 2}\n", "merge keys are not supported"),
        ("a: !!python/object/apply:os.system ['true']\n", "a value without a tag"),
        ("a: !secret x\n", "a value without a tag"),
        ("%TAG ! tag:x,2026:\n---\na: 1\n", "no tags"),
        ("id: a\nid: b\n", "is also in line 1"),
        ("a: {b: 1, b: 2}\n", "each key only once"),
        (NESTED, "at most 32 levels"),
        ("? {a: 1}\n: 2\n", "a text as a key"),
        ("? [a]\n: 2\n", "a text as a key"),
        ("a: 1\n---\nb: 2\n", "one document in a file"),
        ("a: [\n", "YAML"),
        ("a: 'x\n", "YAML"),
        ("\x00", "YAML"),
        ("- a\n- b\n", "a mapping of keys, or a list of strategies"),
        ("just text\n", "a mapping of keys"),
        ("", "nothing is not accepted; allowed: a mapping of keys"),
        ("\n # a remark alone\n", "nothing is not accepted; allowed: a mapping of keys"),
        ("# " + "x" * 200_001, "at most 200,000 characters"),
    ],
)
def test_yaml_beyond_a_declarations_needs_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """Anchors, merges, tags, deep nesting and large files are refused at once, as InvalidResource."""
    with pytest.raises(InvalidResource, match=told):
        Resources.load(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"id": "a", "id": "b"}', "each key only once"),
        ('{"a": NaN}', "a number that JSON allows"),
        ('{"a": 1', "JSON"),
        ("[" * 100_000, "at most 32 levels"),
        ('{"a": ' + "9" * 5_000 + "}", "JSON"),
        (" \n", "nothing is not accepted; allowed: a mapping of keys"),
    ],
)
def test_json_is_read_as_strictly_as_yaml(tmp_path: Path, text: str, told: str) -> None:
    """Repeated keys, deep nesting and numbers that JSON lacks are refused as InvalidResource."""
    with pytest.raises(InvalidResource, match=told):
        Resources.load(written(tmp_path, text, "a.json"))


def test_a_mistake_in_json_has_its_line(tmp_path: Path) -> None:
    """A mistake in JSON is reported with its line, also after tabs and escapes."""
    text = '{\n\t"resource": "memory",\n\t"id": "a\\/b \\ud83d\\ude00",\n\t"max_tokens": -1\n}'
    with pytest.raises(InvalidResource) as caught:
        Resources.load(written(tmp_path, text, "a.json"))
    assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == [(3, "id"), (4, "max_tokens")]


LINES = [
    ('{"resource": "memory", "id": "a", "max_token": 5}', (1, 35, "max_token")),
    ('{"id": "a",\n"max_tokens":\n-1}', (2, 1, "max_tokens")),
    ('{"id": "a",\n"max_tokens"\n: -1}', (2, 1, "max_tokens")),
    ('{"id": "a",\r\n"max_tokens": -1}', (2, 1, "max_tokens")),
    ('{"id": "a", "description": "x\x85y\u2028z",\n"max_tokens": -1}', (2, 1, "max_tokens")),
    ('{"id": "a", "description": "\\"{[,:\\\\",\n"max_tokens": -1}', (2, 1, "max_tokens")),
    ('{"id": "a",\n"max\\u005ftokens": -1}', (2, 1, "max_tokens")),
    ('{"id": "a", "facts": [],\n"facts_in": {},\n"max_tokens": -1}', (2, 1, "facts_in"), (3, 1, "max_tokens")),
    ('{"id": "a",\n"long_term_memory_strategy": [\n{"strategy": "ladder"},\n3]}', (4, 1, f"{LONG}[1]")),
    ('{"id": "a",\n "max_tokens": NaN}', (2, 16, "")),
    ('{"id": "NaN",\n "max_tokens": -Infinity}', (2, 16, "")),
    ('{"id": "a",\n "max_tokens": ' + "[" * 40 + "]" * 40 + "}", (2, 47, "")),
    ('{"id": "a", "' + "x" * 2_000 + '": 1,\n"max_tokens": -1}', (1, 13, "x" * 2_000), (2, 1, "max_tokens")),
    ('{"a": {"id": 1},\n"id": "a", "max_tokens": 5,\n"b": {"id": 2}}', (1, 2, "a"), (3, 1, "b")),
]


@pytest.mark.parametrize(("text", "places"), [(text, list(places)) for text, *places in LINES])
@pytest.mark.parametrize("extra", [True, False])
def test_a_mistake_in_json_has_its_column_without_the_yaml_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, places: list[tuple[int, int, str]], extra: bool
) -> None:
    """Mistakes in JSON have line and column, with or without the package for YAML."""
    if not extra:
        monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "a.json"
    path.write_bytes(text.encode())
    with pytest.raises(InvalidResource) as caught:
        Resources.load(path)
    assert [(mistake.line, mistake.column, mistake.key) for mistake in caught.value.mistakes] == places


def test_each_bad_condition_is_reported_at_its_place(tmp_path: Path) -> None:
    """Each bad condition of a list is reported at its own line."""
    text = (
        "short_term_memory_strategy:\n  - memory_strategy_id: max_tokens\n    conditions:\n"
        "      - message.pop(1)\n      - message.age < 3\n      - a = 5\n"
    )
    with pytest.raises(InvalidResource) as caught:
        Resources.load(written(tmp_path, text))
    assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == [
        (4, f"{SHORT}[0].conditions[0]"),
        (6, f"{SHORT}[0].conditions[2]"),
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{\n"long_term_memory_id": "neuralyzer",\n"interaction_kep": 1}', [(3, "interaction_kep")]),
        ('[\n{"long_term_memory_id": "neuralyzer",\n"interaction_kep": 1}]', [(3, "[0].interaction_kep")]),
        ('{"memory_strategy_id": "max_tokens",\n"gap": "x"}', [(2, "gap")]),
        ('{"id": "a",\n"id": "b"}', [(2, "id")]),
    ],
)
def test_a_mistake_in_a_bare_strategy_has_its_line(tmp_path: Path, text: str, places: list[tuple[int, str]]) -> None:
    """A mistake in a bare strategy is reported with its line and the key that the file has."""
    with pytest.raises(InvalidResource) as caught:
        Resources.load(written(tmp_path, text, "a.json"))
    assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == places


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """An empty path, as an unset shell variable gives it, is refused and does not mean the current folder."""
    monkeypatch.chdir(tmp_path)
    for opened in (Resources.load, AsyncResources.load, Memory.from_resource):
        with pytest.raises(ConfigError, match="the name of a file or a folder"):
            opened(path)


@pytest.mark.parametrize("wrong", [7, "x", [("a", "b")], {"a": 1}, {1: "a"}])
def test_an_invalid_environment_is_refused(wrong: Any) -> None:
    """`Memory.from_env` refuses anything but a mapping of texts."""
    with pytest.raises(ConfigError, match="environ"):
        Memory.from_env(wrong)


def test_yaml_words_have_their_modern_meaning(tmp_path: Path) -> None:
    """In YAML `no` and times are texts, as in version 1.2, and quoted numbers are texts."""
    text = MINIMAL + "description: no\n"
    assert Resources.load(written(tmp_path, text))["user_conversation"].description == "no"
    assert (
        Resources.load(written(tmp_path, MINIMAL + "description: 12:30:00\n"))["user_conversation"].description
        == "12:30:00"
    )
    with pytest.raises(InvalidResource, match="max_messages"):
        Resources.load(written(tmp_path, MINIMAL + 'max_messages: "5"\n'))
    assert Resources.load(written(tmp_path, MINIMAL + "max_messages: 0x5\nmask: false\n".replace("0x", "")))


def test_an_invalid_source_is_refused(tmp_path: Path) -> None:
    """A source that is missing, has another form, or is not text is refused."""
    for source, told in ((tmp_path / "no.yaml", "an existing file or folder"), (7, "a file, a folder, or a mapping")):
        with pytest.raises(ConfigError, match=told):
            Resources.load(source)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ends in"):
        Resources.load(written(tmp_path, "x", "a.toml"))
    (tmp_path / "b.yaml").write_bytes(b"id: \xff\xfe")
    with pytest.raises(InvalidResource, match="UTF-8"):
        Resources.load(tmp_path / "b.yaml")
    with pytest.raises(ConfigError, match="project"):
        Resources.load(loaded(MINIMAL), project="a/b")


# --- templates


@pytest.mark.parametrize(
    ("text", "variables", "key"),
    [
        ("user:{{.workflow.input.user_id}}", {"workflow": {"input": {"user_id": "john_doe"}}}, "user:john_doe"),
        ("user:{user_id}", {"user_id": 7}, "user:7"),
        ("{{ .a | trim | upper }}-{b}", {"a": " x ", "b": "y"}, "X-y"),
        ('{{.a | default "guest"}}', {}, "guest"),
        ('{{.a | default "Guest" | lower}}', {"a": "  "}, "guest"),
        ("static_key_123", {}, "static_key_123"),
        ("a__{a}__b", {"a": "y"}, "a__y__b"),
    ],
)
def test_a_template_makes_a_key(text: str, variables: dict[str, Any], key: str) -> None:
    """A template makes a key out of the variables."""
    assert Template(text).key(variables) == key


@pytest.mark.parametrize(
    "text",
    [
        *("{{.a", "{{a}}", "{{.a.}}", "{{.a | shout}}", "{{.a | printf}}", '{{.a | default "x}}'),
        *("{{range .a}}x{{end}}", "{{.__class__.__init__[0]}}", "{a!r}", "{a:>10}", "{a[0]}", "{0}", "{}", "}{"),
        *("{{{.a}}}", "", "  ", "{{" * 400, '{{.a | default "x" | default "y"}}', "{a.b-c}", "x" * 1_001),
        *("user/{a}", "user {a}", "user:*{a}", "__{a}", "{a}__", "__", "é{a}", "x" * 257, "{a}" + "x" * 257, "{a}\n"),
        "{{.a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r}}",
    ],
)  # fmt: skip
def test_an_invalid_template_is_refused_when_declared(text: str) -> None:
    """Anything but names and a few filters in a template is refused when the file loads."""
    with pytest.raises(InvalidResource, match="default_key_template"):
        Resources.load({**loaded(MINIMAL), "default_key_template": text})


@pytest.mark.parametrize(
    ("text", "variables", "told"),
    [
        ("user:{a}", {}, "variables.a"),
        ("user:{{.a.b}}", {"a": "x"}, r"variables.a.b"),
        ("user:{a}", {"a": "  "}, "variables.a"),
        ("user:{a}", {"a": {"b": 1}}, "text or a number"),
        ("user:{a}", {"a": True}, "text or a number"),
        ("user:{a}", {"a": 10**5_000}, "text or a number"),
        ("user:{a}", {"a": "x y"}, "make a key"),
        ("user:{a}", {"a": "{{.b}}"}, "make a key"),
        ("user:{a}", {"a": "x" * 300}, "make a key"),
    ],
)
def test_variables_that_make_no_key_are_refused(text: str, variables: dict[str, Any], told: str) -> None:
    """A missing or unsuitable variable is named; what it holds is never taken for a template."""
    with pytest.raises(ConfigError, match=told):
        Template(text).key(variables)


@given(st.text(max_size=60), st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3))
def test_any_template_makes_a_key_or_is_refused(text: str, variables: dict[str, str]) -> None:
    """Law: any template with any variables makes a valid key or raises ConfigError."""
    try:
        key = Template(text).key(variables)
    except ConfigError:
        return
    assert 0 < len(key) <= 256
    assert "{" not in key


# --- whatever else


VALID: list[Any] = [
    loaded(MINIMAL),
    json.loads(PROFILE),
    {**loaded(MINIMAL), "flushing": {"type": "hybrid_summary", "summary_tokens": 100, "summarize_oldest_percent": 0.5}},
    {
        **loaded(MINIMAL),
        "token_allocation": {"short_term": 0.6, "long_term": 0.3, "system": 0.1},
        "project": {"id": "x"},
    },
    {**loaded(MINIMAL), "token_provider": {"provider": "openai", "model": "gpt-4o"}, "low_water": 0.5, "mask": True},
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=6), st.integers(), max_size=3),
    st.sampled_from(["memory", "token_based", "5m", "-1", "(a+)+", "{{.x}}", "${HOME}", "redis", "sqlite:///x.db"]),
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every place in a value."""
    paths = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        paths += paths_in(inner, (*path, key))
    return paths


def changed(value: Any, path: tuple[Any, ...], new: Any, how: str) -> Any:
    """Return a copy in which the value at a path is replaced, dropped or renamed."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest or how == "replace":
        copy[first] = changed(copy[first], rest, new, how)
    elif how == "rename" and isinstance(copy, dict):
        copy[f"{first}_"] = copy.pop(first)
    else:
        del copy[first]
    return copy


@settings(max_examples=150)
@given(st.data())
def test_a_changed_declaration_loads_or_is_refused(data: st.DataObject) -> None:
    """Law: a declaration changed in up to three places loads or raises InvalidResource."""
    value = data.draw(st.sampled_from(VALID))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths_in(value)))
        how = data.draw(st.sampled_from(["replace", "drop", "rename"]))
        value = changed(value, path, data.draw(ODD), how)
        if not isinstance(value, dict):
            value = {"root": value}
    try:
        resources = Resources.load(value)
    except InvalidResource:
        return
    for id in resources:
        assert resources[id].effective()


def test_a_too_deeply_nested_mapping_is_refused() -> None:
    """A mapping that is nested too deeply is refused by name."""
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    for declared in ({"id": deep}, {"long_term_memory_strategy": deep}, {"flushing": {"type": deep}}):
        with pytest.raises(ConfigError, match="source"):
            Resources.load(declared)
