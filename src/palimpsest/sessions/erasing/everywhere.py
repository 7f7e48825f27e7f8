"""What is erased, or looked at, in all sessions of a memory."""

from __future__ import annotations

from palimpsest.sessions.erasing.forget import forget
from palimpsest.sessions.erasing.scan import scan
from palimpsest.sessions.erasing.sweep import sweep, vacuum


class Everywhere:
    """The verbs of a memory that go through its sessions, loaded together."""

    forget, scan = staticmethod(forget), staticmethod(scan)
    sweep, vacuum = staticmethod(sweep), staticmethod(vacuum)
