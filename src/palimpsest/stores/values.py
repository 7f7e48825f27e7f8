"""What stores take and give beside entries, records and heads."""

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
"""Names of the figures that a session notes of entries: when each was fetched last, and how often (see `figure_of`)."""


def figure_of(name: str, session: str) -> str:
    """Return the name of a session's own figures. Branches would share those of a plain name, as they share entries.

    No such name ends with "*", which would stand for a prefix where tables are dropped.
    """
    return f"{name}:{session}:"


class Scrubbed(msgspec.Struct, frozen=True):
    """The outcome of scrubbing.

    `remains` says in plain sentences what could not be scrubbed, and why. `left` is about how many bytes there are
    still to go through (0: none), `freed` how many bytes smaller the store is (below 0: larger).
    """

    remains: tuple[str, ...] = ()
    left: int = 0
    freed: int = 0


class Standing(msgspec.Struct, frozen=True):
    """A session at one moment: its head, and a mark.

    If two moments have the same mark, only appends came between: every entry of the first is unchanged in the second. A
    mark of None says nothing.
    """

    head: Head
    mark: object = None


class Appended(msgspec.Struct, frozen=True):
    """The result of an append: the head after it, the entries with their seqs, and how many of them are new."""

    head: Head
    entries: tuple[Entry, ...]
    added: int


class SessionInfo(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A `session` (its id) as a listing shows it, with its newest `revision` and `epoch`.

    `created` and `updated`, when the first entry was written and anything was written last, are microseconds since
    1970, UTC.

    `expires` is when it expires; None: never.

    `entries` counts what is neither erased nor rewound, `interactions` how many there were. `forked_from` is the
    session that it branched off, and its revision then. `user` is whose session it is, `title` what it is called,
    `metadata` what else is noted about it, as JSON values. `definition` is the one that its contexts are made by, for a
    declared session. A `damaged` session cannot be read: nothing else is known of it, except, in a user's listing, its
    user.
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
        """The session with this head.

        Args:
            session: its id.
            head: its head, as the store has it.
        """
        fields = {name: getattr(head, name) for name in cls.__struct_fields__ if name not in ("session", "damaged")}
        return cls(session=session, **fields)

    @classmethod
    def unread(cls, session: str, user: str | None = None) -> SessionInfo:
        """A session whose head is damaged.

        Args:
            session: its id.
            user: whose session it is, if that is known from elsewhere.
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
        """When the session expires, UTC; None: never."""
        return None if self.expires is None else moment(self.expires)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a namespace with its version (1, 2, … per key) and expiry (microseconds since 1970, or None)."""

    key: str
    value: bytes
    version: int
    expires: int | None = None


class Put(msgspec.Struct, frozen=True):
    """A value to store under a key: when it expires (microseconds since 1970; None: never), which version the key must
    have before (0: no value; None: any), and whether no byte of the old value may be left after `scrub`.
    """

    key: str
    value: bytes
    expires: int | None = None
    expect: int | None = None
    destroys: bool = False


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session as it is stored: what an import writes in one step."""

    head: Head
    entries: tuple[Entry, ...]
    records: tuple[Record, ...]


class Tables(Protocol):
    """A PostgreSQL database with a schema, in which others may have tables beside the store's."""

    schema: str

    def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> Coroutine[Any, Any, T]:
        """Return the result of `work` with a connection of the driver, within the time that a call may take.

        `work` begins and ends its own transactions; one that it leaves open is rolled back. Without `writes`, it is
        repeated if the connection was lost. If others were in its way, as in a deadlock, it is repeated in either case.
        Raises what verbs of the store raise.
        """
        ...
