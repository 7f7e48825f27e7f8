"""Writing a session as plain JSON. `palimpsest.transfer.reading` reads it back."""

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
from palimpsest.log.entry import LINKS, Entry, defaults, moment
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.summary import Summary
from palimpsest.runtime.private_files import as_before, private

SCHEMA_VERSION = 2
"""Version 2 added rewound entries and compactions. Exports of version 1 can still be read."""

KNOWN_VERSIONS = (1, 2)
KIND = "palimpsest/session"

LEFT_SECONDS = 3600.0
"""The age at which a partial file counts as left by a killed export. An export is complete before its file is begun, so
writing the file never takes that long."""

FIELDS = tuple(field for field in Entry.__struct_fields__ if field not in ("at", "tokens", "lone", "damaged", *LINKS))
"""Fields of an entry that are exported as they are; links and the time have forms of their own."""

_DEFAULTS = defaults(*FIELDS)

Access = tuple[int, int, int]
"""The `seq` of an entry that was fetched, when (on the session's access clock), and how often."""

Apart = Callable[[Callable[[Entry], bytes], Entry], Awaitable[bytes]]
"""Calls a long-running function without holding up the event loop."""

LONG = 256 * 1024
"""Characters from which on encoding an entry counts as long-running."""


def exported(
    key: SessionKey,
    head: Head,
    entries: Sequence[Entry],
    records: Sequence[Record],
    now: int,
    accesses: Sequence[Access] = (),
    facts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the session as JSON values, which `import_session` accepts.

    `accesses` say which entries were fetched (`palimpsest.sessions.accesses`), `facts` are those of the session's
    working memory (`palimpsest.sessions.copied_facts`). The section `summaries` repeats summaries of the records for
    human readers; an import ignores it.
    """
    summaries = [record.compaction.summary for record in records if record.compaction is not None]
    return _frame(key, head, now, accesses, facts) | {
        "entries": [_entry(entry) for entry in entries if not entry.erased],
        "tombstones": [_entry(entry) for entry in entries if entry.erased],
        "summaries": [_summary(summary) for summary in summaries if summary is not None],
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
    """Yield the JSON text of `exported` in pieces, without holding the log in memory. Long entries are encoded `apart`.

    The log is read once, so that an entry erased meanwhile is in one section only. The records are read after it, so
    that no summary tells of an entry that was erased before.
    """
    with SpooledTemporaryFile(1 << 20) as tombstones, SpooledTemporaryFile(1 << 20) as record_lines:
        sections = {
            "entries": _living(entries, tombstones, apart),
            "tombstones": _lines_of(tombstones),
            "summaries": _summarised(records, record_lines),
            "records": _lines_of(record_lines),
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
    """Yield the lines of entries that are not erased. Write tombstones to a file, for their own section."""
    async for entry in entries:
        line = await apart(_line, entry) if len(entry.text) > LONG else _line(entry)
        if entry.erased:
            tombstones.write(line + b"\n")
        else:
            yield line


async def _summarised(records: AsyncIterator[Record], record_lines: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of the records' summaries. Write the records to a file, for their own section."""
    async for record in records:
        record_lines.write(encoded(_plain(record)) + b"\n")
        if record.compaction is not None and record.compaction.summary is not None:
            yield encoded(_summary(record.compaction.summary))


async def _lines_of(lines: IO[bytes]) -> AsyncIterator[bytes]:
    lines.seek(0)
    for line in lines:
        yield line.rstrip(b"\n")


def _frame(
    key: SessionKey, head: Head, now: int, accesses: Sequence[Access], facts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the export without entries and records."""
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
            **({"thoughts": head.thoughts} if head.thoughts else {}),
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
    """An object to which bytes can be written, such as a file opened in binary mode."""

    def write(self, data: bytes, /) -> object:
        """Write the next bytes."""
        ...


@contextmanager
def replacing_file(file: str | os.PathLike[str] | Sink, *, is_private: bool = True) -> Iterator[Sink]:
    """Open a destination for writing. A path gets its new content at the end of the block, and none after an error.

    With `is_private` only its owner may read a new file; a file that is replaced keeps its mode. A symbolic link stays
    and its target is replaced. A pipe or a device is written to directly. Raises ConfigError if the path is a database.
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
    temporary = os.path.join(folder, f".palimpsest-{secrets.token_hex(8)}.partial")  # unique: exports may run at once
    try:
        with open(temporary, "xb", opener=private if is_private else None) as out:
            as_before(out.fileno(), path)
            yield out
        os.replace(temporary, path)
    except BaseException as fault:
        if isinstance(fault, OSError) and fault.filename == temporary:
            fault.filename = os.fspath(file)  # the name that the caller knows
        with suppress(OSError):
            os.unlink(temporary)
        raise


def spare_databases(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError if the path is an SQLite database: writing the file would destroy everything in it."""
    if os.path.isfile(path):
        from palimpsest.transfer.sources.databases import LEAST, is_database  # loaded only if the file exists

        if os.path.getsize(path) >= LEAST and is_database(os.fspath(path)):
            allowed = "a file that is no database: all that is in this one would be lost"
            raise ConfigError("file", os.fspath(path), allowed)


def _clear(folder: str) -> None:
    """Remove partial files that killed exports have left in this folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _PARTIAL(entry.name) and entry.stat().st_mtime < time.time() - LEFT_SECONDS:
                os.unlink(entry)


_PARTIAL = re.compile(r"\.palimpsest-[0-9a-f]{16}\.partial").fullmatch


def listed(context: Context) -> bytes:
    """Return the messages of a context as the content of a file: the provider's list of messages, or its call arguments
    if the system text is not among the messages.

    Marks for a provider's cache are left out: they serve only a call, and an import of the file would keep them.
    """
    if context.format == "text":
        return context.text.encode("utf-8", "replace")
    if context.system is None:
        return encoded(context.messages) + b"\n"
    return encoded(context.request(cache_breakpoints=False)) + b"\n"


def _entry(entry: Entry) -> dict[str, Any]:
    given = {name: value for name, default in _DEFAULTS.items() if (value := getattr(entry, name)) != default}
    out = {"id": entry.id, "seq": entry.seq, "kind": entry.kind, "role": entry.role, "content": ""}
    out |= _plain(given)
    out["created_at"] = _time(entry.at)
    out["links"] = {name: value for name in LINKS[1:] if (value := getattr(entry, name))}
    return out


def _summary(summary: Summary) -> dict[str, Any]:
    """Return a summary for human readers: its text, what it covers, and its times as text."""
    fields = _plain(summary)
    for name in ("at", "first_at", "last_at"):
        fields.pop(name, None)
    start, end = summary.time_range
    times = {"start": start.isoformat(), "end": end.isoformat()}
    return {**fields, "created_at": _time(summary.at), "time_range": times}


def _plain(value: object) -> Any:
    """Return the value as JSON types: mappings, lists, texts, numbers."""
    return _listed(msgspec.to_builtins(value))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _time(microseconds: int) -> str:
    return moment(microseconds).isoformat()
