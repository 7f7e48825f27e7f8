"""Which definition a declared session is under, and what an earlier one said of its contexts.

A session keeps which definition its contexts are made by; what that says is an item of the store, by its digest. Where
a session is opened by another definition, what it shows stays as the one before has it, until that makes a cut due.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from palimpsest.context.newest import NotRead
from palimpsest.errors import ConfigError
from palimpsest.log.change import Change
from palimpsest.log.codec import encoded
from palimpsest.log.head import About, Definition, Head
from palimpsest.runtime.logs import warn
from palimpsest.sessions.declared import HELD, Declared, DefinitionInfo, Kept, read_kept
from palimpsest.sessions.options import GivenOptions, Options
from palimpsest.sessions.paging import sessions_of
from palimpsest.stores import Put, Store

if TYPE_CHECKING:
    from palimpsest.runtime.events import EventName

DEFINITIONS = "definitions"
"""The namespace of a tenant that holds what definitions say, by their digests."""

_DEFAULTS = GivenOptions()

TOGETHER = 256
"""Definitions that are read at once."""

MOST_KNOWN = 1024
"""Definitions of a store that a memory remembers."""


class Scope(Protocol):
    """What this asks of a session's scope."""

    @property
    def store(self) -> Store:
        """Where the session is."""
        ...

    @property
    def options(self) -> Options:
        """What it was opened with."""
        ...

    @property
    def tenant(self) -> str:
        """Whose it is."""
        ...

    async def tell(self, event: EventName, /, **facts: Any) -> None:
        """Tell observers what happened."""
        ...


class Known:
    """What a memory has seen of the definitions in its store, by tenant and digest."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Kept | None] = {}
        """What they say; None: nothing is known of it."""
        self.stored: set[tuple[str, str]] = set()
        """Those that are stored for certain."""
        self.told: set[tuple[str, str]] = set()
        """Old and new digests of changes that were logged."""

    def remember(self, tenant: str, digest: str, kept: Kept | None) -> None:
        """Keep what a definition says."""
        if len(self.kept) >= MOST_KNOWN:
            self.kept.clear()
        self.kept[tenant, digest] = kept


class Definitions:
    """The definition of one declared session, and the one that it was under before."""

    def __init__(self, scope: Scope, declared: Declared, known: Known) -> None:
        self._scope, self._known, self._declared = scope, known, declared
        self.own = declared.definition
        self._held: dict[tuple[str, str | None], Options | None] = {}
        self._told: str | None = None

    def differs(self, head: Head) -> bool:
        """Whether the session is under another definition."""
        return head.definition is not None and head.definition.digest != self.own.digest

    def held(self, head: Head, options: Options) -> Options | None:
        """These options with what the session's definition says of its contexts, where that is another one than this;
        else None, also where nothing is known of it. Raises NotRead where that is to be read first."""
        if head.definition is None or not self.differs(head):
            return None
        place = head.definition.digest, options.model_name
        if place not in self._held:
            if (self._scope.tenant, place[0]) not in self._known.kept:
                raise NotRead(place[0])
            self._held[place] = self._options(self._known.kept[self._scope.tenant, place[0]], options)
        return self._held[place]

    def _options(self, kept: Kept | None, options: Options) -> Options | None:
        if kept is None:
            return None
        said = {name: kept.options[name] for name in HELD if name in kept.options}
        defaults = {name: getattr(_DEFAULTS, name) for name in HELD}
        own = {name: getattr(options.given, name) for name in HELD if name in self._declared.given}
        try:
            return options.showing({**defaults, **said, **own})
        except ConfigError as fault:  # another version of Palimpsest may have kept it
            warn("what an earlier definition of %s said is not accepted any more: %s", self.own.memory, fault)
            return None

    async def read(self, digest: str) -> None:
        """Read what a definition says."""
        tenant = self._scope.tenant
        item = await self._scope.store.get_item(tenant, DEFINITIONS, digest)
        self._known.remember(tenant, digest, None if item is None else read_kept(item.value))

    async def held_now(self, head: Head) -> Options | None:
        """The same as `held` for the session's own options, read where it has to be."""
        try:
            return self.held(head, self._scope.options)
        except NotRead as missing:
            await self.read(missing.digest)
            return self.held(head, self._scope.options)

    async def keep(self) -> None:
        """See to it that the store has what the definition says, before a session refers to it."""
        place = self._scope.tenant, self.own.digest
        store = self._scope.store
        if place in self._known.stored or not store.writable:
            return
        if await store.get_item(*place[:1], DEFINITIONS, self.own.digest) is None:
            value = encoded(self._declared.kept)
            await store.put_items(self._scope.tenant, DEFINITIONS, [Put(self.own.digest, value)])
        self._known.stored.add(place)

    async def tell(self, head: Head) -> None:
        """Tell that the session is under another definition, once: observers of it, and, of each change, the log."""
        before = head.definition
        if before is None or not self.differs(head) or self._told == before.digest:
            return
        self._told = before.digest
        change = before.digest, self.own.digest
        if change not in self._known.told:
            self._known.told.add(change)
            names = self.own.memory, _named(before), _named(self.own)
            warn(
                "the definition of memory %s changed, from %s to %s: each session is under it from its next cut", *names
            )
        facts = {"memory": self.own.memory, "before": msgspec.to_builtins(before)}
        await self._scope.tell("config:changed", **facts, now=msgspec.to_builtins(self.own))

    def said(self) -> tuple[About, tuple[str, ...]]:
        """What a change says that puts the session under this definition."""
        return About(definition=self.own), ("definition",)

    def adopted(self, created: int) -> Change:
        """The change that puts the session under this definition where no cut does."""
        about, said = self.said()
        return Change(kind="about", reason="about", created=created, about=about, said=said)


def _named(definition: Definition) -> str:
    version = f"version {definition.version}, " if definition.version else ""
    return f"{version}{definition.digest[:8]}"


async def definitions_of(store: Store, tenant: str) -> list[DefinitionInfo]:
    """Each definition that sessions of a tenant are under, by name and version."""
    found, sessions = dict[str, Definition](), Counter[str]()
    async for info in sessions_of(store, tenant):
        if info.definition is not None:
            found[info.definition.digest] = info.definition
            sessions[info.definition.digest] += 1
    digests = sorted(found, key=lambda one: (found[one].memory, found[one].version or "", one))
    said = list[DefinitionInfo]()
    for first in range(0, len(digests), TOGETHER):
        some = digests[first : first + TOGETHER]
        for digest, item in zip(some, await store.get_items(tenant, DEFINITIONS, some), strict=True):
            kept = None if item is None else read_kept(item.value)
            settings = None if kept is None else dict(kept.settings)
            said.append(DefinitionInfo(definition=found[digest], sessions=sessions[digest], settings=settings))
    return said
