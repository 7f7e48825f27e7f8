"""Choose results that both answer and say something new: maximal marginal relevance. Pure.

J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
Summaries", SIGIR 1998.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def diverse(relevance: Sequence[float], alike: Callable[[int, int], float], most: int, lambda_mult: float) -> list[int]:
    """Return which candidates to take, as indexes, in the order in which they are taken.

    Each step takes the candidate with the greatest `lambda_mult * relevance - (1 - lambda_mult) * likeness`, where
    likeness is the greatest one to any candidate taken before. Of equal ones the first is taken.

    Args:
        relevance: how well each candidate answers, from 0 to 1.
        alike: returns how alike two candidates (indexes) are, from 0 to 1.
        most: how many to take.
        lambda_mult: the weight of relevance, from 0 (variety alone) to 1 (relevance alone).
    """
    remaining, likeness, taken = list(range(len(relevance))), [0.0] * len(relevance), list[int]()
    while remaining and len(taken) < most:
        best = max(remaining, key=lambda i: (lambda_mult * relevance[i] - (1 - lambda_mult) * likeness[i], -i))
        remaining.remove(best)
        taken.append(best)
        for i in remaining:
            likeness[i] = max(likeness[i], alike(i, best))
    return taken
