"""Embedders: one face for whatever turns texts into vectors. How it is called, in which batches, and how answers are
checked.

An embedder may be given as the name of a model, a callable that takes a list of texts, or an object of a library that
has a method for it. It is called outside of the store's work, so nothing waits for it, and is not called for a while if
it keeps failing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError, EmbedderFailed, MissingExtra, PalimpsestError
from palimpsest.errors.wording import words_of
from palimpsest.log import values
from palimpsest.runtime.breaker import Breaker, Paused
from palimpsest.runtime.registry import Registry
from palimpsest.runtime.runner import Runner

try:
    import numpy as np
except ImportError as missing:
    raise MissingExtra("an embedder", "vectors") from missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BATCH = 64
"""Texts in one call. Services take that many, and 64 parts of an entry are some 40 KB."""

TIMEOUT = 60.0
"""Seconds that one call may take."""

FAILURES, PAUSE = 3, 30.0
"""`FAILURES` failures in a row pause the embedder for `PAUSE` seconds, so that no search waits for a dead service."""

ALLOWED = (
    "a model's name, a function of a list of texts (async or not) that returns a vector for each, or an object with "
    "`embed_documents` or `encode`"
)

MODELS = Registry(
    "embedder",
    "palimpsest.embedders",
    {"wordllama": "palimpsest.recall.packaged:wordllama", "minilm": "palimpsest.recall.packaged:minilm"},
)
"""Names of models, with the functions without arguments that return an embedder."""


class Embedder:
    """Turns texts into vectors of length 1: rows of float32, in the order of the texts. Made by `embedder`.

    Stored vectors are known by `name`: change it when the model behind it changes. `dimension` (numbers per vector) is
    None until the first answer.
    """

    def __init__(
        self,
        name: str,
        documents: Callable[[list[str]], Any],
        query: Callable[[str], Any] | None,
        runner: Runner,
        *,
        batch: int = BATCH,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name, self._documents, self._query, self.runner = name, documents, query, runner
        self.dimension: int | None = None
        self._batch, self._timeout = batch, timeout
        self._breaker = Breaker(FAILURES, PAUSE, clock)

    async def embed(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of texts that are to be found: shape (number of texts, dimension). Raises EmbedderFailed.

        Args:
            texts: any number; they are sent one batch at a time.
        """
        if not texts:
            return np.empty((0, self.dimension or 0), np.float32)
        batches = (
            [*map(_without_surrogates, texts[at : at + self._batch])] for at in range(0, len(texts), self._batch)
        )
        vectors = [await self._call_checked(self._documents, batch) for batch in batches]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

    async def embed_query(self, text: str) -> Floats:
        """Return the vector of a question: shape (dimension,). Raises EmbedderFailed.

        Args:
            text: the question. If the embedder has a method for questions, that is called.
        """
        text = _without_surrogates(text)
        vectors = await (
            self._call_checked(self._documents, [text])
            if self._query is None
            else self._call_checked(self._query, text)
        )
        vector: Floats = vectors[0]
        return vector

    async def _call_checked(self, function: Callable[[Any], Any], given: list[str] | str) -> Floats:
        """Call the embedder for several texts, or for one, and check the answer.

        Raises EmbedderFailed, without a call, while the embedder is paused.
        """
        try:
            with self._breaker.guarding(EmbedderFailed):
                answer = await self._run(function, given)
                return self._checked(answer, len(given)) if isinstance(given, list) else self._checked([answer], 1)
        except Paused as paused:
            again = f"in {paused.seconds:.0f} s" if paused.seconds else "as soon as another call has an answer"
            why = f"it failed {FAILURES} times in a row, and is called again {again}"
            raise EmbedderFailed(self.name, "paused", why) from None

    async def _called(self, function: Callable[[Any], Any], given: object) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            return await self.runner.wait(function(given), self._timeout)
        returned = await self.runner.outside(_listed, function, given, timeout=self._timeout)
        return await self.runner.wait(returned, self._timeout) if inspect.isawaitable(returned) else returned

    async def _run(self, function: Callable[[Any], Any], given: object) -> Any:
        """Call a function of the embedder and return its answer. Raises EmbedderFailed."""
        try:
            return await self._called(function, given)
        except TimeoutError as error:
            why = str(error) or f"no answer within {self._timeout:g} s"
            raise EmbedderFailed(self.name, "timeout", why) from error
        except PalimpsestError:
            raise
        except Exception as error:  # the boundary to a user's code: whatever it raises counts as a failed call
            raise EmbedderFailed(self.name, "raised", words_of(error)) from error

    def _checked(self, answer: Any, count: int) -> Floats:
        """Return the vectors of an answer, scaled to length 1.

        Raises EmbedderFailed if they cannot be those of `count` texts.
        """
        try:
            with np.errstate(over="ignore"):  # numbers too large for 32 bits become infinite and are refused below
                vectors = np.array(answer, np.float32)
        except Exception as error:  # the boundary to a user's code: tensors and arrays may raise anything
            raise self._unfit("it did not return a list of vectors of equal length") from error
        if vectors.ndim != 2 or len(vectors) != count:
            raise self._unfit(f"it returned the shape {vectors.shape}, but {count} vectors were asked for")
        size = vectors.shape[1]
        if not size or size != (self.dimension or size):
            raise self._unfit(f"its vectors have {size} numbers, but earlier ones had {self.dimension or 'none, too'}")
        if not np.isfinite(vectors).all():
            raise self._unfit("its vectors contain NaN or infinite numbers")
        self.dimension = size
        return normalised(vectors)

    def _unfit(self, why: str) -> EmbedderFailed:
        return EmbedderFailed(self.name, "answer", why)


def _without_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced, which no tokenizer or service accepts."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _listed(function: Callable[[Any], Any], given: object) -> Any:
    """Call a function; if it returns a generator, exhaust it here, in the thread that may block."""
    returned = function(given)
    return list(returned) if inspect.isgenerator(returned) else returned


def normalised(vectors: Floats) -> Floats:
    """Scale the rows of a matrix to length 1, in place, and return it. A zero vector stays zero."""
    largest = np.abs(vectors).max(axis=1, initial=0)
    vectors /= np.where(largest > 0, largest, 1)[:, None]  # so that no square below leaves the range of 32 bits
    lengths = np.linalg.norm(vectors, axis=1)
    vectors /= np.where(lengths > 0, lengths, 1)[:, None]
    return vectors


def embedder(
    given: Any,
    runner: Runner,
    *,
    name: str | None = None,
    batch: int = BATCH,
    timeout: float = TIMEOUT,
    clock: Callable[[], float] = monotonic,
) -> Embedder:
    """Return an `Embedder` for what was given. Raises ConfigError, or MissingExtra if its package is not installed.

    Args:
        given: a model's name ("wordllama", "minilm", or one that a program or package registers), a function or
            coroutine function of a list of texts, or an object with `embed_documents` (and `embed_query`) or `encode`.
        runner: calls it; a function that blocks runs in a thread.
        name: under which its vectors are stored; None: the object's `model_name`, `model` or `name` (of a `partial`,
            the argument of that name), or else the name of the function or class.
        batch: how many texts it is given in one call.
        timeout: seconds that one call may take.
        clock: seconds, to time the pause after failures.
    """
    values.whole("batch", batch, 1)
    if not values.is_number(timeout) or not 0 < timeout < float("inf"):
        raise ConfigError("timeout", timeout, "a number of seconds above 0")
    if isinstance(given, str):
        given = MODELS.find(given)()
    documents, query = _methods(given)
    called = name or _name(given)
    return Embedder(called, documents, query, runner, batch=batch, timeout=timeout, clock=clock)


def _methods(given: Any) -> tuple[Callable[[list[str]], Any], Callable[[str], Any] | None]:
    """Return the function for documents, and the one for questions if that is another."""
    if not isinstance(given, type):
        for documents, query in (("embed_documents", "embed_query"), ("encode", "")):
            method = getattr(given, documents, None)
            if callable(method):
                return method, getattr(given, query, None) if query else None
        if callable(given):
            return given, None
    raise ConfigError("embedder", given, ALLOWED)


def _name(given: Any) -> str:
    for attribute in ("model_name", "model", "name"):
        value = given.keywords.get(attribute) if isinstance(given, partial) else getattr(given, attribute, None)
        if isinstance(value, str) and value:
            return value
    if isinstance(given, partial):
        return _name(given.func)
    named = getattr(given, "__qualname__", None) or type(given).__qualname__
    module = getattr(given, "__module__", None) or type(given).__module__
    return f"{module}.{named}".replace("<locals>.", "")
