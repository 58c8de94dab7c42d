"""RoPE: queries and keys are turned by their positions, so that their products know distances."""

from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .scaling import Frequencies, Scaling, as_written, require

Heads = Float[Tensor, "batch heads tokens dim"]
Table = Float[Tensor, "tokens pairs"] | Float[Tensor, "#batch tokens pairs"]


@dataclass(frozen=True)
class Rope:
    """Turn each pair of channels by an angle that grows with position (Su et al. 2021).

        angle = p · θᵢ,  θᵢ = base^(−2i/dim)               RoFormer, arXiv:2104.09864
        ⟨q turned at i, k turned at j⟩ depends on i − j alone

        half-split    a b c d A B C D       LLaMA, NeoX:  channel i turns with channel i + dim/2
        interleaved   a A b B c C d D       GPT-J:        neighbours turn together

    The leading `dim` channels turn (default: all), the others pass. Angles are float64, so that
    positions in the millions stay exact (a CPU and CUDA have float64, MPS has not). Products are
    float32, or float64 for float64 input; the result has the dtype of the input.

    >>> turn = rope(500_000, dim=2)
    >>> turn
    rope(500000, dim=2)
    >>> turn(torch.tensor([1.0, 0.0, 7.0]).expand(1, 1, 3, 3))
    tensor([[[[ 1.0000,  0.0000,  7.0000],
              [ 0.5403,  0.8415,  7.0000],
              [-0.4161,  0.9093,  7.0000]]]])
    """

    base: float = 10_000.0
    _: KW_ONLY
    dim: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None
    __repr__ = as_written

    def __post_init__(self):
        require(self.base > 1, "base must be above 1; models use 10000 and more", self)
        even = self.dim is None or (self.dim > 0 and self.dim % 2 == 0)
        require(even, "dim must be even and above 0, for channels turn in pairs; change it", self)

    def __call__(
        self,
        x: Heads,
        positions: Int[Tensor, " tokens"] | Int[Tensor, "#batch tokens"] | None = None,
        offset: int | Int[Tensor, " batch"] = 0,
    ) -> Heads:
        """Turn x at the positions given, or counted from offset (an int, or one a batch row)."""
        _check_input(x)
        if positions is None:
            positions = stand(torch.arange(x.shape[-2], device=x.device), offset)
        elif isinstance(offset, Tensor) or offset != 0:
            raise ValueError(
                "positions came with an offset; add it to them, or let the offset count alone.\n"
                f"  positions {tuple(positions.shape)}  offset {offset}"
            )
        _check_rows(x, positions.shape, "positions", "(tokens,) or (batch, tokens)")
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self.tables(positions.to(x.device), x.shape[-1], wide)
        return rotate(x, cos, sin, interleaved=self.interleaved)

    def tables(
        self, positions: Int[Tensor, "*shape"], head_dim: int, dtype: torch.dtype = torch.float32
    ) -> tuple[Float[Tensor, "*shape pairs"], Float[Tensor, "*shape pairs"]]:
        """Cosines and sines of all angles: compute them once, `rotate` with them in every layer."""
        if positions.is_floating_point():
            raise ValueError(
                "positions must be integers; round or cast them.\n"
                f"  positions {positions.dtype} {tuple(positions.shape)}"
            )
        angles = positions.double().unsqueeze(-1) * self.frequencies(head_dim, positions.device)
        cos, sin = angles.cos(), angles.sin()  # (*shape, pairs)
        if self.scaling is not None:
            cos, sin = cos * self.scaling.amplitude, sin * self.scaling.amplitude
        return cos.to(dtype), sin.to(dtype)

    def frequencies(self, head_dim: int, device: torch.device | str | None = None) -> Frequencies:
        """θᵢ of each pair in radians a position, after scaling."""
        dim = head_dim if self.dim is None else self.dim
        if dim % 2 or dim > head_dim:
            raise ValueError(
                f"rope turns {dim} channels but a head has {head_dim}; "
                "give an even dim of at most that.\n"
                f"  {self}  head_dim {head_dim}"
            )
        pair = torch.arange(0, dim, 2, dtype=torch.float64, device=device)
        frequencies = self.base ** (-pair / dim)
        return frequencies if self.scaling is None else self.scaling(frequencies, self.base)


rope = Rope


def rotate(x: Heads, cos: Table, sin: Table, *, interleaved: bool = False) -> Heads:
    """Turn the leading 2·pairs channels of x by tables of cosines and sines, and pass the others.

        (a, A)  ↦  (a·cos − A·sin,  A·cos + a·sin)

    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 1, 1, 5)
    >>> quarter = {"cos": torch.zeros(1, 2), "sin": torch.ones(1, 2)}
    >>> rotate(x, **quarter)
    tensor([[[[-3., -4.,  1.,  2.,  5.]]]])
    >>> rotate(x, **quarter, interleaved=True)
    tensor([[[[-2.,  1., -4.,  3.,  5.]]]])
    """
    _check_input(x)
    _check_rows(x, cos.shape[:-1], "cos", "(tokens, pairs) or (batch, tokens, pairs)")
    pairs, dim = cos.shape[-1], x.shape[-1]
    if cos.shape != sin.shape or 2 * pairs > dim:
        raise ValueError(
            "cos and sin must be alike, and x must have two channels a pair; see Rope.tables.\n"
            f"  x {tuple(x.shape)}  cos {tuple(cos.shape)}  sin {tuple(sin.shape)}"
        )
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # (#batch, 1, tokens, pairs)
    split, axis = ((pairs, 2), -1) if interleaved else ((2, pairs), -2)
    wide = x[..., : 2 * pairs].to(torch.promote_types(x.dtype, torch.float32))
    a, b = wide.unflatten(-1, split).unbind(axis)  # (batch, heads, tokens, pairs) each
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), axis).flatten(-2).to(x.dtype)
    return turned if 2 * pairs == dim else torch.cat((turned, x[..., 2 * pairs :]), -1)


def stand(
    index: Int[Tensor, " tokens"], offset: int | Int[Tensor, " batch"]
) -> Int[Tensor, "#batch tokens"]:
    """Where tokens stand, by their index and the offset of the first (one, or one a batch row).

    >>> stand(torch.arange(3), 5), stand(torch.arange(3), torch.tensor([0, 5]))
    (tensor([[5, 6, 7]]), tensor([[0, 1, 2], [5, 6, 7]]))
    """
    if isinstance(offset, Tensor):
        return index + offset.to(index.device).reshape(-1, 1)
    return (index + offset).unsqueeze(0)


def _check_input(x: Tensor) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(
            "x must be a floating (batch, heads, tokens, dim); reshape or cast it.\n"
            f"  x {x.dtype} {tuple(x.shape)}"
        )


def _check_rows(x: Tensor, rows: torch.Size, name: str, expected: str) -> None:
    batch, _, tokens, _ = x.shape
    if rows[-1:] != (tokens,) or rows[:-1] not in ((), (1,), (batch,)):
        raise ValueError(
            f"{name} must be {expected} as x is; give one position for each token.\n"
            f"  x {tuple(x.shape)}  rows of {name} {tuple(rows)}"
        )
