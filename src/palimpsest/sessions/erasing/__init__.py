"""Destroying stored texts: erasing entries, forgetting a user or session, and redacting what is already stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.sessions.erasing.everywhere import Everywhere


def everywhere() -> type[Everywhere]:
    """Return the class with the memory verbs that go through all sessions."""
    from palimpsest.sessions.erasing.everywhere import Everywhere  # the import takes forty milliseconds

    return Everywhere
