"""What is erased, or looked at, in all sessions of a memory."""

from __future__ import annotations

from palimpsest.sessions.erasing.forget import forget
from palimpsest.sessions.erasing.scan import scan
from palimpsest.sessions.erasing.sweep import sweep


class Everywhere:
    """The verbs of a memory that go through its sessions, loaded together."""

    forget, scan, sweep = staticmethod(forget), staticmethod(scan), staticmethod(sweep)
