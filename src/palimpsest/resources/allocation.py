"""How the room of a declared memory is shared out: what `token_allocation` comes to. Pure.

The document gives one share, `long_term`, to summaries and to what is recalled. Here what is recalled stands behind the
log, in a room of its own (`tail_share`), which is kept free so that nothing in it makes a cut. So that room is a part
of `long_term`, and summaries have the rest of it: both together take no more, however full each is.
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
"""The share that summaries have at least: none would be another option, and this is a few tokens."""
RECALLS = frozenset({"facts", "tail_share", "long_term"})
"""The options that say whether anything is recalled, and into how much."""


def allocation_of(root: Mapping[str, Any], problems: Problems, kind: str | None) -> dict[str, Any]:
    """The shares of what is remembered for long and of tags: pinned entries and interactions have what these leave, as
    the document has it."""
    given, place = root.get("token_allocation"), ("token_allocation",)
    if given is None:
        return {}
    if kind not in (None, "token_based"):
        problems.add(place, kind, "the type token_based, which alone shares out tokens")
    if not isinstance(given, Mapping):
        problems.add(place, type(given).__name__, "a mapping of shares")
        return {}
    problems.check_keys(given, place, SHARES)
    more = given.get("user_defined") or {}
    if not isinstance(more, Mapping):
        problems.add((*place, "user_defined"), more, "a mapping of names to shares")
        more = {}
    named: dict[tuple[str, ...], Any] = {(key,): given[key] for key in SHARES[:3] if given.get(key) is not None}
    named |= {("user_defined", str(key)): value for key, value in more.items()}
    wrong = [path for path, share in named.items() if not values.is_number(share) or not 0 <= share <= 1]
    for path in wrong:
        problems.add((*place, *path), named[path], "a share from 0 to 1")
    total = sum(share for path, share in named.items() if path not in wrong)
    if not wrong and not isclose(total, 1, abs_tol=0.001):
        problems.add(place, round(total, 4), "shares whose sum is 1")
    options: dict[str, Any] = {}
    if any(not isinstance(tag, str) or not tag for tag in more):
        problems.add((*place, "user_defined"), "", "names that are text, as tags of entries are")
    elif more and not wrong:
        options["tag_shares"] = {str(tag): share for tag, share in more.items()}
    share = given.get("long_term")
    if values.is_number(share) and 0 <= share <= 1:
        options["summary_share"] = _between(share)
    return options


def long_term_share(root: Mapping[str, Any]) -> float | None:
    """The share `long_term`, where it is one; None: it is not given."""
    given = root.get("token_allocation")
    share = given.get("long_term") if isinstance(given, Mapping) else None
    return share if values.is_number(share) and 0 <= share <= 1 else None


def shared_out(long_term: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by which summaries and what is recalled take no more than this share together.

    What is recalled has the room that `tail_share` says, by default a tenth, but at most half of the share. Raises
    ConfigError for a `tail_share` that is more than the whole of it.

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
        told = f"at most {long_term:g}: it is a part of token_allocation.long_term, which is for summaries, too"
        raise ConfigError("tail_share", tail, told)
    return {"tail_share": tail, "summary_share": _between(round(long_term - tail, 6))}


def _recalls(options: Mapping[str, Any]) -> bool:
    """Whether contexts are given facts, or what a knowledge base holds."""
    if options.get("facts"):
        return True
    given = options.get("long_term")
    return bool(given) and any(base.reads for base, _ in load_with_knowledge(given, "long_term", "")[2])


def _between(share: float) -> float:
    return min(max(share, LEAST), 1 - LEAST)
