"""Rung 1: attention in plain Python numbers, one token at a time.

Adds   the whole idea. A token asks a question (its query), every token so far holds up a label
       (its key), and the answer is an average of what they have to say (their values), weighted
       by how well label and question match:

           score = query · key / √head_dim   weights = softmax(scores)   context = Σ weight · value

       Each head does this on its own slice of the numbers. Their contexts are laid end to end,
       and one more matrix mixes them.
Cost   for n tokens of width d: O(n·d² + n²·d) time, the projections and then every token with
       every earlier one; O(n·d) memory, since keys and values are kept (that list is the cache),
       and scores are made for one token at a time.
Limit  one multiplication after another, while any processor can do many at once. The next rung
       takes all tokens together, as matrices.
"""

import math

Vector = list[float]
Matrix = list[Vector]  # a row for each output


def linear(x: Vector, matrix: Matrix) -> Vector:
    """Multiply a matrix and a vector: yᵢ = Σⱼ matrix[i][j] · x[j].

    >>> linear([1.0, 2.0], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    [1.0, 2.0, 3.0]
    """
    return [dot(row, x) for row in matrix]


def dot(a: Vector, b: Vector) -> float:
    """How well two vectors match: the sum of their products, number by number."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores: Vector) -> Vector:
    """Scores to weights: all positive, with the sum 1.

    >>> softmax([0.0, 0.0]), softmax([1000.0, 0.0])
    ([0.5, 0.5], [1.0, 0.0])
    """
    top = max(scores)  # any origin gives the same weights; from this one, exp never overflows
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def attend_one(
    x: Vector, state_dict: dict[str, Matrix], keys: Matrix, values: Matrix, num_heads: int
) -> tuple[Vector, Vector]:
    """Take in one token: (output, context). Its key and value are appended to the lists.

    Below, the first head of the second token finds both tokens alike; the second prefers itself.

    >>> same = [[1.0, 0.0], [0.0, 1.0]]
    >>> state_dict = {f"layer0.attn_w{letter}": same for letter in "qkvo"}
    >>> keys, values = [], []
    >>> attend_one([1.0, 0.0], state_dict, keys, values, num_heads=2)[1]
    [1.0, 0.0]
    >>> attend_one([0.0, 1.0], state_dict, keys, values, num_heads=2)[1]
    [0.5, 0.731...]
    """
    query = linear(x, state_dict["layer0.attn_wq"])
    if num_heads < 1 or len(query) % num_heads:
        raise ValueError(
            "num_heads must be at least 1 and divide the width; change one of them.\n"
            f"  width {len(query)}  num_heads {num_heads}"
        )
    keys.append(linear(x, state_dict["layer0.attn_wk"]))
    values.append(linear(x, state_dict["layer0.attn_wv"]))
    head_dim = len(query) // num_heads
    context = []
    for h in range(num_heads):
        head = slice(h * head_dim, (h + 1) * head_dim)
        weights = softmax([dot(query[head], key[head]) / math.sqrt(head_dim) for key in keys])
        columns = zip(*[value[head] for value in values], strict=True)
        context += [dot(weights, list(column)) for column in columns]
    return linear(context, state_dict["layer0.attn_wo"]), context


def attend_all(xs: Matrix, state_dict: dict[str, Matrix], num_heads: int) -> tuple[Matrix, Matrix]:
    """Take in all tokens in order. No mask is needed: the future has not been appended yet."""
    keys, values = [], []
    steps = [attend_one(x, state_dict, keys, values, num_heads) for x in xs]
    return [output for output, _ in steps], [context for _, context in steps]
