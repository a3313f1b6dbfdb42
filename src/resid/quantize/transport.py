"""Balanced assignment: every point to one of k clusters whose sizes differ by at most one, at minimum total cost.

This is a transport problem whose dual has one price per cluster: at the optimal prices, each point takes the cluster with the
lowest cost plus price, and the sizes are balanced. At any prices, these choices are optimal for the sizes that result. From
there, points move one by one from clusters that are too large to clusters that are too small, along shortest paths in the graph
of clusters, which keeps the assignment optimal for its sizes (successive shortest paths). So the result is exact, and the better
the initial prices, the fewer paths are needed. In k-means, centers move little, so the prices of one iteration initialize the
next. If the prices are poor, they are first found on a sample of the points.

With n points, choosing clusters and listing the cheapest moves reads the (n, k) costs once each; a path takes about k² operations
at most, independent of n. Shortest paths are loops that neither NumPy nor PyTorch can express, hence Numba.
"""

import numba
import numpy as np
from numpy.typing import NDArray

_KEPT = 6  # number of cheapest moves stored for every pair of clusters, so that clusters are rarely searched again
_PART = 128  # minimum number of points per cluster for finding prices on a sample first
_FAR = 32  # a sample is used if more than one in this many points is in a cluster that is too large


@numba.njit(nogil=True, cache=True)
def balanced_assignment(
    costs: NDArray[np.float32], points: int, prices: NDArray[np.float64], labels: NDArray[np.int32]
) -> float:
    """Assign points to clusters whose sizes differ by at most one, at minimum total cost.

    Parameters
    ----------
    costs
        Shape (at least points, k); rows after the first `points` are ignored.
    points
        Number of points, at least k.
    prices
        Initial prices, shape (k,); overwritten by the prices of the solution.
    labels
        Output: the cluster of every point, shape (at least points,).

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
    """Return a stride coprime to the number of points, near the golden ratio, so that its multiples spread evenly."""
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
    """Assign every point to its cheapest cluster at these prices; return the sizes."""
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
    sink = k  # a node through which clusters exchange the right to have one more point
    price = np.zeros(k + 1)
    price[:k] = prices
    rank = np.argsort(-prices)
    extra = np.zeros(k, np.bool_)  # clusters with one more point: those with the highest prices
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

    # The cheapest moves from cluster a to cluster b, in descending order, listed when a path first reaches a.
    listed = np.zeros(k, np.bool_)
    moves = np.empty((k, k, _KEPT), np.int64)
    values = np.empty((k, k, _KEPT), np.float32)
    known = np.zeros((k, k), np.int64)
    bound = np.full((k, k), np.float32(np.inf))  # moves that are not listed cost at least this
    edge = np.full((k, k), np.inf)  # the value of the cheapest move

    distance = np.empty(k + 1)
    waiting = np.empty(k + 1)  # distances of nodes that are reached but not settled
    previous = np.empty(k + 1, np.int64)
    settled = np.empty(k + 1, np.bool_)
    for source in range(k):
        while sizes[source] > low + extra[source]:
            # Dijkstra's algorithm over the clusters; with the prices, reduced costs are not negative.
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
    """Add the moves of a point of a cluster to the lists in which they are among the cheapest."""
    own = costs[point, cluster]
    for goal in range(costs.shape[1]):
        value = costs[point, goal] - own
        if value < bound[cluster, goal] and goal != cluster:
            _list(point, value, cluster, goal, moves, values, known, bound)
            edge[cluster, goal] = values[cluster, goal, known[cluster, goal] - 1]


@numba.njit(nogil=True, cache=True)
def _withdraw(cluster, labels, costs, head, following, moves, values, known, bound, edge):  # type: ignore[no-untyped-def]
    """Remove points that left a cluster from its lists, and rebuild the lists that are empty."""
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
    """Insert a move that is cheaper than the bound into its sorted list; a full list drops its most expensive move."""
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
