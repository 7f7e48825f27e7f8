"""Summaries by a model, given by its model string."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palimpsest.runtime.runner import Runner
from palimpsest.summaries import Prompt, Reply
from palimpsest.summaries.models.chat_model import BoundModel, ChatModel

_CACHES_MARKED_PREFIX = ("anthropic", "bedrock")
"""Providers that cache a prompt only up to a mark. The others cache prompts without marks."""


class ModelSummarizer(ChatModel):
    """A model that summarises: `summarizer=ModelSummarizer("gpt-oss", base_url="http://127.0.0.1:8000/v1")`.

    It needs the extra `llm`. A model string instead, `summarizer="openai:gpt-4o-mini"`, means the same with the
    defaults. One object may serve many sessions; each memory has a breaker of its own for it. Raises ConfigError naming
    the option, MissingExtra if the extra is not installed.

    Args:
        model: "PROVIDER:MODEL": `openai:` speaks chat completions, `openai-responses:` the Responses API; other
            providers need their own extra of pydantic-ai-slim. With `base_url` the plain name.
        base_url: the address of a server that speaks OpenAI's protocol; None: the provider's.
        api_key: the key; None: that of the provider's environment variable, which is never sent to a `base_url`.
        timeout: seconds for one attempt; of a stream, for each piece.
        retries: how often it is asked again, after status 408, 409, 429 and 5xx, a lost connection, a timeout.
        allowance: seconds for all attempts and pauses together.
        stream: whether answers are read as streams, for slow models.
        window: how many tokens the model reads at once; None: as in the table of models.
        max_output: how many tokens it answers with at most, reasoning included; None: as in the table.
        settings: further settings of Pydantic AI, such as `{"temperature": 0.2}`.
    """

    def bound(self, runner: Runner, clock: Callable[[], int]) -> BoundSummarizer:
        """Return the summarizer for one memory, with its `runner` and its `clock` (microseconds)."""
        return BoundSummarizer(self, runner, clock)


class BoundSummarizer(BoundModel):
    """A model that summarises, bound to a memory."""

    async def ask(self, prompt: Prompt) -> Reply:
        """Return the model's answer. Raises SummarizerFailed."""
        answer = await self.answer([self._message(prompt)], max_tokens=prompt.max_tokens)
        return Reply(text=answer.text, spent=answer.spent)

    def _message(self, prompt: Prompt) -> dict[str, Any]:
        if self._model.provider not in _CACHES_MARKED_PREFIX or not 0 < prompt.stable < len(prompt.text):
            return {"role": "user", "content": prompt.text}
        stable = {"type": "text", "text": prompt.text[: prompt.stable], "cache_control": {"type": "ephemeral"}}
        return {"role": "user", "content": [stable, {"type": "text", "text": prompt.text[prompt.stable :]}]}
