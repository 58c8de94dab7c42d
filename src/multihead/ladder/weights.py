"""One set of weights for every rung, its checks, and how it gets into a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn


def check_heads(name: str, width: int, num_heads: int) -> None:
    """Raise a ValueError unless the width of that name makes so many equal heads."""
    if num_heads < 1 or width % num_heads:
        raise ValueError(
            f"num_heads must be at least 1 and divide {name}; change one of them.\n"
            f"  {name} {width}  num_heads {num_heads}"
        )


def check_x(x: Tensor, d_in: int, parameter: Tensor) -> None:
    """Raise a ValueError unless x is one text or several, of the width and kind of the weights."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"x must be a tensor; make it one with torch.tensor.\n  came {type(x).__name__}"
        )
    if x.ndim not in (2, 3) or x.shape[-1] != d_in:
        raise ValueError(
            "x must be (tokens, d_in) or (batch, tokens, d_in); reshape it, or carry weights of "
            f"its width.\n  x {tuple(x.shape)}  d_in {d_in}"
        )
    if (x.dtype, x.device) != (parameter.dtype, parameter.device):
        raise ValueError(
            "x must have the dtype and the device of the weights; convert it with x.to, or carry "
            f"weights of its own.\n  x {x.dtype} on {x.device}  "
            f"weights {parameter.dtype} on {parameter.device}"
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """The matrices of multi-head attention, as `nn.Linear` keeps them: a row for each output.

    Head h owns the rows `[h * head_dim : (h + 1) * head_dim]` of query, key and value. No bias is
    the same as a bias of 0.

    >>> weights = Weights.random(d_in=5, d_out=6, num_heads=2)
    >>> weights.query.shape, weights.out.shape, weights.head_dim
    (torch.Size([6, 5]), torch.Size([6, 6]), 3)
    """

    query: Float[Tensor, "d_out d_in"]
    key: Float[Tensor, "d_out d_in"]
    value: Float[Tensor, "d_out d_in"]
    out: Float[Tensor, "d_out d_out"]
    num_heads: int
    query_bias: Float[Tensor, " d_out"] | None = None
    key_bias: Float[Tensor, " d_out"] | None = None
    value_bias: Float[Tensor, " d_out"] | None = None
    out_bias: Float[Tensor, " d_out"] | None = None

    @classmethod
    def random(
        cls, d_in: int, d_out: int, num_heads: int, *, bias: bool = False, seed: int = 0
    ) -> Weights:
        """Seeded float64 weights: they show the mechanics, and mean nothing."""
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            numbers = torch.randn(shape, dtype=torch.float64, generator=generator)
            return numbers / shape[-1] ** 0.5

        matrices = {name: draw(d_out, d_in) for name in ("query", "key", "value")}
        matrices["out"] = draw(d_out, d_out)
        biases = {f"{name}_bias": draw(d_out) for name in matrices} if bias else {}
        return cls(num_heads=num_heads, **matrices, **biases)

    def __post_init__(self) -> None:
        check_heads("d_out", self.d_out, self.num_heads)
        wide, square, long = (self.d_out, self.d_in), (self.d_out, self.d_out), (self.d_out,)
        for name, shape in {"key": wide, "value": wide, "out": square}.items():
            self._check(name, getattr(self, name), shape)
        for name, bias in self.biases.items():
            self._check(name, bias, long)

    def _check(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise ValueError(
                f"{name} must be {shape} beside this query; give both for one d_in and d_out.\n"
                f"  query {tuple(self.query.shape)}  {name} {tuple(tensor.shape)}"
            )

    @property
    def d_in(self) -> int:
        return self.query.shape[1]

    @property
    def d_out(self) -> int:
        return self.query.shape[0]

    @property
    def head_dim(self) -> int:
        return self.d_out // self.num_heads

    @property
    def biases(self) -> dict[str, Tensor]:
        """The biases that are there, by name."""
        names = ("query_bias", "key_bias", "value_bias", "out_bias")
        return {name: bias for name in names if (bias := getattr(self, name)) is not None}

    @property
    def qkv_bias(self) -> bool:
        """Whether query, key or value has a bias."""
        return bool(self.biases.keys() - {"out_bias"})

    def fill(self, rows: slice = slice(None), **layers: nn.Linear) -> None:
        """Copy these rows into the layers that are named: query=, key=, value=, out=."""
        for name, layer in layers.items():
            layer.weight.data.copy_(getattr(self, name)[rows])
            if layer.bias is not None:
                bias = self.biases.get(f"{name}_bias", torch.zeros(self.d_out))
                layer.bias.data.copy_(bias[rows])
