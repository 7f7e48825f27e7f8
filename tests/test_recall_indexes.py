"""Every kind of index gives the same answers and scores for the same verbs."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

import postgresstore
from palimpsest.log.entry import Kind
from palimpsest.log.spans import Span
from palimpsest.recall.index import COMMON, LAST_PART, LAST_SEQ, RANGES, Cursor, Document, Filter, Index, Update
from palimpsest.recall.memory.index import PlainIndex
from palimpsest.recall.postgres.index import PostgresIndex
from palimpsest.recall.postings import SEQ_BITS, key_of, place_of
from palimpsest.recall.ranking import Facts
from palimpsest.recall.sqlite.index import File, FtsIndex
from palimpsest.recall.vectors import Row
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.opening import open_store
from processes import at_once

T = TypeVar("T")

WORDS = [
    *["a", "b", "c", "no", "la", "do", "re", "mi", "fa", "so", "ti", "cat", "dog", "_2024_05", "x1", "10", "don"],
    "\u00e9t\u00e9",
    "\u6f22",
    "\u6f22\u5b57",
    "\uff58",
]


class Kept(NamedTuple):
    """A place for indexes; `of` returns the index of a tenant."""

    kind: str
    of: Callable[[str], Index]


def opened(kind: str, folder: Path, end: ExitStack) -> Kept:
    """Open a new place for indexes of a kind."""
    runner = Inline()
    if kind == "plain":
        known = dict[str, Index]()
        return Kept(kind, lambda tenant: known.setdefault(tenant, PlainIndex(runner)))
    if kind == "postgres":
        address = postgresstore.address_of("indexes")
        end.callback(lambda: drive(runner.close()))
        backend = open_store(address, runner).backend
        end.callback(lambda: drive(backend.close()))
        tables = backend.tables
        assert tables is not None

        def of(tenant: str) -> Index:
            index = PostgresIndex(tables, tenant, "palimpsest.recall", backend.url)
            drive(index.open(vectors=find_spec("numpy") is not None))
            return index

        return Kept(kind, of)
    file = end.enter_context(closing(File(str(folder / "index") if kind == "file" else "")))
    return Kept(kind, lambda tenant: FtsIndex(file, tenant, runner, ""))


KINDS = ["file", "memory", "plain", "postgres"]


@pytest.fixture(params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """A place for indexes, once of each kind."""
    with ExitStack() as end:
        yield opened(request.param, tmp_path, end)


@pytest.fixture
def all_kept(tmp_path: Path) -> Iterator[list[Kept]]:
    """One place for indexes of each kind."""
    with ExitStack() as end:
        yield [opened(kind, tmp_path, end) for kind in KINDS]


def document(seq: int, *parts: str, kind: Kind = "message", name: str | None = None) -> Document:
    """Return a document with these parts, whose words are separated by blanks."""
    facts = Facts(seq * 1_000, kind, "user", sum(map(len, parts)), name)
    return Document(seq, facts, [part.split() for part in parts])


def added(index: Index, session: str, *documents: Document, created: int = 1) -> None:
    """Add documents to a session."""
    there = drive(index.cursors([session])).get(session)
    last = max((one.seq for one in documents), default=0)
    cursor = Cursor(created=created, revision=(there.revision if there else 0) + 1, next_seq=last + 1)
    update = Update(expect=there, generation=drive(index.generation()), cursor=cursor, add=documents)
    assert drive(index.update(session, update))


Found = dict[tuple[str, int, int], float]


def found(index: Index, terms: Sequence[str], sessions: Sequence[str] | None = None, most: int = COMMON) -> list[Found]:
    """Return for each term the existing entries and parts that have it, with their scores."""
    numbers = None
    if sessions is not None:
        numbers = [one.number for one in drive(index.cursors(sessions)).values()]
    matches = drive(index.matches(terms, numbers, most))
    places = {place_of(key) for one in matches for key in one}
    there = drive(index.facts(sorted(places)))
    names = drive(index.sessions({place >> SEQ_BITS for place in there}))
    return [
        {
            (names[place_of(key) >> SEQ_BITS], place_of(key) & LAST_SEQ, key & LAST_PART): score
            for key, score in one.items()
            if place_of(key) in there
        }
        for one in matches
    ]


# --- each by itself


def test_a_phrase_matches_adjacent_words_in_order(kept: Kept) -> None:
    """A phrase matches adjacent words in order only; a phrase may overlap itself."""
    index = kept.of("t")
    added(index, "s", document(1, "do re mi"), document(2, "re do mi"), document(3, "do x re"), document(4, "no no no"))

    assert [set(one) for one in found(index, ["do re", "re mi", "do mi", "no no", "do"])] == [
        {("s", 1, 0)},
        {("s", 1, 0)},
        {("s", 2, 0)},
        {("s", 4, 0)},
        {("s", 1, 0), ("s", 2, 0), ("s", 3, 0)},
    ]


def test_terms_are_never_read_as_syntax(kept: Kept) -> None:
    """No term is a statement, pattern or query of the index, whatever its characters."""
    index = kept.of("t")
    added(index, "s", document(1, "cat dog"))
    hostile = ["'", '"', "cat OR dog", "cat*", "NOT cat", "%", "_", "\\", "c.t", "'; DROP TABLE recall_parts; --", "$1"]
    hostile += ["\x00", "cat\x00", "\ud800", "", " ", "NEAR(cat dog)", "{terms}: cat", "cat & !dog", "1.cat", "*"]

    assert all(set(one) <= {("s", 1, 0)} for one in found(index, hostile))
    assert not any(found(index, ["cat dog mi", "dog cat", "catdog", "1.cat dog", "\x00", "\ud800", '"']))
    assert [set(one) for one in found(index, ["cat"])] == [{("s", 1, 0)}]


def test_one_tenants_entries_never_affect_anothers_hits(kept: Kept) -> None:
    """One tenant's entries do not affect the hits or scores of another, nor go when that is emptied."""
    one, other = kept.of("one"), kept.of("other")
    added(one, "s", document(1, "cat"), document(2, "dog"), document(3, "mi"))
    alone = found(one, ["cat"])

    added(other, "s", *(document(seq, "cat cat") for seq in range(1, 50)))
    assert found(one, ["cat"]) == alone

    drive(one.empty())
    assert found(one, ["cat"]) == [{}]
    assert len(found(other, ["cat"])[0]) == 49


def test_updates_skip_blocked_entries_until_unblocked(kept: Kept) -> None:
    """Between `block` and `unblock` no update brings an entry back."""
    index = kept.of("t")
    cat, dog = document(1, "cat"), document(2, "dog")
    added(index, "s", cat, dog)
    before = drive(index.generation())

    assert drive(index.block("s", [cat], [1], 1000)) == 1
    assert drive(index.generation()) != before
    added(index, "s", cat, dog)
    assert [set(one) for one in found(index, ["cat", "dog"])] == [set(), {("s", 2, 0)}]
    assert drive(index.blocked(1001)) == {"s": [1]}
    assert drive(index.blocked(1000)) == {}

    assert not drive(index.unblock("s", [1], before, [cat])), "something was removed since"
    assert drive(index.unblock("s", [1], drive(index.generation()), [document(1, "mi")]))
    assert [set(one) for one in found(index, ["cat", "mi"])] == [set(), {("s", 1, 0)}]
    assert drive(index.blocked(2**60)) == {}


def test_blocking_seq_0_blocks_a_whole_session(kept: Kept) -> None:
    """Blocking seq 0 blocks a whole session, even an unknown one: updates for it do nothing."""
    index = kept.of("t")
    drive(index.block("s", [], [0], 1))
    cursor = Cursor(created=1, revision=1, next_seq=2)

    update = Update(expect=None, generation=drive(index.generation()), cursor=cursor, add=[document(1, "cat")])

    assert not drive(index.update("s", update))
    assert drive(index.cursors(["s"])) == {}
    assert found(index, ["cat"]) == [{}]


def test_an_update_with_an_outdated_cursor_or_generation_does_nothing(kept: Kept) -> None:
    """An update with an outdated cursor or generation does nothing, so that only one of two equal updates is made."""
    index, beside = kept.of("t"), kept.of("t")
    added(index, "s", document(1, "cat"))
    there, generation = drive(index.cursors(["s"]))["s"], drive(index.generation())
    cursor = Cursor(created=1, revision=2, next_seq=3)
    update = Update(
        expect=there, generation=generation, cursor=cursor, add=[document(2, "dog")], drop=[document(1, "cat")]
    )

    assert drive(beside.update("s", update))
    assert not drive(index.update("s", update))
    assert not drive(index.update("s", Update(expect=None, generation=generation, cursor=cursor)))
    stale = Update(expect=cursor, generation=generation + 1, cursor=cursor, add=[document(3, "mi")])
    assert not drive(index.update("s", stale))

    assert [set(one) for one in found(index, ["cat", "dog", "mi"])] == [set(), {("s", 2, 0)}, set()]
    size = drive(index.size())
    assert (size.sessions, size.entries, size.parts, size.stale) == (1, 1, 1, 0)
    assert size.bytes > 0


def test_ending_a_session_removes_all_but_its_blocks(kept: Kept) -> None:
    """`end` forgets a session and its cursor, but not its blocks; a new session of the name has a new number."""
    index = kept.of("t")
    added(index, "s", document(1, "cat"), document(2, "dog", "dog"))
    number = drive(index.cursors(["s"]))["s"].number
    drive(index.block("s", [], [9], 5))

    assert drive(index.end("s")) == 3
    assert (drive(index.end("s")), drive(index.cursors(["s"])), drive(index.sessions([number]))) == (0, {}, {})
    assert drive(index.blocked(6)) == {"s": [9]}

    added(index, "s", document(1, "mi"))
    assert drive(index.cursors(["s"]))["s"].number != number
    assert [set(one) for one in found(index, ["cat", "mi"])] == [set(), {("s", 1, 0)}]


def test_the_mark_only_rises_until_the_index_is_emptied(kept: Kept) -> None:
    """The mark only rises, until emptying the index resets it."""
    index = kept.of("t")
    assert drive(index.mark()) == 0

    generation = drive(index.generation())
    drive(index.set_mark(7, generation))
    drive(index.set_mark(3, generation))
    drive(index.set_mark(9, generation + 1))
    assert drive(index.mark()) == 7

    drive(index.empty())
    assert drive(index.mark()) == 0
    assert drive(index.generation()) != generation
    assert drive(index.scrub(whole=False)) is not None


def test_names_and_facts_are_returned_unchanged(kept: Kept) -> None:
    """Names and facts are returned unchanged, control characters included."""
    index = kept.of("tenänt")
    one = document(3, "cat", kind="tool_result", name="\x00\x01\x02 n\u00e4me")
    added(index, "séssion 1", one)
    number = drive(index.cursors(["séssion 1"]))["séssion 1"].number

    places = [place_of(key_of(*place)) for place in [(number, 3), (number, 4), (number + 1, 3)]]
    assert drive(index.facts(places)) == {places[0]: one.facts}
    assert drive(index.sessions([number, number + 1])) == {number: "séssion 1"}


@pytest.mark.parametrize("sessions", [None, ["s"], ["t", "nobody"], ["s", *(f"other {n}" for n in range(RANGES))], []])
def test_a_filter_selects_exactly_the_places_with_matching_facts(kept: Kept, sessions: list[str] | None) -> None:
    """A filter selects exactly the places whose facts match it."""
    index = kept.of("tenant")
    kinds: list[Kind] = ["message", "tool_call", "tool_result", "context", "summary"]
    names = ["bob", "\x00\x01\x02 n\u00e4me", None]
    one = [document(seq, "cat", kind=kinds[seq % 5], name=names[seq % 3]) for seq in range(1, 31)]
    for session in ("s", "t", *(f"other {n}" for n in range(RANGES))):
        added(index, session, *one)
    gone = [document(3, "no such words"), document(7, "cat", kind=kinds[2], name=names[1])]
    drive(index.block("s", gone, [3, 7], 5))
    cursors = drive(index.cursors(None))
    numbers = None if sessions is None else [cursors[name].number for name in sessions if name in cursors]
    every = drive(index.facts(sorted(place_of(key_of(c.number, seq)) for c in cursors.values() for seq in range(40))))
    meant = {at: one for at, one in every.items() if numbers is None or at >> SEQ_BITS in numbers}
    many = frozenset(f"name {n}" for n in range(1200))
    for only in [
        Filter(),
        Filter(kinds=frozenset(["tool_call", "summary"])),
        Filter(kinds=frozenset()),
        Filter(roles=frozenset(["user"]), since=5_000, until=20_000),
        Filter(roles=frozenset(["tool", "assistant"])),
        Filter(names=frozenset(["bob", "b\ud800"])),
        Filter(names=many | {names[1] or ""}, kinds=frozenset(["message", "tool_result"])),
        Filter(names=frozenset()),
        Filter(until=0),
    ]:
        found = drive(index.places(only, numbers))
        assert sorted(found) == sorted(at for at, one in meant.items() if only.takes(one)), only


# --- all alike


class World:
    """Indexes of all kinds to which the same things are done."""

    def __init__(self, indexes: Sequence[Index], seed: int) -> None:
        self.random, self.indexes = random.Random(seed), indexes
        self.documents = dict[str, dict[int, Document]]()
        self.next = dict[str, int]()

    def each(self, do: Callable[[Index], Awaitable[T]]) -> T:
        """Do something with each index; return all answers."""
        answers: list[Any] = [drive(do(index)) for index in self.indexes]  # type: ignore[arg-type]
        assert all(answer == answers[0] for answer in answers), answers
        answer: T = answers[0]
        return answer

    def text(self) -> str:
        return " ".join(
            self.random.choices(WORDS, [30 / (n + 1) for n in range(len(WORDS))], k=self.random.randrange(40))
        )

    def document(self, seq: int) -> Document:
        return document(
            seq, *(self.text() for _ in range(self.random.randint(1, 3))), name=self.random.choice([None, "bob"])
        )

    def update(self, session: str, add: Sequence[Document], drop: Sequence[Document], lost: Sequence[Span]) -> None:
        next_seq = self.next.get(session, 1)

        async def do(index: Index) -> bool:
            there = (await index.cursors([session])).get(session)
            cursor = Cursor(created=1, revision=(there.revision if there else 0) + 1, next_seq=next_seq)
            generation = await index.generation()
            return await index.update(
                session, Update(expect=there, generation=generation, cursor=cursor, add=add, drop=drop, lost=lost)
            )

        assert self.each(do)

    def step(self) -> None:
        """Do something random."""
        session = self.random.choice(["s", "ü", "a\x01b"])
        there = self.documents.setdefault(session, {})
        some = self.random.sample(sorted(there), min(len(there), self.random.randint(0, 3)))
        match self.random.randrange(10):
            case 0:
                gone = list(self.documents.pop(session).values())
                self.each(lambda index: index.block(session, gone, [0], 5))
                self.each(lambda index: index.end(session))
                self.each(lambda index: _unblocked(index, session, [0], ()))
                self.next.pop(session, None)
            case 1 | 2 if session in self.next:
                gone = [there.pop(seq) for seq in some]
                self.update(session, (), gone, ())
            case 3 if session in self.next:
                gone = [there.pop(seq) for seq in some]
                seqs = [one.seq for one in gone]
                self.each(lambda index: index.block(session, gone, seqs, 5))
                anew = [self.document(seq) for seq in seqs[:1]]
                self.each(lambda index: _unblocked(index, session, seqs, anew))
                there |= {one.seq: one for one in anew}
            case _:
                first = self.next.get(session, 1)
                new = [self.document(seq) for seq in range(first, first + self.random.randint(1, 6))]
                self.next[session] = new[-1].seq + 1
                self.update(session, new, (), ())
                there |= {one.seq: one for one in new}

    def check(self) -> None:
        """Check that all indexes find exactly the existing entries, with the same scores."""
        terms = [*WORDS[:12], "a b", "no no", "a a a", "b a b", "\u6f22 \u6f22\u5b57", "nowhere", "la do re"]
        for sessions in (None, ["s"], ["s", "ü", "nobody"]):
            answers = [found(index, terms, sessions) for index in self.indexes]
            for answer in answers[1:]:
                for term, one, first in zip(terms, answer, answers[0], strict=True):
                    assert one.keys() == first.keys(), term
                    assert list(one.values()) == pytest.approx([first[key] for key in one], abs=1e-6), term
        holding = {
            (session, seq, n)
            for session, there in self.documents.items()
            for seq, one in there.items()
            for n, part in enumerate(one.parts)
            if "a" in part
        }
        assert set(found(self.indexes[0], ["a"])[0]) == holding
        sizes = [drive(index.size()) for index in self.indexes]
        assert len({(size.sessions, size.entries, size.parts) for size in sizes}) == 1, sizes


async def _unblocked(index: Index, session: str, seqs: Sequence[int], anew: Sequence[Document]) -> bool:
    return await index.unblock(session, seqs, await index.generation(), anew)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_all_indexes_give_equal_answers_after_random_steps(all_kept: Sequence[Kept], seed: int) -> None:
    """After any random steps, all indexes return the same answers and find the same with the same scores."""
    world = World([kept.of(f"tenant {seed}") for kept in all_kept], seed)
    for _ in range(15):
        for _ in range(4):
            world.step()
        world.check()


# --- where many hold a word


@pytest.mark.wide
def test_all_indexes_score_the_same_newest_parts_for_a_common_word(all_kept: Sequence[Kept]) -> None:
    """For a common word all indexes score the same newest parts, in one, some or all sessions, also when asked
    again."""
    indexes = [kept.of("many") for kept in all_kept]
    dice = random.Random(4)
    for session in range(20):
        parts = [f"{dice.choice(['a', 'b'])} a x{dice.randrange(50)} la{n % 7} do re" for n in range(250)]
        for index in indexes:
            added(index, f"s{session}", *(document(seq, *parts[seq * 50 - 50 : seq * 50]) for seq in range(1, 6)))
    terms = ["a", "b", "x1", "do re", "b a", "la1", "re do", "do", "a a"]
    old = [f"s{n}" for n in range(18)]
    for sessions, most in itertools.product((None, ["s3"], old, ["s1", "s19"], None), (COMMON, 4300, 10**6)):
        first, *others = [found(index, terms, sessions, most) for index in indexes]
        for other in others:
            for term, one, same in zip(terms, other, first, strict=True):
                assert one.keys() == same.keys(), (term, sessions, most)
                assert list(one.values()) == pytest.approx([same[key] for key in one], abs=1e-6), term
    for sessions, there in ((None, 5000), (old, 4500)):
        for most in (COMMON, 4300, 10**6):
            assert len(found(indexes[0], ["a"], sessions, most)[0]) == min(most, there)


def test_a_common_word_finds_the_newest_parts_of_the_searched_session(tmp_path: Path) -> None:
    """For a common word or phrase, a search in a session finds the newest parts of that session."""
    with closing(File(str(tmp_path / "index"))) as file:
        index = FtsIndex(file, "tenant", Inline(), "")
        many = -(-(COMMON + 300) // 200)
        added(index, "long", *(document(seq, *["a b"] * 200) for seq in range(1, many + 1)))
        added(index, "short", document(1, "a b"))

        keys = [("long", seq, part) for seq in range(1, many + 1) for part in range(200)]
        for found_of in found(index, ["a", "a b"], ["long"]):
            assert sorted(found_of) == keys[-COMMON:]


def test_a_search_runs_a_fixed_number_of_statements(tmp_path: Path) -> None:
    """A search runs one statement for all facts, two for a rare word, and one for a word that no part has."""
    with closing(File(str(tmp_path / "index"))) as file:
        index = FtsIndex(file, "tenant", Inline(), "")
        added(index, "long", *(document(seq, "rare" if seq % 50 == 0 else "a b") for seq in range(1, 2001)))
        number = drive(index.cursors(["long"]))["long"].number
        places = [place_of(key_of(number, seq)) for seq in range(50, 2001, 50)]

        facts = selected(file, lambda: drive(index.facts(places)))
        matches = selected(file, lambda: drive(index.matches(["rare", "rare rare"])))
        nothing = selected(file, lambda: drive(index.matches(["none", "rare none"])))

        assert drive(index.facts(places)).keys() == set(places)
    assert len([one for one in facts if " entry_" in one]) == 1
    assert len([one for one in matches if "FROM words_" in one]) == 2
    assert len([one for one in matches if "FROM temp.count_" in one]) == 1
    assert [one for one in nothing if "FROM words_" in one] == []


def test_indexing_leaves_few_unused_pages_in_the_file(tmp_path: Path) -> None:
    """After indexing, at most a hundredth of the file's pages is unused."""
    with closing(File(str(tmp_path / "index"))) as file:
        index = FtsIndex(file, "tenant", Inline(), "")
        for number in range(17):  # FTS5 merges sixteen segments
            added(index, f"s{number}", document(1, " ".join(f"a{number}b{word}" for word in range(2000))))

        def pages(what: str) -> int:
            assert file._db is not None
            return int(file._db.execute(f"PRAGMA {what}_count").fetchone()[0])

        before = pages("page")
        assert pages("freelist") > before / 100
        drive(index.set_mark(1, drive(index.generation())))
        assert pages("freelist") <= pages("page") / 100
        assert pages("page") < before
        assert found(index, ["a7b7"], None)


def selected(file: File, do: Callable[[], object]) -> list[str]:
    """Return the SELECT statements that run during the call."""
    said = list[str]()
    assert file._db is not None
    file._db.set_trace_callback(said.append)
    do()
    file._db.set_trace_callback(None)
    return [one for one in said if one.startswith("SELECT")]


# --- vectors


ONE = b"\x00<"
"""The number 1 as stored in a vector; a server with pgvector refuses bytes that are no vector."""


def test_dropping_a_part_drops_its_vector(kept: Kept) -> None:
    """A vector is dropped in the same step as its part."""
    pytest.importorskip("numpy")
    index = kept.of("t")
    added(index, "s", document(1, "cat", "dog"), document(2, "mi"))
    number = drive(index.cursors(None))["s"].number
    keys = [key_of(number, 1, 0), key_of(number, 1, 1), key_of(number, 2, 0)]
    assert sorted(drive(index.parts(number))) == keys
    rows = drive(index.vectors())
    assert rows is not None

    claimed = drive(rows.claim("model", 2))
    assert claimed[:2] == ("model", 2)
    assert drive(rows.missing(keys)) == keys
    assert drive(rows.put([Row(key, b"d%d" % n, ONE * 2) for n, key in enumerate(keys)], claimed))
    assert drive(rows.missing([*keys, 5])) == [5]
    assert list(drive(rows.known([b"d1", b"d7"]))) == [b"d1"]
    new = drive(rows.changes(claimed, 0, 2))
    assert (new.keys, [key for key, _ in new.added]) == (None, keys[:2])
    assert [key for key, _ in drive(rows.changes(claimed, new.last, 9)).added] == keys[2:]

    drive(index.block("s", [document(1, "cat", "dog")], [1], 5))
    assert drive(rows.missing(keys)) == keys[:2]
    left = drive(rows.changes(claimed, new.last, 9)).keys
    assert left is not None
    assert list(left) == keys[2:]
    assert not drive(rows.put([Row(keys[0], b"d", ONE * 2)], claimed)), "something was removed since"

    drive(index.end("s"))
    assert drive(rows.missing(keys)) == keys
    now = drive(rows.state())
    assert drive(rows.put([Row(keys[2], b"d", ONE * 2)], now))
    assert drive(rows.claim("other", 3)).model == "other"
    assert drive(rows.missing(keys)) == keys
    now = drive(rows.state())
    assert drive(rows.put([Row(keys[2], b"d", ONE * 3)], now))
    drive(index.empty())
    assert drive(rows.missing(keys)) == keys
    assert drive(rows.state()).generation != now.generation


def test_ending_a_session_drops_its_vectors_alone(kept: Kept) -> None:
    """Ending a session drops all of its vectors and no others."""
    pytest.importorskip("numpy")
    index = kept.of("t")
    for name in "abcd":
        added(index, name, document(1, "cat", "dog"), document(2, "mi"))
    keys = {name: sorted(drive(index.parts(one.number))) for name, one in drive(index.cursors(None)).items()}
    rows = drive(index.vectors())
    assert rows is not None
    claimed = drive(rows.claim("model", 2))
    assert drive(rows.put([Row(key, b"d%d" % key, ONE * 2) for own in keys.values() for key in own], claimed))

    for name in "ca":
        drive(index.end(name))
        gone = keys.pop(name)
        assert drive(rows.missing(gone)) == gone
        assert drive(rows.missing([key for own in keys.values() for key in own])) == []


# --- several at once, and what goes wrong


def test_one_of_two_simultaneous_updates_is_refused(tmp_path: Path) -> None:
    """Of two simultaneous updates that expect the same cursor, one is made, and nothing is lost."""
    for kind in ("file", "postgres"):
        with ExitStack() as end:
            address = postgresstore.address_of("indexes")
            both = [opened_at(kind, tmp_path, address, end) for _ in range(2)]
            done: list[int] = [0, 0]

            def write(n: int, both: Sequence[Index] = both, done: list[int] = done) -> None:
                index = both[n]
                for _ in range(40):
                    there = drive(index.cursors(["s"])).get("s")
                    seq = there.next_seq if there is not None else 1
                    cursor = Cursor(created=1, revision=seq, next_seq=seq + 1)
                    given = Update(
                        expect=there,
                        generation=drive(index.generation()),
                        cursor=cursor,
                        add=[document(seq, f"cat x{n}")],
                    )
                    done[n] += drive(index.update("s", given))

            at_once(write, 2)

            assert all(done)
            assert drive(both[0].cursors(["s"]))["s"].next_seq == sum(done) + 1
            (cats,) = found(both[1], ["cat"])
            assert len(cats) == drive(both[0].size()).entries == sum(done)


def opened_at(kind: str, folder: Path, address: str, end: ExitStack) -> Index:
    """Open another connection to the index at a place."""
    runner = Inline()
    if kind == "file":
        return FtsIndex(end.enter_context(closing(File(str(folder / "both")))), "t", runner, "")
    end.callback(lambda: drive(runner.close()))
    backend = open_store(address, runner).backend
    end.callback(lambda: drive(backend.close()))
    assert backend.tables is not None
    index = PostgresIndex(backend.tables, "t", "n", "w")
    drive(index.open())
    return index


@pytest.mark.parametrize("statement", ["DROP TABLE {}.recall_parts CASCADE", "DROP TABLE {}.recall_tenants CASCADE"])
def test_damaged_index_tables_are_made_again_empty(statement: str) -> None:
    """Damaged tables of an index are made again, empty; the store's own tables stay."""
    with ExitStack() as end:
        address = postgresstore.address_of("indexes")
        index = opened_at("postgres", Path(), address, end)
        added(index, "s", document(1, "cat"))
        postgresstore.asked(address, statement.format(postgresstore.schema_of("indexes")))

        assert found(index, ["cat"]) == [{}]
        assert drive(index.cursors(["s"])) == {}
        added(index, "s", document(1, "cat"))
        assert len(found(index, ["cat"])[0]) == 1


def test_a_cancelled_call_is_done_completely_or_not_at_all() -> None:
    """A cancelled call is done completely or not at all, and the connection stays usable."""
    address = postgresstore.address_of("indexes")

    async def run() -> None:
        backend = open_store(address, Threaded()).backend
        assert backend.tables is not None
        index = PostgresIndex(backend.tables, "t", "n", "w")
        await index.open()
        for n in range(30):
            there = (await index.cursors(["s"])).get("s")
            seq = there.next_seq if there is not None else 1
            cursor = Cursor(created=1, revision=seq, next_seq=seq + 1)
            update = Update(
                expect=there, generation=await index.generation(), cursor=cursor, add=[document(seq, "cat dog")]
            )
            task = asyncio.create_task(index.update("s", update))
            for _ in range(n):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        cursors, (cats,) = await index.cursors(["s"]), await index.matches(["cat"])
        size = await index.size()
        assert size.entries == size.parts == len(cats) == (cursors["s"].next_seq - 1 if cursors else 0)
        await backend.close()

    asyncio.run(run())
