"""Errors of the driver and the operating system, and their translation into Palimpsest's own, which say what to do and
whether anything was written."""

from __future__ import annotations

import asyncpg

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.stores.servers import NOT_TAKEN, Unsent

FAULTS: tuple[type[BaseException], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    Unsent,
)
"""Every exception that the driver or the operating system may raise out of a call."""

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
"""The connection is lost, or leads to a server that is no longer the primary: a new connection may work."""

BROKEN = "cannot switch to state"
"""How asyncpg's InternalClientError begins when it sent nothing, because it was still reading why the server has ended
the connection."""

AWAY: tuple[type[BaseException], ...] = (*LOST, Unsent, asyncpg.InternalClientError)
"""Errors after which a call is worth a second try over a new connection: `LOST`, and what fails before anything was
sent."""

CROSSED: tuple[type[BaseException], ...] = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)
"""Errors that a concurrent writer causes: nothing was written, and the write may be tried again."""

_DAMAGED = ("XX001", "XX002", "42P01", "42703", "22P05", "22021")
"""SQLSTATE codes of damaged data or indexes, missing tables or columns, and text that cannot be decoded."""

_POOLED = "a pooler between here and the server knows no prepared statements: add statement_cache_size=0 to the address"

_ADVICE = (
    ("28", "look at user and password of the address, and the server's pg_hba.conf"),
    ("3D", "create the database, or give the name of another"),
    ("42704", "neither this store nor the driver nor the server has this option"),
    ("42501", "the user of the address lacks a privilege for the schema"),
    ("25006", "the server takes no writes: give the address of the one that does"),
    ("53", "the server lacks disk space, memory or connections; nothing was written"),
    ("57", "the server stopped the request, is shutting down or starting up; try again"),
    ("26000", _POOLED),
    ("42P05", _POOLED),
    ("55P03", "another transaction held a lock for too long; try again"),
    ("08", "the connection was lost; try again"),
)


_LATE = ("55P03", "57014")
"""SQLSTATE codes of a lock, and of a statement, that took longer than the server's settings allow."""


def is_unsent(fault: BaseException) -> bool:
    """Whether the call that raised this sent nothing, or the server did nothing because it accepts no writes."""
    return isinstance(fault, Unsent | asyncpg.InterfaceError | asyncpg.ReadOnlySQLTransactionError) or (
        isinstance(fault, asyncpg.InternalClientError) and str(fault).startswith(BROKEN)
    )


def translate(url: str, fault: BaseException, writes: bool) -> PalimpsestError:
    """Translate an error of the driver. `writes` says that a write was under way.

    StoreUnavailable has `written` None if the write may have happened: it was sent, and no answer of the server came.
    """
    if isinstance(fault, Unsent) and fault.__cause__ is not None:
        fault, writes = fault.__cause__, False
    if isinstance(fault, asyncpg.ClientConfigurationError):
        return StoreUnavailable(url, NOT_TAKEN)
    code = getattr(fault, "sqlstate", None) or ""
    text = str(fault.args[0]) if fault.args and isinstance(fault, asyncpg.PostgresError) else _plain(fault)
    if code in _DAMAGED:
        return StoreCorrupt(url, f"{text}; the schema is damaged, or no longer there. Nothing was changed")
    answered = isinstance(fault, asyncpg.PostgresError) and not isinstance(fault, LOST)
    advice = next((advice for begin, advice in _ADVICE if code.startswith(begin)), "")
    reason = f"{text}: {advice}" if advice else text
    written = None if writes and not (answered or is_unsent(fault)) else False
    return StoreUnavailable(url, reason, written=written, late=code in _LATE)


def _plain(fault: BaseException) -> str:
    """Say what happened in words for a user, for an error that is not the server's."""
    if isinstance(fault, OSError):
        why = fault.strerror or str(fault) or type(fault).__name__
        return f"cannot be reached ({why}); check that the server runs, and that the address is right"
    return str(fault) or type(fault).__name__
