"""A redactor of one marker, a text with the marker, and the redacted text."""

from __future__ import annotations

from typing import Any

from palimpsest.log.entry import Entry
from palimpsest.privacy.redaction import Redactor, Verdict

KEY = b"0123456789abcdef"
MARKER = "MARKER42"
RED = "[REDACTED]"
TEXT = f"say {MARKER} once"
CLEAN = f"say {RED} once"


def marks(**more: Any) -> Redactor:
    """Return a redactor of markers, with further options of a policy."""
    return Redactor({"redact_patterns": [r"MARKER\d+"], **more})


def kept(verdict: Verdict) -> Entry:
    """Return the entry of a verdict that keeps it."""
    assert verdict.entry is not None
    return verdict.entry
