"""The strategies of a declared memory: blocks of Alquimia and Compozy, checked, as options of sessions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from palimpsest.compaction.loading import FLUSHES
from palimpsest.compaction.loading import load as load_long_term
from palimpsest.context.short_term import load as load_short_term
from palimpsest.errors import ConfigError, MissingExtra
from palimpsest.log import values
from palimpsest.resources.faults import each_fault
from palimpsest.resources.problems import Path, Problems, spelled

KINDS = ("memory_strategy_id", "long_term_memory_id", "type")
"""The keys that name the kind of a strategy in its block."""
FLUSHING = {"type": "simple_fifo"}
"""How a memory with a type is flushed by default."""
NEEDED = {"summary_tokens": 1, "collection_id": "any"}
"""What stands for a wrong value of a key without which nothing else in its block can be checked."""
MOST = 64
"""The most strategies of one kind that a memory may have: each is checked after every interaction."""
SUMMARIZER = (
    *("model", "base_url", "api_key_env", "timeout", "retries"),
    *("allowance", "stream", "window", "max_output", "settings"),
)


def short_term_of(root: Mapping[str, Any], problems: Problems, warnings: list[str]) -> list[Any] | None:
    """Return the blocks that limit what a context shows, and note what is wrong; None: there is none."""
    key = "short_term_memory_strategy"
    valid = []
    for path, block in _blocks(root.get(key), (key,), problems):
        if _loads(block, path, problems, warnings, load_short_term):
            valid.append(block)
    return valid or None


def flush_of(long_term: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any] | None:
    """Return the strategy of this name, with the declared options that fit it; without a name the declared one, if any.

    Raises ConfigError for a name that is not one of a flush.
    """
    blocks = [block for block in long_term if "long_term_memory_id" not in block]
    declared = dict(blocks[-1]) if blocks else {}
    if name is None:
        return declared or None
    name = "simple_fifo" if name == "fifo" else name
    values.choice("strategy", name, FLUSHES)
    if name == "hybrid_summary" and declared.get("summary_tokens") is None:
        raise ConfigError("strategy", name, "a memory whose `flushing` has summary_tokens")
    only = () if name == "hybrid_summary" else ("summary_tokens", "summarize_oldest_percent")
    return {**{option: value for option, value in declared.items() if option not in only}, "type": name}


def long_term_of(
    root: Mapping[str, Any], problems: Problems, warnings: list[str], kind: str | None
) -> list[dict[str, Any]]:
    """Return the blocks of strategies that compact, Alquimia's first, then `flushing`, and note what is wrong.

    `kind` is the memory's type; a memory with one is flushed by default.
    """
    key, valid = "long_term_memory_strategy", list[dict[str, Any]]()
    for path, block in _blocks(root.get(key), (key,), problems):
        if _loads(block, path, problems, warnings, load_long_term):
            valid.append(block)
    flushing = root.get("flushing")
    if flushing is None:  # also for a key without a value
        flushing = FLUSHING if kind is not None else None
    if flushing is None:
        return _named_apart(valid, problems)
    if not isinstance(flushing, Mapping):
        problems.add(("flushing",), type(flushing).__name__, "a mapping with a type")
        return valid
    block = {"type": "simple_fifo", **flushing}
    if kind == "buffer" and block["type"] not in ("simple_fifo", "fifo"):
        warnings.append(f"flushing.type: a buffer is usually flushed by simple_fifo, not by {block['type']}")
    if block["type"] == "hybrid_summary" and block.get("summary_tokens") is None:
        problems.add(("flushing", "summary_tokens"), None, "the tokens of the summary, which hybrid_summary needs")
        block["summary_tokens"] = NEEDED["summary_tokens"]
    if _loads(block, ("flushing",), problems, warnings, load_long_term):
        valid.append(block)
    return _named_apart(valid, problems)


def _named_apart(blocks: list[dict[str, Any]], problems: Problems) -> list[dict[str, Any]]:
    """Return the blocks, after noting two with the same name, which only shows when all are loaded together."""
    if not problems.found:
        with problems.at("long_term_memory_strategy", named="long_term_memory_strategy"):
            load_long_term(blocks, "long_term_memory_strategy")
    return blocks


def _loads(
    block: dict[str, Any],
    path: Path,
    problems: Problems,
    warnings: list[str],
    load: Callable[[dict[str, Any], str], tuple[object, list[str]]],
) -> bool:
    """Whether a block loads. Everything wrong with it is noted, and the warnings of one that loads."""

    def tried(given: Any) -> None:
        if any(key in block and key not in given for key in KINDS):
            return  # the kind was like none that is known, and is left out: nothing else can be checked
        _, texts = load(given, spelled(path))
        if given is block:
            warnings.extend(texts)

    return each_fault(problems, path, block, tried, _stand_in)


def _stand_in(path: Path, fault: ConfigError) -> object:
    """Return what stands for a wrong value, so that what is beside it is checked: for a kind the nearest one.

    What flushes has the same keys whatever its type. Nothing stands for the whole block.
    """
    if not path:
        return None
    if len(path) == 1 and path[0] in (*KINDS, "strategy"):
        return fault.nearest or (FLUSHING["type"] if path[0] == "type" else None)
    return NEEDED.get(str(path[-1]))


def _blocks(given: object, path: Path, problems: Problems) -> list[tuple[Path, dict[str, Any]]]:
    """Return the blocks of a list, or a single one that is not in a list, each with its path."""
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
    blocks = []
    for i, block in enumerate(given):
        if isinstance(block, Mapping):
            blocks.append(((*path, i), {str(key): value for key, value in block.items()}))
        else:
            problems.add((*path, i), type(block).__name__, "a mapping: a strategy")
    return blocks


def persistence_of(root: Mapping[str, Any], problems: Problems) -> str | None:
    """Return the option `persistence` for Alquimia's `persistence_strategy`; None: it is not given."""
    given = root.get("persistence_strategy")
    if given is None:
        return None
    with problems.at("persistence_strategy"):
        return values.word("persistence_strategy", given, ("incremental", "flush", "ephemeral"))
    return None


def check_unwritten(root: Mapping[str, Any], problems: Problems) -> None:
    """Note each knowledge base that would be written to, in an ephemeral memory, which writes nothing."""
    key = "long_term_memory_strategy"
    for path, block in _blocks(root.get(key), (key,), Problems()):
        base = block.get("knowledge_base")
        if isinstance(base, Mapping) and base.get("write", True) is not False:
            problems.add((*path, "knowledge_base", "write"), True, "false, in a memory that is EPHEMERAL")


def check_embedders(root: Mapping[str, Any], problems: Problems, warnings: list[str]) -> None:
    """Note each embedder of a knowledge base whose name is unknown; if the library is missing, only warn of that."""
    key = "long_term_memory_strategy"
    for path, block in _blocks(root.get(key), (key,), Problems()):
        base = block.get("knowledge_base")
        name = base.get("embedder") if isinstance(base, Mapping) else None
        if not isinstance(name, str) or not name.strip():
            continue
        try:
            from palimpsest.recall.embedders import MODELS  # loads numpy: only if a file names an embedder
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
        _models().chat_model.check_base_url(block["base_url"], "summarizer.base_url")
    for name in ("timeout", "allowance"):
        if block.get(name) is not None and not (values.is_number(block[name]) and block[name] > 0):
            raise ConfigError(f"summarizer.{name}", block[name], "a number of seconds above 0")
    for name in ("retries", "window", "max_output"):
        values.whole(f"summarizer.{name}", block.get(name), 0 if name == "retries" else 1, none=True)
    values.switch("summarizer.stream", block.get("stream", False))
    if block.get("settings") is not None and not isinstance(block["settings"], Mapping):
        raise ConfigError("summarizer.settings", block["settings"], "a mapping")
    if block.get("model") is None:
        raise ConfigError("summarizer.model", None, "the name of a model, such as openai:gpt-4o-mini")
    doubt_of_summarizer(block)


def doubt_of_summarizer(given: str | Mapping[str, Any]) -> str | None:
    """Return a warning about a summarizer, None if there is none: that its name can only be known to a program, which
    may register it, or to Pydantic AI.

    Raises ConfigError for a text that cannot name a summarizer. The extra `llm` need not be installed.
    """
    doubt: str | None
    if isinstance(given, str):
        doubt = _models().doubt_of(given)
    else:
        doubt = _models().doubt_of_model(given["model"], given.get("base_url"), "summarizer.model")
    return doubt


def model_summarizer(model: str, **options: Any) -> Any:
    """Return a ModelSummarizer with these options. Raises MissingExtra, and ConfigError."""
    return _models().ModelSummarizer(model, **options)


def _models() -> ModuleType:
    from palimpsest.summaries import models  # takes four milliseconds: only if a file names a summarizer

    return models


def _known(given: object, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    """Return a mapping. Raises ConfigError for anything else, and for a key that is not one of the `known` ones."""
    if not isinstance(given, Mapping):
        raise ConfigError(where, type(given).__name__, f"a mapping of {', '.join(known)}")
    values.known(where, given, known, inside=True)
    return given
