"""Summaries by a model: its string is all that a session needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palimpsest.runtime.runner import Runner
from palimpsest.summaries import Prompt, Reply
from palimpsest.summaries.models.chat_model import BoundModel, ChatModel

_CACHES_WHAT_IS_MARKED = ("anthropic", "bedrock")
"""Providers that keep a prompt for the next call only up to a mark. Others do so by themselves."""


class ModelSummarizer(ChatModel):
    """A model that summarises: `summarizer=ModelSummarizer("gpt-oss", base_url="http://127.0.0.1:8000/v1")`.

    It needs the extra `llm`. A model string in its place, `summarizer="openai:gpt-4o-mini"`, means the same with the
    defaults. One object may serve many sessions; each memory has a breaker of its own for it. Raises ConfigError
    naming the option, MissingExtra where the extra is not installed.

    Args:
        model: "PROVIDER:MODEL": `openai:` speaks chat completions, `openai-responses:` the Responses API; other
            providers need their own extra of pydantic-ai-slim. With `base_url` the plain name.
        base_url: the address of a server that speaks OpenAI's protocol; None: the provider's.
        api_key: the key; None: that of the provider's environment variable, which never goes to a `base_url`.
        timeout: seconds for one attempt; of a stream, for each piece of it.
        retries: how often it is asked again, after status 408, 409, 429 and 5xx, a lost connection, a timeout.
        allowance: seconds for all attempts and pauses together.
        stream: whether answers are read as streams, for models that are slow.
        window: how many tokens the model reads at once; None: as the table of models says.
        max_output: how many tokens it answers with at most, its thoughts included; None: as the table says.
        settings: further settings of Pydantic AI, such as `{"temperature": 0.2}`.
    """

    def bound(self, runner: Runner, clock: Callable[[], int]) -> BoundSummarizer:
        """Return the summarizer as one memory asks it: on its `runner`, by its `clock` (microseconds)."""
        return BoundSummarizer(self, runner, clock)


class BoundSummarizer(BoundModel):
    """A summarizer as one memory asks it."""

    async def ask(self, prompt: Prompt) -> Reply:
        """Return the model's answer. Raises SummarizerFailed."""
        answer = await self.answer([self._message(prompt)], max_tokens=prompt.max_tokens)
        return Reply(text=answer.text, spent=answer.spent)

    def _message(self, prompt: Prompt) -> dict[str, Any]:
        if self._model.provider not in _CACHES_WHAT_IS_MARKED or not 0 < prompt.stable < len(prompt.text):
            return {"role": "user", "content": prompt.text}
        stable = {"type": "text", "text": prompt.text[: prompt.stable], "cache_control": {"type": "ephemeral"}}
        return {"role": "user", "content": [stable, {"type": "text", "text": prompt.text[prompt.stable :]}]}
