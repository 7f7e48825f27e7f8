"""The seam to storage: `Backend`, eight verbs over places, heads and rows of bytes.

A *place* has a head of two values, and ordered rows in named tables. It belongs to a *home*: all places of one home of
a tenant are kept together, so that one step can change several of them. Homes are independent of each other, so a store
can spread them over machines. Only `palimpsest.stores.engine` knows what places, heads and rows mean.

Names (tenants, homes, spaces, names, tables, ids of rows) are text of at most 1,024 characters without lone surrogates.
Two are equal if their code points are, and they sort by code point. Keys are whole numbers from 0 to 2**63 - 1. Values
are bytes, and may be empty; a store that bounds their length takes 64 MiB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from palimpsest.log.codec import ready
from palimpsest.runtime.runner import Inline, Runner, drive
from palimpsest.stores.values import Scrubbed as Scrubbed  # noqa: PLC0414 (stores of others find it here)

if TYPE_CHECKING:
    from palimpsest.stores.values import Tables

T = TypeVar("T")
LAST_KEY = 2**63 - 1  # the greatest key of a row


class Place(NamedTuple):
    """The address of a head and rows. Spaces tell kinds of places apart; in one home two may share a name."""

    tenant: str
    home: str
    space: str
    name: str


class PlaceHead(msgspec.Struct, frozen=True, gc=False):
    """A place's head: `hot` is small, changes with every write and is compared; `cold` rarely changes."""

    hot: bytes
    cold: bytes = b""


class Row(NamedTuple):
    """A row of a table: its key, its value, an id to find it by ("": none), and when it expires.

    Several rows may have the same id. Times are in microseconds since 1970; None means never.
    """

    key: int
    value: bytes
    id: str = ""
    expires: int | None = None


Cells = tuple[int, bytes, str, int | None]
"""A row as it is passed in and out: a `Row`, or a plain tuple of the same fields, which is cheaper to make."""


class Range(msgspec.Struct, frozen=True, gc=False):
    """Asks for the rows of these spans of keys, at most `limit` of them.

    Spans include both ends, and do not overlap. Rows come by span as given, then by key; `newest_first` reverses both.
    """

    table: str
    spans: Sequence[tuple[int, int]]
    limit: int | None = None
    newest_first: bool = False


class Named(msgspec.Struct, frozen=True, gc=False):
    """Asks for the rows that have one of these ids, by ascending key."""

    table: str
    ids: Sequence[str]


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Asks for a place's head, unless `head` is False, and for rows of it.

    A place without a head is asked for together with the head that vouches for its rows: encryption checks them by it.
    """

    place: Place
    rows: Sequence[Range | Named] = ()
    head: bool = True


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What a place holds: its head (None: none, or not asked for), and the rows of each range or list of ids."""

    head: PlaceHead | None
    rows: Sequence[Sequence[Cells]]


class Step(msgspec.Struct, frozen=True, gc=False):
    """What a batch does to one place: first to its head, then to rows that are dropped, last to rows that are put.

    The head is compared: unless its hot value is `expect` (None: there is no head), nothing of the batch happens. Then
    it becomes `hot` (None: the head is removed, with its cold value) and `cold` (None: unchanged, or empty for a new
    head), until `expires`. If `hot` equals `expect` and `cold` is None, the head is only compared; with `rows_only` not
    even that. `drop` are spans of keys, both ends included, of a table, or of all tables with this prefix if the name
    ends in `*`. `put` are rows, each replacing one with the same key. A place without head and rows does not exist.

    `destroys` says that no byte of what is removed is left after `scrub`, even if this process dies before it calls
    that. Encryption relies on it, too: in a place without a head, a row that replaces another is put by a step that
    destroys, in one batch with each head that is read together with it. A `delayed` step takes effect at once, and
    reaches the disk with the next write that is not. A `fleeting` one is delayed, and may be dropped if it is damaged.
    """

    place: Place
    expect: bytes | None = None
    hot: bytes | None = None
    cold: bytes | None = None
    expires: int | None = None
    rows_only: bool = False
    drop: Sequence[tuple[str, int, int]] = ()
    put: Sequence[tuple[str, Sequence[Cells]]] = ()
    destroys: bool = False
    delayed: bool = False
    fleeting: bool = False

    @property
    def moves(self) -> bool:
        """Whether the step changes the head."""
        return not self.rows_only and (self.hot != self.expect or self.cold is not None)

    def after(self, head: PlaceHead | None) -> PlaceHead | None:
        """Return the head after this step, in a place that had the head given."""
        if not self.moves:
            return head
        was = head.cold if head is not None else b""
        return None if self.hot is None else PlaceHead(self.hot, was if self.cold is None else self.cold)


Batch = Sequence[Step]
"""Steps in places of one home, each place at most once: all of them happen, or none."""

Refusal = tuple[PlaceHead | None, ...]
"""The stored heads of the places of a refused batch, in its order; None for a place without one, or not compared."""

Look = Callable[[Sequence[Ask]], list[Seen]]
"""Like `Backend.look`, at the home of one batch while nobody else can write; may miss what that call has written."""

Again = Callable[[int, Batch, Refusal, Look], Batch | None]
"""Takes a batch's number, the batch tried last, its refusal and a `Look`; returns the batch to write instead, or
None."""


class Listed(msgspec.Struct, frozen=True):
    """A place with its head, in a listing. `mark`, where asked for, is the store's number for the head's last write."""

    place: Place
    head: PlaceHead
    mark: int = 0


class Due(NamedTuple):
    """Something that has expired, and when (`at`): a row of a table, or the head of a place (table "" and key 0)."""

    at: int
    place: Place
    table: str = ""
    key: int = 0


ready(Place, Due)


class Backend(ABC):
    """Where places are kept.

    Every call of `look` sees one state, and every batch of `write` is one step: it happens whole or not at all. What
    `write` has acknowledged survives the process, for a store that lasts, and in its default setting the machine. Any
    number of tasks, threads and processes may call at once, as far as they can open it.

    Verbs raise StoreUnavailable when the store cannot be reached, is full, locked for too long, or read-only and to be
    written, and StoreCorrupt when what is stored cannot be read. After either of them nothing of a write's batches has
    happened, unless StoreUnavailable says that this is unknown. None is called after `close`, or in a forked child.
    """

    url: str
    writable: bool = True
    blocking: bool = False
    """Whether its verbs block and never suspend (`BlockingBackend`). Otherwise they are awaited on one event loop."""
    inline: bool = False
    """Whether verbs run in the thread of their caller."""
    gathers: bool = True
    """Whether one call that writes to several homes costs less than a call for each."""
    remote: bool = True
    """Whether its users may live on after it has crashed, and whether a writer may be refused again and again."""
    large_bytes: int | None = None
    """Bytes from which on a text, or the data of an image, is kept once per home; None: everything is kept in place."""
    companion: str | None = None
    """The path of a file beside it for what is made from its texts; None: none, as when its content is sealed."""
    tables: Tables | None = None
    """Where what is made from its texts may have tables; None: nowhere, as when its content is sealed."""
    lacking: Collection[Place] = ()
    """Places (below an overlay) that have lost rows since they were looked at, although their heads refer to them."""

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that awaits nothing but this store where its verbs run; with `reads` it only reads."""
        return await start()

    async def surely(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Like `together`, for a caller that was cancelled already: the coroutine is run to its end."""
        return await start()

    async def briefly(self, start: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run a coroutine that awaits nothing but this store. Over a driver it is cancelled after so many seconds, and
        TimeoutError raised."""
        if self.blocking:
            return await start()
        import asyncio  # only under an event loop

        async with asyncio.timeout(seconds):
            return await start()

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns that computes for long and awaits nothing, without blocking an event loop."""
        import asyncio  # only under an event loop

        return await asyncio.to_thread(function, *arguments)

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt of a writer that was refused, without being in anybody's way."""
        import asyncio  # only under an event loop

        await asyncio.sleep(seconds)

    def glance(self, place: Place) -> PlaceHead | None:
        """Return a place's head, or None if it has none, or if reading it would block the caller's event loop."""
        return None

    # --- the verbs

    @abstractmethod
    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Return what each place that is asked for holds, all at one moment."""

    @abstractmethod
    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        """Do each of these batches whose heads are all as expected, one after the other; return the outcome of each.

        The outcome is None for a batch that was done, else the stored heads, in the places of the batch that was tried
        last. A store may make one transaction of all batches, or one of each. `at` is the time, in microseconds. A
        write that is not `lasting` may be lost with the machine, and is given up rather than waited for.

        A store whose writers wait for each other may ask `again`, while nobody else can write, what to do instead of a
        batch that it would refuse: else that writer could be overtaken again and again. `again` does not wait, and uses
        the store only through the `Look` it is given. Over a driver, where looking has to be awaited, that `Look`
        raises through `again`, which is called anew once the answer is there (`rules.ask_again`).
        """

    @abstractmethod
    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        """Return a page of the tenant's places of this space (with `beneath`: of every space with this prefix) that
        have a head and sort after `after`, by space, name and home. Fewer than `limit` are the last."""

    @abstractmethod
    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        """Return a page of the tenant's places of this space, in the order in which their heads were written last.

        Begins at the mark `since`; among places with that mark, after `after`. Marks are the store's ascending numbers.
        Several writes may share one: so the next page, which begins at the last mark returned, may repeat places.
        """

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        """Return a page of the tenant's places of this space, those whose heads were written last first.

        Begins at the mark `until` (None: the newest); among places with that mark, after `after`. Reads all places.
        """
        listed, mark, last = dict[Place, Listed](), 0, None
        while page := await self.recent(tenant, space, since=mark, after=last):
            listed |= {one.place: one for one in page if until is None or one.mark <= until}
            mark, last = page[-1].mark, page[-1].place
        return newest_of(listed.values(), until, after, limit)

    @abstractmethod
    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        """Return a page of what of a tenant's has expired at `now` (microseconds), after `after`, oldest first.

        Damage does not hide the rest: StoreCorrupt is raised only when nothing else comes after `after`.
        """

    @abstractmethod
    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Return a page of the tenants that have a place with a head and sort after `after`."""

    async def unread(self, tenant: str | None = None) -> Mapping[str, Collection[str]]:
        """Return why some of a tenant's (None: anybody's) data is in no listing, and the sessions each reason names."""
        return {}

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        """Make sure that no byte of what was dropped or replaced is left where the store keeps things.

        Without `whole`, slow work is left for another time. With it each call does a piece of that, so that others need
        not wait, until nothing is left; unused room is given back, too.
        """
        return Scrubbed()

    async def durability(self) -> str:
        """Say, for people, which acknowledged writes are lost with the machine, or with the server."""
        return "it does not say what it loses with its machine"

    def give_up(self) -> None:  # noqa: B027 (most have nobody waiting)
        """Make whatever waits for another writer stop waiting, as `close` is about to be called. From any thread."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything."""


class BlockingBackend(Backend):
    """A backend whose verbs block and never suspend: run inline, or a whole operation at a time in a worker thread."""

    blocking = True
    remote = False

    def __init__(self, runner: Runner) -> None:
        self.runner, self.inline = runner, isinstance(runner, Inline)

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self.runner.whole(start, reads=reads)

    async def surely(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.runner.finish(lambda: drive(start()))

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.runner.read(function, *arguments)


def newest_of(listed: Iterable[Listed], until: int | None, after: Place | None, limit: int) -> list[Listed]:
    """Return the page that `Backend.newest` gives, from places listed in any order, each once."""
    ordered = sorted(((-one.mark, one.place.name, one.place.home), one) for one in listed)
    begin = None if until is None else (-until,) if after is None else (-until, after.name, after.home)
    return [one for rank, one in ordered if begin is None or rank > begin][:limit]
