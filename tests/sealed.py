"""Helpers for tests of encryption: keys, opening, reading stored bytes, and a session with a marker in every field."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import vaults
from palimpsest import Entry, Image, Keys, Memory, Session, Text
from palimpsest.log.entry import Native, now_us
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Place, Range, Row
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.encrypted.backend import SealedBackend
from palimpsest.stores.opening import open_store, unlocked
from talks import as_it_is
from writer import quarters

OLD, NEW, OTHER = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
FIRST = Keys({"old": OLD})
RING = Keys({"old": OLD, "new": NEW})
BOTH = Keys({"new": NEW, "old": OLD})
LAST = Keys({"new": NEW})
KEY = SessionKey("default", "one")

KINDS = ("sqlite", "file")
MARKER = "sesame"


def address(kind: str, folder: Path) -> str:
    """Return the address of a store of this kind in a folder."""
    return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/a.db", "file": f"file://{folder}/logs"}[kind]


def opened(where: str, keys: Encryption | None, clock: Callable[[], int] = now_us, **options: Any) -> Store:
    """Open the store at this address with these keys."""
    runner = Inline()
    if where != "memory://":
        options = {**relaxed(where), **options}
    store = open_store(where, runner, clock=clock, **options)
    return drive(unlocked(store, keys, clock))


def bytes_of(folder: Path) -> bytes:
    """Return the names and all bytes of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"\n".join(str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)


def everything(memory: Memory) -> dict[str, Any]:
    """Return all data of a memory's tenant: the exports of its sessions, and the items of the namespace `notes`."""
    exports: dict[str, Any] = {info.session: memory.session(info.session).export() for info in memory.sessions()}
    return exports | {"items": drive(memory.store.list_items(memory.tenant, "notes"))}


def below(store: Store) -> Backend:
    """Return the backend below the encryption, which sees only encrypted values."""
    assert isinstance(store.backend, SealedBackend)
    return store.backend.below


def rows_of(store: Store, session: str = KEY.session) -> list[Row]:
    """Return the stored rows of the entries of a session and of its branches, in the order of their entries."""
    place = Place(KEY.tenant, session, "log", "")
    (seen,) = drive(below(store).look([Ask(place, [Range("entry", [(0, LAST_KEY)])], head=False)]))
    return sorted((Row(*row) for row in seen.rows[0]), key=lambda row: row.key & 0xFFFFFFFF)


def stored(store: Store, session: str = KEY.session) -> list[bytes]:
    """Return the stored values of the entries of a session and of its branches."""
    return [row.value for row in rows_of(store, session)]


def relaxed(where: str) -> dict[str, Any]:
    """Return options that keep writes from waiting for the disk. Only embedded stores have them."""
    return {"synchronous": "NORMAL"} if where.startswith(("sqlite", "file")) else {}


def key_ids(where: str, keys: Encryption) -> set[str]:
    """Return the ids of all keys with which heads, entries, records or items of any tenant are encrypted."""
    store = opened(where, keys)
    ids = vaults.key_ids_below(below(store))
    drive(store.close())
    return ids


def markers() -> Iterator[str]:
    """Return distinct words that all contain the marker."""
    return (f"{MARKER}{number:02d}x" for number in itertools.count())


def play(memory: Memory) -> list[str]:
    """Write a marker into every field that takes text; return the markers, all of which are in the store afterwards."""
    words = markers()
    used: list[str] = []

    def word() -> str:
        used.append(next(words))
        return used[-1]

    topics = [word() for _ in range(3)]

    def summarizer(prompt: str) -> str:
        about, fact, decision = topics
        return f"It was about {about}.\n\n## Facts\n- {fact} is open [1]\n\n## Decisions\n- take {decision} [2]\n"

    options: dict[str, Any] = {"counter": quarters, "summarizer": as_it_is(summarizer)}
    session = memory.session(KEY.session, max_tokens=100_000, **options)
    before = [f"{number} " + "many words that are to be summarised " * 8 for number in range(6)]
    for text in before:
        session.add_user_message(text)
        session.add_assistant_message(text)
    session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})
    session.add_user_message(word(), metadata={word(): word()})
    session.add_context(word(), name=word())
    native = Native(format="openai", keep={word(): word()})
    parts = (Text(text=word(), extra={word(): 1}), Image(source=f"data:,{word()}"))
    session.add_entries(
        [Entry(content=parts, native=native, name=word()), Entry(role="assistant", content=word() * 8_000)]
    )
    session.add_tool_call(word(), {word(): word()}, call_id=word())
    session.add_tool_result(None, word(), call_id=used[-2])
    session.add_tool_call(word(), {}, call_id=word())  # a call without a result, which the head names
    session.context()
    session.erase([session.add_user_message("gone").id], reason=word())
    memory.session(
        KEY.session,
        conditions=[f"not contains(message.content, '{word()}')"],
        max_tokens=2_000,
        view="small",
        **options,
    ).context()
    session.fork("branch").add_user_message(word())
    drive(memory.store.put_item(memory.tenant, "notes", word(), word().encode()))
    return used


def session_of(memory: Memory, name: str = KEY.session) -> Session:
    """Return the session that the tests of encryption write to."""
    return memory.session(name, counter=quarters)
