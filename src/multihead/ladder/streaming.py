"""Rung 5: the softmax as a running sum, tile by tile, and no matrix.

Adds   forgetting. A row of scores is needed only for an average, and an average can be kept up to
       date. For each query three things are remembered: the greatest score so far (top), the sum of
       the powers (total) and the weighted sum of the values (mixed). A tile of new scores may bring
       a new top; what was summed before then shrinks to the new origin, and the tile is added:

           new    = max(top, scores)
           shrink = exp(top − new)              powers = exp(scores − new)
           total  = total · shrink + Σ powers
           mixed  = mixed · shrink + powers v

       At the end out = mixed / total, exactly the softmax average, and lse = top + log total. With
       lse alone any weight can be had again later: weight = exp(score − lse).
Cost   O(n²·d) time, and tiles that lie in the future are left out: half of them, for a causal mask.
       O(n·d) memory for q, k, v and out, and one tile for each head: twice the tokens, twice that.
Limit  every small step is a walk to memory and back, led by Python. The next rung is one kernel
       that keeps the tile where the arithmetic is, and has a way back for training.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def stream(
    query: Array, key: Array, value: Array, *, causal: bool = True, tile: int = 64
) -> tuple[Array, Array]:
    """Attention of (heads, tokens, dim) arrays: out (heads, query, dim) and lse (heads, query).

    The queries are the last positions among the keys. A query that may see nothing gets 0 and −inf.

    >>> query = key = np.zeros((1, 3, 2))
    >>> out, lse = stream(query, key, value=np.array([[[3.0], [5.0], [7.0]]]), tile=2)
    >>> out[0, :, 0].tolist(), np.exp(lse).round(6).tolist()
    ([3.0, 4.0, 5.0], [[1.0, 2.0, 3.0]])
    """
    if tile < 1:
        raise ValueError(f"a tile must hold at least 1 token; choose 64, say.\n  tile {tile}")
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    heads, queries, dim = query.shape
    keys = key.shape[1]
    out, lse = np.empty((heads, queries, value.shape[2])), np.empty((heads, queries))
    for i in range(0, queries, tile):
        q = query[:, i : i + tile] / dim**0.5  # (heads, tile, dim)
        rows = np.arange(i, i + q.shape[1]) + keys - queries  # their places among the keys
        top = np.full((heads, len(rows), 1), np.finfo(np.float64).min)  # below every score
        total = np.zeros((heads, len(rows), 1))
        mixed = np.zeros((heads, len(rows), value.shape[2]))
        for j in range(0, keys, tile):
            if causal and j > rows[-1]:
                break  # from here on, all is future
            k, v = key[:, j : j + tile], value[:, j : j + tile]
            scores = q @ k.swapaxes(1, 2)  # (heads, tile, tile)
            if causal:
                columns = np.arange(j, j + k.shape[1])
                scores = np.where(columns > rows[:, None], -np.inf, scores)
            new = np.maximum(top, scores.max(axis=-1, keepdims=True))
            shrink, powers = np.exp(top - new), np.exp(scores - new)
            total = total * shrink + powers.sum(axis=-1, keepdims=True)
            mixed = mixed * shrink + powers @ v
            top = new
        seen = np.where(total > 0, total, 1)
        out[:, i : i + tile] = mixed / seen
        lse[:, i : i + tile] = np.where(total > 0, top + np.log(seen), -np.inf)[..., 0]
    return out, lse
