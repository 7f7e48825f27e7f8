"""The schemas of strategies: blocks of Alquimia and Compozy, and Palimpsest's native ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.compaction import loading
from palimpsest.compaction.base import FULL
from palimpsest.compaction.triggers import Triggers
from palimpsest.context.short_term import MaxTokens
from palimpsest.resources.schema_parts import (
    COUNT,
    SHARE,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    Schema,
    chosen,
    closed,
    fields,
    inside,
    or_null,
    ref,
)
from palimpsest.resources.table import BARE


def native(name: str) -> dict[str, Schema]:
    """Return the keys of a native strategy: its own fields, and those of `Triggers`, which may stand beside them."""
    own = fields(loading.STRATEGIES.find(name))
    own |= {key: schema for key, schema in KNOWLEDGE.items() if key in own}
    rules = {key: schema for key, schema in fields(Triggers).items() if key not in own}
    named: Schema = {"const": name, "description": "which strategy it is"}
    return {"strategy": named, **own, **rules}


def _documented(name: str, key: str, defaults: Mapping[str, Any], more: Mapping[str, Schema]) -> Schema:
    """Return the schema of a document's block, which names its strategy under `key` and has these defaults."""
    keys = native(name)
    del keys["strategy"], keys["triggers"]  # a document has the fields of triggers only beside the others
    for field, value in defaults.items():
        keys[field] = {**keys[field], "default": list(value) if isinstance(value, tuple) else value}
    return closed({key: {"description": "which strategy it is"}, **keys, **more}, [key] * (key != "type"))


def knowledge() -> dict[str, Schema]:
    """Return the schemas of a summarizer's knowledge base and text splitter."""
    base: dict[str, Schema] = {
        "collection_id": TEXT,
        "search_mode": or_null({"anyOf": [{"enum": ["always", "on_demand", "never"]}, TEXT]}),
        "search_type": or_null({"enum": ["similarity", "mmr", "keyword", "hybrid"]}),
        **dict.fromkeys(("top_k", "fetch_k", "max_tokens"), or_null(WHOLE)),
        **dict.fromkeys(("score_threshold", "lambda_mult"), or_null({"type": "number", "minimum": 0, "maximum": 1})),
        "write": SWITCH,
        "embedder": or_null(TEXT),
    }
    splitter: dict[str, Schema] = {
        "type": or_null({"enum": ["recursive", "sentence", "markdown", "none"]}),
        "unit": or_null({"enum": ["tokens", "chars"]}),
        "chunk_size": or_null(WHOLE),
        **dict.fromkeys(("chunk_overlap", "min_chunk"), or_null(COUNT)),
        "separators": or_null(TEXTS),
        **dict.fromkeys(("keep_separator", "add_start_index"), SWITCH),
    }
    return {
        "knowledge_base": closed(inside("knowledge_base", base), ["collection_id"]),
        "text_splitter": closed(inside("text_splitter", splitter)),
    }


KNOWLEDGE = {
    "knowledge_base": {**or_null(ref("knowledge_base")), "description": "where summaries go to be found again"},
    "text_splitter": {**or_null(ref("text_splitter")), "description": "how the summaries are split for that"},
}
"""The keys of a block for these."""


def short_term() -> Schema:
    """Return the schema of a block that limits what a context shows."""
    keys = fields(MaxTokens)
    keys["memory_max_tokens"] |= {"anyOf": [{"type": "integer", "minimum": -1}, {"type": "null"}]}
    keys["memory_max_tokens"].pop("type", None)
    return closed(keys, ["memory_strategy_id"], description="what of the log a context shows")


def _flushes() -> dict[str, Schema]:
    """Return the schema of each type of flushing, by its name."""
    kinds = {}
    for name in (*loading.FLUSHES, "fifo"):
        more: dict[str, Schema] = {
            "summarize_threshold": {
                **SHARE,
                "default": FULL["threshold"],
                "description": "the share of the limits at which the memory is flushed",
            },
            "summary_tokens": {**WHOLE, "description": "tokens of the summary, of hybrid_summary alone"},
            "summarize_oldest_percent": {
                **SHARE,
                "default": 0.5,
                "description": "the share of the messages that is summarised, of hybrid_summary alone",
            },
        }
        kinds[name] = _documented(name, "type", {}, more)
        del kinds[name]["properties"]["threshold"]  # the document calls it `summarize_threshold`
        kinds[name]["properties"]["type"]["enum"] = [*loading.FLUSHES, "fifo"]
    return kinds


def flushing() -> Schema:
    """Return the schema of the key `flushing`."""
    kinds = _flushes()
    needed = {**kinds["hybrid_summary"], "required": ["summary_tokens"]}
    return chosen("type", {**kinds, "hybrid_summary": needed}, kinds["simple_fifo"])


def long_term() -> Schema:
    """Return the schema of a strategy of compaction: a block of one of the documents, or a native one."""
    key = BARE[1]
    blocks = {}
    for name in ("summarizer", "neuralyzer", "cod-summarizer"):
        strategy = "summarizer" if name != "neuralyzer" else name
        defaults = {**loading.ALQUIMIA_SHARED, **loading.ALQUIMIA_DEFAULTS[strategy]}
        blocks[name] = _documented(strategy, key, defaults, {})
        blocks[name]["properties"][key]["enum"] = ["summarizer", "neuralyzer", "cod-summarizer"]
    flushes = _flushes()
    natives = {name: ref(f"strategy_{name}") for name in loading.NAMES}
    others = {"properties": {"strategy": {"anyOf": [{"enum": list(loading.NAMES)}, TEXT]}}, "required": ["strategy"]}
    return {
        "type": "object",
        "description": "when the log is summarised or erased, and how",
        "if": {"required": [key]},
        "then": chosen(key, blocks, blocks["summarizer"]),
        "else": {
            "if": {"anyOf": [{"required": ["type"]}, {"required": ["summarize_threshold"]}]},
            "then": chosen("type", flushes, flushes["simple_fifo"]),
            "else": chosen("strategy", natives, others),
        },
    }
