"""Strategies of a declared memory: blocks of Alquimia's and Compozy's, in the form that sessions take. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.compaction.loading import load as load_long_term
from palimpsest.context.short_term import load as load_short_term
from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.resources.faults import each_fault
from palimpsest.resources.problems import Path, Problems, spelled

KNOWLEDGE = (
    *("collection_id", "search_mode", "top_k", "search_type", "score_threshold"),
    *("fetch_k", "lambda_mult", "max_tokens", "write"),
)
SPLITTER = (
    *("type", "chunk_size", "chunk_overlap", "unit", "separators"),
    *("keep_separator", "min_chunk", "add_start_index"),
)
KINDS = ("memory_strategy_id", "long_term_memory_id", "type")
"""The keys that say what kind of strategy a block is."""
LATER = "it was checked, and acts when Palimpsest can recall; until then it does nothing"
FLUSHING = {"type": "simple_fifo"}
"""How a memory with a type flushes that does not say it."""
SUMMARIZER = (
    *("model", "base_url", "api_key_env", "timeout", "retries"),
    *("allowance", "stream", "window", "max_output", "settings"),
)


def short_term_of(root: Mapping[str, Any], problems: Problems, warnings: list[str]) -> list[Any] | None:
    """The strategies of what a context shows; None: none is given."""
    key = "short_term_memory_strategy"
    blocks = _blocks(root.get(key), (key,), problems)
    found = []
    for path, block in blocks:
        if _loads(block, path, problems, warnings, load_short_term):
            found.append(block)
    return found or None


def long_term_of(
    root: Mapping[str, Any], problems: Problems, warnings: list[str], kind: str | None
) -> list[dict[str, Any]]:
    """The strategies that compact: those of Alquimia, then how the memory flushes."""
    key, found = "long_term_memory_strategy", list[dict[str, Any]]()
    for path, block in _blocks(root.get(key), (key,), problems):
        kept = _without_later(block, path, problems, warnings)
        if _loads(kept, path, problems, warnings, load_long_term):
            found.append(kept)
    flushing = root.get("flushing", FLUSHING if kind is not None else None)
    if flushing is None:
        return _named_apart(found, problems)
    if not isinstance(flushing, Mapping):
        problems.add(("flushing",), type(flushing).__name__, "a mapping with a type")
        return found
    block = {"type": "simple_fifo", **flushing}
    if kind == "buffer" and block["type"] not in ("simple_fifo", "fifo"):
        warnings.append(f"flushing.type: a buffer is flushed by simple_fifo as a rule, not by {block['type']}")
    if block["type"] == "hybrid_summary" and block.get("summary_tokens") is None:
        problems.add(("flushing", "summary_tokens"), None, "tokens of the summary: hybrid_summary needs them")
        block["summary_tokens"] = 1  # for the sake of what else may be wrong
    if _loads(block, ("flushing",), problems, warnings, load_long_term):
        found.append(block)
    return _named_apart(found, problems)


def _named_apart(found: list[dict[str, Any]], problems: Problems) -> list[dict[str, Any]]:
    """The strategies, of which no two have one name."""
    if not problems.found:
        with problems.at("long_term_memory_strategy", named="long_term_memory_strategy"):
            load_long_term(found, "long_term_memory_strategy")
    return found


def _loads(
    block: dict[str, Any],
    path: Path,
    problems: Problems,
    warnings: list[str],
    load: Callable[[dict[str, Any], str], tuple[object, list[str]]],
) -> bool:
    """Whether a block loads. What is wrong with it is noted, and what is told of one that does."""

    def tried(given: Any) -> None:
        if any(key in block and key not in given for key in KINDS):
            return  # what kind it is was told to be wrong
        _, told = load(given, spelled(path))
        if given is block:
            warnings.extend(told)

    return each_fault(problems, path, block, tried)


def _blocks(given: object, path: Path, problems: Problems) -> list[tuple[Path, dict[str, Any]]]:
    """The blocks of a list, or the one that stands alone, each with its path."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [(path, dict(given))]
    if isinstance(given, str) or not isinstance(given, Sequence):
        problems.add(path, type(given).__name__, "a list of strategies")
        return []
    found = []
    for i, block in enumerate(given):
        if isinstance(block, Mapping):
            found.append(((*path, i), {str(key): value for key, value in block.items()}))
        else:
            problems.add((*path, i), type(block).__name__, "a mapping: a strategy")
    return found


def _without_later(block: dict[str, Any], path: Path, problems: Problems, warnings: list[str]) -> dict[str, Any]:
    """The block without what acts when there is recall, which is checked."""
    kept = dict(block)
    base, splitter = kept.pop("knowledge_base", None), kept.pop("text_splitter", None)
    if base is not None:
        at = (*path, "knowledge_base")
        each_fault(problems, at, base, lambda given: _check_knowledge(given, spelled(at)))
        warnings.append(f"{spelled(at)}: {LATER}")
    if splitter is not None:
        place = (*path, "text_splitter")
        each_fault(problems, place, splitter, lambda given: _check_splitter(given, spelled(place)))
        warnings.append(f"{spelled(place)}: {LATER}")
    return kept


def _check_knowledge(given: object, where: str) -> None:
    """Check where summaries go to be found again. Raises ConfigError."""
    block = _known(given, where, KNOWLEDGE)
    at = f"{where}.".__add__
    values.text(at("collection_id"), block.get("collection_id"))
    values.text(at("search_mode"), block.get("search_mode"))  # always, on_demand, never, or a condition
    for name in ("top_k", "fetch_k", "max_tokens"):
        values.whole(at(name), block.get(name), 1, none=True)
    if block.get("search_type") is not None:
        values.choice(at("search_type"), block["search_type"], ("similarity", "mmr", "keyword", "hybrid"))
    for name in ("score_threshold", "lambda_mult"):
        if block.get(name) is not None and not (values.is_number(block[name]) and 0 <= block[name] <= 1):
            raise ConfigError(at(name), block[name], "a number from 0 to 1")
    values.switch(at("write"), block.get("write", True))
    if block.get("collection_id") is None:
        raise ConfigError(at("collection_id"), None, "the name of a collection")


def _check_splitter(given: object, where: str) -> None:
    """Check how summaries are split. Raises ConfigError."""
    block = _known(given, where, SPLITTER)
    at = f"{where}.".__add__
    if block.get("type") is not None:
        values.choice(at("type"), block["type"], ("recursive", "sentence", "markdown", "none"))
    if block.get("unit") is not None:
        values.choice(at("unit"), block["unit"], ("tokens", "chars"))
    values.whole(at("chunk_size"), block.get("chunk_size"), 1, none=True)
    for name in ("chunk_overlap", "min_chunk"):
        values.whole(at(name), block.get(name), none=True)
    size, overlap = block.get("chunk_size", 512), block.get("chunk_overlap", 64)
    if values.is_whole(size) and values.is_whole(overlap) and overlap >= size:
        raise ConfigError(at("chunk_overlap"), overlap, f"less than chunk_size, which is {size}")
    if block.get("separators") is not None:
        values.texts(at("separators"), block["separators"], "texts")
    for name in ("keep_separator", "add_start_index"):
        values.switch(at(name), block.get(name, False))


def persistence_of(root: Mapping[str, Any], problems: Problems) -> str | None:
    """The option `persistence` that Alquimia's word means; None: none is given."""
    given = root.get("persistence_strategy")
    if given is None:
        return None
    with problems.at("persistence_strategy"):
        return values.word("persistence_strategy", given, ("incremental", "flush", "ephemeral"))
    return None


def check_summarizer(given: object) -> None:
    """Check a summarizer: a model string, or a mapping of options of a ModelSummarizer. Raises ConfigError."""
    if isinstance(given, str):
        values.text("summarizer", given, none=False)
        return
    block = _known(given, "summarizer", SUMMARIZER)
    for name in ("model", "base_url", "api_key_env"):
        values.text(f"summarizer.{name}", block.get(name))
    for name in ("timeout", "allowance"):
        if block.get(name) is not None and not (values.is_number(block[name]) and block[name] > 0):
            raise ConfigError(f"summarizer.{name}", block[name], "seconds, over 0")
    for name in ("retries", "window", "max_output"):
        values.whole(f"summarizer.{name}", block.get(name), 0 if name == "retries" else 1, none=True)
    values.switch("summarizer.stream", block.get("stream", False))
    if block.get("settings") is not None and not isinstance(block["settings"], Mapping):
        raise ConfigError("summarizer.settings", block["settings"], "a mapping")
    if block.get("model") is None:
        raise ConfigError("summarizer.model", None, "the name of a model, such as openai:gpt-4o-mini")


def _known(given: object, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(where, type(given).__name__, f"a mapping of {', '.join(known)}")
    values.known(where, given, known, inside=True)
    return given
