"""The loops of a graph: its strongly connected components. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def loops_of(edges: Sequence[Mapping[int, int]]) -> list[int]:
    """Return for each place the number of its loop, or -1: the strongly connected components (Tarjan 1972, not
    recursive)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    loop_of_place = [-1] * len(edges)
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(edges)):
        if root in index:
            continue
        walk = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while walk:
            p, following = walk[-1]
            q = next(following, None)
            if q is None:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[p])
                if low[p] == index[p]:
                    _close(p, stack, on_stack, edges, loop_of_place)
            elif q not in index:
                index[q] = low[q] = len(index)
                stack.append(q)
                on_stack.add(q)
                walk.append((q, iter(edges[q])))
            elif q in on_stack:
                low[p] = min(low[p], index[q])
    return loop_of_place


def _close(
    p: int, stack: list[int], on_stack: set[int], edges: Sequence[Mapping[int, int]], loop_of_place: list[int]
) -> None:
    """Take the loop that ends at `p` off the stack, and number it, if it is more than a single place."""
    members = stack[stack.index(p) :]
    del stack[-len(members) :]
    on_stack.difference_update(members)
    if len(members) > 1 or p in edges[p]:
        for member in members:
            loop_of_place[member] = p
