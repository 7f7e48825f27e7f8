"""A session's state on its way in: every reference checked, and told as Palimpsest's own export tells it.

Totals are not taken over, they follow from the entries. Which entries are compressed follows from the summaries that
name them; one that calls itself compressed and is in none goes to the archive.
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
"""What the records of an import say that they are from."""

_TYPES = ("message", "tool_call", "tool_result", "context", "summary")
_ROLES = {"tool_call": "assistant", "tool_result": "tool", "context": "user"}
_NAMED = {"tool_call": "tool", "tool_result": "tool", "context": "source"}
_TOP = ("session_id", "entries", "summaries", "total_tokens", "config", "schema_version", "erased")


def exported_natively(
    state: SessionState | Mapping[str, Any], count: Callable[[str], int], cost: Callable[[Entry], int]
) -> dict[str, Any]:
    """Return what `import_session` of a memory takes. `count` counts a summary's text, `cost` an entry.

    Raises ImportFailed, naming the place, for what does not hold together.
    """
    raw = _mapping(state.to_dict() if isinstance(state, SessionState) else state, "state", _TOP)
    session = raw.get("session_id")
    if not isinstance(session, str) or not is_id(session):
        raise ImportFailed("state.session_id", f"{shorten(session)} is no session's id")
    _check_version(raw.get("schema_version", SCHEMA_VERSION))
    _check_config(raw.get("config"))
    summaries = [_summary(one, f"state.summaries[{i}]") for i, one in enumerate(_list(raw, "summaries"))]
    entries = [_entry(one, f"state.entries[{i}]") for i, one in enumerate(_list(raw, "entries"))]
    entries = [one for one in entries if one["kind"] != "summary" or _check_listed(one, summaries)]
    _check_links(entries, summaries)
    log = _with_graves(entries, _list(raw, "erased"))
    places: dict[str, int] = {}
    for i, one in enumerate(log):
        if places.setdefault(one["id"], i + 1) != i + 1:
            raise ImportFailed("state.entries", f"the id {shorten(one['id'])} is there twice")
    records = _records(summaries, places, {one["id"]: one for one in entries}, count, cost)
    covered = {id for one in summaries for id in one["ids"]}
    archived = [places[one["id"]] for one in entries if one["compressed"] and one["id"] not in covered]
    if archived:
        records.append(_archiving(records, archived))
    for i, one in enumerate(log):
        one |= {"seq": i + 1, "links": {"revision": 1}}
        for name in ("compressed", "summary_id", "place"):
            one.pop(name, None)
    return _native(session, log, records)


def _native(session: str, log: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An export of Palimpsest with this log, which one revision added, and these records of what followed."""
    return {
        "schema_version": 2,
        "session_id": session,
        "entries": [one for one in log if not one.get("erased")],
        "tombstones": [one for one in log if one.get("erased")],
        "records": records,
        "head": {
            "revision": 1 + len(records),
            "epoch": len(records),
            "pinned": [one["seq"] for one in log if one.get("pinned")],
            "first_seq": 1,
            "next_seq": len(log) + 1,
            "compaction": records[-1]["revision"] if records else 0,
        },
    }


# --- reading what is given


def _mapping(raw: object, where: str, known: Sequence[str]) -> dict[str, Any]:
    """The mapping in one spelling. Raises ImportFailed for a key that nobody knows."""
    if not isinstance(raw, Mapping):
        raise ImportFailed(where, f"a mapping is needed, not {type(raw).__name__}")
    for name in raw:
        if next(iter(snake_case({name: 0}))) not in known:
            raise ImportFailed(f"{where}.{name}", f"is no known key (known are {', '.join(known)})")
    given = snake_case(raw)
    if len(given) < len(raw):
        twice = next(name for name in raw if name not in given and next(iter(snake_case({name: 0}))) in raw)
        raise ImportFailed(f"{where}.{twice}", "is there in both spellings")
    return given


def _list(raw: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = raw.get(name, None if name == "entries" else ())  # a state without them is none, and replaces nothing
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ImportFailed(f"state.{name}", f"{shorten(value)} is not a list")
    return value


def _check_version(version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ImportFailed("state.schema_version", f"{shorten(version)} is not known (known is {SCHEMA_VERSION})")


def _check_config(config: Any) -> None:
    """The configuration of the program that wrote it has to be one, though the manager keeps its own."""
    try:
        config_of(config)
    except ConfigError as fault:
        raise ImportFailed(f"state.config.{fault.where}", str(fault)) from fault


def _text(raw: Mapping[str, Any], name: str, where: str, *, empty: bool = False) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ImportFailed(f"{where}.{name}", "is no text" if not isinstance(value, str) else "is empty")
    return value


def _time(value: object, where: str) -> str:
    """A time as ISO text, UTC. Raises ImportFailed for one without a time zone."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        if moment.tzinfo is not None:
            return moment.astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as fault:
        raise ImportFailed(where, f"{shorten(value)} is no time in ISO 8601") from fault
    raise ImportFailed(where, f"{shorten(value)} has no time zone: add one, such as Z")


def _entry(raw: object, where: str) -> dict[str, Any]:
    """An entry as an export of Palimpsest has it, with what the state says of its compression."""
    if hasattr(raw, "to_dict"):
        raw = raw.to_dict()
    given = _mapping(raw, where, ENTRY_FIELDS)
    kind = given.get("type")
    if kind not in _TYPES:
        raise ImportFailed(f"{where}.type", f"{shorten(kind)} is none of {', '.join(_TYPES)}")
    role = given.get("role", "user") if kind == "message" else _ROLES.get(kind, "user")
    if kind == "message" and role not in ("user", "assistant", "system"):
        raise ImportFailed(f"{where}.role", f"{shorten(role)} is none of user, assistant, system")
    made = {"id": _text(given, "id", where), "kind": kind, "role": role, "place": where}
    made["content"] = given["parts"] if given.get("parts") else _text(given, "content", where, empty=True)
    made["created_at"] = _time(given.get("timestamp"), f"{where}.timestamp")
    metadata = given.get("metadata")
    if name := given.get("name") or _name_in(metadata, kind, made["id"]):
        made["name"] = name
    given["status"] = given.get("status") or ("unknown" if kind == "tool_result" else None)
    kept = ("metadata", "call_id", "status", *NATIVE)
    made |= {name: value for name in kept if (value := given.get(name)) is not None}
    made["compressed"], made["summary_id"] = given.get("compressed", False), given.get("summary_id")
    if not isinstance(made["compressed"], bool):
        raise ImportFailed(f"{where}.compressed", f"{shorten(made['compressed'])} is neither true nor false")
    return made


def _name_in(metadata: object, kind: str, id: str) -> str | None:
    """The tool or the source of an entry that has no name: as its metadata have it, else one that says nothing."""
    if kind not in _NAMED:
        return None
    found = metadata.get(_NAMED[kind]) if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) and found else (id if kind == "context" else "tool")


def _summary(raw: object, where: str) -> dict[str, Any]:
    if hasattr(raw, "to_dict"):
        raw = raw.to_dict()
    given = _mapping(raw, where, MemorySummary.__struct_fields__)
    ids = given.get("original_entry_ids")
    if isinstance(ids, str) or not isinstance(ids, Sequence) or not ids or not all(isinstance(id, str) for id in ids):
        raise ImportFailed(f"{where}.original_entry_ids", f"{shorten(ids)} is no list of entries' ids")
    level, method = given.get("level", 0), given.get("method", "heuristic")
    if isinstance(level, bool) or not isinstance(level, int) or level < 0:
        raise ImportFailed(f"{where}.level", f"{shorten(level)} is no whole number of at least 0")
    if method not in METHODS:
        raise ImportFailed(f"{where}.method", f"{shorten(method)} is none of {', '.join(METHODS)}")
    span = _mapping(given.get("time_range") or {}, f"{where}.time_range", ("start", "end"))
    times = {name: _time(value, f"{where}.time_range.{name}") for name, value in span.items()}
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


# --- what it refers to


def _check_listed(entry: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Refuse an entry that is a summary and is none of the summaries; one that is needs no second place."""
    if not any(entry["id"] == one["id"] for one in summaries):
        raise ImportFailed(
            f"{entry['place']}.id", f"{shorten(entry['id'])} is a summary that the summaries do not have"
        )
    return False


def _check_links(entries: Iterable[Mapping[str, Any]], summaries: Sequence[Mapping[str, Any]]) -> None:
    """Refuse an entry of a summary that is not there, or that does not name it."""
    named = {one["id"]: set(one["ids"]) for one in summaries}
    if len(named) < len(summaries):
        raise ImportFailed("state.summaries", "two of them have one id")
    for entry in entries:
        meant = entry["summary_id"]
        if meant is None:
            continue
        if not isinstance(meant, str) or meant not in named:
            raise ImportFailed(f"{entry['place']}.summary_id", f"{shorten(meant)} is no summary of this state")
        if entry["id"] not in named[meant]:
            raise ImportFailed(
                f"{entry['place']}.summary_id", f"the summary {shorten(meant)} does not name {shorten(entry['id'])}"
            )


def _with_graves(entries: list[dict[str, Any]], erased: Sequence[Any]) -> list[dict[str, Any]]:
    """The entries with tombstones of those that were erased, each where it was."""
    graves: list[tuple[int, dict[str, Any]]] = []
    for i, one in enumerate(erased):
        pair = (0, one) if isinstance(one, str) else one
        fits = isinstance(pair, list | tuple) and [type(part) for part in pair] == [int, str]
        if not fits or pair[0] < 0:
            raise ImportFailed(
                f"state.erased[{i}]", f"{shorten(one)} is no id, or how many entries come before it and an id"
            )
        grave = {"id": pair[1], "kind": "message", "role": "assistant", "content": "", "erased": True}
        graves.append((pair[0], grave))
    log: list[dict[str, Any]] = []
    for place in range(len(entries) + 1):
        log += [grave for before, grave in graves if before == place or (before > len(entries) == place)]
        log += entries[place : place + 1]
    return log


# --- what was compressed, as records of compactions


def _records(
    summaries: Sequence[Mapping[str, Any]],
    places: Mapping[str, int],
    living: Mapping[str, Mapping[str, Any]],
    count: Callable[[str], int],
    cost: Callable[[Entry], int],
) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    covered: dict[int, str] = {}
    for one in summaries:
        seqs = []
        for id in one["ids"]:
            if id not in places:
                raise ImportFailed(f"{one['place']}.original_entry_ids", f"{shorten(id)} is no entry of this state")
            if places[id] in covered:
                other = covered[places[id]]
                raise ImportFailed(
                    f"{one['place']}.original_entry_ids", f"{shorten(id)} is in the summary {shorten(other)}, too"
                )
            covered[places[id]] = one["id"]
            seqs.append(places[id])
        originals = [living[id] for id in one["ids"] if id in living]
        made = _native_summary(one, seqs, originals, count, cost)
        made["revision"] = revision = len(records) + 2
        before = records[-1]["compaction"]["current"] if records else []
        state = {"summary": made, "current": [*before, revision], "covered": spans.of(covered)}
        records.append({"revision": revision, "kind": "compact", "reason": SEAL, "at": made["at"], "compaction": state})
    return records


def _native_summary(
    one: Mapping[str, Any],
    seqs: Sequence[int],
    originals: Sequence[Mapping[str, Any]],
    count: Callable[[str], int],
    cost: Callable[[Entry], int],
) -> dict[str, Any]:
    made, times = _moment(one["created_at"]), sorted(_moment(entry["created_at"]) for entry in originals)
    entries = [_bare(entry) for entry in originals]
    return {
        "id": one["id"],
        "text": one["content"],
        "covers": spans.of(seqs),
        "folded": spans.of(seqs),
        "level": one["level"],
        "method": one["method"],
        "tokens": count(one["content"]),
        "source_tokens": sum(cost(entry) for entry in entries),
        "first_at": _moment(one["times"]["start"]) if "start" in one["times"] else (times or [made])[0],
        "last_at": _moment(one["times"]["end"]) if "end" in one["times"] else (times or [made])[-1],
        "at": made,
    }


def _bare(entry: Mapping[str, Any]) -> Entry:
    """An entry as it is counted. Raises ImportFailed for what is none."""
    fields = {name: entry[name] for name in ("kind", "role", "content", "name", "call_id") if name in entry}
    try:
        return msgspec.convert(fields, Entry)
    except msgspec.ValidationError as fault:
        raise ImportFailed(entry["place"], f"cannot be read ({fault})") from fault


def _archiving(records: Sequence[dict[str, Any]], seqs: Sequence[int]) -> dict[str, Any]:
    """The record of what is compressed and in no summary: it is in the archive."""
    before = records[-1]["compaction"] if records else {"current": [], "covered": []}
    state = {"current": before["current"], "covered": before["covered"], "evicted": spans.of(seqs)}
    at = records[-1]["at"] if records else 0
    return {"revision": len(records) + 2, "kind": "compact", "reason": SEAL, "at": at, "compaction": state}


def _moment(text: str) -> int:
    """Microseconds since 1970."""
    return microseconds_of(datetime.fromisoformat(text))
