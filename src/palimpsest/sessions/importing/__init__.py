"""Taking conversations from files into a memory, once however often it is repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.sessions.importing.verbs import Importing
    from palimpsest.sessions.scope import MemoryScope
    from palimpsest.sessions.session import AsyncSession


def importing(scope: MemoryScope, session: Callable[[str], AsyncSession]) -> Importing:
    """Return what takes conversations into a memory."""
    from palimpsest.sessions.importing.verbs import Importing  # with every source of files: twenty milliseconds

    return Importing(scope, session)
