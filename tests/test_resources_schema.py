"""The JSON Schema of resource files: it accepts what loads, and refuses unknown keys."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from laws import examples
from palimpsest import PalimpsestError, PalimpsestWarning
from palimpsest.resources import Resources
from palimpsest.resources.schema import published, schema
from palimpsest.resources.table import KEYS

WHOLE = schema()
SCHEMA = Draft7Validator(published())
"""The schema that `palimpsest config schema` prints."""
COMPOZY: dict[str, Any] = {
    "resource": "memory",
    "id": "user_conversation",
    "project": {"id": "shop"},
    "description": "what users say",
    "version": "2.1.0-beta",
    "type": "token_based",
    "max_tokens": 4000,
    "max_messages": 100,
    "max_context_ratio": 0.5,
    "context_window": 128_000,
    "token_allocation": {"short_term": 0.5, "long_term": 0.3, "system": 0.1, "user_defined": {"notes": 0.1}},
    "token_provider": {"provider": "openai", "model": "gpt-4o", "api_key_env": "KEY", "settings": {"any": 1}},
    "flushing": {
        "type": "hybrid_summary",
        "summarize_threshold": 0.8,
        "summary_tokens": 500,
        "summarize_oldest_percent": 0.5,
        "low_water": 0.4,
    },
    "persistence": {
        "type": "redis",
        "ttl": "24h",
        "url": "${REDIS}",
        "circuit_breaker": {"enabled": True, "timeout": "5s", "max_failures": 5, "reset_timeout": "30s"},
    },
    "locking": {"append_ttl": "30s", "clear_ttl": "10s", "flush_ttl": "5m"},
    "privacy_policy": {
        "redact_patterns": ["\\b\\d{3}-\\d{2}-\\d{4}\\b", {"pattern": "x+y", "redaction_string": "[X]"}],
        "non_persistable_message_types": ["payment_info"],
        "default_redaction_string": "[REDACTED]",
        "recognisers": {"default": True, "email": "pseudonym"},
    },
    "default_key_template": "session:{{.workflow.input.session_id}}",
}
ALQUIMIA: dict[str, Any] = {
    "short_term_memory_strategy": [
        {"memory_strategy_id": "max_tokens", "memory_max_tokens": 8000, "conditions": ["message.role != 'tool'"]}
    ],
    "long_term_memory_strategy": [
        {
            "long_term_memory_id": "summarizer",
            "interaction_threshold_qty": 15,
            "on_tools_success_threshold": ["close_*"],
            "knowledge_base": {"collection_id": "session-memory", "search_mode": "always", "top_k": 3},
            "text_splitter": {"chunk_size": 512, "chunk_overlap": 64},
        },
        {"long_term_memory_id": "neuralyzer", "interaction_threshold_qty": 30, "interaction_keep": 5},
    ],
    "persistence_strategy": "INCREMENTAL",
}
OURS: dict[str, Any] = {
    "store": "sqlite:///a.db",
    "long_term_memory_strategy": [
        {"strategy": "ladder", "triggers": {"threshold": 0.9}, "interaction_keep": 3},
        {"strategy": "mask_results", "threshold": 0.6},
        {"type": "lru", "summarize_threshold": 0.7},
    ],
    "privacy": "default",
    "encryption": {"keys_env": "KEYS"},
    "summarizer": {"model": "gpt-oss", "base_url": "http://127.0.0.1:8000/v1", "timeout": 30},
    "circuit_breaker": True,
    "model": "gpt-4o",
    "reserve": 0,
    "format": "anthropic",
    "view": "v",
    "oversize": "drop",
    "mask": False,
    "low_water": 0.3,
    "summary_share": 0.2,
    "cache_seconds": 300,
    "readonly": False,
    "auto_compact": "background",
    "long_term_run": "all",
    "before_turn": True,
    "archive": False,
    "lifetime": "30d",
    "facts": ["user/ann"],
    "facts_in": "prefix",
    "tail_share": 0.2,
}
VALID: list[Any] = [
    COMPOZY,
    ALQUIMIA,
    OURS,
    {"profile": ALQUIMIA},
    {"resource": "memory", "id": "a"},
    ALQUIMIA["short_term_memory_strategy"][0],
    *ALQUIMIA["long_term_memory_strategy"],
    ALQUIMIA["short_term_memory_strategy"],
    ALQUIMIA["long_term_memory_strategy"],
]
MEANINGLESS = {"project"}
"""Keys whose value the schema may refuse although loading ignores it."""
FREE = {"settings", "user_defined"}
"""Mappings that may have any key."""


def loads(declared: Any, folder: Path) -> bool:
    """Return whether a file with this content loads."""
    (folder / "declared.json").write_text(json.dumps(declared), "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PalimpsestWarning)
        try:
            Resources.load(folder / "declared.json")
        except PalimpsestError:
            return False
    return True


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in a value, its own first."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from paths(each, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    """Return a copy with another value at a path."""
    if not path:
        return to
    copied = copy.deepcopy(value)
    at(copied, path[:-1])[path[-1]] = to
    return copied


def unexplained(part: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of a schema, at any depth, that have no description."""
    if isinstance(part, dict):
        if part.get("additionalProperties") is False:
            yield from (f"{path}: {key}" for key, one in part["properties"].items() if not one.get("description"))
        for key, each in part.items():
            yield from unexplained(each, f"{path}/{key}")
    elif isinstance(part, list):
        for i, each in enumerate(part):
            yield from unexplained(each, f"{path}/{i}")


OBJECTS = [(one, path) for one in VALID for path in paths(one) if isinstance(at(one, path), dict)]
KEYED = [(one, path) for one, path in OBJECTS if (path[-1:] and path[-1] not in FREE) or not path]
PLACES = [(one, path) for one in VALID for path in paths(one) if path and not MEANINGLESS & set(path)]


def test_the_schema_is_valid() -> None:
    """The schema is valid by its draft, and each of its references resolves."""
    Draft7Validator.check_schema(SCHEMA.schema)

    text = json.dumps(SCHEMA.schema)
    named = {part.partition('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}
    assert named <= SCHEMA.schema["$defs"].keys()
    assert named


def test_the_published_schema_is_the_whole_one_in_short() -> None:
    """The published schema equals the whole one once its references are resolved, at a quarter of the size."""
    definitions = SCHEMA.schema["$defs"]

    def whole(part: Any) -> Any:
        if isinstance(part, dict):
            name = str(part.get("$ref")).removeprefix("#/$defs/")
            if name in definitions and name not in WHOLE["$defs"]:
                return whole(definitions[name])
            return {key: whole(one) for key, one in part.items()}
        return [whole(one) for one in part] if isinstance(part, list | tuple) else part

    defs = {name: one for name, one in definitions.items() if name in WHOLE["$defs"]}
    assert whole({**SCHEMA.schema, "$defs": defs}) == json.loads(json.dumps(WHOLE))
    assert len(json.dumps(SCHEMA.schema, separators=(",", ":"))) < 68_000


@pytest.mark.parametrize("declared", VALID, ids=range(len(VALID)))
def test_every_file_that_loads_is_accepted_by_the_schema(declared: Any, tmp_path: Path) -> None:
    """The schema accepts resources of each source, alone and in lists."""
    assert loads(declared, tmp_path)
    assert [error.message for error in SCHEMA.iter_errors(declared)] == []


def test_every_key_has_a_description() -> None:
    """The schema has every key of a resource, and each has a description for editors."""
    keys = WHOLE["$defs"]["resource"]["properties"]

    assert keys.keys() == set(KEYS)
    assert [key for key, one in keys.items() if not one.get("description")] == []
    assert list(unexplained(WHOLE)) == []


@pytest.mark.parametrize(("declared", "path"), KEYED, ids=lambda one: ".".join(map(str, one)) or "all")
def test_an_unknown_key_is_refused(declared: Any, path: tuple[Any, ...], tmp_path: Path) -> None:
    """The schema refuses an unknown key at any place, as loading does."""
    odd = changed(declared, path, {**at(declared, path), "unheard_of": 1})

    assert not SCHEMA.is_valid(odd)
    assert not loads(odd, tmp_path)


@settings(max_examples=examples(600), deadline=None)
@given(
    place=st.sampled_from(PLACES),
    value=st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 0.5, 1.5, 10, "", "x", "1h", "always", "Off", [], ["x"]]),
)
def test_the_schema_refuses_nothing_that_loads(
    place: tuple[Any, tuple[Any, ...]], value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: with any value at the place of another, the schema refuses only what loading refuses."""
    declared, path = place
    odd = changed(declared, path, value)

    accepted = SCHEMA.is_valid(odd)

    assert accepted or not loads(odd, tmp_path_factory.getbasetemp())
