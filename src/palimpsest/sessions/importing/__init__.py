"""Importing conversations from files into a memory. Repeating an import adds nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.sessions.importing.verbs import Importing
    from palimpsest.sessions.scope import MemoryScope
    from palimpsest.sessions.session import AsyncSession


def importing(scope: MemoryScope, session: Callable[[str], AsyncSession]) -> Importing:
    """Return the import verbs of a memory."""
    from palimpsest.sessions.importing.verbs import Importing  # loads every source of files: twenty milliseconds

    return Importing(scope, session)
