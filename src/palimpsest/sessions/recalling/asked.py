"""What is looked for, checked: a query, and which entries may answer it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.log.checks import unfit
from palimpsest.log.entry import KINDS, ROLES
from palimpsest.recall.index import Filter

LIMIT = 20
"""Hits of one search, unless asked otherwise."""

LONGEST = 10_000
"""Characters of a query."""

MOST = 1000
"""Hits of one search, at most."""

BESIDE = 10
"""Entries on each side of a hit, at most."""


class Asked(Filter, frozen=True, kw_only=True):
    """A query with the entries that may answer it."""

    query: str
    limit: int = LIMIT
    max_tokens: int | None = None
    neighbours: int = 1

    @classmethod
    def of(
        cls,
        query: object,
        max_tokens: object,
        limit: object,
        kinds: object,
        roles: object,
        names: object,
        since: object,
        until: object,
        neighbours: object,
    ) -> Asked:
        """What a verb was given. Raises ConfigError; the query stands in none."""
        fit = "text that is not blank, without lone surrogates"
        if not isinstance(query, str):
            raise ConfigError("query", type(query).__name__, fit)
        if not query.strip() or unfit(query) is not None:
            raise ConfigError("query", "this text" if query.strip() else "a blank text", fit)
        if len(query) > LONGEST:
            raise ConfigError("query", f"{len(query):,} characters", f"at most {LONGEST:,}")
        values.whole("limit", limit, 1)
        values.whole("max_tokens", max_tokens, 1, none=True)
        values.whole("neighbours", neighbours, 0)
        return cls(
            query=query,
            kinds=some_of("kinds", kinds, KINDS),
            roles=some_of("roles", roles, ROLES),
            names=some_of("names", names, None),
            since=values.instant("since", since),
            until=values.instant("until", until),
            limit=min(cast("int", limit), MOST),
            max_tokens=cast("int | None", max_tokens),
            neighbours=min(cast("int", neighbours), BESIDE),
        )

    @property
    def is_narrow(self) -> bool:
        """Whether not every entry may answer."""
        return any(one is not None for one in (self.kinds, self.roles, self.names, self.since, self.until))


def ends(text: str) -> str:
    """As much of a text as a query may have: its beginning and its end, where people say what they want."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[: half - 1]}\n{text[-half:]}"


def some_of(name: str, given: Any, allowed: Collection[str] | None) -> frozenset[str] | None:
    """A text, or texts, that an option was given; None for None. Raises ConfigError for what is neither, or not one of
    those that are `allowed` (None: all are)."""
    if given is None:
        return None
    listed = [given] if isinstance(given, str) else given if values.is_listed(given) else [None]
    found = set[str]()
    for one in listed:
        if not isinstance(one, str):
            raise ConfigError(name, given, "a text, a list of texts, or None")
        if allowed is not None and one not in allowed:
            raise ConfigError(name, one, ", ".join(allowed), nearest=nearest(one, allowed))
        found.add(str.__str__(one))
    return frozenset(found)
