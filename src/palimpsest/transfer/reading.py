"""Reading an export back: checks every reference and link, and recomputes every total. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, ImportFailed, InvalidEntry, shorten
from palimpsest.log import spans
from palimpsest.log.change import Record
from palimpsest.log.checks import check, check_json, check_names, checked_about
from palimpsest.log.entry import LINKS, Entry, defaults
from palimpsest.log.head import About, Attempts, Cut, Head, Usage
from palimpsest.log.ids import placed_ids
from palimpsest.log.resuming import left_out
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, faults
from palimpsest.log.values import MOST
from palimpsest.log.withdrawal import buried
from palimpsest.privacy.gate import Gate
from palimpsest.stores import Dump
from palimpsest.transfer.plain import check_plain, instant, list_of
from palimpsest.transfer.relinking import head_of, relinked
from palimpsest.transfer.writing import FIELDS, KIND, KNOWN_VERSIONS, Access

MOST_PSEUDONYMS = 1024
"""More than `privacy.pseudonyms.NUMBERED`, since branches that were redacted together have the numbers of both."""

UNREADABLE = (msgspec.ValidationError, UnicodeEncodeError, RecursionError)
"""The errors of the codec for a value of a wrong type."""

_PSEUDONYM = re.compile(r"[A-Z0-9_]{1,64}:[0-9a-f]{32}")


def imported(data: object, where: str = "data", gate: Gate | None = None) -> tuple[str, Dump]:
    """Return the session id of an export and the dump that a store can load, with all references and links checked.

    With `gate` the dump is redacted. Raises ImportFailed, naming the place of the first inconsistency, and
    PrivacyRefused if the policy could not check something.
    """
    data, session, outline = _envelope(data, where)
    entries = [
        _read_entry(raw, f"{where}.{section}[{i}]")
        for section in ("entries", "tombstones")
        for i, raw in enumerate(list_of(data, section, where))
    ]
    entries.sort(key=lambda entry: entry.seq)
    entries = _in_places(entries, outline, where)
    records = _records(data, where)
    given = _given_head(outline, entries, records, where)
    displaced = left_out(records)
    entries = relinked(entries, given.first_seq, given.rewound, where, displaced)
    if gate is not None:
        before = entries, records
        entries, records, pseudonyms = gate.session(entries, records, given)
        given = msgspec.structs.replace(gate.head(given), pseudonyms=pseudonyms)
        if (entries, records) != before:  # the cuts of views were made for the texts before redaction: drop them
            given = msgspec.structs.replace(given, views={})
    linked = head_of(entries, given.first_seq, given.rewound, displaced)
    taken_back = set(spans.members(given.rewound))
    head = msgspec.structs.replace(
        linked,
        **{name: getattr(given, name) for name in _AS_GIVEN},
        revision=max([given.revision, *(e.revision for e in entries), *(r.revision for r in records)]),
        turns=outline.get("turns", linked.turns),
        pinned=tuple(seq for seq in given.pinned if given.first_seq <= seq < linked.next_seq),
        erased=sum(entry.erased for entry in entries),
        hidden=sum(not entry.erased and entry.seq in taken_back for entry in entries),
        usage=_converted(data.get("usage"), Usage | None, f"{where}.usage"),
        created=instant(outline.get("created_at"), f"{where}.head.created_at") or linked.created,
        updated=instant(outline.get("updated_at"), f"{where}.head.updated_at") or linked.updated,
    )
    return session, Dump(head=head, entries=tuple(entries), records=tuple(records))


def accesses_of(data: Mapping[str, Any], dump: Dump, where: str = "data") -> list[Access]:
    """Return the accesses to entries that an export has. Raises ImportFailed for one that is not possible."""
    accesses: list[Access] = []
    for i, raw in enumerate(list_of(data, "accesses", where) if "accesses" in data else ()):
        place = f"{where}.accesses[{i}]"
        seq, stamp, fetches = access = _converted(raw, Access, place)
        if not dump.head.first_seq <= seq < dump.head.next_seq or not (0 < stamp < 2**63 and 0 < fetches <= MOST):
            raise ImportFailed(
                place, f"{shorten(raw)} does not refer to an entry of this export, or its time or count is not possible"
            )
        accesses.append(access)
    return accesses


_AS_GIVEN = (
    *("epoch", "epoch_reason", "first_seq", "rewound", "thoughts", "forked_from", "about"),
    *("views", "compaction", "attempts", "pseudonyms"),
)
"""Fields of the head that are taken from the export, since entries and records do not tell them."""


def _given_head(outline: Mapping[str, Any], entries: Sequence[Entry], records: Sequence[Record], where: str) -> Head:
    """Return the exported head without what entries tell, checked against entries and records."""
    place = f"{where}.head"
    try:
        views = msgspec.convert(outline.get("views") or {}, dict[str, Any])
        head = msgspec.convert(
            {"views": views, **{name: outline[name] for name in ("revision", "epoch", "pinned")}}, Head
        )
    except (msgspec.ValidationError, KeyError) as fault:
        raise ImportFailed(place, f"cannot be read ({fault})") from fault
    first = outline.get("first_seq", 1)
    rewound = _converted(outline.get("rewound") or (), tuple[Span, ...], f"{place}.rewound")
    if (astray := spans.astray(rewound, first, entries[-1].seq if entries else first - 1)) is not None:
        reason = (
            f"{astray[0]} to {astray[1]} is not a range of entries of this log that comes after the range before it"
        )
        raise ImportFailed(f"{place}.rewound[{rewound.index(astray)}]", reason)
    compaction = _converted(outline.get("compaction", 0), int, f"{place}.compaction")
    _check_compactions(records, entries, first, compaction, head.views, where)
    pseudonyms = _converted(outline.get("pseudonyms") or {}, dict[str, int], f"{place}.pseudonyms")
    _check_pseudonyms(pseudonyms, f"{place}.pseudonyms")
    return msgspec.structs.replace(
        head,
        epoch_reason=_converted(outline.get("epoch_reason") or "", str, f"{place}.epoch_reason"),
        first_seq=first,
        rewound=rewound,
        thoughts=_converted(outline.get("thoughts", 0), int, f"{place}.thoughts"),
        forked_from=_converted(outline.get("forked_from"), tuple[str, int] | None, f"{place}.forked_from"),
        about=_about(outline.get("about"), f"{place}.about"),
        compaction=compaction,
        attempts=_converted(outline.get("attempts"), Attempts | None, f"{place}.attempts"),
        pseudonyms=pseudonyms,
    )


def _about(raw: object, where: str) -> About | None:
    """Return the session's user, title and metadata in an export. Raises ImportFailed for what is not accepted."""
    given = _converted(raw, dict[str, Any] | None, where)
    if given is None:
        return None
    try:
        return _converted(checked_about(given), About, where).checked()  # type: ignore[no-any-return]
    except ConfigError as fault:
        raise ImportFailed(where, str(fault)) from None


def _converted(raw: object, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except UNREADABLE as fault:
        raise _unreadable(where, fault) from fault


def _unreadable(where: str, fault: Exception) -> ImportFailed:
    """Return the error for a value of a wrong type."""
    if isinstance(fault, UnicodeEncodeError):
        return ImportFailed(where, "cannot be read (a lone surrogate where one of a fixed list of names is expected)")
    return ImportFailed(where, f"cannot be read ({fault})")


def _check_pseudonyms(numbers: Mapping[str, int], where: str) -> None:
    if len(numbers) > MOST_PSEUDONYMS:
        raise ImportFailed(where, f"has {len(numbers)} pseudonyms; a session has at most {MOST_PSEUDONYMS}")
    for name, number in numbers.items():
        if not _PSEUDONYM.fullmatch(name) or not 1 <= number < 10**8:
            raise ImportFailed(
                f"{where}.{shorten(name)}",
                "is not a pseudonym: a label with a keyed hash is needed, and a number of at least 1",
            )


def _check_outline(outline: Mapping[str, Any], where: str) -> None:
    for name, least in (("first_seq", 1), ("next_seq", 1), ("turns", 0), ("revision", 0), ("epoch", 0)):
        value = outline.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise ImportFailed(f"{where}.{name}", f"{shorten(value)} is not a whole number of at least {least}")


def _envelope(data: object, where: str) -> tuple[Mapping[str, Any], str, Mapping[str, Any]]:
    """Check the kind, version and session of an export. Return it with the session id and the raw head."""
    if not isinstance(data, Mapping):
        raise ImportFailed(where, f"an export is a mapping, not {type(data).__name__}")
    kind = data.get("kind", KIND)
    if kind != KIND:
        raise ImportFailed(f"{where}.kind", f"{shorten(kind)} is not the kind of a session's export, {KIND!r}")
    version = data.get("schema_version")
    if version not in KNOWN_VERSIONS or isinstance(version, bool):
        known = f"this Palimpsest reads {', '.join(map(str, KNOWN_VERSIONS))}"
        raise ImportFailed(f"{where}.schema_version", f"{shorten(version)} is not known ({known})")
    session = data.get("session_id")
    if not isinstance(session, str):
        raise ImportFailed(f"{where}.session_id", f"{shorten(session)} is not text")
    outline = data.get("head")
    if not isinstance(outline, Mapping):
        raise ImportFailed(f"{where}.head", "is missing")
    _check_outline(outline, f"{where}.head")
    check_plain({name: value for name, value in outline.items() if name != "about"}, f"{where}.head", names=True)
    check_plain(data.get("usage"), f"{where}.usage")
    return data, session, outline


def _records(data: Mapping[str, Any], where: str) -> list[Record]:
    records: list[Record] = []
    for i, raw in enumerate(list_of(data, "records", where)):
        if isinstance(raw, Mapping):
            fields = {name: value for name, value in raw.items() if name != "detail"}
            check_plain(fields, f"{where}.records[{i}]")
        record = _converted(raw, Record, f"{where}.records[{i}]")
        if record.revision > MOST:
            raise ImportFailed(
                f"{where}.records[{i}].revision", f"{record.revision} is more than {MOST}, the highest revision"
            )
        try:
            check_json(record.detail, f"{where}.records[{i}].detail")
        except InvalidEntry as fault:
            raise ImportFailed(fault.where, fault.reason) from fault
        if records and record.revision <= records[-1].revision:
            reason = f"{record.revision} does not come after {records[-1].revision}"
            raise ImportFailed(f"{where}.records[{i}].revision", reason)
        records.append(record)
    return records


def _check_compactions(
    records: Sequence[Record],
    entries: Sequence[Entry],
    first: int,
    current: int,
    views: Mapping[str, Cut],
    where: str,
) -> None:
    """Check all references to compactions, summaries and covered entries, in head, cuts and compactions."""
    places = {record.revision: f"{where}.records[{i}]" for i, record in enumerate(records)}
    states = {record.revision: record.compaction for record in records if record.compaction is not None}
    graves = spans.of(entry.seq for entry in entries if entry.erased)
    for revision, field, reason in faults(states, first, entries[-1].seq if entries else first - 1, graves):
        raise ImportFailed(f"{places[revision]}.compaction.{field}", reason)
    if current and current not in states:
        raise ImportFailed(f"{where}.head.compaction", f"revision {current} has no record of a compaction")
    last = entries[-1].seq if entries else first - 1
    for view, shown in views.items():
        _check_cut(shown, states, last, f"{where}.head.views.{view}")
    for record in records:
        if record.cut is not None:
            _check_cut(record.cut, states, last, f"{places[record.revision]}.cut")


def _check_cut(cut: Cut, states: Mapping[int, Compaction], last: int, where: str) -> None:
    if not 1 <= cut.start <= last + 1:
        raise ImportFailed(
            f"{where}.start", f"{cut.start} is neither an entry of this log nor the number after its last one"
        )
    # These ranges may lie before the start of the cut: gone pins and hidden entries do, and skipped ones did in earlier
    # versions.
    for name, hidden in (("gone", cut.gone), ("skipped", cut.skipped), ("hidden", cut.hidden)):
        if (astray := spans.astray(hidden, 1, last)) is not None:
            reason = (
                f"{astray[0]} to {astray[1]} is not a range of entries of this log that comes after the range before it"
            )
            raise ImportFailed(f"{where}.{name}", reason)
    if cut.compaction and cut.compaction not in states:
        raise ImportFailed(f"{where}.compaction", f"revision {cut.compaction} has no record of a compaction")
    for i, shown in enumerate(cut.summaries):
        if shown.revision not in states or states[shown.revision].summary is None:
            raise ImportFailed(
                f"{where}.summaries[{i}]", f"revision {shown.revision} has no compaction that made a summary"
            )


def _in_places(entries: Sequence[Entry], outline: Mapping[str, Any], where: str) -> list[Entry]:
    """Return the entries, each with an id of its own: a tombstone whose id another entry has gets a new one.

    Raises ImportFailed if an entry is missing, or answers no earlier call, or has the id of another one.
    """
    expected, where = outline.get("first_seq", 1), f"{where}.entries"
    by_id: dict[str, int] = {}
    calls: set[int] = set()
    placed: list[Entry] = []
    for entry in entries:
        if entry.seq != expected:
            raise ImportFailed(where, f"entry {expected} is missing: an erased entry would be there as a tombstone")
        if not entry.id:
            raise ImportFailed(where, f"the id of entry {entry.seq} is missing")
        if entry.answers and entry.answers not in calls:
            reason = f"entry {entry.seq} answers {entry.answers}, which is not an earlier call"
            raise ImportFailed(where, reason)
        if entry.kind == "tool_call":
            calls.add(entry.seq)
        placed.append(entry)
        first = by_id.setdefault(entry.id, len(placed) - 1)
        if placed[first] is not entry:
            _part(placed, first, where)
            by_id[entry.id] = first if placed[first].id == entry.id else len(placed) - 1
        expected += 1
    if expected < outline.get("next_seq", expected):
        raise ImportFailed(where, f"entry {expected} is missing: an erased entry would be there as a tombstone")
    return placed


def _part(placed: list[Entry], first: int, where: str) -> None:
    """Give a new id to a tombstone among two entries with the same id, the one at the index `first` and the last."""
    one, other = placed[first], placed[-1]
    if not (one.erased or other.erased):
        reason = f"the id {one.id!r} of entry {one.seq} is repeated by entry {other.seq}; erase one by its number, and"
        raise ImportFailed(where, f"{reason} export the session again")
    i = len(placed) - 1 if other.erased else first
    placed[i] = msgspec.structs.replace(placed[i], id=placed_ids([placed[i].seq], placed[i].at // 1000)[0])


def _read_entry(raw: object, where: str) -> Entry:
    if not isinstance(raw, Mapping):
        raise ImportFailed(where, f"an entry is a mapping, not {type(raw).__name__}")
    fields = dict(raw)
    links = fields.pop("links", None) or {}
    if not isinstance(links, Mapping):
        raise ImportFailed(f"{where}.links", f"{shorten(links)} is not a mapping")
    for name in LINKS:
        value = links.get(name, _UNLINKED[name])
        if type(value) is not type(_UNLINKED[name]) or not 0 <= value <= MOST:
            wanted = "True or False" if isinstance(_UNLINKED[name], bool) else "a whole number of at least 0"
            raise ImportFailed(f"{where}.links.{name}", f"{shorten(value)} is not {wanted}")
    at = instant(fields.pop("created_at", None), f"{where}.created_at")
    unknown = set(fields) - set(FIELDS) - {"seq"}
    if unknown:
        raise ImportFailed(f"{where}.{min(unknown)}", "is not a field of an entry")
    try:
        unlinked = msgspec.convert({**fields, "at": at}, Entry)
        entry = msgspec.structs.replace(unlinked, **{name: links[name] for name in LINKS if name in links})
        check(entry, where)
        check_names(entry, where)
        entry = buried(entry)
    except UNREADABLE as fault:
        raise _unreadable(where, fault) from fault
    except InvalidEntry as fault:
        raise ImportFailed(fault.where, fault.reason) from fault
    return entry


_UNLINKED = defaults(*LINKS)
