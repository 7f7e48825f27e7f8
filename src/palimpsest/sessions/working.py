"""`AsyncWorkingMemory`: facts that an agent keeps under keys. `palimpsest.sessions.working_sync.WorkingMemory` has the
same verbs.

This module checks arguments and applies the privacy policy. `palimpsest.sessions.kept_facts` reads and writes: a scope
is a namespace of items and a fact is one item of it, so each change is one step of the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.checks import is_share
from palimpsest.log.facts import Fact, Stored, changed, rendered
from palimpsest.log.ids import check_id
from palimpsest.log.typed import to_json
from palimpsest.privacy.facts import cleaned_value
from palimpsest.privacy.gate import guarded
from palimpsest.sessions.counting import counter_of
from palimpsest.sessions.kept_facts import Home, KeptFacts
from palimpsest.sessions.options import HISTORY, VALUE_BYTES
from palimpsest.stores import Item

if TYPE_CHECKING:
    from palimpsest.tokens.counter import TokenCounter

TOGETHER = 256
"""The most facts that are changed in one step."""


class FactPage(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """One page of the `facts` of a scope. `next` is the `after` for the next page (None: this is the last one)."""

    facts: tuple[Fact, ...]
    next: str | None = None


@guarded
class AsyncWorkingMemory:
    """Facts under keys that an agent sets, changes and reads: its scratchpad. Made by `AsyncMemory.working`.

    Each scope has facts of its own. They are kept in the memory's store, so other processes see them at once.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        *,
        history: int = HISTORY,
        value_bytes: int = VALUE_BYTES,
        readonly: bool = False,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        values.whole("history", history)
        values.whole("value_bytes", value_bytes, 1)
        values.switch("readonly", readonly)
        self._home, self._gate, self._name = home, home.gate, name
        self._kept, self._check_access = KeptFacts(home, name, look), look
        self._history, self._most_bytes, self._readonly = history, value_bytes, readonly
        self._gate.refuse([name], "scope", "; give users and sessions ids without private text")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}{' (read-only)' if self._readonly else ''}>"

    @property
    def scope_id(self) -> str:
        """The scope's name."""
        return self._name

    @property
    def is_readonly(self) -> bool:
        """Whether this object only reads."""
        return self._readonly

    def readonly(self) -> AsyncWorkingMemory:
        """Return the same scope for reading only, for example to hand to a sub-agent."""
        return AsyncWorkingMemory(self._home, self._name, readonly=True, look=self._check_access)

    # --- changing

    async def set(
        self,
        key: str,
        value: Any,
        *,
        importance: float = 0.5,
        ttl: timedelta | float | str | None = None,
        version: int | None = None,
    ) -> Fact:
        """Store a value under a key, and return the fact. An existing fact keeps its place, and its old value becomes
        history.

        The change is one step: if it raises, the old value stays. Raises ConfigError, naming the key, for a value that
        is too large or would not come back unchanged; Conflict if the fact has another `version`; PrivacyRefused.

        Args:
            key: 1 to 256 characters, none of them a control character.
            value: None, a truth value, a number, text, bytes, date, datetime, Decimal, UUID, or lists, tuples, sets and
                mappings of them. It comes back with its type.
            importance: from 0 to 1, 0.5 by default. The least important facts are left out of a prompt first.
            ttl: the time after which the fact expires: a timedelta, seconds, or text such as "30m"; None: never.
            version: the version that the fact must have, 0 if there must be none; None: any.
        """
        check_id(key, "key")
        return (await self._set({key: value}, importance, ttl, version))[0]

    async def set_many(
        self, facts: Mapping[str, Any], *, importance: float = 0.5, ttl: timedelta | float | str | None = None
    ) -> list[Fact]:
        """Store several values, each under its key, in one step: either all of them or, if it raises, none.

        Args:
            facts: values by key, at most 256.
            importance: the importance of each, from 0 to 1.
            ttl: the time after which they expire, as in `set`; None: never.
        """
        if not isinstance(facts, Mapping) or len(facts) > TOGETHER:
            given = f"{len(facts):,} keys" if isinstance(facts, Mapping) else type(facts).__name__
            raise ConfigError("facts", given, f"a mapping of at most {TOGETHER} keys to values")
        return await self._set(facts, importance, ttl, None)

    async def _set(
        self, facts: Mapping[str, Any], importance: float, ttl: timedelta | float | str | None, version: int | None
    ) -> list[Fact]:
        self._may_write()
        if not is_share(importance):
            raise ConfigError("importance", importance, "a number from 0 to 1")
        values.whole("version", version, none=True)
        texts = {values.plain_text(key): self._admitted(key, value) for key, value in facts.items()}
        length = values.microseconds("ttl", ttl) if ttl is not None else None

        def new(old: Stored | None, text: str, now: int) -> Stored:
            return changed(old, text, float(importance), now, self._history, self._most_bytes)

        return await self._kept.put(texts, new, length, version)

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a fact with its history, and return whether there was one.

        Raises Conflict if the fact has another `version`.

        Args:
            key: the fact's key.
            version: the version that the fact must have; None: any.
        """
        self._may_write()
        check_id(key, "key")
        values.whole("version", version, none=True)
        return await self._kept.delete(values.plain_text(key), version)

    async def clear(self) -> int:
        """Delete all facts of the scope, and return how many there were. Scopes beneath it stay."""
        self._may_write()
        return await self._kept.clear()

    # --- reading

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value under a key, or `default`. It is a copy: changing it changes nothing that is stored.

        Args:
            key: the fact's key.
            default: returned if there is no such fact.
        """
        item = await self._item(key)
        return default if item is None else self._kept.value(item)

    async def fact(self, key: str) -> Fact | None:
        """Return the whole fact under a key: value, version, importance, times and history; None if there is none.

        Args:
            key: the fact's key.
        """
        item = await self._item(key)
        return None if item is None else self._kept.fact(item)

    async def has(self, key: str) -> bool:
        """Return whether there is a fact under a key, even if its value is None.

        Args:
            key: the fact's key.
        """
        return await self._item(key) is not None

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys, in the order in which they were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return [item.key for item in await self._items(prefix)]

    async def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        """Return keys with their values, in the order in which the keys were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return [(item.key, self._kept.value(item)) for item in await self._items(prefix)]

    async def to_dict(self, prefix: str = "") -> dict[str, Any]:
        """Return the values by key, in the order in which the keys were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return dict(await self.items(prefix))

    async def facts(self, prefix: str = "") -> list[Fact]:
        """Return the whole facts, in the order in which their keys were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return [self._kept.fact(item) for item in await self._items(prefix)]

    async def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> FactPage:
        """Return a page of facts, in a stable order of the store's own. Meant for scopes with many facts.

        Args:
            prefix: only keys that begin with it.
            after: the `next` of the page before; "": the first page.
            limit: the most facts of a page.
        """
        values.whole("limit", limit, 1)
        if not isinstance(after, str) or after:
            check_id(after, "after")
        _check_prefix(prefix)
        items, next_after = await self._kept.page(prefix, after, limit)
        return FactPage(facts=tuple(self._kept.fact(item) for item in items), next=next_after)

    async def to_context_string(
        self,
        max_tokens: int | None = None,
        *,
        prefix: str = "",
        counter: TokenCounter | Callable[[str], int] | str | None = None,
    ) -> str:
        """Return the facts as a text for a prompt: a heading, then `- key: value` in the order in which the keys were
        first set; "" without facts. Line breaks are escaped, so a value cannot look like another fact.

        With `max_tokens`, facts that do not fit are left out, the least important first and of these the oldest. The
        text then says how many.

        Args:
            max_tokens: the most tokens of the text; None: no limit.
            prefix: only keys that begin with it.
            counter: counts tokens, as for a session; None: an encoding that fits most models.
        """
        values.whole("max_tokens", max_tokens, none=True)
        count = counter_of(counter, None).count if max_tokens is not None else len
        return rendered(await self.facts(prefix), max_tokens, count)

    # --- what is stored

    def _may_write(self) -> None:
        if self._readonly:
            raise ConfigError(
                "readonly", True, f"False: the working memory {self._name!r} was opened with readonly=True"
            )

    def _admitted(self, key: str, value: Any) -> str:
        """Return the value as JSON, redacted as the policy demands. Raises if it may not be stored under this key."""
        check_id(key, "key")
        self._gate.refuse([key], "key")
        text = to_json(value, f"the value of {key!r}")
        if self._gate.redactor is not None:
            text = cleaned_value(key, text, self._gate.value)
        if len(text) > self._most_bytes:
            allowed = f"at most {self._most_bytes} bytes of JSON (value_bytes); store a name or a summary of it instead"
            raise ConfigError(f"the value of {key!r}", f"{len(text)} bytes", allowed)
        return text

    async def _item(self, key: str) -> Item | None:
        check_id(key, "key")
        return await self._kept.item(values.plain_text(key))

    async def _items(self, prefix: str) -> list[Item]:
        _check_prefix(prefix)
        return await self._kept.items(prefix)


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str):
        raise ConfigError("prefix", type(prefix).__name__, "text that keys begin with")
