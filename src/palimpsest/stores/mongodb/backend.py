"""The MongoDB backend, over MongoDB's own asynchronous driver. `palimpsest.stores.backend` states the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, InvalidURI, OperationFailure
from pymongo.uri_parser import parse_uri

from palimpsest.errors import ConfigError, PalimpsestError, StoreUnavailable
from palimpsest.stores.backend import Again, Ask, Batch, PlaceHead, Refusal, Scrubbed, Seen, Step
from palimpsest.stores.mongodb import faults
from palimpsest.stores.mongodb.address import ADDRESS, driver_settings
from palimpsest.stores.mongodb.alone import Alone
from palimpsest.stores.mongodb.connected import Connected, is_router, prepare
from palimpsest.stores.mongodb.layout import COLLECTION, NUMBER, Known, head_key
from palimpsest.stores.mongodb.reading import Reader
from palimpsest.stores.mongodb.updating import Plan, plan_of
from palimpsest.stores.mongodb.writing import Changing
from palimpsest.stores.rules import READ_ONLY, ask_again
from palimpsest.stores.servers import ServerBackend, ServerOptions

T = TypeVar("T")

TRIES = 3
"""How often a batch is tried at once, each time as `again` makes it anew. After that it is refused, and the engine
waits before it tries again."""

REMAINS = (
    "MongoDB keeps what was dropped in the free space of its files, and in its journal and its oplog, until it "
    "overwrites them: see the server's documentation of `compact` and of `oplogSizeMB`"
)
"""What every scrub reports: no command of ours removes these bytes."""

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
"""Codes for a command that the server does not have, and for one that this user may not run."""


class MongoBackend(ServerBackend[Connected]):
    """A backend over one collection of a database."""

    faults = faults.FAULTS
    gathers = False

    def __init__(self, address: str, options: ServerOptions) -> None:
        super().__init__(address, options)
        self._options, self._alone = options, Alone()
        self._make_client, self._name = self._client_of(address)

    def _client_of(self, address: str) -> tuple[Callable[[], AsyncMongoClient[dict[str, Any]]], str]:
        """Return a function that makes the client, and the database's name. Raises ConfigError for an invalid address.

        Options of the address take precedence over those set here.
        """
        srv = address.startswith("mongodb+srv:")
        try:
            if not srv:
                name = parse_uri(address)["database"]
            else:
                name = address.partition("://")[2].partition("?")[0].partition("/")[2] or None
        except (InvalidURI, ConfigurationError, ValueError, TypeError):
            raise ConfigError("store", self.url, ADDRESS) from None
        except OSError:
            raise ConfigError("store", self.url, "one whose options name files that can be read") from None
        settings = driver_settings(address, self._options.pool_size, self.seconds)
        return lambda: AsyncMongoClient(address, tz_aware=False, document_class=dict, **settings), name or "palimpsest"

    async def connect(self) -> Connected:
        client = self._make_client()
        try:
            return await self._alone.run(self._checked(client))
        except BaseException:
            await self._alone.run(client.close())
            raise

    async def _checked(self, client: AsyncMongoClient[dict[str, Any]]) -> Connected:
        """Check that the server can be used, and bring the store to the present version."""
        hello = await client.admin.command("hello")
        self._has_transactions(hello)
        connected = Connected(self.url, client, self._name, is_router(hello))
        await prepare(self.url, connected, writable=self.writable)
        return connected

    async def run(self, do: Callable[[Connected], Awaitable[T]], *, writes: bool = False) -> T:
        return await super().run(lambda connected: self._alone.run(do(connected)), writes=writes)

    def _has_transactions(self, hello: dict[str, Any]) -> None:
        """Raise StoreUnavailable for a server without transactions, by its answer to `hello`."""
        if "setName" not in hello and not is_router(hello):
            why = (
                "it is a standalone server, which has no transactions: start it with --replSet and call "
                "rs.initiate() once; a replica set of one server is enough"
            )
            raise StoreUnavailable(self.url, why)

    def translate(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return faults.translate(self.url, fault, writes)

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return await self.run(lambda connected: self._look(connected, asks)) if asks else []

    async def _look(self, connected: Connected, asks: Sequence[Ask]) -> list[Seen]:
        seen = await connected.reader.look(asks)
        if seen is not None:
            return seen
        return await connected.transaction(lambda session: connected.within.look_within(asks, session), _ignored)

    async def list_with(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        return await self.run(lambda connected: ask(connected.listing))

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        call = _Call(again)
        try:
            return await self.run(lambda connected: call.write(connected, batches), writes=True)
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
            return await self.run(lambda connected: compact_collection(connected.database))
        except StoreUnavailable as fault:
            if not isinstance(fault.__cause__, TimeoutError):
                raise
            return Scrubbed((REMAINS, LATE.format(self.seconds)))

    async def durability(self) -> str:
        return await self.run(lambda connected: connected.durability())

    async def close(self) -> None:
        connected = self.release()
        if connected is not None:
            await self._alone.run(connected.client.close())
        await self._alone.ended()


def _ignored(_: bool) -> None:
    """For a transaction that only reads, it does not matter whether its commit has begun."""


class _Call:
    """A call of `write`. `done`: one of its batches is written. `sent`: something may be written."""

    def __init__(self, again: Again | None) -> None:
        self._again, self.done, self.sent = again, False, False

    async def write(self, connected: Connected, batches: Sequence[Batch]) -> list[Refusal | None]:
        """Write the batches, one after the other. Return the refusal of each, or None."""
        refusals = list[Refusal | None]()
        for number, batch in enumerate(batches):
            refusals.append(await self._write_batch(connected, number, batch))
            self.done = self.sent = self.done or refusals[-1] is None
        return refusals

    async def _write_batch(self, connected: Connected, number: int, batch: Batch) -> Refusal | None:
        """Write a batch: by updates of one document as long as that is enough, else in a transaction."""
        refusal: Refusal | None = None
        for _ in range(TRIES):
            plan = plan_of(batch)
            if plan is None:
                break
            done, present = await self._update(connected, plan)
            if done:
                return None
            if present is None:
                break
            refusal = tuple(present.head if step is plan.step else None for step in batch)
            if self._again is None:
                return refusal
            try:
                instead = self._again(number, batch, refusal, _needs_transaction)
            except _Looks:
                break
            if instead is None:
                return refusal
            batch = instead
        else:
            return refusal
        return await self._write_in_transaction(connected, number, batch)

    async def _update(self, connected: Connected, plan: Plan) -> tuple[bool, Seen | None]:
        """Write a batch by one update. Return whether it is done, and if it is refused, the present head.

        (False, None) means that it takes a transaction.
        """
        step, reader = plan.step, connected.reader
        key, known = head_key(step.place), reader.known(step.place)
        current: tuple[Known, PlaceHead] | None = None
        for _ in range(TRIES):
            if known is None or known.value != step.expect:
                current = current or await reader.found(step.place)
                if current is None or current[1].hot != step.expect:
                    return False, await self._present(reader, step, current)
                known = current[0]
            if not plan.fits(known):
                return False, None
            update = plan.update(known, reader.spread)
            reader.remember(key, None)
            self.sent = True
            result = await connected.written.update_one(update.where, update.change)
            if result.matched_count:
                reader.remember(key, update.after)
                return True, None
            known, current = None, await reader.found(step.place)
            if current is not None and current[0].hot[-NUMBER:] == update.number:
                return True, None  # the driver sent it twice, because the first answer was lost, and the first matched
            self.sent = self.done
        return False, None

    async def _present(self, reader: Reader, step: Step, current: tuple[Known, PlaceHead] | None) -> Seen | None:
        """Return the present head, with its values in pieces, for a refusal.

        None if it is as the step expects after all (only such a value shows that), or if pieces are gone meanwhile.
        """
        whole = await reader.with_values([Ask(step.place)], [Seen(current[1] if current is not None else None, ())])
        if whole is None or (whole[0].head is not None and whole[0].head.hot == step.expect):
            return None
        return whole[0]

    async def _write_in_transaction(self, connected: Connected, number: int, batch: Batch) -> Refusal | None:
        """Write a batch in a transaction, and remember how the documents are afterwards."""
        changing: Changing | None = None

        async def taken(session: Any) -> Refusal | None:
            nonlocal changing
            refusal, changing = await self._take(connected, number, batch, session)
            return refusal

        refusal = await connected.transaction(taken, self._commits)
        if refusal is None and changing is not None:
            connected.reader.learn(*changing.outcome())
        return refusal

    def _commits(self, begun: bool) -> None:
        self.sent = begun or self.done

    async def _take(
        self, connected: Connected, number: int, batch: Batch, session: Any
    ) -> tuple[Refusal | None, Changing]:
        """Write a batch within a transaction, or what `again` returns in its place. Also returns what wrote it."""
        place = batch[0].place

        async def take(batch: Batch) -> tuple[Refusal | None, Changing]:
            changing = Changing(connected.within, session, place.tenant, place.home)
            return await changing.take(batch), changing

        refusal, changing = await take(batch)
        if refusal is None or self._again is None:
            return refusal, changing
        instead = await ask_again(
            self._again, number, batch, refusal, lambda asks: connected.within.look_within(asks, session)
        )
        return (refusal, changing) if instead is None else await take(instead)


class _Looks(Exception):
    """Raised when `again` looks at the store, which it may only do in a transaction."""


def _needs_transaction(_: Sequence[Ask]) -> list[Seen]:
    raise _Looks


async def compact_collection(database: Any) -> Scrubbed:
    """Have the server return free space in the collection's files to the disk, as far as `compact` does so.

    It blocks no reads and writes of sessions. In a replica set of several servers only this one does it.
    """
    try:
        # `force`: a primary runs it only with this.
        answer = await database.command({"compact": COLLECTION, "force": True})
    except OperationFailure as fault:
        problem = UNKNOWN if fault.code in _UNKNOWN else DENIED if fault.code in _DENIED else REFUSED.format(fault.code)
        return Scrubbed((REMAINS, problem))
    freed = answer.get("bytesFreed", 0)  # servers before 4.4 do not report it
    return Scrubbed((REMAINS,), 0, int(freed))
