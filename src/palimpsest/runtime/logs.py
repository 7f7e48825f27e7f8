"""What went wrong where nobody waits for it goes to the logger `palimpsest`; a program is warned at its own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from palimpsest.errors import PalimpsestWarning

if TYPE_CHECKING:
    from logging import Logger

Redact = Callable[[str], str]
"""Returns a text without what is private; never raises."""


def log_failure(redact: Redact | None, fault: BaseException | None, message: str, *arguments: object) -> None:
    """Log an error with its traceback, where there is one; with `redact` as that leaves it.

    Then handlers of the logger get no exception, only a text: its message, and those of its causes, may quote anything.
    """
    if redact is None:
        _logger().error(message, *arguments, exc_info=fault)
        return
    import traceback  # a fault may pay for it, a start need not

    trace = "".join(traceback.format_exception(fault)) if fault is not None else ""
    _logger().error("%s", redact(f"{message % arguments}\n{trace}"))


def warn(message: str, *arguments: object) -> None:
    """Log a warning."""
    _logger().warning(message, *arguments)


def warn_caller(text: str) -> None:
    """Warn of something at the line outside of Palimpsest that has led here, where there is one."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 (`inspect` has it, too, and costs a cold start)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "palimpsest" and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, PalimpsestWarning, stacklevel=level)


def _logger() -> Logger:
    import logging  # a fault may pay for it, a start need not

    return logging.getLogger("palimpsest")
