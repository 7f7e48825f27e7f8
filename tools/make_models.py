"""Make `src/palimpsest/tokens/data/models.json` from litellm's model price file (MIT), which is inside its wheel.

    python tools/make_models.py model_prices_and_context_window_backup.json --release 1.109.1 --date 2026-11-21

The file supplies names, windows, output limits, prices and whether a model takes sound or images. It does not say how
tokens and images are counted: the tables below do, and name their sources.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TOKENIZERS: dict[str, dict[str, Any]] = {
    "o200k": {
        "encoding": "o200k_base",
        "exact": True,
        "margin": 1.0,
        "reason": "tiktoken assigns this encoding to the model (gpt-oss: o200k_harmony, the same for text)",
    },
    "cl100k": {
        "encoding": "cl100k_base",
        "exact": True,
        "margin": 1.0,
        "reason": "tiktoken assigns this encoding to the model",
    },
    "openai": {
        "encoding": "o200k_base",
        "exact": False,
        "margin": 1.1,
        "reason": "tiktoken assigns no encoding to this model yet; its predecessors have o200k_base",
    },
    "anthropic": {
        "encoding": "o200k_base",
        "exact": False,
        "margin": 1.15,
        "reason": "no public tokenizer; a start for English text and code, which reported usage corrects",
    },
    "anthropic-new": {
        "encoding": "o200k_base",
        "exact": False,
        "margin": 1.5,
        "reason": "no public tokenizer; the one since Opus 4.7 is said to need up to 1.35 times the tokens of before",
    },
    "google": {
        "encoding": "o200k_base",
        "exact": False,
        "margin": 1.1,
        "reason": "Gemini has no public tokenizer; a start, which reported usage corrects",
    },
    "other": {
        "encoding": "o200k_base",
        "exact": False,
        "margin": 1.15,
        "reason": "its own tokenizer is not included here; a start, which reported usage corrects",
    },
}

# OpenAI, guide "Images and vision", section "Calculating costs", as of autumn 2026. Models that the sizing table
# leaves out take the limits of the sibling that it names; models later than it take its largest rule.
IMAGES: dict[str, dict[str, Any]] = {
    "tile-70": {"by": "tile", "base": 70, "tile": 140},
    "tile-75": {"by": "tile", "base": 75, "tile": 150},
    "tile-85": {"by": "tile", "base": 85, "tile": 170},
    "tile-2833": {"by": "tile", "base": 2833, "tile": 5667},
    **{
        f"patch-{multiplier}": {"by": "patch", "multiplier": multiplier, "limits": {"auto": [2048, 6144]}}
        for multiplier in (1.2, 1.5, 1.62, 1.72, 2.46)
    },
    "patch-5.4": {
        "by": "patch",
        "multiplier": 1.2,
        "limits": {"low": [2048, 6144], "high": [2048, 2500], "original": [6000, 10000], "auto": [2048, 2500]},
    },
    "patch-5.5": {
        "by": "patch",
        "multiplier": 1.2,
        "limits": {"low": [512, 256], "high": [2048, 2500], "original": [6000, 10000], "auto": [6000, 10000]},
    },
    # No budget of its own at `original`; requests of more than 30,000 patches are refused.
    "patch-5.6": {
        "by": "patch",
        "multiplier": 1.2,
        "limits": {"low": [512, 256], "high": [2048, 2500], "original": [65535, 30000], "auto": [65535, 30000]},
    },
    # Anthropic, guide "Vision": pixels / 750; about 1,600 tokens at most, about 4,784 since Opus 4.7.
    "area-1600": {"by": "area", "pixels": 750, "cap": 1600},
    "area-4784": {"by": "area", "pixels": 750, "cap": 4784},
    # Google, guides "Understand and count tokens" and "Media resolution": up to Gemini 2.5 258 tokens a crop, and
    # about 2,048 for the crops beside the whole; since Gemini 3 the tokens of a resolution.
    "crop-258": {"by": "crop", "crop": 258, "whole": 384, "most": 9},
    "level-1120": {
        "by": "level",
        "tokens": {"low": 280, "medium": 560, "high": 1120, "ultra_high": 2240, "auto": 1120},
    },
}

# The first prefix that matches decides, so longer ones come before shorter ones.
OPENAI_TOKENIZERS = (
    (("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-oss", "chatgpt-4o", "o1", "o3", "o4-mini"), "o200k"),
    (("gpt-4-", "gpt-4", "gpt-3.5", "gpt-35"), "cl100k"),
    (("",), "openai"),
)
OPENAI_IMAGES = (
    (("gpt-4o-mini",), "tile-2833"),
    (("gpt-4.1-mini",), "patch-1.62"),
    (("gpt-4.1-nano",), "patch-2.46"),
    (("gpt-3.5", "gpt-4-0613"), None),
    (("gpt-4", "chatgpt-4o"), "tile-85"),
    (("gpt-5-mini", "gpt-5.1-codex-mini"), "patch-1.2"),
    (("gpt-5-nano",), "patch-1.5"),
    (("gpt-5.2", "gpt-5.3"), "patch-1.2"),
    (("gpt-5.4",), "patch-5.4"),
    (("gpt-5.5",), "patch-5.5"),
    (("gpt-5.6", "gpt-6"), "patch-5.6"),
    (("gpt-5",), "tile-70"),
    (("o4-mini",), "patch-1.72"),
    (("o1", "o3"), "tile-75"),
    (("computer-use",), "tile-85"),
    (("",), "patch-5.6"),
)
GOOGLE_OLD = ("gemini-1", "gemini-2", "gemini-exp", "gemini-robotics-er-1", "learnlm")
ANTHROPIC_OLD = (
    "claude-3",
    "claude-haiku-4",
    "claude-sonnet-4",
    "claude-opus-4-5",
    "claude-opus-4-6",
    "claude-opus-4-1",
)

# litellm's provider, the prefix of the names in litellm's file, and our provider.
PROVIDERS = (
    ("openai", "", "openai"),
    ("anthropic", "", "anthropic"),
    ("vertex_ai-anthropic_models", "vertex_ai/", "anthropic"),
    ("gemini", "gemini/", "google"),
    ("vertex_ai-language-models", "", "google"),
    ("vertex_ai-language-models", "vertex_ai/", "google"),
    ("xai", "xai/", "xai"),
    ("deepseek", "deepseek/", "deepseek"),
    ("deepseek", "", "deepseek"),
    ("mistral", "mistral/", "mistral"),
    ("groq", "groq/openai/", "groq"),
    ("groq", "groq/", "groq"),
    ("meta_llama", "meta_llama/", "meta"),
    ("azure", "azure/", "azure"),
)


def rows(prices: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the table, by provider and name. If two entries have the same name, that of the first provider counts."""
    table: dict[str, list[Any]] = {}
    for litellm_provider, prefix, provider in PROVIDERS:
        for name, entry in sorted(_chat_models(prices, litellm_provider, prefix)):
            if not any(known.lower() == name.lower() for known in table):
                table[name] = _row(name, provider, entry)
    return table


def _chat_models(prices: Mapping[str, Any], provider: str, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the chat models of a provider, with their names after the prefix."""
    for key, entry in prices.items():
        if entry.get("litellm_provider") != provider or entry.get("mode") not in {"chat", "responses"}:
            continue
        name = key.removeprefix(prefix).replace("@", "-")
        if not key.startswith(prefix) or "/" in name or name.endswith("-default"):
            continue
        if provider != "azure" or name.startswith(("gpt-", "o1", "o3", "o4")):
            yield name, entry


def _row(name: str, provider: str, entry: Mapping[str, Any]) -> list[Any]:
    plain = name.removeprefix("ft:")
    # Entries of fine-tunes often do not say that they take images, though their base does.
    image = _image(plain, provider) if entry.get("supports_vision") or name != plain else None
    return [
        provider,
        _tokens(entry.get("max_input_tokens")),
        _tokens(entry.get("max_output_tokens")),
        _tokenizer(plain, provider),
        _price(entry.get("input_cost_per_token")),
        _price(entry.get("cache_read_input_token_cost")),
        _price(entry.get("output_cost_per_token")),
        image,
        bool(entry.get("supports_audio_input")),
    ]


def _tokenizer(name: str, provider: str) -> str:
    if provider in {"openai", "azure"} or name.startswith("gpt-oss"):
        return next(tokenizer for prefixes, tokenizer in OPENAI_TOKENIZERS if name.startswith(prefixes))
    if provider == "anthropic":
        return "anthropic" if name.startswith(ANTHROPIC_OLD) else "anthropic-new"
    return "google" if provider == "google" else "other"


def _image(name: str, provider: str) -> str | None:
    if provider in {"openai", "azure"}:
        return next(rule for prefixes, rule in OPENAI_IMAGES if name.startswith(prefixes))
    if provider == "anthropic":
        return "area-1600" if name.startswith(ANTHROPIC_OLD) else "area-4784"
    if provider == "google":
        return "crop-258" if name.startswith(GOOGLE_OLD) else "level-1120"
    return None


def _tokens(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _price(value: object) -> float | None:
    """Return dollars per million tokens from dollars per token, rounded to remove the noise of binary fractions."""
    return round(value * 1e6, 6) if isinstance(value, int | float) else None


def render(table: Mapping[str, list[Any]], source: str) -> str:
    """Return the text of the file: one line for each model, so that diffs are readable."""
    parts = [f'{{\n"source": {json.dumps(source)}']
    for name, content in (("tokenizers", TOKENIZERS), ("images", IMAGES), ("models", table)):
        lines = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in content.items()
        )
        parts.append(f'"{name}": {{\n{lines}\n}}')
    return ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Read the price file and write the table."""
    parser = argparse.ArgumentParser(description="Make the model table from litellm's model price file.")
    parser.add_argument("prices", type=Path)
    parser.add_argument("--release", required=True, help="version of the litellm wheel that the file is from")
    parser.add_argument("--date", required=True, help="day of the extraction, YYYY-MM-DD")
    target = Path(__file__).parents[1] / "src" / "palimpsest" / "tokens" / "data" / "models.json"
    parser.add_argument("--into", type=Path, default=target)
    options = parser.parse_args()
    content = options.prices.read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    table = rows(json.loads(content))
    source = f"litellm {options.release} (MIT), {options.prices.name}, sha256 {checksum}, taken {options.date}"
    options.into.write_text(render(table, source), encoding="utf-8")
    print(f"{len(table)} models, {options.into.stat().st_size:,} bytes; {source}")


if __name__ == "__main__":
    main()
