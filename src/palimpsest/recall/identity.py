"""Whether an index in a file is of the store that it is opened for, as that is now. Else it is emptied, and made anew.

A store that was put in the place of another, from a backup or by a copy, has logs that the index never saw, at marks
that it takes for seen. So each time a process opens an index, the store and the file are told a word that nobody has
had before. A store that was put there later does not know the last one, if the index was opened since it was copied. If
it was not, the newest of its sessions is older than what the index has seen, unless it was written to since.
"""

from __future__ import annotations

import os
from secrets import token_hex
from typing import TYPE_CHECKING

from palimpsest.errors import ConfigError
from palimpsest.recall.tables import APPLICATION_ID, maker_of
from palimpsest.stores.derivers import OWNER

if TYPE_CHECKING:
    from palimpsest.recall.fts import FtsIndex
    from palimpsest.stores import Store

_USABLE = "a file that can be read and written"


async def recognise(store: Store, tenant: str, index: FtsIndex, name: str) -> None:
    """Empty an index that is of another store; have the store and it know each other from now on, if it is writable.

    Args:
        store: what it is opened for.
        tenant: whose index it is.
        index: one in a file, or copied from there.
        name: under which the store knows it.
    """
    there = await store.get_item(OWNER, tenant, name)
    word = there.value.decode() if there is not None else ""
    newest = await store.used(tenant, newest_first=True, limit=1)
    is_back = (newest[0][0] if newest else 0) < await index.mark()
    if is_back and await _went_back(store, tenant, index):
        word = ""
    if not store.writable:
        await index.meet(word, (), again=is_back)
        return
    new = token_hex(8)
    await index.meet(word, [new], again=is_back)
    await store.put_item(OWNER, tenant, name, new.encode())
    there = await store.get_item(OWNER, tenant, name)  # another process may have been there meanwhile
    await index.met(there.value.decode() if there is not None else new)


async def _went_back(store: Store, tenant: str, index: FtsIndex) -> bool:
    """Whether a session has a past that the index has seen more of than there is."""
    mark, after = 0, ""
    while page := await store.used(tenant, mark=mark, after=after):
        cursors = await index.cursors([info.session for _, info in page])
        for mark, info in page:  # noqa: B007 (the last one is where the next page begins)
            seen = cursors.get(info.session)
            if seen is not None and seen.created == info.created and seen.revision > info.revision:
                return True
            after = info.session
    return False


def path_of(given: object) -> str:
    """Return the path of the file that an index is to be kept in, as it was given. Raises ConfigError for what is none.

    Args:
        given: what the option `recall_index` was given.
    """
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else b""
    if not isinstance(path, str) or not path.strip() or "\x00" in path:
        raise ConfigError("recall_index", given, "the path of a file on this machine, or None")
    return os.path.abspath(os.path.expanduser(path))


def check_file(path: str) -> None:
    """Raise ConfigError for a file that is there and no index: it would be overwritten.

    Args:
        path: where an index is to be kept.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as fault:
        raise ConfigError("recall_index", path, f"{_USABLE} ({fault.strerror})") from None
    if not os.access(path, os.R_OK):
        raise ConfigError("recall_index", path, _USABLE)
    if there.st_size and maker_of(path) != APPLICATION_ID:
        told = "the path of a search index, or of no file: this one is something else, and stays as it is"
        raise ConfigError("recall_index", path, told)
