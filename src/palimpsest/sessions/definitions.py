"""The definitions of declared sessions, and how a session passes from an earlier definition to its present one.

A session's head names the definition that its contexts are made by; the stored form of that definition is an item of
the store, under its digest. If the session is opened with another definition, its contexts follow the earlier one until
the next cut is due, so that a change of the declaration does not break the stable prefix.
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
"""The namespace of a tenant for the stored forms of definitions, by their digests."""

_DEFAULTS = GivenOptions()

TOGETHER = 256
"""How many definitions are read at once."""

MOST_KNOWN = 1024
"""How many definitions a memory remembers at most."""


class Scope(Protocol):
    """The part of a session's scope that is used here."""

    @property
    def store(self) -> Store:
        """The store of the session."""
        ...

    @property
    def options(self) -> Options:
        """The options that the session was opened with."""
        ...

    @property
    def tenant(self) -> str:
        """The tenant that owns the session."""
        ...

    async def tell(self, event: EventName, /, **facts: Any) -> None:
        """Tell observers what happened."""
        ...


class KnownDefinitions:
    """What a memory remembers of the definitions in its store, by tenant and digest."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Kept | None] = {}
        """The stored forms; None: the store has none, or it cannot be read."""
        self.stored: set[tuple[str, str]] = set()
        """Definitions that the store has for certain."""
        self.told: set[tuple[str, str]] = set()
        """Old and new digests of changes that were logged."""

    def remember(self, tenant: str, digest: str, kept: Kept | None) -> None:
        """Remember the stored form of a definition."""
        if len(self.kept) >= MOST_KNOWN:
            self.kept.clear()
        self.kept[tenant, digest] = kept


class Definitions:
    """The definition of one declared session, and the earlier one that it may still be under."""

    def __init__(self, scope: Scope, declared: Declared, known: KnownDefinitions) -> None:
        self._scope, self._known, self._declared = scope, known, declared
        self.own = declared.definition
        self._held: dict[tuple[str, str | None], Options | None] = {}
        self._told: str | None = None

    def differs(self, head: Head) -> bool:
        """Whether the session is under another definition."""
        return head.definition is not None and head.definition.digest != self.own.digest

    def held(self, head: Head, options: Options) -> Options | None:
        """Return these options with what the session's earlier definition says about contexts.

        None if the session is under its own definition, or the earlier one is unknown. Raises NotRead if the earlier
        definition must be read first.
        """
        if head.definition is None or not self.differs(head):
            return None
        digest, model = head.definition.digest, options.model_name
        if (digest, model) not in self._held:
            if (self._scope.tenant, digest) not in self._known.kept:
                raise NotRead(digest)
            self._held[digest, model] = self._options(self._known.kept[self._scope.tenant, digest], options)
        return self._held[digest, model]

    def _options(self, kept: Kept | None, options: Options) -> Options | None:
        if kept is None:
            return None
        declared = {name: kept.options[name] for name in HELD if name in kept.options}
        defaults = {name: getattr(_DEFAULTS, name) for name in HELD}
        given_here = {name: getattr(options.given, name) for name in HELD if name in self._declared.given}
        try:
            return options.showing({**defaults, **declared, **given_here})
        except ConfigError as fault:  # another version of Palimpsest may have stored it
            warn("an earlier definition of memory %s is not valid any more: %s", self.own.memory, fault)
            return None

    async def read(self, digest: str) -> None:
        """Read the stored form of a definition and remember it."""
        tenant = self._scope.tenant
        item = await self._scope.store.get_item(tenant, DEFINITIONS, digest)
        self._known.remember(tenant, digest, None if item is None else read_kept(item.value))

    async def held_now(self, head: Head) -> Options | None:
        """Return `held` for the session's own options, after reading the earlier definition if that is needed."""
        try:
            return self.held(head, self._scope.options)
        except NotRead as missing:
            await self.read(missing.digest)
            return self.held(head, self._scope.options)

    async def keep(self) -> None:
        """Store the definition if the store does not have it, before a session refers to it."""
        tenant, digest = self._scope.tenant, self.own.digest
        store = self._scope.store
        if (tenant, digest) in self._known.stored or not store.writable:
            return
        if await store.get_item(tenant, DEFINITIONS, digest) is None:
            value = encoded(self._declared.kept)
            await store.put_items(tenant, DEFINITIONS, [Put(digest, value)])
        self._known.stored.add((tenant, digest))

    async def tell(self, head: Head) -> None:
        """Report once that the session is under an earlier definition: to observers, and once per change to the log."""
        before = head.definition
        if before is None or not self.differs(head) or self._told == before.digest:
            return
        self._told = before.digest
        change = before.digest, self.own.digest
        if change not in self._known.told:
            self._known.told.add(change)
            names = self.own.memory, _named(before), _named(self.own)
            warn("the definition of memory %s changed from %s to %s: each session follows it from its next cut", *names)
        facts = {"memory": self.own.memory, "before": msgspec.to_builtins(before)}
        await self._scope.tell("config:changed", **facts, now=msgspec.to_builtins(self.own))

    def change_fields(self) -> tuple[About, tuple[str, ...]]:
        """Return the fields `about` and `said` of a change that puts the session under this definition."""
        return About(definition=self.own), ("definition",)

    def adoption(self, created: int) -> Change:
        """Return a change that puts the session under this definition without a cut."""
        about, said = self.change_fields()
        return Change(kind="about", reason="about", created=created, about=about, said=said)


def _named(definition: Definition) -> str:
    version = f"version {definition.version}, " if definition.version else ""
    return f"{version}{definition.digest[:8]}"


async def definitions_of(store: Store, tenant: str) -> list[DefinitionInfo]:
    """Return the definitions of a tenant's declared sessions, sorted by name and version."""
    definitions, sessions = dict[str, Definition](), Counter[str]()
    async for info in sessions_of(store, tenant):
        if info.definition is not None:
            definitions[info.definition.digest] = info.definition
            sessions[info.definition.digest] += 1
    digests = sorted(definitions, key=lambda one: (definitions[one].memory, definitions[one].version or "", one))
    infos = list[DefinitionInfo]()
    for first in range(0, len(digests), TOGETHER):
        batch = digests[first : first + TOGETHER]
        for digest, item in zip(batch, await store.get_items(tenant, DEFINITIONS, batch), strict=True):
            kept = None if item is None else read_kept(item.value)
            settings = None if kept is None else dict(kept.settings)
            infos.append(DefinitionInfo(definition=definitions[digest], sessions=sessions[digest], settings=settings))
    return infos
