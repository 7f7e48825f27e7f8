"""Which answer an error gives: its status, its code, and the field and the rule that it names. Pure.

The service answers with it, and `palimpsest memory --json` prints it for a key of a pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.errors import (
    BudgetImpossible,
    Closed,
    ConfigError,
    Conflict,
    EmbedderFailed,
    EntryNotFound,
    ErasureFailed,
    InvalidEntry,
    LockTimeout,
    PalimpsestError,
    PrivacyRefused,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    SummarizerFailed,
    WrongUser,
)
from palimpsest.sessions.compacting.result import CompactionResult

RETRY_SECONDS = 5
"""After how many seconds a client is told to try again, where a store or a model fails."""

ANSWERS: tuple[tuple[type[PalimpsestError], int, str], ...] = (
    (InvalidEntry, 400, "invalid_message"),
    (ConfigError, 400, "invalid_request"),
    (BudgetImpossible, 400, "over_budget"),
    (WrongUser, 403, "forbidden"),
    (SessionNotFound, 404, "unknown_key"),
    (EntryNotFound, 404, "unknown_entry"),
    (Conflict, 409, "conflict"),
    (PrivacyRefused, 422, "privacy_refused"),
    (LockTimeout, 423, "locked"),
    (SummarizerFailed, 503, "summarizer_failed"),
    (EmbedderFailed, 503, "embedder_failed"),
    (ErasureFailed, 503, "erasure_failed"),
    (StoreError, 503, "store_unavailable"),
    (Closed, 503, "closing"),
)
"""Errors of the library, the more special ones first, with status and code."""


FLUSHES = {
    "pending": (409, "flush_pending", "another flush of this key is under way"),
    "conflict": (409, "conflict", "others changed the key meanwhile, so nothing was flushed"),
    "failed": (503, "flush_failed", "the flush failed, and nothing was changed"),
    "empty": (503, "flush_failed", "the summarizer gave no text, and nothing was changed"),
}
"""By the reason why nothing was flushed, status, code and message of the refusal. Other reasons are answers."""


class Refusal(Exception):
    """Ends a request with this status, code and message. `details` name what was wrong, such as `field` and `rule`."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details = status, code, message, details

    @property
    def error(self) -> dict[str, Any]:
        """The error as a JSON value."""
        return {"code": self.code, "message": self.message, "details": self.details}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(RETRY_SECONDS)} if self.status == 503 else {}


CANCELLED = Refusal(503, "cancelled", "the service ended before the request was done", written=None)
"""What a request is told that was cut short, for instance since the service ends."""


def refusal_of(fault: PalimpsestError) -> Refusal | None:
    """Return the refusal that an error of the library stands for; None if it is a fault of the service's own."""
    for kind, status, code in ANSWERS:
        if isinstance(fault, kind):
            if isinstance(fault, InvalidEntry) and fault.too_large:
                status, code = 413, "too_large"  # noqa: PLW2901
            details = _details(fault)
            message = f"{details['field']}: {details['rule']}" if isinstance(fault, InvalidEntry) else str(fault)
            return Refusal(status, code, message, **details)
    return None


def of_key(fault: Exception) -> Refusal:
    """Return the refusal that an error about one key of a pattern stands for."""
    if isinstance(fault, Refusal):
        return fault
    assert isinstance(fault, PalimpsestError), "only such errors are of one key"
    return refusal_of(fault) or Refusal(500, "internal", str(fault))


def refuse_failed(result: CompactionResult | None) -> None:
    """Raise Refusal for a flush that was refused or failed. A flush that had nothing to do is an answer."""
    if result is not None and result.reason in FLUSHES:
        status, code, message = FLUSHES[result.reason]
        raise Refusal(status, code, message, reason=result.reason, why=result.why)


def _details(fault: PalimpsestError) -> dict[str, Any]:
    if isinstance(fault, InvalidEntry):  # in a request the payload is the field `messages`
        where = fault.where
        where = f"messages{where.removeprefix('payload')}" if where.startswith("payload") else where
        return {"field": where, "rule": fault.reason}
    if isinstance(fault, ConfigError):
        return {"field": fault.where, "rule": fault.allowed}
    if isinstance(fault, PrivacyRefused):
        return {"field": "messages", "rule": f"{fault.rule}: {fault.why}"}
    return {"written": fault.written} if isinstance(fault, StoreUnavailable) else {}
