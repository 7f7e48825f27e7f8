"""Opening the store that the options name, looking a session up in it, and going through all that is there."""

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
"""Ids that are named where several begin alike."""
COMPLETED, LOOKED_AT = 200, 1000
"""Sessions that are offered to a shell, and those that are read at once."""
_RANGE = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")
_PLAIN = re.compile(r"\w[\w.:@/+=%,-]*")


def resolve(store: str | None, tenant: str | None) -> tuple[str | Path, str]:
    """Return store and tenant: the command's own options, else the root's, else the environment's, else defaults.

    Raises ConfigError for an address that has lost its colon, or is empty.
    """
    root = click.get_current_context().find_root().obj or (None, None)
    if "" in (store, root[0]):
        raise ConfigError("store", "", "an address or a path; without --store it is PALIMPSEST_STORE's, or the default")
    where = store or root[0] or os.environ.get("PALIMPSEST_STORE") or DEFAULT_STORE
    refuse_mistyped(where)
    owner = root[1] if tenant is None else tenant  # an empty one is refused by whoever opens
    return (where if ":" in where else Path(where)), ("default" if owner is None else owner)


def open_memory(
    store: str | None, tenant: str | None, *, create: bool = False, write: bool = False, **options: Any
) -> Memory:
    """Open the memory, with the keys that the environment names and the privacy policy asked for, where they are.

    Only with `create` does a file come into being that was not there before.
    """
    where, owner = resolve(store, tenant)
    options["encryption"] = Keys.from_env() if KEYS in os.environ else None
    options["privacy"] = redactor()
    if is_on_disk(where) and not create:
        _expect_file(where)
        named = "encryption", "privacy", "embedder"
        looked = Memory.open(
            where, tenant=owner, readonly=True, **{name: options[name] for name in named if name in options}
        )
        if not write:
            return looked
        looked.close()
    return Memory.open(where, tenant=owner, **options)


def open_to_note(store: str | None, tenant: str | None, **options: Any) -> Memory:
    """Open the memory for what only reads, to write where that may be: so what it makes on its way, such as an index
    or counts, is kept."""
    try:
        return open_memory(store, tenant, write=True, **options)
    except StoreUnavailable:  # such as a file that others may write
        return open_memory(store, tenant, **options)


def is_on_disk(where: str | Path) -> bool:
    """Whether a store is a file or a folder."""
    return isinstance(where, Path) or read_address(where)[1].startswith(("sqlite:", "file:"))


def expect_store(where: str | Path, advice: str = "--store names another") -> None:
    """Raise Unavailable, with advice, where a store is a file or a folder that is not there."""
    if is_on_disk(where):
        _expect_file(where, advice)


def shown(where: str | Path) -> str:
    """A store as it may be printed: its address without a user and a password."""
    return discreet_address(where) if isinstance(where, str) else str(where)


def _expect_file(where: str | Path, advice: str = "--store names another") -> None:
    """Raise Unavailable where there is no such file or folder, ConfigError for an address that could name none."""
    path = where if isinstance(where, Path) else _path_of(where)
    if not os.path.exists(path):  # which is False, too, for what no file can be called
        raise Unavailable(f"there is no store {shown(where)!r} yet: `palimpsest import` makes it; {advice}")


def _path_of(address: str) -> str:
    """What an address of a store on a disk names. Raises ConfigError where it, or an option in it, is not accepted."""
    _, url, options = read_address(address)
    disk_options(options)
    return sqlite.path_of(url) if url.startswith("sqlite:") else file.path_of(url)


def require(memory: Memory, session: str, *, whole: bool = False) -> SessionInfo:
    """Return the session of this id, or else the only one whose id begins so, as a listing shows it.

    `whole` is for what destroys without asking: there an id is not to be cut short, for a second run would mean another
    session. Raises Missing, with the nearest id, where there is none, and InputRefused where several begin so.
    """
    try:
        return memory.info(session)
    except StoreCorrupt:
        listed = memory.sessions(prefix=session, limit=1)
        if listed and listed[0].session == session and listed[0].damaged:
            return listed[0]
        raise
    except SessionNotFound as missing:
        begun = memory.sessions(prefix=session, limit=CANDIDATES + 1)
        if len(begun) == 1 and not whole:
            return begun[0]
        raise _not_found(memory, session, [info.session for info in begun]) from missing


def _not_found(memory: Memory, session: str, begun: list[str]) -> OperationFailed:
    if len(begun) > 1:
        more = ", …" if len(begun) > CANDIDATES else ""
        names = ", ".join(map(repr, begun[:CANDIDATES])) + more
        text = f"several sessions of tenant {memory.tenant!r} begin with {session!r}: {names}"
        return InputRefused(text, kind="SeveralSessions", suggestions=begun[:CANDIDATES])
    near = begun or get_close_matches(session, [info.session for info in memory.sessions(limit=LOOKED_AT)], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; `palimpsest sessions` lists those that there are"
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
    """Yield all entries that `entries` returns, some at a time."""
    while batch := chat.entries(after=after, limit=512, at=at, rewound=rewound):
        yield from batch
        after = batch[-1].seq


def read_records(chat: Session, revision: int) -> None:
    """Read what is kept of each revision up to this one, some at a time. Raises StoreCorrupt."""
    for after in range(0, revision, LOOKED_AT):
        chat.history(after=after, before=after + LOOKED_AT + 1)


def session_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument SESSION."""
    return click.argument("session", metavar="SESSION", shell_complete=session_ids)(function)


def entries_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument ENTRY..."""
    return click.argument("entries", metavar="ENTRY...", nargs=-1, required=True)(function)


def named_entry(chat: Session, name: str) -> Entry:
    """Return the entry of a session that is named: by the number that `show` prints, or by id.

    Raises Missing where there is none, in the words of the command line.
    """
    try:
        return chat.entry(name)
    except EntryNotFound as missing:
        hint = "give a number that `palimpsest show` prints, or an id that `palimpsest show --json` prints"
        told = str(missing).rpartition("; `entries()`")[0]  # without what is private, which the name may be
        raise Missing(f"{told}; {hint}", kind="EntryNotFound") from missing


def named_entries(chat: Session, names: Sequence[str]) -> list[Entry]:
    """Return the entries of a session that are named: by number, as a range of numbers, or by id; each once, in order.

    Raises Missing where there is none of that name, a usage error for a range that is none.
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
            raise click.UsageError(f"{name}: the first number is the larger one")
        named_entry(chat, ends[2])  # raises where there is none
        for entry in all_entries(chat, after=max(first - 1, 0)):
            if entry.seq > last:
                break
            found[entry.seq] = entry
    return [found[seq] for seq in sorted(found)]


def session_ids(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return ids of sessions that begin so, for a shell that completes them; none where anything is in the way.

    The store is opened to read. An id that a shell would not take as it stands is left out: somebody else may have
    chosen it.
    """
    root = ctx.find_root().params
    store, tenant = (ctx.params.get(name) or root.get(name) for name in ("store", "tenant"))
    try:
        with warnings.catch_warnings(action="ignore"), ctx.scope(cleanup=False), open_memory(store, tenant) as memory:
            found = memory.sessions(prefix=begun, limit=COMPLETED)
    except (PalimpsestError, click.ClickException, OSError):
        return []
    return [info.session for info in found if _PLAIN.fullmatch(info.session)]
