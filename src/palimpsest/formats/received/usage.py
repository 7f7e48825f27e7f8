"""The usage of a call, as each vendor reports it, in common figures. Pure.

`input_tokens` is the whole input. OpenAI and Gemini include cached tokens in it. Anthropic reports three figures, whose
sum it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.formats.anthropic_kinds import is_hosted_result
from palimpsest.formats.openai_responses_items import asks
from palimpsest.formats.received.plain import plain
from palimpsest.formats.received.values import Reported
from palimpsest.log import values
from palimpsest.log.entry import digest

HOLDERS = ("usage", "usage_metadata", "usageMetadata")
"""Keys under which responses hold their usage."""


def reported(given: Mapping[str, Any], where: str = "usage") -> Reported | None:
    """Return what a response or its usage reports; None if it holds no figures.

    Raises ConfigError, naming the figure, for one that is no number of tokens.
    """
    inner = next((given[key] for key in HOLDERS if isinstance(given.get(key), Mapping)), None)
    usage = given if inner is None else inner
    figures = _figures(_Usage(usage, where))
    if figures is None:
        return None
    input_tokens, output_tokens, cached_tokens = figures
    id = next((given[key] for key in ("id", "response_id", "responseId") if isinstance(given.get(key), str)), "")
    fingerprint = digest(f"{id} {input_tokens}") if id else ""  # some servers give all their responses the same id
    return Reported(input_tokens, output_tokens, cached_tokens, fingerprint, _is_looped(given, usage))


def _is_looped(response: Mapping[str, Any], usage: Mapping[str, Any]) -> bool:
    """Whether the provider's own tools, or its summaries, have a part in the reported input."""
    if any(usage.get(key) for key in ("tool_use_prompt_token_count", "toolUsePromptTokenCount")):  # Gemini
        return True
    passes, asked = usage.get("iterations"), usage.get("server_tool_use")  # Anthropic
    if (isinstance(passes, list) and len(passes) > 1) or (isinstance(asked, Mapping) and any(asked.values())):
        return True
    items = [item for key in ("content", "output") for item in response.get(key) or () if isinstance(item, Mapping)]
    return any(_is_hosted(str(item.get("type")), item) for item in items)


def _is_hosted(kind: str, item: Mapping[str, Any]) -> bool:
    return kind == "compaction" or is_hosted_result(kind) or (kind.endswith("_call") and not asks(dict(item)))


class _Usage:
    """One vendor's figures, each checked as it is read. Figures that are absent or null are 0."""

    def __init__(self, usage: Mapping[str, Any], where: str) -> None:
        self.usage, self.where = usage, where

    def has(self, *keys: str) -> bool:
        """Whether one of the keys is present and not null."""
        return any(self.usage.get(key) is not None for key in keys)

    def sum(self, *keys: str) -> int:
        """Return the sum of the figures under these keys."""
        return sum(self._figure(self.usage, key) for key in keys)

    def within(self, holder: str, key: str) -> int:
        """Return the figure under a key of the breakdown under `holder`."""
        inner = self.usage.get(holder)
        return self._figure(inner, key) if isinstance(inner, Mapping) else 0

    def _figure(self, usage: Mapping[str, Any], key: str) -> int:
        value = usage.get(key)
        if value is None:
            return 0
        values.whole(f"{self.where}.{key}", value)
        return int(value)


def _figures(usage: _Usage) -> tuple[int, int, int] | None:
    """Return the tokens of the whole input, of the output, and of the cached part of the input; None for no figures."""
    if usage.has("prompt_tokens"):  # chat completions
        cached = usage.within("prompt_tokens_details", "cached_tokens") or usage.sum("prompt_cache_hit_tokens")
        return usage.sum("prompt_tokens"), usage.sum("completion_tokens"), cached
    if usage.has("prompt_token_count", "promptTokenCount"):  # Gemini
        return (
            usage.sum(
                "prompt_token_count", "promptTokenCount", "tool_use_prompt_token_count", "toolUsePromptTokenCount"
            ),
            usage.sum("candidates_token_count", "candidatesTokenCount", "thoughts_token_count", "thoughtsTokenCount"),
            usage.sum("cached_content_token_count", "cachedContentTokenCount"),
        )
    if not usage.has("input_tokens"):
        return None
    if usage.has("input_tokens_details"):  # OpenAI's responses
        return (
            usage.sum("input_tokens"),
            usage.sum("output_tokens"),
            usage.within("input_tokens_details", "cached_tokens"),
        )
    cached = usage.sum("cache_read_input_tokens")  # Anthropic
    fresh = usage.sum("input_tokens", "cache_creation_input_tokens")
    return fresh + cached, usage.sum("output_tokens"), cached


_KNOWN = (
    "a response or its usage of the openai, anthropic or google-genai client, or input_tokens=… and output_tokens=…"
)


def reported_by(given: object) -> Reported:
    """Return what a client's response, its usage, or a dump of either reports. Raises ConfigError for all else."""
    values = plain(given, "usage")
    report = reported(values) if isinstance(values, Mapping) else None
    if report is None:
        raise ConfigError("usage", f"{type(given).__module__}.{type(given).__qualname__}", _KNOWN)
    return report
