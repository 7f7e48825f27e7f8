"""What went wrong where nobody waits for it goes to the logger `palimpsest`."""

from __future__ import annotations

from collections.abc import Callable

Redact = Callable[[str], str]
"""Returns a text without what is private; never raises."""


def log_failure(redact: Redact | None, fault: BaseException | None, message: str, *arguments: object) -> None:
    """Log an error with its traceback, where there is one; with `redact` as that leaves it.

    Then handlers of the logger get no exception, only a text: its message, and those of its causes, may quote anything.
    """
    import logging  # a fault may pay for these, a start need not

    logger = logging.getLogger("palimpsest")
    if redact is None:
        logger.error(message, *arguments, exc_info=fault)
        return
    import traceback

    trace = "".join(traceback.format_exception(fault)) if fault is not None else ""
    logger.error("%s", redact(f"{message % arguments}\n{trace}"))
