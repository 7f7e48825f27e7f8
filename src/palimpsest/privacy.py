"""Admission: the one step that every entry passes before anything is stored, counted, logged or sent on. Pure.

The order is decode, privacy, admit, store. The policy of today keeps every entry as it is; a policy that
redacts or withholds takes its place behind the same call, and nothing can be written around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from palimpsest.entries import Entry


class PrivacyPolicy(Protocol):
    """Decides what of an entry may be kept. A pure function of the entry."""

    def admit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries as they may be stored; raises PalimpsestError to refuse them all."""
        ...


class KeepAll:
    """The policy that keeps every entry as it is."""

    def admit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return `entries` unchanged."""
        return entries
