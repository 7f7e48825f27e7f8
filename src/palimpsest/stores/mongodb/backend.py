"""The verbs over MongoDB's own asynchronous driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, InvalidURI, OperationFailure
from pymongo.uri_parser import parse_uri

from palimpsest.errors import ConfigError, PalimpsestError, StoreUnavailable
from palimpsest.stores.backend import Again, Ask, Batch, PlaceHead, Refusal, Scrubbed, Seen, Step
from palimpsest.stores.mongodb import faults
from palimpsest.stores.mongodb.address import ADDRESS
from palimpsest.stores.mongodb.connected import Connected, is_router, prepared
from palimpsest.stores.mongodb.layout import COLLECTION, NUMBER, Known, head_key
from palimpsest.stores.mongodb.reading import Reader
from palimpsest.stores.mongodb.updating import Plan, plan_of
from palimpsest.stores.mongodb.writing import Changing
from palimpsest.stores.rules import READ_ONLY, asked_again
from palimpsest.stores.servers import ServerBackend, ServerOptions

T = TypeVar("T")

TRIES = 3
"""How often a batch that is made again is tried at once. Who is refused then waits where the engine has him wait."""

LONGEST = 999_999_999
"""Milliseconds that the driver takes at most for any time that it may wait."""

REMAINS = (
    "MongoDB keeps what was dropped in the free space of its files, and in its journal and its oplog, until it "
    "overwrites them: see the server's documentation of `compact` and of `oplogSizeMB`"
)
"""What is so after each erasure, whatever is done here."""

UNKNOWN = (
    "the server that answers at this address has no `compact`, as a mongos and other programs that speak MongoDB's "
    "protocol have none: free space stays in its files; on a sharded cluster run `compact` on each shard"
)
DENIED = (
    "the user of the address may not run `compact`, so that free space stays in the server's files: give it the role "
    "dbAdmin for the database, or have an administrator run it"
)
REFUSED = "the server did not run `compact` (code {}), so that free space stays in its files"
LATE = "`compact` was not over within {:g} seconds (timeout_seconds); an administrator can run it without that limit"

_UNKNOWN, _DENIED = (59, 115), (13, 8000)
"""Codes of a command that there is not, and of one that this user may not give."""


class MongoBackend(ServerBackend[Connected]):
    """A collection of a database."""

    faults = faults.FAULTS
    gathers = False

    def __init__(self, address: str, options: ServerOptions) -> None:
        super().__init__(address, options)
        self._options = options
        self._made, self._name = self._client_of(address)

    def _client_of(self, address: str) -> tuple[Callable[[], AsyncMongoClient[dict[str, Any]]], str]:
        """What makes the client, and the name of its database. Raises ConfigError for an address that is none."""
        srv = address.startswith("mongodb+srv:")
        try:
            if not srv:
                name = parse_uri(address)["database"]
            else:
                name = address.partition("://")[2].partition("?")[0].partition("/")[2] or None
        except (InvalidURI, ConfigurationError, ValueError, TypeError):
            raise ConfigError("store", self.url, ADDRESS) from None
        given = {key.lower() for key, _ in parse_qsl(address.partition("?")[2], keep_blank_values=True)}
        milliseconds = int(min(max(self.seconds * 1000, 1), LONGEST))
        wanted: dict[str, Any] = {
            "maxPoolSize": self._options.pool_size,
            "serverSelectionTimeoutMS": max(1, int(0.9 * milliseconds)),  # so that it is the driver that says why
            "connectTimeoutMS": min(milliseconds, 20_000),
            "waitQueueTimeoutMS": milliseconds,
            "appname": "palimpsest",
        }
        named = {key: value for key, value in wanted.items() if key.lower() not in given}
        return lambda: AsyncMongoClient(address, tz_aware=False, document_class=dict, **named), name or "palimpsest"

    async def connect(self) -> Connected:
        client = self._made()
        try:
            hello = await client.admin.command("hello")
            self._has_transactions(hello)
            connected = Connected(self.url, client, self._name, is_router(hello))
            await prepared(self.url, connected, writable=self.writable)
            return connected
        except BaseException:
            await client.close()
            raise

    def _has_transactions(self, hello: dict[str, Any]) -> None:
        """Raise StoreUnavailable for a server that has none."""
        if "setName" not in hello and not is_router(hello):
            why = (
                "it is a server by itself, which has no transactions: start it with --replSet and call "
                "rs.initiate() once; a replica set of one server is enough"
            )
            raise StoreUnavailable(self.url, why)

    def told(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return faults.told(self.url, fault, writes)

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return await self.asked(lambda connected: self._looked(connected, asks)) if asks else []

    async def _looked(self, connected: Connected, asks: Sequence[Ask]) -> list[Seen]:
        seen = await connected.reader.look(asks)
        if seen is not None:
            return seen
        return await connected.transaction(lambda session: connected.within.look_within(asks, session), _nobody)

    async def listed(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        return await self.asked(lambda connected: ask(connected.listing))

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        call = _Call(again)
        try:
            return await self.asked(lambda connected: call.write(connected, batches), writes=True)
        except StoreUnavailable as fault:
            if not call.sent:
                fault.written = False
            elif call.done:
                fault.written = None
            raise

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        if not (whole and self.writable):
            return Scrubbed((REMAINS,))
        try:
            return await self.asked(lambda connected: compacted(connected.database))
        except StoreUnavailable as fault:
            if not isinstance(fault.__cause__, TimeoutError):
                raise
            return Scrubbed((REMAINS, LATE.format(self.seconds)))

    async def durability(self) -> str:
        return await self.asked(lambda connected: connected.durability())

    async def close(self) -> None:
        connected = self.release()
        if connected is not None:
            await connected.client.close()


def _nobody(_: bool) -> None:
    """Who only reads need not know."""


class _Call:
    """A call of `write`: `done` says that something has happened, `sent` that something may have."""

    def __init__(self, again: Again | None) -> None:
        self._again, self.done, self.sent = again, False, False

    async def write(self, connected: Connected, batches: Sequence[Batch]) -> list[Refusal | None]:
        """Do these batches, one after the other."""
        results = list[Refusal | None]()
        for number, batch in enumerate(batches):
            results.append(await self._one(connected, number, batch))
            self.done = self.sent = self.done or results[-1] is None
        return results

    async def _one(self, connected: Connected, number: int, batch: Batch) -> Refusal | None:
        refusal: Refusal | None = None
        for _ in range(TRIES):
            plan = plan_of(batch)
            if plan is None:
                break
            done, there = await self._updated(connected, plan)
            if done:
                return None
            if there is None:
                break
            refusal = tuple(there.head if step is plan.step else None for step in batch)
            if self._again is None:
                return refusal
            try:
                other = self._again(number, batch, refusal, _unseen)
            except _Looks:
                break
            if other is None:
                return refusal
            batch = other
        else:
            return refusal
        return await self._transacted(connected, number, batch)

    async def _updated(self, connected: Connected, plan: Plan) -> tuple[bool, Seen | None]:
        """Do a batch by one update: whether it is done, or what is there; None where it takes more."""
        step, reader = plan.step, connected.reader
        key, known = head_key(step.place), reader.known(step.place)
        there: tuple[Known, PlaceHead] | None = None
        for _ in range(TRIES):
            if known is None or known.value != step.expect:
                there = there or await reader.found(step.place)
                if there is None or there[1].hot != step.expect:
                    return False, await self._refusing(reader, step, there)
                known = there[0]
            if not plan.fits(known):
                return False, None
            update = plan.update(known, reader.spread)
            reader.remember(key, None)
            self.sent = True
            done = await connected.written.update_one(update.where, update.change)
            if done.matched_count:
                reader.remember(key, update.after)
                return True, None
            known, there = None, await reader.found(step.place)
            if there is not None and there[0].hot[-NUMBER:] == update.number:
                return True, None  # the driver has sent it twice, because an answer was lost
            self.sent = self.done
        return False, None

    async def _refusing(self, reader: Reader, step: Step, there: tuple[Known, PlaceHead] | None) -> Seen | None:
        """What is there instead of what a step expects; None where that is there after all, or nobody can tell."""
        whole = await reader.with_values([Ask(step.place)], [Seen(there[1] if there is not None else None, ())])
        if whole is None or (whole[0].head is not None and whole[0].head.hot == step.expect):
            return None
        return whole[0]

    async def _transacted(self, connected: Connected, number: int, batch: Batch) -> Refusal | None:
        """Do a batch in a transaction."""
        done: Changing | None = None

        async def taken(session: Any) -> Refusal | None:
            nonlocal done
            refusal, done = await self._taken(connected, number, batch, session)
            return refusal

        refusal = await connected.transaction(taken, self._commits)
        if refusal is None and done is not None:
            connected.reader.learn(*done.said())
        return refusal

    def _commits(self, begun: bool) -> None:
        self.sent = begun or self.done

    async def _taken(
        self, connected: Connected, number: int, batch: Batch, session: Any
    ) -> tuple[Refusal | None, Changing]:
        """Do a batch, or the one in its place, with what a transaction sees; return what has done it, too."""
        place = batch[0].place

        async def take(batch: Batch) -> tuple[Refusal | None, Changing]:
            changing = Changing(connected.within, session, place.tenant, place.home)
            return await changing.take(batch), changing

        refusal, changing = await take(batch)
        if refusal is None or self._again is None:
            return refusal, changing
        other = await asked_again(
            self._again, number, batch, refusal, lambda asks: connected.within.look_within(asks, session)
        )
        return (refusal, changing) if other is None else await take(other)


class _Looks(Exception):
    """What is to be written instead depends on more than heads."""


def _unseen(_: Sequence[Ask]) -> list[Seen]:
    raise _Looks


async def compacted(database: Any) -> Scrubbed:
    """Have the server give the free space of the collection's files back to its disk, as far as it does.

    Nothing is locked that sessions need. Where this is one server of several, the others keep their free space.
    """
    try:
        # `force`: a server that takes writes does it only when it is told to.
        said = await database.command({"compact": COLLECTION, "force": True})
    except OperationFailure as fault:
        told = UNKNOWN if fault.code in _UNKNOWN else DENIED if fault.code in _DENIED else REFUSED.format(fault.code)
        return Scrubbed((REMAINS, told))
    freed = said.get("bytesFreed", 0)  # servers before 4.4 do not tell
    return Scrubbed((REMAINS,), 0, int(freed))
