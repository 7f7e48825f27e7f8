"""A session as plain JSON. `palimpsest.transfer.reading` takes it back."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Protocol

import msgspec

from palimpsest.context.result import Context
from palimpsest.errors import ConfigError
from palimpsest.log.change import Record
from palimpsest.log.codec import encoded
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.summary import Summary
from palimpsest.runtime.private_files import as_before, private

SCHEMA_VERSION = 2
"""Version 2 knows what rewinds have hidden, and compactions; exports of version 1 are read, too."""

KNOWN_VERSIONS = (1, 2)
KIND = "palimpsest/session"

LEFT_SECONDS = 3600.0
"""After so long a half-written file is of an export that was killed: what is written is there before it is begun."""

LINKS = ("seq", "turn", "group", "answers", "late", "continues", "revision")
"""Fields of an entry that are its place and its links."""

FIELDS = tuple(field for field in Entry.__struct_fields__ if field not in ("at", "tokens", "lone", "damaged", *LINKS))
"""Fields of an entry that are itself."""

Access = tuple[int, int, int]
"""An entry that was fetched by its `seq`, when (on the session's access clock), and how often."""

Apart = Callable[[Callable[[Entry], bytes], Entry], Awaitable[bytes]]
"""Calls a function that takes long, without holding up an event loop."""

LONG = 256 * 1024
"""Characters of an entry that takes long."""

_DEFAULTS = Entry()


def exported(
    key: SessionKey,
    head: Head,
    entries: Sequence[Entry],
    records: Sequence[Record],
    now: int,
    accesses: Sequence[Access] = (),
    facts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the session as JSON values; `import_session` takes them back.

    `accesses` say which entries were fetched (`palimpsest.sessions.accesses`), `facts` what is in the session's working
    memory (`palimpsest.sessions.carried`). `summaries` are those that
    the records hold, for readers: an import takes them from there.
    """
    made = [record.compaction.summary for record in records if record.compaction is not None]
    return _frame(key, head, now, accesses, facts) | {
        "entries": [_entry(entry) for entry in entries if not entry.erased],
        "tombstones": [_entry(entry) for entry in entries if entry.erased],
        "summaries": [_summary(summary) for summary in made if summary is not None],
        "records": [_plain(record) for record in records],
    }


async def written(
    key: SessionKey,
    head: Head,
    entries: AsyncIterator[Entry],
    records: AsyncIterator[Record],
    now: int,
    accesses: Sequence[Access],
    facts: Sequence[Mapping[str, Any]],
    apart: Apart,
) -> AsyncIterator[bytes]:
    """Yield the JSON text of `exported` in pieces, without ever holding the log. What is long is made `apart`.

    It is one pass over the log, so that what is erased meanwhile is in one section only, and then one over the records,
    so that no summary tells of what was erased before.
    """
    with SpooledTemporaryFile(1 << 20) as tombstones, SpooledTemporaryFile(1 << 20) as told:
        sections = {
            "entries": _living(entries, tombstones, apart),
            "tombstones": _put_aside(tombstones),
            "summaries": _summarised(records, told),
            "records": _put_aside(told),
        }
        for i, (name, value) in enumerate(_frame(key, head, now, accesses, facts).items()):
            yield b"".join((b"{" if i == 0 else b",\n", encoded(name), b": "))
            if name not in sections:
                yield encoded(value)
                continue
            comma = b"[\n"
            async for line in sections[name]:
                yield comma + line
                comma = b",\n"
            yield b"]" if comma != b"[\n" else b"[]"
    yield b"}\n"


def _line(entry: Entry) -> bytes:
    return encoded(_entry(entry))


async def _living(entries: AsyncIterator[Entry], tombstones: IO[bytes], apart: Apart) -> AsyncIterator[bytes]:
    """Yield entries; tombstones are put aside for their own section."""
    async for entry in entries:
        line = await apart(_line, entry) if len(entry.text) > LONG else _line(entry)
        if entry.erased:
            tombstones.write(line + b"\n")
        else:
            yield line


async def _summarised(records: AsyncIterator[Record], told: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield the summaries that records hold; the records are put aside for their own section."""
    async for record in records:
        told.write(encoded(_plain(record)) + b"\n")
        if record.compaction is not None and record.compaction.summary is not None:
            yield encoded(_summary(record.compaction.summary))


async def _put_aside(lines: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield what was put aside."""
    lines.seek(0)
    for line in lines:
        yield line.rstrip(b"\n")


def _frame(
    key: SessionKey, head: Head, now: int, accesses: Sequence[Access], facts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything about a session but its entries and records."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "session_id": key.session,
        "exported_at": _time(now),
        "entries": [],
        "tombstones": [],
        "summaries": [],
        "records": [],
        **({"accesses": [list(access) for access in accesses]} if accesses else {}),
        **({"facts": list(facts)} if facts else {}),
        "usage": _plain(head.usage),
        "head": {
            "revision": head.revision,
            "epoch": head.epoch,
            "epoch_reason": head.epoch_reason,
            "first_seq": head.first_seq,
            "next_seq": head.next_seq,
            "turns": head.turns,
            "pinned": list(head.pinned),
            "rewound": [list(span) for span in head.rewound],
            "forked_from": list(head.forked_from) if head.forked_from else None,
            **({"about": _plain(head.about)} if head.about is not None else {}),
            "views": _plain(head.views),
            "compaction": head.compaction,
            "attempts": _plain(head.attempts),
            **({"pseudonyms": head.pseudonyms} if head.pseudonyms else {}),
            "created_at": _time(head.created) if head.created else None,
            "updated_at": _time(head.updated) if head.updated else None,
        },
    }


class Sink(Protocol):
    """Whatever bytes can be written to, such as a file opened in binary mode."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""
        ...


@contextmanager
def replacing_file(file: str | os.PathLike[str] | Sink) -> Iterator[Sink]:
    """Open what is to be written: a path gets its new content when all of it is there, and keeps the old otherwise.

    A new file is its owner's alone; one whose place is taken gives its mode. A link stays, and so does what is no file,
    such as a pipe or a device: that is written to as it is. Raises ConfigError for a database.
    """
    if not isinstance(file, str | os.PathLike):
        yield file
        return
    if os.path.exists(file) and not os.path.isfile(file):
        with open(file, "wb") as out:
            yield out
        return
    spare_databases(file)
    path = os.path.realpath(file)
    folder = os.path.dirname(path)
    _clear(folder)
    own = os.path.join(folder, f".palimpsest-{secrets.token_hex(8)}.partial")  # two do not write into one another
    try:
        with open(own, "xb", opener=private) as out:
            as_before(out.fileno(), path)
            yield out
        os.replace(own, path)
    except BaseException as fault:
        if isinstance(fault, OSError) and fault.filename == own:
            fault.filename = os.fspath(file)  # the one that whoever reads it has named
        with suppress(OSError):
            os.unlink(own)
        raise


def spare_databases(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for the path of an SQLite database: its place would be taken, and all that it has."""
    if os.path.isfile(path):
        from palimpsest.transfer.sources.databases import LEAST, is_database  # only over a file that is there

        if os.path.getsize(path) >= LEAST and is_database(os.fspath(path)):
            told = "a file that is no database: all that is in this one would be lost"
            raise ConfigError("file", os.fspath(path), told)


def _clear(folder: str) -> None:
    """Remove what exports to this folder have left that were killed."""
    with suppress(OSError), os.scandir(folder) as there:
        for one in there:
            if _PARTIAL(one.name) and one.stat().st_mtime < time.time() - LEFT_SECONDS:
                os.unlink(one)


_PARTIAL = re.compile(r"\.palimpsest-[0-9a-f]{16}\.partial").fullmatch


def listed(context: Context) -> bytes:
    """The messages of a context as a file: the provider's list, or its arguments where system text stands beside it.

    Nobody sends a file, so it has no marks for a provider's cache: read again, they would be the log's own.
    """
    if context.format == "text":
        return context.text.encode("utf-8", "replace")
    if context.system is None:
        return encoded(context.messages) + b"\n"
    return encoded(context.request(cache_breakpoints=False)) + b"\n"


def _entry(entry: Entry) -> dict[str, Any]:
    given = {name: value for name in FIELDS if (value := getattr(entry, name)) != getattr(_DEFAULTS, name)}
    out = {"id": entry.id, "seq": entry.seq, "kind": entry.kind, "role": entry.role, "content": ""}
    out |= _plain(given)
    out["created_at"] = _time(entry.at)
    out["links"] = {name: value for name in LINKS[1:] if (value := getattr(entry, name))}
    return out


def _summary(summary: Summary) -> dict[str, Any]:
    """A summary for readers: what it says, what it covers, and its times as text."""
    told = _plain(summary)
    for name in ("at", "first_at", "last_at"):
        told.pop(name, None)
    start, end = summary.time_range
    times = {"start": start.isoformat(), "end": end.isoformat()}
    return {**told, "created_at": _time(summary.at), "time_range": times}


def _plain(value: object) -> Any:
    """Return the value as JSON has it: mappings, lists, text, numbers."""
    return _listed(msgspec.to_builtins(value))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _time(microseconds: int) -> str:
    return moment(microseconds).isoformat()
