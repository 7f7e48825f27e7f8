"""On how many examples a law is tried: on some of them in a usual run, on all of them among the slow tests."""

from __future__ import annotations

FEW = 12
"""What a law is tried on at least, if it has so many."""

everything = False
"""Whether the slow tests run; `conftest` says it before a test is loaded."""


def examples(full: int) -> int:
    """So many examples among the slow tests, and a third of them in a usual run."""
    return full if everything else max(full // 3, min(full, FEW))
