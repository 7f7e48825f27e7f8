"""Opening the store that the options name, looking a session up in it, and going through all that is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from palimpsest import Entry, Keys, Memory, Session, SessionInfo, SessionNotFound
from palimpsest.cli.app import DEFAULT_STORE, Missing, Unavailable
from palimpsest.cli.privacy import redactor
from palimpsest.stores import file, sqlite
from palimpsest.stores.common import discreet_address, disk_options
from palimpsest.stores.encrypted.keys import ENVIRONMENT as KEYS
from palimpsest.stores.opening import read_address


def resolve(store: str | None, tenant: str | None) -> tuple[str | Path, str]:
    """Return store and tenant: the command's own options, else the root's, else the environment's, else defaults."""
    root = click.get_current_context().find_root().obj or (None, None)
    where = store or root[0] or os.environ.get("PALIMPSEST_STORE") or DEFAULT_STORE
    return (where if ":" in where else Path(where)), (tenant or root[1] or "default")


def open_memory(
    store: str | None, tenant: str | None, *, create: bool = False, write: bool = False, **options: Any
) -> Memory:
    """Open the memory, with the keys that the environment names and the privacy policy asked for, where they are.

    Only with `create` does a file come into being that was not there before.
    """
    where, owner = resolve(store, tenant)
    options["encryption"] = Keys.from_env() if KEYS in os.environ else None
    options["privacy"] = redactor()
    is_file = isinstance(where, Path) or where.startswith(("sqlite:", "file:"))
    if is_file and not create:
        _expect_file(where)
        looked = Memory.open(
            where, tenant=owner, readonly=True, **{name: options[name] for name in ("encryption", "privacy")}
        )
        if not write:
            return looked
        looked.close()
    return Memory.open(where, tenant=owner, **options)


def _expect_file(where: str | Path) -> None:
    """Raise Unavailable where there is no such file or folder, ConfigError for an address that could name none."""
    path = where if isinstance(where, Path) else _path_of(where)
    shown = discreet_address(where) if isinstance(where, str) else str(where)
    if not os.path.exists(path):  # which is False, too, for what no file can be called
        raise Unavailable(f"there is no store {shown!r} yet: `palimpsest import` makes it; --store names another")


def _path_of(address: str) -> str:
    """What an address of a store on a disk names. Raises ConfigError where it, or an option in it, is not accepted."""
    _, url, options = read_address(address)
    disk_options(options)
    return sqlite.path_of(url) if url.startswith("sqlite:") else file.path_of(url)


def require(memory: Memory, session: str) -> SessionInfo:
    """Return the session as a listing shows it. Raises Missing, with the nearest id, where there is none."""
    try:
        return memory.info(session)
    except SessionNotFound as missing:
        near = get_close_matches(session, [info.session for info in memory.sessions()], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `palimpsest sessions` lists those that there are"
        text = f"there is no session {session!r} of tenant {memory.tenant!r} in this store{hint}"
        raise Missing(text) from missing


def all_sessions(memory: Memory) -> Iterator[SessionInfo]:
    """Yield all sessions of the tenant, by id."""
    after = ""
    while page := memory.sessions(after=after):
        yield from page
        after = page[-1].session


def all_entries(chat: Session, *, after: int = 0, at: int | None = None, rewound: bool = False) -> Iterator[Entry]:
    """Yield all entries that `entries` returns, some at a time."""
    while batch := chat.entries(after=after, limit=512, at=at, rewound=rewound):
        yield from batch
        after = batch[-1].seq


def session_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument SESSION."""
    return click.argument("session", metavar="SESSION")(function)
