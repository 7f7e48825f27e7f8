"""Strategies of a declared memory: blocks of Alquimia's and Compozy's, in the form that sessions take. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from palimpsest.compaction.loading import load as load_long_term
from palimpsest.context.short_term import load as load_short_term
from palimpsest.errors import ConfigError, MissingExtra
from palimpsest.log import values
from palimpsest.resources.faults import each_fault
from palimpsest.resources.problems import Path, Problems, spelled

KINDS = ("memory_strategy_id", "long_term_memory_id", "type")
"""The keys that say what kind of strategy a block is."""
FLUSHING = {"type": "simple_fifo"}
"""How a memory with a type flushes that does not say it."""
MOST = 64
"""Strategies of one kind that a memory may have: each is looked at after every interaction."""
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
        if _loads(block, path, problems, warnings, load_long_term):
            found.append(block)
    flushing = root.get("flushing")
    if flushing is None:  # also where the key stands there with nothing behind it
        flushing = FLUSHING if kind is not None else None
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
    if len(given) > MOST:
        problems.add(path, f"{len(given):,} strategies", f"at most {MOST}")
        return []
    found = []
    for i, block in enumerate(given):
        if isinstance(block, Mapping):
            found.append(((*path, i), {str(key): value for key, value in block.items()}))
        else:
            problems.add((*path, i), type(block).__name__, "a mapping: a strategy")
    return found


def persistence_of(root: Mapping[str, Any], problems: Problems) -> str | None:
    """The option `persistence` that Alquimia's word means; None: none is given."""
    given = root.get("persistence_strategy")
    if given is None:
        return None
    with problems.at("persistence_strategy"):
        return values.word("persistence_strategy", given, ("incremental", "flush", "ephemeral"))
    return None


def check_unwritten(root: Mapping[str, Any], problems: Problems) -> None:
    """Note each knowledge base that is written to, in a memory of which nothing is."""
    key = "long_term_memory_strategy"
    for path, block in _blocks(root.get(key), (key,), Problems()):
        base = block.get("knowledge_base")
        if isinstance(base, Mapping) and base.get("write", True) is not False:
            problems.add((*path, "knowledge_base", "write"), True, "false, in a memory that is EPHEMERAL")


def check_embedders(root: Mapping[str, Any], problems: Problems, warnings: list[str]) -> None:
    """Note each embedder of a knowledge base whose name stands for none; where none can run here, that is warned of."""
    key = "long_term_memory_strategy"
    for path, block in _blocks(root.get(key), (key,), Problems()):
        base = block.get("knowledge_base")
        name = base.get("embedder") if isinstance(base, Mapping) else None
        if not isinstance(name, str) or not name.strip():
            continue
        try:
            from palimpsest.recall.embedders import MODELS  # numpy, only for who names one
        except MissingExtra as missing:
            warnings.append(f"{spelled((*path, 'knowledge_base', 'embedder'))}: {missing}")
            return
        with problems.at(*path, "knowledge_base", "embedder"):
            MODELS.check(name)


def check_summarizer(given: object) -> None:
    """Check a summarizer: a model string, or a mapping of options of a ModelSummarizer. Raises ConfigError."""
    if isinstance(given, str):
        values.text("summarizer", given, none=False)
        doubt_of_summarizer(given)
        return
    block = _known(given, "summarizer", SUMMARIZER)
    for name in ("model", "base_url", "api_key_env"):
        values.text(f"summarizer.{name}", block.get(name))
    if block.get("base_url") is not None:
        from palimpsest.summaries.models.chat_model import check_base_url  # as `_models`

        check_base_url(block["base_url"], "summarizer.base_url")
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
    doubt_of_summarizer(block)


def doubt_of_summarizer(given: str | Mapping[str, Any]) -> str | None:
    """Return what is to be warned of: a name that a program may register, or that only Pydantic AI may know.

    Raises ConfigError for a text that can be no summarizer. The extra `llm` need not be there.
    """
    doubt: str | None
    if isinstance(given, str):
        doubt = _models().doubt_of(given)
    else:
        doubt = _models().doubt_of_model(given["model"], given.get("base_url"), "summarizer.model")
    return doubt


def model_summarizer(model: str, **options: Any) -> Any:
    """Return the ModelSummarizer that a mapping says. Raises MissingExtra, and ConfigError."""
    return _models().ModelSummarizer(model, **options)


def _models() -> ModuleType:
    from palimpsest.summaries import models  # four milliseconds, only for who names a summarizer

    return models


def _known(given: object, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(where, type(given).__name__, f"a mapping of {', '.join(known)}")
    values.known(where, given, known, inside=True)
    return given
