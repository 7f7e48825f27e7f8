"""The schemas of strategies: blocks of Alquimia's and Compozy's, and native ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.compaction import loading
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
    """The keys of a strategy of this name: its own, and the rules of `Triggers` beside them."""
    own = fields(loading.STRATEGIES.find(name))
    own |= {key: one for key, one in KNOWLEDGE.items() if key in own}
    rules = {key: one for key, one in fields(Triggers).items() if key not in own}
    said: Schema = {"const": name, "description": "which strategy it is"}
    return {"strategy": said, **own, **rules}


def _documented(name: str, key: str, defaults: Mapping[str, Any], more: Mapping[str, Schema]) -> Schema:
    """A block of a document whose strategy is under `key`."""
    keys = native(name)
    del keys["strategy"], keys["triggers"]  # whose rules stand beside
    for each, value in defaults.items():
        keys[each] = {**keys[each], "default": list(value) if isinstance(value, tuple) else value}
    return closed({key: {"description": "which strategy it is"}, **keys, **more}, [key] * (key != "type"))


def knowledge() -> dict[str, Schema]:
    """What a summarizer says of its knowledge base."""
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
"""The keys of a block that hold these."""


def short_term() -> Schema:
    keys = fields(MaxTokens)
    keys["memory_max_tokens"] |= {"anyOf": [{"type": "integer", "minimum": -1}, {"type": "null"}]}
    keys["memory_max_tokens"].pop("type", None)
    return closed(keys, ["memory_strategy_id"], description="what of the log a context shows")


def _flushes() -> dict[str, Schema]:
    found = {}
    for name in (*loading.FLUSHES, "fifo"):
        more: dict[str, Schema] = {
            "summarize_threshold": {
                **SHARE,
                "default": loading.FULL["threshold"],
                "description": "the share of the limits at which the memory is flushed",
            },
            "summary_tokens": {**WHOLE, "description": "tokens of the summary, of hybrid_summary alone"},
            "summarize_oldest_percent": {
                **SHARE,
                "default": 0.5,
                "description": "the share of the messages that is summarised, of hybrid_summary alone",
            },
        }
        found[name] = _documented(name, "type", {}, more)
        del found[name]["properties"]["threshold"]  # which `summarize_threshold` is here
        found[name]["properties"]["type"]["enum"] = [*loading.FLUSHES, "fifo"]
    return found


def flushing() -> Schema:
    kinds = _flushes()
    needed = {**kinds["hybrid_summary"], "required": ["summary_tokens"]}
    return chosen("type", {**kinds, "hybrid_summary": needed}, kinds["simple_fifo"])


def long_term() -> Schema:
    """A strategy of compaction: a block of one of the documents, or a native one."""
    at = BARE[1]
    blocks = {}
    for name in ("summarizer", "neuralyzer", "cod-summarizer"):
        plain = "summarizer" if name != "neuralyzer" else name
        defaults = {**loading.SHARED, **loading.BLOCKS[plain]}
        blocks[name] = _documented(plain, at, defaults, {})
        blocks[name]["properties"][at]["enum"] = ["summarizer", "neuralyzer", "cod-summarizer"]
    flushes = _flushes()
    natives = {name: ref(f"strategy_{name}") for name in loading.NAMES}
    others = {"properties": {"strategy": {"anyOf": [{"enum": list(loading.NAMES)}, TEXT]}}, "required": ["strategy"]}
    return {
        "type": "object",
        "description": "when the log is summarised or erased, and how",
        "if": {"required": [at]},
        "then": chosen(at, blocks, blocks["summarizer"]),
        "else": {
            "if": {"anyOf": [{"required": ["type"]}, {"required": ["summarize_threshold"]}]},
            "then": chosen("type", flushes, flushes["simple_fifo"]),
            "else": chosen("strategy", natives, others),
        },
    }
