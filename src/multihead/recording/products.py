"""What a product of two tensors, or an einsum of several, sums over."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def sums_over(
    equation: Any, operands: list[Tensor], at: int, other: Tensor, sizes: frozenset[int]
) -> bool:
    """Whether operand number `at` and `other` are summed over an axis of one of these sizes.

    >>> import torch
    >>> weights, values = torch.ones(1, 5, 7), torch.ones(1, 7, 4)
    >>> sums_over(None, [weights, values], 0, values, frozenset([7]))
    True
    >>> sums_over("bij,bjd->bijd", [weights, values], 0, values, frozenset([7]))
    False
    """
    if equation is not None:
        return isinstance(equation, str) and _einsum(equation, operands, at, other, sizes)
    shape = operands[at].shape
    return (shape[-1] if at == 0 else shape[max(-2, -len(shape))]) in sizes


def _einsum(
    equation: str, operands: list[Tensor], at: int, other: Tensor, sizes: frozenset[int]
) -> bool:
    terms, _, out = equation.replace(" ", "").replace("...", "").partition("->")
    if "->" not in equation:
        out = "".join(letter for letter in terms if terms.count(letter) == 1)
    letters = terms.split(",")
    ours = dict(zip(reversed(letters[at]), reversed(operands[at].shape), strict=False))
    return any(
        ours[letter] in sizes
        for i, (term, tensor) in enumerate(zip(letters, operands, strict=False))
        if tensor is other and i != at
        for letter in {*letters[at]} & {*term} - {*out}
    )
