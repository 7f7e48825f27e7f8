"""What the driver raises, as errors of ours that say what it means, and whether anything was written."""

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

FAULTS: tuple[type[BaseException], ...] = (PyMongoError, BSONError)
"""What the driver raises."""

CONFLICT, DUPLICATE = 112, 11000

REASON = 300
"""Characters that are told of what the driver says about servers that it does not reach."""

_ADVICE = {
    13: "the user of the address may not do that: give it the role readWrite for the database",
    18: "the server refuses this user, or password: look at the address",
    20: "it has no transactions: make a replica set of the server, be it of one (rs.initiate())",
    50: "it took too long; try again",
    100: "there are not as many servers as the write concern asks for",
    112: "others are writing at the same time all the while; try again",
    251: "a transaction took longer than the server allows; try again",
    8000: "the server refuses this user, or password: look at the address",
    14031: "its disk is full",
}
"""What to do about an error of the server, by its code."""


def told(url: str, fault: BaseException, writes: bool) -> PalimpsestError:
    """The error of ours that says what the driver's error means; `writes` says that a write was under way."""
    if isinstance(fault, BSONError):
        return StoreCorrupt(url, "what it keeps cannot be read: a document is damaged")
    code = code_of(fault)
    if code is not None and not isinstance(fault, WTimeoutError):
        why, certain = _ADVICE.get(code) or f"the server refuses it (code {code})", code in _NOTHING
    else:
        why, certain = next(
            ((why, certain) for kind, why, certain in _KINDS if isinstance(fault, kind)),
            (f"the driver failed ({type(fault).__name__})", False),
        )
        if isinstance(fault, ServerSelectionTimeoutError):
            why = f"{why} ({_reason(fault)})"
    return StoreUnavailable(url, why, written=None if writes and not certain else False)


def _reason(fault: ServerSelectionTimeoutError) -> str:
    """What has kept the driver from each of its servers, without all else that it says."""
    return re.sub(r" \(configured timeouts: [^)]*\)", "", str(fault).partition(", Timeout: ")[0])[:REASON]


_KINDS: tuple[tuple[type[BaseException], str, bool], ...] = (
    (
        ServerSelectionTimeoutError,
        "no server that takes writes can be reached: is it running, and is this its address?",
        True,
    ),
    (WTimeoutError, "too few servers have confirmed it in time", False),
    (AutoReconnect, "the connection was lost; try again", False),
    (ConfigurationError, "the driver does not take this address: look at its options", True),
    (InvalidOperation, "it was closed meanwhile", False),
)
"""What is meant by errors without a code, and whether nothing was written then."""

_NOTHING = (8, 13, 18, 20, 112, 251, 8000, DUPLICATE)
"""Codes of errors after which nothing was written."""


def code_of(fault: BaseException) -> int | None:
    """The server's number for an error."""
    code: int | None = fault.code if isinstance(fault, OperationFailure) else None
    if isinstance(fault, BulkWriteError):
        errors = (fault.details or {}).get("writeErrors") or [{}]
        code = errors[0].get("code")
    return code


def may_pass(fault: PyMongoError) -> bool:
    """Whether a transaction that failed so has written nothing, and may be begun anew."""
    return fault.has_error_label("TransientTransactionError") or code_of(fault) in {CONFLICT, DUPLICATE}
