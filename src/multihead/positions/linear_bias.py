"""ALiBi: a score falls with the distance between query and key, and needs no position embedding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .rotary import stand


@dataclass(frozen=True, eq=False)
class Alibi:
    """Lower each score by its distance, in each head at its own slope (Press et al. 2022).

        biasᵢⱼ = −slope · |pᵢ − j|,  pᵢ = i + offset the place of query i among the keys

    Train Short, Test Long: arXiv:2108.12409. The bias is never built whole: `values` answers for a
    tile of query and key indices, from integer distances, and passes gradients to the slopes.

    >>> alibi([0.5]).values(torch.arange(2), torch.arange(4), offset=2)
    tensor([[[[-1.0000, -0.5000,  0.0000, -0.5000],
              [-1.5000, -1.0000, -0.5000,  0.0000]]]])
    """

    slopes: Float[Tensor, " heads"]

    def values(
        self,
        query: Int[Tensor, " query"],
        key: Int[Tensor, " key"],
        offset: int | Int[Tensor, " batch"] = 0,
    ) -> Float[Tensor, "#batch heads query key"]:
        """The bias of these queries on these keys, in float32 (float64 for float64 slopes)."""
        wide = torch.promote_types(self.slopes.dtype, torch.float32)
        slopes = self.slopes.to(query.device, wide)[:, None, None]  # (heads, 1, 1)
        distance = (stand(query, offset).unsqueeze(-1) - key).abs()  # (#batch, query, key)
        return slopes * -distance.unsqueeze(-3)

    def check(self, heads: int) -> None:
        """Raise a ValueError unless there is one slope for each query head."""
        if len(self.slopes) != heads:
            raise ValueError(
                f"alibi has {len(self.slopes)} slopes but query has {heads} heads; "
                f"give one slope a head, or alibi({heads}) for the paper's.\n  {self}"
            )

    def to(self, device: torch.device | str) -> "Alibi":
        """The same bias with its slopes on `device`."""
        return Alibi(self.slopes.to(device))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Alibi):
            return NotImplemented
        a, b = self.slopes, other.slopes
        return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)

    def __hash__(self) -> int:
        return hash((Alibi, tuple(self.slopes.shape)))  # equal ones hash alike, and no data is read

    def __repr__(self) -> str:
        if len(self.slopes) > 8:
            return f"alibi(<{len(self.slopes)} slopes>)"
        return f"alibi([{', '.join(f'{slope:.6g}' for slope in self.slopes.tolist())}])"


def alibi(slopes: int | Sequence[float] | Float[Tensor, " heads"]) -> Alibi:
    """ALiBi with these slopes, one a query head; an int asks for the paper's, for so many heads.

        2^(−8/n), 2^(−16/n), … 2^(−8); if n is not a power of two: those of the power below it,
        then the first, third, … of the power above it

    >>> alibi(2), alibi(3)
    (alibi([0.0625, 0.00390625]), alibi([0.0625, 0.00390625, 0.25]))
    """
    if isinstance(slopes, int):
        slopes = _slopes_of_the_paper(slopes)
    if not isinstance(slopes, Tensor):
        slopes = torch.tensor(slopes, dtype=torch.float32)
    if slopes.ndim != 1 or not slopes.is_floating_point():
        raise ValueError(
            "slopes must be floating (heads,); give one for each query head.\n"
            f"  slopes {slopes.dtype} {tuple(slopes.shape)}"
        )
    return Alibi(slopes)


def _slopes_of_the_paper(heads: int) -> list[float]:
    if heads < 1:
        raise ValueError(f"alibi needs 1 head or more; give their number or slopes.\n  got {heads}")
    below = 1 << (heads.bit_length() - 1)  # the power of two at or below
    exponents = [8 * i / below for i in range(1, below + 1)]
    exponents += [8 * i / (2 * below) for i in range(1, 2 * below, 2)]
    return [2.0**-exponent for exponent in exponents[:heads]]
