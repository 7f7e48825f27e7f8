"""What stores share: expectations of heads, imports, branches, listings, the options of those on a disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, Conflict, nearest
from palimpsest.log import values
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, same
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.values import LARGE, SessionInfo


def expected(key: SessionKey, head: Head, revision: int | None, epoch: int | None = None, created: int = 0) -> None:
    """Raise Conflict unless the head is where the caller saw it, and of the session that began then (0: of any)."""
    if created and head.created != created:
        raise Conflict(f"session {key.session!r}", "was deleted or replaced by another writer: read it again")
    if revision is not None and head.revision != revision:
        raise Conflict(f"session {key.session!r}", f"is at revision {head.revision}, not {revision}: read it again")
    if epoch is not None and head.epoch != epoch:
        raise Conflict(f"session {key.session!r}", f"is in epoch {head.epoch}, not {epoch}: read it again")


def loading(key: SessionKey, before: Head | None, after: Head, replace: bool) -> Head:
    """Return the head of an import, where a session of the head `before` (None: none) may be in its place.

    What was seen of that one is seen as outdated. Raises Conflict where it may not be replaced.
    """
    if before is None:
        return after
    if not replace:
        raise Conflict(f"session {key.session!r}", "is there already; import with on_conflict='replace' or 'merge'")
    return msgspec.structs.replace(
        after,
        revision=max(after.revision, before.revision + 1),
        epoch=max(after.epoch, before.epoch + 1),
        epoch_reason="import",
    )


def branching(key: SessionKey, into: str, there: Head | None) -> SessionKey:
    """Return the key of a new branch. Raises Conflict where there is such a session already."""
    if there is not None:
        raise Conflict(f"session {into!r}", "is there already; give the branch another id")
    return SessionKey(key.tenant, into)


def of_branch(change: Change, key: SessionKey, seqs: Sequence[int]) -> Change:
    """The erasure as another branch has it: of the entries that it shares, with the session where it was asked for.

    What was made from them, and what is remembered of compactions, is each branch's own.
    """
    detail = {**change.detail, "session": key.session}
    return msgspec.structs.replace(change, seqs=tuple(seqs), silence=(), compaction=None, attempts=None, detail=detail)


class DiskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of stores on this machine's disk.

    `synchronous` is FULL (what was acknowledged survives a loss of power) or NORMAL (it survives the process, a loss of
    power may take the last commits); `busy_seconds` is how long to wait for other writers; a text or the data of an
    image of more than `large_bytes` is kept once, however many entries hold it.
    """

    synchronous: str = "FULL"
    busy_seconds: float = 30
    readonly: bool = False
    large_bytes: int = LARGE


def options_in(query: str) -> dict[str, Any]:
    """Return the options of stores on a disk that stand in an address, behind its question mark.

    Raises ConfigError, naming it, for one that is unknown, comes twice or cannot be read. Only names are quoted.
    """
    from urllib.parse import unquote_plus  # four milliseconds, only for options in an address

    found: dict[str, Any] = {}
    for part in query.split("&"):
        name, mark, text = part.partition("=")
        reads = _READ.get(name)
        if reads is None:
            known = ", ".join(_READ)
            allowed = f"{known}, as in sqlite:///agent.db?synchronous=NORMAL (a file whose name has a question mark is "
            shown = name if name.isidentifier() or not name else "what is no name"
            raise ConfigError("store option", shown, allowed + "given as a pathlib.Path)", nearest=nearest(name, _READ))
        if name in found:
            raise ConfigError("store option", name, "each option once")
        try:
            found[name] = reads(unquote_plus(text))
        except (ValueError, KeyError):
            allowed = _ALLOWED[name] if mark else f"a value: {name}=…"
            raise ConfigError(name, "its value in the address", allowed) from None
    return found


_READ: dict[str, Callable[[str], Any]] = {
    "synchronous": str,
    "busy_seconds": float,
    "readonly": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
    "large_bytes": int,
}
"""How options are read that stand in an address."""

_ALLOWED = {
    "busy_seconds": "a number of seconds",
    "readonly": "true or false",
    "large_bytes": "a whole number of bytes",
}


def disk_options(given: Mapping[str, Any]) -> DiskOptions:
    """Return the options that were given. Raises ConfigError, naming it, for one that is unknown or not accepted."""
    values.known("option", given, DiskOptions.__struct_fields__)
    options = DiskOptions(**given)
    synchronous, seconds, large = options.synchronous, options.busy_seconds, options.large_bytes
    if not isinstance(synchronous, str) or synchronous.upper() not in ("FULL", "NORMAL"):
        raise ConfigError("synchronous", synchronous, "FULL or NORMAL")
    if not values.is_number(seconds) or not seconds >= 0:
        raise ConfigError("busy_seconds", seconds, "a number of seconds, 0 or more")
    values.switch("readonly", options.readonly)
    if not values.is_whole(large, 64):
        raise ConfigError("large_bytes", large, "a whole number of bytes, at least 64")
    return msgspec.structs.replace(options, synchronous=synchronous.upper())


def unknown_only(entries: Sequence[Entry], known: Mapping[str, Entry]) -> list[Entry]:
    """Return the entries that are not known yet. Raises Conflict for a known id with other content."""
    fresh: dict[str, Entry] = {}
    for entry in entries:
        before = known.get(entry.id) or fresh.get(entry.id)
        if before is None:
            fresh[entry.id] = entry
        elif not before.erased and not same(before, entry):
            raise Conflict(f"entry {entry.id}", "is there already with other content; a key or id is used once")
    return list(fresh.values())


def info(session: str, head: Head) -> SessionInfo:
    """The session as a listing shows it."""
    return SessionInfo(
        session=session,
        entries=head.entries,
        revision=head.revision,
        epoch=head.epoch,
        created=head.created,
        updated=head.updated,
        forked_from=head.forked_from,
    )


HARMLESS = ("synchronous", "busy_seconds", "readonly", "large_bytes")
"""Options whose values are no secrets: those of stores on a disk."""


def discreet_address(address: str) -> str:
    """The address as an error may show it: without user and password, and without values that may be credentials.

    Those are the values of all options but the harmless ones, under their own names or misspelt ones.
    """
    masked = re.sub(r"^([^:/@]*:/*)?.*@", lambda found: f"{found[1] or ''}…@", address, flags=re.DOTALL)
    bare, mark, query = masked.partition("?")
    return bare + mark + "&".join(map(_discreet_option, query.split("&")))


def _discreet_option(text: str) -> str:
    name, mark, _ = text.partition("=")
    if not mark:
        return text
    return text if nearest(name, HARMLESS, cutoff=0.85) else f"{name}=…"
