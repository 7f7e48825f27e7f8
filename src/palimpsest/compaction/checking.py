"""Checks of the options of triggers and strategies. ConfigError names the option; `loading` adds where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palimpsest.compaction.style import Style
from palimpsest.errors import ConfigError, nearest

MAX_LOOPS = 10
"""Passes of Chain of Density at most."""


def whole(name: str, value: object, least: int | None = 0, *, none: bool = False) -> None:
    """Check for a whole number of at least `least` (None: of any size)."""
    if none and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(name, value, f"a whole number{bound}{', or None' if none else ''}")


def share(name: str, value: object, *, one: bool = True, none: bool = False) -> None:
    """Check for a share over 0 and up to 1, which is allowed itself where `one` is set."""
    if none and value is None:
        return
    given = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    if not given or (value == 1 and not one):
        raise ConfigError(name, value, f"a share over 0 and {'up to' if one else 'under'} 1{', or None' * none}")


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check for one of these words."""
    if value not in allowed:
        raise ConfigError(name, value, ", ".join(allowed), nearest=nearest(str(value), allowed))


def text(name: str, value: object, *, none: bool = True) -> None:
    """Check for text that says something."""
    if none and value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(name, value, f"text{', or None' * none}")


def switch(name: str, value: object) -> None:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise ConfigError(name, value, "True or False")


def texts(name: str, value: object, what: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(name, value, f"a list of {what}")
    found = tuple(value)
    for i, each in enumerate(found):
        text(f"{name}[{i}]", each, none=False)
    return found


def style(given: Style) -> None:
    """Check how summaries are to be made."""
    loops = given.cod_max_loops
    if not isinstance(loops, int) or isinstance(loops, bool) or not 0 <= loops <= MAX_LOOPS:
        raise ConfigError("cod_max_loops", loops, f"a whole number from 0 to {MAX_LOOPS}")
    text("instructions", given.instructions)
    text("prompt_template", given.prompt_template)
    if given.prompt_template is not None and "{content}" not in given.prompt_template:
        raise ConfigError(
            "prompt_template", given.prompt_template, "a prompt with {content} where the text is to stand"
        )
    choice("on_failure", given.on_failure, ("keep", "heuristic"))
    whole("rebuild_every", given.rebuild_every)
