"""Generations: numbers by which a reader of an index notices that something was removed, or the tables made anew."""

from __future__ import annotations

from secrets import randbits

COUNTED = 32
"""The lower bits of a generation count removals. The others are random, and stay the same as long as the tables do."""


def first_generation() -> int:
    """Return the generation that tables begin with, so that nobody takes tables made anew for those before."""
    return randbits(62 - COUNTED) << COUNTED


def tables_of(generation: int) -> int:
    """Return the bits of a generation that tell tables from those that were made anew in their place."""
    return generation >> COUNTED
