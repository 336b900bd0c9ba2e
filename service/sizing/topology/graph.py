"""Which GPUs belong together: cliques of a small graph, by index into the matrix.

Machines have at most 16 GPUs, a partitioned AMD node 64. Searches stop after a fixed number of steps and then answer
with the best set found so far, which is still a true clique.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

_STEPS = 8_000
_SETS = 200

Closeness = Sequence[Sequence[tuple[int, ...]]]


def disjoint_cliques(
    neighbours: Sequence[frozenset[int]], widths: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Split a graph into disjoint cliques: the largest first, then those with the wider edges.

    Parameters
    ----------
    neighbours : sequence of frozenset of int
        For each vertex the vertices it is joined to.
    widths : matrix of int
        Width of the edge between two vertices.

    Returns
    -------
    tuple of tuple of int
        Cliques of two or more vertices, each ascending, ordered by their lowest vertex.
    """
    budget = [_STEPS]
    found: list[tuple[int, ...]] = []
    for component in _components(neighbours):
        found += _split(frozenset(component), neighbours, widths, {}, budget)
    return tuple(sorted(clique for clique in found if len(clique) > 1))


def _components(neighbours: Sequence[frozenset[int]]) -> Iterator[set[int]]:
    unseen = set(range(len(neighbours)))
    while unseen:
        component: set[int] = set()
        frontier = {min(unseen)}
        while frontier:
            component |= frontier
            frontier = set[int]().union(*(neighbours[vertex] for vertex in frontier)) - component
        unseen -= component
        yield component


def _split(
    vertices: frozenset[int],
    neighbours: Sequence[frozenset[int]],
    widths: Sequence[Sequence[int]],
    known: dict[frozenset[int], list[tuple[int, ...]]],
    budget: list[int],
) -> list[tuple[int, ...]]:
    """The split of `vertices` whose clique sizes, largest first, are the greatest; among those, of the most width."""

    def worth(split: list[tuple[int, ...]]) -> tuple[list[int], int]:
        width = sum(widths[a][b] for part in split for a, b in combinations(part, 2))
        return [len(part) for part in split], width

    if not vertices:
        return []
    if vertices not in known:
        best: list[tuple[int, ...]] = []
        for clique in _largest_cliques(vertices, neighbours, budget):
            split = [clique, *_split(vertices - set(clique), neighbours, widths, known, budget)]
            if worth(split) > worth(best):
                best = split
            if budget[0] <= 0:
                break
        known[vertices] = best
    return known[vertices]


def _largest_cliques(
    vertices: frozenset[int], neighbours: Sequence[frozenset[int]], budget: list[int]
) -> list[tuple[int, ...]]:
    """Every clique of the greatest size, in lexicographic order (Bron and Kerbosch 1973, with pivot)."""
    best = [_greedy_clique(vertices, neighbours)]

    def extend(clique: tuple[int, ...], candidates: set[int], excluded: set[int]) -> None:
        nonlocal best
        budget[0] -= 1
        if not candidates:
            if not excluded and len(clique) >= len(best[0]):
                best = [*best, clique] if len(clique) == len(best[0]) else [clique]
            return
        if budget[0] <= 0 or len(clique) + len(candidates) < len(best[0]):
            return
        pivot = max(sorted(candidates | excluded), key=lambda vertex: len(neighbours[vertex] & candidates))
        for vertex in sorted(candidates - neighbours[pivot]):
            extend((*clique, vertex), candidates & neighbours[vertex], excluded & neighbours[vertex])
            candidates = candidates - {vertex}
            excluded = excluded | {vertex}

    if budget[0] > 0:
        extend((), set(vertices), set())
    return sorted({tuple(sorted(clique)) for clique in best})


def _greedy_clique(vertices: frozenset[int], neighbours: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """A clique grown from the best connected vertex, always by the best connected of those left."""
    clique: list[int] = []
    left = set(vertices)
    while left:
        clique.append(max(sorted(left), key=lambda vertex: len(neighbours[vertex] & left)))
        left &= neighbours[clique[-1]]
    return tuple(sorted(clique))


def closest_set(closeness: Closeness, size: int, pools: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The `size` vertices whose worst pair is the closest.

    Parameters
    ----------
    closeness : matrix
        Sortable closeness of every pair, greater is closer.
    size : int
        Vertices to take, at most as many as the last pool holds.
    pools : sequence of sequence of int
        Sets to look in, in order of preference among equally good worst pairs; the last holds every vertex allowed.

    Returns
    -------
    tuple of int
        Ascending. Among equals: the earlier pool, then more close pairs, then the lowest vertices.
    """
    everything = sorted(pools[-1])
    if size <= 1:
        return tuple(everything[:size])
    levels = sorted({closeness[a][b] for a, b in combinations(everything, 2)}, reverse=True)
    budget = [_STEPS]
    for level in levels:
        for pool in pools:
            sets = _sets(closeness, level, size, sorted(pool), budget)
            if sets:
                return max(sets, key=lambda members: _pairs(closeness, members))
    return tuple(everything[:size])


def _pairs(closeness: Closeness, members: tuple[int, ...]) -> list[tuple[int, ...]]:
    return sorted((closeness[a][b] for a, b in combinations(members, 2)), reverse=True)


def _sets(
    closeness: Closeness, level: tuple[int, ...], size: int, pool: list[int], budget: list[int]
) -> list[tuple[int, ...]]:
    """Sets of `size` from `pool` with every pair at `level` or closer, lowest vertices first, a bounded number."""
    members = set(pool)
    joined = {a: {b for b in members if b != a and closeness[a][b] >= level} for a in members}
    while lonely := {vertex for vertex in members if len(joined[vertex] & members) < size - 1}:
        members -= lonely
    found: list[tuple[int, ...]] = []

    def extend(chosen: tuple[int, ...], candidates: list[int]) -> None:
        budget[0] -= 1
        if len(chosen) == size:
            found.append(chosen)
            return
        for place, vertex in enumerate(candidates):
            if budget[0] <= 0 or len(found) >= _SETS or len(chosen) + len(candidates) - place < size:
                return
            extend((*chosen, vertex), [other for other in candidates[place + 1 :] if other in joined[vertex]])

    extend((), sorted(members))
    return found
