"""all-MiniLM-L6-v2 in numpy: a BERT of six layers (Devlin and others, 2018) that turns texts into vectors of 384
numbers.

The vectors equal those of sentence-transformers to within 1e-5. A text's tokens and their positions are embedded, pass
six times through attention and two dense layers, and are averaged. This needs no torch, which takes 1.6 GB.
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
"""Tokens that are read of a text at most, as the model was trained; the rest of the text is ignored."""

TOGETHER = 512
"""Tokens that pass through a layer at once: more would not stay in a processor's cache."""

ROWS = 64
"""Rows to which GELU is applied at once, for the same reason: a third of the time of all rows at once."""

HEADS, SMALLEST = 12, 1e-12


class MiniLM:
    """The model: its weights by name, and its tokenizer."""

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
        ids = [encoding.ids for encoding in map(self._tokenizer.encode, texts)]
        vectors = np.empty((len(ids), self.dimension), np.float32)
        for batch in _batches([len(tokens) for tokens in ids]):
            vectors[batch] = self._vectors([ids[number] for number in batch])
        return vectors

    def _vectors(self, ids: list[list[int]]) -> Floats:
        """Return the vectors of some texts. Their tokens are concatenated, so no padding is needed."""
        ends = np.cumsum([len(tokens) for tokens in ids]).tolist()
        starts = [0, *ends[:-1]]
        spans = list(zip(starts, ends, strict=True))
        state = self._words[np.concatenate([np.asarray(tokens) for tokens in ids])]
        state += np.concatenate([self._places[: len(tokens)] for tokens in ids])
        state = _normed(state, self._weights, "embeddings.LayerNorm.")
        for layer in self._layers:
            state = layer(state, spans)
        vectors = np.add.reduceat(state, starts, axis=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


class _Layer:
    """One layer: each token attends to the tokens of its own text, then passes through two dense layers."""

    def __init__(self, weights: Mapping[str, Floats], name: str) -> None:
        self._weights, self._name = weights, name
        names = [f"{name}attention.self.{role}." for role in ("query", "key", "value")]
        self._projection = np.ascontiguousarray(np.concatenate([weights[f"{prefix}weight"] for prefix in names]).T)
        self._projection_bias = np.concatenate([weights[f"{prefix}bias"] for prefix in names])
        self._size = self._projection.shape[0] // HEADS

    def __call__(self, state: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
        attended = self._dense(self._attended(state, spans), "attention.output.dense.")
        attended += state
        state = _normed(attended, self._weights, f"{self._name}attention.output.LayerNorm.")
        hidden = self._dense(state, "intermediate.dense.")
        for start in range(0, len(hidden), ROWS):
            _gelu(hidden[start : start + ROWS])
        hidden = self._dense(hidden, "output.dense.")
        hidden += state
        return _normed(hidden, self._weights, f"{self._name}output.LayerNorm.")

    def _dense(self, state: Floats, part: str) -> Floats:
        product: Floats = state @ self._weights[f"{self._name}{part}weight"].T
        product += self._weights[f"{self._name}{part}bias"]
        return product

    def _attended(self, state: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
        """Return what each token takes from the others of its text, weighted by how well its query fits their keys."""
        projected = state @ self._projection
        projected += self._projection_bias
        parts = projected.reshape(len(state), 3, HEADS, self._size).transpose(1, 2, 0, 3)  # role, head, token, number
        attended = np.empty((len(state), HEADS, self._size), np.float32)
        for start, end in spans:
            query, key, value = parts[:, :, start:end]
            fit = query @ key.transpose(0, 2, 1)
            fit /= np.float32(sqrt(self._size))
            fit -= fit.max(axis=-1, keepdims=True)
            np.exp(fit, out=fit)
            fit /= fit.sum(axis=-1, keepdims=True)
            attended[start:end] = (fit @ value).transpose(1, 0, 2)
        return attended.reshape(len(state), -1)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Return which texts pass through the layers together, by their indexes."""
    batches, tokens = [list[int]()], 0
    for number, length in enumerate(lengths):
        if batches[-1] and tokens + length > TOGETHER:
            batches.append([])
            tokens = 0
        batches[-1].append(number)
        tokens += length
    return batches if lengths else []


def _normed(state: Floats, weights: Mapping[str, Floats], name: str) -> Floats:
    """Return each row with mean 0 and variance 1, times a weight, plus a bias (layer normalisation).

    Changes `state`.
    """
    state -= state.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.einsum("ij,ij->i", state, state) / np.float32(state.shape[1]) + np.float32(SMALLEST))
    state /= spread[:, None]
    state *= weights[f"{name}weight"]
    state += weights[f"{name}bias"]
    return state


def _gelu(x: Floats) -> None:
    """Apply GELU in place: each x becomes x times the normal distribution's cumulative function at x.

    The error function is approximated by Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26, with an
    error below 2e-7.
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
