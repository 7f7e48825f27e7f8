"""How a strategy wants its summaries made."""

from __future__ import annotations

from typing import Literal

import msgspec


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How a strategy wants its summaries made.

    `cod_max_loops` are the passes of Chain of Density (0: one plain summary), `instructions` add a focus to the
    prompt, `prompt_template` replaces it. `on_failure` says what becomes of a compaction whose summarizer gave no
    acceptable summary: take the "heuristic", or "keep" everything as it is. Every `rebuild_every` folds the summary is
    made anew from the entries (0: never).
    """

    cod_max_loops: int = 3
    instructions: str | None = None
    prompt_template: str | None = None
    on_failure: Literal["keep", "heuristic"] = "heuristic"
    rebuild_every: int = 5
