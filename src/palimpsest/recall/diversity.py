"""Choosing what answers and says something new: maximal marginal relevance. Pure.

J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
Summaries", SIGIR 1998.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def diverse(relevance: Sequence[float], alike: Callable[[int, int], float], most: int, lambda_mult: float) -> list[int]:
    """Return which candidates to take, by their places, in the order in which they are taken.

    Each time the one is taken whose `lambda_mult * relevance - (1 - lambda_mult) * likeness` is greatest, where
    likeness is that to the one among those taken which is most like it. Of equal ones the first is.

    Args:
        relevance: how well each candidate answers, from 0 to 1.
        alike: how like two candidates are, by their places, from 0 to 1.
        most: how many to take.
        lambda_mult: what counts, from 0, variety alone, to 1, relevance alone.
    """
    left, nearest, taken = list(range(len(relevance))), [0.0] * len(relevance), list[int]()
    while left and len(taken) < most:
        best = max(left, key=lambda i: (lambda_mult * relevance[i] - (1 - lambda_mult) * nearest[i], -i))
        left.remove(best)
        taken.append(best)
        for i in left:
            nearest[i] = max(nearest[i], alike(i, best))
    return taken
