"""Faults that nobody waits for go to the logger `palimpsest`; warnings to a program name its own line of code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from palimpsest.errors import PalimpsestWarning

if TYPE_CHECKING:
    from logging import Logger

Redact = Callable[[str], str]
"""Returns a text without what is private in it. Never raises."""


def log_failure(redact: Redact | None, fault: BaseException | None, message: str, *arguments: object) -> None:
    """Log an error, with its traceback if there is one; both redacted if `redact` is given.

    Then handlers of the logger get a text instead of the exception, whose message and causes may quote anything.
    """
    if redact is None:
        _logger().error(message, *arguments, exc_info=fault)
        return
    import traceback  # late: only a fault needs it

    trace = "".join(traceback.format_exception(fault)) if fault is not None else ""
    _logger().error("%s", redact(f"{message % arguments}\n{trace}"))


def warn(message: str, *arguments: object) -> None:
    """Log a warning."""
    _logger().warning(message, *arguments)


def warn_caller(text: str) -> None:
    """Issue a PalimpsestWarning for the innermost line of code outside of Palimpsest, if there is one."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 (`inspect` has it, too, but costs a cold start more)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "palimpsest" and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, PalimpsestWarning, stacklevel=level)


def _logger() -> Logger:
    import logging  # late: only a fault needs it

    return logging.getLogger("palimpsest")
