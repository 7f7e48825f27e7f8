"""The JSON Schema of a resource file, for editors: made from the tables and structs that loading uses. Pure.

It accepts what loads, and refuses every key that does not load. Rules over several values, such as shares whose sum is
1, are left to loading. It also refuses values that load but mean nothing, such as a number as a project.
"""

from __future__ import annotations

from typing import get_args

from palimpsest.compaction import loading
from palimpsest.compaction.triggers import Triggers
from palimpsest.context.cut import OVERSIZE
from palimpsest.formats import FormatName
from palimpsest.privacy.policy import PSEUDONYM, Pattern, Policy
from palimpsest.privacy.recognisers.built_in import BUILT_IN, PRESETS
from palimpsest.resources import limits, places, strategies
from palimpsest.resources.allocation import SHARES
from palimpsest.resources.declared import RESERVED
from palimpsest.resources.keys import LONGEST_TEMPLATE
from palimpsest.resources.payloads import KEYS as SIZES
from palimpsest.resources.schema_blocks import flushing, knowledge, long_term, native, short_term
from palimpsest.resources.schema_parts import (
    ANY,
    COUNT,
    LENGTH,
    NAME,
    PART,
    SHARE,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    Schema,
    arguments,
    closed,
    fields,
    inside,
    one_or_many,
    option_texts,
    or_null,
    ref,
    words,
)
from palimpsest.resources.schema_sharing import shared
from palimpsest.resources.table import BARE, OPTIONS, TABLE
from palimpsest.sessions.options import AUTO_COMPACT, FACTS_IN, LONG_TERM_RUN, MOST_TAIL, PERSISTENCE
from palimpsest.summaries.models.model_summarizer import ModelSummarizer

DIALECT = "http://json-schema.org/draft-07/schema#"


def published() -> Schema:
    """Return the schema with its repeated parts written once, under `$defs`."""
    return shared(schema())


def schema() -> Schema:
    """Return the JSON Schema, of draft 7 (which editors know), of a file that declares a memory."""
    short, long = BARE
    return {
        "$schema": DIALECT,
        "title": "A declared memory of Palimpsest",
        "description": "A resource of Compozy's, a profile or a strategy of Alquimia's, or keys of Palimpsest's own.",
        "type": ["object", "array"],
        "if": {"type": "array"},
        "then": {
            "if": {"contains": {"required": [long]}},
            "then": {"items": ref("long_term")},
            "else": {"items": ref("short_term")},
        },
        "else": {
            "if": {"required": [short]},
            "then": ref("short_term"),
            "else": {"if": {"required": [long]}, "then": ref("long_term"), "else": ref("resource")},
        },
        "$defs": {
            "resource": _resource(),
            "short_term": short_term(),
            "long_term": long_term(),
            "flushing": flushing(),
            "policy": _policy(),
            **knowledge(),
            "triggers": closed(fields(Triggers)),
            **{f"strategy_{name}": closed(native(name)) for name in loading.NAMES},
        },
    }


def _policy() -> Schema:
    names: Schema = {"enum": [*PRESETS, *BUILT_IN]}
    own = closed(inside("pattern", fields(Pattern)), ["pattern"])
    pattern = {"anyOf": [TEXT, own, {"type": "array", "minItems": 2, "maxItems": 2}]}
    how: Schema = {
        "anyOf": [SWITCH, {"enum": [PSEUDONYM]}, TEXT],
        "description": "whether it is looked for, or what it becomes: a text, or a pseudonym",
    }
    keys: dict[str, Schema] = {
        "redact_patterns": {"type": "array", "items": pattern},
        "non_persistable_message_types": TEXTS,
        "default_redaction_string": {**TEXT, "default": "[REDACTED]"},
        "recognisers": {
            "anyOf": [names, {"type": "array", "items": names}, closed(dict.fromkeys(names["enum"], how))],
        },
    }
    texts = arguments(Policy.__doc__)
    return closed({name: {**key, "description": texts.get(name, "")} for name, key in keys.items()})


def _breaker() -> Schema:
    keys: dict[str, Schema] = {
        "enabled": SWITCH,
        "timeout": or_null(LENGTH),
        "max_failures": or_null(WHOLE),
        "reset_timeout": or_null(LENGTH),
    }
    return or_null(SWITCH, closed(inside("circuit_breaker", keys)))


def _keys_of_resource() -> dict[str, Schema]:
    """Return the schema of each key of `TABLE`."""
    persistence: dict[str, Schema] = {
        "type": {"enum": list(places.BACKENDS)},
        "ttl": or_null(LENGTH),
        "url": or_null(TEXT),
        "path": or_null(TEXT),
        "circuit_breaker": _breaker(),
    }
    ttl_needed = {
        "if": {"properties": {"type": {"const": "redis"}}, "required": ["type"]},
        "then": {"required": ["ttl"]},
    }
    provider: dict[str, Schema] = {key: or_null(TEXT) for key in limits.PROVIDER_KEYS if key != "settings"}
    part: Schema = {"type": "number", "minimum": 0, "maximum": 1}
    shares: dict[str, Schema] = {key: or_null(part) for key in SHARES if key != "user_defined"}
    shares["user_defined"] = or_null({"type": "object", "additionalProperties": part})
    recognisers = _policy()["properties"]["recognisers"]["anyOf"][:2]
    return {
        "resource": or_null({"const": "memory"}),
        "id": or_null({**NAME, "not": {"const": RESERVED}}),
        "project": or_null({"type": "string"}, closed(inside("project", {"id": or_null({"type": "string"})}))),
        "description": or_null({"type": "string"}),
        "version": or_null({"type": "string", "pattern": r"^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"}),
        "type": or_null({"enum": list(limits.NEEDED)}),
        **dict.fromkeys(("max_tokens", "max_messages", "context_window"), or_null(WHOLE)),
        "max_context_ratio": or_null(SHARE),
        "token_allocation": or_null(closed(inside("token_allocation", shares))),
        "token_provider": or_null(closed(inside("token_provider", {**provider, "settings": or_null(ANY)}))),
        "flushing": or_null(ref("flushing")),
        "persistence": or_null(closed(inside("persistence", persistence), ["type"], **ttl_needed)),
        "locking": or_null(closed(inside("locking", dict.fromkeys(places.LEASES, LENGTH)))),
        "limits": or_null(closed(inside("limits", dict.fromkeys(SIZES, or_null(WHOLE))))),
        "privacy_policy": or_null(ref("policy"), *recognisers),
        "default_key_template": or_null({**TEXT, "maxLength": LONGEST_TEMPLATE}),
        "profile": {},
        "short_term_memory_strategy": one_or_many("short_term"),
        "long_term_memory_strategy": one_or_many("long_term"),
        "persistence_strategy": or_null(words([name.upper() for name in PERSISTENCE])),
        "store": or_null(TEXT),
        "privacy": or_null(ref("policy"), *recognisers),
        "circuit_breaker": _breaker(),
        "encryption": or_null(closed(inside("encryption", {"keys_env": TEXT}), ["keys_env"])),
        "summarizer": or_null(TEXT, _summarizer()),
    }


def _summarizer() -> Schema:
    keys: dict[str, Schema] = {
        **dict.fromkeys(("model", "base_url", "api_key_env"), or_null(TEXT)),
        **dict.fromkeys(("timeout", "allowance"), or_null({"type": "number", "exclusiveMinimum": 0})),
        **dict.fromkeys(("window", "max_output"), or_null(WHOLE)),
        "retries": or_null(COUNT),
        "stream": SWITCH,
        "settings": or_null(ANY),
    }
    texts = arguments(ModelSummarizer.__doc__)
    return closed(inside("summarizer", {key: keys[key] for key in strategies.SUMMARIZER}, texts), ["model"])


def _options() -> dict[str, Schema]:
    """Return the schema of each option of a session that is a key of a resource by its own name."""
    options: dict[str, Schema] = {
        "model": or_null({"type": "string"}),
        "max_messages": or_null(WHOLE),
        "max_context_ratio": or_null(SHARE),
        "max_log_tokens": or_null(WHOLE),
        "reserve": or_null(COUNT),
        "format": {"anyOf": [{"enum": list(get_args(FormatName))}, TEXT], "default": "openai"},
        "view": {**TEXT, "default": "main"},
        "conditions": {"anyOf": [TEXTS, {"type": "string"}]},
        "oversize": {"enum": list(OVERSIZE), "default": "clamp"},
        "mask": {**SWITCH, "default": True},
        "low_water": PART,
        "summary_share": or_null(PART),
        "tag_shares": or_null(
            {"type": "object", "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1}}
        ),
        "cache_seconds": or_null({"type": "number", "exclusiveMinimum": 0}),
        "readonly": {**SWITCH, "default": False},
        "auto_compact": words(AUTO_COMPACT),
        "long_term_run": words(LONG_TERM_RUN),
        "before_turn": {**SWITCH, "default": False},
        "archive": {**SWITCH, "default": True},
        "lifetime": or_null(LENGTH),
        "facts": {"anyOf": [TEXT, TEXTS]},
        "facts_in": words(FACTS_IN),
        "tail_share": or_null({"type": "number", "minimum": 0, "maximum": MOST_TAIL}),
    }
    texts = option_texts() | SAID
    return {name: {**options[name], "description": texts.get(name, "")} for name in OPTIONS}


SAID = {
    "auto_compact": "where a strategy that fires runs: before the verb returns, beside it, or only in workers",
    "format": "in which provider's form contexts are given",
    "view": "which of several cuts of one log contexts are of",
    "conditions": "expressions that a message must meet to be shown",
    "oversize": "what becomes of a newest interaction that alone does not fit",
    "readonly": "whether sessions only read",
}
"""The descriptions of options whose source has none that fits."""


def _resource() -> Schema:
    keys = {**_options(), **_keys_of_resource()}
    for row in TABLE:
        source = f"{row.source}: " if row.source else ""
        keys[row.key] = {**keys[row.key], "description": f"{source}{row.says}"}
    under = ("short_term_memory_strategy", "long_term_memory_strategy", "persistence_strategy")
    keys["profile"] |= or_null(closed({key: keys[key] for key in under}))
    return closed({row.key: keys[row.key] for row in TABLE} | keys, allOf=_needed())


def _needed() -> list[Schema]:
    """Return the conditions on keys that a type requires, and `resource` does."""
    kinds = [
        {
            "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
            "then": {"anyOf": [{"required": [name]} for name in names]},
        }
        for kind, names in limits.NEEDED.items()
    ]
    stored: Schema = {"anyOf": [{"required": ["persistence"]}, {"required": ["store"]}]}
    named: Schema = {"if": _is_given("resource"), "then": {"required": ["id"]}}
    return [{"if": _is_given("type"), "then": {"required": ["resource", "id"], **stored}}, named, *kinds]


def _is_given(key: str) -> Schema:
    return {"required": [key], "properties": {key: {"type": "string"}}}
