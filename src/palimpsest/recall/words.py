"""An index in SQLite's FTS5: its tables, and what is done with them in a transaction. All of one tenant.

Words are kept contentless: what is in them are terms, and where they stand, but no text. So a document is dropped by
giving its terms once more, which whoever drops it makes anew from the entry; a checksum says whether they are the same.
Nothing here needs a newer SQLite than 3.40.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from palimpsest.log import spans
from palimpsest.log.entry import KINDS, ROLES
from palimpsest.recall.answers import Answers
from palimpsest.recall.index import LAST_NUMBER, LAST_PART, LAST_SEQ, Cursor, Document, Size, Update, is_same
from palimpsest.recall.postings import PART_BITS, key_of, place_of
from palimpsest.recall.ranking import Facts
from palimpsest.recall.tables import forgets, has_vectors, met, of_tenant, who_was_met
from palimpsest.stores.sqlite.connections import Damaged

T = TypeVar("T")

_cursor = msgspec.json.Decoder(Cursor).decode

UNUSED = 0.01
"""The share of the file that may be unused when all was taken in, from merged segments: beyond it, it is given back."""


class Words:
    """The index of one tenant in a database. Each method is called in a transaction; the first makes the tables."""

    def __init__(self, db: sqlite3.Connection, tenant: str, *, secure: bool) -> None:
        self._db = db
        self._number = of_tenant(db, tenant, secure=secure)
        self._secure = forgets(db, self._number)
        self.answers = Answers(db, self._number, lambda: self.told("parts"))
        self._beside: Any = None

    def beside(self, make: Callable[[sqlite3.Connection, int], T]) -> T:
        """Return what else there is of the tenant in the database, made once, of that and his number."""
        if self._beside is None:
            self._beside = make(self._db, self._number)
        found: T = self._beside
        return found

    def _run(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement over the tenant's own tables."""
        return self._db.execute(sql.replace("_N", f"_{self._number}"), values)

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

    def told(self, what: str) -> int:
        """A number of the tenant's own: `mark`, `generation`."""
        return self._of_tenant(what)[0]

    def _of_tenant(self, what: str) -> tuple[int, ...]:
        found = self._db.execute(f"SELECT {what} FROM tenant WHERE number = ?", (self._number,)).fetchone()  # noqa: S608
        if found is None or not all(isinstance(value, int) for value in found):
            raise Damaged("a tenant has gone that was there, or a number of his is none")
        return tuple(found)

    def set_mark(self, mark: int, generation: int) -> None:
        sql = "UPDATE tenant SET mark = max(mark, ?) WHERE number = ? AND generation = ?"
        self._db.execute(sql, (mark, self._number, generation))
        (free,), (pages,) = (self._db.execute(f"PRAGMA {what}_count").fetchone() for what in ("freelist", "page"))
        for _ in range(free if free > pages * UNUSED else 0):
            self._db.execute("PRAGMA incremental_vacuum(1)")  # sqlite3 runs the first step alone: a page

    # --- whose it is

    def meet(self, word: str, more: Sequence[str], again: bool) -> None:
        """Be of the store that says this word, and of one that says another of `more`. One that knows no such word is
        emptied; `again` has it look at all sessions again."""
        if word not in who_was_met(self._db, self._number):
            for table in ("session", "entry", "blocked"):
                self._run(f"DELETE FROM {table}_N")  # noqa: S608 (our own tables)
            self.empty()
        elif again:
            self._db.execute("UPDATE tenant SET mark = 0 WHERE number = ?", (self._number,))
        if more:
            self.met(word, *more)

    def met(self, *words: str) -> None:
        """Be of a store that says one of these words."""
        met(self._db, self._number, words)

    # --- writing

    def update(self, session: str, update: Update) -> bool:
        """As `Index.update` says."""
        there = self.cursors([session]).get(session)
        blocked = self._blocked(session)
        if not is_same(there, update.expect) or 0 in blocked or self.told("generation") != update.generation:
            return False
        number = there.number if there is not None else self._new(session)
        self._drop(number, update.drop)
        self._lose(number, update.lost)
        self._add(number, [document for document in update.add if document.seq not in blocked])
        cursor = msgspec.json.encode(msgspec.structs.replace(update.cursor, number=0))  # which is the row's
        self._run("UPDATE session_N SET cursor = ? WHERE number = ?", (cursor, number))
        return True

    def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        rows = ((session, seq, now) for seq in seqs)
        self._many("INSERT OR REPLACE INTO blocked_N VALUES(?, ?, ?)", rows)
        there = self.cursors([session]).get(session)
        gone = 0
        if there is not None:
            gone = self._drop(there.number, drop) + self._lose(there.number, spans.of(seqs))
        if 0 in seqs or self._told("drop_N") is not None:  # else nothing of it was here
            self._note()
        self._move_on()
        return gone

    def blocked(self, before: int) -> dict[str, list[int]]:
        found = dict[str, list[int]]()
        for session, seq in self._run("SELECT session, seq FROM blocked_N WHERE since < ?", (before,)).fetchall():
            found.setdefault(session, []).append(seq)
        return found

    def _blocked(self, session: str) -> set[int]:
        return {seq for (seq,) in self._run("SELECT seq FROM blocked_N WHERE session = ?", (session,)).fetchall()}

    def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document]) -> bool:
        if self.told("generation") != generation:
            return False
        self._many("DELETE FROM blocked_N WHERE session = ? AND seq = ?", ((session, seq) for seq in seqs))
        there = self.cursors([session]).get(session)
        if there is not None:
            # Who was taken for killed, and was not, has erased what somebody took back meanwhile.
            self._lose(there.number, spans.of({*seqs}.difference([0], (one.seq for one in add))))
            self._add(there.number, [one for one in add if one.seq < there.next_seq])
        self._move_on()
        return True

    def end(self, session: str) -> int:
        there = self.cursors([session]).get(session)
        gone = 0
        if there is not None:
            gone = self._lose(there.number, [(0, LAST_SEQ)])
            self._run("DELETE FROM session_N WHERE number = ?", (there.number,))
            self._dropped()
            self._note()
        self._move_on()
        return gone

    def _new(self, session: str) -> int:
        empty = msgspec.json.encode(Cursor())
        number = self._run("INSERT INTO session_N(name, cursor) VALUES(?, ?)", (session, empty)).lastrowid or 0
        if number > LAST_NUMBER:
            raise sqlite3.DataError("the index has had as many sessions as it can count; make it anew")
        return number

    def _add(self, number: int, documents: Sequence[Document]) -> None:
        """Put documents; first what is left of others in their places goes."""
        there = self._entries(number, [document.seq for document in documents])
        documents = [document for document in documents if there.get(document.seq) != _checksum(document)]
        taken = [document.seq for document in documents if document.seq in there]
        if taken:
            self._lose(number, spans.of(taken))
            self.purge()
        words = ((key_of(number, one.seq, i), " ".join(part)) for one in documents for i, part in enumerate(one.parts))
        self._many("INSERT INTO words_N(rowid, terms) VALUES(?, ?)", words)
        rows = ((_place(number, one.seq), *_kept(one.facts), len(one.parts), _checksum(one)) for one in documents)
        self._many("INSERT INTO entry_N VALUES(?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._count(len(documents), sum(len(one.parts) for one in documents), 0)

    def _drop(self, number: int, documents: Sequence[Document]) -> int:
        """Drop those of these documents that are there, as they are; return how many parts went."""
        there = self._entries(number, [document.seq for document in documents])
        same = [one for one in documents if there.get(one.seq) == _checksum(one)]
        words = (
            ("delete", key_of(number, one.seq, i), " ".join(part)) for one in same for i, part in enumerate(one.parts)
        )
        self._many("INSERT INTO words_N(words_N, rowid, terms) VALUES(?, ?, ?)", words)
        self._many("DELETE FROM entry_N WHERE place = ?", ((_place(number, one.seq),) for one in same))
        self._drop_vectors(number, spans.of(document.seq for document in documents))
        parts = sum(len(one.parts) for one in same)
        if same:
            self._dropped()
        self._count(-len(same), -parts, 0)
        return parts

    def _lose(self, number: int, gone: Iterable[tuple[int, int]]) -> int:
        """See that nobody finds these entries, whose terms nobody has; return how many parts are stale by it.

        Their places stay taken until they are purged: two documents of one key are what no FTS5 table can tell apart.
        """
        entries = parts = 0
        gone = list(gone)
        self._drop_vectors(number, gone)
        for low, high in gone:
            ends = _place(number, low), _place(number, high)
            living = "FROM entry_N WHERE place BETWEEN ? AND ? AND checksum != -1"
            found = self._run(f"SELECT count(*), sum(parts) {living}", ends).fetchone()
            if found[0]:
                entries, parts = entries + found[0], parts + found[1]
                self._run("UPDATE entry_N SET checksum = -1, name = NULL WHERE place BETWEEN ? AND ?", ends)
        if entries:
            self._dropped()
        self._count(-entries, -parts, parts)
        return parts

    def _drop_vectors(self, number: int, gone: Sequence[tuple[int, int]]) -> None:
        """Drop the vectors of these entries, where somebody has made some."""
        if gone and has_vectors(self._db, self._number):
            ranges = ((key_of(number, low), key_of(number, high, LAST_PART)) for low, high in gone)
            before = self._db.total_changes
            self._many("DELETE FROM vector_N WHERE key BETWEEN ? AND ?", ranges)
            if self._db.total_changes > before:
                self._dropped()
            self._db.execute("UPDATE vectors SET generation = generation + 1 WHERE number = ?", (self._number,))

    def _entries(self, number: int, seqs: Sequence[int]) -> dict[int, int]:
        """Which of these entries are there, with their checksums."""
        asked = msgspec.json.encode([_place(number, seq) for seq in seqs]).decode()
        sql = "SELECT place, checksum FROM entry_N WHERE place IN (SELECT value FROM json_each(?))"
        return {place & LAST_SEQ: checksum for place, checksum in self._run(sql, (asked,)).fetchall()}

    def _count(self, entries: int, parts: int, stale: int) -> None:
        if entries or parts or stale:
            sql = "UPDATE tenant SET entries = entries + ?, parts = parts + ?, stale = stale + ? WHERE number = ?"
            self._db.execute(sql, (entries, parts, stale, self._number))

    def _move_on(self) -> None:
        self._db.execute("UPDATE tenant SET generation = generation + 1 WHERE number = ?", (self._number,))

    def _many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        self._db.executemany(sql.replace("_N", f"_{self._number}"), rows)

    # --- the whole

    def size(self) -> Size:
        entries, parts, stale = self._of_tenant("entries, parts, stale")
        (sessions,) = self._run("SELECT count(*) FROM session_N").fetchone()
        (pages,), (page,) = (self._db.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
        return Size(sessions=sessions, entries=entries, parts=parts, bytes=pages * page, stale=stale)

    def empty(self) -> None:
        """Forget all but what is blocked."""
        self._dropped()
        self._note()
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
        """Drop what is stale, with its terms as the words themselves tell them: they are gone through for that."""
        stale = self._run("SELECT place, parts FROM entry_N WHERE checksum = -1").fetchall()
        found: dict[int, list[str]] = {place << PART_BITS | i: [] for place, parts in stale for i in range(parts)}
        asked = msgspec.json.encode(list(found)).decode()
        there = "SELECT doc, term FROM temp.stand_N WHERE doc IN (SELECT value FROM json_each(?)) ORDER BY doc, offset"
        for key, term in self._run(there, (asked,)).fetchall():
            found[key].append(term)
        words = (("delete", key, " ".join(terms)) for key, terms in found.items())
        self._many("INSERT INTO words_N(words_N, rowid, terms) VALUES(?, ?, ?)", words)
        self._run("DELETE FROM entry_N WHERE checksum = -1")
        self._count(0, 0, -len(found))
        self._dropped()
        self._note()

    def _note(self) -> None:
        """Note that the file is to be written anew, for an erasure: also after a kill."""
        self._count_up("scrub_N")

    def _dropped(self) -> None:
        """Note that terms of what is dropped may be left in the file, until it is written anew: in unused parts of
        pages, and in segments, where SQLite does not take them out of these."""
        self._count_up("drop_N")
        if not self._secure:
            self._count_up("segments_N")

    def _count_up(self, name: str) -> None:
        self._run(f"INSERT INTO meta VALUES('{name}', 1) ON CONFLICT DO UPDATE SET value = value + 1")

    def _told(self, name: str) -> int | None:
        found = self._run(f"SELECT value FROM meta WHERE name = '{name}'").fetchone()  # noqa: S608 (a name of ours)
        return None if found is None else int(found[0])

    def noted(self) -> Noted:
        """What was noted last."""
        return Noted(self._told("scrub_N"), self._told("drop_N"), self._told("segments_N"))

    def scrubbed(self, noted: Noted) -> None:
        """Take notes back, unless there are newer ones."""
        for name, value in zip(("scrub_N", "drop_N", "segments_N"), noted, strict=True):
            self._run(f"DELETE FROM meta WHERE name = '{name}' AND value = ?", (value,))  # noqa: S608 (as above)

    def merge(self) -> None:
        """Write the words anew, without those that were dropped."""
        self._run("INSERT INTO words_N(words_N) VALUES('optimize')")


class Noted(NamedTuple):
    """How often the file was to be written anew, something was dropped, and was left in segments; None for never."""

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
        raise Damaged("how far a session was taken in is said by what is no record of ours")
    return msgspec.structs.replace(_cursor(cursor), number=number)
