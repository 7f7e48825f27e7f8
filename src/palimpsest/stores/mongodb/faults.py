"""What the driver raises, as errors of ours that say what it means, and whether anything was written."""

from __future__ import annotations

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
    written = None if writes else False
    if isinstance(fault, BSONError):
        return StoreCorrupt(url, "what it keeps cannot be read: a document is damaged")
    if isinstance(fault, ServerSelectionTimeoutError):
        told = "no server that takes writes can be reached: is it running, and is this its address?"
        return StoreUnavailable(url, told, written=False)
    if isinstance(fault, WTimeoutError):
        return StoreUnavailable(url, "too few servers have confirmed it in time", written=written)
    if isinstance(fault, AutoReconnect):
        return StoreUnavailable(url, "the connection was lost; try again", written=written)
    if isinstance(fault, ConfigurationError):
        return StoreUnavailable(url, "the driver does not take this address: look at its options", written=False)
    code = code_of(fault)
    if code is not None:
        why = _ADVICE.get(code) or f"the server refuses it (code {code})"
        return StoreUnavailable(url, why, written=False if code in _NOTHING else written)
    if isinstance(fault, InvalidOperation):
        return StoreUnavailable(url, "it was closed meanwhile", written=written)
    return StoreUnavailable(url, f"the driver failed ({type(fault).__name__})", written=written)


_NOTHING = (8, 13, 18, 20, 112, 251, 8000, DUPLICATE)
"""Codes of errors after which nothing was written."""


def code_of(fault: BaseException) -> int | None:
    """The server's number for an error."""
    if isinstance(fault, BulkWriteError):
        errors = (fault.details or {}).get("writeErrors") or [{}]
        return errors[0].get("code")
    return fault.code if isinstance(fault, OperationFailure) else None


def may_pass(fault: PyMongoError) -> bool:
    """Whether a transaction that failed so has written nothing, and may be begun anew."""
    return fault.has_error_label("TransientTransactionError") or code_of(fault) in {CONFLICT, DUPLICATE}
