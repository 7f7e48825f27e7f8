"""The vectors of an index: by part, of one embedder, in SQLite and in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from palimpsest.errors import EmbedderFailed
from palimpsest.recall.embedders import embedder
from palimpsest.recall.index import Cursor, Document, Update
from palimpsest.recall.matrix import BLOCK, Matrix
from palimpsest.recall.postings import key_of
from palimpsest.recall.ranking import Facts
from palimpsest.recall.sqlite.index import File, FtsIndex
from palimpsest.recall.sqlite.vectors import FileVectors, SqliteVectors
from palimpsest.recall.vectors import Row, State, Vectors, digest_of, packed, unpacked
from palimpsest.runtime.runner import Inline, drive

np = pytest.importorskip("numpy", reason="the extra vectors is not installed")

T = TypeVar("T")


class Words:
    """An embedder over eight words that keeps the texts it was given."""

    def __init__(self, name: str = "words", words: str = "cat dog boat rain key song bread moon") -> None:
        self.name, self._words, self.given = name, words.split(), list[str]()
        self.fails = False

    def __call__(self, texts: list[str]) -> Any:
        if self.fails:
            raise ConnectionError("down")
        self.given += texts
        return [[*(text.count(word) for word in self._words), 0.1] for text in texts]


class Kept:
    """The vector rows of one tenant in a file, as one process opens them."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)

    async def do(self, body: Callable[[SqliteVectors], T], *, writes: bool) -> T:
        with self.db:
            self.db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            return body(SqliteVectors(self.db))

    def vectors(self, words: Words, **options: Any) -> Vectors:
        return Vectors(FileVectors(self.do), embedder(words, Inline()), **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.db"


@pytest.fixture
def kept(path: Path) -> Iterator[Kept]:
    one = Kept(path)
    yield one
    one.db.close()


@pytest.fixture
def other(path: Path, kept: Kept) -> Iterator[Kept]:
    """Open the same file like another process."""
    one = Kept(path)
    yield one
    one.db.close()


class Indexed:
    """A session's index in a file with its vectors, as one process opens it."""

    def __init__(self, path: Path) -> None:
        self.file = File(str(path))
        self.index = FtsIndex(self.file, "t", Inline(), "")
        self.rows = drive(self.index.vectors())

    def vectors(self) -> Vectors:
        return Vectors(self.rows, embedder(Words(), Inline()))

    def add(self, texts: dict[int, str]) -> dict[int, str]:
        """Add entries with these texts, by seq; return the texts by the keys of their parts."""
        cursor = Cursor(created=1, revision=1, next_seq=max(texts) + 1)
        add = [_document(seq, text) for seq, text in texts.items()]
        drive(self.index.update("s", Update(expect=None, generation=self.generation(), cursor=cursor, add=add)))
        number = drive(self.index.cursors(None))["s"].number
        return {key_of(number, seq, 0): text for seq, text in texts.items()}

    def generation(self) -> int:
        return drive(self.index.generation())

    def erase(self, *gone: int, known: dict[int, str] | None = None) -> None:
        """Erase entries as an erasure does: with their texts where `known`, otherwise without."""
        drop = [_document(seq, text) for seq, text in (known or {}).items()]
        drive(self.index.block("s", drop, gone, 1))


def _document(seq: int, text: str) -> Document:
    return Document(seq, Facts(seq, "message", "user", len(text), None), [text.split()])


@pytest.fixture
def indexed(path: Path) -> Iterator[Indexed]:
    one = Indexed(path)
    yield one
    one.file.close()


@pytest.fixture
def beside(path: Path, indexed: Indexed) -> Iterator[Indexed]:
    """Open the same index like another process."""
    one = Indexed(path)
    yield one
    one.file.close()


def key(session: int, seq: int, part: int = 0) -> int:
    return session << 36 | seq << 8 | part


def put(vectors: Vectors, texts: dict[int, str]) -> bool:
    return drive(vectors.put(texts, drive(vectors.state()).generation))


def found(vectors: Vectors, text: str, numbers: Sequence[int] | None = None, limit: int = 10) -> list[int]:
    """Return the keys of the nearest parts."""
    return list(drive(vectors.search(text, numbers, limit=limit)))


TEXTS = {key(0, 1): "cat and dog", key(0, 2): "boat", key(1, 1): "dog dog", key(1, 2): "bread moon"}


def test_parts_are_found_nearest_first(kept: Kept) -> None:
    """The nearest parts come first, with their cosines."""
    vectors = kept.vectors(Words())
    put(vectors, TEXTS)

    cosines = drive(vectors.search("dog", limit=2))

    assert list(cosines) == [key(1, 1), key(0, 1)]
    assert cosines[key(1, 1)] == pytest.approx(1.0, abs=0.01)
    assert cosines[key(0, 1)] == pytest.approx(0.5**0.5, abs=0.01)


def test_a_search_is_limited_to_the_given_sessions(kept: Kept) -> None:
    """A search is limited to sessions by their numbers, the upper bits of keys."""
    vectors = kept.vectors(Words())
    put(vectors, TEXTS)

    assert found(vectors, "dog", [0]) == [key(0, 1), key(0, 2)]
    assert found(vectors, "dog", [7]) == []
    assert found(vectors, "dog", []) == []


def test_stored_vectors_are_found_by_another_process(kept: Kept, other: Kept) -> None:
    """Another process finds stored vectors without embedding again, and those that are stored later."""
    first, words = kept.vectors(Words()), Words()
    put(first, TEXTS)
    second = other.vectors(words)

    assert found(second, "boat", limit=1) == [key(0, 2)]
    put(first, {key(2, 1): "boat boat rain"})
    assert found(second, "rain", limit=1) == [key(2, 1)]
    assert words.given == ["boat", "rain"]


def test_missing_returns_the_keys_without_a_vector(kept: Kept) -> None:
    """`missing` returns the keys without a vector."""
    vectors = kept.vectors(Words())
    assert drive(vectors.missing([1, 2])) == [1, 2]

    put(vectors, TEXTS)

    assert drive(vectors.missing([key(0, 3), *TEXTS, key(5, 1)])) == [key(0, 3), key(5, 1)]


def test_a_text_is_embedded_once(kept: Kept) -> None:
    """A text with a known hash is not embedded again, in another place or in the same."""
    words = Words()
    vectors = kept.vectors(words)
    put(vectors, {key(0, 1): "cat", key(0, 2): "cat", key(0, 3): "dog"})
    put(vectors, {key(1, 1): "dog", key(0, 1): "cat", key(1, 2): "moon"})

    assert words.given == ["cat", "dog", "moon"]
    assert found(vectors, "dog", limit=2) == [key(1, 1), key(0, 3)]


def test_erased_parts_are_found_by_no_process(indexed: Indexed, beside: Indexed) -> None:
    """An erased part is not found, even by a process that has it in memory, or after the place was reused."""
    vectors, second = indexed.vectors(), beside.vectors()
    texts = indexed.add({1: "cat and dog", 2: "boat", 3: "dog dog", 4: "bread moon"})
    cat, boat, dog, _ = texts
    put(vectors, texts)
    assert found(second, "boat", limit=1) == [boat]

    indexed.erase(2, 3, 4, known={2: "boat"})
    put(vectors, {dog: "cat moon"})

    for one in (vectors, second):
        assert sorted(found(one, "boat dog bread")) == [cat, dog]
        assert found(one, "moon", limit=1) == [dog]


@pytest.mark.parametrize("known", [None, {1: "cat"}], ids=["unknown", "known"])
def test_a_vector_of_text_read_before_an_erasure_is_refused(
    indexed: Indexed, beside: Indexed, known: dict[int, str] | None
) -> None:
    """A vector whose text was read before an erasure is refused, and nothing of it is kept."""
    vectors = indexed.vectors()
    cat, boat = texts = indexed.add({1: "cat", 2: "boat"})
    before = drive(vectors.state()).generation

    beside.erase(1, known=known)

    assert drive(vectors.put({cat: "cat"}, before)) is False
    assert drive(vectors.missing(list(texts))) == [cat, boat]
    assert put(vectors, {boat: "boat"}) is True


def test_an_erasure_leaves_no_byte_of_the_vector_in_the_file(indexed: Indexed, path: Path) -> None:
    """After an erasure neither the vector nor the text's hash is in any byte of the file or its journal."""
    vectors, words = indexed.vectors(), Words()
    texts = {seq: f"song {'moon ' * seq}" for seq in range(1, 400)}
    put(vectors, indexed.add(texts))

    def there(seq: int) -> list[bool]:
        data = b"".join(one.read_bytes() for one in path.parent.glob(f"{path.name}*"))
        vector = np.array(words([texts[seq]])[0], np.float32)
        return [part in data for part in (digest_of("words", texts[seq]), packed(vector / np.linalg.norm(vector)))]

    assert there(7) == there(200) == there(300) == [True, True]

    indexed.erase(7, 200, known={7: texts[7]})
    assert drive(indexed.index.scrub(whole=False)) == ()

    assert there(7) == there(200) == [False, False]
    assert there(300) == [True, True]


def test_vectors_of_another_model_are_not_found(kept: Kept) -> None:
    """Another model finds none of the old vectors; its first write drops them."""
    put(kept.vectors(Words("old")), TEXTS)
    new = kept.vectors(Words("new", "cat dog boat rain key song bread sun"))

    assert found(new, "dog") == []
    assert drive(new.missing(list(TEXTS))) == list(TEXTS)
    put(new, {key(0, 1): "cat"})
    assert found(new, "cat") == [key(0, 1)]
    assert drive(new.state())[:2] == ("new", 9)
    assert found(kept.vectors(Words("old")), "dog") == []


def test_a_changed_dimension_counts_as_another_model(kept: Kept) -> None:
    """A model of the same name with another dimension counts as another model."""
    put(kept.vectors(Words()), TEXTS)
    wider = kept.vectors(Words(words="cat dog boat"))

    assert found(wider, "dog") == []
    put(wider, {key(0, 1): "dog"})
    assert found(wider, "dog") == [key(0, 1)]


def test_the_later_of_two_processes_with_two_models_wins(kept: Kept, other: Kept) -> None:
    """Of two processes with different models the later one wins; the other's next write is refused."""
    first, second = kept.vectors(Words("first")), other.vectors(Words("second"))
    put(first, TEXTS)
    put(second, TEXTS)

    with pytest.raises(EmbedderFailed, match="keeps vectors of second, since") as failed:
        put(first, {key(3, 1): "cat"})
    assert failed.value.kind == "replaced"
    assert found(first, "dog") == []
    assert found(second, "dog", limit=1) == [key(1, 1)]


def test_a_failing_embedder_changes_no_stored_vector(kept: Kept) -> None:
    """A failing embedder changes no stored vector, and the search works again afterwards."""
    words = Words()
    vectors = kept.vectors(words)
    put(vectors, TEXTS)

    words.fails = True
    for ask in (lambda: put(vectors, {key(4, 1): "moon"}), lambda: found(vectors, "dog")):
        with pytest.raises(EmbedderFailed, match="ConnectionError: down"):
            ask()
    words.fails = False

    assert drive(vectors.missing([*TEXTS, key(4, 1)])) == [key(4, 1)]
    assert found(vectors, "dog", limit=1) == [key(1, 1)]


def test_each_tenant_of_a_file_has_its_own_vectors(kept: Kept) -> None:
    """Tenants of a file have separate tables: neither searches nor hashes tell one of the other."""
    mine, yours = SqliteVectors(kept.db, 1), SqliteVectors(kept.db, 2)
    row = Row(key(0, 1), digest_of("m", "secret"), packed(np.ones(4, np.float32) / 2))
    yours.claim("m", 4)
    assert mine.put([row], mine.claim("m", 4))

    assert yours.known([row.digest]) == {}
    assert yours.missing([row.key]) == [row.key]
    assert yours.changes(State(), 0, 10).added == []


def test_storing_vectors_in_16_bits_barely_changes_cosines() -> None:
    """Storing vectors in 16 bits changes a cosine by less than 0.001."""
    rows = np.random.default_rng(1).standard_normal((200, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    again = unpacked([packed(row) for row in rows])

    assert np.abs(rows @ rows.T - again @ again.T).max() < 1e-3


# --- the matrix


def unit(count: int, seed: int = 0) -> Any:
    rows = np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_matrix_finds_the_same_as_a_plain_comparison() -> None:
    """A matrix finds the same as comparing all vectors one by one, after additions, replacements and removals."""
    rng = np.random.default_rng(3)
    matrix, there = Matrix(16), dict[int, Any]()
    for step in range(40):
        keys = sorted({key(int(rng.integers(20)), int(rng.integers(600))) for _ in range(700)})
        rows = unit(len(keys), step)
        matrix.put(keys, rows)
        there.update(zip(keys, rows, strict=True))
        gone = [one for one in there if rng.random() < 0.02]
        for one in gone:
            del there[one]
        matrix.keep(np.array([*there, -1], np.int64))
    assert len(matrix) == len(there) > 2 * BLOCK
    question = unit(1, 99)[0]
    for numbers in (None, [3], [0, 5, 6, 7, 8, 9, 10, 11, 12], [999]):
        meant = {one: float(row @ question) for one, row in there.items() if numbers is None or one >> 36 in numbers}
        best = sorted(meant, key=lambda one: (-meant[one], -one))[:50]

        answer = matrix.search(question, numbers, 50)

        assert list(answer) == best
        assert answer == pytest.approx({one: meant[one] for one in best}, abs=1e-5)


def test_matrix_keep_removes_all_other_vectors() -> None:
    """`keep` removes all other vectors from a matrix."""
    matrix = Matrix(16)
    matrix.put(range(100), unit(100))

    matrix.keep(np.array([5, 7, 500], np.int64))

    assert sorted(matrix.search(unit(1)[0], None, 10)) == [5, 7]


def test_a_full_matrix_keeps_the_newest_sessions() -> None:
    """A full matrix keeps the newest sessions, and makes room rarely."""
    matrix = Matrix(16, most=1000)
    for start in range(0, 5000, 100):
        matrix.put(range(start, start + 100), unit(100, start))
        assert len(matrix) <= 1000

    there = matrix.search(unit(1)[0], None, 5000)
    assert len(there) > 900
    assert min(there) == 5000 - len(there)


def test_a_limit_of_0_or_an_empty_matrix_finds_nothing() -> None:
    """A limit of 0 and an empty matrix find nothing and raise nothing."""
    matrix = Matrix(16)
    assert matrix.search(unit(1)[0], None, 5) == {}
    matrix.put([1], unit(1))
    assert matrix.search(unit(1)[0], None, 0) == {}
