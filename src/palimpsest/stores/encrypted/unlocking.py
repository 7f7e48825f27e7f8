"""Unlocking a store: with the keys that fit, or the error that says which are missing. It needs the extra."""

from __future__ import annotations

from collections.abc import Callable

from palimpsest.errors import WrongKey
from palimpsest.stores import Item, Store
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.encrypted.engine import sealed_engine
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.mark import read_mark


async def unlock(store: Store, mark: Item | None, encryption: Encryption | None, clock: Callable[[], int]) -> Store:
    """Return the store as these keys read it; `mark` is what it says of its encryption (None: it says nothing).

    Raises WrongKey where it is encrypted and they do not fit, or none were given; ConfigError where it holds what is
    not encrypted; MissingExtra without the extra.
    """
    if encryption is None:
        assert mark is not None, "a store that is not encrypted needs no unlocking"
        current = read_mark(store.url, mark.value).current
        advice = "it is encrypted: open it with encryption=Keys(...) that has this key, or set PALIMPSEST_KEY"
        raise WrongKey(store.url, current, f"{advice} for the command line")
    return await sealed_engine(store.backend, mark, Keys.of(encryption), clock)
