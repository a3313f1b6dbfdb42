"""The balanced assignment: every point to one of k clusters, sizes that differ by at most one, at the least total cost.

A transport problem whose dual has one price per cluster: at the right prices, each point takes the cluster with the least
cost plus price, and the sizes come out balanced. From any prices, the points' choices are optimal for the sizes that they
happen to have; then one point after the other moves from a cluster that is too large to one that is too small, along the
shortest path in the graph of clusters, which keeps the assignment optimal for its sizes (successive shortest paths). So
the result is exact, and the closer the prices are to the right ones, the fewer paths it takes: k-means, whose centroids
move little, hands the prices on from step to step.

Shortest paths among k clusters are loops that neither NumPy nor PyTorch can express, hence Numba.
"""

import numba
import numpy as np
from numpy.typing import NDArray

_KEPT = 8  # the cheapest candidates of a move that are remembered, so that a cluster is seldom searched again


@numba.njit(nogil=True, cache=True)
def balanced_assignment(
    costs: NDArray[np.float32], points: int, prices: NDArray[np.float64], labels: NDArray[np.int32]
) -> float:
    """Assign points to clusters; sizes differ by at most one, and the total cost is the least possible.

    Parameters
    ----------
    costs
        Shape (points or more, k); rows after the first `points` are not looked at.
    points
        How many points there are, at least k.
    prices
        Where to start, shape (k,); the prices of the solution afterwards.
    labels
        Receives the cluster of every point, shape (points or more,).

    Returns
    -------
    float
        The total cost.
    """
    k = costs.shape[1]
    low, larger = points // k, points % k
    sink = k  # the node through which clusters pass on the right to be one larger
    price = np.zeros(k + 1)
    price[:k] = prices
    rank = np.argsort(-prices)
    extra = np.zeros(k, np.bool_)  # which clusters are one larger: the dearest ones
    for position in range(larger):
        extra[rank[position]] = True
    price[sink] = prices[rank[larger - 1]] if larger else 0.0

    # Every point takes the cluster that is cheapest at these prices. Members are linked lists.
    size = np.zeros(k, np.int64)
    head = np.full(k, -1, np.int64)
    following = np.empty(points, np.int64)
    before = np.empty(points, np.int64)
    for point in range(points):
        best, least = 0, np.inf
        for cluster in range(k):
            value = costs[point, cluster] + price[cluster]
            if value < least:
                best, least = cluster, value
        labels[point] = best
        _link(point, best, head, following, before)
        size[best] += 1

    # The cheapest moves from cluster a to cluster b, as far as known, dearest first; a list is filled when it is needed.
    moves = np.empty((k, k, _KEPT), np.int64)
    known = np.full((k, k), -1, np.int64)  # how many are in the list; -1: not searched yet
    worst = np.empty((k, k))  # of what was left out of the list

    distance = np.empty(k + 1)
    previous = np.empty(k + 1, np.int64)
    settled = np.empty(k + 1, np.bool_)
    for source in range(k):
        while size[source] > low + extra[source]:
            # Dijkstra over the clusters, with costs that the prices keep from being negative.
            distance[:] = np.inf
            settled[:] = False
            distance[source] = 0.0
            goal = -1
            while True:
                here, nearest = -1, np.inf
                for node in range(k + 1):
                    if not settled[node] and distance[node] < nearest:
                        here, nearest = node, distance[node]
                settled[here] = True
                if here == sink:
                    for node in range(k):
                        if extra[node] and not settled[node]:
                            way = nearest + max(price[node] - price[sink], 0.0)
                            if way < distance[node]:
                                distance[node], previous[node] = way, sink
                    continue
                if size[here] < low + extra[here]:
                    goal = here
                    break
                for node in range(k):
                    if settled[node] or size[here] == 0:
                        continue
                    move = _cheapest(here, node, costs, labels, head, following, moves, known, worst)
                    step = costs[move, node] - costs[move, here] + price[node] - price[here]
                    way = nearest + max(step, 0.0)
                    if way < distance[node]:
                        distance[node], previous[node] = way, here
                if larger and not extra[here] and not settled[sink]:
                    way = nearest + max(price[sink] - price[here], 0.0)
                    if way < distance[sink]:
                        distance[sink], previous[sink] = way, here
            for node in range(k + 1):
                if settled[node]:
                    price[node] += distance[goal] - distance[node]
            # Move a point along every edge of the path, from its end to its beginning.
            node = goal
            while node != source:
                origin = previous[node]
                if node == sink:
                    extra[origin] = True
                elif origin == sink:
                    extra[node] = False
                else:
                    point = _cheapest(origin, node, costs, labels, head, following, moves, known, worst)
                    _unlink(point, origin, head, following, before)
                    _link(point, node, head, following, before)
                    labels[point] = node
                    size[origin] -= 1
                    size[node] += 1
                    _offer(point, node, costs, labels, moves, known, worst)
                node = origin
    prices[:] = price[:k]
    total = 0.0
    for point in range(points):
        total += costs[point, labels[point]]
    return total


@numba.njit(nogil=True, cache=True)
def _link(point, cluster, head, following, before):  # type: ignore[no-untyped-def]
    first = head[cluster]
    following[point] = first
    before[point] = -1
    if first >= 0:
        before[first] = point
    head[cluster] = point


@numba.njit(nogil=True, cache=True)
def _unlink(point, cluster, head, following, before):  # type: ignore[no-untyped-def]
    if before[point] >= 0:
        following[before[point]] = following[point]
    else:
        head[cluster] = following[point]
    if following[point] >= 0:
        before[following[point]] = before[point]


@numba.njit(nogil=True, cache=True)
def _cheapest(origin, goal, costs, labels, head, following, moves, known, worst):  # type: ignore[no-untyped-def]
    """Return the point of `origin` whose move to `goal` costs least."""
    count = known[origin, goal]
    while count > 0 and labels[moves[origin, goal, count - 1]] != origin:  # it has left in the meantime
        count -= 1
    if count <= 0:
        count, left_out = 0, np.inf
        point = head[origin]
        while point >= 0:
            value = costs[point, goal] - costs[point, origin]
            count, left_out = _insert(point, value, origin, goal, costs, moves[origin, goal], count, left_out)
            point = following[point]
        worst[origin, goal] = left_out
    known[origin, goal] = count
    return moves[origin, goal, count - 1]


@numba.njit(nogil=True, cache=True)
def _insert(point, value, origin, goal, costs, kept, count, left_out):  # type: ignore[no-untyped-def]
    """Put a point into a list that is sorted with the cheapest last; return its length and the least value left out."""
    if value >= left_out:
        return count, left_out
    if count == _KEPT:
        first = costs[kept[0], goal] - costs[kept[0], origin]
        if value >= first:
            return count, min(left_out, value)
        left_out = min(left_out, first)
        place = 0
        while place + 1 < count and costs[kept[place + 1], goal] - costs[kept[place + 1], origin] > value:
            kept[place] = kept[place + 1]
            place += 1
        kept[place] = point
        return count, left_out
    place = count
    while place > 0 and costs[kept[place - 1], goal] - costs[kept[place - 1], origin] <= value:
        kept[place] = kept[place - 1]
        place -= 1
    kept[place] = point
    return count + 1, left_out


@numba.njit(nogil=True, cache=True)
def _offer(point, cluster, costs, labels, moves, known, worst):  # type: ignore[no-untyped-def]
    """Add a point that came to a cluster to the lists of the moves from there."""
    for goal in range(costs.shape[1]):
        count = known[cluster, goal]
        if goal == cluster or count < 0:
            continue
        while count > 0 and labels[moves[cluster, goal, count - 1]] != cluster:
            count -= 1
        value = costs[point, goal] - costs[point, cluster]
        count, worst[cluster, goal] = _insert(
            point, value, cluster, goal, costs, moves[cluster, goal], count, worst[cluster, goal]
        )
        known[cluster, goal] = count if count > 0 else -1
