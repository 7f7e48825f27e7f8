"""How many examples a hypothesis test tries: a third of them in a usual run, all of them among the slow tests."""

from __future__ import annotations

FEW = 12
"""The fewest examples of a test in a usual run, unless the test asks for fewer."""

everything = False
"""Whether the slow tests run; `conftest` sets it before test modules are imported."""


def examples(full: int) -> int:
    """Return `full` when slow tests run, otherwise a third of it, but at least `FEW`."""
    return full if everything else max(full // 3, min(full, FEW))
