"""The balanced assignment: every point to one of k clusters, sizes that differ by at most one, at the least total cost.

A transport problem whose dual has one price per cluster: at the right prices, each point takes the cluster with the least
cost plus price, and the sizes come out balanced. From any prices, the points' choices are optimal for the sizes that they
happen to have; then one point after the other moves from a cluster that is too large to one that is too small, along the
shortest path in the graph of clusters, which keeps the assignment optimal for its sizes (successive shortest paths). So
the result is exact, and the closer the prices are to the right ones, the fewer paths it takes. k-means, whose centroids
move little, hands its prices on from step to step; where they are far off, they are found on a part of the points first.

With n points, choosing and listing the cheapest moves reads the (n, k) costs once each; a path takes at most about k²
operations, however many points there are. Shortest paths are loops that neither NumPy nor PyTorch can express, hence Numba.
"""

import numba
import numpy as np
from numpy.typing import NDArray

_KEPT = 6  # cheapest moves between two clusters that are remembered, so that a cluster is seldom searched again
_PART = 128  # points per cluster from which on prices may be found on a part of the points
_FAR = 32  # that is done if more than one point in so many is in a cluster that is too large


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
    sizes = _choose(costs, points, prices, labels)
    if points >= _PART * k and np.maximum(sizes - points // k - 1, 0).sum() * _FAR > points:
        stride = _stride(points)
        fraction = 1
        while points // fraction >= _PART * k:
            fraction *= 8
        while fraction > 1:
            part = points // fraction
            some = np.empty((part, k), np.float32)
            for row in range(part):
                some[row] = costs[row * stride % points]
            _balance(some, part, prices, labels, _choose(some, part, prices, labels))
            fraction //= 8
        sizes = _choose(costs, points, prices, labels)
    _balance(costs, points, prices, labels, sizes)
    total = 0.0
    for point in range(points):
        total += costs[point, labels[point]]
    return total


@numba.njit(nogil=True, cache=True)
def _stride(points):  # type: ignore[no-untyped-def]
    """Return a step through the points that meets each once, and whose first steps are spread over all."""
    stride = int(points * 0.618)
    while True:
        a, b = stride, points
        while b:
            a, b = b, a % b
        if a == 1:
            return stride
        stride += 1


@numba.njit(nogil=True, cache=True)
def _choose(costs, points, prices, labels):  # type: ignore[no-untyped-def]
    """Give every point the cluster that is cheapest at these prices; return the sizes."""
    sizes = np.zeros(costs.shape[1], np.int64)
    for point in range(points):
        best, least = 0, np.inf
        for cluster in range(costs.shape[1]):
            value = costs[point, cluster] + prices[cluster]
            if value < least:
                best, least = cluster, value
        labels[point] = best
        sizes[best] += 1
    return sizes


@numba.njit(nogil=True, cache=True)
def _balance(costs, points, prices, labels, sizes):  # type: ignore[no-untyped-def]
    """Move points along shortest paths until the sizes are balanced."""
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
    if not (sizes > low + extra).any():
        return

    # The members of every cluster, as linked lists.
    head = np.full(k, -1, np.int64)
    following = np.empty(points, np.int64)
    before = np.empty(points, np.int64)
    for point in range(points):
        _link(point, labels[point], head, following, before)

    # The cheapest moves from cluster a to cluster b, dearest first, listed once a path comes to a.
    listed = np.zeros(k, np.bool_)
    moves = np.empty((k, k, _KEPT), np.int64)
    values = np.empty((k, k, _KEPT), np.float32)
    known = np.zeros((k, k), np.int64)
    bound = np.full((k, k), np.float32(np.inf))  # no move that is not listed is cheaper
    edge = np.full((k, k), np.inf)  # the value of the cheapest move

    distance = np.empty(k + 1)
    waiting = np.empty(k + 1)  # the distances of nodes that are reached but not settled
    previous = np.empty(k + 1, np.int64)
    settled = np.empty(k + 1, np.bool_)
    for source in range(k):
        while sizes[source] > low + extra[source]:
            # Dijkstra over the clusters, with costs that the prices keep from being negative.
            distance[:] = np.inf
            waiting[:] = np.inf
            settled[:] = False
            distance[source] = waiting[source] = 0.0
            while True:
                here = np.argmin(waiting)
                nearest = waiting[here]
                waiting[here] = np.inf
                settled[here] = True
                if here == sink:
                    for node in range(k):
                        way = nearest + max(price[node] - price[sink], 0.0)
                        if extra[node] and way < distance[node]:
                            distance[node], waiting[node], previous[node] = way, way, sink
                    continue
                if sizes[here] < low + extra[here]:
                    break
                if not listed[here]:
                    listed[here] = True
                    member = head[here]
                    while member >= 0:
                        _offer(member, here, costs, moves, values, known, bound, edge)
                        member = following[member]
                for node in range(k):
                    way = nearest + max(edge[here, node] + price[node] - price[here], 0.0)
                    if way < distance[node]:
                        distance[node], waiting[node], previous[node] = way, way, here
                if larger and not extra[here]:
                    way = nearest + max(price[sink] - price[here], 0.0)
                    if way < distance[sink]:
                        distance[sink], waiting[sink], previous[sink] = way, way, here
            for node in range(k + 1):
                if settled[node]:
                    price[node] += nearest - distance[node]
            # Move a point along every edge of the path, from its end to its beginning.
            node = int(here)
            while node != source:
                origin = previous[node]
                if node == sink:
                    extra[origin] = True
                elif origin == sink:
                    extra[node] = False
                else:
                    point = moves[origin, node, known[origin, node] - 1]
                    labels[point] = node
                    _unlink(point, origin, head, following, before)
                    _withdraw(origin, labels, costs, head, following, moves, values, known, bound, edge)
                    _link(point, node, head, following, before)
                    if listed[node]:
                        _offer(point, node, costs, moves, values, known, bound, edge)
                    sizes[origin] -= 1
                    sizes[node] += 1
                node = origin
    prices[:] = price[:k]


@numba.njit(nogil=True, cache=True)
def _link(point, cluster, head, following, before):  # type: ignore[no-untyped-def]
    first = head[cluster]
    following[point], before[point] = first, -1
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
def _offer(point, cluster, costs, moves, values, known, bound, edge):  # type: ignore[no-untyped-def]
    """List the moves of a member of a cluster where they are among the cheapest."""
    own = costs[point, cluster]
    for goal in range(costs.shape[1]):
        value = costs[point, goal] - own
        if value < bound[cluster, goal] and goal != cluster:
            _list(point, value, cluster, goal, moves, values, known, bound)
            edge[cluster, goal] = values[cluster, goal, known[cluster, goal] - 1]


@numba.njit(nogil=True, cache=True)
def _withdraw(cluster, labels, costs, head, following, moves, values, known, bound, edge):  # type: ignore[no-untyped-def]
    """After a point has left a cluster: take it off the lists, and search again where nothing is left on them."""
    for goal in range(costs.shape[1]):
        if goal == cluster:
            continue
        count = known[cluster, goal]
        while count > 0 and labels[moves[cluster, goal, count - 1]] != cluster:
            count -= 1
        known[cluster, goal] = count
        if count == 0:
            bound[cluster, goal] = np.inf
            member = head[cluster]
            while member >= 0:
                value = costs[member, goal] - costs[member, cluster]
                if value < bound[cluster, goal]:
                    _list(member, value, cluster, goal, moves, values, known, bound)
                member = following[member]
        count = known[cluster, goal]
        edge[cluster, goal] = values[cluster, goal, count - 1] if count else np.inf


@numba.njit(nogil=True, cache=True)
def _list(point, value, cluster, goal, moves, values, known, bound):  # type: ignore[no-untyped-def]
    """Put a move that is cheaper than the bound into its list, at its place; a full list loses its dearest."""
    moves, values, count = moves[cluster, goal], values[cluster, goal], known[cluster, goal]
    if count == _KEPT:
        place = 0
        while place + 1 < count and values[place + 1] > value:
            moves[place], values[place] = moves[place + 1], values[place + 1]
            place += 1
    else:
        place = count
        while place > 0 and values[place - 1] <= value:
            moves[place], values[place] = moves[place - 1], values[place - 1]
            place -= 1
        known[cluster, goal] = count + 1
    moves[place], values[place] = point, value
    if known[cluster, goal] == _KEPT:
        bound[cluster, goal] = values[0]
