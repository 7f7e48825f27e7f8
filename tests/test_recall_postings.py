"""The index in memory gives the same matches and scores as SQLite's full-text index."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

import pytest

from palimpsest.recall.analysis import terms
from palimpsest.recall.postings import Postings, key_of, place_of

WORDS = ["a", "b", "c", "東京", "d_e", "_2023_05", "e1", "é", "हिन्दी"]
PHRASES = ["a b", "a a", "a b c", "東京 a", "b d_e"]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """A contentless FTS5 index that splits texts at blanks only."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE parts USING fts5(terms, content='', tokenize=\"ascii tokenchars '_'\")")
    yield db
    db.close()


@pytest.mark.parametrize("seed", range(60))
def test_scores_equal_those_of_fts5(db: sqlite3.Connection, seed: int) -> None:
    """Each term and phrase has the same parts and scores as in FTS5, even after parts were removed."""
    rng = random.Random(seed)
    postings, parts = Postings(), dict[int, list[str]]()
    for _ in range(rng.randint(1, 60)):
        key = rng.randrange(1, 1 << 45)
        parts[key] = rng.choices(WORDS[: rng.randint(2, len(WORDS))], k=rng.randint(1, 30))
        postings.put(key, parts[key])
        db.execute("INSERT INTO parts (rowid, terms) VALUES (?, ?)", (key, " ".join(parts[key])))
    for key in [key for key in parts if rng.random() < 0.3]:
        assert postings.drop(key)
        db.execute("INSERT INTO parts (parts, rowid, terms) VALUES ('delete', ?, ?)", (key, " ".join(parts.pop(key))))

    for asked in (*WORDS, *PHRASES):
        theirs = db.execute("SELECT rowid, -bm25(parts) FROM parts WHERE parts MATCH ?", (f'"{asked}"',)).fetchall()
        (ours,) = postings.matches([asked])
        assert ours == {key: pytest.approx(score, rel=1e-12) for key, score in theirs}, asked


def test_keys_of_a_session_form_an_ordered_range() -> None:
    """The keys of a session are a range in the order of entries and parts, and each tells its entry."""
    postings = Postings()
    keys = [key_of(number, seq, part) for number in (1, 2) for seq in (1, 2, 300) for part in (0, 1)]
    for key in reversed(keys):
        postings.put(key, ["word"])

    assert keys == sorted(keys)
    assert sorted(postings.keys(key_of(1, 0), key_of(2, 0))) == keys[:6]
    assert place_of(keys[0]) == place_of(keys[1]) != place_of(keys[2])


def test_dropped_terms_leave_no_byte_in_the_index() -> None:
    """A term without parts is in no byte of the index; putting a part again replaces it."""
    postings = Postings()
    postings.put(1, ["secret", "word"])
    postings.put(2, ["word"])

    postings.put(1, ["word"])

    assert postings.matches(["secret", "word"])[0] == {}
    assert set(postings.matches(["word"])[0]) == {1, 2}
    assert "secret" not in repr(vars(postings))
    assert postings.drop(1)
    assert not postings.drop(1)
    assert postings.drop(2)
    assert len(postings) == 0
    assert postings.matches(["word"]) == [{}]
    assert "word" not in repr(vars(postings))


def test_empty_and_unknown_terms_have_no_matches() -> None:
    """Empty and unknown terms, and phrases with unknown terms, have no matches."""
    postings = Postings()
    postings.put(1, ["word"])

    assert postings.matches(["", "other", "word other"]) == [{}, {}, {}]
    assert Postings().matches(["word"]) == [{}]
    assert postings.keys() == [1]


def test_fts5_splits_joined_terms_at_blanks_only(db: sqlite3.Connection) -> None:
    """SQLite's tokenizer splits the joined terms at blanks only, in any script, and keeps `_`."""
    texts = [
        "東京タワーに行きました。",
        "हिन्दी में लिखो",
        "ไทยแลนด์",
        "고양이가 물을",
        "Ёлка ΑΘΉΝΑ Ångström",
        "a_b HAT170 1,299",
    ]
    parts = [["_2023_05", *terms(text)] for text in texts]
    db.execute("CREATE VIRTUAL TABLE stored USING fts5vocab(parts, instance)")

    db.executemany("INSERT INTO parts (rowid, terms) VALUES (?, ?)", [(i, " ".join(p)) for i, p in enumerate(parts)])

    for number, part in enumerate(parts):
        stored = db.execute("SELECT term FROM stored WHERE doc = ? ORDER BY offset", (number,)).fetchall()
        assert [term for (term,) in stored] == part
