"""Resolving a session's options `model` and `counter`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from palimpsest.errors import ConfigError, nearest, shorten
from palimpsest.log.checks import unfit
from palimpsest.runtime.logs import warn_caller
from palimpsest.tokens.counter import FunctionCounter, TokenCounter, encoding

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

DEFAULT_ENCODING = "o200k_base"


def model_of(name: str | None) -> Model | None:
    """Return the model of this name. If the table has none, return None and warn. Raises ConfigError for a bad name."""
    if name is None:
        return None
    if not isinstance(name, str) or unfit(name) is not None:
        raise ConfigError("model", name, "the name of a model, such as 'gpt-4o'")
    from palimpsest.tokens.models import find_model, model_names  # a millisecond, only needed if a model is named

    model = find_model(name)
    if model is None:
        near = nearest(name, model_names())
        hint = f"; did you mean {near!r}?" if near else "."
        text = f"the model {shorten(name)} is not in the table of models{hint}"
        warn_caller(f"{text} Its tokens are counted with {DEFAULT_ENCODING}")
    return model


def counter_of(counter: TokenCounter | Callable[[str], int] | str | None, model: Model | None) -> TokenCounter:
    """Return the given counter, or for None the model's. Raises ConfigError for what cannot be used as a counter."""
    if counter is None:
        return encoding(model.encoding if model is not None else DEFAULT_ENCODING)
    if isinstance(counter, str):
        return encoding(counter)
    if callable(getattr(counter, "count", None)) and hasattr(counter, "name"):
        custom = cast("TokenCounter", counter)
        return custom if hasattr(custom, "overhead") else FunctionCounter(custom.count, name=custom.name)
    if callable(counter):
        return FunctionCounter(counter)
    allowed = (
        "a function from text to a number of tokens, an object with `count` and `name`, an encoding's name, or None"
    )
    raise ConfigError("counter", counter, allowed)
