"""What changes and records tell, sealed and opened: details, reasons, conditions, the words of summaries. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.head import Cut
from palimpsest.log.summary import Summary, SummaryItem
from palimpsest.stores.encrypted.forms import Lineage, Translate, conditions, owner, seal_cut, to_bytes
from palimpsest.stores.encrypted.sealing import Box, Unsealed

_replace = msgspec.structs.replace


class _Words(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a summary says."""

    text: str
    items: tuple[SummaryItem, ...] = ()
    fallback: str | None = None


class Told(NamedTuple):
    """What of a change or a record tells something: it is sealed, and opened, in one way."""

    kind: str
    revision: int
    reason: str
    detail: dict[str, Any]
    cut: Cut | None
    summary: Summary | None


def seal_told(told: Told, box: Box) -> Told:
    """What is stored of it. Other branches take an erasure over: what it says is bound to no revision."""
    place = _told_place(told)
    reason, summary = told.reason, told.summary
    if _has_words(told.kind, reason):
        reason = box.seal(f"reason {place}", to_bytes(reason))
    if summary is not None and not _is_wordless(summary):
        made = _Words(text=summary.text, items=summary.items, fallback=summary.fallback)
        sealed = box.seal(_summary_place(summary, told.revision), encoded(made))
        summary = _replace(summary, text=sealed, items=(), fallback=None)
    return told._replace(
        reason=reason,
        detail={"sealed": box.seal(f"detail {place}", encoded(told.detail))} if told.detail else {},
        cut=seal_cut(told.cut, box) if told.cut is not None else None,
        summary=summary,
    )


def _open_told(told: Told, open_text: Translate) -> Told:
    """What was sealed."""
    place = _told_place(told)
    reason, detail, summary = told.reason, told.detail, told.summary
    if _has_words(told.kind, reason):
        reason = open_text(f"reason {place}", reason)
    rest = {name: value for name, value in detail.items() if name != "sealed"}
    if rest and (told.kind != "erase" or rest.keys() != {"session"}):  # which stores add for other branches
        raise Unsealed("is not encrypted, though its store is: it was not written with these keys")
    if "sealed" in detail:
        detail = {**decoded(to_bytes(open_text(f"detail {place}", detail["sealed"])), dict), **rest}
    if summary is not None and not _is_wordless(summary):
        words = open_text(_summary_place(summary, told.revision), summary.text)
        made = decoded(to_bytes(words), _Words)
        summary = _replace(summary, text=made.text, items=made.items, fallback=made.fallback)
    cut = conditions(told.cut, open_text) if told.cut is not None else None
    return told._replace(reason=reason, detail=detail, cut=cut, summary=summary)


def seal_record(record: Record, box: Box, session: str | None = None) -> Record:
    """The record as it is stored; that of another branch's erasure says in clear in which `session` that was asked."""
    told = seal_told(_told_by(record), box)
    if session is not None:
        told = told._replace(detail={**told.detail, "session": session})
    return _with(record, told)


def open_record(stored: Record, open_text: Translate) -> Record:
    """The record that was stored."""
    return _replace(_with(stored, _open_told(_told_by(stored), open_text)), before=0, mac="")


def _told_by(record: Record) -> Told:
    summary = record.compaction.summary if record.compaction is not None else None
    return Told(record.kind, record.revision, record.reason, record.detail, record.cut, summary)


def _with(record: Record, told: Told) -> Record:
    compaction = record.compaction
    if compaction is not None:
        compaction = _replace(compaction, summary=told.summary)
    return _replace(record, reason=told.reason, detail=told.detail, cut=told.cut, compaction=compaction)


def asked_in(stored: Record) -> str | None:
    """The session in which the erasure was asked for that a stored record tells of, where that is another one."""
    asked = stored.detail.get("session") if stored.kind == "erase" else None
    return asked if isinstance(asked, str) else None


def teller(stored: Record, lineage: Lineage, session: str) -> str:
    """The session that has sealed what a record tells: it, an ancestor, or where the erasure was asked for."""
    asked = asked_in(stored)
    return asked if asked is not None else owner(lineage, session, revision=stored.revision)


def _is_wordless(summary: Summary) -> bool:
    """Whether a summary was withdrawn, and has nothing left to seal."""
    return summary.withdrawn and not (summary.text or summary.items or summary.fallback)


def _has_words(kind: str, reason: str) -> bool:
    return kind == "erase" and reason not in ("", "expiry")  # stores go by the reason of an expiry


def _told_place(told: Told) -> str:
    return told.kind if told.kind == "erase" else f"{told.kind} {told.revision}"


def _summary_place(summary: Summary, revision: int) -> str:
    return f"summary {summary.revision or revision} {summary.id}"
