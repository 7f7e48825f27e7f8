"""The index of one tenant in SQLite's FTS5: its tables, and what is done with them inside a transaction.

The FTS5 table is contentless: it holds terms and positions, but no text. To delete a document FTS5 needs its terms
again, so the caller makes the document anew from its entry. A checksum tells whether it is the one that was put in.
Nothing here needs an SQLite newer than 3.40.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from palimpsest.log import spans
from palimpsest.log.entry import KINDS, ROLES
from palimpsest.recall.index import LAST_NUMBER, LAST_PART, LAST_SEQ, Cursor, Document, Size, Update, is_same
from palimpsest.recall.postings import PART_BITS, key_of, place_of
from palimpsest.recall.ranking import Facts
from palimpsest.recall.sqlite.layout import TenantTables, forgets, has_vectors, make_tenant, owners_of, set_owners
from palimpsest.recall.sqlite.matching import Matching
from palimpsest.stores.sqlite.connections import Damaged

T = TypeVar("T")

_cursor = msgspec.json.Decoder(Cursor).decode

UNUSED = 0.01
"""When all sessions were indexed, free pages (left by merged segments) are given back beyond this share of the file."""


class TenantIndex(TenantTables):
    """The index of one tenant in a database. Methods are called inside a transaction; the first makes the tables."""

    def __init__(self, db: sqlite3.Connection, tenant: str, *, secure: bool) -> None:
        super().__init__(db, make_tenant(db, tenant, secure=secure))
        self._deletes_at_once = forgets(db, self._number)
        self.answers = Matching(db, self._number, lambda: self.number_of("parts"))
        self._beside: Any = None

    def beside(self, make: Callable[[sqlite3.Connection, int], T]) -> T:
        """Return what `make` makes of the database and the tenant's number. It is made once and kept."""
        if self._beside is None:
            self._beside = make(self._db, self._number)
        made: T = self._beside
        return made

    # --- cursors

    def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        if sessions is None:
            rows = self._run("SELECT name, number, cursor FROM session_N").fetchall()
            return {name: _with(cursor, number) for name, number, cursor in rows}
        asked = msgspec.json.encode(list(sessions)).decode()
        sql = "SELECT name, number, cursor FROM session_N WHERE name IN (SELECT value FROM json_each(?))"
        return {name: _with(cursor, number) for name, number, cursor in self._run(sql, (asked,)).fetchall()}

    def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        asked = msgspec.json.encode(list(numbers)).decode()
        sql = "SELECT number, name FROM session_N WHERE number IN (SELECT value FROM json_each(?))"
        return dict(self._run(sql, (asked,)).fetchall())

    def number_of(self, column: str) -> int:
        """Return one number of the tenant's row: `mark`, `generation` or `parts`."""
        return self._of_tenant(column)[0]

    def _of_tenant(self, columns: str) -> tuple[int, ...]:
        """Return these columns of the tenant's row."""
        row = self._db.execute(f"SELECT {columns} FROM tenant WHERE number = ?", (self._number,)).fetchone()  # noqa: S608
        if row is None or not all(isinstance(value, int) for value in row):
            raise Damaged("the row of a tenant is missing or invalid")
        return tuple(row)

    def set_mark(self, mark: int, generation: int) -> None:
        sql = "UPDATE tenant SET mark = max(mark, ?) WHERE number = ? AND generation = ?"
        self._db.execute(sql, (mark, self._number, generation))
        (free,), (pages,) = (self._db.execute(f"PRAGMA {counter}_count").fetchone() for counter in ("freelist", "page"))
        for _ in range(free if free > pages * UNUSED else 0):
            self._db.execute("PRAGMA incremental_vacuum(1)")  # `execute` runs one step of it, which frees one page

    # --- which store it belongs to

    def adopt(self, word: str, more: Sequence[str], again: bool) -> None:
        """Check that the index belongs to the store that remembers `word` (see `palimpsest.recall.sqlite.identity`).

        An index that does not know `word` belongs to another store and is emptied. From then on it knows `word` and
        those of `more`. `again` makes the next search look at all sessions again.
        """
        if word not in owners_of(self._db, self._number):
            for table in ("session", "entry", "blocked"):
                self._run(f"DELETE FROM {table}_N")  # noqa: S608 (our own tables)
            self.empty()
        elif again:
            self._db.execute("UPDATE tenant SET mark = 0 WHERE number = ?", (self._number,))
        if more:
            self.set_owners(word, *more)

    def set_owners(self, *words: str) -> None:
        """Remember that the index belongs to a store that remembers one of these words."""
        set_owners(self._db, self._number, words)

    # --- writing

    def update(self, session: str, update: Update) -> bool:
        """See `Index.update`."""
        current = self.cursors([session]).get(session)
        blocked = self._blocked(session)
        if not is_same(current, update.expect) or 0 in blocked or self.number_of("generation") != update.generation:
            return False
        number = current.number if current is not None else self._new(session)
        self._drop(number, update.drop)
        self._hide(number, update.lost)
        self._add(number, [document for document in update.add if document.seq not in blocked])
        cursor = msgspec.json.encode(msgspec.structs.replace(update.cursor, number=0))  # a column has the number
        self._run("UPDATE session_N SET cursor = ? WHERE number = ?", (cursor, number))
        return True

    def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        rows = ((session, seq, now) for seq in seqs)
        self._run_many("INSERT OR REPLACE INTO blocked_N VALUES(?, ?, ?)", rows)
        cursor = self.cursors([session]).get(session)
        gone = 0
        if cursor is not None:
            gone = self._drop(cursor.number, drop) + self._hide(cursor.number, spans.of(seqs))
        if 0 in seqs or self._read_note("drop_N") is not None:  # otherwise no term of these was ever in the file
            self._note_scrub()
        self._next_generation()
        return gone

    def blocked(self, before: int) -> dict[str, list[int]]:
        seqs_of = dict[str, list[int]]()
        for session, seq in self._run("SELECT session, seq FROM blocked_N WHERE since < ?", (before,)).fetchall():
            seqs_of.setdefault(session, []).append(seq)
        return seqs_of

    def _blocked(self, session: str) -> set[int]:
        return {seq for (seq,) in self._run("SELECT seq FROM blocked_N WHERE session = ?", (session,)).fetchall()}

    def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document]) -> bool:
        if self.number_of("generation") != generation:
            return False
        self._run_many("DELETE FROM blocked_N WHERE session = ? AND seq = ?", ((session, seq) for seq in seqs))
        cursor = self.cursors([session]).get(session)
        if cursor is not None:
            # An eraser presumed dead may still be running: it may erase entries that were indexed again meanwhile.
            self._hide(cursor.number, spans.of({*seqs}.difference([0], (document.seq for document in add))))
            self._add(cursor.number, [document for document in add if document.seq < cursor.next_seq])
        self._next_generation()
        return True

    def end(self, session: str) -> int:
        cursor = self.cursors([session]).get(session)
        gone = 0
        if cursor is not None:
            gone = self._hide(cursor.number, [(0, LAST_SEQ)])
            self._run("DELETE FROM session_N WHERE number = ?", (cursor.number,))
            self._note_drop()
            self._note_scrub()
        self._next_generation()
        return gone

    def _new(self, session: str) -> int:
        empty = msgspec.json.encode(Cursor())
        number = self._run("INSERT INTO session_N(name, cursor) VALUES(?, ?)", (session, empty)).lastrowid or 0
        if number > LAST_NUMBER:
            raise sqlite3.DataError("the index has reached its highest number of sessions; rebuild it")
        return number

    def _add(self, number: int, documents: Sequence[Document]) -> None:
        """Put documents in the index; whatever else is left in their places is removed first."""
        checksums = self._entries(number, [document.seq for document in documents])
        documents = [document for document in documents if checksums.get(document.seq) != _checksum(document)]
        replaced_seqs = [document.seq for document in documents if document.seq in checksums]
        if replaced_seqs:
            self._hide(number, spans.of(replaced_seqs))
            self.purge()
        words = (
            (key_of(number, document.seq, i), " ".join(part))
            for document in documents
            for i, part in enumerate(document.parts)
        )
        self._run_many("INSERT INTO words_N(rowid, terms) VALUES(?, ?)", words)
        rows = (
            (_place(number, document.seq), *_kept(document.facts), len(document.parts), _checksum(document))
            for document in documents
        )
        self._run_many("INSERT INTO entry_N VALUES(?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._count(len(documents), sum(len(document.parts) for document in documents), 0)

    def _drop(self, number: int, documents: Sequence[Document]) -> int:
        """Remove those of these documents that are indexed exactly as given; return how many parts were removed."""
        checksums = self._entries(number, [document.seq for document in documents])
        same = [document for document in documents if checksums.get(document.seq) == _checksum(document)]
        words = (
            ("delete", key_of(number, document.seq, i), " ".join(part))
            for document in same
            for i, part in enumerate(document.parts)
        )
        self._run_many("INSERT INTO words_N(words_N, rowid, terms) VALUES(?, ?, ?)", words)
        self._run_many("DELETE FROM entry_N WHERE place = ?", ((_place(number, document.seq),) for document in same))
        self._drop_vectors(number, spans.of(document.seq for document in documents))
        parts = sum(len(document.parts) for document in same)
        if same:
            self._note_drop()
        self._count(-len(same), -parts, 0)
        return parts

    def _hide(self, number: int, lost_spans: Iterable[tuple[int, int]]) -> int:
        """Hide these entries, whose terms are not at hand, from every search; return how many parts became stale.

        Their keys stay taken until `purge`: FTS5 cannot tell two documents with one key apart.
        """
        entries = parts = 0
        lost_spans = list(lost_spans)
        self._drop_vectors(number, lost_spans)
        for low, high in lost_spans:
            ends = _place(number, low), _place(number, high)
            live = "FROM entry_N WHERE place BETWEEN ? AND ? AND checksum != -1"
            counted = self._run(f"SELECT count(*), sum(parts) {live}", ends).fetchone()
            if counted[0]:
                entries, parts = entries + counted[0], parts + counted[1]
                self._run("UPDATE entry_N SET checksum = -1, name = NULL WHERE place BETWEEN ? AND ?", ends)
        if entries:
            self._note_drop()
        self._count(-entries, -parts, parts)
        return parts

    def _drop_vectors(self, number: int, gone: Sequence[tuple[int, int]]) -> None:
        """Remove the vectors of these entries, if the tenant has a table of vectors."""
        if gone and has_vectors(self._db, self._number):
            ranges = ((key_of(number, low), key_of(number, high, LAST_PART)) for low, high in gone)
            before = self._db.total_changes
            self._run_many("DELETE FROM vector_N WHERE key BETWEEN ? AND ?", ranges)
            if self._db.total_changes > before:
                self._note_drop()
            self._db.execute("UPDATE vectors SET generation = generation + 1 WHERE number = ?", (self._number,))

    def _entries(self, number: int, seqs: Sequence[int]) -> dict[int, int]:
        """Return the checksums of those of these entries that are in the index, by `seq`."""
        asked = msgspec.json.encode([_place(number, seq) for seq in seqs]).decode()
        sql = "SELECT place, checksum FROM entry_N WHERE place IN (SELECT value FROM json_each(?))"
        return {place & LAST_SEQ: checksum for place, checksum in self._run(sql, (asked,)).fetchall()}

    def _count(self, entries: int, parts: int, stale: int) -> None:
        if entries or parts or stale:
            sql = "UPDATE tenant SET entries = entries + ?, parts = parts + ?, stale = stale + ? WHERE number = ?"
            self._db.execute(sql, (entries, parts, stale, self._number))

    def _next_generation(self) -> None:
        self._db.execute("UPDATE tenant SET generation = generation + 1 WHERE number = ?", (self._number,))

    # --- the index as a whole

    def size(self) -> Size:
        entries, parts, stale = self._of_tenant("entries, parts, stale")
        (sessions,) = self._run("SELECT count(*) FROM session_N").fetchone()
        (pages,), (page,) = (self._db.execute(f"PRAGMA page_{name}").fetchone() for name in ("count", "size"))
        return Size(sessions=sessions, entries=entries, parts=parts, bytes=pages * page, stale=stale)

    def empty(self) -> None:
        """Remove everything but the blocks."""
        self._note_drop()
        self._note_scrub()
        for table in ("session", "entry"):
            self._run(f"DELETE FROM {table}_N")  # noqa: S608 (our own tables)
        self._run("INSERT INTO words_N(words_N) VALUES('delete-all')")
        if has_vectors(self._db, self._number):
            self._run("DELETE FROM vector_N")
            self._db.execute("UPDATE vectors SET generation = generation + 1 WHERE number = ?", (self._number,))
        none = "mark = 0, generation = generation + 1, entries = 0, parts = 0, stale = 0"
        self._db.execute(f"UPDATE tenant SET {none} WHERE number = ?", (self._number,))  # noqa: S608 (as above)
        self.answers.forget()

    def purge(self) -> None:
        """Remove stale parts. FTS5 needs their terms for that, which are read back from its list of term positions."""
        stale_entries = self._run("SELECT place, parts FROM entry_N WHERE checksum = -1").fetchall()
        terms_by_key: dict[int, list[str]] = {
            place << PART_BITS | i: [] for place, parts in stale_entries for i in range(parts)
        }
        keys_json = msgspec.json.encode(list(terms_by_key)).decode()
        positions = (
            "SELECT doc, term FROM temp.stand_N WHERE doc IN (SELECT value FROM json_each(?)) ORDER BY doc, offset"
        )
        for key, term in self._run(positions, (keys_json,)).fetchall():
            terms_by_key[key].append(term)
        words = (("delete", key, " ".join(terms)) for key, terms in terms_by_key.items())
        self._run_many("INSERT INTO words_N(words_N, rowid, terms) VALUES(?, ?, ?)", words)
        self._run("DELETE FROM entry_N WHERE checksum = -1")
        self._count(0, 0, -len(terms_by_key))
        self._note_drop()
        self._note_scrub()

    def _note_scrub(self) -> None:
        """Note that the file must be written anew because of an erasure. The note survives a kill."""
        self._count_up("scrub_N")

    def _note_drop(self) -> None:
        """Note that terms of removed parts may remain in the file until it is written anew: in unused parts of pages,
        and in segments if SQLite does not delete them from these at once."""
        self._count_up("drop_N")
        if not self._deletes_at_once:
            self._count_up("segments_N")

    def _count_up(self, name: str) -> None:
        self._run(f"INSERT INTO meta VALUES('{name}', 1) ON CONFLICT DO UPDATE SET value = value + 1")

    def _read_note(self, name: str) -> int | None:
        row = self._run(f"SELECT value FROM meta WHERE name = '{name}'").fetchone()  # noqa: S608 (a name of ours)
        return None if row is None else int(row[0])

    def noted(self) -> Noted:
        """Return the notes as they are now."""
        return Noted(self._read_note("scrub_N"), self._read_note("drop_N"), self._read_note("segments_N"))

    def scrubbed(self, noted: Noted) -> None:
        """Delete these notes, except those that were counted up meanwhile."""
        for name, value in zip(("scrub_N", "drop_N", "segments_N"), noted, strict=True):
            self._run(f"DELETE FROM meta WHERE name = '{name}' AND value = ?", (value,))  # noqa: S608 (as above)

    def merge(self) -> None:
        """Write the segments of the words anew, without what was deleted from them."""
        self._run("INSERT INTO words_N(words_N) VALUES('optimize')")


class Noted(NamedTuple):
    """Counters of the notes: file to be written anew, terms dropped, terms left in segments. None: not noted."""

    scrub: int | None
    drop: int | None
    segments: int | None


def _kept(facts: Facts) -> tuple[int, int, int, int, str | None]:
    return facts.at, KINDS.index(facts.kind), ROLES.index(facts.role), facts.chars, facts.name


def _place(number: int, seq: int) -> int:
    return place_of(key_of(number, seq))


def _checksum(document: Document) -> int:
    return zlib.crc32("\n".join(" ".join(part) for part in document.parts).encode("utf-8", "surrogatepass"))


def _with(cursor: bytes, number: int) -> Cursor:
    if not isinstance(cursor, bytes):
        raise Damaged("the record of how far a session is indexed is invalid")
    return msgspec.structs.replace(_cursor(cursor), number=number)
