"""Heads removed for good: their rows of the projections in, their columns of the one out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..positions import Alibi

if TYPE_CHECKING:
    from . import MultiHeadAttention


@torch.no_grad()
def prune(layer: MultiHeadAttention, heads: Iterable[int]) -> None:
    """Remove query heads from a layer, in place, and the key heads that nobody reads any more."""
    heads = list(heads)
    if any(type(h) is not int for h in heads):
        raise ValueError(f"prune_heads takes whole numbers, but {heads} came; give head numbers.")
    gone = set(heads)
    stay = [h for h in range(layer.num_heads) if h not in gone]
    if not stay or not gone <= set(range(layer.num_heads)):
        raise ValueError(
            f"prune_heads takes heads from 0 to {layer.num_heads - 1} and must leave one, "
            f"but {sorted(gone)} came."
        )
    group = layer.num_heads // layer.num_kv_heads
    reads = [h // group for h in stay]  # the key head of each query head that stays
    kv_stay = sorted(set(reads))
    if any(reads.count(kv) * len(kv_stay) != len(stay) for kv in kv_stay):
        kv_stay = reads  # uneven groups: each query head gets a copy of its key head

    q_size, k_size = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    queries = _places(stay, layer.head_dim)
    keys = _places(kv_stay, layer.head_dim)
    values = [k_size + place for place in _places(kv_stay, layer.v_head_dim)]
    if layer.d_context is None:
        _keep(layer.qkv, queries + [q_size + place for place in keys + values], dim=0)
    else:
        _keep(layer.q, queries, dim=0)
        _keep(layer.kv, keys + values, dim=0)
    _keep(layer.out, _places(stay, layer.v_head_dim), dim=1)

    if layer.sinks is not None:
        layer.sinks = nn.Parameter(layer.sinks[stay], layer.sinks.requires_grad)
    gate = layer.head_gate
    if gate is not None:
        kept = gate[stay]
        trained = isinstance(gate, nn.Parameter)
        layer.head_gate = nn.Parameter(kept, gate.requires_grad) if trained else kept
    if layer.alibi is not None:
        layer.alibi = Alibi(layer.alibi.slopes[stay])
    layer.num_heads, layer.num_kv_heads = len(stay), len(kv_stay)


def _places(heads: list[int], size: int) -> list[int]:
    """The channels of these heads, where heads lie side by side."""
    return [head * size + channel for head in heads for channel in range(size)]


def _keep(module: nn.Linear, places: list[int], dim: int) -> None:
    """Let a linear map keep some of its rows (outputs, dim 0) or columns (inputs, dim 1)."""
    index = torch.tensor(places, device=module.weight.device)
    module.weight = nn.Parameter(
        module.weight.index_select(dim, index), module.weight.requires_grad
    )
    if module.bias is not None and dim == 0:
        module.bias = nn.Parameter(module.bias[index], module.bias.requires_grad)
    module.out_features, module.in_features = module.weight.shape
