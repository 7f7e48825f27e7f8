"""`palimpsest doctor`: check that everything Palimpsest needs works here, and say what to do if not."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import click
from rich.text import Text

from palimpsest import ConfigError, PalimpsestError, StoreUnavailable, WrongKey
from palimpsest.cli.app import examples, json_option, store_options
from palimpsest.cli.opening import (
    all_entries,
    all_sessions,
    is_on_disk,
    open_memory,
    read_records,
    resolve,
    shown,
)
from palimpsest.cli.output import clean, console, counted, print_json
from palimpsest.errors import MissingExtra, StoreTooNew
from palimpsest.runtime.runner import drive
from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import model_names, table_source

PROBE = "palimpsest-doctor-probe"
PYTHON = (3, 11)
SQLITE = (3, 24, 0)
SAMPLE = "Palimpsest: naïve 記憶 🧠 of 1,234 entries"
VOCABULARIES = {  # SHA-256 of the packed file, tokens of the sample
    "o200k_base": ("237883613c799b57337f9bda254d004913ab133c879f4cd55cc4d5b66992a450", 20),
    "cl100k_base": ("f93a1dc1bc9057b7fde539f594216737bfd8ff0afc93326c685a5ce9cec68d29", 21),
}


class Check(NamedTuple):
    """The result of one check: whether all is well, what was seen, and what to do if not."""

    name: str
    well: bool
    seen: str
    advice: str = ""


@click.command("doctor", epilog=examples("palimpsest doctor", "palimpsest doctor --store sqlite:////var/lib/app/a.db"))
@json_option
@store_options
def doctor_command(store: str | None, tenant: str | None, as_json: bool) -> None:
    """Check that everything Palimpsest needs works here.

    Python, SQLite, the tokenizers' vocabularies and the store are checked. For each fault it says what to do. A session
    is written to the store, read and deleted again. A store file that does not exist is made. All sessions of the
    tenant are read. The exit status is 1 if anything is wrong.
    """
    checks = []
    for check in _checks(store, tenant):
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json([check._asdict() for check in checks])
    if not all(check.well for check in checks):
        click.get_current_context().exit(1)


def _print(check: Check) -> None:
    mark = Text("ok   " if check.well else "FAIL ", "green" if check.well else "bold red")
    screen = console()
    screen.print(mark + Text(f"{check.name:<13} ", "") + Text(clean(check.seen), "dim"))
    if check.advice:
        screen.print(Text(f"     {'':<13} {clean(check.advice)}", "yellow"))


def _checks(store: str | None, tenant: str | None) -> Iterator[Check]:
    yield _python()
    yield _sqlite()
    for name in VOCABULARIES:
        yield _vocabulary(name)
    yield _models()
    resolved = resolve(store, tenant)[0]
    where = shown(resolved)
    suspects = (
        "its folder, its permissions, the disk"
        if _is_on_disk(resolved)
        else "the server, its user and password, the network"
    )
    unavailable = f"Check {where}: {suspects}."
    settings = f"Check {where} and its settings."
    damaged = f"Keep a copy of {where}, then do what the message says, or restore a backup."
    yield _guarded("store", lambda: _store(store, tenant), unavailable, unavailable)
    yield _guarded("durability", lambda: _durability(store, tenant), unavailable, settings)
    yield _guarded("sessions", lambda: _sessions(store, tenant), unavailable, damaged)


def _is_on_disk(where: str | Path) -> bool:
    try:
        return is_on_disk(where)
    except ConfigError:
        return False


def _guarded(name: str, look: Callable[[], str], unavailable: str, advice: str) -> Check:
    """Return a check with what `look` returns, or with its error and what to do about it.

    `unavailable` is the advice when the store cannot be reached, and `advice` that for all errors without their own.
    """
    try:
        return Check(name, True, look())
    except (ConfigError, MissingExtra) as fault:
        return Check(name, False, str(fault), "Check --store, PALIMPSEST_STORE and PALIMPSEST_KEY.")
    except WrongKey as fault:
        return Check(name, False, str(fault), "Set PALIMPSEST_KEY to the keys of the store.")
    except StoreTooNew as fault:
        return Check(name, False, str(fault), "Install the version of Palimpsest that wrote the store, or a newer one.")
    except StoreUnavailable as fault:
        return Check(name, False, str(fault), unavailable)
    except PalimpsestError as fault:
        return Check(name, False, str(fault), advice)


def _python() -> Check:
    seen = ".".join(map(str, sys.version_info[:3]))
    well = sys.version_info[:2] >= PYTHON
    return Check("python", well, seen, "" if well else "Palimpsest needs Python 3.11 or newer.")


def _sqlite() -> Check:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < SQLITE:
        return Check("sqlite", False, version, "SQLite 3.24 or newer is needed: install a newer Python.")
    if sqlite3.threadsafety < 3:
        advice = "This SQLite was built without serialized threading: use one Memory per thread."
        return Check("sqlite", False, f"{version}, thread safety {sqlite3.threadsafety}", advice)
    return Check("sqlite", True, f"{version}, serialized")


def _vocabulary(name: str) -> Check:
    advice = "A file of the package is damaged or missing: pip install --force-reinstall palimpsest-memory"
    checksum, sample_tokens = VOCABULARIES[name]
    try:
        found = sha256((files("palimpsest.tokens") / "data" / f"{name}.bin").read_bytes()).hexdigest()
        if found != checksum:
            return Check(name, False, f"the checksum is {found[:12]}…, not {checksum[:12]}…", advice)
        began = time.perf_counter()
        tokens = encoding(name).count(SAMPLE)
    except (OSError, ImportError, ValueError, TypeError, AttributeError) as fault:
        return Check(name, False, f"{type(fault).__name__}: {fault}", advice)
    if tokens != sample_tokens:
        return Check(name, False, f"a sample text was counted as {tokens} tokens, not {sample_tokens}", advice)
    return Check(name, True, f"checksum right, loaded in {time.perf_counter() - began:.2f} s, counts right")


def _models() -> Check:
    return Check("models", True, f"{len(model_names())} in the table of {table_source().rpartition(' ')[2]}")


def _store(store: str | None, tenant: str | None) -> str:
    """Write, read and delete a session made for this."""
    resolved, owner = resolve(store, tenant)
    where, began = shown(resolved), time.perf_counter()
    with open_memory(store, tenant, create=True) as memory:
        name = f"{PROBE}-{time.time_ns()}"
        try:
            chat = memory.session(name)
            chat.add_user_message("probe")
            texts = [entry.text for entry in chat.entries()]
        finally:
            memory.delete_session(name)
    if texts != ["probe"]:
        raise PalimpsestError(f"{where} returned {texts!r} where 'probe' was written")
    return f"{where} (tenant {owner}): wrote, read and deleted in {(time.perf_counter() - began) * 1000:.0f} ms"


def _durability(store: str | None, tenant: str | None) -> str:
    """Return what a crash of the machine or the server can lose."""
    with open_memory(store, tenant, create=True) as memory:
        return memory.durability()


def _sessions(store: str | None, tenant: str | None) -> str:
    """Read every entry and every record of every session of the tenant."""
    sessions, entries, damaged = 0, 0, list[str]()
    with open_memory(store, tenant, create=True) as memory:
        for info in all_sessions(memory):
            sessions += 1
            if info.damaged:
                damaged.append(info.session)
                continue
            chat = memory.session(info.session, readonly=True)
            for entry in all_entries(chat, rewound=True):
                entries += 1
                if entry.damaged:
                    where = f"entry {entry.seq} of session {info.session!r}"
                    raise PalimpsestError(f"{where} is damaged and set aside: `palimpsest repair` removes it")
            read_records(chat, info.revision)
        unread = drive(memory.store.unread(memory.tenant))
    if unread:
        raise PalimpsestError(f"{'; '.join(unread)}. The other sessions are not affected")
    if damaged:
        fault = f"the head of session {', '.join(map(repr, damaged))} is damaged"
        raise PalimpsestError(f"{fault}: restore a backup, or destroy the session with `palimpsest delete`")
    return f"{counted(entries, 'entry')} of {counted(sessions, 'session')} can be read"
