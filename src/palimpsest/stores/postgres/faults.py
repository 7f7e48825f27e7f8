"""What the driver and the system raise, as errors of ours that say what it means, and whether anything was written."""

from __future__ import annotations

import asyncpg

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.stores.servers import Unsent

FAULTS: tuple[type[BaseException], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    Unsent,
)
"""What the driver and the system raise."""

LOST: tuple[type[BaseException], ...] = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InterfaceError,
    OSError,
)
"""What says that the connection is gone, or is to a server that has been replaced: with another one things may be well.
"""

BROKEN = "cannot switch to state"
"""How the driver begins to say that it sent nothing: it is reading why the server has ended the connection."""

AWAY: tuple[type[BaseException], ...] = (*LOST, Unsent, asyncpg.InternalClientError)
"""The same, also before anything was sent."""

CROSSED: tuple[type[BaseException], ...] = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)
"""What others have caused who wrote at the same time: nothing was written, and it may be tried again."""

_DAMAGED = ("XX001", "XX002", "42P01", "42703", "22P05", "22021")
"""Codes of damaged data and indexes, tables and columns that are not there, text that cannot be read."""

_POOLED = "a pooler between here and the server knows no prepared statements: add statement_cache_size=0 to the address"

_ADVICE = (
    ("28", "look at user and password of the address, and the server's pg_hba.conf"),
    ("3D", "make the database, or give the name of another"),
    ("42704", "it is an option neither of this store nor of the driver, and no setting of the server"),
    ("42501", "the user of the address lacks a privilege for the schema"),
    ("25006", "the server takes no writes: give the address of the one that does"),
    ("53", "the server is short of something; nothing was written"),
    ("57", "the server ended it, or is about to end or to start; try again"),
    ("26000", _POOLED),
    ("42P05", _POOLED),
    ("55P03", "somebody else held it for too long; try again"),
    ("08", "the connection was lost; try again"),
)


def is_unsent(fault: BaseException) -> bool:
    """Whether nothing was sent for what raised this, or nothing was done because the server takes no writes."""
    return isinstance(fault, Unsent | asyncpg.InterfaceError | asyncpg.ReadOnlySQLTransactionError) or (
        isinstance(fault, asyncpg.InternalClientError) and str(fault).startswith(BROKEN)
    )


def told(url: str, fault: BaseException, writes: bool) -> PalimpsestError:
    """The error of ours that says what the driver's error means; `writes` says that a write was under way."""
    if isinstance(fault, Unsent) and fault.__cause__ is not None:
        fault, writes = fault.__cause__, False
    if isinstance(fault, asyncpg.ClientConfigurationError):  # whose text may quote the address
        return StoreUnavailable(url, "the driver does not take this address: look at its options")
    code = getattr(fault, "sqlstate", None) or ""
    text = str(fault.args[0]) if fault.args and isinstance(fault, asyncpg.PostgresError) else _plain(fault)
    if code in _DAMAGED:
        return StoreCorrupt(url, f"{text}; the schema is damaged, or no longer there. Nothing was changed")
    answered = isinstance(fault, asyncpg.PostgresError) and not isinstance(fault, LOST)
    advice = next((advice for begin, advice in _ADVICE if code.startswith(begin)), "")
    reason = f"{text}: {advice}" if advice else text
    return StoreUnavailable(url, reason, written=None if writes and not (answered or is_unsent(fault)) else False)


def _plain(fault: BaseException) -> str:
    if isinstance(fault, OSError):
        why = fault.strerror or str(fault) or type(fault).__name__
        return f"cannot be reached ({why}); see that the server runs, and its address"
    return str(fault) or type(fault).__name__
