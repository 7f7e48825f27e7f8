"""Imports of exported states: every reference is checked, and the state converted to an export of Palimpsest.

Totals are not imported, but follow from the entries. Which entries are compressed follows from the summaries that name
them. An entry that is marked as compressed but is in no summary goes to the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from palimpsest import Entry
from palimpsest.compat.agterm.config import config_of
from palimpsest.compat.agterm.records import (
    ENTRY_FIELDS,
    NATIVE,
    SCHEMA_VERSION,
    MemorySummary,
    SessionState,
    TimeRange,
)
from palimpsest.compat.agterm.spelling import snake_case
from palimpsest.errors import ConfigError, ImportFailed, shorten
from palimpsest.log import spans
from palimpsest.log.entry import microseconds_of
from palimpsest.log.ids import is_id
from palimpsest.log.summary import METHODS

SEAL = "agterm"
"""The reason that records of an import give."""

_TYPES = ("message", "tool_call", "tool_result", "context", "summary")
_ROLES = {"tool_call": "assistant", "tool_result": "tool", "context": "user"}
_NAMED = {"tool_call": "tool", "tool_result": "tool", "context": "source"}
_TOP = ("session_id", "entries", "summaries", "total_tokens", "config", "schema_version", "erased")


def exported_natively(
    state: SessionState | Mapping[str, Any], count: Callable[[str], int], cost: Callable[[Entry], int]
) -> dict[str, Any]:
    """Return a state as `import_session` of a memory takes it. `count` counts a summary's text, `cost` an entry.

    Raises ImportFailed, naming the place, for a state that is not consistent.
    """
    raw = _mapping(state.to_dict() if isinstance(state, SessionState) else state, "state", _TOP)
    session = raw.get("session_id")
    if not isinstance(session, str) or not is_id(session):
        raise ImportFailed("state.session_id", f"{shorten(session)} is not the id of a session")
    _check_version(raw.get("schema_version", SCHEMA_VERSION))
    _check_config(raw.get("config"))
    summaries = [_summary(item, f"state.summaries[{i}]") for i, item in enumerate(_list(raw, "summaries"))]
    entries = [_entry(item, f"state.entries[{i}]") for i, item in enumerate(_list(raw, "entries"))]
    entries = [entry for entry in entries if not _is_listed_summary(entry, summaries)]
    _check_links(entries, summaries)
    log = _with_tombstones(entries, _list(raw, "erased"))
    seqs: dict[str, int] = {}
    for i, entry in enumerate(log):
        if seqs.setdefault(entry["id"], i + 1) != i + 1:
            raise ImportFailed("state.entries", f"the id {shorten(entry['id'])} occurs twice")
    records = _records(summaries, seqs, {entry["id"]: entry for entry in entries}, count, cost)
    covered = {id for summary in summaries for id in summary["ids"]}
    archived = [seqs[entry["id"]] for entry in entries if entry["compressed"] and entry["id"] not in covered]
    if archived:
        records.append(_archiving(records, archived))
    for i, entry in enumerate(log):
        entry |= {"seq": i + 1, "links": {"revision": 1}}
        for name in ("compressed", "summary_id", "place"):
            entry.pop(name, None)
    return _native(session, log, records)


def _native(session: str, log: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an export of Palimpsest with this log, which one revision added, and the records of later revisions."""
    return {
        "schema_version": 2,
        "session_id": session,
        "entries": [entry for entry in log if not entry.get("erased")],
        "tombstones": [entry for entry in log if entry.get("erased")],
        "records": records,
        "head": {
            "revision": 1 + len(records),
            "epoch": len(records),
            "pinned": [entry["seq"] for entry in log if entry.get("pinned")],
            "first_seq": 1,
            "next_seq": len(log) + 1,
            "compaction": records[-1]["revision"] if records else 0,
        },
    }


# --- reading the parts of a state


def _mapping(raw: object, where: str, known: Sequence[str]) -> dict[str, Any]:
    """Return a mapping with its keys as attributes are spelled. Raises ImportFailed for a key that is not known."""
    if not isinstance(raw, Mapping):
        raise ImportFailed(where, f"must be a mapping, not {type(raw).__name__}")
    for name in raw:
        if next(iter(snake_case({name: 0}))) not in known:
            raise ImportFailed(f"{where}.{name}", f"is not a known key; known keys: {', '.join(known)}")
    given = snake_case(raw)
    if len(given) < len(raw):
        twice = next(name for name in raw if name not in given and next(iter(snake_case({name: 0}))) in raw)
        raise ImportFailed(f"{where}.{twice}", "is given in both spellings")
    return given


def _list(raw: Mapping[str, Any], name: str) -> Sequence[Any]:
    # Without the list `entries` this is no state: it must not replace a session.
    value = raw.get(name, None if name == "entries" else ())
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ImportFailed(f"state.{name}", f"{shorten(value)} is not a list")
    return value


def _check_version(version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ImportFailed(
            "state.schema_version", f"{shorten(version)} is not known; the known version is {SCHEMA_VERSION}"
        )


def _check_config(config: Any) -> None:
    """Raise ImportFailed for an invalid configuration, though the manager keeps its own."""
    try:
        config_of(config)
    except ConfigError as fault:
        raise ImportFailed(f"state.config.{fault.where}", str(fault)) from fault


def _text(raw: Mapping[str, Any], name: str, where: str, *, empty: bool = False) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ImportFailed(f"{where}.{name}", "is not text" if not isinstance(value, str) else "is empty")
    return value


def _time(value: object, where: str) -> str:
    """Return a time as ISO text, in UTC. Raises ImportFailed for one without a time zone."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        if moment.tzinfo is not None:
            return moment.astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as fault:
        raise ImportFailed(where, f"{shorten(value)} is not a time in ISO 8601") from fault
    raise ImportFailed(where, f"{shorten(value)} has no time zone: add one, such as Z")


def _entry(raw: object, where: str) -> dict[str, Any]:
    """Return an entry as an export of Palimpsest has it, with `compressed`, `summary_id` and the `place` for errors."""
    if hasattr(raw, "to_dict"):
        raw = raw.to_dict()
    given = _mapping(raw, where, ENTRY_FIELDS)
    kind = given.get("type")
    if kind not in _TYPES:
        raise ImportFailed(f"{where}.type", f"{shorten(kind)} is not one of {', '.join(_TYPES)}")
    role = given.get("role", "user") if kind == "message" else _ROLES.get(kind, "user")
    if kind == "message" and role not in ("user", "assistant", "system"):
        raise ImportFailed(f"{where}.role", f"{shorten(role)} is not one of user, assistant, system")
    entry = {"id": _text(given, "id", where), "kind": kind, "role": role, "place": where}
    entry["content"] = given["parts"] if given.get("parts") else _text(given, "content", where, empty=True)
    entry["created_at"] = _time(given.get("timestamp"), f"{where}.timestamp")
    metadata = given.get("metadata")
    if name := given.get("name") or _name_of(metadata, kind, entry["id"]):
        entry["name"] = name
    given["status"] = given.get("status") or ("unknown" if kind == "tool_result" else None)
    copied = ("metadata", "call_id", "status", *NATIVE)
    entry |= {name: value for name in copied if (value := given.get(name)) is not None}
    entry["compressed"], entry["summary_id"] = given.get("compressed", False), given.get("summary_id")
    if not isinstance(entry["compressed"], bool):
        raise ImportFailed(f"{where}.compressed", f"{shorten(entry['compressed'])} is neither true nor false")
    return entry


def _name_of(metadata: object, kind: str, id: str) -> str | None:
    """Return the name of a tool or a source for an entry without one: from its metadata, else a placeholder."""
    if kind not in _NAMED:
        return None
    name = metadata.get(_NAMED[kind]) if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) and name else (id if kind == "context" else "tool")


def _summary(raw: object, where: str) -> dict[str, Any]:
    """Return the checked fields of a summary, with the `place` for errors."""
    if hasattr(raw, "to_dict"):
        raw = raw.to_dict()
    given = _mapping(raw, where, MemorySummary.__struct_fields__)
    ids = given.get("original_entry_ids")
    if isinstance(ids, str) or not isinstance(ids, Sequence) or not ids or not all(isinstance(id, str) for id in ids):
        raise ImportFailed(f"{where}.original_entry_ids", f"{shorten(ids)} is not a list of ids of entries")
    level, method = given.get("level", 0), given.get("method", "heuristic")
    if isinstance(level, bool) or not isinstance(level, int) or level < 0:
        raise ImportFailed(f"{where}.level", f"{shorten(level)} is not a whole number of at least 0")
    if method not in METHODS:
        raise ImportFailed(f"{where}.method", f"{shorten(method)} is not one of {', '.join(METHODS)}")
    time_range = _mapping(given.get("time_range") or {}, f"{where}.time_range", ("start", "end"))
    times = {name: _time(value, f"{where}.time_range.{name}") for name, value in time_range.items()}
    if len(times) == len(TimeRange.__struct_fields__) and _moment(times["end"]) < _moment(times["start"]):
        raise ImportFailed(f"{where}.time_range", "ends before it begins")
    return {
        "id": _text(given, "id", where),
        "content": _text(given, "content", where),
        "ids": list(ids),
        "created_at": _time(given.get("created_at"), f"{where}.created_at"),
        "times": times,
        "level": level,
        "method": method,
        "place": where,
    }


# --- references between the parts


def _is_listed_summary(entry: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an entry is a summary. Raises ImportFailed for one that the list of summaries does not have."""
    if entry["kind"] != "summary":
        return False
    if not any(entry["id"] == summary["id"] for summary in summaries):
        raise ImportFailed(
            f"{entry['place']}.id", f"{shorten(entry['id'])} is a summary that is missing in the summaries"
        )
    return True


def _check_links(entries: Iterable[Mapping[str, Any]], summaries: Sequence[Mapping[str, Any]]) -> None:
    """Raise ImportFailed for an entry that names an unknown summary, or one that does not name the entry."""
    ids_by_summary = {summary["id"]: set(summary["ids"]) for summary in summaries}
    if len(ids_by_summary) < len(summaries):
        raise ImportFailed("state.summaries", "two of them have the same id")
    for entry in entries:
        summary_id = entry["summary_id"]
        if summary_id is None:
            continue
        if not isinstance(summary_id, str) or summary_id not in ids_by_summary:
            raise ImportFailed(f"{entry['place']}.summary_id", f"{shorten(summary_id)} is not a summary of this state")
        if entry["id"] not in ids_by_summary[summary_id]:
            raise ImportFailed(
                f"{entry['place']}.summary_id",
                f"the summary {shorten(summary_id)} does not name {shorten(entry['id'])}",
            )


def _with_tombstones(entries: list[dict[str, Any]], erased: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the entries with a tombstone for each erased entry, at its place."""
    tombstones: list[tuple[int, dict[str, Any]]] = []
    for i, item in enumerate(erased):
        pair = (0, item) if isinstance(item, str) else item
        fits = isinstance(pair, list | tuple) and [type(part) for part in pair] == [int, str]
        if not fits or pair[0] < 0:
            raise ImportFailed(
                f"state.erased[{i}]",
                f"{shorten(item)} is neither an id, nor a number of entries before it together with an id",
            )
        tombstone = {"id": pair[1], "kind": "message", "role": "assistant", "content": "", "erased": True}
        tombstones.append((pair[0], tombstone))
    log: list[dict[str, Any]] = []
    for place in range(len(entries) + 1):
        log += [tombstone for before, tombstone in tombstones if before == place or (before > len(entries) == place)]
        log += entries[place : place + 1]
    return log


# --- compressions, as records of compactions


def _records(
    summaries: Sequence[Mapping[str, Any]],
    seqs: Mapping[str, int],
    living: Mapping[str, Mapping[str, Any]],
    count: Callable[[str], int],
    cost: Callable[[Entry], int],
) -> list[dict[str, Any]]:
    """Return the records of the compactions that made the summaries, which come oldest first.

    `seqs` are those of all entries by id, `living` the entries that are not erased by id. Raises ImportFailed for a
    summary of an unknown entry, and for an entry in two summaries.
    """
    records: list[dict[str, Any]] = []
    covered: dict[int, str] = {}
    for summary in summaries:
        for id in summary["ids"]:
            if id not in seqs:
                raise ImportFailed(
                    f"{summary['place']}.original_entry_ids", f"{shorten(id)} is not an entry of this state"
                )
            if seqs[id] in covered:
                other = covered[seqs[id]]
                raise ImportFailed(
                    f"{summary['place']}.original_entry_ids", f"{shorten(id)} is in the summary {shorten(other)}, too"
                )
            covered[seqs[id]] = summary["id"]
        originals = [living[id] for id in summary["ids"] if id in living]
        native = _native_summary(summary, [seqs[id] for id in summary["ids"]], originals, count, cost)
        native["revision"] = revision = len(records) + 2
        earlier = records[-1]["compaction"]["current"] if records else []
        state = {"summary": native, "current": [*earlier, revision], "covered": spans.of(covered)}
        at = native["at"]
        records.append({"revision": revision, "kind": "compact", "reason": SEAL, "at": at, "compaction": state})
    return records


def _native_summary(
    summary: Mapping[str, Any],
    seqs: Sequence[int],
    originals: Sequence[Mapping[str, Any]],
    count: Callable[[str], int],
    cost: Callable[[Entry], int],
) -> dict[str, Any]:
    """Return a summary as an export of Palimpsest has it; `seqs` are its entries, `originals` those not erased."""
    created_at, times = _moment(summary["created_at"]), sorted(_moment(entry["created_at"]) for entry in originals)
    entries = [_bare(entry) for entry in originals]
    return {
        "id": summary["id"],
        "text": summary["content"],
        "covers": spans.of(seqs),
        "folded": spans.of(seqs),
        "level": summary["level"],
        "method": summary["method"],
        "tokens": count(summary["content"]),
        "source_tokens": sum(cost(entry) for entry in entries),
        "first_at": _moment(summary["times"]["start"]) if "start" in summary["times"] else (times or [created_at])[0],
        "last_at": _moment(summary["times"]["end"]) if "end" in summary["times"] else (times or [created_at])[-1],
        "at": created_at,
    }


def _bare(entry: Mapping[str, Any]) -> Entry:
    """Return an entry for counting its tokens. Raises ImportFailed for an invalid one."""
    fields = {name: entry[name] for name in ("kind", "role", "content", "name", "call_id") if name in entry}
    try:
        return msgspec.convert(fields, Entry)
    except msgspec.ValidationError as fault:
        raise ImportFailed(entry["place"], f"cannot be read ({fault})") from fault


def _archiving(records: Sequence[dict[str, Any]], seqs: Sequence[int]) -> dict[str, Any]:
    """Return the record that archives the entries that are compressed, but in no summary."""
    previous = records[-1]["compaction"] if records else {"current": [], "covered": []}
    state = {"current": previous["current"], "covered": previous["covered"], "evicted": spans.of(seqs)}
    at = records[-1]["at"] if records else 0
    return {"revision": len(records) + 2, "kind": "compact", "reason": SEAL, "at": at, "compaction": state}


def _moment(text: str) -> int:
    """Return the time of an ISO text in microseconds since 1970."""
    return microseconds_of(datetime.fromisoformat(text))
