"""The checked arguments of a search: a query, and a filter for the entries that may answer it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.log.checks import unfit
from palimpsest.log.entry import KINDS, ROLES
from palimpsest.recall.index import Filter

LIMIT = 20
"""The default number of hits of one search."""

LONGEST = 10_000
"""The most characters of a query."""

MOST = 1000
"""The most hits of one search."""

BESIDE = 10
"""The most neighbours on each side of a hit."""


class Asked(Filter, frozen=True, kw_only=True):
    """A query with a filter for the entries that may answer it, and limits of the result."""

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
        """Check the arguments of a verb. Raises ConfigError, which never quotes the query."""
        allowed = "text that is not blank, without lone surrogates"
        if not isinstance(query, str):
            raise ConfigError("query", type(query).__name__, allowed)
        if not query.strip() or unfit(query) is not None:
            raise ConfigError("query", "text with a lone surrogate" if query.strip() else "blank text", allowed)
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
        """Whether the filter excludes any entries."""
        return any(given is not None for given in (self.kinds, self.roles, self.names, self.since, self.until))


def ends(text: str) -> str:
    """Shorten a text to the length of a query: keep its beginning and its end, where people say what they want."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[: half - 1]}\n{text[-half:]}"


def some_of(name: str, given: Any, allowed: Collection[str] | None) -> frozenset[str] | None:
    """Return the text or texts given for an option as a set; None for None.

    Raises ConfigError for other types, and for a text that is not among `allowed` (None: all are).
    """
    if given is None:
        return None
    listed = [given] if isinstance(given, str) else given if values.is_listed(given) else [None]
    texts = set[str]()
    for text in listed:
        if not isinstance(text, str):
            raise ConfigError(name, given, "a text, a list of texts, or None")
        if allowed is not None and text not in allowed:
            raise ConfigError(name, text, ", ".join(allowed), nearest=nearest(text, allowed))
        texts.add(str.__str__(text))
    return frozenset(texts)
