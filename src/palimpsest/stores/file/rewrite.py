"""Logs written anew: without what is erased, up to where a branch begins, from a dump. Line by line, never whole.

Heads of the lines that are not copied as they are fall away: only a log's last head is ever read, and an earlier
one may name what is erased.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import BinaryIO

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.codec import decoded
from palimpsest.log.entry import Entry, pack
from palimpsest.log.head import Head
from palimpsest.stores import Dump
from palimpsest.stores.file.lines import Line, read_entry, with_place, write_line
from palimpsest.stores.file.log import ENDLESS, Found, Log
from palimpsest.stores.rewriting import Rewrite

BATCH = 64
"""Entries of a dump that share a line."""


def write_erased(
    log: Log,
    file: BinaryIO,
    begin: int,
    seqs: set[int],
    changed: Mapping[int, Record],
    grave: Callable[[Entry], Entry],
) -> set[str]:
    """Write the log with tombstones for the entries at `seqs`; return the contents that these had.

    `changed` are records, by revision, that come in the place of those that are there; `grave` makes a tombstone. Lines
    before the byte `begin` are copied as they are. Raises StoreCorrupt where a later one is damaged that may hold
    anything but entries: it may tell of what is to be erased.
    """
    dropped: set[str] = set()
    last = max(seqs, default=0)
    copy(log, file, log.start, begin)
    reached, revision, damaged = 0, 0, list[Line]()
    for line in log.lines(begin):
        if not line.sound:
            damaged.append(line)
            continue
        if damaged:
            file.write(_without(log, damaged, range(reached, line.seq), revision, seqs, grave))
            damaged = []
        revision = line.revision
        if line.seq > last and line.revision not in changed and (bare := log.without_head(line)) is not None:
            file.write(bare)
            reached = max(reached, last + 1)
            continue
        found, record, at = log.parts(line)
        reached = found[-1][0].seq + 1 if found else line.seq
        for one, _ in found:
            if one.seq in seqs:
                dropped |= set(one.contents)
        entries = [_buried(one, grave) if one[0].seq in seqs else bytes(one[1]) for one in found]
        if entries or record is not None:
            now = changed.get(line.revision, record) if record is not None else None
            file.write(write_line(line.kind, line.revision, line.seq, at, entries=entries, record=now))
    return dropped


def _without(
    log: Log, lines: list[Line], gap: range, revision: int, seqs: set[int], grave: Callable[[Entry], Entry]
) -> bytes:
    """What comes in the place of damaged lines. Where some of their entries are erased nothing of them stays: those are
    tombstones, the others what stands for them. Else they stay without their heads.

    Raises StoreCorrupt where they may hold something else.
    """
    if any(line.may_be_record() for line in lines):
        raise log.corrupt(lines[0])
    if seqs.isdisjoint(gap):
        cuts = [line.raw.rfind(b',"head":') for line in lines]
        if min(cuts) < 0:
            raise log.corrupt(lines[0])
        return b"".join(line.raw[:cut] + b"\n" for line, cut in zip(lines, cuts, strict=True))
    found = log.entries(gap.start, gap.stop)
    entries = [_buried(one, grave) if one[0].seq in seqs else bytes(one[1]) for one in found]
    return write_line("load", revision, gap.start, 0, entries=entries)


def write_branch(log: Log, file: BinaryIO, head: Head) -> None:
    """Write the entries before `head.next_seq`, and the records up to `head.revision`, each in its place."""
    begin = min(log.find(head.next_seq)[0], log.find(head.revision, "revision")[0])
    copy(log, file, log.start, begin)
    for line in log.sound_lines(begin):
        found, record, at = log.parts(line)
        entries = [bytes(raw) for one, raw in found if one.seq < head.next_seq]
        if line.revision > head.revision:
            record = None
        if entries or record is not None:
            seq, revision = min(line.seq, head.next_seq), min(line.revision, head.revision)
            file.write(write_line(line.kind, revision, seq, at, entries=entries, record=record))
    file.write(write_line("fork", head.revision, head.next_seq, head.updated, head=head))


def write_dump(dump: Dump, head: Head, file: BinaryIO, store: Callable[[bytes], bytes]) -> None:
    """Write a dump's entries and records, oldest first, and the head; `store` takes large contents out of an entry."""
    records = sorted(dump.records, key=lambda record: record.revision)
    seq, revision, next_record = 1, 0, 0
    for start in range(0, len(dump.entries), BATCH):
        batch = dump.entries[start : start + BATCH]
        while next_record < len(records) and records[next_record].revision < batch[0].revision:
            record = records[next_record]
            revision, next_record = record.revision, next_record + 1
            file.write(write_line(record.kind, revision, seq, record.at, record=record))
        seq = batch[0].seq
        entries = [with_place(entry.id, entry.seq, store(pack(entry))) for entry in batch]
        file.write(write_line("load", revision, seq, head.updated, entries=entries))
        seq = batch[-1].seq + 1
    for record in records[next_record:]:
        revision = record.revision
        file.write(write_line(record.kind, revision, seq, record.at, record=record))
    file.write(write_line("load", max(head.revision, revision), head.next_seq, head.updated, head=head))


def write_rewritten(
    log: Log, file: BinaryIO, how: Rewrite, head: Head, read: Callable[[Found], Entry], store: Callable[[bytes], bytes]
) -> set[str]:
    """Write the log as `how` says, with this head; return the contents of the entries that stay as they are."""
    moved = log.head is None or log.head.revision != head.revision
    still = set[str]()
    for line in log.sound_lines():
        found, record, at = log.parts(line)
        entries = []
        for one in found:
            old = read(one)
            new = how.entry(old)
            if new is old:
                still |= set(one[0].contents)
            entries.append(bytes(one[1]) if new is old else with_place(new.id, new.seq, store(pack(new))))
        told: Record | msgspec.Raw | None = record
        if record is not None and (new_record := how.record(before := decoded(bytes(record), Record))) is not before:
            told = new_record
        if entries or told is not None:
            file.write(write_line(line.kind, line.revision, line.seq, at, entries=entries, record=told))
    kind = "rewrite" if moved else "load"  # a head that has not moved is no commit of its own
    file.write(write_line(kind, head.revision, head.next_seq, head.updated, head=head))
    return still


def copy(log: Log, file: BinaryIO, begin: int, end: int) -> None:
    """Copy these bytes of the log."""
    file.writelines(log.pieces.blocks(begin, end))


def contents_of(log: Log, next_seq: int = ENDLESS) -> set[str]:
    """The large contents that entries before `next_seq` refer to; of a damaged line, whatever it may refer to."""
    found: set[str] = set()
    for line in log.lines():
        if not line.sound:
            found |= {digest.decode() for digest in _DIGEST.findall(line.raw)}
        elif line.seq >= next_seq:
            break
        elif b'"held":' in line.raw:
            for at, _ in log.found_in(line):
                found |= set(at.contents) if at.seq < next_seq else set()
    return found


_DIGEST = re.compile(rb"[0-9a-f]{64}")


def _buried(found: Found, grave: Callable[[Entry], Entry]) -> bytes:
    """The tombstone of an entry as it stands in a line."""
    at, raw = found
    return with_place(at.id, at.seq, pack(grave(read_entry(raw, at, None, lambda _: b""))))
