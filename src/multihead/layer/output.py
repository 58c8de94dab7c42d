"""How much a key moves the output of its layer: the norm of v W_O (Kobayashi et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.problem import exact
from ..observation import expect, received
from ..observation.statistics import Statistic, Stats

if TYPE_CHECKING:
    from . import MultiHeadAttention


def with_output(
    layer: MultiHeadAttention, value: Tensor, stats: Stats
) -> tuple[str | Statistic, ...]:
    """The statistics asked, with those that need W_O made out of their names."""
    if isinstance(stats, str | Statistic):
        stats = (stats,)
    if not isinstance(stats, Iterable):
        return stats  # `observe` says what is wrong with it
    stats = tuple(stats)
    if "output_norm" not in stats and "received_output" not in stats:
        return stats
    moved = output_norms(layer, value)
    known: dict[str, Statistic] = {
        "output_norm": expect(moved, name="output_norm"),
        "received_output": received(moved, name="received_output"),
    }
    return tuple(known.get(s, s) if isinstance(s, str) else s for s in stats)


@torch.no_grad()
def output_norms(layer: MultiHeadAttention, value: Tensor) -> Float[Tensor, "batch heads keys"]:
    """‖v W_O‖ of every key for each query head, its gate included, without making v W_O.

    ‖v W‖² = v (W Wᵀ) vᵀ, and W Wᵀ is only (v_head_dim, v_head_dim).
    """
    value = value.to(exact(value.dtype))
    columns = layer.out.weight.unflatten(1, (layer.num_heads, -1)).to(value.dtype)
    gram = torch.einsum("ohi,ohj->hij", columns, columns)  # (heads, v_head_dim, v_head_dim)
    value = value.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1)
    norms = torch.einsum("bhki,hij,bhkj->bhk", value, gram, value).clamp(min=0).sqrt()
    return norms if layer.head_gate is None else norms * layer.head_gate.abs()[:, None]
