"""What stores give and take beside entries, records and heads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Definition, Head

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")

LARGE = 32 * 1024
"""Bytes from which on a text, or the data of an image, is kept once however many entries hold it."""

ACCESSES, FETCHES = FIGURES = ("palimpsest:accesses", "palimpsest:fetches")
"""What a session notes of entries, by names that end with its own: when each was fetched last, and how often."""


def figure_of(name: str, session: str) -> str:
    """The name of a session's own figures: what branches share, they share by name. No name ends with "*", which what
    drops a table takes for any."""
    return f"{name}:{session}:"


class Standing(msgspec.Struct, frozen=True):
    """A session as it is at one moment: its head, and a mark.

    Of two moments of one mark nothing has come between but appends: every entry of the first is what it was at the
    second. None tells nothing.
    """

    head: Head
    mark: object = None


class Appended(msgspec.Struct, frozen=True):
    """What an append did: the head after it, the entries with their places, how many of them are new."""

    head: Head
    entries: tuple[Entry, ...]
    added: int


class SessionInfo(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `session` (its id) as a listing shows it, with its newest `revision` and `epoch`.

    `created` and `updated`, when the first entry and anything last was written, are microseconds since 1970, UTC.

    `expires` is when it is over, of one that does not last for ever; None: never.

    `entries` counts what is neither erased nor rewound, `interactions` how many there were; `forked_from` is the
    session that it branched off, and its revision then. `user` is whose it is, `title` what it is called, `metadata`
    what else is said of it, as JSON values. `definition` is the one that its contexts are made by, where it is
    declared. One that is `damaged` cannot be read: of it nothing else is known, but in a user's listing whose it is.
    """

    session: str
    entries: int
    revision: int
    epoch: int
    created: int
    updated: int
    forked_from: tuple[str, int] | None = None
    user: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = {}
    expires: int | None = None
    interactions: int = 0
    definition: Definition | None = None
    damaged: bool = False

    @classmethod
    def of(cls, session: str, head: Head) -> SessionInfo:
        """A session with this head.

        Args:
            session: its id.
            head: its head, as the store has it.
        """
        told = {name: getattr(head, name) for name in cls.__struct_fields__ if name not in ("session", "damaged")}
        return cls(session=session, **told)

    @classmethod
    def unread(cls, session: str, user: str | None = None) -> SessionInfo:
        """A session whose head is damaged.

        Args:
            session: its id.
            user: whose it is, where that is known otherwise.
        """
        return cls(session=session, entries=0, revision=0, epoch=0, created=0, updated=0, user=user, damaged=True)

    @property
    def created_at(self) -> datetime:
        """When the first entry was written, UTC."""
        return moment(self.created)

    @property
    def updated_at(self) -> datetime:
        """When something was written last, UTC."""
        return moment(self.updated)

    @property
    def expires_at(self) -> datetime | None:
        """When the session is over, UTC; None: never."""
        return None if self.expires is None else moment(self.expires)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a namespace with its version (1, 2, … per key) and expiry (microseconds since 1970, or None)."""

    key: str
    value: bytes
    version: int
    expires: int | None = None


class Put(msgspec.Struct, frozen=True):
    """A value that is to be stored under a key: when it expires (microseconds since 1970; None: never), which version
    it must have before (0: none; None: any), and whether no byte of the old one may be left after `scrub`."""

    key: str
    value: bytes
    expires: int | None = None
    expect: int | None = None
    destroys: bool = False


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session as stored: what an import writes in one step."""

    head: Head
    entries: tuple[Entry, ...]
    records: tuple[Record, ...]


class Tables(Protocol):
    """A database of PostgreSQL's with a schema, in which there may be other tables beside a store's."""

    schema: str

    def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> Coroutine[Any, Any, T]:
        """Return what this does with a connection of the driver's, in the time that a call may take.

        It begins and ends its transactions by itself; one that it leaves is rolled back. Without `writes` it is done
        once more where the connection was lost; where others were in its way at the same time, as in a deadlock, it is
        done again in either case. Raises what verbs of the store raise.
        """
        ...
