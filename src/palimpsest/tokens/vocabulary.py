"""The packed vocabularies of the encodings, and the only import of tiktoken."""

from __future__ import annotations

import pkgutil
import re
import zlib

try:
    import tiktoken
except RuntimeError:  # the main thread has ended, and Python sets up no pool of threads any more
    from concurrent import futures

    vars(futures)["ThreadPoolExecutor"] = futures.Executor  # only imported: no function that uses a pool is called here
    try:
        import tiktoken
    finally:
        del vars(futures)["ThreadPoolExecutor"]


def tokenizer(name: str, pattern: str) -> tiktoken.Encoding:
    """Build tiktoken's encoder from the packed vocabulary: tokens in rank order, each after a byte with its length."""
    packed = zlib.decompress(pkgutil.get_data("palimpsest.tokens", f"data/{name}.bin") or b"")
    ranks: dict[bytes, int] = {}
    place, rank = 0, 0
    while place < len(packed):
        end = place + 1 + packed[place]
        ranks[packed[place + 1 : end]] = rank
        place, rank = end, rank + 1
    return tiktoken.Encoding(name, pat_str=in_one_step(pattern), mergeable_ranks=ranks, special_tokens={})


_LOOKS_AHEAD = r"|\s+(?!\S)"
"""Where the alternatives begin that tiktoken's engine has to try one by one, in both encodings."""

_POSSESSIVE = r"([?*+]|\{\d,\d\})\+"
"""A possessive quantifier. tiktoken's engine tries alternatives with one of these one by one, too."""


def in_one_step(pattern: str) -> str:
    """Return the pattern with all before the look-ahead as one alternative: one automaton then finds most pieces.

    In the original pattern each alternative is tried by itself, which takes up to half as long again, and twice as long
    with possessive quantifiers. Greedy quantifiers find the same pieces: what they could give back never begins what
    follows.
    """
    first, ahead, rest = pattern.partition(_LOOKS_AHEAD)
    greedy = re.sub(_POSSESSIVE, r"\1", first)
    return f"(?:{greedy}){ahead}{rest}"
