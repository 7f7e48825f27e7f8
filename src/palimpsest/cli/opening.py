"""Helpers of the commands: open the store that the options name, look up sessions and entries, iterate over them."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from palimpsest import ConfigError, Entry, EntryNotFound, Keys, Memory, PalimpsestError, Session, SessionNotFound
from palimpsest.cli.app import DEFAULT_STORE
from palimpsest.cli.failing import InputRefused, Missing, OperationFailed, Unavailable
from palimpsest.cli.privacy import redactor
from palimpsest.errors import StoreCorrupt, StoreUnavailable
from palimpsest.stores import file, sqlite
from palimpsest.stores.encrypted.keys import ENVIRONMENT as KEYS
from palimpsest.stores.opening import read_address, refuse_mistyped
from palimpsest.stores.options import discreet_address, disk_options
from palimpsest.types import SessionInfo

CANDIDATES = 10
"""How many ids an error lists when several begin with the given text."""
COMPLETED, LOOKED_AT = 200, 1000
"""How many sessions are offered for shell completion, and how many sessions or records are read at once."""
_RANGE = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")
_PLAIN = re.compile(r"\w[\w.:@/+=%,-]*")


def resolve(store: str | None, tenant: str | None) -> tuple[str | Path, str]:
    """Return store and tenant: from the command's own options, else the root's, the environment, or the defaults.

    Raises ConfigError for an empty address, or one that lacks its colon.
    """
    root = click.get_current_context().find_root().obj or (None, None)
    if "" in (store, root[0]):
        raise ConfigError("store", "", "an address or a path; without --store, PALIMPSEST_STORE or the default is used")
    where = store or root[0] or os.environ.get("PALIMPSEST_STORE") or DEFAULT_STORE
    refuse_mistyped(where)
    owner = root[1] if tenant is None else tenant  # an empty one is refused when the memory is opened
    return (where if ":" in where else Path(where)), ("default" if owner is None else owner)


def open_memory(
    store: str | None, tenant: str | None, *, create: bool = False, write: bool = False, **options: Any
) -> Memory:
    """Open the memory at the store, with the keys of PALIMPSEST_KEY and the privacy policy, where these are given.

    A file or folder that does not exist is made only with `create`; otherwise Unavailable is raised. Without `create`
    and `write`, a file is opened read-only.
    """
    where, owner = resolve(store, tenant)
    options["encryption"] = Keys.from_env() if KEYS in os.environ else None
    options["privacy"] = redactor()
    if is_on_disk(where) and not create:
        _expect_file(where)
        named = "encryption", "privacy", "embedder"
        reading = Memory.open(
            where, tenant=owner, readonly=True, **{name: options[name] for name in named if name in options}
        )
        if not write:
            return reading
        reading.close()  # opened read-only first: that fails, without changing the file, where it is no store
    return Memory.open(where, tenant=owner, **options)


def open_to_note(store: str | None, tenant: str | None, **options: Any) -> Memory:
    """Open the memory for a command that only reads: for writing if possible, otherwise read-only.

    Opened for writing, what the command computes on its way, such as an index or token counts, is kept. SQLite opens a
    file that may only be read for writing, too, and refuses the first write: so the file itself is asked first.
    """
    where, _ = resolve(store, tenant)
    if is_on_disk(where) and not os.access(_path_of(where), os.W_OK):
        return open_memory(store, tenant, **options)
    try:
        return open_memory(store, tenant, write=True, **options)
    except StoreUnavailable:  # such as a file in a folder that this user may only read
        return open_memory(store, tenant, **options)


def is_on_disk(where: str | Path) -> bool:
    """Whether a store is a file or a folder."""
    return isinstance(where, Path) or read_address(where)[1].startswith(("sqlite:", "file:"))


def expect_store(where: str | Path, advice: str = "or name another store with --store") -> None:
    """Raise Unavailable, with `advice`, if the store is a file or folder that does not exist."""
    if is_on_disk(where):
        _expect_file(where, advice)


def shown(where: str | Path) -> str:
    """Return the store's address, without user and password, or its path: as it may be printed."""
    return discreet_address(where) if isinstance(where, str) else str(where)


def _expect_file(where: str | Path, advice: str = "or name another store with --store") -> None:
    """Raise Unavailable if the file or folder does not exist or is out of reach, and ConfigError for a bad address."""
    path = _path_of(where)
    try:
        os.stat(path)
    except PermissionError as fault:  # of a folder on the way there
        raise Unavailable(f"{shown(where)}: {fault.strerror}") from fault
    except (OSError, ValueError) as fault:  # ValueError: a name that no file can have, such as one with a null byte
        missing = f"there is no store {shown(where)!r} yet: create it with `palimpsest import`, {advice}"
        raise Unavailable(missing) from fault


def _path_of(where: str | Path) -> str:
    """Return the path of a store on disk, as opening it resolves it: `~` is the user's home folder.

    Raises ConfigError for a bad address, or bad options in it.
    """
    if isinstance(where, Path):
        return os.path.expanduser(where)
    _, url, options = read_address(where)
    disk_options(options)
    return sqlite.path_of(url) if url.startswith("sqlite:") else file.path_of(url)


def require(memory: Memory, session: str, *, whole: bool = False) -> SessionInfo:
    """Return the session with this id, or else the only one whose id begins with it, as `Memory.sessions` lists it.

    With `whole` only a complete id counts. Commands that destroy without asking need that: the same abbreviation could
    mean another session in a second run. Raises Missing, with the nearest id, if there is no such session, and
    InputRefused if several begin with the text.
    """
    try:
        return memory.info(session)
    except StoreCorrupt:
        listed = memory.sessions(prefix=session, limit=1)
        if listed and listed[0].session == session and listed[0].damaged:
            return listed[0]
        raise
    except SessionNotFound as missing:
        candidates = memory.sessions(prefix=session, limit=CANDIDATES + 1)
        if len(candidates) == 1 and not whole:
            return candidates[0]
        raise _not_found(memory, session, [info.session for info in candidates]) from missing


def _not_found(memory: Memory, session: str, candidates: list[str]) -> OperationFailed:
    """Return the error for a session that is not found; `candidates` are the ids that begin with the given text."""
    if len(candidates) > 1:
        more = ", …" if len(candidates) > CANDIDATES else ""
        names = ", ".join(map(repr, candidates[:CANDIDATES])) + more
        text = f"the ids of several sessions of tenant {memory.tenant!r} begin with {session!r}: {names}"
        return InputRefused(text, kind="SeveralSessions", suggestions=candidates[:CANDIDATES])
    near = candidates or get_close_matches(session, [info.session for info in memory.sessions(limit=LOOKED_AT)], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; `palimpsest sessions` lists all sessions"
    text = f"there is no session {session!r} of tenant {memory.tenant!r} in this store{hint}"
    return Missing(text, kind="SessionNotFound", suggestions=near)


def all_sessions(memory: Memory) -> Iterator[SessionInfo]:
    """Yield all sessions of the tenant, by id."""
    after = ""
    while True:
        page = memory.sessions(after=after, limit=LOOKED_AT)
        yield from page
        if page.next is None:
            return
        after = page.next


def all_entries(chat: Session, *, after: int = 0, at: int | None = None, rewound: bool = False) -> Iterator[Entry]:
    """Yield all entries that `Session.entries` returns, reading 512 at a time."""
    while batch := chat.entries(after=after, limit=512, at=at, rewound=rewound):
        yield from batch
        after = batch[-1].seq


def read_records(chat: Session, revision: int) -> None:
    """Read the record of each revision up to this one, to see that it can be read. Raises StoreCorrupt."""
    for after in range(0, revision, LOOKED_AT):
        chat.history(after=after, before=after + LOOKED_AT + 1)


def session_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument SESSION."""
    return click.argument("session", metavar="SESSION", shell_complete=session_ids)(function)


def entries_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument ENTRY..."""
    return click.argument("entries", metavar="ENTRY...", nargs=-1, required=True)(function)


def named_entry(chat: Session, name: str) -> Entry:
    """Return the entry of a session with this number, as `show` prints it, or this id.

    Raises Missing, with a hint at the commands that print both, if there is none.
    """
    try:
        return chat.entry(name)
    except EntryNotFound as missing:
        hint = "give a number that `palimpsest show` prints, or an id that `palimpsest show --json` prints"
        # The library's message leaves out what is private in the name. Its hint at `entries()` is for Python programs.
        reason = str(missing).rpartition("; `entries()`")[0]
        raise Missing(f"{reason}; {hint}", kind="EntryNotFound") from missing


def named_entries(chat: Session, names: Sequence[str]) -> list[Entry]:
    """Return the named entries of a session, each once, in the order of the log.

    A name is a number, a range of numbers such as 3-5, or an id. Raises Missing if there is no such entry, and a usage
    error for a range whose first number is the larger one.
    """
    found: dict[int, Entry] = {}
    for name in names:
        ends = _RANGE.fullmatch(name)
        if ends is None:
            entry = named_entry(chat, name)
            found[entry.seq] = entry
            continue
        first, last = int(ends[1]), int(ends[2])
        if first > last:
            raise click.UsageError(f"{name}: a range needs the smaller number first, as in 3-5")
        named_entry(chat, ends[2])  # raises Missing if the log is shorter
        for entry in all_entries(chat, after=max(first - 1, 0)):
            if entry.seq > last:
                break
            found[entry.seq] = entry
    return [found[seq] for seq in sorted(found)]


def session_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the session ids that complete `incomplete`, for shell completion; an empty list on any error.

    The store is opened read-only. Ids with characters that mean something to a shell are left out, as an id may have
    been chosen by somebody else.
    """
    root = ctx.find_root().params
    store, tenant = (ctx.params.get(name) or root.get(name) for name in ("store", "tenant"))
    try:
        with warnings.catch_warnings(action="ignore"), ctx.scope(cleanup=False), open_memory(store, tenant) as memory:
            found = memory.sessions(prefix=incomplete, limit=COMPLETED)
    except (PalimpsestError, click.ClickException, OSError):
        return []
    return [info.session for info in found if _PLAIN.fullmatch(info.session)]
