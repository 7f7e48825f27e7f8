"""The memory verbs that erase or scan across all sessions."""

from __future__ import annotations

from palimpsest.sessions.erasing.forget import forget
from palimpsest.sessions.erasing.scan import scan
from palimpsest.sessions.erasing.sweep import sweep, vacuum


class Everywhere:
    """The verbs of a memory that go through all its sessions, gathered so that one lazy import loads them."""

    forget, scan = staticmethod(forget), staticmethod(scan)
    sweep, vacuum = staticmethod(sweep), staticmethod(vacuum)
