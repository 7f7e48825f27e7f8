"""How a strategy wants its summaries made."""

from __future__ import annotations

from typing import Literal

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values

MAX_LOOPS = 10
"""Most passes of Chain of Density."""


class Style(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """How a strategy wants its summaries made: the `style` of a strategy of your own.

    Args:
        cod_max_loops: the most passes of Chain of Density; 3 by default, 0: one plain summary.
        instructions: a focus to add to the summary's prompt; None: none.
        prompt_template: a prompt to use instead, with `{content}` in it; None: the prompt of Palimpsest.
        on_failure: what to do if a summarizer gives no acceptable summary: use the "heuristic" one (default), or "keep"
            everything as it is.
        rebuild_every: after how many folds the summary is made anew from the entries; 5 by default, 0: never.
        bare_heuristic: whether a summary without a model holds only its documented lines; False by default.
    """

    cod_max_loops: int = 3
    instructions: str | None = None
    prompt_template: str | None = None
    on_failure: Literal["keep", "heuristic"] = "heuristic"
    rebuild_every: int = 5
    bare_heuristic: bool = False

    def check(self) -> None:
        """Raise ConfigError, naming the option, for an invalid value."""
        if not values.is_whole(self.cod_max_loops, 0, MAX_LOOPS):
            raise ConfigError("cod_max_loops", self.cod_max_loops, f"a whole number from 0 to {MAX_LOOPS}")
        values.text("instructions", self.instructions)
        values.text("prompt_template", self.prompt_template)
        if self.prompt_template is not None and "{content}" not in self.prompt_template:
            raise ConfigError(
                "prompt_template", self.prompt_template, "a prompt that has {content} in the place of the text"
            )
        values.choice("on_failure", self.on_failure, ("keep", "heuristic"))
        values.whole("rebuild_every", self.rebuild_every)
        values.switch("bare_heuristic", self.bare_heuristic)
