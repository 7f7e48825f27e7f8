"""Opening a store by its address, and with the keys that it is sealed under. No backend imports this."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from palimpsest.errors import ConfigError, nearest
from palimpsest.log.checks import is_path
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Runner
from palimpsest.stores import MARK, STORES, Store
from palimpsest.stores.backend import Backend
from palimpsest.stores.options import discreet_address, has_options, options_in

if TYPE_CHECKING:
    from pathlib import Path

    from palimpsest.stores.circuit_breaker import CircuitBreaker
    from palimpsest.stores.encrypted import Encryption
    from palimpsest.stores.encrypted.keys import Keys


GivenBreaker: TypeAlias = "CircuitBreaker | Mapping[str, Any] | bool | None"
"""A circuit breaker as it is given: True is one with its defaults."""


class Opener(Protocol):
    """Opens a backend by its address; options are the backend's own."""

    def __call__(self, url: str, runner: Runner, **options: Any) -> Backend: ...


def open_store(
    where: str | Path,
    runner: Runner,
    clock: Callable[[], int] = now_us,
    circuit_breaker: GivenBreaker = None,
    **options: Any,
) -> Store:
    """Open the store that `where` names.

    A path is an SQLite file: `agent.db`, `~/agent.db`, or a `pathlib.Path`. What begins with a kind and a colon is an
    address: `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:relative/folder`, `file:///absolute/folder`,
    `memory://` (and `:memory:`). Options of an address may follow a question mark, as in `sqlite:///a.db?synchronous=NORMAL`.
    Raises ConfigError for an address of an unknown kind or an option that the backend does not know, StoreUnavailable
    or StoreCorrupt where it cannot be opened. One with an asynchronous driver is bridged, where the runner has no loop.
    """
    breaking = _breaking(circuit_breaker, clock) if circuit_breaker else None
    opener, url, given = read_address(where)
    backend = opener(url, runner, **{**given, **options})
    if breaking is not None:
        backend = breaking(backend)
    if not (backend.blocking or runner.suspends):
        from palimpsest.stores.bridged import BridgedBackend  # asyncio: only for a driver that needs it

        backend = BridgedBackend(backend, runner)
    return Store(backend, clock)


def _breaking(given: GivenBreaker, clock: Callable[[], int]) -> Callable[[Backend], Backend] | None:
    from palimpsest.stores.circuit_breaker import BreakingBackend, CircuitBreaker  # only for who has one

    chosen = CircuitBreaker.of(given)
    return None if chosen is None else lambda backend: BreakingBackend(backend, chosen, clock)


def read_address(where: str | Path) -> tuple[Opener, str, dict[str, Any]]:
    """Return what opens the store that `where` names, the address without its options, and the options in it.

    What is given beside the address holds before these. An opener of somebody else's, or of a store on a server, gets
    the address as it is, which holds a driver's own options, too. Raises ConfigError, naming it, for an address of an
    unknown kind, or an option in it that is unknown or cannot be read.
    """
    is_path_object = isinstance(where, os.PathLike)  # which names a file, whatever is in it
    address = os.fspath(where) if isinstance(where, os.PathLike) else where
    shown = discreet_address(address) if isinstance(address, str) else where
    if not isinstance(address, str) or not address.strip() or address in STORES.built_in:
        raise ConfigError("store", shown, _ALLOWED)
    if len(address) > LONGEST or not is_path(address):
        allowed = f"an address of at most {LONGEST} characters, without NUL, that the file system can name"
        raise ConfigError("store", shown, allowed)
    if address == IN_MEMORY:
        return STORES.find("memory"), "memory://", {}
    if not is_path_object:
        refuse_mistyped(address)
    if is_path_object or not _SCHEME.match(address):
        return STORES.find("sqlite"), f"sqlite:///{_file_at(address, typed=not is_path_object)}", {}
    opener: Opener = STORES.find(address.partition(":")[0], shown)
    url, mark, query = address.partition("?")
    if not mark or not opener.__module__.startswith(_HERE):
        return opener, address, {}
    return opener, url, options_in(query)


def check_address(where: str) -> None:
    """Raise ConfigError, naming it, for an address that the store which it names would not take: nothing is opened, and
    no driver is needed. Of a kind that is somebody else's only its name is looked at."""
    opener, url, options = read_address(where)
    if opener.__module__.startswith("palimpsest.stores."):
        import_module(opener.__module__).accepted(url, **options)


def has_our_options(where: object) -> bool:
    """Whether a store of ours is meant, by a path or by the kind of its address: nothing is opened or loaded."""
    if isinstance(where, os.PathLike):
        return True
    kind = _SCHEME.match(where) if isinstance(where, str) else None
    return isinstance(where, str) and (kind is None or STORES.is_built_in(kind[0][:-1]))


def _file_at(path: str, *, typed: bool) -> str:
    """The path of an SQLite file. Raises ConfigError for a folder, and for a text that was meant for an address."""
    shown = discreet_address(path)
    if typed and "@" in path:  # an address, with a password, that lost its kind
        raise ConfigError("store", shown, "a pathlib.Path, for a file with an @ in its name, or an address")
    if typed and has_options(path):  # they would end up in the name of the file
        told = "options behind an address, as in sqlite:///agent.db?synchronous=NORMAL, or as arguments"
        raise ConfigError("store", shown, f"{told}; a pathlib.Path, for a file with a question mark in its name")
    path, given = os.path.expanduser(path), path
    if path.endswith("/") or os.path.isdir(path):
        raise ConfigError("store", shown, f"the path of an SQLite file, or file:{given} for a folder of files")
    return path


def refuse_mistyped(address: str) -> None:
    """Raise ConfigError, with what was meant, for an address of a known kind that has lost the colon behind that."""
    before, slashes, behind = address.partition("//")
    name = before[:-1] if before.endswith((";", ".", ",")) else before
    is_name = name[:1].isalpha() and name.isascii() and name.replace("+", "a").isalnum()
    kind = nearest(name.lower(), STORES.built_in, cutoff=MISSPELT) if slashes and is_name else None
    if kind is None:
        return
    meant = discreet_address(_FORMS.get(kind, f"{kind}://{{}}").format(behind.lstrip("/")))
    told = f"{_ALLOWED}; ./{discreet_address(address)} for a file in a folder of that name"
    raise ConfigError("store", discreet_address(address), told, nearest=meant)


MISSPELT = 0.9
"""How close a name of a kind has to be to one that there is: one letter too many or too few."""

LONGEST = 4096
"""Characters of an address: no system takes longer paths."""

IN_MEMORY = ":memory:"
"""What SQLite calls a database that is nowhere on a disk."""

_HERE = ("palimpsest.stores.file", "palimpsest.stores.memory", "palimpsest.stores.sqlite")
"""Where stores of this machine are opened, whose options are read here."""

_FORMS = {"sqlite": "sqlite:///{}", "file": "file:{}"}
"""How addresses are spelt of which what follows is a path."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ALLOWED = "a path such as agent.db, or an address such as sqlite:///agent.db or memory://"


def keys_of(given: Encryption | None) -> Keys | None:
    """Return the keys that were given, as what shows none: of what they were given as nothing is kept."""
    if given is None:
        return None
    from palimpsest.stores.encrypted.keys import Keys  # only with encryption

    return Keys.of(given)


async def unlocked(store: Store, encryption: Encryption | None, clock: Callable[[], int]) -> Store:
    """Return what reads and writes the store with these keys; the store itself where it is not encrypted.

    Raises WrongKey where it is and the keys do not fit, or there are none; ConfigError for keys to one that is not.
    """
    mark = await store.get_item(*MARK)
    if mark is None and encryption is None:
        return store
    from palimpsest.stores.encrypted.backend import unlocked_backend  # an extra; only with encryption

    return Store(await unlocked_backend(store.backend, mark, encryption, clock), clock)
