"""Opening a store by its address, and with the keys that it is encrypted with. No backend imports this."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from palimpsest.errors import ConfigError, StoreUnavailable, nearest
from palimpsest.log.entry import now_us
from palimpsest.log.values import is_path
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
"""The values that the option `circuit_breaker` takes; True is a circuit breaker with the defaults."""


class Opener(Protocol):
    """Opens a backend by its address. The options are the backend's own."""

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
    `memory://` (and `:memory:`). Options of an address may follow a question mark, as in
    `sqlite:///a.db?synchronous=NORMAL`. Raises ConfigError for an address of an unknown kind or an option that the
    backend does not know, StoreUnavailable or StoreCorrupt if the store cannot be opened. A backend with an
    asynchronous driver is bridged if the runner has no event loop.
    """
    breaking = _breaking(circuit_breaker, clock) if circuit_breaker else None
    opener, url, given = read_address(where)
    try:
        backend = opener(url, runner, **{**given, **options})
    except FileNotFoundError as fault:
        if fault.filename is not None:
            raise
        gone = "the working directory does not exist any more, so that a relative path leads nowhere"
        raise StoreUnavailable(discreet_address(url), gone) from fault
    if breaking is not None:
        backend = breaking(backend)
    if not (backend.blocking or runner.suspends):
        from palimpsest.stores.bridged import BridgedBackend  # asyncio: only for a driver that needs it

        backend = BridgedBackend(backend, runner)
    return Store(backend, clock)


def _breaking(given: GivenBreaker, clock: Callable[[], int]) -> Callable[[Backend], Backend] | None:
    from palimpsest.stores.circuit_breaker import BreakingBackend, CircuitBreaker  # only if one was given

    chosen = CircuitBreaker.of(given)
    return None if chosen is None else lambda backend: BreakingBackend(backend, chosen, clock)


def read_address(where: str | Path) -> tuple[Opener, str, dict[str, Any]]:
    """Return the opener of the store that `where` names, the address without its options, and these options.

    Options given beside the address win over these. Openers of other packages, and of stores on servers, get the
    address unchanged, as it may contain options of a driver. Raises ConfigError, which names the address, for an
    address of an unknown kind, or an option in it that is unknown or cannot be read.
    """
    is_path_object = isinstance(where, os.PathLike)  # names a file, whatever characters are in it
    address = os.fspath(where) if isinstance(where, os.PathLike) else where
    shown = discreet_address(address) if isinstance(address, str) else where
    if not isinstance(address, str) or not address.strip() or address in STORES.built_in:
        raise ConfigError("store", shown, _ALLOWED)
    if len(address) > LONGEST or not is_path(address):
        allowed = f"an address of at most {LONGEST} characters that can be a file name (without NUL)"
        raise ConfigError("store", shown, allowed)
    if address == IN_MEMORY:
        return STORES.find("memory"), "memory://", {}
    if not is_path_object:
        refuse_mistyped(address)
    kind = "" if is_path_object else _kind_of(address)
    if not kind:
        return STORES.find("sqlite"), f"sqlite:///{_file_at(address, typed=not is_path_object)}", {}
    opener: Opener = STORES.find(kind, shown)
    url, mark, query = address.partition("?")
    if not mark or not opener.__module__.startswith(_HERE):
        return opener, address, {}
    return opener, url, options_in(query)


def check_address(where: str) -> None:
    """Raise ConfigError for an address that its store would not accept. Opens nothing, and needs no driver.

    Of an address whose kind comes from another package only the kind is checked.
    """
    opener, url, options = read_address(where)
    if opener.__module__.startswith("palimpsest.stores."):
        import_module(opener.__module__).accepted(url, **options)


def has_our_options(where: object) -> bool:
    """Return whether a path or the kind of an address means one of our stores. Opens and loads nothing."""
    if isinstance(where, os.PathLike):
        return True
    kind = _kind_of(where) if isinstance(where, str) else ""
    return isinstance(where, str) and (not kind or STORES.is_built_in(kind))


def _kind_of(address: str) -> str:
    """Return the kind of an address, such as "sqlite" of "sqlite:///agent.db"; "" of a path."""
    kind, colon, _ = address.partition(":")
    return kind if colon and kind[:1].isalpha() and not kind.strip(_KIND) else ""


def _file_at(path: str, *, typed: bool) -> str:
    """Return the path of an SQLite file. Raises ConfigError for a folder, and for text that was meant as an address."""
    shown = discreet_address(path)
    if typed and "@" in path:  # probably an address with a password that lost its kind
        raise ConfigError("store", shown, "an address with its kind, or a pathlib.Path for a file with @ in its name")
    if typed and has_options(path):  # they would become part of the file's name
        allowed = "options behind an address, as in sqlite:///agent.db?synchronous=NORMAL, or as arguments"
        raise ConfigError("store", shown, f"{allowed}; a pathlib.Path, for a file with a question mark in its name")
    path, given = os.path.expanduser(path), path
    if path.endswith("/") or os.path.isdir(path):
        raise ConfigError("store", shown, f"the path of an SQLite file, or file:{given} for a folder of files")
    return path


def refuse_mistyped(address: str) -> None:
    """Raise ConfigError for an address of a known kind that lacks the colon after the kind, and say what was meant."""
    before, slashes, rest = address.partition("//")
    name = before[:-1] if before.endswith((";", ".", ",")) else before
    is_name = name[:1].isalpha() and name.isascii() and name.replace("+", "a").isalnum()
    kind = nearest(name.lower(), STORES.built_in, cutoff=MISSPELT) if slashes and is_name else None
    if kind is None:
        return
    meant = discreet_address(_FORMS.get(kind, f"{kind}://{{}}").format(rest.lstrip("/")))
    allowed = f"{_ALLOWED}; ./{discreet_address(address)} for a file in a folder of that name"
    raise ConfigError("store", discreet_address(address), allowed, nearest=meant)


MISSPELT = 0.9
"""How similar a kind must be to a known one to count as misspelt: one letter too many or too few."""

LONGEST = 4096
"""Characters of an address at most: no system accepts longer paths."""

IN_MEMORY = ":memory:"
"""SQLite's name for a database that is on no disk."""

_HERE = ("palimpsest.stores.file", "palimpsest.stores.memory", "palimpsest.stores.sqlite")
"""The modules of the stores on this machine, whose options are read here."""

_FORMS = {"sqlite": "sqlite:///{}", "file": "file:{}"}
"""How addresses are spelt whose rest is a path."""

_KIND = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+.-"
"""The characters of an address's kind. A pattern would have to be compiled at each cold start."""

_ALLOWED = "a path such as agent.db, or an address such as sqlite:///agent.db or memory://"


def keys_of(given: Encryption | None) -> Keys | None:
    """Return the given keys as an object that shows none of them and keeps nothing of their original form."""
    if given is None:
        return None
    from palimpsest.stores.encrypted.keys import Keys  # only with encryption

    return Keys.of(given)


async def unlocked(store: Store, encryption: Encryption | None, clock: Callable[[], int]) -> Store:
    """Return the store opened with these keys; the store itself if it is not encrypted.

    Raises WrongKey if it is encrypted and the keys do not fit or are missing, ConfigError for keys to an unencrypted
    store.
    """
    mark = await store.get_item(*MARK)
    if mark is None and encryption is None:
        return store
    from palimpsest.stores.encrypted.backend import unlocked_backend  # an extra; only with encryption

    return Store(await unlocked_backend(store.backend, mark, encryption, clock), clock)
