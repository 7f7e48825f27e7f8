"""A session as plain JSON, out and in again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from palimpsest.context import Context
from palimpsest.entries import Entry, check
from palimpsest.errors import ImportFailed, InvalidEntry, shorten
from palimpsest.linking import follow, link
from palimpsest.log import Head, Record, SessionKey, Usage, hides
from palimpsest.stores import Dump

SCHEMA_VERSION = 2
"""Version 2 knows what rewinds have hidden; exports of version 1 are read, too."""

KNOWN_VERSIONS = (1, 2)
KIND = "palimpsest/session"

_LINKS = ("seq", "turn", "group", "answers", "late", "continues", "revision")
_FIELDS = tuple(field for field in Entry.__struct_fields__ if field not in ("at", "tokens", "lone", *_LINKS))
_DEFAULTS = Entry()


def exported(
    key: SessionKey, head: Head, entries: Sequence[Entry], records: Sequence[Record], now: int
) -> dict[str, Any]:
    """Return the session as JSON values; `import_session` takes them back."""
    return _frame(key, head, now) | {
        "entries": [_entry(entry) for entry in entries if not entry.erased],
        "tombstones": [_entry(entry) for entry in entries if entry.erased],
        "records": [_plain(record) for record in records],
    }


async def written(
    key: SessionKey, head: Head, entries: AsyncIterator[Entry], records: AsyncIterator[Record], now: int
) -> AsyncIterator[bytes]:
    """Yield the JSON text of `exported` in pieces, without ever holding the log.

    It is one pass over the log, so that what is erased meanwhile is in one section only.
    """
    from tempfile import SpooledTemporaryFile

    with SpooledTemporaryFile(1 << 20) as tombstones:
        for i, (name, value) in enumerate(_frame(key, head, now).items()):
            yield b"".join((b"{" if i == 0 else b",\n", _json(name), b": "))
            comma = b"\n"
            if name == "entries":
                yield b"["
                async for entry in entries:
                    line = _json(_entry(entry))
                    if entry.erased:
                        tombstones.write(line + b"\n")
                        continue
                    yield comma + line
                    comma = b",\n"
                yield b"]"
            elif name == "tombstones":
                tombstones.seek(0)
                yield b"["
                for line in tombstones:
                    yield comma + line.rstrip()
                    comma = b",\n"
                yield b"]"
            elif name == "records":
                yield b"["
                async for record in records:
                    yield comma + _json(_plain(record))
                    comma = b",\n"
                yield b"]"
            else:
                yield _json(value)
    yield b"}\n"


def _frame(key: SessionKey, head: Head, now: int) -> dict[str, Any]:
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
            "views": _plain(head.views),
            "created_at": _time(head.created) if head.created else None,
            "updated_at": _time(head.updated) if head.updated else None,
        },
    }


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        import json

        return json.dumps(value).encode()


class Sink(Protocol):
    """Whatever bytes can be written to, such as a file opened in binary mode."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""
        ...


@contextmanager
def partial(file: str | os.PathLike[str] | Sink) -> Iterator[Sink]:
    """Open what is to be written: a path gets its new content when all of it is there, and keeps the old otherwise."""
    if not isinstance(file, str | os.PathLike):
        yield file
        return
    path = os.fspath(file)
    try:
        with open(f"{path}.partial", "wb") as out:
            yield out
        os.replace(f"{path}.partial", path)
    except BaseException:
        with suppress(OSError):
            os.unlink(f"{path}.partial")
        raise


def listed(context: Context) -> bytes:
    """The messages of a context as a file: the provider's list, or its arguments where system text stands beside it."""
    if context.format == "text":
        return context.text.encode("utf-8", "replace")
    return _json(context.messages if context.system is None else context.request()) + b"\n"


def imported(data: object, where: str = "data") -> tuple[str, Dump]:
    """Return the session id and what a store is to hold, every reference checked and every link made anew.

    Raises ImportFailed naming the place of the first thing that does not hold together.
    """
    data, session, outline = _envelope(data, where)
    entries = [
        _read_entry(raw, f"{where}.{section}[{i}]")
        for section in ("entries", "tombstones")
        for i, raw in enumerate(_list(data, section, where))
    ]
    entries.sort(key=lambda entry: entry.seq)
    _check_places(entries, outline, where)
    try:
        views = msgspec.convert(outline.get("views") or {}, dict[str, Any])
        head = msgspec.convert(
            {"views": views, **{name: outline[name] for name in ("revision", "epoch", "pinned")}}, Head
        )
    except (msgspec.ValidationError, KeyError) as fault:
        raise ImportFailed(f"{where}.head", f"cannot be read ({fault})") from fault
    listed = enumerate(_list(data, "records", where))
    records = tuple(_converted(raw, Record, f"{where}.records[{i}]") for i, raw in listed)
    given = data.get("usage")
    usage = None if given is None else _converted(given, Usage, f"{where}.usage")
    first = outline.get("first_seq", 1)
    rewound = _converted(outline.get("rewound") or (), tuple[tuple[int, int], ...], f"{where}.head.rewound")
    _check_spans(rewound, first, entries[-1].seq if entries else first - 1, f"{where}.head.rewound")
    forked_from = _converted(outline.get("forked_from"), tuple[str, int] | None, f"{where}.head.forked_from")
    linked_head, relinked = _relink(entries, first, rewound)
    head = msgspec.structs.replace(
        linked_head,
        revision=max(head.revision, *(entry.revision for entry in relinked), 0) if relinked else head.revision,
        epoch=head.epoch,
        epoch_reason=outline.get("epoch_reason") or "",
        first_seq=first,
        turns=outline.get("turns", linked_head.turns),
        pinned=tuple(seq for seq in head.pinned if first <= seq < linked_head.next_seq),
        erased=sum(entry.erased for entry in relinked),
        rewound=rewound,
        hidden=sum(not entry.erased and hides(rewound, entry.seq) for entry in relinked),
        forked_from=forked_from,
        views=head.views,
        usage=usage,
        created=_instant(outline.get("created_at"), f"{where}.head.created_at") or linked_head.created,
        updated=_instant(outline.get("updated_at"), f"{where}.head.updated_at") or linked_head.updated,
    )
    return session, Dump(head=head, entries=tuple(relinked), records=records)


def _converted(raw: object, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as fault:
        raise ImportFailed(where, f"cannot be read ({fault})") from fault


def _check_outline(outline: Mapping[str, Any], where: str) -> None:
    for name, least in (("first_seq", 1), ("next_seq", 1), ("turns", 0)):
        value = outline.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ImportFailed(f"{where}.{name}", f"{shorten(value)} is no whole number of at least {least}")


def _envelope(data: object, where: str) -> tuple[Mapping[str, Any], str, Mapping[str, Any]]:
    """Check what an export says of itself; return it with its session id and the outline of its head."""
    if not isinstance(data, Mapping):
        raise ImportFailed(where, f"an export is a mapping, not {type(data).__name__}")
    kind = data.get("kind", KIND)
    if kind != KIND:
        raise ImportFailed(f"{where}.kind", f"{shorten(kind)} is no session's export ({KIND})")
    version = data.get("schema_version")
    if version not in KNOWN_VERSIONS or isinstance(version, bool):
        known = f"known here: {', '.join(map(str, KNOWN_VERSIONS))}"
        raise ImportFailed(f"{where}.schema_version", f"{shorten(version)} is not known ({known})")
    session = data.get("session_id")
    if not isinstance(session, str):
        raise ImportFailed(f"{where}.session_id", f"{shorten(session)} is not text")
    outline = data.get("head")
    if not isinstance(outline, Mapping):
        raise ImportFailed(f"{where}.head", "is missing")
    _check_outline(outline, f"{where}.head")
    return data, session, outline


def _check_spans(rewound: Sequence[tuple[int, int]], first: int, last: int, where: str) -> None:
    before = first - 1
    for i, (low, high) in enumerate(rewound):
        if not before < low <= high <= last:
            raise ImportFailed(f"{where}[{i}]", f"{low} to {high} is no range of entries behind the one before")
        before = high


def _relink(entries: Sequence[Entry], first: int, rewound: Sequence[tuple[int, int]]) -> tuple[Head, list[Entry]]:
    """Link the entries as appending them one revision at a time does.

    Tombstones and what a rewind has hidden keep the links that they have.
    """
    head, linked = Head(first_seq=first, next_seq=first), []
    for entry in entries:
        head = msgspec.structs.replace(head, revision=entry.revision - 1)
        hidden = hides(rewound, entry.seq)
        if entry.erased or hidden:
            linked.append(entry)
            head = msgspec.structs.replace(
                head if hidden else follow(head, [entry]), revision=entry.revision, next_seq=entry.seq + 1
            )
            continue
        head, (again,) = link(head, [entry], entry.at)
        if (
            entry.answers
            and again.answers != entry.answers
            and any(e.seq == entry.answers and e.erased for e in linked)
        ):
            again = msgspec.structs.replace(again, answers=entry.answers, group=entry.group, late=entry.late)
        linked.append(again)
    return head, linked


def _check_places(entries: Sequence[Entry], outline: Mapping[str, Any], where: str) -> None:
    expected = outline.get("first_seq", 1)
    seen: set[str] = set()
    calls: set[int] = set()
    for entry in entries:
        if entry.seq != expected:
            raise ImportFailed(f"{where}.entries", f"entry {expected} is missing: neither there nor a tombstone")
        if not entry.id or entry.id in seen:
            raise ImportFailed(f"{where}.entries", f"the id {entry.id!r} of entry {entry.seq} is missing or repeated")
        if entry.answers and entry.answers not in calls:
            reason = f"entry {entry.seq} answers {entry.answers}, which is no call before it"
            raise ImportFailed(f"{where}.entries", reason)
        if entry.kind == "tool_call":
            calls.add(entry.seq)
        seen.add(entry.id)
        expected += 1
    if expected < outline.get("next_seq", expected):
        raise ImportFailed(f"{where}.entries", f"entry {expected} is missing: neither there nor a tombstone")


def _entry(entry: Entry) -> dict[str, Any]:
    given = {name: value for name in _FIELDS if (value := getattr(entry, name)) != getattr(_DEFAULTS, name)}
    out = {"id": entry.id, "seq": entry.seq, "kind": entry.kind, "role": entry.role, "content": ""}
    out |= _plain(given)
    out["created_at"] = _time(entry.at)
    out["links"] = {name: value for name in _LINKS[1:] if (value := getattr(entry, name))}
    return out


def _read_entry(raw: object, where: str) -> Entry:
    if not isinstance(raw, Mapping):
        raise ImportFailed(where, f"an entry is a mapping, not {type(raw).__name__}")
    fields = dict(raw)
    links = fields.pop("links", None) or {}
    if not isinstance(links, Mapping):
        raise ImportFailed(f"{where}.links", f"{shorten(links)} is not a mapping")
    at = _instant(fields.pop("created_at", None), f"{where}.created_at")
    unknown = set(fields) - set(_FIELDS) - {"seq"}
    if unknown:
        raise ImportFailed(f"{where}.{min(unknown)}", "is no field of an entry")
    try:
        made = msgspec.convert({**fields, "at": at}, Entry)
        known = {name: links[name] for name in _LINKS if name in links and isinstance(links[name], int | bool)}
        entry = msgspec.structs.replace(made, **known)
        check(entry, where)
    except msgspec.ValidationError as fault:
        raise ImportFailed(where, str(fault)) from fault
    except InvalidEntry as fault:
        raise ImportFailed(fault.where, fault.reason) from fault
    return entry


def _plain(value: object) -> Any:
    """Return the value as JSON has it: mappings, lists, text, numbers."""
    return _listed(msgspec.to_builtins(value))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _list(data: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    value = data.get(name) or ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ImportFailed(f"{where}.{name}", f"{shorten(value)} is not a list")
    return value


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat()


def _instant(text: object, where: str) -> int:
    if text is None:
        return 0
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError as fault:
        raise ImportFailed(where, f"{shorten(text)} is no time in ISO 8601") from fault
    if moment is None or moment.tzinfo is None:
        raise ImportFailed(where, f"{shorten(text)} is no time with a time zone in ISO 8601")
    return round(moment.timestamp() * 1_000_000)
