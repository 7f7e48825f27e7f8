"""Recognise whether an index file belongs to the store that it is opened for, in that store's present state.

A store may be replaced by another one: restored from a backup, or copied. Its logs then have entries that the index
never saw, at marks that it takes for indexed. An index that does not belong to the store is emptied and made anew.

So each time a process opens an index, the store and the file both remember a new random word. A replaced store does not
know the last word, if the index was opened since the copy was taken. If it was not opened since, the newest session of
the replaced store is older than what the index has seen, unless it was written to since.
"""

from __future__ import annotations

import os
from secrets import token_hex
from typing import TYPE_CHECKING

from palimpsest.errors import ConfigError
from palimpsest.recall.sqlite.layout import APPLICATION_ID, maker_of
from palimpsest.stores.derivers import OWNER

if TYPE_CHECKING:
    from palimpsest.recall.sqlite.index import FtsIndex
    from palimpsest.stores import Store

_USABLE = "a file that can be read and written"


async def recognise(store: Store, tenant: str, index: FtsIndex, name: str) -> None:
    """Empty an index that belongs to another store; if the store is writable, let both remember a new word.

    Args:
        store: the store that the index is opened for.
        tenant: the tenant whose index it is.
        index: an index in a file, or copied from one.
        name: under which the store knows it.
    """
    remembered = await store.get_item(OWNER, tenant, name)
    word = remembered.value.decode() if remembered is not None else ""
    newest = await store.used(tenant, newest_first=True, limit=1)
    is_back = (newest[0][0] if newest else 0) < await index.mark()
    if is_back and await _went_back(store, tenant, index):
        word = ""
    if not store.writable:
        await index.adopt(word, (), again=is_back)
        return
    new_word = token_hex(8)
    await index.adopt(word, [new_word], again=is_back)
    await store.put_item(OWNER, tenant, name, new_word.encode())
    remembered = await store.get_item(OWNER, tenant, name)  # another process may have put its own word meanwhile
    await index.set_owner(remembered.value.decode() if remembered is not None else new_word)


async def _went_back(store: Store, tenant: str, index: FtsIndex) -> bool:
    """Return whether the store has a session at a lower revision than the index has seen of it."""
    mark, after = 0, ""
    while page := await store.used(tenant, mark=mark, after=after):
        cursors = await index.cursors([info.session for _, info in page])
        for mark, info in page:  # noqa: B007 (the last one is where the next page begins)
            cursor = cursors.get(info.session)
            if cursor is not None and cursor.created == info.created and cursor.revision > info.revision:
                return True
            after = info.session
    return False


def path_of(given: object) -> str:
    """Return the absolute path of the file in which an index is to be kept. Raises ConfigError if it is no path.

    Args:
        given: the value of the option `recall_index`.
    """
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else b""
    if not isinstance(path, str) or not path.strip() or "\x00" in path:
        raise ConfigError("recall_index", given, "the path of a file on this machine, or None")
    return os.path.abspath(os.path.expanduser(path))


def check_file(path: str) -> None:
    """Raise ConfigError for an existing file that is no index, which would be overwritten.

    Args:
        path: where an index is to be kept.
    """
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as fault:
        raise ConfigError("recall_index", path, f"{_USABLE} ({fault.strerror})") from None
    if not os.access(path, os.R_OK):
        raise ConfigError("recall_index", path, _USABLE)
    if stat.st_size and maker_of(path) != APPLICATION_ID:
        allowed = "the path of a search index, or of a new file: this file is something else, and was not changed"
        raise ConfigError("recall_index", path, allowed)
