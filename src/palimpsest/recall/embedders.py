"""Embedders: whatever gives texts vectors, made one thing. What is asked, in which batches, and what a good answer is.

An embedder is a name of a model, a callable of a list of texts, or an object of a library that has a method for it. It
is asked beside the store, never while that waits, and one that keeps failing is left alone for a while.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
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
"""Texts that are embedded at once: services take that many, and 64 parts of an entry are some 40 KB."""

TIMEOUT = 60.0
"""Seconds that an embedder has for a batch."""

FAILURES, PAUSE = 3, 30.0
"""Failures in a row after which it is left alone, and for how many seconds: no search waits for a dead service."""

ALLOWED = (
    "a model's name, a function of a list of texts (async or not) that returns a vector for each, or an object with "
    "`embed_documents` or `encode`"
)

MODELS = Registry(
    "embedder",
    "palimpsest.embedders",
    {"wordllama": "palimpsest.recall.packaged:wordllama", "minilm": "palimpsest.recall.packaged:minilm"},
)
"""What model strings stand for: functions without arguments that return an embedder."""


class Embedder:
    """Gives texts vectors of length 1, in their order, as rows of float32.

    `name` is what stored vectors are known by: change it when the model behind it changes. `dimension`, how many
    numbers a vector has, is None until the first answer. Made by `embedder`.
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
            texts: any number. No more than a batch of them is with the embedder at a time.
        """
        if not texts:
            return np.empty((0, self.dimension or 0), np.float32)
        batches = ([*map(_whole, texts[at : at + self._batch])] for at in range(0, len(texts), self._batch))
        found = [await self._asked(self._documents, batch) for batch in batches]
        return found[0] if len(found) == 1 else np.concatenate(found)

    async def embed_query(self, text: str) -> Floats:
        """Return the vector of a question: shape (dimension,). Raises EmbedderFailed.

        Args:
            text: the question. An embedder that has a way of its own for questions is asked by that.
        """
        text = _whole(text)
        found = await (self._asked(self._documents, [text]) if self._query is None else self._asked(self._query, text))
        vector: Floats = found[0]
        return vector

    async def _asked(self, function: Callable[[Any], Any], given: list[str] | str) -> Floats:
        """What an embedder answers for texts, or for one, checked, unless it is to be left alone."""
        try:
            probe = self._breaker.admit()
        except Paused as paused:
            again = f"in {paused.seconds:.0f} s" if paused.seconds else "once a first call has an answer"
            why = f"it failed {FAILURES} times in a row and is asked again {again}"
            raise EmbedderFailed(self.name, "paused", why) from None
        outcome: bool | None = None
        try:
            answer = await self._settled(function, given)
            vectors = self._checked(answer, len(given)) if isinstance(given, list) else self._checked([answer], 1)
            outcome = True
            return vectors
        except EmbedderFailed:
            outcome = False
            raise
        finally:
            self._breaker.report(outcome, probe=probe)

    async def _called(self, function: Callable[[Any], Any], given: object) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            return await self.runner.wait(function(given), self._timeout)
        returned = await self.runner.outside(_listed, function, given, timeout=self._timeout)
        return await self.runner.wait(returned, self._timeout) if inspect.isawaitable(returned) else returned

    async def _settled(self, function: Callable[[Any], Any], given: object) -> Any:
        try:
            return await self._called(function, given)
        except TimeoutError as error:
            why = str(error) or f"no answer within {self._timeout:g} s"
            raise EmbedderFailed(self.name, "timeout", why) from error
        except PalimpsestError:
            raise
        except Exception as error:  # the boundary to a user's code: whatever it raises is a failed call and no more
            raise EmbedderFailed(self.name, "raised", words_of(error)) from error

    def _checked(self, answer: Any, count: int) -> Floats:
        """The vectors of an answer, of length 1. Raises EmbedderFailed where it is none of these texts."""
        try:
            with np.errstate(over="ignore"):  # what is too large for 32 bits is found below
                vectors = np.array(answer, np.float32)
        except (TypeError, ValueError, RuntimeError) as error:  # the last is what tensors raise that are elsewhere
            raise self._unfit("it is no list of vectors of one length") from error
        if vectors.ndim != 2 or len(vectors) != count:
            raise self._unfit(f"its shape is {vectors.shape}, where {count} vectors were asked for")
        size = vectors.shape[1]
        if not size or size != (self.dimension or size):
            raise self._unfit(f"its vectors have {size} numbers, those before had {self.dimension or 'none, too'}")
        if not np.isfinite(vectors).all():
            raise self._unfit("it holds NaN, or infinite numbers")
        self.dimension = size
        return normalised(vectors)

    def _unfit(self, why: str) -> EmbedderFailed:
        return EmbedderFailed(self.name, "answer", why)


def _whole(text: str) -> str:
    """The text with what stands for each lone surrogate: no tokenizer takes one, and no service."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _listed(function: Callable[[Any], Any], given: object) -> Any:
    """What a function returns; what a generator gives is made here, where nobody waits for it."""
    returned = function(given)
    return list(returned) if inspect.isgenerator(returned) else returned


def normalised(vectors: Floats) -> Floats:
    """Make vectors, the rows of a matrix, have length 1, in place, and return them. A zero vector stays one."""
    for lengths in (
        np.abs(vectors).max(axis=1, initial=0),
        None,
    ):  # first so that no square leaves the range of 32 bits
        found = np.linalg.norm(vectors, axis=1) if lengths is None else lengths
        vectors /= np.where(found > 0, found, 1)[:, None]
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
    """Return the embedder that was meant. Raises ConfigError, or MissingExtra where its package is not installed.

    Args:
        given: a model's name ("wordllama", "minilm", or what a program or package offers), a function or coroutine
            function of a list of texts, or an object with `embed_documents` (and `embed_query`) or `encode`.
        runner: where it is called: one that blocks runs in a thread.
        name: what its vectors are stored under; None: what the object says (`model_name`, `model`, `name`), else what
            the function or class is called.
        batch: how many texts it is given at once.
        timeout: seconds it has for these.
        clock: seconds, for how long it is left alone.
    """
    values.whole("batch", batch, 1)
    if not values.is_number(timeout) or not 0 < timeout < float("inf"):
        raise ConfigError("timeout", timeout, "seconds, more than 0")
    if isinstance(given, str):
        given = MODELS.find(given)()
    documents, query = _methods(given)
    called = name or _name(given)
    return Embedder(called, documents, query, runner, batch=batch, timeout=timeout, clock=clock)


def _methods(given: Any) -> tuple[Callable[[list[str]], Any], Callable[[str], Any] | None]:
    """What gives documents vectors, and what questions, where that is something else."""
    if not isinstance(given, type):
        for documents, query in (("embed_documents", "embed_query"), ("encode", "")):
            found = getattr(given, documents, None)
            if callable(found):
                return found, getattr(given, query, None) if query else None
        if callable(given):
            return given, None
    raise ConfigError("embedder", given, ALLOWED)


def _name(given: Any) -> str:
    for attribute in ("model_name", "model", "name"):
        found = getattr(given, attribute, None)
        if isinstance(found, str) and found:
            return found
    named = getattr(given, "__qualname__", None) or type(given).__qualname__
    module = getattr(given, "__module__", None) or type(given).__module__
    return f"{module}.{named}".replace("<locals>.", "")
