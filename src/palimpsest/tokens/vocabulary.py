"""The packed vocabularies of the encodings, and tiktoken, which is imported nowhere else."""

from __future__ import annotations

import pkgutil
import re
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
    return tiktoken.Encoding(name, pat_str=in_one_step(pattern), mergeable_ranks=ranks, special_tokens={})


_LOOKS_AHEAD = r"|\s+(?!\S)"
"""Where the alternatives of both encodings begin that tiktoken's engine has to try step by step."""

_POSSESSIVE = r"([?*+]|\{\d,\d\})\+"
"""A quantifier that gives nothing back: such an alternative is tried step by step, too."""


def in_one_step(pattern: str) -> str:
    """The pattern, of which all that does not look ahead is one alternative: most pieces are found by one automaton.

    As written, each alternative is tried by itself, which takes up to half as long again, and where quantifiers are
    possessive twice as long. Those find the same without: what they could give back never begins what follows them.
    """
    first, ahead, rest = pattern.partition(_LOOKS_AHEAD)
    greedy = re.sub(_POSSESSIVE, r"\1", first)
    return f"(?:{greedy}){ahead}{rest}"
