"""`WorkingMemory`: the synchronous faces of `AsyncWorkingMemory`."""

# Written by `python tools/make_sync.py`. Not to be edited: edit the asynchronous classes, and run that again.

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from palimpsest.log.facts import Fact
from palimpsest.runtime.runner import drive
from palimpsest.sessions.working import AsyncWorkingMemory, FactPage

if TYPE_CHECKING:
    from palimpsest.tokens.counter import TokenCounter


class WorkingMemory:
    """Facts under keys that an agent sets, changes and reads: its scratchpad. Made by `Memory.working`.

    Each scope has facts of its own. They are kept in the memory's store, so other processes see them at once.
    """

    def __init__(self, core: AsyncWorkingMemory) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    @property
    def scope_id(self) -> str:
        """The scope's name."""
        return self._core.scope_id

    @property
    def is_readonly(self) -> bool:
        """Whether this object only reads."""
        return self._core.is_readonly

    def readonly(self) -> WorkingMemory:
        """Return the same scope for reading only, for example to hand to a sub-agent."""
        return WorkingMemory(self._core.readonly())

    def set(
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
        return drive(self._core.set(key, value, importance=importance, ttl=ttl, version=version))

    def set_many(
        self, facts: Mapping[str, Any], *, importance: float = 0.5, ttl: timedelta | float | str | None = None
    ) -> list[Fact]:
        """Store several values, each under its key, in one step: either all of them or, if it raises, none.

        Args:
            facts: values by key, at most 256.
            importance: the importance of each, from 0 to 1.
            ttl: the time after which they expire, as in `set`; None: never.
        """
        return drive(self._core.set_many(facts, importance=importance, ttl=ttl))

    def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a fact with its history, and return whether there was one.

        Raises Conflict if the fact has another `version`.

        Args:
            key: the fact's key.
            version: the version that the fact must have; None: any.
        """
        return drive(self._core.delete(key, version=version))

    def clear(self) -> int:
        """Delete all facts of the scope, and return how many there were. Scopes beneath it stay."""
        return drive(self._core.clear())

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value under a key, or `default`. It is a copy: changing it changes nothing that is stored.

        Args:
            key: the fact's key.
            default: returned if there is no such fact.
        """
        return drive(self._core.get(key, default))

    def fact(self, key: str) -> Fact | None:
        """Return the whole fact under a key: value, version, importance, times and history; None if there is none.

        Args:
            key: the fact's key.
        """
        return drive(self._core.fact(key))

    def has(self, key: str) -> bool:
        """Return whether there is a fact under a key, even if its value is None.

        Args:
            key: the fact's key.
        """
        return drive(self._core.has(key))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys, in the order in which they were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return drive(self._core.keys(prefix))

    def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        """Return keys with their values, in the order in which the keys were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return drive(self._core.items(prefix))

    def to_dict(self, prefix: str = "") -> dict[str, Any]:
        """Return the values by key, in the order in which the keys were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return drive(self._core.to_dict(prefix))

    def facts(self, prefix: str = "") -> list[Fact]:
        """Return the whole facts, in the order in which their keys were first set.

        Args:
            prefix: only keys that begin with it.
        """
        return drive(self._core.facts(prefix))

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> FactPage:
        """Return a page of facts, in a stable order of the store's own. Meant for scopes with many facts.

        Args:
            prefix: only keys that begin with it.
            after: the `next` of the page before; "": the first page.
            limit: the most facts of a page.
        """
        return drive(self._core.page(prefix=prefix, after=after, limit=limit))

    def to_context_string(
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
        return drive(self._core.to_context_string(max_tokens, prefix=prefix, counter=counter))
