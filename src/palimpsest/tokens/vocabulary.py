"""The packed vocabularies of the encodings, and tiktoken, which is imported nowhere else."""

from __future__ import annotations

import pkgutil
import zlib

import tiktoken


def tokenizer(name: str, pattern: str) -> tiktoken.Encoding:
    """Build tiktoken's encoder from the packed vocabulary: each token in rank order after one byte of length."""
    packed = zlib.decompress(pkgutil.get_data("palimpsest.tokens", f"data/{name}.bin") or b"")
    ranks: dict[bytes, int] = {}
    place, rank = 0, 0
    while place < len(packed):
        end = place + 1 + packed[place]
        ranks[packed[place + 1 : end]] = rank
        place, rank = end, rank + 1
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
