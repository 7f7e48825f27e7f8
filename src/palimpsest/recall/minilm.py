"""all-MiniLM-L6-v2 in numpy: a BERT of six layers (Devlin and others, 2018) that gives texts vectors of 384 numbers.

The vectors are those of sentence-transformers to within 1e-5: words and places in, six times attention and two dense
layers, then the mean over all tokens. No torch is needed for that, which is 1.6 GB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Floats = NDArray[np.float32]

TOKENS = 256
"""Tokens of a text that are read at most, as the model was made for; what comes behind them says nothing."""

TOGETHER = 512
"""Tokens that go through a layer at once: more would not stay in a processor's cache."""

ROWS = 64
"""Rows that are bent at once, for the same reason: a third of the time that all take together."""

HEADS, SMALLEST = 12, 1e-12


class MiniLM:
    """The model: its weights by name, and the tokenizer that belongs to them."""

    dimension = 384

    def __init__(self, weights: Mapping[str, Floats], tokenizer: Tokenizer) -> None:
        self._weights, self._tokenizer = weights, tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS)
        kinds = weights["embeddings.token_type_embeddings.weight"][0]
        self._words = weights["embeddings.word_embeddings.weight"]
        self._places = weights["embeddings.position_embeddings.weight"] + kinds
        names = sorted({int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")})
        self._layers = [_Layer(weights, f"encoder.layer.{number}.") for number in names]

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of texts, a row each, of length 1."""
        ids = [found.ids for found in map(self._tokenizer.encode, texts)]
        vectors = np.empty((len(ids), self.dimension), np.float32)
        for batch in _batches([len(one) for one in ids]):
            vectors[batch] = self._vectors([ids[number] for number in batch])
        return vectors

    def _vectors(self, ids: list[list[int]]) -> Floats:
        """The vectors of some texts. Their tokens stand behind one another, so that none is there to fill up."""
        ends = np.cumsum([len(one) for one in ids]).tolist()
        starts = [0, *ends[:-1]]
        spans = list(zip(starts, ends, strict=True))
        state = self._words[np.concatenate([np.asarray(one) for one in ids])]
        state += np.concatenate([self._places[: len(one)] for one in ids])
        state = _normed(state, self._weights, "embeddings.LayerNorm.")
        for layer in self._layers:
            state = layer(state, spans)
        vectors = np.add.reduceat(state, starts, axis=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


class _Layer:
    """One layer: each token looks at those of its own text, then at itself."""

    def __init__(self, weights: Mapping[str, Floats], name: str) -> None:
        self._weights, self._name = weights, name
        asked = [f"{name}attention.self.{what}." for what in ("query", "key", "value")]
        self._into = np.ascontiguousarray(np.concatenate([weights[f"{one}weight"] for one in asked]).T)
        self._into_bias = np.concatenate([weights[f"{one}bias"] for one in asked])
        self._size = self._into.shape[0] // HEADS

    def __call__(self, state: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
        seen = self._dense(self._attended(state, spans), "attention.output.dense.")
        seen += state
        state = _normed(seen, self._weights, f"{self._name}attention.output.LayerNorm.")
        thought = self._dense(state, "intermediate.dense.")
        for start in range(0, len(thought), ROWS):
            _gelu(thought[start : start + ROWS])
        thought = self._dense(thought, "output.dense.")
        thought += state
        return _normed(thought, self._weights, f"{self._name}output.LayerNorm.")

    def _dense(self, state: Floats, what: str) -> Floats:
        made: Floats = state @ self._weights[f"{self._name}{what}weight"].T
        made += self._weights[f"{self._name}{what}bias"]
        return made

    def _attended(self, state: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
        """What each token takes from the others of its text, by how well its question fits their keys."""
        into = state @ self._into
        into += self._into_bias
        parts = into.reshape(len(state), 3, HEADS, self._size).transpose(1, 2, 0, 3)  # what, head, token, number
        seen = np.empty((len(state), HEADS, self._size), np.float32)
        for start, end in spans:
            query, key, value = parts[:, :, start:end]
            fit = query @ key.transpose(0, 2, 1)
            fit /= np.float32(sqrt(self._size))
            fit -= fit.max(axis=-1, keepdims=True)
            np.exp(fit, out=fit)
            fit /= fit.sum(axis=-1, keepdims=True)
            seen[start:end] = (fit @ value).transpose(1, 0, 2)
        return seen.reshape(len(state), -1)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Which texts go through the layers together, by their numbers."""
    batches, tokens = [list[int]()], 0
    for number, length in enumerate(lengths):
        if batches[-1] and tokens + length > TOGETHER:
            batches.append([])
            tokens = 0
        batches[-1].append(number)
        tokens += length
    return batches if lengths else []


def _normed(state: Floats, weights: Mapping[str, Floats], name: str) -> Floats:
    """Each row with mean 0 and variance 1, times a weight, plus a bias."""
    state -= state.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.einsum("ij,ij->i", state, state) / np.float32(state.shape[1]) + np.float32(SMALLEST))
    state /= spread[:, None]
    state *= weights[f"{name}weight"]
    state += weights[f"{name}bias"]
    return state


def _gelu(x: Floats) -> None:
    """Make each x into x times the normal distribution's function at x.

    That is by Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26, which errs by less than 2e-7.
    """
    z = np.abs(x)
    z *= np.float32(sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = t * np.float32(1.061405429)
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(term)
        tail *= t
    z *= -z
    tail *= np.exp(z, out=z)
    tail *= np.float32(-0.5)
    tail += np.float32(0.5)  # half of the error function, for x >= 0
    np.copysign(tail, x, out=tail)
    tail += np.float32(0.5)
    x *= tail
