"""The seam to where things are kept: `Backend`, eight verbs over places, heads and rows of bytes.

A *place* has a head of two values and ordered rows in named tables. It belongs to a *home*: all places of one home of a
tenant are kept together, so that one step can change several of them. Homes have nothing to do with each other: that is
what a store spreads over machines. What places, heads and rows mean is `palimpsest.stores.engine`'s business alone.

Names (tenants, homes, spaces, names, tables, ids of rows) are text of at most 1,024 characters without lone surrogates.
Two are the same where their code points are. They sort by code point. Keys are whole numbers from 0 to 2**63 - 1.
Values are bytes, and may be empty; a store that bounds their length takes 64 MiB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from palimpsest.log.codec import ready
from palimpsest.runtime.runner import Inline, Runner, drive

if TYPE_CHECKING:
    from palimpsest.stores.values import Tables

T = TypeVar("T")
LAST_KEY = 2**63 - 1  # of a row


class Place(NamedTuple):
    """The address of a head and rows. Spaces tell kinds of places apart; in one home two may have the same name."""

    tenant: str
    home: str
    space: str
    name: str


class PlaceHead(msgspec.Struct, frozen=True, gc=False):
    """A place's head: what every write moves (`hot`, small, and compared), and what rarely changes (`cold`)."""

    hot: bytes
    cold: bytes = b""


class Row(NamedTuple):
    """A row of a table: where it stands, what it holds, an id to find it by ("": none), and when it expires.

    Several rows may have one id. A time is in microseconds since 1970; None never comes.
    """

    key: int
    value: bytes
    id: str = ""
    expires: int | None = None


Cells = tuple[int, bytes, str, int | None]
"""A row as it is given and taken: a `Row`, or a plain tuple of the same, which costs less to make."""


class Range(msgspec.Struct, frozen=True, gc=False):
    """The rows of these spans of keys, which lie apart and hold both of their ends, at most `limit` of them.

    They come span after span, as these are given, in order of their keys; with `newest_first` all the other way round.
    """

    table: str
    spans: Sequence[tuple[int, int]]
    limit: int | None = None
    newest_first: bool = False


class Named(msgspec.Struct, frozen=True, gc=False):
    """The rows that have one of these ids, in order of their keys."""

    table: str
    ids: Sequence[str]


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What is asked of a place: its head, unless `head` is False, and rows.

    Encryption holds rows of a place without head against the head that they belong to: one look asks for both.
    """

    place: Place
    rows: Sequence[Range | Named] = ()
    head: bool = True


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What there is of a place: its head (None: none, or not asked for), and the rows of each range or list of ids."""

    head: PlaceHead | None
    rows: Sequence[Sequence[Cells]]


class Step(msgspec.Struct, frozen=True, gc=False):
    """What a batch does to one place: to its head, then to rows that go, last with rows that come.

    The head is compared: where its hot value is not `expect` (None: there is none), nothing of the batch happens. Then
    it becomes `hot` (None: it goes, with its cold value) and `cold` (None: as it was; empty for a new one), until
    `expires`. Where `hot` is `expect` and `cold` is None it is compared only; with `rows_only` not even that. `drop`
    are spans of keys, both ends included, of a table, or of every table whose name begins so where it ends in `*`.
    `put` are rows, each in the place of one of its key. A place without head and rows is none.

    `destroys` says that no byte of what goes is to be left when `scrub` is called, though this process does not live to
    call it. Encryption goes by it, too: a row of a place without head that takes another's place is put by a step that
    destroys, in one batch with each head that is read beside it. What is `delayed` is there at once, and on the disk by
    the next write that is not; what is `fleeting` is that, and may be dropped where it is damaged.
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
        """Whether it changes the head."""
        return not self.rows_only and (self.hot != self.expect or self.cold is not None)

    def after(self, head: PlaceHead | None) -> PlaceHead | None:
        """The head after it, of a place that had this one."""
        if not self.moves:
            return head
        was = head.cold if head is not None else b""
        return None if self.hot is None else PlaceHead(self.hot, was if self.cold is None else self.cold)


Batch = Sequence[Step]
"""Steps in places of one home, each place once: all of them happen, or none."""

Refusal = tuple[PlaceHead | None, ...]
"""The heads that are there in the places of a batch, in its order; None for those without, or not looked at."""

Look = Callable[[Sequence[Ask]], list[Seen]]
"""As `Backend.look`, at the home of one batch while nobody else can write; it may miss what that call has written."""

Again = Callable[[int, Batch, Refusal, Look], Batch | None]
"""Says what is written in the place of the batch of this number, tried last so, which these heads refuse; or None."""


class Listed(msgspec.Struct, frozen=True):
    """A place with its head, in a listing. `mark` says when its head was written last, where that was asked for."""

    place: Place
    head: PlaceHead
    mark: int = 0


class Due(NamedTuple):
    """What has expired: a row of a table, or the head of a place, of table "" and key 0. `at` is when."""

    at: int
    place: Place
    table: str = ""
    key: int = 0


ready(Place, Due)


class Scrubbed(msgspec.Struct, frozen=True):
    """What scrubbing has come to.

    `remains` says in plain sentences what could not be done, and how it comes about, `left` about how many bytes are
    left to go through (0: it is over), `freed` how many bytes smaller the store is (below 0: larger).
    """

    remains: tuple[str, ...] = ()
    left: int = 0
    freed: int = 0


class Backend(ABC):
    """Where places are kept.

    Every call of `look` sees one state, and every batch of `write` is one step: it happens whole or not at all. What
    `write` has acknowledged survives the process, for a store that lasts, and in its default setting the machine. Any
    number of tasks, threads and processes may call at once, as far as they can open it.

    Verbs raise StoreUnavailable when the store cannot be reached, is full, locked for too long, or read-only and to be
    written, and StoreCorrupt when what is stored cannot be read. After either of a write nothing of its batches has
    happened, unless StoreUnavailable says that this is not known. None is called after `close`, or in a forked child.
    """

    url: str
    writable: bool = True
    blocking: bool = False
    """Whether its verbs block, and never suspend (`BlockingBackend`). Else they are awaited on one event loop."""
    inline: bool = False
    """Whether they are called where they are awaited, in the caller's own thread."""
    gathers: bool = True
    """Whether it costs less to write to several homes in one call than in a call each; one that blocks says so."""
    remote: bool = True
    """Whether those who use it may live on when it has crashed, and one who is refused be refused again and again."""
    large_bytes: int | None = None
    """Bytes from which on a text, or the data of an image, is kept once a home; None: all is kept in its place."""
    companion: str | None = None
    """The path of a file beside it for what is made from its text; None: there is none, or what it keeps is sealed."""
    tables: Tables | None = None
    """Where what is made from its text may have tables beside its own; None: nowhere, or what it keeps is sealed."""
    lacking: Collection[Place] = ()
    """Places that were looked at of which rows have gone since, though their heads know of them: under an overlay."""

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that waits for nothing but this store where its verbs run; with `reads` it only reads."""
        return await start()

    async def surely(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `together`, for a caller that has been cancelled already: it is run to its end."""
        return await start()

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns that takes long and waits for nothing, without holding up an event loop."""
        import asyncio  # only under an event loop

        return await asyncio.to_thread(function, *arguments)

    async def pause(self, seconds: float) -> None:
        """Wait, where writers are in each other's way: in nobody's way meanwhile."""
        import asyncio  # only under an event loop

        await asyncio.sleep(seconds)

    def glance(self, place: Place) -> PlaceHead | None:
        """The head of a place, where an event loop's thread can be told it at once; None where not, or of none."""
        return None

    # --- the verbs

    @abstractmethod
    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Return what there is of each place that is asked for, all as it is at one moment."""

    @abstractmethod
    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        """Do each of these batches whose heads are all as expected, one after the other; return what came of each.

        That is None for one that was done, and for one that was not the heads that are there, in the places of what
        was tried last. A store may make one transaction of all that it does, or one of each. `at` is the time, in
        microseconds. What is not `lasting` may be lost when the machine is, and is given up rather than waited for.

        A store whose writers wait for each other may ask `again`, while nobody else can write, what to do in the place
        of a batch that it would refuse: else its writer comes back, and may find another in his way again. `again` does
        not wait, and calls the store by nothing but the `Look` that it is given. Over a driver, where looking is to be
        awaited, that raises out of it, and it is called anew when what it looked at is there (`rules.asked_again`).
        """

    @abstractmethod
    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        """Return the tenant's places that have a head and sort behind `after`, by space, name and home: a page. Of this
        space, or with `beneath` of every space that begins so. Fewer than `limit` are all there are."""

    @abstractmethod
    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        """Return the tenant's places of this space in the order in which their heads were written last: a page.

        Those written at the mark `since` or later, of that one only those that sort behind `after`. A mark is the
        store's own number, and rises; several writes may share one, so who goes on later asks from the last mark that
        he was given, inclusive, and may be given again what he has seen.
        """

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        """Return the tenant's places of this space, those whose heads were written last first: a page.

        Those written at the mark `until` or earlier (None: all), of that one only those behind `after`; this reads all.
        """
        found, mark, behind = dict[Place, Listed](), 0, None
        while page := await self.recent(tenant, space, since=mark, after=behind):
            found |= {one.place: one for one in page if until is None or one.mark <= until}
            mark, behind = page[-1].mark, page[-1].place
        return newest_of(found.values(), until, after, limit)

    @abstractmethod
    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        """Return what of a tenant's has expired at `now` (microseconds), behind `after`: a page, oldest first.

        What is damaged keeps nobody from the rest: StoreCorrupt is raised when there is nothing else behind `after`.
        """

    @abstractmethod
    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Return the tenants that have a place with a head, and sort behind `after`: a page."""

    async def unread(self, tenant: str | None = None) -> Mapping[str, Collection[str]]:
        """Say why what no listing of a tenant (None: of any) has cannot be read, each with the sessions it names."""
        return {}

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        """See that no byte of what was dropped, or replaced, is left where the store keeps things.

        Without `whole` what would take long is left for another time. With it a call does a piece of that, so that
        others need not wait, and is called again until nothing is left; what the store does not use is given back, too.
        """
        return Scrubbed()

    async def durability(self) -> str:
        """Say, for people, what of what was acknowledged is lost with the machine, or with the server."""
        return "it does not say what it loses with its machine"

    def give_up(self) -> None:  # noqa: B027 (most have nobody waiting)
        """Have whatever waits for another writer wait no longer, for `close` is about to be called. From any thread."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything."""


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


def newest_of(found: Iterable[Listed], until: int | None, after: Place | None, limit: int) -> list[Listed]:
    """Of places that are listed in any order, each once, the page that `Backend.newest` gives."""
    ordered = sorted(((-one.mark, one.place.name, one.place.home), one) for one in found)
    first = None if until is None else (-until,) if after is None else (-until, after.name, after.home)
    return [one for where, one in ordered if first is None or where > first][:limit]
