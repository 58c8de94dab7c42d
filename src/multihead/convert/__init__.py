"""Weights in and out: other people's attention modules as `MultiHeadAttention`, and back.

Each family packs the same three matrices its own way, and this is where that is known.

    here                    qkv [Q; K; V]            rows of one Linear, heads side by side
                            q, kv [K; V]             with d_context
    nn.MultiheadAttention   in_proj_weight [Q; K; V]; q_, k_ and v_proj_weight with kdim or vdim
    GPT-2                   c_attn [Q | K | V]       transposed: columns, not rows
    LLaMA and kin           q_proj, k_proj, v_proj   k and v with fewer heads
    BERT                    query, key, value        the way out lies in another module

Weights are copied, each with its dtype, its device and whether it is trained. What a layer cannot
carry is an error, never left out in silence.
"""

from .torch import from_torch, masks_from_torch, to_torch
from .transformers import from_transformers

__all__ = ["from_torch", "from_transformers", "masks_from_torch", "to_torch"]
