"""Translation of the driver's errors into Palimpsest's own, which say what to do and whether anything was written."""

from __future__ import annotations

import re

from bson.errors import BSONError
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WTimeoutError,
)

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.stores.servers import NOT_TAKEN

FAULTS: tuple[type[BaseException], ...] = (PyMongoError, BSONError)
"""Every exception that the driver raises."""

CONFLICT, DUPLICATE, TOO_LONG = 112, 11000, 50
"""Codes of a write conflict of two transactions, of a key that exists already, and of a request that took too long."""

REASON = 300
"""Characters that are quoted of the driver's report about servers that it cannot reach."""

_ADVICE = {
    13: "the user of the address may not do that: give it the role readWrite for the database",
    18: "the server refuses this user, or password: look at the address",
    20: "it has no transactions: make the server a replica set, if only of one member (rs.initiate())",
    TOO_LONG: "it took too long; try again",
    100: "the replica set has fewer servers than the write concern asks for",
    112: "other writers changed the same data at the same time, again and again; try again",
    251: "a transaction took longer than the server allows; try again",
    8000: "the server refuses this user, or password: look at the address",
    14031: "its disk is full",
}
"""What to tell the user about an error of the server, by its code."""


def translate(url: str, fault: BaseException, writes: bool) -> PalimpsestError:
    """Translate an error of the driver. `writes` says that a write was under way.

    StoreUnavailable has `written` None if the write may have happened.
    """
    if isinstance(fault, BSONError):
        return StoreCorrupt(url, "stored data cannot be read: a document is damaged")
    code = code_of(fault)
    if code is not None and not isinstance(fault, WTimeoutError):
        why, certain = _ADVICE.get(code) or f"the server refuses the request (code {code})", code in _NOTHING
    else:
        why, certain = next(
            ((why, certain) for kind, why, certain in _KINDS if isinstance(fault, kind)),
            (f"the driver failed ({type(fault).__name__})", False),
        )
        if isinstance(fault, ServerSelectionTimeoutError):
            why = f"{why} ({_reason(fault)})"
    late = code == TOO_LONG or isinstance(fault, ServerSelectionTimeoutError)
    return StoreUnavailable(url, why, written=None if writes and not certain else False, late=late)


def _reason(fault: ServerSelectionTimeoutError) -> str:
    """Return why each server could not be reached, without the timeouts and topology that the driver's text adds."""
    return re.sub(r" \(configured timeouts: [^)]*\)", "", str(fault).partition(", Timeout: ")[0])[:REASON]


_KINDS: tuple[tuple[type[BaseException], str, bool], ...] = (
    (
        ServerSelectionTimeoutError,
        "no server that takes writes can be reached: is it running, and is this its address?",
        True,
    ),
    (WTimeoutError, "too few servers confirmed the write in time", False),
    (AutoReconnect, "the connection was lost; try again", False),
    (ConfigurationError, NOT_TAKEN, True),
    (InvalidOperation, "it was closed meanwhile", False),
)
"""Errors without a code: what to tell the user, and whether it is certain that nothing was written."""

_NOTHING = (8, 13, 18, 20, 112, 251, 8000, DUPLICATE)
"""Codes of errors after which nothing was written."""


def code_of(fault: BaseException) -> int | None:
    """Return the server's code for an error, or None."""
    code: int | None = fault.code if isinstance(fault, OperationFailure) else None
    if isinstance(fault, BulkWriteError):
        errors = (fault.details or {}).get("writeErrors") or [{}]
        code = errors[0].get("code")
    return code


def may_pass(fault: PyMongoError) -> bool:
    """Whether a transaction that failed with this has written nothing and may be tried again."""
    return fault.has_error_label("TransientTransactionError") or code_of(fault) in {CONFLICT, DUPLICATE}
