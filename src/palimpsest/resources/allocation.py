"""`token_allocation` of a declared memory, resolved to shares of the budget. Pure.

Compozy's document gives one share, `long_term`, to summaries and recalled text together. In Palimpsest recalled text is
placed behind the log, in a share of its own (`tail_share`), which is kept free so that it never causes a cut. So the
tail gets a part of `long_term`, and summaries the rest: together they never take more than `long_term`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

from palimpsest.compaction.loading import load_with_knowledge
from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.resources.problems import Problems
from palimpsest.sessions.options import TAIL_SHARE

SHARES = ("short_term", "long_term", "system", "user_defined")
LEAST = 0.001
"""The least share that summaries are given, a few tokens, since the option `summary_share` must be above 0."""
RECALLS = frozenset({"facts", "tail_share", "long_term"})
"""The options that decide whether anything is recalled, and how much of the budget that may take."""


def allocation_of(root: Mapping[str, Any], problems: Problems, kind: str | None) -> dict[str, Any]:
    """Return the options `summary_share` and `tag_shares` of a resource, and note what is wrong with its shares.

    Pinned entries and interactions have what these leave, as in the document; so their shares set no option.
    """
    given, place = root.get("token_allocation"), ("token_allocation",)
    if given is None:
        return {}
    if kind not in (None, "token_based"):
        problems.add(place, kind, "only together with the type token_based")
    if not isinstance(given, Mapping):
        problems.add(place, type(given).__name__, "a mapping of shares")
        return {}
    problems.check_keys(given, place, SHARES)
    by_tag = given.get("user_defined") or {}
    if not isinstance(by_tag, Mapping):
        problems.add((*place, "user_defined"), by_tag, "a mapping of names to shares")
        by_tag = {}
    shares: dict[tuple[str, ...], Any] = {(key,): given[key] for key in SHARES[:3] if given.get(key) is not None}
    shares |= {("user_defined", str(key)): value for key, value in by_tag.items()}
    wrong = [path for path, share in shares.items() if not values.is_number(share) or not 0 <= share <= 1]
    for path in wrong:
        problems.add((*place, *path), shares[path], "a share from 0 to 1")
    total = sum(share for path, share in shares.items() if path not in wrong)
    if not wrong and not isclose(total, 1, abs_tol=0.001):
        problems.add(place, round(total, 4), "shares whose sum is 1")
    options: dict[str, Any] = {}
    if any(not isinstance(tag, str) or not tag for tag in by_tag):
        problems.add((*place, "user_defined"), "", "names of tags, which are text")
    elif by_tag and not wrong:
        options["tag_shares"] = {str(tag): share for tag, share in by_tag.items()}
    share = given.get("long_term")
    if values.is_number(share) and 0 <= share <= 1:
        options["summary_share"] = _between(share)
    return options


def long_term_share(root: Mapping[str, Any]) -> float | None:
    """Return the share `long_term`; None if it is not given, or is no share."""
    given = root.get("token_allocation")
    share = given.get("long_term") if isinstance(given, Mapping) else None
    return share if values.is_number(share) and 0 <= share <= 1 else None


def shared_out(long_term: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `summary_share` and `tail_share` with which both together take no more than this share.

    `tail_share` is the one of the options; without it the default of sessions, but at most half of the share. Where
    nothing is recalled, summaries have all of it. Raises ConfigError for a `tail_share` above the share.

    Args:
        long_term: the share, from 0 to 1.
        options: the options of a session.
    """
    tail = options.get("tail_share")
    if tail is None and not _recalls(options):
        return {"summary_share": _between(long_term)}
    if tail is None:
        tail = min(TAIL_SHARE, long_term / 2)
    elif tail > long_term:
        allowed = f"at most {long_term:g}: it is a part of token_allocation.long_term, which is for summaries, too"
        raise ConfigError("tail_share", tail, allowed)
    return {"tail_share": tail, "summary_share": _between(round(long_term - tail, 6))}


def _recalls(options: Mapping[str, Any]) -> bool:
    """Whether contexts are given facts, or text from a knowledge base."""
    if options.get("facts"):
        return True
    given = options.get("long_term")
    return bool(given) and any(base.reads for base, _ in load_with_knowledge(given, "long_term", "")[2])


def _between(share: float) -> float:
    """Return a share within the bounds of `summary_share`."""
    return min(max(share, LEAST), 1 - LEAST)
