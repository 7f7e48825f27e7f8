"""The seam of summarizing: what is summarised, what a summarizer is asked and answers, and what results. Pure.

Making a summary is a generator: it yields each `Prompt`, is sent the `Reply`, and returns a `Draft`. The code that
drives it talks to the model, so nothing here waits for one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import msgspec

from palimpsest.errors import PalimpsestError
from palimpsest.log.entry import Entry
from palimpsest.log.summary import Method, Spent, Summary, SummaryItem

Purpose = Literal["summarise", "densify", "shorten", "repair"]
"""What a prompt asks for: a first text, a denser one, a shorter one, or the same answer in the required form."""


class SummarySource(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What a summary is made from: the current summaries that it takes the place of, and the entries that it takes in.

    Args:
        entries: the entries, whole and oldest first.
        previous: the summaries; none by default.
        pinned: identifiers that no summary may leave out; none by default.
    """

    entries: Sequence[Entry]
    previous: Sequence[Summary] = ()
    pinned: Sequence[str] = ()


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How to make a summary. Lengths are in tokens by the session's counter.

    `target` is the length to aim at, `most` the longest that is accepted. `source_tokens` is the cost of the source,
    less the fence around a summary in a context; the text must stay below it. `loops` is the number of passes of Chain
    of Density (0: one plain summary). `instructions` add a focus; `template` replaces the prompt and contains
    `{content}`. `window` is how much the summarizer reads at once, `max_output` the longest answer it gives (None:
    unknown). `nonce` marks the fence around the source, so that no text in the source can close it. With `checked` off
    any text that is not empty and short enough is accepted. With `bare` the heuristic writes only its documented lines.
    """

    target: int
    most: int
    source_tokens: int
    loops: int = 3
    instructions: str | None = None
    template: str | None = None
    window: int | None = None
    max_output: int | None = None
    nonce: str = ""
    checked: bool = True
    bare: bool = False


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One text for a summarizer, which begins with the span to summarise. `max_tokens` bounds the answer.

    Several passes over one span share their first `stable` characters, so that a provider's prompt cache serves them.
    `structured` says that the answer is JSON.
    """

    text: str
    stable: int
    max_tokens: int
    purpose: Purpose = "summarise"
    structured: bool = False


class Reply(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A summarizer's answer: `text`, or an object that its provider made of it (`data`), and what was `spent`."""

    text: str = ""
    data: Any = None
    spent: Spent = Spent()


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A text that may become a summary. `notes` say what was repaired or left out on the way."""

    text: str
    method: Method
    items: tuple[SummaryItem, ...] = ()
    passes: int = 0
    prompt: str | None = None
    notes: tuple[str, ...] = ()


Count = Callable[[str], int]
"""Returns the exact number of tokens of a text."""

Passes = Generator[Prompt, Reply, Draft]


class Rejected(PalimpsestError):
    """No acceptable summary was made. `reason` is empty, no_gain or failed; `why` explains it to a reader."""

    def __init__(self, reason: Literal["empty", "no_gain", "failed"], why: str) -> None:
        self.reason, self.why = reason, why
        super().__init__(f"no summary was accepted ({reason}): {why}")
